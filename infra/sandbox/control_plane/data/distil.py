"""Distil the published OpenAPI of Kubernetes into `schema.json`: structure without prose.

Run it as `python distil.py SOURCES > schema.json`, where SOURCES is the source tree of k8s.io/kubernetes at
the version below. The result holds, per group and version that the embedded control plane serves, the
resource list of the real server and the schemas of its types: names, types, merge keys, list kinds, defaults.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

VERSION = "v1.36.3"
SERVED = (
    "v1",
    "apps/v1",
    "authentication.k8s.io/v1",
    "authorization.k8s.io/v1",
    "autoscaling/v1",
    "autoscaling/v2",
    "batch/v1",
    "coordination.k8s.io/v1",
    "discovery.k8s.io/v1",
    "events.k8s.io/v1",
    "networking.k8s.io/v1",
    "policy/v1",
    "rbac.authorization.k8s.io/v1",
    "resource.k8s.io/v1",
    "scheduling.k8s.io/v1",
    "storage.k8s.io/v1",
    "apiextensions.k8s.io/v1",
)


def without_prose(node: Any, *, names: bool = False) -> Any:
    """Drop every description; `names` says that the keys here are property names, not keywords."""
    if isinstance(node, dict):
        return {
            key: without_prose(value, names=key == "properties" and not names)
            for key, value in node.items()
            if names or key != "description"
        }
    if isinstance(node, list):
        return [without_prose(value) for value in node]
    return node


def distil(sources: Path) -> dict[str, Any]:
    """The schemas and resource lists of every served group and version."""
    schemas: dict[str, Any] = {}
    resources: dict[str, Any] = {}
    for group_version in SERVED:
        stem = ("api__" if group_version == "v1" else "apis__") + group_version.replace("/", "__")
        openapi = json.loads((sources / "api/openapi-spec/v3" / f"{stem}_openapi.json").read_text())
        schemas.update(openapi["components"]["schemas"])
        listed = json.loads((sources / "api/discovery" / f"{stem}.json").read_text())["resources"]
        resources[group_version] = [
            {key: value for key, value in row.items() if key != "storageVersionHash"} for row in listed
        ]
    return {"version": VERSION, "resources": resources, "schemas": without_prose(schemas)}


if __name__ == "__main__":
    json.dump(distil(Path(sys.argv[1])), sys.stdout, separators=(",", ":"), sort_keys=True)
    sys.stdout.write("\n")
