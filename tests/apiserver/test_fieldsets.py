"""The algebra of field sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from infra.sandbox.control_plane import fieldsets


def paths(node, prefix=()):
    """Members of a set as plain paths."""
    found = set()
    for key, child in node.items():
        if key == ".":
            continue
        if fieldsets.owned(child):
            found.add((*prefix, key))
        found |= paths(child, (*prefix, key))
    return found


def node_of(members):
    """The set that has exactly these members."""
    root: dict = {}
    for path in members:
        node = root
        for key in path:
            node = node.setdefault(key, {"unmarked": True})
        node["mark"] = True
    return _plain(root)


def _plain(node):
    children = {key: _plain(child) for key, child in node.items() if key not in ("unmarked", "mark")}
    return {".": {}, **children} if node.get("mark") and children else children


KEYS = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}'])
SETS = st.sets(st.lists(KEYS, min_size=1, max_size=3).map(tuple), max_size=6).map(node_of)


@given(SETS, SETS)
def test_union_holds_the_members_of_both(left, right):
    assert paths(fieldsets.union(left, right)) == paths(left) | paths(right)


@given(SETS, SETS)
def test_difference_holds_what_only_the_left_has(left, right):
    assert paths(fieldsets.difference(left, right)) == paths(left) - paths(right)


@given(SETS, SETS)
def test_shared_paths_are_the_members_of_both(left, right):
    assert len(list(fieldsets.paths(left, right))) == len(paths(left) & paths(right))
