"""The drain on a real control plane: against kubectl drain, Karpenter and a reference loop that knows the budgets.

    python -m tests.bench.real_drain_bench [NODES] [PODS] [--parties reference] [--budgets none] [--rounds 3]

Needs the binaries (`make control-plane`); Karpenter takes part when it is built. One control plane serves all
parties in turn: the pods go from one pool to the other and back, 20 Deployments without budgets, then with 50 %.
Control plane, node agent and the party share the machine, so ratios within one run say something, and seconds only what
this machine was doing; the processor time of a party's own process depends on that much less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from infra.clock import SystemClock
from infra.kube.api import Kube, connect
from infra.kube.view import View
from infra.model.spec import Cluster
from infra.sandbox import real
from infra.sandbox.access import Access, Api
from infra.sandbox.agent import Agent
from infra.sandbox.nodes import add_node
from infra.sandbox.run import LoopThread
from tests.bench import karpenter_peer
from tests.bench.drain_parties import Turn, cordon, take_turn

DEPLOYMENTS = 20
KUBECTL_SHARE = 4  # kubectl is read on a quarter of the nodes: its time is strictly linear in them
LABEL = "bench/pool"


@dataclass(kw_only=True)
class Bench:
    """The cluster: two pools of the same size, of which one holds all pods."""

    access: Access
    api: Api
    kube: Kube
    kubeconfig: Path
    nodes: int
    pods: int
    full: str = "a"
    more: dict[str, list[str]] = field(default_factory=dict)  # pools whose nodes somebody else has named

    @property
    def empty(self) -> str:
        """The other pool."""
        return "b" if self.full == "a" else "a"

    def names(self, pool: str) -> list[str]:
        """A pool's nodes."""
        return self.more.get(pool) or [f"{pool}-{number:03d}" for number in range(self.nodes)]

    def settle(self) -> None:
        """Wait until every Deployment has all its pods, and every budget has counted them."""
        each = self.pods // DEPLOYMENTS
        while True:
            deployments = self.api.list_items("/apis/apps/v1/namespaces/default/deployments")
            budgets = self.api.list_items("/apis/policy/v1/namespaces/default/poddisruptionbudgets")
            ready = all((d.get("status") or {}).get("availableReplicas") == each for d in deployments)
            if ready and all(b["status"].get("currentHealthy") == each for b in budgets):
                return
            time.sleep(0.5)

    def cordon(self, names: list[str], cordoned: bool) -> None:
        """Set or lift the cordon."""
        for name in names:
            cordon(self.api, name, cordoned)

    def gather(self) -> None:
        """Before a party's turn: all pods on one pool, the other one open.

        In this order: what the turn before has left unscheduled goes to the full pool, too.
        """
        self.settle()
        self.cordon(self.names(self.empty), False)


@contextlib.contextmanager
def cluster(nodes: int, pods: int) -> Iterator[Bench]:
    """A real control plane with the agent and the workloads on pool a."""
    thread = LoopThread("simulated-nodes")
    with TemporaryDirectory() as folder, real.start() as plane:
        kubeconfig = Path(folder) / "kubeconfig"
        kubeconfig.write_text(json.dumps(plane.kubeconfig_dict))
        access = Access.from_kubeconfig(plane.kubeconfig_dict)
        agent = Agent(access, SystemClock())
        thread.call(agent.start())
        try:
            bench = Bench(
                access=access,
                api=Api(access),
                kube=connect(Cluster(kubeconfig=str(kubeconfig))),
                kubeconfig=kubeconfig,
                nodes=nodes,
                pods=pods,
            )
            for pool in ("b", "a"):
                for name in bench.names(pool):
                    add_node(
                        bench.api, name=name, pool_labels={LABEL: pool}, machine_type="m7i.8xlarge", zone="us-east-2a"
                    )
            bench.cordon(bench.names("b"), True)
            for number in range(DEPLOYMENTS):
                bench.api.request("POST", "/apis/apps/v1/namespaces/default/deployments", deployment(number, pods))
            bench.settle()
            yield bench
            bench.api.close()
        finally:
            thread.call(agent.stop())
            thread.stop()


