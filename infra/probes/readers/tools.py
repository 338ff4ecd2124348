"""The small tools: which of them wrote a text, asked in a fixed order, and their readings."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from infra.model.reading import Kind, ToolReading
from infra.probes.readers.carried import unpacked
from infra.probes.readers.counters import read_counters, read_ethtool, read_lnet
from infra.probes.readers.device_plugin import read_device_plugin
from infra.probes.readers.fio import read_fio
from infra.probes.readers.iblinkinfo import read_iblinkinfo
from infra.probes.readers.ior import read_elbencho, read_ior
from infra.probes.readers.libfabric import read_fi_info, read_fi_pingpong, read_libfabric_log
from infra.probes.readers.nccl_tests_json import read_nccl_tests_json
from infra.probes.readers.perftest import read_perftest
from infra.probes.readers.verbs import read_ibdev2netdev, read_ibstat, read_ibstatus, read_ibv_devinfo, read_rdma_link

_MANY_BLANKS, _MANY_LINES = re.compile(r"[^\S\n]{200,}"), re.compile(r"(?:[^\S\n]*\n){4,}")
Reader = Callable[[str], ToolReading | None]
# From the sharpest signature to the vaguest.
_READERS: tuple[Reader, ...] = (
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
    read_ibdev2netdev,
    read_ethtool,
    read_lnet,
    read_counters,
    read_fi_pingpong,
    read_fi_info,
    read_libfabric_log,
    read_device_plugin,
)


def read_tools(text: str) -> tuple[ToolReading, ...]:
    """What every tool printed of which this text has an output, the one with the sharpest signature first."""
    # Readers look for words behind any white space. No tool prints this much of it, and it would take them for ever.
    carried = unpacked(_MANY_LINES.sub("\n\n\n", _MANY_BLANKS.sub(" ", text)))
    found = readings_of(carried.text, _READERS)
    if len(carried.senders) < 2 and not any(readings_of(part, _READERS) for part in carried.beside):
        return found
    # Several senders are several outputs: what all of them say together, none of them says.
    senders = list(carried.senders) or ["text without a mark"]
    return tuple(
        replace(
            reading,
            figures={**reading.figures, "senders": senders},
            complete=False,
            healthy=False if reading.healthy is False else None,
        )
        for reading in found
    )


def readings_of(text: str, readers: Sequence[Reader]) -> tuple[ToolReading, ...]:
    """The answers of those `readers` that have one. One that breaks has recognised the text: it counts, too."""
    found: list[ToolReading] = []
    for reader in readers:
        try:
            reading = reader(text)
        except Exception as error:  # noqa: BLE001 - whatever broke the reader, the output is unmeasured, and says so
            reading = not_readable(reader.__name__.removeprefix("read_").replace("_", "-"), error)
        found += [reading] if reading is not None else []
    return tuple(found)


def not_readable(tool: str, error: Exception) -> ToolReading:
    """What stands for an output that broke its reader: no figure of it is taken."""
    return ToolReading(
        kind=Kind.UNKNOWN,
        tool=tool,
        figures={"reader_error": f"{type(error).__name__}: {str(error)[:120]}"},
        complete=False,
        cause="not-readable",
    )
