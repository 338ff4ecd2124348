"""The drain on a real control plane: against kubectl drain, Karpenter and a plain loop that knows the budgets.

    python -m tests.bench.real_drain_bench [NODES] [PODS] [--parties ours,loop] [--budgets none] [--rounds 3]

Needs the binaries (`make control-plane`); Karpenter takes part when it is built. One control plane serves all
parties in turn: the pods go from one pool to the other and back, 20 Deployments without budgets, then with 50 %. Each
party's row is printed as soon as it is known; one that takes longer than its limit is ended, and its pods are moved on.
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

PARTIES = ("ours", "loop", "karpenter", "kubectl")
DEPLOYMENTS = 20
SETTLED_IN = 180.0  # seconds for all pods to be Ready again; where they are not, no turn can be compared
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
        end = time.monotonic() + SETTLED_IN
        while time.monotonic() < end:
            deployments = self.api.list_items("/apis/apps/v1/namespaces/default/deployments")
            budgets = self.api.list_items("/apis/policy/v1/namespaces/default/poddisruptionbudgets")
            ready = all((d.get("status") or {}).get("availableReplicas") == each for d in deployments)
            if ready and all(b["status"].get("currentHealthy") == each for b in budgets):
                return
            time.sleep(0.5)
        raise SystemExit(f"not all pods are Ready after {SETTLED_IN:.0f} s: the turns cannot be compared")

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

    def clear(self, pool: str) -> None:
        """Move what is left of a pool to the open one, past all budgets: by deletion."""
        names = self.names(pool)
        self.cordon(names, True)
        path = "/api/v1/namespaces/default/pods"
        while left := {pod["spec"].get("nodeName") for pod in self.api.list_items(path)} & set(names):
            for name in sorted(left):
                only = {"fieldSelector": f"spec.nodeName={name}"}
                self.api.request("DELETE", path, {"gracePeriodSeconds": 0}, params=only)


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


def add_budgets(bench: Bench) -> None:
    """Put a budget of 50 % over each Deployment."""
    for number in range(DEPLOYMENTS):
        selector = {"matchLabels": {"app": f"web-{number}"}}
        body = {"metadata": {"name": f"web-{number}"}, "spec": {"maxUnavailable": "50%", "selector": selector}}
        bench.api.request("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", body)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One party's figure: seconds for all nodes, or, not `ended`, seconds after which it was not through.

    `cpu_ms` and `requests` are a pod's, None where nobody can tell; `refused` is a share of the evictions.
    """

    party: str
    seconds: float
    ended: bool = True
    cpu_ms: float | None = None
    requests: float | None = None
    refused: float | None = None
    note: str = ""


