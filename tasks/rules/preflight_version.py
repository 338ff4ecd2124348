"""GKE versions, as far as preflight compares them."""

from __future__ import annotations

import re

AUTO_PROFILE = (1, 34, 1, 1829001)  # knows accelerator_network_profile=auto (managed DRANET)
LUSTRE = (1, 33, 2, 1111000)  # knows Managed Lustre


def gke_version(text: str) -> tuple[int, int, int, int] | None:
    """As a comparable tuple: 1.34.1-gke.1829001 gives (1, 34, 1, 1829001); None when it is written otherwise."""
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)-gke\.(\d+)", text)
    if match is None:
        return None
    major, minor, patch, build = (int(part) for part in match.groups())
    return major, minor, patch, build
