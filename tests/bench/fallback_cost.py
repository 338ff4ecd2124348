"""What it costs to catch a fallback, as a share of the full sweep's GPU-minutes. Simulated; both in one run.

    python tests/bench/fallback_cost.py [NODES]

The full sweep is the validation of a pool that is well, from the proofs to the training steps. The fallbacks: the
same pool launched without its RDMA devices, where NCCL goes to sockets without an error, and a pool where one node
was, on which NCCL hangs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from infra.kube.api import Kube, connect
from infra.model.pools import Pool, PoolState
from infra.model.spec import Cluster, MigrationSpec
from infra.model.verdict import Outcome
from infra.sandbox.nodes import add_node
from tasks import validate
from tasks.validate import Validation
from tests.processes import sandbox

LABEL = "eks.amazonaws.com/nodegroup"
MACHINE, ZONE = "p5en.48xlarge", "us-east-2a"
REACH = 0.05


class _Api:
    """The sandbox's own calls, over our client."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube

    def request(self, method: str, path: str, obj: object = None) -> dict[str, object]:
        """As `infra.sandbox.access.Api`."""
        return self.kube.request(method, path, body=obj)


def pool_of(kube: Kube, name: str, rdma: Sequence[bool]) -> Pool:
    """A pool of new nodes, with RDMA devices or without, when they are Ready and their plugins have spoken."""
    nodes = len(rdma)
    for number, devices in enumerate(rdma):
        add_node(
            _Api(kube),  # type: ignore[arg-type]
            name=f"{name}-{number}",
            pool_labels={LABEL: name},
            machine_type=MACHINE,
            zone=ZONE,
            rdma=devices,
        )
    pool = Pool(
        kind="eks",
        name=name,
        identity=f"pools/{name}",
        state=PoolState.ACTIVE,
        machine_type=MACHINE,
        nodes=nodes,
        node_selector={LABEL: name},
        gpus={"nvidia.com/gpu": 8},
        rdma={"vpc.amazonaws.com/efa": 16},
    )
    for _ in range(60):
        shown = [node.allocatable.get("vpc.amazonaws.com/efa", 0) > 0 for node in validate.idle(kube, pool)]
        if sorted(shown) == sorted(rdma):
            break
        kube.clock.sleep(5)
    return pool


def validated(kube: Kube, pool: Pool, spec: MigrationSpec, baseline: Validation) -> Validation:
    """One validation, from cheap to dear."""
    silent = lambda text: None  # noqa: E731
    return validate.validate(kube, pool, spec, pool.name, "hash", kube.clock, silent, baseline=baseline.evidence)


def measure(nodes: int) -> dict[str, Validation]:
    """Validations of pools of `nodes` nodes in one sandbox: all on sockets, one node on sockets, all well."""
    selectors = [{"kind": "external", "name": name, "selector": {LABEL: name}} for name in ("gpu-old", "well")]
    spec = MigrationSpec.model_validate(
        {
            "name": "bench",
            "source": selectors[0],
            "target": selectors[1],
            "validation": {"budget_gpu_minutes": 1e6},
        }
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kubeconfig"
        with sandbox(path):
            kube = connect(Cluster(kubeconfig=str(path)))
            lost = pool_of(kube, "lost", [False] * nodes)
            mixed = pool_of(kube, "mixed", [False] + [True] * (nodes - 1))
            well = pool_of(kube, "well", [True] * nodes)
            baseline = validate.measure(kube, lost, spec, "base", "hash", kube.clock, lambda text: None)
            return {pool.name: validated(kube, pool, spec, baseline) for pool in (lost, mixed, well)}


def main(nodes: int) -> int:
    """Print the shares; 1 when the reach is missed or a verdict is wrong."""
    found = measure(nodes)
    whole = found.pop("well")
    print(f"fallback cost (simulated), {nodes} x {MACHINE}; full sweep: {whole.gpu_minutes:.1f} GPU-minutes")
    good = whole.outcome is Outcome.PASS
    for name, words in (("lost", "every node on sockets"), ("mixed", "one node on sockets")):
        share = found[name].gpu_minutes / whole.gpu_minutes
        print(f"  {words}: caught after {found[name].gpu_minutes:.1f}, {share:.1%} (reach: {REACH:.0%})")
        good = good and found[name].outcome is Outcome.FAIL and share <= REACH
    if not good:
        print(f"  missed: {[v.summary for v in (whole, *found.values())]}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2))
