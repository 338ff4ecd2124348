"""Whatever goes wrong on the way, a gang that we have stopped runs again, and the next run goes on with it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from infra.errors import Conflict, Forbidden
from infra.kube import flavors, switches
from infra.kube.view import View
from infra.model.endings import is_over
from infra.model.gangs import row_of
from infra.model.record import PRIOR
from tasks.drain import move
from tasks.gangs import Mover, restore
from tests.drain.operating import JOBS, NEW, OLD, drain, homes, open_new, operating, two_pools
from tests.drain.refusing import refusing
from tests.drain.test_gang_kueue import FLAVOR, Kueue

JOB = row_of("batch", "Job")
ROOT = {"root": ["batch", "Job", "default", "llm"], "version": "v1", "ranks": 2}


def mark(kube, stage, **spec):
    raw = kube.request("GET", f"{JOBS}/llm")
    noted = {**ROOT, "run": "r1", "stage": stage, "owners": [raw["metadata"]["uid"]]}
    noted |= {} if stage == "new" else {"before": False, "stopped": "T"}
    switches.note(kube, JOB, raw, noted, {"spec": spec} if spec else None)


def test_a_gang_that_was_started_for_the_target_and_runs_on_the_source_is_moved_by_the_next_run(
    kube, build, kubelet, fast_clock
):
    pools = two_pools(build)
    pools.job("llm", 2, gpus=8)
    pools.until_ready(2)
    mark(kube, "started")
    pools.cordon(OLD[0])  # one rank finds no room there any more: it comes up on the target, alone
    rank = next(p for p in pools.pods() if p["spec"]["nodeName"] == OLD[0])
    open_new(pools)
    kube.delete(f"/api/v1/namespaces/default/pods/{rank['metadata']['name']}")
    pools.until(lambda: len(homes(pools)) == 2 and OLD[0] not in homes(pools), "one rank on each side")
    pools.until_ready(2)

    report = move(kube, drain(), OLD, NEW, "r1", fast_clock, lambda _: None)

    assert report.ok, report.to_dict()
    assert homes(pools) == set(NEW)
    assert PRIOR not in kube.request("GET", f"{JOBS}/llm")["metadata"].get("annotations", {})


@pytest.fixture
def held(kube, build):
    """Two flavours of Kueue that run r1 holds."""
    build.definition(FLAVOR, "Cluster")
    for name in ("a", "b"):
        body = {"apiVersion": f"{FLAVOR.group}/{FLAVOR.version}", "kind": FLAVOR.kind, "metadata": {"name": name}}
        kube.request("POST", FLAVOR.path(), body={**body, "spec": {"nodeLabels": {"pool": name}}})
        assert flavors.hold(kube, name, "r1")


def test_a_flavour_that_cannot_be_released_keeps_no_gang_stopped(kube, kube_at, url, build, held):
    build.job("llm", 2)
    mark(kube, "stopped", suspend=True)

    with (
        refusing(url, lambda method, path: method == "PATCH" and path.endswith("/a")) as door,
        pytest.raises(Forbidden, match="resourceflavors/a"),
    ):
        restore(kube_at(door), "r1")

    assert kube.request("GET", f"{JOBS}/llm")["spec"]["suspend"] is False
    assert restore(kube, "r1") == ("resourceflavor a",)


def test_flavours_that_may_not_be_seen_are_not_taken_for_released(kube, kube_at, url, build, held):
    with (
        refusing(url, lambda _, path: "resourceflavors" in path) as door,
        pytest.raises(Forbidden, match="resourceflavors"),
    ):
        restore(kube_at(door), "r1")
    assert restore(kube, "r1") == ("resourceflavor a", "resourceflavor b")


def test_a_flavour_is_held_by_one_run_and_one_that_is_gone_needs_no_hold(kube, build):
    build.definition(FLAVOR, "Cluster")
    body = {"apiVersion": f"{FLAVOR.group}/{FLAVOR.version}", "kind": FLAVOR.kind, "metadata": {"name": "old"}}
    kube.request("POST", FLAVOR.path(), body={**body, "spec": {"nodeLabels": {"pool": "old"}}})

    assert [flavors.hold(kube, "old", "r1") for _ in range(2)] == [True, False]
    with pytest.raises(Conflict, match="held by run r1"):
        flavors.hold(kube, "old", "r2")
    assert flavors.release(kube, "r2") == ()
    assert flavors.release(kube, "r1") == ("old",)
    assert flavors.hold(kube, "gone", "r1") is False


def test_a_stop_that_was_refused_is_no_stop(kube, kube_at, url, build, kubelet, fast_clock):
    pools = two_pools(build)
    pools.job("llm", 2, gpus=8)
    pools.until_ready(2)
    mark(kube, "new")

    with (
        refusing(url, lambda method, path: method == "PATCH" and path.endswith("/jobs/llm")) as door,
        View(kube) as view,
    ):
        mover = Mover(
            kube=kube_at(door),
            view=view,
            clock=fast_clock,
            run="r1",
            off=frozenset(OLD),
            limit=timedelta(minutes=5),
            say=lambda _: None,
        )
        (end,) = mover.all([mover.resume(JOB, kube.request("GET", f"{JOBS}/llm"), drain())])

    assert "not for you" in end.reason
    assert (end.stopped, end.harm) == ("", None)
    assert not kube.request("GET", f"{JOBS}/llm")["spec"].get("suspend")


def test_what_is_queued_in_kueue_while_the_pool_is_left_goes_to_the_target(
    kube, kube_at, url, build, kubelet, fast_clock
):
    pools, kueue = two_pools(build), Kueue("v1beta2")
    kueue.set_up(kube, pools)
    pools.deployment("web", 2)
    pools.until_ready(2)
    open_new(pools)
    queued = []

    with operating(kube_at, url) as operate:

        def queue_one(line):
            if "wave 1 of" in line and not queued:
                queued.append(line)
                kueue.submit(kube, pools)
                operate(kueue.step)

        report = move(kube, drain(), OLD, NEW, "r1", fast_clock, queue_one)

        assert report.ok, report.to_dict()
        pools.until_ready(4)
    assert kueue.switched == ["new"]
    assert homes(pools) <= set(NEW)


@pytest.mark.parametrize(("deployed", "over"), [("Retrying", False), ("Running", True), ("Failed", True)])
def test_a_ray_job_that_is_tried_again_has_not_ended(deployed, over):
    assert is_over({"status": {"jobStatus": "FAILED", "jobDeploymentStatus": deployed}}) is over
