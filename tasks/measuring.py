"""One validation under way: runs a probe within the budget, reads it, judges it, seals the evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from infra.clock import Clock
from infra.errors import PoolshiftError, Unreachable
from infra.fabrics import Fabric, fabric_of
from infra.kube.api import Kube
from infra.model.cluster import Node
from infra.model.evidence import Evidence
from infra.model.pools import Pool
from infra.model.spec import MigrationSpec, RevalidationSpec
from infra.model.verdict import Finding, Level, Verdict
from infra.probes import catalogue
from infra.probes.catalogue import Probe, Program
from infra.probes.manifests import grant
from infra.probes.mpijob import render_mpijob
from tasks import mpi, probes
from tasks.probes import ProbeRun
from tasks.rules import cost
from tasks.rules.probe_verdict import (
    ProbeAnswer,
    Setting,
    no_pass,
    unmeasured,
)
from tasks.rules.probing import State
from tasks.rules.wording import plural
from tasks.spending import Spending

Judge = Callable[[ProbeRun, Setting], ProbeAnswer]


@dataclass(kw_only=True)
class Session:
    """What was asked, and what has been found so far. Used from one thread, but for `run_one`."""

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

    def offers_rdma(self) -> bool:
        """Some node hands out the RDMA devices of its machine type, so that a pinned run can start at all."""
        names = {*self.pool.rdma, *(self.fabric.rdma_resources if self.fabric else ())}
        return not names or any(node.allocatable.get(name) for node in self.nodes for name in names)

    def partly_on_fabric(self) -> bool:
        """Some ranks were on the fabric and others not: worth finding out which nodes. Not so when none was."""
        shown = [e.reading.get("transport") or {} for e in self.evidence]
        return len(self.nodes) > 2 and any(t.get("mixed") or t.get("rdma") is True for t in shown)

    def take(
        self, probe: Probe, nodes: Sequence[Node], checks: tuple[str, ...], judge: Judge, *, quiet: bool = False
    ) -> tuple[Verdict, ...]:
        """Run a probe if the budget allows it, judge its answer, seal the evidence; returns the verdicts, filed.

        One that the budget refuses or that gave no answer is unmeasured under each of `checks`; one that did not come
        to its end passes none. `quiet`: the verdicts are not told.
        """
        name = f"{self.attempt}/{probe.name}"
        over = self.spending.refusal(probe, len(nodes), self.gpus, name)
        if over:
            return self.file(unmeasured(checks, over))
        purpose = probe.proves if self.judged else "measured, to be compared with"
        self.say(f"probe {probe.name} on {plural(len(nodes), 'node')}: {purpose}")
        self.spending.begin(name, cost.of(probe, len(nodes), self.gpus))
        run = self.run_one(probe, nodes, self.attempt, name)
        self.spending.end(name, run.gpu_minutes)
        self.spent += run.gpu_minutes
        self.findings += run.findings
        self.raw[run.digest] = run.output
        if run.ran:
            answer = judge(run, self.setting(nodes))
        else:
            answer = ProbeAnswer(record={}, verdicts=unmeasured(checks, run.why()), versions={})
        if not run.complete:
            self.last_reason = run.why()
            answer = replace(answer, verdicts=tuple(no_pass(v, run.why()) for v in answer.verdicts))
        answer = answer if self.judged else replace(answer, verdicts=())
        sealed = self._seal(run, answer)
        self.evidence.append(sealed)
        for verdict in () if quiet else answer.verdicts:
            self.tell(verdict)
        return self.file(tuple(replace(v, evidence=(sealed.id,)) for v in answer.verdicts))

    def tell(self, verdict: Verdict) -> None:
        """Show a verdict."""
        self.say(f"{verdict.check}: {verdict.outcome.value}: {verdict.reason}")

    def run_one(self, probe: Probe, nodes: Sequence[Node], attempt: str, under: str) -> ProbeRun:
        """The probe itself, from any thread. A cluster that refuses or does not answer leaves it unmeasured, with its
        words. `under` is the name by which it was begun with `spending`.
        """

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

    def setting(self, nodes: Sequence[Node]) -> Setting:
        """What an answer is judged by: the nodes that took part and what their fabric should reach."""
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

    def file(self, verdicts: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
        """Keep the verdicts; returns them."""
        self.verdicts += verdicts
        return verdicts
