"""What may not be listed may bear our mark: it is never taken for nothing left to put back."""

from __future__ import annotations

import pytest

from infra.errors import Forbidden
from infra.kube import flavors
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
