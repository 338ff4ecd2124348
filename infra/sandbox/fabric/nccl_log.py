"""NCCL INFO lines as ranks on simulated hosts print them, per generation (validation facts, §2b).

Subsystems INIT, ENV and NET are taken as enabled, which is what the probes ask for. Lines of one rank come in the
order of the real tool; the caller interleaves ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from infra.sandbox.fabric.generation import Generation
from infra.sandbox.fabric.machine import Host

RDMA_CHANNELS = 16
SOCKET_CHANNELS = 2
OFI_NAMES = ("aws libfabric", "libfabric", "ofi")
NETWORKS = {"roce": "gIB", "tcpxo": "FasTrak", "tcpx": "GPUDirectTCPX_v7", "socket": "Socket"}
GIB_VERSION = "1.1.0"


@dataclass(frozen=True, kw_only=True)
class Member:
    """One pod of a job: where it runs, how it is called inside, how many ranks it has."""

    host: Host
    hostname: str
    address: str
    ranks: int
    first_rank: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that the lines of a run depend on. `env` is what the containers were given; `seed` makes ids repeatable."""

    members: Sequence[Member]
    generation: Generation
    env: Mapping[str, str] = field(default_factory=dict)
    seed: str = ""
    ofi_in_image: bool = True

    @property
    def ranks(self) -> int:
        """World size."""
        return sum(member.ranks for member in self.members)

    def network(self, host: Host) -> str:
        """What NCCL calls the network that it uses on a host."""
        if host.transport == "efa":
            pinned = self.env.get("NCCL_NET", "")
            # The plugin answers to its old and its new name, and shows the one that was asked for.
            return pinned if pinned.lower() in OFI_NAMES else self.generation.network
        return NETWORKS[host.transport]

    def number(self, *parts: object, bits: int = 48) -> int:
        """A repeatable number for addresses and ids."""
        text = "/".join([self.seed, *map(str, parts)])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) % (1 << bits)


def pinned_absent(job: Job, host: Host) -> bool:
    """NCCL_NET names a network that this host does not have: NCCL refuses to start."""
    pinned = job.env.get("NCCL_NET", "").lower()
    if not pinned:
        return False
    if host.transport == "efa":
        return pinned not in OFI_NAMES
    return pinned != job.network(host).lower()


