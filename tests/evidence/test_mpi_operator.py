"""nccl-tests by an MPI operator: a test plays the operator over the API, as the real one would, on simulated nodes."""

import threading
from copy import deepcopy
from datetime import timedelta

import pytest

from infra.clock import rfc3339
from infra.errors import PoolshiftError
from infra.fabrics import fabric_of
from infra.kube.api import MERGE_PATCH, connect
from infra.model.spec import Cluster, MigrationSpec
from infra.model.verdict import Outcome
from infra.probes import catalogue
from infra.probes.mpijob import GROUP, JOB_LABEL, ROLE_LABEL, render_mpijob
from tasks import checks, mpi, validate
from tasks.measuring import Session
from tasks.rules.probing import State
from tests.bench.fallback_cost import LABEL, pool_of
from tests.processes import sandbox

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
    with sandbox(path):
        yield path


JOBS, PODS = "/apis/batch/v1/namespaces/poolshift/jobs", "/api/v1/namespaces/poolshift/pods"


class Operator(threading.Thread):
    """Simulated: worker pods of its own, a launcher as a Job, and no worker once that has ended."""

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
        owner = {"apiVersion": job["apiVersion"], "kind": "MPIJob", "name": name, "uid": uid, "controller": True}
        if uid not in self.made:
            self.made.add(uid)
            roles = job["spec"]["mpiReplicaSpecs"]
            for number in range(roles["Worker"]["replicas"]):
                pod = self.pod(roles["Worker"], name, "worker")
                pod["metadata"].update(name=f"{name}-worker-{number}", ownerReferences=[owner])
                pod["spec"]["containers"][0]["command"] = ["/usr/sbin/sshd", "-De"]
                self.kube.request("POST", PODS, body={"apiVersion": "v1", "kind": "Pod", **pod})
            meta = {"name": f"{name}-launcher", "ownerReferences": [owner]}
            spec = {"backoffLimit": 0, "template": self.pod(roles["Launcher"], name, "launcher")}
            body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
            self.kube.request("POST", JOBS, body=body)
        launcher = self.kube.get(f"{JOBS}/{name}-launcher") or {}
        for condition in (launcher.get("status") or {}).get("conditions") or ():
            if condition["status"] == "True" and condition["type"] in ("Complete", "Failed"):
                kind = "Succeeded" if condition["type"] == "Complete" else "Failed"
                body = {"status": {"conditions": [{"type": kind, "status": "True", "message": kind}]}}
                path = f"{GROUP}/namespaces/poolshift/mpijobs/{name}"
                self.kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)
                for number in range(job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]):
                    self.kube.delete(f"{PODS}/{name}-worker-{number}")  # cleanPodPolicy Running

    def pod(self, role, name, word):
        """Of a role's template: labels, restart policy and host name are the operator's."""
        template = deepcopy(role["template"])
        template["metadata"]["labels"].update({JOB_LABEL: name, ROLE_LABEL: word})
        template["spec"].update(restartPolicy=role["restartPolicy"], subdomain=name)
        return template


def opened(kube, pool):
    nodes = validate.idle(kube, pool)
    return Session.open(kube, pool, nodes, SPEC, "mpi", "hash", kube.clock, lambda text: None)


def test_a_cluster_without_the_operator_leaves_it_unmeasured_at_no_cost_and_one_with_it_measures(world):
    kube = connect(Cluster(kubeconfig=str(world)))
    pool = pool_of(kube, "well", [True, True])
    probe = catalogue.nccl_tests(SPEC.validation)
    session = opened(kube, pool)
    before = kube.requests
    (verdict,) = checks.nccl_tests(session, probe)
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
        (verdict,) = checks.nccl_tests(session, probe)
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


