"""Is the transport of a whole job proven? Per rank and per communicator, never by one rank's banner.

Three sources are joined: the lines of every rank, the byte counters of RDMA and Ethernet devices, and (by the caller)
the bandwidth. Whatever is missing is named; whatever contradicts is a finding; only a job without either passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from infra.fabrics.fabric import Fabric
from infra.model.reading import Communicator, Family, NcclLog, PayloadEvents
from infra.model.verdict import Finding, Level, Outcome, Verdict
from tasks.rules.contradictions import contradicted
from tasks.rules.traffic import is_count, judge_counters
from tasks.rules.transport import RDMA_FAMILIES, Transport, describe, family_of_name
from tasks.rules.wording import and_more, plural

CHECK = "transport-proof"
_FAILING = {"failed", "degraded", "stalled", "efa-unavailable"}
MAX_CHANNELS = 1024  # NCCL's own limit is 64
NUMBERED = 2  # times its NICs: devices that NCCL makes by merging NICs are numbered behind them


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What the caller knows of the job; None and 0 where it does not."""

    fabric: Fabric | None = None
    nodes: int | None = None
    communicators: int = 1
    one_host: bool = False  # all ranks are known to share one host
    ended: bool = False  # the program said that it came to its end
    gpus: frozenset[str] = frozenset()  # their names, where a list beside the log has them
    processes: frozenset[tuple[str, str]] = frozenset()  # (host, process) of every rank of the tables beside the log


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """The outcome, with what is missing and what contradicts."""

    outcome: Outcome
    transport: Transport
    missing: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = field(default=())

    def verdict(self) -> Verdict:
        """As a gate reads it."""
        shown = self.transport.name or "nothing"
        reason = "; ".join([f.wording() for f in self.findings if f.level is not Level.INFO][:4])
        if not reason and self.missing:
            reason = "not proven: " + and_more(self.missing, 4)
        return Verdict(
            check=CHECK,
            outcome=self.outcome,
            observed=f"{shown}, gdr {self.transport.gdr or 'not shown'}, evidence {self.transport.evidence}",
            limit="RDMA with GPUDirect on every rank of every communicator",
            statistic="lines of every rank, byte counters of every node",
            reason=(f"passes, but: {reason}" if self.outcome is Outcome.PASS and reason else reason)
            or "every rank of every communicator is on the fabric",
            findings=self.findings,
        )


def prove(log: NcclLog, expected: Expected, payload: PayloadEvents | None = None) -> Proof:
    """Join log and counters. Fail beats unmeasured; a pass needs everything."""
    transport = describe(
        log, fabric=expected.fabric, nodes=expected.nodes, one_host=expected.one_host, gpus=expected.gpus
    )
    counted = judge_counters(payload, expected.nodes, expected.fabric)
    contradictions = contradicted(log, transport, expected.fabric, counted.findings, _started(payload))
    findings = (*transport.findings, *counted.findings, *contradictions)
    missing = (*_missing(log, transport, expected), *counted.missing, *_of_another(payload))
    if transport.verdict in _FAILING or any(f.level is Level.BLOCK for f in counted.findings):
        outcome = Outcome.FAIL
    elif missing or contradictions or transport.verdict != "healthy":
        outcome = Outcome.UNMEASURED
        said = contradictions[0].fact() if contradictions else f"the log shows {transport.verdict}"
        missing = missing or (said,)
    else:
        outcome = Outcome.PASS
    return Proof(outcome=outcome, transport=transport, missing=missing, findings=findings)


def _missing(log: NcclLog, transport: Transport, expected: Expected) -> tuple[str, ...]:
    """Everything that a proof needs and this log lacks."""
    lacks: list[str] = []
    if not expected.ended:
        lacks.append("the end of the run (no end line of nccl-tests or of a payload; NCCL's own lines do not tell it)")
    if log.torn:
        lacks.append("the rest of the last line (the log ends inside it)")
    if log.damaged:
        lacks.append(f"the rest of {plural(log.damaged, 'line')} that name a network and cannot be read to the end")
    if log.left_out:
        lacks.append("the lines that Ray left out, one standing for many (RAY_DEDUP_LOGS=0 prints them all)")
    if log.overflow:
        lacks.append("room: more ranks, communicators or channels than are followed")
    if transport.evidence != "channels":
        lacks.append("channel lines (NCCL_DEBUG_SUBSYS=INIT,NET and at least one collective)")
    elif transport.gdr != "all" and (expected.fabric is None or expected.fabric.gdr):
        has_none = any(f.code == "no-gpudirect-here" for f in transport.findings)
        lacks.append("GPUDirect, which this machine has not" if has_none else "GPUDirect on every channel")
    lacks += _missing_hosts(log, expected)
    lacks += _missing_channels(log)
    lacks += _missing_devices(log, expected.fabric)
    lacks += _missing_ranks(log, expected)
    lacks += _missing_processes(log, expected)
    return tuple(dict.fromkeys(lacks))


