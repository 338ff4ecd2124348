"""Killed in the middle of whatever it does, and started again on another machine, a migration loses nothing.

`KILLS=200` chooses how many kills, `SEED=7` where the dice begin. Each sandbox takes a few kills in turn.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.migration.endings import differences, end_state
from tests.migration.killing import attempt, kills, may_rename_the_host
from tests.migration.observer import Observer

pytestmark = pytest.mark.slow

PER_RUN = 4
RUNS = -(-int(os.environ.get("KILLS", "24")) // PER_RUN)
SEED = int(os.environ.get("SEED", "1"))
PLACES = [("gang-training", "eks"), ("healthy", "gke"), ("healthy", "eks"), ("gang-training", "gke")]
_UNDISTURBED: dict[tuple[str, str], dict[str, Any]] = {}


def undisturbed(stage: Callable[..., Any], scenario: str, cloud: str) -> dict[str, Any]:
    """How a migration ends that nobody kills; made once per process."""
    if (scenario, cloud) not in _UNDISTURBED:
        here = stage(scenario, cloud)
        with Observer(here.kube) as seen:
            ended = here.migrate()
        assert ended.code == 0, ended.err
        assert seen.broken() == []
        _UNDISTURBED[scenario, cloud] = end_state(here.kube)
    return _UNDISTURBED[scenario, cloud]


@pytest.mark.parametrize("seed", range(SEED, SEED + RUNS))
def test_a_migration_killed_anywhere_goes_on_from_another_machine(
    stage: Callable[..., Any], tmp_path: Path, seed: int
) -> None:
    scenario, cloud = PLACES[seed % len(PLACES)]
    expected = undisturbed(stage, scenario, cloud)
    here = stage(scenario, cloud)
    command = ["migrate", str(here.spec), "--kubeconfig", str(here.kubeconfig)]
    rename = may_rename_the_host()
    told: list[str] = []
    with Observer(here.kube) as seen:
        for number, strike in enumerate([*kills(seed, jitter=1.5), lambda _: None]):
            env = {**here.env, "POOLSHIFT_HOME": str(tmp_path / f"machine-{number}")}
            ended = attempt(command, env, host=f"machine-{number}" if rename and number % 2 else "", strike=strike)
            told += [f"--- machine {number}, ended with {ended.code}", *ended.lines]
            if not ended.killed:
                break
    assert ended.code == 0, "\n".join(told)
    assert seen.broken() == [], "\n".join(told)
    assert not (unlike := differences(end_state(here.kube), expected)), unlike + "\n" + "\n".join(told)