def kubectl(bench: Bench, limit: float) -> Row:
    """`kubectl drain`, read from a part of the nodes."""
    bench.gather()
    names = bench.names(bench.full)
    part = names[: max(1, len(names) // KUBECTL_SHARE)]
    command = [str(Path(sys.executable).parent / "kubectl"), "--kubeconfig", str(bench.kubeconfig), "drain", *part]
    began, ended = time.perf_counter(), True
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=limit)
    except subprocess.TimeoutExpired:
        ended = False
    took = time.perf_counter() - began
    bench.clear(bench.full)
    bench.full = bench.empty
    read = f"read from {len(part)} of {len(names)} nodes, {took:.1f} s"
    return Row(party="kubectl", seconds=took / len(part) * len(names), ended=ended, note=read)


def turn(bench: Bench, party: str, limit: float) -> Row:
    """One turn of ours or of the loop: all pods go to the other pool."""
    bench.gather()
    done = take_turn(party, bench.kubeconfig, bench.names(bench.full), limit)
    if done is None:
        bench.clear(bench.full)
    elif done.pods != bench.pods:
        raise SystemExit(f"{party} found {done.pods} pods instead of {bench.pods}: the turns cannot be compared")
    bench.full = bench.empty
    return Row(party=party, seconds=limit, ended=False) if done is None else _row(party, done)


def _row(party: str, done: Turn) -> Row:
    return Row(
        party=party,
        seconds=done.seconds,
        cpu_ms=done.cpu_ms,
        requests=done.requests / done.pods,
        refused=done.refusals,
    )


def karpenter(bench: Bench, limit: float) -> Row:
    """Karpenter: its NodePool is deleted while it holds all pods."""
    with karpenter_peer.running(bench.api, bench.kubeconfig) as peer:
        bench.settle()
        bench.more["k"] = peer.add_nodes(bench.nodes, {LABEL: "k"})
        home = bench.full
        bench.cordon(bench.names(bench.empty), True)
        bench.clear(home)
        bench.full = "k"
        bench.settle()
        bench.cordon(bench.names(home), False)
        names = bench.names("k")
        with View(bench.kube) as view:
            began = time.perf_counter()
            peer.delete_pool()
            while left := any(view.on_node.get(name) for name in names):
                view.pump(0.2)
                if time.perf_counter() - began > limit:
                    break
            took = time.perf_counter() - began
        refused = peer.refused()
        if left:
            bench.clear("k")
        bench.full = home
        del bench.more["k"]
        peer.await_gone()
    return Row(party="karpenter", seconds=took, ended=not left, refused=refused)


def play(bench: Bench, party: str, limit: float) -> Row:
    """One turn of a party."""
    match party:
        case "karpenter":
            return karpenter(bench, limit)
        case "kubectl":
            return kubectl(bench, limit)
    return turn(bench, party, limit)


def tell(row: Row, us: Row | None, *, tight: bool) -> str:
    """A party's line, with the ratio to ours in the same run."""
    words = f"{row.seconds:.1f} s" if row.ended else f"not ended in {row.seconds:.0f} s"
    said = [f"  {row.party}: {words}"]
    if us is not None and row is not us:
        said.append(_ratio(row, us, tight=tight))
    if row.cpu_ms is not None and row.requests is not None:
        said.append(f"{row.cpu_ms:.1f} ms of processor and {row.requests:.2f} requests a pod")
    if tight and row.refused is not None:
        said.append(f"{100 * row.refused:.1f} % refused" + (" (reach 1 %)" if row is us else ""))
    return ", ".join([*said, *filter(None, [row.note])])


def _ratio(row: Row, us: Row, *, tight: bool) -> str:
    if not us.ended:
        return f"ours takes more than {us.seconds / row.seconds:.1f} times as long" if row.ended else "nobody has ended"
    more = "" if row.ended else "more than "
    if tight and row.party in ("karpenter", "kubectl"):
        reach = {"karpenter": "1.8", "kubectl": "8"}[row.party]
        return f"{more}{row.seconds / us.seconds:.1f} times as long as ours (reach {reach})"
    less = "" if row.ended else "less than "
    return f"ours takes {less}{us.seconds / row.seconds:.2f} times as long (reach {'1' if tight else '1.2'})"


def main() -> None:
    """Print the ratios."""
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("nodes", nargs="?", type=int, default=40)
    read.add_argument("pods", nargs="?", type=int, default=800)
    read.add_argument("--parties", default=",".join(PARTIES), help="with commas; ours first, in this order")
    read.add_argument("--budgets", choices=("none", "half", "both"), default="both")
    read.add_argument("--rounds", type=int, default=1, help="of ours and the loop, in turn; the others once")
    read.add_argument("--limit", type=float, default=120.0, help="seconds after which a party is ended")
    asked = read.parse_args()
    parties = [name for name in PARTIES if name in asked.parties.split(",")]
    if unknown := set(asked.parties.split(",")) - set(PARTIES):
        read.error(f"no such party: {', '.join(sorted(unknown))}; there are {', '.join(PARTIES)}")
    if "karpenter" in parties and (absent := karpenter_peer.missing()):
        print(f"without Karpenter: {absent}")
        parties.remove("karpenter")
    with cluster(asked.nodes, asked.pods) as bench:
        print(f"real control plane, {asked.nodes} nodes, {asked.pods} pods, {DEPLOYMENTS} Deployments", flush=True)
        for tight in (False, True):
            if asked.budgets == ("none" if tight else "half"):
                continue
            if tight:
                add_budgets(bench)
            print("budgets of 50 %:" if tight else "no budgets:", flush=True)
            for number in range(asked.rounds):
                # kubectl meets budgets only: without them it is limited by its own client, and takes as long.
                taking = [p for p in parties if p in ("ours", "loop") or (number == 0 and (tight or p != "kubectl"))]
                us: Row | None = None
                for party in taking:
                    row = play(bench, party, asked.limit)
                    us = row if party == "ours" else us
                    print(tell(row, us, tight=tight), flush=True)


if __name__ == "__main__":
    main()
