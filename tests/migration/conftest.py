"""Real processes: a Prefect server for the session, sandboxes, and `poolshift` as a person runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.kube import api, records
from infra.kube.api import Kube
from infra.model.record import PREFIX
from infra.model.spec import Cluster

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "infra" / "examples"
RATE = "240"  # four minutes of the cluster in a second of ours


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
    process: subprocess.Popen[str]
    env: dict[str, str]
    spec: Path

    @property
    def kube(self) -> Kube:
        """A connection of our own."""
        return api.connect(Cluster(kubeconfig=str(self.kubeconfig)))

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """`poolshift ARGUMENTS --kubeconfig …` in the background."""
        return subprocess.Popen(
            [sys.executable, "-m", "flows.cli", *arguments, "--kubeconfig", str(self.kubeconfig)],
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

    def record(self) -> records.RunRecord:
        """The one run of this cluster."""
        (found,) = records.list_runs(self.kube)
        return found


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of poolshift's for this session."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def prefect_url(home: Path) -> Iterator[str]:
    """One Prefect server for the session; fresh homes cost eight seconds of database migrations each."""
    code = (
        "import signal, sys\n"
        "from flows.orchestrator import start_server, stop_server\n"
        "child, url = start_server()\n"
        "print(url, flush=True)\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit())\n"
        "try:\n    sys.stdin.read()\n"
        "finally:\n    stop_server(child)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "POOLSHIFT_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    url = process.stdout.readline().strip()
    assert url.startswith("http"), f"no Prefect server: {url!r}"
    yield url
    process.stdin.close()
    process.wait(timeout=30)
    process.stdout.close()


@pytest.fixture
def stage(prefect_url: str, home: Path, tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """Starts sandboxes: `stage("healthy", "eks")`."""
    running: list[subprocess.Popen[str]] = []
    env = {**os.environ, "POOLSHIFT_HOME": str(home), "PREFECT_API_URL": prefect_url, "COLUMNS": "200"}
    env.pop("POOLSHIFT_FAILPOINT", None)

    def begin(scenario: str, cloud: str = "eks", **changes: Any) -> Stage:
        number = len(running)
        kubeconfig = tmp_path / f"{number}.kubeconfig"
        command = [sys.executable, "-m", "infra.sandbox", "--scenario", scenario, "--cloud", cloud, "--rate", RATE]
        with (tmp_path / f"{number}.log").open("w") as log:
            process = subprocess.Popen(
                [*command, "--kubeconfig", str(kubeconfig)], stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
            )
        running.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready http"), (tmp_path / f"{number}.log").read_text()[-3000:]
        return Stage(
            kubeconfig=kubeconfig, process=process, env=env, spec=write_spec(tmp_path, cloud, f"run-{number}", changes)
        )

    yield begin
    for process in running:
        process.send_signal(signal.SIGTERM)
    for process in running:
        process.wait(timeout=30)
        assert process.stdout is not None
        process.stdout.close()


def write_spec(folder: Path, cloud: str, name: str, changes: dict[str, Any]) -> Path:
    """The example spec of the cloud under another name, with top-level fields replaced."""
    import yaml

    spec = yaml.safe_load((EXAMPLES / f"sandbox-{cloud}.yaml").read_text())
    spec = {**spec, "name": name, **changes}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


@pytest.fixture
def end_state() -> Callable[[Kube], dict[str, Any]]:
    """What is left at the end, without uids, times and generated names: comparable between two runs."""

    def look(kube: Kube) -> dict[str, Any]:
        nodes = list(kube.list("/api/v1/nodes"))
        by_pool: dict[str, list[Any]] = {}
        for node in nodes:
            labels = node["metadata"]["labels"]
            pool = labels.get("eks.amazonaws.com/nodegroup") or labels.get("cloud.google.com/gke-nodepool") or ""
            by_pool.setdefault(pool, []).append(_node(node))
        workloads = {
            f"{kind}/{item['metadata']['namespace']}/{item['metadata']['name']}": _workload(item)
            for kind, path in (
                ("deployment", "/apis/apps/v1/deployments"),
                ("statefulset", "/apis/apps/v1/statefulsets"),
                ("daemonset", "/apis/apps/v1/daemonsets"),
                ("job", "/apis/batch/v1/jobs"),
                ("budget", "/apis/policy/v1/poddisruptionbudgets"),
            )
            for item in kube.list(path)
        }
        (record,) = records.list_runs(kube)
        return {
            "nodes": {pool: sorted(map(json.dumps, found)) for pool, found in sorted(by_pool.items())},
            "workloads": workloads,
            "steps": {step.value: entry.state.value for step, entry in record.steps.items()},
            "leases": sorted(
                lease["metadata"]["name"]
                for lease in kube.list("/apis/coordination.k8s.io/v1/namespaces/poolshift/leases")
            ),
            "left over": sorted(
                item["metadata"]["name"] for item in kube.list("/apis/batch/v1/namespaces/poolshift/jobs")
            ),
        }

    return look


def _node(node: dict[str, Any]) -> dict[str, Any]:
    spec, meta = node.get("spec") or {}, node["metadata"]
    return {
        "unschedulable": bool(spec.get("unschedulable")),
        "taints": sorted(f"{t['key']}:{t['effect']}" for t in spec.get("taints") or ()),
        "ours": sorted(k for k in {**meta.get("labels", {}), **meta.get("annotations", {})} if k.startswith(PREFIX)),
        "ready": any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"]),
    }


def _workload(item: dict[str, Any]) -> dict[str, Any]:
    spec, status = item.get("spec") or {}, item.get("status") or {}
    marks = {**(item["metadata"].get("annotations") or {}), **(item["metadata"].get("labels") or {})}
    return {
        "replicas": spec.get("replicas"),
        "suspend": bool(spec.get("suspend")),
        "ready": status.get("readyReplicas") or status.get("ready") or status.get("numberReady"),
        "active": status.get("active"),
        "failed": status.get("failed"),
        "ours": sorted(k for k in marks if k.startswith(PREFIX) and "checkpoint" not in k),
    }
