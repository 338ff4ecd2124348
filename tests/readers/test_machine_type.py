"""A file that somebody says to be of one machine type: what contradicts him, and what nothing in it tells apart."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from nccl_writer import Job, write
from table_writer import Table, write_table

from infra.fabrics import load
from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import JudgeResult, judge

P5EN, B300 = "p5en.48xlarge", "p6-b300.48xlarge"
GOOD = write(Job(gpus=8, rounds=2, channels=2))  # cudaDriverVersion 12080, 16 NICs, no name of a machine
NEW_DRIVER = GOOD.replace(b"cudaDriverVersion 12080", b"cudaDriverVersion 13000")
BUSES = {
    P5EN: ("59", "5a", "72", "73", "8b", "8c", "a4", "a5"),
    B300: ("58", "67", "76", "85", "94", "a3", "b2", "c1"),
}


def read(data: bytes, machine: str) -> JudgeResult:
    return judge(from_text(data), machine_type=machine, nodes=2)


def on_buses_of(machine: str, data: bytes = NEW_DRIVER) -> bytes:
    for device, bus in enumerate(BUSES[machine]):
        data = data.replace(f"busId {device:x}3000".encode(), f"busId {bus}000".encode())
    return data


def with_line(text: str, data: bytes = NEW_DRIVER) -> bytes:
    return data.replace(b"{", f"node-1:1000:2000 [0] NCCL INFO {text}\n{{".encode(), 1)


def reasons(found: JudgeResult) -> str:
    return " ".join(found.lines())


def test_a_log_that_tells_types_of_one_shape_apart_by_nothing_passes_as_none_of_them() -> None:
    for machine, other in ((P5EN, B300), (B300, P5EN)):
        found = read(NEW_DRIVER, machine)
        assert found.outcome is Outcome.UNMEASURED
        assert found.verdicts[0].outcome is Outcome.PASS  # the transport is proven, whatever the machine
        assert f"tells {machine} from {other}" in reasons(found)


TOLD = {
    "a driver that does not know the other's GPU": GOOD,
    "PCI buses": on_buses_of(P5EN),
    "NIC groups": with_line("NET/OFI NIC group 0 device #0 0000:55:00.0", NEW_DRIVER.replace(b" busId ", b" bus ")),
    "a family that the plugin names": with_line("NET/OFI Skipping NCCL_PROTO checks on P5en + RDMA"),
    "the platform": with_line("NET/OFI Running on p5en.48xlarge platform, Setting NCCL_TOPO_FILE to /x.xml"),
    "a topology file": with_line("NET/OFI Setting NCCL_TOPO_FILE to /opt/x/xml/p5en.48xl-topo.xml"),
    "the GPU's name": NEW_DRIVER.replace(b'"event":"start"', b'"event":"start","gpus":["NVIDIA H200"]'),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_names_the_machine_passes_as_it_and_contradicts_every_other(name: str) -> None:
    assert read(TOLD[name], P5EN).outcome is Outcome.PASS
    found = read(TOLD[name], B300)
    assert found.outcome is Outcome.UNMEASURED
    assert "p6-b300" in reasons(found) or "other-machine" in reasons(found)


def test_the_other_ones_buses_contradict_too() -> None:
    assert read(on_buses_of(B300), B300).outcome is Outcome.PASS
    found = read(on_buses_of(B300), P5EN)
    assert [f.code for f in found.findings if f.code == "other-machine"]
    assert "where p6-b300.48xlarge has them" in reasons(found)


def test_buses_that_nobody_knows_tell_nothing() -> None:
    assert read(NEW_DRIVER, P5EN).outcome is Outcome.UNMEASURED


def test_a_type_without_another_of_its_shape_needs_no_name() -> None:
    job = Job(gpus=8, rounds=2, channels=2, nics=32)
    assert read(write(job).replace(b"12080", b"13000"), "p5.48xlarge").outcome is Outcome.PASS


def test_a_table_passes_as_the_type_of_its_gpus_alone() -> None:
    table = write_table(Table())
    assert judge(from_text(table), machine_type=P5EN, nodes=2).outcome is Outcome.PASS
    assert judge(from_text(table), machine_type=B300, nodes=2).outcome is not Outcome.PASS


def test_rows_of_a_payload_without_any_name_pass_as_nothing() -> None:
    rows = b"".join(line for line in GOOD.splitlines(keepends=True) if line.startswith(b"{"))
    assert read(rows, P5EN).outcome is Outcome.UNMEASURED
    named = rows.replace(b'"event":"start"', b'"event":"start","gpus":["NVIDIA H200"]')
    assert read(named, P5EN).outcome is Outcome.PASS
    assert read(named, B300).outcome is not Outcome.PASS


@pytest.mark.parametrize("value", [7, "text", None, {"x": 1}, [None, 3]])
def test_names_of_gpus_of_any_shape_are_no_error(value: object) -> None:
    strange = GOOD.replace(b'"event":"start"', f'"event":"start","gpus":{json.dumps(value)}'.encode())
    assert read(strange, P5EN).outcome in set(Outcome)


def test_types_that_can_be_mistaken_for_each_other_have_their_buses_in_the_table() -> None:
    """A new machine type of a known shape and another rate needs them, or its logs without names pass as nothing."""
    efa = [f for f in load().values() if f.kind == "efa"]
    alike = [
        (a, b) for a in efa for b in efa if (a.nics, a.gpus) == (b.nics, b.gpus) and a.line_rate_gb_s < b.line_rate_gb_s
    ]
    assert {(a.machine_type, b.machine_type) for a, b in alike} == {(P5EN, B300)}
    for a, b in alike:
        assert (len(a.gpu_buses), len(a.nic_buses)) == (a.gpus, a.nics)
        assert (len(b.gpu_buses), len(b.nic_buses)) == (b.gpus, b.nics)
        assert not set(a.gpu_buses) & set(b.gpu_buses)


NO_CONTRADICTION = {
    "a family that an old plugin names": with_line("NET/OFI Running on P5en platform", GOOD),
    "a platform that the plugin does not know": with_line("NET/OFI Running on Unspecified platform", GOOD),
    "a topology that the user chose": with_line("NCCL_TOPO_FILE set by environment to /opt/x/p5.48xl-topo.xml", GOOD),
    "a driver's version that is torn": with_line("cudaDriverVersion 1208", GOOD),
}


@pytest.mark.parametrize("name", NO_CONTRADICTION)
def test_what_names_no_other_machine_contradicts_none(name: str) -> None:
    assert read(NO_CONTRADICTION[name], P5EN).outcome is Outcome.PASS


def test_a_family_of_another_machine_contradicts() -> None:
    assert "runs on P4d" in reasons(read(with_line("NET/OFI Running on P4d platform", GOOD), P5EN))


def test_infiniband_is_not_the_roce_of_a_machine() -> None:
    job = Job(gpus=8, rounds=1, channels=2, nics=8)
    roce, ib = (write(replace(job, fabric=fabric)) for fabric in ("roce", "ib"))
    assert not [f for f in read(roce, "a3-ultragpu-8g").findings if f.code == "other-machine"]
    found = read(ib, "a3-ultragpu-8g")
    assert found.outcome is Outcome.UNMEASURED
    assert "InfiniBand" in reasons(found)


def test_a_row_below_the_floor_of_a_type_of_the_same_rate_has_to_be_told_from_it() -> None:
    """On four nodes a4 has p6-b200's GPU and line rate and a lower floor: a slow p6-b200 would pass as one."""

    def of_four_nodes(factor: float) -> JudgeResult:
        table = write_table(Table(hosts=4, ranks=32, factor=factor)).replace(b"NVIDIA H200", b"NVIDIA B200")
        return judge(from_text(table), machine_type="a4-highgpu-8g", nodes=4)

    assert of_four_nodes(0.8).outcome is Outcome.PASS
    slow = of_four_nodes(0.52)
    assert slow.outcome is Outcome.UNMEASURED
    assert "floors these rows do not reach" in reasons(slow)
