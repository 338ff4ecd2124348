"""Only nodes that were drained are given to a deletion, told by UID: a name comes back, a UID does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from infra.kube import read, records
from infra.kube.api import Kube
from infra.kube.external import ExternalPools
from infra.model.spec import ExternalPool, MigrationSpec
from infra.sandbox.control_plane import run_in_thread
from tasks.leaving import note_leaving
from tasks.retiring import not_empty
from tasks.run import Run
from tests.drain.conftest import make_kube


def add_node(kube: Kube, name: str) -> None:
    """Nobody works on it."""
    metadata: dict[str, Any] = {"name": name, "labels": {"pool": "old"}}
    kube.request("POST", "/api/v1/nodes", body={"apiVersion": "v1", "kind": "Node", "metadata": metadata})


@pytest.fixture
def run() -> Iterator[Run]:
    """A run whose record exists, over a pool of two nodes."""
    url, stop = run_in_thread()
    kube = make_kube(url)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": kube.namespace}}
    kube.request("POST", "/api/v1/namespaces", body=namespace)
    for name in ("old-0", "old-1"):
        add_node(kube, name)
    source = ExternalPool(name="old", selector={"pool": "old"})
    spec = MigrationSpec(name="run-1", source=source, target=ExternalPool(name="new", selector={"pool": "new"}))
    records.create(kube, spec.name, "migration", spec.model_dump_json())
    made = Run(spec=spec, kube=kube)
    vars(made)["source"] = ExternalPools(kube)  # else it is read from a kubeconfig, which this server has not
    yield made
    stop()


def test_a_node_that_was_not_drained_keeps_its_pool_though_it_is_empty(run: Run) -> None:
    pool = run.source_pool()
    assert pool is not None
    names = ["old-0", "old-1"]
    note_leaving(run, pool, read.snapshot(run.kube), names)
    assert not_empty(run) == []

    run.kube.delete("/api/v1/nodes/old-1")
    add_node(run.kube, "old-1")
    (found,) = not_empty(run)
    assert (found.code, found.observed) == ("nodes-undrained", "old-1 came after the drain")

    note_leaving(run, pool, read.snapshot(run.kube), names)  # the next move takes it along
    assert not_empty(run) == []


def test_a_record_that_does_not_say_which_nodes_were_drained_proves_nothing(run: Run) -> None:
    (found,) = not_empty(run)
    assert found.code == "nodes-undrained"
