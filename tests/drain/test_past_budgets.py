"""How long a pod may wait behind its budget, and when it is deleted past it: counted from refusals, one at a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from infra.kube.pods import Answer, Reply
from infra.model.cluster import Owner
from infra.model.workload import Budget, Pod, Selector
from tasks.emptying import Done, Emptying
from tasks.rules.lanes import Queues
from tasks.rules.outcome import Limits, Tally
from tasks.rules.sentences import LEAVES

MINUTE = timedelta(minutes=1)
BUDGET = Budget(
    namespace="d", name="b", generation=1, observed=1, selector=Selector(labels={"app": "a"}), max_unavailable="1",
    allowed=1, healthy=40, desired=39, expected=40, resource_version="1",
)  # fmt: skip


class Stage:
    """An emptying of one node, with the pods and the budget in the hands of the test. Time moves when it says."""

    def __init__(self, budget: Budget, *, pods: int = 20, **limits) -> None:
        owner = Owner(kind="ReplicaSet", name="rs", uid="rs", api_version="apps/v1")
        found = [
            Pod(namespace="d", name=f"p{i:02}", uid=f"p{i:02}", node="n1", owner=owner, labels={"app": "a"},
                phase="Running", ready=True)
            for i in range(pods)
        ]  # fmt: skip
        self.pods, self.budgets, self.lost = {p.uid: p for p in found}, {budget.key: budget}, None
        self.on_node = {"n1": set(self.pods)}
        self.view = self.clock = self.evictor = self
        self.queues, self.tally, self.workers, self.time = Queues(1e9), Tally(), 16, datetime(2026, 11, 30, tzinfo=UTC)
        self.asked, self.deleted, self.told = [], [], []
        hours = timedelta(hours=90)
        self.emptying = Emptying(
            self, frozenset(["n1"]), lambda _: LEAVES,
            Limits(**{"pod": 30 * MINUTE, "wave": hours, "until": self.time + hours, **limits}),
            lambda _: False, lambda _: None, lambda: False,
        )  # fmt: skip
        for pod in found:
            self.emptying.pods.admit(pod)

    def now(self):
        return self.time

    def real_seconds(self, seconds):
        return seconds

    def relist(self):
        return None

    def send(self, job, *, past_budget, grace):
        (self.deleted if past_budget else self.asked).append(job)

    def past_budget(self, pod, budget):
        self.told.append((pod, budget, len(self.deleted)))

    def says(self, **more):
        """The budget's status changes."""
        version = str(int(self.budgets["d/b"].resource_version) + 1)
        self.budgets["d/b"] = replace(self.budgets["d/b"], resource_version=version, **more)
        self.queues.see("d/b", self.budgets["d/b"])

    def answers(self, answer, job, *, deleted=False):
        self.emptying._answer(Done(job, Reply(answer=answer), deleted))

    def leaves(self, job):
        self.emptying.pods.left(job.pod.uid)

    def passes(self, span):
        """Time goes by, minute for minute, as the loop sees it."""
        for _ in range(int(span / MINUTE)):
            self.time += MINUTE
            self.emptying._dispatch()
            self.emptying._overdue(self.time)

    def ended(self):
        return [e.code for e in self.emptying.pods.ends.values()]


def moves_one(stage):
    """One pod goes, its replacement takes two minutes."""
    stage.passes(MINUTE)
    job = stage.asked.pop()
    stage.answers(Answer.ACCEPTED, job)
    stage.says(allowed=0, healthy=39, disrupted=(job.pod.name,))
    stage.leaves(job)
    stage.passes(2 * MINUTE)
    stage.says(allowed=1, healthy=40)


def test_pods_that_wait_their_turn_behind_a_budget_that_moves_are_neither_deleted_nor_late():
    stage = Stage(BUDGET, delete_after=10 * MINUTE)
    for _ in range(20):
        moves_one(stage)
    assert (stage.deleted, stage.ended(), stage.emptying.pods.gone) == ([], [], 20)


def test_an_open_budget_that_nobody_was_asked_about_refuses_nothing():
    stage = Stage(BUDGET, delete_after=10 * MINUTE)
    stage.time += 31 * MINUTE
    stage.emptying._overdue(stage.time)
    assert stage.deleted == []


