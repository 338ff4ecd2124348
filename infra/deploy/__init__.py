"""What an installation needs, as data: the roles in a cluster (rbac.yaml) and in the clouds, image and worker."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from importlib.resources import files
from typing import Any


class Account(Enum):
    """The service accounts of rbac.yaml, by what they are for."""

    PLAN = "poolshift-plan"
    MIGRATE = "poolshift"
    PROVE = "poolshift-prove"


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Grant:
    """One permission. `namespaced`: only in poolshift's own namespace. `name`: only that object."""

    group: str
    resource: str
    verb: str
    namespaced: bool = False
    name: str = ""

    def wording(self, namespace: str) -> str:
        """As a rule to add. `namespace`: poolshift's own in this cluster."""
        where = f" in namespace {namespace}" if self.namespaced else ""
        return f'verb "{self.verb}" on resource "{self.resource}" in apiGroup "{self.group}"{where}'


def manifests() -> list[dict[str, Any]]:
    """The objects of rbac.yaml."""
    import yaml

    return list(yaml.safe_load_all((files(__package__) / "rbac.yaml").read_text()))


def grants(account: Account) -> tuple[Grant, ...]:
    """Everything that rbac.yaml lets the account do, in the file's order."""
    objects = manifests()
    bound = {
        (item["roleRef"]["kind"], item["roleRef"]["name"])
        for item in objects
        if item["kind"].endswith("Binding") and account.value in [subject["name"] for subject in item["subjects"]]
    }
    return tuple(
        Grant(group=group, resource=resource, verb=verb, namespaced=item["kind"] == "Role", name=name)
        for item in objects
        if (item["kind"], item["metadata"]["name"]) in bound
        for rule in item["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", ("",))
    )