def _of_another(payload: PayloadEvents | None) -> Iterable[str]:
    """What a payload says of its own run that does not fit the log beside it."""
    if payload is None:
        return
    start = _started(payload)
    if (backend := start.get("backend", "nccl")) != "nccl":
        yield f"a run over NCCL (the program measured {backend})"
    if not payload.counters and payload.rows:
        yield "byte counters of every node, which the program prints"
    if not all(is_count(row.get("size_bytes")) and is_count(row.get("iters")) for row in payload.rows):
        yield "size and iterations of every row"
    nodes, counted = start.get("nodes"), sorted({str(c.get("node")) for c in payload.counters})
    if isinstance(nodes, list) and sorted(map(str, nodes)) != counted:
        yield f"counters of the nodes on which it ran ({and_more(counted, 4) or 'none'})"


def _started(payload: PayloadEvents | None) -> Mapping[str, Any]:
    return next(iter(payload.starts.get("all-reduce", ())), {}) if payload else {}


def _missing_hosts(log: NcclLog, expected: Expected) -> Iterable[str]:
    hosts = {r.host for r in log.ranks if r.host}
    wanted = max(2, expected.nodes or 2)
    if len(hosts) < wanted:
        yield f"lines of {wanted} distinct hosts (there are {len(hosts)})"
    elif expected.nodes is not None and len(hosts) > expected.nodes:
        yield f"agreement on the hosts: {len(hosts)} names for {expected.nodes} nodes"
    if any(not r.host for r in log.ranks):
        yield "the host in front of some lines"
    counts = {n for r in log.ranks for n in r.nics}
    if len(counts) > 1:
        yield f"agreement on the number of NICs (ranks see {sorted(counts)})"
    fabric = expected.fabric
    if fabric is not None and fabric.provider and not counts:
        yield "the number of NICs that each rank found"


def _missing_processes(log: NcclLog, expected: Expected) -> Iterable[str]:
    """A log proves the network of the processes that wrote it, and of no table of others.

    Launchers that keep processes apart may hide their numbers; hosts then still tell.
    """
    known = {(r.host.split(".")[0], r.pid) for r in log.ranks if r.host}
    if not all(pid.isdecimal() for _, pid in known):
        hosts = {host for host, _ in known}
        known |= {(host, pid) for host, pid in expected.processes if host in hosts}
    if known and (strange := sorted(expected.processes - known)):
        shown = and_more([f"process {pid} of {host}" for host, pid in strange], 3)
        yield f"lines of {shown}, which the table names: this log is of another run"


def _missing_channels(log: NcclLog) -> Iterable[str]:
    """Every host must be seen to send and to receive over every channel."""
    everyone = {i for r in log.ranks for i in (*r.send_channels, *r.receive_channels)}
    announced = max((r.coll_channels or 0 for r in log.ranks), default=0)
    if announced > MAX_CHANNELS:
        yield f"a plausible number of channels (a rank announces {announced})"
    everyone |= set(range(min(announced, MAX_CHANNELS)))
    for host in sorted({r.host for r in log.ranks if r.host}):
        of_host = [r for r in log.ranks if r.host == host]
        for direction, seen in (
            ("send", {i for r in of_host for i in r.send_channels}),
            ("receive", {i for r in of_host for i in r.receive_channels}),
        ):
            if everyone - seen:
                yield f"{direction} channels {and_more([str(i) for i in sorted(everyone - seen)], 6)} of {host}"
    connected = {bool(r.connected_rings) for r in log.ranks}
    if len(connected) > 1:
        yield "the ring summary of some ranks"
    if any(False in r.ring_gdr for r in log.ranks):
        yield "GPUDirect in every ring summary"


