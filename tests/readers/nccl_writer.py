"""Writes whole NCCL logs as jobs of a given version and fabric print them, with any defect, in any launcher's prefix.

The wording follows NCCL's and the plugins' sources by version. Simulated output, for tests and benchmarks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job of `nodes` x `gpus` ranks. `socket_ranks` fall back, `plain_ranks` lack GPUDirect, in `bad_rounds` only."""

    fabric: str = "efa"  # efa, ib, roce, gib, fastrak, tcpx, socket
    version: str = "2.27.7"
    nodes: int = 2
    gpus: int = 4
    channels: int = 4
    rounds: int = 1
    nics: int = 16
    devices: int = 8  # of NCCL, which rings take in turn
    socket_ranks: frozenset[int] = frozenset()
    plain_ranks: frozenset[int] = frozenset()
    bad_rounds: frozenset[int] | None = None
    few_nics: frozenset[int] = frozenset()
    same_host: bool = False
    payload: bool = True
    ethernet: frozenset[int] = frozenset()
    sizes: tuple[int, ...] = (67108864, 268435456)
    busbw: float = 343.0
    trees: bool = False  # also the lines of tree connections, which make most of a real log
    extra: tuple[str, ...] = field(default=())

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus

    @property
    def network(self) -> str:
        return {
            "efa": "AWS Libfabric" if self._new_libfabric else "Libfabric",
            "ib": "IB",
            "roce": "IB",
            "gib": "gIB",
            "fastrak": "FasTrak",
            "tcpx": "GPUDirectTCPX_v7",
            "socket": "Socket",
        }[self.fabric]

    @property
    def _new_libfabric(self) -> bool:
        return self.numbers < (2, 26)

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.version.split("."))

    def host(self, rank: int) -> str:
        return "node-1" if self.same_host else f"node-{rank // self.gpus + 1}"

    def bad(self, ranks: frozenset[int], rank: int, round_: int) -> bool:
        return rank in ranks and (self.bad_rounds is None or round_ in self.bad_rounds)


def lines(job: Job) -> Iterator[tuple[int, str]]:
    """(rank, line) in the order in which a well-behaved job would print them."""
    if job.payload:
        for node in range(job.nodes):
            yield node * job.gpus, _counters(job, node, "before")
        yield 0, _event(job, "start")
    for round_ in range(job.rounds):
        for rank in range(job.ranks):
            yield from ((rank, line) for line in _init(job, rank, round_))
        for rank in range(job.ranks):
            yield from ((rank, line) for line in _connect(job, rank, round_))
        if job.payload:
            for size in job.sizes:
                yield 0, _row(job, round_, size)
        for rank in range(job.ranks):
            yield rank, _info(job, rank, round_, _comm(job, rank, round_, "") + " - Destroy COMPLETE")
    for line in job.extra:
        yield 0, line
    if job.payload:
        for node in range(job.nodes):
            yield node * job.gpus, _counters(job, node, "after")
        yield 0, json.dumps({"poolshift": "all-reduce", "event": "end", "ok": True}, separators=(",", ":"))


def write(job: Job, prefix: Callable[[int, str], str] | None = None) -> bytes:
    """The log as bytes; `prefix` puts a launcher's text in front of each line."""
    styled = (prefix(rank, line) if prefix else line for rank, line in lines(job))
    return ("\n".join(styled) + "\n").encode()


def _info(job: Job, rank: int, round_: int, text: str) -> str:
    local = rank % job.gpus
    return f"{job.host(rank)}:{1000 + rank}:{2000 + rank + 100 * round_} [{local}] NCCL INFO {text}"


def _comm(job: Job, rank: int, round_: int, call: str) -> str:
    identity = f" commId 0x{0xABC0 + round_:x}" if job.numbers >= (2, 17) else ""
    name = "ncclCommInitRank " if job.numbers >= (2, 19) and call else ""
    return (
        f"{name}comm 0x55{rank:04x}{round_:04x} rank {rank} nranks {job.ranks} cudaDev {rank % job.gpus} "
        f"nvmlDev {rank % job.gpus} busId {rank % job.gpus:x}3000{identity}"
    )


def _init(job: Job, rank: int, round_: int) -> Iterator[str]:
    def info(text: str) -> str:
        return _info(job, rank, round_, text)

    network = "Socket" if job.bad(job.socket_ranks, rank, round_) else job.network
    if round_ == 0:
        yield info("Bootstrap : Using eth0:10.0.0.1<0>")
        yield info("cudaDriverVersion 12080")
        if rank == 0:
            yield (
                f"NCCL version {job.version}+cuda12.9"
                if job.numbers < (2, 22)
                else info(f"NCCL version {job.version}+cuda12.9")
            )
    yield from (info(text) for text in _plugin(job, rank, network))
    if job.numbers >= (2, 27):
        yield info(f"Assigned NET plugin {network} to comm")
    yield info(f"Using network {network}")
    if job.numbers >= (2, 17):
        yield info(_comm(job, rank, round_, "init") + " - Init START")
    yield info(f"Setting affinity for GPU {rank % job.gpus} to ff,ffff0000,00ffffff")
    if job.numbers >= (2, 21):
        nodes = 1 if job.same_host else job.nodes
        yield info(
            f"comm 0x55{rank:04x}{round_:04x} rank {rank} nRanks {job.ranks} nNodes {nodes} "
            f"localRanks {job.ranks // nodes} localRank {rank % job.gpus} MNNVL 0"
        )
    pattern = (f"[{i}] {rank + 1}/-1/-1->{rank}->{rank - 1}" for i in range(job.channels))
    yield info("Trees " + " ".join(pattern))
    yield info("P2P Chunksize set to 524288")


