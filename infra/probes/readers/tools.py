"""The small tools: which one wrote a text, asked in a fixed order, and its reading."""

from __future__ import annotations

from collections.abc import Callable

from infra.model.reading import ToolReading
from infra.probes.readers.counters import read_counters, read_lnet
from infra.probes.readers.device_plugin import read_device_plugin
from infra.probes.readers.fio import read_fio
from infra.probes.readers.ior import read_elbencho, read_ior
from infra.probes.readers.libfabric import read_fi_info, read_fi_pingpong, read_libfabric_log
from infra.probes.readers.nccl_tests_json import read_nccl_tests_json
from infra.probes.readers.perftest import read_perftest
from infra.probes.readers.verbs import read_iblinkinfo, read_ibstat, read_ibstatus, read_ibv_devinfo, read_rdma_link

# From the sharpest signature to the vaguest.
_READERS: tuple[Callable[[str], ToolReading | None], ...] = (
    read_nccl_tests_json,
    read_fio,
    read_ior,
    read_elbencho,
    read_perftest,
    read_iblinkinfo,
    read_ibv_devinfo,
    read_ibstat,
    read_ibstatus,
    read_rdma_link,
    read_lnet,
    read_counters,
    read_fi_pingpong,
    read_fi_info,
    read_libfabric_log,
    read_device_plugin,
)


def read_tool(text: str, *, nccl_lines: int = 0) -> ToolReading | None:
    """The first reader that knows the text. NCCL's own lines, where there are any, make it an NCCL log instead."""
    if nccl_lines:
        return None
    for reader in _READERS:
        reading = reader(text)
        if reading is not None:
            return reading
    return None
