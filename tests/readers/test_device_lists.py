"""What a list of devices, and a bandwidth of one of them, must not be taken for."""

from __future__ import annotations

import json
import re

import pytest
from tool_outputs import FI_INFO, P4D, P5EN, PERFTEST, fi_info, ibstat

from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import JudgeResult, judge

ULTRA = "a3-ultragpu-8g"


def answer(text: str, machine: str = ULTRA) -> JudgeResult:
    return judge(from_text(text), machine_type=machine)


def codes(result: JudgeResult) -> set[str]:
    return {finding.code for finding in result.findings}


def mlx_ibstat(*, rates: tuple[int, ...] = (400,) * 8, states: tuple[str, ...] = ("Active",)) -> str:
    """Every device with as many ports as there are states."""
    return "".join(
        f"CA 'mlx5_{n}'\n\tCA type: MT4129\n\tNumber of ports: {len(states)}\n"
        + "".join(
            f"\tPort {port}:\n\t\tState: {state}\n\t\tPhysical state: LinkUp\n\t\tRate: {rate}\n"
            "\t\tLink layer: Ethernet\n"
            for port, state in enumerate(states, 1)
        )
        for n, rate in enumerate(rates)
    )


def devinfo(
    name: str, *, width: str = "4X", states: tuple[str, ...] = ("PORT_ACTIVE",), layer: str = "Ethernet"
) -> str:
    transport = "unspecified (4)" if layer == "Unspecified" else "InfiniBand (0)"
    return f"hca_id:\t{name}\n\ttransport:\t\t\t{transport}\n\tphys_port_cnt:\t\t\t{len(states)}\n" + "".join(
        f"\t\tport:\t{port}\n\t\t\tstate:\t\t\t{state} (4)\n\t\t\tactive_width:\t\t{width} (2)\n"
        f"\t\t\tactive_speed:\t\t100.0 Gbps (128)\n\t\t\tlink_layer:\t\t{layer}\n"
        for port, state in enumerate(states, 1)
    )


KINDS = {100: "EDR", 200: "HDR", 400: "NDR", 800: "XDR"}


def ibstatus(*rates: int) -> str:
    return "".join(
        f"Infiniband device 'mlx5_{n}' port 1 status:\n\tstate:\t\t 4: ACTIVE\n\tphys state:\t 5: LinkUp\n"
        f"\trate:\t\t {rate} Gb/sec (4X {KINDS[rate]})\n\tlink_layer:\t Ethernet\n\n"
        for n, rate in enumerate(rates)
    )


MLX = [f"mlx5_{n}" for n in range(8)]
ONE_LANE = "".join(devinfo(name, width="1X" if name == "mlx5_2" else "4X") for name in MLX)
SECOND_DOWN = "".join(
    devinfo(name, states=("PORT_ACTIVE", "PORT_DOWN") if name == "mlx5_2" else ("PORT_ACTIVE",)) for name in MLX
)


@pytest.mark.parametrize(
    "text",
    [mlx_ibstat(), ibstatus(*[400] * 8), "".join(devinfo(name) for name in MLX)],
    ids=["ibstat", "ibstatus", "ibv_devinfo"],
)
def test_a_whole_list_at_rate_passes(text: str) -> None:
    assert answer(text).exit_code == 0


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [
        pytest.param(mlx_ibstat(rates=(400, 400, 400, 100, 400, 400, 400, 400)), "wrong-rate", "mlx5_3", id="rate"),
        pytest.param(ibstatus(400, 400, 100, 400, 400, 400, 400, 400), "wrong-rate", "mlx5_2", id="ibstatus-rate"),
        pytest.param(ONE_LANE, "wrong-rate", "mlx5_2", id="one-lane"),
        pytest.param(mlx_ibstat(states=("Down", "Active")), "port-down", "mlx5_7 port 1", id="first-port-down"),
        pytest.param(SECOND_DOWN, "port-down", "mlx5_2 port 2", id="second-port-down"),
    ],
)
def test_each_port_is_judged_and_named(text: str, code: str, named: str) -> None:
    """By its own state and its own rate: not by the last port of its device, nor by the number of devices."""
    result = answer(text)
    assert result.exit_code == 3
    (finding,) = [f for f in result.findings if f.code == code]
    assert named in finding.object
    assert finding.remedy


