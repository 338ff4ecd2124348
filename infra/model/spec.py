"""The migration spec: what a platform engineer writes, and the form that the Prefect UI shows.

Strict on the way in (`extra="forbid"`, frozen): a wrong spec fails before anything is touched, naming field, value
and what is allowed. Sizes are bytes, bandwidths GB/s (10^9) as nccl-tests prints them, durations as "90s", "20m",
"1h30m", "2d" or a number of seconds.
"""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, field_validator, model_validator

_NAME = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"
_DURATION = re.compile(r"^(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$")
_ISO_DURATION = re.compile(r"^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?$")  # as a JSON form may send it
LONGEST = timedelta(days=36500)  # far beyond any limit; a later end is no date any more


def parse_duration(value: object) -> timedelta:
    """ "1h30m" or seconds -> timedelta. Raises ValueError naming the value and the allowed form, or the longest one."""
    try:
        found = _duration_of(value)
    except (OverflowError, ValueError):  # more digits than a timedelta, or an int, can hold; NaN
        found = None
    if found is not None and found <= LONGEST:
        return found
    what = "is not a duration" if found is None else f"is not a duration below {LONGEST.days} days"
    msg = f"{value!r} {what}; write it as '90s', '20m', '1h30m' or '2d'"
    raise ValueError(msg)


def _duration_of(value: object) -> timedelta | None:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return timedelta(seconds=value)
    if isinstance(value, str):
        if re.fullmatch(r"\d+(\.\d+)?", value):
            return timedelta(seconds=float(value))
        match = _DURATION.match(value) or (_ISO_DURATION.match(value) if len(value) > 2 else None)
        if value and match:
            days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
            return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    return None


def lasting(text: str) -> Any:
    """A default as a person writes it, so that the form shows "30m" and not ISO 8601. Validated like any other."""
    return text


def format_duration(value: timedelta) -> str:
    """The shortest spelling that `parse_duration` reads back."""
    seconds = int(value.total_seconds())
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= size:
            parts.append(f"{seconds // size}{unit}")
            seconds %= size
    return "".join(parts) or "0s"


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration, json_schema_input_type=str),
    PlainSerializer(format_duration, return_type=str),
]
Name = Annotated[str, Field(pattern=_NAME)]


class Strict(BaseModel):
    """Base of everything a person writes."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class TaintSpec(Strict):
    """A taint in Kubernetes' spelling; each cloud adapter maps it to its own."""

    key: str = Field(min_length=1, max_length=63)
    value: str = Field(default="", max_length=63)
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class Cluster(Strict):
    """Which Kubernetes API to talk to."""

    kubeconfig: str | None = Field(
        default=None,
        description="Path of a kubeconfig; default: $KUBECONFIG, then ~/.kube/config, then in-cluster",
    )
    context: str | None = Field(default=None, description="Context of that kubeconfig; default: the current one")
    namespace: str = Field(default="poolshift", description="Where run records, leases and probes live")


class EksPool(Strict):
    """An EKS managed node group that exists."""

    kind: Literal["eks"] = "eks"
    region: str = Field(description="AWS region, e.g. us-east-2", pattern=r"^[a-z]{2}(-[a-z]+)+-\d$")
    cluster: str = Field(description="EKS cluster name", min_length=1)
    name: str = Field(description="Node group name", min_length=1, max_length=63)


class GkePool(Strict):
    """A GKE node pool that exists."""

    kind: Literal["gke"] = "gke"
    project: str = Field(description="Google Cloud project id", min_length=1)
    location: str = Field(description="Region or zone of the cluster, e.g. europe-west4", min_length=1)
    cluster: str = Field(description="GKE cluster name", min_length=1)
    name: str = Field(description="Node pool name", min_length=1, max_length=40)


