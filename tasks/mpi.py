"""nccl-tests by the cluster's own MPI operator: submit the MPIJob, wait for its end, read its pods, take it away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from infra.clock import parse_time, rfc3339
from infra.errors import Conflict, NotFound, PoolshiftError, Unreachable
from infra.kube.api import Kube
from infra.kube.records import ensure_namespace
from infra.model.cluster import Node
from infra.probes.catalogue import Probe
from infra.probes.manifests import HASH, STARTUP_SECONDS
from infra.probes.mpijob import GROUP, JOB_LABEL, ROLE_LABEL
from tasks.probes import CLEAN_UP_SECONDS, LOG_LIMIT, POLL_SECONDS, Count, ProbeRun, gpu_minutes, gpus_of
from tasks.rules.probing import State, images_of
from tasks.rules.wording import plural


def served(kube: Kube) -> bool:
    """Does the cluster know MPIJobs? One request. An API that does not answer is not taken for a no."""
    found = kube.get(GROUP)
    return found is not None and any(r.get("kind") == "MPIJob" for r in found.get("resources") or ())


def run_mpijob(
    kube: Kube,
    probe: Probe,
    nodes: Sequence[Node],
    job: Mapping[str, Any],
    count: Count = lambda uid, minutes: None,
) -> ProbeRun:
    """Run it once and leave nothing behind. Raises what the cluster says.

    One of the same words that a killed run has left, and that has not ended, is taken up. Of one that ended while
    nobody looked it cannot be told where its workers were: it is counted and taken away, as is one of other words.
    """
    ensure_namespace(kube)
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    path = f"{GROUP}/namespaces/{namespace}/mpijobs"
    pods_path = f"/api/v1/namespaces/{namespace}/pods"
    there = kube.get(f"{path}/{name}")
    goes_on = there is not None and _goes_on(there, job)
    if there is not None and not goes_on:
        count(there["metadata"]["uid"], _span_minutes(there, kube.clock.now()))
    if not goes_on and (left := _remove(kube, f"{path}/{name}", pods_path, name)):
        raise Conflict(
            f"mpijob {namespace}/{name}",
            f"what an earlier run has left does not go: {', '.join(left[:3])}",
            expected="nothing of its name",
            remedy=f"kubectl -n {namespace} get pods -l {JOB_LABEL}={name}",
        )
    known: dict[str, Mapping[str, Any]] = {}
    uid = str(there["metadata"]["uid"]) if there is not None and goes_on else ""
    made = not uid
    try:
        uid = uid or str(kube.request("POST", path, body=job)["metadata"]["uid"])
        outputs, state, reason = _follow(kube, f"{path}/{name}", pods_path, uid, probe, known)
    finally:
        pods = [*known.values()]
        with suppress(PoolshiftError):  # what ended it is the news
            count(uid, gpu_minutes(pods, kube.clock.now()))
        left = _remove(kube, f"{path}/{name}", pods_path, name, uid, made=made)
    on = {p["spec"].get("nodeName") for p in pods if p["metadata"]["labels"].get(ROLE_LABEL) == "worker"}
    if state is State.ENDED and on != {n.name for n in nodes}:
        state, reason = (
            State.UNMEASURED,
            f"its workers were seen on {plural(len(on), 'node')} and not on the {len(nodes)} asked for",
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
        gpu_minutes=gpu_minutes(pods, now),
        outputs={n.name: whole if n is nodes[0] else b"" for n in nodes},
        images=images_of(pods),
    )


def _goes_on(there: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Is it the same, and not at its end?"""
    meta = there["metadata"]
    same = (meta.get("annotations") or {}).get(HASH) == job["metadata"]["annotations"][HASH]
    return same and not meta.get("deletionTimestamp") and not {"Succeeded", "Failed"} & _conditions(there).keys()


