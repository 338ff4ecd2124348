"""A record that cannot be read, or contradicts itself, stops a run: what it says is never guessed or planned anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from infra.errors import Unmeasured
from infra.kube import records
from infra.kube.api import MERGE_PATCH, Kube
from infra.model.spec import ExternalPool, MigrationSpec
from infra.sandbox.control_plane import run_in_thread
from tasks import swap_record
from tasks.facts import noted, under_way
from tasks.run import Run
from tests.drain.conftest import make_kube

WHOLE = {"nodes": {"old-0": ["uid-0", "i-0"]}, "sizes": [[1, 2, 2]]}
SLICE = {"number": 1, "stage": "given", "nodes": {"old-0": ["uid-0", "i-0"]}, "add": 2, "total": 2}


@pytest.fixture(scope="module")
def kube() -> Iterator[Kube]:
    url, stop = run_in_thread()
    kube = make_kube(url)
    records.ensure_namespace(kube)
    yield kube
    stop()


@pytest.fixture
def run(kube: Kube) -> Iterator[Run]:
    source = ExternalPool(name="old", selector={"pool": "old"})
    spec = MigrationSpec(name="run-1", source=source, target=ExternalPool(name="new", selector={"pool": "new"}))
    records.create(kube, spec.name, "migration", spec.model_dump_json())
    yield Run(spec=spec, kube=kube)
    records.remove(kube, spec.name)


def write(run: Run, **data: object) -> None:
    """Keys of the record; a text as it is, anything else as JSON. `step_plan` is step.plan."""
    texts = {
        key.replace("__", "-").replace("_", ".", 1): text if isinstance(text, str) else json.dumps(text)
        for key, text in data.items()
    }
    where = f"/api/v1/namespaces/poolshift/configmaps/poolshift-run-{run.name}"
    run.kube.request("PATCH", where, body={"data": texts}, content_type=MERGE_PATCH)


def plan(**data: Any) -> dict[str, Any]:
    return {"step": "plan", "state": "done", "started": "2026-01-01T00:00:00Z", "data": data}


def begun(step: str) -> dict[str, Any]:
    return {"step": step, "state": "started", "started": "2026-01-01T00:00:00Z"}


def test_a_plan_that_cannot_be_read_is_made_anew_only_while_nothing_stands_on_it(run: Run) -> None:
    write(run, step_plan='{"step": "pl')
    run.record()

    write(run, step_provision=begun("provision"))
    with pytest.raises(Unmeasured, match=r"step\.plan of its record cannot be read.*kubectl edit configmap") as stopped:
        run.record()
    assert "poolshift rollback run-1" in stopped.value.remedy
    with pytest.raises(Unmeasured):
        swap_record.applies(run)


@pytest.mark.parametrize("decided", [{}, {"strategy": "swapp"}, {"strategy": None}, {"strategy": ["swap"]}])
def test_a_plan_that_does_not_say_how_it_decided_is_no_decision(run: Run, decided: dict[str, Any]) -> None:
    write(run, step_plan=plan(**decided))
    with pytest.raises(Unmeasured, match=r"step\.plan"):
        swap_record.applies(run)


def test_a_swap_that_has_begun_is_not_denied_by_a_plan_that_says_otherwise(run: Run) -> None:
    write(run, step_plan=plan(strategy="side-by-side"))
    assert not swap_record.applies(run)
    write(run, note_swap=WHOLE)
    with pytest.raises(Unmeasured, match="a swap has begun"):
        swap_record.applies(run)
    write(run, step_plan=plan(strategy="swap", slices="none"))
    assert swap_record.applies(run)
    with pytest.raises(Unmeasured, match="slices"):
        swap_record.smallest(run)


@pytest.mark.parametrize(
    "garbled",
    [
        '{"number": 1, "stage"',
        None,
        7,
        {},
        {**SLICE, "stage": "gone"},
        {**SLICE, "nodes": {"old-0": "uid-0"}},
        {**SLICE, "nodes": ["old-0"]},
        {**SLICE, "add": "two"},
    ],
)
def test_a_slice_whose_note_cannot_be_read_is_not_begun_again(run: Run, garbled: Any) -> None:
    write(run, note_swap=WHOLE, note_slice__1=SLICE)
    assert [s.stage for s in swap_record.slices_of(run)] == ["given"]
    write(run, note_slice__1=garbled)
    with pytest.raises(Unmeasured, match=r"note\.slice-1 of its record cannot be read"):
        swap_record.slices_of(run)


@pytest.mark.parametrize("garbled", ['{"nodes"', None, [], {"nodes": {}}, {**WHOLE, "sizes": [[1, 2]]}])
def test_a_swap_whose_layout_cannot_be_read_is_not_laid_out_again(run: Run, garbled: Any) -> None:
    write(run, note_swap=garbled)
    if garbled is None:
        assert swap_record.laid_out(run) is None  # JSON's null: nothing was laid out
        return
    with pytest.raises(Unmeasured, match=r"note\.swap of its record cannot be read"):
        swap_record.laid_out(run)


def test_a_note_that_is_garbled_while_a_run_is_under_way_does_not_pass_for_absent(run: Run) -> None:
    write(run, note_moving={"pods": 1}, note_leaving={"made": ["a"]})
    assert under_way(run)
    write(run, note_moving='{"pods')
    for ask in (lambda: under_way(run), lambda: noted(run, "leaving")):
        with pytest.raises(Unmeasured, match=r"note\.moving"):
            ask()
