"""Finding the bad node or link: right, in about log2 rounds, and never a guess."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.model.verdict import Outcome
from tasks.rules.localise import Limits, localise


def names(count):
    return [f"n{i:02d}" for i in range(count)]


class Fabric:
    """Nodes and links that are well or not; asserts that a round's groups could really run side by side."""

    def __init__(self, count, bad=(), links=(), silent=()):
        every = names(count)
        self.names = every
        self.bad = {every[i] for i in bad}
        self.links = {tuple(sorted((every[a], every[b]))) for a, b in links}
        self.silent = {every[i] for i in silent}
        self.rounds = 0

    def __call__(self, groups):
        self.rounds += 1
        everybody = [name for group in groups for name in group]
        assert len(everybody) == len(set(everybody))
        assert all(len(group) >= 2 for group in groups)
        return {group: self.judge(group) for group in groups}

    def judge(self, group):
        if group & self.silent:
            return Outcome.UNMEASURED
        broken = group & self.bad or any(set(link) <= group for link in self.links)
        return Outcome.FAIL if broken else Outcome.PASS


@pytest.mark.parametrize("defects", [1, 2, 3])
def test_one_to_three_bad_nodes_of_64_are_found_in_at_most_eight_rounds(defects):
    rng = random.Random(defects)
    for _ in range(100):
        fabric = Fabric(64, bad=rng.sample(range(64), defects))
        found = localise(names(64), fabric)
        assert set(found.bad_nodes) == fabric.bad
        assert not found.bad_pairs
        assert not found.unresolved
        assert len(found.good) == 64 - defects
        assert found.rounds == fabric.rounds <= math.log2(64) + 2
        assert found.tests <= 2 * defects * math.log2(64) + 2


def test_a_bad_link_between_two_well_nodes_is_named_as_a_link():
    rng = random.Random(7)
    for _ in range(60):
        fabric = Fabric(64, links=[rng.sample(range(64), 2)])
        found = localise(names(64), fabric)
        assert set(found.bad_pairs) == fabric.links
        assert not found.bad_nodes
        assert found.rounds <= 2 * math.log2(64) + 2


def test_a_bad_node_and_a_bad_link_are_both_found():
    fabric = Fabric(16, bad=[3], links=[(8, 13)])
    found = localise(names(16), fabric)
    assert set(found.bad_nodes) == fabric.bad
    assert set(found.bad_pairs) == fabric.links


@pytest.mark.parametrize("count", [3, 4, 5, 6, 7, 8])
def test_every_set_of_bad_nodes_of_a_small_pool_is_found_when_two_are_well(count):
    for defects in range(1, count - 1):
        for bad in itertools.combinations(range(count), defects):
            fabric = Fabric(count, bad=bad)
            assert set(localise(names(count), fabric).bad_nodes) == fabric.bad


def test_two_nodes_alone_cannot_tell_a_node_from_a_link():
    found = localise(names(2), Fabric(2, bad=[0]))
    assert found.unresolved == ("n00", "n01")
    assert not found.bad_nodes
    assert "no node is known to be well" in found.reason


def test_when_no_two_nodes_are_well_together_nobody_is_blamed():
    """A plugin that is missing everywhere is no bad node."""
    found = localise(names(8), Fabric(8, bad=range(8)))
    assert not found.bad_nodes
    assert not found.good
    assert len(found.unresolved) == 8


def test_a_test_without_an_answer_leaves_its_nodes_in_doubt_and_blames_none():
    found = localise(names(8), Fabric(8, silent=[5]))
    assert not found.bad_nodes
    assert "n05" in found.unresolved


def test_the_limit_of_node_tests_is_kept():
    spent = []

    def run(groups):
        spent.append(sum(len(g) for g in groups))
        return Fabric(64, bad=[9])(groups)

    found = localise(names(64), run, Limits(node_tests=110))
    assert sum(spent) <= 110
    assert not found.bad_nodes
    assert "n09" in found.unresolved
    assert "limit" in found.reason


