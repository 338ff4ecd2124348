# ruff: noqa: E501 - what a job printed stands on one line here as it did there
"""Wordings of plugins, libraries and daemons that say why a job is off its fabric, or that its path is a worse one."""

from __future__ import annotations

import pytest
from nccl_writer import Job, write

from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from infra.probes.readers.nccl_warnings import classify
from tasks.judge import JudgeResult, judge
from tasks.rules.remedies import remedy_of

INFO = "node-a:11:12 [0] NCCL INFO "
FALLEN = "".join(
    f"{INFO}{text}\n"
    for text in ("NET/IB : No device found.", "NET/Socket : Using [0]eth0:10.0.0.1<0>", "Using network Socket")
)
GOOD = write(Job(gpus=8, channels=8)).decode().splitlines()


def read(text: str) -> JudgeResult:
    return judge(from_text(text))


def saying(line: str) -> JudgeResult:
    """A good run with one more line in its middle."""
    half = len(GOOD) // 2
    text = "\n".join([*GOOD[:half], line, *GOOD[half:]]) + "\n"
    return judge(from_text(text), machine_type="p5en.48xlarge", nodes=2)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (INFO + "NET/GPUDirectTCPX disabled", "plugin-disabled"),
        (INFO + "NET/GPUDirectTCPX : GPUDirectTCPX enable: 0", "plugin-disabled"),
        (
            "node-a:11:12 [0] net.cc:9 NCCL WARN NET/GPUDirectTCPX register failed against receive_datapath_manager, UNAVAILABLE: connect",
            "receive-path-unreachable",
        ),
        ("libibverbs: Warning: couldn't open config directory '/etc/libibverbs.d'.", "no-verbs-driver"),
        (
            "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0",
            "no-verbs-driver",
        ),
        (
            INFO
            + "NET/Plugin: dlerror=/usr/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by /usr/local/gib/lib64/libnccl-net.so) No plugin found (libnccl-net.so), using internal implementation",
            "plugin-unloadable",
        ),
        (
            INFO
            + "NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libfabric.so.1: cannot open shared object file: No such file or directory",
            "plugin-unloadable",
        ),
        (
            INFO
            + "NET/Plugin: dlerror=libnccl-net.so: failed to map segment from shared object: Operation not permitted No plugin found (libnccl-net.so), using internal implementation",
            "plugin-unloadable",
        ),
    ],
)
def test_why_a_job_is_on_sockets_is_told_before_what_only_follows_from_it(line: str, cause: str) -> None:
    """Without the plugin or the adapter's driver NCCL's own verbs find no device either: that names nothing."""
    found = read(f"{line}\n{FALLEN}")
    assert (found.outcome, found.fields["cause"]) == (Outcome.FAIL, cause)
    assert next(f for f in found.findings if f.code == cause).remedy


def test_a_plugin_that_was_asked_for_and_is_not_there_is_the_cause() -> None:
    """An image names one for another fabric: that NCCL's own verbs find no device follows from nothing."""
    asked = f"{INFO}NCCL_NET_PLUGIN set by environment to spcx\n"
    missing = f"{INFO}NET/Plugin: Could not find: spcx libnccl-net-spcx.so. Using internal network plugin.\n"
    assert read(asked + missing + FALLEN).fields["cause"] == "plugin-missing"
    assert read(asked + FALLEN).fields["cause"] == "no-ib-device"
    assert read(missing + FALLEN).fields["cause"] == "no-ib-device"


def test_a_plugin_that_is_switched_off_is_not_at_work() -> None:
    """Whether the job fell back is not said yet, and "no" would be a guess."""
    start = INFO + "NET/GPUDirectTCPX initialization start\n"
    assert read(start).fields["fallback"] is False
    assert read(start + INFO + "NET/GPUDirectTCPX disabled\n").fields["fallback"] is None


def test_a_plugin_that_gives_gpudirect_up_is_not_called_healthy() -> None:
    """aws-ofi-nccl says so at INFO, and goes on through host memory."""
    given_up = "NET/OFI Could not disable CUDA API usage for HMEM, disabling GDR"
    found = read(
        f"{INFO}NET/OFI Selected Provider is efa (found 4 nics)\n{INFO}{given_up}\n{INFO}Using network AWS Libfabric\n"
    )
    assert (found.verdict, found.fields["gdr"], found.fields["cause"]) == ("degraded", "none", "no-gpudirect")
    assert saying(f"node-2:1009:2009 [1] NCCL INFO {given_up}").outcome is Outcome.UNMEASURED


