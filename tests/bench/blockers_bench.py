"""`poolshift blockers -f` on dumps of 10,000 and 100,000 pods: processor time and memory, beside Python's own reading.

python -m tests.bench.blockers_bench
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from tests.bench.drain_bench import peak_of

PODS_OF_A_NODE, PODS_OF_A_SET = 20, 50
NOW = "2026-01-01T00:00:00Z"


def write(file: IO[str], pods: int) -> None:
    """As `kubectl get nodes,pods,pdb,rs -A -o json` prints it: one List, indented by four."""
    file.write('{\n    "apiVersion": "v1",\n    "items": [')
    for number, obj in enumerate(objects(pods)):
        text = json.dumps(obj, indent=4).replace("\n", "\n        ")
        file.write(("," if number else "") + "\n        " + text)
    file.write('\n    ],\n    "kind": "List",\n    "metadata": {\n        "resourceVersion": ""\n    }\n}\n')


def objects(pods: int) -> Any:
    """Nodes, ReplicaSets with budgets, and their pods."""
    for number in range(pods // PODS_OF_A_NODE):
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": NOW, "lastTransitionTime": NOW}
        meta = {"name": f"node-{number}", "uid": str(uuid.uuid4())}
        yield {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}, "status": {"conditions": [ready]}}
    for number in range(pods // PODS_OF_A_SET):
        meta = {"name": f"app-{number}", "namespace": f"ns-{number % 50}", "generation": 1}
        labels = {"app": f"app-{number}"}
        owned = {"replicas": PODS_OF_A_SET, "selector": {"matchLabels": labels}}
        yield {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {**meta, "uid": f"rs-{number}"},
            "spec": owned,
        }
        counts = {"currentHealthy": 50, "desiredHealthy": 40, "expectedPods": 50, "disruptionsAllowed": 10}
        yield {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": meta,
            "spec": {"maxUnavailable": "20%", "selector": {"matchLabels": labels}},
            "status": {**counts, "observedGeneration": 1},
        }
    for number in range(pods):
        yield pod(number, number // PODS_OF_A_SET, pods // PODS_OF_A_NODE)


def pod(number: int, owner: int, nodes: int) -> Any:
    """A pod with the bulk that a live one has."""
    ref = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": f"app-{owner}",
        "uid": f"rs-{owner}",
        "controller": True,
    }
    mounts = [{"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": "token", "readOnly": True}]
    times = [{"type": t, "status": "True", "lastTransitionTime": NOW} for t in ("Initialized", "Ready", "PodScheduled")]
    container = {"name": "c", "image": "registry.example/app:1", "volumeMounts": mounts}
    started = {"name": "c", "ready": True, "restartCount": 0, "state": {"running": {"startedAt": NOW}}}
    sources = [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"app-{owner}-{number:06d}",
            "namespace": f"ns-{owner % 50}",
            "uid": str(uuid.uuid4()),
            "creationTimestamp": NOW,
            "labels": {"app": f"app-{owner}"},
            "ownerReferences": [ref],
        },
        "spec": {
            "nodeName": f"node-{number % nodes}",
            "containers": [{**container, "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}],
            "volumes": [{"name": "token", "projected": {"sources": sources}}],
        },
        "status": {"phase": "Running", "conditions": times, "containerStatuses": [started], "podIP": "10.0.0.1"},
    }


def main() -> None:
    """Print the ratios."""
    with TemporaryDirectory() as folder:
        took, peak, size = {}, {}, {}
        path = Path(folder) / "dump.json"
        for pods in (10_000, 100_000):
            with path.open("w") as file:
                write(file, pods)
            size[pods] = path.stat().st_size / 1e6
            took[pods], peak[pods] = peak_of([sys.executable, "-m", "flows.cli", "blockers", "--json", "-f", str(path)])
        plain, plain_peak = peak_of([sys.executable, "-c", f"import json; json.load(open({str(path)!r}))"])
    print(
        f"blockers -f of 100,000 pods ({size[100_000]:.0f} MB): {took[100_000]:.1f} s, "
        f"{took[100_000] / took[10_000] / 10:.2f} times the time a pod of 10,000 (reach 1.2), {peak[100_000]:.0f} MB"
    )
    print(
        f"  reading the file with Python's json alone: {took[100_000] / plain:.1f} times its time (reach 3), "
        f"{peak[100_000] / plain_peak:.2f} times its memory (reach 0.5)"
    )


if __name__ == "__main__":
    main()
