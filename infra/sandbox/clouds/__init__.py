"""Simulated clouds on loopback, spoken to by the real SDKs: EKS and what it stands on, or GKE and what it stands on.

A cloud is a client of the Kubernetes API like any other: when a pool comes up its nodes are added to the cluster,
and when it is deleted they are removed after a while, whatever runs on them, as the real clouds do. That is the
danger that the product guards against.

Needs of the scenario (`infra.sandbox.scenario.CloudConfig`): place, target times and outcome, reservation, Lustre's
zone, and the names of the source pool's nodes, which the assembly adds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from infra.clock import Clock
from infra.sandbox.clouds.capacity import Capacity, Faults
from infra.sandbox.clouds.machines import Nodes
from infra.sandbox.clouds.timeline import Timeline
from infra.sandbox.scenario import CloudConfig


@dataclass
class Clouds:
    """A running simulated cloud. `aws_endpoint` is a URL, `gke_endpoint` host:port; the other one is ""."""

    timeline: Timeline
    faults: Faults
    capacity: Capacity
    aws_endpoint: str = ""
    gke_endpoint: str = ""
    servers: list[Any] = field(default_factory=list)

    def stop(self) -> None:
        """Close every port; events that have not happened do not happen."""
        self.timeline.stop()
        for server in reversed(self.servers):
            server.stop()


def start(config: CloudConfig, nodes: Nodes, clock: Clock, *, threaded: bool = True) -> Clouds:
    """Start the cloud that `config.place` names, on free ports of 127.0.0.1.

    Args:
        config: the scenario and where it takes place.
        nodes: where machines show up; `machines.ClusterNodes(api)` for a cluster.
        clock: the sandbox's clock; every delay is by it.
        threaded: False: events run only when the cloud is asked something (for a manual clock).

    """
    timeline, faults, capacity = Timeline(clock), Faults(), Capacity(config, {})
    clouds = Clouds(timeline, faults, capacity)
    if config.place.cloud == "eks":
        from infra.sandbox.clouds.aws import SimulatedAws

        aws = SimulatedAws(config, nodes, timeline, faults, capacity)
        aws.start()
        clouds.servers.append(aws)
        clouds.aws_endpoint = aws.endpoint
    else:
        from infra.sandbox.clouds.gce import SimulatedGce
        from infra.sandbox.clouds.gke_server import SimulatedGke

        gce = SimulatedGce(config, capacity)
        gce.start()
        gke = SimulatedGke(config, nodes, timeline, faults, capacity, gce.url)
        gke.start()
        gce.groups = gke.pools.groups
        clouds.servers += [gce, gke]
        clouds.gke_endpoint = gke.endpoint
    if threaded:
        timeline.start()
    return clouds
