"""Who wrote a line: the ranks of a log and their threads, found by what stands in front of a message."""

from __future__ import annotations

import numpy as np

from infra.probes.readers.nccl_prefix import Head, parse_head, prefix_rank
from infra.probes.readers.nccl_scan import Lines, Places, Scan
from infra.probes.readers.nccl_state import MAX_RANKS, RankState, ThreadState
from infra.probes.readers.nccl_table import KEY, Rows, Table, grown, key_rows

HEAD = 400  # bytes in front of a message that say who wrote it
_MEMO = 65_536


class Threads:
    """All ranks of a log and the threads that spoke for them."""

    def __init__(self) -> None:
        self.anonymous = RankState(0, "", "", None)  # for lines whose prefix somebody cut off
        self.ranks: dict[tuple[str, str, int | None], RankState] = {}
        self.hosts: dict[str, None] = {}
        self.prefix_ranks: set[int] = set()
        self.overflow = False
        self._by_pid: dict[tuple[str, int | None], RankState] = {}
        self._by_key: dict[bytes, ThreadState | None] = {}
        # By a key without its thread's number: the rank, and where in the key the host begins. What stands before the
        # host may hide or change it, so it counts only where the key begins with the host or is all that there is.
        self._processes: dict[tuple[bytes, bytes], tuple[RankState, int]] = {}
        self._table = Table(KEY // 8, 2 * _MEMO)
        self._rank_numbers = np.zeros(1, dtype=np.intp)
        self.known: list[ThreadState | None] = []  # by the number that `find` gives

    def find(self, data: bytes, scan: Scan, lines: Lines) -> Places:
        """The number of each line's thread, -1 where it has yet to introduce itself to `of`."""
        if len(self._by_key) >= _MEMO or self._table.size >= _MEMO:
            self._by_key.clear()
            self._processes.clear()
            self._table.clear()
            self.known.clear()
        rows, length = key_rows(scan, lines)
        numbers = self._table.find(rows)
        strange = np.flatnonzero(numbers < 0)
        if strange.size:
            some = rows[strange]
            first = strange[self._table.one_each(some)]
            first = first[length[first] > 0]
            learned = []
            columns = (first, lines.start[first], lines.at[first], length[first])
            for row, begin, at, size in zip(*(column.tolist() for column in columns), strict=True):
                key = data[at - size : at]
                if b":" in key and (key in self._by_key or self._join(key, data[begin:at])):
                    learned.append(row)
                    self.known.append(self._by_key[key])
            if learned:
                self._learn(rows[learned])
                numbers[strange] = self._table.find(some)
        return numbers

    def introduced(self, data: bytes, scan: Scan, lines: Lines) -> Places:
        """The same, and the new ones have introduced themselves: -1 where a prefix is an odd one."""
        numbers = self.find(data, scan, lines)
        strange = np.flatnonzero(numbers < 0)
        if not strange.size:
            return numbers
        last, (start, at, _) = b"", lines.of(strange)
        for begin, place in zip(start.tolist(), at.tolist(), strict=True):
            head = data[max(begin, place - HEAD) : place]
            if head != last:
                self.of(head)
            last = head
        return self.find(data, scan, lines)

    def _learn(self, rows: Rows) -> None:
        begin = self._table.size
        self._table.add(rows)
        del self.known[self._table.size :]
        self._rank_numbers = grown(self._rank_numbers, self._table.size)
        self._rank_numbers[begin : self._table.size] = [
            (thread.rank if thread else self.anonymous).number for thread in self.known[begin:]
        ]

    def speakers(self, numbers: Places) -> Places:
        """The number of the rank that each thread speaks for."""
        return self._rank_numbers[numbers]

    def of(self, head: bytes) -> ThreadState | None:
        """Who wrote the line; remembered by the last words of its prefix, which time stamps leave alone."""
        key = head[head.rfind(b" ", 0, -6) + 1 :]
        if key in self._by_key:
            return self._by_key[key]
        if b":" not in key:
            key = b"\0" + head
            if key in self._by_key:
                return self._by_key[key]
        return self._introduce(key, head)

    def _join(self, key: bytes, head: bytes) -> bool:
        """Take in a new thread of a rank that is known. Other ranks wait for their turn, which gives them an order."""
        head = head[-HEAD:]
        front = len(head) - len(key)
        process, _, rest = key.rpartition(b":")
        number, _, device = rest.partition(b" ")
        rank, begins = self._processes.get((process, device), (None, 0))
        if rank is not None and number.isdigit() and not (begins and front):
            tag = prefix_rank(head[: front + begins])
        else:
            parsed = parse_head(head)
            rank, tag = self.ranks.get((parsed.host, parsed.pid, parsed.device)) if parsed.clean else None, parsed.rank
            if rank is None:
                return False
            begins = _begin_of_process(process, parsed)
            if begins >= 0 and parsed.tid.encode() == number and number.isdigit() and not (begins and front):
                self._processes[process, device] = rank, begins
        if tag is not None:
            self.prefix_ranks.add(tag)
        self._by_key[key] = ThreadState(rank)
        return True

    def _introduce(self, key: bytes, head: bytes) -> ThreadState | None:
        parsed = parse_head(head[-HEAD:])
        if parsed.rank is not None:
            self.prefix_ranks.add(parsed.rank)
        host = parsed.host
        rank: RankState | None = None
        if host and not parsed.clean:
            # Torn lines glue other text to the host's name: only a name already known counts.
            rank = self._by_pid.get((parsed.pid, parsed.device))
            if rank is not None and not (rank.host and host.endswith(rank.host)):
                rank = None
        elif host or parsed.device is not None:
            rank = self.ranks.get((host, parsed.pid, parsed.device))
            if rank is None and len(self.ranks) < MAX_RANKS:
                rank = RankState(len(self.ranks) + 1, host, parsed.pid, parsed.device, parsed.rank)
                self.ranks[host, parsed.pid, parsed.device] = rank
                self._by_pid[parsed.pid, parsed.device] = rank
                if host:
                    self.hosts[host] = None
            self.overflow |= rank is None
        thread = None if rank is None else ThreadState(rank)
        self._by_key[key] = thread
        return thread


def _begin_of_process(process: bytes, parsed: Head) -> int:
    """Where in a key "host:pid" begins, with which `process` ends; -1 where a time stamp was cut off that host."""
    named = f"{parsed.host}:{parsed.pid}".encode()
    begins = len(process) - len(named)
    return begins if process.endswith(named) and not process[:begins][-1:].isalnum() else -1
