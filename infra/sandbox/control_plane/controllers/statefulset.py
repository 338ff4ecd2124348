"""StatefulSets: pods with a stable name and claims of their own, one after the other unless told otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from infra.sandbox.control_plane.controllers import pods as owned
from infra.sandbox.control_plane.controllers import revisions
from infra.sandbox.control_plane.controllers.cluster import (
    CLAIM,
    POD,
    STATEFUL_SET,
    Cluster,
    is_terminating_namespace,
)
from infra.sandbox.control_plane.controllers.objects import (
    Object,
    available_in,
    is_deleting,
    key_of,
    labels_of,
    owner_reference,
)
from infra.sandbox.control_plane.controllers.view import PodFacts
from infra.sandbox.control_plane.controllers.work import Key
from infra.sandbox.control_plane.errors import ApiError

SOURCE = "statefulset-controller"
POD_NAME = "statefulset.kubernetes.io/pod-name"
POD_INDEX = "apps.kubernetes.io/pod-index"
REVISION_LABEL = "controller.kubernetes.io/hash"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One StatefulSet as a reconcile sees it. Ordinals without a pod are None."""

    set: Object
    replicas: dict[int, PodFacts | None]
    condemned: list[tuple[int, PodFacts]]
    """Pods beyond the range, highest ordinal first."""
    current: Object
    update: Object

    @property
    def ordered(self) -> bool:
        return bool(self.set["spec"].get("podManagementPolicy") != "Parallel")


