"""The real control plane of this session: one for every folder, started when first needed, stopped always.

What is marked `real` runs when it was asked for, by `make test-real` (POOLSHIFT_REAL_API=1) or by `-m real`.
POOLSHIFT_REAL_VERSION ("1.34") chooses the version, KUBEBUILDER_ASSETS the folder.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from infra.sandbox import real

# In a shell's background job: what it starts would not hear a Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def real_wanted(config: pytest.Config) -> bool:
    """Was the real control plane asked for?"""
    return os.environ.get("POOLSHIFT_REAL_API") == "1" or "real" in config.option.markexpr.split(" and ")


CAMPAIGN_SECONDS = 3600
"""After which a test of a campaign has hung; the others have `timeout` in pyproject.toml."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whole migrations first: one that starts last keeps everybody waiting. More time for campaigns.

    What needs the real control plane is left out, counted as deselected, unless it was asked for.
    """
    items.sort(key=lambda item: "migration" not in item.path.parts)
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("real"):
            item.add_marker(pytest.mark.timeout(CAMPAIGN_SECONDS))
    if real_wanted(config):
        return
    left_out = [item for item in items if item.get_closest_marker("real")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Reports and ledgers of tests that name no home: never those of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POOLSHIFT_HOME", str(tmp_path_factory.mktemp("own-home")))
        yield


@pytest.fixture(scope="session")
def plane() -> Iterator[real.RealControlPlane]:
    """One for all tests that need no cluster of their own. Whoever breaks things starts another."""
    with real.start() as started:
        yield started
