"""Commands in the foreground, until a signal: the sandbox, the deployments, the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.commands.options import (
    Context,
    Kubeconfig,
    load_spec,
)


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
    running.serve(scenario, cloud, port=port, kubeconfig=Path(kubeconfig), control_plane=control_plane)
    return 0


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

    form = load_spec(spec, MigrationSpec, kubeconfig, context) if spec else None
    pools = load_spec(revalidate_spec, RevalidationSpec, kubeconfig, context) if revalidate_spec else None
    return serving.serve(form, pools, cron=cron, limit=limit)


def demo(
    cloud: Annotated[Literal["eks", "gke"], typer.Option(help="Whose pools to simulate")] = "eks",
    keep: Annotated[bool, typer.Option(help="Leave the Prefect UI running at the end")] = False,
) -> int:
    """Show a migration refused because RDMA is dead, then passing. Simulated, on loopback."""
    from flows import demo as showing

    return showing.demo(cloud=cloud, keep=keep)
