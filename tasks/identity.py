"""How pools are named: for a lease, in words, and by their nodes."""

from __future__ import annotations

from infra.model.spec import EksPool, ExternalPool, GkePool


def pool_identity(pool: EksPool | GkePool | ExternalPool) -> str:
    """One comparable word per pool, the same whoever asks: what the Lease is named after."""
    if isinstance(pool, EksPool):
        return f"eks-{pool.region}-{pool.cluster}-{pool.name}"
    if isinstance(pool, GkePool):
        return f"gke-{pool.project}-{pool.location}-{pool.cluster}-{pool.name}"
    return "external-" + "-".join(f"{key}-{value}" for key, value in sorted(pool.selector.items()))


def pool_words(pool: EksPool | GkePool | ExternalPool) -> str:
    """As a person says it: "EKS node group prod/gpu-rdma"."""
    if isinstance(pool, EksPool):
        return f"EKS node group {pool.cluster}/{pool.name}"
    if isinstance(pool, GkePool):
        return f"GKE node pool {pool.cluster}/{pool.name}"
    return f"external pool {pool.name}"
