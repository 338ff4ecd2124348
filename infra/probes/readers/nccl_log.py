"""NCCL's own log, 2.4 to 2.31, of any number of ranks in any order, with its network plugins' lines.

Works on blocks of a megabyte: a scan finds the few lines that tell something about the transport. Channel lines are
read all together; of the others, what a rank said before is only counted, the rest is looked at. The first `EXCERPT`
bytes are read more generously (lines whose prefix somebody cut off), since a pasted excerpt is small. Memory grows with
ranks and communicators, not with the log.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from infra.model.reading import Hca, LogWarning, NcclLog, family_of
from infra.probes.readers.nccl_channel_rows import ChannelRows
from infra.probes.readers.nccl_channel_sums import Channels, count_lines, rank_hosts, same_host, sums, total
from infra.probes.readers.nccl_channels import OddLines, until_next
from infra.probes.readers.nccl_communicators import Communicators
from infra.probes.readers.nccl_phrases import (
    COMMUNICATOR,
    INTERESTING,
    OF_A_RANK,
    REFUSALS,
    SENTENCE,
    WARNING,
    Said,
    phrases,
)
from infra.probes.readers.nccl_prefix import line_time, strip_place
from infra.probes.readers.nccl_scan import MESSAGE, Lines, Scan, Scanner, word
from infra.probes.readers.nccl_state import NO_CHANNELS, ChannelLine, ThreadState, Told
from infra.probes.readers.nccl_table import Repeats, Rows, text_rows
from infra.probes.readers.nccl_threads import HEAD, Threads
from infra.probes.readers.nccl_warnings import Warned, classify, outside

M = TypeVar("M")
EXCERPT = 1 << 18  # bytes; in whole blocks, so at least the first one
LONGEST = 2048  # bytes of a line; NCCL says nothing longer, and a line may hold "NCCL " a hundred thousand times
_MEMO = 65_536

_BARE_CHANNEL = re.compile(rb"(?m)^[^\n]* via NET/[^\n]*$")
_BARE = re.compile(
    rb"(?m)^[ \t\r>|*`\"'-]*(?:\d{4}-\d\d-\d\d\S*\s+)?(?:INFO: Function: \w+ Line: \d+: )?"
    rb"(?P<text>(?:Using network |NET/(?:OFI|IB|Socket|Plugin|gIB|FasTrak) ).*)$"
)
_IRRELEVANT, _SAID = Told(0), Told(1)
_COMM, _NCCL_COMM, _SEVEN = np.uint64(word(b"comm 0x")), np.uint64(word(b"ncclComm")), np.uint64(word(b"\xff" * 7))
_DECISIVE = (b"Using network", b"Assigned NET plugin", b"NET/OFI Selected provider", b"NET/OFI Selected Provider")
# Before 2.6 no line names the network: that of the verbs devices is the one, where there are any.
_NO_CHOICE = re.compile(r"2\.[0-5]\.")
_REPEATED = b"x across cluster]"  # Ray prints one line in place of many, and leaves out who said the others
_IN_ORDER = frozenset({"selected", "assigned"})  # a communicator's network is the one that its thread named before it


class NcclLogReader:
    """Feed it blocks of whole lines, then ask for the reading."""

    def __init__(self) -> None:
        self.seen = 0  # bytes
        self.found = 0  # lines that say something
        self.prefixed = 0  # of these, lines that NCCL itself wrote
        self.said = Said()
        self.comms = Communicators()
        self.threads = Threads()
        self.scanner = Scanner()
        self.sentences: dict[bytes, tuple[str, re.Match[bytes] | None]] = {}
        self.boring: dict[bytes, Told] = {}  # messages that say nothing (more), whoever says them
        self.channels = Channels()
        self.rows = ChannelRows(self.channels.way)
        self.odd = OddLines()
        self.told: Repeats[Told] = Repeats(1 << 14)
        self.selected: Counter[str] = Counter()
        self.assigned: Counter[str] = Counter()
        self.choices: dict[bytes, tuple[Counter[str], str]] = {}  # messages that name a network, and where it counts
        self.p2p = 0
        self.warned = Warned()
        self.torn = False
        self.damaged = 0  # lines that name a network and cannot be read to their end
        self.left_out = False

    def feed(self, data: bytes, *, torn: bool = False) -> bytes:
        """Read one block; returns those of its lines that are not NCCL's, for other readers."""
        excerpt = self.seen < EXCERPT
        self.seen += len(data)
        self.torn = torn
        self.left_out |= _REPEATED in data
        block = self.scanner.scan(data)
        self.p2p += block.peers
        self._lines(data, block)
        self._channels(data, block)
        if excerpt:
            self._excerpt(data, block)
        text = data if excerpt else block.foreign
        for warning in outside(text):
            self.found += 1
            if warning.fatal or warning.code in {"gpu-xid", "kernel-device-error"}:
                self._note(warning)
            else:
                self.said.hint(warning.code, warning.text)
        if block.far_peers:
            self.said.hint("mnnvl", "via P2P/MNNVL")
        return block.foreign

    def _lines(self, data: bytes, block: Scan) -> None:
        """Look at the lines that may say something about the transport.

        Lines written into one another need no care here: a sentence is found wherever it stands in a line.
        """
        boring, choices, known, hear, count = self.boring, self.choices, self.threads.known, self.comms.read, 0
        learned, newly = dict[int, Told](), dict[bytes, Told]()
        if len(boring) >= _MEMO:
            boring.clear()
        rows, fresh = self._fresh(data, block, block.lines(block.telling), self.told)
        for row, number, start, at, end, communicator in fresh:
            text = data[at + MESSAGE : end]
            if communicator:
                if not hear(text, known[number] if number >= 0 else self._thread(data, number, start, at)):
                    self._warn(text[:4096], data[max(start, at - HEAD) : at])
                count += 1
                continue
            if text in choices and data.startswith(b"NCCL INFO ", at):
                self._select(*choices[text], known[number] if number >= 0 else self._thread(data, number, start, at))
                count += 1
                continue
            told = boring.get(text)
            if told is not None:
                count += told.weight
            else:
                told = self._line(data, text, number, start, at)
                if told is _SAID or told is _IRRELEVANT:
                    newly[text] = told
            if told is not None and row >= 0:
                learned[row] = told
        boring.update(newly)
        self.told.learn(rows[list(learned)], list(learned.values()))
        self._count(count)

    def _line(self, data: bytes, text: bytes, number: int, start: int, at: int) -> Told | None:
        """Take one line. Returns what it counts for when its rank says it again, None if that has to be looked at."""
        match = INTERESTING.match(data, at)
        if match is None:
            return _IRRELEVANT if data.startswith(b"NCCL INFO ", at) else None
        self._count(1)
        kind = match.lastindex
        if kind == SENTENCE:
            return self._sentence(data, text, number, start, at)
        if kind == WARNING or (
            kind == COMMUNICATOR and not self.comms.read(text, self._thread(data, number, start, at))
        ):
            self._warn(text[:4096], data[max(start, at - HEAD) : at])
        elif kind is None:
            self._other(data[at : at + 10] + text[:4096], data[max(start, at - HEAD) : at])
        return None

    def _sentence(self, data: bytes, text: bytes, number: int, start: int, at: int) -> Told | None:
        phrase, said = self.sentences.get(text) or self._phrase(text)
        if said is not None:
            thread = self._thread(data, number, start, at)
            if phrase in REFUSALS:
                self._refuse(phrase, said, thread)
                return None
            self._take(phrase, said, thread)
            if phrase in _IN_ORDER:
                return None
            if phrase in OF_A_RANK:
                return Told(1, phrase, said, thread.rank if thread else None)
        self.damaged += text.startswith(_DECISIVE)  # and no sentence of a rank
        return _SAID  # said once is said

    def _refuse(self, phrase: str, match: re.Match[bytes], thread: ThreadState | None) -> None:
        """A network that this thread does not get: it counts until the thread names the one that it has instead."""
        self.said.take(phrase, match, match.string, None)
        if thread is not None:
            thread.rank.refused[id(thread)] = phrase

    def _channels(self, data: bytes, block: Scan) -> None:
        """Count channel lines by rank. Those of the usual shape are read all together, the others one by one."""
        lines = block.lines(block.channels)
        threads = self.threads.introduced(data, block, lines)
        ranks, columns = self.threads.speakers(threads), self.rows.read(block, lines, block.nets)
        odd = np.flatnonzero((columns.way < 0) | (threads < 0))
        if odd.size:
            speakers, said = list[int](), list[ChannelLine | None]()
            start, at, end = lines.of(odd)
            places = (threads[odd], start, at, np.minimum(end, at + LONGEST))
            for number, begin, place, stop in zip(*(column.tolist() for column in places), strict=True):
                text = data[place + MESSAGE : stop]
                said.append(self.odd.read(text))
                thread = self._thread(data, number, begin, place)
                speakers.append(thread.rank.number if thread is not None else self.threads.anonymous.number)
            ranks[odd] = speakers
            for column, values in zip(columns, self.channels.columns(said), strict=True):
                column[odd] = values
        self.channels.count(ranks, columns)

    def _fresh(
        self, data: bytes, block: Scan, lines: Lines, again: Repeats[M]
    ) -> tuple[Rows, Iterator[tuple[int, int, int, int, int, bool]]]:
        """Count what was said before.

        Of the other lines: row or -1 if it is none, thread or -1, start, place, end, and whether it tells of a
        communicator.
        """
        if again.full:
            self._settle()
        threads = self.threads.find(data, block, lines)
        rows, able = text_rows(block, lines, self.threads.speakers(threads))
        able &= threads >= 0
        fresh = again.count(rows, able)
        start, at, end = lines.of(fresh)
        begin = rows[fresh, 0]
        communicator = ((begin & _SEVEN == _COMM) | (begin == _NCCL_COMM)) & block.informing(at)
        end = np.minimum(end, at + LONGEST)
        columns = (np.where(able[fresh], fresh, -1), threads[fresh], start, at, end, communicator)
        return rows, zip(*(column.tolist() for column in columns), strict=True)

    def _thread(self, data: bytes, number: int, start: int, at: int) -> ThreadState | None:
        return self.threads.known[number] if number >= 0 else self.threads.of(data[max(start, at - HEAD) : at])

    def _count(self, lines: int) -> None:
        self.found += lines
        self.prefixed += lines

    def _excerpt(self, data: bytes, block: Scan) -> None:
        """The first block: every line's rank and host count, and so do lines whose prefix somebody cut off."""
        lines = block.lines(block.informing(block.at))
        self._count(lines.at.size)
        strange = lines.of(self.threads.find(data, block, lines) < 0)
        for start, at in zip(strange.start.tolist(), strange.at.tolist(), strict=True):
            self.threads.of(data[max(start, at - HEAD) : at])
        for match in _BARE.finditer(block.foreign):
            self.found += 1
            phrase, said = self._phrase(match["text"])
            if said is not None:
                self._take(phrase, said, None)
        bare = [self.odd.look(match.group()) for match in _BARE_CHANNEL.finditer(block.foreign)]
        self.channels.count(np.zeros(len(bare), dtype=np.intp), self.channels.columns(bare))

    def _phrase(self, text: bytes) -> tuple[str, re.Match[bytes] | None]:
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
        elif text.startswith((b"NCCL failure", b"NCCL error", b"NCCL Error", b"NCCL operations have failed")):
            self._note(classify((head + text).decode("utf-8", "replace").strip(), time=line_time(head)))

    def _take(self, phrase: str, match: re.Match[bytes], thread: ThreadState | None) -> None:
        if phrase in _IN_ORDER:
            counts = self.selected if phrase == "selected" else self.assigned
            choice = counts, match["name"].decode("utf-8", "replace").strip()
            if len(self.choices) < _MEMO:
                self.choices[match.string] = choice
            self._select(*choice, thread)
            return
        self.said.take(phrase, match, match.string, thread.rank if thread else None)
        if phrase == "hcas" and thread is not None and id(thread) in thread.rank.refused:
            thread.rank.listed.add(id(thread))

    def _select(self, counts: Counter[str], name: str, thread: ThreadState | None) -> None:
        counts[name] += 1
        if thread is None:
            return
        rank, member = thread.rank, thread.member
        rank.networks[name] = None
        if rank.refused:
            rank.refused.pop(id(thread), None)
        if member is not None and not member.network and not member.complete:
            member.network = name
        else:
            thread.pending = name

    def _settle(self) -> None:
        """Add up what was said again, and forget the wordings, so that memory stays bounded."""
        for told, times in self.told.take():
            self._count(told.weight * times)
            if told.match is not None:
                self.said.take(told.phrase, told.match, told.match.string, told.rank, times)

    def _warn(self, text: bytes, head: bytes) -> None:
        place = head.rstrip()
        thread = self.threads.of(strip_place(place))
        full = (place.rsplit(b" ", 1)[-1] + b" " + text if place else text).decode("utf-8", "replace").strip()
        host = thread.rank.host if thread else ""
        self._note(classify(full, host=host, time=line_time(head)))

    def _note(self, warning: LogWarning) -> None:
        self.warned.take(warning)
        if not warning.fatal and warning.code != "other":
            self.said.hint(warning.code, warning.text)

    def reading(self) -> NcclLog:
        """What was said, frozen."""
        said, threads = self.said, self.threads
        self._settle()
        states, channels = threads.ranks.values(), self.channels.by_rank()
        ways = total(channels[s.number] for s in (threads.anonymous, *states) if s.number in channels)
        listed = _NO_CHOICE.match(said.version or "") is not None
        ranks = tuple(s.freeze(channels.get(s.number, NO_CHANNELS), listed=listed) for s in states)
        hosts = rank_hosts(states, channels)
        return NcclLog(
            lines=self.found + sum(ways.values()),
            version=said.version,
            plugin_version=said.plugin_version,
            plugin_loaded=said.p2p_plugin or said.plugin_loaded,
            libfabric_version=said.libfabric_version,
            platform=said.platform,
            ofi_protocols=tuple(said.protocols),
            provider_filter=said.provider_filter,
            hosts=tuple(threads.hosts),
            ranks=ranks,
            communicators=self.comms.freeze(said.version),
            # newer versions print both, one sentence each
            selected={**{name: n for name, n in self.assigned.items() if name not in self.selected}, **self.selected},
            providers=dict(said.providers),
            fabrics=tuple(said.fabrics),
            nics=tuple(sorted(said.nics)),
            hcas=tuple(Hca(text=text, link_layer=layer) for text, layer in said.hcas.items()),
            socket_interfaces=tuple(said.socket_interfaces),
            net_channels=sums(ways, lambda way: family_of(way.network)),
            channel_networks=sums(ways, lambda way: way.network),
            p2p_channels=self.p2p,
            gdr_send=count_lines(ways, gdr=True, send=True),
            gdr_receive=count_lines(ways, gdr=True, send=False),
            plain_send=count_lines(ways, gdr=False, send=True),
            plain_receive=count_lines(ways, gdr=False, send=False),
            edges=tuple(edge for edge in self.channels.edges() if not same_host(edge, hosts)),
            ring_gdr=(said.ring_gdr[0], said.ring_gdr[1]),
            gdr_lines=(said.gdr_lines[0], said.gdr_lines[1]),
            disagreements={name: tuple(values) for name, values in said.others.items()},
            hints=dict(said.hints),
            env=dict(said.env),
            warnings=tuple(self.warned.kept),
            warning_count=self.warned.count,
            speeds_mb_s=tuple(sorted(said.speeds)),
            prefix_ranks=tuple(sorted(threads.prefix_ranks)),
            devices=tuple(sorted({r.device for r in threads.ranks.values() if r.device is not None})),
            torn=self.torn,
            damaged=self.damaged + self.odd.damaged,
            left_out=self.left_out,
            overflow=threads.overflow or self.comms.overflow or self.channels.overflow,
        )
