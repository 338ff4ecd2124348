"""An error that Prefect keeps has commands that can be typed as they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows.ending import in_full
from flows.reaching import Reach
from infra.errors import GateHeld, PoolshiftError
from tasks import progress


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    progress.reword(None)


def test_an_error_leaves_a_flow_with_the_cluster_and_the_spec_in_its_commands() -> None:
    progress.reword(Reach(kubeconfig="k", spec="s.yaml").complete)
    with pytest.raises(GateHeld) as caught, in_full():
        raise GateHeld("gate", "held", expected="pass", remedy="kubectl get nodes; poolshift migrate SPEC")

    assert "kubectl --kubeconfig k get nodes; poolshift migrate --kubeconfig k s.yaml" in str(caught.value)
    assert str(caught.value) == caught.value.wording()
    with pytest.raises(PoolshiftError) as again, in_full():
        raise caught.value
    assert str(again.value) == caught.value.wording()
