"""The only factory: from a spec's pool to the adapter of its cloud. An SDK is imported only when it is chosen.

A kubeconfig that says it is the sandbox's sends every cloud call to the sandbox; no other switch does, so a
simulated cluster never meets a real cloud, nor a real cluster a simulated one.
"""

from __future__ import annotations

from infra.errors import BadSpec, Refused
from infra.kube import api
from infra.kube.api import Kube
from infra.kube.kubeconfig import SandboxInfo
from infra.model.contract import Pools
from infra.model.slices import Slices
from infra.model.spec import Cluster, EksPool, ExternalPool, GkePool


def connect(cluster: Cluster, pool: EksPool | GkePool | ExternalPool, *, kube: Kube | None = None) -> Pools:
    """Open the cloud that owns `pool`. `kube`: an open connection to `cluster`, to save making one.

    Raises:
        BadSpec: no usable kubeconfig, or the sandbox does not simulate this cloud.

    """
    kube = kube or api.connect(cluster)
    if isinstance(pool, EksPool):
        from infra.aws.api import Aws
        from infra.aws.pools import EksPools

        endpoint = _endpoint(kube.sandbox, "aws_endpoint", "eks")
        return EksPools(Aws(region=pool.region, endpoint=endpoint), pool.cluster, kube.clock)
    if isinstance(pool, GkePool):
        from infra.gcp.api import Gcp
        from infra.gcp.pools import GkePools

        endpoint = _endpoint(kube.sandbox, "gke_endpoint", "gke")
        return GkePools(Gcp(project=pool.project, endpoint=endpoint), pool.location, pool.cluster, kube.clock)
    from infra.kube.external import ExternalPools

    return ExternalPools(kube)


def _endpoint(sandbox: SandboxInfo | None, attribute: str, kind: str) -> str:
    """The simulated cloud's address, "" for the real one."""
    if sandbox is None:
        return ""
    endpoint = str(getattr(sandbox, attribute))
    if not endpoint:
        other = "gke" if kind == "eks" else "eks"
        raise BadSpec(
            f"pool of kind {kind}",
            f"the kubeconfig is that of a sandbox which simulates {other}",
            expected=f"kind: {other}",
            remedy=f"use the {other} example, or start a sandbox for {kind}",
        )
    return endpoint


def slices(pools: Pools) -> Slices:
    """The same cloud's way to take single machines out of a pool. Raises Refused for pools that something else owns."""
    from infra.aws.pools import EksPools
    from infra.gcp.pools import GkePools

    if isinstance(pools, EksPools):
        from infra.aws.slices import EksSlices

        return EksSlices(pools)
    if isinstance(pools, GkePools):
        from infra.gcp.slices import GkeSlices

        return GkeSlices(pools)
    raise Refused("external pool", "its machines are not managed here", expected="an EKS or GKE pool for a swap")
