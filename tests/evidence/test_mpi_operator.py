"""nccl-tests by an MPI operator: a test plays the operator over the API, as the real one would, on simulated nodes."""

import subprocess
import sys
import threading

import pytest

from infra.errors import PoolshiftError
from infra.fabrics import fabric_of
from infra.kube.api import MERGE_PATCH, connect
from infra.model.spec import Cluster, MigrationSpec
from infra.model.verdict import Outcome
from infra.probes import catalogue
from infra.probes.mpijob import GROUP, JOB_LABEL, ROLE_LABEL, render_mpijob
from tasks import mpi, validate
from tasks.measuring import Session
from tests.bench.fallback_cost import LABEL, pool_of

SPEC = MigrationSpec.model_validate(
    {
        "name": "mpi",
        "source": {"kind": "external", "name": "old", "selector": {LABEL: "gpu-old"}},
        "target": {"kind": "external", "name": "new", "selector": {LABEL: "well"}},
        "validation": {"nccl_tests_image": "example.com/nccl-tests:1", "sweep_sizes": [1 << 28, 1 << 30]},
    }
)
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "mpijobs.kubeflow.org"},
    "spec": {
        "group": "kubeflow.org",
        "scope": "Namespaced",
        "names": {"plural": "mpijobs", "singular": "mpijob", "kind": "MPIJob", "listKind": "MPIJobList"},
        "versions": [
            {
                "name": "v2beta1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    path = tmp_path_factory.mktemp("sandbox") / "kubeconfig"
    line = [sys.executable, "-m", "infra.sandbox", "--scenario", "healthy", "--kubeconfig", str(path)]
    running = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert running.stdout.readline().startswith("ready ")
        yield path
    finally:
        running.terminate()
        running.communicate(timeout=30)


class Operator(threading.Thread):
    """Simulated: the ranks run in the workers themselves, so that no launcher has to reach them."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.kube = connect(Cluster(kubeconfig=str(path)))
        self.over = threading.Event()
        self.made = set()

    def run(self):
        while not self.over.wait(0.1):
            for job in list(self.kube.list(f"{GROUP}/namespaces/poolshift/mpijobs")):
                try:
                    self.reconcile(job)
                except PoolshiftError:
                    continue  # it went away meanwhile, or is written by somebody else; the next look tells

    def reconcile(self, job):
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        jobs = "/apis/batch/v1/namespaces/poolshift/jobs"
        if uid not in self.made:
            self.made.add(uid)
            replicas = job["spec"]["mpiReplicaSpecs"]
            perf = replicas["Launcher"]["template"]["spec"]["containers"][0]["command"]
            worker = replicas["Worker"]["template"]
            count = replicas["Worker"]["replicas"]
            container = {**worker["spec"]["containers"][0], "command": perf[perf.index("all_reduce_perf") :]}
            labels = {**worker["metadata"]["labels"], JOB_LABEL: name, ROLE_LABEL: "worker"}
            self.kube.request(
                "POST",
                jobs,
                body={
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "metadata": {
                        "name": f"{name}-ranks",
                        "ownerReferences": [
                            {
                                "apiVersion": job["apiVersion"],
                                "kind": "MPIJob",
                                "name": name,
                                "uid": uid,
                                "controller": True,
                            }
                        ],
                    },
                    "spec": {
                        "completionMode": "Indexed",
                        "completions": count,
                        "parallelism": count,
                        "backoffLimit": 0,
                        "template": {
                            "metadata": {
                                "labels": labels,
                                "annotations": {"sandbox.poolshift.dev/pods": str(count)},
                            },
                            "spec": {**worker["spec"], "containers": [container]},
                        },
                    },
                },
            )
        ranks = self.kube.get(f"{jobs}/{name}-ranks") or {}
        for condition in (ranks.get("status") or {}).get("conditions") or ():
            if condition["status"] == "True" and condition["type"] in ("Complete", "Failed"):
                kind = "Succeeded" if condition["type"] == "Complete" else "Failed"
                body = {"status": {"conditions": [{"type": kind, "status": "True", "message": kind}]}}
                path = f"{GROUP}/namespaces/poolshift/mpijobs/{name}"
                self.kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)


def opened(kube, pool):
    nodes = validate.idle(kube, pool)
    return Session.open(kube, pool, nodes, SPEC, "mpi", "hash", kube.clock, lambda text: None)


def test_a_cluster_without_the_operator_leaves_it_unmeasured_at_no_cost_and_one_with_it_measures(world):
    kube = connect(Cluster(kubeconfig=str(world)))
    pool = pool_of(kube, "well", [True, True])
    probe = catalogue.nccl_tests(SPEC.validation)
    session = opened(kube, pool)
    before = kube.requests
    (verdict,) = session.nccl_tests(probe)
    assert verdict.outcome is Outcome.UNMEASURED
    assert "MPI operator" in verdict.reason
    assert kube.requests == before + 1
    assert session.spent == 0

    kube.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=CRD)
    for _ in range(50):
        if mpi.served(kube):
            break
        kube.clock.sleep(2)
    operator = Operator(world)
    operator.start()
    try:
        session = opened(kube, pool)
        (verdict,) = session.nccl_tests(probe)
    finally:
        operator.over.set()
        operator.join()
    assert verdict.outcome is Outcome.PASS, verdict.reason
    (evidence,) = session.evidence
    assert evidence.intact
    assert evidence.complete
    assert set(evidence.node_uids) == {n.uid for n in session.nodes}
    assert [row["size_bytes"] for row in evidence.reading["rows"]] == [1 << 28, 1 << 29, 1 << 30]
    assert evidence.gpu_minutes > 0
    assert list(kube.list(f"{GROUP}/namespaces/poolshift/mpijobs")) == []
    assert list(kube.list("/api/v1/namespaces/poolshift/pods", {"labelSelector": JOB_LABEL})) == []


def test_the_job_is_what_the_operator_takes():
    """One worker a node, ranks for all GPUs, the network pinned in every rank, and nothing of an ordinary Job."""
    from infra.model.cluster import Node
    from infra.model.pools import Pool, PoolState

    pool = Pool(
        kind="eks",
        name="new",
        identity="arn:new",
        state=PoolState.ACTIVE,
        machine_type="p5en.48xlarge",
        nodes=2,
        node_selector={LABEL: "new"},
        gpus={"nvidia.com/gpu": 8},
        rdma={"vpc.amazonaws.com/efa": 16},
    )
    given = {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 16}
    nodes = [Node(name=n, uid=n, labels={"kubernetes.io/hostname": n}, allocatable=given) for n in ("a", "b")]
    job = render_mpijob(
        catalogue.nccl_tests(SPEC.validation),
        pool=pool,
        nodes=nodes,
        fabric=fabric_of("p5en.48xlarge"),
        run="mpi",
        namespace="poolshift",
        attempt="",
    )
    roles = job["spec"]["mpiReplicaSpecs"]
    launcher, worker = (roles[role]["template"]["spec"]["containers"][0] for role in ("Launcher", "Worker"))
    assert job["spec"]["slotsPerWorker"] == 8
    assert roles["Worker"]["replicas"] == 2
    assert launcher["command"][:3] == ["mpirun", "-np", "16"]
    assert "NCCL_NET" in launcher["command"]
    assert "resources" not in launcher
    assert worker["resources"]["limits"] == given
    assert "command" not in worker
    assert job["spec"]["runPolicy"]["cleanPodPolicy"] == "Running"


def test_without_an_image_for_it_nothing_is_asked_and_nothing_is_required():
    from tasks.rules import gate

    without = SPEC.model_copy(update={"validation": SPEC.validation.model_copy(update={"nccl_tests_image": None})})
    assert catalogue.nccl_tests(without.validation) is None
    assert "nccl-tests" not in gate.required(without)
    assert "nccl-tests" in gate.required(SPEC)
