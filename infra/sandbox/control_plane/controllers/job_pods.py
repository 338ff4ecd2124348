"""The pods of a Job: which to make, which to delete, and the finalizer that keeps them until they are counted."""

from __future__ import annotations

from dataclasses import dataclass, field

from infra.sandbox.control_plane.controllers import job_rules as rules
from infra.sandbox.control_plane.controllers import pods as owned
from infra.sandbox.control_plane.controllers.cluster import JOB, POD, Cluster
from infra.sandbox.control_plane.controllers.objects import Object, key_of
from infra.sandbox.control_plane.controllers.view import PodFacts
from infra.sandbox.control_plane.controllers.work import Queue
from infra.sandbox.control_plane.errors import ApiError

SOURCE = "job-controller"
MOST_AT_ONCE = 500
"""Pods made or deleted in one reconcile, as the real controller bounds it."""


@dataclass(kw_only=True)
class Sync:
    """What one reconcile knows and decides about a Job."""

    job: Object
    pods: list[PodFacts]
    active: list[PodFacts]
    terminating: int
    backoff: rules.Backoff
    status: Object
    """The new status, made step by step."""
    succeeded: int = 0
    failed: int = 0
    succeeded_indexes: set[int] = field(default_factory=set)
    counted_indexes: set[int] = field(default_factory=set)
    """Indexes that the old status already holds."""
    failed_indexes: set[int] = field(default_factory=set)
    verdict: Object | None = None
    """The condition that ends the Job, if it is to end."""
    active_count: int = 0
    ready_count: int = 0

    def removed(self, gone: list[PodFacts]) -> None:
        """Pods were told to go."""
        self.active_count -= len(gone)
        self.ready_count -= sum(pod.ready for pod in gone)
        self.terminating += sum(bool(pod.node) for pod in gone)


