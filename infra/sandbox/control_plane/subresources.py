"""What hangs under an object beside its status: scale, eviction, binding, finalize, tokens, reviews."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from infra.clock import rfc3339
from infra.sandbox.control_plane import deletion, errors, eviction, patch
from infra.sandbox.control_plane.call import Call
from infra.sandbox.control_plane.resources import by_plural
from infra.sandbox.control_plane.store import NAMESPACE, POD, Store, copied

Object = dict[str, Any]

EVICTION_VERSIONS = ("policy/v1", "policy/v1beta1")
SERVICE_ACCOUNT = by_plural("", "v1", "serviceaccounts")
CREATED: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
MERGES = ("application/merge-patch+json", "application/strategic-merge-patch+json")


def evict(store: Store, call: Call) -> Object:
    """POST pods/NAME/eviction."""
    body = call.object()
    version, kind = body.get("apiVersion") or "policy/v1", body.get("kind") or "Eviction"
    if kind != "Eviction" or version not in EVICTION_VERSIONS:
        raise errors.bad_request(f"not a Eviction object: {version}, Kind={kind}")
    if body.get("metadata", {}).get("name", "") != call.name:
        raise errors.bad_request("name in URL does not match name in Eviction object")
    options = delete_options(call, body.get("deleteOptions") or {})
    return eviction.evict(store, call.namespace or "", call.name, options)


def delete_options(call: Call, body: Object) -> deletion.Options:
    """DeleteOptions from a body, with the query's where the body has none. 422 for wrong ones."""
    query = call.query
    grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    policy = body.get("propagationPolicy", query.get("propagationPolicy"))
    orphan = body.get("orphanDependents", query.get("orphanDependents"))
    causes = []
    if policy not in (None, "Orphan", "Background", "Foreground"):
        text = f'Unsupported value: "{policy}": supported values: "Foreground", "Background", "Orphan", "nil"'
        causes.append(errors.Cause(reason="FieldValueNotSupported", message=text, field="propagationPolicy"))
    dry_run = body.get("dryRun") or ([query["dryRun"]] if query.get("dryRun") else [])
    if any(each != "All" for each in dry_run):
        text = f'Unsupported value: {dry_run}: supported values: "All"'.replace("'", '"')
        causes.append(errors.Cause(reason="FieldValueNotSupported", message=text, field="dryRun"))
    if causes:
        raise errors.invalid("meta.k8s.io", "DeleteOptions", "", causes)
    if orphan is not None and policy is None:
        policy = "Orphan" if orphan in (True, "true") else "Background"
    preconditions = body.get("preconditions") or {}
    return deletion.Options(
        grace=int(grace) if grace is not None else None,
        propagation=policy,
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
        dry_run=bool(dry_run),
    )


def bind(store: Store, call: Call, name: str) -> Object:
    """POST pods/NAME/binding, and bindings: the scheduler's decision."""
    body = call.object()
    target = body.get("target") or {}
    if target.get("kind", "Node") not in ("Node", "Minion"):
        text = f'Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
        raise errors.internal(f"target.kind: {text}")
    if not target.get("name"):
        raise errors.internal("target.name: Required value")
    pod = store.require(POD, call.namespace, name)
    sent = body.get("metadata", {})
    if sent.get("uid") and sent["uid"] != pod["metadata"]["uid"]:
        why = f"Precondition failed: UID in precondition: {sent['uid']}, UID in object meta: {pod['metadata']['uid']}"
        raise errors.conflict("", "pods", name, why)
    if not call.dry_run:
        assign(store, pod, target["name"], sent.get("annotations") or {})
    return CREATED


