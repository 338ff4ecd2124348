"""Which machine types an output can be from, by what it shows: names, GPUs, PCI buses, driver, NICs, network. Pure.

On a cluster the nodes' labels say what a pool is. Whoever hands over a file says it himself, and types of one shape
(p5en and p6-b300: 8 GPUs, 16 EFA interfaces) carry different bandwidths: what passes as one of them must not be the
other's. Types of one line rate are told apart only where the answer would not be the same: where a row reaches the
floor of the asserted type and not the other's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from infra.fabrics import Fabric, ceiling, load
from infra.model.measurement import sweep_of, whole
from infra.model.reading import Family, NcclLog, Origin, PayloadEvents, Reading, family_of, is_efa
from infra.model.verdict import Outcome, Verdict
from tasks.rules.device_checks import EFA_FIXED_GBPS, listed, port_rates
from tasks.rules.tests_verdict import sweep_of_test
from tasks.rules.wording import and_more

CHECK = "machine-type"
SEVERAL = 4  # PCI buses: two machine types have one or two of them in common by chance
_DEVICE_BUS = re.compile(r"^(?:0x|[0-9a-fA-F]{4,8}:)?([0-9a-fA-F]{2})(?::|$)")
_EFA_BUS = re.compile(r"^rdmap(\d+)s\d+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What an output shows of its machines; empty and 0 where it shows nothing.

    `peak` is busbw, GB/s; `rows` are (collective, bytes, busbw); `layers` are link layers of HCAs ("IB", "RoCE").
    """

    origin: Origin = field(default_factory=Origin)
    platform: str = ""
    gpus: frozenset[str] = frozenset()
    families: frozenset[Family] = frozenset()
    efa: bool | None = None
    nics: frozenset[int] = frozenset()
    rates_gbps: frozenset[float] = frozenset()  # of NICs, without those that say nothing
    ranks_per_host: int = 0
    hosts: int = 0
    peak: float = 0.0
    rows: tuple[tuple[str, int, float], ...] = ()
    layers: frozenset[str] = frozenset()


def seen_in_log(log: NcclLog) -> Seen:
    """Of the lines of NCCL and its plugin."""
    per_host = [n for c in log.communicators for n in Counter(m.host for m in c.members if m.host).values()]
    return Seen(
        origin=log.origin,
        platform=log.platform or "",
        families=frozenset(family_of(name) for name in (*log.channel_networks, *log.selected)) - {Family.OTHER},
        nics=frozenset(n for rank in log.ranks for n in rank.nics),
        rates_gbps=frozenset(speed / 1000 for speed in log.speeds_mb_s),
        ranks_per_host=max(per_host, default=0),
        hosts=len(log.hosts),
        layers=frozenset(hca.link_layer for hca in log.hcas),
    )


def seen_in_devices(names: Iterable[str]) -> Seen:
    """Of a list of one node's RDMA devices, or of libfabric's domains on them."""
    return Seen(origin=Origin(nic_buses=_nic_buses(names)))


def partly_of_another(names: Iterable[str], fabric: Fabric) -> str:
    """Why one node's RDMA devices are no one machine's, or "": some are where this type has them, others where not."""
    for what, buses, own in _buses(seen_in_devices(names), fabric):
        if buses & own and buses - own:
            shown = and_more([f"{bus:02x}" for bus in sorted(buses - own)], 4)
            return f"{what} on PCI buses {shown}, where {fabric.machine_type} has none, beside others of its own"
    return ""


