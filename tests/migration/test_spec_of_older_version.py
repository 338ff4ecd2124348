"""A run goes on under a newer version of poolshift, whose spec has fields that the run was not started with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from infra.clock import SystemClock
from infra.errors import Refused
from infra.kube import records
from infra.kube.api import Kube, connect
from infra.model.record import Step, StepRecord, StepState
from infra.model.spec import Cluster, MigrationSpec
from infra.sandbox.control_plane import run_in_thread
from tasks.run import Run

EXAMPLE = Path(__file__).parents[2] / "infra" / "examples" / "sandbox-eks.yaml"
SPEC = MigrationSpec.model_validate(yaml.safe_load(EXAMPLE.read_text()))


@pytest.fixture(scope="module")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    url, stop = run_in_thread(SystemClock())
    path = tmp_path_factory.mktemp("kube") / "config"
    cluster, context = (
        {"name": "c", "cluster": {"server": url}},
        {"name": "x", "context": {"cluster": "c", "user": "u"}},
    )
    users = [{"name": "u", "user": {}}]
    path.write_text(
        yaml.safe_dump({"clusters": [cluster], "users": users, "contexts": [context], "current-context": "x"})
    )
    yield connect(Cluster(kubeconfig=str(path)))
    stop()


def started(kube: Kube, name: str, **changes: object) -> records.RunRecord:
    """A run as an older version recorded it: without one of today's fields."""
    spec = {**json.loads(SPEC.model_copy(update={"name": name}).model_dump_json()), **changes}
    del spec["approval"]
    records.ensure_namespace(kube)
    return records.create(kube, name, "migration", json.dumps(spec))


def test_a_spec_that_lacks_only_a_field_with_its_default_is_the_same(kube: Kube) -> None:
    older = started(kube, "older")
    run = Run(spec=SPEC.model_copy(update={"name": "older"}), kube=kube)

    assert run.record().created == older.created
    assert run.hash == older.spec_hash


def test_a_spec_that_says_something_else_is_refused_by_name_of_the_field(kube: Kube) -> None:
    started(kube, "other", validation={**SPEC.validation.model_dump(mode="json"), "train_steps": 99})
    records.write_step(kube, "other", StepRecord(step=Step.PLAN, state=StepState.DONE, started="2026-01-01T00:00:00Z"))

    with pytest.raises(Refused, match=r"changed: .*validation\.train_steps"):
        Run(spec=SPEC.model_copy(update={"name": "other"}), kube=kube).record()
