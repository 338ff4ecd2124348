"""Gangs of every kind: found by owner, switched by the kind's own means. The test plays the operator."""

from __future__ import annotations

import json
import threading

import pytest

from infra.errors import NotFound
from infra.kube.api import MERGE_PATCH
from infra.kube.read import of_objects
from infra.kube.switches import start_patch, stop_patch
from infra.model.gangs import GANG_KINDS, Means, gang_kind
from infra.model.record import PRIOR
from infra.model.spec import Drain, MoveMode
from tasks.drain import move
from tasks.gangs import restore
from tasks.rules.gangs import find_gangs, judge_gang, start_words, stop_words
from tasks.rules.outcome import End

CUSTOM = [
    k
    for k in GANG_KINDS
    if k.group != "batch" and k.kind not in ("Workload", "RayJob") and k.means is not Means.COMMAND
]
OLD, NEW = ("old-0", "old-1"), ("new-0", "new-1")


def ref(kind, name, api):
    return [{"apiVersion": api, "kind": kind, "name": name, "uid": f"uid-{kind}-{name}", "controller": True}]


def obj(kind, name, api, owners=(), labels=None, **spec):
    meta = {
        "namespace": "d",
        "name": name,
        "uid": f"uid-{kind}-{name}",
        "ownerReferences": list(owners),
        "labels": labels or {},
    }
    return {"apiVersion": api, "kind": kind, "metadata": meta, "spec": spec}


def rank(name, owners, node="old-0", gpus=8):
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    found = obj("Pod", name, "v1", owners, nodeName=node, containers=[{"name": "c", "resources": resources}])
    return {**found, "status": {"phase": "Running"}}


@pytest.mark.parametrize("kind", GANG_KINDS, ids=lambda k: f"{k.kind}.{k.group}")
def test_what_a_person_stops_by_hand_is_started_by_hand_again(kind):
    """Typed one after the other, both commands leave the switch as it was."""
    api = f"{kind.group}/{kind.version}"
    root = obj(kind.kind, "llm", api, parallelism=2, completions=2, completionMode="Indexed")
    (gang,) = find_gangs(of_objects([root, rank("llm-0", ref(kind.kind, "llm", api))]), Drain(), OLD)
    stop, start = stop_words(gang), start_words(gang)
    assert "llm after a checkpoint: " in stop
    assert "llm again" in start
    if kind.means is Means.COMMAND:
        assert stop.endswith("vcctl job suspend --namespace d --name llm")
        assert start.endswith("vcctl job resume --namespace d --name llm")
        return
    stopped, started = (json.loads(w.split("-p '")[1].split("'")[0].replace(":N}", ":3}")) for w in (stop, start))
    assert stop.split("-p ")[0].split(": ")[1] == start.split("-p ")[0].split(": ", 1 + start.count("N: "))[-1]
    assert kind.is_stopped(stopped)
    assert not kind.is_stopped(started)
    assert kind.read_switch(started) is not None


