"""A pod of a DaemonSet that was made after the wave began is asked about before it is taken for an orphan."""

from __future__ import annotations

import pytest

from infra.kube.api import Kube
from infra.model.cluster import Owner
from infra.model.workload import Pod, Snapshot
from tasks.orphans import with_new_daemonsets
from tasks.rules.decision import Allowed, Context
from tasks.rules.outcome import Fate
from tasks.rules.sentences import judge_with


def asked(kube: Kube, uid: str, *, force: bool, stay: bool = True):
    owner = Owner(kind="DaemonSet", name="plugin", uid=uid, api_version="apps/v1")
    pod = Pod(namespace="default", name="plugin-x", uid="x", node="n1", owner=owner, phase="Running")
    start = Snapshot(kinds=frozenset({"DaemonSet"}))
    judge = judge_with(Context(snapshot=start, allowed=Allowed(bare_pods=force)))
    return with_new_daemonsets(kube, start, judge, stay=stay)(pod)


@pytest.fixture
def plugin(kube: Kube) -> str:
    labels = {"app": "plugin"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    body = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "plugin"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    made = kube.request("POST", "/apis/apps/v1/namespaces/default/daemonsets", body=body)
    return str(made["metadata"]["uid"])


def test_pods_of_a_new_daemonset_stay_and_orphans_are_judged_as_before(kube: Kube, plugin: str):
    for force in (False, True):
        assert asked(kube, plugin, force=force).fate is Fate.STAY
    assert asked(kube, plugin, force=True, stay=False).code == "daemonset"
    # the one that made the pod is gone, and another has its name
    assert asked(kube, "another", force=False).code == "daemonset-orphan"
    assert asked(kube, "another", force=True).fate is Fate.LEAVE


def test_an_error_makes_nobody_an_orphan(kube_at):
    found = asked(kube_at("http://127.0.0.1:9"), "u", force=True)
    assert (found.fate, found.code) == (Fate.HELD, "daemonset-unknown")
