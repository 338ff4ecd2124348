"""Amounts that no node can have are unreadable, like any other text, and stop nothing."""

import pytest

from infra.kube.wire import amounts, quantity


@pytest.mark.parametrize("text", ["1e400", "9" * 400, "9" * 400 + "Ki", "inf", "nan", "-inf", "1e308E"])
def test_a_quantity_beyond_every_number_is_none(text):
    assert quantity(text) == 0.0
    assert amounts({"cpu": text, "nvidia.com/gpu": text}) == {"cpu": 0, "nvidia.com/gpu": 0}