class ExternalPool(Strict):
    """Nodes that something else owns (Karpenter, a self-managed group, bare metal), found by label.

    poolshift reads, drains and proves them; it neither creates nor deletes them.
    """

    kind: Literal["external"] = "external"
    name: str = Field(description="How reports call it", min_length=1)
    selector: dict[str, str] = Field(description="Node labels, all of which must match", min_length=1)
    machine_type: str | None = Field(default=None, description="Default: node.kubernetes.io/instance-type")


class EksReservation(Strict):
    """Where reserved machines come from."""

    id: str = Field(description="Capacity reservation, cr-…", pattern=r"^cr-[0-9a-f]+$")
    capacity_block: bool = Field(default=False, description="True for a Capacity Block for ML")


class EksTarget(EksPool):
    """An EKS managed node group to be made."""

    machine_type: str = Field(description="EC2 instance type, e.g. p5en.48xlarge", min_length=3)
    nodes: int = Field(strict=True, ge=1, le=1000, description="How many nodes")
    subnet: str = Field(
        description="One subnet: one zone for reservation, EFA and Lustre", pattern=r"^subnet-[0-9a-f]+$"
    )
    node_role: str = Field(description="IAM role ARN of the nodes", pattern=r"^arn:aws[\w-]*:iam::\d{12}:role/.+$")
    security_groups: tuple[str, ...] = Field(
        default=(),
        description="Groups of every interface besides the cluster's own; must reference themselves for EFA",
    )
    ami_type: str = Field(default="AL2023_x86_64_NVIDIA", description="EKS amiType")
    reservation: EksReservation | None = Field(default=None, description="Omit for On-Demand")
    placement_group: str | None = Field(default=None, description="Only if the reservation names the same one")
    labels: dict[str, str] = Field(default_factory=dict)
    taints: tuple[TaintSpec, ...] = ()
    lustre: str | None = Field(default=None, description="FSx for Lustre file system, fs-…", pattern=r"^fs-[0-9a-f]+$")


class GkeReservation(Strict):
    """A specific reservation."""

    name: str = Field(description="Reservation name, without block")
    project: str | None = Field(default=None, description="Owner project of a shared reservation")
    block: str | None = Field(default=None, description="Physical block within it")


class GkeTarget(GkePool):
    """A GKE node pool to be made."""

    machine_type: str = Field(description="e.g. a3-ultragpu-8g", min_length=3)
    nodes: int = Field(strict=True, ge=1, le=1000, description="How many nodes (one zone, so this is the whole pool)")
    zone: str = Field(description="The one zone, e.g. europe-west4-b", pattern=r"^[a-z]+-[a-z]+\d-[a-z]$")
    service_account: str | None = Field(default=None, description="Node service account")
    reservation: GkeReservation | None = Field(default=None, description="Omit for on-demand capacity")
    rdma_network_profile: Literal["auto", "networks"] = Field(
        default="auto", description="'auto': GKE makes the RDMA networks; 'networks': use `rdma_networks`"
    )
    rdma_networks: tuple[str, ...] = Field(
        default=(), description="network/subnetwork pairs of the RDMA VPC, one per NIC, gVNIC network first"
    )
    placement_policy: str | None = Field(default=None, description="Resource policy; not for DENSE reservations")
    labels: dict[str, str] = Field(default_factory=dict)
    taints: tuple[TaintSpec, ...] = ()
    lustre: str | None = Field(default=None, description="Managed Lustre: projects/P/locations/ZONE/instances/I")


Source = Annotated[EksPool | GkePool | ExternalPool, Field(discriminator="kind")]
Target = Annotated[EksTarget | GkeTarget | ExternalPool, Field(discriminator="kind")]


class Strategy(StrEnum):
    """Whether both pools stand at the same time."""

    AUTO = "auto"
    SIDE_BY_SIDE = "side-by-side"
    SWAP = "swap"


class Swap(Strict):
    """How a swap goes on: the pools change places in slices, for a reservation that cannot hold both."""

    slice: int = Field(
        default=2,
        ge=2,
        le=100,
        title="Nodes per slice",
        description="Drained, given up, made on the target side and proven before the next slice begins. At least 2: "
        "the network between nodes cannot be proven on one. A last odd node joins a slice",
    )
    release_timeout: Duration = Field(
        default=lasting("40m"),
        title="Wait for freed machines",
        description="How long machines that were given up may take to be free in the reservation again",
    )


