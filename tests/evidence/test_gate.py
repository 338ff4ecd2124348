"""The gate: only intact, fresh evidence of this pool's own nodes opens it, and nothing that is taken away does."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.clock import rfc3339
from infra.model.evidence import Evidence
from infra.model.measurement import Steps, Sweep, SweepRow
from infra.model.pools import Pool, PoolState
from infra.model.spec import MigrationSpec
from infra.model.verdict import Outcome, Verdict
from tasks.rules import gate

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
GIB = 1 << 30
CURVE = {256 << 20: 343.0, GIB: 437.0, 4 * GIB: 466.0, 8 * GIB: 479.0}
UIDS = ("uid-a", "uid-b")
POOL = Pool(
    kind="external",
    name="new",
    identity="pools/new",
    state=PoolState.ACTIVE,
    machine_type="p5.48xlarge",
    nodes=2,
)
SPEC = MigrationSpec.model_validate(
    {
        "name": "move",
        "source": {"kind": "external", "name": "old", "selector": {"pool": "old"}},
        "target": {"kind": "external", "name": "new", "selector": {"pool": "new"}},
        "gate": {"max_step_ratio": 0.6},
    }
)
IMAGE = {"image_id": "sha256:1"}
READY = (Verdict(check="readiness", outcome=Outcome.PASS),)


def sweep():
    factor = 2 * 15 / 16
    rows = tuple(
        SweepRow(
            round=0,
            size_bytes=size,
            time_us=size / (value / factor) / 1e3,
            algbw_gb_s=value / factor,
            busbw_gb_s=value,
            wrong=0,
        )
        for size, value in CURVE.items()
    )
    return Sweep(ranks=16, hosts=2, complete=True, rows=rows)


def steps(seconds):
    return Steps(
        seconds=tuple(seconds * (1 + 0.001 * (n * (7 if seconds > 10 else 11) % 41 - 20) / 20) for n in range(40)),
        warmup=5,
        announced=40,
        ranks=16,
        hosts=2,
        complete=True,
        workload={"preset": "qwen2.5-14b"},
    )


def evidence(probe, reading=None, check="", **changes):
    fields = {
        "probe": probe,
        "mode": "pinned",
        "pool": POOL.identity,
        "machine_type": POOL.machine_type,
        "nodes": ("a", "b"),
        "node_uids": UIDS,
        "spec_hash": "hash",
        "measured": rfc3339(NOW - timedelta(hours=1)),
        "complete": True,
        "reading": reading or {},
        "verdicts": (Verdict(check=check, outcome=Outcome.PASS),) if check else (),
    }
    return Evidence(**{**fields, **changes}).seal()


def proven():
    return [
        evidence("transport-proof", check="transport-proof"),
        evidence("workload-path", check="workload-path", mode="workload"),
        evidence("bandwidth", sweep().to_dict()),
        evidence("devices", check="devices"),
        evidence("train-step", steps(6.07).to_dict(), versions=IMAGE),
    ]


BASELINE = [evidence("train-step", steps(12.36).to_dict(), pool="pools/old", node_uids=("x", "y"), versions=IMAGE)]


def judge(
    found,
    *,
    spec=SPEC,
    baseline=BASELINE,
    readiness=READY,
    uids=UIDS,
    spec_hash="hash",
    now=NOW,
    pool=POOL,
    simulated=False,
):
    return gate.judge(
        evidence=found,
        baseline=baseline,
        readiness=readiness,
        spec=spec,
        spec_hash=spec_hash,
        pool=pool,
        node_uids=uids,
        now=now,
        simulated=simulated,
    )


def test_complete_fresh_evidence_of_this_pool_opens_the_gate():
    found = judge(proven())
    assert found.outcome is Outcome.PASS
    assert all(v.evidence or v.check == "readiness" for v in found.verdicts)


@pytest.mark.parametrize("lost", range(5))
def test_any_missing_probe_holds_it(lost):
    found = proven()
    del found[lost]
    assert judge(found).outcome is Outcome.UNMEASURED


def test_no_evidence_no_readiness_and_no_baseline_each_hold_it():
    assert judge([]).outcome is Outcome.UNMEASURED
    assert judge(proven(), readiness=()).outcome is Outcome.UNMEASURED
    assert judge(proven(), baseline=[]).outcome is Outcome.UNMEASURED


@pytest.mark.parametrize("position", range(5))
@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"pool": "pools/other"}, "is of pool"),
        ({"machine_type": "p5en.48xlarge"}, "machine type"),
        ({"spec_hash": "older"}, "another spec"),
        ({"measured": rfc3339(NOW - timedelta(hours=13))}, "13 hours old"),
        ({"measured": rfc3339(NOW + timedelta(hours=1))}, "in the future"),
        ({"measured": ""}, "when it was measured"),
        ({"node_uids": ("uid-a", "uid-old")}, "no longer in the pool"),
        ({"node_uids": ()}, "names no nodes"),
        ({"complete": False}, "did not come to its end"),
    ],
)
def test_evidence_that_is_not_of_this_pool_now_is_unmeasured_with_the_reason(position, change, word):
    found = proven()
    found[position] = replace(found[position], **change).seal()
    held = judge(found)
    assert held.outcome is Outcome.UNMEASURED
    assert any(word in v.reason for v in held.verdicts)


def test_evidence_of_some_of_the_nodes_is_not_of_the_pool():
    held = judge(proven(), uids=(*UIDS, "uid-c"))
    assert held.outcome is Outcome.UNMEASURED
    assert any("leaves out 1 node of" in v.reason for v in held.verdicts)


def test_the_training_step_may_run_on_as_many_nodes_as_the_source_had():
    found = judge(proven(), uids=(*UIDS, "uid-c"))
    assert {v.check: v.outcome for v in found.verdicts}["step-time"] is Outcome.PASS


@pytest.mark.parametrize("side", ["source", "target"])
def test_steps_that_say_more_or_fewer_nodes_than_their_pods_had_compare_nothing(side):
    """Two pods on one node, or lines of another run: NVLink would be measured for the network."""
    found, base = proven(), list(BASELINE)
    if side == "target":
        found[4] = evidence("train-step", steps(6.07).to_dict(), node_uids=("uid-a",))
    else:
        base = [replace(BASELINE[0], node_uids=("x",)).seal()]
    held = judge(found, baseline=base)
    assert held.outcome is Outcome.UNMEASURED
    assert any("its pods had 1" in v.reason for v in held.verdicts)


def test_a_tag_that_means_another_image_on_either_pool_compares_nothing():
    found, base = proven(), [replace(BASELINE[0], versions={"image_id": "sha256:1"}).seal()]
    found[4] = replace(found[4], versions={"image_id": "sha256:2"}).seal()
    assert judge(found, baseline=base).outcome is Outcome.UNMEASURED
    found[4] = replace(found[4], versions={"image_id": "sha256:1"}).seal()
    assert judge(found, baseline=base).outcome is Outcome.PASS
    for unknown in ({"image_id": "sha256:1,sha256:2"}, {"image_id": ""}, {}):
        found[4], base = replace(found[4], versions=unknown).seal(), [replace(BASELINE[0], versions=unknown).seal()]
        held = judge(found, baseline=base)
        assert held.outcome is Outcome.UNMEASURED
        assert any("same image" in v.reason for v in held.verdicts)


def test_steps_of_the_sandbox_are_not_compared_with_real_ones():
    assert judge(proven(), baseline=[replace(BASELINE[0], simulated=True).seal()]).outcome is Outcome.UNMEASURED


@pytest.mark.parametrize("index", range(5))
def test_simulated_evidence_opens_no_real_gate_and_real_evidence_no_simulated_one(index):
    found = proven()
    found[index] = replace(found[index], simulated=True).seal()
    for held in (judge(found), judge(found, simulated=True)):
        assert held.outcome is Outcome.UNMEASURED
        assert any("simulated" in v.reason for v in held.verdicts)


@pytest.mark.parametrize("measured", ["", "yesterday", "2026-11-01T11:00:00", "2026-13-01T00:00:00Z"])
def test_a_baseline_that_does_not_say_when_it_was_measured_is_none(measured):
    undated = replace(BASELINE[0], measured=measured).seal()
    assert judge(proven(), baseline=[undated]).outcome in {Outcome.UNMEASURED, Outcome.PASS}
    assert judge(proven(), baseline=[undated, BASELINE[0]]).outcome is Outcome.PASS


def test_a_pool_with_more_nodes_than_kubernetes_shows_is_not_proven_by_those_it_shows():
    larger = replace(POOL, nodes=3)
    held = judge(proven(), pool=larger)
    assert held.outcome is Outcome.UNMEASURED
    assert any("2 of its 3 nodes are seen" in v.reason for v in held.verdicts)


def test_a_defect_on_some_of_the_nodes_is_one_of_the_pool_and_their_health_is_not():
    """What two scouts of a large pool show."""
    found = proven()
    tcp = Verdict(check="workload-path", outcome=Outcome.FAIL, reason="TCP sockets")
    found[1] = evidence("workload-path", verdicts=(tcp,), mode="workload", node_uids=("uid-a",))
    assert judge(found).outcome is Outcome.FAIL
    found[1] = evidence("workload-path", check="workload-path", mode="workload", node_uids=("uid-a",))
    assert judge(found).outcome is Outcome.UNMEASURED
    gone = evidence("workload-path", verdicts=(tcp,), mode="workload", node_uids=("uid-old",))
    assert judge([*proven()[:1], gone, *proven()[2:]]).outcome is Outcome.UNMEASURED


def test_a_machine_type_that_nobody_knows_is_measured_with_all_gpus_of_its_nodes():
    """A run on fewer GPUs than the pool's nodes have must not say how many there should have been."""
    strange = replace(POOL, machine_type="x9.metal", gpus={"nvidia.com/gpu": 16})
    floors = SPEC.model_copy(update={"gate": SPEC.gate.model_copy(update={"min_busbw_gb_s": {8 * GIB: 1.0}})})
    found = [replace(e, machine_type="x9.metal").seal() for e in proven()]
    held = judge(found, pool=strange, spec=floors)
    assert {v.check: v.outcome for v in held.verdicts}["bandwidth-floor"] is Outcome.UNMEASURED


