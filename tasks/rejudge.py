"""Judge a run's saved output again: under another spec's limits, today's figures and today's readers.

The verdicts of the run stay as they are; the new ones are appended beside them, as entries of kind `rejudged`, which
no gate and no "failing since" ever reads.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from infra.clock import SystemClock, rfc3339
from infra.errors import BadSpec, NotFound
from infra.fabrics import fabric_of
from infra.kube import records
from infra.ledger import Entry, Kept, Ledger
from infra.ledger.chain import digest
from infra.model.evidence import Evidence
from infra.model.measurement import Steps
from infra.model.spec import MigrationSpec, RevalidationSpec
from infra.model.verdict import Outcome, Verdict, worst
from infra.probes import catalogue
from infra.probes.catalogue import Probe
from infra.probes.readers.detect import read
from infra.probes.readers.lnet import split_lnet
from tasks import heads, ledgers
from tasks.identity import pool_identity
from tasks.one_run import OneRun, newest
from tasks.rules import bandwidth, compare, gate, hardware
from tasks.rules.hardware import ClientIo
from tasks.rules.probe_verdict import (
    Setting,
    answer_devices,
    answer_nccl_tests,
    answer_proof,
    answer_steps,
    answer_sweep,
    no_pass,
    unmeasured,
)
from tasks.rules.storage_verdict import answer_storage, client_of

Spec = MigrationSpec | RevalidationSpec
CHECKS: Mapping[str, tuple[str, ...]] = {
    "transport-proof": (gate.TRANSPORT,),
    "workload-path": (gate.WORKLOAD,),
    "bandwidth": (bandwidth.FLOOR, bandwidth.SHAPE, bandwidth.PLAUSIBILITY),
    "devices": (hardware.DEVICES,),
    "nccl-tests": (gate.NCCL_TESTS,),
    "storage": (hardware.STORAGE,),
    "train-step": (compare.CHECK,),
}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One check of one piece of evidence: the verdict that the run had (None: it had none), and the new one."""

    entry: int
    measured: str
    probe: str
    before: Verdict | None
    now: Verdict

    @property
    def changed(self) -> bool:
        """Another outcome than the run had."""
        return self.before is None or self.before.outcome is not self.now.outcome

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "entry": self.entry,
            "measured": self.measured,
            "probe": self.probe,
            "check": self.now.check,
            "changed": self.changed,
            "before": self.before.to_dict() if self.before else None,
            "now": self.now.to_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class Rejudged:
    """All of one run's evidence, judged again: `of` says which one's.

    `missing`: checks that the spec asks for and of which there is none.
    """

    run: str
    spec_hash: str
    pairs: tuple[Pair, ...]
    simulated: bool
    missing: tuple[str, ...] = ()
    of: OneRun | None = None

    @property
    def outcome(self) -> Outcome:
        """Of the new verdicts; what was never measured is no pass under any limits."""
        return worst([*(p.now.outcome for p in self.pairs), *[Outcome.UNMEASURED] * bool(self.missing)])

    @property
    def decided_by(self) -> tuple[str, ...]:
        """Of an outcome that is no pass: which measurements give it, and what a later one of the same check gave."""
        if self.outcome is Outcome.PASS:
            return ()
        newest = {p.now.check: p for p in sorted(self.pairs, key=lambda p: p.entry)}
        found = []
        for pair in self.pairs:
            last = newest[pair.now.check]
            if pair.now.outcome is self.outcome:
                words = f"{pair.now.check} measured {pair.measured}"
                later = last.now.outcome is not self.outcome
                found.append(f"{words} (again {last.measured}: {last.now.outcome.value})" if later else words)
        return tuple(found)

    @property
    def exit_code(self) -> int:
        """0 pass, 3 fail, 4 unmeasured."""
        return self.outcome.exit_code

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "run": self.run,
            "outcome": self.outcome.value,
            "exit_code": self.exit_code,
            "spec_hash": self.spec_hash,
            "simulated": self.simulated,
            "verdicts": [p.to_dict() for p in self.pairs],
            "decided_by": list(self.decided_by),
            "missing": list(self.missing),
            "of": self.of.to_dict() if self.of else None,
        }


