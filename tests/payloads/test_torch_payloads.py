"""The real payloads, really run: two torchrun agents with one gloo process each, as two nodes with one GPU each."""

import importlib.util
import io
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from infra.fabrics import fabric_of
from infra.model.spec import Validation
from infra.model.verdict import Outcome
from infra.ports import free_port
from infra.probes import catalogue
from infra.probes.manifests import SCRIPT_OF
from infra.probes.readers.detect import read
from tasks.judge import judge
from tasks.rules import compare
from tasks.rules.probe_verdict import Setting, answer_proof, answer_steps, answer_sweep

torch = pytest.importorskip("torch", reason="the payloads extra is not installed: pip install 'poolshift[payloads]'")

PAYLOADS = Path(__file__).parents[2] / "infra" / "probes" / "payloads"
SIZES = (1 << 20, 4 << 20)


def run(script, *args, nodes=2, root="/"):
    """Both nodes' outputs, by node name, and the exit codes."""
    port = free_port()
    agents = []
    for rank in range(nodes):
        line = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            f"--nnodes={nodes}",
            "--nproc-per-node=1",
            f"--node-rank={rank}",
            "--rdzv-backend=static",
            f"--rdzv-endpoint=127.0.0.1:{port}",
            str(PAYLOADS / script),
            *args,
        ]
        env = {
            **os.environ,
            "NODE_NAME": f"node-{rank}",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "POOLSHIFT_ROOT": str(root),
        }
        agents.append(subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    done = [agent.communicate(timeout=300) for agent in agents]
    for agent, (_, said) in zip(agents, done, strict=True):
        if agent.returncode not in (0, 1):
            pytest.fail(said.decode()[-2000:])
    return {f"node-{i}": out for i, (out, _) in enumerate(done)}, [agent.returncode for agent in agents]


@pytest.fixture(scope="module")
def sweep_outputs():
    sizes = ",".join(map(str, SIZES))
    outputs, codes = run("all_reduce.py", "--sizes", sizes, "--iters", "3", "--warmup", "1", "--rounds", "2")
    assert codes == [0, 0]
    return outputs


@pytest.fixture(scope="module")
def step_output():
    outputs, codes = run("train_step.py", "--preset", "tiny", "--steps", "12", "--warmup", "2")
    assert codes == [0, 0]
    return b"\n".join(outputs.values())


def lines(output):
    return [json.loads(line) for line in output.splitlines() if line.startswith(b'{"poolshift"')]


def probe():
    made = catalogue.transport_proof(Validation(proof_sizes=SIZES))
    assert SCRIPT_OF[made.program] == "all_reduce.py"
    return made


SETTING = Setting(nodes=("node-0", "node-1"), gpus=1, fabric=None)


def test_rank_0_reports_every_size_in_every_round_with_right_sums(sweep_outputs):
    found = lines(sweep_outputs["node-0"])
    rows = [e for e in found if e.get("event") == "row"]
    assert [(r["round"], r["size_bytes"]) for r in rows] == [(n, s) for n in (0, 1) for s in SIZES]
    assert all(r["wrong"] == 0 and r["time_us"] > 0 for r in rows)
    start = next(e for e in found if e.get("event") == "start")
    assert (start["ranks"], start["hosts"], start["nodes"]) == (2, 2, ["node-0", "node-1"])
    assert found[-1] == {"poolshift": "all-reduce", "event": "end", "ok": True}


def test_every_node_reports_its_counters_before_and_after(sweep_outputs):
    for node, output in sweep_outputs.items():
        assert [(c["when"], c["node"]) for c in lines(output) if c["poolshift"] == "counters"] == [
            ("before", node),
            ("after", node),
        ]


def test_gloo_over_tcp_is_not_rdma_whatever_its_sums_say(sweep_outputs):
    """The whole way: real output, reader, proof. No fabric is shown, so nothing is proven."""
    output = b"\n".join(sweep_outputs.values())
    verdict = answer_proof(read(io.BytesIO(output)), probe(), SETTING, "transport-proof").verdicts[0]
    assert verdict.outcome is not Outcome.PASS
    assert judge(io.BytesIO(output)).outcome is not Outcome.PASS
    p5 = Setting(nodes=SETTING.nodes, gpus=1, fabric=fabric_of("p5.48xlarge"))
    assert (
        answer_proof(read(io.BytesIO(output)), probe(), p5, "transport-proof").verdicts[0].outcome is not Outcome.PASS
    )


def test_a_floor_of_the_spec_judges_what_was_really_measured(sweep_outputs):
    reading = read(io.BytesIO(sweep_outputs["node-0"]))
    low = answer_sweep(reading, probe(), SETTING, {SIZES[1]: 0.0001}).verdicts
    assert low[0].outcome is Outcome.PASS, low[0].reason
    high = answer_sweep(reading, probe(), SETTING, {SIZES[1]: 1e6}).verdicts
    assert high[0].outcome is Outcome.FAIL


def test_printed_bandwidth_time_and_size_agree(sweep_outputs):
    plausibility = answer_sweep(read(io.BytesIO(sweep_outputs["node-0"])), probe(), SETTING, {}).verdicts[2]
    assert plausibility.outcome is Outcome.PASS, plausibility.reason


def test_cut_anywhere_it_is_unmeasured(sweep_outputs):
    output = sweep_outputs["node-0"]
    for share in (0.1, 0.5, 0.9, 0.99):
        cut = output[: int(len(output) * share)]
        verdicts = answer_sweep(read(io.BytesIO(cut)), probe(), SETTING, {SIZES[1]: 0.0001}).verdicts
        assert {v.outcome for v in verdicts} == {Outcome.UNMEASURED}


def test_every_training_step_is_timed_and_the_loss_falls(step_output):
    steps = [e for e in lines(step_output) if e.get("event") == "step"]
    assert [s["step"] for s in steps] == list(range(14))
    assert [s["warmup"] for s in steps] == [True] * 2 + [False] * 12
    assert steps[-1]["loss"] < steps[0]["loss"]


def dealt(seconds):
    """The same times, low and high in turn: a machine that slows down meanwhile is a drift, which is not judged."""
    low, high = sorted(seconds)[: len(seconds) // 2], sorted(seconds)[len(seconds) // 2 :]
    return tuple(one for pair in zip(low, reversed(high), strict=True) for one in pair)


def test_real_steps_are_comparable_with_another_run_and_not_with_themselves(step_output):
    read_steps, versions = answer_steps(read(io.BytesIO(step_output)), SETTING)
    assert len(read_steps.seconds) == 12
    assert read_steps.complete
    assert versions["torch"]
    steps = replace(read_steps, seconds=dealt(read_steps.seconds))
    jitter = random.Random(1)
    another = replace(steps, seconds=tuple(round(s * jitter.uniform(1.0, 1.02), 6) for s in reversed(steps.seconds)))
    told = compare.judge(steps, another, limit=5.0, confidence=0.95)
    assert told.outcome is Outcome.PASS, told.reason
    scaled = replace(steps, seconds=tuple(round(s * 1.01, 6) for s in steps.seconds))
    for copy in (steps, scaled):
        assert compare.judge(steps, copy, limit=5.0, confidence=0.95).outcome is Outcome.UNMEASURED


def load(script):
    """The payload as a module: it is a script that ships as data."""
    name = f"payload_{script.removesuffix('.py')}"
    spec = importlib.util.spec_from_file_location(name, PAYLOADS / script)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


def test_the_named_preset_has_the_published_shape():
    """14.77 billion parameters, the model card of Qwen2.5-14B says 14.7B; counted without allocating them."""
    module = load("train_step.py")
    with torch.device("meta"):
        model = module.Decoder(module.PRESETS["qwen2.5-14b"], recompute=True)
    assert sum(p.numel() for p in model.parameters()) == 14_770_033_664


def test_a_sum_that_misses_or_doubles_a_rank_is_counted_as_wrong():
    module = load("all_reduce.py")
    ranks = [torch.empty(1000) for _ in range(4)]
    for number, buffer in enumerate(ranks):
        module.fill(buffer, number)
    assert module.count_wrong(sum(ranks), 4) == 0
    assert module.count_wrong(sum(ranks[:3]), 4) == 1000
    assert module.count_wrong(ranks[0] + ranks[1] + 2 * ranks[2], 4) == 1000


def test_byte_counters_are_read_from_the_devices_with_their_unit(tmp_path):
    """EFA counts bytes, mlx5 words of four bytes; the loopback does not count."""
    efa = tmp_path / "sys/class/infiniband/rdmap86s0/ports/1"
    mlx = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    for path, value in (
        (efa / "hw_counters/tx_bytes", 100),
        (efa / "hw_counters/rdma_write_bytes", 7),
        (mlx / "counters/port_xmit_data", 100),
        (tmp_path / "sys/class/net/eth0/statistics/tx_bytes", 5),
        (tmp_path / "sys/class/net/lo/statistics/tx_bytes", 9),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    module = load("all_reduce.py")
    assert module.rdma_counters(tmp_path) == {
        "mlx5_0": {"tx_bytes": 400},
        "rdmap86s0": {"tx_bytes": 100, "rdma_write_bytes": 7},
    }
    assert module.ethernet_counters(tmp_path) == {"eth0": {"tx_bytes": 5}}


BROKEN = """
import runpy, sys
import torch.distributed as dist
real = dist.all_reduce
def bent(tensor, *args, group=None, **more):
    done = real(tensor, *args, group=group, **more)
    if group is not None and dist.get_rank() == 1:
        tensor[7] += 1  # one element, on one rank, of the measured communicator
    return done
dist.all_reduce = bent
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_one_wrong_element_on_one_rank_is_found_and_the_program_ends_badly(tmp_path):
    wrapper = tmp_path / "bent.py"
    wrapper.write_text(BROKEN)
    args = ("--sizes", str(SIZES[0]), "--iters", "1", "--warmup", "0")
    outputs, codes = run(wrapper, str(PAYLOADS / "all_reduce.py"), *args)
    assert codes == [1, 1]
    rows = [e for e in lines(outputs["node-0"]) if e.get("event") == "row"]
    assert [r["wrong"] for r in rows] == [2]  # once before the timing, once after it
    assert lines(outputs["node-0"])[-1]["ok"] is False
    reading = read(io.BytesIO(b"\n".join(outputs.values())))
    assert answer_proof(reading, probe(), SETTING, "transport-proof").verdicts[0].outcome is Outcome.FAIL
    assert answer_sweep(reading, probe(), SETTING, {}).verdicts[0].outcome is Outcome.FAIL


DYING = """
import os, runpy, sys
import torch.distributed as dist
real, times = dist.all_reduce, []
def dying(tensor, *args, group=None, **more):
    times.append(1)
    if dist.get_rank() == 1 and len(times) == 9:
        os.kill(os.getpid(), 9)
    return real(tensor, *args, group=group, **more)
dist.all_reduce = dying
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_rank_that_is_killed_ends_the_others_badly_and_what_was_printed_before_is_no_measurement(tmp_path):
    wrapper = tmp_path / "dying.py"
    wrapper.write_text(DYING)
    args = ("--sizes", str(SIZES[0]), "--iters", "3", "--warmup", "1", "--rounds", "2", "--timeout", "20")
    outputs, codes = run(wrapper, str(PAYLOADS / "all_reduce.py"), *args)
    assert codes == [1, 1]
    assert not any(e.get("ok") for e in lines(outputs["node-0"]))
    reading = read(io.BytesIO(b"\n".join(outputs.values())))
    found = answer_sweep(reading, replace(probe(), args=("--sizes", str(SIZES[0]))), SETTING, {SIZES[0]: 1e-6})
    assert {v.outcome for v in found.verdicts} == {Outcome.UNMEASURED}
