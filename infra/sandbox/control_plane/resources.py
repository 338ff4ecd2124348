"""What the embedded control plane serves: one `Kind` a resource, read from the real server's resource lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import orjson

GroupVersion = str
"""As in apiVersion: "v1" or "apps/v1"."""

NOT_SERVED = {("autoscaling/v1", "horizontalpodautoscalers"), ("v1", "componentstatuses")}
"""In the real lists, but older views or retired resources that nothing here needs."""

ALIASES = {("events.k8s.io", "events"): ("", "events")}
"""Resources that are another view of a stored one."""

NO_GENERATION = frozenset(
    {
        "bindings",
        "configmaps",
        "endpoints",
        "events",
        "limitranges",
        "namespaces",
        "nodes",
        "persistentvolumeclaims",
        "persistentvolumes",
        "resourcequotas",
        "secrets",
        "serviceaccounts",
        "services",
        "controllerrevisions",
        "horizontalpodautoscalers",
        "leases",
        "ingressclasses",
        "clusterrolebindings",
        "clusterroles",
        "rolebindings",
        "roles",
        "resourceclaims",
        "resourceclaimtemplates",
        "csidrivers",
        "csinodes",
        "csistoragecapacities",
        "storageclasses",
        "volumeattachments",
        "volumeattributesclasses",
    }
)
"""Built-in resources whose metadata.generation stays unset."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One resource of one group and version.

    Attributes:
        plural: the name in the path.
        verbs: what the real server allows on it.
        subresources: names after the object's name ("status", "scale").
        schema: name of its schema, "" for custom resources.
        generation: does metadata.generation count changes of the spec?
        custom: made by a CustomResourceDefinition.

    """

    group: str
    version: str
    kind: str
    plural: str
    singular: str = ""
    namespaced: bool
    verbs: frozenset[str] = frozenset()
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()
    schema: str = ""
    generation: bool = False
    custom: bool = False
    key: tuple[str, str] = field(init=False, compare=False)
    """(group, plural) under which its objects are stored."""
    has_status: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        own = (self.group, self.plural)
        object.__setattr__(self, "key", ALIASES.get(own, own))
        object.__setattr__(self, "has_status", "status" in self.subresources)
        # Kinds are keys of hot tables: hash once.
        object.__setattr__(self, "_hash", hash((self.group, self.version, self.plural)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined, no-any-return]

    @property
    def api_version(self) -> GroupVersion:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """The URL path of the collection or of one object."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{scope}/{self.plural}" + (f"/{name}" if name else "")


@cache
def distilled() -> dict[str, Any]:
    """The distilled OpenAPI: `version`, `resources` by group and version, `schemas` by name."""
    raw = files("infra.sandbox.control_plane.data").joinpath("schema.json").read_bytes()
    loaded: dict[str, Any] = orjson.loads(raw)
    return loaded


def _schema_names() -> dict[tuple[str, str, str], str]:
    names: dict[tuple[str, str, str], str] = {}
    for name, schema in distilled()["schemas"].items():
        for gvk in schema.get("x-kubernetes-group-version-kind", ()):
            names.setdefault((gvk["group"], gvk["version"], gvk["kind"]), name)
    return names


def _read(
    group_version: GroupVersion, rows: list[dict[str, Any]], schemas: dict[tuple[str, str, str], str]
) -> Iterator[Kind]:
    group, _, version = group_version.rpartition("/")
    subresources: dict[str, set[str]] = {}
    for row in rows:
        plural, _, sub = row["name"].partition("/")
        subresources.setdefault(plural, set()).update({sub} - {""})
    for row in rows:
        plural = row["name"]
        if "/" in plural or (group_version, plural) in NOT_SERVED:
            continue
        yield Kind(
            group=group,
            version=version,
            kind=row["kind"],
            plural=plural,
            singular=row.get("singularName", ""),
            namespaced=row["namespaced"],
            verbs=frozenset(row["verbs"]),
            short_names=tuple(row.get("shortNames", ())),
            categories=tuple(row.get("categories", ())),
            subresources=frozenset(subresources[plural]),
            schema=schemas.get((group, version, row["kind"]), ""),
            generation="get" in row["verbs"] and plural not in NO_GENERATION,
        )


@cache
def built_in() -> tuple[Kind, ...]:
    """Every built-in resource, in the order of the real lists."""
    schemas = _schema_names()
    return tuple(
        kind for group_version, rows in distilled()["resources"].items() for kind in _read(group_version, rows, schemas)
    )


class Registry:
    """The kinds that a server serves: the built-in ones and those that CustomResourceDefinitions add."""

    def __init__(self) -> None:
        self._by_plural: dict[tuple[str, str, str], Kind] = {}
        self._by_kind: dict[tuple[str, str], Kind] = {}
        self._stored: dict[tuple[str, str], Kind] = {}
        for kind in built_in():
            self.add(kind)

    def add(self, kind: Kind) -> None:
        """Serve `kind`; a kind of the same name and version is replaced."""
        self._by_plural[kind.group, kind.version, kind.plural] = kind
        self._by_kind[kind.api_version, kind.kind] = kind
        if (kind.group, kind.plural) == kind.key:
            self._stored[kind.key] = kind

    def remove(self, group: str, plural: str) -> None:
        """Stop to serve every version of a resource."""
        for kind in [kind for kind in self if (kind.group, kind.plural) == (group, plural)]:
            del self._by_plural[kind.group, kind.version, kind.plural]
            del self._by_kind[kind.api_version, kind.kind]
        self._stored.pop((group, plural), None)

    def __iter__(self) -> Iterator[Kind]:
        return iter(list(self._by_plural.values()))

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """By path, or None."""
        return self._by_plural.get((group, version, plural))

    def kind_of(self, api_version: GroupVersion, kind: str) -> Kind | None:
        """By apiVersion and kind as an object or an owner reference names them, or None."""
        return self._by_kind.get((api_version, kind))

    def stored(self, key: tuple[str, str]) -> Kind | None:
        """The kind under whose name objects with this key are stored."""
        return self._stored.get(key)

    def groups(self) -> dict[str, list[str]]:
        """Versions by group; the core group is ""."""
        groups: dict[str, list[str]] = {}
        for kind in self:
            versions = groups.setdefault(kind.group, [])
            if kind.version not in versions:
                versions.append(kind.version)
        return groups


@cache
def _built_in_registry() -> Registry:
    return Registry()


def kind_of(api_version: GroupVersion, kind: str) -> Kind:
    """A built-in kind by apiVersion and kind: `kind_of("apps/v1", "Deployment")`. KeyError if there is none."""
    found = _built_in_registry().kind_of(api_version, kind)
    if found is None:
        raise KeyError(f"{api_version} {kind}")
    return found


def by_plural(group: str, version: str, plural: str) -> Kind:
    """A built-in kind by its path. KeyError if there is none."""
    found = _built_in_registry().find(group, version, plural)
    if found is None:
        raise KeyError(f"{group}/{version} {plural}")
    return found
