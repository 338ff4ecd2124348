"""`poolshift drain`: which nodes, and with what options; the drain itself is `tasks.standalone`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from infra.errors import BadSpec, NotFound
from infra.kube import api
from infra.kube.api import Kube
from infra.kube.refusals import ApiError
from infra.model.pools import in_pool, pool_names
from infra.model.spec import Cluster
from infra.model.workload import Requirement, Selector
from tasks.drain import DrainOptions, DrainReport, drain_nodes
from tasks.progress import passing, say
from tasks.rules.nearest import nearest
from tasks.standalone import FOREVER

_TRY = "kubectl get nodes,pods -A -l SELECTOR shows what one selects"
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, kw_only=True)
class Request:
    """The command line's words. `grace` None: each pod's own; `timeout` "0s": never."""

    nodes: tuple[str, ...] = ()
    selector: str | None = None
    pool: str | None = None
    grace: int | None = None
    timeout: str = "0s"
    pod_selector: str | None = None
    ignore_daemonsets: bool = False
    delete_emptydir_data: bool = False
    force: bool = False
    dry_run: bool = False
    take_over: bool = False
    evictions_per_second: float = 500.0

    def command(self, cluster: Cluster) -> str:
        """The command line that asks for the same."""
        words = ["poolshift", "drain", *self.nodes]
        named = {
            "--selector": self.selector,
            "--pool": self.pool,
            "--grace-period": self.grace,
            "--timeout": None if self.timeout == Request.timeout else self.timeout,
            "--pod-selector": self.pod_selector,
            "--evictions-per-second": None
            if self.evictions_per_second == Request.evictions_per_second
            else self.evictions_per_second,
            "--kubeconfig": cluster.kubeconfig,
            "--context": cluster.context,
        }
        words += [word for name, value in named.items() if value is not None for word in (name, str(value))]
        switches = {
            "--ignore-daemonsets": self.ignore_daemonsets,
            "--delete-emptydir-data": self.delete_emptydir_data,
            "--force": self.force,
            "--dry-run": self.dry_run,
            "--take-over": self.take_over,
        }
        return shlex.join([*words, *(name for name, on in switches.items() if on)])


def drain(
    cluster: Cluster,
    request: Request,
    *,
    proven: Callable[[], object] = lambda: None,
) -> DrainReport:
    """Find the nodes and empty them.

    `proven` is called when there is nothing left to take back.

    Raises:
        BadSpec: no way of naming nodes was given, or a duration or selector that cannot be read.
        NotFound: nothing matches.

    """
    if sum(map(bool, (request.nodes, request.selector, request.pool))) != 1:
        raise BadSpec(
            "poolshift drain",
            "needs exactly one way of naming nodes",
            expected="NODE ..., --selector LABELS or --pool NAME",
            remedy="poolshift drain NODE --dry-run, with a NODE of: kubectl get nodes",
        )
    options = DrainOptions(
        grace=request.grace,
        timeout=read_timeout(request.timeout),
        pod_selector=read_selector(request.pod_selector) if request.pod_selector else None,
        ignore_daemonsets=request.ignore_daemonsets,
        delete_emptydir_data=request.delete_emptydir_data,
        force=request.force,
        dry_run=request.dry_run,
        take_over=request.take_over,
        evictions_per_second=request.evictions_per_second,
    )
    try:
        kube = api.connect(cluster)
        report = drain_nodes(
            kube,
            _names(kube, request),
            options,
            say=say,
            passing=passing,
            proven=proven,
        )
        return replace(report, simulated=kube.sandbox is not None)
    except KeyboardInterrupt:
        say(f"to go on: {request.command(cluster)}")
        raise


def _names(kube: Kube, request: Request) -> list[str]:
    if request.nodes:
        return [re.sub(r"^(nodes?|no)/", "", name) for name in request.nodes]  # as `kubectl get nodes -o name` prints
    if request.selector:
        found = selected(kube, request.selector)
        if not found:
            raise NotFound(f"nodes of {request.selector}", "none match", remedy="kubectl get nodes --show-labels")
        return sorted(found)
    named = str(request.pool)
    nodes = {n["metadata"]["name"]: n["metadata"].get("labels") or {} for n in kube.list("/api/v1/nodes")}
    found = [name for name, labels in nodes.items() if in_pool(labels, named)]
    if not found:
        raise no_such_pool(named, pool_names(nodes.values()))
    return sorted(found)


def no_such_pool(named: str, there: Sequence[str]) -> NotFound:
    """The error for a pool without a node: with those that have some, and the one that was probably meant."""
    close = nearest(named, there)
    return NotFound(
        f"pool {named}",
        "no node belongs to it",
        expected=f"one of {', '.join(there)}" if there else "nodes with the label of a pool",
        remedy=f"did you mean --pool {close[0]}?" if close else "kubectl get nodes --show-labels",
    )


def selected(kube: Kube, selector: str) -> list[str]:
    """The nodes that the server finds. Raises BadSpec for a selector that it cannot read."""
    try:
        return [n["metadata"]["name"] for n in kube.list("/api/v1/nodes", {"labelSelector": selector})]
    except ApiError as error:
        if error.status is None or error.status.code != 400:
            raise
        raise BadSpec(
            f"--selector {selector!r}",
            f"the server cannot read it: {error.status.message}",
            expected="a=b, a!=b, a in (b,c), a notin (b), a or !a, joined by commas",
            remedy="kubectl get nodes --show-labels, for the labels that there are",
        ) from error


def read_timeout(text: str) -> timedelta:
    """A duration as kubectl reads it: "90s", "1h30m", "1.5h", "500ms", "0"; a number alone has no unit. Days too.

    Raises BadSpec.
    """
    parts = _PART.findall(text)
    if text != "0" and (not parts or "".join(number + unit for number, unit in parts) != text):
        bare = re.fullmatch(r"\d+(\.\d+)?", text)
        raise BadSpec(
            "--timeout",
            f"{text!r} has no unit" if bare else f"{text!r} is not a duration",
            expected="as kubectl reads it: 90s, 20m, 1h30m; 0 for no limit",
            remedy=f"--timeout {text}s" if bare else "",
        )
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds > FOREVER.total_seconds():
        raise BadSpec(
            "--timeout", f"{text!r} is too long", expected=f"at most {FOREVER.days} days", remedy="--timeout 0"
        )
    return timedelta(seconds=seconds)


def read_selector(text: str) -> Selector:
    """A label selector as kubectl reads it: a=b, a!=b, a in (b,c), a notin (b), a, !a, joined by commas."""
    labels: dict[str, str] = {}
    expressions: list[Requirement] = []
    for part in re.split(r",(?![^(]*\))", text):
        word = part.strip()
        if match := re.fullmatch(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)", word):
            values = tuple(v.strip() for v in match[3].split(","))
            operator = "In" if match[2] == "in" else "NotIn"
            expressions.append(Requirement(key=match[1], operator=operator, values=values))
        elif match := re.fullmatch(r"([^=!\s]+)\s*(==?|!=)\s*([^=!\s]*)", word):
            if match[2] == "!=":
                expressions.append(Requirement(key=match[1], operator="NotIn", values=(match[3],)))
            else:
                labels[match[1]] = match[3]
        elif match := re.fullmatch(r"(!?)([^=!\s()]+)", word):
            expressions.append(Requirement(key=match[2], operator="DoesNotExist" if match[1] else "Exists"))
        else:
            raise BadSpec(
                "label selector", f"{word!r} cannot be read", expected="a=b, a!=b, a in (b,c), a or !a", remedy=_TRY
            )
    return Selector(labels=labels, expressions=tuple(expressions))
