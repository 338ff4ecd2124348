"""Readings: what one tool's output says. Facts only; nothing here judges.

Every figure keeps the unit that the tool printed, in the field's name. `None` means: the output does not say it.
Nothing is filled in, averaged or converted on the way.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from infra.model.cluster import EMPTY


class Kind(StrEnum):
    """What an output is."""

    NCCL_LOG = "nccl-log"
    NCCL_TESTS = "nccl-tests"
    ALL_REDUCE = "all-reduce"
    TRAIN_STEP = "train-step"
    DEVICES = "devices"
    STORAGE = "storage"
    FABRIC = "fabric"
    K8S = "k8s"
    UNKNOWN = "unknown"


class Family(StrEnum):
    """A network by its data path, as far as its name in an NCCL log tells."""

    LIBFABRIC = "libfabric"
    IB = "ib"
    GIB = "gib"
    FASTRAK = "fastrak"
    TCPX = "tcpx"
    FASTSOCKET = "fastsocket"
    UCX = "ucx"
    SOCKET = "socket"
    OTHER = "other"


def family_of(network: str) -> Family:
    """The family of a network name as NCCL prints it; an unknown name is `OTHER`, never a guess."""
    name = network.strip()
    if name in _FAMILY_BY_NAME:
        return _FAMILY_BY_NAME[name]
    return next((family for start, family in _FAMILY_BY_START if name.startswith(start)), Family.OTHER)


def is_efa(device: str) -> bool:
    """Does a verbs device's name say that it is EFA's (efa_0, rdmap86s0)?"""
    return re.match(r"efa_?\d|rdmap\d+s\d+", device) is not None


def is_software(device: str) -> bool:
    """Does a verbs device's name say that there is none: RDMA made by the kernel over any Ethernet (rxe0, siw_eth0)?"""
    return re.match(r"(?:rxe|siw)(?:[_\d]|$)", device) is not None


