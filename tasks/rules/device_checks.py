"""What a container saw of its node's devices, one check after another: a defect, an open question, or nothing. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from infra.fabrics import Fabric
from infra.model.measurement import whole
from tasks.rules.wording import and_more

_DRIVERS = {"efa": frozenset({"efa"}), "roce": frozenset({"mlx5_core", "mlx5_ib"})}
RATE_SHARE = 0.99  # a port's rate against the machine type's: it is a setting, not a measurement
EFA_FIXED_GBPS = 100  # what older EFA drivers give as the rate of any device
_ACTIVE = re.compile(r"\bACTIVE$")  # ACTIVE_DEFER is a link that has failed and waits
_LINK = re.compile(r"\bLinkUp$", re.IGNORECASE)
_PLUGIN = re.compile(r"libnccl-net[\w-]*\.so[^/]*$")
_OFI = re.compile(r"libnccl-net(?:-(?:aws-)?ofi)?\.so[^/]*$")  # the plain name is of any plugin, and the usual link
_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec")
REMEDY = {
    "gpu-count": "look for Xid errors in the node's kernel log; replace the node",
    "rdma-count": "check the interfaces of the launch template and the device plugin's allocatable",
    "rdma-port-down": "replace the node, or ask the cloud to repair the link",
    "rdma-rate": "check the link's width and speed, cable and switch port, or replace the node",
    "efa-domains": "check the EFA driver in the image of the node and the security group's rules to itself",
    "memlock": "add IPC_LOCK to the container, or raise the container runtime's LimitMEMLOCK",
    "plugin-missing": "install the network plugin in the image (aws-ofi-nccl), or mount it from the node (gIB, TCPXO)",
    "plugin-unloadable": "match the plugin's glibc, CUDA and libfabric with the image",
    "interface-missing": "correct the NCCL_*_IFNAME variable, or attach the network",
}
# A defect (code, observed, expected), an open question, or nothing.
Check = Callable[[Mapping[str, Any], Fabric], tuple[str, str, str] | str | None]


def _gpus(report: Mapping[str, Any], fabric: Fabric) -> tuple[str, str, str] | str | None:
    count = whole(_map(report, "gpus").get("count"))
    if count is None:
        return f"GPUs not counted (nvidia-smi {_map(report, 'gpus').get('state', 'not run')})"
    if _map(report, "gpus").get("state", "ok") != "ok":
        return f"nvidia-smi {_map(report, 'gpus')['state']}, beside a count of GPUs"
    if count != fabric.gpus:
        return "gpu-count", f"{count} GPUs in the container", str(fabric.gpus)
    strange = [str(name) for name in listed(_map(report, "gpus"), "names") if not fabric.has_gpu(str(name))]
    return f"GPUs are {and_more(strange, 2)}, {fabric.machine_type} has {fabric.gpu}" if strange else None


def _rdma(report: Mapping[str, Any], fabric: Fabric) -> tuple[str, str, str] | str | None:
    """Devices of the fabric's own driver: some machine types show further RDMA devices that are not of it."""
    drivers = _DRIVERS.get(fabric.kind)
    if drivers is None:
        return None
    if "verbs" not in report:
        return "RDMA devices not listed"
    devices = {n: d for n, d in _map(report, "verbs").items() if isinstance(d, Mapping) and d.get("driver") in drivers}
    nodes = {str(n) for n in listed(report, "infiniband") if str(n).startswith("uverbs")}
    seen = min(len(devices), len(nodes))
    if seen < fabric.nics:
        return "rdma-count", f"{seen} {fabric.kind} devices in the container", str(fabric.nics)
    if len(devices) > fabric.nics:
        return f"{len(devices)} {fabric.kind} devices, {fabric.machine_type} has {fabric.nics}: another machine type?"
    ports = [(name, port) for name, device in devices.items() for port in _map(device, "ports").values()]
    silent = sorted(set(devices) - {name for name, port in ports if isinstance(port, Mapping) and port.get("state")})
    if silent:
        return f"no port with a state shown of {and_more(silent, 4)}"
    shown = [(name, port) for name, port in ports if isinstance(port, Mapping)]
    down = sorted(
        name
        for name, port in shown
        if not _ACTIVE.search(str(port.get("state", ""))) or not _LINK.search(str(port.get("phys_state") or "LinkUp"))
    )
    if down:
        return "rdma-port-down", f"port not active: {and_more(down, 4)}", "ACTIVE"
    return _rates(shown, fabric)


