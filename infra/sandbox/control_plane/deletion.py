"""What a DELETE does: graceful periods, finalizers, propagation; as the generic registry of the real server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from infra.clock import parse_time, rfc3339
from infra.sandbox.control_plane import errors
from infra.sandbox.control_plane.resources import Kind

if TYPE_CHECKING:
    from infra.sandbox.control_plane.store import Store

Object = dict[str, Any]

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
ORPHANS_BY_DEFAULT = frozenset({("batch", "jobs"), ("", "replicationcontrollers")})
"""Legacy defaults that the real server keeps: without a policy, dependents stay."""
ANSWERS_WITH_OBJECT = frozenset({("", "pods"), ("", "serviceaccounts"), ("", "persistentvolumeclaims"),
                                 ("", "persistentvolumes"), ("", "services"), ("", "podtemplates"),
                                 ("", "resourcequotas"), ("storage.k8s.io", "storageclasses"),
                                 ("storage.k8s.io", "csinodes"), ("storage.k8s.io", "csidrivers"),
                                 ("storage.k8s.io", "volumeattachments"),
                                                          ("storage.k8s.io", "volumeattributesclasses"),
                                 ("resource.k8s.io", "resourceclaims"), ("resource.k8s.io", "deviceclasses"),
                                 ("resource.k8s.io", "resourceslices"),
                                 ("resource.k8s.io", "resourceclaimtemplates")})  # fmt: skip
"""Resources whose DELETE answers with the object itself, not with a Status."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The part of DeleteOptions that steers a delete. `grace` in seconds, None for the object's own."""

    grace: int | None = None
    propagation: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


class Deleted(NamedTuple):
    """The object after the delete, and whether it is gone."""

    obj: Object
    gone: bool


def check_preconditions(kind: Kind, obj: Object, options: Options) -> None:
    """409 when the caller meant another object."""
    metadata = obj["metadata"]
    if options.uid is not None and options.uid != metadata["uid"]:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({metadata['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise errors.conflict(kind.group, kind.kind, metadata["name"], why)
    version = metadata["resourceVersion"]
    if options.resource_version is not None and options.resource_version != version:
        why = (
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match the "
            f"ResourceVersion in record ({version}). The object might have been modified"
        )
        raise errors.conflict(kind.group, kind.kind, metadata["name"], why)


def released(obj: Object) -> bool:
    """Is a terminating object free to go: no finalizer left, no grace left?"""
    metadata = obj["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    if obj.get("kind") == "Namespace" and obj.get("spec", {}).get("finalizers"):
        return False
    return not metadata.get("deletionGracePeriodSeconds")


def pod_grace(pod: Object, asked: int | None) -> int:
    """Seconds that a pod gets: asked for, or its own; none if it never ran or has ended."""
    spec = pod.get("spec", {})
    if not spec.get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    grace = asked if asked is not None else spec.get("terminationGracePeriodSeconds", 0)
    return 1 if grace < 0 else int(grace)


def finalizers_after(kind: Kind, metadata: Object, options: Options) -> list[str]:
    """The finalizers that the propagation policy leaves on the object."""
    present = metadata.get("finalizers", [])
    wanted: str | None = None
    if options.propagation == "Orphan":
        wanted = ORPHAN
    elif options.propagation == "Foreground":
        wanted = FOREGROUND
    elif options.propagation is None:
        if ORPHAN in present:
            wanted = ORPHAN
        elif FOREGROUND in present:
            wanted = FOREGROUND
        elif kind.key in ORPHANS_BY_DEFAULT:
            wanted = ORPHAN
    kept = [name for name in present if name not in (ORPHAN, FOREGROUND)]
    return kept + ([wanted] if wanted else [])


def _terminating(store: Store, metadata: Object, grace: int) -> Object:
    moment = store.clock.now() + timedelta(seconds=grace)
    marked = {**metadata, "deletionTimestamp": rfc3339(moment), "deletionGracePeriodSeconds": grace}
    if metadata.get("generation"):
        marked["generation"] = metadata["generation"] + 1
    return marked


def _shortened(metadata: Object, grace: int) -> Object:
    began = parse_time(metadata["deletionTimestamp"]) - timedelta(seconds=metadata["deletionGracePeriodSeconds"])
    moment = rfc3339(began + timedelta(seconds=grace))
    return {**metadata, "deletionTimestamp": moment, "deletionGracePeriodSeconds": grace}


def delete(store: Store, kind: Kind, obj: Object, options: Options) -> Deleted:
    """Delete `obj`, which is the stored object. 409 on a precondition."""
    check_preconditions(kind, obj, options)
    if kind.key == ("", "namespaces"):
        return _delete_namespace(store, kind, obj, options)
    if kind.key == ("", "pods"):
        return _delete_pod(store, kind, obj, options)
    metadata = obj["metadata"]
    finalizers = finalizers_after(kind, metadata, options)
    if not finalizers:
        return Deleted(obj if options.dry_run else store.remove(kind, obj), True)
    marked = metadata
    if "deletionTimestamp" not in metadata:
        marked = _terminating(store, metadata, 0)
    if finalizers != metadata.get("finalizers", []):
        marked = {**marked, "finalizers": finalizers}
    return Deleted(_write(store, kind, obj, marked, options), False)


def _write(store: Store, kind: Kind, obj: Object, metadata: Object, options: Options) -> Object:
    if metadata is obj["metadata"]:
        return obj
    new = {**obj, "metadata": metadata}
    return new if options.dry_run else store.commit(kind, "MODIFIED", new, obj)


def _delete_pod(store: Store, kind: Kind, pod: Object, options: Options) -> Deleted:
    """Grace can be shortened, never stretched; grace 0 shows the pod terminating once, then takes it out."""
    metadata = pod["metadata"]
    if "deletionTimestamp" in metadata:
        present = metadata.get("deletionGracePeriodSeconds", 0)
        asked = options.grace
        if asked is None or asked >= present:
            if asked is not None and present == 0 and not metadata.get("finalizers"):
                return Deleted(pod if options.dry_run else store.remove(kind, pod), True)
            return Deleted(pod, False)
        grace = max(asked, 1) if asked < 0 else asked
        marked = _shortened(metadata, grace)
    else:
        grace = pod_grace(pod, options.grace)
        marked = _terminating(store, metadata, grace)
        finalizers = finalizers_after(kind, metadata, options)
        if finalizers != metadata.get("finalizers", []):
            marked["finalizers"] = finalizers
    left = _write(store, kind, pod, marked, options)
    if grace > 0 or marked.get("finalizers"):
        return Deleted(left, False)
    return Deleted(left if options.dry_run else store.remove(kind, left), True)


def _delete_namespace(store: Store, kind: Kind, namespace: Object, options: Options) -> Deleted:
    """Terminating first; gone when its content and its finalizers are."""
    metadata = namespace["metadata"]
    if "deletionTimestamp" in metadata:
        return Deleted(namespace, False)
    new = {
        **namespace,
        "metadata": {key: value for key, value in _terminating(store, metadata, 0).items()
                     if key != "deletionGracePeriodSeconds"},
        "status": {**namespace.get("status", {}), "phase": "Terminating"},
    }  # fmt: skip
    if options.dry_run:
        return Deleted(new, False)
    left = store.commit(kind, "MODIFIED", new, namespace)
    return Deleted(left, False)
