"""NCCL's own log, 2.4 to 2.31, of any number of ranks in any order, with its network plugins' lines.

Works on blocks of a megabyte: a literal scan finds the few lines that say something about the transport, and only
those are looked at one by one. The first `EXCERPT` bytes are read more generously (lines whose prefix somebody cut
off), since a pasted excerpt is small. Memory grows with ranks and communicators, not with the log.
"""

from __future__ import annotations

import re
from collections import Counter

from infra.model.reading import Family, Hca, LogWarning, NcclLog, family_of
from infra.probes.readers.nccl_communicators import Communicators
from infra.probes.readers.nccl_phrases import INTERESTING, Phrase, Said, phrases
from infra.probes.readers.nccl_prefix import HEAD, line_time, parse_head, strip_place
from infra.probes.readers.nccl_state import MAX_RANKS, RankState, ThreadState
from infra.probes.readers.nccl_warnings import classify

EXCERPT = 4 << 20
_EDGES = 65_536
_MEMO = 65_536
_WARNINGS = 64

_ANY = re.compile(rb"NCCL (?:INFO |WARN |version |failure|error)|NCCL INFO$")
_NET = re.compile(rb" via NET/")
_BARE = re.compile(
    rb"(?m)^[\s>|*`\"'-]*(?:\d{4}-\d\d-\d\d\S*\s+)?"
    rb"(?P<text>(?:Using network |NET/(?:OFI|IB|Socket|Plugin|gIB|FasTrak) ).*)$"
)
_OUTSIDE = re.compile(rb"libfabric:[^\n]*|Watchdog caught [^\n]*|[^\n]*provider efa output empty list[^\n]*")
_CHANNEL = re.compile(
    rb"(?:(\d+)(?:/\d+)? : |^|\s)(\d+)(?:\[[0-9a-fA-F]+\])? -> (\d+)(?:\[[0-9a-fA-F]+\])?"
    rb"(?: \[(send|receive)\])? via NET/([^/\n]{1,40})/(\d+)((?:/[\w=]+|\([^()\n]*\))*)\s*$"
)


