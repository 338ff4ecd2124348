"""Write the Go module that pins one Kubernetes version: `python pin.py 1.36.3` (then commit go.mod and go.sum).

Kubernetes' own go.mod requires its staging modules at v0.0.0 and replaces them by folders, which only works in
its own tree. Whoever builds it as a dependency has to replace each by the release that belongs to it (v0.36.3).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


def go_mod(version: str, upstream: str) -> str:
    """The text of go.mod for Kubernetes `version` (1.36.3), given the text of Kubernetes' own go.mod."""
    staging = sorted(set(re.findall(r"^\s*(k8s\.io/\S+) v0\.0\.0$", upstream, re.MULTILINE)))
    minor = version.split(".", 1)[1]
    go = re.search(r"^go (\S+)$", upstream, re.MULTILINE)
    assert go is not None, "Kubernetes' go.mod names no Go version"
    tools = "".join(f"\tk8s.io/kubernetes/cmd/{command}\n" for command in COMMANDS)
    replaces = "".join(f"\t{module} => {module} v0.{minor}\n" for module in staging)
    return (
        f"module poolshift.dev/tests/real/kubernetes-{version.rsplit('.', 1)[0]}\n\n"
        f"go {go[1]}\n\n"
        f"tool (\n{tools})\n\n"
        f"require k8s.io/kubernetes v{version}\n\n"
        f"replace (\n{replaces})\n"
    )


def main(version: str) -> None:
    folder = Path(__file__).parent / f"kubernetes-{version.rsplit('.', 1)[0]}"
    folder.mkdir(exist_ok=True)
    answer = subprocess.run(
        ["go", "mod", "download", "-json", f"k8s.io/kubernetes@v{version}"], check=True, capture_output=True
    )
    upstream = Path(json.loads(answer.stdout)["GoMod"]).read_text()
    (folder / "go.mod").write_text(go_mod(version, upstream))
    (folder / "go.sum").unlink(missing_ok=True)
    subprocess.run(["go", "mod", "tidy"], cwd=folder, check=True)


if __name__ == "__main__":
    main(sys.argv[1])
