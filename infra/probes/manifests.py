"""Kubernetes objects of a probe, as plain dicts: ConfigMap with the script, headless Service, Indexed Job.

Rendered, then submitted: a plan prints exactly what a run sends. No operator, no ssh: the pods of an Indexed Job find
rank 0 by its DNS name. One pod a node, with all of the node's GPUs and RDMA devices.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from infra.fabrics import Fabric, HostMount
from infra.model.cluster import Node
from infra.model.pools import Pool
from infra.model.record import MANAGED_BY, PREFIX, PROBE, RUN, UNPROVEN_TAINT
from infra.probes.catalogue import STORAGE_MOUNT, Mode, Probe, Program

PORT = 29500
SCRIPTS = "/poolshift"
SCRIPT_OF = {
    Program.ALL_REDUCE: "all_reduce.py",
    Program.TRAIN_STEP: "train_step.py",
    Program.DEVICE: "device.py",
    Program.FIO: "storage.sh",
}
HASH = f"{PREFIX}/probe-hash"  # annotation: what was asked for; another hash under the same name is another probe
INSTANCE = f"{PREFIX}/probe-job"  # label that the Service selects by
HOSTNAME = "kubernetes.io/hostname"
STARTUP_SECONDS = 900  # pulling a 20 GB image on a fresh node, before the program's own time
KEEP_SECONDS = 3600  # after the end, when nobody cleans up
NETWORK_ANNOTATION = "networking.gke.io/interfaces"
DEFAULT_INTERFACE = "networking.gke.io/default-interface"


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """What one pod can be given on every one of the nodes. `short` maps a resource to (expected, least allocatable).

    A resource that no node offers is not asked for: the pod would only be Pending, while running shows what a job
    gets. The shortage is a finding of its own.
    """

    gpus: int
    resources: Mapping[str, int]
    short: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """The objects of one probe, in the order in which they are created."""

    name: str
    namespace: str
    hash: str
    config_map: Mapping[str, Any]
    service: Mapping[str, Any]
    job: Mapping[str, Any]


def grant(pool: Pool, nodes: Sequence[Node], fabric: Fabric | None) -> Grant:
    """The resources that every node can give, next to what the pool or its machine type should give."""
    expected = {**(fabric.rdma_resources if fabric else {}), **pool.rdma}
    gpu_counts = dict(pool.gpus) or ({fabric.gpu_resource: fabric.gpus} if fabric else {"nvidia.com/gpu": 0})
    expected |= gpu_counts
    least = {name: min((n.allocatable.get(name, 0) for n in nodes), default=0) for name in expected}
    wanted = {name: min(count, least[name]) if count else least[name] for name, count in expected.items()}
    return Grant(
        gpus=sum(wanted[name] for name in gpu_counts),
        resources={name: count for name, count in sorted(wanted.items()) if count},
        short={name: (expected[name], least[name]) for name in sorted(expected) if least[name] < expected[name]},
    )


def _for_probe(granted: Grant, probe: Probe, pool: Pool, fabric: Fabric | None) -> Grant:
    """Fewer GPUs, where the probe wants no more."""
    gpus = set(pool.gpus) or {fabric.gpu_resource if fabric else "nvidia.com/gpu"}
    if not probe.gpus_a_node or granted.gpus <= probe.gpus_a_node or len(gpus & set(granted.resources)) != 1:
        return granted
    resources = {name: probe.gpus_a_node if name in gpus else n for name, n in granted.resources.items()}
    return replace(granted, gpus=probe.gpus_a_node, resources=resources)


def render(
    probe: Probe,
    *,
    pool: Pool,
    nodes: Sequence[Node],
    fabric: Fabric | None,
    run: str,
    namespace: str,
    attempt: str = "",
) -> Rendered:
    """The objects that run `probe` on exactly these nodes. `attempt` tells repetitions of one probe apart."""
    name = job_name(run, probe.name, attempt)
    home = probe.claim.split("/", 1)[0] if probe.claim else namespace
    labels = {MANAGED_BY: "poolshift", RUN: run, PROBE: probe.name, INSTANCE: name}
    pod = _pod_spec(probe, name, home, pool, nodes, fabric)
    template = {"metadata": {"labels": labels, "annotations": _pod_annotations(probe, fabric)}, "spec": pod}
    spec = {
        "completionMode": "Indexed",
        "completions": len(nodes),
        "parallelism": len(nodes),
        "backoffLimit": 0,
        "activeDeadlineSeconds": int(probe.timeout_seconds) + STARTUP_SECONDS,
        "ttlSecondsAfterFinished": KEEP_SECONDS,
        "template": template,
    }
    scripts = _scripts(probe)
    digest = _digest([spec, scripts, sorted(n.uid for n in nodes)])

    def meta(*, without: str = "") -> dict[str, Any]:
        own = {key: value for key, value in labels.items() if key != without}
        return {"name": name, "namespace": home, "labels": own, "annotations": {HASH: digest, RUN: run}}

    return Rendered(
        name=name,
        namespace=home,
        hash=digest,
        # run records are the ConfigMaps that carry a run label, and this is none
        config_map={"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(without=RUN), "data": scripts},
        service={
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta(),
            # ranks look for each other before any of them is Ready
            "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {INSTANCE: name}},
        },
        job={"apiVersion": "batch/v1", "kind": "Job", "metadata": meta(), "spec": spec},
    )


def job_name(run: str, probe: str, attempt: str = "") -> str:
    """`poolshift-<run>-<probe>[-<attempt>]`, at most 56 characters: the pod's host name adds an index to it."""
    name = "-".join(part for part in ("poolshift", run, probe, attempt) if part)
    if len(name) <= 56:
        return name
    return f"{name[:47].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def command(probe: Probe, name: str, namespace: str, nodes: int, gpus: int) -> list[str]:
    """The container's command line. $(JOB_COMPLETION_INDEX) is filled in by the kubelet."""
    if probe.program is Program.NCCL_TESTS:
        return list(probe.args)
    script = f"{SCRIPTS}/{SCRIPT_OF[probe.program]}"
    if probe.program is Program.FIO:
        return ["sh", script, "fio", *probe.args]
    if probe.program is Program.DEVICE:
        return ["python3", script, *probe.args]
    return [
        "torchrun",
        f"--nnodes={nodes}",
        f"--nproc-per-node={max(1, gpus)}",
        "--node-rank=$(JOB_COMPLETION_INDEX)",
        "--rdzv-backend=static",  # rank 0 is pod 0: no election, so logs and nodes can be told apart afterwards
        f"--rdzv-endpoint={name}-0.{name}.{namespace}.svc:{PORT}",
        script,
        *probe.args,
    ]