_FAMILY_BY_NAME = {
    "AWS Libfabric": Family.LIBFABRIC,
    "Libfabric": Family.LIBFABRIC,
    "OFI": Family.LIBFABRIC,
    "IB": Family.IB,
    "SHARP": Family.IB,
    "FastSocket": Family.FASTSOCKET,
    "Socket": Family.SOCKET,
}
_FAMILY_BY_START = (
    ("gIB", Family.GIB),
    ("IBext", Family.IB),
    ("NCCL RDMA Plugin", Family.IB),  # the verbs plugin of HPC-X, by the name that it gave itself before
    ("SPCX", Family.IB),  # the one for Spectrum-X: RoCE
    ("FasTrak", Family.FASTRAK),
    ("GPUDirectTCPX", Family.TCPX),
    ("UCX", Family.UCX),
    ("Socket_v", Family.SOCKET),  # RCCL names the built-in one with its plugin interface's version
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hca:
    """A device of NCCL's built-in verbs network, e.g. mlx5_0:1/RoCE."""

    text: str
    link_layer: str  # "IB", "RoCE" or ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLog:
    """What one rank (a process, or one GPU of it) said.

    `networks` are the selected network names in order of first sight; `nics` the distinct counts of "found N nics";
    channel figures count complete "via NET/…" lines; `send_channels` and `receive_channels` are the channel indices
    over which this rank sends to and receives from another host.
    """

    host: str
    pid: str
    device: int | None
    prefix_rank: int | None = None
    networks: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    nics: tuple[int, ...] = ()
    net_devices: tuple[int, ...] = ()
    channels: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    gdr_channels: int = 0
    plain_channels: int = 0
    send_channels: frozenset[int] = frozenset()
    receive_channels: frozenset[int] = frozenset()
    ring_gdr: tuple[bool, ...] = ()
    connected_rings: int = 0
    coll_channels: int | None = None
    refused: tuple[str, ...] = ()  # networks that it was denied (hints' codes) without naming another one afterwards
    ends_alone: int = 0  # communicators that it ended and of which no beginning was seen
    gdr_denied: tuple[int, ...] = ()  # devices whose channels say GDRDMA and of which NCCL said that it is disabled


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One rank's part in one communicator. `network` is "" when no line binds a network to it.

    `ended` is "destroyed", "aborted" or "".
    """

    rank: int
    host: str
    pid: str
    device: int | None
    network: str = ""
    complete: bool = False
    ended: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Communicator:
    """A communicator as its ranks describe it; every figure is the set of values they gave (one, if they agree)."""

    id: str
    nranks: frozenset[int]
    nnodes: frozenset[int]
    mnnvl: frozenset[int]
    members: tuple[Member, ...]
    contradictory: bool = False

    @property
    def size(self) -> int | None:
        """The number of ranks, if all agree."""
        return next(iter(self.nranks)) if len(self.nranks) == 1 else None

    @property
    def nodes(self) -> int | None:
        """The number of nodes, if all agree."""
        return next(iter(self.nnodes)) if len(self.nnodes) == 1 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class LogWarning:
    """A line that says something went wrong. `code` is ours, stable; `fatal`: the job does not survive it."""

    code: str
    text: str
    fatal: bool
    host: str = ""
    time: str = ""
    facts: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaggedProcess:
    """A process, as NCCL names it, on a line that a launcher tagged.

    `style` is "mpirun", "mpiexec" or "srun" for tags that number a whole job's processes, "local" for those of
    one host.
    """

    style: str
    number: int
    host: str
    pid: str
    device: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a log's lines come from: what tells the machine, and the launcher's tags.

    `drivers` are CUDA driver versions as NCCL prints them (12040 is 12.4), `named` machine families that the plugin
    names (p5en), buses the PCI bus numbers of GPUs and NICs.
    """

    drivers: tuple[int, ...] = ()
    gpu_buses: frozenset[int] = frozenset()
    nic_buses: frozenset[int] = frozenset()
    named: tuple[str, ...] = ()
    tagged: tuple[TaggedProcess, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclLog:
    """What an NCCL log (of one rank or of many, in any order) says."""

    lines: int = 0
    version: str | None = None
    plugin_version: str | None = None
    plugin_loaded: str | None = None
    libfabric_version: str | None = None
    platform: str | None = None
    ofi_protocols: tuple[str, ...] = ()
    provider_filter: str | None = None
    hosts: tuple[str, ...] = ()
    ranks: tuple[RankLog, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    selected: Mapping[str, int] = field(default_factory=lambda: EMPTY)  # network name -> announcements
    providers: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    fabrics: tuple[str, ...] = ()
    nics: tuple[int, ...] = ()
    hcas: tuple[Hca, ...] = ()
    socket_interfaces: tuple[str, ...] = ()
    net_channels: Mapping[Family, int] = field(default_factory=dict)
    channel_networks: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    p2p_channels: int = 0
    gdr_send: int = 0
    gdr_receive: int = 0
    plain_send: int = 0
    plain_receive: int = 0
    edges: tuple[tuple[int, int], ...] = ()
    ring_gdr: tuple[int, int] = (0, 0)  # ranks' ring summaries with GDR 0, with GDR 1
    gdr_lines: tuple[int, int] = (0, 0)  # "GPU Direct RDMA Disabled", "… Enabled"
    # what one job has only one of and this log several: a field's name above -> its values
    disagreements: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: EMPTY)
    hints: Mapping[str, str] = field(default_factory=lambda: EMPTY)  # code -> first text that says it
    env: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    warnings: tuple[LogWarning, ...] = ()
    warning_count: int = 0
    speeds_mb_s: tuple[int, ...] = ()
    prefix_ranks: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    torn: bool = False  # the output ends inside a line
    damaged: int = 0  # lines that name a network and cannot be read to their end
    left_out: bool = False  # a log shipper printed one line in place of many
    overflow: bool = False  # more ranks or communicators than are followed
    origin: Origin = field(default_factory=Origin)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One size of a bandwidth table. Sizes in bytes, times in µs, bandwidths in GB/s (10^9).

    `wrong` is None where the run did not validate. The out-of-place half is None in a table that lacks it.
    """

    size_bytes: int
    count: int | None
    type: str
    redop: str | None
    time_us: float | None
    algbw_gb_s: float | None
    busbw_gb_s: float | None
    wrong: float | None
    time_in_place_us: float | None = None
    algbw_in_place_gb_s: float | None = None
    busbw_in_place_gb_s: float | None = None
    wrong_in_place: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceLine:
    """A `#  Rank …` line of nccl-tests. `bus` is the GPU's PCI address, `group` its communicator."""

    rank: int
    host: str
    pid: str
    device: str
    name: str
    bus: str = ""
    group: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BandwidthTest:
    """One run of a collective benchmark (nccl-tests, text or JSON, or a table that looks like it).

    `conflicts`: what its text says in two ways, or in units that are not nccl-tests'.
    """

    format: str = "nccl-tests"
    op: str | None = None
    rows: tuple[Row, ...] = ()
    torn_rows: int = 0
    headers: int = 0
    devices: tuple[DeviceLine, ...] = ()
    ranks: int | None = None
    parameters: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    out_of_bounds: tuple[int, ...] = ()
    out_of_bounds_status: tuple[str, ...] = ()
    averages_gb_s: tuple[float, ...] = ()
    average_status: tuple[str, ...] = ()
    concluded: int = 0
    errors: tuple[str, ...] = ()
    reduced_max_bytes: int | None = None
    conflicts: tuple[str, ...] = ()
    version: str | None = None
    nccl_version: str | None = None
    complete: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclTests:
    """The bandwidth tests found in one output, in order."""

    tests: tuple[BandwidthTest, ...] = ()

    @property
    def main(self) -> BandwidthTest:
        """The first test with rows, else the first."""
        return next((t for t in self.tests if t.rows), self.tests[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class PayloadEvents:
    """The JSON lines of our own payloads, in order, as they were printed.

    `starts` and `ends` map a payload's name to its lines; the steps include the warm-up; `broken` counts lines that
    are cut or damaged.
    """

    starts: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=lambda: EMPTY)
    rows: tuple[Mapping[str, Any], ...] = ()
    steps_seconds: tuple[float, ...] = ()
    steps_seen: tuple[int, ...] = ()
    ends: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=lambda: EMPTY)
    counters: tuple[Mapping[str, Any], ...] = ()
    devices: tuple[Mapping[str, Any], ...] = ()
    errors: tuple[Mapping[str, Any], ...] = ()
    broken: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolReading:
    """What a small tool said: a flat mapping with the unit in each key.

    `complete` is False when the output ends early, None when the format has no end to look for. `healthy` is the
    tool's own plain answer where it gives one (a port is active), None elsewhere.
    """

    kind: Kind
    tool: str
    figures: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    complete: bool | None = None
    healthy: bool | None = None
    cause: str | None = None
    suspicious: str | None = None
    tests: NcclTests | None = None  # set by nccl-tests' JSON, whose kind is `NCCL_TESTS`


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Everything found in one output. `ended_badly`: what says that a program in it did not end well.

    `beside` are the small tools' outputs that stand in it besides what gave it its kind.
    `damage`: how the packed file is broken that it comes from, so that anything may be missing; "" where it is whole.
    """

    kind: Kind
    nccl: NcclLog | None = None
    tests: NcclTests | None = None
    payload: PayloadEvents | None = None
    tool: ToolReading | None = None
    beside: tuple[ToolReading, ...] = ()
    ended_badly: tuple[str, ...] = ()
    bytes: int = 0
    damage: str = ""
    head: builtins.bytes = b""  # the first bytes of an output that nobody knows
