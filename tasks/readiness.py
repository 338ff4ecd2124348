"""Readiness of a pool: read it, judge it, and give young nodes time to come up."""

from __future__ import annotations

from datetime import timedelta

from infra import fabrics
from infra.clock import Clock, pauses
from infra.kube import plugins
from infra.kube.api import Kube
from infra.model.plugins import Expectation
from infra.model.pools import Pool
from infra.model.verdict import Finding, Level, Outcome, Verdict
from tasks import opening
from tasks.rules import readiness as rules
from tasks.run import Say

POLL = timedelta(seconds=15)
PATIENCE = timedelta(minutes=10)  # for nodes to join and plugins to start on a pool that was just made
STUCK = timedelta(minutes=3)  # the same hard finding for this long is an answer: no pull back-off cures itself
HARD = frozenset(
    {"plugin-image-missing", "plugin-exec-format", "plugin-excludes-nodes", "plugin-absent", "machine-type-unknown"}
)


def expectation(pool: Pool, csi: str = "") -> Expectation:
    """What one node of the pool must offer: the cloud's word where it has one, else the fabric's sourced figures."""
    fabric = fabrics.fabric_of(pool.machine_type)
    gpus = dict(pool.gpus) or ({fabric.gpu_resource: fabric.gpus} if fabric else {})
    rdma = dict(pool.rdma) or (dict(fabric.rdma_resources) if fabric else {})
    return Expectation(
        pool=pool.name,
        machine_type=pool.machine_type,
        nodes=pool.nodes,
        gpus=gpus,
        rdma=rdma,
        csi=csi,
        counted=pool.kind == "external" and bool(pool.gpus),
    )


def look(kube: Kube, pool: Pool, csi: str = "") -> Verdict:
    """Read and judge once."""
    return rules.judge(plugins.view(kube, pool.node_selector), expectation(pool, csi))


def settle(kube: Kube, pool: Pool, clock: Clock, say: Say, csi: str = "") -> Verdict:
    """Judge until it passes, a hard finding has stood for `STUCK`, or `PATIENCE` is over. The last verdict counts.

    Nodes that join meanwhile are cordoned in place of their taint, or the plugins would not come to them.
    """
    started, wait = clock.now(), pauses(POLL.total_seconds())
    hard_since = None
    said: frozenset[str] = frozenset()
    while True:
        opening.hold_nodes(kube, pool.node_selector)
        verdict = look(kube, pool, csi)
        if verdict.outcome is Outcome.PASS:
            return verdict
        said = _say_new(verdict.findings, said, say)
        now = clock.now()
        hard_since = (hard_since or now) if any(f.code in HARD for f in verdict.findings) else None
        if now - started >= PATIENCE or (hard_since is not None and now - hard_since >= STUCK):
            return verdict
        clock.sleep(next(wait))


def _say_new(findings: tuple[Finding, ...], said: frozenset[str], say: Say) -> frozenset[str]:
    """One line for each blocking finding that was not shown yet, told apart by code and object."""
    blocks = {f"{f.code} {f.object}": f for f in findings if f.level is Level.BLOCK}
    for key in sorted(set(blocks) - said):
        say(f"waiting: {blocks[key].fact()}")
    return said | set(blocks)
