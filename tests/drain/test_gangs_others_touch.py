"""A gang between two of our looks: its owner changes it, or the run that moves it was ended long ago."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from infra.clock import rfc3339
from infra.errors import Conflict
from infra.kube import switches
from infra.kube.api import MERGE_PATCH
from infra.kube.view import View
from infra.model.gangs import row_of
from infra.model.record import PRIOR, RUN
from infra.model.spec import Drain
from tasks.gangs import Mover, restore
from tasks.rules.outcome import End
from tests.drain.conftest import close, make_kube

NOW = datetime(2026, 11, 30, 8, tzinfo=UTC)
LWS, JOB = row_of("leaderworkerset.x-k8s.io", "LeaderWorkerSet"), row_of("batch", "Job")

POD = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
IDLE = {"parallelism": 0, "template": {"spec": POD}}


@dataclass
class Hands:
    """A clock that a test turns."""

    time: datetime = NOW

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.time += timedelta(seconds=seconds)

    def real_seconds(self, seconds):
        return 0.001


def noted(row, **more):
    root = [row.group, row.kind, "default", "llm"]
    return {"run": "r1", "stage": "new", "root": root, "version": row.version, "ranks": 0, "owners": [], **more}


@pytest.fixture
def marked(kube, build):
    """A workload without pods, marked by run r1."""

    def create(row, spec, **more):
        if row is LWS:
            build.definition(row)
        body = {"apiVersion": f"{row.group}/{row.version}", "kind": row.kind, "metadata": {"name": "llm"}}
        kube.request("POST", row.path("default"), body={**body, "spec": {**(IDLE if row is JOB else {}), **spec}})
        return switches.note(kube, row, kube.request("GET", row.path("default", "llm")), noted(row, **more))

    return create


def change(kube, row, spec):
    kube.request("PATCH", row.path("default", "llm"), body={"spec": spec}, content_type=MERGE_PATCH)


def spec_of(kube, row):
    return kube.request("GET", row.path("default", "llm"))["spec"]


def rule(row, **more):
    chosen = {"namespace": "default", "name": "llm", "kind": row.kind, "mode": "restart", **more}
    return Drain.model_validate({"workloads": [chosen]})


def go_on(kube, row, raw, drain, clock, say=lambda _: None, between=lambda: None):
    with View(kube) as view:
        mover = Mover(kube=kube, view=view, clock=clock, run="r1", off=frozenset(), limit=timedelta(minutes=5), say=say)
        work = mover.resume(row, raw, drain)
        for _ in range(400):
            try:
                next(work)
            except StopIteration as stop:
                return stop.value
            between()
            clock.sleep(10)
    raise AssertionError("it never ended")


@pytest.mark.parametrize(
    ("row", "spec", "when", "owners", "after"),
    [
        (LWS, {"replicas": 2}, "stopping", {"replicas": 4}, {"replicas": 4}),
        (LWS, {"replicas": 2}, "starting again", {"replicas": 3}, {"replicas": 3}),
        (LWS, {"replicas": 2}, "stopping", {"size": 8}, {"replicas": 2, "size": 8}),
        (JOB, {"suspend": False}, "stopping", {"activeDeadlineSeconds": 999}, {"suspend": False}),
    ],
    ids=["scaled-before-the-stop", "scaled-while-stopped", "other-field", "job"],
)
def test_what_the_owner_changes_between_our_read_and_our_write_stays(kube, marked, row, spec, when, owners, after):
    raw = marked(row, spec)
    told = []

    def owner_is_faster(line):
        if when in line and not told:
            told.append(line)
            change(kube, row, owners)

    end = go_on(kube, row, raw, rule(row), Hands(), owner_is_faster)

    assert end.end is End.DRAINED, end
    assert {key: spec_of(kube, row).get(key) for key in after} == after


@pytest.mark.parametrize(("row", "off"), [(LWS, {"replicas": 0}), (JOB, {"suspend": True})], ids=["scale", "suspend"])
def test_a_gang_that_its_owner_stops_a_moment_before_us_is_left_stopped(kube, marked, row, off):
    raw = marked(row, {"replicas": 2} if row is LWS else {})

    end = go_on(kube, row, raw, rule(row), Hands(), lambda line: change(kube, row, off) if "stopping" in line else None)

    assert (end.code, end.stopped) == ("gang-stopped", "")
    assert restore(kube, "r1")
    assert {key: spec_of(kube, row).get(key) for key in off} == off


def test_restore_leaves_a_count_that_the_owner_has_set_since(kube, marked):
    marked(LWS, {"replicas": 3}, stage="stopped", before=2)

    restore(kube, "r1")

    root = kube.request("GET", LWS.path("default", "llm"))
    assert root["spec"]["replicas"] == 3
    assert PRIOR not in root["metadata"].get("annotations", {})


def test_a_gang_that_cannot_be_put_back_does_not_keep_the_others_stopped(url, build, marked):
    kube = make_kube(url, Hands())
    home = {"at": ["template", "spec", "nodeSelector", "pool"], "was": "old", "now": "new"}
    stuck = marked(JOB, {"suspend": True}, stage="stopped", before=False, ranks=1, home=[home])
    build.pod("llm-0", "old-0", labels={JOB.pod_label: "llm"})
    for name in ("also-stuck", "other"):
        memory = noted(JOB, stage="stopped", before=False, root=["batch", "Job", "default", name])
        if name == "also-stuck":
            memory.update(home=[home])
            build.pod("also-0", "old-0", labels={JOB.pod_label: name})
        marks = {"labels": {RUN: "r1"}, "annotations": {PRIOR: json.dumps(memory)}}
        body = {"apiVersion": "batch/v1", "kind": "Job", "spec": {**IDLE, "suspend": True}}
        kube.request("POST", JOB.path("default"), body={**body, "metadata": {"name": name, **marks}})

    with pytest.raises(Conflict, match="pods are still there") as failure:
        restore(kube, "r1")

    assert {"job default/llm", "job default/also-stuck"} <= set(re.findall(r"job default/[\w-]+", str(failure.value)))
    assert kube.request("GET", JOB.path("default", "other"))["spec"]["suspend"] is False
    assert spec_of(kube, JOB)["suspend"] is stuck["spec"]["suspend"] is True
    close(kube)


def checkpoint_at(kube, moment):
    body = {"metadata": {"annotations": {"poolshift.dev/checkpointed-at": rfc3339(moment)}}}
    kube.request("PATCH", JOB.path("default", "llm"), body=body, content_type=MERGE_PATCH)


def long_ago(marked):
    two_days = NOW - timedelta(days=2)
    return marked(JOB, {}, stage="asked", asked=rfc3339(two_days), was=rfc3339(two_days - timedelta(minutes=30)))


def test_a_checkpoint_of_while_nobody_looked_is_not_the_one_asked_for(kube, marked):
    raw = long_ago(marked)
    checkpoint_at(kube, NOW - timedelta(days=1))

    end = go_on(kube, JOB, raw, rule(JOB, mode="checkpoint", max_wait="10m"), Hands())

    assert (end.code, end.stopped) == ("no-checkpoint", "")
    assert end.asked == rfc3339(NOW)
    assert not spec_of(kube, JOB).get("suspend")


def test_a_run_that_goes_on_after_days_asks_again_and_waits_its_whole_time(kube, marked):
    raw = long_ago(marked)
    checkpoint_at(kube, NOW - timedelta(days=1))
    clock = Hands()

    def saved():
        if clock.now() > NOW + timedelta(minutes=5):
            checkpoint_at(kube, NOW + timedelta(minutes=5))

    end = go_on(kube, JOB, raw, rule(JOB, mode="checkpoint", max_wait="10m"), clock, between=saved)

    assert end.end is End.DRAINED, end
    assert end.checkpoint == rfc3339(NOW + timedelta(minutes=5))
    asked = kube.request("GET", JOB.path("default", "llm"))["metadata"]["annotations"]
    assert asked["poolshift.dev/checkpoint-requested"] == rfc3339(NOW)
