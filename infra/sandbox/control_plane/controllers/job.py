"""Jobs: pods that run to completion, counted once each by way of their finalizer."""

from __future__ import annotations

from infra.clock import parse_time
from infra.sandbox.control_plane.controllers import job_rules as rules
from infra.sandbox.control_plane.controllers import pods as owned
from infra.sandbox.control_plane.controllers.cluster import JOB, Cluster, is_terminating_namespace
from infra.sandbox.control_plane.controllers.job_pods import SOURCE, JobPods, Sync
from infra.sandbox.control_plane.controllers.objects import (
    Object,
    condition,
    controller_of,
    is_deleting,
    key_of,
    seconds_since,
    with_condition,
)
from infra.sandbox.control_plane.controllers.view import PodFacts
from infra.sandbox.control_plane.controllers.work import Key
from infra.sandbox.control_plane.errors import ApiError


class Jobs:
    """Runs Jobs, and deletes finished ones after ttlSecondsAfterFinished."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queue = cluster.work.queue("job", self.reconcile)
        self._pods = JobPods(cluster, self._queue)
        self._strays = cluster.work.queue("job strays", self._free_stray)
        self._expiry = cluster.work.queue("job ttl", self._expire)
        self._backoffs: dict[str, rules.Backoff] = {}
        cluster.on(JOB, self._job_changed)
        cluster.own_pods(JOB, self._queue, self._bare_pod_changed)

    def _job_changed(self, event: str, job: Object, old: Object | None) -> None:
        self._queue.add(key_of(job))
        if event != "DELETED" and job["spec"].get("ttlSecondsAfterFinished") is not None:
            self._expiry.add(key_of(job))
        if event == "DELETED":
            self._backoffs.pop(job["metadata"]["uid"], None)

    def _bare_pod_changed(self, event: str, pod: Object, old: Object | None) -> None:
        """A pod that was taken from its Job is counted by nobody, so nothing holds it."""
        finalizers = pod["metadata"].get("finalizers") or ()
        if rules.FINALIZER in finalizers and old is not None and controller_of(old) is not None:
            self._strays.add(key_of(pod))

    def _free_stray(self, key: Key) -> None:
        pod = self._cluster.view.pods.get(key)
        if pod is not None and not pod.owner:
            self._pods.free(pod)

    def reconcile(self, key: Key) -> None:
        """Bring one Job nearer to its end and write its status."""
        job = self._cluster.get(JOB, key)
        if job is None or rules.is_finished(job) is not None:
            self._release_leftovers(key, job)
            return
        if job["spec"].get("managedBy", "kubernetes.io/job-controller") != "kubernetes.io/job-controller":
            return
        sync = self._observe(job)
        self._judge(sync)
        error: ApiError | None = None
        if sync.verdict is not None:
            self._delete_active(sync)
        else:
            error = self._manage(sync)
        self._count_and_write(sync)
        if error is not None and not is_terminating_namespace(error):
            raise error

    def _release_leftovers(self, key: Key, job: Object | None) -> None:
        """Pods of a Job that is finished or gone need no counting."""
        if job is not None:
            for pod in self._cluster.view.pods_of(job["metadata"]["uid"]):
                self._pods.free(pod)
            return
        for pod in list(self._cluster.view.pods_in(key[0])):
            reference = controller_of(pod.obj)
            if reference is not None and (reference["kind"], reference["name"]) == (JOB.kind, key[1]):
                self._pods.free(pod)

    # Observe

    def _observe(self, job: Object) -> Sync:
        pods = owned.claimed(self._cluster, job, JOB, finalizer=rules.FINALIZER)
        active = [pod for pod in pods if pod.active]
        uid = job["metadata"]["uid"]
        countable = [pod for pod in pods if rules.has_finalizer(pod) and self._index_is_valid(job, pod)]
        succeeded = [pod for pod in countable if pod.phase == "Succeeded"]
        failed = [pod for pod in countable if rules.has_failed(pod, job)]
        before = self._backoffs.get(uid, rules.Backoff())
        status = dict(job.get("status") or {})
        sync = Sync(
            job=job,
            pods=pods,
            active=active,
            terminating=sum(pod.deleting and not pod.finished for pod in pods),
            backoff=rules.next_backoff(before, succeeded, failed),
            status=status,
            active_count=len(active),
            ready_count=sum(pod.ready for pod in active),
        )
        sync.succeeded = status.get("succeeded", 0) + len(succeeded)
        sync.failed = status.get("failed", 0) + sum(rules.match_failure_policy(job, pod.obj).counts for pod in failed)
        if rules.is_indexed(job):
            completions = job["spec"]["completions"]
            sync.counted_indexes = rules.parse_indexes(status.get("completedIndexes"), completions)
            sync.succeeded_indexes = sync.counted_indexes | {rules.index_of(pod.obj) for pod in succeeded}
            sync.succeeded = len(sync.succeeded_indexes)
            if job["spec"].get("backoffLimitPerIndex") is not None:
                sync.failed_indexes = rules.parse_indexes(status.get("failedIndexes"), completions) | {
                    rules.index_of(pod.obj) for pod in countable if rules.index_is_lost(job, pod)
                }
        if not rules.is_suspended(job) and not status.get("startTime"):
            status["startTime"] = self._cluster.stamp()
        return sync

    def _index_is_valid(self, job: Object, pod: PodFacts) -> bool:
        if not rules.is_indexed(job):
            return True
        return 0 <= rules.index_of(pod.obj) < int(job["spec"]["completions"])

    # Judge

    def _judge(self, sync: Sync) -> None:
        """Decide whether the Job is to end, and why."""
        job = sync.job
        stamp = self._cluster.stamp()
        met = condition(job, "SuccessCriteriaMet")
        if met is not None and met.get("status") == "True":
            sync.verdict = met
            return
        doomed = condition(job, "FailureTarget")
        if doomed is not None and doomed.get("status") == "True":
            sync.verdict = rules.new_condition("Failed", "True", doomed["reason"], doomed["message"], stamp)
            return
        reason = self._failure(sync) or self._index_failure(sync)
        if reason is not None:
            sync.verdict = rules.new_condition("FailureTarget", "True", *reason, stamp)
            return
        message = rules.match_success_policy(job, sync.succeeded_indexes)
        if message:
            sync.verdict = rules.new_condition("SuccessCriteriaMet", "True", "SuccessPolicy", message, stamp)

    def _failure(self, sync: Sync) -> tuple[str, str] | None:
        job = sync.job
        spec = job["spec"]
        if spec.get("podFailurePolicy") is not None:
            for pod in sync.pods:
                if rules.has_failed(pod, job):
                    match = rules.match_failure_policy(job, pod.obj)
                    if match.message:
                        return "PodFailurePolicy", match.message
        if sync.failed > spec.get("backoffLimit", 6) or rules.past_restarts(job, sync.pods):
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        deadline = spec.get("activeDeadlineSeconds")
        if deadline is not None and not rules.is_suspended(job) and (job.get("status") or {}).get("startTime"):
            active = seconds_since(job["status"]["startTime"], self._cluster.now())
            if active >= deadline:
                return "DeadlineExceeded", "Job was active longer than specified deadline"
            self._queue.add_after(key_of(job), deadline - active)
        elif deadline is not None and not rules.is_suspended(job):
            self._queue.add_after(key_of(job), deadline)
        return None

    def _index_failure(self, sync: Sync) -> tuple[str, str] | None:
        spec = sync.job["spec"]
        if not sync.failed_indexes:
            return None
        if spec.get("maxFailedIndexes") is not None and len(sync.failed_indexes) > spec["maxFailedIndexes"]:
            return "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
        if len(sync.failed_indexes | sync.succeeded_indexes) >= spec["completions"]:
            return "FailedIndexes", "Job has failed indexes"
        return None

    # Act

    def _delete_active(self, sync: Sync) -> None:
        for pod in sync.active:
            self._cluster.delete_pod(pod, sync.job, JOB, source=SOURCE)
        sync.removed(sync.active)

    def _manage(self, sync: Sync) -> ApiError | None:
        """Make or delete pods; set the Suspended condition."""
        job = sync.job
        if is_deleting(job):
            return None
        error: ApiError | None = None
        if rules.is_suspended(job):
            self._pods.remove(sync, list(sync.active))
        else:
            error = self._pods.scale(sync)
        if self._is_complete(sync):
            sync.verdict = rules.new_condition(
                "SuccessCriteriaMet",
                "True",
                "CompletionsReached",
                "Reached expected number of succeeded pods",
                self._cluster.stamp(),
            )
        elif rules.is_suspended(job):
            if self._set_condition(sync, "Suspended", "True", "JobSuspended", "Job suspended"):
                self._cluster.events.emit(job, JOB, "Normal", "Suspended", "Job suspended", SOURCE)
                sync.status.pop("startTime", None)
        elif condition(job, "Suspended") is not None and self._set_condition(
            sync, "Suspended", "False", "JobResumed", "Job resumed"
        ):
            self._cluster.events.emit(job, JOB, "Normal", "Resumed", "Job resumed", SOURCE)
            sync.status["startTime"] = self._cluster.stamp()
        return error

    def _set_condition(self, sync: Sync, kind: str, status: str, reason: str, message: str) -> bool:
        known = condition({"status": sync.status}, kind)
        if known is not None and (known["status"], known.get("reason")) == (status, reason):
            return False
        new = rules.new_condition(kind, status, reason, message, self._cluster.stamp())
        sync.status["conditions"] = with_condition(sync.status.get("conditions"), new)
        return True

    def _is_complete(self, sync: Sync) -> bool:
        completions = sync.job["spec"].get("completions")
        if completions is None:
            return sync.succeeded > 0 and sync.active_count == 0
        return sync.succeeded >= int(completions) and sync.active_count == 0

    # Count and write

    def _count_and_write(self, sync: Sync) -> None:
        job, status = sync.job, sync.status
        self._backoffs[job["metadata"]["uid"]] = sync.backoff
        verdict = sync.verdict
        failing = verdict is not None and verdict["type"] != "SuccessCriteriaMet"
        succeeded = failed = 0
        for pod in sync.pods:
            if not rules.has_finalizer(pod) or not self._may_count(sync, pod):
                continue
            valid = self._index_is_valid(job, pod)
            if pod.phase == "Succeeded":
                succeeded += valid
            elif rules.has_failed(pod, job) or failing:
                failed += valid and rules.match_failure_policy(job, pod.obj).counts
            self._pods.free(pod)
        _count(status, "succeeded", status.get("succeeded", 0) + succeeded)
        _count(status, "failed", status.get("failed", 0) + failed)
        if rules.is_indexed(job):
            _count(status, "succeeded", len(sync.succeeded_indexes))
            _text(status, "completedIndexes", rules.format_indexes(sync.succeeded_indexes))
            if job["spec"].get("backoffLimitPerIndex") is not None:
                status["failedIndexes"] = rules.format_indexes(sync.failed_indexes)
        _count(status, "active", sync.active_count)
        status["ready"] = sync.ready_count
        status["terminating"] = sync.terminating
        status["uncountedTerminatedPods"] = {}
        if verdict is not None:
            self._conclude(sync, verdict)
        current = self._cluster.get(JOB, key_of(job))
        if current is not None and current["metadata"]["uid"] == job["metadata"]["uid"]:
            self._cluster.write_status(JOB, current, status)

    def _may_count(self, sync: Sync, pod: PodFacts) -> bool:
        if is_deleting(sync.job) or sync.verdict is not None or pod.phase == "Succeeded":
            return True
        if not rules.has_failed(pod, sync.job):
            return False
        index = rules.index_of(pod.obj)
        if sync.job["spec"].get("backoffLimitPerIndex") is None or index in sync.failed_indexes:
            return True
        replaced = any(
            each.active and rules.index_of(each.obj) == index
            for each in self._cluster.view.pods_of(sync.job["metadata"]["uid"])
        )
        return replaced or pod is not self._pods.last_failure(sync, index)

    def _conclude(self, sync: Sync, verdict: Object) -> None:
        """First the intermediate condition; the final one when no pod is left that could still do something."""
        status = sync.status
        stamp = self._cluster.stamp()
        final = verdict
        if verdict["type"] in ("FailureTarget", "SuccessCriteriaMet"):
            if condition({"status": status}, verdict["type"]) is None:
                status["conditions"] = with_condition(status.get("conditions"), verdict)
            kind = "Failed" if verdict["type"] == "FailureTarget" else "Complete"
            final = rules.new_condition(kind, "True", verdict["reason"], verdict["message"], stamp)
        if sync.terminating > 0:
            return
        status["conditions"] = with_condition(status.get("conditions"), final)
        if final["type"] == "Complete":
            status["completionTime"] = stamp
            self._cluster.events.emit(sync.job, JOB, "Normal", "Completed", "Job completed", SOURCE)
        else:
            self._cluster.events.emit(sync.job, JOB, "Warning", final["reason"], final["message"], SOURCE)

    # Expiry

    def _expire(self, key: Key) -> None:
        job = self._cluster.get(JOB, key)
        life = job["spec"].get("ttlSecondsAfterFinished") if job is not None else None
        finished = rules.is_finished(job) if job is not None else None
        if job is None or life is None or finished is None or is_deleting(job):
            return
        left = life - (self._cluster.now() - parse_time(finished["lastTransitionTime"])).total_seconds()
        if left > 0:
            self._expiry.add_after(key, left)
        else:
            self._cluster.delete(JOB, job, propagation="Foreground")


def _count(status: Object, name: str, count: int) -> None:
    if count:
        status[name] = count
    else:
        status.pop(name, None)


def _text(status: Object, name: str, text: str) -> None:
    if text:
        status[name] = text
    else:
        status.pop(name, None)
