"""The assembled sandbox, on both clouds, as its users start it."""

from __future__ import annotations

import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.clock import ScaledClock, parse_time
from infra.errors import BadSpec, PoolshiftError
from infra.sandbox import run
from infra.sandbox.kubeconfig import EXTENSION
from infra.sandbox.scenario import PLACES
from tests.processes import leashed


def source_nodes(sandbox: run.Sandbox) -> list[dict[str, Any]]:
    assert sandbox.api
    place = PLACES[sandbox.cloud]
    ((key, value),) = place.pool_labels(place.source_pool).items()
    return sandbox.api.list_items("/api/v1/nodes", {"labelSelector": f"{key}={value}"})


@pytest.fixture(scope="module", params=["eks", "gke"])
def healthy(request, tmp_path_factory) -> Iterator[run.Sandbox]:
    file = tmp_path_factory.mktemp("sandbox") / "kubeconfig"
    with run.start("healthy", request.param, kubeconfig=file) as sandbox:
        yield sandbox
    assert sandbox.agent.failures == []


def test_the_source_pool_is_on_sockets_and_its_workloads_run(healthy):
    nodes = source_nodes(healthy)
    assert len(nodes) == 4
    for node in nodes:
        allocatable = node["status"]["allocatable"]
        assert allocatable["nvidia.com/gpu"] == "8"
        assert not any("efa" in name or "rdma" in name for name in allocatable)
    pods = healthy.api.list_items("/api/v1/pods")
    assert {p["status"]["phase"] for p in pods} == {"Running"}
    placed = {p["spec"]["nodeName"] for p in pods if p["metadata"]["namespace"] in ("serving", "train", "data")}
    assert len(placed) == 2, "two nodes stay idle, for a baseline"


def test_the_kubeconfig_is_private_and_says_how_time_runs(healthy):
    assert stat.S_IMODE(healthy.kubeconfig.stat().st_mode) == 0o600
    document = yaml.safe_load(healthy.kubeconfig.read_text())
    assert document["current-context"] == "poolshift-sandbox"
    (entry,) = document["clusters"][0]["cluster"]["extensions"]
    assert entry["name"] == EXTENSION
    extension = entry["extension"]
    assert (extension["scenario"], extension["control_plane"]) == ("healthy", "embedded")
    assert ("aws" in extension, "gke" in extension) == (healthy.cloud == "eks", healthy.cloud == "gke")
    clock = extension["clock"]
    rebuilt = ScaledClock(parse_time(clock["origin"]), clock["started"], clock["rate"])
    assert abs((rebuilt.now() - healthy.clock.now()).total_seconds()) < 5


def test_the_product_reads_that_kubeconfig(healthy):
    from infra.kube.api import connect
    from infra.model.spec import Cluster

    kube = connect(Cluster(kubeconfig=str(healthy.kubeconfig)))
    assert kube.sandbox is not None
    assert kube.sandbox.scenario == "healthy"
    assert bool(kube.sandbox.aws_endpoint) == (healthy.cloud == "eks")
    assert kube.request("GET", "/api/v1/namespaces/serving")["kind"] == "Namespace"


def test_the_cloud_shows_the_source_pool(healthy):
    place = PLACES[healthy.cloud]
    if healthy.cloud == "eks":
        import boto3

        eks = boto3.client(
            "eks",
            region_name=place.region,
            endpoint_url=healthy.aws_endpoint,
            aws_access_key_id="simulated",
            aws_secret_access_key="simulated",
        )
        group = eks.describe_nodegroup(clusterName=place.cluster, nodegroupName=place.source_pool)["nodegroup"]
        assert group["status"] == "ACTIVE"
        eks.close()
        return
    import grpc
    from google.cloud import container_v1
    from google.cloud.container_v1.services.cluster_manager.transports import ClusterManagerGrpcTransport

    with grpc.insecure_channel(healthy.gke_endpoint) as channel:
        client = container_v1.ClusterManagerClient(transport=ClusterManagerGrpcTransport(channel=channel))
        name = (
            f"projects/{place.project}/locations/{place.region}/clusters/{place.cluster}/nodePools/{place.source_pool}"
        )
        assert client.get_node_pool(name=name).status == container_v1.NodePool.Status.RUNNING


def test_271_days_ago_a_plugin_broke():
    with run.start("plugin-broken-271-days", "eks") as sandbox:
        assert abs((sandbox.clock.now() - datetime.now(UTC)).total_seconds()) < 3600
        pods = sandbox.api.list_items("/api/v1/namespaces/kube-system/pods")
        stuck = [p for p in pods if p["metadata"]["name"].startswith("aws-efa-k8s-device-plugin")]
        assert len(stuck) == 4
        for pod in stuck:
            reason = pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"]
            assert reason == "ImagePullBackOff"
            (ready,) = [c for c in pod["status"]["conditions"] if c["type"] == "Ready"]
            age = sandbox.clock.now() - parse_time(ready["lastTransitionTime"])
            assert timedelta(days=270.9) < age < timedelta(days=271.1)
        for node in source_nodes(sandbox):
            assert {c["type"]: c["status"] for c in node["status"]["conditions"]}["Ready"] == "True"
            assert "vpc.amazonaws.com/efa" not in node["status"]["allocatable"]


@pytest.mark.parametrize("scenario", ["gang-training", "pdb-blocked"])
def test_other_workloads_come_up_too(scenario):
    with run.start(scenario, "gke") as sandbox:
        jobs = sandbox.api.list_items("/apis/batch/v1/jobs")
        assert all(job["status"]["ready"] == job["spec"]["parallelism"] for job in jobs)


def test_a_port_in_use_is_an_error_with_a_remedy():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PoolshiftError, match=f"port {port} on 127.0.0.1: cannot be used.*--port"):
            run.start("healthy", "eks", port=port)


def test_a_scenario_that_does_not_exist_starts_nothing():
    with pytest.raises(BadSpec, match="one of capacity-shortage"):
        run.start("helthy")


def test_in_the_foreground_it_prints_one_line_and_ends_on_a_signal(tmp_path: Path):
    file = tmp_path / "kubeconfig"
    command = [sys.executable, "-m", "infra.sandbox", "--cloud", "gke", "--kubeconfig", str(file)]
    root = Path(run.__file__).parents[2]
    with subprocess.Popen(
        leashed(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root
    ) as child:
        assert child.stdout
        line = child.stdout.readline()
        assert line.startswith("ready http://127.0.0.1:"), child.stderr.read() if child.stderr else ""
        assert file.exists()
        child.send_signal(signal.SIGTERM)
        rest, errors = child.communicate(timeout=20)
    assert (child.returncode, rest, errors) == (0, "", "")


INTERRUPTED = """
import os, signal
from infra.sandbox.run import signalled
for number in range(3000):
    ended = signalled(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 1e-6 * (number % 97 + 1))
    while not ended(0.0005):
        pass
    os.closerange(3, 64)
"""


def test_a_signal_ends_the_wait_at_whatever_point_of_it_it_comes():
    root = Path(run.__file__).parents[2]
    subprocess.run([sys.executable, "-c", INTERRUPTED], cwd=root, check=True, timeout=60)


@pytest.mark.real
def test_the_same_scenario_comes_up_on_a_real_control_plane():
    with run.start("healthy", "gke", control_plane="real") as sandbox:
        assert len(source_nodes(sandbox)) == 4
        pods = sandbox.api.list_items("/api/v1/pods")
        assert {p["status"]["phase"] for p in pods} == {"Running"}
        assert sandbox.clock.rate == 1
    assert sandbox.agent.failures == []
