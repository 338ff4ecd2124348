"""A refused run's report: one sentence that a director understands, first causes, commands to type, no text twice."""

from __future__ import annotations

from infra.model.evidence import Evidence
from infra.model.record import Step, StepRecord, StepState
from infra.model.verdict import Finding, Gate, Level, Outcome, Verdict
from tasks.rules.folding import first_clause
from tasks.rules.story import facts, tell
from tasks.rules.story_figures import compared, figures
from tasks.rules.story_refused import causes, reason, without_consequences
from tasks.rules.story_tables import tables
from tasks.rules.wording import gate_words

PLUGIN = "daemonset kube-system/aws-efa-k8s-device-plugin"
MEND = "kubectl -n kube-system set image daemonset/aws-efa-k8s-device-plugin plugin=IMAGE"


def block(code: str, what: str, observed: str, remedy: str = "", since: str = "") -> Finding:
    return Finding(level=Level.BLOCK, code=code, object=what, observed=observed, remedy=remedy, since=since)


IMAGE = block(
    "plugin-image-missing",
    PLUGIN,
    "ImagePullBackOff: image x:1 on ip-10-0-1-2.us-east-2.compute.internal and 3 more",
    MEND,
    "2026-11-30T16:35:53Z (3 minutes)",
)
SHORT = block("devices-missing", "pool gpu-rdma", "vpc.amazonaws.com/efa: 0 allocatable", "kubectl get nodes")
PROVIDER = block("no-efa-device", "network", "no provider", "Request the EFA resource")
READINESS = Verdict(check="readiness", outcome=Outcome.FAIL, reason=IMAGE.fact(), findings=(IMAGE, SHORT))
PATH = Verdict(
    check="workload-path",
    outcome=Outcome.FAIL,
    observed="socket, gdr not shown",
    reason="NCCL is on TCP sockets on 2 of 2 ranks; network: no provider",
    findings=(PROVIDER,),
)
OLD = Finding(
    level=Level.WARN,
    code="source-plugin-image-missing",
    object=PLUGIN,
    observed="ImagePullBackOff",
    since="2026-03-04T12:24:57Z (271 days)",
)


def sweep(busbw: float, nodes: int, probe: str = "bandwidth") -> dict[str, object]:
    rows = [{"round": 1, "size_bytes": 1 << 30, "time_us": 1.0, "algbw_gb_s": busbw, "busbw_gb_s": busbw, "wrong": 0}]
    made = Evidence.from_dict({"probe": probe, "machine_type": "p5en.48xlarge", "reading": {"rows": rows}})
    return {**made.to_dict(), "nodes": [f"n{i}" for i in range(nodes)]}


def done(step: Step, state: StepState = StepState.DONE, summary: str = "", **data: object) -> StepRecord:
    return StepRecord(step=step, state=state, started="2026-11-30T16:00:00Z", summary=summary, data=data)


def refused(*verdicts: Verdict) -> dict[Step, StepRecord]:
    return {
        Step.PLAN: done(Step.PLAN, findings=[OLD.to_dict()]),
        Step.BASELINE: done(Step.BASELINE, evidence=[sweep(22.1, 2)]),
        Step.GATE: done(Step.GATE, StepState.HELD, "held. fail: readiness", verdicts=[v.to_dict() for v in verdicts]),
    }


def test_one_sentence_says_what_is_wrong_where_since_when_at_what_cost_and_that_nothing_was_touched() -> None:
    lead = tell("run", refused(READINESS, PATH), when="", simulated=False).lead

    assert lead.startswith(f"The image of {PLUGIN} cannot be pulled on ip-10-0-1-2 and 3 more of the new pool")
    for words in ("271 days (since 2026-03-04)", "TCP sockets instead of RDMA", "22.1 of ", "nothing was moved or del"):
        assert words in lead
    assert lead.count(". ") == 0


def test_the_sentence_claims_nothing_that_was_not_seen() -> None:
    unknown = Verdict(check="storage", outcome=Outcome.UNMEASURED, reason="probe storage was not run")
    records = {Step.GATE: refused(unknown)[Step.GATE]}
    lead = tell("run", records, when="", simulated=False).lead
    moved = tell("run", {**records, Step.MIGRATE: done(Step.MIGRATE)}, when="", simulated=False).lead

    assert (
        lead
        == "The new pool is not proven: storage is unmeasured: probe storage was not run; nothing was moved or deleted."
    )
    assert "nothing was moved" not in moved


