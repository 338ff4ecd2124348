"""NCCL's own log, 2.4 to 2.31, of any number of ranks in any order, with its network plugins' lines.

Works on blocks of a megabyte: a literal scan finds the few lines that say something about the transport, and only
those are looked at one by one. The first `EXCERPT` bytes are read more generously (lines whose prefix somebody cut
off), since a pasted excerpt is small. Memory grows with ranks and communicators, not with the log.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import repeat

from infra.model.reading import Hca, LogWarning, NcclLog, family_of
from infra.probes.readers.nccl_channels import count_lines, parse_channel, same_host, sums, until_next
from infra.probes.readers.nccl_communicators import CommLine, Communicators, parse_comm
from infra.probes.readers.nccl_phrases import (
    COMMUNICATOR,
    INTERESTING,
    OF_A_RANK,
    SENTENCE,
    WARNING,
    Said,
    phrases,
)
from infra.probes.readers.nccl_prefix import line_time, parse_head, strip_place
from infra.probes.readers.nccl_scan import Span, spans
from infra.probes.readers.nccl_state import MAX_RANKS, ChannelLine, RankState, ThreadState
from infra.probes.readers.nccl_warnings import classify

_BY_RANK = (COMMUNICATOR, SENTENCE)
EXCERPT = 1 << 18  # bytes; in whole blocks, so at least the first one
_EDGES = 65_536
_MEMO = 65_536
_WARNINGS = 64

_INFO = re.compile(rb"NCCL INFO ")
_BARE_CHANNEL = re.compile(rb"(?m)^(?![^\n]*NCCL )[^\n]* via NET/[^\n]*$")
_BARE = re.compile(
    rb"(?m)^[\s>|*`\"'-]*(?:\d{4}-\d\d-\d\d\S*\s+)?(?:INFO: Function: \w+ Line: \d+: )?"
    rb"(?P<text>(?:Using network |NET/(?:OFI|IB|Socket|Plugin|gIB|FasTrak) ).*)$"
)
_OUTSIDE = re.compile(
    rb"libfabric:[^\n]*|Watchdog caught [^\n]*|WARN: Function: [^\n]*|NVRM: Xid [^\n]*|"
    rb"(?:RuntimeError|AcceleratorError|DistBackendError|OutOfMemoryError): [^\n]*"
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
        self.sentences: dict[bytes, tuple[str, re.Match[bytes] | None]] = {}
        self.boring: dict[bytes, int] = {}  # messages that say nothing (more): do they count as NCCL's sentences?
        self.channels: dict[bytes, ChannelLine | None] = {}
        self.comm_lines: dict[bytes, CommLine] = {}
        self.anonymous = RankState("", "", None)  # channel lines whose prefix somebody cut off
        self.selected: Counter[str] = Counter()
        self.assigned: Counter[str] = Counter()
        self.edges: dict[tuple[int, int], None] = {}
        self.p2p = 0
        self.warnings: list[LogWarning] = []
        self.warning_count = 0
        self.prefix_ranks: set[int] = set()
        self.overflow = False
        self.torn = False

    def feed(self, data: bytes, *, torn: bool = False) -> bytes:
        """Read one block; returns those of its lines that are not NCCL's, for other readers."""
        excerpt = self.seen < EXCERPT
        self.seen += len(data)
        self.torn = torn
        self.p2p += data.count(b" via P2P/")
        found = spans(data)
        self._lines(data, found.telling)
        self._channels(data, found.channels)
        if excerpt:
            self._excerpt(data)
        for match in _OUTSIDE.finditer(data if excerpt else found.foreign):
            self._outside(match.group())
        return found.foreign

    def _lines(self, data: bytes, found: Iterable[Span]) -> None:
        """Look at the lines that begin as an interesting sentence does.

        Lines written into one another need no care here: a sentence is found wherever it stands in a line.
        """
        begins, rfind, sentences, threads = INTERESTING.match, data.rfind, self.sentences, self.threads
        told = list(found)
        texts = [data[at + 10 : end] for _, at, end in told]
        boring = self.boring
        if len(boring) >= _MEMO:
            boring.clear()
        count = sum(map(boring.get, texts, repeat(0)))
        phrase, said = "", None
        for (start, at, _), text in [pair for pair in zip(told, texts, strict=True) if pair[1] not in boring]:
            match = begins(data, at)
            if match is None:
                if data.startswith(b"NCCL INFO ", at):
                    boring[text] = 0
                continue
            count += 1
            kind = match.lastindex
            if kind == SENTENCE:
                sentence = sentences.get(text)
                if sentence is None:
                    sentence = self._sentence(text)
                phrase, said = sentence
                if said is None:
                    boring[text] = 1
                    continue
            if kind in _BY_RANK:
                thread = threads.get(data[rfind(b" ", start, at - 6) + 1 or start : at]) or self._thread(data[start:at])
                if kind == COMMUNICATOR:
                    self._comm(text, thread)
                else:
                    self._take(phrase, said, thread)
                    if phrase not in OF_A_RANK:
                        boring[text] = 1  # said once is said
            elif kind == WARNING:
                self._warn(text[:4096], data[max(start, at - 400) : at])
            else:
                self._other(data[at : at + 10] + text[:4096], data[max(start, at - 400) : at])
        self.found += count
        self.prefixed += count

    def _channels(self, data: bytes, found: Iterable[Span]) -> None:
        """Count channel lines by rank and wording; what a wording means is worked out once."""
        rfind, meanings, threads = data.rfind, self.channels, self.threads
        for start, at, end in found:
            text = data[at + 10 : end]
            thread = threads.get(data[rfind(b" ", start, at - 6) + 1 or start : at]) or self._thread(data[start:at])
            seen = thread.rank.seen if thread is not None else self.anonymous.seen
            if text in seen:
                seen[text] += 1
            else:
                if text not in meanings:
                    self._meaning(text)
                seen[text] = 1

    def _excerpt(self, data: bytes) -> None:
        """The first block: every line's rank and host count, and so do lines whose prefix somebody cut off."""
        for match in _INFO.finditer(data):
            self.found += 1
            self.prefixed += 1
            self._thread(data[data.rfind(b"\n", 0, match.start()) + 1 : match.start()])
        for match in _BARE.finditer(data):
            if match.group().find(b"NCCL ") < 0:
                self.found += 1
                phrase, said = self._sentence(match["text"])
                if said is not None:
                    self._take(phrase, said, None)
        for match in _BARE_CHANNEL.finditer(data):
            if self._meaning(match.group()) is not None:
                self.anonymous.seen[match.group()] += 1

    def _comm(self, text: bytes, thread: ThreadState | None) -> None:
        line = self.comm_lines.get(text)
        if line is None:
            line = parse_comm(until_next(text).rstrip())
            if line is None:
                return
            if len(self.comm_lines) >= _MEMO:
                self.comm_lines.clear()
            self.comm_lines[text] = line
        self.comms.hear(line, thread)

    def _sentence(self, text: bytes) -> tuple[str, re.Match[bytes] | None]:
        """What a message says, remembered: ranks repeat one another. Lines glued behind it are cut off."""
        message = until_next(text[:4096]).rstrip()
        found: tuple[str, re.Match[bytes] | None] = ("boring", None)
        for phrase in phrases(message):
            match = phrase.pattern.match(message)
            if match:
                found = (phrase.name, match)
                break
        if len(self.sentences) >= _MEMO:
            self.sentences.clear()
        if len(text) < 1024:
            self.sentences[text] = found
        return found

    def _other(self, text: bytes, head: bytes) -> None:
        """`NCCL version …` stands alone; `NCCL failure` and `NCCL error` come from programs above NCCL."""
        if text.startswith(b"NCCL version "):
            self.said.hear(text, None)
        elif text.startswith((b"NCCL failure", b"NCCL error", b"NCCL Error")):
            self._note(classify((head + text).decode("utf-8", "replace").strip(), time=line_time(head)))

    def _thread(self, head: bytes) -> ThreadState | None:
        """Who wrote the line; remembered by the last words of its prefix, which time stamps leave alone."""
        key = head[head.rfind(b" ", 0, -6) + 1 :]
        threads = self.threads
        if key in threads:
            return threads[key]
        if b":" not in key:
            key = b"\0" + head
            if key in threads:
                return threads[key]
        head = head[-400:]
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

    def _take(self, phrase: str, match: re.Match[bytes] | None, thread: ThreadState | None) -> None:
        if match is None:
            return
        if phrase == "selected":
            self._select(match, thread, self.selected)
        elif phrase == "assigned":
            self._select(match, thread, self.assigned)
        elif phrase == "comm":
            self._comm(match.string, thread)
        else:
            self.said.take(phrase, match, match.string, thread.rank if thread else None)

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

    def _meaning(self, text: bytes) -> ChannelLine | None:
        if len(self.channels) >= _MEMO:
            self._settle()
        meaning = self.channels[text] = parse_channel(until_next(text)[-300:])
        if meaning is not None and len(self.edges) < _EDGES:
            self.edges.setdefault((meaning.source, meaning.target), None)
        return meaning

    def _settle(self) -> None:
        """Fold the wordings that were counted into what they mean, and forget the wordings."""
        for state in (self.anonymous, *self.ranks.values()):
            state.settle(self.channels)
        self.channels.clear()

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
        if warning.fatal or warning.code == "gpu-xid":
            self._note(warning)
        else:
            self.said.hint(warning.code, text)

    def _note(self, warning: LogWarning) -> None:
        self.warning_count += 1
        if not warning.fatal and warning.code != "other":
            self.said.hint(warning.code, warning.text)
        kind = (warning.fatal, "harmless" in warning.facts)
        if len(self.warnings) < _WARNINGS or not any((w.fatal, "harmless" in w.facts) == kind for w in self.warnings):
            self.warnings.append(warning)  # however many there are, one of each kind is kept

    def reading(self) -> NcclLog:
        """What was said, frozen."""
        said = self.said
        self._settle()
        lines: Counter[ChannelLine] = Counter()
        for state in (self.anonymous, *self.ranks.values()):
            lines.update(state.settled)
        ranks = tuple(state.freeze() for state in self.ranks.values())
        hosts = self._rank_hosts()
        return NcclLog(
            lines=self.found + sum(lines.values()),
            version=said.version,
            plugin_version=said.plugin_version,
            plugin_loaded=said.p2p_plugin or said.plugin_loaded,
            libfabric_version=said.libfabric_version,
            platform=said.platform,
            ofi_protocols=tuple(said.protocols),
            provider_filter=said.provider_filter,
            hosts=tuple(self.hosts),
            ranks=ranks,
            communicators=self.comms.freeze(said.version),
            selected=dict(self.selected or self.assigned),  # newer versions print both, one sentence each
            providers=dict(said.providers),
            fabrics=tuple(said.fabrics),
            nics=tuple(sorted(said.nics)),
            hcas=tuple(Hca(text=text, link_layer=layer) for text, layer in said.hcas.items()),
            socket_interfaces=tuple(said.socket_interfaces),
            net_channels=sums(lines, lambda line: family_of(line.network)),
            channel_networks=sums(lines, lambda line: line.network),
            p2p_channels=self.p2p,
            gdr_send=count_lines(lines, gdr=True, send=True),
            gdr_receive=count_lines(lines, gdr=True, send=False),
            plain_send=count_lines(lines, gdr=False, send=True),
            plain_receive=count_lines(lines, gdr=False, send=False),
            edges=tuple(edge for edge in self.edges if not same_host(edge, hosts)),
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

    def _rank_hosts(self) -> dict[int, set[str]]:
        """On which hosts a rank was seen as the near end of a channel."""
        hosts: dict[int, set[str]] = {}
        for state in self.ranks.values():
            if state.host:
                for rank in state.near_ends:
                    hosts.setdefault(rank, set()).add(state.host)
        return hosts