def test_a_port_whose_state_is_lost_is_named_by_its_physical_one() -> None:
    text = re.sub(r"\t\tState: .*\n", "", mlx_ibstat()).replace("LinkUp", "Disabled", 1)
    (down,) = [f for f in answer(text).findings if f.code == "port-down"]
    assert down.object == "mlx5_0"
    assert "physically Disabled" in down.observed


@pytest.mark.parametrize(
    ("text", "machine"),
    [
        pytest.param(mlx_ibstat() + mlx_ibstat(rates=(400,) * 5), ULTRA, id="ibstat"),
        pytest.param(ibstatus(*[400] * 8) + ibstatus(*[400] * 3), ULTRA, id="ibstatus"),
        pytest.param("".join(devinfo(n) for n in [*MLX, "mlx5_0"]), ULTRA, id="ibv_devinfo"),
        pytest.param(FI_INFO + fi_info(range(9)), "p5en.48xlarge", id="fi_info"),
        pytest.param(FI_INFO + "fi_getinfo: -61 (No data available)\n", "p5en.48xlarge", id="fi_info-then-an-error"),
    ],
)
def test_lists_of_two_hosts_are_no_list_of_one(text: str, machine: str) -> None:
    """The second may lack what the first has."""
    result = answer(text, machine)
    assert result.exit_code == 4
    assert codes(result) & {"seen-twice", "error-beside-list"}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(mlx_ibstat().replace("Rate: 400", "Rate: 4.0.0", 1), id="ibstat-rate"),
        pytest.param(ibstatus(*[400] * 8).replace("400 Gb", "4x0 Gb", 1), id="ibstatus-rate"),
        pytest.param("".join(devinfo(n) for n in MLX).replace("100.0 Gbps", "1.2.3 Gbps", 1), id="ibv_devinfo-rate"),
        pytest.param(mlx_ibstat().replace("Number of ports: 1", "Number of ports: 2", 1), id="a-port-is-not-shown"),
    ],
)
def test_a_damaged_list_is_unmeasured(text: str) -> None:
    assert answer(text).exit_code == 4


def test_endpoints_of_a_device_are_not_devices() -> None:
    """fi_info has an entry for datagrams beside the reliable one."""
    datagrams = {n: fi_info(range(n)).replace("-rdm", "-dgrm").replace("FI_EP_RDM", "FI_EP_DGRAM") for n in (8, 16)}
    assert answer(fi_info(range(8)) + datagrams[8], "p5en.48xlarge").exit_code == 3
    assert answer(fi_info(range(16)) + datagrams[16], "p5en.48xlarge").exit_code == 0


def test_a_port_beside_the_efa_devices_is_not_the_fabrics() -> None:
    """p6-b300 has an RDMA device of its first network card, whose port is down on a healthy node."""
    buses = (0x56, 0x57, 0x65, 0x66, 0x74, 0x75, 0x83, 0x84, 0x92, 0x93, 0xA1, 0xA2, 0xB0, 0xB1, 0xBF, 0xC0)
    efa = "".join(devinfo(f"rdmap{bus}s0", layer="Unspecified") for bus in buses)
    result = answer(efa + devinfo("ibp198s0f0", states=("PORT_DOWN",), layer="InfiniBand"), "p6-b300.48xlarge")
    assert result.exit_code == 0
    assert [f.object for f in result.findings] == ["ibp198s0f0"]


def test_the_rate_that_older_efa_drivers_make_up_is_not_judged() -> None:
    """They give 100 Gb/s for every device; a device that differs from the others is real."""
    text = ibstat(*["Active"] * 16).replace("Rate: 200", "Rate: 100")
    made_up = answer(text, "p5en.48xlarge")
    assert (made_up.exit_code, [f.code for f in made_up.findings]) == (0, ["rate-not-judged"])
    assert answer(text.replace("Rate: 100", "Rate: 200", 15), "p5en.48xlarge").exit_code == 3


def without(text: str, word: str) -> str:
    """The text without its lines that hold a word."""
    return "".join(line for line in text.splitlines(keepends=True) if word not in line)


def with_rows(*sizes: int, rates: tuple[float, ...]) -> str:
    """As -a prints it: one row for each size."""
    head, row = PERFTEST[: PERFTEST.index(" 65536")], PERFTEST[PERFTEST.index(" 65536") :]
    shown = (
        f" {s:<10d} 5000             {r + 0.5:.2f}             {r:.2f}\t\t   0.747144\n"
        for s, r in zip(sizes, rates, strict=True)
    )
    return head + "".join(shown) + row[row.index("\n") + 1 :]


