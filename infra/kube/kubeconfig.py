"""Who we are and where the cluster is: one kubeconfig, several that kubectl would merge, or the pod's own account."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.clock import Clock, ScaledClock, parse_time
from infra.errors import BadSpec

if TYPE_CHECKING:
    from kubernetes import client as k8s

    from infra.model.spec import Cluster

EXTENSION = "poolshift.dev/sandbox"
_LISTS = ("clusters", "contexts", "users")


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxInfo:
    """Present when the kubeconfig says that the cluster is poolshift's own simulation."""

    scenario: str
    control_plane: str
    clock: Clock
    aws_endpoint: str = ""
    gke_endpoint: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """How a cluster is reached. `context` is "" for the account of the pod in which we run."""

    configuration: k8s.Configuration
    context: str = ""
    sandbox: SandboxInfo | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Merged:
    """One or more kubeconfigs as one. Where two say different things, the first does, as for kubectl."""

    paths: tuple[Path, ...]
    raw: Mapping[str, Any]

    def __str__(self) -> str:
        return os.pathsep.join(str(path) for path in self.paths)

    @property
    def kubectl(self) -> str:
        """The start of a command that reads the same."""
        return f"kubectl --kubeconfig {self}" if len(self.paths) == 1 else f"KUBECONFIG={self} kubectl"

    def entry(self, kind: str, name: object) -> Mapping[str, Any]:
        """What `contexts`, `clusters` or `users` say of a name; empty where nothing."""
        found = (e.get(kind.removesuffix("s")) or {} for e in self.raw[kind] if e.get("name") == name)
        return next(found, {})


def is_simulated(cluster: Cluster) -> bool:
    """Is it the sandbox that a spec names? Reads files alone, and starts no credential plugin. Raises BadSpec."""
    paths = _paths(cluster)
    if not any(EXTENSION.encode() in path.read_bytes() for path in paths):
        return False
    merged = _merged(paths)
    return merged is not None and _sandbox(merged, _context(merged, cluster.context)) is not None


def reach(cluster: Cluster) -> Reached:
    """How the cluster that a spec names is reached. Errors as `infra.kube.api.connect`."""
    from kubernetes import client as k8s
    from kubernetes import config

    merged = _merged(_paths(cluster))
    configuration = k8s.Configuration()
    if merged is None:
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except config.ConfigException as cause:
            raise BadSpec(
                "kubeconfig",
                f"none at {os.pathsep.join(str(path) for path in _usual())} and not inside a cluster",
                expected="a kubeconfig with a context for the cluster",
                remedy="name it: --kubeconfig, $KUBECONFIG or cluster.kubeconfig; for a trial: poolshift sandbox",
            ) from cause
        return Reached(configuration=configuration)
    context = _context(merged, cluster.context)
    try:
        config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=str(merged),
            context=context,
            client_configuration=configuration,
            persist_config=False,
        )
    except (config.ConfigException, OSError, ValueError) as cause:
        raise BadSpec(f"kubeconfig {merged}", str(cause), remedy=f"{merged.kubectl} config view") from cause
    _require_identity(merged, context, configuration)
    return Reached(configuration=configuration, context=context, sandbox=_sandbox(merged, context))


