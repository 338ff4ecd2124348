"""Talk to a program inside a pod: run a command in it, or POST to it through the API server's proxy."""

from __future__ import annotations

from urllib.parse import quote

from infra.errors import Conflict, Forbidden, Unreachable
from infra.kube.api import Kube
from infra.kube.refusals import translate


def run_in(
    kube: Kube, namespace: str, pod: str, command: tuple[str, ...], container: str | None = None, limit: float = 3600.0
) -> str:
    """Run a command in a container and return what it printed, when it has ended well.

    Args:
        kube: the cluster.
        namespace: of the pod.
        pod: its name.
        command: the program and its arguments; no shell.
        container: default: the pod's first container.
        limit: wall-clock seconds for the command to end.

    Raises:
        Forbidden: exec is not allowed to us.
        Unreachable: the command cannot be started, the connection broke, or it ran past the limit.
        Conflict: it ended with another status than 0; says what it printed.
        Refused: nothing may be written any more (`Kube.barred`); it was not started.

    """
    from kubernetes import client as k8s
    from kubernetes.stream import stream

    # A client of its own: `stream` exchanges the request method of the one it is given, and others share ours.
    # Version 4 of the protocol: every server hands it on to the kubelet as it is, also those that know version 5.
    client = k8s.ApiClient(kube.client.configuration, "sec-websocket-protocol", "v4.channel.k8s.io")
    api = k8s.CoreV1Api(client)
    what, remedy = f"pod {namespace}/{pod}", f"kubectl exec -n {namespace} {pod} -- {' '.join(command)}"
    kube.check(f"{command[0]} in {what}")
    try:
        running = stream(
            api.connect_get_namespaced_pod_exec,
            pod,
            namespace,
            command=list(command),
            stdout=True,
            stderr=True,
            stdin=False,
            tty=False,
            _preload_content=False,
            **({"container": container} if container else {}),
        )
    except k8s.ApiException as cause:
        said = str(cause.reason)[:200]
        kind = Forbidden if cause.status == 403 or "403" in said else Unreachable
        raise kind(what, f"cannot run {command[0]}: {said}", remedy=remedy) from cause
    try:
        running.run_forever(timeout=limit)
        ended = not running.is_open()
        printed, failed = str(running.read_stdout()), str(running.read_stderr())
        status = running.returncode if ended else None
    except Exception as cause:  # websocket-client's own family of errors, and sockets'
        raise Unreachable(what, f"the connection broke while {command[0]} ran: {cause}", remedy=remedy) from cause
    finally:
        running.close()
        running.sock.shutdown()  # which close() leaves out where the other side closed first
    if not ended:
        raise Unreachable(what, f"{command[0]} has not ended after {limit:.0f} s", remedy=remedy)
    if status is None:
        raise Unreachable(what, f"the connection ended without saying how {command[0]} did", remedy=remedy)
    if status != 0:
        raise Conflict(
            what, f"{command[0]} ended with status {status}: {(failed or printed).strip()[-200:]}", remedy=remedy
        )
    return printed


def post_to(kube: Kube, namespace: str, pod: str, port: int, path: str, limit: float = 3600.0) -> str:
    """POST to a port of a pod and return the body; `limit` in wall-clock seconds. Errors as `Kube.request`."""
    where = f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/{quote(path.lstrip('/'))}"
    kube.check(f"POST {where}")
    response = kube.open("POST", where, accept="*/*", timeout=(10.0, limit))
    if response.status >= 400:
        raise translate("POST", where, response.status, response.data, response.headers.get("Retry-After"))
    return response.data.decode(errors="replace")
