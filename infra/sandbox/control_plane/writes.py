"""Create, replace, patch and apply, as a client asks for them over the wire."""

from __future__ import annotations

from typing import Any

import orjson

from infra.sandbox.control_plane import apply, defaults, errors, patch, strategy, validation, views
from infra.sandbox.control_plane.call import Call
from infra.sandbox.control_plane.resources import Kind
from infra.sandbox.control_plane.schema import Type
from infra.sandbox.control_plane.store import Finish, Store, copied
from infra.sandbox.control_plane.types import Types

Object = dict[str, Any]

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
JSON_PATCH, APPLY = "application/json-patch+json", "application/apply-patch+yaml"

CREATED_BY_PUT = frozenset(
    {
        ("coordination.k8s.io", "leases"),
        ("", "events"),
        ("", "endpoints"),
        ("", "services"),
        ("", "limitranges"),
        ("rbac.authorization.k8s.io", "roles"),
        ("rbac.authorization.k8s.io", "rolebindings"),
        ("rbac.authorization.k8s.io", "clusterroles"),
        ("rbac.authorization.k8s.io", "clusterrolebindings"),
    }
)
"""Resources that a PUT may create."""
NEEDS_VERSION = frozenset(
    {
        ("policy", "poddisruptionbudgets"),
        ("coordination.k8s.io", "leases"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
        ("storage.k8s.io", "volumeattachments"),
        ("storage.k8s.io", "csinodes"),
        ("storage.k8s.io", "csidrivers"),
        ("storage.k8s.io", "csistoragecapacities"),
    }
)
"""Resources, beside custom ones, that no PUT replaces without a resourceVersion."""


class Writes:
    """The writing half of the API."""

    def __init__(self, store: Store, types: Types) -> None:
        self._store = store
        self._types = types

    def create(self, call: Call) -> Object:
        """POST on a collection."""
        obj = self._incoming(call, call.object())
        metadata = obj.setdefault("metadata", {})
        if call.kind.namespaced:
            sent = metadata.setdefault("namespace", call.namespace)
            if sent != call.namespace:
                raise errors.bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
        if not metadata.get("name") and not metadata.get("generateName"):
            text = "Required value: name or generateName is required"
            cause = errors.Cause(reason="FieldValueRequired", message=text, field="metadata.name")
            raise errors.invalid(call.kind.group, call.kind.kind, "", [cause])
        return self._insert(call, obj)

    def _insert(self, call: Call, obj: Object) -> Object:
        """Store a new object; its writer owns what it sent and the defaults of that, but not what admission adds."""
        kind, metadata = call.kind, obj["metadata"]
        kind_type = self._types.of(self._store.registry.stored(kind.key) or kind)
        metadata.pop("managedFields", None)
        if not kind.custom:
            defaults.apply(kind.key, obj)
        owned = obj
        if kind.has_status and kind.key not in strategy.KEEPS_STATUS_ON_CREATE:
            owned = {key: value for key, value in obj.items() if key != "status"}
        entries = apply.created(kind_type, owned, call.manager, kind.api_version, self._store.now())
        if entries:
            metadata["managedFields"] = entries

        def finish(new: Object, old: Object | None) -> Object:
            validation.check(kind, kind_type, new, old, "")
            return new

        return self._store.insert(kind, obj, dry_run=call.dry_run, finish=finish)

    def replace(self, call: Call) -> Object:
        """PUT on an object or its status."""
        obj = self._incoming(call, call.object())
        metadata = self._named(call, obj)
        kind = call.kind
        if self._store.get(kind, call.namespace, call.name) is None and kind.key in CREATED_BY_PUT:
            metadata.pop("resourceVersion", None)
            return self._insert(call, obj)
        if not metadata.get("resourceVersion") and (kind.custom or kind.key in NEEDS_VERSION):
            self._store.require(kind, call.namespace, call.name)
            text = "Invalid value: 0: must be specified for an update"
            cause = errors.Cause(reason="FieldValueInvalid", message=text, field="metadata.resourceVersion")
            raise errors.invalid(kind.group, kind.kind, call.name, [cause])
        return self._update(call, obj)

    def patch(self, call: Call) -> tuple[Object, bool]:
        """PATCH on an object or its status; the second value says whether it was created (by an apply)."""
        if call.media_type == APPLY:
            return self._apply(call)
        accepted = [JSON_PATCH, MERGE, *([] if call.kind.custom else [STRATEGIC]), APPLY]
        if call.media_type not in accepted:
            if call.media_type != STRATEGIC:
                raise errors.ApiError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
            listed = ", ".join(accepted)
            raise errors.unsupported_media_type(
                f"the body of the request was in an unknown format - accepted media types include: {listed}"
            )
        if call.query.get("force"):
            text = "Forbidden: may not be specified for non-apply patch"
            raise call.bad_options([errors.Cause(reason="FieldValueForbidden", message=text, field="force")])
        body = call.json()
        old = views.shown(call.kind, self._store.require(call.kind, call.namespace, call.name))
        patched = self._patched(call, old, body)

        def shown_patch() -> str:
            return patch.go_map(body) if call.media_type == STRATEGIC else orjson.dumps(patched).decode()

        obj = self._types.read_patched(call, patched, old, shown_patch)
        return self._update(call, views.stored(call.kind, obj)), False

    def _patched(self, call: Call, old: Object, body: Any) -> Object:
        if call.media_type == JSON_PATCH:
            return patch.json_patch(copied(old), body)
        if not isinstance(body, dict):
            raise errors.bad_request("error decoding patch: json: cannot unmarshal into Go value of type map")
        if call.media_type == STRATEGIC:
            return patch.strategic(old, body, self._types.of(call.kind))
        merged: Object = patch.merge(old, body)
        return merged

    def _update(self, call: Call, obj: Object) -> Object:
        metadata = obj["metadata"]
        if call.kind.namespaced and metadata.setdefault("namespace", call.namespace) != call.namespace:
            raise errors.bad_request("the namespace of the object does not match the namespace on the request")
        if metadata.get("name") != call.name:
            raise self._renamed(call, metadata.get("name", ""))
        part = call.sub if call.sub == "status" else ""
        return self._store.update(call.kind, obj, part=part, dry_run=call.dry_run, finish=self._finish(call))

    @staticmethod
    def _renamed(call: Call, name: str) -> errors.ApiError:
        if call.method == "PUT":
            text = f"the name of the object ({name}) does not match the name on the URL ({call.name})"
            return errors.bad_request(text)
        text = f'Invalid value: "{name}": field is immutable'
        cause = errors.Cause(reason="FieldValueInvalid", message=text, field="metadata.name")
        return errors.invalid(call.kind.group, call.kind.kind, call.name, [cause])

    def _named(self, call: Call, obj: Object) -> Object:
        metadata: Object = obj.setdefault("metadata", {})
        name = metadata.get("name", "")
        if not name and call.kind.custom:
            name = metadata["name"] = call.name
        if name != call.name:
            if not name:
                raise errors.bad_request("name must be provided")
            raise self._renamed(call, name)
        if call.kind.namespaced:
            sent = metadata.setdefault("namespace", call.namespace)
            if sent != call.namespace:
                raise errors.bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
        return metadata

    def _incoming(self, call: Call, obj: Object) -> Object:
        self._check_kind(call.kind, obj)
        read = self._types.read(call, obj)
        read.update(apiVersion=call.kind.api_version, kind=call.kind.kind)
        return views.stored(call.kind, read)

    @staticmethod
    def _check_kind(kind: Kind, obj: Object) -> None:
        version, name = obj.get("apiVersion") or kind.api_version, obj.get("kind") or kind.kind
        if version != kind.api_version and name == kind.kind:
            raise errors.bad_request(
                f"the API version in the data ({version}) does not match the expected API version ({kind.api_version})"
            )
        if name != kind.kind:
            raise errors.bad_request(
                f'{name} in version "{kind.version}" cannot be handled as a {kind.kind}: '
                f"converting (v1.{name}) to ({kind.group or 'core'}.{kind.kind}): unknown conversion"
            )

    def _finish(self, call: Call) -> Finish:
        """Validation of the prepared object, then its field managers."""
        kind, store = call.kind, self._store
        kind_type = self._types.of(store.registry.stored(kind.key) or kind)

        def finish(new: Object, old: Object | None) -> Object:
            validation.check(kind, kind_type, new, old, call.sub)
            return _with_managers(new, self._tracked(call, kind_type, new, old or {}))

        return finish

    def _tracked(self, call: Call, kind_type: Type, new: Object, old: Object) -> list[Object]:
        before = old["metadata"].get("managedFields", [])
        entries = new["metadata"].get("managedFields", [])
        if not before:  # nobody tracked it so far: its controllers' writes are not tracked here
            return []
        if entries != before and not any(entry.get("manager") for entry in entries):
            return []  # the client resets the managers
        now, version = self._store.now(), call.kind.api_version
        return apply.updated(kind_type, old, new, entries, call.manager, version, call.sub, now)

    # Server-side apply

    def _apply(self, call: Call) -> tuple[Object, bool]:
        if not call.query.get("fieldManager"):
            text = "Required value: is required for apply patch"
            raise call.bad_options([errors.Cause(reason="FieldValueRequired", message=text, field="fieldManager")])
        config = self._configuration(call)
        live = self._store.get(call.kind, call.namespace, call.name)
        application = apply.Application(
            manager=call.query["fieldManager"],
            api_version=call.kind.api_version,
            subresource=call.sub,
            force=call.query.get("force") in ("true", "1"),
            now=self._store.now(),
        )
        kind_type = self._types.of(call.kind)
        if live is None:
            return self._apply_new(call, kind_type, config, application), True
        version = config["metadata"].get("resourceVersion")
        if version and version != live["metadata"]["resourceVersion"]:
            raise errors.stale(call.kind.group, call.kind.plural, call.name)
        obj = self._types.normal(call.kind, apply.apply(kind_type, live, _own_part(call, config), application))
        part = call.sub if call.sub == "status" else ""
        kind, store = call.kind, self._store

        def finish(new: Object, old: Object | None) -> Object:
            validation.check(kind, kind_type, new, old, call.sub)
            return new

        return store.update(kind, obj, part=part, dry_run=call.dry_run, finish=finish), False

    def _apply_new(self, call: Call, kind_type: Type, config: Object, application: apply.Application) -> Object:
        if call.sub:
            raise errors.not_found(call.kind.group, call.kind.plural, call.name)
        if config["metadata"].get("uid"):
            uid = config["metadata"]["uid"]
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise errors.conflict(call.kind.group, call.kind.plural, call.name, why)
        obj = self._types.normal(call.kind, apply.apply(kind_type, {}, _own_part(call, config), application))

        def finish(new: Object, old: Object | None) -> Object:
            validation.check(call.kind, kind_type, new, old, "")
            return new

        return self._store.insert(call.kind, obj, dry_run=call.dry_run, finish=finish)

    def _configuration(self, call: Call) -> Object:
        obj = call.json()
        if not isinstance(obj, dict):
            raise errors.bad_request("error decoding YAML: expected an object")
        kind = call.kind
        if (obj.get("apiVersion"), obj.get("kind")) != (kind.api_version, kind.kind):
            version = obj.get("apiVersion", "")
            where = version if "/" in version else f"/{version}"
            raise errors.bad_request(f"invalid object type: {where}, Kind={obj.get('kind', '')}")
        metadata = obj.setdefault("metadata", {})
        if metadata.get("managedFields"):
            raise errors.bad_request("metadata.managedFields must be nil")
        config = self._types.read_applied(call, obj)
        metadata = config["metadata"]
        if metadata.setdefault("name", call.name) != call.name:
            text = f"the name of the object ({metadata['name']}) does not match the name on the URL ({call.name})"
            raise errors.bad_request(text)
        if kind.namespaced and metadata.setdefault("namespace", call.namespace) != call.namespace:
            text = "the namespace of the provided object does not match the namespace sent on the request"
            raise errors.bad_request(text)
        return config


def _own_part(call: Call, config: Object) -> Object:
    """The main endpoint does not apply status; the status endpoint applies nothing else."""
    if not call.kind.has_status:
        return config
    if call.sub == "status":
        kept = ("apiVersion", "kind", "metadata", "status")
        return {key: value for key, value in config.items() if key in kept}
    return {key: value for key, value in config.items() if key != "status"}


def _with_managers(obj: Object, entries: list[Object]) -> Object:
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    if entries:
        metadata["managedFields"] = entries
    return {**obj, "metadata": metadata}
