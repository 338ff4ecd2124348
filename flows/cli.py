"""The command line. Imports are lazy: `poolshift --help` answers at once, and `judge` never loads Prefect.

Exit codes: 0 done or pass, 1 error, 2 usage or bad spec, 3 gate held (fail), 4 unmeasured, 5 refused by the plan.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal, TypeVar

import typer

from infra.errors import BadSpec, PoolshiftError

if TYPE_CHECKING:
    from infra.model.spec import Cluster, MigrationSpec, RevalidationSpec

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Move GPU workloads to a new RDMA-capable node pool, and retire the old one only after measured gates pass.",
    epilog="Exit codes: 0 done or pass, 1 error, 2 usage or bad spec, 3 gate held (fail), 4 unmeasured, "
    "5 refused by the plan.",
)

SpecFile = Annotated[str, typer.Argument(metavar="SPEC", help="Spec file, as in infra/examples; '-': standard input")]
Kubeconfig = Annotated[
    str | None, typer.Option(help="Default: the spec's, $KUBECONFIG, ~/.kube/config, or the cluster it runs in")
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig; default: the spec's, or its current one")]
Budget = Annotated[
    float | None,
    typer.Option(
        min=0.1, metavar="MINUTES", help="GPU-minutes that measuring may take, both pools together; default: the spec's"
    ),
]
Namespace = Annotated[str, typer.Option(help="Where poolshift keeps its records")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="The run's name, as in `poolshift status`")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output")]

Spec = TypeVar("Spec", "MigrationSpec", "RevalidationSpec")


# Every complaint about the command line derives from it; typer does not export it by name.
_USAGE: Any = typer.BadParameter.__mro__[2]


def main() -> None:
    """Entry point: turns our errors into words and exit codes."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    from flows import console

    as_json = "--json" in arguments
    if arguments == ["--version"]:
        from importlib.metadata import version

        sys.stdout.write(f"poolshift {version('poolshift')}\n")
        return 0
    try:
        code = int(app(args=_as_kubectl(arguments), prog_name="poolshift", standalone_mode=False) or 0)
        if code == _INTERRUPTED:  # typer's answer to a Ctrl-C, which it keeps to itself; no command gives it
            _say_interrupted()
        return code
    except PoolshiftError as error:
        console.show_error(error, as_json=as_json)
        return error.exit_code
    except typer.Exit as stop:
        return int(stop.exit_code)
    except _USAGE as error:
        error.show()
        return 2
    except (KeyboardInterrupt, typer.Abort):
        _say_interrupted()
        return _INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output left; a traceback would tell nobody anything
        return 141  # as a shell says of a process that a closed pipe ended


_INTERRUPTED = 130  # as shells say of a process that SIGINT ended


def _say_interrupted() -> None:
    sys.stderr.write("\ninterrupted; run the same command again to continue\n")


def _as_kubectl(arguments: list[str]) -> list[str]:
    """Switches of `drain` as users of kubectl write them: --force=true, --dry-run=server."""
    if arguments[:1] != ["drain"]:
        return arguments
    given = [argument.partition("=") for argument in arguments]
    off = {"--dry-run": ("none", "false")}
    on = {"--dry-run": ("client", "server", "true")}
    kept: list[str] = []
    for name, equals, value in given:
        switch = equals and name in _SWITCHES
        if switch and value in off.get(name, ("false",)):
            continue
        kept.append(name if switch and value in on.get(name, ("true",)) else name + equals + value)
    return kept


_SWITCHES = ("--dry-run", "--ignore-daemonsets", "--delete-emptydir-data", "--force")


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def _load(
    path: str, model: type[Spec], kubeconfig: str | None, context: str | None, budget: float | None = None
) -> Spec:
    from flows import specs

    spec = specs.load(path, model)
    from pathlib import Path

    absolute = str(Path(kubeconfig).resolve()) if kubeconfig else None
    given = {"kubeconfig": absolute, "context": context}
    changes = {key: value for key, value in given.items() if value is not None}
    if budget is not None:
        measured = spec.validation.model_copy(update={"budget_gpu_minutes": budget})
        spec = spec.model_copy(update={"validation": measured})
    return spec.model_copy(update={"cluster": spec.cluster.model_copy(update=changes)}) if changes else spec


