"""Field managers: who owns what after each write, and server-side apply with its conflicts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from infra.sandbox.control_plane import fieldsets
from infra.sandbox.control_plane.errors import ApiError, Cause
from infra.sandbox.control_plane.fieldsets import ANY, Node
from infra.sandbox.control_plane.schema import Type

Object = dict[str, Any]

BEFORE_FIRST_APPLY = "before-first-apply"


@dataclass(frozen=True, kw_only=True)
class Manager:
    """One entry of managedFields, without its time."""

    name: str
    operation: str
    api_version: str
    subresource: str
    fields: Node

    def same(self, other: Manager) -> bool:
        """Do both name the same manager? Appliers keep their identity across versions."""
        mine = (self.name, self.operation, self.subresource)
        theirs = (other.name, other.operation, other.subresource)
        return mine == theirs and (self.operation == "Apply" or self.api_version == other.api_version)

    def worded(self) -> str:
        text = f'"{self.name}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.api_version}" if self.operation == "Update" else text


def _read(entries: list[Object]) -> list[tuple[Manager, str]]:
    return [
        (
            Manager(
                name=entry.get("manager", ""),
                operation=entry.get("operation", "Update"),
                api_version=entry.get("apiVersion", ""),
                subresource=entry.get("subresource", ""),
                fields=entry.get("fieldsV1") or {},
            ),
            entry.get("time", ""),
        )
        for entry in entries
    ]


def _write(managers: list[tuple[Manager, str]]) -> list[Object]:
    entries = []
    for manager, time in sorted(managers, key=lambda each: (each[0].operation, each[1], each[0].name)):
        if not manager.fields:
            continue
        entry: Object = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": manager.api_version,
            "time": time,
            "fieldsType": "FieldsV1",
            "fieldsV1": manager.fields,
        }
        if manager.subresource:
            entry["subresource"] = manager.subresource
        entries.append(entry)
    return entries


def created(kind: Type, obj: Object, name: str, api_version: str, now: str) -> list[Object]:
    """The managedFields of an object that `name` created."""
    fields = fieldsets.all_fields(kind, obj)
    manager = Manager(name=name, operation="Update", api_version=api_version, subresource="", fields=fields)
    return _write([(manager, now)])


def updated(
    kind: Type, old: Object, new: Object, entries: list[Object], name: str, api_version: str, subresource: str, now: str
) -> list[Object]:
    """The managedFields after `name` changed `old` into `new`; an equal object changes nothing."""
    changed, removed = fieldsets.compare(kind, old, new)
    if not changed and not removed:
        return entries
    mine = Manager(name=name, operation="Update", api_version=api_version, subresource=subresource, fields={})
    gone = fieldsets.union(changed, removed)
    result, held = [], False
    for manager, time in _read(entries):
        if manager.same(mine):
            held = True
            fields = fieldsets.difference(fieldsets.union(manager.fields, changed), removed)
            result.append((replace(manager, fields=fields), now if fields != manager.fields else time))
        else:
            result.append((replace(manager, fields=fieldsets.difference(manager.fields, gone)), time))
    if not held and changed:
        result.append((replace(mine, fields=changed), now))
    return _write(result)


@dataclass(frozen=True, kw_only=True)
class Application:
    """One server-side apply: who, under which version, on which part."""

    manager: str
    api_version: str
    subresource: str
    force: bool
    now: str


def apply(kind: Type, live: Object, config: Object, application: Application) -> Object:
    """The live object after `config` is applied, with its managedFields. 409 with causes on a conflict."""
    entries = _read(live.get("metadata", {}).get("managedFields", []))
    if live and not entries:
        everything = fieldsets.all_fields(kind, live)
        entries = [(_manager(application, BEFORE_FIRST_APPLY, "Update", everything), application.now)]
    fields = fieldsets.fields_of(kind, config)
    mine = _manager(application, application.manager, "Apply", fields)
    last = next((manager.fields for manager, _ in entries if manager.same(mine)), {})
    others = [(manager, time) for manager, time in entries if not manager.same(mine)]
    wanted = merged(kind, live, config)
    wanted = _pruned(kind, wanted, last, fields, [manager for manager, _ in others])
    changed, removed = fieldsets.compare(kind, live, wanted)
    conflicts = [(manager, path) for manager, _ in others for path in fieldsets.paths(manager.fields, changed)]
    if conflicts and not application.force:
        raise _conflict(conflicts)
    gone = fieldsets.union(changed, removed)
    kept = [(replace(each, fields=fieldsets.difference(each.fields, gone)), time) for each, time in others]
    previous = next((time for manager, time in entries if manager.same(mine) and manager.fields == fields), "")
    written = _write([*kept, (mine, previous if previous and not gone else application.now)])
    metadata = {**wanted.get("metadata", {}), "managedFields": written}
    return {**wanted, "metadata": metadata}


def _manager(application: Application, name: str, operation: str, fields: Node) -> Manager:
    return Manager(
        name=name,
        operation=operation,
        api_version=application.api_version,
        subresource=application.subresource if operation == "Apply" else "",
        fields=fields,
    )


def _conflict(conflicts: list[tuple[Manager, str]]) -> ApiError:
    causes = [
        Cause(reason="FieldManagerConflict", message=f"conflict with {manager.worded()}", field=path)
        for manager, path in conflicts
    ]
    if len(conflicts) == 1:
        manager, path = conflicts[0]
        text = f"1 conflict: conflict with {manager.worded()}: {path}"
    else:
        lines = []
        for worded in sorted({manager.worded() for manager, _ in conflicts}):
            lines.append(f"conflicts with {worded}:")
            lines.extend(f"- {path}" for manager, path in conflicts if manager.worded() == worded)
        text = f"{len(conflicts)} conflicts: " + "\n".join(lines)
    details = {"causes": [cause.to_json() for cause in causes]}
    return ApiError(409, "Conflict", f"Apply failed with {text}", details)


def merged(kind: Type, live: Any, config: Any) -> Any:
    """Typed merge of an applied configuration into what is there."""
    if live is None or fieldsets.is_atomic(kind, config) or type(live) is not type(config):
        return config
    if isinstance(config, list):
        return _merged_list(kind, live, config)
    result = dict(live)
    for name, value in config.items():
        result[name] = merged(fieldsets.child_type(kind, name), live.get(name), value)
    return result


def _merged_list(kind: Type, live: list[Any], config: list[Any]) -> list[Any]:
    """Shared elements in the applied order; those of others stay where they stand between them."""
    items = kind.items or ANY
    present, wanted = fieldsets.by_key(kind, live), fieldsets.by_key(kind, config)
    left, right = list(present), list(wanted)
    shared = [key for key in right if key in present]
    result: list[Any] = []
    done: set[str] = set()
    while left or right:
        if left and left[0] in done:
            left.pop(0)
        elif left and left[0] not in wanted:
            result.append(present[left.pop(0)])
        elif left and right and left[0] != right[0] and shared and left[0] != shared[0]:
            left.pop(0)  # shared, but another one comes first
        else:
            key = right.pop(0)
            done.add(key)
            result.append(merged(items, present.get(key), wanted[key]))
            if shared and shared[0] == key:
                shared.pop(0)
    return result


def _pruned(kind: Type, obj: Object, last: Node, new: Node, others: list[Manager]) -> Object:
    """Drop what the manager applied last time, does not apply now, and nobody else owns."""
    if not last:
        return obj
    kept = new
    for manager in others:
        kept = fieldsets.union(kept, manager.fields)
    gone = fieldsets.difference(last, kept)
    result: Object = _without(kind, obj, gone, kept) if gone else obj
    return result


def _without(kind: Type, value: Any, gone: Node, kept: Node) -> Any:
    """`value` less the members of `gone`; a container stays while somebody keeps something in it."""
    if isinstance(value, list):
        result = []
        for element in value:
            key = fieldsets.element_key(kind, element)
            rest = _child_without(kind.items or ANY, element, gone.get(key), kept.get(key))
            if rest is not fieldsets.MISSING:
                result.append(rest)
        return result
    if not isinstance(value, dict):
        return value
    left = {}
    for name, each in value.items():
        key = f"f:{name}"
        rest = _child_without(fieldsets.child_type(kind, name), each, gone.get(key), kept.get(key))
        if rest is not fieldsets.MISSING:
            left[name] = rest
    return left


def _child_without(kind: Type, value: Any, gone: Node | None, kept: Node | None) -> Any:
    if gone is None:
        return value
    if kept is None and fieldsets.owned(gone):
        return fieldsets.MISSING
    if fieldsets.is_atomic(kind, value):
        return value
    rest = _without(kind, value, gone, kept or {})
    return fieldsets.MISSING if not rest and kept is None else rest
