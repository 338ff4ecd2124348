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
    "went back": ({"rdmap0s0": MOVED}, {"rdmap0s0": STARTED}),
    "one of two went back": (
        {"rdmap0s0": {"tx_bytes": 10, "rx_bytes": 99}},
        {"rdmap0s0": {"tx_bytes": GB, "rx_bytes": 3}},
    ),
    "one device of two went back": ({"rdmap0s0": STARTED, "rdmap1s0": MOVED}, {"rdmap0s0": MOVED, "rdmap1s0": STARTED}),
    "another device": ({"rdmap0s0": STARTED}, {"rdmap1s0": MOVED}),
    "a device went": ({"rdmap0s0": STARTED, "rdmap1s0": STARTED}, {"rdmap0s0": MOVED}),
    "a device came": ({"rdmap0s0": STARTED}, {"rdmap0s0": MOVED, "rdmap1s0": MOVED}),
    "a device lost its counters": ({"rdmap0s0": STARTED, "rdmap1s0": STARTED}, {"rdmap0s0": MOVED, "rdmap1s0": {}}),
    "a counter went": ({"rdmap0s0": STARTED}, {"rdmap0s0": {"tx_bytes": GB}}),
    "shown only before": ({"rdmap0s0": STARTED}, None),
    "shown only after": ({}, {"rdmap0s0": MOVED}),
    "no number": ({"rdmap0s0": {"tx_bytes": None, "rx_bytes": 10}}, {"rdmap0s0": MOVED}),
    "below zero": ({"rdmap0s0": {"tx_bytes": -1, "rx_bytes": 10}}, {"rdmap0s0": MOVED}),
}


@pytest.mark.parametrize("kind", ["rdma", "ethernet"])
@pytest.mark.parametrize("ends", NOT_COMPARABLE.values(), ids=NOT_COMPARABLE)
def test_counters_that_cannot_be_compared_leave_a_good_log_unmeasured(kind, ends):
    assert count(*ends).wrong
    assert outcome_with(kind, *ends) is Outcome.UNMEASURED


def test_counters_that_can_be_compared_or_that_no_end_shows_leave_the_log_its_word():
    assert outcome_with("rdma", {"rdmap0s0": STARTED}, {"rdmap0s0": MOVED}) is Outcome.PASS
    assert outcome_with("ethernet", {"rdmap0s0": STARTED}, {"rdmap0s0": QUIET}) is Outcome.PASS
    assert outcome_with("rdma", {}, {}) is Outcome.PASS


def test_a_tools_two_snapshots_of_which_the_later_is_lower_show_no_amount():
    path = "/sys/class/infiniband/rdmap0s0/ports/1/hw_counters/tx_bytes"
    figures = read_counters(f"{path}:5000\n{path}:1000\n").figures
    assert figures["went_back"] == ["rdmap0s0.tx_bytes"]
    assert "moved_bytes" not in figures


ALL = [f"rdmap{n}s0" for n in range(16)]


def of_each(*moved):
    """Every device of a p5en, of which the first moved so many bytes each way and the others none."""
    shown = {name: {"tx_bytes": 0, "rx_bytes": 0} for name in ALL}
    return shown, shown | {name: {"tx_bytes": n, "rx_bytes": n} for name, n in zip(ALL, moved, strict=False)}


NOT_OF_THE_RUN = {
    "another machine's devices": ({"mlx5_0": STARTED}, {"mlx5_0": MOVED}),
    "a device without hardware": ({"rxe0": STARTED}, {"rxe0": MOVED}),
    "only sent": ({"rdmap0s0": STARTED}, {"rdmap0s0": {"tx_bytes": GB, "rx_bytes": 10}}),
    "only received": ({"rdmap0s0": STARTED}, {"rdmap0s0": {"tx_bytes": 10, "rx_bytes": GB}}),
    "one of sixteen": of_each(2 * GB),
    "four of sixteen": of_each(*[GB] * 4),
    "thousands of times the rows": ({"rdmap0s0": STARTED}, {"rdmap0s0": {"tx_bytes": 1 << 62, "rx_bytes": 1 << 62}}),
}


