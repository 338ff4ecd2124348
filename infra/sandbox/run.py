"""Puts a sandbox together: control plane, node agent, clouds, the scenario's pools and workloads, a kubeconfig."""

from __future__ import annotations

import asyncio
import importlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

from infra.errors import BadSpec
from infra.ports import refuse_busy
from infra.sandbox import kubeconfig as kubeconfigs
from infra.sandbox import scenario as scenarios
from infra.sandbox.access import Access, Api
from infra.sandbox.clock import SandboxClock
from infra.sandbox.scenario import PLACES, Cloud, CloudConfig, Scenario

ControlPlane = Literal["embedded", "real"]
T = TypeVar("T")
STOP_SECONDS = 10.0
SETTLE_SECONDS = 0.05
LOOK_SECONDS = 1.0


class LoopThread:
    """An event loop on a thread of its own."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def stop(self) -> None:
        """End the loop and the thread, after connections that were closed have gone."""
        self.call(asyncio.sleep(SETTLE_SECONDS))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_SECONDS)
        self.loop.close()


@dataclass
class Sandbox:
    """A running sandbox. `stop` ends everything that was started; the second time it does nothing."""

    scenario: Scenario
    cloud: Cloud
    control_plane: ControlPlane
    clock: SandboxClock
    url: str = ""
    kubeconfig: Path | None = None
    document: dict[str, Any] = field(default_factory=dict)
    api: Api | None = None
    agent: Any = None
    plane: Any = None
    """The RealControlPlane, where it is one: its processes can be stopped and its audit log read."""
    aws_endpoint: str = ""
    gke_endpoint: str = ""
    _stops: list[Callable[[], None]] = field(default_factory=list, repr=False)

    def stop(self) -> None:
        """Stop in reverse order of the start. An error of one part does not keep the others running."""
        errors: list[Exception] = []
        while self._stops:
            try:
                self._stops.pop()()
            except Exception as error:  # noqa: BLE001 - the rest must still be stopped; raised below
                errors.append(error)
        if errors:
            raise errors[0]

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(
    scenario: str | Scenario = "healthy",
    cloud: Cloud = "eks",
    *,
    port: int = 0,
    kubeconfig: Path | None = None,
    control_plane: ControlPlane = "embedded",
    rate: float | None = None,
) -> Sandbox:
    """Start a sandbox and return when its workloads run.

    Args:
        scenario: a name in infra/sandbox/scenarios, or a loaded one that was changed.
        cloud: eks or gke.
        port: of the Kubernetes API on 127.0.0.1; 0 for a free one.
        kubeconfig: where to write it; None: it is only in `document`.
        control_plane: embedded, or real (etcd, kube-apiserver, … from KUBEBUILDER_ASSETS).
        rate: seconds of the sandbox in one second, in place of the scenario's. The real control plane runs at 1.

    Raises:
        BadSpec: unknown scenario, or one that this cloud does not have.
        PoolshiftError: port in use, or the cluster did not come up.

    """
    loaded = scenario if isinstance(scenario, Scenario) else scenarios.load(scenario)
    if cloud not in loaded.clouds:
        raise BadSpec(
            f"scenario {loaded.name!r}",
            f"does not run on {cloud}",
            expected=f"one of {', '.join(loaded.clouds)}",
            remedy=f"poolshift sandbox --scenario {loaded.name} --cloud {loaded.clouds[0]}",
        )
    if port:
        refuse_busy(port)
    speed = 1.0 if control_plane == "real" else rate or loaded.clock.rate
    clock = SandboxClock(speed, datetime.now(UTC) - timedelta(days=loaded.clock.age_days))
    sandbox = Sandbox(scenario=loaded, cloud=cloud, control_plane=control_plane, clock=clock)
    try:
        _assemble(sandbox, port, kubeconfig)
    except BaseException:
        sandbox.stop()
        raise
    return sandbox


def serve(
    scenario: str,
    cloud: Cloud = "eks",
    *,
    port: int = 0,
    kubeconfig: Path | None = None,
    control_plane: ControlPlane = "embedded",
    rate: float | None = None,
) -> None:
    """Run in the foreground until SIGINT or SIGTERM. Prints one line, `ready URL`, when it serves.

    Raises, besides what `start` raises, ControlPlaneFailed when a process of the real control plane ends by itself.
    """
    ended = signalled(signal.SIGINT, signal.SIGTERM)
    sandbox = start(scenario, cloud, port=port, kubeconfig=kubeconfig, control_plane=control_plane, rate=rate)
    try:
        sys.stdout.write(f"ready {sandbox.url}\n")
        sys.stdout.flush()
        while not ended(LOOK_SECONDS):
            failure = sandbox.plane and sandbox.plane.failure()
            if failure:
                raise failure
    finally:
        sandbox.stop()


def signalled(*numbers: signal.Signals) -> Callable[[float], bool]:
    """From now on these signals only end a wait: call the result with seconds; True once one of them has come.

    A pipe and no `threading.Event`: its `set` takes the lock that `wait` holds, and a handler runs inside `wait`.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    for number in numbers:
        signal.signal(number, lambda *_: os.write(wake, b"."))
    return lambda seconds: bool(select.select([woken], [], [], seconds)[0])


