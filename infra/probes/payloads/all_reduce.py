"""All-reduce sweep under torchrun: timings as nccl-tests defines them, the sums checked, NIC counters beside them.

Runs in any image with PyTorch (2.0 or later) and needs nothing else. Prints one JSON object a line on stdout:

    {"poolshift":"counters","when":"before","node":"a","rdma":{"rdmap86s0":{"tx_bytes":1,"rx_bytes":1}},"ethernet":{…}}
    {"poolshift":"all-reduce","event":"start","v":1,"ranks":16,"hosts":2,…}
    {"poolshift":"all-reduce","event":"row","round":0,"size_bytes":67108864,"time_us":812.3,"busbw_gb_s":154.9,…}
    {"poolshift":"all-reduce","event":"end","ok":true}

Counters come from every node, the rest from rank 0. Without the end line the output was cut. The measured
communicator is destroyed after each round and built anew for the next, since a network plugin may serve the first
one and not the second; bookkeeping goes over a gloo group of its own, so it never touches the measured path.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

ELEMENT = 4  # bytes of a float32
CHUNK = 1 << 24  # elements filled or checked at a time, so that checking 16 GiB needs no second buffer
PATTERN = 5  # values repeat with this period: small integers, exact in float32 for up to 2^20 ranks


def emit(record: dict) -> None:
    """One line in one write: NCCL writes to the same stream, and a split line would be lost."""
    os.write(1, (json.dumps(record, separators=(",", ":")) + "\n").encode())


def node_name() -> str:
    """Kubernetes' node name where the pod says it, else the host name."""
    return os.environ.get("NODE_NAME") or socket.gethostname()


def read_number(path: Path) -> int | None:
    try:
        return int(path.read_text().strip())
    except (OSError, ValueError):
        return None


def rdma_counters(root: Path) -> dict:
    """Bytes sent and received by each RDMA device. EFA counts bytes; mlx5 counts words of four bytes."""
    devices = {}
    for device in sorted(root.glob("sys/class/infiniband/*")):
        found: dict[str, int] = {}
        for port in sorted(device.glob("ports/*")):
            pairs = [
                (name, port / "hw_counters" / name, 1)
                for name in ("tx_bytes", "rx_bytes", "rdma_read_bytes", "rdma_write_bytes", "rdma_write_recv_bytes")
            ] + [
                ("tx_bytes", port / "counters" / "port_xmit_data", 4),
                ("rx_bytes", port / "counters" / "port_rcv_data", 4),
            ]
            for name, path, unit in pairs:
                value = read_number(path)
                if value is not None:
                    found[name] = found.get(name, 0) + value * unit
        devices[device.name] = found
    return devices


def ethernet_counters(root: Path) -> dict:
    """Bytes of each network interface but the loopback."""
    interfaces = {}
    for interface in sorted(root.glob("sys/class/net/*")):
        if interface.name == "lo":
            continue
        found = {name: read_number(interface / "statistics" / name) for name in ("tx_bytes", "rx_bytes")}
        interfaces[interface.name] = {name: value for name, value in found.items() if value is not None}
    return interfaces


def emit_counters(when: str) -> None:
    root = Path(os.environ.get("POOLSHIFT_ROOT", "/"))
    emit(
        {
            "poolshift": "counters",
            "when": when,
            "node": node_name(),
            "rdma": rdma_counters(root),
            "ethernet": ethernet_counters(root),
        }
    )


def pattern(start: int, stop: int, device: torch.device) -> torch.Tensor:
    return torch.arange(start, stop, device=device, dtype=torch.int64).remainder_(PATTERN).to(torch.float32)


def fill(buffer: torch.Tensor, rank: int) -> None:
    """Every rank its own values, so that a sum that misses or repeats a rank is seen."""
    for start in range(0, buffer.numel(), CHUNK):
        stop = min(start + CHUNK, buffer.numel())
        buffer[start:stop] = pattern(start, stop, buffer.device) + (rank + 1)


def count_wrong(buffer: torch.Tensor, ranks: int) -> int:
    """Elements that are not the exact sum over all ranks."""
    wrong = 0
    for start in range(0, buffer.numel(), CHUNK):
        stop = min(start + CHUNK, buffer.numel())
        expected = pattern(start, stop, buffer.device) * ranks + ranks * (ranks + 1) // 2
        wrong += int((buffer[start:stop] != expected).sum().item())
    return wrong


