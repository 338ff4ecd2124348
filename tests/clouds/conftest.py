"""Both clouds on loopback, with a clock that the test moves: nothing here waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from infra.clock import ManualClock
from infra.sandbox import clouds
from infra.sandbox.clouds.machines import Machine
from infra.sandbox.scenario import PLACES, Cloud, CloudConfig, Scenario


@dataclass
class Registry:
    """Where machines show up instead of a cluster."""

    machines: dict[str, Machine] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def join(self, machine: Machine) -> None:
        self.machines[machine.name] = machine

    def leave(self, name: str) -> None:
        self.machines.pop(name, None)
        self.left.append(name)


@dataclass
class World:
    """A simulated cloud, the adapter that speaks to it over the wire, and the spec's two pools."""

    cloud: Cloud
    clock: ManualClock
    running: clouds.Clouds
    registry: Registry
    pools: Any
    source: Any
    target: Any
    said: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)


def _source(cloud: Cloud, **changes: Any) -> Any:
    from infra.model.spec import EksPool, GkePool

    place = PLACES[cloud]
    if cloud == "eks":
        return EksPool.model_validate(
            {"region": place.region, "cluster": place.cluster, "name": place.source_pool, **changes}
        )
    home = {"project": place.project, "location": place.region, "cluster": place.cluster}
    return GkePool.model_validate({**home, "name": place.source_pool, **changes})


def _target(cloud: Cloud, **changes: Any) -> Any:
    from infra.model.spec import EksTarget, GkeTarget
    from infra.sandbox.clouds import names

    place = PLACES[cloud]
    base = {"name": "gpu-rdma", "machine_type": place.machine_type, "nodes": 2, "cluster": place.cluster}
    taints = [{"key": "team", "value": "training", "effect": "NoExecute"}]
    if cloud == "eks":
        own: dict[str, Any] = {
            "region": place.region,
            "subnet": names.SUBNET,
            "node_role": names.NODE_ROLE,
            "reservation": {"id": names.RESERVATION},
            "lustre": names.FILE_SYSTEM,
        }
        return EksTarget.model_validate({**base, **own, "taints": taints, **changes})
    own = {
        "project": place.project,
        "location": place.region,
        "zone": place.zone,
        "reservation": {"name": names.GKE_RESERVATION},
        "lustre": f"projects/{place.project}/locations/{place.zone}/instances/{names.GKE_LUSTRE}",
    }
    return GkeTarget.model_validate({**base, **own, "taints": taints, **changes})


@pytest.fixture
def target_spec() -> Callable[..., Any]:
    """Builds a target of the given cloud; keyword arguments change fields."""
    return _target


@pytest.fixture
def source_spec() -> Callable[..., Any]:
    """Builds the source of the given cloud."""
    return _source


@pytest.fixture
def world() -> Iterator[Callable[..., World]]:
    """Starts the cloud of a scenario; `world("eks", target={"outcome": "stockout"})`."""
    started: list[clouds.Clouds] = []

    def start(cloud: Cloud, *, name: str = "test", **parts: Any) -> World:
        from infra.aws.api import Aws
        from infra.aws.pools import EksPools
        from infra.gcp.api import Gcp
        from infra.gcp.pools import GkePools

        place = PLACES[cloud]
        scenario = Scenario.model_validate({"name": name, "summary": "a test", **parts})
        clock, registry = ManualClock(), Registry()
        config = CloudConfig(place=place, scenario=scenario, source_nodes=("old-0", "old-1", "old-2"))
        running = clouds.start(config, registry, clock, threaded=False)
        started.append(running)
        pools: Any = (
            EksPools(Aws(region=place.region, endpoint=running.aws_endpoint), place.cluster, clock)
            if cloud == "eks"
            else GkePools(Gcp(place.project, running.gke_endpoint), place.region, place.cluster, clock)
        )
        return World(cloud, clock, running, registry, pools, _source(cloud), _target(cloud))

    yield start
    for running in started:
        running.stop()
