"""One way to call Google Cloud: gRPC to GKE, REST to Compute Engine and Lustre, errors translated at the edge."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from infra.errors import CloudError, Conflict, Forbidden, NoCapacity, NotFound, PoolshiftError, Unreachable

if TYPE_CHECKING:
    from google.api_core.exceptions import GoogleAPICallError

COMPUTE = "https://compute.googleapis.com/compute/v1"
LUSTRE = "https://lustre.googleapis.com/v1"
REST_SECONDS = 30.0
SIGN_IN = "gcloud auth application-default login"

_OPERATION = re.compile(r"operation-[\w-]+")
_STOCKOUT = ("stockout", "zone_resource_pool_exhausted", "does not have enough resources", "short of")
_ACTIONS = {
    "get_cluster": "container.clusters.get",
    "get_node_pool": "container.nodePools.get",
    "list_node_pools": "container.nodePools.list",
    "create_node_pool": "container.nodePools.create",
    "update_node_pool": "container.nodePools.update",
    "set_node_pool_autoscaling": "container.nodePools.update",
    "set_node_pool_management": "container.nodePools.update",
    "set_node_pool_size": "container.nodePools.update",
    "delete_node_pool": "container.nodePools.delete",
    "get_operation": "container.operations.get",
    "list_operations": "container.operations.list",
}


class Busy(Unreachable):
    """Another operation runs on the cluster. `operation` is its name, "" when the message does not give it."""

    def __init__(self, what: str, observed: str, operation: str) -> None:
        self.operation = operation
        super().__init__(what, observed, remedy="wait until that operation ends")


@dataclass
class Gcp:
    """The project that the environment's credentials reach. `endpoint` is the sandbox's gRPC address, or ""."""

    project: str
    endpoint: str = ""
    rest: str = ""  # the sandbox's HTTP address, learnt from the cluster's self link
    _made: dict[str, Any] = field(default_factory=dict, repr=False)

    def client(self) -> Any:
        """The cluster manager, made once; gRPC clients may be shared by threads."""
        if "client" not in self._made:
            from google.auth.exceptions import GoogleAuthError
            from google.cloud import container_v1

            try:
                self._made["client"] = (
                    container_v1.ClusterManagerClient(transport=_insecure(self.endpoint))
                    if self.endpoint
                    else container_v1.ClusterManagerClient()
                )
            except GoogleAuthError as error:
                raise _no_credentials(f"project {self.project}", error) from error
        return self._made["client"]

    def call(self, method: str, what: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request to GKE; the answer as plain JSON with enum names. Raises our errors only."""
        from google.api_core import exceptions as google
        from google.auth.exceptions import GoogleAuthError

        try:
            answer = getattr(self.client(), method)(request=dict(request))
        except google.GoogleAPICallError as error:
            raise translate(error, what, method) from error
        except google.RetryError as error:
            raise Unreachable(what, f"{method}: {error}", remedy="check the network, then run again") from error
        except GoogleAuthError as error:
            raise _no_credentials(what, error) from error
        except (ValueError, TypeError) as error:
            raise CloudError(what, f"{method} was not sent, its arguments are malformed: {error}") from error
        return to_json(answer)

    def get(self, url: str, what: str, permission: str) -> dict[str, Any]:
        """Read one REST resource (Compute Engine, Lustre), `url` being of the real service."""
        return self._rest("GET", url, what, permission, None)

    def post(self, url: str, what: str, permission: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Call one REST method of a resource, as `get` reads it."""
        return self._rest("POST", url, what, permission, body)

    def _rest(
        self, method: str, url: str, what: str, permission: str, body: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        import requests
        from google.auth.exceptions import GoogleAuthError

        try:
            answer = self._session().request(method, self._address(url), json=body, timeout=REST_SECONDS)
        except GoogleAuthError as error:
            raise _no_credentials(what, error) from error
        except requests.RequestException as error:
            raise Unreachable(what, str(error)[:300], remedy="check the network, then run again") from error
        said = f"{method} {url}: {answer.status_code} {answer.text[:300]}"
        if answer.status_code == 404:
            raise NotFound(what, "does not exist", remedy="check its name, project and zone")
        if answer.status_code in (401, 403):
            raise Forbidden(what, said, remedy=f"grant {permission} to the caller")
        if answer.status_code == 429 or answer.status_code >= 500:
            raise Unreachable(what, said, remedy="run the same command again in a minute")
        if answer.status_code >= 400:
            raise CloudError(what, said)
        found = answer.json()
        if not isinstance(found, dict):
            raise CloudError(what, f"{method} {url} answered {type(found).__name__}, not an object")
        return found

    def _session(self) -> Any:
        if "session" not in self._made:
            import google.auth
            import requests
            from google.auth.transport.requests import AuthorizedSession

            if self.endpoint:
                self._made["session"] = requests.Session()
            else:
                credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
                self._made["session"] = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
        return self._made["session"]

    def _address(self, url: str) -> str:
        """In the sandbox every Google host is the sandbox's own; never a real one."""
        if not self.endpoint:
            return url
        if not self.rest:
            raise Unreachable(url, "the sandbox has given no HTTP address", remedy="read the cluster first")
        return self.rest + urlsplit(url)._replace(scheme="", netloc="").geturl()


def to_json(message: Any) -> dict[str, Any]:
    """A proto-plus message as plain JSON; fields that are unset are left out. None (an empty answer) gives {}."""
    if message is None:
        return {}
    answer: dict[str, Any] = type(message).to_dict(
        message, use_integers_for_enums=False, always_print_fields_with_no_presence=False
    )
    return answer


def translate(error: GoogleAPICallError, what: str, method: str) -> PoolshiftError:
    """A refusal of GKE as one of ours, by its gRPC code, then its reason and words."""
    code = getattr(error.grpc_status_code, "name", "") or ""
    message = str(error.message or error)[:500]
    said = f"{method}: {code}: {message}"
    if code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "INTERNAL"):
        return Unreachable(what, said, remedy="check the network, then run again")
    if code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        action = _ACTIONS.get(method, f"the permission for {method}")
        remedy = f"grant {action} (roles/container.clusterAdmin holds it)"
        return Forbidden(what, said, remedy=remedy if code == "PERMISSION_DENIED" else SIGN_IN)
    if code == "NOT_FOUND":
        return NotFound(what, said, remedy="check project, location and name")
    if code == "ALREADY_EXISTS":
        return Conflict(what, said)
    if code == "RESOURCE_EXHAUSTED" and _stockout(message):
        return NoCapacity(what, said, remedy="wait for capacity, or use a reservation")
    if (code == "FAILED_PRECONDITION" and "operation" in message.lower()) or getattr(error, "reason", "") == (
        "CLUSTER_ALREADY_HAS_OPERATION"
    ):
        found = _OPERATION.search(message)
        return Busy(what, said, found.group(0) if found else "")
    if code == "RESOURCE_EXHAUSTED" and "operation" in message.lower():
        return Busy(what, said, "")
    if code == "RESOURCE_EXHAUSTED":
        return NoCapacity(what, said, remedy="raise the quota, or ask for fewer nodes")
    if code in ("ABORTED",):
        return Conflict(what, said, remedy="somebody else changed it: run again")
    return CloudError(what, said)


def _stockout(message: str) -> bool:
    return any(word in message.lower() for word in _STOCKOUT)


def _no_credentials(what: str, error: Exception) -> Forbidden:
    return Forbidden(what, f"no Google Cloud credentials: {str(error)[:200]}", remedy=SIGN_IN)


def _insecure(endpoint: str) -> Any:
    """A plain channel to the sandbox on loopback."""
    import grpc
    from google.cloud.container_v1.services.cluster_manager.transports import ClusterManagerGrpcTransport

    return ClusterManagerGrpcTransport(channel=grpc.insecure_channel(endpoint))
