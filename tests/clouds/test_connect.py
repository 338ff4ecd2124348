"""The one factory, and pools that something else owns, on the embedded control plane."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from infra.clock import ScaledClock, SystemClock
from infra.connect import connect
from infra.errors import BadSpec, NotFound, Refused
from infra.kube import api
from infra.kube.external import ExternalPools
from infra.model.pools import PoolState
from infra.model.spec import Cluster, EksPool, ExternalPool, GkePool
from infra.sandbox import kubeconfig
from infra.sandbox.access import Access, Api
from infra.sandbox.clouds.machines import ClusterNodes, Machine, kubernetes_taints

EKS = EksPool(region="us-east-2", cluster="train", name="gpu-old")
GKE = GkePool(project="p", location="europe-west4", cluster="train", name="gpu-old")
EXTERNAL = ExternalPool(name="karpenter-gpu", selector={"karpenter.sh/nodepool": "gpu"})


@pytest.fixture(scope="module")
def server():
    from infra.sandbox.control_plane.embedded import run_in_thread

    url, stop = run_in_thread(SystemClock(), 0)
    yield url
    stop()


@pytest.fixture
def cluster(server, tmp_path):
    """A sandbox's kubeconfig; keyword arguments are the clouds that it simulates."""

    def make(**endpoints: str) -> Cluster:
        clock = ScaledClock(datetime(2026, 1, 1, tzinfo=UTC), 0.0, 60.0)
        document = kubeconfig.build(
            {"server": server}, {}, scenario="test", control_plane="embedded", clock=clock, **endpoints
        )
        path = tmp_path / "kubeconfig"
        kubeconfig.write(document, path)
        return Cluster(kubeconfig=str(path))

    return make


def test_a_sandbox_kubeconfig_sends_cloud_calls_to_the_sandbox(cluster):
    eks = connect(cluster(aws_endpoint="http://127.0.0.1:1234"), EKS)
    gke = connect(cluster(gke_endpoint="127.0.0.1:4321"), GKE)

    assert eks.aws.endpoint == "http://127.0.0.1:1234"
    assert eks.clock.rate == 60.0
    assert gke.gcp.endpoint == "127.0.0.1:4321"


@pytest.mark.parametrize(
    ("pool", "endpoints", "expected"),
    [
        (EKS, {"gke_endpoint": "127.0.0.1:1"}, "simulates gke; expected kind: gke"),
        (GKE, {"aws_endpoint": "http://127.0.0.1:1"}, "simulates eks; expected kind: eks"),
    ],
)
def test_a_spec_for_the_other_cloud_is_refused_before_any_call(cluster, pool, endpoints, expected):
    with pytest.raises(BadSpec, match=expected):
        connect(cluster(**endpoints), pool)


def test_a_real_kubeconfig_means_the_real_cloud(server, tmp_path):
    document = kubeconfig.build(
        {"server": server},
        {},
        scenario="",
        control_plane="",
        clock=ScaledClock(datetime(2026, 1, 1, tzinfo=UTC), 0.0, 1.0),
    )
    del document["clusters"][0]["cluster"]["extensions"]
    path = tmp_path / "kubeconfig"
    kubeconfig.write(document, path)

    pools = connect(Cluster(kubeconfig=str(path)), EKS)

    assert pools.aws.endpoint == ""


@pytest.fixture
def nodes(cluster):
    """Two nodes of the external pool and one of another."""
    where = cluster(aws_endpoint="http://127.0.0.1:1")
    registry = ClusterNodes(Api(Access(url=api.connect(where).server)))
    for index, pool in enumerate(("gpu", "gpu", "cpu")):
        registry.join(
            Machine(
                name=f"{pool}-{index}",
                labels={"karpenter.sh/nodepool": pool},
                machine_type="p5en.48xlarge",
                zone="us-east-2a",
                rdma=True,
                taints=kubernetes_taints([{"key": "a", "value": "b", "effect": "NO_EXECUTE"}]),
                provider_id=f"aws:///us-east-2a/i-{index}",
            )
        )
    yield where, registry
    for name in ("gpu-0", "gpu-1", "cpu-2"):
        registry.leave(name)


def test_an_external_pool_is_its_labelled_nodes(nodes):
    where, _ = nodes
    pools = connect(where, EXTERNAL)

    found = pools.find(EXTERNAL)

    assert isinstance(pools, ExternalPools)
    assert (found.kind, found.state, found.nodes) == ("external", PoolState.ACTIVE, 2)
    assert (found.machine_type, found.zones) == ("p5en.48xlarge", ("us-east-2a",))
    assert pools.find(found) == found  # a read pool names the same nodes as its spec


def test_an_external_pool_is_neither_made_nor_deleted(nodes):
    where, _ = nodes
    pools = connect(where, EXTERNAL)
    absent = ExternalPool(name="later", selector={"karpenter.sh/nodepool": "later"})

    assert pools.create(EXTERNAL, "run-1").nodes == 2
    assert pools.render(EXTERNAL, "run-1") == []
    with pytest.raises(NotFound, match=r"no node carries.*apply the NodePool"):
        pools.create(absent, "run-1")
    with pytest.raises(Refused, match=r"2 nodes are not managed here.*kubectl delete nodepool.karpenter.sh gpu"):
        pools.delete(EXTERNAL)
    pools.delete(absent)  # absent is success


def test_simulated_machines_join_with_their_taints_and_leave(nodes):
    where, registry = nodes
    kube = api.connect(where)

    node = kube.get("/api/v1/nodes/gpu-0")
    assert {"key": "a", "value": "b", "effect": "NoExecute"} in node["spec"]["taints"]
    assert node["metadata"]["labels"]["poolshift.dev/simulated"] == "true"
    registry.leave("gpu-0")
    registry.leave("gpu-0")

    assert kube.get("/api/v1/nodes/gpu-0") is None


def test_a_pool_without_a_selector_is_refused():
    from infra.kube.external import selector_of
    from infra.model.pools import Pool

    pool = Pool(kind="external", name="all", identity="", state=PoolState.ACTIVE, machine_type="", nodes=0)
    with pytest.raises(BadSpec, match="no selector"):
        selector_of(pool)
