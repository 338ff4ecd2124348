"""A drain on its own, as `kubectl drain` is: judge, cordon, empty, prove; on failure take exactly its cordons back."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from infra.clock import Clock
from infra.errors import NotFound, PoolshiftError, Refused
from infra.kube.api import Kube
from infra.kube.leases import Holder
from infra.kube.nodes import list_raw
from infra.kube.read import snapshot as read_snapshot
from infra.kube.view import View
from infra.model.cluster import Node
from infra.model.record import RUN
from infra.model.verdict import Finding, Level
from infra.model.workload import Pod, Snapshot
from tasks.drain_report import DrainOptions, DrainReport, NodePlan
from tasks.emptiness import verify_empty
from tasks.evict import Evictor
from tasks.fence import adopt, cordon, unfence
from tasks.orphans import with_new_daemonsets
from tasks.rules.decision import Act, Allowed, Context, Decision, strictest
from tasks.rules.drain import decide, drains_last, finding
from tasks.rules.fencing import DRAIN
from tasks.rules.folding import alike
from tasks.rules.outcome import End, Fate, Limits, PodEnd, Progress, Sentence, Tally, node_ends, worst_end
from tasks.rules.sentences import sentence_of
from tasks.rules.wording import and_more, plural

STALLED = timedelta(seconds=30)  # on the run's clock, without a pod that goes, before it is told once what holds them
TOLD = 20  # blockers told one by one before the first eviction; the report has all
RATE = "--evictions-per-second"
FOREVER = timedelta(days=3650)
# A pod bound right before the cordon may be in a listing before the watch shows it: how often to go on for it, and the
# wall-clock time that the watch is given.
LATE_ROUNDS, LATE_SECONDS = 5, 0.5


def drain_nodes(
    kube: Kube,
    nodes: Iterable[str],
    options: DrainOptions,
    *,
    clock: Clock | None = None,
    say: Callable[[str], None] = lambda _: None,
    passing: Callable[[str], object] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
    proven: Callable[[], object] = lambda: None,
) -> DrainReport:
    """Empty nodes of any cluster. Blockers are judged first; a node that has one is left alone, the others go on.

    Nodes that drain stay cordoned, as with kubectl. On failure, cancellation (Ctrl-C too) or an error, exactly the
    cordons of this call are taken back. `proven` is called once all that was begun is proven empty: from then on
    there is nothing to take back.

    Raises:
        NotFound: a node does not exist (nothing was changed).
        Refused: a node is held by another run (nothing was changed).
        Forbidden, Unreachable, Conflict: as `infra.kube.api`.

    """
    named = tuple(dict.fromkeys(nodes))
    return _Drain(kube, named, options, clock or kube.clock, say, passing, cancelled, proven).run()


_DAEMONSET = Decision(
    act=Act.BLOCK,
    code="daemonset",
    reason="is managed by a DaemonSet, which would bring it back",
    remedy="pass --ignore-daemonsets to leave it where it is",
)


def _place(holder: Holder) -> str:
    """A host since its last start, short enough for a label."""
    return hashlib.sha256(f"{holder.host}/{holder.boot}".encode()).hexdigest()[:12]


def name_of_drain(holder: Holder) -> str:
    """A run's name that tells whether the process that owns it still runs; a label value, at most 63 characters."""
    return f"{DRAIN}{_place(holder)}-{holder.pid}-{uuid.uuid4().hex[:6]}"


def was_killed(run: str, here: Holder) -> bool:
    """True only for a stand-alone drain of this host whose process is no more."""
    match = re.fullmatch(r"drain-([0-9a-f]{12})-(\d+)-[0-9a-f]{6}", run)
    return match is not None and match[1] == _place(here) and replace(here, pid=int(match[2])).is_gone


def where_it_stands(now: Progress, refused: int) -> str:
    """Of the nodes that were begun; with refused ones beside them, that it is of those alone."""
    if not refused:
        return now.wording()
    return f"{now.wording()} (but for {plural(refused, 'refused node')}, whose pods stay)"


