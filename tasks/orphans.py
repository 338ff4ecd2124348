"""A DaemonSet may be made, or made again, while a wave runs: its pods are no orphans."""

from __future__ import annotations

from collections.abc import Callable

from infra.errors import PoolshiftError
from infra.kube.api import Kube
from infra.model.cluster import Owner
from infra.model.workload import Pod, Snapshot
from tasks.rules.outcome import Fate, Sentence
from tasks.rules.sentences import STAYS


def with_new_daemonsets(
    kube: Kube, seen: Snapshot, sentence: Callable[[Pod], Sentence], *, stay: bool = True
) -> Callable[[Pod], Sentence]:
    """The same question, asked after a look at the cluster for pods of a DaemonSet that was not there at the start.

    Such a pod stays where `stay`, and is held where the caller was not told to leave DaemonSets alone. An error while
    looking holds it too: it says neither.
    """
    found: set[str] = set()

    def exists(owner: Owner, namespace: str) -> bool:
        if owner.uid not in found:
            # By a list, for which a plan's role has the right already.
            only = {"fieldSelector": f"metadata.name={owner.name}"}
            raws = kube.list(f"/apis/apps/v1/namespaces/{namespace}/daemonsets", only)
            if all(raw["metadata"]["uid"] != owner.uid for raw in raws):
                return False
            found.add(owner.uid)
        return True

    def asked(pod: Pod) -> Sentence:
        owner, verdict = pod.owner, sentence(pod)
        if owner is None or owner.kind != "DaemonSet" or verdict.fate is Fate.STAY or owner.uid in seen.workload_by_uid:
            return verdict
        try:
            managed = exists(owner, pod.namespace)
        except PoolshiftError as error:
            reason = f"nobody can tell whether its DaemonSet {owner.name} exists: {error.wording()}"
            return Sentence(fate=Fate.HELD, code="daemonset-unknown", reason=reason)
        if not managed:
            return verdict
        if stay:
            return STAYS
        return Sentence(
            fate=Fate.HELD,
            code="daemonset",
            reason=f"is managed by DaemonSet {owner.name}, which would bring it back",
            remedy="pass --ignore-daemonsets to leave it where it is",
        )

    return asked
