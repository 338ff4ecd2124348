"""CustomResourceDefinitions: creating one makes its resource served, deleting one takes its objects along."""

from __future__ import annotations

from typing import Any

from infra.sandbox.control_plane import deletion
from infra.sandbox.control_plane.history import Event
from infra.sandbox.control_plane.resources import Kind, by_plural
from infra.sandbox.control_plane.store import Store
from infra.sandbox.control_plane.types import Types

Object = dict[str, Any]

DEFINITION = by_plural("apiextensions.k8s.io", "v1", "customresourcedefinitions")
VERBS = frozenset({"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"})


class Definitions:
    """Keeps the registry in step with the stored CustomResourceDefinitions."""

    def __init__(self, store: Store, types: Types) -> None:
        self._store = store
        self._types = types
        self.schemas: dict[tuple[str, str], dict[str, Object]] = {}
        """openAPIV3Schema by (group, version) and Kind, for /openapi/v3."""
        store.subscribe(self._told)

    def _told(self, event: Event, kind: Kind, obj: Object, _old: Object | None) -> None:
        if kind is not DEFINITION and kind.key != DEFINITION.key:
            return
        spec = obj["spec"]
        group, plural = spec["group"], spec["names"]["plural"]
        if event == "DELETED":
            self._store.registry.remove(group, plural)
            return
        self._store.registry.remove(group, plural)
        for version in spec["versions"]:
            if version.get("served"):
                self._serve(spec, version)
        if "deletionTimestamp" in obj["metadata"]:
            self._finalize(obj)
        elif not obj.get("status", {}).get("conditions"):
            self._establish(obj)

    def _serve(self, spec: Object, version: Object) -> None:
        names = spec["names"]
        subresources = frozenset(version.get("subresources") or ())
        kind = Kind(
            group=spec["group"],
            version=version["name"],
            kind=names["kind"],
            plural=names["plural"],
            singular=names.get("singular", ""),
            namespaced=spec["scope"] == "Namespaced",
            verbs=VERBS,
            short_names=tuple(names.get("shortNames", ())),
            categories=tuple(names.get("categories", ())),
            subresources=subresources,
            generation=True,
            custom=True,
        )
        self._types.define(kind.group, kind.kind, version)
        schema = version.get("schema", {}).get("openAPIV3Schema", {})
        self.schemas.setdefault((kind.group, kind.version), {})[kind.kind] = schema
        self._store.registry.add(kind)

    def _establish(self, obj: Object) -> None:
        spec, now = obj["spec"], self._store.now()
        conditions = [
            {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found"},
            {"type": "Established", "status": "True", "reason": "InitialNamesAccepted",
             "message": "the initial names have been accepted"},
        ]  # fmt: skip
        status = {
            "conditions": [{**each, "lastTransitionTime": now} for each in conditions],
            "acceptedNames": spec["names"],
            "storedVersions": [each["name"] for each in spec["versions"] if each.get("storage")],
        }
        finalizers = [*obj["metadata"].get("finalizers", []), "customresourcecleanup.apiextensions.k8s.io"]
        metadata = {**obj["metadata"], "finalizers": finalizers}
        self._store.commit(DEFINITION, "MODIFIED", {**obj, "metadata": metadata, "status": status}, obj)

    def _finalize(self, obj: Object) -> None:
        """Delete the instances, then let the definition go."""
        spec = obj["spec"]
        kind = self._store.registry.stored((spec["group"], spec["names"]["plural"]))
        if kind is not None:
            for instance in self._store.list(kind):
                deletion.delete(self._store, kind, instance, deletion.Options())
        current = self._store.get(DEFINITION, None, obj["metadata"]["name"])
        if current is not None:
            metadata = {key: value for key, value in current["metadata"].items() if key != "finalizers"}
            self._store.remove(DEFINITION, {**current, "metadata": metadata})
