"""What a migration leaves behind, in cluster and cloud, without uids, times and generated names: comparable."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from infra import connect as clouds
from infra.errors import NotFound
from infra.kube import records
from infra.kube.api import Kube
from infra.model.record import PREFIX
from infra.model.spec import MigrationSpec

Raw = dict[str, Any]
WORKLOADS = {
    "Deployment": "/apis/apps/v1/deployments",
    "StatefulSet": "/apis/apps/v1/statefulsets",
    "DaemonSet": "/apis/apps/v1/daemonsets",
    "Job": "/apis/batch/v1/jobs",
    "PodDisruptionBudget": "/apis/policy/v1/poddisruptionbudgets",
}
OURS = {
    "jobs": "/apis/batch/v1/namespaces/poolshift/jobs",
    "services": "/api/v1/namespaces/poolshift/services",
    "pods": "/api/v1/namespaces/poolshift/pods",
    "leases": "/apis/coordination.k8s.io/v1/namespaces/poolshift/leases",
}
_POOL_LABELS = ("eks.amazonaws.com/nodegroup", "cloud.google.com/gke-nodepool")
_CHANGING = ("createdAt", "modifiedAt", "resources", "etag", "self_link", "instance_group_urls", "nodegroupArn")
_ASKING = "flow-run"  # only where a process waited for the answer itself
_TIMED = ("checkpoint-never-seen",)  # how long a job has run when the plan looks is chance
_WARNINGS = re.compile(r", (?:no|\d+) warnings?")  # counted with the timed ones; the findings themselves are compared
_NODE = re.compile(r"\b(ip-[\w.-]+|gke-[\w-]+)")
# Pods of a Deployment (hash of its template, five letters) and of a Job (index, five), of the letters that are used.
_GENERATED = re.compile(r"-([bcdf-hj-np-tv-xz2456789]{8,10}|\d+)-[bcdf-hj-np-tv-xz2456789]{5}\b")
_PLURAL = re.compile(r"(?<=# )([A-Za-z-]+?)s\b")
_OF_ONE_PROCESS = re.compile(r", # eviction refused")  # not said where another one has moved a part
_NUMBER = re.compile(r"\d[\d.,:TZ-]*( ?(s|ms|min|h|d|days?)\b)?( (and )?\d+ ?(s|min|h)\b)?")


def end_state(kube: Kube) -> Raw:
    """Pools with their nodes, workloads, pods, run records, clouds, and what of ours is still there."""
    found = {
        "nodes": _pools(kube),
        "workloads": {
            f"{kind} {item['metadata']['namespace']}/{item['metadata']['name']}": _workload(item)
            for kind, path in WORKLOADS.items()
            for item in kube.list(path)
        },
        "pods": dict(sorted(Counter(shown for pod in kube.list("/api/v1/pods") if (shown := _pod(pod))).items())),
        "runs": [_record(record) for record in records.list_runs(kube)],
        "clouds": [_clouds(kube, record) for record in records.list_runs(kube)],
        "left over": {kind: sorted(i["metadata"]["name"] for i in kube.list(path)) for kind, path in OURS.items()},
    }
    text = json.dumps(found, sort_keys=True, default=str)
    for record in records.list_runs(kube):
        text = re.sub(rf"\b{re.escape(record.name)}\b", "RUN", text)
    compared: Raw = json.loads(text)
    return compared


def _pools(kube: Kube) -> dict[str, list[Raw]]:
    pools: dict[str, list[str]] = {}
    for node in kube.list("/api/v1/nodes"):
        labels = node["metadata"]["labels"]
        pool = next((labels[key] for key in _POOL_LABELS if key in labels), "")
        pools.setdefault(pool, []).append(json.dumps(_node(node), sort_keys=True))
    return {pool: [json.loads(node) for node in sorted(nodes)] for pool, nodes in sorted(pools.items())}


def _node(node: Raw) -> Raw:
    meta, spec, status = node["metadata"], node["spec"], node["status"]
    # Names of this one node, and what a kubelet's label reconciler adds on the real server.
    own = {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "eks.amazonaws.com/sourceLaunchTemplateId",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/os",
    }
    return {
        "cordoned": bool(spec.get("unschedulable")),
        "taints": sorted(f"{t['key']}={t.get('value', '')}:{t['effect']}" for t in spec.get("taints") or ()),
        "labels": {k: v for k, v in sorted((meta.get("labels") or {}).items()) if k not in own},
        "annotations": sorted(k for k in meta.get("annotations") or {} if not k.startswith("node.alpha")),
        "ready": any(c["type"] == "Ready" and c["status"] == "True" for c in status["conditions"]),
        "devices": {key: value for key, value in sorted(status["allocatable"].items()) if "/" in key},
    }


def _workload(item: Raw) -> Raw:
    spec, status, meta = item.get("spec") or {}, item.get("status") or {}, item["metadata"]
    marks = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    return {
        "wanted": spec.get("replicas", spec.get("parallelism")),
        "suspended": bool(spec.get("suspend")),
        # Not of DaemonSets: pods on nodes that have gone are counted until they are collected.
        "ready": status.get("readyReplicas") or status.get("ready"),
        "active": status.get("active"),
        "failed": status.get("failed") or 0,
        "healthy": (status.get("currentHealthy"), status.get("desiredHealthy"), status.get("expectedPods")),
        "ours": sorted(key for key in marks if key.startswith(PREFIX) and "checkpoint" not in key),
    }


def _pod(pod: Raw) -> str:
    """Whose pod it is. Those of plugins stay a while after their node has gone, on every server."""
    meta = pod["metadata"]
    owner = (meta.get("ownerReferences") or [{}])[0]
    if owner.get("kind") == "DaemonSet" or meta["namespace"] == "poolshift":
        return ""
    return f"{meta['namespace']} {owner.get('kind')} {pod['status']['phase']}"


def _record(record: records.RunRecord) -> Raw:
    return {
        "kind": record.kind,
        "notes": sorted(record.notes.keys() - {_ASKING}),
        "steps": {step.value: _step(entry.to_json()) for step, entry in record.steps.items()},
    }


def _step(text: str) -> Raw:
    entry = json.loads(text)
    data = entry["data"] or {}
    kept = ("outcome", "pods", "workloads", "kept", "required", "missing", "nodes", "forced", "restored", "strategy")
    found: Raw = {"state": entry["state"], "summary": _words(_WARNINGS.sub("", entry["summary"]))}
    found |= {key: _plain(key, data[key]) for key in kept if key in data}
    if data.get("verdicts"):
        found["verdicts"] = sorted(_verdict(v) for v in data["verdicts"])
    if data.get("findings"):
        found["findings"] = sorted(f"{f['level']} {f['code']}" for f in data["findings"] if f["code"] not in _TIMED)
    return found


def _verdict(verdict: Raw) -> str:
    codes = sorted(f["code"] for f in verdict.get("findings") or ())
    return f"{verdict['check']}: {verdict['outcome']} {_words(str(verdict.get('statistic') or ''))} {codes}"


def _words(text: str) -> str:
    """A sentence without its numbers, what hangs on them, times and generated names."""
    counted = _NUMBER.sub("#", _GENERATED.sub("-POD", _NODE.sub("NODE", text)))
    return _OF_ONE_PROCESS.sub("", _PLURAL.sub(r"\1", counted))


def _plain(key: str, value: Any) -> Any:
    """Nodes are named anew in each run of the sandbox: how many there are, and how many ended in which way, is kept."""
    if key == "nodes" and isinstance(value, list):
        return len(value)
    return sorted(Counter(map(str, value.values())).items()) if isinstance(value, dict) else value


def _clouds(kube: Kube, record: records.RunRecord) -> Raw:
    """Both pools as their cloud describes them; None for one that is gone."""
    spec = MigrationSpec.model_validate({**record.spec, "cluster": record.spec.get("cluster") or {}})
    found = {}
    for side, part in (("source", spec.source), ("target", spec.target)):
        pools: Any = clouds.connect(spec.cluster, part, kube=kube)
        found[side] = _described(lambda pools=pools, part=part: _ask(pools, part))
    return found


def _ask(pools: Any, part: Any) -> Raw:
    if part.kind == "eks":
        call = {"clusterName": part.cluster, "nodegroupName": part.name}
        described: Raw = pools.aws.call("eks.describe_nodegroup", part.name, call)["nodegroup"]
        return described
    path = f"projects/{part.project}/locations/{part.location}/clusters/{part.cluster}/nodePools/{part.name}"
    described = pools.gcp.call("get_node_pool", part.name, {"name": path})
    return described


def _described(ask: Callable[[], Raw]) -> Any:
    try:
        return _steady(ask())
    except NotFound:
        return None


def _steady(value: Any) -> Any:
    """Without what the cloud makes up anew each time."""
    if isinstance(value, dict):
        return {k: _steady(v) for k, v in sorted(value.items()) if k not in _CHANGING and k != "launchTemplate"}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_steady(item) for item in value]
    return value


def differences(one: Any, other: Any) -> str:
    """Where two end states differ, a line for each place with both values; "" when they are the same."""
    return "\n".join(_differences(one, other))


def _differences(one: Any, other: Any, where: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted({*one, *other})
        return [d for key in keys for d in _differences(one.get(key), other.get(key), f"{where}.{key}".strip("."))]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [d for n, (a, b) in pairs for d in _differences(a, b, f"{where}[{n}]")]
    return [] if one == other else [f"{where}: {one!r} is not {other!r}"]
