"""Whole migrations on the real control plane, ending as they do on the embedded one, killed or not."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.kube.api import APPLY_PATCH
from infra.model.record import Step
from tests.migration.endings import differences, end_state
from tests.migration.killing import after, attempt, kills, may_rename_the_host
from tests.migration.observer import Observer
from tests.migration.servers import prefect_server

pytestmark = [pytest.mark.real, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
CLOUDS = ["eks", "gke"]
EXIT_CODES = {"healthy": 0, "plugin-image-missing": 3, "pdb-blocked": 5, "gang-training": 0, "reservation-shared": 0}
ASKED = {"approval": {"ask": True}}
SETTLE = "5m"  # on the clock of either: a busy machine may take its time; nobody waits where all is well
WAITING = "waiting for approval"
SEEDS = range(int(os.environ.get("SEED", "1")), int(os.environ.get("SEED", "1")) + int(os.environ.get("RUNS", "2")))
_ENDS: dict[tuple[str, str, str], dict[str, Any]] = {}


@pytest.fixture(scope="module")
def begin(stage: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """As `stage`, with one Prefect server for all."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as url:

        def start(*arguments: str) -> Any:
            here = stage(*arguments)
            here.env["PREFECT_API_URL"] = url
            return here

        yield start


def say_yes(here: Any) -> None:
    """As a person on another shell does."""
    said = here.run("approve", "moved", "--by", "ada", "--reason", "looks right")
    assert said.code == 0, said.err


def approving(here: Any) -> Callable[[str], None]:
    """Says yes when the migration asks."""

    def hear(line: str) -> None:
        if WAITING in line:
            say_yes(here)

    return hear


def migrating(here: Any, spec: Path, env: dict[str, str] | None = None, **how: Any) -> Any:
    kubeconfig = how.pop("kubeconfig", here.kubeconfig)
    return attempt(["migrate", str(spec), "--kubeconfig", str(kubeconfig)], {**here.env, **(env or {})}, **how)


def undisturbed(begin: Callable[..., Any], scenario: str, cloud: str, flavour: str) -> dict[str, Any]:
    """How a migration ends that nobody kills; made once."""
    if (scenario, cloud, flavour) not in _ENDS:
        here = begin(scenario, cloud, flavour)
        with Observer(here.kube) as seen:
            ended = migrating(here, here.spec(settle=SETTLE, **ASKED), strike=approving(here))
        found = {"exit": ended.code, "broken": seen.broken(), **end_state(here.kube)}
        here.sandbox.stop()
        assert ended.code == EXIT_CODES[scenario], ended.tail
        _ENDS[scenario, cloud, flavour] = found
    return _ENDS[scenario, cloud, flavour]


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("scenario", EXIT_CODES)
def test_a_migration_ends_as_on_the_embedded_server(begin: Callable[..., Any], scenario: str, cloud: str) -> None:
    real = undisturbed(begin, scenario, cloud, "real")
    found = differences(real, undisturbed(begin, scenario, cloud, "embedded"))
    assert not found, found
    assert real["broken"] == []


@pytest.mark.parametrize("moment", ["acted", "recorded"])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_migration_killed_at_every_boundary_in_turn_ends_as_one_never_disturbed(
    begin: Callable[..., Any], cloud: str, moment: str
) -> None:
    expected = undisturbed(begin, "healthy", cloud, "real")
    here = begin("healthy", cloud, "real")
    spec = here.spec(settle=SETTLE, **ASKED)
    with Observer(here.kube) as seen:
        for step in Step:
            if step is Step.APPROVAL:
                assert migrating(here, spec, strike=after(WAITING)).killed
                say_yes(here)
            ended = migrating(here, spec, {"POOLSHIFT_FAILPOINT": f"{step.value}:{moment}"})
            assert ended.killed, f"at {step.value}\n{ended.tail}"
        ended = migrating(here, spec)
    found = {"exit": ended.code, "broken": seen.broken(), **end_state(here.kube)}
    here.sandbox.stop()
    assert not (unlike := differences(found, expected)), unlike + "\n" + ended.tail