class _Drain:
    """One stand-alone drain."""

    def __init__(
        self,
        kube: Kube,
        nodes: tuple[str, ...],
        options: DrainOptions,
        clock: Clock,
        say: Callable[[str], None],
        passing: Callable[[str], object],
        cancelled: Callable[[], bool],
        proven: Callable[[], object],
    ) -> None:
        self.kube, self.nodes, self.options, self.clock = kube, nodes, options, clock
        self.say, self.passing, self.cancelled, self.proven = say, passing, cancelled, proven
        self.here = Holder.here("drain")
        self.name = name_of_drain(self.here)
        self.began, self.asked = clock.now(), kube.requests
        self.gone = self.refused = 0
        self.moved: datetime | None = self.began  # when the last pod went; None: what holds the others was told

    def run(self) -> DrainReport:
        with View(self.kube, nodes=self.nodes) as view:
            live = (tuple(view.pods.values()), tuple(view.budgets.values()))
            now = read_snapshot(self.kube, live=live)
            missing = [n for n in self.nodes if n not in now.node_by_name]
            if missing:
                raise NotFound(f"node {missing[0]}", "is not in the cluster", remedy="kubectl get nodes")
            context = Context(snapshot=now, allowed=self._allowed(), run=self.name)
            plan, warnings = self._judge(now, context)
            free = [name for name, node in plan.items() if not node.blocked]
            stuck = [name for name in plan if name not in free]
            self.refused = len(stuck)
            report = DrainReport(
                end=End.FAILED if stuck else End.DRAINED,
                nodes=dict.fromkeys(stuck, End.FAILED),
                plan=plan,
                warnings=warnings,
                left=(),
                unproven=(),
                restored=(),
                tally=Tally(),
                requests=0,
                seconds=0.0,
                dry_run=self.options.dry_run,
                selected=self.options.pod_selector is not None,
            )
            self._tell(report)
            if not self.options.dry_run and free:
                report = self._empty(view, context, free, report)
        return replace(
            report,
            requests=self.kube.requests - self.asked,
            seconds=(self.clock.now() - self.began).total_seconds(),
        )

    def _allowed(self) -> Allowed:
        """Kubectl drain knows no do-not-disrupt annotations: they are for autoscalers."""
        return Allowed(
            bare_pods=self.options.force,
            empty_dir=self.options.delete_emptydir_data,
            do_not_disrupt=True,
            ignore_daemonsets=self.options.ignore_daemonsets,
        )

    def _judge(self, now: Snapshot, context: Context) -> tuple[dict[str, NodePlan], tuple[Finding, ...]]:
        """(each node's plan, what is no reason to stop)."""
        leaving: Counter[str] = Counter()
        blocked: dict[str, list[Finding]] = {name: [] for name in self.nodes}
        warnings: list[Finding] = []
        for pod in now.on(self.nodes):
            if not self._picked(pod):
                continue
            decisions = self._decide(pod, context)
            for d in decisions:
                if d.act is not Act.SKIP and d.code not in ("finished", "terminating"):
                    told = finding(pod, d)
                    # A dead node is one finding, not one for each of its pods.
                    if d.code == "node-dead" and not pod.terminating:
                        told = replace(told, object=f"node {pod.node}")
                    (blocked[pod.node] if told.level is Level.BLOCK else warnings).append(told)
            leaving[pod.node] += strictest(decisions) in (Act.EVICT, Act.WAIT)
        plan = {n: NodePlan(pods=leaving[n], blocked=tuple(dict.fromkeys(blocked[n]))) for n in self.nodes}
        return plan, tuple(dict.fromkeys(f for f in warnings if f.level is Level.WARN))

    def _tell(self, report: DrainReport) -> None:
        """Before the first eviction: what blocks, and which pods need mending or room first. A dry run tells all."""
        if self.options.dry_run:
            return
        told = alike(report.blocked)
        for found in told[:TOLD]:
            self._say_found(found)
        if len(told) > TOLD:
            self.say(f"and {len(told) - TOLD} more that block: --dry-run --json shows all")
        self._tell_held(report.warnings)

    def _tell_held(self, findings: Iterable[Finding]) -> None:
        """One line for each budget that pods hold closed which are not ready, or on no node."""
        held = {f.observed: f for f in reversed(tuple(findings)) if f.code == "pdb-unhealthy-pods"}
        for found in list(held.values())[:TOLD]:
            self._say_found(found)

    def _say_found(self, found: Finding) -> None:
        """What was found, and below it what to do next."""
        self.say(replace(found, remedy="").wording())
        if found.remedy:
            self.say(f"  next: {found.remedy}")

    def _picked(self, pod: Pod) -> bool:
        selector = self.options.pod_selector
        return selector is None or selector.matches(pod.labels)

    def _decide(self, pod: Pod, context: Context) -> tuple[Decision, ...]:
        """The rules' answers; without --ignore-daemonsets a DaemonSet's pod is refused, as kubectl does."""
        decisions = decide(pod, context)
        if not self.options.ignore_daemonsets and any(d.code == "daemonset" for d in decisions):
            return (_DAEMONSET,)
        return decisions

    def _fate(self, pod: Pod, context: Context) -> Sentence:
        """As the rules say, for pods that the selector picks; the others stay."""
        if not self._picked(pod):
            return Sentence(fate=Fate.STAY)
        return sentence_of(self._decide(pod, context))

    def _held(self, nodes: list[str]) -> dict[str, list[str]]:
        """Nodes that a drain has left which was killed, by its name. Raises Refused where one may still run."""
        held: dict[str, list[str]] = {}
        for raw in list_raw(self.kube, nodes):
            run = (raw["metadata"].get("labels") or {}).get(RUN, "")
            if run.startswith(DRAIN):
                held.setdefault(run, []).append(raw["metadata"]["name"])
        for run, names in held.items():
            if not (self.options.take_over or was_killed(run, self.here)):
                raise Refused(
                    f"node {names[0]}",
                    f"is being drained by {run}",
                    expected="no other drain",
                    remedy="let it end; if it was killed on another machine: the same command with --take-over",
                )
        return held

    def _take_up(self, held: dict[str, list[str]]) -> None:
        """What a killed drain had begun becomes ours: to open its nodes first would let new pods in."""
        for run, names in held.items():
            ours = adopt(self.kube, names, run, self.name)
            self.say(f"took up what {run} had begun on {', '.join(ours)}: cordoned since")
            others = sorted({raw["metadata"]["name"] for raw in list_raw(self.kube, label=f"{RUN}={run}")} - set(ours))
            if others:
                self.say(f"it has left {', '.join(others)} cordoned too: poolshift drain {' '.join(others)}")

    def _pass_by(self, now: Progress, context: Context) -> None:
        self.passing(where_it_stands(now, self.refused))
        if now.gone > self.gone or not now.waiting:
            self.gone, self.moved = now.gone, self.clock.now()
        elif self.moved is not None and self.clock.now() - self.moved >= STALLED:
            self.moved = None  # until the next pod goes
            self._tell_held(finding(pod, d) for pod, d in self._held_by_pods(context))

    def _explain(self, left: tuple[PodEnd, ...], context: Context) -> tuple[PodEnd, ...]:
        """Whose budget held them, and why it did not open: what is left of it now may have found no room."""
        waited = {p.pod.uid for p in left if p.end is End.FAILED and not p.pod.terminating}
        if not waited:
            return left
        why = {pod.uid: d for pod, d in self._held_by_pods(context) if pod.uid in waited}
        return tuple(
            replace(p, reason=d.reason, remedy=d.remedy) if (d := why.get(p.pod.uid)) is not None else p for p in left
        )

    def _held_by_pods(self, context: Context) -> list[tuple[Pod, Decision]]:
        """Pods, and why their budget lets them not go as things stand now; none where nobody can see."""
        try:
            context = replace(context, snapshot=read_snapshot(self.kube))
        except PoolshiftError:
            return []
        pods = [p for p in context.snapshot.on(self.nodes) if self._picked(p)]
        return [(p, d) for p in pods for d in self._decide(p, context) if d.code == "pdb-unhealthy-pods"]

    def _tell_cordons(self, stored: Collection[Node], before: Snapshot) -> None:
        """As kubectl does: a node that somebody had cordoned was not changed by us."""
        was = [n.name for n in stored if (b := before.node_by_name.get(n.name)) is not None and b.unschedulable]
        ours = len(stored) - len(was)
        told = [f"cordoned {plural(ours, 'node')}"] if ours or not was else []
        self.say("; ".join([*told, *([f"already cordoned: {and_more(was, 20)}"] if was else [])]))

    def _keep_closed(self, nodes: Mapping[str, str]) -> None:
        """Whoever took our cordon off meanwhile would have new pods come to a node that is said to be empty.

        Names to UIDs: a machine that was made anew under a name of ours is not ours.
        """
        seen = [(raw["metadata"], raw["spec"]) for raw in list_raw(self.kube, nodes)]
        ours = [(meta["name"], spec) for meta, spec in seen if nodes[meta["name"]] in ("", meta["uid"])]
        opened = [name for name, spec in ours if not spec.get("unschedulable")]
        if opened:
            self.say(f"somebody had uncordoned {and_more(opened, 20)}: cordoned again")
            cordon(self.kube, opened, self.name)

    def _take_back(self, nodes: list[str], *, done: bool) -> tuple[str, ...]:
        """The cordons of this drain, or, with `done`, only its marks; which nodes. What stays is said, with the way."""
        try:
            restored = unfence(self.kube, self.name, keep_cordon=done)
        except BaseException:  # a second Ctrl-C too
            stays = "empty, and cordoned with its marks" if done else "cordoned"
            self.say(f"could not put all back: {and_more(nodes, 20)} may stay {stays}; the same command mends that")
            raise
        if not done:
            self.say(f"took back the cordons of this drain: {', '.join(restored) or 'none'}")
        return restored

    def _empty(self, view: View, context: Context, nodes: list[str], report: DrainReport) -> DrainReport:
        options = self.options
        limit = options.timeout or FOREVER
        done = False
        held = self._held(nodes)
        try:
            self._take_up(held)
            stored = cordon(self.kube, nodes, self.name)
            self._tell_cordons(stored, context.snapshot)
            # What went meanwhile is empty if no pod names it.
            uids = dict.fromkeys(nodes, "") | {n.name: n.uid for n in stored}
            limits = Limits(pod=limit, wave=limit, until=self.began + limit, grace=options.grace)
            rate = options.evictions_per_second
            with Evictor(self.kube, view, rate=rate, clock=self.clock, rate_name=RATE) as evictor:
                sentence = with_new_daemonsets(
                    self.kube,
                    context.snapshot,
                    lambda pod: self._fate(pod, context),
                    stay=options.ignore_daemonsets,
                )
                for _ in range(1 + LATE_ROUNDS):
                    left = evictor.empty(
                        uids,
                        sentence,
                        limits,
                        last=drains_last,
                        on_progress=lambda now: self._pass_by(now, context),
                        cancelled=self.cancelled,
                    )
                    if not left:
                        self._keep_closed(uids)
                    unproven = [] if options.pod_selector else verify_empty(self.kube, uids)
                    late = not left and any(f.code == "pod-still-there" for f in unproven)
                    if not late or self.cancelled() or self.clock.now() >= limits.until:
                        break
                    view.rest(LATE_SECONDS)
                ends = node_ends(uids, left, unproven)
                done = all(end is End.DRAINED for end in ends.values())
                if done:
                    self.proven()
            left = self._explain(left, context)
        except KeyboardInterrupt:
            self.say("interrupted: taking back the cordons of this drain; pods that were told to leave still do")
            raise
        finally:
            restored = self._take_back(nodes, done=done)
        every = {**report.nodes, **ends}
        return replace(
            report,
            end=worst_end(every.values()),
            nodes=every,
            left=left,
            unproven=tuple(unproven),
            restored=() if done else restored,
            tally=evictor.tally,
        )
