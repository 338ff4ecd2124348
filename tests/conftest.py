"""The real control plane of this session: one for every folder, started when first needed, stopped always.

What is marked `real` runs when it was asked for, by `make test-real` (POOLSHIFT_REAL_API=1) or by `-m real`.
POOLSHIFT_REAL_VERSION ("1.34") chooses the version, KUBEBUILDER_ASSETS the folder.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from infra.sandbox import real
from tests.migration.servers import shared_prefect_server

# A busy machine is no failure.
settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")

# In a shell's background job: what it starts would not hear a Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def real_wanted(config: pytest.Config) -> bool:
    """Was the real control plane asked for?"""
    return os.environ.get("POOLSHIFT_REAL_API") == "1" or "real" in config.option.markexpr.split(" and ")


TESTS = Path(__file__).parent
LONGEST = (
    "migration/test_migrations.py",
    "migration/test_resume.py",
    "migration/test_swap.py",
    "cli/test_orchestrator.py",
    "cli/test_bad_input.py",
    "cli/test_broken_long_ago.py",
    "readers/test_no_false_pass.py",
    "evidence/test_mpi_operator.py",
    "drain/test_move_on_api.py",
    "evidence/test_probes_on_the_sandbox.py",
    "conformance/controllers/test_jobs.py",
    "drain/test_gang_operators.py",
    "sandbox/test_sandbox_run.py",
    "migration/test_rollback_and_gangs.py",
    "drain/test_drain_alone_on_api.py",
    "readers/test_nccl_repeats.py",
    "payloads/test_node_payloads.py",
)
"""Files that take ten seconds and more, in this order: a worker takes up file after file."""
CAMPAIGN_SECONDS = 3600
"""After which a test of a campaign has hung; the others have `timeout` in pyproject.toml."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first: one that starts last keeps everybody waiting. More time for campaigns.

    What needs the real control plane is left out, counted as deselected, unless it was asked for.
    """
    rank = {file: number for number, file in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.relative_to(TESTS).as_posix(), len(rank)))
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


@pytest.fixture(scope="session")
def prefect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server for all who need none of their own, of every worker: to start one takes ten seconds."""
    with shared_prefect_server(_shared(tmp_path_factory)) as url:
        yield url


@pytest.fixture(scope="session")
def prefect_database(prefect_url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of its database, for servers of one's own: to make one anew takes most of a start in a fresh home."""
    made = tmp_path_factory.mktemp("prefect-database") / "prefect.db"
    known = _shared(tmp_path_factory) / "prefect" / "prefect.db"
    with closing(sqlite3.connect(known)) as source, closing(sqlite3.connect(made)) as copy:
        source.backup(copy)
    return made


def _shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all workers."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "prefect-of-all"
    folder.mkdir(exist_ok=True)
    return folder
