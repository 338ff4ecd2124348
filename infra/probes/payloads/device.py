"""What one container sees of its node's devices, in one JSON object. Standard library only: runs in any image.

A tool that is missing is reported as missing, never as "no device": `fi_info` often lies outside of PATH, and a
library that cannot be loaded is a different fault from one that is not there.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path

TOOL_FOLDERS = (
    "/opt/amazon/efa/bin",
    "/opt/amazon/ofi/bin",
    "/usr/local/nvidia/bin",
    "/usr/local/gib/bin",
    "/usr/sbin",
)
LIBRARY_FOLDERS = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/aws-ofi-nccl/lib",
    "/opt/aws-ofi-nccl/lib",
    "/opt/amazon/efa/lib",
    "/opt/hpcx/nccl_rdma_sharp_plugin/lib",
    "/usr/local/gib/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/local/tcpx/lib64",
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
)
LIBRARIES = re.compile(r"^lib(nccl|nccl-net[\w-]*|nccl-tuner[\w-]*|fabric|ibverbs|efa|mlx5)\.so(\.\d+)?$")
LOADED = re.compile(r"^lib(nccl-net|nccl\.|fabric)")  # the ones whose absence sends NCCL to sockets


def run(*command: str) -> tuple:
    """(state, output): "ok", "missing", "failed" or "timed-out"."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *TOOL_FOLDERS])
    tool = shutil.which(command[0], path=path)
    if tool is None:
        return "missing", ""
    try:
        done = subprocess.run(
            [tool, *command[1:]], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return "timed-out", ""
    except OSError as error:
        return "failed", str(error)
    return ("ok" if done.returncode == 0 else "failed"), (done.stdout + done.stderr)


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def names(folder: Path) -> list:
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def verbs_devices(root: Path) -> dict:
    """RDMA devices with their ports as the kernel shows them, and the driver, since not each one is of the fabric."""
    devices = {}
    for name in names(root / "sys/class/infiniband"):
        device = root / "sys/class/infiniband" / name
        driver = device / "device" / "driver"
        devices[name] = {
            "driver": driver.resolve().name if driver.exists() else "",
            "node_type": read(device / "node_type"),
            "ports": {
                port: {
                    key: read(device / "ports" / port / key) for key in ("state", "phys_state", "rate", "link_layer")
                }
                for port in names(device / "ports")
            },
        }
    return devices


def fi_info() -> dict:
    """Distinct EFA domains: newer libfabric lists each one once per fabric (efa and efa-direct)."""
    state, output = run("fi_info", "-p", "efa", "-t", "FI_EP_RDM")
    return {
        "state": state,
        "domains": sorted(set(re.findall(r"^\s*domain:\s*(\S+)", output, re.M))),
        "providers": sorted(set(re.findall(r"^\s*provider:\s*(\S+)", output, re.M))),
        "version": "".join(re.findall(r"^libfabric:\s*(\S+)", run("fi_info", "--version")[1], re.M)[:1]),
        "message": "" if state == "ok" else output.strip()[:300],
    }


def gpus() -> dict:
    state, output = run("nvidia-smi", "--query-gpu=uuid,name,pci.bus_id,driver_version", "--format=csv,noheader")
    rows = [line.split(", ") for line in output.splitlines() if line.startswith("GPU-")]
    return {
        "state": state,
        "count": len(rows) if state == "ok" else None,
        "names": sorted({row[1] for row in rows if len(row) > 1}),
        "driver": sorted({row[3] for row in rows if len(row) > 3}),
        "message": "" if state == "ok" else output.strip()[:300],
    }


def libraries(root: Path) -> list:
    """Candidate libraries and whether the loader takes them: a plugin that cannot load is why NCCL goes to sockets."""
    folders = [Path(f) for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    folders += [root / f.lstrip("/") for f in LIBRARY_FOLDERS]
    found: dict[str, dict] = {}
    for folder in folders:
        for name in names(folder):
            path = str(folder / name)
            if path in found or not LIBRARIES.match(name):
                continue
            found[path] = {"path": path, "target": str(Path(path).resolve()), "loads": None, "error": ""}
            if LOADED.match(name):
                try:
                    ctypes.CDLL(path)
                    found[path]["loads"] = True
                except OSError as error:
                    found[path].update(loads=False, error=str(error)[:300])
    return list(found.values())


def memlock() -> dict:
    """Locked-memory limits in bytes; null is unlimited. `ipc_lock` is null where the kernel's word is not shown."""
    powers = re.search(r"^CapEff:\s*([0-9a-f]+)", read(Path("/proc/self/status")), re.M)
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "soft_bytes": None if soft == resource.RLIM_INFINITY else soft,
        "hard_bytes": None if hard == resource.RLIM_INFINITY else hard,
        "ipc_lock": bool(int(powers[1], 16) & (1 << 14)) if powers else None,
    }


def interfaces(root: Path) -> dict:
    return {
        name: {
            "mtu": int(read(root / "sys/class/net" / name / "mtu") or 0),
            "state": read(root / "sys/class/net" / name / "operstate"),
        }
        for name in names(root / "sys/class/net")
        if name != "lo"
    }


def named_interfaces_missing(present: dict) -> list:
    """Interfaces that NCCL is told to use and that are not there (exact names and prefixes; `^` excludes)."""
    missing = []
    for variable in ("NCCL_SOCKET_IFNAME", "NCCL_FASTRAK_IFNAME", "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME"):
        value = os.environ.get(variable, "")
        if not value or value.startswith("^"):
            continue
        exact = value.startswith("=")
        missing += [
            f"{variable}={wanted}"
            for wanted in value.lstrip("=").split(",")
            if not any(name == wanted or (not exact and name.startswith(wanted)) for name in present)
        ]
    return missing


def shm_bytes() -> int | None:
    try:
        stat = os.statvfs("/dev/shm")  # noqa: S108 - the mount that NCCL uses, not a file of ours
    except OSError:
        return None
    return stat.f_frsize * stat.f_blocks


def report(root: Path) -> dict:
    present = interfaces(root)
    return {
        "poolshift": "device",
        "v": 1,
        "node": os.environ.get("NODE_NAME") or socket.gethostname(),
        "host": socket.gethostname(),
        "infiniband": names(root / "dev/infiniband"),
        "verbs": verbs_devices(root),
        "fi_info": fi_info(),
        "gpus": gpus(),
        "memlock": memlock(),
        "shm_bytes": shm_bytes(),
        "interfaces": present,
        "interfaces_missing": named_interfaces_missing(present),
        "libraries": libraries(root),
        "nccl_env": sorted(name for name in os.environ if name.startswith(("NCCL_", "FI_", "OFI_"))),
        "ok": True,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(report(Path(os.environ.get("POOLSHIFT_ROOT", "/"))), separators=(",", ":")) + "\n")
