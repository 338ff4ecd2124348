"""Waves, windows and re-homing as pure rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from infra.kube.read import of_objects
from infra.model.spec import Waves, Window
from tasks.rules.replicas import first_replicas
from tasks.rules.waves import order_nodes, sizes
from tasks.rules.windows import is_open, next_opening


def at(text):
    return datetime.fromisoformat(text).astimezone(UTC)


class TestWindows:
    NIGHT = Window(start="22:00", duration=timedelta(hours=8), timezone="Europe/Berlin")

    @pytest.mark.parametrize(
        ("opens", "closes"),
        [
            ("2026-03-28T22:00:00+01:00", "2026-03-29T07:00:00+02:00"),  # an hour is left out
            ("2026-10-24T22:00:00+02:00", "2026-10-25T05:00:00+01:00"),  # an hour comes twice
            ("2026-06-10T22:00:00+02:00", "2026-06-11T06:00:00+02:00"),
        ],
    )
    def test_a_window_is_as_long_as_it_says_when_the_clocks_change(self, opens, closes):
        opening, closing, moment = at(opens), at(closes), timedelta(seconds=1)
        assert next_opening([self.NIGHT], opening - moment) == opening
        assert not is_open([self.NIGHT], opening - moment)
        assert is_open([self.NIGHT], opening)
        assert is_open([self.NIGHT], closing - moment)
        assert not is_open([self.NIGHT], closing)

    def test_an_opening_that_the_clocks_leave_out_comes_at_its_distance_from_midnight(self):
        window = Window(start="02:30", duration=timedelta(hours=1), timezone="Europe/Berlin", days=("sun",))
        assert next_opening([window], at("2026-03-29T00:00:00+01:00")) == at("2026-03-29T03:30:00+02:00")

    def test_an_opening_that_comes_twice_counts_once(self):
        window = Window(start="02:30", duration=timedelta(minutes=30), timezone="Europe/Berlin")
        first = at("2026-10-25T02:30:00+02:00")
        assert next_opening([window], at("2026-10-25T00:00:00+02:00")) == first
        assert next_opening([window], first) == at("2026-10-26T02:30:00+01:00")


class TestSizes:
    def test_a_canary_then_a_fixed_or_a_doubling_ramp(self):
        assert sizes(12, Waves(canary=1, size=3, ramp="fixed")) == [1, 3, 3, 3, 2]
        assert sizes(12, Waves(canary=1, size=2, ramp="double")) == [1, 2, 4, 5]
        assert sizes(5, Waves(canary=0, size=2, ramp="fixed")) == [2, 2, 1]

    @pytest.mark.parametrize("done", range(13))
    @pytest.mark.parametrize("ramp", ["fixed", "double"])
    def test_a_run_that_goes_on_makes_no_wave_larger_than_the_first_time(self, done, ramp):
        waves = Waves(canary=1, size=2, ramp=ramp)
        whole, rest = sizes(12, waves), sizes(12 - done, waves, done)
        assert sum(rest) == 12 - done
        assert max(rest, default=0) <= max(whole)

    def test_the_canary_has_work_to_prove_itself_on_and_no_gang(self):
        def pod(name, node, priority=0):
            return {
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "d", "uid": name},
                "spec": {"nodeName": node, "priority": priority, "containers": []},
                "status": {"phase": "Running"},
            }

        def node(name, block):
            labels = {"topology.k8s.aws/network-node-layer-3": block}
            return {"kind": "Node", "metadata": {"name": name, "uid": name, "labels": labels}, "spec": {}}

        snapshot = of_objects(
            [
                node("empty", "a"), node("urgent", "a"), node("b2", "b"), node("a2", "a"), node("b1", "b"),
                pod("p1", "urgent", 1000), pod("p2", "b2"), pod("p3", "a2"), pod("p4", "b1"),
            ]
        )  # fmt: skip
        assert order_nodes(["empty", "urgent", "b2", "a2", "b1"], snapshot) == ["a2", "b1", "b2", "urgent", "empty"]


def test_sets_whose_failover_nobody_waits_for_are_not_moved_first():
    def pod(name, kind, node="old", api="v1", **labels):
        owner = {"apiVersion": api, "kind": kind, "name": kind, "uid": kind, "controller": True}
        conditions = [{"type": "Ready", "status": "True"}]
        return {
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "d", "uid": name, "labels": labels, "ownerReferences": [owner]},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": "Running", "conditions": conditions},
        }

    snapshot = of_objects(
        [
            pod("rs-0", "ReplicaSet", api="apps/v1"), pod("rs-1", "ReplicaSet", api="apps/v1"),
            pod("job-0", "Job", api="batch/v1"), pod("job-1", "Job", api="batch/v1"),
            pod("ray-0", "RayCluster", api="ray.io/v1"), pod("ray-1", "RayCluster", api="ray.io/v1"),
            pod("spread-0", "StatefulSet", api="apps/v1"), pod("spread-1", "StatefulSet", "new", api="apps/v1"),
            pod("pg-1", "Cluster", api="postgresql.cnpg.io/v1", role="primary"),
            pod("pg-2", "Cluster", api="postgresql.cnpg.io/v1", role="replica"),
            pod("pg-3", "Cluster", api="postgresql.cnpg.io/v1", role="replica"),
        ]
    )  # fmt: skip
    assert [p.name for p in first_replicas(snapshot, ["old"])] == ["pg-3"]