class StatefulSets:
    """Makes, replaces and deletes pods in the order of their ordinals."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queue = cluster.work.queue("statefulset", self.reconcile)
        cluster.on(STATEFUL_SET, lambda event, obj, old: self._queue.add(key_of(obj)))
        cluster.own_pods(STATEFUL_SET, self._queue, self._bare_pod_changed)

    def _bare_pod_changed(self, event: str, pod: Object, old: Object | None) -> None:
        parent = pod["metadata"]["name"].rpartition("-")[0]
        namespace = pod["metadata"]["namespace"]
        if parent and self._cluster.store.get(STATEFUL_SET, namespace, parent) is not None:
            self._queue.add((namespace, parent))

    def reconcile(self, key: Key) -> None:
        """Take the next step for one StatefulSet and write its status."""
        stateful_set = self._cluster.get(STATEFUL_SET, key)
        if stateful_set is None:
            return

        def is_named(pod: PodFacts) -> bool:
            return _ordinal(stateful_set, pod.key[1]) >= 0

        claimed = owned.claimed(self._cluster, stateful_set, STATEFUL_SET, adopts=is_named)
        pods = [pod for pod in claimed if is_named(pod)]
        history = revisions.find(self._cluster, stateful_set, STATEFUL_SET, hash_label=REVISION_LABEL)
        named = (stateful_set.get("status") or {}).get("currentRevision")
        current = next((each for each in history.all if each["metadata"]["name"] == named), history.update)
        failure: ApiError | None = None
        if not is_deleting(stateful_set):
            try:
                self._advance(_plan(stateful_set, pods, current, history.update))
            except ApiError as error:
                failure = error
        self._write_status(stateful_set, current, history.update)
        live = {current["metadata"]["name"], history.update["metadata"]["name"]}
        live |= {labels_of(pod.obj).get(revisions.HASH_LABEL, "") for pod in pods}
        revisions.trim(self._cluster, stateful_set, history.all, live)
        if failure is not None and not is_terminating_namespace(failure):
            raise failure

    # Steps

    def _advance(self, plan: Plan) -> None:
        self._assign_claims(plan)
        for ordinal in plan.replicas:
            if self._tend(plan, ordinal) and plan.ordered:
                return
        first_unhealthy = self._first_unavailable(plan)
        for _, pod in plan.condemned:
            if self._condemn(plan, pod, first_unhealthy) and plan.ordered:
                return
        self._update_next(plan)

    def _tend(self, plan: Plan, ordinal: int) -> bool:
        """Bring one ordinal to a healthy pod. True while the ones after it have to wait."""
        pod = plan.replicas[ordinal]
        if pod is not None and pod.finished:
            if not pod.deleting:
                self._delete(plan, pod)
            return True
        if pod is None:
            self._create(plan, ordinal)
            return True
        if pod.phase == "Pending":
            self._make_claims(plan.set, ordinal)
        return pod.deleting or not self._is_available(plan, pod) or not self._mend_identity(plan, ordinal, pod)

    def _condemn(self, plan: Plan, pod: PodFacts, first_unhealthy: PodFacts | None) -> bool:
        """Delete one surplus pod when it is its turn. True while the ones below it have to wait."""
        if pod.deleting:
            return True
        if plan.ordered and not self._is_available(plan, pod) and pod is not first_unhealthy:
            return True
        self._delete(plan, pod)
        return True

    def _update_next(self, plan: Plan) -> None:
        """Replace the highest pod of an old revision, when all above it are available."""
        strategy = plan.set["spec"].get("updateStrategy") or {}
        if strategy.get("type") == "OnDelete":
            return
        lowest = _start(plan.set) + ((strategy.get("rollingUpdate") or {}).get("partition") or 0)
        for ordinal, pod in sorted(plan.replicas.items(), reverse=True):
            if ordinal < lowest:
                return
            if pod is not None and not pod.deleting and _revision(pod) != plan.update["metadata"]["name"]:
                self._delete(plan, pod)
                return
            if pod is None or pod.deleting or not self._is_available(plan, pod):
                return

    def _first_unavailable(self, plan: Plan) -> PodFacts | None:
        candidates = [*plan.replicas.values(), *(pod for _, pod in reversed(plan.condemned))]
        for pod in candidates:
            if pod is None or pod.deleting or not self._is_available(plan, pod):
                return pod
        return None

    def _is_available(self, plan: Plan, pod: PodFacts) -> bool:
        wait = plan.set["spec"].get("minReadySeconds") or 0
        if pod.phase != "Running" or not pod.ready:
            return False
        left = available_in(pod.ready_since, wait, self._cluster.now())
        if left > 0:
            self._queue.add_after(key_of(plan.set), left)
        return left <= 0

    # Writes

    def _create(self, plan: Plan, ordinal: int) -> None:
        name = f"{plan.set['metadata']['name']}-{ordinal}"
        self._make_claims(plan.set, ordinal)
        template, revision = _template_for(plan, ordinal)
        self._cluster.create_pod(
            _identified(plan.set, template, revision, ordinal),
            plan.set,
            STATEFUL_SET,
            name=name,
            source=SOURCE,
            say=f"Create Pod {name} in StatefulSet {plan.set['metadata']['name']} successful",
        )

    def _delete(self, plan: Plan, pod: PodFacts) -> None:
        say = f"Delete Pod {pod.key[1]} in StatefulSet {plan.set['metadata']['name']} successful"
        self._cluster.delete_pod(pod, plan.set, STATEFUL_SET, source=SOURCE, say=say)

    def _make_claims(self, stateful_set: Object, ordinal: int) -> None:
        meta = stateful_set["metadata"]
        for template in stateful_set["spec"].get("volumeClaimTemplates") or ():
            name = _claim_name(template, stateful_set, ordinal)
            if self._cluster.store.get(CLAIM, meta["namespace"], name) is not None:
                continue
            own = template.get("metadata") or {}
            selected = (stateful_set["spec"].get("selector") or {}).get("matchLabels") or {}
            claim_meta = {
                "name": name,
                "namespace": meta["namespace"],
                "labels": {**(own.get("labels") or {}), **selected},
                "annotations": dict(own.get("annotations") or {}),
            }
            claim = {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {key: value for key, value in claim_meta.items() if value},
                "spec": template["spec"],
            }
            self._cluster.store.create(CLAIM, claim)
            say = f"Create Claim {name} Pod {meta['name']}-{ordinal} in StatefulSet {meta['name']} success"
            self._cluster.events.emit(stateful_set, STATEFUL_SET, "Normal", "SuccessfulCreate", say, SOURCE)

    def _assign_claims(self, plan: Plan) -> None:
        """By the retention policy, claims go with their set when it is deleted, or with a pod that is scaled away."""
        policy = plan.set["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
        templates = plan.set["spec"].get("volumeClaimTemplates") or ()
        with_set = policy.get("whenDeleted") == "Delete"
        if not templates or not (with_set or policy.get("whenScaled") == "Delete"):
            return
        own = owner_reference(plan.set, STATEFUL_SET.api_version, STATEFUL_SET.kind)
        owners: dict[int, Object | None] = dict.fromkeys(plan.replicas, own if with_set else None)
        for ordinal, pod in plan.condemned:
            scaled_away = policy.get("whenScaled") == "Delete"
            condemned = owner_reference(pod.obj, POD.api_version, POD.kind) if scaled_away else None
            owners[ordinal] = condemned or (own if with_set else None)
        for ordinal, owner in owners.items():
            for template in templates:
                key = (plan.set["metadata"]["namespace"], _claim_name(template, plan.set, ordinal))
                claim = self._cluster.get(CLAIM, key)
                if claim is None or is_deleting(claim):
                    continue
                present = claim["metadata"].get("ownerReferences") or []
                kept = [each for each in present if each["kind"] not in (STATEFUL_SET.kind, POD.kind)]
                wanted = [*kept, owner] if owner is not None else kept
                if wanted != present:
                    self._cluster.patch_meta(CLAIM, claim, ownerReferences=wanted or None)

    def _mend_identity(self, plan: Plan, ordinal: int, pod: PodFacts) -> bool:
        """A pod whose identity labels were lost (an adopted one) gets them back."""
        labels = labels_of(pod.obj)
        wanted = {POD_NAME: pod.key[1], POD_INDEX: str(ordinal)}
        if any(labels.get(key) != value for key, value in wanted.items()):
            self._cluster.patch_meta(POD, pod.obj, labels={**labels, **wanted})
        return True

    def _write_status(self, stateful_set: Object, current: Object, update: Object) -> None:
        now = self._cluster.now()
        spec = stateful_set["spec"]
        wait = spec.get("minReadySeconds") or 0
        pods = [
            pod
            for pod in self._cluster.view.pods_of(stateful_set["metadata"]["uid"])
            if _ordinal(stateful_set, pod.key[1]) >= 0
        ]
        current_name, update_name = current["metadata"]["name"], update["metadata"]["name"]
        ready = [pod for pod in pods if pod.phase == "Running" and pod.ready]
        staying = [_revision(pod) for pod in pods if not pod.deleting]
        replicas = spec.get("replicas", 1)
        counts = {
            "replicas": len(pods),
            "readyReplicas": len(ready),
            "currentReplicas": staying.count(current_name),
            "updatedReplicas": staying.count(update_name),
        }
        rolling = (spec.get("updateStrategy") or {}).get("type", "RollingUpdate") == "RollingUpdate"
        if rolling and counts["updatedReplicas"] == len(ready) == len(pods) == replicas:
            counts["currentReplicas"] = counts["updatedReplicas"]
            current_name = update_name
        status: Object = {
            "observedGeneration": stateful_set["metadata"].get("generation", 1),
            "replicas": counts["replicas"],
        }
        status |= {name: count for name, count in counts.items() if count}
        status["currentRevision"] = current_name
        status["updateRevision"] = update_name
        status["collisionCount"] = (stateful_set.get("status") or {}).get("collisionCount", 0)
        status["availableReplicas"] = sum(available_in(pod.ready_since, wait, now) <= 0 for pod in ready)
        if conditions := (stateful_set.get("status") or {}).get("conditions"):
            status["conditions"] = conditions
        self._cluster.write_status(STATEFUL_SET, stateful_set, status)


def _start(stateful_set: Object) -> int:
    start: int = (stateful_set["spec"].get("ordinals") or {}).get("start") or 0
    return start


def _ordinal(stateful_set: Object, pod_name: str) -> int:
    """The ordinal in a pod's name, -1 when the name is not of this set."""
    parent, _, number = pod_name.rpartition("-")
    return int(number) if parent == stateful_set["metadata"]["name"] and number.isdigit() else -1


