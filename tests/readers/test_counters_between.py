"""Counters of two readings that do not belong together prove nothing, however good the log is."""

import json

import pytest
from nccl_writer import Job, write

from infra.model.verdict import Outcome
from infra.probes.readers.counters import read_counters
from infra.probes.readers.lines import from_text
from tasks.judge import judge
from tasks.rules.counted import count

LOG = write(Job(gpus=8, rounds=2, channels=2)).split(b"\n")
GB = 40_000_000_000


def outcome_with(kind, before, after):
    """The verdict on a healthy job whose first node shows these devices at the two ends."""
    lines, shown = [], {"before": before, "after": after}
    for line in LOG:
        head, mark, rest = line.partition(b'{"poolshift":"counters"')
        if mark and (event := json.loads(mark + rest))["node"] == "node-1":
            line = head + json.dumps(event | {kind: shown[event["when"]]}, separators=(",", ":")).encode()
        lines.append(line)
    return judge(from_text(b"\n".join(lines)), machine_type="p5en.48xlarge", nodes=2).outcome


STARTED, MOVED = {"tx_bytes": 10, "rx_bytes": 10}, {"tx_bytes": GB, "rx_bytes": GB}
QUIET = {"tx_bytes": 20, "rx_bytes": 20}
NOT_COMPARABLE = {
    "went back": ({"d0": MOVED}, {"d0": STARTED}),
    "one of two went back": ({"d0": {"tx_bytes": 10, "rx_bytes": 99}}, {"d0": {"tx_bytes": GB, "rx_bytes": 3}}),
    "one device of two went back": ({"d0": STARTED, "d1": MOVED}, {"d0": MOVED, "d1": STARTED}),
    "another device": ({"d0": STARTED}, {"d1": MOVED}),
    "a device went": ({"d0": STARTED, "d1": STARTED}, {"d0": MOVED}),
    "a device came": ({"d0": STARTED}, {"d0": MOVED, "d1": MOVED}),
    "a device lost its counters": ({"d0": STARTED, "d1": STARTED}, {"d0": MOVED, "d1": {}}),
    "a counter went": ({"d0": STARTED}, {"d0": {"tx_bytes": GB}}),
    "shown only before": ({"d0": STARTED}, None),
    "shown only after": ({}, {"d0": MOVED}),
    "no number": ({"d0": {"tx_bytes": None, "rx_bytes": 10}}, {"d0": MOVED}),
    "below zero": ({"d0": {"tx_bytes": -1, "rx_bytes": 10}}, {"d0": MOVED}),
}


@pytest.mark.parametrize("kind", ["rdma", "ethernet"])
@pytest.mark.parametrize("ends", NOT_COMPARABLE.values(), ids=NOT_COMPARABLE)
def test_counters_that_cannot_be_compared_leave_a_good_log_unmeasured(kind, ends):
    assert count(*ends).wrong
    assert outcome_with(kind, *ends) is Outcome.UNMEASURED


def test_counters_that_can_be_compared_or_that_no_end_shows_leave_the_log_its_word():
    assert outcome_with("rdma", {"d0": STARTED}, {"d0": MOVED}) is Outcome.PASS
    assert outcome_with("ethernet", {"d0": STARTED}, {"d0": QUIET}) is Outcome.PASS
    assert outcome_with("rdma", {}, {}) is Outcome.PASS


def test_a_tools_two_snapshots_of_which_the_later_is_lower_show_no_amount():
    path = "/sys/class/infiniband/rdmap0s0/ports/1/hw_counters/tx_bytes"
    figures = read_counters(f"{path}:5000\n{path}:1000\n").figures
    assert figures["went_back"] == ["rdmap0s0.tx_bytes"]
    assert "moved_bytes" not in figures
