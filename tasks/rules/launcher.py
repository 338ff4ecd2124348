"""Do a launcher's tags fit the ranks that NCCL itself prints behind them? Pure.

A tag names the process that a line is from, and so does NCCL. Where the two disagree, lines of several jobs are in one
file, or somebody put the tags there: whichever of them is believed, the other half of the log is of something else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sized

from infra.model.reading import Communicator, NcclLog, TaggedProcess
from infra.model.verdict import Finding, Level
from tasks.rules.wording import and_more

_LOCAL = "local"
Process = tuple[str, str]  # host and process id


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
        yield from _several_tags(style, tagged)
        yield from _several_hosts(style, tagged)
        yield from _strangers(log, style, tagged)
        for communicator in log.communicators:
            yield from _other_ranks(communicator, style, tagged)


def _several_tags(style: str, tagged: list[TaggedProcess]) -> Iterable[str]:
    """A process prints under one tag."""
    numbers: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for t in tagged:
        numbers[t.host, t.pid, t.device].add(t.number)
    for (host, pid, _), found in numbers.items():
        if len(found) > 1:
            yield f"process {pid} of {host} has {style} tags {and_more([str(n) for n in sorted(found)], 4)}"


def _several_hosts(style: str, tagged: list[TaggedProcess]) -> Iterable[str]:
    """A tag is of one process with its children, hence of one host."""
    hosts: dict[int, set[str]] = defaultdict(set)
    for t in tagged if style != _LOCAL else ():
        hosts[t.number].add(t.host)
    for number, found in hosts.items():
        if len(found) > 1:
            yield f"{style} tag {number} is on lines of {and_more(sorted(found), 3)}"


def _strangers(log: NcclLog, style: str, tagged: list[TaggedProcess]) -> Iterable[str]:
    """More tags than processes that are in any communicator: the others are of another job."""
    members = {(m.host, m.pid) for c in log.communicators for m in c.members}
    numbers = {t.number for t in tagged}
    if style != _LOCAL and members and len(numbers) > len(members):
        yield f"{len(numbers)} {style} tags, and {len(members)} processes in NCCL's communicators"


def _other_ranks(communicator: Communicator, style: str, tagged: list[TaggedProcess]) -> Iterable[str]:
    """In a communicator of the whole job, processes are numbered as its ranks are, each with as many of them."""
    ranks: dict[Process, list[int]] = defaultdict(list)
    for m in communicator.members:
        ranks[m.host, m.pid].append(m.rank)
    share, of_host = _equal(ranks.values()), _equal(_by_host(ranks).values())
    by_number: dict[tuple[str, int], set[Process]] = defaultdict(set)
    for t in tagged:
        if (t.host, t.pid) in ranks:
            by_number[t.host if style == _LOCAL else "", t.number].add((t.host, t.pid))
    if communicator.size is None or not share or not by_number:
        return
    if style == _LOCAL and not of_host:
        return
    if style != _LOCAL and len({t.number for t in tagged}) * share > communicator.size:
        return  # a part of the job, whose ranks are counted anew
    if not _equal(by_number.values()):
        most = max(by_number, key=lambda key: len(by_number[key]))
        yield f"{style} tag {most[1]} on lines of {len(by_number[most])} processes, others on those of fewer"
    wrong = []
    for (_, number), processes in sorted(by_number.items()):
        rank = min(min(ranks[process]) for process in processes)
        place = rank // share % of_host if style == _LOCAL else rank // share
        if len(processes) == 1 and place != number:  # a launcher of launchers numbers nodes, in an order of its own
            wrong.append(f"{style} tag {number} on lines of rank {rank}")
    if wrong:
        yield and_more(wrong, 3)


def _by_host(ranks: Iterable[Process]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for host, pid in ranks:
        found[host].append(pid)
    return found


def _equal(groups: Iterable[Sized]) -> int:
    """How many each group has, if all have as many; else 0."""
    counts = {len(group) for group in groups}
    return counts.pop() if len(counts) == 1 else 0