class Rank:
    """Writes the lines of one rank."""

    def __init__(self, job: Job, member: Member, local: int) -> None:
        self.job, self.member, self.local = job, member, local
        self.host, self.gen = member.host, job.generation
        self.rank = member.first_rank + local
        self.pid = 60 + local
        self.tid = self.pid + 400 + job.number("tid", self.rank, bits=6)

    def line(self, text: str, *, main: bool = False) -> str:
        """With NCCL's prefix; `main`: from the main thread."""
        thread = self.pid if main else self.tid
        return f"{self.member.hostname}:{self.pid}:{thread} [{self.local}] NCCL INFO {text}"

    def warn(self, where: str, text: str, stamp: str) -> list[str]:
        """A WARN as two lines: empty, then the message; with the time since 2.26."""
        head = f"[{stamp}] " if self.gen.at_least(26) else ""
        return ["", f"{head}{self.member.hostname}:{self.pid}:{self.tid} [{self.local}] {where} NCCL WARN {text}"]

    # Start of the process

    def process_lines(self) -> list[str]:
        """Once per process, before its first communicator."""
        gap = "" if self.gen.at_least(26) else " "
        lines = [self.line(f"{name} set by environment to {value}", main=True) for name, value in self._shown_env()]
        lines.append(self.line(f"Bootstrap{gap}: Using eth0:{self.member.address}<0>", main=True))
        cuda = self.gen.cuda.replace(".", "0").ljust(5, "0")
        driver = max(int(cuda), self.host.machine.fabric.cuda_driver)  # the node's, which knows its GPU
        lines.append(self.line(f"cudaDriverVersion {driver}", main=True))
        version = f"NCCL version {self.gen.text}+cuda{self.gen.cuda}"
        if self.gen.at_least(24):
            lines.append(self.line(version, main=True))
        elif self.rank == 0:
            lines.append(version)
        return lines

    def _shown_env(self) -> list[tuple[str, str]]:
        names = ("NCCL_SOCKET_IFNAME", "NCCL_NET")
        return [(name, self.job.env[name]) for name in names if name in self.job.env]

    # Network

    def plugin_lines(self, stamp: str) -> list[str]:
        """How the network was found: plugin, built-in IB, sockets."""
        transport = self.host.transport
        if transport == "efa":
            return self._loaded(self.job.network(self.host)) + self._ofi_lines()
        if transport == "socket":
            return self._missing(stamp) + self._builtin()
        return self._loaded(self.job.network(self.host)) + self._google_lines()

    def _loaded(self, name: str) -> list[str]:
        api = self.gen.net_api
        lines = [self.line(f"NET/Plugin: Loaded net plugin {name} (v{api})")]
        lines += [
            self.line(f"NET/Plugin: Failed to find ncclCollNetPlugin_v{version} symbol.")
            for version in range(api, 5, -1)
        ]
        if self.gen.at_least(27):
            network = "network " if self.gen.at_least(28) else ""
            lines.append(self.line(f"Successfully loaded external {network}plugin libnccl-net.so"))
        return lines

    def _ofi_start(self) -> list[str]:
        gen = self.gen
        runtime = gen.cuda.replace(".", "0").ljust(5, "0")
        return [
            self.line(f"NET/OFI Initializing aws-ofi-nccl {gen.ofi}"),
            self.line(f"NET/OFI Using Libfabric version {gen.libfabric}"),
            self.line(f"NET/OFI Using CUDA driver version {runtime} with runtime {runtime}"),
            self.line("NET/OFI Configuring AWS-specific options"),
            self.line("NET/OFI Setting provider_filter to efa"),
            self.line("NET/OFI Setting NCCL_NVLSTREE_MAX_CHUNKSIZE to 512KiB"),
            self.line("NET/OFI Setting NCCL_NVLS_CHUNKSIZE to 512KiB"),
        ]

    def _ofi_lines(self) -> list[str]:
        machine = self.host.machine.name
        short = machine.replace("48xlarge", "48xl").replace("24xlarge", "24xl").replace(".", "-")
        nics = len(self.host.live_nics)
        protocol = "SENDRECV" if machine.startswith("p4d") else "RDMA"
        topology = f"/opt/amazon/ofi-nccl/share/aws-ofi-nccl/xml/{short}-topo.xml"
        lines = [
            *self._ofi_start(),
            self.line(
                f"NET/OFI Running on {machine} platform, Setting NCCL_TOPO_FILE environment variable to {topology}"
            ),
            self.line("NET/OFI Internode latency set at 75.0 us"),
        ]
        if self.gen.modern_ofi:
            lines += [
                self.line(f"NET/OFI Using transport protocol {protocol} (platform set)"),
                self.line(f"NET/OFI Selected provider is efa, fabric is efa-direct (found {nics} nics)"),
                self.line("NET/OFI Creating one domain per process"),
                self.line("NET/OFI Support for global registrations: true"),
                self.line(f"NET/OFI Support for DMA-BUF registrations: {str(self.host.gdr).lower()}"),
            ]
        else:
            lines += [
                self.line(f"NET/OFI Selected Provider is efa (found {nics} nics)"),
                self.line(f"NET/OFI Using transport protocol {protocol}"),
                self.line("NET/OFI Creating one domain per process"),
            ]
        return lines

    def _google_lines(self) -> list[str]:
        name = self.job.network(self.host)
        if name == "gIB":
            devices = self._devices()
            using = " ".join(f"[{index}]{device}:1/RoCE" for index, device in enumerate(devices))
            return [
                self.line(f"NET/gIB : Initializing gIB v{GIB_VERSION}"),
                self.line(f"NET/gIB : Using {using} [RO]; OOB eth0:{self.member.address}<0>"),
            ]
        if name == "FasTrak":
            return [self.line("NET/FasTrak plugin: Initializing network FasTrak, version: 1.0.17")]
        return [self.line(f"NET/{name} : Initializing plugin")]

    def _missing(self, stamp: str) -> list[str]:
        """The plugin that would have served this machine is absent, or finds no device."""
        if self.host.loss == "no-device" and self.host.machine.fabric.kind == "efa" and self.job.ofi_in_image:
            where = "int nccl_net_ofi_create_plugin(nccl_net_ofi_plugin_t**):259"
            return [
                *self._loaded(self.gen.network),
                *self._ofi_start(),
                self.line("NET/OFI No eligible providers were found"),
                *self.warn(where, "NET/OFI Unable to find a protocol that worked.  Failing initialization.", stamp),
                *self.warn(where.replace("259", "352"), "NET/OFI aws-ofi-nccl initialization failed", stamp),
                *([self.line(f"Failed to initialize NET plugin {self.gen.network}")] if self.gen.at_least(28) else []),
            ]
        text = "NET/Plugin: Could not find: libnccl-net.so"
        if self.gen.at_least(27):
            return [self.line(f"{text}. ")]
        if self.gen.at_least(22):
            return [self.line(f"{text}. Using internal {'net' if self.gen.at_least(26) else 'network'} plugin.")]
        if self.gen.at_least(21):
            return [
                self.line("NET/Plugin: No plugin found (libnccl-net.so)"),
                self.line("NET/Plugin: Using internal network plugin."),
            ]
        return [
            self.line(
                "NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open"
                " shared object file: No such file or directory"
            ),
            self.line("NET/Plugin : No plugin found, using internal implementation"),
        ]

    def _builtin(self) -> list[str]:
        lines = [self.line("NET/IB : No device found.")]
        if self.gen.at_least(27):
            lines.append(self.line(f"NET/IB : Using [RO]; OOB eth0:{self.member.address}<0>"))
        if self.gen.at_least(28):
            lines.append(self.line("Failed to initialize NET plugin IB"))
        return [*lines, self.line(f"NET/Socket : Using [0]eth0:{self.member.address}<0>")]

    def refusal_lines(self, stamp: str) -> list[str]:
        """NCCL_NET names a network that is not there."""
        pinned = self.job.env["NCCL_NET"]
        found = [line for line in self.plugin_lines(stamp) if "NET/Socket" not in line]
        if self.gen.at_least(27):
            return [*found, *self.warn("plugin/net.cc:319", "Failed to initialize any NET plugin", stamp)]
        return [*found, *self.warn("net.cc:596", f"Error: network {pinned} not found.", stamp)]

    # Communicator

    def init_lines(self, number: int, stamp: str) -> list[str]:
        """From the choice of the network to Init COMPLETE, for communicator `number` of this process."""
        network = self.job.network(self.host)
        lines = self.plugin_lines(stamp) if number == 0 else []
        if self.gen.at_least(27):
            if number == 0:
                lines.append(self.line(f"Initialized NET plugin {network}"))
            lines.append(self.line(f"Assigned NET plugin {network} to comm"))
        elif self.gen.at_least(19):
            lines.append(self.line("Using non-device net plugin version 0"))
        lines.append(self.line(f"Using network {network}"))
        comm = f"0x{0x5500_0000_0000 + self.job.number('comm', number, self.rank, bits=36):x}"
        bus = f"{self.host.machine.bus_id(self.local):x}000"
        ident = f"0x{self.job.number('id', number, bits=60):x}"
        shape = f"rank {self.rank} nranks {self.job.ranks} cudaDev {self.local} nvmlDev {self.local} busId {bus}"
        lines.append(self.line(f"ncclCommInitRankConfig comm {comm} {shape} commId {ident} - Init START"))
        if self.gen.at_least(24):
            lines.append(
                self.line(
                    "Bootstrap timings total 0.031544 (create 0.000041, send 0.000188, recv 0.027310,"
                    " ring 0.002201, delay 0.000000)"
                )
            )
        if self.host.machine.gpu.nvls:
            lines.append(self.line(f"NVLS multicast support is available on dev {self.local}"))
        if self.gen.at_least(21):
            lines.append(
                self.line(
                    f"comm {comm} rank {self.rank} nRanks {self.job.ranks} nNodes {len(self.job.members)}"
                    f" localRanks {self.member.ranks} localRank {self.local} MNNVL 0"
                )
            )
        channels = channels_of(self.job)
        if self.rank == 0:
            for channel in range(channels):
                order = " ".join(f"{rank:>3}" for rank in ring_order(self.job, channel))
                lines.append(self.line(f"Channel {channel:02d}/{channels:02d} : {order}"))
        lines.append(self.line("P2P Chunksize set to 524288"))
        lines += self._gdr_device_lines()
        lines.append(
            self.line(
                f"{channels} coll channels, {channels} collnet channels, 0 nvls channels, {channels} p2p channels,"
                " 2 p2p channels per peer"
            )
        )
        lines.append(self.line(f"ncclCommInitRankConfig comm {comm} {shape} commId {ident} - Init COMPLETE"))
        return lines

    def _devices(self) -> list[str]:
        names = self.host.machine.rdma_devices()
        return [name for name, rate in zip(names, self.host.nics, strict=False) if rate > 0]

    def _gdr_device_lines(self) -> list[str]:
        if self.host.transport == "socket":
            return []
        state = "Enabled" if self.host.gdr else "Disabled"
        network = self.job.network(self.host)
        shown = self._devices()[: net_devices(self.host)]
        return [
            self.line(f"NET/{network} : GPU Direct RDMA {state} for HCA {index} '{device}'")
            for index, device in enumerate(shown)
        ]

    # First collective

    def connect_lines(self) -> list[str]:
        """What the first collectives of a communicator print: transports of every channel, then the summaries."""
        lines = self._gdr_pair_lines()
        for channel in range(channels_of(self.job)):
            order = ring_order(self.job, channel)
            here = order.index(self.rank)
            before, after = order[here - 1], order[(here + 1) % len(order)]
            if member_of(self.job, before) is not self.member:
                lines.append(self._channel(channel, before, self.rank, "receive"))
            if member_of(self.job, after) is not self.member:
                lines.append(self._channel(channel, self.rank, after, "send"))
        gdr = int(self.host.gdr and self.host.transport != "socket")
        summary = f", use ring PXN 0 GDR {gdr}" if self.gen.at_least(24) else ""
        return [*lines, self.line(f"Connected all rings{summary}"), self.line("Connected all trees")]

    def _gdr_pair_lines(self) -> list[str]:
        if self.host.transport == "socket" or self.gen.at_least(30):
            return []
        state = "Enabled" if self.host.gdr else "Disabled"
        gpu = str(self.rank) if self.gen.at_least(25) else f"{self.host.machine.bus_id(self.local):x}000"
        mode = " mode Default" if self.gen.at_least(26) else ""
        where = "<=" if self.host.gdr else ">"
        device = self._device(0)
        return [self.line(f"GPU Direct RDMA {state} for GPU {gpu} / HCA {device} (distance 4 {where} 4), read 1{mode}")]

    def _channel(self, channel: int, source: int, target: int, way: str) -> str:
        device = self._device(channel)
        gdr = "/GDRDMA" if self.host.gdr and self.host.transport != "socket" else ""
        ends = f"{source}[{local_of(self.job, source)}] -> {target}[{local_of(self.job, target)}]"
        return self.line(
            f"Channel {channel:02d}/0 : {ends} [{way}] via NET/{self.job.network(self.host)}/{device}{gdr}"
        )

    def _device(self, channel: int) -> int:
        """The device nearest to this rank's GPU; with several a GPU, channels take them in turn."""
        count = net_devices(self.host)
        each = max(1, count // self.host.machine.fabric.gpus)
        return (self.local * each + channel // self.member.ranks % each) % max(1, count)


def net_devices(host: Host) -> int:
    """How many devices NCCL numbers on a host: NICs in groups (p5: 32 in 8), fewer when some are down."""
    if host.transport == "socket":
        return 1
    fabric = host.machine.fabric
    return max(1, len(host.live_nics) * fabric.net_devices // fabric.nics)


def channels_of(job: Job) -> int:
    """NCCL opens few channels over a slow network."""
    slow = any(member.host.transport == "socket" for member in job.members)
    return SOCKET_CHANNELS if slow else RDMA_CHANNELS


def ring_order(job: Job, channel: int) -> list[int]:
    """The ring of a channel: each node is entered at one GPU, crossed over NVLink, and left at the GPU before it."""
    order: list[int] = []
    for member in job.members:
        entry = channel % member.ranks
        order += [member.first_rank + (entry + step) % member.ranks for step in range(member.ranks)]
    return order


def member_of(job: Job, rank: int) -> Member:
    """The pod that a rank runs in."""
    return next(m for m in job.members if m.first_rank <= rank < m.first_rank + m.ranks)


def local_of(job: Job, rank: int) -> int:
    """A rank's place in its pod."""
    return rank - member_of(job, rank).first_rank
