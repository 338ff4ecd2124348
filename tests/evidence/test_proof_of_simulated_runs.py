"""From what pods print to a verdict: healthy fabrics pass, fallbacks are caught, damage never makes a pass."""

import io
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.fabrics import fabric_of
from infra.model.measurement import Steps, Sweep
from infra.model.spec import Validation
from infra.model.verdict import Outcome
from infra.probes import catalogue
from infra.probes.readers.detect import read
from infra.sandbox.fabric import collective, devices
from infra.sandbox.fabric.generation import generation_of
from infra.sandbox.fabric.machine import Host, machine_of
from infra.sandbox.fabric.nccl_log import Job, Member
from tasks.rules.bandwidth import Expected
from tasks.rules.bandwidth import judge as judge_sweep
from tasks.rules.compare import judge as compare
from tasks.rules.probe_verdict import (
    Setting,
    answer_devices,
    answer_proof,
    answer_steps,
    answer_sweep,
    no_pass,
    rounds_of,
    sizes_of,
)

PROBE = catalogue.transport_proof(Validation())
SWEEP = catalogue.bandwidth(Validation())
IMAGES = ("nvcr.io/nvidia/pytorch:24.07-py3", "nvcr.io/nvidia/pytorch:25.09-py3")


def world(transport="efa", machine_type="p5en.48xlarge", *, nodes=2, image=IMAGES[1], other=None, nics=None, **host):
    """A simulated job of eight ranks a node; `other` is the transport of the last node, `nics` its NICs."""
    machine = machine_of(machine_type)
    members = []
    for index in range(nodes):
        last = index == nodes - 1
        chosen = other if other and last else transport
        rates = (1.0,) * machine.fabric.nics if chosen != "socket" else ()
        members.append(
            Member(
                host=Host(
                    node=f"node-{index}",
                    machine=machine,
                    transport=chosen,
                    nics=nics if nics is not None and last else rates,
                    **host,
                ),
                hostname=f"probe-{index}",
                address=f"10.1.0.{index + 1}",
                ranks=8,
                first_rank=8 * index,
            )
        )
    # Two pools are not measured alike, to the last digit.
    job = Job(members=members, generation=generation_of(image), seed=f"test-{transport}")
    return collective.Setting(job=job, start=datetime(2026, 11, 1, tzinfo=UTC))


def outputs(made):
    return [("\n".join(line.text for line in t.lines) + "\n").encode() for t in made]


def sweep_outputs(run, probe=PROBE):
    args = collective.SweepArgs(sizes=list(sizes_of(probe)), rounds=rounds_of(probe))
    return outputs(collective.sweep(run, args))


def at(machine_type="p5en.48xlarge", nodes=2):
    return Setting(nodes=tuple(f"node-{i}" for i in range(nodes)), gpus=8, fabric=fabric_of(machine_type))


def proof(parts, setting=None):
    return answer_proof(read(io.BytesIO(b"\n".join(parts))), PROBE, setting or at(), "transport-proof").verdicts[0]


def bandwidth(parts, setting=None):
    return answer_sweep(read(io.BytesIO(b"\n".join(parts))), SWEEP, setting or at(), {}).verdicts


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize(("transport", "machine_type"), [("efa", "p5en.48xlarge"), ("roce", "a3-ultragpu-8g")])
def test_a_healthy_fabric_is_proven_on_both_clouds_and_two_generations(image, transport, machine_type):
    run = world(transport, machine_type, image=image)
    verdict = proof(sweep_outputs(run), at(machine_type))
    assert verdict.outcome is Outcome.PASS, verdict.reason
    found = bandwidth(sweep_outputs(run, SWEEP), at(machine_type))
    assert [v.outcome for v in found] == [Outcome.PASS] * 3, found


FALLBACKS = {
    "full TCP": {"transport": "socket", "loss": "no-device"},
    "no GPUDirect": {"gdr": False},
    "fewer NICs": {"nics": (1.0,) * 12},
    "one node on TCP": {"other": "socket"},
}


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("kind", FALLBACKS)
def test_every_fallback_is_caught(kind, image):
    verdict = proof(sweep_outputs(world(**FALLBACKS[kind], image=image)))
    assert verdict.outcome is not Outcome.PASS
    assert verdict.reason


def test_full_tcp_says_on_how_many_ranks():
    verdict = proof(sweep_outputs(world("socket", loss="no-device")))
    assert verdict.outcome is Outcome.FAIL
    assert "NCCL is on TCP sockets on 16 of 16 ranks (2 hosts)" in verdict.reason


def test_a_slow_nic_that_no_log_shows_is_seen_by_the_floor():
    run = world(nics=(0.25, *(1.0,) * 15))
    assert bandwidth(sweep_outputs(run, SWEEP))[0].outcome is Outcome.FAIL


@pytest.mark.parametrize(
    "expected", [at(nodes=3), at("p5.48xlarge"), at("a3-ultragpu-8g")], ids=["nodes", "nics", "net"]
)
def test_a_healthy_run_of_another_size_or_machine_proves_nothing_here(expected):
    assert proof(sweep_outputs(world()), expected).outcome is not Outcome.PASS


