"""How long the plugins of a large cluster take to be judged, against reading the same lists and doing nothing.

python -m tests.bench.audit_bench [NODES]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from infra.kube.api import connect
from infra.model.spec import Cluster
from tasks import audit
from tests.bench.list_server import PLUGINS, cluster

REACH = 5.0  # seconds for 1,000 nodes


def timed(work: Callable[[], object]) -> tuple[float, object]:
    before = time.perf_counter()
    found = work()
    return time.perf_counter() - before, found


def main(nodes: int) -> None:
    with cluster(nodes, 0, plugins=True) as (_, kubeconfig):
        where = Cluster(kubeconfig=kubeconfig)

        def read() -> list[object]:
            kube = connect(where)
            paths = ("/api/v1/nodes", "/apis/apps/v1/daemonsets", "/api/v1/pods")
            return [item for path in paths for item in kube.list(path)]

        plain, items = timed(read)
        taken, found = timed(lambda: audit.of_cluster(where))
    assert isinstance(found, audit.Audit)
    codes = {f.code for f in found.findings}
    assert codes == {"devices-missing"}, codes  # the one node whose devices are gone is found
    print(f"audit of {nodes} nodes with {len(PLUGINS)} DaemonSets each: {taken:.2f} s (reach: {REACH:.0f} s for 1,000)")
    print(f"  {taken / plain:.1f} times what reading the {len(list(items)):,} objects takes; 0 GPU-minutes")  # type: ignore[call-overload]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
