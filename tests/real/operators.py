"""Real operators on a real control plane: found in the cache that `make operators` fills, run as processes of ours.

Their webhooks serve on loopback with certificates of a throw-away authority, and the API server calls them by URL:
what they refuse is a part of how a kind may be moved.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.errors import PoolshiftError
from infra.kube.api import APPLY_PATCH, Kube
from infra.sandbox.real.children import Children
from infra.sandbox.real.plane import free_port
from tests.real.operator_commands import Place, commands, prepare, ready_path

MODULES = Path(__file__).parent / "binaries" / "operators"


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator: the Go module and packages of its programs, and where the module keeps its manifests.

    `programs` maps the file in the cache to its package. `pins` is the folder below binaries/operators whose go.mod
    pins it. `kinds` are those of the module's webhooks that are served, all where it is empty. `hooks` are the names of
    its webhook configurations, mutating and validating: some look for their own.
    """

    name: str
    module: str
    programs: Mapping[str, str]
    crds: str
    webhooks: str = ""
    served: tuple[str, ...]
    pins: str = ""
    converts: tuple[str, ...] = ()
    kinds: frozenset[str] = frozenset()
    hooks: tuple[str, str] = ("", "")

    @property
    def module_file(self) -> Path:
        """The go.mod that pins it."""
        return MODULES / self.pins / "go.mod"

    @property
    def version(self) -> str:
        """As the pinned module says ("0.11.1")."""
        found = re.search(
            rf"^\s*(?:require )?{re.escape(self.module)} v(\S+)$", self.module_file.read_text(), re.MULTILINE
        )
        assert found is not None, f"{self.module_file} requires no {self.module}"
        return found[1]

    @property
    def folder(self) -> Path:
        """In the cache: its programs, crds.yaml and, where it has any, webhooks.yaml."""
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return Path(base) / "poolshift" / "operators" / f"{self.name}-{self.version}"

    @property
    def is_built(self) -> bool:
        """Has `make operators` been here?"""
        return all((self.folder / program).exists() for program in self.programs)


OPERATORS = {
    each.name: each
    for each in (
        Operator(
            name="jobset",
            module="sigs.k8s.io/jobset",
            programs={"manager": "sigs.k8s.io/jobset"},
            crds="config/components/crd/bases/*.yaml",
            webhooks="config/components/webhook/manifests.yaml",
            served=("/apis/jobset.x-k8s.io/v1alpha2/jobsets",),
        ),
        Operator(
            name="lws",
            module="sigs.k8s.io/lws",
            programs={"manager": "sigs.k8s.io/lws/cmd"},
            crds="config/crd/bases/*.yaml",
            webhooks="config/webhook/manifests.yaml",
            served=("/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets",),
        ),
        Operator(
            name="mpi-operator",
            module="github.com/kubeflow/mpi-operator",
            programs={"manager": "github.com/kubeflow/mpi-operator/cmd/mpi-operator"},
            crds="manifests/base/kubeflow.org_mpijobs.yaml",
            served=("/apis/kubeflow.org/v2beta1/mpijobs",),
        ),
        Operator(
            name="kueue",
            module="sigs.k8s.io/kueue",
            programs={"manager": "sigs.k8s.io/kueue/cmd/kueue"},
            pins="kueue",
            crds="config/components/crd/bases/*.yaml",
            webhooks="config/components/webhook/manifests.yaml",
            served=("/apis/kueue.x-k8s.io/v1beta2/resourceflavors",),
            converts=("localqueues", "clusterqueues", "cohorts", "workloads", "multikueueclusters"),
            kinds=frozenset({"jobs", "clusterqueues", "cohorts", "resourceflavors", "workloads"}),
            hooks=("kueue-mutating-webhook-configuration", "kueue-validating-webhook-configuration"),
        ),
        Operator(
            name="training-operator",
            module="github.com/kubeflow/training-operator",
            programs={"manager": "github.com/kubeflow/training-operator/cmd/training-operator.v1"},
            pins="training",
            crds="manifests/base/crds/kubeflow.org_pytorchjobs.yaml",
            webhooks="manifests/base/webhook/manifests.yaml",
            served=("/apis/kubeflow.org/v1/pytorchjobs",),
            kinds=frozenset({"pytorchjobs"}),
            hooks=("", "validator.training-operator.kubeflow.org"),
        ),
        Operator(
            name="kuberay",
            module="github.com/ray-project/kuberay/ray-operator",
            programs={"manager": "github.com/ray-project/kuberay/ray-operator"},
            pins="training",
            crds="config/crd/bases/*.yaml",
            served=("/apis/ray.io/v1/rayclusters", "/apis/ray.io/v1/rayjobs"),
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
    place = Place(folder=folder, kubeconfig=kubeconfig, health=free_port(), hooks=free_port())
    children = Children(folder)
    mutating, validating = operator.hooks[0] or name, operator.hooks[1] or name
    try:
        prepare(kube, name, place)
        for found in documents(operator.folder / "crds.yaml"):
            if found["spec"]["names"]["plural"] in operator.converts:
                found["spec"]["conversion"] = conversion(place)
            apply(kube, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", found)
        for path in operator.served:
            wait_for(lambda at=path: is_served(kube, at), f"{name}'s kinds are served", children)
        for program, command in commands(name, place).items():
            children.start(f"{name}-{program}", [*command[0], str(operator.folder / program), *command[1]])
        wait_for(lambda: answers(place.health, ready_path(name)), f"{name} is ready", children)
        if operator.webhooks:
            for found in documents(operator.folder / "webhooks.yaml"):
                called = mutating if found["kind"].startswith("Mutating") else validating
                made = by_url(found, called, place, operator.kinds)
                if made["webhooks"]:
                    apply(kube, f"/apis/{found['apiVersion']}/{found['kind'].lower()}s", made)
        yield children
    finally:
        for kind, called in (("mutating", mutating), ("validating", validating)):
            kube.delete(f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/{called}")
        children.stop()


def by_url(found: dict[str, Any], name: str, place: Place, kinds: frozenset[str]) -> dict[str, Any]:
    """A webhook configuration that calls this machine's loopback instead of a Service."""
    hooks = [
        {**hook, "clientConfig": place.called(hook["clientConfig"]["service"]["path"])}
        for hook in found["webhooks"]
        if not kinds or any(kinds & set(rule["resources"]) for rule in hook["rules"])
    ]
    return {**found, "metadata": {"name": name}, "webhooks": hooks}


def conversion(place: Place) -> dict[str, Any]:
    """Between the versions of a kind, by the operator."""
    return {
        "strategy": "Webhook",
        "webhook": {"clientConfig": place.called("/convert"), "conversionReviewVersions": ["v1"]},
    }


def documents(path: Path) -> list[dict[str, Any]]:
    """The objects in a YAML file."""
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


def apply(kube: Kube, collection: str, found: dict[str, Any]) -> None:
    """One object, whether or not it is there."""
    params = {"fieldManager": "test", "force": True}
    path = f"{collection}/{found['metadata']['name']}"
    kube.request("PATCH", path, body=found, params=params, content_type=APPLY_PATCH)


def is_served(kube: Kube, path: str) -> bool:
    """Is the collection there?"""
    try:
        return kube.get(path) is not None
    except PoolshiftError:
        return False


def answers(port: int, path: str) -> bool:
    """Does the operator say that it is ready, webhooks and all?"""
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
