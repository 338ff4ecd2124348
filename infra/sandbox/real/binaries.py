"""Where the four binaries are: the folder that KUBEBUILDER_ASSETS names, else the cache that the build fills.

Whoever has such a folder needs no Go. Nothing here downloads or builds.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.errors import PoolshiftError

DEFAULT_VERSION = "1.36.3"
NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
OLDEST = (1, 31)
"""The first version with budgets' unhealthyPodEvictionPolicy and sidecars as this product relies on them."""


class MissingBinaries(PoolshiftError):
    """There is no usable folder of control plane binaries; the message says how to get one."""


@dataclass(frozen=True, kw_only=True)
class Binaries:
    """A folder with the four binaries, all of one Kubernetes version ("1.36.3")."""

    folder: Path
    version: str

    def path(self, name: str) -> str:
        """The file of one of NAMES."""
        return str(self.folder / name)


def cache_folder(version: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the build puts `version` (full, "1.36.3"): outside the checkout, shared by all of them."""
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "poolshift" / "control-plane" / version


def find(version: str | None = None, environ: Mapping[str, str] = os.environ) -> Binaries:
    """The binaries for `version`: full ("1.36.3"), a minor ("1.34", then the newest built one), or None for
    POOLSHIFT_REAL_VERSION, else what KUBEBUILDER_ASSETS holds, else DEFAULT_VERSION.

    Raises MissingBinaries when a file is missing or says another version than asked for.
    """
    assets = environ.get("KUBEBUILDER_ASSETS")
    version = version or environ.get("POOLSHIFT_REAL_VERSION")
    folder = Path(assets) if assets else _cached(version or DEFAULT_VERSION, environ)
    missing = [name for name in NAMES if not os.access(folder / name, os.X_OK)]
    if missing:
        raise MissingBinaries(
            "real control plane",
            f"{', '.join(missing)} not found in {folder}",
            expected=f"a folder with {', '.join(NAMES)}",
            remedy=(
                "add them there, or unset KUBEBUILDER_ASSETS"
                if assets
                else "`make control-plane` (needs Go, minutes, once), or point KUBEBUILDER_ASSETS at such a folder"
            ),
        )
    return Binaries(folder=folder, version=_agreed_version(folder, version))


def _cached(version: str, environ: Mapping[str, str]) -> Path:
    """The cache folder of a full version, or the newest built one of a minor."""
    exact = cache_folder(version, environ)
    if version.count(".") >= 2:
        return exact
    built = [folder for folder in exact.parent.glob(f"{version}.*") if folder.is_dir()]
    return max(built, key=lambda folder: _numbers(folder.name), default=exact)


def _agreed_version(folder: Path, wanted: str | None) -> str:
    versions = {name: reported_version(folder / name) for name in NAMES if name != "etcd"}
    found = versions["kube-apiserver"]
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    if len(set(versions.values())) != 1:
        raise MissingBinaries(
            f"control plane in {folder}", told, expected="one version of all three", remedy="rebuild the folder"
        )
    if wanted and _numbers(found)[: wanted.count(".") + 1] != _numbers(wanted):
        raise MissingBinaries(
            f"control plane in {folder}",
            f"is version {found}",
            expected=wanted,
            remedy="unset KUBEBUILDER_ASSETS, or point it at a folder of that version",
        )
    if _numbers(found)[:2] < OLDEST:
        raise MissingBinaries(
            f"control plane in {folder}",
            f"is version {found}",
            expected=f"{OLDEST[0]}.{OLDEST[1]} or newer",
            remedy="`make control-plane`",
        )
    return found


def reported_version(binary: Path) -> str:
    """What `binary --version` says, without the v. Raises MissingBinaries when it does not run or says nothing."""
    try:
        answer = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingBinaries(
            str(binary), f"does not run: {error}", expected="a binary for this machine", remedy="rebuild it"
        ) from error
    match = re.search(r"v(\d+\.\d+\.\d+)", answer.stdout)
    if match is None:
        raise MissingBinaries(
            str(binary),
            f"calls itself {answer.stdout.strip()!r}",
            expected="a version such as v1.36.3 (kubectl cannot read another)",
            remedy="build it with the version set, as `make control-plane` does",
        )
    return match[1]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
