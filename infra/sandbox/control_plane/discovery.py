"""Discovery: which groups, versions and resources there are, in both forms, and the version of the server."""

from __future__ import annotations

from typing import Any

from infra.sandbox.control_plane.resources import Kind, Registry, distilled

Object = dict[str, Any]

AGGREGATED = "as=APIGroupDiscoveryList"
SUBRESOURCES: dict[tuple[str, str, str], Object] = {
    ("", "pods", "eviction"): {"group": "policy", "version": "v1", "kind": "Eviction", "verbs": ["create"]},
    ("", "pods", "binding"): {"kind": "Binding", "verbs": ["create"]},
    ("", "pods", "log"): {"kind": "Pod", "verbs": ["get"]},
    ("", "pods", "exec"): {"kind": "PodExecOptions", "verbs": ["create", "get"]},
    ("", "pods", "proxy"): {"kind": "PodProxyOptions", "verbs": ["create", "delete", "get", "patch", "update"]},
    ("", "serviceaccounts", "token"): {
        "group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest", "verbs": ["create"]},
    ("", "namespaces", "finalize"): {"kind": "Namespace", "verbs": ["update"]},
}  # fmt: skip
SCALE: Object = {"group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": ["get", "patch", "update"]}


def not_offered(kind: Kind) -> frozenset[str]:
    """Subresources of the real server that the embedded one answers with 501, and does not announce."""
    without = {"attach", "portforward", "resize"} | (set() if kind.plural == "pods" else {"proxy"})
    return kind.subresources & without


def version() -> Object:
    """GET /version."""
    release = distilled()["version"]
    major, minor, _ = release.lstrip("v").split(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"{release}+embedded",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux/amd64",
    }


def core_versions(address: str) -> Object:
    """GET /api."""
    where = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": where}


def group_list(registry: Registry) -> Object:
    """GET /apis."""
    groups = [group(registry, name) for name in registry.groups() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(registry: Registry, name: str) -> Object:
    """GET /apis/GROUP, and one entry of /apis."""
    versions = [{"groupVersion": f"{name}/{each}", "version": each} for each in registry.groups()[name]]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def resource_list(registry: Registry, group_name: str, api_version: str) -> Object | None:
    """GET /api/v1 and /apis/GROUP/VERSION; None if there is nothing."""
    resources: list[Object] = []
    for kind in registry:
        if (kind.group, kind.version) == (group_name, api_version):
            resources.append(_resource(kind))
            resources.extend(_subresource(kind, name) for name in sorted(kind.subresources - not_offered(kind)))
    if not resources:
        return None
    version_name = f"{group_name}/{api_version}" if group_name else api_version
    listed: Object = {"kind": "APIResourceList"}
    if group_name:
        listed["apiVersion"] = "v1"
    return {**listed, "groupVersion": version_name, "resources": resources}


def _resource(kind: Kind) -> Object:
    row: Object = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": sorted(kind.verbs),
    }
    if kind.short_names:
        row["shortNames"] = list(kind.short_names)
    if kind.categories:
        row["categories"] = list(kind.categories)
    return row


def _about(kind: Kind, name: str) -> Object:
    if name == "scale":
        return SCALE
    default = {"kind": kind.kind, "verbs": ["get", "patch", "update"]}
    return SUBRESOURCES.get((kind.group, kind.plural, name), default)


def _subresource(kind: Kind, name: str) -> Object:
    about = {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced}
    return {**about, **_about(kind, name)}


def aggregated(registry: Registry, *, core: bool) -> Object:
    """Both lists at once: apidiscovery.k8s.io/v2, of /api or of /apis."""
    items = []
    for name, versions in registry.groups().items():
        if bool(name) == core:
            continue
        listed = [
            {"version": each, "freshness": "Current", "resources": _aggregated(registry, name, each)}
            for each in versions
        ]
        items.append({"metadata": {"name": name, "creationTimestamp": None} if name else {}, "versions": listed})
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _aggregated(registry: Registry, group_name: str, api_version: str) -> list[Object]:
    rows = []
    for kind in registry:
        if (kind.group, kind.version) != (group_name, api_version):
            continue
        row: Object = {
            "resource": kind.plural,
            "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "singularResource": kind.singular,
            "verbs": sorted(kind.verbs),
        }
        if kind.short_names:
            row["shortNames"] = list(kind.short_names)
        if kind.categories:
            row["categories"] = list(kind.categories)
        subresources = [_aggregated_sub(kind, name) for name in sorted(kind.subresources - not_offered(kind))]
        if subresources:
            row["subresources"] = subresources
        rows.append(row)
    return rows


def _aggregated_sub(kind: Kind, name: str) -> Object:
    about = _about(kind, name)
    response = {
        "group": about.get("group", kind.group),
        "version": about.get("version", kind.version),
        "kind": about["kind"],
    }
    return {"subresource": name, "responseKind": response, "verbs": about["verbs"]}
