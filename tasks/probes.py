"""Run one probe on a cluster: submit, wait, collect every pod's output, clean up, count the GPU-minutes.

Idempotent: a Job of the same name that was asked for with the same words is adopted, so that a migration that was
killed continues with what it started; one with other words is replaced. What could not run is unmeasured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from infra.clock import pauses, rfc3339
from infra.errors import Conflict, NotFound, PoolshiftError, Unreachable
from infra.fabrics import Fabric, fabric_of
from infra.kube.api import Kube
from infra.kube.records import ensure_namespace
from infra.model.cluster import Node
from infra.model.pools import Pool
from infra.model.verdict import Finding, Level
from infra.probes.catalogue import Probe
from infra.probes.manifests import HASH, INSTANCE, STARTUP_SECONDS, Rendered, render
from tasks.rules.probing import Sight, State, any_failed, ended_at, held_seconds, images_of, look, owned_by

Say = Callable[[str], None]
Count = Callable[[str, float], None]  # of a Job's UID and the GPU-minutes that it has held, before it is deleted
POLL_SECONDS = 5.0
CLEAN_UP_SECONDS = 180.0
LOG_LIMIT = 256 << 20  # bytes of one pod; an output that reaches it is cut, hence unmeasured


@dataclass(frozen=True, kw_only=True)
class ProbeRun:
    """What came of one probe. `outputs` maps a node to the whole output of its pod, in the order of `nodes`."""

    probe: Probe
    name: str
    state: State
    object: str
    reason: str
    remedy: str
    nodes: tuple[str, ...]
    node_uids: tuple[str, ...]
    measured: str
    gpu_minutes: float
    outputs: Mapping[str, bytes] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    images: tuple[str, ...] = ()
    """Image ids that the nodes really ran: a tag may mean another image on each node, and another one tomorrow."""

    @property
    def complete(self) -> bool:
        """Every program ended well and every node's output is here."""
        return self.state is State.ENDED and set(self.outputs) == set(self.nodes)

    @property
    def ran(self) -> bool:
        """Every program ran to its own end, well or not: its output may show a defect."""
        return self.state in (State.ENDED, State.FAILED)

    @property
    def output(self) -> bytes:
        """All outputs, one after another."""
        return b"\n".join(self.outputs[node] for node in self.nodes if node in self.outputs)

    @property
    def digest(self) -> str:
        """SHA-256 of `output`, under which a ledger keeps it."""
        return hashlib.sha256(self.output).hexdigest()

    def why(self) -> str:
        """Object, reason and remedy in one line."""
        return f"{self.object}: {self.reason}" + (f"; next: {self.remedy}" if self.remedy else "")


def run(
    kube: Kube,
    probe: Probe,
    nodes: Sequence[Node],
    *,
    pool: Pool,
    run: str,
    say: Say = lambda text: None,
    fabric: Fabric | None = None,
    attempt: str = "",
    count: Count = lambda uid, minutes: None,
) -> ProbeRun:
    """Run `probe` once on these nodes and leave nothing behind.

    Args:
        kube: the cluster; waits are on its clock.
        probe: from `infra.probes.catalogue`.
        nodes: all of them take part, one pod each.
        pool: whose nodes they are.
        run: names the objects.
        say: shows a progress line.
        fabric: default: the figures of the pool's machine type.
        attempt: tells repetitions of the same probe in one run apart.
        count: told what each Job has held before that is deleted.

    Raises:
        Forbidden: no right to create Jobs or to read logs.

    """
    ensure_namespace(kube)
    rendered = render(
        probe,
        pool=pool,
        nodes=nodes,
        fabric=fabric or fabric_of(pool.machine_type),
        run=run,
        namespace=kube.namespace,
        attempt=attempt,
    )
    collector = _Collector(kube=kube, rendered=rendered)
    made = ""
    try:
        made = _submit(kube, rendered, count)
        sight = _await(collector, probe, len(nodes), say)
        done = _close(collector, probe, nodes, sight)
        count(collector.uid, done.gpu_minutes)
    except BaseException:
        with suppress(PoolshiftError):  # what ended it is the news
            count(collector.uid, gpu_minutes([*collector.pods.values()], kube.clock.now()))
        _clean_up(kube, rendered, made)
        raise
    return replace(done, findings=(*done.findings, *_clean_up(kube, rendered, made)))


