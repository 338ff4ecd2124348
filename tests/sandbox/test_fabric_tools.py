"""nccl-tests' table, fio's JSON, fi_info, byte counters."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest

from infra.sandbox.fabric import devices
from infra.sandbox.fabric.collective import Counters, Setting, SweepArgs, sweep
from infra.sandbox.fabric.generation import generation_of
from infra.sandbox.fabric.machine import Host, Transport, machine_of
from infra.sandbox.fabric.nccl_log import Job, Member
from infra.sandbox.fabric.nccl_tests import PerfArgs, fit, fit_time, perf
from infra.sandbox.fabric.storage import FileSystem, FioArgs, client_gb_s, fio

GIB = 1 << 30


def host(transport: Transport, machine_type: str = "p5en.48xlarge", node: str = "a") -> Host:
    machine = machine_of(machine_type)
    assert machine is not None
    nics = (1.0,) * machine.fabric.nics if transport != "socket" else ()
    return Host(node=node, machine=machine, transport=transport, nics=nics)


def setting(transport: Transport, *, image: str = "nvcr.io/nvidia/pytorch:25.09-py3", nodes: int = 2) -> Setting:
    members = [
        Member(host=host(transport, node=f"n{i}"), hostname=f"w-{i}", address=f"10.0.0.{i}", ranks=8, first_rank=8 * i)
        for i in range(nodes)
    ]
    return Setting(
        job=Job(members=members, generation=generation_of(image), seed="t"),
        start=datetime(2026, 1, 1, tzinfo=UTC),
        counters={"n0": Counters(rdma={"rdmap85s0": 1000}, ethernet=5000)},
    )


def table(image: str = "nvcr.io/nvidia/pytorch:25.09-py3", transport: Transport = "efa") -> list[str]:
    args = PerfArgs(low=1 << 26, high=1 << 34)
    return [line.text for line in perf(setting(transport, image=image), args)[0].lines if "NCCL INFO" not in line.text]


def test_a_row_has_thirteen_fields_that_agree_with_each_other():
    rows = [line.split() for line in table() if re.match(r"^ *\d+ ", line)]
    assert [int(row[0]) for row in rows] == [1 << k for k in range(26, 35)]
    for row in rows:
        assert len(row) == 13
        size, time_us, algbw, busbw = int(row[0]), float(row[5]), float(row[6]), float(row[7])
        assert row[2:5] == ["float", "sum", "-1"]
        assert int(row[1]) == size // 4
        assert algbw == pytest.approx(size / time_us / 1e3, rel=0.01)
        assert busbw == pytest.approx(algbw * 1.875, rel=0.01)
        assert row[8] == row[12] == "0"


def test_rows_and_captions_line_up_with_the_real_tool():
    lines = table()
    caption = next(line for line in lines if line.startswith("#       size"))
    assert caption == (
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw"
        " #wrong"
    )
    row = next(line for line in lines if re.match(r"^ *\d+ ", line))
    real = (
        "    67108864      16777216     float     sum      -1   1090.5   61.54  107.69      0   1083.5   61.94  108.39"
        "      0"
    )
    assert len(row) == len(real)
    assert [m.end() for m in re.finditer(r"\S+", row)] == [m.end() for m in re.finditer(r"\S+", real)]


def test_the_footer_is_that_of_the_real_tool():
    footer = table()[-4:]
    assert footer[0] == "# Out of bounds values : 0 OK"
    assert re.match(r"^# Avg bus bandwidth    : \d+(\.\d+)? $", footer[1])
    assert footer[-1] == "# Collective test concluded: all_reduce_perf"


def test_the_average_is_over_all_rows_and_both_placements():
    lines = table()
    rows = [line.split() for line in lines if re.match(r"^ *\d+ ", line)]
    printed = float(next(line for line in lines if "Avg bus" in line).split(":")[1])
    assert printed == pytest.approx(sum(float(r[7]) + float(r[11]) for r in rows) / (2 * len(rows)), rel=0.01)


def test_older_builds_print_no_version_header():
    assert table()[0].startswith("# nccl-tests version 2.17.6 nccl-headers=22707")
    old = table("nvcr.io/nvidia/pytorch:24.07-py3")
    assert old[0].startswith("# nThread 1 nGpus 1 minBytes 67108864")
    assert not any("Collective test" in line for line in old)


def test_all_ranks_are_listed_with_their_hosts():
    ranks = [line for line in table() if line.startswith("#  Rank")]
    assert len(ranks) == 16
    assert {line.split()[8] for line in ranks} == {"w-0", "w-1"}
    assert "[0000:59:00] NVIDIA H200" in ranks[0]


@pytest.mark.parametrize(("value", "text"), [(17.93, "17.93"), (170.3, "170.3"), (1090.5, "1090.5"), (10052, "10052")])
def test_times_fit_their_column_as_in_real_tables(value, text):
    assert fit_time(value).strip() == text


def test_numbers_too_wide_become_exponents():
    assert fit_time(12_345_678.0).strip() == "1.2e+07"
    assert fit(107.694, 6) == "107.69"
    assert fit(1234567.0, 6).strip() == "1.2e+06"


def test_counters_count_on_from_where_the_node_was():
    (first, _) = sweep(setting("efa"), SweepArgs(sizes=[1 << 28], iters=20, warmup=5))
    before, after = (json.loads(line.text) for line in first.lines if '"counters"' in line.text)
    assert before["rdma"]["rdmap85s0"]["tx_bytes"] == 1000
    assert before["ethernet"]["eth0"]["tx_bytes"] == 5000
    moved = sum(after["rdma"][d]["tx_bytes"] - before["rdma"][d]["tx_bytes"] for d in after["rdma"])
    # Two nodes: each byte of each of the 27 all-reduces crosses once in each direction.
    assert moved == pytest.approx(27 * (1 << 28), rel=1e-6)


def test_on_sockets_the_bytes_are_on_ethernet():
    (first, _) = sweep(setting("socket"), SweepArgs(sizes=[1 << 28]))
    before, after = (json.loads(line.text) for line in first.lines if '"counters"' in line.text)
    assert after["rdma"] == before["rdma"] == {}
    moved = after["ethernet"]["eth0"]["tx_bytes"] - before["ethernet"]["eth0"]["tx_bytes"]
    assert moved == pytest.approx(27 * (1 << 28), rel=0.03)


def test_fi_info_lists_each_domain_and_says_61_without_one():
    generation = generation_of("nvcr.io/nvidia/pytorch:25.09-py3")
    text = "\n".join(line.text for line in devices.fi_info_text(host("efa"), generation).lines)
    assert len(set(re.findall(r"domain: (\S+)", text))) == 16
    none = devices.fi_info_text(host("socket"), generation)
    assert none.exit_code != 0
    assert none.lines[0].text == "fi_getinfo: -61 (No data available)"


def test_lustre_is_bounded_by_what_was_bought_shared_by_its_clients():
    system = FileSystem(capacity_tib=19.2, mb_s_per_tib=500)
    args = FioArgs(jobs=8, depth=16)
    assert client_gb_s(host("efa"), system, args, clients=1) == pytest.approx(9.6)
    assert client_gb_s(host("efa"), system, args, clients=4) == pytest.approx(2.4)


def test_lustre_over_tcp_and_from_another_zone_is_slower():
    args = FioArgs(jobs=8, depth=16)
    near, far = (FileSystem(capacity_tib=19.2, mb_s_per_tib=500, same_zone=same) for same in (True, False))
    efa, tcp = (client_gb_s(host(t), near, args, clients=1) for t in ("efa", "socket"))
    assert efa > tcp > client_gb_s(host("socket"), far, args, clients=1)
    assert client_gb_s(host("efa"), far, args, clients=1) < efa / 3


def test_a_shallow_queue_is_bounded_by_latency():
    system = FileSystem(capacity_tib=100, mb_s_per_tib=1000)
    one = client_gb_s(host("efa"), system, FioArgs(jobs=1, depth=1, block=4096), clients=1)
    assert one < 0.05


def test_fio_json_is_self_consistent():
    system = FileSystem(capacity_tib=19.2, mb_s_per_tib=500)
    jobs = [FioArgs(name="w", rw="write", jobs=8, block=4 << 20, runtime=30, ramp=5)]
    transcript = fio(host("efa"), system, jobs, clients=2, start_unix=1e9, seed="s")
    document = json.loads("\n".join(line.text for line in transcript.lines))
    (job,) = document["jobs"]
    write = job["write"]
    assert document["fio version"].startswith("fio-3.")
    assert write["runtime"] == 30_000
    assert write["bw_bytes"] == pytest.approx(write["io_bytes"] / 30, rel=0.01)
    assert write["bw"] == write["bw_bytes"] >> 10
    assert write["iops"] == pytest.approx(write["bw_bytes"] / (4 << 20), rel=0.01)
    assert transcript.seconds >= 35


def test_a_hastened_run_says_the_same_in_a_part_of_its_time():
    jobs = [FioArgs(name="w", rw="write", jobs=8, block=4 << 20, runtime=30, ramp=5)]
    run = fio(host("efa"), FileSystem(capacity_tib=19.2, mb_s_per_tib=500), jobs, clients=2, start_unix=1e9, seed="s")
    faster = run.faster(8)
    assert [line.text for line in faster.lines] == [line.text for line in run.lines]
    assert faster.seconds == run.seconds / 8
    assert all(line.at <= faster.seconds for line in faster.lines)
