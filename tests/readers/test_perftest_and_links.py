# ruff: noqa: E501 - what a tool printed stands on one line here as it did there
"""perftest against the machine it is said to be from, and the ways in which ports and their absence are told."""

from __future__ import annotations

import pytest
from tool_outputs import PERFTEST

from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import JudgeResult, judge

ULTRA = "a3-ultragpu-8g"
ON_EFA = PERFTEST.replace("mlx5_0", "rdmap85s0")  # bus 55: p5en's, and not p5's


def read(text: str, machine: str = ULTRA) -> JudgeResult:
    return judge(from_text(text), machine_type=machine)


def efa(rate: str) -> str:
    return ON_EFA.replace("392.11", rate).replace("391.72", rate)


def test_a_nic_on_the_bus_of_another_machine_type_passes_as_that_one_alone() -> None:
    """A NIC of p5en at half of its rate is as fast as a good one of p5."""
    assert read(efa("196.2"), "p5en.48xlarge").outcome is Outcome.PASS
    for machine, rate in (("p5.48xlarge", "98.1"), ("p6-b300.48xlarge", "391.7")):
        found = read(efa(rate), machine)
        assert found.outcome is Outcome.UNMEASURED
        assert "PCI buses 55" in found.findings[0].observed


@pytest.mark.parametrize("link", ["InfiniBand", "IB"])
def test_infiniband_was_not_measured_on_a_machine_of_roce(link: str) -> None:
    assert read(PERFTEST).outcome is Outcome.PASS
    assert read(PERFTEST.replace(": Ethernet", f": {link}")).outcome is Outcome.UNMEASURED


@pytest.mark.parametrize("options", ["localhost", "localhost --report_gbits", "127.0.0.1 -d mlx5_1 -D 10", "::1 -a"])
def test_a_run_from_a_node_to_itself_measures_no_wire(options: str) -> None:
    assert read(f"$ ib_write_bw -d mlx5_0 {options}\n{PERFTEST}").outcome is Outcome.UNMEASURED


def test_a_node_that_is_named_after_another_flag_is_another_node() -> None:
    assert read(f"$ ib_write_bw -d mlx5_0 localhost-2 --report_gbits\n{PERFTEST}").outcome is Outcome.PASS


def test_the_cpu_s_share_is_a_column_like_any_other() -> None:
    found = read(
        PERFTEST.replace("MsgRate[Mpps]", "MsgRate[Mpps]   CPU_Util[%]").replace("0.747144", "0.747144   12.50")
    )
    assert found.outcome is Outcome.PASS
    assert (found.fields["cpu_util_percent"], found.fields["bw_average_gbps"]) == (12.5, 391.72)


@pytest.mark.parametrize(
    "line",
    [
        "link mlx5_{n}/1 state {state} physical_state LINK_UP netdev p1p1",
        "link mlx5_{n}/1 subnet_prefix fe80:0000:0000:0000 lid 13399 sm_lid 49151 lmc 0 state {state} physical_state LINK_UP",
        "{n}/1: mlx5_{n}/1: state {state} physical_state LINK_UP",
        "{n}/1: mlx5_{n}/1: subnet_prefix fe80:0000:0000:0000 lid 1 sm_lid 4 lmc 0 state {state} physical_state LINK_UP",
    ],
    ids=["roce", "infiniband", "roce, numbered", "infiniband, numbered"],
)
def test_every_form_of_rdma_link_names_a_port_that_is_down(line: str) -> None:
    states = ["ACTIVE", "ACTIVE", "DOWN"]
    found = read("".join(line.format(n=n, state=state) + "\n" for n, state in enumerate(states)))
    assert found.outcome is Outcome.FAIL
    assert (found.fields["tool"], found.fields["device_count"], found.fields["down"]) == ("rdma-link", 3, ["mlx5_2"])


def test_a_kernel_without_verbs_shows_no_device() -> None:
    found = read("Failed to get IB devices list: Function not implemented\n")
    assert found.outcome is Outcome.FAIL
    assert found.fields["cause"] == "no-ib-device"
