"""Preflight: are the nodes near each other, have they addresses, and is the cluster's own machinery well."""

from __future__ import annotations

from collections.abc import Iterator

from infra.fabrics import fabric_of
from infra.model.spec import EksTarget, ExternalPool, GkeTarget
from infra.model.survey import Part
from infra.model.verdict import Finding
from tasks.rules.preflight_question import Question, info, unread, warn
from tasks.rules.preflight_version import release

# Without these a node never becomes Ready, or never gives a pod its address.
_VITAL = ("vpc-cni", "kube-proxy")
_LUSTRE_ADDON = "aws-fsx-csi-driver"
_WELL = ("ACTIVE", "UPDATING", "CREATING")


def check_nearness(q: Question) -> Iterator[Finding]:
    """Something must keep the nodes on one spine: a placement group, a block of capacity, a compact policy."""
    target = q.target
    if isinstance(target, ExternalPool) or target.nodes < 2 or q.survey.machine is None or not q.survey.machine.rdma:
        return
    what, near = f"pool {target.name}", _near(q)
    if near:
        yield info("fabric-nearness", what, f"its nodes stand near each other: {near}", "")
        return
    if target.reservation is not None and q.survey.reservation is None:
        return  # said already: it could not be read, or is not there
    remedy = (
        "make a cluster placement group and name it in target.placement_group, or reserve into one"
        if isinstance(target, EksTarget)
        else "name a compact policy in target.placement_policy, or use a dense reservation"
    )
    yield warn(
        "fabric-nearness-unknown",
        what,
        "nothing asks for its nodes to stand near each other: the bandwidth between them is left to chance",
        "a placement group, a Capacity Block, a dense reservation or a compact policy",
        remedy,
    )


def check_version(q: Question) -> Iterator[Finding]:
    """The cluster's Kubernetes is new enough for this machine type, where its maker says which is."""
    cluster = q.survey.cluster
    if cluster is None or isinstance(q.target, ExternalPool):
        return
    fabric = fabric_of(q.target.machine_type)
    for minimum in (m for m in (fabric.minimums if fabric else ()) if m.part == "kubernetes"):
        have, needed = release(cluster.version), release(minimum.version)
        what, expected = f"cluster {cluster.name}", f"{minimum.version} or later for {q.target.machine_type}"
        if have is None:
            yield warn(
                "kubernetes-version-unread", what, f"version {cluster.version!r} is not understood", expected, ""
            )
        elif needed is not None and have < needed:
            why = f"upgrade the cluster ({minimum.source})"
            yield Finding.block("kubernetes-version", what, f"runs {cluster.version}", expected, why)


def _near(q: Question) -> str:
    target, reserved = q.target, q.survey.reservation
    if isinstance(target, EksTarget):
        if target.placement_group:
            return f"placement group {target.placement_group}"
        if reserved is not None and reserved.capacity_block:
            return f"Capacity Block {reserved.name}"
        if reserved is not None and reserved.placement_group:
            return f"reservation {reserved.name} is in placement group {reserved.placement_group}"
    if isinstance(target, GkeTarget):
        if target.placement_policy:
            return f"compact policy {target.placement_policy}"
        if reserved is not None and reserved.dense:
            return f"reservation {reserved.name} is dense"
    return ""


def check_addresses(q: Question) -> Iterator[Finding]:
    """GKE: the subnetwork has an address for each node, and its pod range a block for each."""
    target, ranges = q.target, q.survey.ranges
    if not isinstance(target, GkeTarget):
        return
    if ranges is None:
        yield unread(q, Part.ADDRESSES, f"addresses of cluster {target.cluster}")
        return
    if ranges.nodes_free < target.nodes:
        yield Finding.block(
            "addresses",
            f"subnetwork {ranges.subnetwork}",
            f"has {ranges.nodes_free} free addresses",
            f"at least {target.nodes}, one for each node",
            f"gcloud compute networks subnets expand-ip-range {ranges.subnetwork} --prefix-length SHORTER",
        )
    needed = target.nodes * ranges.pods_per_node
    if ranges.pods_free < needed:
        yield Finding.block(
            "pod-addresses",
            f"pod range {ranges.pod_range} of subnetwork {ranges.subnetwork}",
            f"has {ranges.pods_free} free addresses",
            f"{needed}: GKE gives each node a block of {ranges.pods_per_node}",
            "add a pod range to the cluster, or make the pool with fewer pods a node",
        )


def check_addons(q: Question) -> Iterator[Finding]:
    """EKS: the add-ons that new nodes stand on are well. Their versions are shown: a regression begins there."""
    target, addons = q.target, q.survey.addons
    if not isinstance(target, EksTarget):
        return
    if addons is None:
        yield unread(q, Part.ADDONS, f"add-ons of cluster {target.cluster}")
        return
    vital = (*_VITAL, _LUSTRE_ADDON) if target.lustre else _VITAL
    for addon in addons:
        if addon.status in _WELL:
            continue
        say = Finding.block if addon.name in vital else warn
        yield say(
            "addon-not-active",
            f"add-on {addon.name} {addon.version}",
            f"is {addon.status}" + (f": {'; '.join(addon.issues)}" if addon.issues else ""),
            "ACTIVE, so that new nodes become Ready",
            f"aws eks describe-addon --cluster-name {target.cluster} --addon-name {addon.name}",
        )
    if addons:
        versions = ", ".join(f"{a.name} {a.version}" for a in addons)
        yield info("addons", f"cluster {target.cluster}", versions, "")
