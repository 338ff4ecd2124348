"""Versions of clusters and plugins, as far as a plan compares them."""

from __future__ import annotations

import re

AUTO_PROFILE = (1, 34, 1, 1829001)  # knows accelerator_network_profile=auto (managed DRANET)
LUSTRE = (1, 33, 2, 1111000)  # knows Managed Lustre


def release(text: str) -> tuple[int, ...] | None:
    """The numbers at the head of a version: v0.5.20-eksbuild.1 gives (0, 5, 20), 1.33 (1, 33); None without any."""
    match = re.match(r"v?(\d+(?:\.\d+)+)(?=$|[-+_])", text)
    return tuple(int(part) for part in match[1].split(".")) if match else None


def gke_version(text: str) -> tuple[int, int, int, int] | None:
    """As a comparable tuple: 1.34.1-gke.1829001 gives (1, 34, 1, 1829001); None when it is written otherwise."""
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)-gke\.(\d+)", text)
    if match is None:
        return None
    major, minor, patch, build = (int(part) for part in match.groups())
    return major, minor, patch, build
