"""Real processes: a Prefect server for the session, sandboxes, and `poolshift` as a person runs it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from infra.kube import api, records
from infra.kube.api import Kube
from infra.model.spec import Cluster
from tests.processes import leashed, sandbox

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "infra" / "examples"
WAITING = "waiting for approval"
_numbers = count()
RATE = os.environ.get("RATE", "240")  # four minutes of the cluster in a second of ours


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass(kw_only=True)
class Stage:
    """A sandbox process and the command line against it."""

    kubeconfig: Path
    env: dict[str, str]
    spec: Path

    @property
    def kube(self) -> Kube:
        """A connection of our own."""
        return api.connect(Cluster(kubeconfig=str(self.kubeconfig)))

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """`poolshift ARGUMENTS --kubeconfig …` in the background."""
        return subprocess.Popen(
            leashed([sys.executable, "-m", "flows.cli", *arguments, "--kubeconfig", str(self.kubeconfig)]),
            env={**self.env, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def run(self, *arguments: str, env: dict[str, str] | None = None, timeout: float = 240) -> Ended:
        """The same, to its end."""
        process = self.start(*arguments, env=env)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"poolshift {' '.join(arguments)} did not end in {timeout} s:\n{err[-3000:]}")
        return Ended(code=process.returncode, out=out, err=err)

    def migrate(self, failpoint: str = "") -> Ended:
        """Run the migration; with a failpoint it is killed there."""
        return self.run("migrate", str(self.spec), env={"POOLSHIFT_FAILPOINT": failpoint} if failpoint else None)

    def approve(self) -> None:
        """As a person on another shell does."""
        said = self.run("approve", self.spec.stem, "--by", "ada", "--reason", "looks right")
        assert said.code == 0, said.err

    def migrate_and_approve(self) -> Ended:
        """Run the migration, and say yes when it asks."""
        process = self.start("migrate", str(self.spec), "--json")
        assert process.stdout is not None
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if WAITING in line:
                self.approve()
        out, _ = process.communicate(timeout=60)
        return Ended(code=process.returncode, out=out, err="".join(said))

    def record(self) -> records.RunRecord:
        """The one run of this cluster."""
        (found,) = records.list_runs(self.kube)
        return found


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of poolshift's for this session."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def stage(prefect_url: str, home: Path, tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """Starts sandboxes: `stage("healthy", "eks")`."""
    env = {**os.environ, "POOLSHIFT_HOME": str(home), "PREFECT_API_URL": prefect_url, "COLUMNS": "200"}
    env.pop("POOLSHIFT_FAILPOINT", None)

    with contextlib.ExitStack() as running:

        def begin(scenario: str, cloud: str = "eks", **changes: Any) -> Stage:
            name = f"run-{os.getpid()}-{next(_numbers)}"  # its own at the Prefect of all
            kubeconfig = tmp_path / f"{name}.kubeconfig"
            running.enter_context(sandbox(kubeconfig, "--cloud", cloud, "--rate", RATE, scenario=scenario))
            return Stage(kubeconfig=kubeconfig, env=env, spec=write_spec(tmp_path, cloud, name, changes))

        yield begin


def write_spec(folder: Path, cloud: str, name: str, changes: dict[str, Any]) -> Path:
    """The example spec of the cloud under another name, with top-level fields replaced."""
    import yaml

    spec = yaml.safe_load((EXAMPLES / f"sandbox-{cloud}.yaml").read_text())
    # Patience for a busy machine, at that rate; nobody waits, or measures longer, where all is well.
    spec["drain"]["waves"]["settle"] = "1h"
    spec["validation"]["budget_gpu_minutes"] = 100_000
    spec = {**spec, "name": name, **changes}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path
