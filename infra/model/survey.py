"""What a cloud adapter read before a migration: the facts that `tasks.rules.preflight` judges.

Every field that can be unread is optional, and every part that could not be read is named in `unread` with the
reason. A rule that needs an unread part reports it; nothing is passed because it was not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from infra.errors import CloudError, Conflict, Forbidden, NoCapacity, NotFound, Unreachable
from infra.model.cluster import EMPTY
from infra.model.pools import Pool

T = TypeVar("T")


class Part(StrEnum):
    """The parts of a survey that may stay unread."""

    MACHINE = "machine type"
    OFFERED = "zones that offer the machine type"
    SUBNET = "subnet"
    RESERVATION = "reservation"
    SECURITY = "security groups"
    PLACEMENT = "placement group"
    QUOTA = "quota"
    LUSTRE = "Lustre file system"
    NETWORK = "RDMA networks"
    ADDRESSES = "free addresses"
    ADDONS = "add-ons"


@dataclass(kw_only=True)
class PartReader:
    """Reads a survey part by part. What cannot be read goes to `unread`, under the part's name, with the reason."""

    unread: dict[Part, str] = field(default_factory=dict)

    def part(self, part: Part, read_it: Callable[[], T]) -> T | None:
        """What `read_it` reads, or None."""
        try:
            return read_it()
        except (Forbidden, NotFound, CloudError, Conflict, NoCapacity, Unreachable) as error:
            self.unread[part] = error.wording()
            return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """One network card of an EC2 instance type (DescribeInstanceTypes, NetworkCards)."""

    index: int
    interfaces: int
    types: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A machine type as the cloud describes it.

    `rdma` is what one node advertises to Kubernetes; `cards` is empty where the cloud has no such notion.
    `accelerator` is the cloud's word ("H200", "nvidia-h200-141gb"); `networks` the number of extra node networks
    that the type needs when they are named one by one (GKE).
    """

    name: str
    gpus: int
    accelerator: str = ""
    vcpus: int = 0
    rdma: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    cards: tuple[Card, ...] = ()
    efa_interfaces: int = 0
    usage_classes: tuple[str, ...] = ()
    networks: int = 0
    fabric: str = ""
    local_ssds: int | None = None
    addresses_per_interface: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """A capacity reservation. `state` is the cloud's own word; `usable` says that machines can start from it now.

    `ends` is when machines start to be taken away (EC2: EndDate - 40 min for a Capacity Block, as EKS scales to 0
    then), None when it does not end. `local_ssds` None: not part of the reservation's shape.
    """

    name: str
    state: str
    usable: bool
    machine_type: str
    zone: str
    zone_id: str = ""
    total: int = 0
    free: int = 0
    ends: datetime | None = None
    capacity_block: bool = False
    placement_group: str = ""
    platform: str = ""  # EC2: "Linux/UNIX"
    tenancy: str = ""  # EC2: "default" or "dedicated"
    accelerator: str = ""
    accelerators: int = 0
    local_ssds: int | None = None
    specific: bool = True
    dense: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Subnet:
    """The target's subnet."""

    name: str
    zone: str
    zone_id: str
    network: str
    addresses: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SecurityGroup:
    """A security group, as far as EFA needs it: all traffic to and from itself, by group id."""

    name: str
    self_in: bool
    self_out: bool
    cluster: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """A cloud quota in its own unit ("vCPU", "GPU"), with what is already used of it."""

    name: str
    unit: str
    limit: float
    used: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lustre:
    """A Lustre file system. `rdma` says that it is reached over EFA, so only from its own zone."""

    name: str
    state: str
    usable: bool
    zone: str
    network: str = ""
    rdma: bool = False
    gke_support: bool = True
    open_ports: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterFacts:
    """The cluster as the cloud describes it. Flags are None where the cloud has no such flag."""

    name: str
    version: str
    state: str
    endpoints: tuple[str, ...] = ()  # host names and addresses of its Kubernetes API
    network: str = ""
    security_group: str = ""
    multi_networking: bool | None = None
    dataplane_v2: bool | None = None
    lustre_driver: bool | None = None
    autopilot: bool = False
    release_channel: str = ""
    busy_with: str = ""
    subnetwork: str = ""  # GKE: projects/P/regions/R/subnetworks/S
    pod_range: str = ""  # GKE: name of the secondary range that pods get their addresses from
    max_pods: int = 0  # GKE: of a node, where a pool does not say otherwise


@dataclass(frozen=True, kw_only=True, slots=True)
class RdmaNetwork:
    """A network of the target that carries RDMA; a RoCE network is tied to one zone by its profile."""

    name: str
    zone: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranges:
    """Free addresses of a GKE cluster's subnetwork. `pods_per_node` is the block that each node takes for its pods."""

    subnetwork: str
    pod_range: str
    nodes_free: int
    pods_free: int
    pods_per_node: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Addon:
    """An EKS add-on: its status is EKS' own word, `issues` what its health says."""

    name: str
    version: str
    status: str
    issues: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Everything read for one source and one target."""

    kind: str
    cluster: ClusterFacts | None = None
    source: Pool | None = None
    source_read: bool = True  # False: the source belongs to another cloud than the one that was asked
    existing: Pool | None = None  # a pool that already has the target's name
    machine: Machine | None = None
    machine_known: bool | None = None
    offered_zones: tuple[str, ...] | None = None
    subnet: Subnet | None = None
    reservation: Reservation | None = None
    reservation_known: bool | None = None
    security_groups: tuple[SecurityGroup, ...] | None = None
    placement_strategy: str | None = None
    quota: Quota | None = None
    lustre: Lustre | None = None
    networks: tuple[RdmaNetwork, ...] | None = None
    ranges: Ranges | None = None
    addons: tuple[Addon, ...] | None = None
    layout_problem: str = ""  # why no legal layout of RDMA interfaces is known for the machine type
    source_role: str = ""
    role_shared_with: tuple[str, ...] = ()  # other pools of the cluster that use the source's node role
    unread: Mapping[Part, str] = field(default_factory=dict)
