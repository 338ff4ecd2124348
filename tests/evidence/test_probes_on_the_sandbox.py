"""Probes on the simulated cluster, through the real client: run, adopt, refuse to guess, leave nothing behind."""

import time
from dataclasses import replace

import pytest

from infra.fabrics import fabric_of
from infra.kube import leases, records
from infra.kube import read as cluster
from infra.kube.api import connect
from infra.model.pools import Pool, PoolState
from infra.model.spec import Cluster, MigrationSpec, RevalidationSpec, Validation
from infra.model.verdict import Outcome
from infra.probes import catalogue
from infra.probes.manifests import render
from tasks import probes, revalidation, validate
from tasks.rules.probing import State
from tasks.spending import Spending
from tests.processes import sandbox

SELECTOR = {"eks.amazonaws.com/nodegroup": "gpu-old"}
POOL = Pool(
    kind="eks",
    name="gpu-old",
    identity="arn:gpu-old",
    state=PoolState.ACTIVE,
    machine_type="p5en.48xlarge",
    nodes=4,
    node_selector=SELECTOR,
    gpus={"nvidia.com/gpu": 8},
    rdma={"vpc.amazonaws.com/efa": 16},
)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("sandbox") / "kubeconfig"
    with sandbox(path):
        yield str(path)


@pytest.fixture(scope="module")
def world(config):
    """The old pool of the healthy scenario: four nodes without RDMA, two of them idle."""
    return connect(Cluster(kubeconfig=config))


@pytest.fixture(scope="module")
def spec():
    return MigrationSpec.model_validate(
        {
            "name": "sandboxed",
            "source": {"kind": "external", "name": "old", "selector": SELECTOR},
            "target": {"kind": "external", "name": "new", "selector": {"pool": "new"}},
            "validation": {"train_steps": 10},
        }
    )


def idle(kube):
    return validate.idle(kube, POOL)


def left(kube):
    """Objects of any probe."""
    return [
        item["metadata"]["name"]
        for path in ("/apis/batch/v1/jobs", "/api/v1/pods", "/api/v1/services", "/api/v1/configmaps")
        for item in kube.list(path, {"labelSelector": "poolshift.dev/probe"})
    ]


def test_a_pool_on_sockets_fails_on_every_rank_and_the_dear_probes_do_not_run(world, spec):
    said = []
    found = validate.validate(world, POOL, spec, spec.name, "hash", world.clock, said.append, nodes=idle(world))
    outcomes = {v.check: v.outcome for v in found.verdicts}
    assert outcomes["workload-path"] is Outcome.FAIL
    assert outcomes["transport-proof"] is Outcome.UNMEASURED
    assert {outcomes[c] for c in ("bandwidth-floor", "devices", "step-time")} == {Outcome.UNMEASURED}
    assert "NCCL is on TCP sockets on 2 of 2 ranks (2 hosts)" in found.summary
    assert {e.probe for e in found.evidence} == {"workload-path"}  # its nodes offer no device that could be pinned
    assert all(e.intact and e.simulated and e.spec_hash == "hash" for e in found.evidence)
    assert {f.code for f in found.findings} == {"resource-short"}
    assert 0 < found.gpu_minutes < 0.3 * found.estimated_gpu_minutes
    assert set(found.raw) == {e.raw_digest for e in found.evidence}
    assert left(world) == []


def test_the_baseline_of_a_pool_on_sockets_is_measured_and_not_judged(world, spec):
    records.ensure_namespace(world)
    records.create(world, spec.name, "migration", spec.model_dump_json())
    found = validate.measure(world, POOL, spec, spec.name, "hash", world.clock, lambda text: None)
    assert found.verdicts == ()
    assert {e.probe for e in found.evidence} == {"bandwidth", "train-step"}
    assert all(e.complete and not e.verdicts for e in found.evidence)
    steps = next(e for e in found.evidence if e.probe == "train-step").reading
    assert len(steps["seconds"]) == steps["announced"] == 10

    # What it cost is in the run's record: a run that goes on has only the rest of its budget, on either pool.
    assert Spending.of(world, spec.name, 600).spent == pytest.approx(found.gpu_minutes, abs=0.01)
    tight = spec.model_copy(
        update={"validation": spec.validation.model_copy(update={"budget_gpu_minutes": found.gpu_minutes + 1})}
    )
    before = world.requests
    again = validate.validate(world, POOL, tight, spec.name, "hash", world.clock, lambda text: None, nodes=idle(world))
    assert {v.outcome for v in again.verdicts} == {Outcome.UNMEASURED}
    assert "are left: raise validation.budget_gpu_minutes (--budget)" in again.verdicts[0].reason
    assert again.evidence == ()
    assert again.gpu_minutes == 0
    assert world.requests - before < 20
    records.remove(world, spec.name)