def judge_machine(reading: Reading, fabric: Fabric) -> Verdict:
    """Is this output the asserted type's, and no other type's whose figures would judge it differently?"""
    seen = seen_in(reading)
    told = contradiction(seen, fabric)
    if not told and (others := lookalikes(seen, fabric)):
        rates = {f"{o.line_rate_gb_s:g}" for o in others} - {f"{fabric.line_rate_gb_s:g}"}
        told = (
            f"nothing here tells {fabric.machine_type} from {and_more([o.machine_type for o in others], 3)}, whose "
            + (f"nodes carry {and_more(sorted(rates), 3)} and not {fabric.line_rate_gb_s:g} GB/s" if rates else "")
            + ("" if rates else "floors these rows do not reach")
            + "; give the lines that name them: nccl-tests' list of devices, NCCL's with busId and cudaDriverVersion"
        )
    return Verdict(
        check=CHECK,
        outcome=Outcome.UNMEASURED if told else Outcome.PASS,
        observed=_shown(seen) or "no name of a machine or a GPU",
        limit=f"what only {fabric.machine_type} shows, among the types that carry something else",
        statistic="names, GPUs, PCI buses, driver, NICs and network, against the table",
        reason=told,
    )


def contradiction(seen: Seen, fabric: Fabric) -> str:
    """What cannot be of this type, or ""."""
    if not _on_platform(seen, fabric):
        return f"the plugin says that it runs on {seen.platform}"
    if fabric.kind == "roce" and "IB" in seen.layers:
        return f"NCCL's HCAs are InfiniBand, those of {fabric.machine_type} are RoCE"
    if strange := [name for name in seen.origin.named if not _is_of(name, fabric)]:
        return f"the plugin treats the machine as {and_more(strange, 3)}"
    if strange := sorted(name for name in seen.gpus if not fabric.has_gpu(name)):
        return f"the GPUs are {and_more(strange, 3)}, {fabric.machine_type} has {fabric.gpu}"
    if (old := min(seen.origin.drivers, default=0)) and old < fabric.cuda_driver:
        return f"cudaDriverVersion {old} does not know {fabric.gpu}, which needs CUDA {fabric.cuda}"
    for what, buses, own in _buses(seen, fabric):
        if buses - own and (other := next((t for t in _types() if _on_buses(seen, t)), None)) is not None:
            shown = and_more([f"{bus:02x}" for bus in sorted(buses - own)], 4)
            return f"{what} on PCI buses {shown}, where {other.machine_type} has them"
    return ""


def lookalikes(seen: Seen, fabric: Fabric) -> list[Fabric]:
    """Types of the table that this output may as well be from, and that carry something else a node."""
    return [
        other
        for other in _types()
        if other.rdma
        and (other.line_rate_gb_s != fabric.line_rate_gb_s or _below_floor(seen, other))
        and _fits(seen, other, fabric)
    ]


def _below_floor(seen: Seen, fabric: Fabric) -> bool:
    """Is a judged row below what this type must reach?"""
    for collective, size, busbw in seen.rows:
        figure = fabric.expectation(collective, seen.hosts, size)
        if figure is not None and busbw < figure.floor_gb_s:
            return True
    return False


def _on_platform(seen: Seen, fabric: Fabric) -> bool:
    """Old plugins name a family ("P4d"), new ones a type, or that they do not know."""
    if seen.platform in {"", "Unspecified"}:
        return True
    return seen.platform == fabric.machine_type or ("." not in seen.platform and _is_of(seen.platform, fabric))


def _fits(seen: Seen, other: Fabric, fabric: Fabric) -> bool:
    accepted = {family_of(name) for name in other.nccl_net}
    top = ceiling(other, "all-reduce", seen.hosts) if seen.hosts > 1 else None
    return (
        _on_platform(seen, other)
        and not (other.kind == "roce" and "IB" in seen.layers)
        and all(_is_of(name, other) for name in seen.origin.named)
        and all(other.has_gpu(name) for name in seen.gpus)
        and not (seen.origin.drivers and min(seen.origin.drivers) < other.cuda_driver)
        and not (_on_buses(seen, fabric) and _excluded(seen, other))
        and seen.families - {Family.SOCKET} <= accepted
        and (seen.efa is None or seen.efa is (other.kind == "efa"))
        and seen.nics <= {other.nics}
        and all(abs(rate - other.nic_gb_s * 8) < 1 for rate in seen.rates_gbps)
        and seen.ranks_per_host <= other.gpus
        and not (top is not None and seen.peak > top)
    )


def _is_of(name: str, fabric: Fabric) -> bool:
    """Is that family (p5en, of p5en.48xlarge) the type's?"""
    return fabric.machine_type.partition(".")[0].lower() == name.lower()


