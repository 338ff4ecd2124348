"""Draining, as flows and the command line call it: `plan`, `move`, `verify_empty`, and `drain_nodes` on its own."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from infra.clock import Clock
from infra.errors import NotFound, Refused
from infra.kube.api import Kube
from infra.kube.leases import Holder
from infra.kube.nodes import list_raw
from infra.kube.read import snapshot as read_snapshot
from infra.kube.view import View
from infra.model.record import RUN
from infra.model.spec import Drain
from infra.model.verdict import Finding, Level
from infra.model.workload import Pod, Selector, Snapshot
from tasks.emptiness import verify_empty
from tasks.evict import Evictor
from tasks.fence import adopt, cordon, unfence
from tasks.move_report import MoveReport, WaveReport, pod_end_dict
from tasks.moving import move
from tasks.orphans import with_new_daemonsets
from tasks.rules.decision import Act, Allowed, Context, Decision, strictest
from tasks.rules.drain import decide, drains_last, finding
from tasks.rules.outcome import End, Fate, Limits, PodEnd, Progress, Sentence, Tally, node_ends, worst_end
from tasks.rules.placement import TargetShape
from tasks.rules.sentences import sentence_of
from tasks.rules.waves import MovePlan, plan_move
from tasks.rules.wording import plural

__all__ = [
    "DrainOptions",
    "DrainReport",
    "MovePlan",
    "MoveReport",
    "TargetShape",
    "WaveReport",
    "drain_nodes",
    "move",
    "plan",
    "verify_empty",
]

TOLD = 20  # blockers told one by one before the first eviction; the report has all
FOREVER = timedelta(days=3650)
# A pod bound right before the cordon may be in a listing before the watch shows it: how often to go on for it, and the
# wall-clock time that the watch is given.
LATE_ROUNDS, LATE_SECONDS = 5, 0.5


def plan(
    snapshot: Snapshot,
    drain: Drain,
    source_nodes: Sequence[str],
    target_shape: TargetShape | None = None,
    *,
    target_nodes: Sequence[str] = (),
) -> MovePlan:
    """What would move, in which wave, what waits for what, and what can never go. Reads nothing, changes nothing.

    Args:
        snapshot: from `infra.kube.read.snapshot` or a dump.
        drain: the spec's drain part.
        source_nodes: names of the nodes to empty.
        target_shape: a node of the target pool, from the spec when the pool does not exist yet.
        target_nodes: names of the target's nodes when it does: room for gangs is then judged on what is free there.

    """
    return plan_move(snapshot, drain, source_nodes, target_shape, target_nodes)


@dataclass(frozen=True, kw_only=True)
class DrainOptions:
    """As kubectl drain's flags of the same names. `timeout` zero: no limit; `grace` None: each pod's own.

    `take_over`: go on where another stand-alone drain still marks these nodes; its cordons become this one's.
    """

    grace: int | None = None
    timeout: timedelta = timedelta(0)
    pod_selector: Selector | None = None
    ignore_daemonsets: bool = False
    delete_emptydir_data: bool = False
    force: bool = False
    dry_run: bool = False
    take_over: bool = False
    evictions_per_second: float = 500.0


@dataclass(frozen=True, kw_only=True)
class DrainReport:
    """How a stand-alone drain ended. `blocked` were seen before the first eviction; their nodes were not touched."""

    end: End
    nodes: dict[str, End]
    blocked: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    left: tuple[PodEnd, ...]
    unproven: tuple[Finding, ...]
    leaving: int
    restored: tuple[str, ...]
    tally: Tally
    requests: int
    seconds: float
    dry_run: bool = False

    @property
    def exit_code(self) -> int:
        """0 all drained (or, dry, all could be), 5 refused before anything was touched, 4 unknown, 1 failed."""
        if self.blocked and not self.tally.sent and all(e is not End.DRAINED for e in self.nodes.values()):
            return 5
        return {End.DRAINED: 0, End.FAILED: 1, End.UNKNOWN: 4}[self.end]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "end": self.end.value,
            "dry_run": self.dry_run,
            "nodes": {name: end.value for name, end in self.nodes.items()},
            "blocked": [f.to_dict() for f in self.blocked],
            "warnings": [f.to_dict() for f in self.warnings],
            "left": [pod_end_dict(p) for p in self.left],
            "unproven": [f.to_dict() for f in self.unproven],
            "pods": self.leaving,
            "restored": list(self.restored),
            "evictions": asdict(self.tally),
            "requests": self.requests,
            "seconds": round(self.seconds, 2),
        }


def drain_nodes(
    kube: Kube,
    nodes: Iterable[str],
    options: DrainOptions,
    *,
    clock: Clock | None = None,
    say: Callable[[str], None] = lambda _: None,
    passing: Callable[[str], object] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> DrainReport:
    """Empty nodes of any cluster. Blockers are judged first; a node that has one is left alone, the others go on.

    Nodes that drain stay cordoned, as with kubectl. On failure, cancellation (Ctrl-C too) or an error, exactly the
    cordons of this call are taken back.

    Raises:
        NotFound: a node does not exist (nothing was changed).
        Refused: a node is held by another run (nothing was changed).
        Forbidden, Unreachable, Conflict: as `infra.kube.api`.

    """
    return _Drain(kube, tuple(dict.fromkeys(nodes)), options, clock or kube.clock, say, passing, cancelled).run()


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
    return f"drain-{_place(holder)}-{holder.pid}-{uuid.uuid4().hex[:6]}"


def was_killed(run: str, here: Holder) -> bool:
    """True only for a stand-alone drain of this host whose process is no more."""
    match = re.fullmatch(r"drain-([0-9a-f]{12})-(\d+)-[0-9a-f]{6}", run)
    return match is not None and match[1] == _place(here) and replace(here, pid=int(match[2])).is_gone


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
    ) -> None:
        self.kube, self.nodes, self.options, self.clock = kube, nodes, options, clock
        self.say, self.passing, self.cancelled = say, passing, cancelled
        self.here = Holder.here("drain")
        self.name = name_of_drain(self.here)
        self.began, self.asked = clock.now(), kube.requests

    def run(self) -> DrainReport:
        with View(self.kube, nodes=self.nodes) as view:
            live = (tuple(view.pods.values()), tuple(view.budgets.values()))
            now = read_snapshot(self.kube, live=live)
            missing = [n for n in self.nodes if n not in now.node_by_name]
            if missing:
                raise NotFound(f"node {missing[0]}", "is not in the cluster", remedy="kubectl get nodes")
            context = Context(snapshot=now, allowed=self._allowed())
            findings, blocked_nodes, leaving = self._judge(now, context)
            free = [n for n in self.nodes if n not in blocked_nodes]
            told = [] if self.options.dry_run else [f for f in findings if f.level is Level.BLOCK]
            for found in told[:TOLD]:
                self.say(found.wording())
            if len(told) > TOLD:
                self.say(f"and {len(told) - TOLD} more that block: --dry-run --json shows all")
            report = DrainReport(
                end=End.FAILED if blocked_nodes else End.DRAINED,
                nodes=dict.fromkeys(blocked_nodes, End.FAILED),
                blocked=tuple(f for f in findings if f.level is Level.BLOCK),
                warnings=tuple(f for f in findings if f.level is Level.WARN),
                left=(),
                unproven=(),
                leaving=leaving,
                restored=(),
                tally=Tally(),
                requests=0,
                seconds=0.0,
                dry_run=self.options.dry_run,
            )
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

    def _judge(self, now: Snapshot, context: Context) -> tuple[list[Finding], list[str], int]:
        findings: list[Finding] = []
        blocked: list[str] = []
        leaving = 0
        for pod in now.on(self.nodes):
            if not self._picked(pod):
                continue
            decisions = self._decide(pod, context)
            act = strictest(decisions)
            for d in decisions:
                if d.act is not Act.SKIP and d.code not in ("finished", "terminating"):
                    told = finding(pod, d)
                    # A dead node is one finding, not one for each of its pods.
                    of_node = d.code == "node-dead" and not pod.terminating
                    findings.append(replace(told, object=f"node {pod.node}") if of_node else told)
            if act is Act.BLOCK:
                blocked.append(pod.node)
            elif act is not Act.SKIP:
                leaving += 1
        return list(dict.fromkeys(findings)), list(dict.fromkeys(blocked)), leaving

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
            if run.startswith("drain-"):
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

    def _pass_by(self, now: Progress) -> None:
        self.passing(now.wording())

    def _empty(self, view: View, context: Context, nodes: list[str], report: DrainReport) -> DrainReport:
        options = self.options
        limit = options.timeout or FOREVER
        done = False
        held = self._held(nodes)
        try:
            self._take_up(held)
            stored = cordon(self.kube, nodes, self.name)
            self.say(f"cordoned {plural(len(stored), 'node')}")
            uids = {n.name: n.uid for n in stored}
            limits = Limits(pod=limit, wave=limit, until=self.began + limit, grace=options.grace)
            with Evictor(self.kube, view, rate=options.evictions_per_second, clock=self.clock) as evictor:
                sentence = with_new_daemonsets(
                    self.kube,
                    context.snapshot,
                    lambda pod: self._fate(pod, context),
                    stay=options.ignore_daemonsets,
                )
                every_uid = dict.fromkeys(nodes, "") | uids  # what went meanwhile is empty if no pod names it
                for _ in range(1 + LATE_ROUNDS):
                    left = evictor.empty(
                        uids,
                        sentence,
                        limits,
                        last=drains_last,
                        on_progress=self._pass_by,
                        cancelled=self.cancelled,
                    )
                    unproven = [] if options.pod_selector else verify_empty(self.kube, every_uid)
                    late = not left and any(f.code == "pod-still-there" for f in unproven)
                    if not late or self.cancelled() or self.clock.now() >= limits.until:
                        break
                    view.rest(LATE_SECONDS)
            uids = every_uid
            ends = node_ends(uids, left, unproven)
            done = all(end is End.DRAINED for end in ends.values())
        except KeyboardInterrupt:
            self.say("interrupted: taking back the cordons of this drain; pods that were told to leave still do")
            raise
        finally:
            restored = unfence(self.kube, self.name, keep_cordon=done)
            if not done:
                self.say(f"took back the cordons of this drain: {', '.join(restored) or 'none'}")
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
