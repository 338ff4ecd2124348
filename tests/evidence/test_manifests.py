"""What a probe sends to the cluster: who may run it where, with which devices, and what is pinned."""

import json
import re

import pytest

from infra.fabrics import fabric_of
from infra.model.cluster import Node, Taint
from infra.model.pools import Pool, PoolState
from infra.model.spec import Validation
from infra.probes import catalogue
from infra.probes.manifests import grant, job_name, render

EFA = {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 16}
VALIDATION = Validation(workload_image="example.com/train:7", storage_claim="train/data")
DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def pool(machine_type="p5en.48xlarge", rdma=None):
    return Pool(
        kind="eks",
        name="new",
        identity="arn:new",
        state=PoolState.ACTIVE,
        machine_type=machine_type,
        nodes=2,
        node_selector={"eks.amazonaws.com/nodegroup": "new"},
        gpus={"nvidia.com/gpu": 8},
        rdma={"vpc.amazonaws.com/efa": 16} if rdma is None else rdma,
    )


CLOSED = (Taint(key="poolshift.dev/unproven"), Taint(key="nvidia.com/gpu", value="present"))


def nodes(allocatable=EFA, taints=CLOSED):
    return [
        Node(
            name=f"node-{i}",
            uid=f"uid-{i}",
            labels={"kubernetes.io/hostname": f"host-{i}"},
            allocatable=allocatable,
            taints=taints,
        )
        for i in range(2)
    ]


def rendered(probe, *, on=None, of=None, fabric="p5en.48xlarge", **more):
    return render(
        probe,
        pool=of or pool(),
        nodes=on or nodes(),
        fabric=fabric_of(fabric),
        run="move",
        namespace="poolshift",
        **more,
    )


def pod(made):
    return made.job["spec"]["template"]["spec"]


def env(made):
    return {item["name"]: item.get("value") for item in pod(made)["containers"][0]["env"]}


PROOF = catalogue.transport_proof(VALIDATION)
DELIVERED = catalogue.workload_path(VALIDATION)


def test_an_indexed_job_of_one_pod_a_node_that_does_not_try_again():
    spec = rendered(PROOF).job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (
        "Indexed",
        2,
        2,
        0,
    )
    assert spec["activeDeadlineSeconds"] > VALIDATION.timeout.total_seconds()
    assert spec["ttlSecondsAfterFinished"] > 0