class TestFinding:
    def test_the_topmost_owner_is_the_gang(self):
        snapshot = of_objects(
            [
                obj("TrainJob", "llm", "trainer.kubeflow.org/v1alpha1"),
                obj(
                    "JobSet", "llm", "jobset.x-k8s.io/v1alpha2", ref("TrainJob", "llm", "trainer.kubeflow.org/v1alpha1")
                ),
                obj(
                    "Job",
                    "llm-node-0",
                    "batch/v1",
                    ref("JobSet", "llm", "jobset.x-k8s.io/v1alpha2"),
                    completionMode="Indexed",
                ),
                rank("llm-0", ref("Job", "llm-node-0", "batch/v1")),
                rank("llm-1", ref("Job", "llm-node-0", "batch/v1"), "old-1"),
            ]
        )
        (gang,) = find_gangs(snapshot, Drain(), ["old-0"])
        assert gang.object == "trainjob d/llm"
        assert {p.name for p in gang.pods} == {"llm-0", "llm-1"}
        assert gang.mode is MoveMode.CHECKPOINT

    def test_a_volcano_job_is_not_taken_for_a_batch_job(self):
        snapshot = of_objects(
            [obj("Job", "v", "batch.volcano.sh/v1alpha1"), rank("v-0", ref("Job", "v", "batch.volcano.sh/v1alpha1"))]
        )
        (gang,) = find_gangs(snapshot, Drain(), ["old-0"])
        assert gang.kind.means is Means.COMMAND

    @pytest.mark.parametrize(
        ("spec", "retries", "codes"),
        [({"maxRetry": 3}, 1, []), ({"maxRetry": 3}, 2, ["no-restarts-left"]), ({}, 0, ["no-restarts-left"])],
    )
    def test_a_volcano_job_that_its_resumption_would_fail_is_not_stopped(self, spec, retries, codes):
        job = obj("Job", "v", "batch.volcano.sh/v1alpha1", tasks=[{"replicas": 1}], **spec)
        job["status"] = {"retryCount": retries}
        snapshot = of_objects([job, rank("v-0", ref("Job", "v", "batch.volcano.sh/v1alpha1"))])
        (gang,) = find_gangs(snapshot, Drain(), ["old-0"])
        assert [f.code for f in judge_gang(gang, snapshot, None) if f.level == "block"] == codes

    def test_kueue_owns_the_switch_of_the_job_it_admits(self):
        job = obj("Job", "llm", "batch/v1", labels={"kueue.x-k8s.io/queue-name": "q"}, completionMode="Indexed")
        workload = obj("Workload", "job-llm-1", "kueue.x-k8s.io/v1beta1", ref("Job", "llm", "batch/v1"))
        snapshot = of_objects([job, workload, rank("llm-0", ref("Job", "llm", "batch/v1"))])
        (gang,) = find_gangs(snapshot, Drain(), ["old-0"])
        assert (gang.object, gang.switch.name, gang.switch_kind.means) == ("job d/llm", "job-llm-1", Means.ACTIVE)

    def test_a_plain_job_of_one_pod_is_no_gang(self):
        snapshot = of_objects([obj("Job", "j", "batch/v1"), rank("j-0", ref("Job", "j", "batch/v1"), gpus=0)])
        assert find_gangs(snapshot, Drain(), ["old-0"]) == ()

    def test_a_gang_without_gpus_is_stopped_without_a_checkpoint(self):
        job = obj("Job", "j", "batch/v1", completionMode="Indexed", parallelism=2)
        snapshot = of_objects([job, rank("j-0", ref("Job", "j", "batch/v1"), gpus=0)])
        assert find_gangs(snapshot, Drain(), ["old-0"])[0].mode is MoveMode.RESTART

    def test_what_is_known_before_the_stop_is_told(self):
        job = obj("Job", "llm", "batch/v1", completionMode="Indexed", backoffLimit=0)
        snapshot = of_objects([job, rank("llm-0", ref("Job", "llm", "batch/v1"))])
        (gang,) = find_gangs(snapshot, Drain(), ["old-0"])
        codes = [f.code for f in judge_gang(gang, snapshot, None, ["new-0"])]
        assert codes == ["checkpoint-never-seen", "gang-without-room", "no-restarts-left"]


@pytest.mark.parametrize("row", GANG_KINDS, ids=lambda k: f"{k.kind}.{k.group}")
def test_starting_again_undoes_the_stop_whatever_was_set_before(row):
    if row.means is Means.COMMAND:
        assert stop_patch(row) is None
        return
    running = {Means.SUSPEND: (None, False), Means.ACTIVE: (None, True), Means.SCALE: (3, 1)}[row.means]
    for before in running:
        assert row.read_switch(stop_patch(row)) != before
        after = row.read_switch(start_patch(row, before))
        assert after == (before if before is not None else row.means is Means.ACTIVE)
    assert gang_kind(f"{row.group}/{row.version}", row.kind) is row


class Operator:
    """What a training operator does, as far as it concerns us: pods while it is on, none while it is off."""

    def __init__(self, kube, row, name, ranks):
        self.kube, self.row, self.name, self.ranks = kube, row, name, ranks
        self.path = row.path("default", name)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stop.wait(0.05):
            root = self.kube.request("GET", self.path)
            switch = self.row.read_switch(root)
            off = switch == 0 if self.row.means is Means.SCALE else bool(switch)
            pods = {p["metadata"]["name"]: p for p in self.kube.list("/api/v1/namespaces/default/pods")}
            for i in range(self.ranks):
                name = f"{self.name}-{i}"
                if off and name in pods and not pods[name]["metadata"].get("deletionTimestamp"):
                    self.kube.delete(f"/api/v1/namespaces/default/pods/{name}")
                elif not off and name not in pods:
                    self.create(name, root)

    def create(self, name, root):
        owner = {"apiVersion": root["apiVersion"], "kind": root["kind"], "name": self.name, "controller": True}
        container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
        body = {
            "metadata": {
                "name": name,
                "labels": {self.row.pod_label: self.name},
                "ownerReferences": [{**owner, "uid": root["metadata"]["uid"]}],
            },
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
        }
        self.kube.request("POST", "/api/v1/namespaces/default/pods", body={"apiVersion": "v1", "kind": "Pod", **body})


