"""Gangs that Kueue admits: a double that acts as Kueue does on the API, and the judgement before one is stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.kube.api import MERGE_PATCH
from infra.kube.read import of_objects
from infra.model.gangs import GangKind, row_of
from infra.model.record import FENCE_TAINT, PRIOR
from infra.model.spec import Drain
from tasks.drain import move
from tasks.gangs import forget_moved, restore
from tasks.rules.gangs import find_gangs, held_flavors, judge_gang, pinned
from tasks.rules.placement import TargetShape
from tasks.rules.waves import plan_move
from tests.drain.operating import JOBS, NEW, OLD, create, drain, homes, open_new, two_pools

QUEUE = "kueue.x-k8s.io/queue-name"
WORKLOAD = row_of("kueue.x-k8s.io", "Workload")
LOCAL = replace(WORKLOAD, kind="LocalQueue", plural="localqueues")
CLUSTER = replace(WORKLOAD, kind="ClusterQueue", plural="clusterqueues")
FLAVOR = replace(WORKLOAD, kind="ResourceFlavor", plural="resourceflavors")


GPU = "nvidia.com/gpu"


def cluster_queue(flavors=("old", "new"), quota="16", covers=GPU, **spec):
    resources = [{"name": covers, "nominalQuota": quota}]
    offered = [{"name": name, "resources": resources} for name in flavors]
    return {"resourceGroups": [{"coveredResources": [covers], "flavors": offered}], **spec}


@pytest.fixture
def pools(build, kubelet):
    return two_pools(build)


def at(row: GangKind, version: str) -> GangKind:
    return replace(row, version=version)


class Kueue:
    """Admits to the first flavour whose taints are tolerated, which it pins the pods to; a deactivation ends them."""

    def __init__(self, version):
        self.workload, self.flavor = at(WORKLOAD, version), at(FLAVOR, version)
        self.switched = []

    def set_up(self, kube, build):
        for row in (self.workload, at(LOCAL, self.workload.version)):
            build.definition(row)
        for row, spec in ((CLUSTER, cluster_queue()), (FLAVOR, None)):
            here = at(row, self.workload.version)
            build.definition(here, "Cluster")
            for name in ("research",) if spec else ("old", "new"):
                body = {"apiVersion": f"{here.group}/{here.version}", "kind": here.kind, "metadata": {"name": name}}
                kube.request("POST", here.path(), body={**body, "spec": spec or {"nodeLabels": {"pool": name}}})
        create(kube, at(LOCAL, self.workload.version), "team", {"clusterQueue": "research"})

    def submit(self, kube, build):
        build.job("llm", 2, gpus=8)
        body = {"metadata": {"labels": {QUEUE: "team"}}, "spec": {"suspend": True}}
        job = kube.request("PATCH", f"{JOBS}/llm", body=body, content_type=MERGE_PATCH)
        build.until(lambda: not any(p["metadata"]["name"].startswith("llm") for p in build.pods()), "it is suspended")
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "llm", "controller": True}
        owner["uid"] = job["metadata"]["uid"]
        spec = {"queueName": "team", "active": True, "podSets": [{"name": "main", "template": {"spec": {}}}]}
        create(kube, self.workload, "job-llm-1", spec, ownerReferences=[owner])

    def step(self, kube):
        found = kube.request("GET", self.workload.path("default", "job-llm-1"))
        job = kube.request("GET", f"{JOBS}/llm")
        admitted = (found.get("status") or {}).get("admission")
        if found["spec"].get("active", True) and not admitted:
            if (job.get("status") or {}).get("active"):
                return  # its pods are not gone yet
            flavor = next(
                name
                for name in ("old", "new")
                if not kube.request("GET", f"{self.flavor.path()}/{name}")["spec"].get("nodeTaints")
            )
            self.admit(kube, {"podSetAssignments": [{"name": "main", "flavors": {"nvidia.com/gpu": flavor}}]})
            self.switch(kube, flavor, {"suspend": False}, {"pool": flavor})
        elif not found["spec"].get("active", True) and admitted:
            self.switch(kube, "", {"suspend": True}, None)
            self.admit(kube, None)

    def admit(self, kube, admission):
        body = {"status": {"admission": admission}}
        kube.request("PATCH", self.workload.path("default", "job-llm-1"), body=body, content_type=MERGE_PATCH)

    def switch(self, kube, flavor, spec, selector):
        self.switched.append(flavor)
        template = {"template": {"spec": {"nodeSelector": selector}}}
        for each in (template, spec) if flavor else (spec,):
            kube.request("PATCH", f"{JOBS}/llm", body={"spec": each}, content_type=MERGE_PATCH)


def taints(kube, version="v1beta1"):
    spec = kube.request("GET", f"{at(FLAVOR, version).path()}/old")["spec"]
    return [t["key"] for t in spec.get("nodeTaints") or ()]


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_a_gang_that_kueue_admits_leaves_and_comes_back_on_the_targets_flavour(
    kube, pools, operate, fast_clock, version
):
    kueue = Kueue(version)
    kueue.set_up(kube, pools)
    kueue.submit(kube, pools)
    operate(kueue.step)
    pools.until_ready(2)
    open_new(pools)

    report = move(kube, drain(), OLD, NEW, "r1", fast_clock, lambda _: None)

    assert report.ok, report.to_dict()
    assert kueue.switched == ["old", "", "new"]
    assert report.tally.sent == 0
    assert homes(pools) == set(NEW)
    path = kueue.workload.path("default", "job-llm-1")
    assert PRIOR not in kube.request("GET", path)["metadata"].get("annotations", {})
    assert taints(kube, version) == [FENCE_TAINT]
    assert "resourceflavor old is open again" in forget_moved(kube, "r1")[0]
    assert taints(kube, version) == []


def test_a_move_that_is_broken_off_opens_the_old_flavour_and_the_gang_goes_back(kube, pools, operate, fast_clock):
    kueue = Kueue("v1beta1")
    kueue.set_up(kube, pools)
    kueue.submit(kube, pools)
    operate(kueue.step)
    pools.until_ready(2)
    open_new(pools)

    def break_off(line):
        if "starting again" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        move(kube, drain(), OLD, NEW, "r1", fast_clock, break_off)

    assert taints(kube) == []
    assert restore(kube, "r1") == ()
    pools.until_ready(2)
    assert homes(pools) == set(OLD)


def obj(kind, name, spec=None, *, api="kueue.x-k8s.io/v1beta1", namespace="d", **meta):
    where = {"namespace": namespace} if namespace else {}
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, "uid": name, **where, **meta},
        "spec": spec or {},
    }


def kueue_of(flavors, *, local=None, cluster=None, inactive="", gone=""):
    """A queue of those flavours; `inactive` and `gone` name a kind that says it is not active, or is not there."""
    local = {"clusterQueue": "research", **(local or {})}
    found = [
        obj("LocalQueue", "q", local),
        obj("ClusterQueue", "research", cluster_queue([n for n, _ in flavors], **(cluster or {})), namespace=""),
        *(obj("ResourceFlavor", name, spec, namespace="") for name, spec in flavors),
    ]
    active = {"conditions": [{"type": "Active", "status": "False", "reason": "FlavorNotFound"}]}
    return [
        {**raw, "status": active if raw["kind"] == inactive else {}}
        for raw in found
        if gone not in (raw["kind"], raw["metadata"]["name"])
    ]


def job_of(name, node="old-0", *, ranks=1, alive=None, own=None, **pod):
    """A job that is admitted to flavour `old`, with its pods."""
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": name, "controller": True}
    wanted = {"completionMode": "Indexed", "parallelism": ranks}
    job = obj("Job", name, wanted, api="batch/v1", labels={QUEUE: "q"})
    template = {"spec": {"nodeSelector": own or {}}}
    stands = obj("Workload", f"job-{name}", {"queueName": "q", "podSets": [{"template": template}]})
    stands["metadata"]["ownerReferences"] = [reference]
    stands["status"] = {"admission": {"podSetAssignments": [{"name": "main", "flavors": {GPU: "old"}}]}}
    container = {"name": "c", "resources": {"limits": {GPU: "8"}}}
    spec = {"nodeName": node, "containers": [container], "nodeSelector": {**(own or {}), "pool": "old"}, **pod}
    pods = [
        obj("Pod", f"{name}-{i}", spec, api="v1", ownerReferences=[reference])
        for i in range(ranks if alive is None else alive)
    ]
    return [job, stands, *({**p, "status": {"phase": "Running"}} for p in pods)]


def node_of(name, **labels):
    return obj("Node", name, api="v1", namespace="", labels={"pool": name.split("-")[0], "gpu": "h200", **labels})


def gang_of(*, queue=None, flavors=(), own=None, known=True):
    """A job of two ranks that is admitted to flavour `old`, and a snapshot of it."""
    kueue = kueue_of(flavors, local=queue, cluster=queue) if known else []
    snapshot = of_objects([*job_of("llm", ranks=2, own=own), node_of("old-0"), *kueue])
    (gang,) = find_gangs(snapshot, Drain(), ["old-0"])
    return gang, snapshot


TARGET = TargetShape(labels={"pool": "new", "gpu": "h200"}, nodes=2, open_labels=False)
LEADS = (("old", {"nodeLabels": {"pool": "old"}}), ("new", {"nodeLabels": {"pool": "new"}}))


def blocks(gang, snapshot, target=TARGET):
    found = [f for f in (pinned(gang, target),) if f] + judge_gang(gang, snapshot, target)
    return [f for f in found if f.level == "block"]


def test_labels_that_kueue_has_put_on_the_pods_do_not_pin_them():
    gang, snapshot = gang_of(flavors=LEADS)
    assert blocks(gang, snapshot) == []
    assert held_flavors(gang, TARGET) == ["old"]


def test_what_its_owner_asks_for_himself_pins_it():
    gang, snapshot = gang_of(flavors=LEADS, own={"pool": "old"})
    assert blocks(gang, snapshot)[0].code == "gang-pinned"


def test_a_flavour_that_leads_to_both_pools_is_left_open():
    gang, snapshot = gang_of(flavors=[("old", {"nodeLabels": {"gpu": "h200"}})])
    assert blocks(gang, snapshot) == []
    assert held_flavors(gang, TARGET) == []


@pytest.mark.parametrize(
    ("why", "changed"),
    [
        ("no flavour of cluster queue research leads to the target: old (pool=old)", {"flavors": LEADS[:1]}),
        ("admits nothing (stopPolicy Hold)", {"flavors": LEADS, "queue": {"stopPolicy": "Hold"}}),
        (
            "no flavour",
            {"flavors": [LEADS[0], ("new", {**LEADS[1][1], "nodeTaints": [{"key": "k", "effect": "NoSchedule"}]})]},
        ),
    ],
    ids=["no flavour", "stopped", "tainted"],
)
def test_a_gang_that_kueue_would_not_start_again_is_not_stopped(why, changed):
    (found,) = blocks(*gang_of(**changed))
    assert found.code == "gang-without-flavor"
    assert why in found.observed


def test_a_quota_that_is_too_small_holds_a_gang_unless_a_cohort_may_lend_more():
    small = {"resourceGroups": cluster_queue(("old", "new"), quota="8")["resourceGroups"]}
    (found,) = blocks(*gang_of(flavors=LEADS, queue=small))
    assert "new has 8 nvidia.com/gpu free, 16 are needed" in found.observed
    assert blocks(*gang_of(flavors=LEADS, queue={**small, "cohort": "all"})) == []


def test_a_gang_whose_queue_could_not_be_read_is_not_stopped():
    (found,) = blocks(*gang_of(flavors=LEADS, known=False))
    assert found.code == "queue-unread"


def judged(objects, *, nodes=("old-0", "old-1")):
    """All that the plan finds out about the gangs on the nodes, as (level, code, observed)."""
    snapshot = of_objects([*(node_of(n) for n in nodes), *objects])
    found = plan_move(snapshot, Drain(), nodes, TARGET).findings
    return [(f.level, f.code, f.observed) for f in found if f.code in ("gang-without-flavor", "queue-unread")]


@pytest.mark.parametrize(
    ("more", "code", "why"),
    [
        ({"inactive": "ClusterQueue"}, "gang-without-flavor", "its cluster queue admits nothing, it is not active"),
        ({"inactive": "LocalQueue"}, "gang-without-flavor", "its queue admits nothing, it is not active"),
        ({"gone": "ClusterQueue"}, "queue-unread", "clusterqueue research is not there"),
        ({"gone": "new"}, "queue-unread", "resourceflavor new is not there"),
        ({"cluster": {"covers": "cpu"}}, "gang-without-flavor", "covers no nvidia.com/gpu"),
    ],
)
def test_a_queue_that_would_admit_nothing_is_seen_before_the_stop(more, code, why):
    (found,) = judged([*job_of("llm"), *kueue_of(LEADS, **more)])
    assert found[:2] == ("block", code)
    assert why in found[2]


def test_quota_is_judged_for_all_gangs_that_leave_and_with_all_their_pods():
    queue = kueue_of(LEADS, cluster={"quota": "8"})
    assert judged([*job_of("a"), *queue]) == []
    ((_, code, why),) = judged([*job_of("a"), *job_of("b", "old-1"), *queue])
    assert code == "gang-without-flavor"
    assert "new has 8 nvidia.com/gpu free, of which others that move before take 8, 8 are needed" in why
    ((_, _, why),) = judged([*job_of("a", ranks=2, alive=1), *queue])
    assert "16 are needed" in why


@pytest.mark.parametrize("field", ["flavorsUsage", "flavorsReservation"])
def test_quota_that_is_used_or_reserved_is_not_free(field):
    queue = kueue_of(LEADS)
    cluster = next(raw for raw in queue if raw["kind"] == "ClusterQueue")
    cluster["status"][field] = [{"name": "new", "resources": [{"name": GPU, "total": "12"}]}]
    ((_, _, why),) = judged([*job_of("a"), *queue])
    assert "new has 4 nvidia.com/gpu free, 8 are needed" in why


@pytest.mark.parametrize("where", ["pod", "flavor"])
def test_a_gang_that_our_taint_does_not_keep_from_the_source_is_not_stopped(where):
    anything = {"tolerations": [{"operator": "Exists"}]}
    old = (LEADS[0][0], {**LEADS[0][1], **(anything if where == "flavor" else {})})
    ((_, code, why),) = judged([*job_of("llm", **(anything if where == "pod" else {})), *kueue_of((old, LEADS[1]))])
    assert code == "gang-without-flavor"
    assert "nothing keeps it from flavour old" in why


def test_a_flavour_of_the_target_that_another_run_holds_takes_nothing():
    held = {**LEADS[1][1], "nodeTaints": [{"key": FENCE_TAINT, "value": "other", "effect": "NoSchedule"}]}
    ((_, code, why),) = judged([*job_of("llm"), *kueue_of((LEADS[0], ("new", held)))])
    assert code == "gang-without-flavor"
    assert f"taint {FENCE_TAINT}=other" in why


def test_every_flavour_of_the_source_is_held_and_the_plan_says_whom_that_touches():
    by_zone = [(f"old-{z}", {"nodeLabels": {"pool": "old", "zone": z}}) for z in "ab"]
    nodes = [node_of("old-0", zone="a"), node_of("old-1", zone="b"), node_of("old-2", zone="b")]
    snapshot = of_objects([*nodes, *job_of("llm"), *job_of("two"), *kueue_of([*by_zone, LEADS[1]])])

    gang, _ = find_gangs(snapshot, Drain(), ["old-0"], ["old-0", "old-1"])
    assert held_flavors(gang, TARGET) == ["old-a", "old-b"]

    closed = [f for f in plan_move(snapshot, Drain(), ["old-0", "old-1"], TARGET).findings if f.code == "flavor-closed"]
    assert [(f.level, f.object) for f in closed] == [("warn", f"resourceflavor old-{z}") for z in "ab"]
    assert closed[1].observed.endswith("nothing new to nodes that stay: old-2")
