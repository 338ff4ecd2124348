"""The real control plane of this session: one for every folder, started when first needed, stopped always.

What is marked `real` runs when it was asked for, by `make test-real` (POOLSHIFT_REAL_API=1) or by `-m real`.
POOLSHIFT_REAL_VERSION ("1.34") chooses the version, KUBEBUILDER_ASSETS the folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from infra.sandbox import real


def real_wanted(config: pytest.Config) -> bool:
    """Was the real control plane asked for?"""
    return os.environ.get("POOLSHIFT_REAL_API") == "1" or "real" in config.option.markexpr.split(" and ")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs the real one, counted as deselected, unless it was asked for."""
    if real_wanted(config):
        return
    left_out = [item for item in items if item.get_closest_marker("real")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def plane() -> Iterator[real.RealControlPlane]:
    """One for all tests that need no cluster of their own. Whoever breaks things starts another."""
    with real.start() as started:
        yield started