@pytest.mark.parametrize("ends", NOT_OF_THE_RUN.values(), ids=NOT_OF_THE_RUN)
def test_bytes_that_the_run_cannot_have_moved_so_leave_a_good_log_unmeasured(ends):
    assert outcome_with("rdma", *ends) is Outcome.UNMEASURED


def test_one_nic_for_each_gpu_is_enough_where_there_are_more():
    assert outcome_with("rdma", *of_each(*[GB // 8] * 8)) is Outcome.PASS


def test_bytes_that_only_remote_reads_and_writes_count_are_bytes():
    """EFA counts what it reads and writes at the other end apart."""
    before, after = ({"rdmap0s0": {"rdma_write_bytes": n, "rdma_write_recv_bytes": n}} for n in (0, GB))
    assert outcome_with("rdma", before, after) is Outcome.PASS


@pytest.mark.parametrize("digits", [20, 400, 4000])
def test_a_counter_that_no_device_has_cannot_be_read(digits):
    huge = int("9" * digits)
    assert outcome_with("rdma", {"rdmap0s0": STARTED}, {"rdmap0s0": MOVED | {"tx_bytes": huge}}) is Outcome.UNMEASURED
    assert "cannot be read" in count({"a": {"b": 1}}, {"a": {"b": huge}}).wrong


TCP = {"a3-highgpu-8g": ("tcpx", 4), "a3-megagpu-8g": ("fastrak", 8)}


def outcome_over_interfaces(machine, own, other):
    """The verdict on a healthy job whose NICs are interfaces of the pod, by the bytes on its own and on eth0."""
    fabric, nics = TCP[machine]
    job = Job(fabric=fabric, gpus=8, rounds=2, channels=8, nics=nics, devices=nics, busbw=80 if nics == 4 else 300)
    lines = []
    for line in write(job).decode().splitlines():
        if line.startswith('{"poolshift":"counters"'):
            event = json.loads(line)
            after = event["when"] == "after"
            moved = {"eth0": other, **{f"eth{i}": own // nics for i in range(1, nics + 1)}}
            event |= {"rdma": {}}
            event["ethernet"] = {k: dict.fromkeys(("tx_bytes", "rx_bytes"), 10 + v * after) for k, v in moved.items()}
            line = json.dumps(event, separators=(",", ":"))
        lines.append(line)
    found = judge(from_text("\n".join(lines) + "\n"), machine_type=machine, nodes=2)
    return next(v.outcome for v in found.verdicts if v.check == "transport-proof")


@pytest.mark.parametrize("machine", TCP)
def test_bytes_on_a_fabrics_own_interfaces_are_not_taken_for_ethernet(machine):
    """GPUDirect-TCPX and TCPXO go over interfaces of the pod, beside the one that everything else takes."""
    assert outcome_over_interfaces(machine, GB, 1_000_000) is Outcome.PASS
    assert outcome_over_interfaces(machine, 0, GB) is not Outcome.PASS
    assert outcome_over_interfaces(machine, GB, GB) is not Outcome.PASS


def test_interfaces_that_the_kernel_is_not_asked_of_leave_the_log_its_word():
    """Only GPUDirect-TCPXO is known to go past the kernel."""
    assert outcome_over_interfaces("a3-megagpu-8g", 0, 1_000_000) is Outcome.PASS
    assert outcome_over_interfaces("a3-highgpu-8g", 0, 1_000_000) is Outcome.UNMEASURED


@pytest.mark.parametrize("machine", TCP)
@pytest.mark.parametrize("share", [0.005, 0.02, 0.045])
def test_interfaces_that_moved_much_less_than_the_rows_imply_are_seen_and_doubted(machine, share):
    """They moved bytes, so they are counted: these are not the job's devices, or the rows not this run's."""
    implied = 26_843_545_600
    assert outcome_over_interfaces(machine, int(share * implied), 1_000_000) is Outcome.UNMEASURED