def _pod_spec(
    probe: Probe, name: str, namespace: str, pool: Pool, nodes: Sequence[Node], fabric: Fabric | None
) -> dict[str, Any]:
    granted = _for_probe(grant(pool, nodes, fabric), probe, pool, fabric)
    line = command(probe, name, namespace, len(nodes), granted.gpus)
    if fabric and fabric.env_script and probe.mode is Mode.PINNED and probe.gpu:
        line = ["/bin/bash", "-c", f'. {fabric.env_script} && exec "$@"', "probe", *line]
    mounts, volumes = _mounts(probe, name, fabric)
    container: dict[str, Any] = {
        "name": "probe",
        "image": probe.image,
        "imagePullPolicy": "IfNotPresent",
        "command": line,
        "env": _env(probe, fabric),
        "volumeMounts": mounts,
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "subdomain": name,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 30,  # time to read the logs of pods that a failed Job takes down
        "nodeSelector": dict(pool.node_selector),
        "affinity": _affinity(name, nodes),
        "tolerations": _tolerations(nodes, granted.resources),
        "containers": [container],
        "volumes": volumes,
    }
    if probe.gpu:
        container["resources"] = {"requests": dict(granted.resources), "limits": dict(granted.resources)}
        container["securityContext"] = {
            "capabilities": {"add": list(fabric.capabilities if fabric else ("IPC_LOCK",))},
        }
        if fabric and fabric.sidecar:
            spec["initContainers"] = [_sidecar(fabric)]
    return spec