def test_one_pods_output_proves_nothing_for_two():
    first, second = sweep_outputs(world())
    assert proof([first]).outcome is not Outcome.PASS
    assert proof([second]).outcome is not Outcome.PASS
    assert proof([first, first]).outcome is not Outcome.PASS


def test_a_single_communicator_is_not_two():
    once = outputs(collective.sweep(world(), collective.SweepArgs(sizes=list(sizes_of(PROBE)), rounds=1)))
    assert proof(once).outcome is not Outcome.PASS


HEALTHY = sweep_outputs(world())
ON_TCP = sweep_outputs(world("socket", loss="no-device"))


SWEPT = b"\n".join(sweep_outputs(world(), SWEEP))
OF_ANOTHER = {
    "": SWEPT,
    "other nodes": SWEPT.replace(b'"nodes":["node-0"', b'"nodes":["node-9"'),
    "no node": SWEPT.replace(b'"nodes":', b'"at":'),
    "another machine": SWEPT.replace(b"NVIDIA H200", b"NVIDIA A100-SXM4-40GB"),
    "processors": SWEPT.replace(b'"backend":"nccl"', b'"backend":"gloo"'),
    "a killed program": SWEPT + b"Segmentation fault (core dumped)\n",
    "a cut log": SWEPT + b"unexpected EOF\n",
    "other iterations": SWEPT.replace(b'"iters":20,"warmup"', b'"iters":200,"warmup"'),
}


@pytest.mark.parametrize("whose", OF_ANOTHER)
def test_what_keeps_a_sweep_from_passing_stays_with_its_figures(whose):
    """They are judged again at the gate, where the output is not."""
    answer = answer_sweep(read(io.BytesIO(OF_ANOTHER[whose])), SWEEP, at(), {})
    asked = Expected(nodes=2, gpus=8, sizes=sizes_of(SWEEP))
    again = judge_sweep(Sweep.from_dict(answer.record), asked, at().fabric, {})
    assert {v.outcome for v in (*answer.verdicts, *again)} == {Outcome.UNMEASURED if whose else Outcome.PASS}
    assert all(v.reason for v in again)


@settings(max_examples=20)
@given(st.integers(0, 1), st.floats(0.0, 1.0, exclude_max=True))
def test_cut_at_any_byte_the_output_of_rank_0_proves_nothing(pod, share):
    """The end line is the last of rank 0; the other pod's output must have been read in full, or a rank is missing.

    A line end alone is no loss: the last line says all it has to say without it.
    """
    parts = list(HEALTHY)
    whole = parts[pod].rstrip(b"\n")
    parts[pod] = whole[: int(len(whole) * share * (1.0 if pod == 0 else 0.6))]
    assert proof(parts).outcome is not Outcome.PASS


@settings(max_examples=20)
@given(st.data())
def test_no_damage_turns_tcp_into_a_pass(data):
    parts = [part.splitlines(keepends=True) for part in ON_TCP]
    for _ in range(data.draw(st.integers(1, 3))):
        part = parts[data.draw(st.integers(0, 1))]
        begin = data.draw(st.integers(0, len(part) - 1))
        match data.draw(st.sampled_from(["drop", "double", "splice"])):
            case "drop":
                del part[begin : begin + data.draw(st.integers(1, 200))]
            case "double":
                part[begin:begin] = part[begin : begin + 50]
            case "splice":
                part[begin:begin] = HEALTHY[0].splitlines(keepends=True)[begin : begin + 100]
        if not part:
            break
    assert proof([b"".join(part) for part in parts]).outcome is not Outcome.PASS


def test_training_steps_of_both_pools_are_compared():
    slow, fast = (
        answer_steps(
            read(io.BytesIO(b"\n".join(outputs(collective.train(run, collective.TrainArgs(steps=20, warmup=3)))))), at()
        )[0]
        for run in (world("socket", loss="no-device"), world())
    )
    assert compare(slow, fast, limit=0.9, confidence=0.95).outcome is Outcome.PASS
    assert compare(fast, slow, limit=0.9, confidence=0.95).outcome is Outcome.FAIL
    assert Steps.from_dict(fast.to_dict()) == fast


def test_simulated_device_reports_are_judged_like_real_ones():
    generation = generation_of(IMAGES[1])
    machine = machine_of("p5en.48xlarge")

    def report(node, nics):
        host = Host(node=node, machine=machine, transport="efa", nics=nics)
        return outputs([devices.report(host, hostname=node, gpus=8, generation=generation, env={})])[0]

    good, bad = report("node-0", (1.0,) * 16), report("node-1", (1.0,) * 15)
    whole = answer_devices(read(io.BytesIO(good + report("node-1", (1.0,) * 16))), at()).verdicts[0]
    assert whole.outcome is Outcome.PASS, whole.reason
    assert answer_devices(read(io.BytesIO(good + bad)), at()).verdicts[0].outcome is Outcome.FAIL
    assert answer_devices(read(io.BytesIO(good)), at()).verdicts[0].outcome is Outcome.UNMEASURED


def test_what_broke_off_shows_a_defect_or_nothing():
    passed = proof(sweep_outputs(world()))
    assert no_pass(passed, "the node was lost").outcome is Outcome.UNMEASURED
    failed = proof(sweep_outputs(world("socket", loss="no-device")))
    assert no_pass(failed, "the node was lost") == failed
