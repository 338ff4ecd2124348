"""Tables of nccl-tests that can be read to the last row, and are not one measurement of this pool's network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from nccl_writer import Job, write
from table_writer import Table, write_table

from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import JudgeResult, judge

GOOD = write_table(Table()).decode()


def read(text: str, machine: str = "p5en.48xlarge") -> JudgeResult:
    return judge(from_text(text), machine_type=machine, nodes=2)


def rows(change: Callable[[list[str]], list[str]], text: str = GOOD) -> str:
    """The table with its rows changed, all of them together."""
    lines = text.splitlines(keepends=True)
    at = [n for n, line in enumerate(lines) if " float " in line]
    return "".join([*lines[: at[0]], *change(lines[at[0] : at[-1] + 1]), *lines[at[-1] + 1 :]])


DOUBTFUL = {
    "one iteration": GOOD.replace(" iters: 20", " iters: 1"),
    "no iteration": GOOD.replace(" iters: 20", " iters: 0"),
    "sums that nobody was to check": GOOD.replace("validation: 1", "validation: 0"),
    "milliseconds": GOOD.replace("(us)", "(ms)"),
    "gigabits": GOOD.replace("(GB/s)", "(Gb/s)"),
    "another type's elements": GOOD.replace(" float ", "  half "),
    "no operator": GOOD.replace(" sum ", "none "),
    "rows in reverse": rows(lambda all_rows: all_rows[::-1]),
    "an average of other rows": GOOD.replace("427.0", "4.27"),
    "another collective at the end": GOOD.replace("concluded: all_reduce", "concluded: all_gather"),
    "two ranks on one GPU": GOOD.replace("[0000:54:00]", "[0000:53:00]"),
    "two names of one host": GOOD.replace("node-2", "node-1.b").replace("node-1 ", "node-1.a "),
    "hosts without a name": GOOD.replace("node-2", "localhost").replace("node-1", "127.0.0.1"),
    "GPUs of two kinds": GOOD.replace("NVIDIA H200", "Tesla T4", 3),
    "GPUs of another machine": GOOD.replace("NVIDIA H200", "NVIDIA GB200"),
    "two communicators": GOOD.replace("Group  0", "Group  1", 8),
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_a_table_that_is_not_one_measurement_of_this_pool_is_no_pass_and_says_why(name: str) -> None:
    assert DOUBTFUL[name] != GOOD
    answer = read(DOUBTFUL[name])
    assert answer.outcome is Outcome.UNMEASURED
    assert any(f.remedy for f in answer.findings) or any(v.reason for v in answer.verdicts)


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("warmup iters: 5", "warmup iters: 0"),
        GOOD.replace("agg iters: 1", "agg iters: 10"),
        GOOD.replace(" sum ", " avg "),
        GOOD.replace("nccl-headers=22809", "nccl-headers=22805"),
        GOOD.replace("NVIDIA H200", "NVIDIA H200 141GB HBM3e"),
        rows(lambda all_rows: all_rows * 2, GOOD),
    ],
    ids=["no warm-up", "aggregated", "average", "other headers", "longer name", "two cycles"],
)
def test_what_a_good_run_may_say_too_changes_nothing(text: str) -> None:
    assert read(text).outcome is Outcome.PASS


def document(**changes: object) -> str:
    sizes = {256 << 20: 343.0, 512 << 20: 393.0}
    results = []
    for count, busbw in sizes.items():
        side = {"time": count / (busbw / 1.875) / 1e3, "alg_bw": busbw / 1.875, "bus_bw": busbw, "nwrong": 0}
        row = {"size": count, "count": count // 4, "type": "float", "redop": "sum"}
        results.append(row | {"out_of_place": side, "in_place": side})
    return json.dumps(
        {
            "args": ["all_reduce_perf"],
            "config": {"min_bytes": 256 << 20, "max_bytes": 512 << 20, "step_factor": 2},
            "devices": [
                {"rank": r, "hostname": f"node-{r // 8}", "pid": r, "device": r % 8, "busid": f"{r % 8}3:00"}
                | {"name": "NVIDIA H200"}
                for r in range(16)
            ],
            "results": results,
            "out_of_bounds": {"count": 0, "okay": "true"},
            "average_bus_bandwidth": {"bandwidth": 368.0, "okay": "true"},
            "errors": [],
            "end_time": "2026-03-13 22:27:02",
        }
        | changes
    )


def test_a_document_is_doubted_for_the_same_reasons() -> None:
    good = json.loads(document())
    assert read(document()).outcome is Outcome.PASS
    changed = [
        document(config=good["config"] | {"iters": 1}),
        document(config=good["config"] | {"validation": 0}),
        document(results=[row | {"actual_iterations": 1} for row in good["results"]]),
        document(results=[row | {"count": 5} for row in good["results"]]),
        document(results=good["results"][::-1]),
        document(average_bus_bandwidth={"bandwidth": 3.68, "okay": "true"}),
        document(devices=[d | {"hostname": f"node-1.{d['hostname']}"} for d in good["devices"]]),
        document(devices=[d | {"busid": "13:00"} for d in good["devices"]]),
        document(devices=[d | {"group": d["rank"] // 8} for d in good["devices"]]),
    ]
    assert [read(text).outcome for text in changed] == [Outcome.UNMEASURED] * len(changed)


def test_a_document_that_names_one_thing_twice_is_not_whole() -> None:
    twice = document().replace('"errors": []', '"errors": ["Test NCCL failure"], "errors": []')
    assert twice != document()
    assert read(twice).outcome is not Outcome.PASS


@pytest.mark.parametrize("buses", [("10", "10", "20", "20", "90", "90", "a0", "a0"), ("00",) * 8])
def test_gpus_on_one_bus_are_told_apart_by_their_device(buses: tuple[str, ...]) -> None:
    """Before 2022-09 the bracket was the bus alone: p4d has two GPUs on each, a virtual machine may have all on one."""
    text = GOOD
    for device, bus in enumerate(buses):
        text = text.replace(f"[0000:{0x53 + device:02x}:00]", f"[0x{bus}]")
    assert "several ranks" not in " ".join(read(text).lines())
    assert "several ranks on one GPU" in " ".join(read(text.replace("device  1", "device  0")).lines())


def small(busbw: float, told: float | None = None) -> str:
    """The good table with a row of 64 MiB before its own, and with an average that counts it."""
    algbw, size = busbw / 1.875, 64 << 20
    side = f"{size / algbw / 1e3:9.1f} {algbw:7.2f} {busbw if told is None else told:7.2f}      0"
    row = f"{size:12d} {size // 4:13d}     float     sum      -1 {side} {side}\n"
    text = GOOD.replace("minBytes 268435456", "minBytes 67108864")
    side = "    870.8  154.13  289.00      0"
    first = f"{128 << 20:12d} {32 << 20:13d}     float     sum      -1 {side} {side}\n"
    shown = [343.0, 393.0, 437.0, 444.0, 466.0, 479.0, 289.0, busbw if told is None else told]
    text = re.sub(r"(Avg bus bandwidth    : ).*", rf"\g<1>{sum(shown) / len(shown):.1f}", text)
    return re.sub(r"(?m)^( +268435456 )", lambda m: row + first + m[1], text, count=1)


def test_rows_too_small_for_a_floor_of_their_own_are_looked_at_too() -> None:
    assert read(small(209.0)).outcome is Outcome.PASS
    slow = read(small(1.0))
    assert slow.outcome is not Outcome.PASS
    assert "64 MiB took" in " ".join(slow.lines())
    assert "implausible: 9999.0 GB/s at 64 MiB" in " ".join(read(small(9999.0)).lines())
    assert "is not 1.875 x algbw" in " ".join(read(small(209.0, told=309.0)).lines())


def test_a_published_figure_of_a_small_size_is_its_floor() -> None:
    below = read(small(100.0).replace("NVIDIA H200", "NVIDIA H100 80GB HBM3"), "p5.48xlarge")
    assert below.outcome is Outcome.FAIL
    assert "at 64 MiB" in " ".join(below.lines())


def test_an_announced_row_may_lack_in_no_round() -> None:
    whole = write(Job(gpus=8, rounds=2, channels=2)).decode()
    cut = re.sub(r'\{"poolshift":"all-reduce","event":"row","round":1,"size_bytes":67108864[^\n]*\n', "", whole)
    assert read(whole).outcome is Outcome.PASS
    found = read(cut)
    assert found.outcome is Outcome.UNMEASURED
    assert "no row for 64 MiB in round 1" in " ".join(found.lines())


@pytest.mark.parametrize(("busbw", "outcome"), [(209.0, Outcome.UNMEASURED), (100.0, Outcome.FAIL)])
def test_a_sweep_that_ends_before_bandwidth_decides_may_fail_and_never_passes(busbw: float, outcome: Outcome) -> None:
    """Half of the wire is enough for messages that wait for latency."""
    text = re.sub(r"(?m)^ +(?!67108864 |134217728 )\d+ +\d+ +float .*\n", "", small(busbw)).replace(
        "NVIDIA H200", "NVIDIA H100"
    )
    text = re.sub(r"maxBytes \d+", f"maxBytes {128 << 20}", text)
    text = re.sub(r"(Avg bus bandwidth    : ).*", rf"\g<1>{(busbw + 289.0) / 2:.1f}", text)
    found = read(text, "p5.48xlarge")
    assert found.outcome is outcome
    assert outcome is Outcome.FAIL or "no size of 256 MiB or more" in " ".join(found.lines())


def test_a_collective_is_told_by_its_own_name() -> None:
    gathered = write_table(Table(op="all_gather", factor=0.4)).decode()
    low = read(gathered.replace("NVIDIA H200", "NVIDIA H100 80GB HBM3"), "a3-megagpu-8g")
    assert "all-reduce" not in " ".join(low.lines())
    wrong = read(write_table(Table(op="all_gather", wrong=7)).decode(), "a3-ultragpu-8g")
    assert "all-gather gave wrong sums" in " ".join(wrong.lines())