FAST = PERFTEST
SLOW = PERFTEST.replace("392.11", "21.40").replace("391.72", "21.30")
OTHER = FAST.replace("mlx5_0", "mlx5_1")
TORN = PERFTEST[: PERFTEST.rindex("391.72")] + "\n"
AS_JSON = json.dumps(
    {
        "test_info": {"test": "RDMA_Write BW Test", "Device": "mlx5_0", "BW": "Gb/sec"},
        "results": {"MsgSize": 65536, "n_iterations": 5000, "BW_peak": 392.11, "BW_average": 391.72, "MsgRate": 0.7},
    }
)
LOOP = PERFTEST.replace("10:00:00:02", "10:00:00:01")


@pytest.mark.parametrize(
    ("text", "exit_code"),
    [
        pytest.param(FAST + OTHER, 0, id="two-fast"),
        pytest.param(SLOW + OTHER, 3, id="slow-then-fast"),
        pytest.param(OTHER + SLOW, 3, id="fast-then-slow"),
        pytest.param(TORN + OTHER, 4, id="torn-then-fast"),
        pytest.param(FAST + FAST[FAST.index(" #bytes") :].replace("391.72", "21.30"), 3, id="second-without-title"),
        pytest.param("Couldn't connect to 10.0.0.2:18515\n" + FAST, 3, id="failed-then-fast"),
        pytest.param(LOOP, 4, id="loopback"),
        pytest.param(without(LOOP, "remote"), 4, id="one-end-hidden"),
        pytest.param(without(PERFTEST, "RDMA_Write BW Test"), 4, id="no-title-so-perhaps-both-ways"),
        pytest.param(PERFTEST.replace("5000 ", "5    "), 4, id="five-iterations"),
        pytest.param(PERFTEST.replace("Dual-port       : OFF", "Dual-port       : ON"), 4, id="sum-of-two-ports"),
        pytest.param(PERFTEST + " Couldn't read remote address\n Unable to read to socket\n", 3, id="failed-after"),
        pytest.param(PERFTEST + "Segmentation fault (core dumped)\n", 3, id="died-after"),
        pytest.param(PERFTEST + " Conflicting CPU frequency values detected: 800.0 != 3801.0\n", 0, id="a-warning"),
        pytest.param(PERFTEST.replace("65536", "2    ").replace("391.72", "0.10"), 4, id="two-bytes"),
        pytest.param(
            PERFTEST.replace("Gb/sec", "MiB/sec").replace("391.72", "2300.0").replace("392.11", "2400.0"),
            3,
            id="mib-slow",
        ),
        pytest.param(
            PERFTEST.replace("Gb/sec", "MiB/sec").replace("391.72", "46700.0").replace("392.11", "46800.0"),
            0,
            id="mib-at-rate",
        ),
        pytest.param(PERFTEST.replace("Gb/sec", "MB/sec"), 4, id="a-unit-of-two-meanings"),
        pytest.param(PERFTEST.replace("391.72", "39.1.72"), 4, id="damaged-row"),
        pytest.param(PERFTEST.replace("391.72", "399.00"), 4, id="a-mean-above-its-peak"),
        pytest.param(PERFTEST.replace("392.11", "0.00"), 0, id="no-peak-with-D"),
        pytest.param(with_rows(65536, 1 << 20, rates=(301.0, 391.0)), 0, id="small-messages-that-do-not-fill-it"),
        pytest.param(with_rows(65536, 1 << 20, rates=(391.0, 301.0)), 3, id="large-messages-below-rate"),
        pytest.param(with_rows(4096, 65536, rates=(391.0, 301.0)), 3, id="no-large-message"),
        pytest.param("$ ib_write_bw -d mlx5_0 --report_gbits 127.0.0.1\n" + PERFTEST, 4, id="to-this-host"),
        pytest.param("$ ib_write_bw -d mlx5_0 --report_gbits localhost\n" + PERFTEST, 4, id="to-localhost"),
        pytest.param("$ ib_write_bw -d mlx5_0 --report_gbits 10.0.0.2\n" + PERFTEST, 0, id="to-another-host"),
        pytest.param(PERFTEST.replace("mlx5_0", "rxe0"), 4, id="no-hardware"),
        pytest.param(PERFTEST.replace("mlx5_0", "mlx5_bond_0"), 4, id="a-bond-of-two"),
        pytest.param(PERFTEST + "ethernet_read_keys: Couldn't read remote address\n", 3, id="said-by-a-function"),
        pytest.param(AS_JSON, 4, id="json-which-has-no-addresses"),
        pytest.param(AS_JSON.replace("391.72", "21.3"), 3, id="json-slow"),
    ],
)
def test_the_worst_run_of_a_bandwidth_test_decides(text: str, exit_code: int) -> None:
    """One whole run, between two ports, at a size that shows the wire, for each NIC that is named."""
    result = answer(text)
    assert result.exit_code == exit_code
    assert exit_code == 0 or any(f.remedy for f in result.findings)


