"""The rights in infra/deploy are those of the requests that the adapters send: none is missing, none is for nothing."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import botocore.session
import pytest
import yaml
from botocore import xform_name

from infra.gcp import api as gcp

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "infra" / "deploy"
ASKED_OF_THE_CALLER = {"ec2:CreateTags", "ec2:RunInstances", "iam:GetRole", "iam:PassRole"}
"""No request of ours: EKS and EC2 look for these when CreateNodegroup names a template and a role (the error is
"You are not authorized to launch instances with this launch template")."""
ACT_AS = "iam.serviceAccounts.actAs"
SERVICES = ("autoscaling", "ec2", "eks", "fsx", "service-quotas")


def words(folder: str, without: str = "") -> set[str]:
    """Every string constant in the adapter."""
    found: set[str] = set()
    for path in (ROOT / "infra" / folder).glob("*.py"):
        if path.name == without:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


@pytest.fixture(scope="module")
def policy() -> list[str]:
    document = json.loads((DEPLOY / "aws-policy.json").read_text())
    return [action for statement in document["Statement"] for action in statement["Action"]]


@pytest.fixture(scope="module")
def role() -> list[str]:
    listed: list[str] = yaml.safe_load((DEPLOY / "gcp-role.yaml").read_text())["includedPermissions"]
    return listed


def test_the_aws_policy_lists_the_actions_of_our_requests(policy: list[str]) -> None:
    session = botocore.session.get_session()
    names = {
        (service, xform_name(operation)): operation
        for service in SERVICES
        for operation in session.get_service_model(service).operation_names
    }
    verbs = [word.split(".") for word in words("aws") if re.fullmatch(rf"({'|'.join(SERVICES)})\.[a-z_]+", word)]
    sent = {f"{service.replace('-', '')}:{names[service, method]}" for service, method in verbs}
    assert len(sent) > 20
    assert set(policy) == sent | ASKED_OF_THE_CALLER


def test_no_right_is_listed_twice_or_as_a_wildcard(policy: list[str], role: list[str]) -> None:
    for listed in (policy, role):
        assert len(set(listed)) == len(listed)
        assert not [right for right in listed if "*" in right]


def test_the_google_role_lists_the_permissions_of_our_requests(role: list[str]) -> None:
    said = words("gcp", without="api.py")  # there is the table itself
    methods = {method for method in gcp._ACTIONS if method in said}
    rest = {word for word in said if re.fullmatch(r"(compute|lustre)\.[a-zA-Z]+\.[a-z]+", word)}
    assert set(role) == {gcp._ACTIONS[method] for method in methods} | rest | {ACT_AS}


def test_every_google_method_that_is_called_has_a_permission() -> None:
    from google.cloud.container_v1 import ClusterManagerClient

    callable_names = {
        name for name in dir(ClusterManagerClient) if re.match(r"(get|list|create|update|set|delete)_", name)
    }
    assert callable_names & words("gcp", without="api.py") <= set(gcp._ACTIONS)
