"""Preflight: the cluster, the old pool, the new pool's name, and what goes with the old one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from infra.model.pools import PoolState
from infra.model.spec import EksTarget, ExternalPool
from infra.model.verdict import Finding
from tasks.rules.preflight_question import Question, info, warn
from tasks.rules.wording import plural


def check_cluster(q: Question) -> Iterator[Finding]:
    """The cluster is up and one whose pools may be managed."""
    cluster = q.survey.cluster
    if cluster is None:
        return
    what = f"cluster {cluster.name}"
    if cluster.state not in ("ACTIVE", "RUNNING"):
        yield Finding.block("cluster-not-active", what, cluster.state, "ACTIVE or RUNNING", "wait for the cluster")
    if cluster.autopilot:
        yield Finding.block(
            "cluster-autopilot", what, "is an Autopilot cluster", "a Standard one", "use kind: external"
        )
    if cluster.busy_with:
        yield warn(
            "cluster-busy", what, f"runs {cluster.busy_with}", "no other operation", "changes wait until it ends"
        )


def check_same_cluster(q: Question) -> Iterator[Finding]:
    """The kubeconfig and the cloud mean one cluster: nodes drained in one must not be deleted in another."""
    source, cluster = q.survey.source, q.survey.cluster
    if source is not None and source.nodes and q.source_nodes == 0:
        yield Finding.block(
            "source-nodes-unseen",
            f"{source.kind} pool {source.name}",
            f"has {plural(source.nodes, 'node')} in the cloud and none in Kubernetes ({_labels(source.node_selector)})",
            "the same nodes in both",
            "point cluster.kubeconfig and cluster.context at the cluster that the spec names",
        )
    host = urlsplit(q.server).hostname or ""
    # On loopback stands a tunnel, a proxy or the sandbox: its address says nothing, the nodes above do.
    if cluster is None or not cluster.endpoints or not host or host in ("127.0.0.1", "localhost", "::1"):
        return
    if host not in {endpoint.lower() for endpoint in cluster.endpoints}:
        yield warn(
            "cluster-endpoint",
            f"cluster {cluster.name}",
            f"has its API at {', '.join(cluster.endpoints)}, the kubeconfig goes to {host}",
            "the same, unless a proxy stands between",
            "check that cluster.context is the cluster that the spec names",
        )


def check_source(q: Question) -> Iterator[Finding]:
    """The old pool exists and the cloud is not already at it."""
    source = q.survey.source
    what = f"{q.spec.source.kind} pool {q.spec.source.name}"
    if not q.survey.source_read:
        yield warn("source-unread", what, "belongs to another cloud and was not read", "a reading", "read it beside")
        return
    if source is None:
        yield Finding.block("source-not-found", what, "does not exist", "the pool to move from", "correct source.name")
        return
    if source.state in (PoolState.DELETING, PoolState.DELETE_FAILED):
        yield Finding.block("source-deleting", what, f"is {source.state}", "a pool that stays until it is empty", "")
    elif source.state is not PoolState.ACTIVE:
        issues = "; ".join(f"{i.code}: {i.message}" for i in source.issues) or "no reason given"
        yield warn("source-not-active", what, f"is {source.state} ({issues})", "active", "it can still be drained")
    if source.bounds:
        low, high = source.bounds
        yield info(
            "source-autoscaled",
            what,
            f"may be scaled between {low} and {plural(high, 'node')}",
            "its size is fixed during the run and put back after it",
        )


def check_name(q: Question) -> Iterator[Finding]:
    """The target's name is free, or ours to go on with."""
    existing = q.survey.existing
    if existing is None or isinstance(q.target, ExternalPool):
        return
    what = f"{existing.kind} pool {existing.name}"
    if existing.ours != q.run:
        owner = f"run {existing.ours}" if existing.ours else "somebody else"
        yield Finding.block(
            "target-name-foreign", what, f"exists and belongs to {owner}", "a free name", "choose another target.name"
        )
    elif existing.state in (PoolState.FAILED, PoolState.DEGRADED, PoolState.DELETING, PoolState.DELETE_FAILED):
        yield Finding.block(
            "target-failed",
            what,
            f"was made by this run and is {existing.state}",
            "active",
            "remove it: poolshift rollback SPEC --remove-target; then run again",
        )
    else:
        yield info("target-adoptable", what, f"was made by this run and is {existing.state}", "it is continued")


def check_external_target(q: Question) -> Iterator[Finding]:
    """Nodes that somebody else makes must be there."""
    if isinstance(q.target, ExternalPool) and q.survey.existing is None:
        yield Finding.block(
            "target-not-there",
            f"external pool {q.target.name}",
            f"no node carries {q.target.selector}",
            "nodes made by the pool's owner",
            "make the nodes first (for Karpenter: apply the NodePool)",
        )


def check_role(q: Question) -> Iterator[Finding]:
    """EKS drops a node role from aws-auth with the last managed group that uses it."""
    if not isinstance(q.target, EksTarget) or not q.survey.source_role or q.survey.role_shared_with:
        return
    if q.target.node_role != q.survey.source_role and q.spec.retire.enabled:
        yield warn(
            "node-role-last",
            f"node group {q.target.cluster}/{q.spec.source.name}",
            f"is the last that uses role {q.survey.source_role}",
            "no self-managed node needs that role",
            "EKS removes the role from aws-auth when the group goes: keep an access entry for it",
        )


def _labels(selector: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
