"""What is refused about pods and pod templates."""

from __future__ import annotations

from typing import Any

from infra.sandbox.control_plane import quantity
from infra.sandbox.control_plane.refusals import Refusals

Object = dict[str, Any]

PULL_POLICIES = ("Always", "IfNotPresent", "Never")
RESTART_POLICIES = ("Always", "OnFailure", "Never")
DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
PROTOCOLS = ("TCP", "UDP", "SCTP")
NATIVE = ("cpu", "memory", "ephemeral-storage")
CHANGES_ALLOWED = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def check_spec(spec: Object, path: str, found: Refusals) -> None:
    """Everything of a pod spec, wherever it stands."""
    volumes = _volumes(spec.get("volumes") or [], f"{path}.volumes", found)
    names: set[str] = set()
    if not spec.get("containers"):
        found.required(f"{path}.containers")
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            where = f"{path}.{group}[{index}]"
            _container(container, where, volumes, found)
            name = container.get("name", "")
            if name and name in names:
                found.duplicate(f"{where}.name", name)
            names.add(name)
    found.one_of(f"{path}.restartPolicy", spec.get("restartPolicy"), RESTART_POLICIES)
    found.one_of(f"{path}.dnsPolicy", spec.get("dnsPolicy"), DNS_POLICIES)
    found.labels(f"{path}.nodeSelector", spec.get("nodeSelector") or {})
    deadline = spec.get("activeDeadlineSeconds")
    if isinstance(deadline, int) and not 1 <= deadline <= 2**31 - 1:
        found.invalid(f"{path}.activeDeadlineSeconds", deadline, "must be between 1 and 2147483647, inclusive")
    _tolerations(spec.get("tolerations") or [], f"{path}.tolerations", found)
    _spread(spec.get("topologySpreadConstraints") or [], f"{path}.topologySpreadConstraints", found)


def _volumes(volumes: list[Object], path: str, found: Refusals) -> set[str]:
    names: set[str] = set()
    for index, volume in enumerate(volumes):
        name = volume.get("name", "")
        if not name:
            found.required(f"{path}[{index}].name")
        else:
            found.dns_label(f"{path}[{index}].name", name)
        if name in names:
            found.duplicate(f"{path}[{index}].name", name)
        names.add(name)
        sources = [key for key in volume if key != "name"]
        for extra in sources[1:]:
            found.forbidden(f"{path}[{index}].{extra}", "may not specify more than 1 volume type")
        claim = volume.get("persistentVolumeClaim")
        if claim is not None and not claim.get("claimName"):
            found.required(f"{path}[{index}].persistentVolumeClaim.claimName")
    return names


def _container(container: Object, path: str, volumes: set[str], found: Refusals) -> None:
    name = container.get("name", "")
    if not name:
        found.required(f"{path}.name")
    else:
        found.dns_label(f"{path}.name", name)
    if not container.get("image"):
        found.required(f"{path}.image")
    found.one_of(f"{path}.imagePullPolicy", container.get("imagePullPolicy"), PULL_POLICIES)
    for index, port in enumerate(container.get("ports") or ()):
        _port(port, f"{path}.ports[{index}]", found)
    for index, variable in enumerate(container.get("env") or ()):
        if not variable.get("name"):
            found.required(f"{path}.env[{index}].name")
        if variable.get("value") and variable.get("valueFrom"):
            found.invalid(f"{path}.env[{index}].valueFrom", "", "may not be specified when `value` is not empty")
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        _mount(mount, f"{path}.volumeMounts[{index}]", volumes, found)
    _resources(container.get("resources") or {}, f"{path}.resources", found)


def _port(port: Object, path: str, found: Refusals) -> None:
    number = port.get("containerPort")
    if not number:
        found.required(f"{path}.containerPort")
    elif not 1 <= number <= 65535:
        found.invalid(f"{path}.containerPort", number, "must be between 1 and 65535, inclusive")
    found.one_of(f"{path}.protocol", port.get("protocol"), PROTOCOLS)


def _mount(mount: Object, path: str, volumes: set[str], found: Refusals) -> None:
    if not mount.get("name"):
        found.required(f"{path}.name")
    elif mount["name"] not in volumes:
        found.not_found(f"{path}.name", mount["name"])
    if not mount.get("mountPath"):
        found.required(f"{path}.mountPath")


