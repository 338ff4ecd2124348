"""A gang that Kueue admits, on a real control plane with the real Kueue: its flavours pin pods to pools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from infra.kube.api import MERGE_PATCH
from infra.model.record import FENCE_TAINT, PRIOR
from infra.model.spec import Drain
from tasks.drain import move
from tasks.fence import unfence
from tasks.gangs import forget_moved
from tests.real.gang_pools import NEW, OLD, POOL, add_pools, homes, pod_template, until
from tests.real.operators import running

pytestmark = [pytest.mark.real, pytest.mark.slow]
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
WORKLOADS = f"{KUEUE}/namespaces/default/workloads"
WAY = {"via": "exec", "command": ["checkpoint"]}


@pytest.fixture(scope="module")
def kueue(stage: Callable[..., Any]) -> Iterator[Any]:
    """Two flavours, the old pool's first: what fits there is admitted there."""
    pools = stage("healthy", "eks", "real")
    add_pools(pools)
    with running("kueue", pools.kube, pools.kubeconfig):
        kube = pools.kube
        for name in ("gpu-a", "gpu-b"):
            create(kube, "resourceflavors", name, {"nodeLabels": {POOL: name}})
        create(kube, "clusterqueues", "research", {"namespaceSelector": {}, "resourceGroups": [group(16, 16)]})
        create(kube, "namespaces/default/localqueues", "team", {"clusterQueue": "research"})
        yield kube


def create(kube: Any, collection: str, name: str, spec: dict[str, Any]) -> None:
    kind = {"resourceflavors": "ResourceFlavor", "clusterqueues": "ClusterQueue"}.get(collection, "LocalQueue")
    body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}
    kube.request("POST", f"{KUEUE}/{collection}", body=body)


def group(old: int, new: int) -> dict[str, Any]:
    flavors = [
        {"name": name, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": quota}]}
        for name, quota in (("gpu-a", old), ("gpu-b", new))
    ]
    return {"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}


def submit(kube: Any, name: str, **pod: Any) -> None:
    """A gang of two that names no pool itself, unless `pod` says so."""
    template = pod_template()
    del template["spec"]["nodeSelector"]
    template["spec"].update(pod)
    annotations = {"sandbox.poolshift.dev/checkpoint-seconds": "600"}
    meta = {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "team"}, "annotations": annotations}
    spec = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": template}
    kube.request("POST", JOBS, body={"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec})
    until(lambda: set(ranks(kube, name).values()) == set(OLD), "two ranks on the old pool")


def ranks(kube: Any, name: str) -> dict[str, str]:
    return homes(kube, f"batch.kubernetes.io/job-name={name}")


def workload(kube: Any, name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = list(kube.list(WORKLOADS))
    return next(w for w in found if w["metadata"]["ownerReferences"][0]["name"] == name)


def flavor_taints(kube: Any, name: str) -> list[str]:
    return [t["key"] for t in kube.get(f"{KUEUE}/resourceflavors/{name}")["spec"].get("nodeTaints") or ()]


def drain(**rule: Any) -> Drain:
    rule = {"namespace": "default", "checkpoint": WAY, **rule}
    return Drain.model_validate({"workloads": [rule], "waves": {"canary": 0, "size": 2}, "pod_deadline": "3m"})


def end(kube: Any, name: str, run: str) -> None:
    """The run is over, and so is the gang."""
    unfence(kube, run)
    forget_moved(kube, run)
    kube.delete(f"{JOBS}/{name}")
    until(lambda: not list(kube.list("/api/v1/namespaces/default/pods")), "its pods gone")
    until(lambda: not list(kube.list(WORKLOADS)), "its workload gone")


def test_a_gang_is_admitted_to_the_flavour_of_the_target_although_the_old_one_comes_first(kueue: Any) -> None:
    kube, said = kueue, []
    submit(kube, "llm")
    assert kube.get(f"{JOBS}/llm")["spec"]["template"]["spec"]["nodeSelector"] == {POOL: "gpu-a"}

    report = move(kube, drain(name="llm"), OLD, NEW, "r1", kube.clock, said.append)

    gang = report.waves[0].gangs[0]
    assert report.ok, (report.to_dict(), said)
    assert (gang.workload, gang.ranks) == ("job default/llm", 2)
    assert gang.checkpoint > gang.asked
    assert report.tally.sent == 0
    assert set(ranks(kube, "llm").values()) == set(NEW)
    assert kube.get(f"{JOBS}/llm")["spec"]["template"]["spec"]["nodeSelector"] == {POOL: "gpu-b"}
    stands = workload(kube, "llm")
    assert stands["status"]["admission"]["podSetAssignments"][0]["flavors"] == {"nvidia.com/gpu": "gpu-b"}
    assert PRIOR not in stands["metadata"].get("annotations", {})
    # Until the run has ended nothing else is admitted to the pool that is being left.
    assert flavor_taints(kube, "gpu-a") == [FENCE_TAINT]
    assert "resourceflavor gpu-a is open again" in forget_moved(kube, "r1")[0]
    assert flavor_taints(kube, "gpu-a") == []
    end(kube, "llm", "r1")


def test_a_gang_whose_owner_asks_for_the_old_pool_himself_is_not_stopped(kueue: Any) -> None:
    kube = kueue
    submit(kube, "pinned", nodeSelector={POOL: "gpu-a"})

    report = move(kube, drain(name="pinned"), OLD, NEW, "r2", kube.clock, lambda _: None)

    assert report.waves[0].gangs[0].code == "gang-pinned"
    assert set(ranks(kube, "pinned").values()) == set(OLD)
    assert flavor_taints(kube, "gpu-a") == []
    end(kube, "pinned", "r2")


def test_a_gang_for_which_the_queue_has_no_quota_on_the_target_is_not_stopped(kueue: Any) -> None:
    kube = kueue
    set_quota(kube, 8)
    submit(kube, "large")

    report = move(kube, drain(name="large"), OLD, NEW, "r3", kube.clock, lambda _: None)

    gang = report.waves[0].gangs[0]
    assert gang.code == "gang-without-flavor"
    assert "gpu-b has 8 nvidia.com/gpu free, 16 are needed" in gang.reason
    assert set(ranks(kube, "large").values()) == set(OLD)
    end(kube, "large", "r3")
    set_quota(kube, 16)


def set_quota(kube: Any, new: int) -> None:
    body = {"spec": {"resourceGroups": [group(16, new)]}}
    path = f"{KUEUE}/clusterqueues/research"
    kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)


def test_a_gang_that_does_not_come_up_goes_back_to_the_flavour_that_it_came_from(kueue: Any) -> None:
    kube, said = kueue, []
    submit(kube, "back")

    def break_off(line: str) -> None:
        said.append(line)
        if "starting again" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        move(kube, drain(name="back"), OLD, NEW, "r4", kube.clock, break_off)

    until(lambda: set(ranks(kube, "back").values()) == set(OLD), "two ranks on the old pool")
    assert flavor_taints(kube, "gpu-a") == []
    assert kube.get(f"{JOBS}/back")["spec"]["suspend"] is False
    end(kube, "back", "r4")