def _env(probe: Probe, fabric: Fabric | None) -> list[dict[str, Any]]:
    """NODE_NAME, NCCL's log settings, what the plugin needs; and only in the pinned mode the network's name."""
    values: dict[str, str] = {"PYTHONUNBUFFERED": "1"}
    if probe.program in (Program.ALL_REDUCE, Program.TRAIN_STEP, Program.NCCL_TESTS):
        values |= {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,GRAPH",  # NET and GRAPH carry the proof and are not in the default
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
        }
    if fabric and probe.gpu:
        values |= fabric.env
        if probe.mode is Mode.PINNED:
            values |= fabric.pinned_env
            if fabric.pin:
                values["NCCL_NET"] = fabric.pin
    from_pod: list[dict[str, Any]] = [
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    return from_pod + [{"name": key, "value": value} for key, value in sorted(values.items())]


def _mounts(probe: Probe, name: str, fabric: Fabric | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    mounts: list[dict[str, Any]] = []
    volumes: list[dict[str, Any]] = []
    if probe.program in SCRIPT_OF:
        mounts.append({"name": "scripts", "mountPath": SCRIPTS, "readOnly": True})
        volumes.append({"name": "scripts", "configMap": {"name": name}})
    if probe.gpu:
        # NCCL's intra-node transport needs more than the 64 MiB that a container gets
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 - a mount point, no file of ours
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
        for number, host in enumerate(fabric.host_mounts if fabric else ()):
            mounts.append({"name": f"host-{number}", "mountPath": host.mount})
            volumes.append({"name": f"host-{number}", "hostPath": {"path": host.host}})
        if fabric and fabric.sidecar:
            volumes += [
                {"name": f"sidecar-{number}", "hostPath": {"path": host.host}}
                for number, host in enumerate(fabric.sidecar.mounts)
            ]
    if probe.claim:
        claim = probe.claim.split("/", 1)[-1]
        # a folder of its own for each pod, so that no pod reads what another one cached
        mounts.append({"name": "storage", "mountPath": STORAGE_MOUNT, "subPathExpr": "poolshift/$(POD_NAME)"})
        volumes.append({"name": "storage", "persistentVolumeClaim": {"claimName": claim}})
    return mounts, volumes


def _sidecar(fabric: Fabric) -> dict[str, Any]:
    """A native sidecar (restartable init container): it starts before the ranks and ends with them."""
    sidecar = fabric.sidecar
    assert sidecar is not None
    return {
        "name": sidecar.name,
        "image": sidecar.image,
        "restartPolicy": "Always",
        "command": list(sidecar.command),
        "env": [{"name": key, "value": value} for key, value in sorted(sidecar.env.items())],
        "securityContext": {"capabilities": {"add": list(sidecar.capabilities)}},
        "volumeMounts": _sidecar_mounts(sidecar.mounts),
    }


def _sidecar_mounts(mounts: Iterable[HostMount]) -> list[dict[str, str]]:
    return [{"name": f"sidecar-{number}", "mountPath": host.mount} for number, host in enumerate(mounts)]


def _pod_annotations(probe: Probe, fabric: Fabric | None) -> dict[str, str]:
    """Multi-network and device annotations of GKE; empty elsewhere."""
    if fabric is None or not probe.gpu or not fabric.interfaces:
        return {}
    networks = [{"interfaceName": "eth0", "network": "default"}]
    networks += [{"interfaceName": name, "network": network} for name, network in fabric.interfaces.items()]
    annotations = {DEFAULT_INTERFACE: "eth0", NETWORK_ANNOTATION: json.dumps(networks, separators=(",", ":"))}
    if fabric.sidecar and fabric.sidecar.devices:
        devices = "".join(f"- path: {path}\n" for path in fabric.sidecar.devices)
        annotations[f"devices.gke.io/container.{fabric.sidecar.name}"] = devices
    return annotations


def _affinity(name: str, nodes: Sequence[Node]) -> dict[str, Any]:
    """On these nodes and no other; never two pods on one node, which would measure NVLink and not the network."""
    hosts = sorted(n.labels.get(HOSTNAME, n.name) for n in nodes)
    only = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": hosts}]}
    apart = {"labelSelector": {"matchLabels": {INSTANCE: name}}, "topologyKey": HOSTNAME}
    return {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [only]}},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
    }


def _tolerations(nodes: Sequence[Node], resources_asked: Mapping[str, int]) -> list[dict[str, str]]:
    """Our own taint, every taint that the pool's nodes carry, those named after a resource, and a cordon.

    A probe exists to run on a pool that is closed to everybody else. Taints of a sick node (not-ready, unreachable,
    pressure) are not tolerated.
    """
    keys = {UNPROVEN_TAINT, "node.kubernetes.io/unschedulable", *resources_asked}
    keys |= {t.key for n in nodes for t in n.taints if not t.key.startswith("node.kubernetes.io/")}
    return [{"key": key, "operator": "Exists"} for key in sorted(keys)]


def _scripts(probe: Probe) -> dict[str, str]:
    if probe.program not in SCRIPT_OF:
        return {}
    name = SCRIPT_OF[probe.program]
    return {name: (resources.files("infra.probes") / "payloads" / name).read_text(encoding="utf-8")}


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
