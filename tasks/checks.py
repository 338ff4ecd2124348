"""The checks of a validation: what each runs, on which nodes, and what judges its answer."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace

from infra.errors import PoolshiftError
from infra.model.cluster import Node
from infra.model.measurement import Steps
from infra.model.reading import Reading
from infra.model.verdict import Outcome, Verdict
from infra.probes.catalogue import Probe
from infra.probes.readers.detect import read
from infra.probes.readers.lnet import split_lnet
from tasks import mpi
from tasks.measuring import Session
from tasks.probes import ProbeRun
from tasks.rules import bandwidth, compare, hardware, lustre_path
from tasks.rules.gate import NCCL_TESTS
from tasks.rules.hardware import ClientIo
from tasks.rules.probe_verdict import (
    ProbeAnswer,
    Setting,
    answer_devices,
    answer_nccl_tests,
    answer_proof,
    answer_steps,
    answer_sweep,
    sockets,
    unmeasured,
)
from tasks.rules.storage_verdict import answer_storage


def proof(session: Session, probe: Probe, check: str, nodes: Sequence[Node] = ()) -> Verdict:
    """A transport proof; its verdict is filed under `check`. On all nodes, unless some are named."""
    (verdict,) = session.take(
        probe, nodes or session.nodes, (check,), lambda run, at: answer_proof(_reading_of(run), probe, at, check)
    )
    return verdict


def scout(session: Session, probe: Probe, check: str) -> bool:
    """The proof on two nodes with one GPU each. True when a rank there is on sockets: that is filed.

    Anything else says nothing of the pool, and nothing is filed. Not for a fabric whose daemon wants all GPUs.
    """
    if session.fabric is not None and session.fabric.sidecar is not None:
        return False
    seen: list[tuple[int, int]] = []

    def judge(run: ProbeRun, setting: Setting) -> ProbeAnswer:
        reading = _reading_of(run)
        seen.append(sockets(reading.nccl))
        return answer_proof(reading, probe, setting, check)

    before = len(session.evidence), len(session.verdicts)
    attempt, session.attempt = session.attempt, f"{session.attempt}scout"
    verdict = session.take(probe, session.nodes[:2], (check,), judge, quiet=True)[0]
    session.attempt = attempt
    on_sockets = any(on for _, on in seen)
    if verdict.outcome is Outcome.FAIL and on_sockets:
        session.tell(verdict)
        return True
    clear = any(named for named, _ in seen) and not on_sockets
    session.say(
        f"{check}: {'no scout is on TCP sockets' if clear else 'the scouts show nothing'}; the whole run decides"
    )
    del session.evidence[before[0] :], session.verdicts[before[1] :]
    return False


def sweep(session: Session, probe: Probe) -> tuple[Verdict, ...]:
    """The bandwidth sweep."""
    checks = (bandwidth.FLOOR, bandwidth.SHAPE, bandwidth.PLAUSIBILITY)
    floors = session.spec.gate.min_busbw_gb_s
    return session.take(probe, session.nodes, checks, lambda run, at: answer_sweep(_reading_of(run), probe, at, floors))


def nccl_tests(session: Session, probe: Probe) -> tuple[Verdict, ...]:
    """nccl-tests by the cluster's MPI operator; a cluster without one leaves it unmeasured, at no cost."""
    try:
        known = mpi.served(session.kube)
    except PoolshiftError as error:
        return session.file(unmeasured((NCCL_TESTS,), error.wording()))
    if not known:
        return session.file(
            unmeasured(
                (NCCL_TESTS,),
                "the cluster serves no kubeflow.org/v2beta1 MPIJob: install the MPI operator, or leave out "
                "validation.nccl_tests_image",
            )
        )
    sizes, floors = session.spec.validation.sweep_sizes, session.spec.gate.min_busbw_gb_s
    return session.take(
        probe, session.nodes, (NCCL_TESTS,), lambda run, at: answer_nccl_tests(_reading_of(run), sizes, at, floors)
    )


def devices(session: Session, probe: Probe) -> tuple[Verdict, ...]:
    """What each node's container sees."""
    return session.take(probe, session.nodes, (hardware.DEVICES,), lambda run, at: answer_devices(_reading_of(run), at))


def storage(session: Session, probe: Probe, baseline: Sequence[ClientIo] | None) -> tuple[Verdict, ...]:
    """Direct I/O of every node at once."""
    asked = (hardware.STORAGE, lustre_path.CHECK)[: 2 if session.spec.validation.storage_path == "rdma" else 1]

    def judge(run: ProbeRun, setting: Setting) -> ProbeAnswer:
        split = {node: split_lnet(text) for node, text in run.outputs.items()}
        readings = {node: read(io.BytesIO(rest)) for node, (_, rest) in split.items()}
        answer = answer_storage(
            readings, setting, baseline, {node: seen for node, (seen, _) in split.items()}, asked=probe.args
        )
        shown = {v.check: f"{v.outcome.value}: {v.reason}" for v in answer.verdicts if v.check not in asked}
        kept = tuple(v for v in answer.verdicts if v.check in asked)
        return replace(answer, record={**answer.record, **shown}, verdicts=kept)

    return session.take(probe, session.nodes, asked, judge)


def train(
    session: Session, probe: Probe, nodes: Sequence[Node], judge: Callable[[Steps], tuple[Verdict, ...]]
) -> tuple[Verdict, ...]:
    """Training steps; `judge` knows the other side."""

    def answer(run: ProbeRun, setting: Setting) -> ProbeAnswer:
        steps, versions = answer_steps(_reading_of(run), setting)
        return ProbeAnswer(record=steps.to_dict(), verdicts=judge(steps), versions=versions)

    return session.take(probe, nodes, (compare.CHECK,), answer)


def trial(session: Session, probe: Probe, nodes: Sequence[Node], attempt: str, under: str) -> tuple[Outcome, float]:
    """One localisation test, from any thread: are these nodes well together? With the GPU-minutes it took.

    `under` is the name by which the round was begun with `spending`.
    """
    run = session.run_one(probe, nodes, attempt, under)
    if not run.ran:
        return Outcome.UNMEASURED, run.gpu_minutes
    setting = session.setting(nodes)
    reading = _reading_of(run)
    transport = answer_proof(reading, probe, setting, "transport-proof").verdicts[0]
    floor = answer_sweep(reading, probe, setting, session.spec.gate.min_busbw_gb_s).verdicts[0]
    outcome = _both(transport.outcome, floor.outcome)
    # a program that ended badly may have shown a defect; it has never shown that there is none
    return (outcome if run.complete or outcome is Outcome.FAIL else Outcome.UNMEASURED), run.gpu_minutes


def _reading_of(run: ProbeRun) -> Reading:
    """All pods' outputs, read as one."""
    return read(io.BytesIO(run.output))


def _both(transport: Outcome, floor: Outcome) -> Outcome:
    """Fail beats unmeasured beats pass: a slow group fails even where its log is thin."""
    seen = {transport, floor}
    for outcome in (Outcome.FAIL, Outcome.UNMEASURED):
        if outcome in seen:
            return outcome
    return Outcome.PASS
