"""Where an NCCL log's lines come from: what tells the machine, and the processes behind a launcher's tags.

Both are said on many lines, and said alike: of a large log its beginning is looked at whole, then one block of many.
"""

from __future__ import annotations

import re

from infra.model.reading import Origin, TaggedProcess

WHOLE = 8 << 20  # bytes that are looked at in any case
ONE_IN = 16  # blocks behind them
MOST = 65_536  # processes and tags that are told apart
_GLANCE = 1 << 14  # bytes of a later block in which a launcher's tag would stand on some line
_DRIVER = re.compile(rb"NCCL INFO cudaDriverVersion (\d{5})\b")
_GPU_BUS = re.compile(rb" busId ([0-9a-f]{2,8})\b")
_NIC_BUS = re.compile(rb"NET/OFI NIC group \d+ device #\d+ [0-9a-f]{4}:([0-9a-f]{2}):[0-9a-f]{2}\.\d")
# aws-ofi-nccl names a machine type by itself where it treats it otherwise, and where it brings its topology. NCCL
# names a topology file in other words, also one that a user chose.
_NAMED = re.compile(
    rb"Skipping NCCL_PROTO checks on ([Pp]\d\w*) \+ "
    rb"|Setting NCCL_TOPO_FILE [^\n]{0,40}?to \S*/([Pp]\d\w*)[.-]\d+xl\w*-topo\.xml"
)
_PROCESS = rb"([A-Za-z0-9_][A-Za-z0-9_.\-]*):(\d+):\d+ \[(\d{1,9})\] "
# Launchers that number the processes of a whole job; torchrun's role with a number ([default0], or [rank0] by --role
# rank) those of one host. Each tag stands right before the line's own beginning, so that lines written into one
# another name nobody.
_TAGS: tuple[tuple[str, bytes, re.Pattern[bytes]], ...] = (
    ("mpirun", b"]<std", re.compile(rb",(\d{1,9})\]<std(?:out|err|diag)>: ?" + _PROCESS)),
    ("mpirun", b"[1,", re.compile(rb"\n\[\d+,(\d{1,9})\]: ?" + _PROCESS)),
    ("local", b"[rank", re.compile(rb"\[rank(\d{1,9})\]: ?" + _PROCESS)),
    ("local", b"[default", re.compile(rb"\[default(\d{1,9})\]: ?" + _PROCESS)),
    ("mpiexec", b"[", re.compile(rb"\n\[(\d{1,9})\] +" + _PROCESS)),  # Hydra's -prepend-rank
    ("srun", b": ", re.compile(rb"\n {0,5}(\d{1,9}): " + _PROCESS)),
)


class OriginReader:
    """Feed it the blocks of a log, then ask for what they show."""

    def __init__(self) -> None:
        self._bytes = self._blocks = 0
        self._drivers: set[int] = set()
        self._gpus: set[int] = set()
        self._nics: set[int] = set()
        self._named: set[str] = set()
        self._tags: set[tuple[str, bytes, bytes, bytes, bytes]] = set()

    def feed(self, data: bytes) -> None:
        """Look at one block."""
        self._blocks += 1
        self._bytes += len(data)
        behind = self._bytes - len(data) >= WHOLE
        if behind and self._blocks % ONE_IN:
            return
        if b"cudaDriverVersion" in data:
            self._drivers.update(map(int, _DRIVER.findall(data)))
        self._gpus.update(int(bus, 16) >> 12 for bus in set(_GPU_BUS.findall(data)))
        if b"NET/OFI NIC group " in data:
            self._nics.update(int(bus, 16) for bus in set(_NIC_BUS.findall(data)))
        if b"NCCL_PROTO checks on" in data or b"-topo.xml" in data:
            self._named.update((first or second).decode().lower() for first, second in _NAMED.findall(data))
        text, begin = b"\n" + data, data[:_GLANCE] if behind else data
        for style, mark, pattern in _TAGS:
            if mark in begin and len(self._tags) < MOST:
                self._tags.update((style, *found) for found in set(pattern.findall(text)))

    def reading(self) -> Origin:
        """What was shown."""
        tags = (
            TaggedProcess(style=style, number=int(number), host=host.decode(), pid=pid.decode(), device=int(device))
            for style, number, host, pid, device in self._tags
        )
        return Origin(
            drivers=tuple(sorted(self._drivers)),
            gpu_buses=frozenset(self._gpus),
            nic_buses=frozenset(self._nics),
            named=tuple(sorted(self._named)),
            tagged=tuple(sorted(tags, key=lambda t: (t.style, t.number, t.host, t.pid, t.device))),
        )
