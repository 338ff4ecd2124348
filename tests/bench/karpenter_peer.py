"""Karpenter as a peer: a NodePool of simulated nodes of its own, which it drains as a whole when the pool is deleted.

Optional: built by tests/bench/karpenter/build.py. The nodes come from its kwok provider, the kubelet is ours.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infra.model.record import SIMULATED
from infra.ports import free_port
from infra.sandbox.access import Answer, Api

POOL = "karpenter"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
POOLS = "/apis/karpenter.sh/v1/nodepools"
CLASSES = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MACHINE = "c-192x-amd64-linux"  # the largest of the provider's own types, as roomy as the bench's other nodes


def _load_build() -> Any:
    spec = importlib.util.spec_from_file_location("karpenter_build", Path(__file__).parent / "karpenter" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BUILD = _load_build()


def missing() -> str:
    """Why it cannot take part, or ""."""
    if (BUILD.folder() / BUILD.BINARY).exists():
        return ""
    return f"Karpenter {BUILD.pinned_version()} is not built (python tests/bench/karpenter/build.py)"


@dataclass(kw_only=True)
class Karpenter:
    """A running Karpenter."""

    api: Api
    metrics: int
    process: subprocess.Popen[bytes]
    log: Path

    def add_nodes(self, count: int, labels: dict[str, str]) -> list[str]:
        """A NodePool that makes nothing by itself, with `count` nodes. Returns their names, Ready."""
        group, version = CLASSES.split("/")[2:4]
        if not self._wait(lambda: _unless_absent(lambda: self.api.request("GET", CLASSES)), CLASSES)["items"]:
            kind = {"kind": "KWOKNodeClass", "apiVersion": f"{group}/{version}"}
            self._create(CLASSES, {**kind, "metadata": {"name": POOL}})
        template = {"nodeClassRef": {"group": group, "kind": "KWOKNodeClass", "name": POOL}, "requirements": _types()}
        pool = self._create(
            POOLS,
            {
                "apiVersion": "karpenter.sh/v1",
                "kind": "NodePool",
                "metadata": {"name": POOL},
                "spec": {"template": {"spec": template}, "limits": {"cpu": "0"}},
            },
        )
        owner = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "name": POOL, "uid": pool["metadata"]["uid"]}
        every = {**labels, SIMULATED: "true", "karpenter.sh/nodepool": POOL}
        for number in range(count):
            meta = {"name": f"{POOL}-{number:03d}", "labels": every}
            meta["ownerReferences"] = [{**owner, "blockOwnerDeletion": True}]
            claim = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": meta, "spec": template}
            self._create(CLAIMS, claim)
        return self._wait(lambda: self._ready(count), "its nodes")

    def _create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Create; a kind that was defined a moment ago may not be served yet."""
        return self._wait(lambda: _unless_absent(lambda: self.api.request("POST", path, body)), path)

    def _ready(self, count: int) -> list[str]:
        nodes = self.api.list_items("/api/v1/nodes", {"labelSelector": f"karpenter.sh/nodepool={POOL}"})
        names = [n["metadata"]["name"] for n in nodes if not n["spec"].get("taints")]
        claims = self.api.list_items(CLAIMS)
        done = [c for c in claims if _condition(c, "Ready")]
        return names if len(names) == len(done) == count else []

    def delete_pool(self) -> None:
        """What a person does to have all its nodes drained and removed."""
        self.api.request("DELETE", f"{POOLS}/{POOL}", {"propagationPolicy": "Background"})

    def await_gone(self) -> None:
        """Until the pool and its nodes are no more."""
        self._wait(lambda: not self.api.list_items(POOLS) and not self.api.list_items(CLAIMS), "the end of its nodes")

    def refused(self) -> float:
        """Share of its evictions that were refused, from its own metric."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics") as answer:
            text = answer.read().decode()
        found = re.findall(r'eviction_requests_total\{[^}]*code="(\d+)"[^}]*\} (\S+)', text)
        counts = {code: float(number) for code, number in found}
        return counts.get("429", 0.0) / max(1.0, sum(counts.values()))

    def _wait(self, look: Callable[[], Any], what: str, seconds: float = 300.0) -> Any:
        end = time.monotonic() + seconds
        while not (found := look()):
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"Karpenter: {what} did not come: {self.log.read_text()[-2000:]}")
            time.sleep(0.2)
        return found


def _types() -> list[dict[str, Any]]:
    chosen = {"node.kubernetes.io/instance-type": MACHINE, "karpenter.sh/capacity-type": "on-demand"}
    return [{"key": key, "operator": "In", "values": [value]} for key, value in chosen.items()]


def _condition(obj: dict[str, Any], kind: str) -> bool:
    return any(c["type"] == kind and c["status"] == "True" for c in (obj.get("status") or {}).get("conditions") or ())


def _unless_absent(send: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return send()
    except Answer as answer:
        if answer.status not in (404, 429, 500, 503):
            raise
        return None


@contextlib.contextmanager
def running(api: Api, kubeconfig: Path) -> Iterator[Karpenter]:
    """Karpenter with its CRDs, until the end of the block."""
    folder = BUILD.folder()
    for file in sorted((folder / BUILD.CRDS).glob("*.yaml")):
        for crd in yaml.safe_load_all(file.read_text()):
            try:
                api.request("POST", CRDS, crd)
            except Answer as answer:
                if answer.status != 409:
                    raise
    metrics, log = free_port(), kubeconfig.parent / "karpenter.log"
    environment = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "METRICS_PORT": str(metrics),
        "HEALTH_PROBE_PORT": str(free_port()),
        "DISABLE_LEADER_ELECTION": "true",
        "SYSTEM_NAMESPACE": "default",
        "LOG_LEVEL": "error",
    }
    with log.open("wb") as out:
        process = subprocess.Popen([str(folder / BUILD.BINARY)], env=environment, stdout=out, stderr=out)
    try:
        yield Karpenter(api=api, metrics=metrics, process=process, log=log)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
