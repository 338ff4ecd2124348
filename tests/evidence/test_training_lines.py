"""The lines of the training payload: what another program, another run or other work printed is never compared."""

import io
import json
import random

import pytest

from infra.model.verdict import Outcome
from infra.probes.readers.detect import read
from tasks.rules.compare import judge
from tasks.rules.probe_verdict import Setting, answer_steps

NODES = ("node-a", "node-b")
STEPS, WARMUP = 40, 5


def lines(middle, seed, **start):
    """What rank 0 prints, one record a line."""
    jitter = random.Random(seed)
    begin = {
        "event": "start",
        "v": 1,
        "preset": "qwen2.5-14b",
        "ranks": 16,
        "hosts": 2,
        "nodes": list(NODES),
        "backend": "nccl",
        "torch": "2.8.0",
        "parameters": 14770033664,
        "shape": {"hidden": 5120},
        "batch": 1,
        "recompute": True,
        "steps": STEPS,
        "warmup": WARMUP,
        **start,
    }
    steps = [
        {
            "event": "step",
            "step": n,
            "seconds": round(middle * jitter.gauss(1, 0.01), 6),
            "warmup": n < WARMUP,
            "loss": 11.9,
        }
        for n in range(WARMUP + STEPS)
    ]
    return [{"poolshift": "train-step", **record} for record in (begin, *steps, {"event": "end", "ok": True})]


def text(records):
    return "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)


def steps_in(printed):
    return answer_steps(read(io.BytesIO(printed.encode())), Setting(nodes=NODES, gpus=8, fabric=None))[0]


def compared(source, target):
    return judge(steps_in(source), steps_in(target), limit=0.6, confidence=0.95)


SLOW, FAST = lines(12.36, 1), lines(6.07, 2)


def each(records, change):
    return text([{**record, **change} if record["event"] == "step" else record for record in records])


def without(records, *keys):
    return text([{key: value for key, value in record.items() if key not in keys} for record in records])


def test_the_lines_as_they_are_printed_pass():
    assert compared(text(SLOW), text(FAST)).outcome is Outcome.PASS


TOLD_BADLY = {
    "of another program": each(FAST, {"poolshift": "other"}),
    "of the other payload's kind": each(FAST, {"poolshift": "all-reduce"}),
    "of no loss": each(FAST, {"loss": None}),
    "of a loss that is no number": each(FAST, {"loss": "nan"}),
    "of another warm-up": each(FAST, {"warmup": True}),
    "on other nodes": text(lines(6.07, 2, nodes=["node-a", "node-c"])),
    "on fewer nodes than hosts": text(lines(6.07, 2, nodes=["node-a"])),
    "on ranks that no two hosts share": text(lines(6.07, 2, ranks=15)),
    "that fail in the line that says that they do not": text(FAST).replace(
        '"ok":true}',
        '"ok":true}{"poolshift":"train-step","event":"end","ok":false,"error":"unspecified launch failure"}',
    ),
}


@pytest.mark.parametrize("how", TOLD_BADLY)
def test_steps_are_not_compared(how):
    told = compared(text(SLOW), TOLD_BADLY[how])
    assert told.outcome is Outcome.UNMEASURED, told
    assert compared(TOLD_BADLY[how].replace("6.", "12."), text(FAST)).outcome is Outcome.UNMEASURED


@pytest.mark.parametrize("other", [{"backend": "gloo"}, {"recompute": False}, {"torch": "2.5.1"}, {"batch": 2}])
def test_steps_of_other_work_are_not_compared(other):
    """On the processor, without recomputing, in another version: the network is not what makes such a step faster."""
    assert "differ in" in compared(text(lines(12.36, 1, **other)), text(FAST)).reason
    assert "differ in" in compared(text(SLOW), text(lines(6.07, 2, **other))).reason


@pytest.mark.parametrize("lost", ["preset", "parameters", "batch", "backend"])
def test_two_runs_that_do_not_say_what_they_computed_are_not_compared(lost):
    assert compared(without(SLOW, lost), without(FAST, lost)).outcome is Outcome.UNMEASURED


def test_two_records_in_one_line_are_two():
    """One that lost the end of its line takes nothing with it."""
    torn = text(FAST).replace(
        '}\n{"poolshift":"train-step","event":"step","step":20', '}{"poolshift":"train-step","event":"step","step":20'
    )
    assert steps_in(torn) == steps_in(text(FAST))


@pytest.mark.parametrize("confidence", [float("nan"), -1.0, 0.0, 1.0, 95.0])
def test_a_confidence_that_is_none_passes_nobody(confidence):
    told = judge(steps_in(text(SLOW)), steps_in(text(FAST)), limit=0.6, confidence=confidence)
    assert told.outcome is Outcome.UNMEASURED
