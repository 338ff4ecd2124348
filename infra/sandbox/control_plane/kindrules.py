"""What is refused about each kind beside its metadata: one function a kind, for the new object and the old one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infra.sandbox.control_plane import podrules
from infra.sandbox.control_plane.refusals import CONFIG_KEY, Refusals
from infra.sandbox.control_plane.selectors import matches_selector
from infra.sandbox.control_plane.strategy import job_labels, job_selector

Object = dict[str, Any]
Rule = Callable[[Object, Object | None, Refusals], None]

RULES: dict[tuple[str, str], Rule] = {}
TEMPLATE_WHILE_SUSPENDED = ("nodeSelector", "tolerations", "schedulingGates", "affinity")
JOB_FIXED = ("completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy")
STATEFUL_SET_FREE = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)
HIGHEST_PRIORITY = 1_000_000_000


def _of(group: str, plural: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES[group, plural] = rule
        return rule

    return register


@_of("", "pods")
def _pod(new: Object, old: Object | None, found: Refusals) -> None:
    if old is None:
        podrules.check_spec(new["spec"], "spec", found)
    else:
        podrules.check_update(new, old, found)


def _replicated(new: Object, found: Refusals, kind: str, restarts: tuple[str, ...] = ("Always",)) -> None:
    spec = new["spec"]
    found.not_negative("spec.replicas", spec.get("replicas"))
    found.not_negative("spec.minReadySeconds", spec.get("minReadySeconds"))
    selector, template = spec.get("selector"), spec.get("template") or {}
    if selector is None:
        found.required("spec.selector")
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        found.invalid("spec.selector", selector, f"empty selector is invalid for {kind}")
    else:
        found.selector("spec.selector", selector)
    labels = template.get("metadata", {}).get("labels") or {}
    if selector and not matches_selector(selector, labels):
        found.invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
    found.labels("spec.template.labels", labels)
    podrules.check_spec(template.get("spec", {}), "spec.template.spec", found)
    found.one_of("spec.template.spec.restartPolicy", template.get("spec", {}).get("restartPolicy"), restarts)


@_of("apps", "deployments")
def _deployment(new: Object, old: Object | None, found: Refusals) -> None:
    spec = new["spec"]
    _replicated(new, found, "deployment")
    strategy = spec.get("strategy", {})
    found.one_of("spec.strategy.type", strategy.get("type"), ("Recreate", "RollingUpdate"))
    rolling = strategy.get("rollingUpdate")
    if strategy.get("type") == "Recreate" and rolling:
        found.forbidden("spec.strategy.rollingUpdate", "may not be specified when strategy `type` is 'Recreate'")
    elif rolling:
        found.int_or_percent("spec.strategy.rollingUpdate.maxUnavailable", rolling.get("maxUnavailable"))
        if rolling.get("maxUnavailable") in (0, "0%") and rolling.get("maxSurge") in (0, "0%"):
            value, why = rolling["maxUnavailable"], "may not be 0 when `maxSurge` is 0"
            found.invalid("spec.strategy.rollingUpdate.maxUnavailable", value, why)
    if spec.get("progressDeadlineSeconds", 600) <= spec.get("minReadySeconds", 0):
        value = spec.get("progressDeadlineSeconds")
        found.invalid("spec.progressDeadlineSeconds", value, "must be greater than minReadySeconds")
    if old is not None:
        found.unchanged("spec.selector", spec.get("selector"), old["spec"].get("selector"))


@_of("apps", "replicasets")
def _replica_set(new: Object, old: Object | None, found: Refusals) -> None:
    _replicated(new, found, "replica set")
    if old is not None:
        found.unchanged("spec.selector", new["spec"].get("selector"), old["spec"].get("selector"))


@_of("apps", "daemonsets")
def _daemon_set(new: Object, old: Object | None, found: Refusals) -> None:
    _replicated(new, found, "daemonset")
    found.one_of("spec.updateStrategy.type", new["spec"]["updateStrategy"].get("type"), ("OnDelete", "RollingUpdate"))
    if old is not None:
        found.unchanged("spec.selector", new["spec"].get("selector"), old["spec"].get("selector"))


@_of("apps", "statefulsets")
def _stateful_set(new: Object, old: Object | None, found: Refusals) -> None:
    spec = new["spec"]
    _replicated(new, found, "statefulset")
    found.one_of("spec.podManagementPolicy", spec.get("podManagementPolicy"), ("OrderedReady", "Parallel"))
    if old is not None and _less(spec, STATEFUL_SET_FREE) != _less(old["spec"], STATEFUL_SET_FREE):
        listed = ", ".join(f"'{name}'" for name in STATEFUL_SET_FREE[:-1])
        why = f"updates to statefulset spec for fields other than {listed} and 'minReadySeconds' are forbidden"
        found.forbidden("spec", why)


@_of("batch", "jobs")
def _job(new: Object, old: Object | None, found: Refusals) -> None:
    spec = new["spec"]
    _job_spec(spec, "spec", found)
    if old is None:
        _job_selector(new, found)
        return
    before = old["spec"]
    found.unchanged("spec.selector", spec.get("selector"), before.get("selector"))
    _job_template(new, old, found)
    for name in JOB_FIXED:
        found.unchanged(f"spec.{name}", spec.get(name), before.get(name))
    elastic = spec.get("completionMode") == "Indexed" and spec.get("completions") == spec.get("parallelism")
    if not elastic:
        found.unchanged("spec.completions", spec.get("completions"), before.get("completions"))


def _job_selector(job: Object, found: Refusals) -> None:
    """Its own, or, where it is to be the user's, a full one."""
    spec = job["spec"]
    selector, labels = spec.get("selector"), spec["template"].get("metadata", {}).get("labels")
    if not spec.get("manualSelector"):
        for key, value in job_labels(job).items():
            if (labels or {}).get(key) != value:
                found.invalid(f"spec.template.metadata.labels[{key}]", labels, f"must be '{value}'")
        if selector != job_selector(job):
            found.invalid("spec.selector", selector, "`selector` not auto-generated")
    elif selector is None:
        found.required("spec.selector")
    if selector is None or not matches_selector(selector, labels or {}):
        found.invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")


