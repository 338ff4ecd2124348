"""May we? Asked of the API server before anything is touched, so that a missing rule never ends a run half way."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

from infra.deploy import Account, Grant, grants
from infra.errors import Forbidden, NotFound
from infra.kube.api import Kube
from infra.kube.refusals import ApiError

_SIDE_BY_SIDE = 8
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def require(kube: Kube, account: Account, only: Mapping[str, Collection[str]] | None = None) -> None:
    """Return when we may do everything that infra/deploy/rbac.yaml gives `account`. Nothing is written.

    `only`: resources with the verbs that matter, where these are not all.

    Rules for kinds that the cluster does not have are not asked for. Where the server does not answer such
    questions, nothing is known: a missing rule then shows as the error of the request that needs it.

    Raises:
        Forbidden: names every rule that is missing.

    """
    served = {""} | {group["name"] for group in kube.request("GET", "/apis").get("groups") or ()}
    wanted = [
        grant
        for grant in grants(account)
        if grant.group in served and (only is None or grant.verb in only.get(grant.resource, ()))
    ]
    try:
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as beside:
            allowed = list(beside.map(lambda grant: _is_allowed(kube, grant), wanted))
    except (Forbidden, NotFound, ApiError):
        return
    missing = [grant for grant, yes in zip(wanted, allowed, strict=True) if not yes]
    if missing:
        rules = "; ".join(grant.wording(kube.namespace) for grant in missing)
        raise Forbidden(
            f"Kubernetes API {kube.server}",
            f"this account may not {_deeds(missing)}",
            expected=f"the rules of account {account.value}",
            remedy=f"add {rules} (infra/deploy/rbac.yaml has all rules); nothing has been touched",
        )


def _is_allowed(kube: Kube, grant: Grant) -> bool:
    resource, _, sub = grant.resource.partition("/")
    asked = {
        "group": grant.group,
        "resource": resource,
        "subresource": sub,
        "verb": grant.verb,
        "name": kube.namespace if grant.name else "",  # the only rule with a name is about our own namespace
        "namespace": kube.namespace if grant.namespaced else "",
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    answer = kube.request("POST", _REVIEWS, body=review, retry=True)
    return bool((answer.get("status") or {}).get("allowed"))


def _deeds(missing: list[Grant]) -> str:
    """ "patch nodes, create pods/eviction and 3 more": what a person recognises."""
    told = [f"{grant.verb} {grant.resource}" for grant in missing]
    more = f" and {len(told) - 4} more" if len(told) > 4 else ""
    return ", ".join(told[:4]) + more
