"""Scenarios: what a simulated cluster, its cloud and its fabric look like, and what goes wrong. Strict YAML.

One scenario runs on both clouds: it says "source" and "target", and `Place` says what these are called there.
Times are seconds of the sandbox's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from infra.errors import BadSpec
from infra.model.spec import describe_errors

Cloud = Literal["eks", "gke"]
CLOUDS: tuple[Cloud, ...] = ("eks", "gke")
Side = Literal["source", "target", "any"]


class Strict(BaseModel):
    """Base of every part of a scenario."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ClockSpec(Strict):
    """How fast time runs, and how old the cluster is when the sandbox is ready."""

    rate: float = Field(default=60.0, gt=0, le=3600, description="Seconds of the sandbox in one second")
    programs: float = Field(default=1.0, gt=0, description="Measurements and checkpoints are done so many times faster")
    age_days: float = Field(default=0.0, ge=0, description="The cluster was brought up so long ago")


class SourceSpec(Strict):
    """The pool that exists from the start."""

    nodes: int = Field(default=4, ge=1, le=1000)
    idle: int = Field(default=2, ge=0, description="Of these, nodes that join after the workloads are placed")
    rdma: bool = Field(default=False, description="Whether the machines have their RDMA interfaces")


class TargetSpec(Strict):
    """What happens when a pool is made."""

    create_seconds: float = Field(default=120.0, ge=0, description="From CREATING to the outcome")
    delete_seconds: float = Field(default=60.0, ge=0)
    change_seconds: float | None = Field(default=None, ge=0, description="Of a setting; None: as its cloud takes")
    outcome: Literal["active", "degraded", "create-failed", "stockout"] = "active"
    nodes_joined: int | None = Field(default=None, ge=0, description="For degraded: how many nodes join")

    def of_change(self, usual: float) -> float:
        """Seconds that a change of settings takes on a cloud where it usually takes `usual`."""
        return usual if self.change_seconds is None else self.change_seconds


class ReservationSpec(Strict):
    """The capacity reservation that the target may name."""

    total: int = Field(default=8, ge=0)
    used: int = Field(default=0, ge=0, description="Machines of it that others run")
    source: bool = Field(default=False, description="The source pool's machines are of it, too")
    release_seconds: float = Field(default=90.0, ge=0, description="From a machine's end until it is free again")
    withheld: int = Field(default=0, ge=0, description="Of the machines given up, so many never become free again")


class LustreSpec(Strict):
    """The Lustre file system, and how its clients reach it."""

    zone: Literal["same", "other"] = Field(default="same", description="As the target pool's, or another one")
    capacity_tib: float = Field(default=76.8, gt=0)
    mb_s_per_tib: float = Field(default=1000.0, gt=0)


class ImageMissing(Strict):
    """An image that the nodes of a pool cannot pull."""

    kind: Literal["image-missing"]
    image: str = Field(description="Pattern, as in a shell: */aws-efa-k8s-device-plugin:v0.5.20")
    pool: Side = "any"


class SlowNic(Strict):
    """One network interface that runs at a share of its rate (0: down)."""

    kind: Literal["slow-nic"]
    pool: Side = "target"
    node: int = Field(ge=0, description="Position in the pool, by name")
    nic: int = Field(ge=0)
    rate: float = Field(ge=0, le=1)


class NoGdr(Strict):
    """A node whose NICs cannot reach GPU memory: data goes through the host's."""

    kind: Literal["no-gdr"]
    pool: Side = "target"
    node: int = Field(ge=0)


class FewerDevices(Strict):
    """A plugin that runs and registers fewer devices than the machine has."""

    kind: Literal["fewer-devices"]
    pool: Side = "target"
    node: int = Field(ge=0)
    resource: str
    count: int = Field(ge=0)


Defect = Annotated[ImageMissing | SlowNic | NoGdr | FewerDevices, Field(discriminator="kind")]


