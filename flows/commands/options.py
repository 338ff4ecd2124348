"""What the commands share: their options, and how a spec and a cluster are read from them."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from flows.reaching import Reach
from infra.errors import PoolshiftError
from tasks import progress

if TYPE_CHECKING:
    from infra.model.spec import Cluster, MigrationSpec, RevalidationSpec

SpecFile = Annotated[str, typer.Argument(metavar="SPEC", help="Spec file, as in infra/examples; '-': standard input")]
Kubeconfig = Annotated[
    str | None, typer.Option(help="Default: the spec's, $KUBECONFIG, ~/.kube/config, or the cluster it runs in")
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig; default: the spec's, or its current one")]
# Of commands that take no spec.
LiveKubeconfig = Annotated[
    str | None, typer.Option("--kubeconfig", help="Default: $KUBECONFIG, ~/.kube/config, or the cluster it runs in")
]
LiveContext = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig; default: its current one")
]
Budget = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        metavar="MINUTES",
        help="GPU-minutes that measuring may take, both pools together, e.g. 30; default: the spec's",
    ),
]
Namespace = Annotated[str, typer.Option(help="Where poolshift keeps its records")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="The run's name, as in `poolshift status`")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output")]

AS_JSON = ContextVar("as_json", default=False)
"""Does a program read this command line's answer?"""

Spec = TypeVar("Spec", "MigrationSpec", "RevalidationSpec")


def load_spec(
    path: str, model: type[Spec], kubeconfig: str | None, context: str | None, budget: float | None = None
) -> Spec:
    """The spec file with what the command line changes in it: cluster, and `budget` in GPU-minutes. Raises BadSpec."""
    from flows import specs

    spec = specs.load(path, model)
    absolute = str(Path(kubeconfig).resolve()) if kubeconfig else None
    given = {"kubeconfig": absolute, "context": context}
    changes = {key: value for key, value in given.items() if value is not None}
    if budget is not None:
        measured = spec.validation.model_copy(update={"budget_gpu_minutes": budget})
        spec = spec.model_copy(update={"validation": measured})
    cluster = spec.cluster.model_copy(update=changes)
    _go_by(cluster, path)
    return spec.model_copy(update={"cluster": cluster}) if changes else spec


def cluster_of(kubeconfig: str | None, context: str | None, namespace: str = "poolshift") -> Cluster:
    """The cluster that the options name."""
    from infra.model.spec import Cluster

    cluster = Cluster(kubeconfig=kubeconfig, context=context, namespace=namespace)
    _go_by(cluster)
    return cluster


def _go_by(cluster: Cluster, spec: str | None = None) -> None:
    """From now on commands that are told to type next go to this cluster, as this command line does.

    Of a sandbox it is said once, before anything else, that all is simulated; to a program its answer says it.
    """
    reach = Reach(
        kubeconfig=_absolute(cluster.kubeconfig),
        context=cluster.context,
        namespace=cluster.namespace,
        spec=spec if spec == "-" else _absolute(spec),
    )
    progress.reword(reach.complete)
    if not AS_JSON.get() and _is_simulated(cluster):
        progress.say("simulated: this cluster is a sandbox, and every time and duration is of its own clock")


def _absolute(path: str | None) -> str | None:
    """A report is read elsewhere than where the command was typed."""
    return str(Path(path).expanduser().absolute()) if path else None


def _is_simulated(cluster: Cluster) -> bool:
    from infra.kube.kubeconfig import is_simulated

    try:
        return is_simulated(cluster)
    except (PoolshiftError, OSError):
        return False  # the command itself says what is wrong with it


def with_prefect(work: Callable[[], Any]) -> Any:
    """What `work` returns, with a Prefect API at hand: PREFECT_API_URL, or a server of its own meanwhile."""
    from flows.orchestrator import prefect_api

    with prefect_api():
        return work()