@pytest.mark.parametrize("shut", ["by its status", "by the server"])
def test_a_pod_is_deleted_past_a_budget_that_refused_it_as_long_as_the_spec_says_and_no_sooner(shut):
    stage = Stage(replace(BUDGET, allowed=0) if shut == "by its status" else BUDGET, delete_after=10 * MINUTE)
    stage.passes(MINUTE)
    if shut == "by the server":
        stage.answers(Answer.REFUSED, stage.asked.pop())
    stage.passes(9 * MINUTE)
    assert stage.deleted == []
    stage.passes(3 * MINUTE)
    assert len(stage.deleted) == 1


def test_one_pod_is_deleted_past_a_budget_at_a_time_and_the_next_when_its_replacement_is_there():
    stage = Stage(replace(BUDGET, allowed=0), delete_after=10 * MINUTE)
    stage.passes(14 * MINUTE)
    (first,) = stage.deleted
    stage.answers(Answer.ACCEPTED, first, deleted=True)
    stage.says(healthy=39)
    stage.passes(MINUTE)
    stage.leaves(first)
    stage.passes(2 * MINUTE)
    assert len(stage.deleted) == 1
    stage.says(healthy=40)
    stage.passes(MINUTE)
    assert len(stage.deleted) == 2


def test_a_budget_that_nothing_replaces_costs_one_pod_for_each_span_of_the_spec():
    stage = Stage(replace(BUDGET, allowed=0), pods=3, delete_after=10 * MINUTE)
    for count in (1, 2, 3):
        stage.passes(12 * MINUTE)
        assert len(stage.deleted) == count
        stage.answers(Answer.ACCEPTED, stage.deleted[-1], deleted=True)
        stage.says(healthy=40 - count)
        stage.leaves(stage.deleted[-1])
    assert stage.ended() == []


def test_a_pod_whose_delete_failed_is_deleted_again():
    stage = Stage(replace(BUDGET, allowed=0), pods=1, delete_after=10 * MINUTE)
    stage.passes(12 * MINUTE)
    stage.answers(Answer.ERROR, stage.deleted[0], deleted=True)
    stage.passes(12 * MINUTE)
    assert len(stage.deleted) == 2


def test_a_delete_that_was_taken_back_before_it_was_sent_is_none():
    stage = Stage(replace(BUDGET, allowed=0), pods=1, delete_after=10 * MINUTE)
    stage.passes(12 * MINUTE)
    assert stage.tally.forced == ["d/p00"]
    stage.emptying._answer(Done(stage.deleted[0], None, True))
    assert (stage.tally.forced, stage.emptying.in_flight) == ([], 0)
    assert not stage.deleted[0].accepted


def test_behind_a_budget_that_lets_nothing_go_pods_are_late_at_their_deadline():
    stage = Stage(replace(BUDGET, allowed=0))
    stage.passes(29 * MINUTE)
    assert stage.ended() == []
    stage.passes(4 * MINUTE)
    assert len(stage.ended()) == 20


def test_the_deadline_of_an_accepted_pod_counts_from_its_acceptance():
    stage = Stage(replace(BUDGET, allowed=0), pods=1)
    stage.passes(25 * MINUTE)
    stage.says(allowed=1)
    stage.passes(MINUTE)
    job = stage.asked.pop()
    stage.answers(Answer.ACCEPTED, job)
    stage.pods[job.pod.uid] = job.pod = replace(job.pod, deletion=stage.time)
    stage.passes(29 * MINUTE)
    assert stage.ended() == []
    stage.passes(3 * MINUTE)
    assert stage.ended() == ["stuck-terminating"]


def test_a_pod_is_told_with_its_budget_before_it_is_deleted_past_it():
    stage = Stage(replace(BUDGET, allowed=0), pods=1, delete_after=10 * MINUTE)
    stage.passes(12 * MINUTE)
    assert [job.pod.key for job in stage.deleted] == ["d/p00"]
    assert stage.told == [("d/p00", "d/b", 0)]


def test_what_cannot_be_told_is_not_deleted(monkeypatch):
    def full(pod, budget):
        raise OSError("no space left on device")

    stage = Stage(replace(BUDGET, allowed=0), pods=1, delete_after=10 * MINUTE)
    monkeypatch.setattr(stage, "past_budget", full)
    with pytest.raises(OSError, match="no space"):
        stage.passes(12 * MINUTE)
    assert (stage.deleted, stage.tally.forced) == ([], [])
