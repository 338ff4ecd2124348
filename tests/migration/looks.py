"""What the tests of whole migrations look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from infra.model.record import HELD, PRIOR, UNPROVEN_TAINT, Step, StepState


def pods(kube: Any) -> dict[str, str]:
    """UIDs of the workloads' pods by namespace/name."""
    return {
        f"{p['metadata']['namespace']}/{p['metadata']['name']}": p["metadata"]["uid"]
        for p in kube.list("/api/v1/pods")
        if p["metadata"]["namespace"] not in ("kube-system", "poolshift")
    }


def pool_nodes(kube: Any, name: str) -> list[dict[str, Any]]:
    return [n for n in kube.list("/api/v1/nodes") if name in n["metadata"]["labels"].values()]


def taints(node: dict[str, Any]) -> set[str]:
    return {t["key"] for t in node["spec"].get("taints") or ()}


def assert_migrated(here: Any, ended: Any, before: dict[str, str], *, asked: bool = False) -> None:
    """Everything moved, nothing lost, the old pool gone, the report written."""
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert result["simulated"] is True
    record = here.record()
    assert [s for s in Step if asked or s is not Step.APPROVAL] == [s for s in Step if s in record.steps]
    assert all(entry.state is StepState.DONE for entry in record.steps.values())
    after = pods(here.kube)
    assert len(after) == len(before)
    assert not set(before.values()) & set(after.values())
    assert pool_nodes(here.kube, "gpu-old") == []
    for node in pool_nodes(here.kube, "gpu-rdma"):
        assert UNPROVEN_TAINT not in taints(node)
        assert not {PRIOR, HELD} & set(node["metadata"].get("annotations", {}))
        assert not node["spec"].get("unschedulable")
    report = Path(result["report"])
    assert "retired" in report.read_text()
    assert "simulated" in report.read_text()
    assert json.loads(report.with_name("report.json").read_text())["story"]["figures"]