def test_a_slow_nic_is_named_by_its_own_run() -> None:
    (finding,) = answer(SLOW + OTHER).findings
    assert (finding.object, finding.observed) == ("mlx5_0", "21.3 Gb/s on average")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("Completion with error at client", "completion-error"),
        ("Failed status 12: wr_id 0 syndrom 0x81", "completion-error"),
        ("Couldn't connect to 10.0.0.2:18515", "peer-not-reached"),
        ("IB device mlx5_9 not found", "no-ib-device"),
        ("Couldn't allocate MR", "memory-registration-failed"),
        ("Failed to modify QP to RTR", "queue-pair-failed"),
    ],
)
def test_an_error_has_a_code_its_own_words_and_a_next_step(line: str, code: str) -> None:
    (finding,) = answer(PERFTEST + line + "\n").findings
    assert finding.code == code
    assert line in finding.observed or code == "no-ib-device"
    assert finding.remedy


@pytest.mark.parametrize("text", [PERFTEST, FI_INFO, ibstat("Active"), PERFTEST[:-200], "fi_info: command not found\n"])
def test_what_is_not_judged_says_why(text: str) -> None:
    result = judge(from_text(text))
    assert result.exit_code == 4
    assert result.findings


def ibstat_of(rate: str = "400", physical: str = "LinkUp", layer: str = "Ethernet") -> str:
    return "".join(
        f"CA 'mlx5_{n}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Active\n"
        f"\t\tPhysical state: {physical if n == 3 else 'LinkUp'}\n\t\tRate: {rate if n == 3 else '400'}\n"
        f"\t\tLink layer: {layer}\n"
        for n in range(8)
    )


def devinfo_of(width: str = "\t\t\tactive_width:\t4X (2)\n", physical: str = "LINK_UP (5)") -> str:
    return "".join(
        f"hca_id:\tmlx5_{n}\n\ttransport:\tInfiniBand (0)\n\tphys_port_cnt:\t1\n\t\tport:\t1\n"
        f"\t\t\tstate:\tPORT_ACTIVE (4)\n\t\t\tlink_layer:\tEthernet\n{width if n == 3 else WIDTH}"
        f"\t\t\tactive_speed:\t100.0 Gbps (128)\n\t\t\tphys_state:\t{physical if n == 3 else 'LINK_UP (5)'}\n"
        for n in range(8)
    )


def indented(text: str) -> str:
    return "".join(f"    {line}" for line in text.splitlines(keepends=True))


WIDTH = "\t\t\tactive_width:\t4X (2)\n"
RDMA_LINK = "".join(f"link mlx5_{n}/1 state ACTIVE physical_state LINK_UP netdev eth{n}\n" for n in range(8))


