"""Gangs whose operator switches them: Volcano as it acts on the API; checkpoints by HTTP; re-homing."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from infra.clock import rfc3339
from infra.kube.api import MERGE_PATCH
from infra.model.gangs import GangKind, gang_kind, row_of
from infra.model.record import PRIOR
from tasks.drain import move
from tasks.rules.outcome import End
from tasks.steering import Steer
from tests.drain.operating import JOBS, NEW, OLD, PODS, create, drain, homes, open_new, two_pools


@pytest.fixture
def pools(build, kubelet):
    return two_pools(build)


VCJOB = row_of("batch.volcano.sh", "Job")
COMMAND = GangKind(kind="Command", group="bus.volcano.sh", version="v1alpha1", plural="commands")


def test_a_volcano_job_is_aborted_and_resumed_by_commands(kube, pools, operate, fast_clock):
    for row in (VCJOB, COMMAND):
        pools.definition(row)
    tasks = [{"name": "worker", "replicas": 2}]
    root = create(kube, VCJOB, "llm", {"minAvailable": 2, "maxRetry": 3, "tasks": tasks})
    path, commands = VCJOB.path("default", "llm"), COMMAND.path("default")
    seen = []

    def phase(kube, now, **status):
        body = {"status": {"state": {"phase": now}, **status}}
        kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    def volcano(kube):
        """Each command is deleted as it is taken; pods follow the phase."""
        state = (kube.request("GET", path).get("status") or {}).get("state") or {}
        for command in kube.request("GET", commands)["items"]:
            assert command["target"]["uid"] == root["metadata"]["uid"]
            seen.append(command["action"])
            kube.delete(f"{commands}/{command['metadata']['name']}")
            if command["action"] == "ResumeJob":
                phase(kube, "Pending", retryCount=1)  # a resumption is a retry to it
            else:
                phase(kube, "Aborting")
            return
        pods = {p["metadata"]["name"]: p for p in kube.list(PODS)}
        match state.get("phase", "Pending"):
            case "Aborting":
                for name, pod in pods.items():
                    if not pod["metadata"].get("deletionTimestamp"):
                        kube.delete(f"{PODS}/{name}")
                if not pods:
                    phase(kube, "Aborted")
            case "Pending":
                for i in range(2):
                    if f"llm-worker-{i}" not in pods:
                        kube.request("POST", PODS, body=volcano_pod(f"llm-worker-{i}", root))
                phase(kube, "Running")

    operate(volcano)
    pools.until_ready(2)
    open_new(pools)

    report = move(kube, drain(), OLD, NEW, "r1", fast_clock, lambda _: None)

    assert report.ok, report.to_dict()
    assert seen == ["AbortJob", "ResumeJob"]
    assert homes(pools) == set(NEW)


def volcano_pod(name, root):
    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "llm", "controller": True}
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    meta = {
        "name": name,
        "labels": {"volcano.sh/job-name": "llm"},
        "annotations": {"scheduling.k8s.io/group-name": "llm"},
        "ownerReferences": [{**owner, "uid": root["metadata"]["uid"]}],
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def test_a_kind_is_spoken_to_in_the_version_that_its_pods_name(kube, build):
    row = gang_kind("kubeflow.org/v1", "MPIJob")
    assert row is not None
    assert row.path("d", "llm") == "/apis/kubeflow.org/v1/namespaces/d/mpijobs/llm"


@contextmanager
def checkpoint_server(clock, *, ahead=0.0, status=200):
    """A training program that writes a checkpoint when POSTed to, and says when."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            from datetime import timedelta

            asked.append(self.path)
            body = f"saved\n{rfc3339(clock.now() + timedelta(seconds=ahead))}\n".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_checkpoint_is_asked_for_over_http_through_the_pod_proxy(kube, kubelet, pools, fast_clock):
    kubelet.address = "127.0.0.1"
    pools.job("llm", 2, gpus=8)
    pools.until_ready(2)
    open_new(pools)
    with checkpoint_server(fast_clock) as (port, asked):
        way = {"via": "http", "port": port, "path": "/v1/save"}
        report = move(kube, drain(mode="checkpoint", checkpoint=way), OLD, NEW, "r1", fast_clock, lambda _: None)

    assert report.ok, report.to_dict()
    gang = report.waves[0].gangs[0]
    assert gang.checkpoint >= gang.asked
    assert set(asked) == {"/v1/save"}