@pytest.mark.parametrize("position", range(5))
def test_altered_evidence_is_no_evidence(position):
    found = proven()
    found[position] = replace(found[position], measured=rfc3339(NOW))
    held = judge(found)
    assert held.outcome is Outcome.UNMEASURED
    assert any("altered" in v.reason for v in held.verdicts)


def test_a_pinned_run_does_not_answer_what_jobs_get():
    found = proven()
    found[1] = evidence("workload-path", check="workload-path", mode="pinned")
    assert judge(found).outcome is Outcome.UNMEASURED


@pytest.mark.parametrize("mode", ["workload", ""])
def test_what_jobs_get_does_not_answer_what_the_pool_can_do(mode):
    found = proven()
    found[2] = evidence("bandwidth", sweep().to_dict(), mode=mode)
    assert judge(found).outcome is Outcome.UNMEASURED


def test_figures_of_some_of_the_nodes_that_were_a_defect_once_are_no_health_of_the_pool():
    """Judged again under other figures they reach the floor."""
    below = tuple(Verdict(check=c, outcome=Outcome.FAIL) for c in ("bandwidth-floor", "bandwidth-shape"))
    found = proven()
    found[2] = evidence("bandwidth", sweep().to_dict(), verdicts=below, node_uids=UIDS[:1])
    said = {v.check: v.outcome for v in judge(found).verdicts}
    assert said["bandwidth-floor"] is said["bandwidth-shape"] is Outcome.UNMEASURED


