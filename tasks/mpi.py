"""nccl-tests by the cluster's own MPI operator: submit the MPIJob, wait for its end, read its pods, take it away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from infra.clock import rfc3339
from infra.errors import Conflict, NotFound, PoolshiftError, Unreachable
from infra.kube.api import Kube
from infra.kube.records import ensure_namespace
from infra.model.cluster import Node
from infra.probes.catalogue import Probe
from infra.probes.manifests import STARTUP_SECONDS
from infra.probes.mpijob import GROUP, JOB_LABEL, ROLE_LABEL
from tasks.probes import CLEAN_UP_SECONDS, LOG_LIMIT, POLL_SECONDS, ProbeRun
from tasks.rules.probing import State, held_seconds, images_of


def served(kube: Kube) -> bool:
    """Does the cluster know MPIJobs? One request. An API that does not answer is not taken for a no."""
    found = kube.get(GROUP)
    return found is not None and any(r.get("kind") == "MPIJob" for r in found.get("resources") or ())


def run_mpijob(kube: Kube, probe: Probe, nodes: Sequence[Node], job: Mapping[str, Any]) -> ProbeRun:
    """Run it once and leave nothing behind. One that a killed run has left is taken away first: it cannot be told what
    it measured. Raises what the cluster says.
    """
    ensure_namespace(kube)
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    path = f"{GROUP}/namespaces/{namespace}/mpijobs"
    pods_path = f"/api/v1/namespaces/{namespace}/pods"
    _remove(kube, f"{path}/{name}", pods_path, name)
    try:
        kube.request("POST", path, body=job)
        pods, outputs, state, reason = _follow(kube, f"{path}/{name}", pods_path, name, probe)
    finally:
        left = _remove(kube, f"{path}/{name}", pods_path, name)
    on = {p["spec"].get("nodeName") for p in pods if p["metadata"]["labels"].get(ROLE_LABEL) == "worker"}
    if state is State.ENDED and on != {n.name for n in nodes}:
        state, reason = (
            State.UNMEASURED,
            f"its workers were seen on {len(on)} nodes and not on the {len(nodes)} asked for",
        )
    for node in nodes:
        seen = kube.get(f"/api/v1/nodes/{node.name}")
        if state is State.ENDED and (seen is None or seen["metadata"]["uid"] != node.uid):
            state, reason = State.UNMEASURED, f"node {node.name} was replaced meanwhile"
    whole = b"\n".join(outputs.values())
    if state is State.ENDED and (not whole or any(len(text) >= LOG_LIMIT for text in outputs.values())):
        state, reason = State.UNMEASURED, "its output could not be read in full"
    now = kube.clock.now()
    return ProbeRun(
        probe=probe,
        name=name,
        state=state,
        object=f"mpijob {namespace}/{name}",
        reason=reason + (f"; left over: {', '.join(left)}" if left else ""),
        remedy="kubectl describe mpijob" if state is not State.ENDED else "",
        nodes=tuple(n.name for n in nodes),
        node_uids=tuple(n.uid for n in nodes),
        measured=rfc3339(now),
        gpu_minutes=sum(_gpus(pod) * held_seconds(pod, now) for pod in pods) / 60,
        outputs={n.name: whole if n is nodes[0] else b"" for n in nodes},
        images=images_of(pods),
    )


def _follow(
    kube: Kube, path: str, pods_path: str, name: str, probe: Probe
) -> tuple[list[Mapping[str, Any]], dict[str, bytes], State, str]:
    """Pods and outputs as last seen, and how it ended."""
    begin, limit = kube.clock.now(), probe.timeout_seconds + STARTUP_SECONDS
    pods: dict[str, Mapping[str, Any]] = {}
    outputs: dict[str, bytes] = {}
    while True:
        job = kube.get(path)
        listed = list(kube.list(pods_path, {"labelSelector": f"{JOB_LABEL}={name}"}))
        pods |= {pod["metadata"]["name"]: pod for pod in listed}
        for pod in listed:
            text = _log(kube, f"{pods_path}/{pod['metadata']['name']}/log")
            if len(text) >= len(outputs.get(pod["metadata"]["name"], b"")):
                outputs[pod["metadata"]["name"]] = text
        ended = {
            c["type"]: c for c in ((job or {}).get("status") or {}).get("conditions") or () if c["status"] == "True"
        }
        if job is None:
            return [*pods.values()], outputs, State.UNMEASURED, "it was deleted by somebody else"
        if "Failed" in ended:
            return [*pods.values()], outputs, State.FAILED, str(ended["Failed"].get("message") or "the program failed")
        if "Succeeded" in ended:
            return [*pods.values()], outputs, State.ENDED, ""
        if (kube.clock.now() - begin).total_seconds() > limit:
            why = f"did not end within {limit:.0f} s: {len(pods)} pods seen; is the MPI operator running?"
            return [*pods.values()], outputs, State.UNMEASURED, why
        kube.clock.sleep(POLL_SECONDS)


def _log(kube: Kube, path: str) -> bytes:
    try:
        return kube.text(path, {"limitBytes": LOG_LIMIT})
    except (NotFound, Unreachable, Conflict):
        return b""
    except PoolshiftError as error:
        if error.status is not None and error.status.code == 400:  # the container has not started
            return b""
        raise


def _remove(kube: Kube, path: str, pods_path: str, name: str) -> list[str]:
    """Delete and see it gone; what is still there after `CLEAN_UP_SECONDS`."""
    kube.delete(path)
    begin = kube.clock.now()
    while True:
        listed = kube.list(pods_path, {"labelSelector": f"{JOB_LABEL}={name}"})
        left = [f"pod {pod['metadata']['name']}" for pod in listed]
        if not left or (kube.clock.now() - begin).total_seconds() > CLEAN_UP_SECONDS:
            return left
        kube.clock.sleep(POLL_SECONDS)


def _gpus(pod: Mapping[str, Any]) -> int:
    limits = (pod["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
    return sum(int(count) for resource, count in limits.items() if resource.endswith("/gpu"))
