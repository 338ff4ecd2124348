"""What else an otherwise healthy run says: errors end the proof, advice does not, and each finding says what to do."""

from __future__ import annotations

import pytest
from nccl_writer import Job, write

from infra.model.verdict import Level, Outcome
from infra.probes.readers.lines import from_text
from infra.probes.readers.nccl_warnings import classify
from tasks.judge import JudgeResult, judge
from tasks.rules.remedies import remedy_of

MACHINE = "p5en.48xlarge"
JOB = Job(gpus=8, channels=8)
GOOD = write(JOB).decode()
WARN = "[2026-03-01 10:00:00] node-2:1009:2109 [1] transport/net_ib.cc:2371 NCCL WARN "


def read(text: str, nodes: int | None = 2) -> JudgeResult:
    return judge(from_text(text), machine_type=MACHINE, nodes=nodes)


def saying(line: str) -> JudgeResult:
    """The good run with one more line in its middle."""
    lines = GOOD.splitlines(keepends=True)
    at = len(lines) // 2
    return read("".join([*lines[:at], line + "\n", *lines[at:]]))


FATAL = {
    "ib-completion-error": WARN
    + "NET/IB: Got completion from peer 10.0.0.2<52341> with status=IBV_WC_RETRY_EXC_ERR(12) "
    "opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129",
    "ib-device-failed": WARN + "NET/IB : mlx5_0:1 Got async fatal event: local catastrophic error",
    "communicator-aborted": WARN + "commReclaim: comm 0x5 (rank = 9) in abort, error 3",
    "peer-dead": WARN + "RAS: peer node-1 is considered dead",
    "nccl-error": "RuntimeError: NCCL Error 3: internal error - please report this issue to the NCCL developers",
    "cuda-failure": "RuntimeError: CUDA error: an illegal memory access was encountered",
    "gpu-out-of-memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 16.00 GiB.",
    "gpu-lost": "[12345.678] NVRM: Xid (PCI:0000:53:00): 79, pid=1234, GPU has fallen off the bus.",
    "collective-timeout": "[rank3]:[E301 10:00:00.1 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=5) ran for 600000 milliseconds before timing out.",
    "proxy-failed": WARN
    + "[Service thread] Error encountered progressing operation=Connect, res=3, closing connection",
    "network-call-failed": WARN + "socketPollConnect: Connect to 10.0.0.1<41000> failed : Software caused abort",
    "ofi-completion-error": WARN + "NET/OFI Request 0x7f completed with error. RC: 103. Error: 4126 (Unresponsive)",
    "ibv_modify_qp: Connection timed out": WARN + "Call to ibv_modify_qp failed with 110 Connection timed out",
    "connect: No route to host": WARN + "Call to connect to 10.0.0.1<4711> failed : No route to host",
}


@pytest.mark.parametrize("code", FATAL)
def test_an_error_fails_the_run_and_names_the_next_step(code: str) -> None:
    """However good the figures are, beside the reason stands what to do."""
    answer = saying(FATAL[code])
    assert answer.outcome is Outcome.FAIL
    found = next(f for f in answer.findings if f.level is Level.BLOCK)
    assert (found.code, found.remedy != "") == (code, True)


INFO = "node-2:1009:2009 [1] NCCL INFO "


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        (INFO + "transport/net.cc:1298 -> 6", Outcome.UNMEASURED),
        (INFO + "group.cc:64 -> 3 [Async thread]", Outcome.UNMEASURED),
        (INFO + "init.cc:1722 -> 7", Outcome.PASS),  # in progress
        (INFO + "RAS: peer node-2 considered dead", Outcome.FAIL),
        (INFO + "NET/OFI Request completed with error. RC: 4. Error: 4123 (Unreachable)", Outcome.FAIL),
        ("[rank9]:[E301 10:00:00.1] [Rank 9] Some NCCL operations have failed or timed out.", Outcome.FAIL),
    ],
)
def test_an_error_told_without_a_warning_is_no_pass_either(line: str, outcome: Outcome) -> None:
    assert saying(line).outcome is outcome


