"""The end of an emptying: at its deadline and after an error nothing is sent any more that no worker has begun."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from infra.clock import SystemClock
from infra.kube.view import View
from tasks.drain import DrainOptions, drain_nodes
from tasks.evict import Evictor
from tasks.rules.outcome import End, Limits
from tasks.rules.sentences import LEAVES

HOUR = timedelta(hours=1)
SPAN = timedelta(seconds=1)
PODS, WORKERS = 40, 2


@pytest.fixture
def slow(build, kubelet, kube):
    """A cluster whose server needs a while for each eviction, so that many are handed out and not begun."""
    build.node("old-0")
    build.deployment("web", PODS)
    build.until_ready(PODS)
    build.cordon("old-0")
    build.node("new-0", "new")
    asked = []

    def barred():
        asked.append(time.monotonic())
        time.sleep(0.1)
        return ""

    return kube.guarded(barred), asked


@pytest.mark.parametrize("deadline", ["wave", "until"])
def test_nothing_is_sent_past_it(slow, deadline):
    kube, _ = slow
    limits = {"pod": HOUR, "wave": HOUR, "until": datetime.now(UTC) + HOUR}
    with View(kube) as view, Evictor(kube, view, rate=500, clock=SystemClock(), workers=WORKERS) as evictor:
        limits[deadline] = SPAN if deadline == "wave" else datetime.now(UTC) + SPAN
        left = evictor.empty(["old-0"], lambda _: LEAVES, Limits(**limits))
    assert 0 < evictor.tally.sent < PODS / 2 + WORKERS
    assert len(left) >= PODS - evictor.tally.sent
    assert {(p.code, p.end) for p in left} == {("wave-deadline", End.FAILED)}


def test_a_drain_on_its_own_ends_with_its_timeout(slow):
    kube, _ = slow
    report = drain_nodes(kube, ["old-0"], DrainOptions(timeout=SPAN / 10), clock=SystemClock())
    assert report.end is End.FAILED
    assert len(report.left) > PODS / 2


def test_an_evictor_that_met_an_error_is_not_used_again(slow):
    kube, _ = slow
    limits = Limits(pod=HOUR, wave=HOUR, until=datetime.now(UTC) + HOUR)

    def stopped(_):
        raise KeyboardInterrupt

    with View(kube) as view, Evictor(kube, view, rate=500, clock=SystemClock(), workers=WORKERS) as evictor:
        with pytest.raises(KeyboardInterrupt):
            evictor.empty(["old-0"], lambda _: LEAVES, limits, on_progress=stopped)
        with pytest.raises(RuntimeError, match="make another one"):
            evictor.empty(["old-0"], lambda _: LEAVES, limits)