def test_the_worst_of_two_answers_to_one_question_counts():
    answers = [Verdict(check="devices", outcome=outcome) for outcome in (Outcome.PASS, Outcome.FAIL)]
    for order in (answers, answers[::-1]):
        found = proven()
        found[3] = evidence("devices", verdicts=tuple(order))
        assert judge(found).outcome is Outcome.FAIL


def test_figures_that_were_kept_without_their_doubts_are_no_better_than_their_verdict():
    """A record of an earlier version: the output was another machine's, and only the verdict says so."""
    reading = sweep().to_dict()
    del reading["doubt"]
    checks = ("bandwidth-floor", "bandwidth-shape", "plausibility")
    for outcome in (Outcome.UNMEASURED, Outcome.PASS):
        said = tuple(Verdict(check=check, outcome=outcome, reason="ran on c, d") for check in checks)
        found = proven()
        found[2] = evidence("bandwidth", reading, verdicts=said)
        assert judge(found).outcome is outcome


def test_one_failing_piece_among_passing_ones_fails():
    bad = evidence("transport-proof", verdicts=(Verdict(check="transport-proof", outcome=Outcome.FAIL, reason="tcp"),))
    assert judge([*proven(), bad]).outcome is Outcome.FAIL


def test_a_probe_that_broke_off_may_show_a_defect_but_no_health():
    found = proven()
    broken = Verdict(check="transport-proof", outcome=Outcome.FAIL, reason="network not found")
    found[0] = evidence("transport-proof", verdicts=(broken,), complete=False)
    assert judge(found).outcome is Outcome.FAIL
    found[0] = evidence("transport-proof", check="transport-proof", complete=False)
    assert judge(found).outcome is Outcome.UNMEASURED


