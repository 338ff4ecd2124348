"""Extended resources and CSI drivers show exactly while their plugin runs on the node."""

from __future__ import annotations

from typing import Any

import pytest

from infra.sandbox.scenario import FewerDevices, ImageMissing

GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"


def plugin(name: str, image: str = "registry.example.com/plugin:1") -> dict[str, Any]:
    pod = {"tolerations": [{"operator": "Exists"}], "containers": [{"name": "plugin", "image": image}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": {"name": name}},
            "template": {"metadata": {"labels": {"name": name}}, "spec": pod},
        },
    }


def allocatable(cluster, node: str) -> dict[str, str]:
    return dict(cluster.status(f"/api/v1/nodes/{node}").get("allocatable") or {})


def test_resources_come_and_go_with_the_plugin(clusters):
    cluster = clusters()
    cluster.node("a")
    cluster.wait(lambda: "conditions" in cluster.status("/api/v1/nodes/a"))
    assert GPU not in allocatable(cluster, "a")
    cluster.create(plugin("nvidia-device-plugin-daemonset"))
    cluster.create(plugin("aws-efa-k8s-device-plugin"))
    cluster.wait(lambda: {GPU: "8", EFA: "16"}.items() <= allocatable(cluster, "a").items())
    cluster.api.request("DELETE", "/apis/apps/v1/namespaces/kube-system/daemonsets/aws-efa-k8s-device-plugin")
    cluster.wait(lambda: allocatable(cluster, "a")[EFA] == "0")
    assert cluster.status("/api/v1/nodes/a")["capacity"][EFA] == "16"
    assert allocatable(cluster, "a")[GPU] == "8"


def test_a_plugin_without_its_image_advertises_nothing(clusters):
    cluster = clusters(ImageMissing(kind="image-missing", image="*/efa:*"))
    cluster.node("a")
    cluster.create(plugin("aws-efa-k8s-device-plugin", "registry.example.com/efa:0.5.20"))
    cluster.create(plugin("nvidia-device-plugin-daemonset"))
    cluster.wait(lambda: allocatable(cluster, "a").get(GPU) == "8")
    pods = cluster.get("/api/v1/namespaces/kube-system/pods")["items"]
    (stuck,) = [p for p in pods if p["metadata"]["name"].startswith("aws-efa")]
    cluster.wait(
        lambda: cluster.status(f"/api/v1/namespaces/kube-system/pods/{stuck['metadata']['name']}")["containerStatuses"]
    )
    assert EFA not in allocatable(cluster, "a")


def test_the_efa_plugin_crashes_on_a_node_without_efa(clusters):
    cluster = clusters()
    cluster.node("a", rdma=False)
    cluster.create(plugin("aws-efa-k8s-device-plugin"))

    def waiting() -> Any:
        (pod,) = cluster.get("/api/v1/namespaces/kube-system/pods")["items"]
        return pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"

    assert cluster.wait(waiting)
    assert EFA not in allocatable(cluster, "a")


def test_a_plugin_may_register_fewer_devices_than_the_machine_has(clusters):
    cluster = clusters(FewerDevices(kind="fewer-devices", node=1, resource=GPU, count=7))
    for name in ("a", "b"):
        cluster.node(name)
    cluster.create(plugin("nvidia-device-plugin-daemonset"))
    cluster.wait(lambda: allocatable(cluster, "b").get(GPU) == "7")
    assert cluster.wait(lambda: allocatable(cluster, "a").get(GPU) == "8")


@pytest.mark.parametrize(
    ("daemonset", "driver"),
    [("fsx-csi-node", "fsx.csi.aws.com"), ("lustre-csi-node", "lustre.csi.storage.gke.io")],
)
def test_a_csi_driver_registers_on_its_node(clusters, daemonset, driver):
    cluster = clusters()
    cluster.node("a")
    cluster.create(plugin(daemonset))
    path = "/apis/storage.k8s.io/v1/csinodes/a"
    cluster.wait(lambda: [d["name"] for d in cluster.get(path)["spec"]["drivers"] or []] == [driver])


def test_gke_networks_come_from_the_installer(clusters):
    cluster = clusters()
    cluster.node("a", "a3-ultragpu-8g")
    cluster.create(plugin("nccl-rdma-installer"))
    found = cluster.wait(lambda: (a := allocatable(cluster, "a")).get("networking.gke.io.networks/rdma-7") == "1" and a)
    assert sum(name.startswith("networking.gke.io.networks/") for name in found) == 8
