"""In which order evictions go out."""

from __future__ import annotations

from datetime import UTC, datetime

from infra.model.workload import Budget, Pod
from tasks.rules.lanes import Job, Queues
from tasks.rules.last import Last

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def job(name, budget="", node="n"):
    return Job(pod=Pod(namespace="default", name=name, uid=name, node=node), started=NOW, budget=budget)


def budget(name, allowed):
    return Budget(namespace="default", name=name, generation=1, observed=1, allowed=allowed, resource_version="1")


def test_the_budget_with_the_most_turns_left_goes_first_and_pods_without_one_last():
    queues = Queues(1e9)
    queues.rate.take(0.0)  # from here on there are tokens
    for number in range(4):
        queues.put(job(f"free-{number}"))
    for name, allowed, pods in (("wide", 10, 10), ("narrow", 1, 5), ("half", 2, 4)):
        for number in range(pods):
            queues.put(job(f"{name}-{number}", f"default/{name}"), budget(name, allowed))

    taken = [j.pod.name for j in queues.take(5, 1.0, lambda _: True)]

    assert taken == ["narrow-0", "half-0", "wide-0", "free-0", "free-1"]


def test_what_waits_behind_a_budget_is_told_so_that_pods_without_one_do_not_fill_every_place():
    queues = Queues(1e9)
    queues.rate.take(0.0)
    queues.put(job("free"))
    assert queues.unbudgeted
    queues.put(job("held", "default/b"), budget("b", 1))
    assert not queues.unbudgeted
    queues.take(2, 1.0, lambda _: True)
    assert queues.unbudgeted


def test_drivers_go_when_the_others_of_their_node_have_gone():
    last = Last()
    driver, other = job("driver", node="a"), job("driver-b", node="b")
    last.put(driver)
    last.put(other)
    last.came("a")
    last.came("a")

    assert "driver" in last
    assert last.went("a") == []
    assert last.went("a") == [driver]
    assert ("driver" in last, last.nodes()) == (False, ["b"])
    assert last.free("b") == [other]
    assert not last


def test_a_driver_that_leaves_by_itself_is_waited_for_no_longer():
    last = Last()
    driver = job("driver")
    last.put(driver)
    assert last.drop("driver") is driver
    assert (last.drop("driver"), bool(last)) == (None, False)


def test_what_the_rate_alone_holds_back_goes_out_when_it_says_and_no_sooner():
    queues = Queues(40.0)
    for number in range(3):
        queues.put(job(f"p-{number}"))
    assert len(queues.take(3, 0.0, lambda _: True)) == 1
    wait = queues.limited_for
    assert queues.take(3, 0.9 * wait, lambda _: True) == []
    assert len(queues.take(3, 1.001 * wait, lambda _: True)) == 1

    queues.rate.slow_down(1.0, 5.0)
    assert queues.take(3, 1.0, lambda _: True) == []
    assert queues.limited_for == 5.0
    assert len(queues.take(3, 6.0, lambda _: True)) == 1
    assert queues.limited_for == 0.0
