"""Preflight: the Lustre file system is up, near and reachable."""

from __future__ import annotations

from collections.abc import Iterator

from infra.model.spec import EksTarget, ExternalPool, GkeTarget
from infra.model.survey import Part
from infra.model.verdict import Finding, Level
from tasks.rules.preflight_question import Question, tail_of, unread, warn, zone_of
from tasks.rules.preflight_version import LUSTRE, gke_version


def check_lustre(q: Question) -> Iterator[Finding]:
    """The file system is up, near, and reachable."""
    if isinstance(q.target, ExternalPool) or not q.target.lustre:
        return
    what = f"Lustre file system {q.target.lustre}"
    found, cluster, zone = q.survey.lustre, q.survey.cluster, zone_of(q)
    if found is None:
        yield unread(q, Part.LUSTRE, what)
        return
    if not found.usable:
        yield Finding.block("lustre-not-available", what, f"is {found.state}", "available", "wait for it, or repair it")
    if zone and found.zone != zone:
        level = Level.BLOCK if found.rdma or isinstance(q.target, GkeTarget) else Level.WARN
        yield Finding(
            level=level,
            code="lustre-zone",
            object=what,
            observed=f"is in {found.zone or 'an unknown zone'}",
            expected=f"{zone}, where the pool is",
            remedy="choose the file system's zone for the pool, or a file system in the pool's zone",
        )
    if cluster and found.network and cluster.network and tail_of(found.network) != tail_of(cluster.network):
        yield Finding.block(
            "lustre-network", what, f"is in {found.network}", cluster.network, "use one in the cluster's network"
        )
    yield from _lustre_reach(q, what)


def _lustre_reach(q: Question, what: str) -> Iterator[Finding]:
    found, cluster = q.survey.lustre, q.survey.cluster
    assert found is not None
    if isinstance(q.target, EksTarget):
        if found.open_ports is None:
            yield warn(
                "lustre-ports-unread",
                what,
                "its security groups could not be read",
                "TCP 988 and 1018-1023 open to the nodes",
                "allow ec2:DescribeNetworkInterfaces; the mount is probed before work moves",
            )
        elif not found.open_ports:
            yield Finding.block(
                "lustre-ports",
                what,
                "its security groups do not let the nodes in",
                "TCP 988 and 1018-1023 from the nodes' groups",
                "add the rules to the file system's group",
            )
        return
    if not found.gke_support:
        yield Finding.block(
            "lustre-gke-support", what, "is not enabled for GKE", "gke_support_enabled", "recreate it with it"
        )
    if cluster is None:
        return
    if cluster.lustre_driver is not True:
        yield Finding.block(
            "lustre-driver",
            f"cluster {cluster.name}",
            "has no Lustre CSI driver",
            "the addon",
            f"gcloud container clusters update {cluster.name} --update-addons=LustreCsiDriver=ENABLED",
        )
    version = gke_version(cluster.version)
    if version is not None and version < LUSTRE:
        yield Finding.block(
            "lustre-gke-version", f"cluster {cluster.name}", f"runs {cluster.version}", "1.33.2-gke.1111000", ""
        )
