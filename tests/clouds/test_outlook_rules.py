"""What a plan says of a target before its gate: is it free, and will the plugins come to nodes yet to be made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.fabrics import fabric_of, load
from infra.gcp import read
from infra.model.cluster import Node, Taint, Toleration
from infra.model.plugins import DaemonSet, Expectation
from infra.model.record import PROBE
from infra.model.survey import ClusterFacts
from infra.model.workload import Pod, Requirement, Snapshot
from tasks.rules import forecast, occupied
from tasks.rules.preflight_version import release

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


EFA_IMAGE = "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/aws-efa-k8s-device-plugin"
DRIVER = DaemonSet(
    namespace="gpu-operator",
    name="nvidia-driver-daemonset",
    uid="2",
    tolerations=(Toleration(operator="Exists"),),
    images=("nvcr.io/nvidia/cloud-native/k8s-driver-manager:v0.8.0", "nvcr.io/nvidia/driver:570.172.08-ubuntu22.04"),
)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (replace(PLUGIN, images=(f"{EFA_IMAGE}:v0.5.6",)), []),
        (replace(PLUGIN, images=(f"{EFA_IMAGE}:v0.5.20-eksbuild.13@sha256:abc",)), []),
        (replace(PLUGIN, images=(f"{EFA_IMAGE}:v0.10",)), []),
        (replace(PLUGIN, images=(f"{EFA_IMAGE}:v0.4.4",)), ["block plugin-too-old"]),
        (replace(PLUGIN, images=("mirror.example:5000/aws-efa-k8s-device-plugin:v0.5.5",)), ["block plugin-too-old"]),
        (replace(PLUGIN, images=(f"{EFA_IMAGE}@sha256:abc",)), ["warn plugin-version-unread"]),
        (replace(PLUGIN, images=(f"{EFA_IMAGE}:latest",)), ["warn plugin-version-unread"]),
        (replace(PLUGIN, images=(f"{EFA_IMAGE}:v0.4.4",), node_selector={TYPE: "p5.48xlarge"}), []),
        (DRIVER, []),
        (replace(DRIVER, images=("nvcr.io/nvidia/driver:570.124.06-ubuntu22.04",)), ["block plugin-too-old"]),
        (
            replace(DRIVER, images=("nvcr.io/nvidia/driver:535-5.15.0-1041-ubuntu22.04",)),
            ["warn plugin-version-unread"],
        ),
    ],
)
def test_a_plugin_older_than_the_first_that_knows_the_machine_type_is_refused(
    found: DaemonSet, says: list[str]
) -> None:
    fabric = fabric_of("p6-b200.48xlarge")
    assert fabric is not None
    node = replace(TO_COME, labels={**TO_COME.labels, TYPE: "p6-b200.48xlarge"})
    told = list(forecast.outdated([found], node, fabric.minimums))
    assert [f"{f.level.value} {f.code}" for f in told] == says
    assert all("or later for this machine type (" in f.expected for f in told)


def test_every_minimum_of_the_table_can_be_compared_and_says_where_it_is_from() -> None:
    for fabric in load().values():
        for minimum in fabric.minimums:
            assert release(minimum.version), minimum
            assert minimum.source, minimum
            assert minimum.date, minimum
