"""A list that stops before its end misses no device: it is unmeasured, and no fail for too few."""

from __future__ import annotations

import pytest
from tool_outputs import fi_info

from infra.probes.readers.lines import from_text
from tasks.judge import judge

RECORDS = {
    "ibv_devinfo": "hca_id:\tmlx5_{n}\n\ttransport:\t\t\tInfiniBand (0)\n\tphys_port_cnt:\t\t\t1\n\t\tport:\t1\n"
    "\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tactive_width:\t\t4X (2)\n\t\t\tactive_speed:\t\t100.0 Gbps (128)\n"
    "\t\t\tlink_layer:\t\tEthernet\n",
    "ibstat": "CA 'mlx5_{n}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Active\n"
    "\t\tPhysical state: LinkUp\n\t\tRate: 400\n\t\tLink layer: Ethernet\n",
    "ibstatus": "Infiniband device 'mlx5_{n}' port 1 status:\n\tstate:\t\t 4: ACTIVE\n\tphys state:\t 5: LinkUp\n"
    "\trate:\t\t 400 Gb/sec (4X NDR)\n\tlink_layer:\t Ethernet\n",
    "rdma link": "link mlx5_{n}/1 state ACTIVE physical_state LINK_UP netdev eth{n}\n",
    "ibdev2netdev": "mlx5_{n} port 1 ==> eth{n} (Up)\n",
}
LISTS = {name: ("".join(one.format(n=n) for n in range(2)), "a3-ultragpu-8g") for name, one in RECORDS.items()}
LISTS["fi_info"] = (fi_info(range(2)), "p5en.48xlarge")


@pytest.mark.parametrize("tool", LISTS)
def test_a_list_that_stops_within_a_line_is_unmeasured(tool: str) -> None:
    """Wherever `head -c` cut it: a value may be half of one (PORT_ACT, 40 of 400)."""
    text, machine = LISTS[tool]
    cuts = [n for n in range(1, len(text), 5) if text[n - 1] != "\n"]
    failed = [n for n in cuts if judge(from_text(text[:n]), machine_type=machine).exit_code != 4]
    assert failed == []
    result = judge(from_text(text[:-1]), machine_type=machine)
    assert any("middle of a line" in f.observed and f.remedy for f in result.findings)


@pytest.mark.parametrize("tool", LISTS)
def test_a_list_whose_last_record_lacks_fields_is_unmeasured(tool: str) -> None:
    """Cut at the end of a line, within a record."""
    text, machine = LISTS[tool]
    start = ("hca_id", "CA ", "Infiniband", "link ", "mlx5", "provider")
    ends = [n for n in range(1, len(text)) if text[n - 1] == "\n" and not text[n:].startswith(start)]
    assert [n for n in ends if judge(from_text(text[:n]), machine_type=machine).exit_code != 4] == []
    assert judge(from_text(text), machine_type=machine).exit_code == 3  # whole, and too few


def test_a_port_that_is_down_before_the_cut_stays_down() -> None:
    """Its line is whole."""
    text = LISTS["ibstat"][0].replace("Active", "Down", 1)
    result = judge(from_text(text[:-20]), machine_type="a3-ultragpu-8g")
    assert (result.exit_code, [f.code for f in result.findings]) == (3, ["port-down"])


@pytest.mark.parametrize("machine", ["p5en.48xlarge", "a3-ultragpu-8g"])
def test_a_list_of_other_providers_that_is_cut_does_not_miss_efa(machine: str) -> None:
    """What follows may be EFA's."""
    text = fi_info(range(1)).replace("provider: efa", "provider: tcp").replace("FI_PROTO_EFA", "FI_PROTO_XNET")
    assert judge(from_text(text[:-40]), machine_type=machine).exit_code == 4
