"""A real etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback, without containers.

The embedded control plane is our own reading of Kubernetes; this one is Kubernetes. Everything else in the
sandbox is a client of the API and runs unchanged on either.
"""

from infra.sandbox.real.binaries import DEFAULT_VERSION, Binaries, MissingBinaries, cache_folder, find
from infra.sandbox.real.plane import ControlPlaneFailed, RealControlPlane, start

__all__ = [
    "DEFAULT_VERSION",
    "Binaries",
    "ControlPlaneFailed",
    "MissingBinaries",
    "RealControlPlane",
    "cache_folder",
    "find",
    "start",
]
