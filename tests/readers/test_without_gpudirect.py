"""EFA on a machine that has no GPUDirect RDMA: nothing is wrong there, and a pod with too few NICs looks alike."""

from __future__ import annotations

import re

import pytest
from nccl_writer import Job, write

from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import JudgeResult, judge

PLAIN = write(Job(gpus=8, channels=2, nics=1, plain_ranks=frozenset(range(16)), payload=False))
ON_THE_ROOT_BUS = re.sub(rb"busId ([0-7])3000", rb"busId 1\g<1>0", PLAIN)
HEADER = b"# nThread 1 nGpus 1 minBytes 1024 maxBytes 2048 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n"
V100 = (
    HEADER
    + b"# Using devices\n"
    + b"".join(
        f"#  Rank {r:2d} Group  0 Pid {1000 + r:6d} on node-{r // 8 + 1} device {r % 8:2d} [0000:00:{16 + r % 8:x}] "
        f"Tesla V100-SXM2-32GB\n".encode()
        for r in range(16)
    )
)


def with_line(text: str) -> bytes:
    return f"node-1:1000:2000 [0] NCCL INFO {text}\n".encode() + PLAIN


def codes(found: JudgeResult) -> dict[str, str]:
    return {f.code: f.level.value for f in found.findings}


@pytest.mark.parametrize(
    "data",
    [
        ON_THE_ROOT_BUS,
        V100 + PLAIN,
        with_line(
            "NET/OFI Running on p3dn.24xlarge platform, NCCL_TOPO_FILE environment variable is already set to /x"
        ),
    ],
    ids=["GPUs on the root bus", "GPUs by name", "the platform"],
)
def test_efa_without_gpudirect_is_no_defect_where_the_machine_has_none(data: bytes) -> None:
    found = judge(from_text(data))
    assert found.outcome is Outcome.UNMEASURED
    assert codes(found) == {"no-gpudirect-here": "info"}
    assert found.fields["gdr"] == "none"
    assert found.fields["transport"] == "efa"


def test_one_interface_alone_tells_neither() -> None:
    found = judge(from_text(PLAIN))
    assert (found.outcome, found.verdict) == (Outcome.UNMEASURED, "suspicious")
    assert codes(found) == {"no-gpudirect": "warn"}


@pytest.mark.parametrize("nics", [4, 16, 32])
def test_machines_with_several_interfaces_have_it_and_fail_without(nics: int) -> None:
    found = judge(from_text(PLAIN.replace(b"found 1 nics", f"found {nics} nics".encode())))
    assert codes(found) == {"no-gpudirect": "block"}
    assert found.exit_code == 3


def test_a_machine_type_that_is_named_goes_before_what_the_log_looks_like() -> None:
    assert judge(from_text(ON_THE_ROOT_BUS), machine_type="p5en.48xlarge", nodes=2).exit_code == 3


SPARK = re.sub(rb"\[(\d)\]mlx5_\d", rb"[\1]rocep1s0f\1", write(
    Job(fabric="roce", nodes=2, gpus=1, channels=2, nics=2, plain_ranks=frozenset({0, 1}), payload=False)
))  # fmt: skip


def test_a_spark_has_none_either_and_other_verbs_machines_have() -> None:
    assert codes(judge(from_text(SPARK))) == {"no-gpudirect": "block"}
    for shown in (SPARK.replace(b"rocep1s0f1", b"roceP2p1s0f0"), SPARK.replace(b"busId 03000", b"busId f01000")):
        found = judge(from_text(shown))
        assert codes(found) == {"no-gpudirect-here": "info"}
        assert found.outcome is Outcome.UNMEASURED
    assert judge(from_text(SPARK), machine_type="a3-ultragpu-8g", nodes=2).exit_code == 3


def test_a_plugins_complaint_is_quoted_and_what_is_unknown_is_not_shown() -> None:
    log = (
        "I1130 10:00:00.1 1 main.go:1] Starting NVIDIA Device Plugin\nE1130 10:00:01.1 1 x.go:1] too many open files\n"
    )
    found = judge(from_text(log))
    assert [f.observed for f in found.findings] == ['device-plugin says: "too many open files"']
    listed = judge(
        from_text(
            "hca_id:\tmlx5_0\n\ttransport:\t\t\tInfiniBand (0)\n\tphys_port_cnt:\t\t\t1\n\t\tport:\t1\n"
            "\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tlink_layer:\t\tEthernet\n"
        )
    )
    assert "mlx5_0" in "\n".join(listed.lines())
    assert "None" not in "\n".join(listed.lines())
