"""PodDisruptionBudgets: how many pods may be disrupted now, from the scale of the pods' owners."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from infra.clock import parse_time, rfc3339
from infra.sandbox.control_plane.controllers.cluster import (
    BUDGET,
    DEPLOYMENT,
    POD,
    REPLICA_SET,
    STATEFUL_SET,
    Cluster,
)
from infra.sandbox.control_plane.controllers.objects import (
    Object,
    condition,
    controller_of,
    key_of,
    labels_of,
    scaled,
    with_condition,
)
from infra.sandbox.control_plane.controllers.selectors import Matcher, describe_selector, label_matcher
from infra.sandbox.control_plane.controllers.view import PodFacts
from infra.sandbox.control_plane.controllers.work import Key
from infra.sandbox.control_plane.resources import Kind

SOURCE = "controllermanager"
PATIENCE = timedelta(minutes=2)
"""How long an evicted pod that is not deleted still counts as disrupted."""


class BudgetError(Exception):
    """The budget cannot be computed; the text goes to its SyncFailed condition."""


class Budgets:
    """Keeps the status of every budget."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queue = cluster.work.queue("disruption", self.reconcile)
        self._stale = cluster.work.queue("stale disruption", self._clear_stale_target)
        self._matchers: dict[str, dict[Key, Matcher]] = {}
        self._members: dict[Key, dict[Key, None]] = {}
        self._budgets_of: dict[Key, list[Key]] = {}
        cluster.on(BUDGET, self._budget_changed)
        cluster.on(POD, self._pod_changed)

    # Who belongs to whom

    def _budget_changed(self, event: str, budget: Object, old: Object | None) -> None:
        key = key_of(budget)
        selector = budget["spec"].get("selector")
        matchers = self._matchers.setdefault(key[0], {})
        if event == "DELETED":
            matchers.pop(key, None)
            self._members.pop(key, None)
        elif key not in matchers or old is None or old["spec"].get("selector") != selector:
            matchers[key] = label_matcher(selector)
        else:
            self._queue.add(key)
            return
        for pod in self._cluster.view.pods_in(key[0]):
            self._place_pod(pod.key, pod.obj)
        self._queue.add(key)

    def _place_pod(self, key: Key, pod: Object | None) -> list[Key]:
        """Refresh the budgets of a pod (None: it is gone). Returns those it belongs to now or belonged to last."""
        before = self._budgets_of.pop(key, [])
        labels = labels_of(pod) if pod is not None else {}
        now = (
            [budget for budget, matches in self._matchers.get(key[0], {}).items() if matches(labels)]
            if pod is not None
            else []
        )
        for budget in before:
            if budget not in now:
                self._members.get(budget, {}).pop(key, None)
        for budget in now:
            self._members.setdefault(budget, {})[key] = None
        if now:
            self._budgets_of[key] = now
        return now or before

    def _pod_changed(self, event: str, pod: Object, old: Object | None) -> None:
        key = key_of(pod)
        if event == "MODIFIED" and old is not None and labels_of(old) == labels_of(pod):
            budgets = self._budgets_of.get(key, [])
        else:
            budgets = self._place_pod(key, None if event == "DELETED" else pod)
        if not budgets:
            return
        if len(budgets) > 1 and event != "DELETED":
            message = (
                f'Pod "{key[0]}"/"{key[1]}" matches multiple PodDisruptionBudgets.  '
                f'Chose "{budgets[0][1]}" arbitrarily.'
            )
            self._cluster.events.emit(pod, POD, "Warning", "MultiplePodDisruptionBudgets", message, SOURCE)
        self._queue.add(budgets[0])  # the real controller recomputes one of several, so do we
        wait = _stale_in(pod, self._cluster.now())
        if wait is not None:
            self._stale.add_after(key, wait)

    # Status

    def reconcile(self, key: Key) -> None:
        """Recompute one budget."""
        budget = self._cluster.get(BUDGET, key)
        if budget is None:
            return
        facts = self._cluster.view.pods
        pods = [facts[each] for each in self._members.get(key, ()) if each in facts]
        if not pods:
            self._cluster.events.emit(budget, BUDGET, "Normal", "NoPods", "No matching pods found", SOURCE)
        try:
            expected, desired, unmanaged = self._expected(budget, pods)
        except (BudgetError, ValueError) as error:
            self._fail(budget, str(error))
            return
        if unmanaged:
            self._warn_unmanaged(budget)
        now = self._cluster.now()
        disrupted, recheck = self._disrupted(budget, now)
        healthy = sum(pod.ready and not pod.deleting for pod in pods)
        healthy -= sum(facts[key[0], name].ready for name in disrupted)
        allowed = healthy - desired if expected > 0 and healthy > desired else 0
        status = _new_status(budget, healthy, desired, expected, allowed, disrupted, self._cluster.stamp())
        self._cluster.write_status(BUDGET, budget, status)
        if recheck is not None:
            self._queue.add_after(key, (recheck - now).total_seconds() + 0.001)

    def _expected(self, budget: Object, pods: Sequence[PodFacts]) -> tuple[int, int, bool]:
        """Expected pods, desired healthy pods, and whether pods without a controller were found."""
        spec = budget["spec"]
        if spec.get("maxUnavailable") is not None:
            expected, unmanaged = self._scale(pods)
            return expected, max(0, expected - scaled(spec["maxUnavailable"], expected, up=True)), unmanaged
        least = spec.get("minAvailable")
        if isinstance(least, str):
            expected, unmanaged = self._scale(pods)
            return expected, scaled(least, expected, up=True), unmanaged
        return (len(pods), int(least), False) if least is not None else (0, 0, False)

    def _scale(self, pods: Iterable[PodFacts]) -> tuple[int, bool]:
        """The summed scale of the pods' controllers. A pod without one does not count."""
        scales: dict[str, int] = {}
        known: set[str] = set()
        unmanaged = False
        for pod in pods:
            if not pod.owner:
                unmanaged = True
                continue
            if pod.owner in known:
                continue
            known.add(pod.owner)
            reference = controller_of(pod.obj)
            found = self._owner_scale(pod.key[0], reference) if reference is not None else None
            if found is None:
                msg = f'found no controllers for pod "{pod.key[1]}"'
                raise BudgetError(msg)
            scales[found[0]] = found[1]
        return sum(scales.values()), unmanaged

    def _owner_scale(self, namespace: str, reference: Object) -> tuple[str, int] | None:
        """UID and scale of the controller that counts: for a ReplicaSet's pod, the Deployment above it if any."""
        replica_set = self._cluster.owner(REPLICA_SET, namespace, reference)
        if replica_set is not None:
            above = controller_of(replica_set)
            deployment = self._cluster.owner(DEPLOYMENT, namespace, above)
            if deployment is not None:
                return deployment["metadata"]["uid"], deployment["spec"].get("replicas", 1)
            if above is not None and above.get("kind") == DEPLOYMENT.kind:
                return self._scale_of_other(namespace, reference)
            return replica_set["metadata"]["uid"], replica_set["spec"].get("replicas", 1)
        stateful_set = self._cluster.owner(STATEFUL_SET, namespace, reference)
        if stateful_set is not None:
            return stateful_set["metadata"]["uid"], stateful_set["spec"].get("replicas", 1)
        return self._scale_of_other(namespace, reference)

    def _scale_of_other(self, namespace: str, reference: Object) -> tuple[str, int] | None:
        """Any other owner counts when its resource has a scale subresource."""
        kind = self._cluster.store.registry.kind_of(reference["apiVersion"], reference["kind"])
        if kind is None:
            msg = f'no matches for kind "{reference["kind"]}" in version "{reference["apiVersion"]}"'
            raise BudgetError(msg)
        if "scale" not in kind.subresources:
            resource = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
            msg = f"{resource} does not implement the scale subresource"
            raise BudgetError(msg)
        owner = self._cluster.store.get(kind, namespace, reference["name"])
        if owner is None or owner["metadata"]["uid"] != reference["uid"]:
            return None
        return owner["metadata"]["uid"], self._replicas_of(kind, owner)

    def _replicas_of(self, kind: Kind, owner: Object) -> int:
        """spec.replicas, or what a custom resource's scale subresource points to instead."""
        if not kind.custom:
            return int(owner["spec"].get("replicas", 1))
        definition = self._cluster.store.registry.kind_of("apiextensions.k8s.io/v1", "CustomResourceDefinition")
        crd = self._cluster.store.get(definition, None, f"{kind.plural}.{kind.group}") if definition else None
        path = ".spec.replicas"
        for version in ((crd or {}).get("spec") or {}).get("versions") or ():
            if version["name"] == kind.version:
                path = ((version.get("subresources") or {}).get("scale") or {}).get("specReplicasPath", path)
        value: object = owner
        for part in path.strip(".").split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value if isinstance(value, int) else 0

    def _disrupted(self, budget: Object, now: datetime) -> tuple[dict[str, str], datetime | None]:
        """Evicted pods that still wait for their deletion, and when to look again."""
        key = key_of(budget)
        members = self._members.get(key, {})
        left: dict[str, str] = {}
        recheck: datetime | None = None
        for name, moment in ((budget.get("status") or {}).get("disruptedPods") or {}).items():
            pod = self._cluster.view.pods.get((key[0], name))
            if pod is None or pod.deleting or pod.key not in members:
                continue
            due = parse_time(moment) + PATIENCE
            if due < now:
                message = f"Pod was expected by PDB {key[0]}/{key[0]} to be deleted but it wasn't"
                self._cluster.events.emit(pod.obj, POD, "Warning", "NotDeleted", message, SOURCE)
                continue
            left[name] = moment
            recheck = due if recheck is None else min(recheck, due)
        return left, recheck

    def _warn_unmanaged(self, budget: Object) -> None:
        selector = describe_selector(budget["spec"].get("selector"))
        message = (
            f"Pods selected by this PodDisruptionBudget (selector: {selector}) were found to be unmanaged. As a "
            "result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. "
            'To account for these pods please set ".spec.minAvailable" field of the PDB to an integer value.'
        )
        self._cluster.events.emit(budget, BUDGET, "Warning", "UnmanagedPods", message, SOURCE)

    def _fail(self, budget: Object, message: str) -> None:
        """Fail safe: nothing may be disrupted; the observed generation stays what it was."""
        self._cluster.events.emit(
            budget,
            BUDGET,
            "Warning",
            "CalculateExpectedPodCountFailed",
            f"Failed to calculate the number of expected pods: {message}",
            SOURCE,
        )
        status = dict(budget.get("status") or {})
        for field in ("currentHealthy", "desiredHealthy", "expectedPods"):
            status.setdefault(field, 0)
        status["disruptionsAllowed"] = 0
        _set_allowed_condition(status, "False", "SyncFailed", message, self._cluster.stamp())
        self._cluster.write_status(BUDGET, budget, status)

    # Pods that were to be disrupted and were not

    def _clear_stale_target(self, key: Key) -> None:
        pod = self._cluster.get(POD, key)
        if pod is None:
            return
        wait = _stale_in(pod, self._cluster.now())
        if wait is None:
            return
        if wait > 0:
            self._stale.add_after(key, wait)
            return
        cleared = {
            "type": "DisruptionTarget",
            "status": "False",
            "lastProbeTime": None,
            "lastTransitionTime": rfc3339(self._cluster.now()),
            "observedGeneration": pod["metadata"].get("generation", 1),
        }
        status = {**pod["status"], "conditions": with_condition(pod["status"]["conditions"], cleared)}
        self._cluster.write_status(POD, pod, status)


