"""What would stop a drain, offline: a kubectl dump in, the blocking pods and their reasons out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infra.errors import NotFound
from infra.kube import dump
from infra.kube.read import of_objects, read_dump
from infra.kube.wire import Wire
from infra.model.workload import Pod, Snapshot
from tasks.rules.decision import Act, Allowed, Context, Decision
from tasks.rules.drain import decide
from tasks.rules.wording import and_more, plural

# The words of the answer, by the rules' own codes. What is not here has its own code as its word.
_WORDS = {
    "pdb-never": "pdb",
    "local-volume": "local-storage",
    "daemonset-orphan": "daemonset",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocker:
    """One reason why one pod does not leave."""

    pod: str
    node: str
    why: str
    decision: Decision

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "pod": self.pod,
            "why": self.why,
            "node": self.node,
            "code": self.decision.code,
            "reason": self.decision.reason,
            "remedy": self.decision.remedy,
            **self.decision.detail,
        }


@dataclass(frozen=True, kw_only=True)
class BlockersResult:
    """The answer for one node or for all of a dump.

    `drainable` is None when it cannot be told: no node or pod was read, or budgets were not, or are not counted yet.
    `assumed` is what was taken as given, since a dump cannot say it.
    """

    node: str | None
    nodes: tuple[str, ...]
    drainable: bool | None
    blockers: tuple[Blocker, ...]
    not_blockers: tuple[str, ...]
    unknown: tuple[str, ...]
    assumed: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 drainable, 3 blocked, 4 unknown."""
        return {True: 0, False: 3, None: 4}[self.drainable]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "node": self.node,
            "nodes": list(self.nodes),
            "drainable": self.drainable,
            "blockers": [b.to_json() for b in self.blockers],
            "not_blockers": list(self.not_blockers),
            "unknown": list(self.unknown),
            "assumed": list(self.assumed),
        }

    def lines(self, limit: int = 20) -> list[str]:
        """For a person: the answer, then each reason with whom it holds and its remedy."""
        if not self.nodes:
            return [f"no node can be judged: {'; '.join(self.unknown)}", f"    next: {dump.WHOLE}"]
        word = {True: "can be drained", False: "cannot be drained", None: "cannot be judged"}[self.drainable]
        found = [
            (
                f"{self._where} {word}: {plural(len(self.blockers), 'blocker')}, "
                f"{plural(len(self.not_blockers), 'pod')} can leave or may stay"
            )
        ]
        groups: dict[tuple[str, str, str], list[Blocker]] = {}
        for blocker in self.blockers:
            groups.setdefault((blocker.why, blocker.decision.reason, blocker.decision.remedy), []).append(blocker)
        for (why, reason, remedy), alike in list(groups.items())[:limit]:
            found.append(f"{_who(alike)}: {why}: {reason}")
            if remedy:
                found.append(f"    next: {remedy}")
        if len(groups) > limit:
            found.append(f"and {sum(map(len, list(groups.values())[limit:]))} more")
        found += [f"unknown: {text}" for text in self.unknown[:limit]]
        if len(self.unknown) > limit:
            found.append(f"and {len(self.unknown) - limit} more unknown")
        found += [f"assumed: {text}" for text in self.assumed]
        return found

    @property
    def _where(self) -> str:
        """Of several nodes, how many: one that nothing blocks is not said to be blocked."""
        if self.node:
            return f"node {self.node}"
        stuck = len({b.node for b in self.blockers})
        every = plural(len(self.nodes), "node")
        return f"{stuck} of {every}" if 0 < stuck < len(self.nodes) else every


def _who(alike: list[Blocker]) -> str:
    """The pods that one reason holds, and where."""
    if len(alike) == 1:
        return f"pod {alike[0].pod} ({alike[0].node})"
    nodes = list(dict.fromkeys(b.node for b in alike))
    return f"{plural(len(alike), 'pod')} ({and_more([b.pod for b in alike], 3)}; on {and_more(nodes, 3)})"