class Sweep:
    """One process of the sweep: its rank, its device, and the two groups (control and measured)."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.backend = args.backend or ("nccl" if torch.cuda.is_available() else "gloo")
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.device = torch.device("cuda", self.local_rank) if self.backend == "nccl" else torch.device("cpu")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.timeout = datetime.timedelta(seconds=args.timeout)
        # nodes start at different times, and that is no fault: the control group waits longer than a collective may
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=args.patience))
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def start(self) -> None:
        seen: list = [None] * self.ranks
        on_gpu = self.device.type == "cuda"
        dist.all_gather_object(seen, (node_name(), torch.cuda.get_device_name(self.device) if on_gpu else None))
        nodes, gpus = ({item[n] for item in seen if item[n]} for n in (0, 1))
        version = torch.cuda.nccl.version() if on_gpu else None
        if self.rank == 0:
            emit(
                {
                    "poolshift": "all-reduce",
                    "event": "start",
                    "v": 1,
                    "ranks": self.ranks,
                    "hosts": len(nodes),
                    "nodes": sorted(nodes),
                    "gpus": sorted(gpus),
                    "backend": self.backend,
                    "nccl": ".".join(map(str, version)) if version else None,
                    "torch": torch.__version__,
                    "dtype": "float32",
                    "sizes": self.args.sizes,
                    "iters": self.args.iters,
                    "warmup": self.args.warmup,
                    "rounds": self.args.rounds,
                }
            )

    def finish_device(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def check(self, buffer: torch.Tensor, group: dist.ProcessGroup) -> int:
        """Sum fresh values once; the wrong elements of all ranks together."""
        fill(buffer, self.rank)
        dist.all_reduce(buffer, group=group)
        self.finish_device()
        total = torch.tensor([count_wrong(buffer, self.ranks)], dtype=torch.int64)
        dist.all_reduce(total)
        return int(total.item())

    def measure(self, size: int, group: dist.ProcessGroup) -> dict:
        """Mean time of one all-reduce over iterations and ranks, as nccl-tests prints it, and of the slowest rank."""
        buffer = torch.empty(size // ELEMENT, dtype=torch.float32, device=self.device)
        wrong = self.check(buffer, group)
        buffer.zero_()  # sums of sums would overflow; the wire does not care about the values
        for _ in range(self.args.warmup):
            dist.all_reduce(buffer, group=group)
        self.finish_device()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(self.args.iters):
            dist.all_reduce(buffer, group=group)
        self.finish_device()
        seconds = (time.perf_counter() - begin) / self.args.iters
        times = torch.zeros(self.ranks, dtype=torch.float64)
        times[self.rank] = seconds
        dist.all_reduce(times)
        wrong += self.check(buffer, group)
        mean = float(times.mean())
        algbw = buffer.numel() * ELEMENT / mean / 1e9
        return {
            "size_bytes": buffer.numel() * ELEMENT,
            "iters": self.args.iters,
            "time_us": round(mean * 1e6, 2),
            "slowest_us": round(float(times.max()) * 1e6, 2),
            "algbw_gb_s": round(algbw, 4),
            "busbw_gb_s": round(algbw * 2 * (self.ranks - 1) / self.ranks, 4),
            "wrong": wrong,
        }

    def run(self) -> bool:
        """All rounds; true when every sum was right."""
        self.start()
        right = True
        for number in range(self.args.rounds):
            group = dist.new_group(backend=self.backend, timeout=self.timeout)
            for size in self.args.sizes:
                row = self.measure(size, group)
                right = right and row["wrong"] == 0
                if self.rank == 0:
                    emit({"poolshift": "all-reduce", "event": "row", "round": number, **row})
            dist.destroy_process_group(group)
            dist.barrier()
        return right


def parse(argv: list) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", required=True, help="message sizes in bytes, comma-separated")
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1, help="communicators built and torn down one after another")
    parser.add_argument("--backend", choices=("nccl", "gloo"), help="default: nccl with a GPU, gloo without")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that one measured collective may take")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds that ranks wait for each other to start")
    args = parser.parse_args(argv)
    args.sizes = [int(size) for size in args.sizes.split(",")]
    if args.iters < 1 or args.rounds < 1 or args.warmup < 0 or any(size < ELEMENT for size in args.sizes):
        parser.error("iters and rounds need at least 1, warmup at least 0, sizes at least 4 bytes")
    return args


def main(argv: list) -> int:
    sweep = Sweep(parse(argv))
    if sweep.local_rank == 0:
        emit_counters("before")
    dist.barrier()
    try:
        right = sweep.run()
    except Exception as error:
        if sweep.rank == 0:
            emit({"poolshift": "all-reduce", "event": "end", "ok": False, "error": str(error)[:500]})
        raise
    if sweep.local_rank == 0:
        emit_counters("after")
    dist.barrier()
    if sweep.rank == 0:
        emit({"poolshift": "all-reduce", "event": "end", "ok": right})
    dist.destroy_process_group()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