def _revision(pod: PodFacts) -> str:
    return labels_of(pod.obj).get(revisions.HASH_LABEL, "")


def _claim_name(template: Object, stateful_set: Object, ordinal: int) -> str:
    return f"{template['metadata']['name']}-{stateful_set['metadata']['name']}-{ordinal}"


def _plan(stateful_set: Object, pods: list[PodFacts], current: Object, update: Object) -> Plan:
    start = _start(stateful_set)
    count = stateful_set["spec"].get("replicas", 1)
    by_ordinal = {_ordinal(stateful_set, pod.key[1]): pod for pod in pods}
    wanted = range(start, start + count)
    return Plan(
        set=stateful_set,
        replicas={ordinal: by_ordinal.get(ordinal) for ordinal in wanted},
        condemned=sorted(
            ((ordinal, pod) for ordinal, pod in by_ordinal.items() if ordinal not in wanted),
            key=lambda each: each[0],
            reverse=True,
        ),
        current=current,
        update=update,
    )


def _template_for(plan: Plan, ordinal: int) -> tuple[Object, str]:
    """The template of a new pod: below the partition it is the current revision's."""
    strategy = plan.set["spec"].get("updateStrategy") or {}
    rolling = strategy.get("rollingUpdate")
    above = _start(plan.set)
    if rolling is not None:
        above += rolling.get("partition") or 0
    elif strategy.get("type", "RollingUpdate") == "RollingUpdate":
        above += (plan.set.get("status") or {}).get("currentReplicas", 0)
    chosen = plan.current if ordinal < above else plan.update
    return revisions.template_of(chosen), chosen["metadata"]["name"]


def _identified(stateful_set: Object, template: Object, revision: str, ordinal: int) -> Object:
    """The template with the labels, hostname, subdomain and claims of one ordinal."""
    name = f"{stateful_set['metadata']['name']}-{ordinal}"
    meta = template.get("metadata") or {}
    labels = {**(meta.get("labels") or {}), revisions.HASH_LABEL: revision, POD_NAME: name, POD_INDEX: str(ordinal)}
    spec = {**template["spec"], "hostname": name}
    if stateful_set["spec"].get("serviceName"):
        spec["subdomain"] = stateful_set["spec"]["serviceName"]
    claims = {
        each["metadata"]["name"]: _claim_name(each, stateful_set, ordinal)
        for each in stateful_set["spec"].get("volumeClaimTemplates") or ()
    }
    if claims:
        others = [each for each in spec.get("volumes") or () if each["name"] not in claims]
        mounted = [{"name": key, "persistentVolumeClaim": {"claimName": value}} for key, value in claims.items()]
        spec["volumes"] = [*mounted, *others]
    return {"metadata": {**meta, "labels": labels}, "spec": spec}
