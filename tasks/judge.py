"""`judge`: read any tool's output, say what it shows, and whether it proves anything.

Two answers, kept apart. `verdict` is about what the text shows, however short ("healthy": nothing in it is wrong).
`outcome` is what a gate would take from it: pass only when everything that a proof needs is there, fail when a
defect is shown, unmeasured otherwise. The exit code follows the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from infra.errors import BadSpec
from infra.fabrics import Fabric, fabric_of, load
from infra.model.reading import Kind, NcclLog, PayloadEvents, Reading
from infra.model.verdict import Finding, Level, Outcome, Verdict, worst
from infra.probes.readers.detect import read
from tasks.rules.beside import answers_beside
from tasks.rules.machine import judge_machine
from tasks.rules.nearest import nearest
from tasks.rules.payload_verdict import answer_devices, answer_steps, answer_sweep, ended
from tasks.rules.reading_figures import judge_figures
from tasks.rules.reading_verdict import Answer, answer_log
from tasks.rules.tests_verdict import answer_tests
from tasks.rules.tool_verdict import answer_tool
from tasks.rules.transport_proof import Expected, Proof, prove

_LEVELS = (Level.BLOCK, Level.WARN, Level.INFO)
_ARCHIVES = ((b"\x28\xb5\x2f\xfd", "zstd"), (b"PK\x03\x04", "zip"))
# What to give next, where no finding says it: what is missing is then missing from the output.
_LINES = "Give all that the program printed, from its first line to its last, and name --machine and --nodes"
_WHOLE = {
    Kind.NCCL_LOG: "Run nccl-tests there, whose last lines tell the end, with NCCL_DEBUG=INFO "
    "NCCL_DEBUG_SUBSYS=INIT,NET on every rank, and give all that all ranks print: cat DIR/* | poolshift judge -",
    Kind.NCCL_TESTS: "Give all that one run of nccl-tests printed, from its first line to its average, and name "
    "--machine and --nodes",
}
_DEFECT = {"failed", "efa-unavailable", "stalled", "degraded"}
_ORDER = ("failed", "efa-unavailable", "stalled", "degraded", "invalid", "suspicious", "undetermined", "not-applicable")


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeResult:
    """What `poolshift judge` prints."""

    kind: Kind
    outcome: Outcome
    verdict: str
    fields: dict[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    missing: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 pass, 3 fail, 4 unmeasured."""
        return self.outcome.exit_code

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "kind": self.kind.value,
            "outcome": self.outcome.value,
            **self.fields,
            "verdict": self.verdict,
            "findings": [f.to_dict() for f in self.findings],
            "missing": list(self.missing),
            "checks": [v.to_dict() for v in self.verdicts],
        }

    def lines(self) -> list[str]:
        """For a person: the answer, the figures that matter, why, and what to do next."""
        # Two answers in one line must not look like two outcomes.
        healthy = self.verdict == "healthy" and self.outcome is not Outcome.PASS
        what = f" (what is there looks {self.verdict})" if healthy else f", {self.verdict}"
        text = [f"{self.outcome.value}: {self.kind.value}{what}"]
        order = sorted(self.findings, key=lambda f: _LEVELS.index(f.level))
        text += [f"  {f.level.value} {f.code}: {replace(f, remedy='').wording()}" for f in order]
        said = {f.wording() for f in self.findings}
        reasons = [v for v in self.verdicts if v.reason and not self.missing and not v.reason.startswith(tuple(said))]
        text += [f"  {v.check}: {v.outcome.value}: {v.reason}" for v in reasons]
        # What a proof lacks besides is no news once a defect is shown; the JSON has it.
        text += [f"  missing: {item}" for item in self.missing if self.outcome is not Outcome.FAIL]
        remedies = [f.remedy for f in order if f.remedy]
        if self.outcome is not Outcome.PASS and not remedies:
            remedies = [_WHOLE.get(self.kind, _LINES)]
        text += [f"  next: {remedy}" for remedy in dict.fromkeys(remedies)]
        shown = [f"    {key}: {_shown(value)}" for key, value in self.fields.items() if _worth_showing(key, value)]
        return text + (["  what it says:", *shown] if shown else [])


def judge(stream: BinaryIO | Path | str, *, machine_type: str | None = None, nodes: int | None = None) -> JudgeResult:
    """Read and judge one output.

    `stream` is a binary stream of any size, or the path of a file. `machine_type` and `nodes` say what the pool is;
    without them figures are measured, not judged. Raises BadSpec for a machine type that the table does not know, and
    for less than one node.
    """
    if nodes is not None and nodes < 1:
        raise BadSpec(f"nodes {nodes}", "cannot have run anything", expected="1 or more", remedy="leave it out")
    fabric = _fabric(machine_type)
    if isinstance(stream, str | Path):
        with Path(stream).open("rb") as file:
            return judge_reading(read(file), fabric=fabric, nodes=nodes)
    return judge_reading(read(stream), fabric=fabric, nodes=nodes)


