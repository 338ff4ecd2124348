"""Defaults that clients and controllers rely on, filled in place on objects that nobody else holds.

They are the versioned defaults of the real server (k8s.io/kubernetes pkg/apis/*/v1/defaults.go); admission
adds its own in `admission`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

Object = dict[str, Any]
Rule = Callable[[Object], None]

RULES: dict[tuple[str, str], Rule] = {}
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
UNLIMITED = 2**31 - 1
TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
"""Counts changes of a DaemonSet's template; an annotation, since apps/v1 has no field for it."""


def apply(key: tuple[str, str], obj: Object) -> None:
    """Fill the defaults of one object of the resource `key` (group, plural)."""
    rule = RULES.get(key)
    if rule is not None:
        rule(obj)


def _for(group: str, plural: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES[group, plural] = rule
        return rule

    return register


def _fill(target: Object, **values: Any) -> None:
    for key, value in values.items():
        if target.get(key) is None:
            target[key] = value


# Pods and their templates


def image_pull_policy(image: str) -> str:
    """Always for a moving tag, as the server decides from the image's name."""
    if "@" in image:
        return "IfNotPresent"
    _, _, last = image.rpartition("/")
    _, _, tag = last.partition(":")
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _container(container: Object) -> None:
    _fill(
        container,
        imagePullPolicy=image_pull_policy(container.get("image", "")),
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
        resources={},
    )
    limits, requests = container["resources"].get("limits"), container["resources"].get("requests", {})
    if limits and any(name not in requests for name in limits):
        container["resources"]["requests"] = {**limits, **requests}
    for port in container.get("ports", ()):
        _fill(port, protocol="TCP")
    for name in PROBES:
        if name in container:
            _probe(container[name])
    for variable in container.get("env", ()):
        field = variable.get("valueFrom", {}).get("fieldRef")
        if field:
            _fill(field, apiVersion="v1")


def _probe(probe: Object) -> None:
    _fill(probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
    if "httpGet" in probe:
        _fill(probe["httpGet"], path="/", scheme="HTTP")
    if "grpc" in probe:
        _fill(probe["grpc"], service="")


def _volume(volume: Object) -> None:
    if len(volume) == 1:
        volume["emptyDir"] = {}
    for source in ("secret", "configMap", "projected", "downwardAPI"):
        if source in volume:
            _fill(volume[source], defaultMode=420)
    for projection in volume.get("projected", {}).get("sources", ()):
        if "serviceAccountToken" in projection:
            _fill(projection["serviceAccountToken"], expirationSeconds=3600)
    if "hostPath" in volume:
        _fill(volume["hostPath"], type="")
    claim = volume.get("ephemeral", {}).get("volumeClaimTemplate")
    if claim:
        _fill(claim.setdefault("spec", {}), volumeMode="Filesystem")


def pod_spec(spec: Object) -> None:
    """The part that pods and pod templates share."""
    _fill(
        spec,
        restartPolicy="Always",
        dnsPolicy="ClusterFirst",
        terminationGracePeriodSeconds=30,
        securityContext={},
        schedulerName="default-scheduler",
    )
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for group in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec.get(group) or ():
            _container(container)
            if spec.get("hostNetwork"):
                for port in container.get("ports", ()):
                    _fill(port, hostPort=port.get("containerPort"))
    for volume in spec.get("volumes") or ():
        _volume(volume)


def _template(template: Object) -> None:
    template.setdefault("metadata", {})
    pod_spec(template.setdefault("spec", {}))


@_for("", "pods")
def _pod(pod: Object) -> None:
    pod_spec(pod["spec"])
    _fill(pod["spec"], enableServiceLinks=True)


@_for("", "podtemplates")
def _pod_template(obj: Object) -> None:
    _template(obj.setdefault("template", {}))


# Workloads


@_for("apps", "deployments")
def _deployment(obj: Object) -> None:
    spec = obj["spec"]
    _template(spec.setdefault("template", {}))
    _fill(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600, strategy={})
    _fill(spec["strategy"], type="RollingUpdate")
    if spec["strategy"]["type"] == "RollingUpdate":
        _fill(spec["strategy"], rollingUpdate={})
        _fill(spec["strategy"]["rollingUpdate"], maxUnavailable="25%", maxSurge="25%")


@_for("apps", "replicasets")
def _replica_set(obj: Object) -> None:
    spec = obj["spec"]
    if "template" in spec:
        _template(spec["template"])
    _fill(spec, replicas=1)


@_for("", "replicationcontrollers")
def _replication_controller(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    if "template" in spec:
        _template(spec["template"])
        labels = spec["template"]["metadata"].get("labels")
        if labels:
            _fill(spec, selector=dict(labels))
            _fill(obj["metadata"], labels=dict(labels))
    _fill(spec, replicas=1)


@_for("apps", "statefulsets")
def _stateful_set(obj: Object) -> None:
    spec = obj["spec"]
    _template(spec.setdefault("template", {}))
    _fill(
        spec,
        replicas=1,
        revisionHistoryLimit=10,
        podManagementPolicy="OrderedReady",
        updateStrategy={},
        persistentVolumeClaimRetentionPolicy={},
    )
    _fill(spec["updateStrategy"], type="RollingUpdate")
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        _fill(spec["updateStrategy"], rollingUpdate={})
        _fill(spec["updateStrategy"]["rollingUpdate"], partition=0)
    _fill(spec["persistentVolumeClaimRetentionPolicy"], whenDeleted="Retain", whenScaled="Retain")
    for claim in spec.get("volumeClaimTemplates", ()):
        _fill(claim, apiVersion="v1", kind="PersistentVolumeClaim", status={"phase": "Pending"})
        _claim(claim)


@_for("apps", "daemonsets")
def _daemon_set(obj: Object) -> None:
    spec = obj["spec"]
    _template(spec.setdefault("template", {}))
    obj["metadata"]["annotations"] = {TEMPLATE_GENERATION: "1", **(obj["metadata"].get("annotations") or {})}
    _fill(spec, revisionHistoryLimit=10, updateStrategy={})
    _fill(spec["updateStrategy"], type="RollingUpdate")
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        _fill(spec["updateStrategy"], rollingUpdate={})
        _fill(spec["updateStrategy"]["rollingUpdate"], maxUnavailable=1, maxSurge=0)


def _job_spec(spec: Object) -> None:
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    policy = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    limit = UNLIMITED if spec.get("backoffLimitPerIndex") is not None else 6
    _fill(
        spec,
        parallelism=1,
        backoffLimit=limit,
        completionMode="NonIndexed",
        suspend=False,
        podReplacementPolicy=policy,
        manualSelector=False,
    )
    _template(spec.setdefault("template", {}))
    for rule in spec.get("podFailurePolicy", {}).get("rules", ()):
        for pattern in rule.get("onPodConditions", ()):
            _fill(pattern, status="True")


@_for("batch", "jobs")
def _job(obj: Object) -> None:
    _job_spec(obj["spec"])


@_for("batch", "cronjobs")
def _cron_job(obj: Object) -> None:
    spec = obj["spec"]
    _fill(spec, concurrencyPolicy="Allow", suspend=False, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1)
    template = spec.setdefault("jobTemplate", {})
    template.setdefault("metadata", {})
    _template(template.setdefault("spec", {}).setdefault("template", {}))


@_for("autoscaling", "horizontalpodautoscalers")
def _autoscaler(obj: Object) -> None:
    target = {"type": "Utilization", "averageUtilization": 80}
    _fill(obj["spec"], minReplicas=1, metrics=[{"type": "Resource", "resource": {"name": "cpu", "target": target}}])


# Core


@_for("", "services")
def _service(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _fill(spec, type="ClusterIP", sessionAffinity="None")
    for port in spec.get("ports", ()):
        _fill(port, protocol="TCP", targetPort=port.get("port"))
    if spec["type"] != "ExternalName":
        _fill(spec, internalTrafficPolicy="Cluster")
    if spec["type"] in ("LoadBalancer", "NodePort"):
        _fill(spec, externalTrafficPolicy="Cluster")
    if spec["type"] == "LoadBalancer":
        _fill(spec, allocateLoadBalancerNodePorts=True)


@_for("", "secrets")
def _secret(obj: Object) -> None:
    _fill(obj, type="Opaque")
    plain = obj.pop("stringData", None)
    if plain:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
        obj["data"] = {**obj.get("data", {}), **encoded}


@_for("", "persistentvolumeclaims")
def _claim(obj: Object) -> None:
    _fill(obj.setdefault("spec", {}), volumeMode="Filesystem")


@_for("", "persistentvolumes")
def _volume_object(obj: Object) -> None:
    _fill(obj["spec"], persistentVolumeReclaimPolicy="Retain", volumeMode="Filesystem")
    if "hostPath" in obj["spec"]:
        _fill(obj["spec"]["hostPath"], type="")


@_for("", "namespaces")
def _namespace(obj: Object) -> None:
    labels = obj["metadata"].get("labels", {})
    obj["metadata"]["labels"] = {**labels, "kubernetes.io/metadata.name": obj["metadata"].get("name", "")}


@_for("", "endpoints")
def _endpoints(obj: Object) -> None:
    for subset in obj.get("subsets", ()):
        for port in subset.get("ports", ()):
            _fill(port, protocol="TCP")


@_for("discovery.k8s.io", "endpointslices")
def _endpoint_slice(obj: Object) -> None:
    for port in obj.get("ports", ()):
        _fill(port, protocol="TCP", name="")


# Storage, scheduling, rights, extensions


@_for("storage.k8s.io", "storageclasses")
def _storage_class(obj: Object) -> None:
    _fill(obj, reclaimPolicy="Delete", volumeBindingMode="Immediate")


@_for("storage.k8s.io", "csidrivers")
def _csi_driver(obj: Object) -> None:
    _fill(
        obj["spec"],
        attachRequired=True,
        podInfoOnMount=False,
        storageCapacity=False,
        fsGroupPolicy="ReadWriteOnceWithFSType",
        volumeLifecycleModes=["Persistent"],
        requiresRepublish=False,
        seLinuxMount=False,
    )


@_for("scheduling.k8s.io", "priorityclasses")
def _priority_class(obj: Object) -> None:
    _fill(obj, preemptionPolicy="PreemptLowerPriority")


def _subjects(obj: Object) -> None:
    _fill(obj.setdefault("roleRef", {}), apiGroup="rbac.authorization.k8s.io")
    for subject in obj.get("subjects", ()):
        if subject.get("kind") in ("User", "Group"):
            _fill(subject, apiGroup="rbac.authorization.k8s.io")


RULES["rbac.authorization.k8s.io", "rolebindings"] = _subjects
RULES["rbac.authorization.k8s.io", "clusterrolebindings"] = _subjects


@_for("apiextensions.k8s.io", "customresourcedefinitions")
def _definition(obj: Object) -> None:
    spec = obj["spec"]
    names = spec.setdefault("names", {})
    kind = names.get("kind", "")
    _fill(names, singular=kind.lower(), listKind=f"{kind}List")
    _fill(spec, conversion={"strategy": "None"})