@dataclass(kw_only=True)
class _Collector:
    """Job, pods and outputs as last seen. A pod that is gone keeps what was read of it."""

    kube: Kube
    rendered: Rendered
    pods: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    outputs: dict[str, bytes] = field(default_factory=dict)
    uid: str = ""

    @property
    def job_path(self) -> str:
        return f"/apis/batch/v1/namespaces/{self.rendered.namespace}/jobs/{self.rendered.name}"

    def look(self, wanted: int) -> Sight:
        job = self.kube.get(self.job_path)
        self.uid = self.uid or (job["metadata"]["uid"] if job else "")
        if job is not None and job["metadata"]["uid"] != self.uid:
            job = None  # ours was deleted; this one only bears its name
        path = f"/api/v1/namespaces/{self.rendered.namespace}/pods"
        found = self.kube.list(path, {"labelSelector": f"{INSTANCE}={self.rendered.name}"})
        listed = [pod for pod in found if job is not None and owned_by(pod, job)]
        self.pods |= {pod["metadata"]["name"]: pod for pod in listed}
        sight = look(job, [*self.pods.values()], self.kube.clock.now(), pods_wanted=wanted)
        if sight.state is not State.RUNNING or any_failed(listed):
            self.read_logs(listed)
        return sight

    def read_logs(self, pods: Sequence[Mapping[str, Any]]) -> None:
        """Keep the longest output seen of each pod: a later look may find it half deleted."""
        for pod in pods:
            name = pod["metadata"]["name"]
            path = f"/api/v1/namespaces/{self.rendered.namespace}/pods/{name}/log"
            try:
                text = self.kube.text(path, {"container": "probe", "limitBytes": LOG_LIMIT})
            except (NotFound, Unreachable, Conflict):
                continue
            except PoolshiftError as error:
                if error.status is not None and error.status.code == 400:  # the container has not started
                    continue
                raise
            if len(text) >= len(self.outputs.get(name, b"")):
                self.outputs[name] = text


def _submit(kube: Kube, rendered: Rendered, count: Count) -> str:
    """ConfigMap and Service by apply, then the Job; one that is there with the same words is adopted.

    Returns the UID of the Job that was made, "" for one that another process may have made.
    """
    path = f"/apis/batch/v1/namespaces/{rendered.namespace}/jobs"
    there = kube.get(f"{path}/{rendered.name}")
    if there is not None and not _same(there, rendered):
        pods = kube.list(
            f"/api/v1/namespaces/{rendered.namespace}/pods", {"labelSelector": f"{INSTANCE}={rendered.name}"}
        )
        count(there["metadata"]["uid"], gpu_minutes([p for p in pods if owned_by(p, there)], kube.clock.now()))
        _clean_up(kube, rendered)
        there = None
    core = f"/api/v1/namespaces/{rendered.namespace}"
    kube.apply(f"{core}/configmaps/{rendered.name}", rendered.config_map)
    kube.apply(f"{core}/services/{rendered.name}", rendered.service)
    if there is not None:
        return ""
    try:
        return str(kube.request("POST", path, body=rendered.job)["metadata"]["uid"])
    except (Conflict, Unreachable):
        found = kube.get(f"{path}/{rendered.name}")  # the answer was lost, or another process was faster
        if found is None or not _same(found, rendered):
            raise
        return ""


def _same(job: Mapping[str, Any], rendered: Rendered) -> bool:
    metadata = job["metadata"]
    return not metadata.get("deletionTimestamp") and (metadata.get("annotations") or {}).get(HASH) == rendered.hash


def _await(collector: _Collector, probe: Probe, wanted: int, say: Say) -> Sight:
    """Look until the Job has ended or the time is over, on the cluster's clock."""
    clock = collector.kube.clock
    begin = clock.now()
    limit, wait = probe.timeout_seconds + STARTUP_SECONDS + 60, pauses(POLL_SECONDS)
    told = ""
    while True:
        sight = collector.look(wanted)
        if sight.state is not State.RUNNING:
            return sight
        if sight.reason != told:
            say(f"probe {probe.name}: {sight.reason}")
            told = sight.reason
        if (clock.now() - begin).total_seconds() > limit:
            return Sight(
                state=State.UNMEASURED,
                object=sight.object,
                reason=f"did not end within {limit:.0f} s: {sight.reason}",
                remedy="raise validation.timeout, or look at the pods' events",
            )
        clock.sleep(next(wait))


