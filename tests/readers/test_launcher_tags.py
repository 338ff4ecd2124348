"""Tags that a launcher put before lines, against the ranks that NCCL itself prints on them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
from nccl_writer import Job, lines, write

from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import JudgeResult, judge

JOB = Job(gpus=8, rounds=2, channels=2)
Tag = Callable[[int], str]
STYLES: dict[str, Tag] = {
    "mpirun": lambda rank: f"[1,{rank}]<stdout>:",
    "mpirun-bare": lambda rank: f"[1,{rank}]: ",
    "prrte": lambda rank: f"[prterun-node-1-77@1,{rank}]<stdout>: ",
    "srun": lambda rank: f"{rank:2d}: ",
    "rank": lambda rank: f"[rank{rank}]:",
    "hydra": lambda rank: f"[{rank}] ",
}


def read(data: bytes, nodes: int = 2) -> JudgeResult:
    return judge(from_text(data), machine_type="p5en.48xlarge", nodes=nodes)


def tagged(tag: Callable[[int, int], str], job: Job = JOB) -> bytes:
    """`tag` makes the mark of a rank's line from the rank and the line's number."""
    return ("\n".join(tag(r, n) + line for n, (r, line) in enumerate(lines(job))) + "\n").encode()


def doubts(found: JudgeResult) -> str:
    return " ".join(f.observed for f in found.findings if f.code == "launcher-tags")


@pytest.mark.parametrize("style", STYLES)
def test_tags_that_fit_are_no_finding(style: str) -> None:
    tag = STYLES[style]
    assert read(tagged(lambda rank, _: tag(rank))).outcome is Outcome.PASS


WRONG: dict[str, Callable[[int, int], int]] = {
    "two tags exchanged": lambda rank, _: {3: 5, 5: 3}.get(rank, rank),
    "two ranks under one tag": lambda rank, _: 3 if rank == 5 else rank,
    "lines of one rank under two tags": lambda rank, n: rank + 4 if n % 7 == 0 else rank,
    "more tags than ranks": lambda rank, n: 16 + n % 3 if rank == 7 else rank,
    "all reversed": lambda rank, _: 15 - rank,
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("style", STYLES)
def test_tags_that_do_not_fit_the_ranks_are_a_contradiction(style: str, wrong: str) -> None:
    tag, number = STYLES[style], WRONG[wrong]
    found = read(tagged(lambda rank, n: tag(number(rank, n))))
    assert found.outcome is Outcome.UNMEASURED
    assert doubts(found)


def test_a_tag_on_lines_of_another_rank_names_both() -> None:
    found = read(tagged(lambda rank, _: STYLES["mpirun"]({3: 5, 5: 3}.get(rank, rank))))
    assert "mpirun tag 3 on lines of rank 5" in doubts(found)


def test_torchruns_numbers_within_a_host_fit_or_contradict() -> None:
    assert read(tagged(lambda rank, _: f"[default{rank % 8}]:")).outcome is Outcome.PASS
    found = read(tagged(lambda rank, _: f"[default{7 - rank % 8}]:"))
    assert found.outcome is Outcome.UNMEASURED
    assert "local tag 0 on lines of rank 7" in doubts(found)


def test_a_launcher_of_launchers_tags_all_ranks_of_a_node_alike() -> None:
    """srun or mpirun with one task a node, which starts torchrun: its number is the node's, in any order."""
    for order in (lambda node: node, lambda node: 1 - node):
        found = read(tagged(lambda rank, _, order=order: f"[1,{order(rank // 8)}]<stdout>:"))
        assert found.outcome is Outcome.PASS
    both = read(tagged(lambda rank, _: f"{rank // 8}: [default{rank % 8}]:"))
    assert both.outcome is Outcome.PASS


def test_a_task_is_on_one_host() -> None:
    found = read(tagged(lambda rank, _: f"[1,{rank % 8}]<stdout>:"))
    assert "mpirun tag 0 is on lines of node-1, node-2" in doubts(found)


def test_processes_with_several_ranks_each_are_numbered_by_the_process() -> None:
    """nccl-tests -g 8: rank 8 is the first of process 1."""
    whole = re.sub(rb"(node-(\d)):1\d{3}:", rb"\1:100\2:", write(JOB)).decode().splitlines()

    text = [(int(m[1]) - 1 if (m := re.match(r"node-(\d)", line)) else 0, line) for line in whole]
    for order in ((0, 1), (1, 0)):  # torchrun numbers its nodes in any order
        assert not doubts(read("".join(f"[1,{order[node]}]<stdout>:{line}\n" for node, line in text).encode()))


