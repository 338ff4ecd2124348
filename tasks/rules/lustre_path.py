"""Which network carried the storage traffic: LNet's counters around the I/O, per node. Pure.

A mount that is configured for RDMA and works is no proof: Lustre goes to TCP without an error (aws-parallelcluster
PR#7572). Configuration is a claim, counters are the proof. Metadata always goes over TCP, so a few messages there are
no fault.
Every object server counts: one that is reached over TCP slows each file that has a stripe on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from infra.model.verdict import Outcome, Verdict
from infra.probes.readers.lnet import LnetSight
from tasks.rules.counted import Counted, count
from tasks.rules.wording import and_more, plural

CHECK = "storage-path"
BULK = 1 << 20  # bytes that one LNet message carries at most (LNET_MTU), so fewer messages cannot have moved them
SHARE = 0.5  # of the messages that the bytes need; the rule of the AWS ParallelCluster test
MOST_TCP = 0.25  # of the RDMA messages: metadata and pings stay far below, bulk of one object server does not
_RDMA = re.compile(r"^(efa|o2ib|kfi)\d*$")


def judge_path(sights: Mapping[str, Sequence[LnetSight]], moved: Mapping[str, float | None]) -> Verdict:
    """Every node's bulk traffic on an RDMA network.

    Args:
        sights: what each node's payload saw of LNet.
        moved: bytes that fio says each node read and wrote; a node that is not in it was not measured.

    """
    judged = {node: _node(sights.get(node, ()), moved.get(node)) for node in sorted(moved)}
    outcome = Outcome.PASS if judged else Outcome.UNMEASURED
    for worst in (Outcome.FAIL, Outcome.UNMEASURED):
        if any(found is worst for found, _ in judged.values()):
            outcome = worst
            break
    reasons = [f"{node}: {why}" for node, (found, why) in judged.items() if found is outcome]
    return Verdict(
        check=CHECK,
        outcome=outcome,
        observed=(
            f"{sum(found is Outcome.PASS for found, _ in judged.values())} of {plural(len(judged), 'node')} on RDMA"
        ),
        limit="bulk traffic of every node on an RDMA network of LNet (efa, o2ib)",
        statistic="messages by network before and after the I/O, against the bytes that fio moved",
        reason=and_more(reasons, 3) or "no node was measured",
    )


def elsewhere(sights: Sequence[LnetSight], directories: Sequence[str], moved: float | None) -> str:
    """Why what fio wrote is not shown to have been on Lustre, or "".

    Shown it is by the kernel's own word on the directory's mount, or by LNet's counters, if they carry the bytes.

    Args:
        sights: what the node's payload saw before and after.
        directories: where fio says that its jobs worked; empty where it does not say.
        moved: bytes that fio says it read and wrote.

    """
    before, after = ([s for s in sights if s.when == when] for when in ("before", "after"))
    if len(before) != 1 or len(after) != 1:
        return "which file system it is on was not read before and after"
    mount = after[0].mount
    if mount is None or before[0].mount is None:
        found = count(before[0].nets, after[0].nets)
        carried = sum(_messages(found).values())
        if moved and not found.wrong and carried >= SHARE * moved / BULK:
            return ""
        return "which file system it is on is not shown, neither by a mount nor by LNet's counters"
    if mount != before[0].mount:
        return "another file system was mounted there meanwhile"
    asked = mount.get("directory", "").rstrip("/")
    if beside := [d for d in directories if d.rstrip("/") != asked and not _below(d, asked)]:
        return f"fio worked in {and_more(beside, 3)}, and the mount that was looked at is of {asked or 'nothing'}"
    kind = mount.get("type", "")
    return "" if kind == "lustre" else f"{asked} is on {kind or 'an unknown file system'}, which is not Lustre"


def _below(path: str, directory: str) -> bool:
    """A path that goes up again may lead anywhere."""
    return path.startswith(f"{directory}/") and ".." not in path.split("/")


def _messages(found: Counted) -> dict[str, int]:
    """Messages by network, without those that a node sends to itself."""
    return {net: sum(counters.values()) for net, counters in (found.moved or {}).items() if net != "lo"}


def _node(sights: Sequence[LnetSight], moved: float | None) -> tuple[Outcome, str]:
    before = [s for s in sights if s.when == "before"]
    after = [s for s in sights if s.when == "after"]
    if len(before) != 1 or len(after) != 1:
        return Outcome.UNMEASURED, "LNet was not read before and after"
    servers = after[0].connections  # of object servers only: metadata servers are not among them
    slow = sorted(c for c in servers if not _RDMA.match(c.rpartition("@")[2]))
    if slow and len(slow) == len(servers):
        nets = {c.rpartition("@")[2] for c in slow}
        return Outcome.FAIL, f"connected to the object servers over {and_more(sorted(nets), 3)}"
    if before[0].nets is None or after[0].nets is None:
        return Outcome.UNMEASURED, "LNet's counters are not visible in the container"
    if not moved:
        return Outcome.UNMEASURED, "fio does not say what it moved"
    found = count(before[0].nets, after[0].nets)
    if found.wrong or found.moved is None:
        return Outcome.UNMEASURED, f"LNet's counters cannot be compared: {found.wrong or 'none is shown'}"
    delta = _messages(found)
    rdma = sum(messages for net, messages in delta.items() if _RDMA.match(net))
    other = sum(messages for net, messages in delta.items() if not _RDMA.match(net))
    needed = SHARE * moved / BULK
    if slow and rdma + other >= needed:
        outcome = Outcome.FAIL if other > MOST_TCP * rdma else Outcome.UNMEASURED
        shown = f"{len(slow)} of {len(servers)} object servers are not connected over RDMA ({and_more(slow, 3)})"
        return outcome, f"{shown}: {rdma} messages over RDMA, {other} over TCP"
    if rdma >= needed and other <= MOST_TCP * rdma and not slow:
        return Outcome.PASS, f"{rdma} messages over RDMA, {other} over TCP"
    if other > rdma and other >= needed:
        return Outcome.FAIL, f"{other} messages over TCP, {rdma} over RDMA"
    return Outcome.UNMEASURED, f"{rdma} messages over RDMA and {other} over TCP do not carry {moved / 1e9:.1f} GB"