def deployment(number: int, pods: int) -> dict[str, Any]:
    """One of the Deployments; its pods end at once."""
    labels = {"app": f"web-{number}"}
    spec = {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "web", "image": "example.com/web:1", "resources": {"requests": {"cpu": "1"}}}],
    }
    return {
        "metadata": {"name": f"web-{number}"},
        "spec": {
            "replicas": pods // DEPLOYMENTS,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def budgets(bench: Bench, wanted: bool) -> None:
    """Put a budget of 50 % over each Deployment, or take all away."""
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    for number in range(DEPLOYMENTS):
        if wanted:
            selector = {"matchLabels": {"app": f"web-{number}"}}
            spec = {"maxUnavailable": "50%", "selector": selector}
            bench.api.request("POST", path, {"metadata": {"name": f"web-{number}"}, "spec": spec})
        else:
            bench.api.request("DELETE", f"{path}/web-{number}")


def kubectl(bench: Bench) -> float:
    """Seconds of `kubectl drain`, from a part of the nodes; the rest is drained by the reference loop."""
    bench.gather()
    names = bench.names(bench.full)
    part = names[: max(1, len(names) // KUBECTL_SHARE)]
    command = [str(Path(sys.executable).parent / "kubectl"), "--kubeconfig", str(bench.kubeconfig), "drain", *part]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    took = (time.perf_counter() - began) / len(part) * len(names)
    take_turn("reference", bench.kubeconfig, names)
    bench.full = bench.empty
    return took


def turn(bench: Bench, party: str) -> Turn:
    """One turn of ours or of the reference loop: all pods go to the other pool."""
    bench.gather()
    done = take_turn(party, bench.kubeconfig, bench.names(bench.full))
    if done.pods != bench.pods:
        raise SystemExit(f"{party} found {done.pods} pods instead of {bench.pods}: the turns cannot be compared")
    bench.full = bench.empty
    return done


def karpenter(bench: Bench) -> tuple[float, float]:
    """(seconds, share of the evictions that was refused): its NodePool is deleted while it holds all pods."""
    with karpenter_peer.running(bench.api, bench.kubeconfig) as peer:
        bench.more["k"] = peer.add_nodes(bench.nodes, {LABEL: "k"})
        home = bench.full
        bench.cordon(bench.names(bench.empty), True)
        take_turn("reference", bench.kubeconfig, bench.names(home))
        bench.full = "k"
        bench.cordon(bench.names(home), False)
        bench.settle()
        names = bench.more.pop("k")
        with View(bench.kube) as view:
            began = time.perf_counter()
            peer.delete_pool()
            while any(view.on_node.get(name) for name in names):
                view.pump(0.2)
            took = time.perf_counter() - began
        refused = peer.refused()
        bench.full = home
        peer.await_gone()
    return took, refused


@dataclass(frozen=True, kw_only=True)
class Round:
    """What the parties took, one after the other on the same cluster. None: took no part."""

    ours: Turn
    loop: Turn | None
    karpenter: tuple[float, float] | None
    kubectl: float | None


def play(bench: Bench, parties: frozenset[str]) -> Round:
    """One turn of each party."""
    return Round(
        ours=turn(bench, "ours"),
        loop=turn(bench, "reference") if "reference" in parties else None,
        karpenter=karpenter(bench) if "karpenter" in parties else None,
        kubectl=kubectl(bench) if "kubectl" in parties else None,
    )


def tell(name: str, found: Round, *, tight: bool) -> None:
    """Print the ratios of a round."""
    us = found.ours
    refused = f", {100 * us.refusals:.1f} % refused (reach 1 %)" if tight else ""
    print(
        f"{name}: {us.seconds:.1f} s, {us.cpu_ms:.1f} ms of processor a pod, "
        f"{us.requests / us.pods:.2f} requests a pod{refused}"
    )
    if loop := found.loop:
        print(
            f"  the reference loop: {us.seconds / loop.seconds:.2f} times its {loop.seconds:.1f} s "
            f"(reach {'1' if tight else '1.2'}), {us.cpu / loop.cpu:.2f} times its {loop.cpu_ms:.1f} ms"
            + (f"; refused: {100 * loop.refusals:.1f} %" if tight else "")
        )
    if peer := found.karpenter:
        reach = f"{peer[0] / us.seconds:.1f} times as long (reach 1.8)" if tight else ""
        share = reach or f"ours takes {us.seconds / peer[0]:.2f} times as long (reach 1.2)"
        print(f"  Karpenter: {peer[0]:.1f} s, {share}; refused: {100 * peer[1]:.0f} %")
    if found.kubectl:
        print(f"  one kubectl drain: {found.kubectl / us.seconds:.1f} times as long (reach 8)")


def main() -> None:
    """Print the ratios."""
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("nodes", nargs="?", type=int, default=40)
    read.add_argument("pods", nargs="?", type=int, default=800)
    read.add_argument("--parties", default="reference,karpenter,kubectl", help="beside ours, with commas")
    read.add_argument("--budgets", choices=("none", "half", "both"), default="both")
    read.add_argument("--rounds", type=int, default=1, help="of ours and the reference loop, in turn")
    asked = read.parse_args()
    parties = frozenset(filter(None, asked.parties.split(",")))
    absent = karpenter_peer.missing() if "karpenter" in parties else ""
    if absent:
        print(f"without Karpenter: {absent}")
        parties -= {"karpenter"}
    quick = parties & {"reference"}
    with cluster(asked.nodes, asked.pods) as bench:
        print(f"real control plane, {asked.nodes} nodes, {asked.pods} pods, {DEPLOYMENTS} Deployments", flush=True)
        for tight in (False, True):
            if asked.budgets == ("none" if tight else "half"):
                continue
            if tight:
                budgets(bench, True)
            # kubectl meets budgets only: without them it is limited by its own client, and takes as long.
            plain = frozenset({"kubectl"}) if not tight else frozenset()
            for number in range(asked.rounds):
                taking = (parties if number == 0 else quick) - plain
                tell("budgets of 50 %" if tight else "no budgets", play(bench, taking), tight=tight)
                sys.stdout.flush()


if __name__ == "__main__":
    main()
