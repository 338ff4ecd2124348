"""What `kubectl get pods` says of a pod: READY, STATUS and RESTARTS, decided as the real server decides it."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def _statuses(pod: Object, name: str) -> list[Object]:
    return pod.get("status", {}).get(name) or []


def _restartable(pod: Object) -> set[str]:
    """Init containers that run on as sidecars."""
    containers = pod["spec"].get("initContainers") or ()
    return {each["name"] for each in containers if each.get("restartPolicy") == "Always"}


def ready(pod: Object) -> tuple[int, int]:
    """Ready containers and all containers; sidecars count."""
    sidecars = _restartable(pod)
    total = len(pod["spec"].get("containers", ())) + len(sidecars)
    running = [each for each in _statuses(pod, "initContainerStatuses") if each["name"] in sidecars]
    running += _statuses(pod, "containerStatuses")
    return sum(bool(each.get("ready")) and "terminated" not in each.get("state", {}) for each in running), total


def restarts(pod: Object) -> tuple[int, str | None]:
    """Restarts and when the last one was."""
    counted = _statuses(pod, "containerStatuses")
    counted += [each for each in _statuses(pod, "initContainerStatuses") if each["name"] in _restartable(pod)]
    ended = [each.get("lastState", {}).get("terminated", {}).get("finishedAt") for each in counted]
    return sum(each.get("restartCount", 0) for each in counted), max(filter(None, ended), default=None)


def status(pod: Object) -> str:
    """The STATUS column."""
    state = pod.get("status", {})
    reason = state.get("reason") or state.get("phase", "")
    for condition in state.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    initializing, reason = _init_reason(pod, reason)
    if not initializing:
        reason = _main_reason(pod, reason)
    if "deletionTimestamp" in pod["metadata"]:
        if state.get("reason") == "NodeLost":
            return "Unknown"
        if state.get("phase") not in ("Failed", "Succeeded"):
            return "Terminating"
    return str(reason)


def _init_reason(pod: Object, reason: str) -> tuple[bool, str]:
    sidecars = _restartable(pod)
    total = len(pod["spec"].get("initContainers") or ())
    for index, each in enumerate(_statuses(pod, "initContainerStatuses")):
        state = each.get("state", {})
        terminated, waiting = state.get("terminated"), state.get("waiting", {})
        if terminated is not None and terminated.get("exitCode", 0) == 0:
            continue
        if each["name"] in sidecars and each.get("started"):
            continue
        if terminated is not None:
            return True, "Init:" + _ended(terminated)
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return True, f"Init:{waiting['reason']}"
        return True, f"Init:{index}/{total}"
    return False, reason


def _main_reason(pod: Object, reason: str) -> str:
    has_running = False
    for each in reversed(_statuses(pod, "containerStatuses")):
        state = each.get("state", {})
        if state.get("waiting", {}).get("reason"):
            reason = state["waiting"]["reason"]
        elif "terminated" in state:
            reason = _ended(state["terminated"])
        elif each.get("ready") and "running" in state:
            has_running = True
    if reason == "Completed" and has_running:
        conditions = pod.get("status", {}).get("conditions") or ()
        is_ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
        return "Running" if is_ready else "NotReady"
    return reason


def _ended(terminated: Object) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"