def test_what_a_killed_run_has_started_is_adopted_and_not_done_twice(world):
    probe = catalogue.workload_path(Validation())
    nodes = idle(world)
    fabric = fabric_of(POOL.machine_type)
    made = render(probe, pool=POOL, nodes=nodes, fabric=fabric, run="killed", namespace=world.namespace)
    probes._submit(world, made, lambda uid, minutes: None)
    path = f"/apis/batch/v1/namespaces/{world.namespace}/jobs/{made.name}"
    first = world.get(path)["metadata"]["uid"]
    seen, counted = set(), {}
    done = probes.run(
        world,
        probe,
        nodes,
        pool=POOL,
        run="killed",
        say=lambda text: seen.add(uid_of(world, path)),
        count=counted.__setitem__,
    )
    assert seen - {None} == {first}
    assert done.state is State.ENDED
    assert counted == {first: done.gpu_minutes}
    assert done.gpu_minutes > 0
    assert left(world) == []


def uid_of(kube, path):
    found = kube.get(path)
    return found["metadata"]["uid"] if found else None


def test_a_job_of_other_words_under_the_same_name_is_replaced(world):
    nodes = idle(world)
    old = catalogue.workload_path(Validation(proof_sizes=(1 << 20,)))
    made = render(old, pool=POOL, nodes=nodes, fabric=None, run="replaced", namespace=world.namespace)
    probes._submit(world, made, lambda uid, minutes: None)
    first = uid_of(world, f"/apis/batch/v1/namespaces/{world.namespace}/jobs/{made.name}")
    counted = {}
    probe = catalogue.workload_path(Validation())
    done = probes.run(world, probe, nodes, pool=POOL, run="replaced", count=counted.__setitem__)
    assert done.state is State.ENDED
    assert len(counted) == 2
    assert first in counted
    assert b'"size_bytes":268435456' in done.output


def test_busy_nodes_leave_a_probe_unmeasured_with_the_schedulers_words(world):
    nodes = cluster.snapshot(world, SELECTOR, owners=False, storage=False).nodes
    busy = [n for n in nodes if n.name not in {i.name for i in idle(world)}]
    done = probes.run(world, catalogue.workload_path(Validation()), busy, pool=POOL, run="busy")
    assert done.state is State.UNMEASURED
    assert done.object.startswith("pod poolshift/poolshift-busy-workload-path-")
    assert "nvidia.com/gpu" in done.reason
    assert done.gpu_minutes == 0
    assert left(world) == []


def test_two_idle_nodes_are_needed_to_measure_anything(world, spec):
    nobody = replace(POOL, node_selector={"pool": "none"})
    found = validate.measure(world, nobody, spec, spec.name, "hash", world.clock, lambda text: None)
    assert found.outcome is Outcome.UNMEASURED
    proof = validate.repeat_proof(world, nobody, spec, spec.name, "hash", world.clock, lambda text: None)
    assert proof.verdicts == ()
    assert proof.outcome is Outcome.UNMEASURED


def test_a_revalidation_whose_lease_is_taken_submits_no_more_probe(world, config, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_EVERY", 0.1)
    part = {"kind": "external", "name": "old", "selector": SELECTOR}
    spec = RevalidationSpec.model_validate(
        {"name": "again", "pools": [part], "probe_idle_nodes": True, "cluster": {"kubeconfig": config}}
    )
    said = []

    def say(line):
        said.append(line)
        if line.startswith("probe "):
            path = f"/apis/coordination.k8s.io/v1/namespaces/{world.namespace}/leases"
            for lease in world.list(path):
                world.delete(f"{path}/{lease['metadata']['name']}")
            while not leases.lost():
                time.sleep(0.02)

    found = revalidation.look(spec, spec.pools[0], say)
    (proof,) = [v for v in found["verdicts"] if v["check"] == "transport-proof"]
    assert proof["outcome"] == "unmeasured"
    assert "deleted by somebody" in proof["reason"]
    assert any(line.startswith("probe ") for line in said), said
    assert left(world) == []
