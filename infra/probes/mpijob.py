"""nccl-tests as an MPIJob of kubeflow's MPI operator (kubeflow.org/v2beta1), as a plain dict.

The operator makes the workers, brings the launcher to them and takes everything down; nothing here logs in anywhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from infra.fabrics import Fabric
from infra.model.cluster import Node
from infra.model.pools import Pool
from infra.model.record import MANAGED_BY, PROBE, RUN
from infra.probes.catalogue import Probe
from infra.probes.manifests import HASH, INSTANCE, STARTUP_SECONDS, grant, job_name, render

GROUP = "/apis/kubeflow.org/v2beta1"
JOB_LABEL = "training.kubeflow.org/job-name"  # the operator's, on every pod that it makes
ROLE_LABEL = "training.kubeflow.org/job-role"  # launcher or worker


def render_mpijob(
    probe: Probe, *, pool: Pool, nodes: Sequence[Node], fabric: Fabric | None, run: str, namespace: str, attempt: str
) -> Mapping[str, Any]:
    """One worker a node with all of its devices; the launcher runs beside them and holds none."""
    worker = _pod(probe, pool, nodes, fabric, run, namespace, attempt)
    environment = [e["name"] for e in worker["containers"][0]["env"] if "value" in e]
    slots = max(1, grant(pool, nodes, fabric).gpus)
    name = job_name(run, probe.name, attempt)
    exported = [word for variable in environment for word in ("-x", variable)]
    line = [
        "mpirun",
        "-np",
        str(slots * len(nodes)),
        "--bind-to",
        "none",
        "--allow-run-as-root",
        *exported,
        *probe.args,
    ]
    beside = {"nodeAffinity": worker["affinity"]["nodeAffinity"]}  # its workers fill the nodes: it must stand with one
    launcher = {**worker, "affinity": beside, "containers": [_launcher(worker["containers"][0], line)]}
    launcher.pop("initContainers", None)
    labels = {MANAGED_BY: "poolshift", RUN: run, PROBE: probe.name}
    pods = {**labels, INSTANCE: name}
    spec = {
        "slotsPerWorker": slots,
        "runPolicy": {
            "cleanPodPolicy": "Running",  # the workers let go of their GPUs even when nobody asks any more
            "backoffLimit": 0,
            "activeDeadlineSeconds": int(probe.timeout_seconds) + STARTUP_SECONDS,
            "ttlSecondsAfterFinished": 3600,
        },
        # No two workers on one node. The operator lets a launcher that failed start again by default, which would
        # overwrite what the first one printed.
        "mpiReplicaSpecs": {"Launcher": _role(1, labels, launcher), "Worker": _role(len(nodes), pods, worker)},
    }
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    meta = {"name": name, "namespace": namespace, "labels": labels, "annotations": {HASH: digest, RUN: run}}
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": meta, "spec": spec}


def _role(replicas: int, labels: Mapping[str, str], spec: Mapping[str, Any]) -> dict[str, Any]:
    once = {key: value for key, value in spec.items() if key != "restartPolicy"}  # the operator wants it one level up
    template = {"metadata": {"labels": dict(labels)}, "spec": once}
    return {"replicas": replicas, "restartPolicy": "Never", "template": template}


def _pod(
    probe: Probe, pool: Pool, nodes: Sequence[Node], fabric: Fabric | None, run: str, namespace: str, attempt: str
) -> dict[str, Any]:
    """The pod of an ordinary probe, without host name, script and command, which are the operator's."""
    made = render(probe, pool=pool, nodes=nodes, fabric=fabric, run=run, namespace=namespace, attempt=attempt)
    spec = dict(made.job["spec"]["template"]["spec"])
    spec.pop("subdomain")
    container = {key: value for key, value in spec["containers"][0].items() if key != "command"}
    container["volumeMounts"] = [m for m in container["volumeMounts"] if m["name"] != "scripts"]
    spec["volumes"] = [v for v in spec["volumes"] if v["name"] != "scripts"]
    return {**spec, "containers": [container]}


def _launcher(container: Mapping[str, Any], line: Sequence[str]) -> dict[str, Any]:
    kept = {key: value for key, value in container.items() if key not in ("resources", "securityContext")}
    return {**kept, "name": "launcher", "command": list(line)}