def _usual() -> tuple[Path, ...]:
    """Where kubectl looks, too."""
    named = [name for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    return tuple(Path(name).expanduser() for name in named or ["~/.kube/config"])


def _paths(cluster: Cluster) -> tuple[Path, ...]:
    """The files there are. One that a spec names must be there."""
    if not cluster.kubeconfig:
        return tuple(path for path in _usual() if path.is_file())
    path = Path(cluster.kubeconfig).expanduser()
    if not path.is_file():
        raise BadSpec(
            "cluster.kubeconfig",
            f"no file {path}",
            expected="the path of a kubeconfig",
            remedy="correct --kubeconfig (cluster.kubeconfig of a spec), or leave it out to use $KUBECONFIG",
        )
    return (path,)


def _merged(paths: tuple[Path, ...]) -> _Merged | None:
    """All files as one; None without any. An empty one among several says nothing, as for kubectl."""
    read = {path: raw for path in paths if (raw := _read(path)) or len(paths) == 1}
    if not read:
        return None
    merged: dict[str, Any] = {
        "current-context": next(filter(None, (raw.get("current-context") for raw in read.values())), ""),
        **{kind: list(_firsts(kind, read.values())) for kind in _LISTS},
    }
    found = _Merged(paths=tuple(read), raw=merged)
    if not merged["contexts"]:
        raise BadSpec(f"kubeconfig {found}", "has no contexts", remedy=f"{found.kubectl} config get-contexts")
    return found


def _firsts(kind: str, raws: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The entries of all files; of equal names the first."""
    seen = set()
    for raw in raws:
        for entry in raw.get(kind) or ():
            if entry.get("name") not in seen:
                seen.add(entry.get("name"))
                yield entry


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        raw = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as cause:
        raise BadSpec(
            f"kubeconfig {path}", f"cannot be read: {cause}", remedy=f"kubectl --kubeconfig {path} config view"
        ) from cause
    if raw is None:
        return {}
    shaped = isinstance(raw, dict) and all(
        isinstance(raw.get(kind) or [], list)
        and all(isinstance(e, dict) and isinstance(e.get(kind[:-1]) or {}, dict) for e in raw.get(kind) or ())
        for kind in _LISTS
    )
    if not shaped:
        raise BadSpec(
            f"kubeconfig {path}",
            f"holds {'text' if isinstance(raw, str) else 'YAML'} that is no kubeconfig",
            expected="a mapping with clusters, contexts and users, each a list",
            remedy=f"name the right file; what kubectl says of this one: kubectl --kubeconfig {path} config view",
        )
    found: dict[str, Any] = raw
    return found


def _context(merged: _Merged, wanted: str | None) -> str:
    """The name of the context that is meant."""
    names = [str(entry.get("name")) for entry in merged.raw["contexts"]]
    name = str(wanted or merged.raw["current-context"] or "")
    if name not in names:
        raise BadSpec(
            f"kubeconfig {merged}",
            f"no context {name!r}" if name else "no current context",
            expected="one of " + ", ".join(sorted(names)),
            remedy=_another(name, names),
        )
    return name


def _another(name: str, names: list[str]) -> str:
    """What to give instead: the context that is spelled most alike, else one that is there."""
    near = (get_close_matches(name, names, 1) or sorted(names) or ["NAME"])[0]
    return f"--context {shlex.quote(near)}, or the same as cluster.context of a spec"


def _require_identity(merged: _Merged, context: str, configuration: k8s.Configuration) -> None:
    """Raise BadSpec where the client acts as another one than the context says."""
    name = merged.entry("contexts", context).get("user")
    user = merged.entry("users", name)
    what = f"kubeconfig {merged}, user {name}"
    if user.get("as"):
        raise BadSpec(
            what,
            f"acts as {user['as']}, which the client library leaves out: we would act as {name}",
            expected="a user that acts for itself",
            remedy=f"name a context with credentials of {user['as']} (cluster.context)",
        )
    plugin = (user.get("exec") or {}).get("command")
    if plugin and not (configuration.api_key or configuration.cert_file):
        raise BadSpec(
            what,
            f"its credential plugin {plugin} gave neither token nor certificate",
            expected="credentials",
            remedy=f"log in, then: {merged.kubectl} --context {context} auth whoami",
        )


def _sandbox(merged: _Merged, context: str) -> SandboxInfo | None:
    """What the sandbox has written into its cluster's entry."""
    cluster = merged.entry("clusters", merged.entry("contexts", context).get("cluster"))
    entry = next((e for e in cluster.get("extensions") or () if e.get("name") == EXTENSION), None)
    if entry is None:
        return None
    extension = entry.get("extension") or {}
    clock = extension.get("clock") or {}
    origin = clock.get("origin")
    moment = origin if isinstance(origin, datetime) else parse_time(str(origin))
    return SandboxInfo(
        scenario=str(extension.get("scenario", "")),
        control_plane=str(extension.get("control_plane", "embedded")),
        clock=ScaledClock(origin=moment, started=float(clock["started"]), rate=float(clock["rate"])),
        aws_endpoint=str((extension.get("aws") or {}).get("endpoint", "")),
        gke_endpoint=str((extension.get("gke") or {}).get("endpoint", "")),
    )