def _resources(resources: Object, path: str, found: Refusals) -> None:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            if quantity.parse(amount) < 0:
                found.invalid(f"{path}.{part}[{name}]", amount, "must be greater than or equal to 0")
            if "/" not in name and name not in NATIVE and not name.startswith("hugepages-"):
                found.invalid(f"{path}.{part}[{name}]", name, "must be a standard resource for containers")
            elif "/" in name and quantity.parse(amount) % 1:
                found.invalid(f"{path}.{part}[{name}]", amount, "must be an integer")
    for name, amount in requests.items():
        limit, extended = limits.get(name), name not in NATIVE
        if limit is None:
            if extended:
                found.required(f"{path}.limits", "Limit must be set for non overcommitable resources")
        elif extended and quantity.parse(amount) != quantity.parse(limit):
            found.invalid(f"{path}.requests", amount, f"must be equal to {name} limit of {limit}")
        elif quantity.parse(amount) > quantity.parse(limit):
            found.invalid(f"{path}.requests", amount, f"must be less than or equal to {name} limit of {limit}")


def _tolerations(tolerations: list[Object], path: str, found: Refusals) -> None:
    for index, each in enumerate(tolerations):
        where = f"{path}[{index}]"
        operator = each.get("operator", "Equal")
        if each.get("key"):
            found.qualified_name(f"{where}.key", each["key"])
        elif operator != "Exists":
            why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            found.invalid(f"{where}.operator", each.get("operator", ""), why)
        if operator not in ("Equal", "Exists", "Lt", "Gt"):
            found.unsupported(f"{where}.operator", operator, ("Equal", "Exists"))
        if operator == "Exists" and each.get("value"):
            found.invalid(f"{where}.operator", each, "value must be empty when `operator` is 'Exists'")
        if each.get("effect"):
            found.one_of(f"{where}.effect", each["effect"], EFFECTS)
        if each.get("tolerationSeconds") is not None and each.get("effect") != "NoExecute":
            found.invalid(
                f"{where}.effect", each.get("effect", ""), "effect must be 'NoExecute' when `tolerationSeconds` is set"
            )


def _spread(constraints: list[Object], path: str, found: Refusals) -> None:
    for index, each in enumerate(constraints):
        where = f"{path}[{index}]"
        if each.get("maxSkew", 0) <= 0:
            found.invalid(f"{where}.maxSkew", each.get("maxSkew", 0), "must be greater than zero")
        if not each.get("topologyKey"):
            found.required(f"{where}.topologyKey", "can not be empty")
        found.one_of(
            f"{where}.whenUnsatisfiable", each.get("whenUnsatisfiable", ""), ("DoNotSchedule", "ScheduleAnyway")
        )


def check_update(new: Object, old: Object, found: Refusals) -> None:
    """What of a pod's spec may change after creation, and how."""
    spec, before = new["spec"], old["spec"]
    if spec == before:
        return
    for group in ("containers", "initContainers"):
        if len(spec.get(group) or ()) != len(before.get(group) or ()):
            found.forbidden(f"spec.{group}", "pod updates may not add or remove containers")
            return
    kept = before.get("tolerations") or []
    if any(each not in (spec.get("tolerations") or ()) for each in kept):
        found.forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")
    gates = before.get("schedulingGates") or []
    if any(each not in gates for each in spec.get("schedulingGates") or ()):
        found.forbidden("spec.schedulingGates", "only deletion is allowed, but found new scheduling gate")
    if _fixed(spec, before) != _fixed(before, before):
        found.forbidden("spec", CHANGES_ALLOWED)


def _fixed(spec: Object, before: Object) -> Object:
    """The spec with everything that may change taken out."""
    free = {"activeDeadlineSeconds", "tolerations", "schedulingGates"}
    if before.get("terminationGracePeriodSeconds", 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        free.add("terminationGracePeriodSeconds")
    if before.get("schedulingGates"):
        free |= {"nodeSelector", "affinity"}
    fixed = {key: value for key, value in spec.items() if key not in free}
    for group in ("containers", "initContainers"):
        if group in fixed:
            fixed[group] = [{key: value for key, value in each.items() if key != "image"} for each in fixed[group]]
    return fixed