def test_every_kind_of_fatal_error_has_a_remedy_of_its_own() -> None:
    """None is left to the general advice, which serves codes that a later reader may add."""
    general = remedy_of("never-heard-of")
    assert {code for code in FATAL if remedy_of(code) == general} == set()
    for code in (
        *("efa-completion-error", "ofi-call-failed", "ofi-no-protocol", "pinned-network-absent", "peer-closed"),
        *("socket-handshake-failed", "no-socket-interface", "connection-failed", "shared-memory-too-small"),
    ):
        assert remedy_of(code) != general, code


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (WARN + "NET/IB : mlx5_0:1 Got non-fatal async event: port error(10)", "ib-async-event"),
        (WARN + "ACS is enabled on PCI bridge 0000:00:1c.0: peer-to-peer will be slow", "unexplained-warning"),
        (WARN + "NCCL_ALGO mismatch; ignoring", "version-mismatch"),
        ("[12.6] NVRM: Xid (PCI:0000:53:00): 31, pid=12, MMU Fault", "gpu-xid"),
    ],
)
def test_a_warning_that_nobody_has_explained_is_no_pass(line: str, code: str) -> None:
    """It is told, and the proof stays open."""
    answer = saying(line)
    assert answer.outcome is Outcome.UNMEASURED
    assert [f.code for f in answer.findings if f.level is Level.WARN] == [code]


@pytest.mark.parametrize(
    "message",
    [
        "Could not find a path for pattern 4, falling back to simple order",
        'Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!',
        "NUMA auto balancing enabled which can lead to variability in the RCCL performance!",
        "NET/OFI Could not find ncclGetVersion symbol",
        "NET/OFI Failed to initialize GDRCopy: Failed to open gdr handle",
        "Failed to open libibverbs.so[.1]",
        "socketStartConnect: Call to connect returned Connection refused, retrying",
    ],
)
def test_what_healthy_jobs_print_too_changes_nothing(message: str) -> None:
    """The good run stays a pass with such a line of any rank."""
    assert saying(WARN + message).outcome is Outcome.PASS


def test_many_harmless_warnings_hide_no_other() -> None:
    """A thousand repeats leave room for the first of another kind."""
    noise = (WARN + "NET/OFI Could not find ncclGetVersion symbol\n") * 1000
    port = WARN + "NET/IB : mlx5_0:1 Got non-fatal async event: port error(10)"
    assert saying(noise + port).outcome is Outcome.UNMEASURED
    assert saying(noise + port + "\n" + FATAL["peer-dead"]).outcome is Outcome.FAIL


def test_a_node_that_uses_one_of_its_nics_is_no_proof() -> None:
    """All NICs found and one used: the right network at a share of its rate."""
    answer = read(write(Job(gpus=8, channels=8, devices=1)).decode())
    assert answer.outcome is Outcome.UNMEASURED
    assert any("1 of 16 net devices used" in lack for lack in answer.missing)
    assert read(GOOD).outcome is Outcome.PASS
    assert read(write(Job(gpus=8, channels=2, devices=2)).decode()).outcome is Outcome.PASS


def test_rdma_counters_that_hardly_move_contradict_the_sweep() -> None:
    """A kilobyte where the rows imply tens of gigabytes."""
    still = GOOD.replace("40000001000", "2000")
    assert still != GOOD
    answer = read(still)
    assert answer.outcome is Outcome.UNMEASURED
    assert {"rdma-counters-still", "log-against-counters"} <= {f.code for f in answer.findings}


def test_another_protocol_than_the_platforms_is_said_with_the_pass() -> None:
    """A pass never carries a bare complaint as its reason."""
    answer = read(GOOD.replace("protocol RDMA (platform set)", "protocol SENDRECV (user set)"))
    proof = next(c for c in answer.verdicts if c.check == "transport-proof")
    assert proof.outcome is Outcome.PASS
    assert proof.reason.startswith("passes, but: ")


