"""What a container was asked to run: command line, environment, devices. Pure readers of a pod."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

INDEX = "batch.kubernetes.io/job-completion-index"
KNOB = "sandbox.poolshift.dev/"
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def knob(pod: Mapping[str, Any], name: str, default: str = "") -> str:
    """A `sandbox.poolshift.dev/…` annotation of a pod."""
    return str((pod["metadata"].get("annotations") or {}).get(KNOB + name, default))


def owner_uid(pod: Mapping[str, Any], kind: str) -> str:
    """The uid of the controller, if it is of that kind; else ""."""
    owners = pod["metadata"].get("ownerReferences") or []
    return next((str(o["uid"]) for o in owners if o.get("controller") and o["kind"] == kind), "")


def completion_index(pod: Mapping[str, Any]) -> int:
    """The index of a pod of an Indexed Job, else 0."""
    meta = pod["metadata"]
    value = (meta.get("annotations") or {}).get(INDEX) or (meta.get("labels") or {}).get(INDEX)
    return int(value or 0)


def words(pod: Mapping[str, Any], container: Mapping[str, Any]) -> list[str]:
    """Command and arguments as single words, shell strings split, $(JOB_COMPLETION_INDEX) filled in."""
    index = str(completion_index(pod))
    flat: list[str] = []
    for part in [*(container.get("command") or []), *(container.get("args") or [])]:
        text = str(part).replace("$(JOB_COMPLETION_INDEX)", index).replace("$JOB_COMPLETION_INDEX", index)
        try:
            flat += shlex.split(text) if " " in text else [text]
        except ValueError:
            flat.append(text)
    return flat


def environment(pod: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, str]:
    """Variables with plain values; those of the downward API that name a field of the pod's metadata or spec."""
    found: dict[str, str] = {}
    for each in container.get("env") or []:
        if "value" in each:
            found[each["name"]] = str(each["value"])
            continue
        field = ((each.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath", "")
        if field == "spec.nodeName":
            found[each["name"]] = pod["spec"].get("nodeName", "")
        elif field in ("metadata.name", "metadata.namespace"):
            found[each["name"]] = pod["metadata"][field.removeprefix("metadata.")]
    return found


def granted(pod: Mapping[str, Any], resource: str) -> int:
    """How many of an extended resource the pod's containers were given."""
    total = 0
    for container in pod["spec"]["containers"]:
        asked = container.get("resources") or {}
        total += int((asked.get("limits") or {}).get(resource) or (asked.get("requests") or {}).get(resource) or 0)
    return total


def host_paths(pod: Mapping[str, Any]) -> list[str]:
    """Paths of the node that the pod mounts."""
    return [v["hostPath"]["path"] for v in pod["spec"].get("volumes") or [] if "hostPath" in v]


def option(line: Sequence[str], name: str, default: str = "") -> str:
    """The value of `--name=value` or `--name value`."""
    for index, word in enumerate(line):
        if word == name and index + 1 < len(line):
            return line[index + 1]
        if word.startswith(f"{name}="):
            return word.split("=", 1)[1]
    return default


def size_of(text: str) -> int:
    """Bytes of "8G", "1m", "4096"."""
    unit = _UNITS.get(text[-1:].lower())
    return int(float(text[:-1]) * unit) if unit else int(text)


def hostname(pod: Mapping[str, Any]) -> str:
    """The name inside the container."""
    if pod["spec"].get("hostNetwork"):
        return str(pod["spec"]["nodeName"])
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])
