"""Which devices carried a probe's bytes: the counters of RDMA devices against those of Ethernet, node by node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from infra.fabrics.fabric import Fabric
from infra.model.reading import PayloadEvents, is_efa
from infra.model.verdict import Finding, Level
from tasks.rules.counted import Counted, count
from tasks.rules.wording import and_more, plural

# Bootstrap, health checks and metrics go over Ethernet too: above this share of all bytes, it carries the collective.
ETHERNET_SHARE = 0.2
MOVED_SHARE = 0.1  # of the bytes that the rows imply, so that no algorithm's saving is taken for stillness
BEYOND = 50  # times the bytes that the rows imply: warm-up and checks of a short run are ten times as many
ONE_WAY = 0.01  # of the other direction: each byte of a reduction that leaves a node is answered by one that comes
IDLE = 0.05  # of what the busiest device moved
_OVER_INTERFACES = frozenset({"tcpx", "tcpxo"})  # kinds of fabric whose NICs are Ethernet interfaces
CHATTER_BYTES = 100_000_000  # what bootstrap and metrics of a short probe may move over Ethernet


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """What the counters show against the job, and what they lack."""

    findings: tuple[Finding, ...] = ()
    missing: tuple[str, ...] = ()


def _claimed(payload: PayloadEvents | None) -> int:
    """Bytes that each node must have sent and received for the rows that the payload printed; 0 if they imply none.

    A reduction over two or more nodes takes every byte of the buffer into each node and out of it, iteration by
    iteration, whatever the algorithm; a warm-up comes on top.
    """
    counts = [(row.get("size_bytes"), row.get("iters")) for row in payload.rows] if payload else []
    return 2 * sum(size * iters for size, iters in counts if is_count(size) and is_count(iters))


def is_count(value: object) -> TypeGuard[int]:
    """A number of bytes or of iterations that can be multiplied."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 62


def judge_counters(payload: PayloadEvents | None, nodes_wanted: int | None, fabric: Fabric | None = None) -> Traffic:
    """Bytes moved between `before` and `after` on every node: RDMA devices against Ethernet interfaces.

    Of the RDMA devices only those of the machine type's own kind count: an EFA node may show others beside.
    """
    counters, claimed = payload.counters if payload else (), _claimed(payload)
    nodes = sorted({str(c.get("node")) for c in counters})
    findings: list[Finding] = []
    missing: list[str] = []
    for node in nodes:
        before = [c for c in counters if str(c.get("node")) == node and c.get("when") == "before"]
        after = [c for c in counters if str(c.get("node")) == node and c.get("when") == "after"]
        if len(before) != 1 or len(after) != 1:
            missing.append(f"counters before and after on {node}")
            continue
        shown = {kind: count(before[0].get(kind), after[0].get(kind)) for kind in ("rdma", "ethernet")}
        if any(found.wrong for found in shown.values()):
            findings += [_no_evidence(node, kind, found.wrong) for kind, found in shown.items() if found.wrong]
            missing.append(f"counters of {node} that can be compared")
            continue
        own, ethernet = _own(shown["rdma"], fabric), shown["ethernet"].total("bytes")
        if fabric is not None and fabric.kind in _OVER_INTERFACES:
            own, ethernet = _of_interfaces(shown["ethernet"], fabric, claimed)
        if strange := sorted(set(shown["rdma"].moved or ()) - set(own.moved or ())):
            missing += [] if own.moved else [f"counters of the fabric's own devices on {node} ({and_more(strange, 3)})"]
        rdma = own.total("bytes")
        findings += _judge_node(node, rdma, ethernet, claimed)
        missing += _lacks(node, own.moved or {}, claimed, fabric)
        if rdma is None and (ethernet or 0) > CHATTER_BYTES:
            missing.append(f"RDMA counters of {node}, where {(ethernet or 0) / 1e9:.1f} GB went over Ethernet")
    if nodes and nodes_wanted is not None and len(nodes) != nodes_wanted:
        missing.append(f"counters of {plural(nodes_wanted, 'node')} (there are {len(nodes)})")
    return Traffic(findings=tuple(findings), missing=tuple(missing))


