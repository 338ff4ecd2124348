"""Killed at any step boundary and started again, a migration ends as one that was never disturbed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from infra.model.record import Step
from tests.migration.endings import differences, end_state
from tests.migration.killing import after, attempt
from tests.migration.looks import assert_migrated, pods
from tests.migration.observer import Observer

ASKED = {"approval": {"ask": True}}
WAITING = "waiting for approval"
_UNDISTURBED: dict[str, Any] = {}


@pytest.fixture
def undisturbed(stage: Callable[..., Any]) -> dict[str, Any]:
    """How a migration ends that nobody kills; made once per process, and looked at by itself."""
    if not _UNDISTURBED:
        here = stage("healthy", "gke", **ASKED)
        before = pods(here.kube)
        with Observer(here.kube) as seen:
            ended = here.migrate_and_approve()
        assert_migrated(here, ended, before, asked=True)
        assert seen.broken() == []
        assert seen.moved() == len(before)
        _UNDISTURBED.update(end_state(here.kube))
    return _UNDISTURBED


def kill(here: Any, **how: Any) -> None:
    """One attempt that does not end by itself."""
    failpoint = how.pop("failpoint", "")
    env = {**here.env, "POOLSHIFT_FAILPOINT": failpoint} if failpoint else here.env
    ended = attempt(["migrate", str(here.spec), "--kubeconfig", str(here.kubeconfig)], env, **how)
    assert ended.killed, f"at {failpoint or 'the question'}\n{ended.tail}"


def approving(here: Any) -> Callable[[str], None]:
    """Says yes when it is asked for, and strikes nobody."""

    def hear(line: str) -> None:
        if WAITING in line:
            here.approve()

    return hear


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["acted", "recorded"])
def test_a_proven_pool_takes_the_work_the_same_however_often_the_migration_is_killed(
    stage: Callable[..., Any], undisturbed: dict[str, Any], moment: str
) -> None:
    """`acted`: the work is done and not yet recorded; `recorded`: the record is written, nothing after it."""
    here = stage("healthy", "gke", **ASKED)
    with Observer(here.kube) as seen:
        for step in Step:
            if step is Step.APPROVAL:
                kill(here, strike=after(WAITING))
                here.approve()
            kill(here, failpoint=f"{step.value}:{moment}")
        ended = here.migrate()

    assert ended.code == 0, ended.err
    assert WAITING not in ended.err
    assert seen.broken() == []
    assert not (unlike := differences(end_state(here.kube), undisturbed)), unlike
    assert "in 3 waves" in here.record().steps[Step.MIGRATE].summary, "whoever made them"


def test_a_killed_migration_goes_on_and_ends_with_everything_moved_and_nothing_lost(stage: Callable[..., Any]) -> None:
    """The nodes are empty, and it is not recorded; how the work ended is looked at and not compared, as below."""
    here = stage("healthy", "gke", **ASKED)
    before = pods(here.kube)
    with Observer(here.kube) as seen:
        kill(here, failpoint=f"{Step.MIGRATE.value}:acted", strike=approving(here))
        ended = here.run("migrate", str(here.spec), "--json")

    assert_migrated(here, ended, before, asked=True)
    assert WAITING not in ended.err
    assert seen.broken() == []
    assert seen.moved() == len(before)
    assert "in 3 waves" in here.record().steps[Step.MIGRATE].summary, "whoever made them"


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["started", "acted", "recorded"])
@pytest.mark.parametrize("step", [step.value for step in Step])
def test_a_migration_killed_once_ends_as_one_never_disturbed(
    stage: Callable[..., Any], undisturbed: dict[str, Any], step: str, moment: str
) -> None:
    here = stage("healthy", "gke", **ASKED)
    with Observer(here.kube) as seen:
        kill(here, failpoint=f"{step}:{moment}", strike=approving(here))
        ended = here.migrate_and_approve()

    assert ended.code == 0, ended.err
    assert seen.broken() == []
    assert not (unlike := differences(end_state(here.kube), undisturbed)), unlike
    assert "in 3 waves" in here.record().steps[Step.MIGRATE].summary, "whoever made them"