def _cluster(kubeconfig: str | None, context: str | None, namespace: str = "poolshift") -> Cluster:
    from infra.model.spec import Cluster

    return Cluster(kubeconfig=kubeconfig, context=context, namespace=namespace)


def _stdin() -> BinaryIO:
    """Standard input as bytes. Raises BadSpec when there is none."""
    if sys.stdin is None:
        raise BadSpec("standard input", "is closed", expected="the output to read", remedy="name a file instead")
    return sys.stdin.buffer


def _with_prefect(work: Callable[[], Any]) -> Any:
    from flows.orchestrator import prefect_api

    with prefect_api():
        return work()


@app.command()
def plan(
    spec: SpecFile,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    budget: Budget = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the requests in full")] = False,
    as_json: AsJson = False,
) -> int:
    """Show what a migration would do and what stands in its way. Writes nothing."""
    from flows import present
    from infra.model.spec import MigrationSpec
    from tasks import planning
    from tasks.run import Run

    found = planning.survey(Run.open(_load(spec, MigrationSpec, kubeconfig, context, budget)))
    present.plan(found, as_json=as_json, verbose=verbose)
    return found.exit_code


@app.command()
def migrate(
    spec: SpecFile,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    budget: Budget = None,
    submit: Annotated[bool, typer.Option(help="Kick the deployment migrate-node-pool and follow it")] = False,
    as_json: AsJson = False,
) -> int:
    """Move the work to the new pool and retire the old one. Run it again to continue where it stopped."""
    from flows import present
    from infra.model.spec import MigrationSpec

    loaded = _load(spec, MigrationSpec, kubeconfig, context, budget)

    def work() -> Any:
        if submit:
            from flows import submit as submitting

            return submitting.follow("migrate-node-pool/migrate-node-pool", loaded)
        from flows.migrate import migrate as flow

        return flow(loaded)

    result = _with_prefect(work)
    present.migration(result, as_json=as_json)
    return int(result["exit_code"])


@app.command()
def revalidate(
    spec: SpecFile,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    budget: Budget = None,
    as_json: AsJson = False,
) -> int:
    """Prove live pools again, and say since when one fails. Devices always, the transport on idle nodes."""
    from flows import present
    from infra.model.spec import RevalidationSpec

    loaded = _load(spec, RevalidationSpec, kubeconfig, context, budget)

    def work() -> Any:
        from flows.revalidate import revalidate as flow

        return flow(loaded)

    result = _with_prefect(work)
    present.revalidation(result, as_json=as_json)
    return int(result["exit_code"])


@app.command()
def rollback(
    spec: Annotated[str, typer.Argument(metavar="SPEC|RUN", help="Spec file, or the run's name; '-': standard input")],
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    remove_target: Annotated[bool, typer.Option(help="Delete the target pool too, if it is ours and empty")] = False,
    namespace: Namespace = "poolshift",
    as_json: AsJson = False,
) -> int:
    """Put back exactly what a migration changed. Cordons, taints, bounds, suspended jobs; by spec, or by run name."""
    from pathlib import Path

    from flows import present
    from infra.model.spec import MigrationSpec
    from tasks import undo

    if spec == "-" or Path(spec).exists() or Path(spec).name != spec or spec.endswith((".yaml", ".yml", ".json")):
        loaded = _load(spec, MigrationSpec, kubeconfig, context)
    else:
        loaded = undo.spec_of(_cluster(kubeconfig, context, namespace), spec)

    def work() -> Any:
        from flows.rollback import rollback as flow

        return flow(loaded, remove_target=remove_target)

    result = _with_prefect(work)
    present.rollback(result, as_json=as_json)
    return 0


@app.command()
def approve(
    name: RunName,
    reason: Annotated[str, typer.Option(help="Why; kept in the record")],
    by: Annotated[str | None, typer.Option(help="Who; default: the user of this shell")] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = "poolshift",
    as_json: AsJson = False,
) -> int:
    """Say yes to a migration that waits for approval."""
    from flows import approval, present

    said = approval.approve(_cluster(kubeconfig, context, namespace), name, by=by, reason=reason)
    present.answered(name, said, as_json=as_json)
    return 0


Why = Annotated[str, typer.Option("--reason", help="Why; kept in the record and shown")]
By = Annotated[str | None, typer.Option(help="Who; default: the user of this shell")]