def rejudge(run: str, spec: Spec) -> Rejudged:
    """Judge the newest run's evidence of the spec's pools under the spec's limits, and append what comes of it.

    Raises:
        NotFound: there is no ledger, or it holds no evidence of this run.
        BadSpec: the evidence is of other pools than the spec's.
        Unreachable: the ledger cannot be read or written.

    """
    if not ledgers.exists():
        raise NotFound(f"ledger {ledgers.location()}", "does not exist", remedy="set POOLSHIFT_LEDGER")
    with Ledger.open(ledgers.location()) as ledger:
        kept = ledger.entries(run=run, kind="evidence")
        if not kept:
            raise ledgers.unknown_run(ledger, run, "evidence")
        judged, source = _pools(spec)
        if not any(k.entry.pool in judged for k in kept):
            raise BadSpec(
                f"spec {spec.name}",
                f"names {', '.join(sorted(judged))}",
                expected=f"a pool of run {run}: {', '.join(sorted({k.entry.pool for k in kept}))}",
                remedy=f"name the run's own spec, with other limits: poolshift report {run} --rejudge SPEC",
            )
        one = newest(kept, judged, source)
        mine, before = one.kept, _Baseline(ledger, one.baseline)
        pairs = tuple(p for k in mine for p in _again(ledger, k, spec, before))
        answered = {gate.READINESS} | {p.now.check for p in pairs}  # readiness is seen on the cluster, not printed
        found = Rejudged(
            run=run,
            spec_hash=records.spec_hash(spec.model_dump_json()),
            pairs=pairs,
            simulated=any(k.entry.simulated for k in mine),
            missing=tuple(check for check in gate.required(spec) if check not in answered),
            of=one,
        )
        at = rfc3339(SystemClock().now())
        ledger.extend((_entry(found, pair, next(k for k in mine if k.seq == pair.entry), at), None) for pair in pairs)
        heads.remember(ledger, None, at)
        return found


def _pools(spec: Spec) -> tuple[set[str], str]:
    """The pools that are judged, and the one that they are compared with, or ""."""
    if isinstance(spec, RevalidationSpec):
        return {pool_identity(part) for part in spec.pools}, ""
    return {pool_identity(spec.target)}, pool_identity(spec.source)


class _Baseline:
    """The other side of the comparisons, read from its own raw output."""

    def __init__(self, ledger: Ledger, kept: Sequence[Kept]) -> None:
        self._ledger = ledger
        self._kept = [(k, Evidence.from_dict(k.entry.payload)) for k in kept]

    def steps(self, like: Evidence) -> tuple[Steps | None, str]:
        """The newest whole run of the same image and command line, and why it cannot be compared, or ""."""
        found = self._newest("train-step", like)
        reason = gate.incomparable(like, found[0] if found else None)
        return (answer_steps(read(io.BytesIO(found[1])), _setting(found[0]))[0] if found else None), reason

    def clients(self, like: Evidence) -> list[ClientIo] | None:
        """What each client of the old pool reached with the same image and command line."""
        found = self._newest("storage", like)
        return _clients(*found) if found else None

    def _newest(self, probe: str, like: Evidence) -> tuple[Evidence, bytes] | None:
        for kept, seen in reversed(self._kept):
            same = (seen.probe, seen.image, seen.arguments) == (probe, like.image, like.arguments)
            if not same or not seen.complete:
                continue
            raw, reason = _raw(self._ledger, kept, seen)
            if not reason:
                return seen, raw
        return None


def _again(ledger: Ledger, kept: Kept, spec: Spec, before: _Baseline) -> list[Pair]:
    seen = Evidence.from_dict(kept.entry.payload)
    raw, reason = _raw(ledger, kept, seen)
    checks = tuple(v.check for v in seen.verdicts) or CHECKS.get(seen.probe, ())
    wanted = [c for c in checks if c != compare.CHECK or spec.gate.max_step_ratio is not None]
    verdicts = unmeasured(wanted, reason) if reason else _judge(seen, raw, spec, before)
    left = [check for check in wanted if check not in {v.check for v in verdicts}]
    verdicts += unmeasured(left, "this check is not judged again from its output")
    if not seen.complete:
        verdicts = tuple(no_pass(v, "the probe did not come to its end") for v in verdicts)
    return [
        Pair(entry=kept.seq, measured=seen.measured, probe=seen.probe, before=seen.verdict(v.check), now=v)
        for v in verdicts
    ]