class Validation(Strict):
    """What is measured on the target, from cheap to dear."""

    image: str = Field(
        default="nvcr.io/nvidia/pytorch:25.09-py3",
        description="Reference image with PyTorch; network pinned in it",
    )
    workload_image: str | None = Field(
        default=None,
        description="Your training image: probed once with nothing pinned, to see what jobs really get",
    )
    proof_sizes: tuple[int, ...] = Field(default=(64 << 20, 256 << 20), description="Bytes; the cheap transport proof")
    sweep_sizes: tuple[int, ...] = Field(
        default=(256 << 20, 1 << 30, 4 << 30, 8 << 30), description="Bytes; the bandwidth sweep"
    )
    train_step: bool = Field(default=True, description="Compare training-step time with the source pool")
    train_steps: int = Field(default=40, ge=10, le=1000, description="Measured steps per side, warm-up not counted")
    train_batch: int = Field(default=5, ge=1, le=256, description="Sequences per GPU and step")
    storage: bool = Field(default=True, description="Probe the Lustre mount, if the pool has one")
    storage_image: str = Field(
        default="docker.io/xridge/fio:3.13-r1", description="Any image with fio 3; the reference image has none"
    )
    storage_claim: str | None = Field(default=None, description="PersistentVolumeClaim of that mount, NAMESPACE/NAME")
    storage_path: Literal["any", "rdma"] = Field(
        default="any",
        description="rdma: LNet's counters must show that the bytes went over RDMA; where they are not visible, held",
    )
    nccl_tests_image: str | None = Field(
        default=None,
        description="Image with nccl-tests and OpenMPI for kubeflow's MPI operator: all_reduce_perf is run as well",
    )
    budget_gpu_minutes: float = Field(default=600.0, gt=0, description="Stop measuring, and hold the gate, beyond this")
    timeout: Duration = Field(default=lasting("30m"), description="Limit for one probe")


class GateSpec(Strict):
    """Limits. Where one is omitted, the machine type's sourced figure in infra/fabrics holds."""

    min_busbw_gb_s: dict[int, float] = Field(
        default_factory=dict, description="Message size in bytes -> all-reduce busbw floor in GB/s"
    )
    max_step_ratio: float | None = Field(
        default=0.9,
        gt=0,
        description="Median step of the target over the source's, at most; null: not judged",
    )
    confidence: float = Field(
        default=0.95, gt=0.5, lt=1.0, description="Of the interval that must lie within the limit"
    )
    max_evidence_age: Duration = Field(default=lasting("12h"), description="Older evidence is unmeasured")


class MoveMode(StrEnum):
    """How a workload whose pods stop and start together leaves the source pool."""

    CHECKPOINT = "checkpoint"
    RESTART = "restart"
    WAIT = "wait"
    LEAVE = "leave"


class Checkpoint(Strict):
    """How a checkpoint is asked for, and how its time is learnt.

    `annotation`: we write the time into `annotation` of the workload, and the job (or its operator) answers by writing
    the time of its newest checkpoint into `seen_annotation`. `exec`, `http`: the command's output or the answer's body
    holds that time as RFC 3339 in its last line; it is asked again until the time is newer than the request.
    """

    via: Literal["annotation", "exec", "http"] = "annotation"
    annotation: str = Field(default="poolshift.dev/checkpoint-requested", description="Where the request is written")
    seen_annotation: str = Field(default="poolshift.dev/checkpointed-at", description="Where the job answers")
    command: tuple[str, ...] = Field(default=(), description="For exec: run in the first pod")
    container: str | None = Field(default=None, description="For exec; default: the pod's first container")
    port: int = Field(default=8080, ge=1, le=65535, description="For http: port of the first pod")
    path: str = Field(default="/checkpoint", description="For http: POSTed through the API server's pod proxy")

    @model_validator(mode="after")
    def _command_for_exec(self) -> Self:
        if self.via == "exec" and not self.command:
            msg = "via is 'exec': give the command to run"
            raise ValueError(msg)
        return self


