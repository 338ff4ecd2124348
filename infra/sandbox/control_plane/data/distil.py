"""Distil what Kubernetes publishes about its types: structure without prose.

Run it as `python distil.py MODULES`, where MODULES is a Go module cache (`go env GOMODCACHE`) that holds
k8s.io/kubernetes and k8s.io/api at the versions below. It writes, beside itself,

- `schema.json`: per group and version that the embedded control plane serves, the resource list of the real
  server and the schemas of its types: names, types, merge keys, list kinds, defaults;
- `protobuf.json`: the field numbers of the same types, in which kubectl sends some of its requests.
"""

from __future__ import annotations

import json
import re
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
SHARED_PROTOS = (
    "apimachinery/pkg/apis/meta/v1",
    "apimachinery/pkg/runtime",
    "apimachinery/pkg/util/intstr",
    "apimachinery/pkg/api/resource",
    "apiextensions-apiserver/pkg/apis/apiextensions/v1",
)
SCALARS = ("string", "int32", "int64", "uint32", "uint64", "bool", "bytes", "double")
MESSAGE = re.compile(r"^message (\w+) \{(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"(?:(optional|repeated)\s+([\w.]+)|map<string,\s*([\w.]+)>)\s+(\w+)\s*=\s*(\d+);")


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


def schemas(kubernetes: Path) -> dict[str, Any]:
    """The schemas and resource lists of every served group and version."""
    found: dict[str, Any] = {}
    resources: dict[str, Any] = {}
    for group_version in SERVED:
        stem = ("api__" if group_version == "v1" else "apis__") + group_version.replace("/", "__")
        openapi = json.loads((kubernetes / "api/openapi-spec/v3" / f"{stem}_openapi.json").read_text())
        found.update(openapi["components"]["schemas"])
        listed = json.loads((kubernetes / "api/discovery" / f"{stem}.json").read_text())["resources"]
        resources[group_version] = [
            {key: value for key, value in row.items() if key != "storageVersionHash"} for row in listed
        ]
    return {"version": VERSION, "resources": resources, "schemas": without_prose(found)}


def proto_files(modules: Path) -> list[Path]:
    """The generated.proto of every served group, and of what they share."""
    version = VERSION.replace("v1.", "v0.")
    groups = ["core/v1" if each == "v1" else each.partition(".")[0].partition("/")[0] + "/" + each.rpartition("/")[2]
              for each in SERVED]  # fmt: skip
    folders = [f"api/{group}" for group in groups if not group.startswith("apiextensions")]
    files = []
    for folder in (*SHARED_PROTOS, *folders):
        module, _, rest = folder.partition("/")
        files.append(modules / "k8s.io" / f"{module}@{version}" / rest / "generated.proto")
    return files


def field_numbers(modules: Path, known: dict[str, Any]) -> dict[str, Any]:
    """By message and number: JSON name ("" for an inlined struct), type, and "list" or "map"."""
    messages: dict[str, Any] = {}
    for file in proto_files(modules):
        text = re.sub(r"//.*", "", file.read_text())
        package = re.search(r"^package (.*);", text, re.MULTILINE)
        assert package is not None, file
        for name, body in MESSAGE.findall(text):
            properties = known.get(f"io.k8s.{package[1].removeprefix('k8s.io.')}.{name}", {}).get("properties", {})
            by_lower = {each.lower(): each for each in properties}
            fields = {}
            for modifier, kind, map_kind, field, number in FIELD.findall(body):
                raw = kind or map_kind
                full = raw if raw in SCALARS else raw.lstrip(".") if "." in raw else f"{package[1]}.{raw}"
                inlined = "" if full not in SCALARS and properties else field
                shape = "map" if map_kind else "list" if modifier == "repeated" else ""
                fields[number] = [by_lower.get(field.lower(), inlined), full, shape]
            messages[f"{package[1]}.{name}"] = fields
    return messages


if __name__ == "__main__":
    cache, here = Path(sys.argv[1]), Path(__file__).parent
    distilled = schemas(cache / "k8s.io" / f"kubernetes@{VERSION}")
    numbers = field_numbers(cache, distilled["schemas"])
    for file_name, content in (("schema.json", distilled), ("protobuf.json", numbers)):
        (here / file_name).write_text(json.dumps(content, separators=(",", ":"), sort_keys=True) + "\n")