@pytest.mark.parametrize(
    ("text", "exit_code"),
    [
        pytest.param(ibstat_of(), 0, id="ibstat"),
        pytest.param(without(ibstat_of("100"), "Rate: 100"), 4, id="the-line-of-the-slow-rate-is-gone"),
        pytest.param(without(ibstat_of(), "Rate"), 4, id="no-rate-at-all"),
        pytest.param(ibstat_of("800"), 4, id="faster-than-the-machine-type"),
        pytest.param(ibstat_of(layer="InfiniBand"), 4, id="another-link-layer"),
        pytest.param(ibstat_of(physical="Polling"), 3, id="active-without-a-link"),
        pytest.param(devinfo_of(), 0, id="ibv_devinfo -v"),
        pytest.param(devinfo_of(width=""), 4, id="one-port-without-a-width"),
        pytest.param(without(devinfo_of(width="").replace(WIDTH, ""), "active_speed"), 4, id="ibv_devinfo without -v"),
        pytest.param(RDMA_LINK, 4, id="rdma link"),
        pytest.param(RDMA_LINK.replace("ACTIVE", "DOWN", 1), 3, id="rdma link with a port down"),
        pytest.param(without(RDMA_LINK, "mlx5_7"), 3, id="rdma link of seven"),
        pytest.param(without(ibstat_of(), "Physical"), 4, id="no-link-shown"),
        pytest.param(ibstatus(*[400] * 8), 0, id="ibstatus"),
        pytest.param(ibstatus(*[400] * 8).replace("Gb/sec", "Mb/sec"), 4, id="another-unit"),
        pytest.param(
            ibstatus(*[400] * 8).replace("(4X NDR)", "(1X NDR)", 1), 4, id="a-rate-that-its-lanes-do-not-make"
        ),
        pytest.param(without(ibstatus(*[400] * 8), "phys state"), 4, id="ibstatus-without-links"),
        pytest.param(ibstat_of().replace("CA 'mlx5_4'", "node-2:\nCA 'mlx5_4'"), 4, id="two-hosts"),
        pytest.param(ibstat_of() + "ibpanic: [7] main: stat of IB device 'mlx5_8' failed\n", 4, id="ended-early"),
        pytest.param("ibwarn: [1] get_abi_version: is ib_umad loaded?\n" + ibstat_of(), 0, id="a-warning-before"),
        pytest.param(indented(ibstat_of()), 0, id="indented"),
        pytest.param(ibstat_of().replace("mlx5_7", "mlx5_bond_0"), 3, id="a-bond-for-a-nic"),
        pytest.param(devinfo_of(physical="POLLING (2)"), 3, id="active-without-a-link-in-devinfo"),
    ],
)
def test_a_list_passes_only_with_every_rate_and_every_link_shown(text: str, exit_code: int) -> None:
    found = answer(text)
    assert found.exit_code == exit_code
    assert exit_code != 4 or found.findings or found.missing


@pytest.mark.parametrize(
    ("old", "new"),
    [("FI_PROTO_EFA", "FI_PROTO_SOCK_TCP"), ("fabric: efa", "fabric: 10.0.0.0/16")],
    ids=["another protocol", "another fabric"],
)
def test_a_domain_of_efa_that_runs_over_something_else_is_no_device(old: str, new: str) -> None:
    text = fi_info(range(16))
    assert answer(text, "p5en.48xlarge").exit_code == 0
    assert old in text
    assert answer(text.replace(old, new), "p5en.48xlarge").exit_code == 4


def test_a_list_of_domains_whose_beginning_is_gone_is_not_whole() -> None:
    """The rest of a larger machine's list must not count as a smaller one's."""
    text = fi_info(range(15))
    rest = text[text.index(f"efa-direct\n    domain: rdmap{P5EN[10]}s0") :]
    assert answer(fi_info(range(4), P4D), "p4d.24xlarge").exit_code == 0
    assert answer("    fabric: " + rest, "p4d.24xlarge").exit_code != 0


def test_a_list_on_the_buses_of_another_type_of_the_same_shape_passes_as_that_one_alone() -> None:
    """Both have 16 EFA devices. Without buses in their names the list is whole for either, and says no more."""
    other = answer(FI_INFO, "p6-b300.48xlarge")
    assert other.exit_code == 4
    assert "where p5en.48xlarge has them" in " ".join(other.lines())
    assert answer(FI_INFO, "p5en.48xlarge").exit_code == 0
    assert answer(ibstat(*["Active"] * 16), "p5en.48xlarge").exit_code == 0
    nameless = re.sub(r"rdmap(\d+)s0", lambda m: f"efa_{P5EN.index(int(m[1]))}", FI_INFO)
    assert {answer(nameless, machine).exit_code for machine in ("p5en.48xlarge", "p6-b300.48xlarge")} == {0}


@pytest.mark.parametrize("tool", [ibstat(*["Active"] * 16), FI_INFO])
def test_a_list_with_a_device_where_the_type_has_none_is_no_nodes_whole_list(tool: str) -> None:
    assert answer(tool, "p5en.48xlarge").outcome is Outcome.PASS
    strange = tool.replace(f"rdmap{P5EN[3]}s0", "rdmap17s0")
    found = answer(strange, "p5en.48xlarge")
    assert found.outcome is Outcome.UNMEASURED
    assert "PCI buses 11, where p5en.48xlarge has none" in " ".join(found.lines())