def _of_interfaces(found: Counted, fabric: Fabric, claimed: int) -> tuple[Counted, int | None]:
    """(The fabric's own devices, bytes of all other interfaces): here both are interfaces of the pod.

    TCPXO goes past the kernel: its interfaces may stand still although it works. Then they show nothing, unless the
    bytes are on the others.
    """
    moved = found.moved or {}
    own = {name: counters for name, counters in moved.items() if name in fabric.interfaces}
    others = Counted(moved={name: counters for name, counters in moved.items() if name not in own}).total("bytes")
    carried = Counted(moved=own).total("bytes") or 0
    still = carried < min(MOVED_SHARE * claimed, CHATTER_BYTES) and (others or 0) <= CHATTER_BYTES
    shown = own and not (fabric.kind == "tcpxo" and still)
    return Counted(moved=own if shown else None), others


def _own(found: Counted, fabric: Fabric | None) -> Counted:
    if found.moved is None or fabric is None or fabric.kind not in {"efa", "roce"}:
        return found
    software = ("rxe", "siw", "lo")
    own = {
        name: counters
        for name, counters in found.moved.items()
        if is_efa(name) is (fabric.kind == "efa") and not name.startswith(software)
    }
    return Counted(moved=own or None)


def _lacks(node: str, moved: Mapping[str, Mapping[str, int]], claimed: int, fabric: Fabric | None) -> Iterable[str]:
    """What the devices' counters must show besides a sum, if the run was what it says."""
    by_device = {
        name: sum(n for key, n in counters.items() if key.endswith("bytes")) for name, counters in moved.items()
    }
    total, busiest = sum(by_device.values()), max(by_device.values(), default=0)
    if claimed and total > BEYOND * claimed:
        yield f"the run alone on {node}: {total / 1e9:.3g} GB on its RDMA devices, about {claimed / 1e9:.3g} GB implied"
    ways = {way: sum(c.get(f"{way}_bytes", 0) for c in moved.values()) for way in ("tx", "rx")}
    other = any(n for c in moved.values() for key, n in c.items() if key.startswith("rdma_") and key.endswith("bytes"))
    if total and not other and min(ways.values()) < ONE_WAY * max(ways.values()):
        shown = " and ".join(f"{count / 1e9:.3g} GB {way}" for way, count in ways.items())
        yield f"bytes both ways on the RDMA devices of {node} ({shown})"
    if fabric is None or len(moved) < fabric.nics or not busiest:
        return  # not all of the node's devices are visible here
    used = sum(1 for n in by_device.values() if n > IDLE * busiest)
    wanted = fabric.nics // fabric.net_devices * min(fabric.net_devices, fabric.gpus)
    if used < wanted:
        yield f"use of the NICs of {node}: {used} of {len(moved)} moved bytes, at least {wanted} wanted"


def _no_evidence(node: str, kind: str, wrong: str) -> Finding:
    devices = "RDMA devices" if kind == "rdma" else "Ethernet"
    return Finding(
        level=Level.WARN,
        code="counters-not-comparable",
        object=f"node {node}",
        observed=f"byte counters of {devices} before and after the run: {wrong}",
        expected="the same devices at both ends, no counter going back",
        remedy="A device was reset or exchanged meanwhile (dmesg on the node); measure again",
    )


def _judge_node(node: str, rdma: float | None, ethernet: float | None, claimed: int) -> list[Finding]:
    if rdma is None or ethernet is None:
        # A pod may not see the host's devices; then the log has to carry the proof alone.
        return [
            Finding(
                level=Level.INFO,
                code="counters-not-visible",
                object=f"node {node}",
                observed="byte counters of "
                + ("RDMA devices" if rdma is None else "Ethernet")
                + " cannot be read there",
            )
        ]
    total = rdma + ethernet
    if ethernet > CHATTER_BYTES and ethernet / total > ETHERNET_SHARE:
        return [
            Finding(
                level=Level.BLOCK,
                code="bytes-on-ethernet",
                object=f"node {node}",
                observed=f"{ethernet / 1e9:.1f} GB over Ethernet, {rdma / 1e9:.1f} GB over RDMA devices",
                expected="the collective on the RDMA devices",
                remedy="The job runs over TCP on this node, whatever its log says; look at its rank's NET lines",
            )
        ]
    if rdma == 0 or rdma < MOVED_SHARE * claimed:
        return [
            Finding(
                level=Level.WARN,
                code="rdma-counters-still",
                object=f"node {node}",
                observed=f"{rdma / 1e9:.3g} GB moved on the RDMA devices",
                expected=f"about {claimed / 1e9:.3g} GB, which the measured rows imply" if claimed else "some",
                remedy="The counters may belong to other devices than the job's; read them on the node",
            )
        ]
    return []
