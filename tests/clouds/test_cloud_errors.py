"""No SDK exception leaves an adapter: every refusal is one of ours, with object, observation and the next step."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from google.api_core import exceptions as google

from infra.aws import api as aws_api
from infra.clock import ManualClock
from infra.errors import CloudError, Conflict, Forbidden, NoCapacity, NotFound, PoolshiftError, Unreachable
from infra.gcp import api as gcp_api


def refusal(code: str, message: str = "", status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "DescribeNodegroup",
    )


@pytest.mark.parametrize(
    ("code", "status", "expected", "words"),
    [
        ("AccessDeniedException", 403, Forbidden, "allow eks:DescribeNodegroup"),
        ("UnauthorizedOperation", 403, Forbidden, "allow eks:DescribeNodegroup"),
        ("ExpiredTokenException", 403, Forbidden, "renew the credentials"),
        ("ResourceNotFoundException", 404, NotFound, "us-east-2"),
        ("InvalidSubnetID.NotFound", 400, NotFound, "us-east-2"),
        ("InvalidPlacementGroup.Unknown", 400, NotFound, "us-east-2"),
        ("FileSystemNotFound", 400, NotFound, "us-east-2"),
        ("ResourceInUseException", 409, Conflict, ""),
        ("InvalidLaunchTemplateName.AlreadyExistsException", 400, Conflict, ""),
        ("ResourceLimitExceededException", 400, NoCapacity, "quota"),
        ("InsufficientInstanceCapacity", 500, NoCapacity, "reservation"),
        ("ThrottlingException", 429, Unreachable, "again"),
        ("ServerException", 500, Unreachable, "again"),
        ("SomethingNew", 502, Unreachable, "again"),
        ("InvalidParameterException", 400, CloudError, ""),
    ],
)
def test_aws_refusals_are_translated(code, status, expected, words):
    error = aws_api.translate(refusal(code, "no", status), "node group a/b", "eks", "us-east-2")

    assert type(error) is expected
    assert error.object == "node group a/b"
    assert code in error.observed
    assert words in error.remedy


def test_the_permission_of_quotas_is_named_as_iam_writes_it():
    error = aws_api.translate(refusal("AccessDenied", "", 403), "quota", "service-quotas", "us-east-2")

    assert "servicequotas:DescribeNodegroup" in error.remedy


class Broken:
    """A client whose call fails as the SDK's does."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def describe_cluster(self, **body):
        raise self.error


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (NoCredentialsError(), Forbidden, "aws sso login"),
        (EndpointConnectionError(endpoint_url="https://eks.us-east-9.amazonaws.com"), Unreachable, "us-east-2"),
    ],
)
def test_missing_credentials_and_a_wrong_region_are_translated(error, expected, words):
    aws = aws_api.Aws(region="us-east-2")
    aws._clients["eks"] = Broken(error)

    with pytest.raises(expected, match=words):
        aws.call("eks.describe_cluster", "EKS cluster train", {"name": "train"})


def test_malformed_arguments_are_not_sent():
    aws = aws_api.Aws(region="us-east-2", endpoint="http://127.0.0.1:1")

    with pytest.raises(CloudError, match="was not sent"):
        aws.call("eks.describe_cluster", "EKS cluster train", {"nome": "train"})


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (google.PermissionDenied("no"), Forbidden, "container.nodePools.create"),
        (google.Unauthenticated("no"), Forbidden, "gcloud auth application-default login"),
        (google.NotFound("no"), NotFound, "project, location and name"),
        (google.AlreadyExists("no"), Conflict, ""),
        (google.Aborted("no"), Conflict, "again"),
        (google.ServiceUnavailable("no"), Unreachable, "again"),
        (google.DeadlineExceeded("no"), Unreachable, "again"),
        (google.ResourceExhausted("Quota NVIDIA_H200_GPUS exceeded"), NoCapacity, "quota"),
        (google.ResourceExhausted("GCE_STOCKOUT: does not have enough resources"), NoCapacity, "reservation"),
        (google.ResourceExhausted("concurrent operations quota of 5"), gcp_api.Busy, "wait"),
        (google.InvalidArgument("no"), CloudError, ""),
    ],
)
def test_gke_refusals_are_translated(error, expected, words):
    made = gcp_api.translate(error, "node pool a/b", "create_node_pool")

    assert type(made) is expected
    assert made.object == "node pool a/b"
    assert words in made.remedy


def test_a_busy_cluster_names_the_operation_to_wait_for():
    message = "Cluster is running incompatible operation operation-1700000000000-ab12cd34-ef."
    error = gcp_api.translate(google.FailedPrecondition(message), "node pool a/b", "delete_node_pool")

    assert isinstance(error, gcp_api.Busy)
    assert error.operation == "operation-1700000000000-ab12cd34-ef"


def test_our_errors_are_no_sdk_errors():
    for ours in (CloudError, Conflict, Forbidden, NoCapacity, NotFound, Unreachable, gcp_api.Busy):
        assert issubclass(ours, PoolshiftError)
        assert not issubclass(ours, ClientError | google.GoogleAPICallError)


def test_an_unreachable_gke_is_unreachable():
    from infra.gcp.pools import GkePools

    pools = GkePools(gcp_api.Gcp("p", "127.0.0.1:1"), "europe-west4", "train", ManualClock())
    # The SDK's own retry of reads lasts 20 s; a write is tried once.
    with pytest.raises(Unreachable, match="create_node_pool"):
        pools.gcp.call("create_node_pool", "node pool train/x", {"parent": "projects/p/locations/l/clusters/c"})


def test_an_unknown_gke_machine_type_lists_the_known_ones(world):
    from infra.errors import BadSpec

    w = world("gke")

    with pytest.raises(BadSpec, match=r"a3-ultra-8g.*one of .*a3-ultragpu-8g"):
        w.pools.render(w.target.model_copy(update={"machine_type": "a3-ultra-8g"}), "run-1")


def test_an_unknown_ec2_machine_type_says_how_to_list_them(world):
    w = world("eks")

    with pytest.raises(NotFound, match=r"p5en\.96xlarge.*no such type in us-east-2.*describe-instance-types"):
        w.pools.render(w.target.model_copy(update={"machine_type": "p5en.96xlarge"}), "run-1")
