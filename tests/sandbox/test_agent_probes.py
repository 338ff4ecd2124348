"""Probe pods: what they print follows from the devices that they were given, and from the defects of their nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.sandbox.access import Answer
from infra.sandbox.scenario import FewerDevices, NoGdr, SlowNic

GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"
IMAGE = "nvcr.io/nvidia/pytorch:25.09-py3"
PROOF = ["/poolshift/all_reduce.py", "--sizes", "67108864,268435456", "--iters", "20", "--warmup", "5", "--rounds", "2"]


def probe(
    name: str, nodes: list[str], command: list[str], *, efa: int, env: dict[str, str] | None = None
) -> dict[str, Any]:
    resources = {GPU: "8", **({EFA: str(efa)} if efa else {})}
    container = {
        "name": "probe",
        "image": IMAGE,
        "command": command,
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            *({"name": key, "value": value} for key, value in (env or {}).items()),
        ],
        "resources": {"requests": resources, "limits": resources},
    }
    apart = {"labelSelector": {"matchLabels": {"probe": name}}, "topologyKey": "kubernetes.io/hostname"}
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}]}
    spec = {
        "restartPolicy": "Never",
        "subdomain": name,
        "containers": [container],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
        },
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "completionMode": "Indexed",
            "completions": len(nodes),
            "parallelism": len(nodes),
            "backoffLimit": 0,
            "template": {"metadata": {"labels": {"probe": name}}, "spec": spec},
        },
    }


def torchrun(nodes: int, *script: str) -> list[str]:
    return ["torchrun", f"--nnodes={nodes}", "--nproc-per-node=8", "--node-rank=$(JOB_COMPLETION_INDEX)", *script]


def finish(cluster, name: str) -> tuple[str, list[str]]:
    """The end of a Job (Complete or Failed), and the logs of the pods that are still there, by index."""
    path = f"/apis/batch/v1/namespaces/default/jobs/{name}"

    def ended() -> Any:
        found = {c["type"] for c in cluster.status(path).get("conditions") or [] if c["status"] == "True"}
        return found & {"Complete", "Failed"}

    (end,) = cluster.wait(ended)
    pods = [
        p
        for p in cluster.get("/api/v1/namespaces/default/pods")["items"]
        if p["metadata"]["labels"].get("probe") == name
    ]
    pods.sort(key=lambda p: int(p["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]))
    logs = []
    for pod in pods:
        try:
            logs.append(cluster.log(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"))
        except Answer as answer:  # a failed Job stops its other pods, and their logs go with them
            if (end, answer.status) != ("Failed", 404):
                raise
    return end, logs


def records(log: str, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [each for each in found if each["poolshift"] == kind]


def rows(log: str) -> dict[tuple[int, int], float]:
    return {(r["round"], r["size_bytes"]): r["busbw_gb_s"] for r in records(log, "all-reduce") if r["event"] == "row"}


@pytest.fixture(scope="module")
def lab(module_clusters) -> Any:
    """Four nodes: a and b well, c with a slow NIC, d whose EFA plugin registers one device less and that has no GDR."""
    cluster = module_clusters(
        SlowNic(kind="slow-nic", node=2, nic=3, rate=0.25),
        FewerDevices(kind="fewer-devices", node=3, resource=EFA, count=15),
        NoGdr(kind="no-gdr", node=3),
    )
    for name in "abcd":
        cluster.node(name)
    for name in ("nvidia-device-plugin-daemonset", "aws-efa-k8s-device-plugin"):
        pod = {"containers": [{"name": "plugin", "image": "registry.example.com/plugin:1"}]}
        cluster.create(
            {
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "metadata": {"name": name, "namespace": "kube-system"},
                "spec": {
                    "selector": {"matchLabels": {"name": name}},
                    "template": {"metadata": {"labels": {"name": name}}, "spec": pod},
                },
            }
        )
    for name in "abcd":
        cluster.wait(lambda name=name: {GPU, EFA} <= set(cluster.status(f"/api/v1/nodes/{name}")["allocatable"]))
    return cluster


def test_healthy_nodes_prove_rdma_on_every_rank(lab):
    lab.create(probe("good", ["a", "b"], torchrun(2, *PROOF), efa=16, env={"NCCL_NET": "AWS Libfabric"}))
    end, logs = finish(lab, "good")
    assert end == "Complete"
    assert len(rows(logs[0])) == 4
    assert all(row > 180 for row in rows(logs[0]).values())
    for log in logs:
        assert log.count("Using network AWS Libfabric") == 16  # 8 ranks, 2 communicators
        assert "NET/Socket" not in log
        before, after = records(log, "counters")
        moved = sum(after["rdma"][d]["tx_bytes"] - before["rdma"][d]["tx_bytes"] for d in after["rdma"])
        assert moved > 10e9
        assert len(after["rdma"]) == 16
        assert after["ethernet"]["eth0"]["tx_bytes"] - before["ethernet"]["eth0"]["tx_bytes"] < moved / 100
    assert json.loads(logs[0].splitlines()[-1]) == {"poolshift": "all-reduce", "event": "end", "ok": True}


def test_pods_without_the_resource_are_on_sockets_without_an_error(lab):
    lab.create(probe("silent", ["a", "b"], torchrun(2, *PROOF), efa=0))
    end, logs = finish(lab, "silent")
    assert end == "Complete"
    assert all(2 < row < 25 for row in rows(logs[0]).values())
    for log in logs:
        assert log.count("Using network Socket") == 16
        assert "NET/OFI No eligible providers were found" in log
        before, after = records(log, "counters")
        assert after["rdma"] == {}
        assert after["ethernet"]["eth0"]["tx_bytes"] - before["ethernet"]["eth0"]["tx_bytes"] > 10e9


def test_a_pinned_network_that_is_absent_fails_closed(lab):
    lab.create(probe("pinned", ["a", "b"], torchrun(2, *PROOF), efa=0, env={"NCCL_NET": "AWS Libfabric"}))
    end, logs = finish(lab, "pinned")
    assert end == "Failed"
    assert logs
    for log in logs:
        assert "NCCL WARN Failed to initialize any NET plugin" in log
        assert not rows(log)
        assert all(r["ok"] is False for r in records(log, "all-reduce") if r["event"] == "end")


def test_one_slow_nic_slows_the_whole_ring(lab):
    lab.create(probe("slow", ["a", "c"], torchrun(2, *PROOF), efa=16))
    _, logs = finish(lab, "slow")
    healthy = 350.0
    assert rows(logs[0])[0, 268435456] < healthy / 2
    assert "found 16 nics" in logs[0]


def test_no_gdr_shows_on_the_channels_of_that_node_alone(lab):
    lab.create(probe("no-gdr", ["a", "d"], torchrun(2, *PROOF), efa=15))
    _, logs = finish(lab, "no-gdr")
    on = {records(log, "counters")[0]["node"]: log for log in logs}
    assert "/GDRDMA" in on["a"]
    assert "/GDRDMA" not in on["d"]
    assert "GDR 0" in on["d"]
    assert "found 15 nics" in on["d"]


def test_a_training_step_takes_its_time_from_the_network(lab):
    train = ["/poolshift/train_step.py", "--preset", "qwen2.5-14b", "--steps", "40", "--warmup", "5", "--batch", "5"]
    lab.create(probe("train-rdma", ["a", "b"], torchrun(2, *train), efa=16))
    _, fast = finish(lab, "train-rdma")
    lab.create(probe("train-tcp", ["a", "b"], torchrun(2, *train), efa=0))
    _, slow = finish(lab, "train-tcp")

    def median(log: str) -> float:
        steps = sorted(r["seconds"] for r in records(log, "train-step") if r["event"] == "step" and not r["warmup"])
        assert len(steps) == 40
        return float(steps[20])

    # Published: 12.36 s on sockets, 6.07 s over EFA.
    assert median(fast[0]) == pytest.approx(6.07, rel=0.03)
    assert median(slow[0]) == pytest.approx(12.36, rel=0.03)


def test_the_device_report_shows_what_the_container_was_given(lab):
    lab.create(probe("device", ["a"], ["python3", "/poolshift/device.py"], efa=16))
    _, logs = finish(lab, "device")
    (report,) = records(logs[0], "device")
    assert report["node"] == "a"
    assert len(report["verbs"]) == len(report["infiniband"]) == len(report["fi_info"]["domains"]) == 16
    assert report["gpus"]["count"] == 8
    lab.create(probe("bare", ["a"], ["python3", "/poolshift/device.py"], efa=0))
    _, logs = finish(lab, "bare")
    (report,) = records(logs[0], "device")
    assert report["infiniband"] == []
    assert report["fi_info"]["message"] == "fi_getinfo: -61 (No data available)"


def test_a_pod_that_never_comes_ends_the_others_by_timeout(lab):
    lab.create(probe("alone", ["a"], torchrun(2, *PROOF), efa=16))
    end, logs = finish(lab, "alone")
    assert end == "Failed"
    assert "RendezvousTimeoutError" in logs[0]


def test_fio_reports_both_of_its_jobs(lab):
    command = ["fio", "--output-format=json", "--bs=4M", "--size=8G", "--numjobs=8", "--time_based", "--runtime=30"]
    command += ["--name=write", "--rw=write", "--name=read", "--stonewall", "--rw=read"]
    lab.create(probe("storage", ["a"], command, efa=16))
    _, logs = finish(lab, "storage")
    document = json.loads(logs[0][logs[0].index("{") :])
    write, read = document["jobs"]
    assert (write["jobname"], read["jobname"]) == ("write", "read")
    assert write["write"]["bw_bytes"] > 1e9
    assert write["read"]["bw_bytes"] == 0
    assert read["read"]["io_bytes"] == pytest.approx(read["read"]["bw_bytes"] * 30, rel=0.01)


def test_the_file_system_is_reached_by_the_node_not_by_the_pods_devices(lab):
    """A Lustre client is in the kernel: a pod without an EFA device still reads over the node's EFA."""
    command = ["fio", "--output-format=json", "--bs=4M", "--size=64G", "--numjobs=16", "--iodepth=16", "--name=read"]
    lab.create(probe("kernel", ["a"], command, efa=0))
    _, logs = finish(lab, "kernel")
    (read,) = json.loads(logs[0][logs[0].index("{") :])["jobs"]
    assert read["read"]["bw_bytes"] > 12.5e9  # more than any TCP client gets
