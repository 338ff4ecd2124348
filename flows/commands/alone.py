"""Commands that need no migration: judge a file, audit a cluster, drain nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import (
    AsJson,
    LiveContext,
    LiveKubeconfig,
    cluster_of,
)
from flows.console import standard_input

# Flags of kubectl drain that there are not: why, and what to do instead. No help lists them.
KUBECTL_ONLY = {
    "--disable-eviction": (
        "would delete pods past their budgets, and no flag here does that",
        "leave it out: a budget that can never let go is named before anything is touched, with what opens it; "
        "see poolshift drain NODE --dry-run",
    ),
    "--skip-wait-for-delete-timeout": (
        "would count pods as gone that still end, and a node is drained only when none is on it",
        "leave it out: --timeout bounds the wait, and pods of a dead node are told with what frees them",
    ),
    "--chunk-size": (
        "tunes how kubectl lists pods; here they are listed once, in pages, and watched",
        "leave it out: nothing has to be set for a large cluster",
    ),
    "--delete-local-data": ("is the old name of --delete-emptydir-data", "poolshift drain NODE --delete-emptydir-data"),
    "--ignore-errors": (
        "is not needed: a node that cannot be drained stops no other one",
        "leave it out: exit code 5 says that a node was refused and the others are drained",
    ),
}


def judge(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Any tool's output; '-' reads standard input")],
    machine: Annotated[str | None, typer.Option(help="Machine type, for NIC counts and floors")] = None,
    nodes: Annotated[int | None, typer.Option(help="How many nodes took part")] = None,
    as_json: AsJson = False,
) -> int:
    """Say what a tool's output proves (NCCL, nccl-tests, fio, …). NCCL logs rank by rank; packed files too."""
    from flows import judging

    return judging.judge(file, machine, nodes, as_json=as_json)


def audit(
    file: Annotated[
        list[str] | None,
        typer.Option("-f", help="Objects as kubectl get -o json prints them, or a log; dumps may be several"),
    ] = None,
    pool: Annotated[list[str] | None, typer.Option(help="Only nodes of this pool; may be given more than once")] = None,
    kubeconfig: LiveKubeconfig = None,
    context: LiveContext = None,
    as_json: AsJson = False,
) -> int:
    """Are the plugins there on every node? No GPU-minute is used. A dump with -f, else the live cluster."""
    from flows import present
    from tasks import audit as auditing

    pools = tuple(pool or ())
    found = auditing.of_files(file, pools) if file else auditing.of_cluster(cluster_of(kubeconfig, context), pools)
    present.audit(found, as_json=as_json)
    return int(found.exit_code)


def blockers(
    file: Annotated[str, typer.Option("-f", help="Objects as kubectl get -o json prints them; '-': standard input")],
    node: Annotated[str | None, typer.Option(help="Only this node")] = None,
    as_json: AsJson = False,
) -> int:
    """What would stand in the way of a drain, offline."""
    from flows import present
    from infra.kube import dump
    from tasks import blockers as blocking

    found = blocking.blockers(dump.parse(standard_input().read(), "-") if file == "-" else Path(file), node)
    present.lines(found, as_json=as_json)
    return int(found.exit_code)


def drain(
    nodes: Annotated[list[str] | None, typer.Argument(metavar="NODE", help="Nodes to empty")] = None,
    selector: Annotated[str | None, typer.Option("--selector", "-l", help="Nodes by label")] = None,
    pool: Annotated[str | None, typer.Option(help="Nodes of an EKS node group, GKE or Karpenter pool by name")] = None,
    grace_period: Annotated[
        int, typer.Option(max=2**31 - 1, metavar="SECONDS", help="Seconds for each pod, e.g. 30; -1: its own")
    ] = -1,
    timeout: Annotated[str, typer.Option(help="Give up after this long, e.g. 10m; 0s: never")] = "0s",
    pod_selector: Annotated[str | None, typer.Option(help="Only pods with these labels leave")] = None,
    ignore_daemonsets: Annotated[bool, typer.Option(help="Leave DaemonSet pods where they are")] = False,
    delete_emptydir_data: Annotated[bool, typer.Option(help="Evict pods whose emptyDir is lost")] = False,
    force: Annotated[bool, typer.Option(help="Evict pods that no controller replaces")] = False,
    dry_run: Annotated[bool, typer.Option(help="Judge and show, change nothing")] = False,
    take_over: Annotated[bool, typer.Option(help="Make another drain's cordons this one's, if it was killed")] = False,
    evictions_per_second: Annotated[
        float, typer.Option(min=0.1, max=1e6, metavar="N", help="At most so many, over all nodes, e.g. 5")
    ] = 500.0,
    kubeconfig: LiveKubeconfig = None,
    context: LiveContext = None,
    as_json: AsJson = False,
) -> int:
    """Empty nodes of any cluster, as fast as its budgets allow. Flags mean what they mean to kubectl drain.

    Exit code 5: the rules refused a node, which was left as it was; the others, if any, are drained. 1: a node that was
    begun is not empty, and all are as before.
    """
    import signal

    from flows import present
    from tasks import draining

    signal.signal(signal.SIGTERM, _interrupted)  # as Ctrl-C: the cordons are taken back
    request = draining.Request(
        nodes=tuple(nodes or ()),
        selector=selector,
        pool=pool,
        grace=None if grace_period < 0 else grace_period,
        timeout=timeout,
        pod_selector=pod_selector,
        ignore_daemonsets=ignore_daemonsets,
        delete_emptydir_data=delete_emptydir_data,
        force=force,
        dry_run=dry_run,
        take_over=take_over,
        evictions_per_second=evictions_per_second,
    )
    found = draining.drain(cluster_of(kubeconfig, context), request, proven=_hold_on)
    present.drain(found, as_json=as_json)
    return int(found.exit_code)


def _hold_on() -> None:
    """What is proven is the answer: nothing is left to interrupt, and the end of the process is near."""
    import signal

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt
