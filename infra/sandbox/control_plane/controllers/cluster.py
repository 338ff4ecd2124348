"""What every controller is given: the store, its indexes, the queues, events, and the few writes they share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from infra.clock import rfc3339
from infra.sandbox.control_plane.controllers.events import Recorder
from infra.sandbox.control_plane.controllers.objects import (
    Object,
    controller_of,
    is_deleting,
    key_of,
    owner_reference,
)
from infra.sandbox.control_plane.controllers.view import PodFacts, View
from infra.sandbox.control_plane.controllers.work import Key, Queue, WorkLoop
from infra.sandbox.control_plane.errors import ApiError
from infra.sandbox.control_plane.resources import Kind, kind_of

if TYPE_CHECKING:
    from infra.sandbox.control_plane.store import Store

Handler = Callable[[str, Object, Object | None], None]
"""(event, object, the object before the write)"""

EveryHandler = Callable[[str, Kind, Object, Object | None], None]

POD = kind_of("v1", "Pod")
NODE = kind_of("v1", "Node")
NAMESPACE = kind_of("v1", "Namespace")
CLAIM = kind_of("v1", "PersistentVolumeClaim")
VOLUME = kind_of("v1", "PersistentVolume")
STORAGE_CLASS = kind_of("storage.k8s.io/v1", "StorageClass")
LEASE = kind_of("coordination.k8s.io/v1", "Lease")
DEPLOYMENT = kind_of("apps/v1", "Deployment")
REPLICA_SET = kind_of("apps/v1", "ReplicaSet")
STATEFUL_SET = kind_of("apps/v1", "StatefulSet")
DAEMON_SET = kind_of("apps/v1", "DaemonSet")
REVISION = kind_of("apps/v1", "ControllerRevision")
JOB = kind_of("batch/v1", "Job")
BUDGET = kind_of("policy/v1", "PodDisruptionBudget")


class Cluster:
    """Reads are current and writes take effect at once, so no controller needs expectations or caches of its own."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = store.clock
        self.work = WorkLoop(store.clock)
        self.view = View()
        self.events = Recorder(store, self.work)
        self._handlers: dict[tuple[str, str], list[Handler]] = {}
        self._every: list[EveryHandler] = []
        self._owners: dict[str, Queue] = {}
        self._bare: list[Handler] = []
        self._stamped = (datetime.min.replace(tzinfo=UTC), "")

    def on(self, kind: Kind, handler: Handler) -> None:
        """Call `handler` after each write of an object of that kind."""
        self._handlers.setdefault(kind.key, []).append(handler)

    def own_pods(self, kind: Kind, queue: Queue, bare: Handler | None = None) -> None:
        """Reconcile an owner of that kind in `queue` after each write of a pod of its, and call `bare` for pods
        that have no controller: it may want to adopt them.
        """
        self._owners[kind.kind] = queue
        if bare is not None:
            self._bare.append(bare)

    def on_every(self, handler: EveryHandler) -> None:
        """Call `handler` after each write of any object."""
        self._every.append(handler)

    def dispatch(self, event: str, kind: Kind, obj: Object, old: Object | None) -> None:
        """The store's subscriber."""
        self.view.apply(event, kind, obj, old)
        if kind.key == POD.key:
            self._tell_owners(event, obj, old)
        for handler in self._handlers.get(kind.key, ()):
            handler(event, obj, old)
        for every in self._every:
            every(event, kind, obj, old)

    def _tell_owners(self, event: str, pod: Object, old: Object | None) -> None:
        namespace = pod["metadata"]["namespace"]
        owner = controller_of(pod)
        before = controller_of(old) if old is not None and event == "MODIFIED" else None
        for reference in (owner, before) if before != owner else (owner,):
            queue = self._owners.get(reference["kind"]) if reference is not None else None
            if queue is not None and reference is not None:
                queue.add((namespace, reference["name"]))
        if owner is None and event != "DELETED" and not is_deleting(pod):
            for handler in self._bare:
                handler(event, pod, old)

    def now(self) -> datetime:
        """The time of the store's clock."""
        return self.clock.now()

    def stamp(self) -> str:
        """The time as Kubernetes writes it."""
        now = self.clock.now().replace(microsecond=0)
        if now != self._stamped[0]:
            self._stamped = (now, rfc3339(now))
        return self._stamped[1]

    def get(self, kind: Kind, key: Key) -> Object | None:
        """The object, or None."""
        return self.store.get(kind, key[0], key[1])

    def owner(self, kind: Kind, namespace: str, reference: Object | None) -> Object | None:
        """The object of that kind that a controller reference means, or None when it is another kind or UID."""
        if reference is None or reference.get("kind") != kind.kind:
            return None
        if reference.get("apiVersion", "").rpartition("/")[0] != kind.group:
            return None
        found = self.store.get(kind, namespace, reference["name"])
        return found if found is not None and found["metadata"]["uid"] == reference["uid"] else None

    def write(self, kind: Kind, obj: Object) -> Object:
        """Replace an object (not its status)."""
        return self.store.replace(kind, obj)

    def write_status(self, kind: Kind, obj: Object, status: Object) -> Object:
        """Replace the status when it differs. Returns the object as it is now."""
        if (obj.get("status") or {}) == status:
            return obj
        return self.store.replace_status(kind, {**obj, "status": status})

    def patch_meta(self, kind: Kind, obj: Object, **fields: Any) -> Object:
        """Replace parts of metadata; a part set to None is removed."""
        meta = {k: v for k, v in {**obj["metadata"], **fields}.items() if v is not None}
        return self.store.replace(kind, {**obj, "metadata": meta})

    def delete(self, kind: Kind, obj: Object, **options: Any) -> bool:
        """Delete this very object (by UID). False when it is gone already."""
        namespace, name = key_of(obj)
        try:
            return self.store.delete(kind, namespace, name, uid=obj["metadata"]["uid"], **options) is not None
        except ApiError as error:
            if error.code in (404, 409):
                return False
            raise

    def create_pod(
        self,
        template: Object,
        owner: Object,
        owner_kind: Kind,
        *,
        name: str = "",
        prefix: str = "",
        source: str,
        say: str = "",
    ) -> Object:
        """Make a pod from a template for its controller and say so in an event.

        `name` is exact, or "" for one made of `prefix` (the owner's name and a dash by default); `say` is the text
        of the event, "" for the usual one. ApiError when the API refuses; an event says so, unless the namespace is
        going.
        """
        meta = template.get("metadata") or {}
        namespace, owner_name = key_of(owner)
        pod_meta: Object = {
            "namespace": namespace,
            "labels": dict(meta.get("labels") or {}),
            "annotations": dict(meta.get("annotations") or {}),
            "ownerReferences": [owner_reference(owner, owner_kind.api_version, owner_kind.kind)],
        }
        if meta.get("finalizers"):
            pod_meta["finalizers"] = list(meta["finalizers"])
        if name:
            pod_meta["name"] = name
        else:
            pod_meta["generateName"] = prefix or f"{owner_name}-"
        if not pod_meta["annotations"]:
            del pod_meta["annotations"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": pod_meta, "spec": template["spec"]}
        try:
            made = self.store.create(POD, pod)
        except ApiError as error:
            if not is_terminating_namespace(error):
                self.events.emit(
                    owner, owner_kind, "Warning", "FailedCreate", f"Error creating: {error.message}", source
                )
            raise
        say = say or f"Created pod: {made['metadata']['name']}"
        self.events.emit(owner, owner_kind, "Normal", "SuccessfulCreate", say, source)
        return made

    def delete_pod(self, pod: PodFacts, owner: Object, owner_kind: Kind, *, source: str, say: str = "") -> None:
        """Delete a pod for its controller and say so in an event."""
        if self.delete(POD, pod.obj):
            say = say or f"Deleted pod: {pod.key[1]}"
            self.events.emit(owner, owner_kind, "Normal", "SuccessfulDelete", say, source)

    def release_pod(self, pod: PodFacts, owner_uid: str) -> None:
        """Take the owner's reference off a pod that its selector no longer matches."""
        left = [r for r in pod.obj["metadata"].get("ownerReferences") or () if r["uid"] != owner_uid]
        self.patch_meta(POD, pod.obj, ownerReferences=left or None)

    def adopt_pod(self, pod: PodFacts, owner: Object, owner_kind: Kind, finalizer: str = "") -> None:
        """Put the owner's reference on a bare pod that its selector matches."""
        references = list(pod.obj["metadata"].get("ownerReferences") or ())
        references.append(owner_reference(owner, owner_kind.api_version, owner_kind.kind))
        fields: Object = {"ownerReferences": references}
        if finalizer:
            fields["finalizers"] = [*(pod.obj["metadata"].get("finalizers") or ()), finalizer]
        self.patch_meta(POD, pod.obj, **fields)


def is_terminating_namespace(error: ApiError) -> bool:
    """The refusal says that the namespace is being deleted."""
    causes = (error.details or {}).get("causes") or ()
    return any(cause.get("reason") == "NamespaceTerminating" for cause in causes)