class JobPods:
    """Makes and deletes them. `queue` is where a Job is looked at again when its backoff is over."""

    def __init__(self, cluster: Cluster, queue: Queue) -> None:
        self._cluster = cluster
        self._queue = queue

    def free(self, pod: PodFacts) -> None:
        """Take the finalizer off: the pod is counted, or need not be."""
        current = self._cluster.get(POD, pod.key)
        finalizers = (current["metadata"].get("finalizers") or ()) if current is not None else ()
        if current is not None and rules.FINALIZER in finalizers:
            left = [each for each in finalizers if each != rules.FINALIZER]
            self._cluster.patch_meta(POD, current, finalizers=left or None)

    def remove(self, sync: Sync, gone: list[PodFacts]) -> None:
        """Delete pods that are not wanted any more: they count as neither succeeded nor failed."""
        for pod in gone:
            self.free(pod)
            self._cluster.delete_pod(pod, sync.job, JOB, source=SOURCE)
        sync.removed(gone)

    def scale(self, sync: Sync) -> ApiError | None:
        """Make or delete pods until as many run as should. Returns the refusal, if one was refused."""
        spec = sync.job["spec"]
        parallelism = spec.get("parallelism", 1)
        active = len(sync.active)
        if spec.get("completions") is None:
            wanted = active if sync.succeeded > 0 else parallelism
        else:
            wanted = max(0, min(spec["completions"] - sync.succeeded, parallelism))
        surplus = self._surplus(sync, max(0, active - wanted))[:MOST_AT_ONCE]
        if surplus:
            self.remove(sync, surplus)
            return None
        waiting = sync.terminating if rules.replaces_failed_only(sync.job) else 0
        missing = min(wanted - waiting - active, MOST_AT_ONCE)
        return self._create(sync, missing) if missing > 0 else None

    def _surplus(self, sync: Sync, at_least: int) -> list[PodFacts]:
        """Pods to remove: of an index that ran twice or does not exist any more, then the least useful ones."""
        now = self._cluster.now()
        ordered = owned.removal_order(sync.active, (), now)
        if not rules.is_indexed(sync.job):
            return ordered[:at_least]
        kept: set[int] = set()
        gone = []
        left = []
        for pod in reversed(ordered):
            index = rules.index_of(pod.obj)
            if not 0 <= index < sync.job["spec"]["completions"] or index in kept:
                gone.append(pod)
            else:
                kept.add(index)
                left.append(pod)
        left.reverse()
        return gone + left[: max(0, at_least - len(gone))]

    def _create(self, sync: Sync, missing: int) -> ApiError | None:
        job = sync.job
        now = self._cluster.now()
        per_index = job["spec"].get("backoffLimitPerIndex") is not None
        wait = 0.0 if per_index else sync.backoff.remaining(now)
        if wait > 0:
            self._queue.add_after(key_of(job), wait)
            return None
        template = dict(job["spec"]["template"])
        meta = dict(template.get("metadata") or {})
        meta["finalizers"] = [*(meta.get("finalizers") or ()), rules.FINALIZER]
        template["metadata"] = meta
        name = job["metadata"]["name"]
        try:
            if not rules.is_indexed(job):
                for _ in range(missing):
                    self._cluster.create_pod(template, job, JOB, source=SOURCE)
                    sync.active_count += 1
                return None
            template["spec"] = rules.with_index_variable(template["spec"])
            for index in self._missing_indexes(sync, missing):
                one = rules.indexed_template(template, name, index)
                if per_index and not self._note_index_failures(sync, one, index):
                    continue
                self._cluster.create_pod(one, job, JOB, prefix=f"{name}-{index}-", source=SOURCE)
                sync.active_count += 1
        except ApiError as error:
            return error
        return None

    def _missing_indexes(self, sync: Sync, count: int) -> list[int]:
        taken = sync.succeeded_indexes | sync.failed_indexes | {rules.index_of(pod.obj) for pod in sync.active}
        if rules.replaces_failed_only(sync.job):
            taken |= {rules.index_of(pod.obj) for pod in sync.pods if pod.deleting and not pod.finished}
        completions = sync.job["spec"]["completions"]
        found = []
        for index in range(completions):
            if index not in taken:
                found.append(index)
                if len(found) == count:
                    break
        return found

    def _note_index_failures(self, sync: Sync, template: Object, index: int) -> bool:
        """Carry the failure count of the index over to its next pod. False while the index backs off."""
        last = self.last_failure(sync, index)
        counts = {rules.INDEX_FAILURES: 0, rules.INDEX_IGNORED_FAILURES: 0}
        if last is not None:
            counts = {each: rules.index_failures(last.obj, each) for each in counts}
            wait = rules.Backoff(sum(counts.values()) + 1, rules.finished_time(last.obj)).remaining(self._cluster.now())
            if wait > 0:
                self._queue.add_after(key_of(sync.job), wait)
                return False
            counts[
                rules.INDEX_FAILURES
                if rules.match_failure_policy(sync.job, last.obj).counts
                else rules.INDEX_IGNORED_FAILURES
            ] += 1
        template["metadata"]["annotations"][rules.INDEX_FAILURES] = str(counts[rules.INDEX_FAILURES])
        if counts[rules.INDEX_IGNORED_FAILURES]:
            template["metadata"]["annotations"][rules.INDEX_IGNORED_FAILURES] = str(
                counts[rules.INDEX_IGNORED_FAILURES]
            )
        return True

    def last_failure(self, sync: Sync, index: int) -> PodFacts | None:
        """The failed pod of an index whose finalizer stays until its successor exists: it carries the count."""
        failed = [
            pod
            for pod in sync.pods
            if rules.has_finalizer(pod) and rules.index_of(pod.obj) == index and rules.has_failed(pod, sync.job)
        ]
        return max(
            failed,
            key=lambda pod: sum(
                rules.index_failures(pod.obj, each) for each in (rules.INDEX_FAILURES, rules.INDEX_IGNORED_FAILURES)
            ),
            default=None,
        )