def _job_spec(spec: Object, path: str, found: Refusals) -> None:
    for name in ("parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"):
        found.not_negative(f"{path}.{name}", spec.get(name))
    mode = spec.get("completionMode")
    found.one_of(f"{path}.completionMode", mode, ("Indexed", "NonIndexed"))
    if mode == "Indexed" and spec.get("completions") is None:
        found.required(f"{path}.completions", "when completion mode is Indexed")
    pod = spec.get("template", {}).get("spec", {})
    podrules.check_spec(pod, f"{path}.template.spec", found)
    policy = pod.get("restartPolicy")
    if policy in (None, "Always"):
        found.required(f"{path}.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')
    elif spec.get("podFailurePolicy") and policy != "Never":
        why = 'only "Never" is supported when podFailurePolicy is specified'
        found.invalid(f"{path}.template.spec.restartPolicy", policy, why)


def _job_template(new: Object, old: Object, found: Refusals) -> None:
    """Where its pods may go, and what they get, can change while a job is suspended."""
    template, before = new["spec"]["template"], old["spec"]["template"]
    if template == before:
        return
    if not old["spec"].get("suspend"):
        found.invalid("spec.template", template, "field is immutable")
        return
    free = () if old.get("status", {}).get("startTime") else TEMPLATE_WHILE_SUSPENDED
    if _fixed_pod(template["spec"], free) != _fixed_pod(before["spec"], free):
        found.invalid("spec.template.spec", template["spec"], "field is immutable")


def _fixed_pod(spec: Object, free: tuple[str, ...]) -> Object:
    fixed = _less(spec, free)
    for group in ("containers", "initContainers"):
        if group in fixed:
            fixed[group] = [_less(each, ("resources",)) for each in fixed[group]]
    return fixed


@_of("batch", "cronjobs")
def _cron_job(new: Object, old: Object | None, found: Refusals) -> None:
    spec = new["spec"]
    if not spec.get("schedule"):
        found.required("spec.schedule")
    found.one_of("spec.concurrencyPolicy", spec.get("concurrencyPolicy"), ("Allow", "Forbid", "Replace"))
    _job_spec(spec["jobTemplate"]["spec"], "spec.jobTemplate.spec", found)


@_of("policy", "poddisruptionbudgets")
def _budget(new: Object, old: Object | None, found: Refusals) -> None:
    spec = new["spec"]
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        found.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")
    found.int_or_percent("spec.minAvailable", spec.get("minAvailable"))
    found.int_or_percent("spec.maxUnavailable", spec.get("maxUnavailable"))
    found.selector("spec.selector", spec.get("selector"))
    found.one_of(
        "spec.unhealthyPodEvictionPolicy", spec.get("unhealthyPodEvictionPolicy"), ("AlwaysAllow", "IfHealthyBudget")
    )
    for name in ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"):
        found.not_negative(f"status.{name}", new.get("status", {}).get(name))


@_of("coordination.k8s.io", "leases")
def _lease(new: Object, old: Object | None, found: Refusals) -> None:
    spec = new.get("spec", {})
    seconds = spec.get("leaseDurationSeconds")
    if isinstance(seconds, int) and seconds <= 0:
        found.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0")
    found.not_negative("spec.leaseTransitions", spec.get("leaseTransitions"))


@_of("", "nodes")
def _node(new: Object, old: Object | None, found: Refusals) -> None:
    spec = new.get("spec", {})
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(spec.get("taints") or ()):
        where = f"metadata.taints[{index}]"
        found.qualified_name(f"{where}.key", taint.get("key", ""))
        found.label_value(f"{where}.value", taint.get("value", ""))
        effect = taint.get("effect", "")
        if not effect:
            found.required(f"{where}.effect")
        else:
            found.one_of(f"{where}.effect", effect, podrules.EFFECTS)
        identity = (taint.get("key", ""), effect)
        if identity in seen:
            found.duplicate(where, taint)
        seen.add(identity)
    if old is not None:
        provider = old.get("spec", {}).get("providerID")
        if provider and provider != spec.get("providerID"):
            why = 'node updates may not change providerID except from "" to valid'
            found.forbidden("spec.providerID", why)


@_of("", "configmaps")
def _config_map(new: Object, old: Object | None, found: Refusals) -> None:
    _keyed(new, ("data", "binaryData"), found)
    if old is not None and old.get("immutable"):
        _frozen(new, old, ("data", "binaryData"), found)


@_of("", "secrets")
def _secret(new: Object, old: Object | None, found: Refusals) -> None:
    _keyed(new, ("data",), found)
    if old is not None:
        found.unchanged("type", new.get("type"), old.get("type"))
        if old.get("immutable"):
            _frozen(new, old, ("data",), found)


def _keyed(obj: Object, parts: tuple[str, ...], found: Refusals) -> None:
    rule = (
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',"
        "  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
    )
    for part in parts:
        for key in obj.get(part) or {}:
            if not CONFIG_KEY.fullmatch(key):
                found.invalid(f"{part}[{key}]", key, rule)


def _frozen(new: Object, old: Object, parts: tuple[str, ...], found: Refusals) -> None:
    if not new.get("immutable"):
        found.forbidden("immutable", "field is immutable when `immutable` is set")
    for part in parts:
        if new.get(part) != old.get(part):
            found.forbidden(part, "field is immutable when `immutable` is set")


@_of("", "services")
def _service(new: Object, old: Object | None, found: Refusals) -> None:
    spec = new["spec"]
    types = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
    found.one_of("spec.type", spec.get("type"), types)
    if not spec.get("ports") and spec.get("type") != "ExternalName" and spec.get("clusterIP") != "None":
        found.required("spec.ports")
    for index, port in enumerate(spec.get("ports") or ()):
        number = port.get("port", 0)
        if not 1 <= number <= 65535:
            found.invalid(f"spec.ports[{index}].port", number, "must be between 1 and 65535, inclusive")
        if len(spec["ports"]) > 1 and not port.get("name"):
            found.required(f"spec.ports[{index}].name")
    if old is not None and old["spec"].get("clusterIP") and spec.get("type") != "ExternalName":
        before = old["spec"]["clusterIP"]
        if spec.get("clusterIP") != before:
            found.invalid("spec.clusterIPs[0]", spec.get("clusterIPs", []), "may not change once set")


@_of("", "persistentvolumeclaims")
def _claim(new: Object, old: Object | None, found: Refusals) -> None:
    spec = new["spec"]
    if old is None:
        if not spec.get("accessModes"):
            found.required("spec.accessModes", "at least 1 access mode is required")
        if "storage" not in spec.get("resources", {}).get("requests", {}):
            found.required("spec.resources[storage]")
        return
    before = old["spec"]
    free = ("resources",) if before.get("volumeName") else ("volumeName", "storageClassName")
    if _less(spec, free) != _less(before, free):
        why = (
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
        )
        found.forbidden("spec", why)


@_of("", "persistentvolumes")
def _volume(new: Object, old: Object | None, found: Refusals) -> None:
    spec = new["spec"]
    if not spec.get("accessModes"):
        found.required("spec.accessModes")
    if "storage" not in spec.get("capacity", {}):
        found.required("spec.capacity")


@_of("storage.k8s.io", "storageclasses")
def _storage_class(new: Object, old: Object | None, found: Refusals) -> None:
    if not new.get("provisioner"):
        found.required("provisioner")
    if old is None:
        return
    for name in ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"):
        if new.get(name) == old.get(name):
            continue
        if name == "parameters":
            found.forbidden(name, "updates to parameters are forbidden.")
        else:
            found.invalid(name, new.get(name), "field is immutable")


@_of("scheduling.k8s.io", "priorityclasses")
def _priority_class(new: Object, old: Object | None, found: Refusals) -> None:
    name, value = new["metadata"]["name"], new.get("value", 0)
    if old is not None:
        if value != old.get("value"):
            found.forbidden("value", "may not be changed in an update.")
        return
    if name in ("system-cluster-critical", "system-node-critical"):
        return
    if name.startswith("system-"):
        found.forbidden("metadata.name", "priority class names with 'system-' prefix are reserved for system use only")
    if value > HIGHEST_PRIORITY:
        why = f"maximum allowed value of a user defined priority is {HIGHEST_PRIORITY}"
        found.forbidden("value", why)


@_of("", "events")
def _event(new: Object, old: Object | None, found: Refusals) -> None:
    about = new.get("involvedObject", {}).get("namespace", "")
    namespace = new["metadata"].get("namespace", "")
    if about != namespace and not (not about and namespace in ("default", "kube-system")):
        found.invalid("involvedObject.namespace", about, "does not match event.namespace")


def _role_binding(new: Object, old: Object | None, found: Refusals) -> None:
    if old is not None and new.get("roleRef") != old.get("roleRef"):
        found.invalid("roleRef", new.get("roleRef"), "cannot change roleRef")


RULES["rbac.authorization.k8s.io", "rolebindings"] = _role_binding
RULES["rbac.authorization.k8s.io", "clusterrolebindings"] = _role_binding


@_of("apiextensions.k8s.io", "customresourcedefinitions")
def _definition(new: Object, old: Object | None, found: Refusals) -> None:
    spec = new["spec"]
    wanted = f"{spec['names'].get('plural', '')}.{spec.get('group', '')}"
    if new["metadata"]["name"] != wanted:
        why = 'must be spec.names.plural+"."+spec.group'
        found.invalid("metadata.name", new["metadata"]["name"], why)
    found.one_of("spec.scope", spec.get("scope"), ("Cluster", "Namespaced"))
    if sum(bool(each.get("storage")) for each in spec.get("versions") or ()) != 1:
        found.invalid("spec.versions", spec.get("versions"), "must have exactly one version marked as storage version")
    for index, version in enumerate(spec.get("versions") or ()):
        if "openAPIV3Schema" not in version.get("schema", {}):
            found.required(f"spec.versions[{index}].schema.openAPIV3Schema", "schemas are required")
    if old is not None:
        found.unchanged("spec.scope", spec.get("scope"), old["spec"].get("scope"))
        found.unchanged("spec.names.kind", spec["names"].get("kind"), old["spec"]["names"].get("kind"))


def _less(obj: Object, names: tuple[str, ...]) -> Object:
    return {key: value for key, value in obj.items() if key not in names}
