"""Talk to a program inside a pod: run a command in it, or POST to it through the API server's proxy."""

from __future__ import annotations

from urllib.parse import quote

from infra.errors import Unreachable
from infra.kube.api import Kube, translate


def run_in(kube: Kube, namespace: str, pod: str, command: tuple[str, ...], container: str | None = None) -> str:
    """Run a command in a container and return what it printed.

    Raises:
        Unreachable: the command cannot be started, or the connection broke; the cause is chained.

    """
    from kubernetes import client as k8s
    from kubernetes.stream import stream

    # A client of its own: `stream` exchanges the request method of the one it is given, and others share ours.
    api = k8s.CoreV1Api(k8s.ApiClient(kube.client.configuration))
    try:
        return str(
            stream(
                api.connect_get_namespaced_pod_exec,
                pod,
                namespace,
                command=list(command),
                stdout=True,
                stderr=False,
                stdin=False,
                tty=False,
                **({"container": container} if container else {}),
            )
        )
    except k8s.ApiException as cause:
        raise Unreachable(
            f"pod {namespace}/{pod}",
            f"cannot run {command[0]}: {str(cause.reason)[:200]}",
            remedy=f"kubectl exec -n {namespace} {pod} -- {' '.join(command)}",
        ) from cause


def post_to(kube: Kube, namespace: str, pod: str, port: int, path: str) -> str:
    """POST to a port of a pod and return the body. Errors as `Kube.request`."""
    where = f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/{quote(path.lstrip('/'))}"
    response = kube.open("POST", where, accept="*/*")
    if response.status >= 400:
        raise translate("POST", where, response.status, response.data, response.headers.get("Retry-After"))
    return response.data.decode(errors="replace")
