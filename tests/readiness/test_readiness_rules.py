"""The readiness rules over plain views: each way in which a pool can look green and have no device."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from infra.model.cluster import Condition, Node, Taint, Toleration
from infra.model.plugins import Container, DaemonSet, Expectation, PluginPod, PluginView
from infra.model.verdict import Outcome
from infra.model.workload import Requirement
from tasks.rules.readiness import judge

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
EFA = "vpc.amazonaws.com/efa"
GPU = "nvidia.com/gpu"
TAINT = Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule")
EXPECTED = Expectation(pool="gpu-rdma", machine_type="p5en.48xlarge", nodes=2, gpus={GPU: 8}, rdma={EFA: 16})


def node(name: str, **changes: object) -> Node:
    have = {GPU: 8, EFA: 16}
    base = Node(
        name=name,
        uid=f"uid-{name}",
        labels={"node.kubernetes.io/instance-type": "p5en.48xlarge"},
        taints=(TAINT,),
        conditions=(Condition(type="Ready", status="True"),),
        allocatable=have,
        capacity=have,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def daemonset(name: str, **changes: object) -> DaemonSet:
    base = DaemonSet(
        namespace="kube-system",
        name=name,
        uid=f"uid-{name}",
        images=(f"example.com/{name}:v1",),
        tolerations=(Toleration(operator="Exists"),),
        desired=2,
        ready=2,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def pod(of: DaemonSet, on: str, **changes: object) -> PluginPod:
    base = PluginPod(
        namespace=of.namespace,
        name=f"{of.name}-{on}",
        node=on,
        daemonset_uid=of.uid,
        phase="Running",
        ready=True,
        containers=(Container(name="plugin", image=of.images[0], ready=True),),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


NVIDIA = daemonset("nvidia-device-plugin-daemonset")
PLUGIN = daemonset("aws-efa-k8s-device-plugin")


def healthy() -> PluginView:
    return PluginView(
        taken=NOW,
        nodes=(node("a"), node("b")),
        daemonsets=(NVIDIA, PLUGIN),
        pods=tuple(pod(d, n) for d in (NVIDIA, PLUGIN) for n in ("a", "b")),
    )


def codes(view: PluginView, expected: Expectation = EXPECTED) -> set[str]:
    return {f.code for f in judge(view, expected).findings}


def test_a_pool_with_every_device_and_plugin_passes() -> None:
    verdict = judge(healthy(), EXPECTED)

    assert verdict.outcome is Outcome.PASS
    assert verdict.findings == ()


def test_a_pool_without_nodes_is_unmeasured_and_never_ready() -> None:
    empty = PluginView(taken=NOW, daemonsets=(NVIDIA, PLUGIN))

    assert judge(empty, EXPECTED).outcome is Outcome.UNMEASURED


def test_an_unknown_machine_type_is_unmeasured() -> None:
    unknown = Expectation(pool="p", machine_type="x9.huge", nodes=2)

    assert judge(healthy(), unknown).outcome is Outcome.UNMEASURED


def test_fewer_nodes_than_the_cloud_says_block() -> None:
    assert "nodes-missing" in codes(replace(healthy(), nodes=(node("a"),)))


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_node_whose_ready_is_not_true_blocks(status: str) -> None:
    sick = node("b", conditions=(Condition(type="Ready", status=status, since=NOW - timedelta(hours=5)),))
    verdict = judge(replace(healthy(), nodes=(node("a"), sick)), EXPECTED)

    assert verdict.outcome is Outcome.FAIL
    assert "5 hours" in verdict.findings[0].since


def test_a_plugin_whose_image_does_not_exist_is_named_with_image_nodes_and_days() -> None:
    """The founding story: everything green, no device, for 271 days."""
    image = "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/aws-efa-k8s-device-plugin:v0.3.3"
    stuck = [
        pod(
            PLUGIN,
            n,
            ready=False,
            phase="Pending",
            not_ready_since=NOW - timedelta(days=271),
            containers=(Container(name="plugin", image=image, waiting="ImagePullBackOff"),),
        )
        for n in ("a", "b")
    ]
    bare = {GPU: 8}
    view = PluginView(
        taken=NOW,
        nodes=(node("a", allocatable=bare, capacity=bare), node("b", allocatable=bare, capacity=bare)),
        daemonsets=(NVIDIA, PLUGIN),
        pods=(pod(NVIDIA, "a"), pod(NVIDIA, "b"), *stuck),
    )
    verdict = judge(view, EXPECTED)
    finding = next(f for f in verdict.findings if f.code == "plugin-image-missing")

    assert verdict.outcome is Outcome.FAIL
    assert finding.object == "daemonset kube-system/aws-efa-k8s-device-plugin"
    assert image in finding.observed
    assert "a, b" in finding.observed
    assert "271 days" in finding.since
    assert finding.remedy.endswith("kubectl -n kube-system set image daemonset/aws-efa-k8s-device-plugin plugin=IMAGE")
    assert "devices-missing" in {f.code for f in verdict.findings}


def test_a_selector_that_excludes_the_pool_blocks_although_the_daemonset_says_all_ready() -> None:
    narrow = replace(PLUGIN, node_selector={"gpu": "h100"}, desired=0, ready=0)
    view = replace(healthy(), daemonsets=(NVIDIA, narrow), pods=(pod(NVIDIA, "a"), pod(NVIDIA, "b")))

    finding = next(f for f in judge(view, EXPECTED).findings if f.code == "plugin-excludes-nodes")
    assert "nodeSelector gpu=h100" in finding.observed
    assert "0 of 0 ready" in finding.observed


def test_an_instance_type_list_without_the_machine_type_blocks() -> None:
    old = Requirement(key="node.kubernetes.io/instance-type", operator="In", values=("p4d.24xlarge", "p5.48xlarge"))
    view = replace(healthy(), daemonsets=(NVIDIA, replace(PLUGIN, affinity=((old,),))))

    finding = next(f for f in judge(view, EXPECTED).findings if f.code == "plugin-excludes-nodes")
    assert "p5en.48xlarge" in finding.observed


def test_a_taint_that_the_plugin_does_not_tolerate_blocks() -> None:
    view = replace(healthy(), daemonsets=(NVIDIA, replace(PLUGIN, tolerations=())))

    finding = next(f for f in judge(view, EXPECTED).findings if f.code == "plugin-excludes-nodes")
    assert "nvidia.com/gpu=present:NoSchedule" in finding.observed


def test_daemonsets_of_several_sizes_cover_a_pool_together() -> None:
    small = replace(PLUGIN, uid="s", name="aws-efa-k8s-device-plugin-small", node_selector={"size": "s"})
    large = replace(PLUGIN, uid="l", name="aws-efa-k8s-device-plugin-large", node_selector={"size": "l"})
    nodes = (node("a", labels={"size": "s"}), node("b", labels={"size": "l"}))
    pods = (pod(NVIDIA, "a"), pod(NVIDIA, "b"), pod(small, "a"), pod(large, "b"))
    view = PluginView(taken=NOW, nodes=nodes, daemonsets=(NVIDIA, small, large), pods=pods)

    assert judge(view, EXPECTED).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("container", "code"),
    [
        (Container(name="p", image="i", waiting="ErrImagePull"), "plugin-image-missing"),
        (Container(name="p", image="i", waiting="CrashLoopBackOff", restarts=99, exit_code=1), "plugin-crash-loop"),
        (
            Container(name="p", image="i", waiting="CrashLoopBackOff", message="exec format error"),
            "plugin-exec-format",
        ),
        (Container(name="i", image="i", init=True, waiting="PodInitializing"), "plugin-init-stuck"),
        (Container(name="p", image="i", terminated="Completed", exit_code=0), "plugin-exited"),
        (Container(name="p", image="i", waiting="ContainerCreating"), "plugin-waiting"),
    ],
)
def test_each_way_a_plugin_pod_breaks_has_its_own_code(container: Container, code: str) -> None:
    broken = pod(PLUGIN, "b", ready=False, phase="Pending", containers=(container,))
    view = replace(healthy(), pods=(pod(NVIDIA, "a"), pod(NVIDIA, "b"), pod(PLUGIN, "a"), broken))

    assert code in codes(view)


def test_a_node_without_the_plugins_pod_blocks() -> None:
    view = replace(healthy(), pods=(pod(NVIDIA, "a"), pod(NVIDIA, "b"), pod(PLUGIN, "a")))

    assert "plugin-pod-missing" in codes(view)


def test_seven_of_eight_gpus_block_although_every_plugin_runs() -> None:
    view = replace(healthy(), nodes=(node("a"), node("b", allocatable={GPU: 7, EFA: 16})))
    finding = next(f for f in judge(view, EXPECTED).findings if f.code == "devices-missing")

    assert "7 allocatable on b" in finding.observed
    assert "although capacity is higher" in finding.observed


def test_more_devices_than_the_machine_has_are_not_its_devices() -> None:
    """Old EFA plugins count p6-b200's wrongly, and shared GPUs are counted several times."""
    shared = node("a", allocatable={GPU: 16, EFA: 16}, capacity={GPU: 16, EFA: 16})
    verdict = judge(replace(healthy(), nodes=(shared, node("b"))), EXPECTED)
    assert verdict.outcome is Outcome.UNMEASURED
    assert [(f.code, f.observed) for f in verdict.findings] == [("devices-beyond", f"{GPU}: 16 allocatable on a")]
    usual = replace(EXPECTED, counted=True)  # from these very nodes: nobody has said that there are no more
    assert judge(replace(healthy(), nodes=(shared, node("b"))), usual).outcome is Outcome.PASS
    broken = node("b", allocatable={GPU: 7, EFA: 16})
    assert judge(replace(healthy(), nodes=(shared, broken)), EXPECTED).outcome is Outcome.FAIL


