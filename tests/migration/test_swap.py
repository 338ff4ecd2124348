"""Whole swaps on the sandbox: one reservation holds the old pool and must hold the new one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from infra import connect
from infra.errors import CloudError, NoCapacity
from infra.model.record import FENCE_TAINT, PRIOR, RUN, UNPROVEN_TAINT, Step, StepState
from infra.model.spec import MigrationSpec
from infra.sandbox import run as sandboxes
from infra.sandbox import scenario as scenarios
from infra.sandbox.clouds import instance_groups, scaling
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


def group_taints(group: dict[str, Any]) -> list[dict[str, Any]]:
    """What a pool's new nodes are born with."""
    found: list[dict[str, Any]] = group.get("taints") or (group.get("config") or {}).get("taints") or []
    return found


def bare_pod(node: str) -> dict[str, Any]:
    """A pod that no scheduler placed: a cordon does not keep it away."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "late", "namespace": "data"},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "example.com/late:v1"}]},
    }


def remembered(node: dict[str, Any]) -> bool:
    """Does it carry what a run would have to put back?"""
    return PRIOR in (node["metadata"].get("annotations") or {})


def busy(stage: Here, node: dict[str, Any]) -> bool:
    """Does a pod of no DaemonSet run there?"""
    field = {"fieldSelector": f"spec.nodeName={node['metadata']['name']}"}
    pods = stage.run.kube.request("GET", "/api/v1/pods", params=field)["items"]
    return any(p["metadata"].get("ownerReferences", [{}])[0].get("kind") != "DaemonSet" for p in pods)


def untouched(nodes: list[dict[str, Any]]) -> bool:
    """No cordon, fence or memory of ours on any of them."""
    return not any(
        n["spec"].get("unschedulable")
        or FENCE_TAINT in taints(n)
        or {RUN, PRIOR} & {*n["metadata"]["labels"], *n["metadata"].get("annotations", {})}
        for n in nodes
    )


@pytest.mark.parametrize("cloud", ["eks", pytest.param("gke", marks=pytest.mark.slow)])
def test_two_pools_change_places_in_slices_of_one_reservation(here: Callable[..., Here], cloud: str) -> None:
    stage = here(cloud)
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
    if cloud == "eks":
        assert group["scalingConfig"] == {"minSize": 4, "maxSize": 4, "desiredSize": 4}
    else:
        assert stage.run.target_pool().nodes == 4
        assert not group.get("autoscaling", {}).get("enabled")
    assert not [t for t in group_taints(group) if t["key"] == UNPROVEN_TAINT]


@pytest.mark.slow
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
def test_a_rollback_takes_back_only_what_the_source_lacks_and_first_what_is_not_proven(
    here: Callable[..., Here],
) -> None:
    names = [gke_name("train", NEW, i) for i in range(4)]
    slow = max(sorted(names).index(name) for name in names[2:])
    assert slow >= 2, "the canary must not have this position"
    defect = {"kind": "no-gdr", "pool": "target", "node": slow}
    # Two machines are free, so that the target has more idle nodes than the source lacks.
    stage = here("gke", {"defects": [defect], "reservation": {"total": 6, "source": True}})

    last = stage.walk()

    assert (last.step, last.state) == (Step.MIGRATE, StepState.HELD), stage.told()
    assert len(slices(stage.spec)[2]["nodes"]) == len(pool_nodes(stage.spec, OLD)) == 2
    assert len(pool_nodes(stage.spec, NEW)) == 4

    ended = undo.roll_back(stage.run, remove_target=False)

    assert len(pool_nodes(stage.spec, OLD)) == 4, ended
    assert untouched(pool_nodes(stage.spec, OLD))
    left = pool_nodes(stage.spec, NEW)
    assert {n["metadata"]["name"] for n in left} == set(names[:2])
    assert all(is_closed(n) for n in left)
    assert not any(remembered(n) for n in left), "closed to work, and nothing else of ours is left on them"


@pytest.mark.slow
def test_a_machine_that_goes_without_being_named_stops_the_run(here: Callable[..., Here]) -> None:
    stage = here("eks")
    before = workloads(stage.spec)
    took: list[str] = []

    def scale(text: str) -> None:
        """Somebody takes a machine with work on it while ours are asked to end."""
        stage.said.append(text)
        if "giving up" in text and not took:
            ours = {machine for _, machine in slices(stage.spec)[1]["nodes"].values()}
            cloud = connect.slices(stage.run.source)
            took.append(sorted(set(cloud.instances(stage.spec.source)) - ours)[0])
            cloud.give_up(stage.spec.source, took, lambda _: None)

    with pytest.raises(CloudError, match="1 machine that nobody named went too"):
        walk(stage.spec, scale)

    assert slices(stage.spec)[1]["stage"] == "giving"
    assert pool_nodes(stage.spec, NEW) == []
    ended = undo.roll_back(stage.run, remove_target=True)
    assert len(pool_nodes(stage.spec, OLD)) == 4, ended
    assert untouched(pool_nodes(stage.spec, OLD))
    assert workloads(stage.spec).keys() == before.keys()


@pytest.mark.slow
def test_a_node_that_gets_a_pod_after_its_proof_is_not_given_up_and_the_slice_goes_on_once_it_is_gone(
    here: Callable[..., Here],
) -> None:
    stage = here("eks")
    put: list[str] = []

    def place(text: str) -> None:
        """Between the proof of the whole slice and the request for its second machine."""
        stage.said.append(text)
        if text.startswith("slice 2: giving up") and not put:
            by_machine = {machine: name for name, (_, machine) in slices(stage.spec)[2]["nodes"].items()}
            put.append(by_machine[list(by_machine)[-1]])
            stage.run.kube.request("POST", "/api/v1/namespaces/data/pods", body=bare_pod(put[0]))

    for attempt in ("met right before the request", "met by the drain"):
        last = walk(stage.spec, place)

        assert (last.step, last.state) == (Step.MIGRATE, StepState.HELD), attempt + stage.told()
        assert "data/late" in last.summary + json.dumps(last.data), attempt
        assert [n["metadata"]["name"] for n in pool_nodes(stage.spec, OLD)] == put, attempt
        assert slices(stage.spec)[2]["stage"] == "giving"
    pod = stage.run.kube.request("GET", "/api/v1/namespaces/data/pods/late")
    assert not pod["metadata"].get("deletionTimestamp")

    stage.run.kube.request("DELETE", "/api/v1/namespaces/data/pods/late")
    last = stage.walk()

    assert (last.step, last.state) == (Step.REPORT, StepState.DONE), stage.told()
    assert pool_nodes(stage.spec, OLD) == []
    assert len(pool_nodes(stage.spec, NEW)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("withheld", [1, 2])
def test_a_reservation_that_does_not_give_machines_back_stops_the_run_and_a_rollback_takes_what_there_is(
    here: Callable[..., Here], withheld: int
) -> None:
    reservation = {"total": 4, "source": True, "withheld": withheld}
    stage = here("eks", {"reservation": reservation}, swap={"release_timeout": "10m"})

    with pytest.raises(NoCapacity, match=rf"{2 - withheld} of 4 machines free.*2 for slice 1"):
        stage.walk()

    assert slices(stage.spec)[1]["stage"] == "given"
    assert len(pool_nodes(stage.spec, OLD)) == 2
    ended = undo.roll_back(stage.run, remove_target=True)
    assert f"{4 - withheld} of 4" in json.dumps(ended)
    assert untouched(pool_nodes(stage.spec, OLD))
    assert len(pool_nodes(stage.spec, OLD)) == 4 - withheld


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

    ended = undo.roll_back(stage.run, remove_target=False)  # the first slice is open and has work

    old, new = pool_nodes(stage.spec, OLD), pool_nodes(stage.spec, NEW)
    assert len(old) + len(new) == 4, ended
    assert untouched(old)
    assert new
    assert all(is_closed(n) for n in new)
    assert not any(remembered(n) for n in new)
    assert all(busy(stage, n) for n in new), "an empty one is given back"
    assert workloads(stage.spec) == before


@pytest.mark.slow
@pytest.mark.parametrize("cloud", ["eks", "gke"])
def test_a_rollback_waits_for_machines_that_are_ending_before_it_opens_any_node(
    here: Callable[..., Here], monkeypatch: pytest.MonkeyPatch, cloud: str
) -> None:
    for clouds in (scaling, instance_groups):
        monkeypatch.setattr(clouds, "TERMINATE_SECONDS", 10 * RATE)
    stage = here(cloud)
    before = workloads(stage.spec)
    given: dict[str, Any] = {}

    def end(text: str) -> None:
        """The run dies right after the request."""
        if "giving up" in text:
            given.update(slices(stage.spec)[1]["nodes"])
            cloud = connect.slices(stage.run.source)
            cloud.give_up(stage.spec.source, [machine for _, machine in given.values()], lambda _: None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        walk(stage.spec, end)

    ended = undo.roll_back(stage.run, remove_target=True)

    assert any("ending: waiting" in said for said in stage.said), stage.told()
    restored = [line for line in ended["done"] if line.startswith("restored")]
    assert not any(name in line for line in restored for name in given), "they were going"
    old = pool_nodes(stage.spec, OLD)
    assert len(old) == 4, ended
    assert not {n["metadata"]["uid"] for n in old} & {uid for uid, _ in given.values()}
    assert untouched(old)
    assert pool_nodes(stage.spec, NEW) == []
    assert workloads(stage.spec) == before
