"""Which nodes are meant by the name of a pool."""

from __future__ import annotations

import pytest

from infra.errors import BadSpec
from infra.model.pools import MACHINE_LABEL, POOL_LABELS, in_pool
from tasks import draining

MARKS = [label for label in POOL_LABELS if label != MACHINE_LABEL]


@pytest.mark.parametrize("mark", MARKS)
def test_a_marked_node_goes_by_its_mark_and_not_by_its_machine_type(mark):
    """Source and target of a migration may be of one machine type: its name must not mean both."""
    labels = {mark: "new", MACHINE_LABEL: "p5.48xlarge"}
    assert in_pool(labels, "new")
    assert not in_pool(labels, "p5.48xlarge")


def test_a_node_with_several_marks_goes_by_each():
    labels = dict(zip(MARKS, "abcd", strict=True))
    assert all(in_pool(labels, name) for name in "abcd")


def test_a_node_that_nobody_marked_goes_by_its_machine_type():
    assert in_pool({MACHINE_LABEL: "p5.48xlarge"}, "p5.48xlarge")
    assert in_pool({MARKS[0]: "", MACHINE_LABEL: "p5.48xlarge"}, "p5.48xlarge")


def test_a_node_without_labels_is_in_no_pool():
    assert not in_pool({}, "")
    assert not in_pool({}, "p5.48xlarge")


def test_a_selector_that_the_server_cannot_read_is_a_usage_error(kube):
    with pytest.raises(BadSpec) as refused:
        draining.selected(kube, "a in (b")
    assert "a in (b,c)" in refused.value.expected
    assert refused.value.remedy.startswith("kubectl get nodes")
