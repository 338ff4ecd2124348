"""From what a probe printed to a record for the evidence and verdicts for the gate. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from infra.fabrics import Fabric
from infra.model.measurement import Steps, Sweep, steps_of, sweep_of
from infra.model.reading import Family, NcclLog, PayloadEvents, Reading, family_of
from infra.model.verdict import Finding, Level, Outcome, Verdict, worst
from infra.probes.catalogue import Probe
from tasks.rules import bandwidth, hardware
from tasks.rules.device_checks import listed
from tasks.rules.gate import NCCL_TESTS
from tasks.rules.machine import contradiction, seen_in
from tasks.rules.payload_verdict import contradicted, ended
from tasks.rules.reading_verdict import bad_end
from tasks.rules.tests_verdict import answer_tests, sweep_of_test
from tasks.rules.transport_proof import Expected, prove
from tasks.rules.wording import and_more

COLLECTIVE = "all-reduce"  # of the program that the probe runs, and of the spec's floors


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Where a probe ran: node names, GPUs a node, and the machine type's figures, if there are any."""

    nodes: tuple[str, ...]
    gpus: int
    fabric: Fabric | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeAnswer:
    """The record (plain JSON) and the verdicts of one probe."""

    record: Mapping[str, Any]
    verdicts: tuple[Verdict, ...]
    versions: Mapping[str, str]


def answer_proof(reading: Reading, probe: Probe, setting: Setting, check: str) -> ProbeAnswer:
    """The transport of every rank of every communicator, and the sums right."""
    payload = reading.payload or PayloadEvents()
    sweep = _sweep(payload)
    expected = Expected(
        fabric=setting.fabric,
        nodes=len(setting.nodes),
        communicators=rounds_of(probe),
        ended=ended(payload),
    )
    proof = prove(reading.nccl or NcclLog(), expected, payload)
    verdict = replace(proof.verdict(), check=check)
    if verdict.outcome is Outcome.FAIL and (ranks := _on_sockets(reading.nccl)):
        verdict = replace(verdict, reason=f"{ranks}; {verdict.reason}")
    wrong = sum(row.wrong or 0 for row in sweep.rows)
    if wrong:
        verdict = replace(verdict, outcome=Outcome.FAIL, reason=f"{wrong} elements of the sums are wrong")
    elif verdict.outcome is Outcome.PASS and (
        # the log and the program must tell of the same job, and the program of all that it was asked to do
        reason := _not_ours(reading, payload, setting) or bandwidth.unusable(sweep, _asked(probe, setting))
    ):
        verdict = replace(verdict, outcome=Outcome.UNMEASURED, reason=reason)
    transport = proof.transport
    record = {
        **sweep.to_dict(),
        "gpus_per_node": setting.gpus,
        "transport": {
            "name": transport.name,
            "provider": transport.provider,
            "network": transport.network,
            "rdma": transport.rdma,
            "gdr": transport.gdr,
            "mixed": transport.mixed,
            "evidence": transport.evidence,
        },
    }
    return ProbeAnswer(record=record, verdicts=_well_ended(reading, verdict), versions=versions_of(reading))


def _well_ended(reading: Reading, *verdicts: Verdict) -> tuple[Verdict, ...]:
    """Whatever a program printed before it died, or before its log was cut, proves nothing."""
    end = bad_end(reading)
    return tuple(no_pass(v, end.wording()) for v in verdicts) if end else verdicts


def answer_sweep(reading: Reading, probe: Probe, setting: Setting, floors: Mapping[int, float]) -> ProbeAnswer:
    """Floors, shape and plausibility of a bandwidth sweep."""
    payload = reading.payload or PayloadEvents()
    sweep = _sweep(payload)
    verdicts = bandwidth.judge(sweep, _asked(probe, setting), setting.fabric, floors)
    end = bad_end(reading)
    if doubt := (end.wording() if end else "") or _not_ours(reading, payload, setting):
        sweep, verdicts = replace(sweep, doubt=doubt), tuple(no_pass(v, doubt) for v in verdicts)
    record = {**sweep.to_dict(), "gpus_per_node": setting.gpus}
    return ProbeAnswer(record=record, verdicts=verdicts, versions=versions_of(reading))


