"""The run loop: keys, appointments, failures, a clock that jumps."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from infra.clock import ManualClock, ScaledClock
from infra.sandbox.control_plane import controllers, foundation
from infra.sandbox.control_plane.controllers.work import Key, WorkLoop
from infra.sandbox.control_plane.resources import kind_of
from infra.sandbox.control_plane.store import Store


def test_a_key_that_is_added_often_is_reconciled_once() -> None:
    work = WorkLoop(ManualClock())
    seen: list[Key] = []
    queue = work.queue("test", seen.append)
    for _ in range(5):
        queue.add(("a", "b"))
    work.settle()
    assert seen == [("a", "b")]


def test_an_appointment_is_kept_when_its_time_comes_and_the_earlier_one_stands() -> None:
    clock = ManualClock()
    work = WorkLoop(clock)
    seen: list[Key] = []
    queue = work.queue("test", seen.append)
    queue.add_after(("a", "b"), 60)
    queue.add_after(("a", "b"), 10)
    queue.add_after(("a", "b"), 30)
    clock.advance(9)
    work.settle()
    assert seen == []
    clock.advance(2)
    work.settle()
    clock.advance(100)
    work.settle()
    assert seen == [("a", "b")]


def test_one_bad_object_is_tried_again_and_does_not_stop_the_others() -> None:
    clock = ManualClock()
    work = WorkLoop(clock)
    tries: list[Key] = []

    def reconcile(key: Key) -> None:
        tries.append(key)
        if key[1] == "bad" and len(tries) < 4:
            msg = "no"
            raise RuntimeError(msg)

    queue = work.queue("test", reconcile)
    queue.add(("", "bad"))
    queue.add(("", "good"))
    work.settle()
    assert tries == [("", "bad"), ("", "good")]
    clock.advance(1)
    work.settle()
    clock.advance(1)
    work.settle()
    assert tries.count(("", "bad")) == 3


def test_controllers_that_never_come_to_rest_are_noticed() -> None:
    work = WorkLoop(ManualClock())
    queue = work.queue("test", lambda key: queue.add(key))
    queue.add(("", "again"))
    with pytest.raises(RuntimeError, match="do not come to rest"):
        work.settle(limit=100)


@dataclass
class JumpingClock:
    """Runs with the wall clock, and can be set."""

    ahead: timedelta = field(default_factory=timedelta)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def real_seconds(self, seconds: float) -> float:
        return seconds


def test_a_clock_that_jumps_is_noticed_before_appointments_are_kept() -> None:
    clock = JumpingClock()
    work = WorkLoop(clock)
    order: list[str] = []
    work.jump_hooks.append(lambda: order.append("jump"))
    queue = work.queue("test", lambda key: order.append("kept"))
    queue.add_after(("", "a"), 3600)
    work.settle()
    clock.ahead = timedelta(days=271)
    work.settle()
    assert order == ["jump", "kept"]


def ready_node(store: Store) -> None:
    condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": store.now()}
    status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}, "conditions": [condition]}
    store.create(kind_of("v1", "Node"), {"metadata": {"name": "one"}, "status": status})


def test_nodes_outlive_a_jump_of_the_clock() -> None:
    clock = JumpingClock()
    store = Store(clock)
    foundation.lay(store)
    running = controllers.Controllers(store)
    ready_node(store)
    running.settle()
    clock.ahead = timedelta(days=271)
    running.settle()
    node = store.get(kind_of("v1", "Node"), None, "one")
    assert node is not None
    assert node["status"]["conditions"][0]["status"] == "True"


def test_started_controllers_work_in_the_loop_until_they_are_stopped() -> None:
    async def run() -> tuple[str | None, str | None]:
        store = Store(ScaledClock(datetime(2026, 1, 1, tzinfo=UTC), time.time(), 1000.0))
        foundation.lay(store)
        ready_node(store)
        running = controllers.start(store)
        spec = {"containers": [{"name": "c", "image": "x"}]}
        pod = {"metadata": {"name": "one", "namespace": "default"}, "spec": spec}
        store.create(kind_of("v1", "Pod"), pod)
        for _ in range(200):
            await asyncio.sleep(0.005)
            if store.get(kind_of("v1", "Pod"), "default", "one")["spec"].get("nodeName"):  # type: ignore[index]
                break
        await running.stop()
        pod["metadata"]["name"] = "two"
        store.create(kind_of("v1", "Pod"), pod)
        await asyncio.sleep(0.02)
        found = [store.get(kind_of("v1", "Pod"), "default", name) for name in ("one", "two")]
        return found[0]["spec"].get("nodeName"), found[1]["spec"].get("nodeName")  # type: ignore[index]

    assert asyncio.run(run()) == ("one", None)


def test_controllers_take_over_what_is_already_there() -> None:
    clock = ManualClock()
    store = Store(clock)
    foundation.lay(store)
    ready_node(store)
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    body = {"metadata": {"name": "a", "namespace": "default"}, "spec": spec}
    store.create(kind_of("apps/v1", "Deployment"), body)
    controllers.Controllers(store).settle()
    assert len(store.list(kind_of("v1", "Pod"), "default")) == 2
    again = controllers.Controllers(store)
    again.settle()
    assert len(store.list(kind_of("v1", "Pod"), "default")) == 2