def blockers(
    objects: Iterable[Wire] | Path, node: str | None = None, *, allowed: Allowed | None = None
) -> BlockersResult:
    """Judge a dump (a path, or plain objects). With `allowed` the flags of a drain are taken as given.

    Raises:
        BadSpec: the dump cannot be read or holds no Kubernetes object.
        NotFound: `node` is neither in the dump nor named by a pod of it.

    """
    snapshot = read_dump(objects) if isinstance(objects, Path) else of_objects(objects)
    return judge_snapshot(snapshot, node, allowed or Allowed(ignore_daemonsets=False))


def judge_snapshot(snapshot: Snapshot, node: str | None, allowed: Allowed) -> BlockersResult:
    """The same for a snapshot. Pure."""
    names = _nodes(snapshot, node)
    context = Context(snapshot=snapshot, allowed=allowed)
    found: list[Blocker] = []
    clear: list[str] = []
    unknown: list[str] = []
    for pod in snapshot.on(names):
        decisions = decide(pod, context)
        stopping = [_offline(d) for d in decisions if _stops(d)]
        unknown += [f"pod {pod.key}: {d.reason}" for d in decisions if d.code == "pdb-unknown"]
        if not stopping and all(d.act is not Act.SKIP and d.code not in ("finished", "terminating") for d in decisions):
            unknown += [f"pod {pod.key}: {text}" for text in _unseen_volumes(pod, snapshot)]
        found += [Blocker(pod=pod.key, node=pod.node, why=_WORDS.get(d.code, d.code), decision=d) for d in stopping]
        if not stopping:
            clear.append(pod.key)
    if "Pod" not in snapshot.kinds:
        unknown.append("the dump holds no pods, and they are what leaves")
    elif not names:
        unknown.append("no pod of the dump is on a node")
    elif snapshot.kinds == {"Pod"}:
        unknown.append(f"the dump holds pods alone: budgets may refuse; {dump.MAKE}")
    no_budgets = "PodDisruptionBudget" not in snapshot.kinds and snapshot.kinds > {"Pod"}
    return BlockersResult(
        node=node or (names[0] if len(names) == 1 else None),
        nodes=tuple(names),
        drainable=False if found else (None if unknown else True),
        blockers=tuple(sorted(found, key=lambda b: (b.node, b.pod, b.why))),
        not_blockers=tuple(sorted(clear)),
        unknown=tuple(unknown),
        assumed=(f"that there are no budgets, as the dump has none; to be sure: {dump.MAKE}",) if no_budgets else (),
    )


def _unseen_volumes(pod: Pod, snapshot: Snapshot) -> list[str]:
    """Claims of which the dump does not say where they are stored: it may be this node alone."""
    lacking = [c for c in pod.claims if (pod.namespace, c) not in snapshot.volume_by_claim]
    return [f"where its claim {', '.join(lacking)} is stored is not in the dump; {dump.MAKE}"] if lacking else []


def _stops(decision: Decision) -> bool:
    """Blocks for good, or is refused as things stand. A pod that is already leaving in time stops nothing."""
    return decision.act is Act.BLOCK or (decision.act is Act.WAIT and decision.code in ("pdb", "pdb-unhealthy-pods"))


def _offline(decision: Decision) -> Decision:
    """What a dump lacks is read by another dump: the flags of a drain are not ours."""
    if decision.code != "daemonset":
        return decision
    return replace(
        decision,
        reason="managed by a DaemonSet, and the dump holds none",
        remedy=f"dump the DaemonSets too: {dump.MAKE}",
    )


def _nodes(snapshot: Snapshot, node: str | None) -> list[str]:
    """The nodes in question: the one asked for; else the one that is cordoned, if it is the only one; else all."""
    used = {p.node for p in snapshot.pods if p.node}
    known = used | set(snapshot.node_by_name)
    if node is not None:
        if node not in known:
            raise NotFound(
                f"node {node}",
                "is neither in the dump nor named by a pod of it",
                expected="one of " + ", ".join(sorted(known)[:10]),
                remedy=dump.MAKE,
            )
        return [node]
    cordoned = [n.name for n in snapshot.nodes if n.unschedulable and n.name in used]
    return cordoned if len(cordoned) == 1 else sorted(used)
