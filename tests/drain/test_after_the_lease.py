"""A lease that is lost at any line that a move says: from then on it writes nothing, whatever it was about to do."""

from __future__ import annotations

import pytest

from infra.errors import PoolshiftError, Refused
from infra.kube import leases, records
from infra.kube.api import Kube
from infra.kube.lines import Lines
from infra.model.record import Step, StepRecord, StepState
from infra.model.spec import Drain, MigrationSpec
from tasks.drain import move
from tasks.run import Done, Run, perform
from tasks.steering import Steer

DRAIN = Drain.model_validate({"waves": {"size": 1}})
OLD, NEW = ("old-0", "old-1"), ("new-0", "new-1")
# Room is kept, the first wave cordoned, a replica started, a checkpoint asked for, the gang stopped, the last wave.
LINES = (0, 1, 2, 3, 5, 8)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(leases, "RENEW_EVERY", 0.1)


@pytest.fixture
def pools(build, kubelet):
    for name in OLD:
        build.node(name, "old")
    for name in NEW:
        build.node(name, "new", unschedulable=True)
    build.deployment("web", 4, budget={"maxUnavailable": 2})
    build.deployment("single", 1)
    build.job("train", 2, gpus=4)
    build.until_ready(7)
    for name in NEW:
        build.uncordon(name)
    return build


@pytest.fixture
def writes(monkeypatch):
    """What the move sends that is no read, over the client's connections and over those of a drain."""
    sent = []

    def note(owner, name, kube_of):
        send = getattr(owner, name)

        def noted(this, method, path, *args, **more):
            if method != "GET" and kube_of(this).barred.__name__ == "barred":  # others write too, unguarded
                sent.append(f"{method} {path}")
            return send(this, method, path, *args, **more)

        monkeypatch.setattr(owner, name, noted)

    note(Kube, "open", lambda kube: kube)
    note(Lines, "send", lambda lines: lines._kube)
    return sent


@pytest.mark.parametrize("line", LINES)
def test_nothing_is_written_after_it(line, kube, pools, fast_clock, checkpointing, writes):
    said, before = [], []

    def barred():
        return "taken over by r1/elsewhere" if before else ""

    def say(text):
        said.append(text)
        if len(said) == line + 1:
            before.append(len(writes))

    with checkpointing("train", fast_clock):
        report = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, say, steer=Steer(barred=barred))

    assert writes[before[0] :] == [], said
    assert before[0] > 0
    assert "the lease is lost: taken over by r1/elsewhere" in report.reason


@pytest.mark.parametrize("fails", [False, True], ids=["its step ends well", "its step fails"])
def test_whoever_has_lost_it_does_not_say_how_a_step_stands_over_whoever_took_it(kubeconfig, kube, fails):
    source, target = ({"kind": "external", "name": name, "selector": {"pool": name}} for name in ("old", "new"))
    given = {"name": "r1", "source": source, "target": target, "cluster": {"kubeconfig": kubeconfig}}
    run = Run.open(MigrationSpec.model_validate(given))
    run.record()
    theirs = StepRecord(step=Step.MIGRATE, state=StepState.DONE, started="2026-11-30T16:00:00Z", summary="by another")

    def work(_):
        path = f"/apis/coordination.k8s.io/v1/namespaces/poolshift/leases/{held.name}"
        kube.delete(path)
        while not leases.lost():
            held.stop.wait(0.02)
        records.write_step(kube, "r1", theirs)
        if fails:
            raise PoolshiftError("node a", "is gone")
        return Done(summary="mine")

    error, said = (PoolshiftError, "node a") if fails else (Refused, "deleted by somebody")
    with leases.hold(run.kube, ["eks/x"], "r1") as (held,), pytest.raises(error, match=said):
        perform(run, Step.MIGRATE, work)
    assert records.read(kube, "r1").steps[Step.MIGRATE].summary == "by another"