def _missing_devices(log: NcclLog, fabric: Fabric | None) -> Iterable[str]:
    """A node that has all its NICs but uses few of them: the right network at a share of its rate.

    Plugins group NICs into `net_devices`; NCCL takes one per GPU where there are more (NCCL_NETDEVS_POLICY=max:1) and
    no more than it has channels.
    """
    if fabric is None or not fabric.rdma:
        return
    for host in sorted({r.host for r in log.ranks if r.host}):
        of_host = [r for r in log.ranks if r.host == host]
        used = {d for r in of_host for d in r.net_devices}
        channels = {i for r in of_host for i in (*r.send_channels, *r.receive_channels)}
        share = min(fabric.net_devices, fabric.gpus) * min(len(of_host), fabric.gpus) // fabric.gpus
        wanted = min(share, len(channels))
        if beyond := sorted(d for d in used if d >= NUMBERED * max(fabric.nics, fabric.net_devices)):
            shown = and_more([str(d) for d in beyond], 4)
            yield f"net devices of {fabric.machine_type} on {host}: it has no device {shown}"
        if used and len(used) < wanted:
            shown = f"{len(used)} of {fabric.net_devices} net devices used"
            yield f"use of the NICs of {host}: {shown}, at least {wanted} wanted"


def _missing_ranks(log: NcclLog, expected: Expected) -> Iterable[str]:
    spanning = [c for c in log.communicators if any(n > 1 for n in c.nranks)]
    if len(spanning) < max(1, expected.communicators):
        there = f"there are {len(spanning)}" if spanning else "there is none"
        yield f"{plural(max(1, expected.communicators), 'communicator')} ({there})"
    for communicator in spanning:
        yield from _missing_members(log, communicator)
        yield from _ragged_end(communicator)
    if strays := sum(r.ends_alone for r in log.ranks):
        yield f"the beginning of {plural(strays, 'communicator')} of which only the end is here"
    largest = max((c.size or 0 for c in spanning), default=0)
    if expected.nodes and expected.fabric and largest != expected.nodes * expected.fabric.gpus:
        there = f"the largest has {largest}" if largest else "there is none"
        yield f"a communicator of {expected.nodes * expected.fabric.gpus} ranks ({there})"
    wide = [c for c in spanning if c.size == largest]
    if wide and all(c.nnodes for c in wide) and all(c.nodes == 1 for c in wide):
        yield "a communicator across nodes"
    if largest and len(wide) < expected.communicators:
        yield f"{plural(expected.communicators, 'communicator')} of {plural(largest, 'rank')} (there are {len(wide)})"


def _missing_members(log: NcclLog, communicator: Communicator) -> Iterable[str]:
    name = f"communicator {communicator.id}"
    size = communicator.size
    if len(communicator.mnnvl) > 1:
        yield f"agreement on {name}: some of its ranks are in an NVLink domain of several nodes, others not"
    if size is None or communicator.contradictory or len(communicator.nnodes) > 1:
        yield f"agreement on {name}: its ranks contradict each other"
        return
    present = {m.rank for m in communicator.members}
    absent = size - sum(1 for r in present if r < size)  # counted first: a damaged line may claim any size
    if absent:
        first = ", ".join(str(r) for r in islice((r for r in range(size) if r not in present), 6))
        yield f"rank {first}{f' and {absent - 6} more' if absent > 6 else ''} of {name}"
    if max(present, default=0) >= size:
        yield f"agreement on the ranks of {name}"
    hosts = {m.host for m in communicator.members if m.host}
    if communicator.nodes is not None and not absent and len(hosts) != communicator.nodes:
        yield f"agreement on the nodes of {name}: it says {communicator.nodes}, its ranks are on {len(hosts)} hosts"
    for member in communicator.members:
        if not member.complete:
            yield f"Init COMPLETE of rank {member.rank} of {name}"
        elif not _on_fabric(log, member.network, member.host, member.pid, member.device):
            yield f"the network of rank {member.rank} of {name}"


def _ragged_end(communicator: Communicator) -> Iterable[str]:
    """All ranks end a communicator in one way, or none does.

    An abort alone is no defect: PyTorch before 2.6 ends every communicator with ncclCommAbort (pytorch#141510).
    """
    ways = {m.ended for m in communicator.members}
    if len(ways) > 1:
        odd = min(ways, key=lambda way: sum(1 for m in communicator.members if m.ended == way))
        ranks = and_more([str(m.rank) for m in communicator.members if m.ended == odd], 6)
        others = " and ".join(sorted(way or "still open" for way in ways - {odd}))
        yield f"one end of communicator {communicator.id}: on rank {ranks} {odd or 'still open'}, elsewhere {others}"


def _on_fabric(log: NcclLog, network: str, host: str, pid: str, device: int | None) -> bool:
    """A verbs-class network, or Libfabric with an RDMA provider named by the same process."""
    if not network:
        return False
    family = family_of_name(log, network)
    if family in RDMA_FAMILIES:
        return True
    if family is not Family.LIBFABRIC:
        return False
    own = [r for r in log.ranks if r.host == host and r.pid == pid and (device is None or r.device in {device, None})]
    return any(p.startswith("efa") for r in own for p in r.providers)
