"""The roles in infra/deploy are what a run needs: enough for each command, nothing that none of them uses."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import deploy
from infra.deploy import Account
from infra.errors import Forbidden
from infra.kube import access, plugins, read, records
from infra.kube.api import Kube
from infra.model.gangs import GANG_KINDS, SURGE_KIND
from infra.model.record import Step
from tasks import undo
from tests.processes import leashed

ROOT = Path(__file__).parents[2]
SERVED = {"", "apps", "batch", "policy", "storage.k8s.io", "resource.k8s.io", "coordination.k8s.io"}
"""API groups of a cluster without operators; rules for other kinds are not asked for in it."""
MANIFESTS = deploy.manifests()
ROLES = {found["metadata"]["name"]: found for found in MANIFESTS if found["kind"] in ("ClusterRole", "Role")}
OF_ACCOUNT = {
    "poolshift-plan": ("poolshift-read", "poolshift-look"),
    "poolshift": ("poolshift-read", "poolshift-move", "poolshift-own"),
    "poolshift-prove": ("poolshift-inspect", "poolshift-probe"),
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


def test_the_reading_roles_only_read() -> None:
    only = grants("poolshift-read", "poolshift-look", "poolshift-inspect")
    assert {verb for _, _, verb in only} <= {"get", "list", "watch"}


def test_secrets_are_out_of_reach() -> None:
    assert not [grant for grant in grants(*ROLES) if "secrets" in grant[1]]


def test_what_a_rollback_asks_for_is_given() -> None:
    given = {(resource, verb) for _, resource, verb in grants(*OF_ACCOUNT["poolshift"])}
    assert {(resource, verb) for resource, verbs in undo.PUT_BACK.items() for verb in verbs} <= given


def test_everything_that_can_be_marked_can_be_read_and_switched() -> None:
    for kind in (*GANG_KINDS, SURGE_KIND):
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


def requests(here: Any, account: str) -> list[dict[str, Any]]:
    """Everything that an account has asked so far."""
    found: list[dict[str, Any]] = here.sandbox.plane.requests(f"system:serviceaccount:poolshift:{account}")
    return found


def used(here: Any, account: str, after: int = 0) -> tuple[set[Grant], set[str]]:
    """What an account asked for and got, and what it was refused; without its first `after` requests."""
    got: set[Grant] = set()
    refused: set[str] = set()
    for event in requests(here, account)[after:]:
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


# A server-side apply that makes an object is audited as the patch that it is, and authorised as both.
APPLIED_SERVICE: Grant = ("", "services", "create")
APPLIED_SCRIPTS: Grant = ("", "configmaps", "create")
NEEDED_ELSEWHERE: set[Grant] = {
    # Gangs of kinds that this cluster does not have.
    *(
        (kind.group, kind.plural, verb)
        for kind in GANG_KINDS
        for verb in ("get", "list", "patch")
        if kind.group != "batch"
    ),
    # Kueue's queues and flavours, which it does not have either.
    *(("kueue.x-k8s.io", kind, "list") for kind in ("localqueues", "clusterqueues", "resourceflavors")),
    *(("kueue.x-k8s.io", "resourceflavors", verb) for verb in ("get", "patch")),
    ("bus.volcano.sh", "commands", "create"),
    ("kubeflow.org", "mpijobs", "create"),
    ("kubeflow.org", "mpijobs", "delete"),
    # A Job that has run and whose template changes, on servers before 1.36.
    ("batch", "jobs/status", "patch"),
    # What a healthy move does not meet: a pod that a spec lets be deleted, a run that is forgotten.
    ("", "pods", "delete"),
    # `poolshift status` by the same account.
    ("", "configmaps", "list"),
    ("coordination.k8s.io", "leases", "list"),
    APPLIED_SERVICE,
}


def complaint(kube: Kube, kind: str) -> str:
    """What a snapshot says when it may not read a kind: the error's remedy, or its note."""
    try:
        return read.snapshot(kube).unread.get(kind, " cannot list nothing").split(" cannot list ")[1]
    except Forbidden as error:
        return error.remedy.split("add verb ")[1]


