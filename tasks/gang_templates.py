"""Change a stopped gang's templates, and put them back: on the workload, and on the copies that its operator keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from infra.errors import Conflict
from infra.kube import switches
from infra.kube.api import MERGE_PATCH, Kube
from infra.kube.refusals import ApiError
from infra.model.gangs import GangKind, row_of
from tasks.rules.rehoming import Change, apply, under

HOME = "home"  # in our memory on a gang: the changes made to its templates


def home_of(noted: Mapping[str, Any]) -> tuple[Change, ...]:
    """What this run has changed in the gang's templates."""
    return tuple(Change.from_dict(each) for each in noted.get(HOME) or ())


def is_template_refused(error: ApiError) -> bool:
    """Before 1.36 a Job's template may be changed only while it has no start time, suspended or not."""
    return error.status is not None and error.status.code == 422


def carry_over(kube: Kube, row: GangKind, raw: Mapping[str, Any], changes: Sequence[Change]) -> None:
    """Make the changes in the Jobs that its operator has made of the templates. One that is not there is fine.

    What others have changed in them since stays. Raises Conflict when they do not stop.
    """
    meta = raw["metadata"]
    for suffix, path in row.copies:
        wanted = [Change(at=("template", "spec", *c.at), was=c.was, now=c.now) for c in under(changes, path)]
        if wanted:
            _change_job(kube, meta["namespace"], meta["name"] + suffix, wanted)


def _change_job(kube: Kube, namespace: str, name: str, changes: Sequence[Change]) -> None:
    job = row_of("batch", "Job")
    for _ in range(8):
        raw = switches.read(kube, job, namespace, name)
        patch = apply(raw, changes)[0] if raw is not None else None
        if raw is None or patch is None:
            return
        body = {**patch, "metadata": {"resourceVersion": raw["metadata"].get("resourceVersion")}}
        try:
            kube.request("PATCH", job.path(namespace, name), body=body, content_type=MERGE_PATCH)
            return
        except Conflict:
            continue
        except ApiError as error:
            if not is_template_refused(error) or not (raw.get("status") or {}).get("startTime"):
                raise
            switches.forget_start(kube, job, raw)
    raise Conflict(
        f"job {namespace}/{name}",
        "others kept changing it while its template was to be changed",
        remedy="run the same command again",
    )