def _plugin(job: Job, rank: int, network: str) -> Iterator[str]:
    if network == "Socket":
        yield "NET/IB : No device found."
        yield "NET/Socket : Using [0]eth0:10.0.0.1<0>"
    elif job.fabric == "efa":
        nics = job.nics // 2 if rank in job.few_nics else job.nics
        yield "NET/OFI Initializing aws-ofi-nccl 1.14.0"
        yield "NET/OFI Using Libfabric version 2.1"
        yield "NET/OFI Using transport protocol RDMA (platform set)"
        yield f"NET/OFI Selected provider is efa, fabric is efa-direct (found {nics} nics)"
    elif job.fabric in {"ib", "roce", "gib"}:
        layer = "IB" if job.fabric == "ib" else "RoCE"
        count = job.nics // 2 if rank in job.few_nics else job.nics
        devices = " ".join(f"[{i}]mlx5_{i}:1/{layer}" for i in range(count))
        yield f"NET/{'gIB' if job.fabric == 'gib' else 'IB'} : Using {devices} [RO]; OOB eth0:10.0.0.1<0>"
    elif job.fabric == "fastrak":
        yield "NET/FasTrak plugin initialized"
        yield "NET/FasTrak :Initializing network FasTrak, version: 1.0.17"


def _connect(job: Job, rank: int, round_: int) -> Iterator[str]:
    def info(text: str) -> str:
        return _info(job, rank, round_, text)

    local, plain = rank % job.gpus, job.bad(job.plain_ranks, rank, round_)
    socket = job.bad(job.socket_ranks, rank, round_)
    network = "Socket" if socket else job.network
    gdr = "" if plain or network == "Socket" else "/GDRDMA"
    edge = local in {0, job.gpus - 1} and job.nodes > 1 and not job.same_host
    yield info(
        f"{job.channels} coll channels, 0 collnet channels, 0 nvls channels, 8 p2p channels, 2 p2p channels per peer"
    )
    yield info(_comm(job, rank, round_, "init") + " - Init COMPLETE")
    for channel in range(job.channels):
        via = f"via NET/{network}/{channel % job.devices}{gdr}"
        following, before = (rank + 1) % job.ranks, (rank - 1) % job.ranks
        word = f"Channel {channel:02d}/0" if job.numbers >= (2, 14) else f"Channel {channel:02d}"
        if edge and local == 0:
            yield info(f"{word} : {before}[{before % job.gpus}] -> {rank}[{local}] [receive] {via}")
        if edge and local == job.gpus - 1:
            yield info(f"{word} : {rank}[{local}] -> {following}[0] [send] {via}")
        else:
            yield info(f"{word} : {rank}[{local}] -> {following}[{following % job.gpus}] via P2P/CUMEM/read")
        if job.trees:
            yield from (info(text) for text in _tree(job, rank, word, via if edge else ""))
    summary = f", use ring PXN 0 GDR {int(bool(gdr) or not edge)}" if job.numbers >= (2, 24) else ""
    yield info(f"Connected all rings{summary}")
    yield info("Connected all trees")


def _tree(job: Job, rank: int, word: str, via: str) -> Iterator[str]:
    for step in (1, 2):
        peer = (rank + step * job.gpus) % job.ranks if via else (rank + step) % job.ranks
        route = via or "via P2P/CUMEM/read"
        yield f"{word} : {rank}[{rank % job.gpus}] -> {peer}[{peer % job.gpus}]{' [send]' if via else ''} {route}"
        yield f"{word} : {peer}[{peer % job.gpus}] -> {rank}[{rank % job.gpus}]{' [receive]' if via else ''} {route}"


def _event(job: Job, event: str) -> str:
    return json.dumps(
        {
            "poolshift": "all-reduce",
            "event": event,
            "v": 1,
            "ranks": job.ranks,
            "hosts": (hosts := 1 if job.same_host else job.nodes),
            "nodes": [f"node-{number + 1}" for number in range(hosts)],
            "backend": "nccl",
            "nccl": job.version,
            "iters": 20,
            "rounds": job.rounds,
            "sizes": list(job.sizes),
        },
        separators=(",", ":"),
    )


def _row(job: Job, round_: int, size: int) -> str:
    algbw = job.busbw * job.ranks / (2 * (job.ranks - 1))
    return json.dumps(
        {
            "poolshift": "all-reduce",
            "event": "row",
            "round": round_,
            "size_bytes": size,
            "iters": 20,
            "time_us": round(size / algbw / 1e3, 2),
            "slowest_us": round(size / algbw / 1e3 * 1.003, 2),
            "algbw_gb_s": round(algbw, 4),
            "busbw_gb_s": round(job.busbw, 4),
            "wrong": 0,
        },
        separators=(",", ":"),
    )


def _counters(job: Job, node: int, when: str) -> str:
    moved = 0 if when == "before" else 40_000_000_000
    on_ethernet = node in job.ethernet
    rdma = {"tx_bytes": 1000 + (0 if on_ethernet else moved), "rx_bytes": 1000 + (0 if on_ethernet else moved)}
    ethernet = {"tx_bytes": 5000 + (moved if on_ethernet else 0), "rx_bytes": 5000 + (moved if on_ethernet else 0)}
    return json.dumps(
        {
            "poolshift": "counters",
            "when": when,
            "node": f"node-{node + 1}",
            "rdma": {"rdmap86s0": rdma},
            "ethernet": {"eth0": ethernet},
        },
        separators=(",", ":"),
    )