def test_what_a_killed_run_has_left_is_taken_up_or_counted_and_replaced(world):
    """It still runs; or it has ended, and its workers are gone, before anybody has looked."""
    kube = connect(Cluster(kubeconfig=str(world)))
    pool = pool_of(kube, "twice", [True, True])
    probe = catalogue.nccl_tests(SPEC.validation)
    nodes = validate.idle(kube, pool)
    fabric = fabric_of(pool.machine_type)
    path = f"{GROUP}/namespaces/poolshift/mpijobs"
    operator = Operator(world)
    operator.start()
    try:
        for ended in (False, True):
            job = render_mpijob(
                probe,
                pool=pool,
                nodes=nodes,
                fabric=fabric,
                run="mpi",
                namespace="poolshift",
                attempt="ended" if ended else "",
            )
            first = kube.request("POST", path, body=job)["metadata"]
            if ended:
                begun = {"status": {"startTime": rfc3339(kube.clock.now() - timedelta(minutes=3))}}
                kube.request("PATCH", f"{path}/{first['name']}", body=begun, content_type=MERGE_PATCH)
                while not (kube.get(f"{path}/{first['name']}") or {}).get("status", {}).get("conditions"):
                    kube.clock.sleep(2)
            counted = {}
            run = mpi.run_mpijob(kube, probe, nodes, job, counted.__setitem__)
            assert run.complete or run.state is State.ENDED, run.reason
            if ended:
                assert len(counted) == 2
                assert counted.pop(first["uid"]) >= 2 * 8 * 3
            assert (first["uid"] in counted) is not ended
            (minutes,) = counted.values()
            assert 0 < minutes <= run.gpu_minutes  # they hold their GPUs until they are gone
    finally:
        operator.over.set()
        operator.join()
    assert list(kube.list(path)) == []
    assert list(kube.list(PODS, {"labelSelector": JOB_LABEL})) == []


def test_only_the_jobs_own_output_is_taken_for_it(world):
    """Somebody's launcher wears its label; somebody deletes it and another of its name succeeds."""

    class Meddler(Operator):
        def __init__(self, path, meddle):
            super().__init__(path)
            self.meddle, self.met = meddle, ""

        def reconcile(self, job):
            if not self.met:
                self.met = job["metadata"]["uid"]
                self.meddle(self, job)
            super().reconcile(job)

    def wear_its_label(operator, job):
        name = job["metadata"]["name"]
        pod = operator.pod(job["spec"]["mpiReplicaSpecs"]["Launcher"], name, "launcher")
        pod["metadata"].update(name=f"{name}-launcher-old")
        operator.kube.request("POST", PODS, body={"apiVersion": "v1", "kind": "Pod", **pod})

    def take_its_name(operator, job):
        meta = {key: job["metadata"][key] for key in ("name", "labels", "annotations")}
        operator.kube.delete(f"{path}/{meta['name']}")
        other = operator.kube.request("POST", path, body={**job, "metadata": meta})
        job["metadata"] = other["metadata"]

    kube = connect(Cluster(kubeconfig=str(world)))
    pool = pool_of(kube, "own", [True, True])
    probe, nodes = catalogue.nccl_tests(SPEC.validation), validate.idle(kube, pool)
    fabric, path = fabric_of(pool.machine_type), f"{GROUP}/namespaces/poolshift/mpijobs"
    for attempt, meddle in (("label", wear_its_label), ("name", take_its_name)):
        job = render_mpijob(
            probe, pool=pool, nodes=nodes, fabric=fabric, run="own", namespace="poolshift", attempt=attempt
        )
        operator = Meddler(world, meddle)
        operator.start()
        try:
            run = mpi.run_mpijob(kube, probe, nodes, job)
        finally:
            operator.over.set()
            operator.join()
        name = job["metadata"]["name"]
        if meddle is wear_its_label:
            assert run.state is State.ENDED, run.reason
            assert run.output.count(b"# Out of bounds values") == 1
            assert f"{name}-launcher-old" in run.reason
            again = render_mpijob(
                probe, pool=pool, nodes=nodes, fabric=fabric, run="own", namespace="poolshift", attempt=attempt
            )
            with pytest.raises(PoolshiftError, match="does not go: pod"):
                mpi.run_mpijob(kube, probe, nodes, again)
        else:
            assert run.state is State.UNMEASURED
            assert "deleted by somebody else" in run.reason
        for pod in kube.list(PODS, {"labelSelector": f"{JOB_LABEL}={name}"}):
            kube.delete(f"{PODS}/{pod['metadata']['name']}")


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
        attempt="again",
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
    affinity = {role: roles[role]["template"]["spec"]["affinity"] for role in roles}
    (apart,) = affinity["Worker"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"].items() <= roles["Worker"]["template"]["metadata"]["labels"].items()
    assert "podAntiAffinity" not in affinity["Launcher"]  # its workers stand on every node that it may go to
    assert {role["restartPolicy"] for role in roles.values()} == {"Never"}
    assert job["spec"]["runPolicy"]["cleanPodPolicy"] == "Running"


def test_without_an_image_for_it_nothing_is_asked_and_nothing_is_required():
    from tasks.rules import gate

    without = SPEC.model_copy(update={"validation": SPEC.validation.model_copy(update={"nccl_tests_image": None})})
    assert catalogue.nccl_tests(without.validation) is None
    assert "nccl-tests" not in gate.required(without)
    assert "nccl-tests" in gate.required(SPEC)