def _stale_in(pod: Object, now: datetime) -> float | None:
    """Seconds until a DisruptionTarget condition of a pod that lives on is stale; None when it has none."""
    found = condition(pod, "DisruptionTarget")
    if (
        found is None
        or found.get("status") != "True"
        or found.get("reason") == "TerminationByKubelet"
        or pod["metadata"].get("deletionTimestamp")
        or pod["status"].get("phase") in ("Succeeded", "Failed")
    ):
        return None
    since = found.get("lastTransitionTime")
    return max(0.0, (parse_time(since) + PATIENCE - now).total_seconds()) if since else 0.0


def _new_status(
    budget: Object, healthy: int, desired: int, expected: int, allowed: int, disrupted: dict[str, str], stamp: str
) -> Object:
    generation = budget["metadata"].get("generation", 1)
    status: Object = {"observedGeneration": generation}
    if disrupted:
        status["disruptedPods"] = disrupted
    status |= {
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
    }
    if conditions := (budget.get("status") or {}).get("conditions"):
        status["conditions"] = conditions
    if allowed > 0:
        _set_allowed_condition(status, "True", "SufficientPods", "", stamp)
    else:
        _set_allowed_condition(status, "False", "InsufficientPods", "", stamp)
    return status


def _set_allowed_condition(status: Object, state: str, reason: str, message: str, stamp: str) -> None:
    known = condition({"status": status}, "DisruptionAllowed")
    same = known is not None and known["status"] == state
    new: Object = {
        "type": "DisruptionAllowed",
        "status": state,
        "lastTransitionTime": known["lastTransitionTime"] if same and known else stamp,
        "reason": reason,
        "message": message,
    }
    if status.get("observedGeneration"):
        new["observedGeneration"] = status["observedGeneration"]
    status["conditions"] = with_condition(status.get("conditions"), new)