def assign(store: Store, pod: Object, node: str, annotations: Object | None = None) -> Object:
    """Bind a pod to a node, once. 409 if it is bound, gated or going."""
    name, held = pod["metadata"]["name"], pod["spec"].get("nodeName")
    if held:
        raise errors.conflict(
            "", "pods/binding", name, f"pod {name} is already assigned to node {held!r}".replace("'", '"')
        )
    if "deletionTimestamp" in pod["metadata"]:
        raise errors.conflict("", "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if pod["spec"].get("schedulingGates"):
        raise errors.conflict("", "pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
    conditions = [each for each in pod["status"].get("conditions") or () if each["type"] != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": store.now()}
    bound = {
        **pod,
        "spec": {**pod["spec"], "nodeName": node},
        "status": {**pod["status"], "conditions": [*conditions, scheduled]},
    }
    if annotations:
        merged = {**pod["metadata"].get("annotations", {}), **annotations}
        bound["metadata"] = {**pod["metadata"], "annotations": merged}
    return store.commit(POD, "MODIFIED", bound, pod)


# Scale


def read_scale(store: Store, call: Call) -> Object:
    """GET NAME/scale."""
    return _scale_of(store.require(call.kind, call.namespace, call.name))


def write_scale(store: Store, call: Call) -> Object:
    """PUT and PATCH NAME/scale: the replicas, and nothing else."""
    obj = store.require(call.kind, call.namespace, call.name)
    scale = _scale_of(obj)
    if call.method == "PUT":
        wanted = call.object()
    elif call.media_type in MERGES:
        wanted = patch.merge(scale, call.object())
    elif call.media_type == "application/json-patch+json":
        wanted = patch.json_patch(copied(scale), call.json())
    else:
        accepted = "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json"
        raise errors.unsupported_media_type(
            f"the body of the request was in an unknown format - accepted media types include: {accepted}"
        )
    version = wanted.get("metadata", {}).get("resourceVersion")
    if version and version != obj["metadata"]["resourceVersion"]:
        raise errors.stale(call.kind.group, call.kind.plural, call.name)
    replicas = wanted.get("spec", {}).get("replicas") or 0
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise errors.bad_request(
            'Scale in version "v1" cannot be handled as a Scale: json: cannot unmarshal '
            "string into Go struct field ScaleSpec.spec.replicas of type int32"
        )
    if replicas < 0:
        text = f"Invalid value: {replicas}: must be greater than or equal to 0"
        cause = errors.Cause(reason="FieldValueInvalid", message=text, field="spec.replicas")
        raise errors.invalid("autoscaling", "Scale", call.name, [cause])
    new = {**obj, "metadata": dict(obj["metadata"]), "spec": {**obj["spec"], "replicas": replicas}}
    return _scale_of(store.update(call.kind, copied(new), dry_run=call.dry_run))


def _scale_of(obj: Object) -> Object:
    metadata, spec = obj["metadata"], obj.get("spec", {})
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    selector = spec.get("selector") or {}
    labels = selector.get("matchLabels", {} if "matchExpressions" in selector else selector)
    terms = [f"{key}={value}" for key, value in sorted(labels.items())]
    terms += [_term(each) for each in selector.get("matchExpressions", ())] if "matchExpressions" in selector else []
    replicas = spec.get("replicas", 1)
    status: Object = {"replicas": obj.get("status", {}).get("replicas", 0)}
    if terms:
        status["selector"] = ",".join(terms)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def _term(expression: Object) -> str:
    key, values = expression["key"], ",".join(sorted(expression.get("values", ())))
    forms = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key, "DoesNotExist": f"!{key}"}
    return str(forms[expression["operator"]])


# Others


def finalize_namespace(store: Store, call: Call) -> Object:
    """PUT namespaces/NAME/finalize: spec.finalizers, and the end of a namespace that has none left."""
    namespace = store.require(NAMESPACE, None, call.name)
    finalizers = (call.object().get("spec") or {}).get("finalizers") or []
    spec = {**namespace.get("spec", {}), "finalizers": finalizers}
    if not finalizers:
        del spec["finalizers"]
    new = {**namespace, "spec": spec}
    if call.dry_run or new == namespace:
        return new
    if deletion.released(new):
        return store.remove(NAMESPACE, new)
    return store.commit(NAMESPACE, "MODIFIED", new, namespace)


def token(store: Store, call: Call) -> Object:
    """POST serviceaccounts/NAME/token: a token that means nothing here, since nobody is asked for one."""
    account = store.require(SERVICE_ACCOUNT, call.namespace, call.name)
    spec = call.object().get("spec") or {}
    seconds = int(spec.get("expirationSeconds") or 3600)
    expires = rfc3339(store.clock.now() + timedelta(seconds=seconds))
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": call.name, "namespace": call.namespace, "creationTimestamp": store.now()},
        "spec": {**spec, "expirationSeconds": seconds},
        "status": {"token": f"simulated-{account['metadata']['uid']}", "expirationTimestamp": expires},
    }


def review(call: Call) -> Object:
    """POST of a review: everybody may do everything here, and is called the sandbox's administrator."""
    body = call.object()
    answer: Object = {"kind": call.kind.kind, "apiVersion": call.kind.api_version, "metadata": {}}
    answer["spec"] = body.get("spec") or {}
    if call.kind.plural == "selfsubjectreviews":
        answer.pop("spec")
        answer["status"] = {"userInfo": {"username": "sandbox", "groups": ["system:masters", "system:authenticated"]}}
    elif call.kind.plural == "selfsubjectrulesreviews":
        rules = {
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": False,
        }
        answer["status"] = rules
    elif call.kind.plural == "tokenreviews":
        answer["status"] = {"authenticated": False, "user": {}, "error": "the embedded control plane knows no tokens"}
    else:
        attributes = answer["spec"].get("resourceAttributes") or answer["spec"].get("nonResourceAttributes")
        if not attributes:
            text = "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"
            cause = errors.Cause(reason="FieldValueInvalid", message=text, field="spec.resourceAttributes")
            raise errors.invalid(call.kind.group, call.kind.kind, "", [cause])
        answer["status"] = {"allowed": True, "reason": "the embedded control plane allows everything"}
    return answer