def judge_reading(reading: Reading, *, fabric: Fabric | None = None, nodes: int | None = None) -> JudgeResult:
    """Judge what was read before, so that saved output can be judged again under new limits."""
    found = _judged(reading, fabric, nodes)
    return _of_damaged(found, reading.damage) if reading.damage else found


def _of_damaged(found: JudgeResult, damage: str) -> JudgeResult:
    """What stands before the damage may be looked at. It is judged in no way: anything may be missing or altered."""
    said = Finding(
        level=Level.WARN,
        code="damaged-file",
        object="input",
        observed=damage,
        expected="the whole file",
        remedy="copy it again from where it was made, and check it there with gzip -t, bzip2 -t or xz -t",
    )
    claims = {"healthy", "complete", "cause", "suspicious", "fallback", "rdma", "gdr", "fatal", "bytes"}
    return JudgeResult(
        kind=found.kind,
        outcome=Outcome.UNMEASURED,
        verdict="undetermined",
        fields={name: value for name, value in found.fields.items() if name not in claims},
        findings=(said,),
        missing=("a packed file that can be read to its end",),
    )


def _judged(reading: Reading, fabric: Fabric | None, nodes: int | None) -> JudgeResult:
    if reading.tool is not None:
        answers = [answer_tool(reading.tool, fabric=fabric), *answers_beside(reading, fabric)]
        return _result(reading.kind, answers, [], _tool_outcome({a.verdict for a in answers}))
    if reading.kind is Kind.UNKNOWN:
        return JudgeResult(
            kind=Kind.UNKNOWN,
            outcome=Outcome.UNMEASURED,
            verdict="undetermined",
            fields={"bytes": reading.bytes},
            findings=_unknown(reading),
            missing=("an output that any reader knows",),
        )
    answers = []
    verdicts: list[Verdict] = []
    proof: Proof | None = None
    if reading.nccl is not None:
        proof = _prove(reading, reading.nccl, fabric, nodes)
        if reading.kind is Kind.NCCL_LOG or _says_something(proof):
            answers.append(answer_log(reading.nccl, proof.transport))
            verdicts.append(proof.verdict())
        else:
            proof = None  # it was not asked for, so nothing of it is missing
    figures = judge_figures(reading, fabric, nodes)
    answers += [_settled(answer, figures) for answer in _answers(reading)]
    answers += answers_beside(reading, fabric)
    verdicts += figures
    if fabric is not None and verdicts and all(v.outcome is Outcome.PASS for v in verdicts):
        verdicts.append(judge_machine(reading, fabric))  # who hands over a file says himself what it is from
    return _result(reading.kind, answers, verdicts, None, proof)


def _unknown(reading: Reading) -> tuple[Finding, ...]:
    """Why nothing was recognised, where that can be seen."""
    archive = next((name for magic, name in _ARCHIVES if reading.head.startswith(magic)), "")
    if archive:
        code, observed, remedy = "archive", f"a {archive} archive", "unpack it, or: zstd -dc FILE | poolshift judge -"
    elif not reading.bytes:
        code, observed, remedy = "empty", "nothing to read", "check that the command wrote to this file"
    elif b"\0" in reading.head:
        code, observed, remedy = "binary", "binary data, no text", "give the text that the tool printed"
    else:
        code, observed = "unknown", "no line that a reader knows"
        remedy = (
            "give all that NCCL (NCCL_DEBUG=INFO), nccl-tests, perftest, fi_info, ibstat, fio or IOR printed; "
            "what kubectl get -o json and device plugins print: poolshift audit -f FILE"
        )
    return (Finding(level=Level.WARN, code=code, object="input", observed=observed, remedy=remedy),)


def _answers(reading: Reading) -> list[Answer]:
    """Of everything that the output holds: a good run excuses no other in its file."""
    found = [answer_tests(reading.tests)] if reading.tests is not None else []
    if reading.payload is not None and (answer := _OF_PAYLOAD.get(reading.kind)):
        found.append(answer(reading.payload))
    return found


_OF_PAYLOAD = {Kind.TRAIN_STEP: answer_steps, Kind.DEVICES: answer_devices, Kind.ALL_REDUCE: answer_sweep}


def _settled(answer: Answer, figures: list[Verdict]) -> Answer:
    """A table without a defect is healthy once its figures reach what the machine type reaches, and not before."""
    if answer.verdict == "undetermined" and figures and all(v.outcome is Outcome.PASS for v in figures):
        return replace(answer, verdict="healthy")
    return answer


def _prove(reading: Reading, log: NcclLog, fabric: Fabric | None, nodes: int | None) -> Proof:
    payload = reading.payload
    if payload is not None:
        end = ended(payload)
    else:
        end = reading.tests is not None and all(t.complete for t in reading.tests.tests)
    devices = reading.tests.main.devices if reading.tests is not None else ()
    expected = Expected(
        fabric=fabric,
        nodes=nodes,
        communicators=_rounds(payload),
        one_host=len({d.host for d in devices}) == 1 and len(devices) > 1 and len(log.hosts) < 2,
        ended=end,
        gpus=frozenset(d.name for d in devices if d.name),
        processes=_processes(reading),
    )
    return prove(log, expected, payload)


