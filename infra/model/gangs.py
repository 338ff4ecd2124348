"""Kinds whose pods stop and start together, as data.

Each row says where the kind is served, how it is suspended and which pods are its own.
A kind that a cluster does not have costs nothing: it is only read when an owner reference names it.
Sources: the CRDs' own API types (kueue v1beta2, jobset v1alpha2, training-operator v1, mpi-operator v2beta1, trainer
v1alpha1, volcano batch v1alpha1, lws v1, kuberay v1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


class Means(StrEnum):
    """How a kind stops all its pods and starts them again."""

    SUSPEND = "suspend"  # spec.suspend, or where `field` says
    ACTIVE = "active"  # Kueue: spec.active=false evicts the whole workload and does not requeue it
    COMMAND = "command"  # Volcano: a Command object, AbortJob and ResumeJob
    SCALE = "scale"  # LeaderWorkerSet: spec.replicas to 0 and back


@dataclass(frozen=True, kw_only=True, slots=True)
class GangKind:
    """One kind. `field` is the path of the suspend switch; `pod_label` carries the owner's name on each pod.

    `templates` are paths below spec to the pod specs whose placement may be changed while it is stopped (`*`: each);
    none where something else places its pods (Kueue's flavours, a runtime, one pod group of many). `affinity`: its node
    affinity may be changed too. `copies` are Jobs that its operator makes of a template once and never brings up to
    date: what follows the workload's name in theirs, and the path.
    """

    kind: str
    group: str
    version: str
    plural: str
    means: Means = Means.SUSPEND
    field: tuple[str, ...] = ("spec", "suspend")
    pod_label: str = ""
    templates: tuple[tuple[str, ...], ...] = ()
    affinity: bool = True
    copies: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def path(self, namespace: str = "", name: str = "") -> str:
        """The collection of all namespaces, of one namespace, or one object."""
        base = f"/apis/{self.group}/{self.version}"
        if namespace:
            base += f"/namespaces/{namespace}"
        return f"{base}/{self.plural}" + (f"/{name}" if name else "")

    def switch(self, value: object) -> dict[str, Any]:
        """A merge patch that sets the switch."""
        patch: Any = value
        for key in reversed(self.field):
            patch = {key: patch}
        return dict(patch)

    def read_switch(self, obj: Mapping[str, Any]) -> Any:
        """What the switch says now; None where it was never set."""
        at: Any = obj
        for key in self.field:
            at = at.get(key) if isinstance(at, Mapping) else None
        return at

    def is_stopped(self, obj: Mapping[str, Any]) -> bool:
        """Does the switch say that no pod of it should run?"""
        value = self.read_switch(obj)
        match self.means:
            case Means.SUSPEND:
                return bool(value)
            case Means.ACTIVE:
                return value is False
            case Means.SCALE:
                return bool(value == 0)
            case Means.COMMAND:
                return value in ("Aborting", "Aborted")


_RUN_POLICY = ("spec", "runPolicy", "suspend")
_KUBEFLOW = "training.kubeflow.org/job-name"

GANG_KINDS: tuple[GangKind, ...] = (
    GangKind(
        kind="Job",
        group="batch",
        version="v1",
        plural="jobs",
        pod_label="batch.kubernetes.io/job-name",
        templates=(("template", "spec"),),
    ),
    GangKind(
        kind="JobSet",
        group="jobset.x-k8s.io",
        version="v1alpha2",
        plural="jobsets",
        pod_label="jobset.sigs.k8s.io/jobset-name",
        templates=(("replicatedJobs", "*", "template", "spec", "template", "spec"),),
        affinity=False,  # its webhook lets nobody change more than selectors, tolerations, labels and gates
    ),
    GangKind(
        kind="TrainJob",
        group="trainer.kubeflow.org",
        version="v1alpha1",
        plural="trainjobs",
        pod_label="jobset.sigs.k8s.io/jobset-name",
    ),
    GangKind(
        kind="PyTorchJob",
        group="kubeflow.org",
        version="v1",
        plural="pytorchjobs",
        field=_RUN_POLICY,
        pod_label=_KUBEFLOW,
        templates=(("pytorchReplicaSpecs", "*", "template", "spec"),),
    ),
    GangKind(
        kind="MPIJob",
        group="kubeflow.org",
        version="v2beta1",
        plural="mpijobs",
        field=_RUN_POLICY,
        pod_label=_KUBEFLOW,
        templates=(("mpiReplicaSpecs", "*", "template", "spec"),),
        copies=(("-launcher", ("mpiReplicaSpecs", "Launcher", "template", "spec")),),
    ),
    GangKind(
        kind="Workload",
        group="kueue.x-k8s.io",
        version="v1beta2",  # where both are served, v1beta1 refuses every change of an admitted one
        plural="workloads",
        means=Means.ACTIVE,
        field=("spec", "active"),
    ),
    GangKind(
        kind="Job",
        group="batch.volcano.sh",
        version="v1alpha1",
        plural="jobs",
        means=Means.COMMAND,
        field=("status", "state", "phase"),
        pod_label="volcano.sh/job-name",
    ),
    GangKind(
        kind="LeaderWorkerSet",
        group="leaderworkerset.x-k8s.io",
        version="v1",
        plural="leaderworkersets",
        means=Means.SCALE,
        field=("spec", "replicas"),
        pod_label="leaderworkerset.sigs.k8s.io/name",
        templates=(
            ("leaderWorkerTemplate", "leaderTemplate", "spec"),
            ("leaderWorkerTemplate", "workerTemplate", "spec"),
        ),
    ),
    GangKind(
        kind="RayJob",
        group="ray.io",
        version="v1",
        plural="rayjobs",
        pod_label="ray.io/originated-from-cr-name",
    ),
    GangKind(
        kind="RayCluster",
        group="ray.io",
        version="v1",
        plural="rayclusters",
        pod_label="ray.io/cluster",
        templates=(("headGroupSpec", "template", "spec"), ("workerGroupSpecs", "*", "template", "spec")),
    ),
)

# No gang, but switched alike: its replicas are raised for a moment, with the same memory on it.
SURGE_KIND = GangKind(
    kind="Deployment",
    group="apps",
    version="v1",
    plural="deployments",
    means=Means.SCALE,
    field=("spec", "replicas"),
)

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"  # label on a job: Kueue owns its suspend switch
KUEUE_JOB_UID = "kueue.x-k8s.io/job-uid"  # label on a Workload: the job it stands for


def gang_kind(api_version: str, kind: str) -> GangKind | None:
    """The row for an owner reference, in the version that the reference names.

    The group decides (batch Job and Volcano Job share a name), not the version: MPIJob is v2beta1 with its own operator
    and v1 with the training operator, Kueue's Workload v1beta1 and v1beta2.
    """
    group, _, version = api_version.partition("/")
    row = next((k for k in GANG_KINDS if version and k.kind == kind and k.group == group), None)
    return row if row is None or row.version == version else replace(row, version=version)


def row_of(group: str, kind: str, version: str = "") -> GangKind:
    """The row of a kind that we know, in a version."""
    row = next(k for k in GANG_KINDS if (k.group, k.kind) == (group, kind))
    return replace(row, version=version) if version and version != row.version else row
