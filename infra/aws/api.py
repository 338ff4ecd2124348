"""One way to call AWS: clients by name, bounded retries, botocore's exceptions translated at the edge."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from infra.errors import CloudError, Conflict, Forbidden, NoCapacity, NotFound, PoolshiftError, Unreachable

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

CONNECT_SECONDS = 5
READ_SECONDS = 30
ATTEMPTS = 4  # botocore's standard mode: throttling and 5xx only, with jitter

_CREDENTIALS = {
    "UnrecognizedClientException",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "AuthFailure",
    "SignatureDoesNotMatch",
    "InvalidSignatureException",
}
_FORBIDDEN = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
_CONFLICT = {"ResourceInUseException", "InvalidLaunchTemplateName.AlreadyExistsException"}
_CAPACITY = {
    "ResourceLimitExceededException",
    "InsufficientInstanceCapacity",
    "ReservationCapacityExceeded",
    "VcpuLimitExceeded",
    "InstanceLimitExceeded",
}
_LATER = {
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TooManyRequestsException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
    "ServerException",
    "InternalError",
    "InternalFailure",
}
_MAKING = threading.Lock()  # boto3 clients may be shared by threads, sessions may not
_IAM_PREFIX = {"service-quotas": "servicequotas"}


@dataclass
class Aws:
    """The account and region that the environment's credentials give. `endpoint` is the sandbox's, or ""."""

    region: str
    endpoint: str = ""
    _clients: dict[str, Any] = field(default_factory=dict, repr=False)

    def client(self, service: str) -> Any:
        """The boto3 client of a service."""
        if service not in self._clients:
            self._clients[service] = _client(self.region, self.endpoint, service)
        return self._clients[service]

    def call(self, verb: str, what: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send `verb` ("eks.describe_nodegroup") about `what`; raises our errors only."""
        from botocore import exceptions as aws

        service, method = verb.split(".")
        try:
            answer = getattr(self.client(service), method)(**body)
        except aws.ClientError as error:
            raise translate(error, what, service, self.region) from error
        except (
            aws.NoCredentialsError,
            aws.PartialCredentialsError,
            aws.CredentialRetrievalError,
            aws.ProfileNotFound,
            aws.TokenRetrievalError,
            aws.SSOError,
        ) as error:
            raise Forbidden(
                what,
                f"no AWS credentials: {error}",
                remedy="sign in (aws sso login, or set AWS_PROFILE), then: aws sts get-caller-identity",
            ) from error
        except aws.ParamValidationError as error:
            raise CloudError(what, f"{verb} was not sent, its arguments are malformed: {error}") from error
        except (aws.BotoCoreError, aws.HTTPClientError) as error:
            raise Unreachable(
                what,
                f"{verb} in {self.region}: {error}",
                remedy=f"check the region and the network: aws eks list-clusters --region {self.region}",
            ) from error
        if not isinstance(answer, dict):
            raise Unreachable(what, f"{verb} answered {type(answer).__name__}, not an object")
        return answer

    def pages(self, verb: str, what: str, key: str, body: Mapping[str, Any]) -> Iterator[Any]:
        """Every item under `key`, page by page, whichever way the service names its token."""
        token: dict[str, Any] = {}
        while True:
            answer = self.call(verb, what, {**body, **token})
            yield from answer.get(key) or ()
            for name in ("nextToken", "NextToken"):
                if answer.get(name):
                    token = {name: answer[name]}
                    break
            else:
                return


def _client(region: str, endpoint: str, service: str) -> Any:
    with _MAKING:
        return _make(region, endpoint, service)


@lru_cache(maxsize=32)
def _make(region: str, endpoint: str, service: str) -> Any:
    """Made once in a process: each costs a tenth of a second, and every step of a run opens the cloud anew."""
    from botocore.config import Config

    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        user_agent_extra="poolshift",
    )
    word = "simulated"
    simulated = {"endpoint_url": endpoint, "aws_access_key_id": word, "aws_secret_access_key": word}
    return _session(region)(service, config=config, **(simulated if endpoint else {}))


@cache
def _session(region: str) -> Any:
    """The client factory of one session: botocore's service models (megabytes of JSON) are then read once."""
    import boto3

    return boto3.session.Session(region_name=region).client


def translate(error: ClientError, what: str, service: str, region: str) -> PoolshiftError:
    """A refusal of AWS as one of ours. The message is AWS's own, cut to 500 characters."""
    detail = error.response.get("Error", {})
    code = str(detail.get("Code", ""))
    said = f"{error.operation_name}: {code}: {str(detail.get('Message', ''))[:500]}"
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _CREDENTIALS:
        return Forbidden(what, said, remedy="renew the credentials, then: aws sts get-caller-identity")
    if code in _FORBIDDEN or status == 403:
        action = f"{_IAM_PREFIX.get(service, service)}:{error.operation_name}"
        return Forbidden(what, said, remedy=f"allow {action} in the caller's IAM policy")
    if _absent(code):
        return NotFound(what, said, remedy=f"check the name and the region ({region})")
    if code in _CONFLICT:
        return Conflict(what, said)
    if code in _CAPACITY:
        return NoCapacity(what, said, remedy="raise the quota, use a reservation, or ask for fewer nodes")
    if code in _LATER or status >= 500:
        return Unreachable(what, said, remedy="run the same command again in a minute")
    return CloudError(what, said)


def _absent(code: str) -> bool:
    """EC2 writes InvalidX.NotFound, EKS ResourceNotFoundException, FSx FileSystemNotFound, placement groups Unknown."""
    return ("NotFound" in code or code.endswith((".Unknown", "NoSuchResourceException"))) and "Permission" not in code