def _wish(wish: str, name: str, by: str | None, reason: str, cluster: Cluster, as_json: bool) -> int:
    from flows import present
    from tasks import wishes

    present.answered(name, wishes.ask(cluster, name, wishes.Wish(wish), by=by, reason=reason), as_json=as_json)
    return 0


@app.command()
def pause(
    name: RunName,
    reason: Why = "",
    by: By = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = "poolshift",
    as_json: AsJson = False,
) -> int:
    """Hold a migration, from any machine. What has begun is finished; it holds before its next wave or step."""
    return _wish("pause", name, by, reason, _cluster(kubeconfig, context, namespace), as_json)


@app.command()
def resume(
    name: RunName,
    by: By = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = "poolshift",
    as_json: AsJson = False,
) -> int:
    """Take a pause or a cancellation back."""
    return _wish("resume", name, by, "", _cluster(kubeconfig, context, namespace), as_json)


@app.command()
def cancel(
    name: RunName,
    reason: Why = "",
    by: By = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = "poolshift",
    as_json: AsJson = False,
) -> int:
    """Stop a migration, from any machine. No further eviction; gangs come up, nodes not empty go back as they were."""
    return _wish("cancel", name, by, reason, _cluster(kubeconfig, context, namespace), as_json)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(metavar="RUN", help="One run; default: all")] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = "poolshift",
    as_json: AsJson = False,
) -> int:
    """Where each run stands, step by step, and who holds its pools."""
    from flows import present
    from tasks import observe

    present.status(observe.runs(_cluster(kubeconfig, context, namespace), name), as_json=as_json)
    return 0