def answer_nccl_tests(
    reading: Reading, sizes: Sequence[int], setting: Setting, floors: Mapping[int, float]
) -> ProbeAnswer:
    """One table of nccl-tests, and the lines of every rank beside it: the worst of figures, text and transport."""
    tests = reading.tests.tests if reading.tests is not None else ()
    sweep = sweep_of_test(tests[0]) if len(tests) == 1 else Sweep()
    expected = bandwidth.Expected(nodes=len(setting.nodes), gpus=setting.gpus, sizes=tuple(sizes))
    proof = prove(
        reading.nccl or NcclLog(),
        Expected(fabric=setting.fabric, nodes=len(setting.nodes), communicators=1, ended=sweep.complete),
    )
    figures = bandwidth.judge(sweep, expected, setting.fabric, floors)
    found = (*_said_by_tests(reading), *figures, proof.verdict())
    outcome = worst(v.outcome for v in found)
    decisive = next(v for v in found if v.outcome is outcome)
    verdict = replace(decisive, check=NCCL_TESTS, reason=f"{decisive.check}: {decisive.reason}")
    if reason := _otherwise(reading, setting):
        verdict = no_pass(verdict, reason)
    record = {**sweep.to_dict(), "gpus_per_node": setting.gpus}
    return ProbeAnswer(record=record, verdicts=_well_ended(reading, verdict), versions=versions_of(reading))


def _said_by_tests(reading: Reading) -> tuple[Verdict, ...]:
    """What the program says of itself beside its out-of-place figures: failures, wrong sums in place, its own limit."""
    if reading.tests is None:
        return ()
    check = "the program's own output"
    if (end := bad_end(reading)) and end.level is Level.BLOCK:
        return (Verdict(check=check, outcome=Outcome.FAIL, reason=end.wording(), findings=(end,)),)
    named = {sweep_of_test(test).collective for test in reading.tests.tests}
    said = answer_tests(reading.tests)
    blocked = said.verdict == "failed" or any(f.level is Level.BLOCK for f in said.findings)
    doubtful = [f for f in said.findings if f.level is not Level.INFO]
    if not blocked and named != {COLLECTIVE}:
        reason = f"{' and '.join(sorted(named))} was measured, {COLLECTIVE} was asked for"
        return (Verdict(check=check, outcome=Outcome.UNMEASURED, reason=reason),)
    if not blocked and not doubtful and said.verdict == "undetermined":
        return ()
    first = next((f for f in doubtful if f.level is Level.BLOCK), None) or next(iter(doubtful), None)
    return (
        Verdict(
            check=check,
            outcome=Outcome.FAIL if blocked else Outcome.UNMEASURED,
            reason=first.wording() if first else f"the output is {said.verdict}",
            findings=said.findings,
        ),
    )


def answer_steps(reading: Reading, setting: Setting) -> tuple[Steps, Mapping[str, str]]:
    """The training steps, to be compared by the caller who knows the other side."""
    payload = reading.payload or PayloadEvents()
    starts = payload.starts.get("train-step", ())
    start = starts[0] if len(starts) == 1 else {}
    whole = ended(payload) and bad_end(reading) is None and not _elsewhere(payload, setting)
    return steps_of(start, payload.steps_seen, payload.steps_seconds, complete=whole), versions_of(reading)


def answer_devices(reading: Reading, setting: Setting) -> ProbeAnswer:
    """Every node's report. The record keeps the counts: full reports of a large pool would not fit in it."""
    payload = reading.payload or PayloadEvents()
    verdict = hardware.judge_reports(payload.devices, setting.nodes, setting.fabric)
    if payload.broken:
        verdict = no_pass(verdict, f"{payload.broken} lines of the reports are damaged")
    (verdict,) = _well_ended(reading, verdict)
    reports = {str(d.get("node")): d for d in payload.devices}
    record = {"devices": {node: _short(report) for node, report in sorted(reports.items())}}
    return ProbeAnswer(record=record, verdicts=(verdict,), versions={})


def unmeasured(checks: Sequence[str], reason: str, findings: tuple[Finding, ...] = ()) -> tuple[Verdict, ...]:
    """The same reason for each check."""
    return tuple(Verdict(check=c, outcome=Outcome.UNMEASURED, reason=reason, findings=findings) for c in checks)


