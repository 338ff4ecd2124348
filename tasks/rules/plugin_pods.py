"""What keeps a plugin's pods from being Ready, told by their first broken container. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from infra.model.plugins import Container, DaemonSet, PluginPod, PluginView
from infra.model.verdict import Finding, Level
from tasks.rules.causes import WRONG_ARCHITECTURE, cause_of
from tasks.rules.plugin_cover import refusal
from tasks.rules.wording import and_more, plural, since_words


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """A stable code, the words, and the container that is broken, "" where it is none of them."""

    code: str
    words: str
    container: str = ""


MISSING = Trouble(code="plugin-pod-missing", words="no pod")


def unhealthy(daemonset: DaemonSet, view: PluginView) -> Iterable[Finding]:
    """Nodes that the DaemonSet wants and on which its pod is absent or not Ready, one finding per cause."""
    mine = {p.node: p for p in view.pods if p.daemonset_uid == daemonset.uid and p.node}
    broken: dict[Trouble, list[tuple[str, str, datetime | None]]] = {}
    for node in view.nodes:
        if refusal(daemonset, node) is not None:
            continue
        pod = mine.get(node.name)
        if pod is None:
            broken.setdefault(MISSING, []).append((node.name, "", daemonset.created))
        elif not pod.ready:
            broken.setdefault(diagnose(pod), []).append((node.name, pod.name, pod.not_ready_since))
    for trouble, where in broken.items():
        first = min((moment for *_, moment in where if moment is not None), default=None)
        yield Finding(
            level=Level.BLOCK,
            code=trouble.code,
            object=daemonset.object,
            observed=f"{trouble.words} on {and_more(sorted(node for node, *_ in where), 3)}",
            expected="Ready on every node of the pool",
            since=since_words(first, view.taken),
            remedy=_REMEDIES.get(trouble.code, "kubectl -n {namespace} describe daemonset {name}").format(
                namespace=daemonset.namespace,
                name=daemonset.name,
                container=trouble.container,
                pod=min(where)[1],
                image=trouble.words.rpartition("image ")[2],
            ),
        )


_REMEDIES = {
    "plugin-image-missing": "put an image that exists in place of {image}: "
    "kubectl -n {namespace} set image daemonset/{name} {container}=IMAGE",
    "plugin-crash-loop": "kubectl -n {namespace} logs {pod} -c {container} --previous",
    "plugin-init-stuck": "kubectl -n {namespace} logs {pod} -c {container}",
    "plugin-exec-format": "use an image of the nodes' architecture: kubectl -n {namespace} describe daemonset {name}",
}
_PULL = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"})


def diagnose(pod: PluginPod) -> Trouble:
    """What is the matter with a plugin pod that is not Ready: its first broken container, else the pod."""
    for container in sorted(pod.containers, key=lambda c: not c.init):
        found = _diagnose_container(container)
        if found is not None:
            return Trouble(code=found[0], words=found[1], container=container.name)
    if pod.unscheduled:
        return Trouble(code="plugin-pod-unscheduled", words=pod.unscheduled)
    return Trouble(code="plugin-not-ready", words=f"pod {pod.phase or 'in an unknown phase'} but not Ready")


def _diagnose_container(container: Container) -> tuple[str, str] | None:
    if cause_of(container.message) == WRONG_ARCHITECTURE:
        return "plugin-exec-format", f"image {container.image} is built for another architecture"
    if container.waiting in _PULL:
        return "plugin-image-missing", f"{container.waiting}: image {container.image}"
    if container.waiting in ("CrashLoopBackOff", "RunContainerError", "CreateContainerError"):
        code = container.exit_code
        return (
            "plugin-crash-loop",
            f"{container.waiting} of {container.name}, {plural(container.restarts, 'restart')}"
            + (f", last exit code {code}" if code is not None else ""),
        )
    if container.init and not container.ready and container.terminated != "Completed":
        return (
            "plugin-init-stuck",
            f"init container {container.name}: {container.waiting or container.terminated or 'running'}",
        )
    if not container.init and container.terminated:
        return (
            "plugin-exited",
            f"container {container.name} ended ({container.terminated}, exit code {container.exit_code})",
        )
    if container.waiting:
        return "plugin-waiting", f"{container.waiting} of {container.name} {container.message}".strip()
    return None
