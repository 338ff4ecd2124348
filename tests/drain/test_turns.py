"""In which order evictions go out."""

from __future__ import annotations

from datetime import UTC, datetime

from infra.model.workload import Budget, Pod
from tasks.rules.lanes import Job, Queues
from tasks.rules.last import Last
from tasks.rules.standing import standing, waits_for

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


def held(queues, jobs, budgets):
    """What is said of those that wait: (budget, words, count)."""
    found = standing(
        jobs, budgets, total=len(jobs), gone=0, per_second=1.0, rate=queues.limited_by, refused=queues.refused
    )
    return found.waiting


def test_a_budget_with_disruptions_left_is_not_blamed_for_what_the_rate_holds():
    queues = Queues(0.1, "--evictions-per-second")
    open_, shut = budget("open", 7), budget("shut", 0)
    jobs = [job(f"a{n}", "default/open") for n in range(3)] + [job("b", "default/shut"), job("free")]
    for each in jobs:
        queues.put(each, {"default/open": open_, "default/shut": shut}.get(each.budget))
    budgets = {b.key: b for b in (open_, shut)}

    (sent,) = queues.take(9, 1.0, lambda _: True)
    sent.in_flight = True

    by_rate, by_budget = held(queues, jobs, budgets)
    assert by_rate == ("", "held by --evictions-per-second 0.1: default/a1", 3)
    assert by_budget[0] == "default/shut"
    assert by_budget[1].startswith("budget default/shut needs")
    assert waits_for(jobs[1], budgets, "held by the rate") == "held by the rate"


def test_where_nothing_but_its_turn_holds_a_pod_nothing_is_blamed():
    queues = Queues(1e6)
    jobs = [job("a0", "default/open"), job("a1", "default/open")]
    for each in jobs:
        queues.put(each, budget("open", 7))
    queues.take(9, 1.0, lambda _: True)

    assert held(queues, jobs, {"default/open": budget("open", 7)}) == ()


def test_a_budget_that_refuses_against_its_own_status_is_named_and_a_busy_server_is():
    queues, open_ = Queues(100), budget("open", 7)
    queues.put(job("a0", "default/open"), open_)
    queues.lane("default/open").refuse(1.0, open_.resource_version)
    ((key, words, _),) = held(queues, [job("a0", "default/open")], {open_.key: open_})
    assert (key, "refused although it says 7 may go" in words) == ("default/open", True)

    queues.put(job("free"))
    queues.rate.take(1.0)
    queues.rate.slow_down(1.0, 0.5)
    queues.take(9, 1.1, lambda _: True)
    assert "asked for fewer requests" in queues.limited_by
