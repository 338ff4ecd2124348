"""Which NCCL and which network plugin an image carries. Log lines differ by generation."""

from __future__ import annotations

import re
from dataclasses import dataclass

Version = tuple[int, int, int]

# NGC PyTorch release -> NCCL, CUDA (NVIDIA's framework support matrix, read 2026-09). The newest not above counts.
NGC: tuple[tuple[tuple[int, int], Version, str, str], ...] = (
    ((23, 0), (2, 18, 5), "12.2", "2.1.0"),
    ((24, 4), (2, 21, 5), "12.4", "2.3.0"),
    ((24, 7), (2, 22, 3), "12.5", "2.4.0"),
    ((24, 11), (2, 23, 4), "12.6", "2.6.0"),
    ((25, 1), (2, 25, 1), "12.8", "2.6.0"),
    ((25, 4), (2, 26, 3), "12.9", "2.7.0"),
    ((25, 6), (2, 27, 3), "12.9", "2.8.0"),
    ((25, 9), (2, 27, 7), "13.0", "2.9.0"),
    ((25, 11), (2, 28, 9), "13.0", "2.10.0"),
)
DEFAULT = (25, 9)
_TAG = re.compile(r":(?:[a-z-]*)(\d{2})\.(\d{1,2})")


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One software stack. `ofi` and `libfabric` are what aws-ofi-nccl of the same time prints."""

    nccl: Version
    cuda: str
    torch: str
    ofi: str
    libfabric: str
    net_api: int

    @property
    def text(self) -> str:
        """NCCL's version as printed."""
        return ".".join(map(str, self.nccl))

    def at_least(self, minor: int) -> bool:
        """NCCL 2.`minor` or later."""
        return self.nccl >= (2, minor, 0)

    @property
    def modern_ofi(self) -> bool:
        """aws-ofi-nccl 1.14 or later: "Selected provider is efa, fabric is …"."""
        major, minor = self.ofi.split("-")[0].split(".")[:2]
        return (int(major), int(minor)) >= (1, 14)

    @property
    def network(self) -> str:
        """The name of aws-ofi-nccl's network: "AWS Libfabric" through 1.12, "Libfabric" later."""
        return "Libfabric" if self.modern_ofi else "AWS Libfabric"


def _stack(nccl: Version, cuda: str, torch: str) -> Generation:
    if nccl >= (2, 28, 0):
        return Generation(nccl=nccl, cuda=cuda, torch=torch, ofi="1.17.1", libfabric="2.3", net_api=11)
    if nccl >= (2, 25, 0):
        return Generation(nccl=nccl, cuda=cuda, torch=torch, ofi="1.16.2", libfabric="2.1", net_api=10)
    return Generation(nccl=nccl, cuda=cuda, torch=torch, ofi="1.11.0-aws", libfabric="1.22", net_api=8)


def generation_of(image: str, override: str = "") -> Generation:
    """From an image's tag (`…/pytorch:24.07-py3`), or from a version given by hand (`2.22.3`)."""
    if override:
        major, minor, patch = (int(part) for part in override.split("."))
        given = (major, minor, patch)
        known = [entry for entry in NGC if entry[1] <= given] or [NGC[0]]
        return _stack(given, known[-1][2], known[-1][3])
    match = _TAG.search(image)
    release = (int(match[1]), int(match[2])) if match and "pytorch" in image else DEFAULT
    _, nccl, cuda, torch = [entry for entry in NGC if entry[0] <= release][-1]
    return _stack(nccl, cuda, torch)