@app.command()
def report(
    name: Annotated[str | None, typer.Argument(metavar="RUN", help="The run's name; with --verify: all")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check the ledger instead: is it what was written?")] = False,
    rejudge: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Judge its saved output again, under this spec's limits")
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = "poolshift",
    into: Annotated[
        str | None, typer.Option(help="Folder; default: reports/ in $POOLSHIFT_HOME or ~/.local/state/poolshift")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Write a run's report (HTML, Markdown, JSON). Or check the ledger, or judge saved output under other limits."""
    from flows import present

    cluster = _cluster(kubeconfig, context, namespace)
    if verify:
        from tasks import verifying

        checked = verifying.verify(cluster, name)
        present.verified(checked, as_json=as_json)
        return checked.exit_code
    if name is None:
        raise BadSpec("report", "names no run", expected="poolshift report NAME", remedy="poolshift status")
    if rejudge is not None:
        from flows import specs
        from tasks import rejudge as again

        judged = again.rejudge(name, specs.load_any(rejudge))
        present.rejudged(judged, as_json=as_json)
        return judged.exit_code
    from tasks import report as reporting

    present.written(reporting.from_cluster(cluster, name, into), as_json=as_json)
    return 0


@app.command()
def judge(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Any tool's output; '-' reads standard input")],
    machine: Annotated[str | None, typer.Option(help="Machine type, for NIC counts and floors")] = None,
    nodes: Annotated[int | None, typer.Option(help="How many nodes took part")] = None,
    as_json: AsJson = False,
) -> int:
    """Say what a tool's output proves (NCCL, nccl-tests, fio, …). NCCL logs rank by rank; packed files too."""
    from flows import judging

    return judging.judge(file, machine, nodes, as_json=as_json)


@app.command()
def audit(
    file: Annotated[str | None, typer.Option("-f", help="Objects as kubectl get -o json prints them, or a log")] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    as_json: AsJson = False,
) -> int:
    """Are the plugins there on every node? No GPU-minute is used. A dump with -f, else the live cluster."""
    from flows import present
    from tasks import audit as auditing

    found = auditing.of_file(file) if file else auditing.of_cluster(_cluster(kubeconfig, context))
    present.audit(found, as_json=as_json)
    return int(found.exit_code)


@app.command()
def blockers(
    file: Annotated[str, typer.Option("-f", help="Objects as kubectl get -o json prints them; '-': standard input")],
    node: Annotated[str | None, typer.Option(help="Only this node")] = None,
    as_json: AsJson = False,
) -> int:
    """What would stand in the way of a drain, offline."""
    from pathlib import Path

    from flows import present
    from infra.kube import dump
    from tasks import blockers as blocking

    found = blocking.blockers(dump.parse(_stdin().read(), "-") if file == "-" else Path(file), node)
    present.blockers(found, as_json=as_json)
    return int(found.exit_code)


@app.command()
def drain(
    nodes: Annotated[list[str] | None, typer.Argument(metavar="NODE", help="Nodes to empty")] = None,
    selector: Annotated[str | None, typer.Option("--selector", "-l", help="Nodes by label")] = None,
    pool: Annotated[str | None, typer.Option(help="Nodes of an EKS node group, GKE or Karpenter pool by name")] = None,
    grace_period: Annotated[
        int, typer.Option(max=2**31 - 1, metavar="SECONDS", help="Seconds for each pod; -1: its own")
    ] = -1,
    timeout: Annotated[str, typer.Option(help="Give up after this long, e.g. 10m; 0s: never")] = "0s",
    pod_selector: Annotated[str | None, typer.Option(help="Only pods with these labels leave")] = None,
    ignore_daemonsets: Annotated[bool, typer.Option(help="Leave DaemonSet pods where they are")] = False,
    delete_emptydir_data: Annotated[bool, typer.Option(help="Evict pods whose emptyDir is lost")] = False,
    force: Annotated[bool, typer.Option(help="Evict pods that no controller replaces")] = False,
    dry_run: Annotated[bool, typer.Option(help="Judge and show, change nothing")] = False,
    take_over: Annotated[bool, typer.Option(help="Undo another drain's cordons first, if it was killed")] = False,
    evictions_per_second: Annotated[
        float, typer.Option(min=0.1, max=1e6, metavar="N", help="At most so many, over all nodes")
    ] = 500.0,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    as_json: AsJson = False,
) -> int:
    """Empty nodes of any cluster, as fast as its budgets allow. Flags mean what they mean to kubectl drain."""
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
    found = draining.drain(_cluster(kubeconfig, context), request)
    present.drain(found, as_json=as_json, selected=pod_selector is not None)
    return int(found.exit_code)


@app.command()
def sandbox(
    scenario: Annotated[str, typer.Option(help="Name of a scenario; see --list")] = "healthy",
    cloud: Annotated[Literal["eks", "gke"], typer.Option(help="Whose pools to simulate")] = "eks",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the Kubernetes API; 0: any free one")] = 0,
    kubeconfig: Annotated[str, typer.Option(help="Written when it serves")] = "sandbox.kubeconfig",
    control_plane: Annotated[
        Literal["embedded", "real"], typer.Option(help="Ours, or a real kube-apiserver")
    ] = "embedded",
    listing: Annotated[bool, typer.Option("--list", help="Show the scenarios")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --list: one JSON document")] = False,
) -> int:
    """Simulate a cluster, a cloud and a fabric on loopback. In the foreground, until a signal."""
    from flows import console
    from infra.sandbox import run as running
    from infra.sandbox import scenario as scenarios

    if listing:
        rows = [{"scenario": n, "what happens": scenarios.load(n).summary} for n in scenarios.names()]
        console.show_json(rows) if as_json else console.show_table(rows)
        return 0
    from pathlib import Path

    running.serve(scenario, cloud, port=port, kubeconfig=Path(kubeconfig), control_plane=control_plane)
    return 0


@app.command()
def serve(
    spec: Annotated[str | None, typer.Option(help="Migration spec that prefills the form")] = None,
    revalidate_spec: Annotated[str | None, typer.Option("--revalidate", help="Pools to look at on schedule")] = None,
    cron: Annotated[str | None, typer.Option(help="When, instead of prefect.yaml's schedule")] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    limit: Annotated[int, typer.Option(help="Runs at the same time")] = 3,
) -> int:
    """Register the four deployments with Prefect and serve them. In the foreground, until a signal."""
    from flows import serve as serving
    from infra.model.spec import MigrationSpec, RevalidationSpec

    form = _load(spec, MigrationSpec, kubeconfig, context) if spec else None
    pools = _load(revalidate_spec, RevalidationSpec, kubeconfig, context) if revalidate_spec else None
    return serving.serve(form, pools, cron=cron, limit=limit)


@app.command()
def demo(
    cloud: Annotated[Literal["eks", "gke"], typer.Option(help="Whose pools to simulate")] = "eks",
    keep: Annotated[bool, typer.Option(help="Leave the Prefect UI running at the end")] = False,
) -> int:
    """Show a migration refused because RDMA is dead, then passing. Simulated, on loopback."""
    from flows import demo as showing

    return showing.demo(cloud=cloud, keep=keep)


if __name__ == "__main__":
    main()
