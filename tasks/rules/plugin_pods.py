"""What keeps a plugin's pods from being Ready, told by their first broken container. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

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
    level: Level = Level.BLOCK


MISSING = Trouble(code="plugin-pod-missing", words="no pod")
LEAVING = Trouble(code="plugin-pod-leaving", words="only a pod that is being deleted")
# The kubelet forgets a crash loop only after ten minutes of running (kubernetes.io, pod lifecycle: restart policy);
# ten restarts take half an hour of its back-off, so a plugin that waits for a young node's driver has fewer.
LASTING, MANY = timedelta(minutes=10), 10
RECENT = timedelta(days=1)


def unhealthy(daemonset: DaemonSet, view: PluginView) -> Iterable[Finding]:
    """Nodes that the DaemonSet wants and on which its pod is absent, not Ready or not for long; one finding per cause.

    In an update two of its pods may share a node: each of them must be Ready.
    """
    mine: dict[str, list[PluginPod]] = {}
    for pod in view.pods:
        if pod.daemonset_uid == daemonset.uid:
            mine.setdefault(pod.node, []).append(pod)
    broken: dict[Trouble, list[tuple[str, str, datetime | None]]] = {}
    for node in view.nodes:
        if refusal(daemonset, node) is not None:
            continue
        pods = mine.get(node.name, [])
        staying = [p for p in pods if p.leaving is None]
        if not pods:
            broken.setdefault(MISSING, []).append((node.name, "", daemonset.created))
        elif not staying:
            broken.setdefault(LEAVING, []).append((node.name, pods[0].name, pods[0].leaving))
        for pod in staying:
            if not pod.ready:
                broken.setdefault(diagnose(pod), []).append((node.name, pod.name, pod.not_ready_since))
            elif (restarting := _restarting(pod, view.taken)) is not None:
                broken.setdefault(restarting, []).append((node.name, pod.name, None))
    for trouble, where in broken.items():
        first = min((moment for *_, moment in where if moment is not None), default=None)
        yield Finding(
            level=trouble.level,
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


def _restarting(pod: PluginPod, now: datetime) -> Trouble | None:
    """A Ready pod that keeps on restarting: within the kubelet's back-off it is a crash loop between two crashes.

    One that has run for longer and ended within a day is shown. A dump's own time may be minutes old, so a run that
    begins after it has just begun. An init container of a Ready pod has ended as it should, however often it was begun.
    """
    for container in pod.containers:
        done = container.init and container.terminated
        if done or container.restarts < MANY or container.ended is None:
            continue
        ran = now - container.started if container.started else timedelta(0)
        if ran >= LASTING and now - container.ended >= RECENT:
            continue
        crashing, code = ran < LASTING, container.exit_code
        return Trouble(
            code="plugin-restarting",
            words=f"{container.name} has restarted {MANY} times or more, "
            + ("and runs for less than 10 minutes now" if crashing else "within the last day too")
            + (f", last exit code {code}" if code is not None else ""),
            container=container.name,
            level=Level.BLOCK if crashing else Level.WARN,
        )
    return None


_REMEDIES = {
    "plugin-restarting": "kubectl -n {namespace} logs {pod} -c {container} --previous",
    "plugin-pod-leaving": "kubectl -n {namespace} describe pod {pod}",
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
