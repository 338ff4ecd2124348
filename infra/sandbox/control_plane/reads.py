"""Get, list and delete as a client asks for them over the wire."""

from __future__ import annotations

from typing import Any

from infra.sandbox.control_plane import deletion, errors, table, views
from infra.sandbox.control_plane.call import Call
from infra.sandbox.control_plane.listing import Page, Query, page
from infra.sandbox.control_plane.selectors import Matcher, matcher
from infra.sandbox.control_plane.store import Store
from infra.sandbox.control_plane.subresources import delete_options
from infra.sandbox.control_plane.types import Types

Object = dict[str, Any]

TYPE_META = ("kind", "apiVersion")
"""What the items of a list of built-in objects leave out, since the list says it."""


class Reads:
    """The reading half of the API, and deletes."""

    def __init__(self, store: Store, types: Types) -> None:
        self._store = store
        self._types = types

    def get(self, call: Call) -> Object:
        """GET on an object or its status."""
        obj = self._store.require(call.kind, call.namespace, call.name)
        return self.render(call, views.shown(call.kind, obj))

    def list(self, call: Call) -> Object:
        """GET on a collection."""
        found = page(self._store, call.kind, self.query(call))
        items = found.items
        if views.is_view(call.kind) or call.kind.custom:
            items = [views.shown(call.kind, obj) for obj in items]
        metadata = _list_metadata(found)
        if call.wants_table:
            return self._printer(call).table(items, metadata, call.query.get("includeObject", "Metadata"))
        if call.wants_metadata:
            kind = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
            return {**kind, "items": [table.partial(obj) for obj in items]}
        if not call.kind.custom:
            items = [{key: value for key, value in obj.items() if key not in TYPE_META} for obj in items]
        return {
            "kind": f"{call.kind.kind}List",
            "apiVersion": call.kind.api_version,
            "metadata": metadata,
            "items": items,
        }

    def query(self, call: Call) -> Query:
        """The list that a request describes. 400 on bad selectors, 422 on options that exclude each other."""
        asked = call.query
        limit = asked.get("limit", "0") or "0"
        if not limit.lstrip("-").isdigit():
            raise errors.bad_request(f'strconv.ParseInt: parsing "{limit}": invalid syntax')
        version, match = asked.get("resourceVersion", ""), asked.get("resourceVersionMatch", "")
        token = asked.get("continue", "")
        self._check_versions(call, version, match, token)
        exact = version if match == "Exact" or (version not in ("", "0") and int(limit) > 0 and not match) else ""
        newest = int(version) if version.isdigit() else 0
        if newest > self._store.version:
            exact = version
        return Query(
            namespace=call.namespace if call.kind.namespaced else "",
            matcher=self.matcher(call),
            limit=max(int(limit), 0),
            token=token,
            version=int(exact) if exact else None,
        )

    def _check_versions(self, call: Call, version: str, match: str, token: str) -> None:
        if match not in ("", "Exact", "NotOlderThan"):
            self._bad_list(
                "resourceVersionMatch", f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan", ""'
            )
        if match and not version:
            why = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
            self._bad_list("resourceVersionMatch", why)
        if match == "Exact" and version == "0":
            why = 'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            self._bad_list("resourceVersionMatch", why)
        if token and version not in ("", "0"):
            raise errors.bad_request("specifying resource version is not allowed when using continue")
        if version and not version.isdigit():
            text = f'Invalid value: "{version}": strconv.ParseUint: parsing "{version}": invalid syntax'
            raise errors.bad_request(f"invalid resource version: resourceVersion: {text}")

    @staticmethod
    def _bad_list(field: str, text: str) -> None:
        reason = "FieldValueForbidden" if text.startswith("Forbidden") else "FieldValueNotSupported"
        raise errors.invalid("meta.k8s.io", "ListOptions", "", [errors.Cause(reason=reason, message=text, field=field)])

    def matcher(self, call: Call) -> Matcher:
        """Both selectors of a request; a name in the path is a field selector too."""
        fields = call.query.get("fieldSelector", "")
        if views.is_view(call.kind):
            for new, old in views.STORED_NAMES.items():
                fields = fields.replace(f"{new}.", f"{old}.")
        selectable = self._types.selectable(call.kind)
        return matcher(call.kind, call.query.get("labelSelector", ""), fields, selectable)

    def render(self, call: Call, obj: Object) -> Object:
        """One object as the client asked to see it."""
        if call.wants_table:
            version = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
            return self._printer(call).table([obj], version, call.query.get("includeObject", "Metadata"))
        return table.partial(obj) if call.wants_metadata else obj

    def _printer(self, call: Call) -> table.Printer:
        return table.Printer(call.kind, self._store.clock.now(), self._types.columns(call.kind))

    def event(self, call: Call) -> Any:
        """How a watch shows its objects; None for as they are stored."""
        if not call.wants_table and not call.wants_metadata:
            return (lambda obj: views.shown(call.kind, obj)) if views.is_view(call.kind) or call.kind.custom else None
        return lambda obj: self.render(call, views.shown(call.kind, obj))

    # Deleting

    def delete(self, call: Call) -> tuple[Object, int]:
        """DELETE on an object: what is left of it or a Status, and the HTTP code."""
        kind = call.kind
        options = delete_options(call, _options_body(call))
        obj = self._store.require(kind, call.namespace, call.name)
        if options.propagation is None and kind.key == ("batch", "jobs"):
            call.warnings.append(
                "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to "
                "remove them or set propagationPolicy=Orphan to suppress this warning"
            )
        left = deletion.delete(self._store, kind, obj, options)
        if not left.gone or kind.key in deletion.ANSWERS_WITH_OBJECT:
            return self.render(call, views.shown(kind, left.obj)), 200
        details: Object = {"name": call.name, "kind": kind.plural, "uid": obj["metadata"]["uid"]}
        if kind.group:
            details["group"] = kind.group
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}, 200

    def delete_collection(self, call: Call) -> Object:
        """DELETE on a collection: everything that the selectors name."""
        options = delete_options(call, _options_body(call))
        found = page(self._store, call.kind, self.query(call))
        items = [deletion.delete(self._store, call.kind, obj, options).obj for obj in found.items]
        kind = f"{call.kind.kind}List"
        metadata = {"resourceVersion": str(self._store.version)}
        return {"kind": kind, "apiVersion": call.kind.api_version, "metadata": metadata, "items": items}


def _options_body(call: Call) -> Object:
    if not call.body:
        return {}
    body = call.object()
    if body.get("kind", "DeleteOptions") != "DeleteOptions":
        raise errors.bad_request(f'no kind "{body["kind"]}" is registered for version "meta.k8s.io/v1"')
    return body


def _list_metadata(found: Page) -> Object:
    metadata: Object = {"resourceVersion": str(found.version)}
    if found.token:
        metadata["continue"] = found.token
    if found.remaining is not None:
        metadata["remainingItemCount"] = found.remaining
    return metadata
