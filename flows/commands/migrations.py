"""Commands that begin a migration, prove live pools, or take a migration back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.options import (
    AsJson,
    Budget,
    Context,
    Kubeconfig,
    Namespace,
    SpecFile,
    cluster_of,
    load_spec,
    with_prefect,
)


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

    found = planning.survey(Run.open(load_spec(spec, MigrationSpec, kubeconfig, context, budget)))
    present.plan(found, as_json=as_json, verbose=verbose)
    return found.exit_code


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

    loaded = load_spec(spec, MigrationSpec, kubeconfig, context, budget)

    def work() -> Any:
        from flows.migrate import migrate as flow

        return flow(loaded)

    if submit:
        from flows import submit as submitting

        result = submitting.follow("migrate-node-pool/migrate-node-pool", loaded)
    else:
        result = with_prefect(work)
    present.migration(result, as_json=as_json)
    return int(result["exit_code"])


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

    loaded = load_spec(spec, RevalidationSpec, kubeconfig, context, budget)

    def work() -> Any:
        from flows.revalidate import revalidate as flow

        return flow(loaded)

    result = with_prefect(work)
    present.revalidation(result, as_json=as_json)
    return int(result["exit_code"])


def rollback(
    spec: Annotated[str, typer.Argument(metavar="SPEC|RUN", help="Spec file, or the run's name; '-': standard input")],
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    remove_target: Annotated[bool, typer.Option(help="Delete the target pool too, if it is ours and empty")] = False,
    namespace: Namespace = "poolshift",
    as_json: AsJson = False,
) -> int:
    """Put back exactly what a migration changed. Cordons, taints, bounds, suspended jobs; by spec, or by run name."""
    from flows import present
    from infra.model.spec import MigrationSpec
    from tasks import undo

    if spec == "-" or Path(spec).exists() or Path(spec).name != spec or spec.endswith((".yaml", ".yml", ".json")):
        loaded = load_spec(spec, MigrationSpec, kubeconfig, context)
    else:
        loaded = undo.spec_of(cluster_of(kubeconfig, context, namespace), spec)

    def work() -> Any:
        from flows.rollback import rollback as flow

        return flow(loaded, remove_target=remove_target)

    result = with_prefect(work)
    present.rollback(result, as_json=as_json)
    return 0
