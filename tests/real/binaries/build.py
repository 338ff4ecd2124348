"""Build etcd and one version of the control plane into the cache: `python tests/real/binaries/build.py [1.36|1.34]`.

A second run finds them and builds nothing. The versions are what the go.mod files beside this one pin. With a
KUBEBUILDER_ASSETS folder there is nothing to do. Takes about 6 minutes on two cores for the first version.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from infra.sandbox.real.binaries import NAMES, MissingBinaries, cache_folder, find

HERE = Path(__file__).parent
MINORS = ("1.36", "1.34")


def pinned_version(minor: str) -> str:
    """The full version that kubernetes-<minor>/go.mod requires."""
    text = (HERE / f"kubernetes-{minor}" / "go.mod").read_text()
    match = re.search(r"^\s*(?:require )?k8s\.io/kubernetes v([\d.]+)", text, re.MULTILINE)
    assert match is not None, f"kubernetes-{minor}/go.mod requires no k8s.io/kubernetes"
    return match[1]


def linker_flags(version: str) -> str:
    """Without these a server calls itself `v0.0.0-master+$Format:%H$`, which kubectl cannot read."""
    major, minor, _ = version.split(".")
    names = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    settings = (f"-X k8s.io/component-base/version.{name}={value}" for name, value in names.items())
    return " ".join(["-s -w", *settings])


def build(minor: str, folder: Path) -> None:
    """Compile the four binaries into `folder`, which appears as a whole or not at all."""
    _need_go()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as name:
        making = Path(name)
        print(f"building etcd and Kubernetes {pinned_version(minor)}: some minutes, once", flush=True)
        _go(HERE / "etcd", ["-o", str(making / "etcd"), "go.etcd.io/etcd/server/v3"])
        flags = linker_flags(pinned_version(minor))
        _go(HERE / f"kubernetes-{minor}", ["-ldflags", flags, "-o", f"{making}/", "tool"])
        making.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        making.rename(folder)
        making.mkdir()  # the context manager removes what it made


def _need_go() -> None:
    """Go 1.21 or newer, which fetches the release that a go.mod names; older ones cannot even read it."""
    found = (
        subprocess.run(["go", "version"], capture_output=True, text=True, check=False) if shutil.which("go") else None
    )
    said = found.stdout.strip() if found else "no Go"
    match = re.search(r"go1\.(\d+)", said)
    if match is None or int(match[1]) < 21:
        _give_up(said, "go 1.21 or newer on PATH, to build " + ", ".join(NAMES), "install it")


def _go(module: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        ["go", "build", "-mod=readonly", *arguments], cwd=module, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        _give_up(f"go build in {module}: {last[:300]}", "a build", "see to that (GOPROXY serves the modules)")


def _give_up(observed: str, expected: str, remedy: str) -> NoReturn:
    """One line: what is missing and how to get it."""
    sys.exit(
        f"real control plane: {observed}; expected {expected}; "
        f"next: {remedy}, or point KUBEBUILDER_ASSETS at a folder that holds the binaries"
    )


def main(arguments: list[str]) -> None:
    """Build what is missing and print the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "minor", nargs="?", choices=MINORS, help=f"default: what KUBEBUILDER_ASSETS holds, or {MINORS[0]}"
    )
    wanted = parser.parse_args(arguments).minor
    minor = wanted or MINORS[0]
    version = pinned_version(minor)
    folder = cache_folder(version)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two checkouts share the cache
        try:
            found = find(wanted if "KUBEBUILDER_ASSETS" in os.environ else version)
        except MissingBinaries as missing:
            if "KUBEBUILDER_ASSETS" in os.environ:
                sys.exit(str(missing))
            build(minor, folder)
            found = find(version)
    print(f"Kubernetes {found.version}: {found.folder}")


if __name__ == "__main__":
    main(sys.argv[1:])