def test_devices_of_a_dra_driver_count_where_allocatable_shows_none() -> None:
    bare = {GPU: 8}
    view = PluginView(
        taken=NOW,
        nodes=(node("a", allocatable=bare, capacity=bare), node("b", allocatable=bare, capacity=bare)),
        daemonsets=(NVIDIA,),
        pods=(pod(NVIDIA, "a"), pod(NVIDIA, "b")),
        slices={n: {"efa.networking.k8s.aws": 16} for n in ("a", "b")},
    )

    assert judge(view, EXPECTED).outcome is Outcome.PASS


def test_without_daemonset_and_without_devices_the_plugin_is_missed() -> None:
    bare = {GPU: 8}
    view = PluginView(
        taken=NOW,
        nodes=(node("a", allocatable=bare, capacity=bare), node("b", allocatable=bare, capacity=bare)),
        daemonsets=(NVIDIA,),
        pods=(pod(NVIDIA, "a"), pod(NVIDIA, "b")),
    )

    assert {"plugin-absent", "devices-missing"} <= codes(view)


def test_devices_built_into_the_node_image_need_no_daemonset() -> None:
    """Bottlerocket's NVIDIA plugin runs on the host."""
    view = replace(healthy(), daemonsets=(PLUGIN,), pods=(pod(PLUGIN, "a"), pod(PLUGIN, "b")))

    assert judge(view, EXPECTED).outcome is Outcome.PASS