def test_limits_changed_since_are_the_ones_that_hold():
    strict = SPEC.model_copy(update={"gate": SPEC.gate.model_copy(update={"min_busbw_gb_s": {8 * GIB: 600.0}})})
    assert judge(proven(), spec=strict).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    "change",
    [
        {"pool": POOL.identity},
        {"complete": False},
        {"image": "other"},
        {"arguments": ("--batch", "2")},
        {"mode": "workload"},
        {"spec_hash": "of another source"},
        {"measured": rfc3339(NOW + timedelta(days=1))},
        {"node_uids": ("x", UIDS[0])},
    ],
    ids=["same pool", "cut", "image", "arguments", "mode", "spec", "future", "shared nodes"],
)
def test_a_baseline_that_is_not_the_same_run_elsewhere_is_none(change):
    other = [replace(BASELINE[0], **change).seal()]
    assert judge(proven(), baseline=other).outcome is Outcome.UNMEASURED


def test_what_the_spec_does_not_ask_for_is_not_required():
    without = SPEC.model_copy(update={"gate": SPEC.gate.model_copy(update={"max_step_ratio": None})})
    assert "step-time" not in gate.required(without)
    assert judge(proven()[:4], spec=without, baseline=[]).outcome is Outcome.PASS


def test_storage_is_required_once_a_claim_is_named():
    claim = {"storage_claim": "train/data"}
    asked = SPEC.model_copy(update={"validation": SPEC.validation.model_copy(update=claim)})
    assert "storage" in gate.required(asked)
    assert judge(proven(), spec=asked).outcome is Outcome.UNMEASURED


def scalars(value):
    """Paths of all leaves of plain JSON."""
    if isinstance(value, dict):
        return [(key, *path) for key, item in value.items() for path in scalars(item)]
    if isinstance(value, list):
        return [(index, *path) for index, item in enumerate(value) for path in scalars(item)]
    return [()]


def change(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = change(value[path[0]], path[1:], new)
    return copy


@st.composite
def held_sets(draw):
    """Evidence of a gate that is held, for one reason or another."""
    found = proven()
    position = draw(st.integers(0, 4))
    spoiled = draw(
        st.sampled_from(
            [
                {"pool": "pools/other"},
                {"node_uids": ("uid-z",)},
                {"complete": False},
                {"measured": rfc3339(NOW - timedelta(days=2))},
                {"reading": {}, "verdicts": ()},
            ]
        )
    )
    found[position] = replace(found[position], **spoiled).seal()
    return found


@settings(max_examples=25)
@given(held_sets(), st.data())
def test_removing_or_altering_evidence_never_opens_a_held_gate(found, data):
    """Take away any of it, and change any leaf of what is left: without the seal's key nothing opens."""
    assert judge(found).outcome is not Outcome.PASS
    kept = data.draw(st.lists(st.sampled_from(range(5)), unique=True))
    altered = []
    for index in kept:
        raw = found[index].to_dict()
        path = data.draw(st.sampled_from(scalars(raw)))
        new = data.draw(st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.just(POOL.identity)))
        touched = data.draw(st.booleans())
        altered.append(Evidence.from_dict(change(raw, path, new)) if touched else found[index])
    assert judge(altered).outcome is not Outcome.PASS


@settings(max_examples=40)
@given(st.data())
def test_no_altered_leaf_of_passing_evidence_goes_unseen(data):
    """Every field is under the seal, or read back as it was."""
    found = proven()
    index = data.draw(st.integers(0, 4))
    raw = found[index].to_dict()
    path = data.draw(st.sampled_from(scalars(raw)))
    back = Evidence.from_dict(change(raw, path, data.draw(st.sampled_from(["x", 7, None, True]))))
    assert not back.intact or back.to_json() == found[index].to_json()


def test_json_there_and_back_keeps_the_seal():
    for item in proven():
        back = Evidence.from_json(item.to_json())
        assert back.intact
        assert back.to_json() == item.to_json()


@pytest.mark.parametrize("text", ["[]", "3", '"x"'])
def test_json_that_is_no_object_is_refused(text):
    with pytest.raises(ValueError, match="JSON object"):
        Evidence.from_json(text)
