"""What `kubectl get` shows of each built-in kind: column names and the cells, as the real server's printers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from infra.clock import parse_time
from infra.sandbox.control_plane import podcells
from infra.sandbox.control_plane.wording import NONE, UNKNOWN, age, duration, selector_text, since

Object = dict[str, Any]
Cells = Callable[[Object, datetime], list[Any]]

COLUMNS: dict[tuple[str, str], tuple[str, Cells]] = {}
"""By (group, plural): the header, with `*` before columns of the wide output, and the function of the cells."""


def _shown(group: str, plural: str, header: str) -> Callable[[Cells], Cells]:
    def register(cells: Cells) -> Cells:
        COLUMNS[group, plural] = (header, cells)
        return cells

    return register


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _containers(spec: Object) -> list[str]:
    containers = spec.get("template", {}).get("spec", {}).get("containers", ())
    return [",".join(each["name"] for each in containers), ",".join(each.get("image", "") for each in containers)]


@_shown("", "pods", "Name|Ready|Status|Restarts|Age|*IP|*Node|*Nominated Node|*Readiness Gates")
def _pod(pod: Object, now: datetime) -> list[Any]:
    spec, status = pod["spec"], pod.get("status", {})
    ready, total = podcells.ready(pod)
    gates = spec.get("readinessGates", ())
    held = {each["type"] for each in status.get("conditions") or () if each.get("status") == "True"}
    passed = sum(gate["conditionType"] in held for gate in gates)
    restarts, last = podcells.restarts(pod)
    shown: Any = f"{restarts} ({since(last, now)} ago)" if restarts and last else str(restarts)
    return [
        _name(pod), f"{ready}/{total}", podcells.status(pod), shown, age(pod, now), status.get("podIP") or NONE,
        spec.get("nodeName") or NONE, status.get("nominatedNodeName") or NONE,
        f"{passed}/{len(gates)}" if gates else NONE,
    ]  # fmt: skip


@_shown(
    "", "nodes", "Name|Status|Roles|Age|Version|*Internal-IP|*External-IP|*OS-Image|*Kernel-Version|*Container-Runtime"
)
def _node(node: Object, now: datetime) -> list[Any]:
    conditions = {each["type"]: each.get("status") for each in node.get("status", {}).get("conditions") or ()}
    status = [("Ready" if conditions["Ready"] == "True" else "NotReady") if "Ready" in conditions else "Unknown"]
    if node.get("spec", {}).get("unschedulable"):
        status.append("SchedulingDisabled")
    labels = node["metadata"].get("labels", {})
    prefix = "node-role.kubernetes.io/"
    roles = sorted({key.removeprefix(prefix) for key in labels if key.startswith(prefix)})
    if labels.get("kubernetes.io/role"):
        roles.append(labels["kubernetes.io/role"])
    addresses = {each["type"]: each["address"] for each in reversed(node.get("status", {}).get("addresses") or ())}
    info = node.get("status", {}).get("nodeInfo", {})
    return [
        _name(node), ",".join(status), ",".join(roles) or NONE, age(node, now), info.get("kubeletVersion", ""),
        addresses.get("InternalIP", NONE), addresses.get("ExternalIP", NONE), info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN, info.get("containerRuntimeVersion") or UNKNOWN,
    ]  # fmt: skip


@_shown("apps", "deployments", "Name|Ready|Up-to-date|Available|Age|*Containers|*Images|*Selector")
def _deployment(obj: Object, now: datetime) -> list[Any]:
    spec, status = obj["spec"], obj.get("status", {})
    return [
        _name(obj), f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}", status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0), age(obj, now), *_containers(spec), selector_text(spec.get("selector")),
    ]  # fmt: skip


@_shown("apps", "replicasets", "Name|Desired|Current|Ready|Age|*Containers|*Images|*Selector")
def _replica_set(obj: Object, now: datetime) -> list[Any]:
    spec, status = obj["spec"], obj.get("status", {})
    return [
        _name(obj), spec.get("replicas", 0), status.get("replicas", 0), status.get("readyReplicas", 0), age(obj, now),
        *_containers(spec), selector_text(spec.get("selector")),
    ]  # fmt: skip


COLUMNS["", "replicationcontrollers"] = COLUMNS["apps", "replicasets"]


@_shown("apps", "statefulsets", "Name|Ready|Age|*Containers|*Images")
def _stateful_set(obj: Object, now: datetime) -> list[Any]:
    spec, status = obj["spec"], obj.get("status", {})
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}"
    return [_name(obj), ready, age(obj, now), *_containers(spec)]


DAEMON_SET = "Name|Desired|Current|Ready|Up-to-date|Available|Node Selector|Age|*Containers|*Images|*Selector"


@_shown("apps", "daemonsets", DAEMON_SET)
def _daemon_set(obj: Object, now: datetime) -> list[Any]:
    spec, status = obj["spec"], obj.get("status", {})
    return [
        _name(obj), status.get("desiredNumberScheduled", 0), status.get("currentNumberScheduled", 0),
        status.get("numberReady", 0), status.get("updatedNumberScheduled", 0), status.get("numberAvailable", 0),
        selector_text(spec.get("template", {}).get("spec", {}).get("nodeSelector")), age(obj, now),
        *_containers(spec), selector_text(spec.get("selector")),
    ]  # fmt: skip


@_shown("apps", "controllerrevisions", "Name|Controller|Revision|Age")
def _revision(obj: Object, now: datetime) -> list[Any]:
    owner = next((each for each in obj["metadata"].get("ownerReferences", ()) if each.get("controller")), None)
    group = owner["apiVersion"].rpartition("/")[0] if owner else ""
    controller = f"{owner['kind'].lower()}.{group}/{owner['name']}" if owner else NONE
    return [_name(obj), controller, obj.get("revision", 0), age(obj, now)]


@_shown("batch", "jobs", "Name|Status|Completions|Duration|Age|*Containers|*Images|*Selector")
def _job(obj: Object, now: datetime) -> list[Any]:
    spec, status = obj["spec"], obj.get("status", {})
    done = status.get("succeeded", 0)
    if spec.get("completions") is not None:
        completions = f"{done}/{spec['completions']}"
    else:
        parallelism = spec.get("parallelism", 0)
        completions = f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"
    start, end = status.get("startTime"), status.get("completionTime")
    lasted = ""
    if start:
        lasted = duration(((parse_time(end) if end else now) - parse_time(start)).total_seconds())
    return [
        _name(obj), _job_status(obj), completions, lasted, age(obj, now), *_containers(spec),
        selector_text(spec.get("selector")),
    ]  # fmt: skip


def _job_status(obj: Object) -> str:
    held = {each["type"] for each in obj.get("status", {}).get("conditions") or () if each.get("status") == "True"}
    if "Complete" in held:
        return "Complete"
    if "Failed" in held:
        return "Failed"
    if "deletionTimestamp" in obj["metadata"]:
        return "Terminating"
    return next((name for name in ("Suspended", "FailureTarget", "SuccessCriteriaMet") if name in held), "Running")


@_shown("batch", "cronjobs", "Name|Schedule|Timezone|Suspend|Active|Last Schedule|Age|*Containers|*Images|*Selector")
def _cron_job(obj: Object, now: datetime) -> list[Any]:
    spec, status = obj["spec"], obj.get("status", {})
    last = since(status["lastScheduleTime"], now) if status.get("lastScheduleTime") else NONE
    template = spec.get("jobTemplate", {}).get("spec", {})
    return [
        _name(obj), spec.get("schedule", ""), spec.get("timeZone", NONE), str(spec.get("suspend", False)),
        len(status.get("active") or ()), last, age(obj, now), *_containers(template),
        selector_text(template.get("selector")),
    ]  # fmt: skip


@_shown("policy", "poddisruptionbudgets", "Name|Min Available|Max Unavailable|Allowed Disruptions|Age")
def _budget(obj: Object, now: datetime) -> list[Any]:
    spec = obj["spec"]
    least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
    return [
        _name(obj), "N/A" if least is None else str(least), "N/A" if most is None else str(most),
        obj.get("status", {}).get("disruptionsAllowed", 0), age(obj, now),
    ]  # fmt: skip


@_shown("coordination.k8s.io", "leases", "Name|Holder|Age")
def _lease(obj: Object, now: datetime) -> list[Any]:
    return [_name(obj), obj.get("spec", {}).get("holderIdentity", ""), age(obj, now)]


@_shown("", "namespaces", "Name|Status|Age")
def _namespace(obj: Object, now: datetime) -> list[Any]:
    return [_name(obj), obj.get("status", {}).get("phase", ""), age(obj, now)]


@_shown("", "configmaps", "Name|Data|Age")
def _config_map(obj: Object, now: datetime) -> list[Any]:
    return [_name(obj), len(obj.get("data", {})) + len(obj.get("binaryData", {})), age(obj, now)]


@_shown("", "secrets", "Name|Type|Data|Age")
def _secret(obj: Object, now: datetime) -> list[Any]:
    return [_name(obj), obj.get("type", ""), len(obj.get("data", {})), age(obj, now)]


@_shown("", "serviceaccounts", "Name|Secrets|Age")
def _account(obj: Object, now: datetime) -> list[Any]:
    return [_name(obj), len(obj.get("secrets", ())), age(obj, now)]


@_shown("", "services", "Name|Type|Cluster-IP|External-IP|Port(s)|Age|*Selector")
def _service(obj: Object, now: datetime) -> list[Any]:
    spec = obj["spec"]
    ports = ",".join(
        f"{each['port']}{':' + str(each['nodePort']) if each.get('nodePort') else ''}/{each.get('protocol', 'TCP')}"
        for each in spec.get("ports", ())
    )
    external = ",".join(spec.get("externalIPs", ())) or spec.get("externalName") or NONE
    if spec.get("type") == "LoadBalancer" and external == NONE:
        external = "<pending>"
    return [
        _name(obj), spec.get("type", ""), spec.get("clusterIP") or NONE, external, ports or NONE, age(obj, now),
        selector_text(spec.get("selector")),
    ]  # fmt: skip


@_shown("", "endpoints", "Name|Endpoints|Age")
def _endpoints(obj: Object, now: datetime) -> list[Any]:
    addresses = [
        f"{address['ip']}:{port['port']}"
        for subset in obj.get("subsets", ())
        for port in subset.get("ports", ())
        for address in subset.get("addresses", ())
    ]
    more = f" + {len(addresses) - 3} more..." if len(addresses) > 3 else ""
    return [_name(obj), (",".join(addresses[:3]) + more) or NONE, age(obj, now)]


@_shown("discovery.k8s.io", "endpointslices", "Name|AddressType|Ports|Endpoints|Age")
def _slice(obj: Object, now: datetime) -> list[Any]:
    ports = ",".join(str(each.get("port", "*")) for each in obj.get("ports", ())) or "<unset>"
    addresses = ",".join(address for each in obj.get("endpoints", ()) for address in each.get("addresses", ()))
    return [_name(obj), obj.get("addressType", ""), ports, addresses or "<unset>", age(obj, now)]


@_shown("", "events", "Last Seen|Type|Reason|Object|*Subobject|*Source|Message|*First Seen|*Count|*Name")
def _event(obj: Object, now: datetime) -> list[Any]:
    about = obj.get("involvedObject") or obj.get("regarding") or {}
    source = obj.get("source") or obj.get("deprecatedSource") or {}
    component = source.get("component") or obj.get("reportingComponent") or obj.get("reportingController", "")
    first = obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp") or obj.get("eventTime")
    last = obj.get("lastTimestamp") or obj.get("deprecatedLastTimestamp") or first
    series = obj.get("series") or {}
    last = series.get("lastObservedTime") or last
    host = source.get("host")
    return [
        since(last, now), obj.get("type", ""), obj.get("reason", ""),
        f"{about.get('kind', '').lower()}/{about.get('name', '')}", about.get("fieldPath", ""),
        f"{component}, {host}" if host else component, (obj.get("message") or obj.get("note") or "").strip(),
        since(first, now), series.get("count") or obj.get("count") or obj.get("deprecatedCount") or 1, _name(obj),
    ]  # fmt: skip


MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _modes(spec: Object) -> str:
    return ",".join(MODES.get(each, each) for each in spec.get("accessModes", ()))


VOLUME = (
    "Name|Capacity|Access Modes|Reclaim Policy|Status|Claim|StorageClass|VolumeAttributesClass|Reason|Age|*VolumeMode"
)


@_shown("", "persistentvolumes", VOLUME)
def _volume(obj: Object, now: datetime) -> list[Any]:
    spec, status = obj["spec"], obj.get("status", {})
    claim = spec.get("claimRef")
    phase = "Terminating" if "deletionTimestamp" in obj["metadata"] else status.get("phase", "")
    return [
        _name(obj), spec.get("capacity", {}).get("storage", ""), _modes(spec),
        spec.get("persistentVolumeReclaimPolicy", ""), phase,
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "", spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName", "<unset>"), status.get("reason", ""), age(obj, now),
        spec.get("volumeMode", "<unset>"),
    ]  # fmt: skip


CLAIM = "Name|Status|Volume|Capacity|Access Modes|StorageClass|VolumeAttributesClass|Age|*VolumeMode"


@_shown("", "persistentvolumeclaims", CLAIM)
def _claim(obj: Object, now: datetime) -> list[Any]:
    spec, status = obj["spec"], obj.get("status", {})
    phase = "Terminating" if "deletionTimestamp" in obj["metadata"] else status.get("phase", "")
    bound = bool(spec.get("volumeName"))
    return [
        _name(obj), phase, spec.get("volumeName", ""),
        status.get("capacity", {}).get("storage", "") if bound else "", _modes(status) if bound else "",
        spec.get("storageClassName", ""), spec.get("volumeAttributesClassName", "<unset>"), age(obj, now),
        spec.get("volumeMode", "<unset>"),
    ]  # fmt: skip


CLASS = "Name|Provisioner|ReclaimPolicy|VolumeBindingMode|AllowVolumeExpansion|Age"


@_shown("storage.k8s.io", "storageclasses", CLASS)
def _storage_class(obj: Object, now: datetime) -> list[Any]:
    default = obj["metadata"].get("annotations", {}).get("storageclass.kubernetes.io/is-default-class") == "true"
    return [
        _name(obj) + (" (default)" if default else ""), obj.get("provisioner", ""), obj.get("reclaimPolicy", "Delete"),
        obj.get("volumeBindingMode", "Immediate"), bool(obj.get("allowVolumeExpansion")), age(obj, now),
    ]  # fmt: skip


@_shown("storage.k8s.io", "csinodes", "Name|Drivers|Age")
def _csi_node(obj: Object, now: datetime) -> list[Any]:
    return [_name(obj), len(obj.get("spec", {}).get("drivers") or ()), age(obj, now)]


@_shown("storage.k8s.io", "volumeattachments", "Name|Attacher|PV|Node|Attached|Age")
def _attachment(obj: Object, now: datetime) -> list[Any]:
    spec = obj["spec"]
    return [
        _name(obj), spec.get("attacher", ""), spec.get("source", {}).get("persistentVolumeName", ""),
        spec.get("nodeName", ""), bool(obj.get("status", {}).get("attached")), age(obj, now),
    ]  # fmt: skip


@_shown("scheduling.k8s.io", "priorityclasses", "Name|Value|Global-Default|Age|PreemptionPolicy")
def _priority_class(obj: Object, now: datetime) -> list[Any]:
    policy = obj.get("preemptionPolicy", "")
    return [_name(obj), obj.get("value", 0), bool(obj.get("globalDefault")), age(obj, now), policy]


@_shown("resource.k8s.io", "resourceslices", "Name|Node|Driver|Pool|Age")
def _resource_slice(obj: Object, now: datetime) -> list[Any]:
    spec = obj["spec"]
    node = spec.get("nodeName") or ("<all>" if spec.get("allNodes") else "<unset>")
    return [_name(obj), node, spec.get("driver", ""), spec.get("pool", {}).get("name", ""), age(obj, now)]


@_shown("resource.k8s.io", "resourceclaims", "Name|State|Age")
def _resource_claim(obj: Object, now: datetime) -> list[Any]:
    status = obj.get("status", {})
    states = [name for name, there in (
        ("deleted", "deletionTimestamp" in obj["metadata"]), ("allocated", status.get("allocation")),
        ("reserved", status.get("reservedFor"))) if there]  # fmt: skip
    return [_name(obj), ",".join(states) or "pending", age(obj, now)]


@_shown("rbac.authorization.k8s.io", "clusterrolebindings", "Name|Role|Age")
def _binding(obj: Object, now: datetime) -> list[Any]:
    role = obj.get("roleRef", {})
    return [_name(obj), f"{role.get('kind', '')}/{role.get('name', '')}", age(obj, now)]


COLUMNS["rbac.authorization.k8s.io", "rolebindings"] = COLUMNS["rbac.authorization.k8s.io", "clusterrolebindings"]


@_shown("rbac.authorization.k8s.io", "roles", "Name|Created At")
def _role(obj: Object, now: datetime) -> list[Any]:
    return [_name(obj), obj["metadata"].get("creationTimestamp", "")]


COLUMNS["rbac.authorization.k8s.io", "clusterroles"] = COLUMNS["rbac.authorization.k8s.io", "roles"]
COLUMNS["apiextensions.k8s.io", "customresourcedefinitions"] = COLUMNS["rbac.authorization.k8s.io", "roles"]


@_shown("autoscaling", "horizontalpodautoscalers", "Name|Reference|Targets|MinPods|MaxPods|Replicas|Age")
def _autoscaler(obj: Object, now: datetime) -> list[Any]:
    spec, target = obj["spec"], obj["spec"].get("scaleTargetRef", {})
    return [
        _name(obj), f"{target.get('kind', '')}/{target.get('name', '')}", UNKNOWN, str(spec.get("minReplicas", 1)),
        spec.get("maxReplicas", 0), obj.get("status", {}).get("currentReplicas", 0), age(obj, now),
    ]  # fmt: skip
