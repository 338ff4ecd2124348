"""Budgets, waves, windows, placement and the lanes of the engine: pure, on small models."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import Refused, Status
from infra.kube.pods import Answer, read_reply
from infra.kube.wire import quantity
from infra.model.cluster import Condition, Node, Owner, Taint, Toleration
from infra.model.record import FENCE_TAINT, PRIOR, RUN
from infra.model.spec import Drain, Waves, Window
from infra.model.workload import Budget, Pod, Requirement, Selector, Snapshot, Volume, Workload
from tasks.rules.budgets import room
from tasks.rules.fencing import cordon_patch, fence_patch, restore_patch
from tasks.rules.lanes import Lane, Rate
from tasks.rules.placement import TargetShape, place
from tasks.rules.waves import plan_move, sizes
from tasks.rules.windows import is_open, next_opening

READY = (Condition(type="Ready", status="True"),)


def owner(name="web"):
    return Owner(kind="ReplicaSet", name=name, uid=f"uid-{name}", api_version="apps/v1")


def pods(count, *, node="n1", name="web", **more):
    fields = {"phase": "Running", "ready": True, "labels": {"app": name}, "owner": owner(name), **more}
    return [
        Pod(namespace="d", name=f"{name}-{node}-{i}", uid=f"{name}-{node}-{i}", node=node, **fields)
        for i in range(count)
    ]


def budget(name="web", **more):
    return Budget(namespace="d", name=name, selector=Selector(labels={"app": name}), **more)


def nodes(*names):
    return tuple(Node(name=n, uid=n, conditions=READY) for n in names)


class TestBudgetArithmetic:
    @pytest.mark.parametrize(
        ("spec", "expected", "allowed"),
        [
            ({"max_unavailable": "50%"}, 5, 3),  # both fields round up, as the controller does
            ({"min_available": "50%"}, 5, 2),
            ({"max_unavailable": "2"}, 5, 2),
            ({"min_available": "4"}, 5, 1),
            ({"min_available": "9"}, 5, 0),
        ],
    )
    def test_headroom_is_what_the_controller_would_write(self, spec, expected, allowed):
        assert room(budget(**spec), pods(expected)).headroom == allowed

    def test_a_status_of_an_older_spec_is_unknown(self):
        stale = budget(generation=2, observed=1, allowed=3, healthy=5, desired=2, expected=5, min_available="2")
        assert room(stale, pods(5)).allowed is None

    def test_the_numbers_of_the_server_beat_our_count(self):
        found = room(
            budget(generation=1, observed=1, allowed=1, healthy=9, desired=8, expected=9, min_available="8"), pods(3)
        )
        assert (found.allowed, found.headroom) == (1, 1)


class TestCumulativeBudget:
    def test_pods_of_one_budget_take_turns(self):
        snapshot = Snapshot(nodes=nodes("n1"), pods=tuple(pods(6)), budgets=(budget(max_unavailable="2"),))
        plan = plan_move(snapshot, Drain(), ["n1"])
        assert [p.turn for p in plan.waves[0].pods] == [1, 1, 2, 2, 3, 3]
        assert plan.waves[0].turns == 3
        assert plan.waves[0].pods[-1].waits_for == "d/web"

    def test_each_wave_starts_with_a_full_budget(self):
        snapshot = Snapshot(
            nodes=nodes("n1", "n2"),
            pods=(*pods(2), *pods(2, node="n2")),
            budgets=(budget(max_unavailable="2"),),
        )
        plan = plan_move(snapshot, Drain(), ["n1", "n2"])
        assert [w.turns for w in plan.waves] == [1, 1]

    def test_a_budget_that_spares_none_is_a_block_with_a_remedy(self):
        snapshot = Snapshot(nodes=nodes("n1"), pods=tuple(pods(2)), budgets=(budget(min_available="2"),))
        plan = plan_move(snapshot, Drain(), ["n1"])
        assert plan.blocked
        assert plan.never == ("d/web-n1-0", "d/web-n1-1")
        assert all(f.remedy for f in plan.findings)

    @given(st.integers(1, 40), st.integers(1, 10))
    def test_no_turn_takes_more_than_the_budget_allows(self, count, allowed):
        snapshot = Snapshot(nodes=nodes("n1"), pods=tuple(pods(count)), budgets=(budget(max_unavailable=str(allowed)),))
        turns = [p.turn for w in plan_move(snapshot, Drain(), ["n1"]).waves for p in w.pods]
        if allowed < count:
            assert max(turns.count(t) for t in turns) <= allowed


class TestWaves:
    @pytest.mark.parametrize(
        ("total", "waves", "done", "expected"),
        [
            (10, Waves(), 0, [1, 4, 5]),
            (30, Waves(), 0, [1, 4, 8, 16, 1]),
            (10, Waves(ramp="fixed"), 0, [1, 4, 4, 1]),
            (10, Waves(canary=0), 0, [4, 6]),
            (5, Waves(), 5, [5]),  # canary and first wave are behind us
            (7, Waves(), 3, [2, 5]),
            (0, Waves(), 0, []),
        ],
    )
    def test_sizes_follow_the_ramp_and_go_on_after_a_restart(self, total, waves, done, expected):
        assert sizes(total, waves, done) == expected

    def test_the_canary_has_low_priority_and_no_gang(self):
        job = Workload(
            kind="Job", api_version="batch/v1", namespace="d", name="llm", uid="uid-llm", indexed=True, replicas=1
        )
        ranks = pods(
            1, node="a", name="llm", owner=Owner(kind="Job", name="llm", uid="uid-llm", api_version="batch/v1")
        )
        snapshot = Snapshot(
            nodes=nodes("a", "b", "c"),
            pods=(*ranks, *pods(1, node="b", priority=1000), *pods(1, node="c")),
            workloads=(job,),
        )
        assert plan_move(snapshot, Drain(), ["a", "b", "c"]).waves[0].nodes == ("c",)


class TestWindows:
    NIGHT = Window(days=("fri",), start="22:00", duration=timedelta(hours=8), timezone="Europe/Berlin")

    @pytest.mark.parametrize(
        ("moment", "opened"),
        [
            (datetime(2026, 1, 2, 20, 59, tzinfo=UTC), False),  # Friday 21:59 in Berlin
            (datetime(2026, 1, 2, 21, 0, tzinfo=UTC), True),
            (datetime(2026, 1, 3, 4, 59, tzinfo=UTC), True),  # past midnight: still Friday's window
            (datetime(2026, 1, 3, 5, 0, tzinfo=UTC), False),
        ],
    )
    def test_a_window_is_read_in_its_own_zone_and_runs_past_midnight(self, moment, opened):
        assert is_open([self.NIGHT], moment) is opened

    def test_the_next_opening_is_told(self):
        assert next_opening([self.NIGHT], datetime(2026, 1, 3, 12, tzinfo=UTC)) == datetime(2026, 1, 9, 21, tzinfo=UTC)

    def test_no_windows_are_always_open(self):
        assert is_open([], datetime(2026, 1, 1, tzinfo=UTC))

    def test_a_zone_that_does_not_exist_is_refused(self):
        with pytest.raises(ValueError, match="IANA"):
            Window(start="22:00", duration=timedelta(hours=1), timezone="Mars/Base")


class TestTarget:
    SHAPE = TargetShape(
        labels={"pool": "new", "topology.kubernetes.io/zone": "z2"},
        taints=(Taint(key="nvidia.com/gpu", value="present"),),
        allocatable={"nvidia.com/gpu": 8, "cpu": 64000},
        nodes=2,
    )
    TOLERATES = (Toleration(key="nvidia.com/gpu", operator="Exists"),)

    def codes(self, **more):
        fields = {"tolerations": self.TOLERATES, **more}
        volumes = (
            Volume(
                namespace="d",
                claim="far",
                affinity=((Requirement(key="topology.kubernetes.io/zone", operator="In", values=("z1",)),),),
            ),
            Volume(
                namespace="d",
                claim="near",
                affinity=((Requirement(key="topology.kubernetes.io/zone", operator="In", values=("z2",)),),),
            ),
        )
        snapshot = Snapshot(nodes=nodes("n1"), pods=tuple(pods(1, **fields)), volumes=volumes)
        return [f.code for f in plan_move(snapshot, Drain(), ["n1"], self.SHAPE).findings]

    @pytest.mark.parametrize(
        ("pod", "code"),
        [
            ({"tolerations": ()}, "target-taint"),
            ({"node_selector": {"pool": "old"}}, "pinned"),
            ({"affinity": ((Requirement(key="pool", operator="In", values=("old",)),),)}, "pinned"),
            ({"affinity": ((Requirement(key="metadata.name", operator="In", values=("n1",), field=True),),)}, "pinned"),
            ({"node_selector": {"kubernetes.io/hostname": "n1"}}, "pinned"),
            ({"requests": {"nvidia.com/gpu": 16}}, "target-resource"),
            ({"requests": {"vpc.amazonaws.com/efa": 1}}, "target-resource"),
            ({"claims": ("far",)}, "zone-bound-volume"),
        ],
    )
    def test_what_cannot_run_there_is_seen_before(self, pod, code):
        assert self.codes(**pod) == [code]

    @pytest.mark.parametrize(
        "pod",
        [
            {},
            {"node_selector": {"pool": "new"}},
            {"node_selector": {"example.com/team": "a"}},  # a label that the pool may yet get
            {"requests": {"nvidia.com/gpu": 8, "cpu": 1000}},
            {"claims": ("near",)},
        ],
    )
    def test_what_fits_is_not_blamed(self, pod):
        assert self.codes(**pod) == []

    def test_a_pod_that_tolerates_all_is_told_to_come_back(self):
        assert self.codes(tolerations=(Toleration(operator="Exists"),)) == ["tolerates-fence"]

    @given(st.lists(st.integers(1, 8), max_size=12), st.integers(0, 6))
    def test_what_is_placed_fits_its_node(self, sizes_, count):
        free = [{"nvidia.com/gpu": 8, "pods": 4} for _ in range(count)]
        gang = [
            Pod(namespace="d", name=f"p{i}", uid=str(i), requests={"nvidia.com/gpu": s}) for i, s in enumerate(sizes_)
        ]
        homeless = place(gang, free)
        assert all(f["nvidia.com/gpu"] >= 0 and f["pods"] >= 0 for f in free)
        placed = sum(sizes_) - sum(p.requests["nvidia.com/gpu"] for p in homeless)
        assert placed == sum(8 - f["nvidia.com/gpu"] for f in free)


NODE = {
    "metadata": {"name": "n", "labels": {"pool": "old", RUN: "from-before"}, "annotations": {"a": "b"}},
    "spec": {"taints": [{"key": "t", "effect": "NoSchedule"}]},
}


class TestFence:
    @staticmethod
    def apply(raw, patch):
        """RFC 7386, enough of it."""
        if not isinstance(patch, dict):
            return patch
        found = dict(raw) if isinstance(raw, dict) else {}
        for key, value in patch.items():
            if value is None:
                found.pop(key, None)
            else:
                found[key] = TestFence.apply(found.get(key), value)
        return found

    @pytest.mark.parametrize("unschedulable", [False, True])
    @pytest.mark.parametrize("steps", [[fence_patch], [cordon_patch], [fence_patch, cordon_patch]])
    def test_what_was_changed_is_put_back_exactly(self, steps, unschedulable):
        before = {**NODE, "spec": {**NODE["spec"], **({"unschedulable": True} if unschedulable else {})}}
        raw = before
        for step in steps:
            raw = self.apply(raw, step(raw, "r1"))
            assert step(raw, "r1") is None
        assert self.apply(raw, restore_patch(raw, "r1")) == before

    def test_what_others_changed_since_is_left_to_them(self):
        raw = self.apply(NODE, fence_patch(NODE, "r1"))
        raw["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/scale-down-disabled"] = "by-hand"
        raw["spec"]["taints"] = [*raw["spec"]["taints"], {"key": "later", "effect": "NoSchedule"}]
        after = self.apply(raw, restore_patch(raw, "r1"))
        assert after["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/scale-down-disabled"] == "by-hand"
        assert [t["key"] for t in after["spec"]["taints"]] == ["t", "later"]

    def test_a_cordon_of_somebody_else_stays_when_it_came_before_ours_whenever_that_was(self):
        fenced = self.apply(NODE, fence_patch(NODE, "r1"))
        theirs = self.apply(fenced, {"spec": {"unschedulable": True}})
        raw = self.apply(theirs, cordon_patch(theirs, "r1"))
        assert cordon_patch(raw, "r1") is None
        after = self.apply(raw, restore_patch(raw, "r1"))
        assert after == {**NODE, "spec": {**NODE["spec"], "unschedulable": True}}

    def test_our_own_cordon_is_taken_off_however_often_it_was_put_back(self):
        raw = self.apply(NODE, fence_patch(NODE, "r1"))
        for _ in range(2):
            raw = self.apply(raw, cordon_patch(raw, "r1"))
            raw = self.apply(raw, {"spec": {"unschedulable": None}})  # somebody takes it off
        raw = self.apply(raw, cordon_patch(raw, "r1"))
        assert self.apply(raw, restore_patch(raw, "r1")) == NODE

    def test_a_node_of_another_run_is_refused_by_name(self):
        raw = self.apply(NODE, fence_patch(NODE, "r1"))
        with pytest.raises(Refused, match="run r1"):
            fence_patch(raw, "r2")

    def test_a_fence_is_a_taint_that_ends_nothing(self):
        patch = fence_patch(NODE, "r1")
        assert patch["spec"]["taints"][-1] == {"key": FENCE_TAINT, "value": "r1", "effect": "NoSchedule"}
        assert PRIOR in patch["metadata"]["annotations"]


class TestLane:
    def seen(self, allowed, *disrupted, version="1"):
        return budget(allowed=allowed, disrupted=disrupted, resource_version=version)

    def test_one_eviction_is_in_flight(self):
        lane = Lane(key="b")
        lane.see(self.seen(5))
        lane.send("p1")
        assert not lane.ready(0.0)

    def test_a_late_status_is_not_spent_twice(self):
        lane = Lane(key="b")
        lane.see(self.seen(2))
        for name in ("p1", "p2"):
            lane.send(name)
            lane.settle(0.0, charged=True)
        assert not lane.ready(0.0)
        lane.see(self.seen(1, "p1"))  # the event of the first, overtaken by the answer to the second
        assert not lane.ready(0.0)
        lane.see(self.seen(3, "p2"))
        assert lane.ready(0.0)

    def test_a_status_that_comes_before_the_answer_counts(self):
        lane = Lane(key="b")
        lane.see(self.seen(2))
        lane.send("p1")
        lane.see(self.seen(1, "p1"))
        lane.settle(0.0, charged=True)
        assert lane.left(0.0) == 1

    def test_after_a_refusal_only_a_new_status_or_time_opens(self):
        lane = Lane(key="b")
        lane.see(self.seen(1, version="7"))
        lane.send("p1")
        lane.settle(0.0, charged=False)
        lane.refuse(0.0, "7")
        lane.see(self.seen(1, version="7"))
        assert not lane.ready(1.0)
        assert lane.ready(11.0)
        lane.see(self.seen(1, version="8"))
        assert lane.ready(1.0)

    def test_an_uncounted_budget_allows_nothing(self):
        lane = Lane(key="b")
        lane.see(budget(allowed=3, generation=2, observed=1))
        assert lane.left(0.0) == 0


class TestRate:
    def test_the_rate_is_kept_over_a_second(self):
        rate = Rate(limit=50)
        sent = sum(rate.take(i / 1000) for i in range(1000))
        assert 45 <= sent <= 56

    def test_the_servers_own_429_halves_it_and_pauses(self):
        rate = Rate(limit=50)
        rate.take(0.0)
        rate.slow_down(0.0, retry_after=1.0)
        assert not any(rate.take(t / 100) for t in range(99))
        sent = sum(rate.take(1.0 + i / 1000) for i in range(1000))
        assert sent < 45


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (Status(code=404, reason="NotFound"), Answer.GONE),
        (Status(code=404, message="default backend - 404"), Answer.ERROR),
        (Status(code=409, message="Precondition failed: UID in precondition: a, UID in object meta: b"), Answer.GONE),
        (
            Status(code=409, message="the UID in the precondition (a) does not match the UID in record (b)"),
            Answer.GONE,
        ),
        (Status(code=409, message="the object has been modified"), Answer.ERROR),
        (
            Status(code=409, message='Operation cannot be fulfilled on pods "fluid-0": the object has been modified'),
            Answer.ERROR,
        ),
        (
            Status(code=403, message="DisruptedPods map too big", details={"kind": "poddisruptionbudget"}),
            Answer.UNCOUNTED,
        ),
        (
            Status(code=429, message='admission webhook "evict.kubevirt.io" denied the request: migrating'),
            Answer.LATER,
        ),
        (Status(code=403, message='admission webhook "db.example" denied the request: primary'), Answer.DENIED),
        (
            Status(code=422, message="ValidatingAdmissionPolicy 'keep' with binding 'keep' denied request: no"),
            Answer.DENIED,
        ),
        (Status(code=429, causes=({"reason": "DisruptionBudget", "message": "needs 1"},)), Answer.REFUSED),
        (Status(code=429, causes=({"reason": "DisruptionBudget"},), retry_after=10), Answer.UNCOUNTED),
        (Status(code=429, retry_after=1), Answer.BUSY),
        (Status(code=403, causes=({"reason": "NamespaceTerminating"},)), Answer.NAMESPACE_ENDING),
        (Status(code=403, message="pods/eviction is forbidden"), Answer.FORBIDDEN),
        (Status(code=500, message="This pod has more than one PodDisruptionBudget, which …"), Answer.TWO_BUDGETS),
        (Status(code=500, message="etcd"), Answer.ERROR),
        (Status(code=504), Answer.ERROR),
        (Status(code=400), Answer.INVALID),
    ],
)
def test_every_refusal_is_told_apart(status, answer):
    assert read_reply(status).answer is answer


@pytest.mark.parametrize(
    ("text", "value"), [("500m", 0.5), ("2Gi", 2 << 30), ("1e3", 1000), ("8", 8), ("1.5", 1.5), ("1M", 1e6), ("x", 0)]
)
def test_quantities(text, value):
    assert quantity(text) == value