def test_pods_go_to_exactly_these_nodes_and_never_two_to_one():
    affinity = pod(rendered(PROOF))["affinity"]
    (term,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["host-0", "host-1"]
    (apart,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    labels = rendered(PROOF).job["spec"]["template"]["metadata"]["labels"]
    assert apart["labelSelector"]["matchLabels"].items() <= labels.items()
    assert pod(rendered(PROOF))["nodeSelector"] == {"eks.amazonaws.com/nodegroup": "new"}


def test_it_runs_on_a_closed_pool_but_not_on_a_sick_node():
    sick = Taint(key="node.kubernetes.io/not-ready")
    tolerated = {t["key"] for t in pod(rendered(PROOF, on=nodes(taints=(Taint(key="team"), sick))))["tolerations"]}
    assert {"poolshift.dev/unproven", "team", "nvidia.com/gpu", "node.kubernetes.io/unschedulable"} <= tolerated
    assert "node.kubernetes.io/not-ready" not in tolerated


def test_all_gpus_and_rdma_devices_of_the_node_are_asked_for():
    resources = pod(rendered(PROOF))["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"] == EFA


def test_a_resource_that_is_not_there_is_not_asked_for_and_is_told():
    bare = nodes({"nvidia.com/gpu": 8})
    assert pod(rendered(PROOF, on=bare))["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert grant(pool(), bare, fabric_of("p5en.48xlarge")).short == {"vpc.amazonaws.com/efa": (16, 0)}


def test_seven_of_eight_gpus_start_seven_ranks():
    made = rendered(PROOF, on=nodes({**EFA, "nvidia.com/gpu": 7}))
    assert "--nproc-per-node=7" in pod(made)["containers"][0]["command"]


def test_pinned_names_the_network_and_the_workloads_own_run_pins_nothing():
    pinned, delivered = rendered(PROOF), rendered(DELIVERED)
    assert env(pinned)["NCCL_NET"] == "AWS Libfabric"
    assert pod(pinned)["containers"][0]["image"] == VALIDATION.image
    assert not {"NCCL_NET", "NCCL_NET_PLUGIN", "FI_PROVIDER"} & set(env(delivered))
    assert pod(delivered)["containers"][0]["image"] == "example.com/train:7"


@pytest.mark.parametrize("probe", [PROOF, DELIVERED])
def test_the_log_carries_what_the_proof_needs(probe):
    assert env(rendered(probe))["NCCL_DEBUG"] == "INFO"
    assert {"INIT", "NET", "GRAPH"} <= set(env(rendered(probe))["NCCL_DEBUG_SUBSYS"].split(","))


def test_ranks_find_rank_0_by_the_name_of_pod_0_in_the_headless_service():
    made = rendered(PROOF)
    line = pod(made)["containers"][0]["command"]
    assert line[0] == "torchrun"
    assert f"--rdzv-endpoint={made.name}-0.{made.name}.poolshift.svc:29500" in line
    assert "--node-rank=$(JOB_COMPLETION_INDEX)" in line
    assert pod(made)["subdomain"] == made.name == made.service["metadata"]["name"]
    assert made.service["spec"]["clusterIP"] == "None"
    assert made.service["spec"]["publishNotReadyAddresses"] is True
    labels = made.job["spec"]["template"]["metadata"]["labels"]
    assert made.service["spec"]["selector"].items() <= labels.items()


def test_the_script_is_mounted_from_the_config_map():
    made = rendered(PROOF)
    assert "def main(" in made.config_map["data"]["all_reduce.py"]
    assert "/poolshift/all_reduce.py" in pod(made)["containers"][0]["command"]
    assert {"name": "scripts", "configMap": {"name": made.name}} in pod(made)["volumes"]


def test_locked_memory_and_shared_memory():
    container = pod(rendered(PROOF))["containers"][0]
    assert "IPC_LOCK" in container["securityContext"]["capabilities"]["add"]
    assert any(mount["mountPath"] == "/dev/shm" for mount in container["volumeMounts"])


def test_gke_roce_pods_get_their_networks_and_the_plugin_of_the_node():
    networks = {f"networking.gke.io.networks/rdma-{i}": 1 for i in range(8)}
    made = rendered(
        PROOF,
        on=nodes({"nvidia.com/gpu": 8, **networks}),
        of=pool("a3-ultragpu-8g", networks),
        fabric="a3-ultragpu-8g",
    )
    annotations = made.job["spec"]["template"]["metadata"]["annotations"]
    interfaces = json.loads(annotations["networking.gke.io/interfaces"])
    assert interfaces[0] == {"interfaceName": "eth0", "network": "default"}
    assert {"interfaceName": "eth9", "network": "rdma-7"} in interfaces
    assert pod(made)["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8, **networks}
    assert {"hostPath": {"path": "/home/kubernetes/bin/gib"}, "name": "host-0"} in pod(made)["volumes"]
    assert env(made)["NCCL_NET"] == "gIB"


def test_tcpxo_pods_get_their_sidecar_and_its_devices():
    made = rendered(PROOF, of=pool("a3-megagpu-8g", {}), fabric="a3-megagpu-8g", on=nodes({"nvidia.com/gpu": 8}))
    (sidecar,) = pod(made)["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    annotations = made.job["spec"]["template"]["metadata"]["annotations"]
    assert "/dev/dmabuf_import_helper" in annotations["devices.gke.io/container.tcpxo-daemon"]
    assert "nccl-env-profile.sh" in pod(made)["containers"][0]["command"][2]


def test_storage_runs_in_the_claims_namespace_without_a_gpu_in_a_folder_of_its_own():
    made = rendered(catalogue.storage(VALIDATION))
    container = pod(made)["containers"][0]
    assert made.namespace == "train"
    assert container["command"][:3] == ["sh", "/poolshift/storage.sh", "fio"]
    assert "--direct=1" in container["command"]
    assert "resources" not in container
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "storage"]
    assert mount["subPathExpr"] == "poolshift/$(POD_NAME)"


@pytest.mark.parametrize("probe", catalogue.all_probes(VALIDATION), ids=lambda p: p.name)
def test_every_object_says_whose_it_is(probe):
    made = rendered(probe)
    for obj in (made.config_map, made.service, made.job):
        assert obj["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "poolshift"
        assert obj["metadata"]["labels"]["poolshift.dev/probe"] == probe.name
        assert obj["metadata"]["annotations"]["poolshift.dev/run"] == "move"
    assert made.job["metadata"]["labels"]["poolshift.dev/run"] == "move"
    assert json.loads(json.dumps(made.job)) == made.job


@pytest.mark.parametrize("run", ["a", "m" * 40, "a-" * 19 + "b"])
@pytest.mark.parametrize("attempt", ["", "soak", "l12-15"])
def test_names_are_dns_labels_with_room_for_the_index(run, attempt):
    name = job_name(run, "transport-proof", attempt)
    assert DNS.fullmatch(f"{name}-9999")
    assert len(f"{name}-9999") <= 63
    assert name != job_name(run, "transport-proof", attempt + "x")


def test_the_hash_tells_other_words_and_other_nodes_apart():
    other = nodes()
    other[0] = Node(name="node-0", uid="uid-new", labels=other[0].labels, allocatable=EFA, taints=other[0].taints)
    hashes = {rendered(PROOF).hash, rendered(PROOF, on=other).hash, rendered(DELIVERED).hash}
    assert len(hashes) == 3
    assert rendered(PROOF).hash == rendered(PROOF).hash


def test_the_catalogue_goes_from_cheap_to_dear_and_says_what_each_proves():
    probes = catalogue.all_probes(VALIDATION)
    assert [p.name for p in probes][:3] == ["transport-proof", "workload-path", "bandwidth"]
    assert probes[-1].name == "train-step"
    assert all(p.proves for p in probes)
    off = Validation(train_step=False, storage=False)
    assert {p.name for p in catalogue.all_probes(off)} == {"transport-proof", "workload-path", "bandwidth", "devices"}


def test_scouts_take_one_gpu_of_each_node_and_all_of_its_rdma_devices():
    made = rendered(catalogue.scout(catalogue.workload_path(VALIDATION)))
    container = made.job["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1, "vpc.amazonaws.com/efa": 16}
    assert "--nproc-per-node=1" in container["command"]
