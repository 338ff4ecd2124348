"""The stable cause behind the words of container runtimes, registries and device plugins. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

WRONG_ARCHITECTURE = "wrong-architecture"
# Words of container runtimes and registries, most telling first.
CAUSES: Sequence[tuple[str, str]] = (
    (r"exec format error|no match(ing manifest)? for (platform|\S+/\S+)|does not match the specified platform",
     WRONG_ARCHITECTURE),
    (r"driver/library version mismatch", "driver-version-mismatch"),
    (r"libnvidia-ml\.so|nvml.*(not|fail|could)|could not load nvml", "nvml-library-not-found"),
    (r"executable file not found", "executable-not-found"),
    (r"toomanyrequests|rate limit", "registry-rate-limit"),
    (r"^(?!.*(pull|image|registry|repositor)).*(permission denied|operation not permitted)", "permission-denied"),
    (r"unauthorized|authentication required|no basic auth|access denied|403 forbidden|pull access denied|denied:",
     "image-unauthorized"),
    (r"no devices found|no (efa|rdma|gpu)s? (device|found)|found 0 ", "no-devices"),
    (r"manifest unknown|not found|does not exist|repository name not known|name unknown", "image-not-found"),
    (r"no such host|i/o timeout|connection refused|dial tcp|tls handshake|context deadline|server misbehaving",
     "registry-unreachable"),
    (r"oomkilled|out of memory", "out-of-memory"),
    (r"\bnri\b|containerd.*(?:socket|config)|\bcdi\b", "container-runtime"),
    (r"permission denied|operation not permitted", "permission-denied"),
    (r"volume|mount", "volume-mount"),
)  # fmt: skip


def cause_of(*texts: str) -> str:
    """The stable cause behind a message, or ""."""
    joined = " ".join(texts).lower()
    return next((cause for pattern, cause in CAUSES if re.search(pattern, joined, re.DOTALL)), "")
