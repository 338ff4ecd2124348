"""A swap step by step, without Prefect: `walk` in this process, or as a process of its own that can be killed.

python -m tests.migration.swapping SPEC     # its exit code is that of the error that ended it
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra.errors import PoolshiftError
from infra.kube import records
from infra.kube.leases import hold
from infra.model.record import Step, StepRecord, StepState
from infra.model.spec import MigrationSpec
from tasks.identity import pool_identity
from tasks.migration import WORK
from tasks.run import Run, perform

EXAMPLES = Path(__file__).parents[2] / "infra" / "examples"
GOING_ON = (Step.BASELINE, Step.READINESS, Step.VALIDATE)  # held, they let the gate say so


def load(cloud: str, kubeconfig: str, name: str, **changes: Any) -> MigrationSpec:
    """The cloud's example, with a budget for two slices, and top-level fields replaced."""
    import yaml

    raw = yaml.safe_load((EXAMPLES / f"sandbox-{cloud}.yaml").read_text())
    raw["validation"]["budget_gpu_minutes"] = 2000
    return MigrationSpec.model_validate({**raw, "name": name, "cluster": {"kubeconfig": kubeconfig}, **changes})


def walk(spec: MigrationSpec, say: Callable[[str], None] = lambda _: None) -> StepRecord:
    """Every step in order, until one is held; the last record. Raises what a step raises."""
    run = Run.open(spec, say=say)
    run.record()
    last: StepRecord | None = None
    with hold(run.kube, [pool_identity(spec.source), pool_identity(spec.target)], spec.name):
        for step in Step:
            if step is Step.APPROVAL:
                continue
            last = perform(Run.open(spec, say=say), step, WORK[step])
            say(f"== {step.value}: {last.state.value}: {last.summary}")
            if last.state is not StepState.DONE and step not in GOING_ON:
                break
    assert last is not None
    return last


def slices(spec: MigrationSpec) -> dict[int, dict[str, Any]]:
    """The slices' notes."""
    record = records.read(Run.open(spec).kube, spec.name)
    notes = record.notes if record else {}
    return {int(key.removeprefix("slice-")): note for key, note in notes.items() if key.startswith("slice-")}


def pool_nodes(spec: MigrationSpec, name: str) -> list[dict[str, Any]]:
    """Node objects of a pool."""
    return [n for n in Run.open(spec).kube.list("/api/v1/nodes") if name in n["metadata"]["labels"].values()]


def workloads(spec: MigrationSpec) -> dict[str, Any]:
    """What runs, comparable before and after: ready replicas, failed pods of Jobs, marks of ours."""
    kube = Run.open(spec).kube
    found = {}
    for path in ("/apis/apps/v1/deployments", "/apis/apps/v1/statefulsets", "/apis/batch/v1/jobs"):
        for item in kube.list(path):
            meta, status = item["metadata"], item.get("status") or {}
            if meta["namespace"] in ("kube-system", "poolshift"):
                continue
            marks = [
                k for k in meta.get("annotations") or {} if k.startswith("poolshift.dev") and "checkpoint" not in k
            ]
            found[f"{path}/{meta['namespace']}/{meta['name']}"] = (
                status.get("readyReplicas") or status.get("ready"),
                status.get("failed"),
                bool((item.get("spec") or {}).get("suspend")),
                marks,
            )
    return found


if __name__ == "__main__":
    import yaml

    try:
        ended = walk(MigrationSpec.model_validate(yaml.safe_load(Path(sys.argv[1]).read_text())), print)
    except PoolshiftError as error:
        print(error.wording())
        sys.exit(error.exit_code)
    sys.exit(0 if ended.state is StepState.DONE else 3)
