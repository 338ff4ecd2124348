"""Do a launcher's tags fit the ranks that NCCL itself prints behind them? Pure.

A tag names the process that a line is from, and so does NCCL. Where the two disagree, lines of several jobs are in one
file, or somebody put the tags there: whichever of them is believed, the other half of the log is of something else.
The proof of transport goes by host and process id and never by tags, so only what no layout explains is said.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized

from infra.model.reading import Communicator, NcclLog, TaggedProcess
from infra.model.verdict import Finding, Level
from tasks.rules.wording import and_more

LINES_OF_A_PROCESS = 4  # more numbers than that for each process number its lines
_LOCAL, _EITHER = "local", "mpiexec"  # Hydra's "[3] " is also what a wrapper of one's own puts there for a local rank
Process = tuple[str, str]  # host and process id
Ranks = Mapping[Process, list[int]]


def misplaced_tags(log: NcclLog) -> tuple[Finding, ...]:
    """One finding with everything that does not fit, or none."""
    doubts = list(_doubts(log))
    if not doubts:
        return ()
    return (
        Finding(
            level=Level.WARN,
            code="launcher-tags",
            object="job",
            observed=and_more(doubts, 3),
            expected="tags that number the processes as NCCL's ranks do",
            remedy="Give the log of one job alone, with the launcher's own tags or with none",
        ),
    )


def _doubts(log: NcclLog) -> Iterable[str]:
    for style in sorted({tagged.style for tagged in log.origin.tagged}):
        tagged = [t for t in log.origin.tagged if t.style == style]
        if len({t.number for t in tagged}) < 2 or _counts_lines(style, tagged):
            continue  # one label over everything, or a number for each line, is no numbering of processes
        yield from _several_tags(style, tagged)
        within = _within_hosts(log, style, tagged)
        if style == _LOCAL:
            yield from filter(None, within)
        elif style != _EITHER or not within or any(within):
            yield from _several_hosts(log, style, tagged)
            yield from filter(None, _other_ranks(log, style, tagged))


def _counts_lines(style: str, tagged: list[TaggedProcess]) -> bool:
    processes = {(t.host, t.pid) for t in tagged}
    return style in {"srun", "mpiexec"} and len({t.number for t in tagged}) > LINES_OF_A_PROCESS * len(processes)


def _several_tags(style: str, tagged: list[TaggedProcess]) -> Iterable[str]:
    """A process prints under one tag."""
    numbers: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for t in tagged:
        numbers[t.host, t.pid, t.device].add(t.number)
    for (host, pid, _), found in numbers.items():
        if len(found) > 1:
            yield f"process {pid} of {host} has {style} tags {and_more([str(n) for n in sorted(found)], 4)}"


def _several_hosts(log: NcclLog, style: str, tagged: list[TaggedProcess]) -> Iterable[str]:
    """Of one job a tag is of one process with its children, hence of one host."""
    numbers: dict[Process, set[int]] = defaultdict(set)
    for t in tagged:
        numbers[t.host, t.pid].add(t.number)
    found: dict[int, set[str]] = {}
    for communicator in log.communicators:
        hosts: dict[int, set[str]] = defaultdict(set)
        for host, pid in {(m.host, m.pid) for m in communicator.members}:
            for number in numbers.get((host, pid), ()):
                hosts[number].add(host)
        found |= {number: names for number, names in hosts.items() if len(names) > 1}
    for number, names in sorted(found.items()):
        yield f"{style} tag {number} is on lines of {and_more(sorted(names), 3)}"


def _other_ranks(log: NcclLog, style: str, tagged: list[TaggedProcess]) -> list[str]:
    """In a communicator of the whole job, processes are numbered as its ranks are, from any number on.

    A launcher of launchers (srun, then torchrun) numbers nodes, in an order of its own.
    """
    numbers = {t.number for t in tagged}

    def wrong(communicator: Communicator, ranks: Ranks) -> str | None:
        share, by_number = _equal(ranks.values()), _by_number(tagged, ranks)
        if communicator.size is None or not share or len(numbers) * share > communicator.size:
            return None  # a part of the job, whose ranks are counted anew
        by_host = _by_host(ranks)
        if all(len(pids) == 1 for pids in by_host.values()) or _of_nodes(by_number.values(), by_host):
            return None
        if text := _unequal(style, by_number):
            return text
        places = [(n, min(ranks[next(iter(p))]) // share) for n, p in sorted(by_number.items()) if len(p) == 1]
        return _misplaced(style, [(number, place, place * share) for number, place in places])

    return _best_fits(log, wrong)


def _within_hosts(log: NcclLog, style: str, tagged: list[TaggedProcess]) -> list[str]:
    """In a communicator of all processes of a host, its tags go up as their ranks do."""
    of_host: dict[str, set[int]] = defaultdict(set)
    for t in tagged:
        of_host[t.host].add(t.number)

    def wrong(_: Communicator, ranks: Ranks) -> str | None:
        by_host = _by_host(ranks)
        shown = sorted(host for host in by_host if host in of_host)
        if not shown or any(len(by_host[host]) < len(of_host[host]) for host in shown):
            return None
        for host in shown:
            by_number = _by_number([t for t in tagged if t.host == host], ranks)
            if text := _unequal(style, by_number):
                return text
            order = sorted(by_host[host], key=lambda pid: min(ranks[host, pid]))
            alone = [(number, next(iter(found))[1]) for number, found in sorted(by_number.items()) if len(found) == 1]
            if text := _misplaced(style, [(n, order.index(pid), min(ranks[host, pid])) for n, pid in alone]):
                return text
        return ""

    return _best_fits(log, wrong)


def _best_fits(log: NcclLog, wrong: Callable[[Communicator, Ranks], str | None]) -> list[str]:
    """For each set of processes what is wrong in the communicator that fits best, "" for nothing: others permute it."""
    found: dict[frozenset[Process], list[str]] = defaultdict(list)
    for communicator in log.communicators:
        ranks: dict[Process, list[int]] = defaultdict(list)
        for m in communicator.members:
            ranks[m.host, m.pid].append(m.rank)
        if (text := wrong(communicator, ranks)) is not None:
            found[frozenset(ranks)].append(text)
    return ["" if "" in texts else texts[0] for texts in found.values()]


def _by_number(tagged: Iterable[TaggedProcess], ranks: Ranks) -> dict[int, set[Process]]:
    found: dict[int, set[Process]] = defaultdict(set)
    for t in tagged:
        if (t.host, t.pid) in ranks:
            found[t.number].add((t.host, t.pid))
    return found


def _of_nodes(groups: Iterable[set[Process]], by_host: Mapping[str, Sized]) -> bool:
    """Is each tag on all processes of one host?"""
    return all(len({host for host, _ in g}) == 1 and len(g) == len(by_host[next(iter(g))[0]]) for g in groups)


def _unequal(style: str, by_number: Mapping[int, set[Process]]) -> str:
    if len(by_number) < 2 or _equal(by_number.values()):
        return ""
    most = max(by_number, key=lambda number: len(by_number[number]))
    return f"{style} tag {most} on lines of {len(by_number[most])} processes, others on those of fewer"


def _misplaced(style: str, places: Sequence[tuple[int, int, int]]) -> str:
    """Of (tag, place, first rank) those that are not as far from each other as most are."""
    offsets = Counter(number - place for number, place, _ in places)
    usual, times = offsets.most_common(1)[0] if offsets else (0, 0)
    if 2 * times <= len(places):
        usual = 0
    return and_more([f"{style} tag {n} on lines of rank {rank}" for n, place, rank in places if n - place != usual], 3)


def _by_host(ranks: Iterable[Process]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for host, pid in ranks:
        found[host].append(pid)
    return found


def _equal(groups: Iterable[Sized]) -> int:
    """How many each group has, if all have as many; else 0."""
    counts = {len(group) for group in groups}
    return counts.pop() if len(counts) == 1 else 0