@pytest.mark.parametrize("seed", SEEDS)
def test_a_migration_killed_anywhere_goes_on_from_another_machine(
    begin: Callable[..., Any], tmp_path: Path, seed: int
) -> None:
    scenario, cloud = [("gang-training", "gke"), ("gang-training", "eks"), ("healthy", "eks")][seed % 3]
    expected = undisturbed(begin, scenario, cloud, "real")
    here = begin(scenario, cloud, "real")
    spec, told = here.spec(settle=SETTLE, **ASKED), []
    account = service_account(here)
    yes = approving(here)
    with Observer(here.kube) as seen:
        for number, dies in enumerate([*kills(seed, jitter=6.0), lambda _: None]):
            host = f"machine-{number}" if number % 2 and may_rename_the_host() else ""

            def strike(line: str, dies: Callable[[str], float | None] = dies) -> float | None:
                yes(line)
                return dies(line)

            machine = {"POOLSHIFT_HOME": str(tmp_path / f"machine-{number}")}
            ended = migrating(here, spec, machine, host=host, strike=strike, kubeconfig=account)
            told += [f"--- machine {number}, ended with {ended.code}", *ended.lines]
            if not ended.killed:
                break
    found = {"exit": ended.code, "broken": seen.broken(), **end_state(here.kube)}
    twice = [pod for pod, count in evicted(here).items() if count > 1]
    here.sandbox.stop()
    assert twice == [], "\n".join(told)
    assert not (unlike := differences(found, expected)), unlike + "\n" + "\n".join(told)


def service_account(here: Any) -> Path:
    """A kubeconfig of the account that infra/deploy makes for migrations: its requests are in the audit log."""
    paths = {
        "Namespace": "/api/v1/namespaces",
        "ServiceAccount": "/api/v1/namespaces/poolshift/serviceaccounts",
        "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/poolshift/roles",
        "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/poolshift/rolebindings",
    }
    for found in yaml.safe_load_all((ROOT / "infra" / "deploy" / "rbac.yaml").read_text()):
        path = f"{paths[found['kind']]}/{found['metadata']['name']}"
        here.kube.request(
            "PATCH", path, body=found, params={"fieldManager": "test", "force": True}, content_type=APPLY_PATCH
        )
    kubeconfig: Path = here.account("poolshift")
    return kubeconfig


def evicted(here: Any) -> Counter[str]:
    """How often the API server took an eviction of each pod, by its audit log."""
    events = here.sandbox.plane.requests("system:serviceaccount:poolshift:poolshift")
    taken = [e for e in events if e.get("responseStatus", {}).get("code") == 201]
    about = [e["objectRef"] for e in taken if "objectRef" in e]  # questions about the API itself have none
    return Counter(f"{ref['namespace']}/{ref['name']}" for ref in about if ref.get("subresource") == "eviction")


class Outage:
    """Takes a process of the control plane away once the migration says some words, and brings it back."""

    def __init__(self, plane: Any, words: str, seconds: float, *names: str) -> None:
        self.plane, self.words, self.seconds, self.names = plane, words, seconds, names
        self.thread: threading.Thread | None = None

    def hear(self, line: str) -> None:
        """A line of the migration."""
        if self.thread is None and self.words in line:
            self.thread = threading.Thread(target=self.happen)
            self.thread.start()

    def happen(self) -> None:
        """How long an outage lasts, on the wall clock, is what is tried here."""
        for name in self.names:
            self.plane.stop_process(name)
        time.sleep(self.seconds)
        for name in reversed(self.names):
            self.plane.start_process(name)


@pytest.mark.parametrize("gone", ["kube-apiserver", "etcd"])
def test_what_is_away_during_the_drain_is_waited_for(begin: Callable[..., Any], gone: str) -> None:
    here = begin("healthy", "eks", "real")
    spec = here.spec(settle=SETTLE)  # after an outage the controllers take up to a minute more (their watches' backoff)
    outage = Outage(here.sandbox.plane, "wave 2 of", 30, gone)
    ended = migrating(here, spec, strike=outage.hear)
    assert outage.thread is not None, ended.tail
    outage.thread.join()
    assert here.sandbox.plane.failure() is None
    assert here.sandbox.agent.failures == []
    assert ended.code == 0, ended.tail
    assert list(end_state(here.kube)["nodes"]) == ["gpu-rdma"]
    here.sandbox.stop()


def test_a_token_that_is_not_accepted_any_more_says_what_to_renew(begin: Callable[..., Any]) -> None:
    here = begin("healthy", "eks", "real")
    stale = here.folder / "stale.kubeconfig"
    token = here.sandbox.document["users"][0]["user"]["token"]
    stale.write_text(here.kubeconfig.read_text().replace(token, "expired"))
    ended = here.run("migrate", str(here.spec()), kubeconfig=stale)
    assert ended.code == 1
    assert "401" in ended.err
    assert "renew the kubeconfig's credentials" in ended.err