def _assemble(sandbox: Sandbox, port: int, path: Path | None) -> None:
    from infra.sandbox.bringup import BringUp

    place = PLACES[sandbox.cloud]
    with ThreadPoolExecutor(max_workers=1) as beside:
        beside.submit(_import_cloud, sandbox.cloud)  # two seconds of imports, beside the cluster's start
        access, inner, user = _control_plane(sandbox, port)
        sandbox.url = access.url
        sandbox.api = api = Api(access)
        sandbox._stops.append(api.close)
        config = CloudConfig(place=place, scenario=sandbox.scenario, source_nodes=_source_names(sandbox))
        clouds = beside.submit(_clouds, sandbox, config)
        _agent(sandbox, access, config)
        BringUp(api, sandbox.clock, config).run()
        clouds.result()
    if sandbox.scenario.clock.age_days:
        sandbox.clock.jump(sandbox.scenario.clock.age_days)
    sandbox.document = kubeconfigs.build(
        inner,
        user,
        scenario=sandbox.scenario.name,
        control_plane=sandbox.control_plane,
        clock=sandbox.clock.scaled(),
        aws_endpoint=sandbox.aws_endpoint,
        gke_endpoint=sandbox.gke_endpoint,
    )
    if path is not None:
        kubeconfigs.write(sandbox.document, path)
        sandbox.kubeconfig = path


def _control_plane(sandbox: Sandbox, port: int) -> tuple[Access, dict[str, Any], dict[str, Any]]:
    """Start it: how to reach it, and the inner parts of a kubeconfig."""
    if sandbox.control_plane == "real":
        from infra.sandbox import real

        plane = real.start(port=port or None)
        sandbox._stops.append(plane.stop)
        sandbox.plane = plane
        document = plane.kubeconfig_dict
        access = Access.from_kubeconfig(document)
        return access, document["clusters"][0]["cluster"], document["users"][0]["user"]
    from infra.sandbox.control_plane import run_in_thread

    url, stop = run_in_thread(sandbox.clock, port)
    sandbox._stops.append(stop)
    return Access(url=url), {"server": url}, {}


def _source_names(sandbox: Sandbox) -> tuple[str, ...]:
    from infra.sandbox.clouds.machines import eks_name, gke_name

    place = PLACES[sandbox.cloud]
    count = range(sandbox.scenario.source.nodes)
    if sandbox.cloud == "eks":
        return tuple(sorted(eks_name(place.region, place.source_pool, index) for index in count))
    return tuple(sorted(gke_name(place.cluster, place.source_pool, index) for index in count))


def _agent(sandbox: Sandbox, access: Access, config: CloudConfig) -> None:
    from infra.sandbox.agent import Agent, Defects
    from infra.sandbox.fabric.storage import FileSystem

    place, scenario = config.place, config.scenario
    lustre = scenario.lustre
    thread = LoopThread("simulated-nodes")
    sandbox._stops.append(thread.stop)
    agent = Agent(
        access,
        sandbox.clock,
        defects=Defects(source_pool=place.source_pool, items=scenario.defects),
        lustre=FileSystem(capacity_tib=lustre.capacity_tib, mb_s_per_tib=lustre.mb_s_per_tib),
        lustre_zone=place.zone if lustre.zone == "same" else place.other_zone,
        seed=scenario.name,
        speed=scenario.clock.programs,
    )
    sandbox.agent = agent
    thread.call(agent.start())
    sandbox._stops.append(lambda: thread.call(agent.stop()))


def _import_cloud(cloud: Cloud) -> None:
    if cloud == "gke":
        importlib.import_module("infra.sandbox.clouds.gke")
        return
    with _parsed_once():
        importlib.import_module("moto.ec2.models")
    importlib.import_module("infra.sandbox.clouds.aws")


@contextmanager
def _parsed_once() -> Iterator[None]:
    """Keep each of botocore's data files: moto's import reads the same one 15 times, which takes most of a second."""
    from botocore.loaders import JSONFileLoader

    original, known = JSONFileLoader.load_file, {}

    def load(loader: Any, path: str) -> Any:
        if path not in known:
            known[path] = original(loader, path)
        return known[path]

    JSONFileLoader.load_file = load  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        JSONFileLoader.load_file = original  # type: ignore[method-assign]


def _clouds(sandbox: Sandbox, config: CloudConfig) -> None:
    from infra.sandbox import clouds
    from infra.sandbox.clouds.machines import ClusterNodes

    assert sandbox.api is not None
    running = clouds.start(config, ClusterNodes(sandbox.api), sandbox.clock)
    sandbox._stops.append(running.stop)
    sandbox.aws_endpoint, sandbox.gke_endpoint = running.aws_endpoint, running.gke_endpoint