def test_two_plugins_for_one_resource_on_one_node_block() -> None:
    other = replace(NVIDIA, uid="other", namespace="gpu-operator", name="nvidia-device-plugin")
    view = replace(healthy(), daemonsets=(NVIDIA, other, PLUGIN))
    view = replace(view, pods=(*view.pods, pod(other, "a"), pod(other, "b")))

    (found,) = {f.remedy for f in judge(view, EXPECTED).findings if f.code == "two-plugins"}
    assert found.endswith(f"kubectl -n kube-system delete daemonset {NVIDIA.name}")


def test_logs_are_those_of_the_container_that_is_broken_in_the_pod_that_has_it() -> None:
    sidecar = Container(name="sidecar", image="s", ready=True)
    crashes = Container(name="plugin", image="i", waiting="CrashLoopBackOff", restarts=9)
    broken = pod(PLUGIN, "b", ready=False, containers=(sidecar, crashes))
    view = replace(healthy(), pods=(pod(NVIDIA, "a"), pod(NVIDIA, "b"), pod(PLUGIN, "a"), broken))

    (found,) = (f for f in judge(view, EXPECTED).findings if f.code == "plugin-crash-loop")
    assert found.remedy == f"kubectl -n kube-system logs {broken.name} -c plugin --previous"


def test_a_csi_driver_that_is_not_registered_blocks_and_an_unread_list_is_not_taken_for_an_empty_one() -> None:
    wanted = replace(EXPECTED, csi="fsx.csi.aws.com")
    csi = daemonset("fsx-csi-node")
    base = healthy()
    base = replace(base, daemonsets=(*base.daemonsets, csi), pods=(*base.pods, pod(csi, "a"), pod(csi, "b")))
    both = {n: ("fsx.csi.aws.com",) for n in ("a", "b")}

    assert judge(replace(base, csi=both), wanted).outcome is Outcome.PASS
    assert "csi-driver-missing" in codes(replace(base, csi={"a": ("fsx.csi.aws.com",)}), wanted)
    assert "csi-unknown" in codes(replace(base, csi=None), wanted)


def test_the_gpu_drivers_devices_are_not_taken_for_rdma() -> None:
    """The founding story under DRA: eight GPUs in a slice, and no fabric at all."""
    bare: dict[str, int] = {}
    view = PluginView(
        taken=NOW,
        nodes=(node("a", allocatable=bare, capacity=bare), node("b", allocatable=bare, capacity=bare)),
        slices={n: {"gpu.nvidia.com": 32} for n in ("a", "b")},
    )

    assert judge(view, EXPECTED).outcome is Outcome.FAIL
    assert {"plugin-absent", "devices-missing"} <= codes(view)


def test_what_was_observed_says_what_is_ready_and_what_is_not() -> None:
    """ "2 of 2 nodes ready" beside a fail contradicts it."""
    bare = replace(healthy(), nodes=(node("a", allocatable={GPU: 8}), node("b", allocatable={GPU: 8})))
    gke = replace(EXPECTED, rdma={f"networking.gke.io.networks/rdma-{i}": 1 for i in range(8)})

    assert (
        judge(healthy(), EXPECTED).observed == "2 of 2 nodes Ready, 2 of 2 with all GPUs, 2 of 2 with all RDMA devices"
    )
    assert judge(bare, EXPECTED).observed == "2 of 2 nodes Ready, 2 of 2 with all GPUs, 0 of 2 with all RDMA devices"
    assert (
        judge(bare, gke).limit == "2 nodes, each with 8 nvidia.com/gpu, 1 networking.gke.io.networks/rdma-0 to rdma-7"
    )