LAYOUTS: dict[str, Callable[[int], str]] = {
    "local ranks of torchrun under a role": lambda rank: f"[rank{rank % 8}]:",
    "the same under srun": lambda rank: f"{rank // 8}: [rank{rank % 8}]:",
    "local ranks in brackets": lambda rank: f"[{rank % 8}] ",
    "one label over everything": lambda _: "0: ",
    "ranks from eight on": lambda rank: f"[1,{rank + 8}]<stdout>:",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_legitimate_layouts_are_no_contradiction(layout: str) -> None:
    assert read(tagged(lambda rank, _: LAYOUTS[layout](rank))).outcome is Outcome.PASS


def test_numbers_of_lines_are_no_tags() -> None:
    assert not doubts(read(tagged(lambda _, n: f"{n}: ")))


def test_one_process_a_node_may_be_numbered_in_any_order() -> None:
    job = Job(gpus=1, rounds=1, channels=2)
    assert not doubts(read(tagged(lambda rank, _: f"{1 - rank}: ", job)))


def test_other_communicators_of_a_job_may_permute_or_divide_its_processes() -> None:
    """A second communicator of all ranks with reversed keys, and groups of two within a host, behind the job's own."""

    def regrouped(line: str, size: int, number: Callable[[int], int], group: Callable[[int], str]) -> str:
        def ranks(m: re.Match[str]) -> str:
            rank = int(m[2])
            return f"{m[1]}{number(rank)} nranks {size}{m[4]}commId 0x{group(rank)} "

        return re.sub(r"(comm 0x\w+ rank )(\d+)( nranks 16)(.*)commId 0x\w+ ", ranks, line)

    first = list(lines(Job(gpus=8, rounds=1, channels=2, payload=False)))
    other = [
        (rank, line.replace("comm 0x55", "comm 0x77")) for rank, line in first if "Init" in line and "comm" in line
    ]
    for size, number, group in (
        (16, lambda rank: 15 - rank, lambda _: "fff1"),
        (2, lambda rank: rank % 2, lambda rank: f"fe{rank // 2:x}0"),
    ):
        for tag in ("[1,{0}]<stdout>:", "[default{1}]:", "{2}: [rank{1}]:", "{0}: "):
            text = [*first, *((rank, regrouped(line, size, number, group)) for rank, line in other)]
            data = "".join(tag.format(rank, rank % 8, rank // 8) + line + "\n" for rank, line in text)
            assert not doubts(read(data.encode())), (size, tag)


def test_groups_of_a_job_number_their_ranks_anew() -> None:
    """Two groups of 8 in a job of 16: ranks 0 to 7 are there twice, and no tag is wrong."""
    one = write(Job(gpus=4, rounds=1, channels=2, payload=False)).decode()
    two = re.sub(r"node-(\d):1", lambda m: f"node-{int(m[1]) + 2}:7", one).replace("commId 0xabc", "commId 0xfff")
    text = ""
    for shift, part in ((0, one), (8, two)):
        for line in part.splitlines():
            rank = int(m[1]) % 100 if (m := re.match(r"node-\d:[17]0?(\d+):", line)) else 0
            text += f"[1,{rank + shift}]<stdout>:{line}\n"
    assert not doubts(read(text.encode(), nodes=4))


def test_lines_torn_into_one_another_name_nobody() -> None:
    """Half of a line behind another's tag is no contradiction of a launcher."""
    whole = tagged(lambda rank, _: STYLES["mpirun"](rank)).split(b"\n")
    dealer = random.Random(5)
    for _ in range(40):
        at = dealer.randrange(len(whole) - 1)
        cut = dealer.randrange(len(whole[at]) + 1)
        whole[at : at + 2] = [whole[at][:cut] + whole[at + 1], whole[at][cut:]]
    assert not doubts(read(b"\n".join(whole)))


def test_tags_behind_a_long_banner_are_seen() -> None:
    text = tagged(lambda rank, _: STYLES["mpirun"]({3: 5, 5: 3}.get(rank, rank)))
    assert "mpirun tag 3 on lines of rank 5" in doubts(read(b"welcome to the cluster\n" * 2000 + text))
