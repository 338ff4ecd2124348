"""The figures of an output that somebody hands over: bandwidth tables and device reports, against the table. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from infra.fabrics import Fabric
from infra.model.measurement import Sweep, sweep_of, whole
from infra.model.reading import BandwidthTest, Kind, PayloadEvents, Reading
from infra.model.verdict import Outcome, Verdict, worst
from tasks.rules import bandwidth, hardware
from tasks.rules.payload_verdict import ended
from tasks.rules.probe_verdict import no_pass
from tasks.rules.table_doubts import other_gpus
from tasks.rules.tests_verdict import announced_sizes, sweep_of_test
from tasks.rules.wording import size


def judge_figures(reading: Reading, fabric: Fabric | None, nodes: int | None) -> list[Verdict]:
    """The verdicts on figures; none without figures."""
    if reading.payload is not None and reading.kind is Kind.DEVICES:
        return [_devices(reading.payload, fabric, nodes)]
    tables: list[list[Verdict]] = []
    if reading.payload is not None and reading.kind is Kind.ALL_REDUCE:
        starts = reading.payload.starts.get("all-reduce", ())
        if len(starts) != 1:
            return [_unmeasured(bandwidth.FLOOR, f"{len(starts)} start lines, expected one")]
        sweep = sweep_of(starts[0], reading.payload.rows, complete=ended(reading.payload))
        sizes = starts[0].get("sizes", [])
        if not isinstance(sizes, list) or not all(map(whole, (*sizes, starts[0].get("rounds", 1)))):
            return [_unmeasured(bandwidth.FLOOR, "the start line announces sizes or rounds that are no numbers")]
        if not sizes:
            return [_unmeasured(bandwidth.FLOOR, "the start line announces no sizes")]
        if reason := _lost(sizes, sweep) or bandwidth.repeated(sweep):
            return [_unmeasured(bandwidth.FLOOR, reason)]
        tables.append(_judge_sweep(sweep, tuple(sizes), fabric, nodes))
    if reading.tests is not None and reading.kind in {Kind.NCCL_TESTS, Kind.ALL_REDUCE}:
        tables += [_figures_of(test, fabric, nodes) for test in reading.tests.tests]
    return _worst_of_each(tables)


def _devices(payload: PayloadEvents, fabric: Fabric | None, nodes: int | None) -> Verdict:
    named = sorted({str(report.get("node")) for report in payload.devices})
    verdict = hardware.judge_reports(payload.devices, named, fabric)
    if payload.broken:
        return no_pass(verdict, f"{payload.broken} lines of the reports are damaged")
    return verdict if nodes in {None, len(named)} else no_pass(verdict, f"reports of {len(named)} of {nodes} nodes")


def _worst_of_each(tables: list[list[Verdict]]) -> list[Verdict]:
    """One verdict for each check, of the table that answers it worst: a good table excuses no other in its file."""
    found: dict[str, list[Verdict]] = {}
    for number, verdicts in enumerate(tables, 1):
        place = f"table {number} of {len(tables)}: " if len(tables) > 1 else ""
        for verdict in verdicts:
            found.setdefault(verdict.check, []).append(replace(verdict, reason=place + verdict.reason))
    outcomes = {check: worst(v.outcome for v in verdicts) for check, verdicts in found.items()}
    return [next(v for v in verdicts if v.outcome is outcomes[check]) for check, verdicts in found.items()]


def _figures_of(test: BandwidthTest, fabric: Fabric | None, nodes: int | None) -> list[Verdict]:
    if test.format != "nccl-tests":
        return [_unmeasured(bandwidth.FLOOR, "not nccl-tests: a table of unknown origin is not judged")]
    sizes = announced_sizes(test)
    if not sizes:
        return [
            _unmeasured(bandwidth.FLOOR, "the parameter line is missing, so which sizes belong to the run is unknown")
        ]
    per_host = Counter(d.host for d in test.devices)
    if len(set(per_host.values())) > 1:
        return [_unmeasured(bandwidth.FLOOR, f"ranks are not spread evenly over the hosts: {dict(per_host)}")]
    if other := other_gpus(test, fabric):
        return [_unmeasured(bandwidth.FLOOR, other)]
    strange = sorted({r.size_bytes for r in test.rows} - set(sizes))
    if strange:
        return [_unmeasured(bandwidth.FLOOR, f"rows of sizes that the parameter line does not announce: {strange[:4]}")]
    sweep = sweep_of_test(test)
    if lost := _lost(sizes, sweep):
        return [_unmeasured(bandwidth.FLOOR, lost)]
    return _judge_sweep(sweep, sizes, fabric, nodes)


def _lost(sizes: Sequence[int], sweep: Sweep) -> str:
    """Rows that were announced and are gone. Below 1 MiB programs round sizes to what their ranks can share."""
    return bandwidth.missing(sweep, sweep.rounds, [count for count in sizes if count >= 1 << 20])


def _judge_sweep(sweep: Sweep, sizes: tuple[int, ...], fabric: Fabric | None, nodes: int | None) -> list[Verdict]:
    hosts = nodes or sweep.hosts or 0
    gpus = fabric.gpus if fabric else (sweep.ranks or 0) // hosts if hosts else 0
    # A sweep that ends before bandwidth decides shows at least its shape; the smallest rows are printed as 0.00 GB/s.
    # What is impossible is so at every size.
    figures = {s for s in sizes if fabric is not None and fabric.expectation(sweep.collective, hosts, s)}
    judged = tuple(s for s in sizes if s >= bandwidth.SMALLEST_JUDGED or s in figures)
    judged = judged or tuple(s for s in sizes if s >= 1 << 20) or sizes
    expected = bandwidth.Expected(nodes=hosts, gpus=gpus, sizes=judged, rounds=sweep.rounds)
    verdicts = [_large_enough(v, judged) for v in bandwidth.judge(sweep, expected, fabric, {})]
    return [v for v in verdicts if v.check != bandwidth.SHAPE or len(set(judged)) > 1]  # one size has no shape


def _large_enough(verdict: Verdict, judged: tuple[int, ...]) -> Verdict:
    """A floor that only small messages reach says nothing of the wire, which waits for latency there."""
    if verdict.check != bandwidth.FLOOR or max(judged, default=0) >= bandwidth.SMALLEST_JUDGED:
        return verdict
    said = f"no size of {size(bandwidth.SMALLEST_JUDGED)} or more was measured (-e 8G): below, latency decides too"
    return no_pass(verdict, said)


def _unmeasured(check: str, reason: str) -> Verdict:
    return Verdict(check=check, outcome=Outcome.UNMEASURED, reason=reason)
