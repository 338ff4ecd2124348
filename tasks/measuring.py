"""One validation under way: runs a probe within the budget, reads it, judges it, seals the evidence."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from infra.clock import Clock
from infra.errors import PoolshiftError, Unreachable
from infra.fabrics import Fabric, fabric_of
from infra.kube.api import Kube
from infra.model.cluster import Node
from infra.model.evidence import Evidence
from infra.model.measurement import Steps
from infra.model.pools import Pool
from infra.model.reading import Reading
from infra.model.spec import MigrationSpec, RevalidationSpec
from infra.model.verdict import Finding, Level, Outcome, Verdict
from infra.probes import catalogue
from infra.probes.catalogue import Probe, Program
from infra.probes.manifests import grant
from infra.probes.mpijob import render_mpijob
from infra.probes.readers.detect import read
from infra.probes.readers.lnet import split_lnet
from tasks import mpi, probes
from tasks.probes import ProbeRun
from tasks.rules import bandwidth, compare, cost, hardware, lustre_path
from tasks.rules.gate import NCCL_TESTS
from tasks.rules.hardware import ClientIo
from tasks.rules.probe_verdict import (
    ProbeAnswer,
    Setting,
    answer_devices,
    answer_nccl_tests,
    answer_proof,
    answer_steps,
    answer_storage,
    answer_sweep,
    no_pass,
    sockets,
    unmeasured,
)
from tasks.rules.probing import State
from tasks.rules.wording import plural
from tasks.spending import Spending

Judge = Callable[[ProbeRun, Setting], ProbeAnswer]


@dataclass(kw_only=True)
class Session:
    """What was asked, and what has been found so far. Used from one thread, but for `trial`."""

    kube: Kube
    pool: Pool
    nodes: Sequence[Node]
    fabric: Fabric | None
    spec: MigrationSpec | RevalidationSpec
    run: str
    spec_hash: str
    clock: Clock
    say: Callable[[str], None]
    spending: Spending
    attempt: str = ""
    judged: bool = True  # false: measure only, as for a baseline
    evidence: list[Evidence] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    raw: dict[str, bytes] = field(default_factory=dict)
    spent: float = 0.0
    last_reason: str = ""

    @classmethod
    def open(
        cls,
        kube: Kube,
        pool: Pool,
        nodes: Sequence[Node],
        spec: MigrationSpec | RevalidationSpec,
        run: str,
        spec_hash: str,
        clock: Clock,
        say: Callable[[str], None],
        *,
        attempt: str = "",
        judged: bool = True,
        spending: Spending | None = None,
    ) -> Session:
        """Begin; says at once which of the pool's resources its nodes do not offer.

        `spending` is the run's own, as its record says, where the caller keeps none.
        """
        session = cls(
            kube=kube,
            pool=pool,
            nodes=nodes,
            fabric=fabric_of(pool.machine_type),
            spec=spec,
            run=run,
            spec_hash=spec_hash,
            clock=clock,
            say=say,
            spending=spending or Spending.of(kube, run, spec.validation.budget_gpu_minutes),
            attempt=attempt,
            judged=judged,
        )
        session.findings += session.shortages()
        return session

    @property
    def gpus(self) -> int:
        """GPUs a node that a probe gets."""
        return grant(self.pool, self.nodes, self.fabric).gpus

    def shortages(self) -> list[Finding]:
        """Resources that the machine type has and the nodes do not offer."""
        return [
            Finding(
                level=Level.BLOCK,
                code="resource-short",
                object=f"pool {self.pool.name}",
                observed=f"{least} {name} allocatable on at least one node",
                expected=f"{expected} on every node",
                remedy="poolshift audit, which names the DaemonSet that does not serve these nodes, and why",
            )
            for name, (expected, least) in grant(self.pool, self.nodes, self.fabric).short.items()
            if self.nodes
        ]

    def estimate(self) -> cost.Estimate:
        """GPU-minutes of everything that the spec asks for on these nodes."""
        gpus = self.fabric.gpus if self.fabric else self.gpus
        return cost.estimate(catalogue.all_probes(self.spec.validation), len(self.nodes), gpus)

    def proof(self, probe: Probe, check: str, nodes: Sequence[Node] = ()) -> Verdict:
        """A transport proof; its verdict is filed under `check`. On all nodes, unless some are named."""
        (verdict,) = self._take(
            probe, nodes or self.nodes, (check,), lambda run, at: answer_proof(reading_of(run), probe, at, check)
        )
        return verdict

    def scout(self, probe: Probe, check: str) -> bool:
        """The proof on two nodes with one GPU each. True when a rank there is on sockets: that is filed.

        Anything else says nothing of the pool, and nothing is filed. Not for a fabric whose daemon wants all GPUs.
        """
        if self.fabric is not None and self.fabric.sidecar is not None:
            return False
        seen: list[tuple[int, int]] = []

        def judge(run: ProbeRun, setting: Setting) -> ProbeAnswer:
            reading = reading_of(run)
            seen.append(sockets(reading.nccl))
            return answer_proof(reading, probe, setting, check)

        before = len(self.evidence), len(self.verdicts)
        attempt, self.attempt = self.attempt, f"{self.attempt}scout"
        verdict = self._take(probe, self.nodes[:2], (check,), judge, quiet=True)[0]
        self.attempt = attempt
        on_sockets = any(on for _, on in seen)
        if verdict.outcome is Outcome.FAIL and on_sockets:
            self._tell(verdict)
            return True
        clear = any(named for named, _ in seen) and not on_sockets
        self.say(
            f"{check}: {'no scout is on TCP sockets' if clear else 'the scouts show nothing'}; the whole run decides"
        )
        del self.evidence[before[0] :], self.verdicts[before[1] :]
        return False

    def offers_rdma(self) -> bool:
        """Some node hands out the RDMA devices of its machine type, so that a pinned run can start at all."""
        names = {*self.pool.rdma, *(self.fabric.rdma_resources if self.fabric else ())}
        return not names or any(node.allocatable.get(name) for node in self.nodes for name in names)

    def sweep(self, probe: Probe) -> tuple[Verdict, ...]:
        """The bandwidth sweep."""
        checks = (bandwidth.FLOOR, bandwidth.SHAPE, bandwidth.PLAUSIBILITY)
        floors = self.spec.gate.min_busbw_gb_s
        return self._take(probe, self.nodes, checks, lambda run, at: answer_sweep(reading_of(run), probe, at, floors))

    def nccl_tests(self, probe: Probe) -> tuple[Verdict, ...]:
        """nccl-tests by the cluster's MPI operator; a cluster without one leaves it unmeasured, at no cost."""
        try:
            known = mpi.served(self.kube)
        except PoolshiftError as error:
            return self._file(unmeasured((NCCL_TESTS,), error.wording()))
        if not known:
            return self._file(
                unmeasured(
                    (NCCL_TESTS,),
                    "the cluster serves no kubeflow.org/v2beta1 MPIJob: install the MPI operator, or leave out "
                    "validation.nccl_tests_image",
                )
            )
        sizes, floors = self.spec.validation.sweep_sizes, self.spec.gate.min_busbw_gb_s
        return self._take(
            probe, self.nodes, (NCCL_TESTS,), lambda run, at: answer_nccl_tests(reading_of(run), sizes, at, floors)
        )

    def devices(self, probe: Probe) -> tuple[Verdict, ...]:
        """What each node's container sees."""
        return self._take(probe, self.nodes, (hardware.DEVICES,), lambda run, at: answer_devices(reading_of(run), at))

    def storage(self, probe: Probe, baseline: Sequence[ClientIo] | None) -> tuple[Verdict, ...]:
        """Direct I/O of every node at once."""
        asked = (hardware.STORAGE, lustre_path.CHECK)[: 2 if self.spec.validation.storage_path == "rdma" else 1]

        def judge(run: ProbeRun, setting: Setting) -> ProbeAnswer:
            split = {node: split_lnet(text) for node, text in run.outputs.items()}
            readings = {node: read(io.BytesIO(rest)) for node, (_, rest) in split.items()}
            answer = answer_storage(readings, setting, baseline, {node: seen for node, (seen, _) in split.items()})
            shown = {v.check: f"{v.outcome.value}: {v.reason}" for v in answer.verdicts if v.check not in asked}
            kept = tuple(v for v in answer.verdicts if v.check in asked)
            return replace(answer, record={**answer.record, **shown}, verdicts=kept)

        return self._take(probe, self.nodes, asked, judge)

    def train(
        self, probe: Probe, nodes: Sequence[Node], judge: Callable[[Steps], tuple[Verdict, ...]]
    ) -> tuple[Verdict, ...]:
        """Training steps; `judge` knows the other side."""

        def answer(run: ProbeRun, setting: Setting) -> ProbeAnswer:
            del setting
            steps, versions = answer_steps(reading_of(run))
            return ProbeAnswer(record=steps.to_dict(), verdicts=judge(steps), versions=versions)

        return self._take(probe, nodes, (compare.CHECK,), answer)

    def trial(self, probe: Probe, nodes: Sequence[Node], attempt: str, under: str) -> tuple[Outcome, float]:
        """One localisation test, from any thread: are these nodes well together? With the GPU-minutes it took.

        `under` is the name by which the round was begun with `spending`.
        """
        run = self._run(probe, nodes, attempt, under)
        if not run.ran:
            return Outcome.UNMEASURED, run.gpu_minutes
        setting = self._setting(nodes)
        reading = reading_of(run)
        proof = answer_proof(reading, probe, setting, "transport-proof").verdicts[0]
        floor = answer_sweep(reading, probe, setting, self.spec.gate.min_busbw_gb_s).verdicts[0]
        outcome = _both(proof.outcome, floor.outcome)
        # a program that ended badly may have shown a defect; it has never shown that there is none
        return (outcome if run.complete or outcome is Outcome.FAIL else Outcome.UNMEASURED), run.gpu_minutes

    def partly_on_fabric(self) -> bool:
        """Some ranks were on the fabric and others not: worth finding out which nodes. Not so when none was."""
        shown = [e.reading.get("transport") or {} for e in self.evidence]
        return len(self.nodes) > 2 and any(t.get("mixed") or t.get("rdma") is True for t in shown)

    def _take(
        self, probe: Probe, nodes: Sequence[Node], checks: tuple[str, ...], judge: Judge, *, quiet: bool = False
    ) -> tuple[Verdict, ...]:
        name = f"{self.attempt}/{probe.name}"
        over = self.spending.refusal(probe, len(nodes), self.gpus, name)
        if over:
            return self._file(unmeasured(checks, over))
        purpose = probe.proves if self.judged else "measured, to be compared with"
        self.say(f"probe {probe.name} on {plural(len(nodes), 'node')}: {purpose}")
        self.spending.begin(name, cost.of(probe, len(nodes), self.gpus))
        run = self._run(probe, nodes, self.attempt, name)
        self.spending.end(name, run.gpu_minutes)
        self.spent += run.gpu_minutes
        self.findings += run.findings
        self.raw[run.digest] = run.output
        if run.ran:
            answer = judge(run, self._setting(nodes))
        else:
            answer = ProbeAnswer(record={}, verdicts=unmeasured(checks, run.why()), versions={})
        if not run.complete:
            self.last_reason = run.why()
            answer = replace(answer, verdicts=tuple(no_pass(v, run.why()) for v in answer.verdicts))
        answer = answer if self.judged else replace(answer, verdicts=())
        sealed = self._seal(run, answer)
        self.evidence.append(sealed)
        for verdict in () if quiet else answer.verdicts:
            self._tell(verdict)
        return self._file(tuple(replace(v, evidence=(sealed.id,)) for v in answer.verdicts))

    def _tell(self, verdict: Verdict) -> None:
        self.say(f"{verdict.check}: {verdict.outcome.value}: {verdict.reason}")

    def _run(self, probe: Probe, nodes: Sequence[Node], attempt: str, under: str) -> ProbeRun:
        """A cluster that refuses or does not answer leaves the probe unmeasured, with its words."""

        def count(uid: str, minutes: float) -> None:
            self.spending.count(under, uid, minutes)

        try:
            if probe.program is Program.NCCL_TESTS:
                job = render_mpijob(
                    probe,
                    pool=self.pool,
                    nodes=nodes,
                    fabric=self.fabric,
                    run=self.run,
                    namespace=self.kube.namespace,
                    attempt=attempt,
                )
                return mpi.run_mpijob(self.kube, probe, nodes, job, count)
            return probes.run(
                self.kube,
                probe,
                nodes,
                pool=self.pool,
                run=self.run,
                say=self.say,
                fabric=self.fabric,
                attempt=attempt,
                count=count,
            )
        except PoolshiftError as error:
            return ProbeRun(
                probe=probe,
                name=probe.name,
                state=State.UNMEASURED,
                object=error.object,
                reason=error.observed,
                remedy=error.remedy,
                nodes=tuple(n.name for n in nodes),
                node_uids=tuple(n.uid for n in nodes),
                measured="",
                # what it held is not known when the cluster stopped answering: the budget is charged in full
                gpu_minutes=cost.of(probe, len(nodes), self.gpus) if isinstance(error, Unreachable) else 0.0,
            )

    def _setting(self, nodes: Sequence[Node]) -> Setting:
        gpus = self.fabric.gpus if self.fabric else self.gpus
        return Setting(nodes=tuple(n.name for n in nodes), gpus=gpus, fabric=self.fabric)

    def _seal(self, run: ProbeRun, answer: ProbeAnswer) -> Evidence:
        return Evidence(
            probe=run.probe.name,
            mode=run.probe.mode.value,
            pool=self.pool.identity,
            machine_type=self.pool.machine_type,
            nodes=run.nodes,
            node_uids=run.node_uids,
            spec_hash=self.spec_hash,
            measured=run.measured,
            image=run.probe.image,
            arguments=run.probe.args,
            complete=run.complete,
            reading=answer.record,
            verdicts=answer.verdicts,
            gpu_minutes=round(run.gpu_minutes, 3),
            raw_digest=run.digest,
            versions={**answer.versions, **({"image_id": ",".join(run.images)} if run.images else {})},
            simulated=self.kube.sandbox is not None,
        ).seal()

    def _file(self, verdicts: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
        self.verdicts += verdicts
        return verdicts


def reading_of(run: ProbeRun) -> Reading:
    """All pods' outputs, read as one."""
    return read(io.BytesIO(run.output))


def _both(proof: Outcome, floor: Outcome) -> Outcome:
    """Fail beats unmeasured beats pass: a slow group fails even where its log is thin."""
    seen = {proof, floor}
    for outcome in (Outcome.FAIL, Outcome.UNMEASURED):
        if outcome in seen:
            return outcome
    return Outcome.PASS
