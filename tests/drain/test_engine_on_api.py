from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import pytest

from infra.kube.api import Kube
from infra.kube.view import View
from tasks.drain import DrainOptions, drain_nodes, verify_empty
from tasks.emptying import AHEAD
from tasks.evict import Evictor
from tasks.rules.drain import drains_last
from tasks.rules.outcome import End, Fate, Limits, Sentence
from tasks.rules.sentences import LEAVES


def on(build, *nodes):
    return [p for p in build.pods() if p["spec"].get("nodeName") in nodes]


def two_pools(build, kubelet, old=2, new=2):
    for i in range(old):
        build.node(f"old-{i}", "old")
    for i in range(new):
        build.node(f"new-{i}", "new", unschedulable=True)


def open_pool(build, *names):
    for name in names:
        build.kube.request(
            "PATCH",
            f"/api/v1/nodes/{name}",
            body={"spec": {"unschedulable": None}},
            content_type="application/merge-patch+json",
        )


def test_drained_nodes_are_empty_and_cordoned_and_carry_no_mark(kube: Kube, kubelet, build):
    two_pools(build, kubelet)
    build.deployment("web", 6)
    build.until_ready(6)
    open_pool(build, "new-0", "new-1")

    report = drain_nodes(kube, ["old-0", "old-1"], DrainOptions())

    assert report.end is End.DRAINED, report.to_json()
    assert report.exit_code == 0
    assert verify_empty(kube, ["old-0", "old-1"]) == []
    for name in ("old-0", "old-1"):
        node = kube.request("GET", f"/api/v1/nodes/{name}")
        assert node["spec"]["unschedulable"] is True
        assert not [k for k in node["metadata"].get("annotations") or {} if k.startswith("poolshift.dev/")]
        assert not [k for k in node["metadata"].get("labels") or {} if k.startswith("poolshift.dev/")]


def test_a_budget_is_never_asked_for_more_than_it_has(kube: Kube, kubelet, build):
    two_pools(build, kubelet)
    for i in range(4):
        build.deployment(f"web-{i}", 6, budget={"maxUnavailable": "34%"})
    build.until_ready(24)
    open_pool(build, "new-0", "new-1")
    build.until(
        lambda: all(b["status"].get("disruptionsAllowed") for b in kube.list("/apis/policy/v1/poddisruptionbudgets")),
        "budgets counted",
    )

    report = drain_nodes(kube, ["old-0", "old-1"], DrainOptions())

    assert report.end is End.DRAINED, report.to_json()
    assert report.tally.refused == 0
    assert report.tally.sent == 24


def test_a_fault_of_our_own_while_asking_ends_the_drain_as_unknown_and_says_so(kube: Kube, kubelet, build):
    two_pools(build, kubelet)
    build.deployment("web", 3)
    build.until_ready(3)

    report = drain_nodes(kube, ["old-0", "old-1"], DrainOptions(grace=1 << 70))  # no JSON can hold it

    assert (report.end, report.exit_code) == (End.UNKNOWN, 4)
    assert {(p.code, p.end) for p in report.left} == {("internal-error", End.UNKNOWN)}
    assert all("TypeError: Integer exceeds 64-bit range" in p.reason for p in report.left)
    assert (len(on(build, "old-0", "old-1")), sorted(report.restored)) == (3, ["old-0", "old-1"])


@pytest.fixture
def handed_out(kube, kubelet, build, fast_clock):
    """One worker, and more evictions handed out at once than it can have begun when the first is answered."""
    kubelet.never_ends = lambda _: True
    build.node("old-0")
    for number in range(AHEAD + 1):
        build.pod(f"p-{number}", "old-0")
    build.until_ready(AHEAD + 1)
    hour = timedelta(hours=1)
    limits = Limits(pod=hour, wave=hour, until=fast_clock.now() + hour)

    @contextmanager
    def made(barred=lambda: ""):
        guarded = kube.guarded(barred)
        with View(kube) as view, Evictor(guarded, view, rate=1e6, clock=fast_clock, workers=1) as evictor:
            evictor.queues.rate.take(0.0)  # from here on there are tokens for all
            yield evictor, partial(evictor.empty, ["old-0"], lambda _: LEAVES, limits)

    return made


def leaving(build):
    return [p for p in build.pods() if p["metadata"].get("deletionTimestamp")]


def test_what_was_handed_out_ahead_and_not_begun_is_taken_back_at_a_ctrl_c(handed_out, build):
    with handed_out() as (evictor, empty):

        def cancelled():
            if evictor.tally.sent:
                raise KeyboardInterrupt
            return False

        with pytest.raises(KeyboardInterrupt):
            empty(cancelled=cancelled)

    assert evictor.tally.sent == AHEAD + 1
    assert len(leaving(build)) <= AHEAD // 2


def test_what_was_handed_out_ahead_and_not_begun_is_taken_back_at_a_cancellation(handed_out, build):
    with handed_out() as (evictor, empty):
        asked = []
        left = empty(cancelled=lambda: bool(evictor.tally.sent) and not asked.append(evictor.tally.sent))

    assert asked == [AHEAD + 1], "once it is cancelled it stays so"
    assert len(leaving(build)) == evictor.tally.sent == evictor.tally.accepted <= AHEAD // 2
    assert {(p.end, p.code) for p in left} == {(End.UNKNOWN, "cancelled")}
    assert len(left) == AHEAD + 1


def test_no_eviction_is_begun_once_the_lease_is_lost_however_many_were_handed_out(handed_out, build):
    """The worker sees it right before it sends: another process may own the pool before the loop looks again."""
    looks = []

    def barred():
        looks.append(1)
        return "taken over by r1/elsewhere" if len(looks) > 2 else ""

    with handed_out(barred=barred) as (evictor, empty):
        left = empty(cancelled=lambda: len(looks) > AHEAD)

    assert len(leaving(build)) == evictor.tally.sent == evictor.tally.accepted == 2
    assert len(left) == AHEAD + 1


def test_drivers_stay_with_those_who_do_not_leave(kube: Kube, kubelet, build, fast_clock):
    """One pod is held, one cannot be asked to leave, one leaves: only with the last does the driver go."""
    for name in ("held", "two", "free"):
        build.node(name)
        build.pod(name, name, labels={"app": name})
        build.pod(f"csi-{name}", name)
    for name in ("a", "b"):
        build.budget(name, {"app": "two"}, maxUnavailable=1)
    build.until_ready(6)
    hold = Sentence(fate=Fate.HELD, code="gang-gone", reason="of a gang that did not move")
    hour = timedelta(hours=1)
    limits = Limits(pod=hour, wave=hour, until=fast_clock.now() + hour)
    with View(kube) as view, Evictor(kube, view, rate=100, clock=fast_clock) as evictor:
        left = evictor.empty(
            ["held", "two", "free"], lambda pod: hold if pod.name == "held" else LEAVES, limits, last=drains_last
        )

    assert {p.pod.name: p.code for p in left} == {
        "held": "gang-gone",
        "csi-held": "waits-for-others",
        "two": "multiple-pdb",
        "csi-two": "waits-for-others",
    }
    assert {p["metadata"]["name"] for p in build.pods()} == {p.pod.name for p in left}
