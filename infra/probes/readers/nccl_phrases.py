"""The sentences of NCCL and its network plugins that say something about the transport, by version.

Sources: NCCL v2.18 to v2.30 and aws-ofi-nccl 1.3 to 1.21 at their tags; older and newer wording from public logs.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from infra.probes.readers.nccl_state import RankState

# How an interesting line goes on after "NCCL ", for the scan of a block in C; the number of the group says its kind.
INTERESTING = re.compile(
    rb"NCCL (?:INFO (?:((?:\[Rank \d+\] )?(?:comm 0x|ncclComm))|"
    rb"(Using |NET/(?!OFI Request completed with error)|NET : |Connected all rings|GPU Direct|"
    rb"Assigned|Coll|P2P plugin|Initialized|Failed |Succ|NCCL|MNNVL|NVLS comm|\d+ coll))|"
    rb"(WARN |INFO (?:[\w/]+\.(?:cc|cu|h):\d+ -> [1-689]|RAS(?:: | declaring peer | send stuck )|"
    rb"NET/OFI Request completed with error))|"
    rb"(?:version |failure|[Ee]rror|operations have failed))"
)
COMMUNICATOR, SENTENCE, WARNING = 1, 2, 3
# The first two bytes of these messages, of "12 coll channels", and of a source file that hands an error on.
BEGINNINGS = (
    *(b"RA", b"mi", b"tr", b"in", b"en", b"gr", b"pr", b"bo", b"ch", b"de", b"re", b"sr", b"gi", b"pl", b"os", b"al"),
    *(b"co", b"nc", b"[R", b"Us", b"NE", b"Co", b"GP", b"As", b"P2", b"In", b"Fa", b"Su", b"NC", b"MN", b"NV"),
    *(b"%d%c" % (digit, following) for digit in range(10) for following in b" 0123456789"),
)

# Sentences that count for the rank that says them; all others say the same whoever says them.
OF_A_RANK = frozenset({"selected", "assigned", "provider", "hcas", "rings", "coll", "gdr-hca"})
# A network that a thread does not get. What it names afterwards is what it has instead.
REFUSALS = frozenset(
    {
        *("plugin-missing", "plugin-unloadable", "plugin-init-failed", "plugin-disabled", "internal-verbs-refused"),
        *("no-ib-device", "no-efa-device", "ofi-init-failed"),
    }
)


@dataclass(frozen=True, slots=True)
class Phrase:
    """A named sentence."""

    name: str
    pattern: re.Pattern[bytes]


def _p(name: str, pattern: bytes) -> Phrase:
    return Phrase(name, re.compile(pattern))


_BY_START: dict[bytes, tuple[Phrase, ...]] = {
    b"Usi": (
        _p("selected", rb"Using network (?P<name>[A-Za-z][\w .+\-]*)$"),
        _p("selected", rb"Using internal [Nn]etwork (?P<name>\w+)$"),
        _p("plugin-missing", rb"Using internal net(?:work)? plugin"),
    ),
    b"Ass": (_p("assigned", rb"Assigned NET plugin (?P<name>[A-Za-z][\w .+\-]*?) to comm"),),
    b"NET": (
        _p(
            "provider",
            rb"NET/OFI Selected [Pp]rovider is (?P<name>[\w;\-]+)(?:, fabric is (?P<fabric>[\w\-:./]+))?"
            rb"(?: \(found (?P<nics>\d{1,9}) nics?\))?\.?$",
        ),
        _p(
            "hcas",
            rb"NET/\w+(?: ?:)? Using (?P<list>\[\d+\](?:=\{\[\d+\] )?\S+?:\d+/(?:IB|RoCE|Ethernet|InfiniBand).*)$",
        ),
        _p("socket", rb"NET/Socket ?: Using (?P<list>\[\d+\].*)$"),
        _p("fastsocket-started", rb"NET/FastSocket ?: Using \[\d+\]"),
        _p("no-ib-device", rb"NET/IB ?: No (?:IB )?device found"),
        _p("gdr-hca", rb"NET/[\w ]+ ?: GPU Direct RDMA (?P<state>Enabled|Disabled) for HCA(?: (?P<device>\d{1,9})\b)?"),
        _p("ofi-version", rb"NET/OFI (?:Initializing|Using) aws-ofi-[nr]ccl (?P<name>\S+)$"),
        _p("libfabric-version", rb"NET/OFI Using Libfabric version (?P<name>[\w.\-]+)$"),
        _p("protocol", rb"NET/OFI Using transport protocol (?P<name>[A-Z]+)"),
        _p("platform", rb"NET/OFI Running on (?P<name>[\w.\-]+) platform"),
        _p("provider-filter", rb"NET/OFI Setting provider_filter to (?P<name>\S+)$"),
        _p("no-efa-device", rb"NET/OFI .*(?:[Nn]o eligible providers|optimal provider|Only EFA provider is supported)"),
        _p("ofi-init-failed", rb"NET/OFI .*(?:initialization failed|[Ff]ailed to initialize|Failing init)"),
        _p("gdr-disabled-on-instance", rb"NET/OFI .*(?:GDR (?:disabled|not supported)|disabling GDR)"),
        _p("speed", rb"NET/IB ?: Made virtual device \[\d+\] name=\S+ speed=(?P<name>\d{1,9})\b"),
        _p("plugin-loaded", rb"NET/Plugin ?: Loaded net plugin (?P<name>.+?) \(v\d+\)"),
        # Of a library that is there and cannot be loaded, older versions say too that no plugin was found.
        _p(
            "plugin-unloadable",
            rb"NET/Plugin ?: .*(?:GLIBC\w*_|undefined symbol|wrong ELF|invalid ELF|failed to map segment|"
            rb"\blib(?!nccl-net)[\w\-]+\.so\S*: cannot open shared object)",
        ),
        _p(
            "plugin-missing",
            rb"NET/Plugin ?: (?:No plugin found|Could not find|Plugin load .* returned 2|dlerror=.*No plugin found)",
        ),
        _p(
            "plugin-unloadable",
            rb"NET/Plugin ?: (?:dlerror=)?\S*lib[\w\-]+\.so\S*: (?!cannot open shared object file: No such).+",
        ),
        _p("plugin-unloadable", rb"NET/Plugin ?: .*cannot open shared object"),
        _p("plugin-disabled", rb"NET/GPUDirectTCPX (?:disabled|: GPUDirectTCPX enable: 0$)"),
        _p("tcpx-started", rb"NET/GPUDirectTCPX"),
        _p("fastrak-started", rb"NET/FasTrak"),
        _p("gib-started", rb"NET/gIB"),
        _p("ofi-started", rb"NET/OFI"),
    ),
    b"Col": (_p("collnet-plain", rb"Coll(?:Net)? .* via COLLNET/[^/]+/\d+(?!\d|/GDR)"),),
    b"Con": (_p("rings", rb"Connected all rings(?:, use ring PXN \d+ GDR (?P<gdr>[01]))?$"),),
    b"GPU": (_p("gdr-gpu", rb"GPU Direct RDMA (?P<state>Enabled|Disabled) for .*?(?:read (?P<read>[01]).*)?$"),),
    b"P2P": (_p("p2p-plugin", rb"P2P plugin (?P<name>[\w.\-]+)$"),),
    b"Ini": (_p("plugin-loaded", rb"Initialized NET plugin (?P<name>[A-Za-z][\w .+\-]*)$"),),
    b"Suc": (_p("library", rb"Successfully loaded external (?:network )?plugin (?P<name>\S+)$"),),
    b"Fai": (
        _p("no-verbs-library", rb"Failed to open libibverbs"),
        # NCCL's own verbs network refuses itself where it finds no device: that is no plugin's failure.
        _p("internal-verbs-refused", rb"Failed to initialize NET plugin IB\b"),
        _p("plugin-init-failed", rb"Failed to initialize NET plugin (?P<name>.+)$"),
    ),
    b"NCC": (
        _p("version", rb"NCCL version (?P<name>\d+(?:\.\d+)+)(?:\+\S*)?"),
        _p("env", rb"(?P<key>NCCL_\w+) set (?:by environment )?to (?P<value>.*?)\.?$"),
    ),
    b"MNN": (_p("mnnvl", rb"MNNVL (?P<name>[01])(?: |$)"),),
    b"NVL": (_p("nvls", rb"NVLS comm 0x"),),
}
# Sentences of which the first wording counts: name -> field of `Said`
_ONCE = {
    "version": "version",
    "ofi-version": "plugin_version",
    "libfabric-version": "libfabric_version",
    "platform": "platform",
    "provider-filter": "provider_filter",
    "p2p-plugin": "p2p_plugin",
    "plugin-loaded": "plugin_loaded",
}
# Of these one job has one: an image holds one NCCL and one plugin, a pool one machine type; and its ranks are told
# alike which network to use.
_OF_THE_JOB = frozenset({"version", "ofi-version", "libfabric-version", "platform"})
_TOLD_ALIKE = frozenset({"NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_DISABLE"})
_COLL = (_p("coll", rb"(?P<name>\d+) coll channels"),)
# Of a device that NCCL made by merging NICs, the NICs: [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE}.
_DEVICE = re.compile(rb"\[\d+\] ?(?P<device>[\w.\-]+:\d+/(?P<layer>IB|RoCE|Ethernet|InfiniBand))(?P<more>/\w+)?")
_INTERFACE = re.compile(rb"\[\d+\](?P<name>[\w.\-@]+):\S")
_LAYER = {b"IB": "IB", b"InfiniBand": "IB", b"RoCE": "RoCE", b"Ethernet": "RoCE"}
# Environment lines are kept only for what bears on the transport; any other value may be a secret.
_ENV = re.compile(
    r"NCCL_(?:NET\w*|IB_\w+|SOCKET_IFNAME|P2P_\w+|SHM_DISABLE|MNNVL\w*|NVLS\w*|CROSS_NIC|PXN_DISABLE|PROTO|ALGO|"
    r"TUNER\w*|FASTRAK_\w+|GPUDIRECTTCPX_\w+|TOPO_FILE)$"
)


def phrases(text: bytes) -> tuple[Phrase, ...]:
    """The sentences that a message may be."""
    found = _BY_START.get(text[:3])
    if found is not None:
        return found
    return _COLL if text[:1].isdigit() else ()


@dataclass(slots=True)
class Said:
    """Facts that belong to the log as a whole, first wording kept."""

    version: str | None = None
    plugin_version: str | None = None
    plugin_loaded: str | None = None
    p2p_plugin: str | None = None
    libfabric_version: str | None = None
    platform: str | None = None
    provider_filter: str | None = None
    protocols: dict[str, None] = field(default_factory=dict)
    providers: Counter[str] = field(default_factory=Counter)
    fabrics: dict[str, None] = field(default_factory=dict)
    nics: set[int] = field(default_factory=set)
    hcas: dict[str, str] = field(default_factory=dict)
    socket_interfaces: dict[str, None] = field(default_factory=dict)
    ring_gdr: list[int] = field(default_factory=lambda: [0, 0])
    gdr_lines: list[int] = field(default_factory=lambda: [0, 0])
    hints: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    speeds: set[int] = field(default_factory=set)
    others: dict[str, dict[str, None]] = field(default_factory=dict)  # what contradicts the first wording

    def hint(self, code: str, text: str) -> None:
        """Remember the first text that says `code`."""
        self.hints.setdefault(code, text[:300])

    def hear(self, text: bytes, rank: RankState | None) -> None:
        """A message that stands without NCCL's prefix."""
        for phrase in phrases(text):
            match = phrase.pattern.match(text)
            if match:
                self.take(phrase.name, match, text, rank)
                return

    def take(self, name: str, match: re.Match[bytes], text: bytes, rank: RankState | None, times: int = 1) -> None:
        """Take one recognised sentence that was said so many times."""
        if name in _ONCE:
            value = match["name"].decode("utf-8", "replace").strip()
            first = getattr(self, _ONCE[name])
            if first is None:
                setattr(self, _ONCE[name], value)
            elif first != value and name in _OF_THE_JOB:
                self.others.setdefault(_ONCE[name], {first: None})[value] = None
            if name == "ofi-version":
                self.hint("ofi-started", value)
            return
        special = getattr(self, "_" + name.replace("-", "_"), None)
        if special is not None:
            special(match, text, rank, times)
        else:
            self.hint(name, text.decode("utf-8", "replace"))

    def _provider(self, match: re.Match[bytes], _text: bytes, rank: RankState | None, times: int) -> None:
        provider = match["name"].decode()
        self.providers[provider] += times
        if match["fabric"]:
            self.fabrics[match["fabric"].decode()] = None
        if rank is not None:
            rank.providers[provider] = None
        if match["nics"]:
            self.nics.add(int(match["nics"]))
            if rank is not None:
                rank.nics.add(int(match["nics"]))

    def _hcas(self, match: re.Match[bytes], _text: bytes, rank: RankState | None, _times: int) -> None:
        devices = list(_DEVICE.finditer(match["list"]))
        for device in devices:
            self.hcas.setdefault(device["device"].decode(), _LAYER[device["layer"]])
        if rank is not None:
            rank.nics.add(len({d["device"] for d in devices}))

    def _socket(self, match: re.Match[bytes], _text: bytes, _rank: RankState | None, _times: int) -> None:
        for interface in _INTERFACE.finditer(match["list"]):
            self.socket_interfaces[interface["name"].decode()] = None

    def _gdr_hca(self, match: re.Match[bytes], _text: bytes, rank: RankState | None, times: int) -> None:
        self.gdr_lines[match["state"] == b"Enabled"] += times
        if rank is not None and match["device"] and match["state"] == b"Disabled":
            rank.gdr_disabled.add(int(match["device"]))

    def _gdr_gpu(self, match: re.Match[bytes], text: bytes, _rank: RankState | None, _times: int) -> None:
        # Printed for every pair of GPU and NIC, far ones too: a Disabled here is no verdict on the pair in use.
        if match["read"] == b"0":
            self.hint("gdr-read-off", text.decode("utf-8", "replace"))

    def _rings(self, match: re.Match[bytes], _text: bytes, rank: RankState | None, times: int) -> None:
        if rank is not None:
            rank.connected += times
        if match["gdr"]:
            on = match["gdr"] == b"1"
            self.ring_gdr[on] += times
            if rank is not None:
                rank.ring_gdr.add(on)

    def _protocol(self, match: re.Match[bytes], _text: bytes, _rank: RankState | None, _times: int) -> None:
        self.protocols[match["name"].decode()] = None

    def _env(self, match: re.Match[bytes], _text: bytes, _rank: RankState | None, _times: int) -> None:
        key, value = match["key"].decode(), match["value"].decode("utf-8", "replace")[:200]
        if not _ENV.match(key) or len(self.env) >= 64:
            return
        first = self.env.setdefault(key, value)
        if first != value and key in _TOLD_ALIKE:
            self.others.setdefault(key, {first: None})[value] = None

    def _speed(self, match: re.Match[bytes], _text: bytes, _rank: RankState | None, _times: int) -> None:
        self.speeds.add(int(match["name"]))

    def _mnnvl(self, match: re.Match[bytes], text: bytes, _rank: RankState | None, _times: int) -> None:
        if match["name"] == b"1":
            self.hint("mnnvl", text.decode("utf-8", "replace"))

    def _coll(self, match: re.Match[bytes], _text: bytes, rank: RankState | None, _times: int) -> None:
        if rank is not None:
            rank.coll_channels = max(rank.coll_channels or 0, int(match["name"][:9]))