def test_what_to_do_next_is_the_command_for_the_first_cause_and_not_for_what_follows_from_it() -> None:
    assert causes((READINESS, PATH)) == [IMAGE]
    assert causes((PATH,)) == [PROVIDER]
    first, *others = tell("run", refused(READINESS, PATH), when="", simulated=False).next

    assert first == MEND
    assert others[-1] == "or give it up: poolshift rollback run --remove-target"
    assert not any("see the" in line for line in others)


def test_a_held_gate_names_its_checks_and_leaves_the_reasons_to_them() -> None:
    unknown = Verdict(check="storage", outcome=Outcome.UNMEASURED, reason="not run")
    gate = Gate(name="proof", required=("readiness", "storage", "devices"), verdicts=(READINESS, unknown))

    assert gate_words(gate) == "held. fail: readiness; unmeasured: storage, devices"
    assert reason(PATH) == "NCCL is on TCP sockets on 2 of 2 ranks"
    assert reason(unknown) == "not run"


def test_bandwidths_of_different_numbers_of_nodes_are_told_with_both_numbers() -> None:
    sides = {Step.BASELINE: done(Step.BASELINE, evidence=[sweep(22.3, 2)])}
    same = {**sides, Step.VALIDATE: done(Step.VALIDATE, evidence=[sweep(347.8, 2), sweep(9.0, 2, "transport-proof")])}
    other = {**sides, Step.VALIDATE: done(Step.VALIDATE, evidence=[sweep(347.8, 4)])}
    mixed = {**sides, Step.VALIDATE: done(Step.VALIDATE, evidence=[sweep(347.8, 4), sweep(347.8, 6)])}

    assert compared(same).words("→") == "22.3 → 347.8 GB/s on 2 nodes"
    assert (
        compared(other).words("→").startswith("old pool 22.3 GB/s on 2 nodes, new pool 347.8 GB/s on 4 nodes (not co")
    )
    assert "differing numbers of nodes" in compared(mixed).words("→")
    mixed_both = {**mixed, Step.BASELINE: done(Step.BASELINE, evidence=[sweep(22.3, 2), sweep(22.3, 3)])}
    for records in (other, mixed, mixed_both):
        shown = [f for f in figures(records) if "bandwidth" in f.name]
        assert len(shown) == 2
        assert not any("→" in f.value + f.name for f in shown)
        assert "->" not in facts(records)["bandwidth"]


def moved(pods: int, end: str, gone: int, *waves: tuple[int, int]) -> dict[str, str]:
    """Pods by row of the waves table; a wave is (pods evicted, ranks of its gang)."""
    listed = [
        {"number": n, "moved": one, "nodes": {}, "gangs": [{"workload": "job a", "ranks": ranks, "running": "t"}]}
        for n, (one, ranks) in enumerate(waves, start=1)
    ]
    record = done(Step.MIGRATE, pods=pods, end=end, waves=listed, evictions={"gone": gone})
    (table,) = (t for t in tables({Step.MIGRATE: record}, ()) if t.title == "Waves")
    return {row[0]: row[2] for row in table.rows}


def test_the_waves_add_up_to_all_that_moved_gangs_first_replicas_and_the_last_ones_too() -> None:
    assert moved(7, "drained", 5, (2, 2), (2, 0)) == {"before": "1", "1": "4", "2": "2", "total": "7"}
    assert moved(9, "drained", 4, (2, 2), (2, 0)) == {"1": "4", "2": "2", "else": "3", "total": "9"}
    assert moved(9, "failed", 4, (2, 2), (2, 0)) == {"1": "4", "2": "2", "total": "6"}
    assert moved(3, "drained", 4, (4, 0)) == {"1": "4", "total": "4"}


def test_a_report_shows_one_cause_once_and_says_how_much_follows_from_it() -> None:
    others = (block("resource-short", "pool gpu-rdma", "efa: 0 of 32", ""), block("storage-slow", "pvc a", "slow", ""))
    found = [IMAGE, SHORT, PROVIDER, OLD, *others]
    shown = without_consequences(found, (READINESS, PATH))

    assert [f.code for f in shown] == ["plugin-image-missing", "source-plugin-image-missing", "storage-slow"]
    assert shown[0].observed.endswith("; 3 other findings follow from it")
    assert without_consequences(found, (PATH,)) == found
    assert without_consequences([IMAGE, *others[1:]], (READINESS, PATH)) == [IMAGE, *others[1:]]


def test_a_long_reason_is_cut_between_two_words() -> None:
    text = "the pool lacks " + "resource " * 40
    cut = first_clause(text)

    assert cut.endswith("resource…")
    assert len(cut) <= 161
    assert first_clause("x" * 400) == "x" * 160 + "…"
