"""The roles in infra/deploy are what a run needs: enough for each command, nothing that none of them uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.errors import Forbidden
from infra.kube import plugins, read
from infra.kube.api import APPLY_PATCH, Kube
from infra.model.gangs import GANG_KINDS

ROOT = Path(__file__).parents[2]
MANIFESTS = list(yaml.safe_load_all((ROOT / "infra" / "deploy" / "rbac.yaml").read_text()))
ROLES = {found["metadata"]["name"]: found for found in MANIFESTS if found["kind"] in ("ClusterRole", "Role")}
OF_ACCOUNT = {
    "poolshift-plan": ("poolshift-read", "poolshift-look"),
    "poolshift": ("poolshift-read", "poolshift-move", "poolshift-own"),
    "poolshift-prove": ("poolshift-read", "poolshift-own"),
}
Grant = tuple[str, str, str]


def grants(*roles: str) -> set[Grant]:
    """(group, resource, verb) of each permission in these roles."""
    return {
        (group, resource, verb)
        for role in roles
        for rule in ROLES[role]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_no_rule_uses_a_wildcard() -> None:
    assert not [grant for grant in grants(*ROLES) if "*" in "".join(grant)]


def test_the_reading_role_only_reads() -> None:
    assert {verb for _, _, verb in grants("poolshift-read", "poolshift-look")} <= {"get", "list", "watch"}


def test_secrets_are_out_of_reach() -> None:
    assert not [grant for grant in grants(*ROLES) if "secrets" in grant[1]]


def test_every_kind_of_gang_can_be_read_and_switched() -> None:
    for kind in GANG_KINDS:
        assert (kind.group, kind.plural, "list") in grants("poolshift-read")
        assert (kind.group, kind.plural, "get") in grants("poolshift-read")
        assert (kind.group, kind.plural, "patch") in grants("poolshift-move")


@pytest.mark.parametrize("account", OF_ACCOUNT)
def test_bindings_give_an_account_its_roles(account: str) -> None:
    bound = {
        found["roleRef"]["name"]
        for found in MANIFESTS
        if found["kind"].endswith("Binding") and account in [subject["name"] for subject in found["subjects"]]
    }
    assert bound == set(OF_ACCOUNT[account])


COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/poolshift/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/poolshift/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/poolshift/rolebindings",
}


def install(kube: Kube) -> None:
    """`kubectl apply -f infra/deploy/rbac.yaml`."""
    for found in MANIFESTS:
        apply(kube, found)


def apply(kube: Kube, found: dict[str, Any]) -> None:
    path = f"{COLLECTIONS[found['kind']]}/{found['metadata']['name']}"
    kube.request("PATCH", path, body=found, params={"fieldManager": "test", "force": True}, content_type=APPLY_PATCH)


@pytest.fixture(scope="module")
def here(stage: Callable[..., Any]) -> Any:
    """One sandbox for all; the migration comes last, since it takes the source pool away."""
    found = stage("healthy", "eks", "real")
    install(found.kube)
    return found


def used(here: Any, account: str) -> tuple[set[Grant], set[str]]:
    """What an account asked for and got, and what it was refused."""
    got: set[Grant] = set()
    refused: set[str] = set()
    for event in here.sandbox.plane.requests(f"system:serviceaccount:poolshift:{account}"):
        about = event.get("objectRef")
        if about is None or "resource" not in about:
            continue
        sub = f"/{about['subresource']}" if "subresource" in about else ""
        grant = (about.get("apiGroup", ""), about["resource"] + sub, event["verb"])
        if event["responseStatus"]["code"] == 403:
            refused.add(" ".join(grant))
        else:
            got.add(grant)
    return got, refused


NEEDED_ELSEWHERE: set[Grant] = {
    # Gangs of kinds that this cluster does not have.
    *(
        (kind.group, kind.plural, verb)
        for kind in GANG_KINDS
        for verb in ("get", "list", "patch")
        if kind.group != "batch"
    ),
    ("bus.volcano.sh", "commands", "create"),
    # What a healthy move does not meet: a pod that a spec lets be deleted, a run that is forgotten.
    ("", "pods", "delete"),
    # `poolshift status` by the same account.
    ("", "configmaps", "list"),
    ("coordination.k8s.io", "leases", "list"),
    # A server-side apply that makes an object is audited as the patch that it is, and authorised as both.
    ("", "services", "create"),
}


@pytest.mark.real
@pytest.mark.slow
def test_a_plan_runs_under_the_reading_role_and_writes_nothing(here: Any) -> None:
    ended = here.run("plan", str(here.spec()), kubeconfig=here.account("poolshift-plan"))
    got, refused = used(here, "poolshift-plan")
    assert refused == set()
    assert ended.code == 0, ended.err
    assert {verb for _, _, verb in got} <= {"get", "list", "watch"}


def complaint(kube: Kube, kind: str) -> str:
    """What a snapshot says when it may not read a kind: the error's remedy, or its note."""
    try:
        return read.snapshot(kube).unread[kind].split(" cannot list ")[1]
    except Forbidden as error:
        return error.remedy.split("add verb ")[1]


@pytest.mark.real
def test_each_missing_rule_of_the_reading_role_is_named(here: Any) -> None:
    """Taken away one at a time: an error, or a note that this was not read; never a silent gap."""
    kube = here.connect(here.account("poolshift-plan"))
    role = ROLES["poolshift-read"]
    kinds = {
        "nodes": "Node",
        "pods": "Pod",
        "poddisruptionbudgets": "PodDisruptionBudget",
        "deployments": "Deployment",
        "replicasets": "ReplicaSet",
        "statefulsets": "StatefulSet",
        "daemonsets": "DaemonSet",
        "jobs": "Job",
        "persistentvolumeclaims": "PersistentVolumeClaim",
        "persistentvolumes": "PersistentVolume",
    }
    for resource, kind in kinds.items():
        rules = [
            rule | {"resources": [name for name in rule["resources"] if name != resource] or ["none"]}
            for rule in role["rules"]
        ]
        apply(here.kube, role | {"rules": rules})
        assert f'"{resource}"' in complaint(kube, kind), resource
    apply(here.kube, role)
    assert read.snapshot(kube).unread == {}


@pytest.mark.real
def test_a_missing_rule_for_plugins_is_named(here: Any) -> None:
    kube = here.connect(here.account("poolshift-plan"))
    role = ROLES["poolshift-read"]
    rules = [rule for rule in role["rules"] if "daemonsets" not in rule["resources"]]
    apply(here.kube, role | {"rules": rules})
    with pytest.raises(Forbidden) as caught:
        plugins.view(kube, {"eks.amazonaws.com/nodegroup": "gpu-old"})
    assert 'add verb "list" on resource "daemonsets" in apiGroup "apps"' in caught.value.remedy
    apply(here.kube, role)


@pytest.mark.real
@pytest.mark.slow
def test_a_migration_runs_under_its_role_and_needs_all_of_it(here: Any) -> None:
    ended = here.run("migrate", str(here.spec()), kubeconfig=here.account("poolshift"))
    got, refused = used(here, "poolshift")
    assert refused == set()
    assert ended.code == 0, ended.err
    assert sorted(grants(*OF_ACCOUNT["poolshift"]) - got - NEEDED_ELSEWHERE) == []