def test_what_may_run_no_more_leaves_its_nodes_in_doubt_and_says_why():
    fabric = Fabric(64, bad=[9])
    found = localise(names(64), lambda groups: fabric(groups) if fabric.rounds < 2 else None)
    assert found.rounds == 2
    assert not found.bad_nodes
    assert "n09" in found.unresolved
    assert "budget" in found.reason


@settings(max_examples=80)
@given(st.integers(2, 40), st.data())
def test_a_well_node_is_never_blamed_and_a_bad_one_never_called_good(count, data):
    bad = data.draw(st.sets(st.integers(0, count - 1), max_size=4))
    silent = data.draw(st.sets(st.integers(0, count - 1), max_size=2))
    fabric = Fabric(count, bad=bad, silent=silent)
    found = localise(names(count), fabric, Limits(tests=400))
    assert set(found.bad_nodes) <= fabric.bad
    assert not fabric.bad & set(found.good)
    assert not set(found.good) & (set(found.unresolved) | set(found.bad_nodes))


class Changing(Fabric):
    """A fabric on which something happens between the rounds: nodes turn bad, tests fail once or give no answer."""

    def __init__(self, count, *, turns=(), spurious=(), mute=(), **kinds):
        super().__init__(count, **kinds)
        self.turns, self.spurious, self.mute = dict(turns), set(spurious), set(mute)
        self.asked = 0

    def __call__(self, groups):
        self.bad |= {self.names[node] for node, when in self.turns.items() if self.rounds >= when}
        return super().__call__(groups)

    def judge(self, group):
        self.asked += 1
        if self.asked in self.mute:
            return Outcome.UNMEASURED
        return Outcome.FAIL if self.asked in self.spurious else super().judge(group)


@pytest.mark.parametrize("count", [8, 16, 64])
def test_a_known_good_partner_that_turns_bad_is_found_and_nobody_else_is_blamed(count):
    rng = random.Random(count)
    for _ in range(80):
        first, second = rng.sample(range(count), 2)
        fabric = Changing(count, bad=[first], turns={second: rng.randrange(1, 8)})
        found = localise(names(count), fabric)
        assert set(found.bad_nodes) <= fabric.bad
        assert not found.bad_pairs
        assert not fabric.bad & set(found.good) or fabric.rounds <= fabric.turns[second]


@settings(max_examples=120)
@given(st.integers(4, 40), st.integers(1, 40))
def test_one_test_that_fails_by_accident_blames_no_node_and_no_link(count, when):
    """All nodes are well; the failure that started the search, and one more, came and went."""
    found = localise(names(count), Changing(count, spurious=[when]))
    assert not found.bad_nodes
    assert not found.bad_pairs


@settings(max_examples=120)
@given(st.integers(4, 40), st.data())
def test_tests_without_an_answer_blame_nobody_that_is_well(count, data):
    bad = data.draw(st.sets(st.integers(0, count - 1), max_size=3))
    mute = data.draw(st.sets(st.integers(1, 60), max_size=12))
    fabric = Changing(count, bad=bad, mute=mute)
    found = localise(names(count), fabric)
    assert set(found.bad_nodes) <= fabric.bad
    assert not found.bad_pairs
    assert not fabric.bad & set(found.good)


@settings(max_examples=60)
@given(st.integers(6, 32), st.data())
def test_bad_links_that_share_a_node_blame_no_link_that_is_well(count, data):
    shared = data.draw(st.integers(0, count - 1))
    others = data.draw(st.sets(st.integers(0, count - 1).filter(lambda n: n != shared), min_size=1, max_size=2))
    fabric = Fabric(count, links=[(shared, other) for other in others])
    found = localise(names(count), fabric)
    assert set(found.bad_pairs) <= fabric.links


def test_a_fabric_that_fails_at_random_ends_within_its_limits():
    rng = random.Random(4)

    def run(groups):
        return {group: rng.choice([Outcome.PASS, Outcome.FAIL, Outcome.UNMEASURED]) for group in groups}

    for _ in range(50):
        found = localise(names(64), run, Limits(tests=120, node_tests=1500))
        assert found.tests <= 120
        assert found.node_tests <= 1500
