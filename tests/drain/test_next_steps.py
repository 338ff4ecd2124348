"""A finding's next step is something to do; what needs nothing says so as what it found."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from infra.kube.read import of_objects
from tasks.rules.replicas import replica_findings

ROOT = Path(__file__).parents[2]
FILLER = re.compile(r"(none|nothing|no action|not)\b.{0,5}\b(needed|required|necessary|to do)|n/?a$|none$", re.I)


def remedies(tree):
    """Every text that the code gives as a remedy, whole or in part."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "remedy":
            yield from (
                c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant) and isinstance(c.value, str)
            )


def test_no_remedy_says_that_nothing_is_to_be_done():
    said = [
        f"{path.relative_to(ROOT)}: {text}"
        for part in ("flows", "tasks", "infra")
        for path in (ROOT / part).rglob("*.py")
        for text in remedies(ast.parse(path.read_text()))
        if FILLER.match(text)
    ]
    assert said == []


@pytest.mark.parametrize(("ready", "told"), [("True", "the move evicts db-1 first"), ("False", "not all that could")])
def test_a_set_that_the_move_sees_to_asks_for_nothing_and_one_that_it_cannot_see_to_does(ready, told):
    def pod(name, is_ready):
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "db", "controller": True}
        return {
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "d", "uid": name, "ownerReferences": [owner]},
            "spec": {"nodeName": "old", "containers": []},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": is_ready}]},
        }

    snapshot = of_objects([pod("db-0", "True"), pod("db-1", ready)])
    (found,) = replica_findings(snapshot, ["old"])
    assert told in found.observed
    assert bool(found.remedy) == (ready != "True")