def _close(collector: _Collector, probe: Probe, nodes: Sequence[Node], sight: Sight) -> ProbeRun:
    now = collector.kube.clock.now()
    pods = list(collector.pods.values())
    outputs = {
        pod["spec"]["nodeName"]: collector.outputs[name]
        for name, pod in collector.pods.items()
        if name in collector.outputs and pod["spec"].get("nodeName")
    }
    sight = _checked(collector.kube, sight, nodes, outputs)
    return ProbeRun(
        probe=probe,
        name=collector.rendered.name,
        state=sight.state,
        object=sight.object,
        reason=sight.reason,
        remedy=sight.remedy,
        nodes=tuple(n.name for n in nodes),
        node_uids=tuple(n.uid for n in nodes),
        measured=rfc3339(ended_at(pods) or now),
        gpu_minutes=gpu_minutes(pods, now),
        outputs={n.name: outputs[n.name] for n in nodes if n.name in outputs},
        images=images_of(pods),
    )


def _checked(kube: Kube, sight: Sight, nodes: Sequence[Node], outputs: Mapping[str, bytes]) -> Sight:
    """A run that ended counts only with every output, uncut, and on the nodes that it was asked for."""
    if sight.state not in (State.ENDED, State.FAILED):
        return sight
    for node in nodes:
        seen = kube.get(f"/api/v1/nodes/{node.name}")
        uid = seen["metadata"]["uid"] if seen else "gone"
        if uid != node.uid:
            reason = f"was replaced during the probe (UID {node.uid}, now {uid})"
            return Sight(state=State.UNMEASURED, object=f"node {node.name}", reason=reason)
        if len(outputs.get(node.name, b"")) >= LOG_LIMIT:
            reason = f"its output is longer than {LOG_LIMIT >> 20} MiB and was cut"
            return Sight(state=State.UNMEASURED, object=f"pod on node {node.name}", reason=reason)
        if not outputs.get(node.name) and sight.state is State.ENDED:
            reason = "its output could not be read"
            return Sight(state=State.UNMEASURED, object=f"pod on node {node.name}", reason=reason)
    return sight


def gpu_minutes(pods: Sequence[Mapping[str, Any]], now: datetime) -> float:
    """GPU-minutes held by these pods, scheduled to ended."""
    return sum(gpus_of(pod) * held_seconds(pod, now) for pod in pods) / 60


def gpus_of(pod: Mapping[str, Any]) -> int:
    limits = (pod["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
    return sum(int(count) for name, count in limits.items() if name.endswith("/gpu"))


def _clean_up(kube: Kube, rendered: Rendered, made: str = "") -> list[Finding]:
    """Delete the probe's objects and see them gone; what stays is named. An API that fails here is a finding too.

    `made`: the UID of the Job, where this process has made it. It holds GPUs, and goes even if the lease is lost.
    """
    try:
        left = _delete_and_see(kube, rendered, made)
    except PoolshiftError as error:
        left = [str(error)]
    if not left:
        return []
    return [
        Finding(
            level=Level.WARN,
            code="probe-left-over",
            object=f"job {rendered.namespace}/{rendered.name}",
            observed=f"not seen gone: {', '.join(left[:5])}",
            remedy=f"kubectl -n {rendered.namespace} delete job,service,configmap {rendered.name}",
        )
    ]


def _delete_and_see(kube: Kube, rendered: Rendered, made: str) -> list[str]:
    """What is still there after `CLEAN_UP_SECONDS`."""
    core = f"/api/v1/namespaces/{rendered.namespace}"
    job = f"/apis/batch/v1/namespaces/{rendered.namespace}/jobs/{rendered.name}"
    kube.delete(job, uid=made or None, made=bool(made))
    kube.delete(f"{core}/services/{rendered.name}")
    kube.delete(f"{core}/configmaps/{rendered.name}")
    begin, wait = kube.clock.now(), pauses(POLL_SECONDS)
    while True:
        pods = kube.list(f"{core}/pods", {"labelSelector": f"{INSTANCE}={rendered.name}"})
        left = [f"pod {pod['metadata']['name']}" for pod in pods]
        left += [f"job {rendered.name}"] if kube.get(job) is not None else []
        if not left or (kube.clock.now() - begin).total_seconds() > CLEAN_UP_SECONDS:
            return left
        kube.clock.sleep(next(wait))