@pytest.mark.parametrize(
    ("answer", "why"), [({"ahead": 86400.0}, "in the future"), ({"status": 500}, "500")], ids=["future", "error"]
)
def test_an_answer_that_proves_no_checkpoint_stops_nothing(kube, kubelet, pools, fast_clock, answer, why):
    kubelet.address = "127.0.0.1"
    pools.job("llm", 2, gpus=8)
    pools.until_ready(2)
    open_new(pools)
    with checkpoint_server(fast_clock, **answer) as (port, _):
        way = {"via": "http", "port": port}
        chosen = drain(mode="checkpoint", checkpoint=way, max_wait="8m")
        report = move(kube, chosen, OLD, NEW, "r1", fast_clock, lambda _: None)

    assert report.waves[0].gangs[0].code == "no-checkpoint"
    assert why in report.waves[0].gangs[0].reason
    assert homes(pools) == set(OLD)
    assert not kube.request("GET", f"{JOBS}/llm")["spec"].get("suspend")


def test_a_cancellation_lets_a_gang_that_is_down_come_up_first(kube, pools, fast_clock):
    pools.job("llm", 2, gpus=8)
    pools.until_ready(2)
    open_new(pools)
    said = []
    steer = Steer(cancelled=lambda: "cancelled by ann" if any("stopping" in line for line in said) else "")

    report = move(kube, drain(), OLD, NEW, "r1", fast_clock, said.append, steer=steer)

    assert report.reason == "cancelled by ann"
    assert report.waves[0].gangs[0].end is End.DRAINED
    assert homes(pools) == set(NEW)
    assert not kube.request("GET", f"{JOBS}/llm")["spec"].get("suspend")


def test_an_error_in_the_middle_starts_what_was_stopped(kube, pools, fast_clock):
    pools.job("llm", 2, gpus=8)
    pools.until_ready(2)
    open_new(pools)

    def break_off(line):
        if "stopping" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        move(kube, drain(), OLD, NEW, "r1", fast_clock, break_off)

    pools.until_ready(2)
    job = kube.request("GET", f"{JOBS}/llm")
    assert not job["spec"].get("suspend")
    assert PRIOR not in job["metadata"].get("annotations", {})
    assert not any(PRIOR in str(n) for n in kube.list("/api/v1/nodes") if n["metadata"]["name"] in OLD)


class Template:
    """An operator that makes its pods from the template in its object, as they all do."""

    def __init__(self, row, path):
        self.row, self.path = row, path

    def step(self, kube):
        root = kube.request("GET", self.row.path("default", "llm"))
        off = bool(self.row.read_switch(root))
        pods = {p["metadata"]["name"]: p for p in kube.list(PODS)}
        for i in range(2):
            name = f"llm-{i}"
            if off and name in pods and not pods[name]["metadata"].get("deletionTimestamp"):
                kube.delete(f"{PODS}/{name}")
            elif not off and name not in pods:
                spec = root["spec"]
                for key in self.path:
                    spec = spec[0] if key == "*" and isinstance(spec, list) else spec[key]
                owner = {"apiVersion": root["apiVersion"], "kind": root["kind"], "name": "llm", "controller": True}
                meta = {
                    "name": name,
                    "labels": {self.row.pod_label: "llm"},
                    "ownerReferences": [{**owner, "uid": root["metadata"]["uid"]}],
                }
                kube.request("POST", PODS, body={"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


def pinned_spec():
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    return {
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"pool": "old"},
    }


def test_a_pinned_gang_is_not_stopped_unless_its_template_may_be_changed(kube, pools, operate, fast_clock):
    row = row_of("jobset.x-k8s.io", "JobSet")
    pools.definition(row)
    template = {"spec": {"template": {"spec": pinned_spec()}}}
    create(kube, row, "llm", {"replicatedJobs": [{"name": "w", "template": template}]})
    operate(Template(row, ("replicatedJobs", "*", "template", "spec", "template", "spec")).step)
    pools.until_ready(2)
    for name in NEW:
        taint = [{"key": "rdma", "value": "yes", "effect": "NoSchedule"}]
        kube.request("PATCH", f"/api/v1/nodes/{name}", body={"spec": {"taints": taint}}, content_type=MERGE_PATCH)
    open_new(pools)

    held = move(kube, drain(kind="JobSet"), OLD, NEW, "r1", fast_clock, lambda _: None)
    assert held.waves[0].gangs[0].code == "gang-pinned"
    assert homes(pools) == set(OLD)

    report = move(kube, drain(kind="JobSet", rehome=True), OLD, NEW, "r1", fast_clock, lambda _: None)
    assert report.ok, report.to_dict()
    assert homes(pools) == set(NEW)
    spec = kube.request("GET", row.path("default", "llm"))["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert spec["template"]["spec"]["nodeSelector"] == {"pool": "new"}
    assert spec["template"]["spec"]["tolerations"] == [{"key": "rdma", "value": "yes", "effect": "NoSchedule"}]
