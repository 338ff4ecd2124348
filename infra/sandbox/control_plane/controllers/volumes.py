"""Claims and volumes: binding to what is there, and made-up volumes where a provisioner would make real ones.

A made-up volume is labelled as the sandbox's and stays in the zone of the node that its first pod was put on, as
the block storage of the clouds does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from infra.sandbox.control_plane.controllers.cluster import CLAIM, NODE, POD, STORAGE_CLASS, VOLUME, Cluster
from infra.sandbox.control_plane.controllers.objects import Object, is_deleting, is_finished, key_of, labels_of
from infra.sandbox.control_plane.controllers.scheduler.needs import claims_of
from infra.sandbox.control_plane.controllers.selectors import label_matcher, node_term_matches
from infra.sandbox.control_plane.controllers.work import Key
from infra.sandbox.control_plane.quantity import parse

SIMULATED = "poolshift.dev/simulated"
DRIVER = "sandbox.poolshift.dev"
ZONE = "topology.kubernetes.io/zone"
CLAIM_PROTECTION = "kubernetes.io/pvc-protection"
VOLUME_PROTECTION = "kubernetes.io/pv-protection"
WRONG_PLACE = "node(s) didn't match PersistentVolume's node affinity"
NOTHING_TO_BIND = "node(s) didn't find available persistent volumes to bind"
UNBOUND = "pod has unbound immediate PersistentVolumeClaims"
_NO_PROVISIONER = "kubernetes.io/no-provisioner"


class Volumes:
    """Binds claims, releases volumes, and keeps claims that a pod uses."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queue = cluster.work.queue("volumes", self.reconcile)
        self._users: dict[Key, set[Key]] = {}
        cluster.on(CLAIM, self._claim_changed)
        cluster.on(VOLUME, self._volume_changed)
        cluster.on(POD, self._pod_changed)

    def _claim_changed(self, event: str, claim: Object, old: Object | None) -> None:
        self._queue.add(key_of(claim))
        if event == "DELETED" and (claim["spec"].get("volumeName")):
            self._queue.add(("", claim["spec"]["volumeName"]))

    def _volume_changed(self, event: str, volume: Object, old: Object | None) -> None:
        self._queue.add(("", volume["metadata"]["name"]))
        if event == "ADDED":
            for claim in self._cluster.store.list(CLAIM):
                if not claim["spec"].get("volumeName"):
                    self._queue.add(key_of(claim))

    def _pod_changed(self, event: str, pod: Object, old: Object | None) -> None:
        gone = event == "DELETED" or not _uses(pod)
        if event == "MODIFIED" and old is not None and _uses(old) != gone:
            return
        claims = claims_of(pod["spec"])
        if not claims:
            return
        for name in claims:
            claim = (pod["metadata"]["namespace"], name)
            users = self._users.setdefault(claim, set())
            if gone:
                users.discard(key_of(pod))
                self._queue.add(claim)
            else:
                users.add(key_of(pod))
            if not users:
                del self._users[claim]

    def reconcile(self, key: Key) -> None:
        """Bring one claim, or one volume (no namespace), to where it belongs."""
        if not key[0]:
            self._tend_volume(key)
            return
        claim = self._cluster.get(CLAIM, key)
        if claim is None:
            return
        finalizers = claim["metadata"].get("finalizers") or []
        if is_deleting(claim):
            if CLAIM_PROTECTION in finalizers and not self._users.get(key):
                left = [each for each in finalizers if each != CLAIM_PROTECTION]
                self._cluster.patch_meta(CLAIM, claim, finalizers=left or None)
            return
        if claim["spec"].get("volumeName") or self._waits_for_consumer(claim):
            return
        volume = self._match(claim, None)
        if volume is not None:
            self._bind(claim, volume)
        elif self._class_of(claim) is not None:
            self._bind(claim, self._make(claim, None))

    def _tend_volume(self, key: Key) -> None:
        """A new volume is available; one whose claim is gone is released, and deleted if its policy says so."""
        volume = self._cluster.get(VOLUME, key)
        if volume is None:
            return
        reference = volume["spec"].get("claimRef")
        claim = self._cluster.store.get(CLAIM, reference["namespace"], reference["name"]) if reference else None
        phase = (volume.get("status") or {}).get("phase", "Pending")
        gone = (
            reference is not None
            and reference.get("uid")
            and (claim is None or claim["metadata"]["uid"] != reference["uid"])
        )
        if gone and volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete" and not is_deleting(volume):
            self._cluster.delete(VOLUME, volume)
            volume = self._cluster.get(VOLUME, key)
            if volume is None:
                return
        finalizers = volume["metadata"].get("finalizers") or []
        if is_deleting(volume):
            if VOLUME_PROTECTION in finalizers and (gone or reference is None):
                left = [each for each in finalizers if each != VOLUME_PROTECTION]
                self._cluster.patch_meta(VOLUME, volume, finalizers=left or None)
        elif gone and phase != "Released":
            self._set_phase(volume, "Released")
        elif reference is None and phase == "Pending":
            self._set_phase(volume, "Available")

    # For the scheduler

    def refusal(self, namespace: str, claims: Iterable[str]) -> str:
        """Why a pod with these claims can be nowhere yet, or ""."""
        for name in claims:
            claim = self._cluster.store.get(CLAIM, namespace, name)
            if claim is None:
                return f'persistentvolumeclaim "{name}" not found'
            if is_deleting(claim):
                return f'persistentvolumeclaim "{name}" is being deleted'
            if not claim["spec"].get("volumeName") and not self._waits_for_consumer(claim):
                return UNBOUND
        return ""

    def mismatch(self, namespace: str, claims: Iterable[str], labels: Mapping[str, str]) -> str:
        """Why a node with these labels cannot have the volumes of these claims, or ""."""
        for name in claims:
            claim = self._cluster.store.get(CLAIM, namespace, name)
            if claim is None:
                continue
            volume_name = claim["spec"].get("volumeName")
            if volume_name:
                volume = self._cluster.store.get(VOLUME, None, volume_name)
                if volume is not None and not _reaches(volume, labels):
                    return WRONG_PLACE
            elif self._is_static(claim) and self._match(claim, labels) is None:
                return NOTHING_TO_BIND
        return ""

    def bind_for(self, namespace: str, claims: Iterable[str], node_name: str) -> None:
        """Bind the claims of a pod that goes to this node."""
        node = self._cluster.store.get(NODE, None, node_name)
        for name in claims:
            claim = self._cluster.store.get(CLAIM, namespace, name)
            if claim is None or claim["spec"].get("volumeName"):
                continue
            labels = labels_of(node) if node is not None else {}
            volume = self._match(claim, labels)
            if volume is None and not self._is_static(claim):
                volume = self._make(claim, labels)
            if volume is not None:
                self._bind(claim, volume, node_name)

    # Parts

    def _class_of(self, claim: Object) -> Object | None:
        name = claim["spec"].get("storageClassName")
        return self._cluster.store.get(STORAGE_CLASS, None, name) if name else None

    def _waits_for_consumer(self, claim: Object) -> bool:
        """A class says so; a claim without any class is served like that too, since nobody else would serve it."""
        if claim["spec"].get("storageClassName") == "":
            return False
        found = self._class_of(claim)
        if found is None:
            return not claim["spec"].get("storageClassName")
        return bool(found.get("volumeBindingMode") == "WaitForFirstConsumer")

    def _is_static(self, claim: Object) -> bool:
        found = self._class_of(claim)
        return found is not None and found.get("provisioner") == _NO_PROVISIONER

    def _match(self, claim: Object, labels: Mapping[str, str] | None) -> Object | None:
        """The smallest free volume that serves a claim, on a node with these labels if given."""
        spec = claim["spec"]
        wanted = parse(((spec.get("resources") or {}).get("requests") or {}).get("storage", "0"))
        selector = spec.get("selector")
        matches = label_matcher(selector) if selector is not None else None
        found: list[Object] = []
        for volume in self._cluster.store.list(VOLUME):
            own = volume["spec"]
            reference = own.get("claimRef")
            if reference is not None and (reference["namespace"], reference["name"]) != key_of(claim):
                continue
            if reference is not None and reference.get("uid") not in (None, claim["metadata"]["uid"]):
                continue
            if (
                (own.get("storageClassName") or "") == (spec.get("storageClassName") or "")
                and set(spec.get("accessModes") or ()) <= set(own.get("accessModes") or ())
                and parse(own["capacity"]["storage"]) >= wanted
                and (matches is None or matches(labels_of(volume)))
                and (labels is None or _reaches(volume, labels))
                and not is_deleting(volume)
            ):
                found.append(volume)
        return min(found, key=lambda each: parse(each["spec"]["capacity"]["storage"]), default=None)

    def _make(self, claim: Object, labels: Mapping[str, str] | None) -> Object:
        """A volume out of nothing: simulated, in the zone of the node if it has one."""
        spec = claim["spec"]
        found = self._class_of(claim)
        uid = claim["metadata"]["uid"]
        provisioner = (found or {}).get("provisioner", DRIVER)
        made: Object = {
            "accessModes": spec.get("accessModes") or ["ReadWriteOnce"],
            "capacity": {"storage": ((spec.get("resources") or {}).get("requests") or {}).get("storage", "1Gi")},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim["metadata"]["namespace"],
                "name": claim["metadata"]["name"],
                "uid": uid,
                "resourceVersion": claim["metadata"]["resourceVersion"],
            },
            "csi": {"driver": provisioner, "volumeHandle": f"simulated-{uid}"},
            "persistentVolumeReclaimPolicy": (found or {}).get("reclaimPolicy", "Delete"),
            "volumeMode": spec.get("volumeMode", "Filesystem"),
        }
        if spec.get("storageClassName"):
            made["storageClassName"] = spec["storageClassName"]
        if labels and labels.get(ZONE):
            term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [labels[ZONE]]}]}
            made["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
        return self._cluster.store.create(
            VOLUME,
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {
                    "name": f"pvc-{uid}",
                    "labels": {SIMULATED: "true"},
                    "annotations": {"pv.kubernetes.io/provisioned-by": provisioner},
                },
                "spec": made,
            },
        )

    def _set_phase(self, volume: Object, phase: str) -> None:
        status = {**(volume.get("status") or {}), "phase": phase, "lastPhaseTransitionTime": self._cluster.stamp()}
        self._cluster.write_status(VOLUME, volume, status)

    def _bind(self, claim: Object, volume: Object, node_name: str = "") -> None:
        meta = claim["metadata"]
        reference = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        }
        noted = {**(volume["metadata"].get("annotations") or {}), "pv.kubernetes.io/bound-by-controller": "yes"}
        claimed = {**volume, "metadata": {**volume["metadata"], "annotations": noted}}
        volume = self._cluster.write(VOLUME, {**claimed, "spec": {**volume["spec"], "claimRef": reference}})
        self._set_phase(volume, "Bound")
        annotations = {
            **(meta.get("annotations") or {}),
            "pv.kubernetes.io/bind-completed": "yes",
            "pv.kubernetes.io/bound-by-controller": "yes",
        }
        if node_name:
            annotations["volume.kubernetes.io/selected-node"] = node_name
        bound = {
            **claim,
            "metadata": {**meta, "annotations": annotations},
            "spec": {**claim["spec"], "volumeName": volume["metadata"]["name"]},
        }
        bound = self._cluster.write(CLAIM, bound)
        status = {
            "phase": "Bound",
            "accessModes": volume["spec"]["accessModes"],
            "capacity": volume["spec"]["capacity"],
        }
        self._cluster.write_status(CLAIM, bound, status)


def _uses(pod: Object) -> bool:
    """A pod on a node that has not ended: only such a one keeps its claims from being deleted."""
    return bool(pod["spec"].get("nodeName")) and not is_finished(pod)


def _reaches(volume: Object, labels: Mapping[str, str]) -> bool:
    """A volume's node affinity lets a node with these labels have it."""
    required = ((volume["spec"].get("nodeAffinity") or {}).get("required") or {}).get("nodeSelectorTerms")
    return not required or any(node_term_matches(term, labels, "") for term in required)