def _processes(reading: Reading) -> frozenset[tuple[str, str]]:
    """(Host, process) of every device line beside the log; NCCL and nccl-tests cut a host's name at its first dot."""
    tests = reading.tests.tests if reading.tests is not None else ()
    return frozenset((d.host.split(".")[0], d.pid) for t in tests for d in t.devices if d.host and d.pid.isdecimal())


def _rounds(payload: PayloadEvents | None) -> int:
    starts = payload.starts.get("all-reduce", ()) if payload else ()
    rounds = [s.get("rounds") for s in starts]
    return max((r for r in rounds if isinstance(r, int)), default=1)


def _says_something(proof: Proof) -> bool:
    """NCCL lines beside a table count once they show a network; a version line alone does not."""
    return proof.transport.evidence != "none" or proof.transport.fatal or bool(proof.transport.nranks)


def _tool_outcome(words: set[str]) -> Outcome:
    if words & _DEFECT:
        return Outcome.FAIL
    return Outcome.PASS if words == {"pass"} else Outcome.UNMEASURED


def _result(
    kind: Kind,
    answers: list[Answer],
    verdicts: list[Verdict],
    outcome: Outcome | None,
    proof: Proof | None = None,
) -> JudgeResult:
    words = [a.verdict for a in answers]
    fields: dict[str, Any] = {}
    for answer in answers:
        fields.update({k: v for k, v in answer.fields.items() if v is not None or k not in fields})
    findings = tuple(dict.fromkeys(f for a in answers for f in a.findings))
    findings += tuple(f for v in verdicts for f in v.findings if f not in findings)
    decided = outcome or _outcome(words, verdicts, findings)
    verdict = next((w for w in _ORDER[:6] if w in words), None) or _rest(words, verdicts)
    if decided is Outcome.FAIL and verdict not in _ORDER[:4]:
        verdict = "degraded"
    if verdict == "healthy" and decided is not Outcome.PASS and any(f.level is Level.WARN for f in findings):
        verdict = "suspicious"  # nothing in it is bad by itself, and it cannot all be true
    return JudgeResult(
        kind=kind,
        outcome=decided,
        verdict="healthy" if verdict == "pass" else verdict,
        fields=fields,
        findings=findings,
        missing=proof.missing if proof else (),
        verdicts=tuple(verdicts),
    )


def _outcome(words: list[str], verdicts: list[Verdict], findings: tuple[Finding, ...]) -> Outcome:
    if set(words) & _DEFECT or any(f.level is Level.BLOCK for f in findings):
        return Outcome.FAIL
    found = worst(v.outcome for v in verdicts)
    blocked = set(words) & {"invalid", "suspicious", "not-applicable", "undetermined"}
    return Outcome.UNMEASURED if found is Outcome.PASS and blocked else found


def _rest(words: list[str], verdicts: list[Verdict]) -> str:
    """No defect is shown: healthy only where something says so."""
    if words and all(w in {"healthy", "pass"} for w in words):
        return "healthy"
    if any(v.outcome is Outcome.FAIL for v in verdicts):
        return "degraded"
    return "not-applicable" if words and set(words) == {"not-applicable"} else "undetermined"


def _fabric(machine_type: str | None) -> Fabric | None:
    if machine_type is None:
        return None
    fabric = fabric_of(machine_type)
    if fabric is None:
        raise BadSpec(
            f"machine type {machine_type}",
            "is not in the fabric table",
            expected="one of " + ", ".join(sorted(load())),
            remedy=_nearest_type(machine_type),
        )
    return fabric


def _nearest_type(asked: str) -> str:
    """The types that were probably meant: one that begins so (p5en), else those that are spelled most alike."""
    begun = [name for name in sorted(load()) if asked and name.lower().startswith(asked.lower())][:1]
    families = {name.partition(".")[0]: name for name in sorted(load(), reverse=True)}
    close = begun or [families.get(near, near) for near in nearest(asked, {*load(), *families})]
    meant = f"did you mean --machine {' or '.join(close)}? Else " if close else ""
    return f"{meant}leave it out to read without judging"


def _worth_showing(key: str, value: object) -> bool:
    return value not in (None, [], {}, "") and key not in {"ranks_seen_devices", "ranks_seen", "bytes"}


def _shown(value: object) -> str:
    """A value as a person reads it; no brackets, braces or True of Python."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_shown(v)}" for k, v in value.items() if v is not None)
    if isinstance(value, list):
        between = "; " if any(isinstance(v, dict | list) for v in value) else ", "
        shown = between.join(_shown(v) for v in value[:8])
        return shown + (f" and {len(value) - 8} more" if len(value) > 8 else "")
    return str(value)
