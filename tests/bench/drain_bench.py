"""How fast nodes empty, as ratios in one run: against kubectl drain, sixteen of them, and the server's own limit.

    python -m tests.bench.drain_bench [NODES] [PODS] [--parts speed,tight,memory]

All parties meet the same kind of server, each a fresh one. kubectl is given fewer nodes and read per node, since its
time is strictly linear in them (measured: 46 s for 10 nodes, 190 s for 40). kubectl mostly sleeps and we do not, so on
a machine that is busy with something else the ratios to it come out too small.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from infra.kube.api import connect
from infra.model.spec import Cluster
from tasks.drain import DrainOptions, DrainReport, drain_nodes
from tests.bench.drain_server import OWNERS, Size

WRITERS = 16
ROOT = Path(__file__).parents[2]


@contextmanager
def cluster(size: Size) -> Iterator[tuple[str, str]]:
    """(URL, kubeconfig) of a fresh cluster with a full old pool and an empty new one."""
    command = [sys.executable, "-m", "tests.bench.drain_server", json.dumps(asdict(size))]
    with (
        TemporaryDirectory() as folder,
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server,
    ):
        assert server.stdout is not None
        assert server.stdin is not None
        url = server.stdout.readline().split()[1]
        kubeconfig = Path(folder) / "kubeconfig"
        named = {"clusters": [{"name": "b", "cluster": {"server": url}}], "users": [{"name": "b", "user": {}}]}
        contexts = {"contexts": [{"name": "b", "context": {"cluster": "b", "user": "b"}}], "current-context": "b"}
        kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **named, **contexts}))
        yield url, str(kubeconfig)
        server.stdin.close()
        server.wait()


def names(nodes: int) -> list[str]:
    """The old pool."""
    return [f"old-{i:03d}" for i in range(nodes)]


def limit(nodes: int, pods: int) -> float:
    """Seconds for the evictions alone: sixteen writers that watch nothing."""
    with cluster(Size(nodes=nodes, pods=pods)) as (url, _):
        server = urlsplit(url)
        lister = http.client.HTTPConnection(str(server.hostname), server.port)
        lister.request("GET", "/api/v1/pods")
        work: SimpleQueue[str] = SimpleQueue()
        for pod in json.load(lister.getresponse())["items"]:
            work.put(pod["metadata"]["name"])
        lister.close()

        def write() -> None:
            connection = http.client.HTTPConnection(str(server.hostname), server.port)
            while True:
                try:
                    name = work.get_nowait()
                except Empty:
                    connection.close()
                    return
                body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
                path = f"/api/v1/namespaces/default/pods/{name}/eviction"
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                connection.getresponse().read()

        threads = [threading.Thread(target=write) for _ in range(WRITERS)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - began


def drain(kubeconfig: str, nodes: int, rate: float = 5000.0) -> tuple[float, DrainReport]:
    """Seconds and report of our drain of the old pool."""
    kube = connect(Cluster(kubeconfig=kubeconfig))
    began = time.perf_counter()
    report = drain_nodes(kube, names(nodes), DrainOptions(evictions_per_second=rate))
    took = time.perf_counter() - began
    if report.exit_code:
        raise SystemExit(f"the drain failed: {report.to_json()}")
    return took, report


def ours(size: Size) -> tuple[float, float, float]:
    """(seconds, requests per pod, part of the evictions that was refused)."""
    with cluster(size) as (_, kubeconfig):
        took, report = drain(kubeconfig, size.nodes)
        return took, report.requests / report.leaving, report.tally.refused / max(1, report.tally.sent)


def best_possible(size: Size, rate: float) -> float:
    """Seconds that no order of evictions can beat.

    A budget of k disruptions over n pods lets k go at once, and each further one only when a replacement is Ready: the
    last leaves after (ceil(n / k) - 1) replacements one after another. And n evictions take n / rate seconds.
    """
    each = size.pods // OWNERS
    chains = [(math.ceil(each / int(allowed)) - 1) * size.ready_after for allowed in size.budgets]
    return max(*chains, each * OWNERS / rate)


def tight() -> None:
    """Budgets of 1 to 10 of 20 pods, replacements that take a second, and a rate at which waste would show."""
    size = Size(nodes=20, pods=400, budgets=(1, 2, 5, 10), ready_after=1.0)
    rate = 40.0
    bound = best_possible(size, rate)
    with cluster(size) as (_, kubeconfig):
        took, report = drain(kubeconfig, size.nodes, rate)
    print(
        f"tight budgets, {size.pods} pods whose replacements take {size.ready_after:.0f} s, {rate:.0f} evictions a "
        f"second: {took / bound:.2f} times the best possible order's {bound:.1f} s (reach 1.2), "
        f"{report.tally.refused} of {report.tally.sent} refused"
    )


def kubectl(nodes: int, pods: int, side_by_side: int = 1) -> float:
    """Seconds of `kubectl drain` over all nodes, in one process or in several."""
    with cluster(Size(nodes=nodes, pods=pods)) as (_, kubeconfig):
        began = time.perf_counter()
        every = names(nodes)
        parts: Sequence[list[str]] = [every[i::side_by_side] for i in range(side_by_side)]
        children = [
            subprocess.Popen(
                [str(Path(sys.executable).parent / "kubectl"), "--kubeconfig", kubeconfig, "drain", *part],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for part in parts
            if part
        ]
        if any(child.wait() for child in children):
            raise SystemExit("kubectl drain failed")
        return time.perf_counter() - began


def memory() -> None:
    """Peak memory of a drain of 200 pods in a cluster that holds 1,000, 10,000 and 100,000 others."""
    peaks = {}
    for others in (1_000, 10_000, 100_000):
        with cluster(Size(nodes=10, pods=200, bystanders=others)) as (_, kubeconfig):
            call = f"from tests.bench.drain_bench import drain; drain({kubeconfig!r}, 10)"
            peaks[others] = peak_of([sys.executable, "-c", call])[1]
        print(f"memory of a drain among {others:,} pods: {peaks[others]:.0f} MB", flush=True)
    small, large = peaks[1_000], peaks[100_000]
    print(f"  {(large - small) * 1e6 / 99_000:.0f} bytes a pod (reach 2,000)")


def peak_of(command: Sequence[str]) -> tuple[float, float]:
    """(seconds of processor time, peak resident memory in MB) of a child."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 3):
        raise SystemExit(f"{command[:4]} ended with {child.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


def speed(nodes: int, pods: int) -> None:
    """Against kubectl and the server's limit, without budgets and with them."""
    per_node = pods // nodes
    floor = limit(nodes, pods)
    took, requests, _ = ours(Size(nodes=nodes, pods=pods))
    one = kubectl(4, 4 * per_node) / 4 * nodes
    sixteen = kubectl(16, 16 * per_node, 16) / 16 * nodes
    half = Size(nodes=max(1, nodes // 5), pods=pods // 5, budgets=("50%",))
    closed, closed_requests, refused = ours(half)
    print(f"drain of {nodes} nodes, {pods} pods, free budgets: {took:.1f} s, {requests:.2f} requests a pod (reach 1.3)")
    print(f"  one kubectl drain: {one / took:.0f} times as long (reach 100)")
    print(f"  sixteen kubectl drains side by side: {sixteen / took:.1f} times as long (reach 5)")
    print(f"  evictions alone: {took / floor:.2f} times the limit (reach 1.5)")
    print(
        f"drain of {half.nodes} nodes, {half.pods} pods, 20 budgets of 50 %: {closed:.1f} s, "
        f"{closed_requests:.2f} requests a pod, {100 * refused:.1f} % of evictions refused (reach 1 %)"
    )


def main() -> None:
    """Print the ratios."""
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("nodes", nargs="?", type=int, default=200)
    read.add_argument("pods", nargs="?", type=int, default=4000)
    read.add_argument("--parts", default="speed,tight,memory", help="with commas")
    asked = read.parse_args()
    parts = {"speed": lambda: speed(asked.nodes, asked.pods), "tight": tight, "memory": memory}
    for name in asked.parts.split(","):
        parts[name]()
        sys.stdout.flush()


if __name__ == "__main__":
    main()
