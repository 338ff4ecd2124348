"""Build Karpenter with its kwok provider into the cache, with its CRDs: `python tests/bench/karpenter/build.py`.

The version is what go.mod beside this file pins. A second run builds nothing. About 4 minutes on two cores.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from infra.sandbox.real.binaries import cache_folder

HERE = Path(__file__).parent
MODULE = "sigs.k8s.io/karpenter"
BINARY, CRDS = "karpenter-kwok", "crds"


def pinned_version() -> str:
    """The version that go.mod requires, without its v."""
    match = re.search(rf"^\s*(?:require )?{MODULE} v([\d.]+)", (HERE / "go.mod").read_text(), re.MULTILINE)
    assert match is not None, f"go.mod requires no {MODULE}"
    return match[1]


def folder() -> Path:
    """Where the build puts it: beside the control planes, outside the checkout."""
    return cache_folder("").parent / "karpenter" / pinned_version()


def build(into: Path) -> None:
    """Compile and copy the CRDs; `into` appears as a whole or not at all."""
    if shutil.which("go") is None:
        sys.exit(f"Karpenter {pinned_version()}: no Go to build it; next: install go 1.26 or newer")
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent, prefix=".building-") as name:
        making = Path(name) / "made"
        (making / CRDS).mkdir(parents=True)
        print(f"building Karpenter {pinned_version()}: some minutes, once", flush=True)
        command = ["go", "build", "-mod=readonly", "-ldflags", "-s -w", "-o", str(making / BINARY), f"{MODULE}/kwok"]
        subprocess.run(command, cwd=HERE, check=True)
        listed = subprocess.run(
            ["go", "list", "-mod=readonly", "-m", "-json", MODULE], cwd=HERE, check=True, stdout=subprocess.PIPE
        )
        source = Path(json.loads(listed.stdout)["Dir"])
        for crd in (*source.glob("pkg/apis/crds/*.yaml"), *source.glob("kwok/apis/crds/*.yaml")):
            (making / CRDS / crd.name).write_bytes(crd.read_bytes())
        making.rename(into)


if __name__ == "__main__":
    if not (folder() / BINARY).exists():
        build(folder())
    print(f"Karpenter {pinned_version()}: {folder()}")
