"""Whole swaps on the sandbox: one reservation holds the old pool and must hold the new one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from infra.errors import NoCapacity
from infra.model.record import FENCE_TAINT, PRIOR, RUN, Step, StepState
from infra.model.spec import MigrationSpec
from infra.sandbox import run as sandboxes
from infra.sandbox import scenario as scenarios
from infra.sandbox.clouds.machines import gke_name
from infra.sandbox.scenario import Scenario
from tasks import undo
from tasks.opening import is_closed
from tasks.run import Run
from tests.migration.swapping import load, pool_nodes, slices, walk, workloads

RATE = 240.0
OLD, NEW = "gpu-old", "gpu-rdma"


@dataclass
class Here:
    """A sandbox of this process, and the spec of a swap in it."""

    spec: MigrationSpec
    sandbox: Any
    said: list[str] = field(default_factory=list)

    def walk(self) -> Any:
        """The steps, as far as they go."""
        return walk(self.spec, self.said.append)

    @property
    def run(self) -> Run:
        return Run.open(self.spec, say=self.said.append)

    def told(self) -> str:
        return "\n".join(self.said[-40:])


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Callable[..., Here]]:
    """Starts `reservation-shared`, with parts of the scenario or of the spec replaced."""
    started: list[Any] = []

    def begin(cloud: str, parts: dict[str, Any] | None = None, **changes: Any) -> Here:
        base = scenarios.load("reservation-shared").model_dump()
        scenario = Scenario.model_validate({**base, **(parts or {})})
        path = tmp_path / f"kubeconfig-{len(started)}"
        sandbox = sandboxes.start(scenario, cloud, kubeconfig=path, rate=RATE)  # type: ignore[arg-type]
        started.append(sandbox)
        return Here(spec=load(cloud, str(path), f"swap-{cloud}", **changes), sandbox=sandbox)

    yield begin
    for sandbox in started:
        sandbox.stop()


def taints(node: dict[str, Any]) -> set[str]:
    return {t["key"] for t in node["spec"].get("taints") or ()}


def untouched(nodes: list[dict[str, Any]]) -> bool:
    """No cordon, fence or memory of ours on any of them."""
    return not any(
        n["spec"].get("unschedulable")
        or FENCE_TAINT in taints(n)
        or {RUN, PRIOR} & {*n["metadata"]["labels"], *n["metadata"].get("annotations", {})}
        for n in nodes
    )


def test_two_pools_change_places_in_slices_of_one_reservation(here: Callable[..., Here]) -> None:
    stage = here("eks")
    before = workloads(stage.spec)

    last = stage.walk()

    assert (last.step, last.state) == (Step.REPORT, StepState.DONE), stage.told()
    assert pool_nodes(stage.spec, OLD) == []
    new = pool_nodes(stage.spec, NEW)
    assert len(new) == 4
    assert not any(is_closed(n) for n in new)
    assert untouched([n for n in new if RUN not in n["metadata"]["labels"]])
    assert workloads(stage.spec) == before
    found = slices(stage.spec)
    assert [(n, s["stage"], len(s["nodes"])) for n, s in sorted(found.items())] == [(1, "open", 2), (2, "open", 2)]
    assert {uid for s in found.values() for uid in s["new"]} == {n["metadata"]["uid"] for n in new}
    plan = stage.run.data(Step.PLAN)
    assert [s["pods"] for s in plan["slices"]] == [0, 7]
    group = stage.run.target.describe(NEW)
    assert group["scalingConfig"] == {"minSize": 4, "maxSize": 4, "desiredSize": 4}


def test_a_slice_that_does_not_prove_itself_stops_the_run_and_a_rollback_takes_it_back(
    here: Callable[..., Here],
) -> None:
    names = [gke_name("train", NEW, i) for i in range(4)]
    slow = max(sorted(names).index(name) for name in names[2:])  # a node of the second slice
    assert slow >= 2, "the canary must not have this position"
    defect = {"kind": "no-gdr", "pool": "target", "node": slow}
    stage = here("gke", {"defects": [defect]})
    before = workloads(stage.spec)

    last = stage.walk()

    assert (last.step, last.state) == (Step.MIGRATE, StepState.HELD), stage.told()
    assert "slice 2" in last.summary
    assert pool_nodes(stage.spec, OLD) == []
    new = pool_nodes(stage.spec, NEW)
    closed = {n["metadata"]["name"] for n in new if is_closed(n)}
    assert closed == set(names[2:]), "only the proven slice takes work"
    assert workloads(stage.spec) == before
    assert slices(stage.spec)[2]["stage"] == "grown"

    ended = undo.roll_back(stage.run, remove_target=False)

    assert len(pool_nodes(stage.spec, OLD)) == 2, ended
    assert {n["metadata"]["name"] for n in pool_nodes(stage.spec, NEW)} == set(names[:2]), "they hold the work"
    assert untouched(pool_nodes(stage.spec, OLD))
    assert workloads(stage.spec) == before
    assert "2 of 4" in json.dumps(ended)


@pytest.mark.slow
def test_a_reservation_that_does_not_give_machines_back_stops_the_run_and_the_next_one_goes_on(
    here: Callable[..., Here],
) -> None:
    stage = here("eks", {"reservation": {"total": 4, "source": True, "withheld": 1}}, swap={"release_timeout": "10m"})

    with pytest.raises(NoCapacity, match=r"1 of 4 machines free.*2 for slice 1"):
        stage.walk()

    assert slices(stage.spec)[1]["stage"] == "given"
    assert len(pool_nodes(stage.spec, OLD)) == 2
    ended = undo.roll_back(stage.run, remove_target=True)
    assert "3 of 4" in json.dumps(ended)
    assert untouched(pool_nodes(stage.spec, OLD))
    assert len(pool_nodes(stage.spec, OLD)) == 3


@pytest.mark.slow
def test_a_drain_that_is_blocked_in_the_second_slice_gives_nothing_up_and_opens_the_source_again(
    here: Callable[..., Here],
) -> None:
    stage = here("eks", drain={"pod_deadline": "5m", "waves": {"settle": "1m"}})
    before = workloads(stage.spec)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "never", "namespace": "data"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "feature-store"}}},
    }

    def lock(text: str) -> None:
        stage.said.append(text)
        if text.startswith("== gate"):
            path = "/apis/policy/v1/namespaces/data/poddisruptionbudgets"
            stage.run.kube.request("POST", path, body=budget)

    last = walk(stage.spec, lock)

    assert (last.step, last.state) == (Step.MIGRATE, StepState.HELD), stage.told()
    assert slices(stage.spec)[2]["stage"] == "chosen"
    assert len(pool_nodes(stage.spec, OLD)) == 2
    assert untouched(pool_nodes(stage.spec, OLD))
    assert workloads(stage.spec) == before