@pytest.fixture
def operated(kube, kube_at, url, build, kubelet):
    """Start a gang of two of a custom kind on the old pool, with its operator."""
    running = []

    def start(row):
        for name in OLD:
            build.node(name)
        for name in NEW:
            build.node(name, "new", unschedulable=True)
        build.definition(row)
        spec = {"replicas": 2} if row.means is Means.SCALE else {}
        kube.request(
            "POST",
            row.path("default"),
            body={
                "apiVersion": f"{row.group}/{row.version}",
                "kind": row.kind,
                "metadata": {"name": "llm"},
                "spec": spec,
            },
        )
        operator = Operator(kube_at(url), row, "llm", 2)
        operator.thread.start()
        running.append(operator)
        build.until_ready(2)
        for name in NEW:
            build.uncordon(name)

    yield start
    for operator in running:
        operator.stop.set()
        operator.thread.join()


@pytest.mark.parametrize("row", CUSTOM, ids=lambda k: k.kind)
def test_a_gang_of_a_custom_kind_moves_by_its_own_means(kube, build, operated, fast_clock, row):
    operated(row)
    rule = {"namespace": "default", "name": "llm", "kind": row.kind, "mode": "restart"}

    report = move(kube, Drain.model_validate({"workloads": [rule]}), OLD, NEW, "r1", fast_clock, lambda _: None)

    assert report.ok, report.to_dict()
    assert report.tally.sent == 0
    root = kube.request("GET", row.path("default", "llm"))
    assert PRIOR not in root["metadata"].get("annotations", {})
    assert row.means is not Means.SCALE or root["spec"]["replicas"] == 2
    assert {p["spec"]["nodeName"] for p in build.pods()} == set(NEW)


def test_restore_starts_what_the_run_has_stopped(kube, build, kubelet):
    build.node("old-0")
    build.job("llm", 1, gpus=8)
    build.until_ready(1)
    path = "/apis/batch/v1/namespaces/default/jobs/llm"
    noted = '{"before":null,"run":"r1","stage":"stopped","root":["batch","Job","default","llm"],"ranks":1,"owners":[]}'
    meta = {"labels": {"poolshift.dev/run": "r1"}, "annotations": {PRIOR: noted}}
    kube.request("PATCH", path, body={"spec": {"suspend": True}, "metadata": meta}, content_type=MERGE_PATCH)

    assert restore(kube, "r1") == ("job default/llm",)
    job = kube.request("GET", path)
    assert job["spec"]["suspend"] is False
    assert PRIOR not in job["metadata"].get("annotations", {})
    assert restore(kube, "r1") == ()


def test_kinds_the_cluster_lacks_are_not_asked_for(kube):
    before = kube.requests
    assert restore(kube, "r1") == ()
    assert kube.requests - before == 4  # the groups, once for flavours; Jobs and Deployments
    with pytest.raises(NotFound):
        kube.request("GET", "/apis/jobset.x-k8s.io/v1alpha2/jobsets")


def test_a_gang_somebody_else_has_suspended_is_left_alone(kube, build, kubelet, fast_clock):
    for name in (*OLD, *NEW):
        build.node(name, name[:3])
    build.job("llm", 1, gpus=8)
    build.until_ready(1)
    node = build.pods()[0]["spec"]["nodeName"]
    kubelet.never_ends = lambda pod: True
    path = "/apis/batch/v1/namespaces/default/jobs/llm"
    kube.request("PATCH", path, body={"spec": {"suspend": True}}, content_type=MERGE_PATCH)
    rule = {"namespace": "default", "name": "llm", "mode": "restart"}
    drain = Drain.model_validate({"workloads": [rule], "pod_deadline": "20s"})

    report = move(kube, drain, [node], [n for n in NEW if n != node], "r1", fast_clock, lambda _: None)

    assert report.end is End.FAILED
    assert report.waves[0].gangs[0].code == "gang-stopped"
    assert kube.request("GET", path)["spec"]["suspend"] is True