def _rates(ports: Sequence[tuple[str, Mapping[str, Any]]], fabric: Fabric) -> tuple[str, str, str] | str | None:
    """The rate to which each link was trained, Gb/s: at half of it everything works, at half the speed."""
    rates = {name: _RATE.match(str(port.get("rate", ""))) for name, port in ports}
    if silent := sorted(name for name, rate in rates.items() if rate is None):
        return f"no rate shown of {and_more(silent, 4)}"
    shown = {name: float(rate[1]) for name, rate in rates.items() if rate}
    if fabric.kind == "efa" and set(shown.values()) == {EFA_FIXED_GBPS}:
        return None  # says nothing; the sweep measures it
    wanted = fabric.nic_gb_s * 8
    if fast := sorted(name for name, rate in shown.items() if rate > wanted / RATE_SHARE):
        return f"{and_more(fast, 4)} faster than {wanted:g} Gb/s, the most of {fabric.machine_type}"
    slow = sorted(name for name, rate in shown.items() if rate < wanted * RATE_SHARE)
    if not slow:
        return None
    return "rdma-rate", f"{and_more([f'{n} at {shown[n]:g}' for n in slow], 4)} Gb/s", f"{wanted:g} Gb/s"


def port_rates(report: Mapping[str, Any]) -> frozenset[float]:
    """The rates, Gb/s, that a report shows of its RDMA ports."""
    devices = [d for d in _map(report, "verbs").values() if isinstance(d, Mapping)]
    ports = [port for d in devices for port in _map(d, "ports").values() if isinstance(port, Mapping)]
    return frozenset(float(rate[1]) for port in ports if (rate := _RATE.match(str(port.get("rate", "")))))


def _domains(report: Mapping[str, Any], fabric: Fabric) -> tuple[str, str, str] | str | None:
    if fabric.provider != "efa":
        return None
    info = _map(report, "fi_info")
    if info.get("state") in {None, "missing", "timed-out"}:
        return f"EFA domains not listed (fi_info {info.get('state') or 'not run'})"
    count = len({str(domain) for domain in listed(info, "domains")})
    if info["state"] != "ok" and count:
        return f"fi_info {info['state']}, beside a list of domains"
    return None if count >= fabric.nics else ("efa-domains", f"{count} EFA domains in fi_info", str(fabric.nics))


def _memlock(report: Mapping[str, Any], fabric: Fabric) -> tuple[str, str, str] | str | None:
    """RDMA pins memory: unlimited, or the capability that ignores the limit."""
    if fabric.kind not in _DRIVERS:
        return None
    limits = report.get("memlock")
    if not isinstance(limits, Mapping) or "soft_bytes" not in limits:
        return "locked-memory limit not read"
    if limits.get("ipc_lock") is True or limits["soft_bytes"] is None:
        return None
    return "memlock", f"{limits['soft_bytes']} bytes of locked memory and no IPC_LOCK", "unlimited"


def _plugin(report: Mapping[str, Any], fabric: Fabric) -> tuple[str, str, str] | str | None:
    """A network plugin that loads, in this image. NCCL is silent when there is none."""
    if not fabric.rdma:
        return None
    if "libraries" not in report:
        return "libraries not listed"
    libraries = [item for item in listed(report, "libraries") if isinstance(item, Mapping)]
    plugins = [item for item in libraries if _PLUGIN.search(str(item.get("path")))]
    own = [item for item in plugins if fabric.provider != "efa" or _OFI.search(str(item.get("path")))]
    if any(item.get("loads") is True for item in own):
        return None
    if plugins and not own:
        return "plugin-missing", f"only {and_more([str(p.get('path')) for p in plugins], 2)}", "aws-ofi-nccl"
    plugins = own
    if not plugins:
        return "plugin-missing", "no libnccl-net*.so in the image", "the network plugin of this fabric"
    return "plugin-unloadable", f"{plugins[0].get('path')}: {plugins[0].get('error')}", "a library that loads"


def _interfaces(report: Mapping[str, Any], fabric: Fabric) -> tuple[str, str, str] | str | None:
    if not isinstance(report.get("interfaces_missing"), list):
        return "named interfaces not checked"
    missing = listed(report, "interfaces_missing")
    return ("interface-missing", and_more([str(m) for m in missing], 4), "interfaces that exist") if missing else None


def _says_otherwise(report: Mapping[str, Any], _fabric: Fabric) -> str | None:
    said = next((report[key] for key in ("error", "errors") if report.get(key)), None)
    return f"the report says that it is well, and: {str(said)[:120]}" if said else None


CHECKS: tuple[Check, ...] = (_says_otherwise, _gpus, _rdma, _domains, _memlock, _plugin, _interfaces)


def _map(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def listed(data: Mapping[str, Any], key: str) -> list[Any]:
    """A list of the report, empty where it is none."""
    value = data.get(key)
    return value if isinstance(value, list) else []
