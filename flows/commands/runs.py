"""Commands about a run that exists: approve, hold, end, look at, report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.options import (
    AsJson,
    LiveContext,
    LiveKubeconfig,
    Namespace,
    RunName,
    cluster_of,
)
from infra.errors import BadSpec

if TYPE_CHECKING:
    from infra.model.spec import Cluster

Why = Annotated[str, typer.Option("--reason", help="Why; kept in the record and shown")]
By = Annotated[str | None, typer.Option(help="Who; default: the user of this shell")]


def approve(
    name: RunName,
    reason: Annotated[str, typer.Option(help="Why; kept in the record")],
    by: Annotated[str | None, typer.Option(help="Who; default: the user of this shell")] = None,
    kubeconfig: LiveKubeconfig = None,
    context: LiveContext = None,
    namespace: Namespace = "poolshift",
    as_json: AsJson = False,
) -> int:
    """Say yes to a migration that waits for approval."""
    from flows import approving, present

    said = approving.approve(cluster_of(kubeconfig, context, namespace), name, by=by, reason=reason)
    present.answered(name, said, as_json=as_json)
    return 0


def pause(
    name: RunName,
    reason: Why = "",
    by: By = None,
    kubeconfig: LiveKubeconfig = None,
    context: LiveContext = None,
    namespace: Namespace = "poolshift",
    as_json: AsJson = False,
) -> int:
    """Hold a migration, from any machine. What has begun is finished; it holds before its next wave or step."""
    return _wish("pause", name, by, reason, cluster_of(kubeconfig, context, namespace), as_json)


def resume(
    name: RunName,
    by: By = None,
    kubeconfig: LiveKubeconfig = None,
    context: LiveContext = None,
    namespace: Namespace = "poolshift",
    as_json: AsJson = False,
) -> int:
    """Take a pause or a cancellation back."""
    return _wish("resume", name, by, "", cluster_of(kubeconfig, context, namespace), as_json)


def cancel(
    name: RunName,
    reason: Why = "",
    by: By = None,
    kubeconfig: LiveKubeconfig = None,
    context: LiveContext = None,
    namespace: Namespace = "poolshift",
    as_json: AsJson = False,
) -> int:
    """Stop a migration, from any machine. No further eviction; gangs come up, nodes not empty go back as they were."""
    return _wish("cancel", name, by, reason, cluster_of(kubeconfig, context, namespace), as_json)


def status(
    name: Annotated[str | None, typer.Argument(metavar="RUN", help="One run; default: all")] = None,
    kubeconfig: LiveKubeconfig = None,
    context: LiveContext = None,
    namespace: Namespace = "poolshift",
    as_json: AsJson = False,
) -> int:
    """Where each run stands, step by step, and who holds its pools."""
    from flows import present
    from tasks import observe

    present.status(observe.runs(cluster_of(kubeconfig, context, namespace), name), as_json=as_json)
    return 0


def report(
    name: Annotated[str | None, typer.Argument(metavar="RUN", help="The run's name; with --verify: all")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check the ledger instead: is it what was written?")] = False,
    rejudge: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Judge its saved output again, under this spec's limits")
    ] = None,
    kubeconfig: LiveKubeconfig = None,
    context: LiveContext = None,
    namespace: Namespace = "poolshift",
    into: Annotated[
        str | None, typer.Option(help="Folder; default: reports/ in $POOLSHIFT_HOME or ~/.local/state/poolshift")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Write a run's report (HTML, Markdown, JSON). Or check the ledger, or judge saved output under other limits."""
    from flows import present

    cluster = cluster_of(kubeconfig, context, namespace)
    if verify:
        from tasks import verifying

        checked = verifying.verify(cluster, name)
        present.lines(checked, as_json=as_json)
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


def _wish(wish: str, name: str, by: str | None, reason: str, cluster: Cluster, as_json: bool) -> int:
    from flows import present
    from tasks import wishes

    present.answered(name, wishes.ask(cluster, name, wishes.Wish(wish), by=by, reason=reason), as_json=as_json)
    return 0
