"""Starting, failing and stopping the real control plane."""

import json
import socket
import subprocess
import time
from pathlib import Path

import pytest

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


def test_a_busy_port_is_named_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(scripts(tmp_path / "assets", "sleep 600")))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(real.ControlPlaneFailed, match=f"port {port} on 127.0.0.1: cannot be used") as caught:
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
def test_the_api_server_comes_back_where_it_was(plane: real.RealControlPlane, kubectl: list[str]) -> None:
    subprocess.run([*kubectl, "create", "configmap", "kept"], check=True, capture_output=True)
    plane.stop_process("kube-apiserver")
    assert not planes._answers(f"{plane.url}/readyz", plane.ca, plane.token)
    failure = plane.failure()
    assert failure is not None
    assert "kube-apiserver" in failure.object
    plane.start_process("kube-apiserver")
    assert plane.failure() is None
    subprocess.run([*kubectl, "delete", "configmap", "kept"], check=True, capture_output=True)


@pytest.mark.real
def test_a_second_one_runs_beside_it_and_stops_cleanly(plane: real.RealControlPlane) -> None:
    with real.start(plane.version) as other:
        assert other.url != plane.url
        processes = [child.process for child in other.children.children]
        folder = other.folder
        assert len(processes) == 4
        assert other.failure() is None
        next(child for child in other.children.children if child.name == "etcd").process.kill()
        deadline = time.monotonic() + 10
        while other.failure() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        failure = other.failure()
        assert failure is not None
        assert failure.object == "real control plane, etcd"
        assert "ended with status -9" in failure.observed
    assert all(process.poll() is not None for process in processes)
    assert not folder.exists()


@pytest.mark.real
def test_an_error_in_the_block_stops_it(plane: real.RealControlPlane) -> None:
    processes = []

    def fail() -> None:
        with real.start(plane.version) as other:
            processes.extend(child.process for child in other.children.children)
            raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        fail()
    assert len(processes) == 4
    assert all(process.poll() is not None for process in processes)
