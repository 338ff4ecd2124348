"""Build the operators that tests/real runs into the cache: `python tests/real/binaries/build_operators.py [NAME ...]`.

The versions are what the go.mod of each pins. A second run finds them and builds nothing. Ten to twenty minutes on two
cores for the first of a module; the others of the same share most of it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.real.operators import OPERATORS, Operator


def build(operator: Operator) -> None:
    """Its programs and the manifests that go with them; the folder appears as a whole or not at all."""
    operator.folder.parent.mkdir(parents=True, exist_ok=True)
    where = operator.module_file.parent
    with tempfile.TemporaryDirectory(dir=operator.folder.parent, prefix=".building-") as name:
        making = Path(name)
        print(f"building {operator.name} {operator.version}: some minutes, once", flush=True)
        for program, package in operator.programs.items():
            flags = ["-mod=readonly", "-trimpath", "-ldflags", "-s -w", "-o", str(making / program)]
            subprocess.run(["go", "build", *flags, package], cwd=where, check=True)
        listed = ["go", "mod", "download", "-json", f"{operator.module}@v{operator.version}"]
        found = subprocess.run(listed, cwd=where, check=True, capture_output=True).stdout
        source = Path(json.loads(found)["Dir"])
        for target, pattern in (("crds.yaml", operator.crds), ("webhooks.yaml", operator.webhooks)):
            if pattern:
                texts = [path.read_text() for path in sorted(source.glob(pattern))]
                (making / target).write_text("\n---\n".join(texts))
        making.chmod(0o755)
        shutil.rmtree(operator.folder, ignore_errors=True)
        making.rename(operator.folder)
        making.mkdir()  # the context manager removes what it made


def main(names: list[str]) -> None:
    """Build what is missing of those named, or of all."""
    if shutil.which("go") is None:
        sys.exit("operators: no Go; next: install go 1.21 or newer, or leave their tests out: they skip themselves")
    for operator in (OPERATORS[name] for name in names or OPERATORS):
        if not operator.is_built:
            build(operator)
        print(f"{operator.name} {operator.version}: {operator.folder}")


if __name__ == "__main__":
    main(sys.argv[1:])