def test_splits_without_an_id_are_told_apart_by_parent_count_and_color() -> None:
    """Two groups of one split are two communicators, each whole; nothing contradicts."""
    text = ""
    for rank in range(4):
        host, line = rank // 2, f"n{rank // 2}:1{rank}:2{rank} [{rank % 2}] NCCL INFO "
        own = f"ncclCommInitRank comm 0x1{rank} rank {rank} nranks 4 cudaDev 0 nvmlDev 0 busId 1000 commId 0xaa"
        part = (
            f"ncclCommSplit comm 0x2{rank} rank {rank % 2} nranks 2 cudaDev 0 nvmlDev 0 busId 1000 parent 0x1{rank} "
            f"splitCount 2 color {host} key 0"
        )
        text += f"{line}Using network IB\n"
        for call in (own, part):
            text += f"{line}{call} - Init START\n{line}{call} - Init COMPLETE\n"
    answer = read(text, nodes=None)
    assert not [lack for lack in answer.missing if "contradict" in lack or "#" in lack]


@pytest.mark.parametrize(
    "message",
    [
        f"ncclCommInitRank comm 0x1 rank {'9' * 5000} nranks 16 cudaDev 0 commId 0xaa - Init COMPLETE",
        f"ncclCommInitRank comm 0x1 rank 0 nranks {'9' * 5000} cudaDev 0 commId 0xaa - Init COMPLETE",
        "ncclCommInitRank comm 0x1 rank 0 nranks 1616161616161 cudaDev 0 commId 0xaa - Init COMPLETE",
        "ncclCommInitRank comm 0x1 rank 0 nranks 999999999 cudaDev 0 commId 0xaa - Init COMPLETE",
        f"comm 0x1 rank 0 nRanks 16 nNodes {'9' * 5000} localRanks 8 localRank 0 MNNVL 0",
        "99999999999 coll channels, 0 collnet channels",
        f"{'9' * 5000} coll channels, 0 collnet channels",
        f"NET/OFI Selected provider is efa (found {'9' * 5000} nics)",
        f"Channel {'9' * 5000}/0 : {'9' * 5000}[0] -> 8[0] [send] via NET/Libfabric/{'9' * 5000}/GDRDMA",
        f"NET/IB : Made virtual device [0] name=a speed={'9' * 5000} ndevs=1",
    ],
)
def test_absurd_numbers_are_neither_a_crash_nor_a_pass(message: str) -> None:
    """A damaged line costs neither memory nor the answer."""
    line = f"node-2:1009:2109 [1] NCCL INFO {message}\n"
    assert read(line).outcome is not Outcome.PASS
    saying(line)
    assert saying(f"node-2:1009:2109 [{'9' * 5000}] NCCL INFO Using network IB").kind is not None


def test_the_names_of_statuses_carry_their_number() -> None:
    """Both forms of a completion's status give the same facts."""
    assert classify("Got completion from peer a<1> with status=12 opcode=1").facts["status"] == 12
    assert classify("Got completion from peer a<1> with status=IBV_WC_X(12) opcode=1").facts["status"] == 12


def test_gdrdma_channels_over_a_device_that_has_it_disabled_are_a_contradiction() -> None:
    """It is named for the rank that says both; a disabled device beside those in use is none."""
    disabled = "node-2:1009:2109 [1] NCCL INFO NET/Libfabric : GPU Direct RDMA Disabled for HCA {} 'rdmap86s0'"
    used = saying(disabled.replace("node-2:1009:2109 [1]", "node-2:1008:2008 [0]").format(3))
    assert used.outcome is Outcome.UNMEASURED
    assert [(f.code, f.object) for f in used.findings] == [("gdr-contradicted", "node-2:1008")]
    assert saying(disabled.format(99)).outcome is Outcome.PASS
