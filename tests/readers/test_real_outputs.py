"""Outputs that people met and showed in public, as they were: shortened, hosts renamed, everything else left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from case_files import differences

from infra.model.verdict import Outcome
from tasks.judge import judge

FOLDER = Path(__file__).parent / "real"
# name -> what must be read, and what it amounts to
OUTPUTS: dict[str, tuple[dict[str, Any], Outcome]] = {
    "a4-gib-all-gather-without-name": (
        {"kind": "nccl-tests", "rows": 24, "peak_busbw": 376.4, "avg_busbw": 135.094, "verdict": "undetermined"},
        Outcome.UNMEASURED,
    ),
    "a3-mega-fastrak-all-reduce": (
        {"kind": "nccl-tests", "rows": 31, "ranks": 16, "hosts": 2, "complete": True, "peak_busbw": 338.82},
        Outcome.UNMEASURED,
    ),
    "gh200-tcp-sweep-to-128-mib": (
        {"op": "all_reduce", "rows": 25, "ranks": 8, "hosts": 2, "complete": True, "peak_busbw": 6.02},
        Outcome.FAIL,  # of the shape, from 16 to 32 MiB
    ),
    "alltoall-that-collapses-and-recovers": (
        {"op": "alltoall", "rows": 24, "complete": True, "peak_busbw": 35.9, "verdict": "suspicious"},
        Outcome.UNMEASURED,
    ),
    "fi-info-p4d-fabric-by-address": ({"tool": "fi_info", "efa_domains": 4, "complete": True}, Outcome.UNMEASURED),
    "fi-info-of-two-pods": ({"tool": "fi_info", "efa_domains": 1, "complete": False}, Outcome.UNMEASURED),
    "fi-info-c5n-in-a-fence": ({"efa_domains": 1, "complete": True}, Outcome.UNMEASURED),
    "rdma-link-software": ({"tool": "rdma-link", "healthy": None, "verdict": "undetermined"}, Outcome.UNMEASURED),
    "nccl-over-software-rdma": (
        {"transport": "roce", "rdma": False, "cause": "software-rdma", "nccl_version": "2.20.5"},
        Outcome.FAIL,
    ),
    "nccl-fastsocket-cut": (
        {"transport": "fastsocket", "rdma": False, "plugin_loaded": "FastSocket", "verdict": "undetermined"},
        Outcome.UNMEASURED,
    ),
    "nccl-network-name-with-blanks": (
        {"network_name": "NCCL RDMA Plugin v8", "transport": "ib-verbs", "gdr": "all", "net_channels": {"ib": 6}},
        Outcome.UNMEASURED,
    ),
    "nccl-spectrum-x-without-prefix": (
        {"network_name": "SPCX", "transport": "ib-verbs", "rdma": True, "net_channels": {"ib": 4}},
        Outcome.UNMEASURED,
    ),
    "nccl-aligned-by-hand": ({"transport": "libfabric", "net_channels": {"libfabric": 4}}, Outcome.UNMEASURED),
    "nccl-2.5-names-no-network": ({"transport": "roce", "gdr": "none", "cause": "no-gpudirect"}, Outcome.FAIL),
    "nccl-2.29-ofi-cuda-failure": (
        {"transport": "efa", "efa_nics": 1, "rows": 0, "gdr": "none", "fatal": True, "verdict": "failed"},
        Outcome.FAIL,
    ),
    "fio-second-run-cut": ({"tool": "fio", "complete": False}, Outcome.UNMEASURED),
    "fio-last-line-cut": ({"tool": "fio", "complete": False}, Outcome.UNMEASURED),
    "fio-two-runs-quoted": (
        {"complete": False, "read_mib_s": None, "write_mib_s": None, "seen_twice": ["READ of group 0"]},
        Outcome.UNMEASURED,
    ),
    "fio-2.15-json-cut": ({"read_io_bytes": None, "read_ios": 4985, "complete": False}, Outcome.UNMEASURED),
    "perftest-quoted-and-cut": (
        {"tool": "perftest", "device": "mlx5_0", "link_type": "IB", "complete": False},
        Outcome.UNMEASURED,
    ),
    "perftest-elided": ({"bw_average_gbps": 18.58, "complete": False}, Outcome.UNMEASURED),
    "ibv-devinfo-efa-layer-infiniband": ({"efa": True, "healthy": True}, Outcome.UNMEASURED),
    "ibstat-virtual-function-down": ({"down": ["mlx5_7"], "cause": "port-down"}, Outcome.FAIL),
    "ibstat-ends-in-an-error": ({"device": "mlx5_7", "complete": False, "healthy": None}, Outcome.UNMEASURED),
    "ibstatus-roce": ({"device_count": 2, "healthy": True}, Outcome.UNMEASURED),
    "ior-4-in-an-operator-log": (
        {"max_write_mib_s": 443.65, "max_read_mib_s": 3584.88, "complete": True},
        Outcome.UNMEASURED,
    ),
    "elbencho-write": ({"write_last_mib_s": 885}, Outcome.UNMEASURED),
    "efa-counters-of-two-hosts": ({"tool": "counters", "rx_bytes": 0}, Outcome.UNMEASURED),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_public_output_is_read_as_an_expert_reads_it(name: str) -> None:
    """The figures, and never a pass without the machine type that they are of."""
    expect, outcome = OUTPUTS[name]
    with (FOLDER / f"{name}.txt").open("rb") as stream:
        result = judge(stream)
    assert not differences(expect, result.to_json())
    assert result.outcome is outcome


def test_every_output_is_asked_about() -> None:
    """A file without an expectation tests nothing."""
    assert {file.stem for file in FOLDER.iterdir()} == set(OUTPUTS)


@pytest.mark.parametrize(
    ("name", "machine", "outcome", "code"),
    [
        ("fi-info-p4d-fabric-by-address", "p4d.24xlarge", Outcome.PASS, None),
        ("fi-info-p4d-fabric-by-address", "p5.48xlarge", Outcome.FAIL, "fewer-nics"),
        ("a3-mega-fastrak-all-reduce", "a3-megagpu-8g", Outcome.PASS, None),
        ("a3-mega-fastrak-all-reduce", "p5.48xlarge", Outcome.FAIL, None),
        ("a3-mega-fastrak-all-reduce", "a3-ultragpu-8g", Outcome.UNMEASURED, None),
        ("nccl-fastsocket-cut", "a3-highgpu-8g", Outcome.FAIL, "tcp-fallback"),
        ("rdma-link-software", "a3-ultragpu-8g", Outcome.FAIL, "fewer-nics"),
    ],
)
def test_with_its_machine_type_it_is_judged(name: str, machine: str, outcome: Outcome, code: str | None) -> None:
    """A whole list of the right length passes; RDMA that is none, and TCP where the fabric was meant, fail."""
    with (FOLDER / f"{name}.txt").open("rb") as stream:
        result = judge(stream, machine_type=machine, nodes=2)
    assert result.outcome is outcome
    assert code is None or code in [f["code"] for f in result.to_json()["findings"]]
