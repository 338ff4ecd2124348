# ruff: noqa: E501 - what a tool printed stands on one line here as it did there
"""perftest against the machine it is said to be from, and the ways in which ports and their absence are told."""

from __future__ import annotations

import pytest
from tool_outputs import PERFTEST, PINGPONG

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


TABLE = "bytes   iters   total       time     MB/sec    usec/xfer   Mxfers/sec\n64      10k     1.2m        0.05s     22.13       2.89       0.35\n"
BROKEN = {
    "fi_pingpong after rows": (
        "$ fi_pingpong -p efa b\n" + PINGPONG + "[error] util/pingpong.c:1500: fi_cq_read: 5 (Input/output error)\n",
        "fi_pingpong",
        "transfer-failed",
    ),
    "fi_pingpong, no device": (
        "[error] util/pingpong.c:1876: fi_getinfo: -61 (No data available)\n",
        "fi_pingpong",
        "no-matching-provider",
    ),
    "fabtests after rows": (
        "$ fi_rdm_tagged_bw -p efa b\n"
        + TABLE
        + "fi_cq_readerr(): common/shared.c:2000, ret=-103 (Software caused connection abort)\n",
        "fabtests",
        "transfer-failed",
    ),
    "fabtests, no device": (
        "fi_getinfo(): common/shared.c:1012, ret=-61 (No data available)\n",
        "fabtests",
        "no-matching-provider",
    ),
    "shared memory": ("$ fi_pingpong -p sm2\n" + PINGPONG, "fi_pingpong", "not-rdma"),
    "LNet": (
        "net:\n    - net type: efa\n      local NI(s):\n        - nid: 10.0.0.1@efa\n          status: down\n          statistics:\n              send_count: 7\n",
        "lnetctl",
        "net-down",
    ),
    "a link that waits for the subnet manager": (
        'CA: a mlx5_0:\n      0x1 1 1[  ] ==( 4X 106.25 Gbps Initialize/  LinkUp)==>  2 1[  ] "sw" ( )\n',
        "iblinkinfo",
        "link-below-its-best",
    ),
    "a link of half its lanes": (
        'CA: a mlx5_0:\n      0x1 1 1[  ] ==( 2X 106.25 Gbps Active/  LinkUp)==>  2 1[  ] "sw" ( Could be 4X )\n',
        "iblinkinfo",
        "link-below-its-best",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_tool_says_to_be_broken_fails_under_its_name(name: str) -> None:
    text, tool, cause = BROKEN[name]
    found = read(text, "p5en.48xlarge")
    assert found.outcome is Outcome.FAIL
    assert (found.fields["tool"], found.fields["cause"]) == (tool, cause)
    assert [f.code for f in found.findings] == [cause]
    assert found.findings[0].remedy


def test_a_table_of_fabtests_may_name_its_tests() -> None:
    named = "name                                " + TABLE.replace("\n64 ", "\n64_lat                              64 ")
    assert (
        read("$ fi_rdm_tagged_bw -p efa b\n" + named).fields["rows"]
        == read("$ fi_rdm_tagged_bw -p efa b\n" + TABLE).fields["rows"]
    )


def test_columns_that_a_pager_aligned_are_the_same_list() -> None:
    lines = [f"mlx5_{n} port 1 ==> eth{n + 2} ({'Down' if n == 3 else 'Up'})\n" for n in range(8)]
    aligned = "".join(line.replace(" ", "    ") for line in lines)
    assert read(aligned).fields == read("".join(lines)).fields
    assert read(aligned).fields["down"] == ["mlx5_3"]