@pytest.mark.parametrize(
    "said", ["CollNet 00/0 : 9 [send] via", "CollNet 03 : 1 [receive] via", "Coll 00 : 2 [send] via"]
)
def test_a_collective_in_the_switches_without_gpudirect_is_a_worse_path_too(said: str) -> None:
    line = f"node-2:1009:2009 [1] NCCL INFO {said} COLLNET/SHARP/0"
    found = saying(line)
    assert (found.outcome, [f.code for f in found.findings]) == (Outcome.FAIL, ["no-gpudirect"])
    assert saying(line + "/GDRDMA").outcome is Outcome.PASS
    assert saying(line + "/GDRDMA(PCI)").outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("text", "code", "fatal"),
    [
        ("NET/IB : mlx5_0:1 async fatal event: local catastrophic error", "ib-device-failed", True),
        ("NET/IB : mlx5_0:1 async fatal event on QP (0x7f): local access violation", "ib-device-failed", True),
        ("communicator encountered a fatal error (detected in ncclIbTest)", "ib-device-failed", True),
        ("NET/IB : mlx5_0:1 GID table changed", "ib-async-event", False),
        ("NET/IB : mlx5_0:1 unknown event type (99)", "ib-async-event", False),
        ("Message truncated : received 131072 bytes instead of 65536", "version-mismatch", True),
        ("NCCL/NET (shim) mismatch enforced: NCCL_P2P_NVL_CHUNKSIZE=524288 (expected 262144)", "gib-settings", True),
        ("NCCL/NET (shim) mismatch recommended: NCCL_MAX_P2P_NCHANNELS=8 (expected unset)", "gib-settings", False),
        ("No NCCL_TUNER_CONFIG_PATH provided. Please populate NCCL_TUNER_CONFIG_PATH", "gib-settings", False),
    ],
)
def test_warnings_of_newer_versions_and_of_gib_have_their_code_and_what_to_do(
    text: str, code: str, fatal: bool
) -> None:
    warning = classify(text)
    assert (warning.code, warning.fatal) == (code, fatal)
    assert remedy_of(code) != remedy_of("never-heard-of")
    found = saying(f"[2026-03-01 10:00:00] node-2:1009:2109 [1] x.cc:1 NCCL WARN {text}")
    assert found.outcome is (Outcome.FAIL if fatal else Outcome.UNMEASURED)


def test_nics_that_nccl_merged_are_listed_and_counted() -> None:
    merged = "NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [1]={[2] mlx5_2:1/RoCE, [3] mlx5_3:1/RoCE} [RO]; OOB eth0:1<0>"
    found = read(f"{INFO}{merged}\n{INFO}Using network IB\n")
    assert found.fields["hcas"] == [f"mlx5_{n}:1/RoCE" for n in range(4)]
    assert found.fields["transport"] == "roce"
    few = judge(from_text(f"{INFO}{merged}\n{INFO}Using network gIB\n"), machine_type="a3-ultragpu-8g")
    assert (few.verdict, few.fields["cause"]) == ("degraded", "fewer-nics")


def test_the_plugin_for_amds_gpus_tells_its_version() -> None:
    assert read(INFO + "NET/OFI Using aws-ofi-rccl 1.4.0\n").fields["plugin_version"] == "1.4.0"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            "NET/OFI Unable to register memory (type = 2) for device 5. RC: -22, Error: Invalid argument",
            "ofi-call-failed",
        ),
        ("NET/OFI Could not set FI_OPT_MAX_MSG_SIZE. RC: -22, ERROR: Invalid argument", "ofi-call-failed"),
        ("NET/OFI Couldn't find any optimal provider. RC: -61, ERROR: No data available", "no-efa-device"),
    ],
)
def test_a_call_of_libfabric_that_failed_says_so_by_its_return_code(text: str, code: str) -> None:
    warning = classify(text)
    assert (warning.code, warning.fatal) == (code, code == "ofi-call-failed")


def test_many_warnings_that_nobody_knows_hide_none_that_has_a_name() -> None:
    """The receive path that stalls fails a run: behind 64 others it was one more doubt."""
    noise = "".join(f"node-a:11:12 [0] x.cc:{n} NCCL WARN something odd {n}\n" for n in range(300))
    stalled = "node-a:11:12 [0] x.cc:1 NCCL WARN NET/GPUDirectTCPX : rx ctrl timeout cnt 5\n"
    assert read(noise + stalled).verdict == "stalled"
    calls = "".join(f"node-a:11:12 [0] NCCL WARN Call to x{n} returned Broken {n}, retrying\n" for n in range(500))
    assert read(calls + "node-a:11:12 [0] NCCL WARN Cuda failure 700\n").verdict == "failed"