def no_pass(verdict: Verdict, reason: str) -> Verdict:
    """What a run that broke off may say: a defect, or nothing. `reason` is why it broke off."""
    if verdict.outcome is Outcome.FAIL:
        return verdict
    text = f"{reason}; {verdict.reason}" if verdict.reason else reason
    return replace(verdict, outcome=Outcome.UNMEASURED, reason=text)


def sizes_of(probe: Probe) -> tuple[int, ...]:
    """The message sizes that the probe was told to sweep."""
    return tuple(int(size) for size in _option(probe, "--sizes").split(",") if size)


def rounds_of(probe: Probe) -> int:
    """How many communicators it builds, one after another."""
    return int(_option(probe, "--rounds") or 1)


def versions_of(reading: Reading) -> dict[str, str]:
    """What ran: so that a regression names what changed."""
    log = reading.nccl
    start = next((s[0] for s in (reading.payload.starts if reading.payload else {}).values() if s), {})
    found = {
        "nccl": (log.version if log else None) or start.get("nccl"),
        "plugin": log.plugin_version if log else None,
        "libfabric": log.libfabric_version if log else None,
        "torch": start.get("torch"),
    }
    return {name: str(value) for name, value in found.items() if value}


def _asked(probe: Probe, setting: Setting) -> bandwidth.Expected:
    return bandwidth.Expected(
        nodes=len(setting.nodes), gpus=setting.gpus, sizes=sizes_of(probe), rounds=rounds_of(probe)
    )


def _not_ours(reading: Reading, payload: PayloadEvents, setting: Setting) -> str:
    """Why a sweep is none of these machines, or not the one that it announces; or ""."""
    return _elsewhere(payload, setting) or _otherwise(reading, setting) or contradicted(payload)


def _elsewhere(payload: PayloadEvents, setting: Setting) -> str:
    """An output of other nodes, or of their processors, says nothing of these, however good it is."""
    for start in (start for starts in payload.starts.values() for start in starts):
        told = start.get("nodes")
        nodes = {str(node) for node in told} if isinstance(told, list) else set()
        if nodes != set(setting.nodes):
            there, here = (and_more(sorted(names), 3) or "no node" for names in (nodes, setting.nodes))
            return f"the program says that it ran on {there}, it was asked for on {here}"
        if setting.fabric is not None and start.get("backend") != "nccl":
            return f"it went over {start.get('backend')} and not over NCCL: PyTorch saw no GPU"
    return ""


def _otherwise(reading: Reading, setting: Setting) -> str:
    """What the output shows of its machines that cannot be of the pool's type, whatever labels and spec say."""
    said = contradiction(seen_in(reading), setting.fabric) if setting.fabric is not None else ""
    return f"not a run of {setting.fabric.machine_type}: {said}" if said and setting.fabric is not None else ""


def sockets(log: NcclLog | None) -> tuple[int, int]:
    """Ranks that named their network, and how many of them are on TCP."""
    named = [rank.networks for rank in (log.ranks if log else ()) if rank.networks]
    return len(named), sum(1 for networks in named if any(family_of(name) is Family.SOCKET for name in networks))


def _on_sockets(log: NcclLog | None) -> str:
    """How many of the ranks that named their network are on TCP; "" when none is."""
    named, on = sockets(log)
    return f"NCCL is on TCP sockets on {on} of {named} ranks ({len(log.hosts) if log else 0} hosts)" if on else ""


def _sweep(payload: PayloadEvents) -> Sweep:
    starts = payload.starts.get("all-reduce", ())
    return sweep_of(starts[0] if len(starts) == 1 else {}, payload.rows, complete=ended(payload))


def _option(probe: Probe, name: str) -> str:
    return probe.args[probe.args.index(name) + 1] if name in probe.args else ""


def _short(report: Mapping[str, Any]) -> dict[str, Any]:
    def part(name: str) -> Mapping[str, Any]:
        value = report.get(name)
        return value if isinstance(value, Mapping) else {}

    return {
        "gpus": part("gpus").get("count"),
        "driver": part("gpus").get("driver"),
        "rdma_devices": len(part("verbs")),
        "efa_domains": len(listed(part("fi_info"), "domains")),
        "libfabric": part("fi_info").get("version"),
    }