def _buses(seen: Seen, fabric: Fabric) -> list[tuple[str, frozenset[int], frozenset[int]]]:
    """(What, its buses here, its buses on this type), where both are known."""
    pairs = (
        ("GPUs", seen.origin.gpu_buses, fabric.gpu_buses),
        ("NICs", seen.origin.nic_buses, fabric.nic_buses),
    )
    return [(what, here, frozenset(int(bus, 16) for bus in there)) for what, here, there in pairs if here and there]


def _excluded(seen: Seen, other: Fabric) -> bool:
    """Buses that the asserted type has exclude one that has others, and, if they are several, one that nobody read."""
    told = len(seen.origin.gpu_buses | seen.origin.nic_buses)
    return not _on_buses(seen, other) if _buses(seen, other) else told >= SEVERAL


def _on_buses(seen: Seen, fabric: Fabric) -> bool:
    found = _buses(seen, fabric)
    return bool(found) and all(here <= there for _, here, there in found)


def _types() -> Iterable[Fabric]:
    return load().values()


def seen_in(reading: Reading) -> Seen:
    """Of all that stands in one output."""
    tests, payload = reading.tests, reading.payload or PayloadEvents()
    found = seen_in_log(reading.nccl) if reading.nccl is not None else Seen()
    lines = [d for test in tests.tests for d in test.devices] if tests is not None else []
    start: Mapping[str, Any] = next(iter(payload.starts.get("all-reduce", ())), {})
    counted = {str(d) for c in payload.counters if isinstance(c.get("rdma"), Mapping) for d in c["rdma"]}
    reports = [d["gpus"] for d in payload.devices if isinstance(d.get("gpus"), Mapping)]
    gpus = {str(n) for n in [*listed(start, "gpus"), *(n for gpu in reports for n in listed(gpu, "names"))]}
    verbs = [d["verbs"] for d in payload.devices if isinstance(d.get("verbs"), Mapping)]
    counted |= {str(name) for devices in verbs for name in devices}
    per_host = Counter(d.host for d in lines)
    ranks, hosts = (whole(start.get(name)) or 0 for name in ("ranks", "hosts"))
    sweeps = [sweep_of_test(test) for test in (tests.tests if tests is not None else ())]
    sweeps += [sweep_of(start, payload.rows, complete=True)] if start else []
    rows = [(s.collective, row.size_bytes, row.busbw_gb_s) for s in sweeps for row in s.rows]
    ports = {rate for d in payload.devices for rate in port_rates(d)} - {EFA_FIXED_GBPS}
    return replace(
        found,
        origin=replace(
            found.origin,
            gpu_buses=found.origin.gpu_buses | {int(m[1], 16) for d in lines if (m := _DEVICE_BUS.match(d.bus))},
            nic_buses=found.origin.nic_buses | _nic_buses(counted),
        ),
        gpus=frozenset(gpus | {d.name for d in lines if d.name}),
        efa=any(is_efa(d) for d in counted) if counted else None,
        nics=found.nics | {sum(map(is_efa, map(str, devices))) or len(devices) for devices in verbs},
        rates_gbps=found.rates_gbps | ports,
        ranks_per_host=max(found.ranks_per_host, *per_host.values(), ranks // hosts if hosts else 0),
        hosts=max(found.hosts, len(per_host), hosts),
        peak=max((busbw for _, _, busbw in rows), default=0.0),
        rows=tuple(rows),
    )


def _nic_buses(devices: Iterable[str]) -> frozenset[int]:
    return frozenset(int(m[1]) for d in devices if (m := _EFA_BUS.match(d)))


def _shown(seen: Seen) -> str:
    parts = [seen.platform, *seen.origin.named, *sorted(seen.gpus)]
    parts += [f"CUDA driver {n}" for n in seen.origin.drivers]
    parts += [f"GPUs on buses {', '.join(f'{b:02x}' for b in sorted(seen.origin.gpu_buses))}"] * bool(
        seen.origin.gpu_buses
    )
    return and_more([p for p in parts if p], 6)