def _conditions(job: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {c["type"]: c for c in (job.get("status") or {}).get("conditions") or () if c["status"] == "True"}


def _span_minutes(job: Mapping[str, Any], now: datetime) -> float:
    """GPU-minutes from its start to its end, as if all workers had held theirs all the time: they may be gone."""
    status, worker = job.get("status") or {}, job["spec"]["mpiReplicaSpecs"]["Worker"]
    if not status.get("startTime"):
        return 0.0
    end = parse_time(status["completionTime"]) if status.get("completionTime") else now
    gpus = int(worker["replicas"]) * gpus_of(worker["template"])
    return max(0.0, (end - parse_time(status["startTime"])).total_seconds()) * gpus / 60


def _follow(
    kube: Kube, path: str, pods_path: str, uid: str, probe: Probe, pods: dict[str, Mapping[str, Any]]
) -> tuple[dict[str, bytes], State, str]:
    """Outputs of this very MPIJob as last seen, and how it ended; fills in `pods`."""
    begin, limit = kube.clock.now(), probe.timeout_seconds + STARTUP_SECONDS
    outputs: dict[str, bytes] = {}
    owners = {uid: True}
    while True:
        job = kube.get(path)
        if job is not None and job["metadata"]["uid"] != uid:
            job = None  # ours was deleted; this one only bears its name
        labelled = kube.list(pods_path, {"labelSelector": f"{JOB_LABEL}={path.rpartition('/')[2]}"})
        listed = [pod for pod in labelled if _is_of(kube, pod, owners)]
        pods |= {pod["metadata"]["name"]: pod for pod in listed}
        for pod in listed:
            text = _log(kube, f"{pods_path}/{pod['metadata']['name']}/log")
            if len(text) >= len(outputs.get(pod["metadata"]["name"], b"")):
                outputs[pod["metadata"]["name"]] = text
        ended = _conditions(job or {})
        if job is None:
            return outputs, State.UNMEASURED, "it was deleted by somebody else"
        if "Failed" in ended:
            return outputs, State.FAILED, str(ended["Failed"].get("message") or "the program failed")
        if "Succeeded" in ended:
            return outputs, State.ENDED, ""
        if (kube.clock.now() - begin).total_seconds() > limit:
            why = f"did not end within {limit:.0f} s: {plural(len(pods), 'pod')} seen; is the MPI operator running?"
            return outputs, State.UNMEASURED, why
        kube.clock.sleep(POLL_SECONDS)


def _is_of(kube: Kube, pod: Mapping[str, Any], owners: dict[str, bool]) -> bool:
    """Is it the MPIJob's own, or of the Job that this has made for its launcher? A label can be worn by anybody.

    `owners`: by UID, whether what it owns is the MPIJob's; filled in.
    """
    owner = _controller(pod)
    if owner["uid"] not in owners and owner["kind"] == "Job":
        meta = pod["metadata"]
        launcher = kube.get(f"/apis/batch/v1/namespaces/{meta['namespace']}/jobs/{owner['name']}")
        if launcher is not None and launcher["metadata"]["uid"] == owner["uid"]:
            owners[owner["uid"]] = owners.get(_controller(launcher)["uid"], False)
    return owners.get(owner["uid"], False)


def _controller(obj: Mapping[str, Any]) -> Mapping[str, str]:
    """The owner reference that says so; one of nobody without."""
    nobody = {"kind": "", "name": "", "uid": ""}
    return next((o for o in obj["metadata"].get("ownerReferences") or () if o.get("controller")), nobody)


def _log(kube: Kube, path: str) -> bytes:
    try:
        return kube.text(path, {"limitBytes": LOG_LIMIT})
    except (NotFound, Unreachable, Conflict):
        return b""
    except PoolshiftError as error:
        if error.status is not None and error.status.code == 400:  # the container has not started
            return b""
        raise


def _remove(kube: Kube, path: str, pods_path: str, name: str, uid: str = "", *, made: bool = False) -> list[str]:
    """Delete it (one with that UID only, if given) and see it gone; what is still there after `CLEAN_UP_SECONDS`.

    `made`: by this process, so that it goes even if the lease is lost.
    """
    kube.delete(path, uid=uid or None, made=made)
    begin = kube.clock.now()
    while True:
        listed = kube.list(pods_path, {"labelSelector": f"{JOB_LABEL}={name}"})
        left = [f"pod {pod['metadata']['name']}" for pod in listed]
        if not left or (kube.clock.now() - begin).total_seconds() > CLEAN_UP_SECONDS:
            return left
        kube.clock.sleep(POLL_SECONDS)