def _raw(ledger: Ledger, kept: Kept, seen: Evidence) -> tuple[bytes, str]:
    """The raw output, or why it is no evidence. A digest that does not fit is an altered ledger."""
    import zlib

    if not seen.intact or seen.raw_digest != kept.raw_digest:
        return b"", "the evidence was altered after it was sealed: poolshift report --verify"
    try:
        raw = ledger.raw(kept.raw_digest) if kept.raw_digest else None
    except zlib.error:
        raw = b""
    if raw is None:
        return b"", "its raw output is not in the ledger"
    return raw, "" if digest(raw) == kept.raw_digest else "its raw output was altered: poolshift report --verify"


def _judge(seen: Evidence, raw: bytes, spec: Spec, before: _Baseline) -> tuple[Verdict, ...]:
    """The verdicts that this output gives today. A probe that the catalogue no longer has is unmeasured."""
    probe = next((p for p in _probes(spec) if p.name == seen.probe), None)
    checks = CHECKS.get(seen.probe, ())
    if probe is None:
        return unmeasured(checks or (seen.probe,), f"spec {spec.name} does not ask for probe {seen.probe}")
    setting = _setting(seen)
    if seen.probe == "storage":
        sights, rest = split_lnet(raw)
        readings = {node: read(io.BytesIO(text)) for node, text in _outputs(seen, rest).items()}
        lnet = {node: [s for s in sights if s.node == node] for node in seen.nodes}
        found = answer_storage(readings, setting, before.clients(seen), lnet, asked=seen.arguments).verdicts
        return tuple(v for v in found if v.check == hardware.STORAGE or seen.verdict(v.check) is not None)
    reading = read(io.BytesIO(raw))
    if seen.probe in (gate.TRANSPORT, gate.WORKLOAD):
        return answer_proof(reading, replace(probe, args=seen.arguments), setting, seen.probe).verdicts
    if seen.probe == "bandwidth":
        return answer_sweep(reading, probe, setting, spec.gate.min_busbw_gb_s).verdicts
    if seen.probe == "devices":
        return answer_devices(reading, setting).verdicts
    if seen.probe == gate.NCCL_TESTS:
        return answer_nccl_tests(reading, spec.validation.sweep_sizes, setting, spec.gate.min_busbw_gb_s).verdicts
    limit = spec.gate.max_step_ratio
    if limit is None:
        return ()
    source, reason = before.steps(seen)
    if reason:
        return unmeasured((compare.CHECK,), reason)
    steps, _ = answer_steps(reading, setting)
    return (compare.judge(source, steps, limit=limit, confidence=spec.gate.confidence),)


def _setting(seen: Evidence) -> Setting:
    fabric = fabric_of(seen.machine_type)
    gpus = seen.reading.get("gpus_per_node")
    return Setting(nodes=seen.nodes, gpus=fabric.gpus if fabric else int(gpus or 0), fabric=fabric)


def _probes(spec: Spec) -> tuple[Probe, ...]:
    return catalogue.all_probes(spec.validation)


def _clients(seen: Evidence, raw: bytes) -> list[ClientIo]:
    sights, rest = split_lnet(raw)
    return [
        client_of(node, read(io.BytesIO(text)), [s for s in sights if s.node == node], seen.arguments)
        for node, text in _outputs(seen, rest).items()
    ]


def _outputs(seen: Evidence, raw: bytes) -> dict[str, bytes]:
    """The documents of fio back to the nodes that wrote them: kept one after another, in the order of the nodes."""
    text, decoder = raw.decode("utf-8", "replace"), json.JSONDecoder()
    found, place = [], text.find("{")
    while place >= 0:
        try:
            _, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            break
        found.append(text[place:end].encode())
        place = text.find("{", end)
    return dict(zip(seen.nodes, found, strict=True)) if len(found) == len(seen.nodes) else {}


def _entry(found: Rejudged, pair: Pair, kept: Kept, at: str) -> Entry:
    return Entry(
        at=at,
        kind="rejudged",
        run=found.run,
        pool=kept.entry.pool,
        subject=pair.now.check,
        outcome=pair.now.outcome.value,
        spec_hash=found.spec_hash,
        simulated=kept.entry.simulated,
        payload=pair.to_dict(),
    )