class WorkloadRule(Strict):
    """How one workload is moved; without a rule the defaults hold."""

    namespace: str
    name: str
    kind: str = Field(default="Job", description="Owner kind: Job, JobSet, PyTorchJob, StatefulSet, …")
    mode: MoveMode = Field(
        default=MoveMode.CHECKPOINT,
        description="checkpoint: see a new checkpoint, then suspend; restart: suspend at once; wait: until it has "
        "completed; leave: its owner moves it",
    )
    checkpoint: Checkpoint = Checkpoint()
    rehome: bool = Field(
        default=False,
        description="While it is stopped, change nodeSelector, required node affinity and tolerations in its template, "
        "where they pin it to the old pool",
    )
    max_wait: Duration = Field(default=lasting("2h"), description="For mode wait and for a checkpoint to appear")


class Force(Strict):
    """What may be lost. Every entry is opt-in and written to the record with the list of pods."""

    bare_pods: bool = Field(default=False, description="Evict pods that no controller will replace")
    empty_dir: bool = Field(default=False, description="Evict pods whose emptyDir holds data")
    do_not_disrupt: bool = Field(default=False, description="Evict pods that ask not to be moved by annotation")
    delete_after: Duration | None = Field(
        default=None, description="Delete (past its budget) a pod whose eviction was refused this long"
    )


class Window(Strict):
    """When waves may start. A wave that has started runs on past the end."""

    days: tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...] = Field(
        default=("mon", "tue", "wed", "thu", "fri", "sat", "sun"), description="Days on which the window opens"
    )
    start: str = Field(description="HH:MM on the clock of `timezone`", pattern=r"^([01]\d|2[0-3]):[0-5]\d$")
    duration: Duration = Field(description="How long it stays open, past midnight too")
    timezone: str = Field(default="UTC", description="IANA name, e.g. Europe/Berlin")

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError) as cause:
            msg = f"{value!r} is no time zone; write an IANA name such as Europe/Berlin"
            raise ValueError(msg) from cause
        return value


class Waves(Strict):
    """How many nodes leave at a time."""

    canary: int = Field(default=1, ge=0, description="Nodes of the first wave")
    size: int = Field(default=4, ge=1, description="Nodes of each later wave")
    ramp: Literal["fixed", "double"] = Field(default="double", description="Later waves: constant or doubling size")
    failure_budget: int = Field(default=0, ge=0, description="Nodes that may fail to drain before the run stops")
    settle: Duration = Field(default=lasting("2m"), description="Time for replacements to become Ready after a wave")
    windows: tuple[Window, ...] = Field(default=(), description="Waves start only within these; none: at any time")


class Drain(Strict):
    """Moving the work."""

    waves: Waves = Waves()
    force: Force = Force()
    workloads: tuple[WorkloadRule, ...] = ()
    surge: bool = Field(
        default=True, description="A Deployment of one replica that may surge gets its second on the target first"
    )
    evictions_per_second: float = Field(
        default=500.0, gt=0, description="Global limit; halves by itself when the server says 429 for its own sake"
    )
    pod_deadline: Duration = Field(default=lasting("30m"), description="For one pod to leave, grace included")
    wave_deadline: Duration = Field(default=lasting("2h"), description="For one wave")
    deadline: Duration = Field(default=lasting("6h"), description="For the whole drain")


class Repeat(StrEnum):
    """Whether the transport is proven once more at the end of the soak."""

    WHERE_IDLE = "where-idle"
    ALWAYS = "always"
    NEVER = "never"


class Soak(Strict):
    """Time with conditions, between the last wave and retirement."""

    duration: Duration = Field(default=lasting("1h"))
    interval: Duration = Field(default=lasting("5m"), description="Between two looks at the workloads")
    repeat_proof: Repeat = Field(
        default=Repeat.WHERE_IDLE,
        description="Prove the transport again at the end: where two nodes are idle; always (held without); never",
    )


