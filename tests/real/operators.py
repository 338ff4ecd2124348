"""Real operators on a real control plane: found in the cache that `make operators` fills, run as processes of ours.

Their webhooks serve on loopback with certificates of a throw-away authority, and the API server calls them by URL:
what they refuse is a part of how a kind may be moved.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.kube.api import APPLY_PATCH, Kube
from infra.sandbox.real import certificates
from infra.sandbox.real.children import Children
from infra.sandbox.real.plane import free_port

MODULE = Path(__file__).parent / "binaries" / "operators" / "go.mod"


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator: the Go module and package of its manager, and where the module keeps its manifests."""

    name: str
    module: str
    package: str
    crds: str
    webhooks: str = ""
    served: str
    config: str = ""
    """API group of the manager's configuration file."""

    @property
    def version(self) -> str:
        """As the pinned module says ("0.11.1")."""
        found = re.search(rf"^\s*{re.escape(self.module)} v(\S+)$", MODULE.read_text(), re.MULTILINE)
        assert found is not None, f"{MODULE} requires no {self.module}"
        return found[1]

    @property
    def folder(self) -> Path:
        """In the cache: `manager`, crds.yaml and, where it has any, webhooks.yaml."""
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return Path(base) / "poolshift" / "operators" / f"{self.name}-{self.version}"

    @property
    def is_built(self) -> bool:
        """Has `make operators` been here?"""
        return (self.folder / "manager").exists()


OPERATORS = {
    each.name: each
    for each in (
        Operator(
            name="jobset",
            module="sigs.k8s.io/jobset",
            package="sigs.k8s.io/jobset",
            crds="config/components/crd/bases/*.yaml",
            webhooks="config/components/webhook/manifests.yaml",
            served="/apis/jobset.x-k8s.io/v1alpha2/jobsets",
            config="config.jobset.x-k8s.io",
        ),
        Operator(
            name="lws",
            module="sigs.k8s.io/lws",
            package="sigs.k8s.io/lws/cmd",
            crds="config/crd/bases/*.yaml",
            webhooks="config/webhook/manifests.yaml",
            served="/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets",
            config="config.lws.x-k8s.io",
        ),
        Operator(
            name="mpi-operator",
            module="github.com/kubeflow/mpi-operator",
            package="github.com/kubeflow/mpi-operator/cmd/mpi-operator",
            crds="manifests/base/kubeflow.org_mpijobs.yaml",
            served="/apis/kubeflow.org/v2beta1/mpijobs",
        ),
    )
}


@contextmanager
def running(name: str, kube: Kube, kubeconfig: Path) -> Iterator[Children]:
    """The operator with its kinds and webhooks on the cluster; the test is skipped where it has not been built."""
    operator = OPERATORS[name]
    if not operator.is_built:
        pytest.skip(f"{name} {operator.version} is not built: make operators")
    folder = Path(tempfile.mkdtemp(prefix=f"poolshift-{name}-"))
    children = Children(folder)
    try:
        for found in documents(operator.folder / "crds.yaml"):
            apply(kube, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", found)
        wait_for(lambda: kube.get(operator.served) is not None, f"{name}'s kinds are served", children)
        ports = free_port(), free_port()
        command = [str(operator.folder / "manager"), *arguments(operator, folder, kubeconfig, ports)]
        children.start(name, command)
        wait_for(lambda: answers(ports[0], operator), f"{name} is ready", children)
        if operator.webhooks:
            ca = (folder / "ca.crt").read_bytes()
            for found in documents(operator.folder / "webhooks.yaml"):
                apply(kube, f"/apis/{found['apiVersion']}/{found['kind'].lower()}s", by_url(found, name, ports[1], ca))
        yield children
    finally:
        for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            kube.delete(f"/apis/admissionregistration.k8s.io/v1/{kind}/{name}")
        children.stop()


def arguments(operator: Operator, folder: Path, kubeconfig: Path, ports: tuple[int, int]) -> list[str]:
    """The manager's flags: on loopback, alone, its webhook certificates beside its log."""
    if operator.name == "mpi-operator":
        here = ["-kubeConfig", str(kubeconfig), "-lock-namespace", "default", "-monitoring-port", str(ports[0])]
        return [*here, "-kube-api-qps", "100", "-kube-api-burst", "100"]
    made = certificates.write(folder)
    shutil.copy(made.serving, folder / "tls.crt")
    shutil.copy(made.serving_key, folder / "tls.key")
    document = {
        "apiVersion": f"{operator.config}/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{ports[0]}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": ports[1], "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(document))
    return [f"--kubeconfig={kubeconfig}", f"--config={folder / 'config.yaml'}"]


def by_url(found: dict[str, Any], name: str, port: int, ca: bytes) -> dict[str, Any]:
    """A webhook configuration that calls this machine's loopback instead of a Service."""
    hooks = []
    for hook in found["webhooks"]:
        path = hook["clientConfig"]["service"]["path"]
        config = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": b64encode(ca).decode()}
        hooks.append({**hook, "clientConfig": config})
    return {**found, "metadata": {"name": name}, "webhooks": hooks}


def documents(path: Path) -> list[dict[str, Any]]:
    """The objects in a YAML file."""
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


def apply(kube: Kube, collection: str, found: dict[str, Any]) -> None:
    """One object, whether or not it is there."""
    params = {"fieldManager": "test", "force": True}
    path = f"{collection}/{found['metadata']['name']}"
    kube.request("PATCH", path, body=found, params=params, content_type=APPLY_PATCH)


def answers(port: int, operator: Operator) -> bool:
    """Does the manager say that it is ready, webhooks and all?"""
    path = "/metrics" if operator.name == "mpi-operator" else "/readyz"
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False


def wait_for(seen: Any, what: str, children: Children, seconds: float = 120.0) -> None:
    """Until it is so; fails with the operator's last words when it ends or takes too long."""
    end = time.monotonic() + seconds
    while not seen():
        fallen = children.fallen()
        words = next((c.last_words() for c in children.children), "")
        assert fallen is None, f"the operator ended: {words}"
        assert time.monotonic() < end, f"never seen: {what}; its log ends: {words}"
        time.sleep(0.5)