class NcclLogReader:
    """Feed it blocks of whole lines, then ask for the reading."""

    def __init__(self) -> None:
        self.seen = 0  # bytes
        self.found = 0  # lines that say something
        self.prefixed = 0  # of these, lines that NCCL itself wrote
        self.said = Said()
        self.comms = Communicators()
        self.hosts: dict[str, None] = {}
        self.ranks: dict[tuple[str, str, int | None], RankState] = {}
        self.by_pid: dict[tuple[str, int | None], RankState] = {}
        self.threads: dict[bytes, ThreadState | None] = {}
        self.memo: dict[bytes, tuple[int, int, int, bytes, str, int, bool] | None] = {}
        self.selected: Counter[str] = Counter()
        self.assigned: Counter[str] = Counter()
        self.net_channels: Counter[Family] = Counter()
        self.channel_networks: Counter[str] = Counter()
        self.directions: Counter[tuple[bytes, bool]] = Counter()
        self.edges: dict[tuple[int, int], None] = {}
        self.rank_hosts: dict[int, set[str]] = {}
        self.p2p = self.shm = 0
        self.warnings: list[LogWarning] = []
        self.warning_count = 0
        self.prefix_ranks: set[int] = set()
        self.overflow = False
        self.torn = False

    def feed(self, data: bytes, *, torn: bool = False) -> None:
        """Read one block."""
        excerpt = self.seen < EXCERPT
        self.seen += len(data)
        self.torn = torn
        self.p2p += data.count(b" via P2P/")
        self.shm += data.count(b" via SHM/")
        self._lines(data, _ANY if excerpt else INTERESTING)
        if b" via NET/" in data:
            self._channels(data)
        if excerpt:
            for match in _BARE.finditer(data):
                if b"NCCL " not in match.group():
                    self.found += 1
                    self._message(match["text"].rstrip(), None)
        if b"libfabric:" in data or b"Watchdog caught" in data or b"output empty list" in data:
            for match in _OUTSIDE.finditer(data):
                self._outside(match.group())

    def _lines(self, data: bytes, pattern: re.Pattern[bytes]) -> None:
        for match in pattern.finditer(data):
            at = match.start()
            start = data.rfind(b"\n", 0, at) + 1
            end = data.find(b"\n", at)
            line_end = len(data) if end < 0 else end
            head = data[start:at]
            if len(head) > 400:
                head = head[-400:]
            text = data[at:line_end]
            if len(text) > 4096:
                text = text[:4096]
            another = text.find(b"NCCL ", 5)
            if another > 0:
                text = _until_next(text, another)
            self.found += 1
            self.prefixed += 1
            kind = text[5:10]
            if kind == b"INFO ":
                if b" via " in text:
                    self._thread(head)
                else:
                    self._message(text[10:].rstrip(), self._thread(head))
            elif kind == b"WARN ":
                self._warn(text[10:], head)
            else:
                self._other(text, head)

    def _other(self, text: bytes, head: bytes) -> None:
        """`NCCL version …` stands alone; `NCCL failure` and `NCCL error` come from programs above NCCL."""
        if text.startswith(b"NCCL version "):
            self.said.hear(text, None)
        elif text.startswith((b"NCCL failure", b"NCCL error")):
            self._note(classify((head + text).decode("utf-8", "replace").strip(), time=line_time(head)))

    def _thread(self, head: bytes) -> ThreadState | None:
        """Who wrote the line; remembered by the last two words of its prefix, which time stamps leave alone."""
        key = b" ".join(head.rsplit(None, 2)[-2:])
        if key in self.threads:
            return self.threads[key]
        parsed = parse_head(head)
        if parsed.rank is not None:
            self.prefix_ranks.add(parsed.rank)
        host, thread = parsed.host, None
        state: RankState | None = None
        if host and not parsed.clean:
            # Torn lines glue other text to the host's name: only a name already known counts.
            state = self.by_pid.get((parsed.pid, parsed.device))
            host = state.host if state and parsed.host.endswith(state.host) else ""
            if not host:
                state = None
        elif host or parsed.device is not None:
            state = self.ranks.get((host, parsed.pid, parsed.device))
            if state is None and len(self.ranks) < MAX_RANKS:
                state = RankState(host, parsed.pid, parsed.device, parsed.rank)
                self.ranks[host, parsed.pid, parsed.device] = state
                self.by_pid[parsed.pid, parsed.device] = state
                if host:
                    self.hosts[host] = None
            self.overflow |= state is None
        if state is not None:
            thread = ThreadState(state)
        if len(self.threads) >= _MEMO:
            self.threads.clear()
        self.threads[key] = thread
        return thread

    def _message(self, text: bytes, thread: ThreadState | None) -> None:
        for phrase in phrases(text):
            match = phrase.pattern.match(text)
            if match:
                self._take(phrase, match, text, thread)
                return

    def _take(self, phrase: Phrase, match: re.Match[bytes], text: bytes, thread: ThreadState | None) -> None:
        rank = thread.rank if thread else None
        if phrase.name == "selected":
            self._select(match, thread, self.selected)
        elif phrase.name == "assigned":
            self._select(match, thread, self.assigned)
        elif phrase.name == "comm":
            self.comms.hear(match, thread)
        else:
            self.said.take(phrase.name, match, text, rank)

    def _select(self, match: re.Match[bytes], thread: ThreadState | None, counts: Counter[str]) -> None:
        name = match["name"].decode("utf-8", "replace").strip()
        counts[name] += 1
        if thread is None:
            return
        thread.rank.networks[name] = None
        if thread.member is not None and not thread.member.network and not thread.member.complete:
            thread.member.network = name
        else:
            thread.pending = name

    def _channels(self, data: bytes) -> None:
        for match in _NET.finditer(data):
            at = match.start()
            start = data.rfind(b"\n", 0, at) + 1
            end = data.find(b"\n", at)
            line = data[start : len(data) if end < 0 else end]
            head, _, text = line.rpartition(b"NCCL INFO ")
            if text in self.memo:
                channel = self.memo[text]
            else:
                if len(self.memo) >= _MEMO:
                    self.memo.clear()
                channel = self.memo[text] = _parse_channel(text[-300:])
            if channel is not None:
                self._count(channel, self._thread(head) if head else None)

    def _count(self, channel: tuple[int, int, int, bytes, str, int, bool], thread: ThreadState | None) -> None:
        index, source, target, direction, network, device, gdr = channel
        family = family_of(network)
        self.found += 1
        self.prefixed += 1
        self.net_channels[family] += 1
        self.channel_networks[network] += 1
        self.directions[direction, gdr] += 1
        if (source, target) not in self.edges and len(self.edges) < _EDGES:
            self.edges[source, target] = None
        if thread is None:
            return
        rank = thread.rank
        rank.channels[family.value] += 1
        rank.net_devices.add(device)
        rank.gdr += gdr
        rank.plain += not gdr
        if direction == b"send":
            rank.send_channels.add(index)
        else:
            rank.receive_channels.add(index)
        if rank.host and direction:
            end = source if direction == b"send" else target
            self.rank_hosts.setdefault(end, set()).add(rank.host)

    def _warn(self, text: bytes, head: bytes) -> None:
        place = head.rstrip()
        thread = self._thread(strip_place(place))
        full = (place.rsplit(b" ", 1)[-1] + b" " + text if place else text).decode("utf-8", "replace").strip()
        host = thread.rank.host if thread else ""
        self._note(classify(full, host=host, time=line_time(head)))

    def _outside(self, line: bytes) -> None:
        """Lines of libfabric and of frameworks, which carry no NCCL prefix."""
        text = line.decode("utf-8", "replace").strip()
        warning = classify(text)
        if warning.code == "other":
            return
        self.found += 1
        if warning.fatal:
            self._note(warning)
        else:
            self.said.hint(warning.code, text)

    def _note(self, warning: LogWarning) -> None:
        self.warning_count += 1
        if not warning.fatal and warning.code != "other":
            self.said.hint(warning.code, warning.text)
        if len(self.warnings) < _WARNINGS or (warning.fatal and not any(w.fatal for w in self.warnings)):
            self.warnings.append(warning)

    def reading(self) -> NcclLog:
        """What was said, frozen."""
        said = self.said
        return NcclLog(
            lines=self.found,
            version=said.version,
            plugin_version=said.plugin_version,
            plugin_loaded=said.p2p_plugin or said.plugin_loaded,
            libfabric_version=said.libfabric_version,
            platform=said.platform,
            ofi_protocols=tuple(said.protocols),
            provider_filter=said.provider_filter,
            hosts=tuple(self.hosts),
            ranks=tuple(state.freeze() for state in self.ranks.values()),
            communicators=self.comms.freeze(said.version),
            selected=dict(self.selected or self.assigned),  # newer versions print both, one sentence each
            providers=dict(said.providers),
            fabrics=tuple(said.fabrics),
            nics=tuple(sorted(said.nics)),
            hcas=tuple(Hca(text=text, link_layer=layer) for text, layer in said.hcas.items()),
            socket_interfaces=tuple(said.socket_interfaces),
            net_channels=dict(self.net_channels),
            channel_networks=dict(self.channel_networks),
            p2p_channels=self.p2p,
            shm_channels=self.shm,
            gdr_send=self.directions[b"send", True],
            gdr_receive=self.directions[b"receive", True] + self.directions[b"", True],
            plain_send=self.directions[b"send", False],
            plain_receive=self.directions[b"receive", False] + self.directions[b"", False],
            edges=tuple(edge for edge in self.edges if not self._same_host(edge)),
            ring_gdr=(said.ring_gdr[0], said.ring_gdr[1]),
            gdr_lines=(said.gdr_lines[0], said.gdr_lines[1]),
            hints=dict(said.hints),
            env=dict(said.env),
            warnings=tuple(self.warnings),
            warning_count=self.warning_count,
            speeds_mb_s=tuple(sorted(said.speeds)),
            prefix_ranks=tuple(sorted(self.prefix_ranks)),
            devices=tuple(sorted({r.device for r in self.ranks.values() if r.device is not None})),
            torn=self.torn,
            overflow=self.overflow or self.comms.overflow,
        )

    def _same_host(self, edge: tuple[int, int]) -> bool:
        source, target = (self.rank_hosts.get(rank, set()) for rank in edge)
        return len(source) == 1 and source == target


def _until_next(text: bytes, another: int) -> bytes:
    """Cut a message where the next line was glued to it; that line's prefix goes too."""
    part = text[:another]
    head = None
    for head in HEAD.finditer(part):  # noqa: B007
        pass
    return part[: head.start()] if head else part


def _parse_channel(text: bytes) -> tuple[int, int, int, bytes, str, int, bool] | None:
    """(index, from rank, to rank, direction, network, device, GDR) of a complete channel line, else None."""
    match = _CHANNEL.search(text)
    if not match:
        return None
    suffixes = match[7].replace(b"(", b"/(").split(b"/")
    if any(s and s != b"GDRDMA" and b"GDRDMA".startswith(s) for s in suffixes):
        return None  # cut inside the word: whether GDR is on is not said
    return (
        int(match[1] or 0),
        int(match[2]),
        int(match[3]),
        match[4] or b"",
        match[5].decode("utf-8", "replace").strip(),
        int(match[6]),
        b"GDRDMA" in suffixes,
    )
