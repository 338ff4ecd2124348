"""Whoever meddles with a move, or steers it: fences taken off, other people's cordons, two runs, pauses."""

from __future__ import annotations

from datetime import timedelta

import pytest

from infra.errors import Refused
from infra.kube.api import MERGE_PATCH
from infra.kube.view import View
from infra.model.record import FENCE_TAINT, PRIOR
from infra.model.spec import Drain
from tasks.drain import move, verify_empty
from tasks.evict import Evictor
from tasks.fence import unfence
from tasks.move_state import MoveState
from tasks.move_turn import await_go
from tasks.rules.outcome import End
from tasks.rules.waves import PlannedWave
from tasks.steering import Steer
from tests.drain import operating

OLD, NEW = ("old-0", "old-1", "old-2"), ("new-0", "new-1", "new-2")
DRAIN = Drain.model_validate({"waves": {"size": 1}})


@pytest.fixture
def pools(build, kubelet):
    return operating.two_pools(build, OLD, NEW)


def open_new(build):
    operating.open_new(build, NEW)


def nodes(build):
    return {n["metadata"]["name"]: n for n in build.kube.list("/api/v1/nodes")}


def taints(node):
    return [t["key"] for t in node["spec"].get("taints") or ()]


def homes(build):
    return {p["spec"].get("nodeName") for p in build.pods() if p["status"].get("phase") == "Running"}


def test_fences_and_cordons_that_somebody_takes_off_are_put_back_before_the_next_wave(kube, pools, fast_clock):
    pools.deployment("web", 6)
    pools.until_ready(6)
    pools.cordon("old-2")  # somebody's own, before us
    open_new(pools)
    said = []

    def meddle(wave):
        if wave.number == 1:
            first = next(iter(wave.nodes))
            pools.uncordon(first)
            other = next(n for n in OLD if n not in wave.nodes)
            body = {"spec": {"taints": None}}
            kube.request("PATCH", f"/api/v1/nodes/{other}", body=body, content_type=MERGE_PATCH)
            said.append(f"meddled {first} {other}")

    report = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, said.append, on_wave=meddle)

    assert report.ok, report.to_dict()
    assert verify_empty(kube, OLD) == []
    for name in OLD:
        assert nodes(pools)[name]["spec"]["unschedulable"] is True
        assert FENCE_TAINT in taints(nodes(pools)[name])
    _, first, other = next(line for line in said if line.startswith("meddled")).split()
    mended = next(line for line in said if "put back" in line)
    assert first in mended
    assert other in mended
    unfence(kube, "r1")
    after = nodes(pools)
    assert after["old-2"]["spec"]["unschedulable"] is True  # its owner's cordon stays
    assert not after["old-0"]["spec"].get("unschedulable")
    assert not any(FENCE_TAINT in taints(after[n]) or PRIOR in str(after[n]) for n in OLD)


def test_a_second_run_changes_nothing_of_the_first(kube, pools, fast_clock):
    pools.deployment("web", 3)
    pools.until_ready(3)
    open_new(pools)

    def second(wave):
        before = {n: o["metadata"]["resourceVersion"] for n, o in nodes(pools).items()}
        with pytest.raises(Refused, match="r1"):
            move(kube, DRAIN, OLD, NEW, "r2", fast_clock, lambda _: None)
        assert {n: o["metadata"]["resourceVersion"] for n, o in nodes(pools).items()} == before

    report = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, lambda _: None, on_wave=second)
    assert report.ok, report.to_dict()


def test_a_pause_holds_the_next_wave_and_a_cancellation_puts_the_rest_back(kube, pools, fast_clock):
    pools.deployment("web", 6, budget={"maxUnavailable": 3})
    pools.until_ready(6)
    open_new(pools)
    said, stands, held = [], [], []

    def paused():
        if any("): cordoning" in line for line in said) and len(held) < 40:
            held.append(len([line for line in said if "cordoning" in line]))
            return "paused by ann: lunch"
        return ""

    steer = Steer(
        paused=paused,
        cancelled=lambda: "cancelled by bob" if sum("cordoning" in line for line in said) == 2 else "",
    )
    report = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, said.append, on_progress=stands.append, steer=steer)

    assert set(held) == {1}  # no wave began while it was paused
    assert any("paused by ann: lunch" in s.wording() for s in stands)
    assert report.reason == "cancelled by bob"
    assert report.end is not End.DRAINED
    drained = {n for n, end in report.nodes.items() if end is End.DRAINED}
    assert len(drained) == 1
    after = nodes(pools)
    for name in OLD:
        untouched = name not in drained
        assert bool(after[name]["spec"].get("unschedulable")) is not untouched
        assert (FENCE_TAINT in taints(after[name])) is not untouched
    assert set(report.restored) == set(OLD) - drained


def test_a_pause_that_is_taken_back_ends_at_once_and_uses_up_no_deadline(kube, fast_clock):
    looks, began = ["paused by ann", ""], fast_clock.now()
    view = View(kube)
    work = MoveState(
        kube=kube, drain=DRAIN, source=OLD, target=NEW, run="r1", clock=fast_clock, until=began,
        view=view, evictor=Evictor(kube, view, rate=1, clock=fast_clock), steer=Steer(paused=lambda: looks.pop(0)),
        say=lambda _: None, on_wave=lambda _: None, on_progress=lambda _: None,
    )  # fmt: skip

    assert await_go(work, PlannedWave(number=1, nodes=OLD, pods=()), 1)

    passed = fast_clock.now() - began
    assert timedelta(seconds=3) <= work.until - began <= passed < timedelta(seconds=50)


def test_nothing_is_put_back_under_the_hands_of_whoever_took_over(kube, pools, fast_clock):
    pools.deployment("web", 3)
    pools.until_ready(3)
    open_new(pools)
    said = []
    steer = Steer(barred=lambda: "taken over by r1/elsewhere" if any("cordoning" in line for line in said) else "")

    report = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, said.append, steer=steer)

    assert report.restored == ()
    assert "the lease is lost: taken over by r1/elsewhere" in report.reason
    assert all(FENCE_TAINT in taints(nodes(pools)[n]) for n in OLD)


def test_one_replica_of_a_set_on_the_source_alone_moves_before_any_node_is_cordoned(kube, pools, fast_clock):
    labels = {"app": "pg"}
    body = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "pg"},
        "spec": {
            "replicas": 2,
            "serviceName": "pg",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "i"}]},
            },
        },
    }
    kube.request("POST", "/apis/apps/v1/namespaces/default/statefulsets", body=body)
    pools.budget("pg", labels, maxUnavailable=1)
    pools.until_ready(2)
    leader = {"metadata": {"labels": {"role": "primary"}}}
    kube.request("PATCH", "/api/v1/namespaces/default/pods/pg-1", body=leader, content_type=MERGE_PATCH)
    open_new(pools)
    at_first_cordon = []

    def say(line):
        if "cordoning" in line and not at_first_cordon:
            at_first_cordon.append({p["metadata"]["name"]: p["spec"].get("nodeName", "") for p in pools.pods()})

    report = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, say)

    assert report.ok, report.to_dict()
    assert at_first_cordon[0]["pg-0"].startswith("new")  # the follower, not the one that leads
    assert at_first_cordon[0]["pg-1"].startswith("old")
