"""What a plan says of a target before its gate: is it free, and will the plugins come to nodes yet to be made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.gcp import read
from infra.model.cluster import Node, Taint
from infra.model.plugins import DaemonSet
from infra.model.record import PROBE
from infra.model.survey import ClusterFacts
from infra.model.workload import Pod, Requirement, Snapshot, Toleration
from tasks.rules import forecast, occupied
from tasks.rules.readiness import Expectation

EFA, GPU, TYPE = "vpc.amazonaws.com/efa", "nvidia.com/gpu", "node.kubernetes.io/instance-type"
HAVE = {"cpu": 192_000, GPU: 8, EFA: 16}
NODES = [Node(name=name, uid=name, allocatable=HAVE, capacity=HAVE) for name in ("new-0", "new-1")]
EXPECTED = Expectation(pool="gpu-rdma", machine_type="p5en.48xlarge", nodes=2, rdma={EFA: 16})
TO_COME = Node(
    name="a node",
    uid="",
    labels={TYPE: "p5en.48xlarge", "kubernetes.io/os": "linux"},
    taints=(
        Taint(key=GPU, value="present", effect="NoSchedule"),
        Taint(key="team", value="llm", effect="NoSchedule"),
    ),
)
PLUGIN = DaemonSet(
    namespace="kube-system", name="aws-efa-k8s-device-plugin", uid="1", tolerations=(Toleration(operator="Exists"),)
)


def pod(**changes: object) -> Pod:
    base = Pod(namespace="train", name="left-behind", uid="p", node="new-0", requests={GPU: 8}, phase="Running")
    return replace(base, **changes)  # type: ignore[arg-type]


def busy(*pods: Pod) -> list[str]:
    snapshot = Snapshot(nodes=tuple(NODES), pods=pods)
    return [f"{f.code}: {f.observed}" for f in occupied.judge(snapshot, NODES, "pool new")]


def test_work_that_a_rollback_left_on_the_target_is_named_with_its_node() -> None:
    found = busy(pod(), pod(name="other", node="new-1", requests={EFA: 1}))

    assert found == ["target-busy: 2 pods hold devices on 2 nodes: train/left-behind, train/other"]


@pytest.mark.parametrize(
    "harmless",
    [{"requests": {"cpu": 1000}}, {"phase": "Succeeded"}, {"node": "elsewhere"}, {"labels": {PROBE: "bandwidth"}}],
    ids=["no device", "finished", "on another node", "a probe of ours"],
)
def test_what_holds_no_device_of_the_target_leaves_it_free(harmless: dict[str, object]) -> None:
    assert busy(pod(**harmless)) == []


def forecasts(*sets: DaemonSet) -> dict[str, str]:
    return {f.code: f.observed for f in forecast.excluded(sets, TO_COME, EXPECTED)}


def test_a_plugin_that_will_run_on_the_new_nodes_is_no_finding() -> None:
    assert forecasts(PLUGIN) == {}
    labelled = replace(PLUGIN, node_selector={"vendor.example/gpu": "yes"})
    assert forecasts(labelled) == {}, "a label that is not known yet may come with the node"
    term = (Requirement(key="vendor.example/gpu", operator="In", values=("h200",)),)
    assert forecasts(replace(PLUGIN, affinity=(term,))) == {}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tolerations": (Toleration(key=GPU, operator="Exists"),)}, "team"),
        ({"tolerations": (Toleration(key="team", operator="Exists"),)}, GPU),
        ({"affinity": ((Requirement(key=TYPE, operator="In", values=("p5.48xlarge",)),),)}, "p5.48xlarge"),
        ({"node_selector": {"kubernetes.io/os": "windows"}}, "windows"),
    ],
)
def test_a_plugin_that_will_not_run_there_is_found_before_there_is_a_node(
    changes: dict[str, object], says: str
) -> None:
    found = forecasts(replace(PLUGIN, **changes))  # type: ignore[arg-type]

    assert says in found["plugin-will-exclude-nodes"]


def test_a_plugin_that_nobody_installed_is_found_before_there_is_a_node() -> None:
    assert list(forecasts()) == ["plugin-not-installed"]


@pytest.mark.parametrize(("max_pods", "block"), [(110, 256), (0, 256), (64, 128), (65, 256), (32, 64), (8, 16)])
def test_each_gke_node_takes_the_smallest_block_of_twice_its_pods(max_pods: int, block: int) -> None:
    told = [{"totalFreeIp": "9"}, {"rangeName": "pods", "totalFreeIp": "4096"}]
    cluster = ClusterFacts(
        name="c", version="", state="", subnetwork="projects/p/regions/r/subnetworks/s", pod_range="pods",
        max_pods=max_pods,
    )  # fmt: skip
    found = read.ranges(cluster, {"utilizationDetails": {"ipv4Utilizations": told}})

    assert found is not None
    assert (found.subnetwork, found.nodes_free, found.pods_free, found.pods_per_node) == ("s", 9, 4096, block)
    assert read.ranges(cluster, {"utilizationDetails": {"ipv4Utilizations": told[:1]}}) is None
    assert read.ranges(cluster, {}) is None
