"""What programs that look at one node's devices print: our device report, and `fi_info`."""

from __future__ import annotations

from infra.sandbox.fabric.collective import compact
from infra.sandbox.fabric.generation import Generation
from infra.sandbox.fabric.machine import Host
from infra.sandbox.fabric.transcript import Tape, Transcript

OFI_FOLDER = "/opt/amazon/ofi-nccl/lib"
GIB_FOLDER = "/usr/local/gib/lib64"


def visible_devices(host: Host) -> list[str]:
    """RDMA devices that the container was given."""
    return host.machine.rdma_devices()[: len(host.nics)]


def report(host: Host, *, hostname: str, gpus: int, generation: Generation, env: dict[str, str]) -> Transcript:
    """`device.py`: one JSON object."""
    tape = Tape()
    tape.say(1.5, compact(_report(host, hostname, gpus, generation, env)))
    return tape.finish(2.0)


def _report(host: Host, hostname: str, gpus: int, generation: Generation, env: dict[str, str]) -> dict[str, object]:
    devices = visible_devices(host)
    rate = host.machine.fabric.nic_gb_s * 8
    efa = host.machine.fabric.kind == "efa"
    return {
        "poolshift": "device",
        "v": 1,
        "node": host.node,
        "host": hostname,
        "infiniband": [f"uverbs{index}" for index in range(len(devices))],
        "verbs": {
            name: {
                "driver": "efa" if efa else "mlx5_core",
                "node_type": "4: unspecified" if efa else "1: CA",
                "ports": {
                    "1": {
                        "state": "4: ACTIVE" if share > 0 else "1: DOWN",
                        "phys_state": "5: LinkUp" if share > 0 else "3: Disabled",
                        "rate": f"{rate * share:g} Gb/sec",
                        "link_layer": "Unspecified" if efa else "Ethernet",
                    }
                },
            }
            for name, share in zip(devices, host.nics, strict=True)
        },
        "fi_info": _fi_info(devices, generation) if efa else _no_tool(),
        "gpus": {
            "state": "ok",
            "count": gpus,
            "names": [host.machine.gpu.name],
            "driver": ["580.95.05"],
            "message": "",
        },
        "memlock": {"soft_bytes": None, "hard_bytes": None, "ipc_lock": True},
        "shm_bytes": 64 << 30,
        "interfaces": {"eth0": {"mtu": 9001 if efa else 8896, "state": "up"}},
        "interfaces_missing": _interfaces_missing(env),
        "libraries": _libraries(host, efa=efa, generation=generation),
        "nccl_env": sorted(name for name in env if name.startswith(("NCCL_", "FI_", "OFI_"))),
        "ok": True,
    }


def _interfaces_missing(env: dict[str, str]) -> list[str]:
    value = env.get("NCCL_SOCKET_IFNAME", "")
    if not value or value.startswith("^"):
        return []
    return [f"NCCL_SOCKET_IFNAME={name}" for name in value.lstrip("=").split(",") if not "eth0".startswith(name)]


def _fi_info(devices: list[str], generation: Generation) -> dict[str, object]:
    return {
        "state": "ok" if devices else "failed",
        "domains": sorted(f"{name}-rdm" for name in devices),
        "providers": ["efa"] if devices else [],
        "version": f"{generation.libfabric}.0",
        "message": "" if devices else "fi_getinfo: -61 (No data available)",
    }


def _no_tool() -> dict[str, object]:
    return {"state": "missing", "domains": [], "providers": [], "version": "", "message": ""}


def _libraries(host: Host, *, efa: bool, generation: Generation) -> list[dict[str, object]]:
    nccl = f"/usr/lib/x86_64-linux-gnu/libnccl.so.{generation.text}"
    found = [("/usr/lib/x86_64-linux-gnu/libnccl.so.2", nccl)]
    if efa:
        found += [(f"{OFI_FOLDER}/libnccl-net.so", f"{OFI_FOLDER}/libnccl-net-ofi.so")]
        found += [("/opt/amazon/efa/lib/libfabric.so.1", "/opt/amazon/efa/lib/libfabric.so.1.30.0")]
    elif host.loss != "no-plugin" and host.transport != "socket":
        found += [(f"{GIB_FOLDER}/libnccl-net.so", f"{GIB_FOLDER}/libnccl-net.so")]
    return [{"path": path, "target": target, "loads": True, "error": ""} for path, target in found]


def fi_info_text(host: Host, generation: Generation) -> Transcript:
    """`fi_info -p efa -t FI_EP_RDM`: a block per domain and fabric, or -61."""
    tape = Tape()
    devices = visible_devices(host) if host.machine.fabric.kind == "efa" else []
    if not devices:
        tape.say(0.2, "fi_getinfo: -61 (No data available)")
        return tape.finish(0.4, exit_code=61)
    for fabric in ("efa-direct", "efa") if generation.modern_ofi else ("efa",):
        for name in devices:
            tape.say(
                0.2,
                "provider: efa",
                f"    fabric: {fabric}",
                f"    domain: {name}-rdm",
                f"    version: {int(float(generation.libfabric) * 100)}.0",
                "    type: FI_EP_RDM",
                "    protocol: FI_PROTO_EFA",
            )
    return tape.finish(0.4)