def until(said: Callable[[], str], words: str) -> str:
    """What is said once it holds the words; RBAC takes a moment to see a changed role."""
    deadline = time.monotonic() + 20
    while words not in (found := said()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def without(role: dict[str, Any], grant: Grant) -> dict[str, Any]:
    """The role with one permission less."""
    rules = []
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                verbs = [verb for verb in rule["verbs"] if (group, resource, verb) != grant]
                if verbs:
                    rules.append({**rule, "apiGroups": [group], "resources": [resource], "verbs": verbs})
    return role | {"rules": rules}


@contextmanager
def taken(here: Any, role: str, grant: Grant) -> Iterator[None]:
    """The role without one permission, until the block ends."""
    here.apply(without(ROLES[role], grant))
    try:
        yield
    finally:
        here.apply(ROLES[role])


def refusal(kube: Kube, account: Account, resource: str, verb: str) -> str:
    """What the check before a run says about a permission."""
    try:
        access.require(kube, account, only={resource: (verb,)})
    except Forbidden as error:
        return error.wording()
    return "nothing is missed"


def marks(here: Any) -> dict[str, Any]:
    """Everything that a run could have touched: nodes, workloads, its own objects, the cloud's pools."""
    kube = here.kube
    paths = (
        "/apis/apps/v1/deployments",
        "/apis/batch/v1/jobs",
        "/api/v1/namespaces/poolshift/configmaps",
        "/apis/coordination.k8s.io/v1/namespaces/poolshift/leases",
        "/api/v1/namespaces/poolshift/services",
    )
    nodes = {
        node["metadata"]["name"]: (node["metadata"]["labels"], node["metadata"].get("annotations"), node["spec"])
        for node in kube.list("/api/v1/nodes")
    }
    objects = {path: {item["metadata"]["uid"]: item.get("spec") for item in kube.list(path)} for path in paths}
    return {"nodes": nodes, **objects}


@pytest.mark.real
def test_what_is_deployed_is_taken_strictly(healthy: Any) -> None:
    found = yaml.safe_load((ROOT / "infra" / "deploy" / "worker.yaml").read_text())
    params = {"dryRun": "All", "fieldValidation": "Strict"}
    made = healthy.kube.request("POST", "/apis/apps/v1/namespaces/poolshift/deployments", body=found, params=params)
    assert made["spec"]["template"]["spec"]["serviceAccountName"] in OF_ACCOUNT


@pytest.mark.real
@pytest.mark.usefixtures("prefect")
def test_a_plan_runs_under_the_reading_role_and_writes_nothing(healthy: Any) -> None:
    ended = healthy.run("plan", str(healthy.spec()), kubeconfig=healthy.account("poolshift-plan"))
    got, refused = used(healthy, "poolshift-plan")
    assert refused == set()
    assert ended.code == 0, ended.err
    assert {verb for _, _, verb in got} <= {"get", "list", "watch"}


@pytest.mark.real
def test_each_missing_rule_of_the_reading_role_is_named(healthy: Any) -> None:
    """Taken away one at a time: an error, or a note that this was not read; never a silent gap."""
    kube = healthy.connect(healthy.account("poolshift-plan"))
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
    try:
        for resource, kind in kinds.items():
            rules = [
                rule | {"resources": [name for name in rule["resources"] if name != resource] or ["none"]}
                for rule in role["rules"]
            ]
            healthy.apply(role | {"rules": rules})
            assert f'"{resource}"' in until(partial(complaint, kube, kind), f'"{resource}"'), resource
        rules = [rule for rule in role["rules"] if "daemonsets" not in rule["resources"]]
        healthy.apply(role | {"rules": rules})
        assert "daemonsets" in until(lambda: complaint(kube, "DaemonSet"), "daemonsets")
        with pytest.raises(Forbidden) as caught:
            plugins.view(kube, {"eks.amazonaws.com/nodegroup": "gpu-old"})
        assert 'add verb "list" on resource "daemonsets" in apiGroup "apps"' in caught.value.remedy
    finally:
        healthy.apply(role)
    for kind in kinds.values():
        until(partial(complaint, kube, kind), "nothing")
    assert read.snapshot(kube).unread == {}


@pytest.mark.real
@pytest.mark.parametrize("account", [Account.MIGRATE, Account.PROVE])
def test_each_missing_rule_is_named_before_a_run_begins(healthy: Any, account: Account) -> None:
    kube = healthy.connect(healthy.account(account.value))
    access.require(kube, account)
    asked = []
    for role in OF_ACCOUNT[account.value]:
        for group, resource, verb in sorted(grants(role)):
            if group not in SERVED:
                continue
            asked.append(resource)
            with taken(healthy, role, (group, resource, verb)):
                said = until(partial(refusal, kube, account, resource, verb), "may not")
            assert f"this account may not {verb} {resource}" in said
            assert f'add verb "{verb}" on resource "{resource}" in apiGroup "{group}"' in said
    assert {"nodes", "pods", "jobs", "leases", "pods/log"} <= set(asked)
    assert refusal(kube, account, "none of them", "get") == "nothing is missed"


@pytest.mark.real
@pytest.mark.usefixtures("prefect")
@pytest.mark.parametrize(
    ("account", "command", "role", "grant"),
    [
        ("poolshift", "migrate", "poolshift-move", ("", "pods/eviction", "create")),
        ("poolshift", "migrate", "poolshift-own", ("", "configmaps", "create")),
        ("poolshift", "rollback", "poolshift-move", ("batch", "jobs/status", "patch")),
        ("poolshift", "rollback", "poolshift-move", ("apps", "deployments", "patch")),
        ("poolshift-prove", "revalidate", "poolshift-probe", ("", "pods/log", "get")),
    ],
)
def test_a_run_without_one_of_its_rules_touches_nothing(
    healthy: Any, account: str, command: str, role: str, grant: Grant
) -> None:
    spec = ROOT / "infra" / "examples" / "sandbox-eks-revalidate.yaml" if command == "revalidate" else healthy.spec()
    before = marks(healthy)
    with taken(healthy, role, grant):
        ended = healthy.run(command, str(spec), kubeconfig=healthy.account(account))
    group, resource, verb = grant
    assert ended.code == 1, ended.err
    assert f'add verb "{verb}" on resource "{resource}" in apiGroup "{group}"' in ended.err
    assert "nothing has been touched" in ended.err
    assert marks(healthy) == before


@pytest.mark.real
@pytest.mark.usefixtures("prefect")
def test_a_revalidation_runs_under_its_role_and_needs_all_of_it(healthy: Any) -> None:
    spec = ROOT / "infra" / "examples" / "sandbox-eks-revalidate.yaml"
    ended = healthy.run("revalidate", str(spec), kubeconfig=healthy.account("poolshift-prove"))
    got, refused = used(healthy, "poolshift-prove")
    assert refused == set()
    assert ended.code in (0, 3), ended.err  # the old pool of this scenario has no RDMA: it may be told so
    assert sorted(grants(*OF_ACCOUNT["poolshift-prove"]) - got - NEEDED_ELSEWHERE - {APPLIED_SCRIPTS}) == []


@pytest.mark.real
@pytest.mark.usefixtures("prefect")
def test_a_migration_that_loses_its_token_ends_in_words_and_is_rolled_back_under_its_role(healthy: Any) -> None:
    """The token is bound to a Secret: once that is gone, the server takes it no more (its cache: 10 s)."""
    nodes, spec, secrets = marks(healthy)["nodes"], str(healthy.spec()), "/api/v1/namespaces/poolshift/secrets"
    tie = healthy.kube.request("POST", secrets, body={"metadata": {"name": "tie"}})["metadata"]
    bound = {"kind": "Secret", "apiVersion": "v1", "name": "tie", "uid": tie["uid"]}
    account = healthy.account("poolshift", token=healthy.token("poolshift", boundObjectRef=bound))
    process = subprocess.Popen(
        leashed(healthy.command("migrate", spec, kubeconfig=account)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=healthy.env,
        cwd=ROOT,
    )
    while process.poll() is None and not steps_of(healthy):
        time.sleep(0.1)
    healthy.kube.delete(f"{secrets}/tie")
    _, said = process.communicate(timeout=600)
    assert process.returncode == 1, said[-3000:]
    assert "401" in said
    assert "renew the kubeconfig's credentials" in said
    assert steps_of(healthy)

    before = len(requests(healthy, "poolshift"))
    ended = healthy.run("rollback", spec, "--remove-target", kubeconfig=healthy.account("poolshift"))
    assert ended.code == 0, ended.err
    unasked = {
        (what, verb)
        for _, what, verb in used(healthy, "poolshift", before)[0]
        if verb not in undo.PUT_BACK.get(what, ())
    }
    assert unasked == {("selfsubjectaccessreviews", "create")}
    assert used(healthy, "poolshift")[1] == set()
    assert records.list_runs(healthy.kube) == []
    assert marks(healthy)["nodes"] == nodes


def steps_of(here: Any) -> list[Step]:
    """What has been begun of the run."""
    return [step for run in records.list_runs(here.kube) for step in run.steps]


def single(here: Any) -> str:
    """A Deployment of one pod on the source, whose budget lets it go only once a second is there. Returns its path."""
    base, label = "/apis/apps/v1/namespaces/serving/deployments", {"matchLabels": {"app": "router"}}
    found = here.kube.request("GET", f"{base}/inference")["spec"]["template"]
    template = {"metadata": {"labels": label["matchLabels"]}, "spec": found["spec"]}
    body = {"metadata": {"name": "router"}, "spec": {"replicas": 1, "selector": label, "template": template}}
    here.kube.request("POST", base, body=body)
    budget = {"metadata": {"name": "router"}, "spec": {"minAvailable": 1, "selector": label}}
    here.kube.request("POST", "/apis/policy/v1/namespaces/serving/poddisruptionbudgets", body=budget)
    end = time.monotonic() + 60
    while not (here.kube.request("GET", f"{base}/router").get("status") or {}).get("availableReplicas"):
        assert time.monotonic() < end, "never available"
        time.sleep(0.2)
    return f"{base}/router"


@pytest.mark.real
@pytest.mark.usefixtures("prefect")
def test_a_migration_runs_under_its_role_and_needs_all_of_it(healthy: Any) -> None:
    """The last one: it takes the source pool away."""
    router = single(healthy)
    ended = healthy.run("migrate", str(healthy.spec()), kubeconfig=healthy.account("poolshift"))
    got, refused = used(healthy, "poolshift")
    assert refused == set()
    assert ended.code == 0, ended.err
    assert sorted(grants(*OF_ACCOUNT["poolshift"]) - got - NEEDED_ELSEWHERE) == []
    assert healthy.kube.request("GET", router)["spec"]["replicas"] == 1
