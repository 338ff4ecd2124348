"""What a kubelet does, done by the agent for pods and nodes that do not exist."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from infra.clock import parse_time
from infra.sandbox.scenario import ImageMissing

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def conditions(status: dict[str, Any]) -> dict[str, str]:
    return {each["type"]: each["status"] for each in status.get("conditions") or []}


def job(name: str, *, annotations: dict[str, str], **spec: Any) -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "registry.example.com/a:1"}]}
    template = {"metadata": {"annotations": annotations}, "spec": pod}
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": template, **spec}}


def test_a_node_becomes_ready_and_says_where_its_kubelet_listens(cluster):
    cluster.node("n-ready")
    status = cluster.wait(
        lambda: (s := cluster.status("/api/v1/nodes/n-ready")) and conditions(s).get("Ready") == "True" and s
    )
    assert status["daemonEndpoints"]["kubeletEndpoint"]["Port"] > 0
    assert {"type": "InternalIP", "address": "127.0.0.1"} in status["addresses"]
    assert not cluster.get("/api/v1/nodes/n-ready")["spec"].get("taints")


def test_a_lease_is_renewed_before_it_ends(cluster):
    cluster.node("n-lease")
    first = cluster.wait(lambda: cluster.get(f"{LEASE}/n-lease")["spec"]["renewTime"])
    later = cluster.wait(lambda: (t := cluster.get(f"{LEASE}/n-lease")["spec"]["renewTime"]) != first and t)
    assert parse_time(later) > parse_time(first)


def test_a_running_pod_has_what_a_kubelet_reports(cluster):
    path = cluster.pod("p-run", node=cluster.node("n-run"))
    status = cluster.wait(lambda: (s := cluster.status(path)).get("phase") == "Running" and s)
    assert conditions(status)["Ready"] == "True"
    assert conditions(status)["PodScheduled"] == "True"
    assert status["podIP"].startswith("10.")
    assert parse_time(status["startTime"]) <= cluster.clock.now()
    (container,) = status["containerStatuses"]
    assert container["ready"]
    assert container["restartCount"] == 0
    assert "startedAt" in container["state"]["running"]


@pytest.mark.parametrize("turns", range(4))
def test_a_wait_that_is_cancelled_as_its_event_comes_ends(cluster, turns):
    async def cancelled() -> bool:
        event = asyncio.Event()
        task = asyncio.ensure_future(cluster.agent.wait_for(event, 1e6))
        await asyncio.sleep(0.01)
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelling = task.cancel()
        await asyncio.wait([task])
        return task.cancelled() or not cancelling

    assert cluster.thread.call(cancelled())


def test_nodes_without_our_label_are_left_alone(cluster):
    cluster.api.request("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "foreign"}})
    path = cluster.pod("p-foreign", node="foreign")
    cluster.pod("p-beside", node=cluster.node("n-beside"))
    cluster.wait(lambda: cluster.status("/api/v1/namespaces/default/pods/p-beside")["phase"] == "Running")
    assert cluster.status(path)["phase"] == "Pending"
    assert conditions(cluster.status("/api/v1/nodes/foreign")).get("Ready") != "True"


def test_a_job_completes_and_another_fails(cluster):
    cluster.node("n-job")
    cluster.create(job("good", annotations={"sandbox.poolshift.dev/run-seconds": "3"}))
    bad = {"sandbox.poolshift.dev/run-seconds": "3", "sandbox.poolshift.dev/exit-code": "7"}
    cluster.create(job("bad", annotations=bad, backoffLimit=0))
    base = "/apis/batch/v1/namespaces/default/jobs"
    assert cluster.wait(lambda: conditions(cluster.status(f"{base}/good")).get("Complete") == "True")
    assert cluster.wait(lambda: conditions(cluster.status(f"{base}/bad")).get("Failed") == "True")
    pods = cluster.get("/api/v1/namespaces/default/pods")["items"]
    (failed,) = [p for p in pods if p["metadata"]["name"].startswith("bad-")]
    assert failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7


def test_a_pod_leaves_after_its_own_exit_time(cluster):
    path = cluster.pod(
        "p-exit",
        node=cluster.node("n-exit"),
        annotations={"sandbox.poolshift.dev/exit-seconds": "120"},
        terminationGracePeriodSeconds=600,
    )
    cluster.wait(lambda: cluster.status(path)["phase"] == "Running")
    begin = cluster.clock.now()
    cluster.api.request("DELETE", path)
    assert cluster.get(path)["metadata"]["deletionGracePeriodSeconds"] == 600
    cluster.wait(lambda: cluster.gone(path))
    assert timedelta(seconds=119) < cluster.clock.now() - begin < timedelta(seconds=600)


def test_grace_ends_before_a_slow_exit(cluster):
    path = cluster.pod(
        "p-grace",
        node=cluster.node("n-grace"),
        annotations={"sandbox.poolshift.dev/exit-seconds": "86400"},
        terminationGracePeriodSeconds=60,
    )
    cluster.wait(lambda: cluster.status(path)["phase"] == "Running")
    cluster.api.request("DELETE", path)
    cluster.wait(lambda: cluster.gone(path))


def test_a_stopped_pod_of_a_job_ends_failed_so_that_the_job_can_count_it(cluster):
    cluster.node("n-stop")
    cluster.create(job("stop", annotations={"sandbox.poolshift.dev/run-seconds": "forever"}))
    base = "/apis/batch/v1/namespaces/default/jobs/stop"
    cluster.wait(lambda: cluster.status(base).get("ready") == 1)
    cluster.api.request("PATCH", base, {"spec": {"suspend": True}}, content_type="application/merge-patch+json")
    cluster.wait(lambda: not cluster.status(base).get("active"))
    cluster.wait(
        lambda: (
            not [
                p
                for p in cluster.get("/api/v1/namespaces/default/pods")["items"]
                if p["metadata"]["name"].startswith("stop-")
            ]
        )
    )


def test_a_missing_image_is_named_in_the_words_of_the_kubelet(clusters):
    cluster = clusters(ImageMissing(kind="image-missing", image="*/efa:*", pool="target"))
    image = "registry.example.com/eks/efa:v1"
    spec = {"containers": [{"name": "main", "image": image}]}
    path = cluster.pod("p-image", node=cluster.node("n-image"), **spec)
    waiting = cluster.wait(
        lambda: (
            (w := cluster.status(path)["containerStatuses"][0]["state"]["waiting"])["reason"] == "ImagePullBackOff"
            and w
        )
    )
    assert waiting["message"].startswith(f'Back-off pulling image "{image}": ErrImagePull: rpc error: code = NotFound')
    assert cluster.status(path)["phase"] == "Pending"
    events = cluster.wait(lambda: cluster.get("/api/v1/namespaces/default/events")["items"])
    assert any(e["involvedObject"]["name"] == "p-image" and image in e["message"] for e in events)
    elsewhere = cluster.pod("p-image-old", node=cluster.node("n-image-old", pool="gpu-old"), **spec)
    assert cluster.wait(lambda: cluster.status(elsewhere)["phase"] == "Running")


def test_a_missing_image_of_an_init_container_keeps_the_rest_waiting(clusters):
    cluster = clusters(ImageMissing(kind="image-missing", image="*/init:*"))
    inits = [{"name": "install", "image": "registry.example.com/init:1"}]
    path = cluster.pod("p-init", node=cluster.node("n-init"), initContainers=inits)
    status = cluster.wait(lambda: (s := cluster.status(path)).get("initContainerStatuses") and s)
    assert status["initContainerStatuses"][0]["state"]["waiting"]["reason"] in ("ErrImagePull", "ImagePullBackOff")
    assert status["containerStatuses"][0]["state"]["waiting"]["reason"] == "PodInitializing"
    assert conditions(status)["Initialized"] == "False"


def test_a_crashing_container_backs_off_and_counts_its_restarts(cluster):
    crash = {"sandbox.poolshift.dev/run-seconds": "1", "sandbox.poolshift.dev/exit-code": "1"}
    path = cluster.pod("p-crash", node=cluster.node("n-crash"), annotations=crash)

    def crashed_twice() -> Any:
        (status,) = cluster.status(path)["containerStatuses"]
        return status["restartCount"] >= 2 and "waiting" in status["state"] and status

    status = cluster.wait(crashed_twice)
    assert status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert "restarting failed container=main pod=p-crash_default" in status["state"]["waiting"]["message"]
    assert status["lastState"]["terminated"]["exitCode"] == 1


def test_a_new_agent_takes_over_running_pods_without_restarting_them(clusters):
    from infra.sandbox.agent import Agent

    cluster = clusters()
    path = cluster.pod("p-keep", node=cluster.node("n-keep"))
    before = cluster.wait(lambda: cluster.status(path).get("phase") == "Running" and cluster.status(path))
    cluster.thread.call(cluster.agent.stop())
    cluster.agent = Agent(cluster.access, cluster.clock)
    cluster.thread.call(cluster.agent.start())
    cluster.wait(lambda: any(worker.running for worker in cluster.agent.pods.values()))
    assert cluster.status(path)["containerStatuses"] == before["containerStatuses"]
    cluster.api.request("DELETE", path)
    cluster.wait(lambda: cluster.gone(path))
    cluster.thread.call(cluster.agent.stop())


def test_the_agent_waits_for_a_server_that_is_away():
    from infra.ports import free_port
    from infra.sandbox.access import Access, Api
    from infra.sandbox.agent import Agent
    from infra.sandbox.clock import SandboxClock
    from infra.sandbox.control_plane import run_in_thread
    from infra.sandbox.nodes import add_node
    from infra.sandbox.run import LoopThread

    clock, port = SandboxClock(300.0), free_port()
    thread = LoopThread("simulated-nodes")
    agent = Agent(Access(url=f"http://127.0.0.1:{port}"), clock)
    thread.call(agent.start())
    _, stop = run_in_thread(clock, port)
    api = Api(agent.access)
    add_node(api, name="late", pool_labels={}, machine_type="p5en.48xlarge", zone="us-east-2a")
    deadline = time.monotonic() + 20
    while conditions(api.request("GET", "/api/v1/nodes/late").get("status") or {}).get("Ready") != "True":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    thread.call(agent.stop())
    thread.stop()
    api.close()
    stop()
    assert agent.failures == []


def test_a_pod_that_was_marked_not_ready_while_its_node_was_silent_is_ready_again(cluster):
    path = cluster.pod("p-marked", node=cluster.node("n-marked"))
    cluster.wait(lambda: conditions(cluster.status(path))["Ready"] == "True")
    marked = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}}
    patch = "application/strategic-merge-patch+json"
    assert conditions(cluster.api.request("PATCH", f"{path}/status", marked, content_type=patch)["status"]) != {}
    cluster.wait(lambda: conditions(cluster.status(path))["Ready"] == "True")


def test_what_is_said_of_a_pod_marked_not_ready_never_comes_after_its_end(cluster, monkeypatch):
    short = {"sandbox.poolshift.dev/run-seconds": "300"}  # a second of the wall clock
    path = cluster.pod("p-ending", node=cluster.node("n-ending"), annotations=short, restartPolicy="Never")
    cluster.wait(lambda: cluster.status(path)["phase"] == "Running")
    send = cluster.agent.api.patch

    async def long_on_its_way(where, body):
        if where == f"{path}/status" and body["status"]["phase"] == "Running":
            await asyncio.sleep(1.5)
        return await send(where, body)

    monkeypatch.setattr(cluster.agent.api, "patch", long_on_its_way)
    marked = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}}
    cluster.api.request("PATCH", f"{path}/status", marked, content_type="application/strategic-merge-patch+json")
    cluster.wait(lambda: cluster.status(path)["phase"] == "Succeeded")
    time.sleep(1.0)  # whatever is still on its way arrives
    assert cluster.status(path)["phase"] == "Succeeded"
