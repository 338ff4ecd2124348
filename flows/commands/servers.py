"""Commands in the foreground, until a signal: the sandbox, the deployments, the demo."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.commands.options import (
    Context,
    Kubeconfig,
    load_spec,
)
from infra.errors import BadSpec


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
    folder = Path(kubeconfig).parent
    if not folder.is_dir():
        raise BadSpec(
            f"--kubeconfig {kubeconfig}",
            f"there is no folder {folder}",
            expected="a file in a folder that exists",
            remedy=f"mkdir -p {shlex.quote(str(folder))}, then again; or name another file",
        )
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

    take_as_default(kubeconfig, context, in_forms=bool(spec or revalidate_spec))
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


def take_as_default(kubeconfig: str | None, context: str | None, *, in_forms: bool) -> None:
    """Have runs whose form names no kubeconfig go by this one: their processes inherit the environment.

    A context has no such place, so without a spec whose form it is put into it is refused. Raises BadSpec.
    """
    if context and not in_forms:
        raise BadSpec(
            f"--context {context}",
            "is put into the forms of the specs that are given, and none is",
            expected="--spec or --revalidate",
            remedy="give one, or name a kubeconfig whose current context it is: --kubeconfig FILE",
        )
    if kubeconfig is None:
        return
    path = Path(kubeconfig).resolve()
    if not path.is_file():
        raise BadSpec("--kubeconfig", f"no file {path}", expected="a kubeconfig", remedy="correct --kubeconfig")
    os.environ["KUBECONFIG"] = str(path)
