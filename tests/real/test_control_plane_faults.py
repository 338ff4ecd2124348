"""Starting, failing and stopping the real control plane."""

import json
import socket
import ssl
import subprocess
import urllib.request
from pathlib import Path

import pytest

from infra.errors import PoolshiftError, Unreachable
from infra.kube import api
from infra.model.spec import Cluster
from infra.sandbox import real
from infra.sandbox.real import plane as planes

KUBECTL = "kubectl"


def scripts(folder: Path, etcd: str) -> Path:
    """Binaries that all call themselves 1.36.3; `etcd` is what etcd does when started."""
    folder.mkdir()
    for name in real.binaries.NAMES:
        body = etcd if name == "etcd" else "sleep 600"
        (folder / name).write_text(
            f'#!/bin/sh\nif [ "$1" = --version ]; then echo Kubernetes v1.36.3; exit; fi\n{body}\n'
        )
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def any_version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts are of one version, whichever the session's control plane is of."""
    if request.node.get_closest_marker("real") is None:
        monkeypatch.delenv("POOLSHIFT_REAL_VERSION", raising=False)


def test_a_busy_port_is_named_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(scripts(tmp_path / "assets", "sleep 600")))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PoolshiftError, match=f"port {port} on 127.0.0.1: cannot be used") as caught:
            real.start(port=port)
    assert f"ss -ltnp 'sport = :{port}'" in caught.value.remedy


def test_an_etcd_that_dies_at_the_start_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(scripts(tmp_path / "assets", "echo no space left; exit 4")))
    monkeypatch.setattr(planes.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(real.ControlPlaneFailed, match=r"etcd: ended with status 4.*no space left"):
        real.start()
    assert not list(tmp_path.glob("poolshift-control-plane-*"))


def test_an_etcd_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(scripts(tmp_path / "assets", "echo waiting; sleep 600")))
    monkeypatch.setattr(planes.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(planes, "READY_SECONDS", 0.3)
    with pytest.raises(real.ControlPlaneFailed, match="etcd: not ready after 0 s: waiting"):
        real.start()
    assert not list(tmp_path.glob("poolshift-control-plane-*"))


@pytest.mark.real
def test_it_answers_kubectl_with_its_version(plane: real.RealControlPlane, kubectl: list[str]) -> None:
    answer = subprocess.run([*kubectl, "version", "-o", "json"], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["serverVersion"]["gitVersion"] == f"v{plane.version}"


@pytest.mark.real
def test_rbac_is_on(kubectl: list[str]) -> None:
    answer = subprocess.run(
        [*kubectl, "auth", "can-i", "list", "pods", "--as=somebody"], capture_output=True, text=True, check=False
    )
    assert answer.stdout.strip() == "no"


@pytest.mark.real
def test_nobody_gets_in_without_a_token(plane: real.RealControlPlane) -> None:
    assert not planes._answers(f"{plane.url}/api/v1/nodes", plane.ca, "")
    assert not planes._answers(f"{plane.url}/api/v1/nodes", plane.ca, "wrong")
    assert planes._answers(f"{plane.url}/api/v1/nodes", plane.ca, plane.token)


@pytest.mark.real
def test_what_dies_is_named_comes_back_and_is_stopped(plane: real.RealControlPlane, tmp_path: Path) -> None:
    """A second control plane beside the session's, so that nobody else's is hurt."""
    with real.start(plane.version) as other:
        assert other.url != plane.url
        processes = [child.process for child in other.children.children]
        folder = other.folder
        assert len(processes) == 4
        assert other.failure() is None

        _write(other, "kept")
        other.stop_process("kube-apiserver")
        assert not planes._answers(f"{other.url}/readyz", other.ca, other.token)
        failure = other.failure()
        assert failure is not None
        assert failure.object == "real control plane, kube-apiserver"
        other.start_process("kube-apiserver")
        assert other.failure() is None
        assert planes._answers(f"{other.url}/api/v1/namespaces/kept", other.ca, other.token)

        client = api.connect(Cluster(kubeconfig=str(_kubeconfig(other, tmp_path))))
        other.stop_process("etcd")
        with pytest.raises(Unreachable):
            client.request("POST", "/api/v1/namespaces", body={"metadata": {"name": "lost"}}, timeout=15)
        failure = other.failure()
        assert failure is not None
        assert failure.object == "real control plane, etcd"
        assert "ended with status -9" in failure.observed
        assert "what the cluster held is lost" in failure.remedy
        other.start_process("etcd")
        assert client.request("GET", "/api/v1/namespaces/kept")["metadata"]["name"] == "kept"
        processes += [child.process for child in other.children.children]
    assert all(process.poll() is not None for process in processes)
    assert not folder.exists()


def _kubeconfig(plane: real.RealControlPlane, folder: Path) -> Path:
    path = folder / "kubeconfig"
    path.write_text(json.dumps(plane.kubeconfig_dict))
    return path


def _write(plane: real.RealControlPlane, namespace: str) -> None:
    request = urllib.request.Request(
        f"{plane.url}/api/v1/namespaces",
        data=json.dumps({"metadata": {"name": namespace}}).encode(),
        headers={"Authorization": f"Bearer {plane.token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, context=ssl.create_default_context(cadata=plane.ca)) as answer:
        assert answer.status == 201


def test_an_error_in_the_block_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of ours, after everything had started."""
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(scripts(tmp_path / "assets", "sleep 600")))
    monkeypatch.setattr(planes, "_answers", lambda *_: True)
    processes = []

    def fail() -> None:
        with real.start() as other:
            processes.extend(child.process for child in other.children.children)
            raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        fail()
    assert len(processes) == 4
    assert all(process.poll() is not None for process in processes)