class Approval(Strict):
    """Who must say yes, and where."""

    ask: bool = Field(default=False, description="Pause before work is moved, with the findings shown")
    timeout: Duration = Field(default=lasting("24h"))


class Retire(Strict):
    """What happens to the source pool at the end."""

    enabled: bool = Field(default=True, description="False: leave it empty and fenced")


class MigrationSpec(Strict):
    """Move the work of one node pool to another, and retire the first when the second has proven itself."""

    name: Name = Field(description="Names the run; running again with the same name and spec continues it")
    cluster: Cluster = Cluster()
    source: Source = Field(description="The old pool")
    target: Target = Field(description="The new pool")
    strategy: Strategy = Field(
        default=Strategy.AUTO,
        description="side-by-side: both pools stand at once; swap: they change places in slices; auto: swap only "
        "where one reservation must hold both",
    )
    swap: Swap = Swap()
    validation: Validation = Validation()
    gate: GateSpec = GateSpec()
    approval: Approval = Approval()
    drain: Drain = Drain()
    soak: Soak = Soak()
    retire: Retire = Retire()

    @model_validator(mode="after")
    def _pools_agree(self) -> Self:
        source, target = self.source, self.target
        if source.kind == target.kind == "external":
            if source.selector == target.selector:
                msg = f"source and target select the same nodes: {source.selector}"
                raise ValueError(msg)
            return self
        if "external" in (source.kind, target.kind):
            return self
        if source.kind != target.kind:
            msg = f"source is {source.kind}, target is {target.kind}: both pools must be in one cluster, so of one kind"
            raise ValueError(msg)
        here, there = _home(source), _home(target)
        if here != there:
            msg = f"source is in {here}, target is in {there}: both pools must be in one cluster"
            raise ValueError(msg)
        if source.name == target.name:
            msg = f"source and target are both named {source.name!r}: the target needs a name of its own"
            raise ValueError(msg)
        return self


def _home(pool: EksPool | GkePool | ExternalPool) -> str:
    """Where a pool's cluster is, as one comparable word."""
    if isinstance(pool, EksPool):
        return f"{pool.region}/{pool.cluster}"
    if isinstance(pool, GkePool):
        return f"{pool.project}/{pool.location}/{pool.cluster}"
    return ""


class Drift(Strict):
    """How far a pool may slide from what it reached itself before, even where every floor holds."""

    share: float = Field(default=0.1, gt=0, lt=1, description="Worse by more than this share of its own level: fail")
    points: int = Field(default=3, ge=2, description="Measurements in a row that make a level; unmeasured with fewer")


class RevalidationSpec(Strict):
    """Prove live pools again: readiness always, probes on idle nodes within a budget."""

    name: Name = Field(default="revalidate")
    cluster: Cluster = Cluster()
    pools: tuple[Source, ...] = Field(min_length=1, description="The pools to look at")
    probe_idle_nodes: bool = Field(default=True, description="False: readiness only, no GPU-minute")
    validation: Validation = Validation()
    gate: GateSpec = GateSpec(max_step_ratio=None)
    drift: Drift = Drift()


def describe_errors(errors: list[Any]) -> list[str]:
    """Pydantic's errors as lines for a person: field path, the value given, what is allowed."""
    lines = []
    for error in errors:
        path = ".".join(str(part) for part in error["loc"]) or "spec"
        given = error.get("input")
        said = isinstance(given, dict | list) or given is None or repr(given) in error["msg"]
        shown = "" if said else f", got {given!r}"
        context = error.get("ctx") or {}
        allowed = context.get("expected") or context.get("expected_tags")
        hint = f" (allowed: {allowed})" if allowed else ""
        lines.append(f"{path}: {error['msg'].removeprefix('Value error, ')}{shown}{hint}")
    return lines
