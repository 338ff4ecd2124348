"""What is left of the writes of a process whose lease is lost: it takes away the Job that it has made, and no more."""

from __future__ import annotations

import pytest

from infra.clock import SystemClock
from infra.errors import Refused
from infra.kube import leases
from infra.kube.inside import post_to, run_in
from infra.model.pools import Pool, PoolState
from infra.model.spec import Validation
from infra.probes import catalogue
from tasks import pools, probes, validate

JOBS = "/apis/batch/v1/jobs"
PROBE = catalogue.transport_proof(Validation())
POOL = Pool(
    kind="external",
    name="old",
    identity="old",
    state=PoolState.ACTIVE,
    machine_type="p5en.48xlarge",
    nodes=2,
    node_selector={"pool": "old"},
    gpus={"nvidia.com/gpu": 8},
    made=("arn:old",),
)


def jobs(kube):
    return [j["metadata"]["name"] for j in kube.list(JOBS) if not j["metadata"].get("deletionTimestamp")]


@pytest.fixture
def nodes(build, kubelet, kube):
    for name in ("old-0", "old-1"):
        build.node(name, "old")
    return validate.idle(kube, POOL)


def test_a_program_in_a_pod_is_not_asked(kube):
    guarded = kube.guarded(lambda: "taken over by r2")
    with pytest.raises(Refused, match="taken over by r2"):
        post_to(guarded, "default", "web", 8080, "/checkpoint")
    with pytest.raises(Refused, match="taken over by r2"):
        run_in(guarded, "default", "web", ("checkpoint",))
    assert guarded.requests == 0


def test_no_probe_is_submitted(kube, nodes):
    with pytest.raises(Refused, match="taken over by r2"):
        probes.run(kube.guarded(lambda: "taken over by r2"), PROBE, nodes, pool=POOL, run="r1")
    assert jobs(kube) == []


def test_the_job_that_this_process_has_made_goes(kube, nodes):
    def barred():
        return "taken over by r2" if jobs(kube) else ""

    def say(line):
        assert jobs(kube), line
        raise KeyboardInterrupt

    guarded = kube.guarded(barred)
    with pytest.raises(KeyboardInterrupt):
        probes.run(guarded, PROBE, nodes, pool=POOL, run="r1", say=say)
    assert jobs(kube) == [], "it would hold its GPUs until its own deadline"


def test_a_job_that_another_process_may_have_made_stays(kube, nodes):
    """It is taken up by whoever has the lease now, as it was by us."""
    lost = []

    def say(line):
        lost.append("taken over by r2")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # killed: what it made is still there
        probes.run(_without_deletions(kube), PROBE, nodes, pool=POOL, run="r1", say=say)
    lost.clear()
    guarded = kube.guarded(lambda: "".join(lost))
    with pytest.raises(KeyboardInterrupt):
        probes.run(guarded, PROBE, nodes, pool=POOL, run="r1", say=say)
    assert len(jobs(kube)) == 1


def _without_deletions(kube):
    """A process that is killed: nothing of it comes after its last line."""
    from copy import copy

    from infra.errors import Unreachable

    class Dying(type(kube)):
        def delete(self, path, **more):
            raise Unreachable(path, "killed")

    dying = copy(kube)
    dying.__class__ = Dying
    return dying


class Cloud:
    """Counts what it is asked to change."""

    def __init__(self):
        self.asked = []

    def find(self, part):
        return POOL

    def create(self, part, run):
        self.asked.append("create")

    def delete(self, part, prove):
        prove(POOL)
        self.asked.append("delete")


@pytest.mark.parametrize(
    "change",
    [
        lambda cloud: pools.provision(cloud, POOL, "r1", SystemClock(), print),
        lambda cloud: pools.retire(cloud, POOL, SystemClock(), print),
    ],
    ids=["create", "delete"],
)
def test_no_cloud_is_asked_to_change(change, monkeypatch):
    cloud = Cloud()
    held = leases.Held(name="pool-old", holder=leases.Holder.here("r1"), taken="taken over by r2")
    monkeypatch.setattr(leases, "_HERE", [held])
    with pytest.raises(Refused, match="taken over by r2"):
        change(cloud)
    assert cloud.asked == []