class Scenario(Strict):
    """One scenario."""

    name: str
    summary: str
    clouds: tuple[Cloud, ...] = CLOUDS
    clock: ClockSpec = ClockSpec()
    source: SourceSpec = SourceSpec()
    target: TargetSpec = TargetSpec()
    reservation: ReservationSpec = ReservationSpec()
    lustre: LustreSpec = LustreSpec()
    workloads: tuple[str, ...] = Field(default=(), description="Names of files in scenarios/manifests")
    defects: tuple[Defect, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Place:
    """What the parts of a scenario are called on one cloud. The example specs use the same names."""

    cloud: Cloud
    region: str
    zone: str
    other_zone: str
    cluster: str
    project: str
    source_pool: str
    machine_type: str

    def pool_labels(self, pool: str) -> dict[str, str]:
        """The labels by which the nodes of a pool are found."""
        if self.cloud == "eks":
            return {"eks.amazonaws.com/nodegroup": pool}
        return {"cloud.google.com/gke-nodepool": pool}


PLACES: dict[Cloud, Place] = {
    "eks": Place(
        cloud="eks",
        region="us-east-2",
        zone="us-east-2a",
        other_zone="us-east-2c",
        cluster="train",
        project="123456789012",
        source_pool="gpu-old",
        machine_type="p5en.48xlarge",
    ),
    "gke": Place(
        cloud="gke",
        region="europe-west4",
        zone="europe-west4-b",
        other_zone="europe-west4-c",
        cluster="train",
        project="example-project",
        source_pool="gpu-old",
        machine_type="a3-ultragpu-8g",
    ),
}


@dataclass(frozen=True, kw_only=True)
class CloudConfig:
    """What the cloud simulation is started with.

    The source pool exists from the start: the cloud shows it as active with `source_nodes`, which the assembly adds
    to the cluster itself; when the pool is deleted, the cloud removes them.
    """

    place: Place
    scenario: Scenario
    source_nodes: tuple[str, ...] = ()

    def source_labels(self) -> dict[str, str]:
        """All labels of the source pool's nodes beside those that every node has."""
        labels = self.place.pool_labels(self.place.source_pool)
        if self.place.cloud == "eks":
            labels["eks.amazonaws.com/capacityType"] = "ON_DEMAND"
            if not self.scenario.source.rdma:
                labels["example.com/efa"] = "disabled"  # keeps the EFA plugin off nodes without EFA interfaces
        else:
            labels["cloud.google.com/gke-accelerator"] = "nvidia-h200-141gb"
        return labels


def names() -> list[str]:
    """All scenarios, sorted."""
    folder = resources.files("infra.sandbox.scenarios")
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))


_LIST = "poolshift sandbox --list"


def load(name: str) -> Scenario:
    """Read a scenario by name. Raises BadSpec naming the field, or the names that exist."""
    if name not in names():
        raise BadSpec(f"scenario {name!r}", "does not exist", expected=f"one of {', '.join(names())}", remedy=_LIST)
    text = (resources.files("infra.sandbox.scenarios") / f"{name}.yaml").read_text(encoding="utf-8")
    return parse(name, text)


def parse(name: str, text: str) -> Scenario:
    """Read a scenario from YAML. Raises BadSpec."""
    import yaml

    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadSpec(f"scenario {name!r}", f"is not YAML: {error}", remedy=_LIST) from error
    if not isinstance(raw, dict):
        raise BadSpec(f"scenario {name!r}", "is not a mapping", remedy=_LIST)
    try:
        return Scenario.model_validate({"name": name, **raw})
    except ValidationError as error:
        lines = describe_errors([dict(e) for e in error.errors()])
        raise BadSpec(f"scenario {name!r}", "; ".join(lines), remedy=_LIST) from error


def manifests(name: str) -> list[dict[str, Any]]:
    """The objects of a file in scenarios/manifests. Raises BadSpec if there is none."""
    import yaml

    file = resources.files("infra.sandbox.scenarios") / "manifests" / f"{name}.yaml"
    if not file.is_file():
        raise BadSpec(f"manifests {name!r}", "do not exist", remedy="look in infra/sandbox/scenarios/manifests")
    return [document for document in yaml.safe_load_all(file.read_text(encoding="utf-8")) if document]
