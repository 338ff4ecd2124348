"""What may not be listed may bear our mark: it is never taken for nothing left to put back."""

from __future__ import annotations

import pytest

from infra.errors import Forbidden, Unmeasured
from infra.kube import flavors
from infra.kube.api import MERGE_PATCH
from infra.model.record import PRIOR
from tasks.gangs import forget_moved, restore, unfinished
from tests.drain.operating import JOBS
from tests.drain.refusing import refusing
from tests.drain.test_gangs_go_on import held, mark  # noqa: F401 - a fixture


def is_listing_of_deployments(method, path):
    return method == "GET" and "/deployments?" in path and "labelSelector" in path


def test_gangs_of_a_kind_that_may_not_be_listed_are_not_taken_for_none_and_all_others_are_started(
    kube, kube_at, url, build
):
    build.job("llm", 2)
    mark(kube, "stopped", suspend=True)

    with refusing(url, is_listing_of_deployments) as door:
        blind = kube_at(door)
        with pytest.raises(Forbidden, match="deployments"):
            unfinished(blind, "r1")
        with pytest.raises(Forbidden, match="deployments"):
            restore(blind, "r1")

    assert kube.request("GET", f"{JOBS}/llm")["spec"]["suspend"] is False
    assert (unfinished(kube, "r1"), restore(kube, "r1")) == ([], ())


def test_nothing_is_forgotten_of_a_run_whose_marks_may_not_all_be_seen(kube, kube_at, url, build, held):  # noqa: F811
    with refusing(url, is_listing_of_deployments) as door, pytest.raises(Forbidden, match="deployments"):
        forget_moved(kube_at(door), "r1")
    assert flavors.release(kube, "r1") == ("a", "b")


def test_a_mark_that_cannot_be_read_is_named_with_what_to_do_and_all_others_are_started(kube, build):
    build.job("llm", 2)
    build.job("web", 2)
    mark(kube, "stopped", suspend=True)
    marks = kube.request("GET", f"{JOBS}/llm")["metadata"]["labels"]
    garbled = {"metadata": {"labels": marks, "annotations": {PRIOR: "{"}}, "spec": {"suspend": True}}
    kube.request("PATCH", f"{JOBS}/web", body=garbled, content_type=MERGE_PATCH)

    for ask in (unfinished, restore, forget_moved):
        with pytest.raises(Unmeasured, match=r"job default/web: annotation .* is unreadable") as told:
            ask(kube, "r1")
    assert "start it if it is stopped" in told.value.remedy
    assert [kube.request("GET", f"{JOBS}/{name}")["spec"]["suspend"] for name in ("llm", "web")] == [False, True]
