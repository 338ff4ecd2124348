"""Killed at any step boundary and started again, a migration ends as one that was never disturbed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from infra.kube import leases
from infra.model.record import PROBE, Step
from infra.model.spec import EksPool
from tasks.identity import pool_identity

BOUNDARIES = [step.value for step in Step if step is not Step.APPROVAL]
_UNDISTURBED: dict[str, Any] = {}


@pytest.fixture
def undisturbed(stage: Callable[..., Any], end_state: Callable[..., Any]) -> dict[str, Any]:
    """How a migration ends that nobody kills; made once per process."""
    if not _UNDISTURBED:
        here = stage("healthy")
        assert here.migrate().code == 0
        _UNDISTURBED.update(end_state(here.kube))
    return _UNDISTURBED


@pytest.mark.parametrize("moment", ["acted", pytest.param("recorded", marks=pytest.mark.slow)])
def test_a_migration_killed_at_every_boundary_in_turn_ends_as_one_never_disturbed(
    stage: Callable[..., Any], end_state: Callable[..., Any], undisturbed: dict[str, Any], moment: str
) -> None:
    """`acted`: the work is done and not yet recorded; `recorded`: the record is written, nothing after it."""
    here = stage("healthy")
    deleted = Deletions(here.kube)
    with deleted:
        for step in BOUNDARIES:
            ended = here.migrate(failpoint=f"{step}:{moment}")
            assert ended.code == -signal.SIGKILL, f"at {step}:{moment}\n{ended.err[-3000:]}"
        ended = here.migrate()

    assert ended.code == 0, ended.err
    assert end_state(here.kube) == undisturbed
    assert deleted.twice() == []


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["started", "acted", "recorded"])
@pytest.mark.parametrize("step", BOUNDARIES)
def test_a_migration_killed_once_ends_as_one_never_disturbed(
    stage: Callable[..., Any], end_state: Callable[..., Any], undisturbed: dict[str, Any], step: str, moment: str
) -> None:
    here = stage("healthy")
    assert here.migrate(failpoint=f"{step}:{moment}").code == -signal.SIGKILL
    ended = here.migrate()

    assert ended.code == 0, ended.err
    assert end_state(here.kube) == undisturbed


def test_a_second_migration_of_the_same_pool_is_refused_and_told_who_holds_it(stage: Callable[..., Any]) -> None:
    here = stage("healthy")
    source = EksPool(region="us-east-2", cluster="train", name="gpu-old")
    here.kube.request(
        "POST", "/api/v1/namespaces", body={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "poolshift"}}
    )
    with leases.hold(here.kube, [pool_identity(source)], "somebody-elses-run"):
        ended = here.migrate()

    assert ended.code == 5, ended.err
    assert "held by run 'somebody-elses-run', process" in ended.err


class Deletions:
    """Watches the workloads' pods and remembers which of them went, by name and UID."""

    def __init__(self, kube: Any) -> None:
        self._kube = kube
        self._gone: list[tuple[str, str]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Deletions:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _watch(self) -> None:
        import orjson

        listed = self._kube.request("GET", "/api/v1/pods")
        version = listed["metadata"]["resourceVersion"]
        params = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": 2}
        while not self._stop.is_set():
            answer = self._kube.open(
                "GET", "/api/v1/pods", params={**params, "resourceVersion": version}, preload=False
            )
            for line in answer.read().splitlines():
                event = orjson.loads(line)
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "DELETED":  # bookmarks name no pod
                    continue
                meta = event["object"]["metadata"]
                ours = PROBE in (meta.get("labels") or {}) or meta["namespace"] == "kube-system"
                if not ours:
                    owner = (meta.get("ownerReferences") or [{}])[0].get("name", "")
                    index = (meta.get("labels") or {}).get("batch.kubernetes.io/job-completion-index")
                    self._gone.append((f"{meta['namespace']}/{owner}/{index or meta['name']}", meta["uid"]))
            answer.release_conn()

    def twice(self) -> list[str]:
        """Pods (by identity within their owner) that were made to leave more than once."""
        names = [name for name, _ in self._gone]
        return sorted({name for name in names if names.count(name) > 1})
