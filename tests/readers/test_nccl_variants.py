# ruff: noqa: E501 - what a job printed stands on one line here as it did there
"""Wordings of NCCL 2.3 to 2.31 and of its network plugins, one sentence or a few at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from case_files import differences

from infra.probes.readers.lines import from_text
from tasks.judge import judge


@dataclass(frozen=True)
class Variant:
    name: str
    text: str
    expect: dict[str, Any]
    machine: str | None = None
    nodes: int | None = None


def info(*messages: str, host: str = "node-a", pid: int = 11, device: int = 0) -> str:
    return "".join(f"{host}:{pid}:{pid + 1} [{device}] NCCL INFO {message}\n" for message in messages)


def two(*messages: str) -> str:
    return info(*messages) + info(*messages, host="node-b", pid=12)


SOCKET = ("NET/IB : No device found.", "NET/Socket : Using [0]eth0:10.0.0.1<0>", "Using network Socket")
FALLEN = {"transport": "socket", "rdma": False, "fallback": True, "verdict": "degraded", "fatal": False}
EFA = "NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)"
COMM = "ncclCommInitRank comm 0x55d0 rank {r} nranks {n} cudaDev 0 nvmlDev 0 busId 53000 commId 0x9a - Init COMPLETE"
SHAPE = "comm 0x55d0 rank {r} nRanks {n} nNodes {nodes} localRanks {local} localRank {r} MNNVL {mnnvl}"

VARIANTS = (
    # the silent fallback, by the wording of the missing plugin
    Variant(
        "missing-2.18",
        two(
            "NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file: "
            "No such file or directory",
            "NET/Plugin : No plugin found, using internal implementation",
            "NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
            "Using network IB",
        ),
        {"transport": "roce", "fallback": False, "verdict": "healthy", "cause": None},
    ),
    Variant(
        "missing-2.19",
        two(
            "NET/Plugin: dlerror=libnccl-net.so: cannot open shared object file: No such file or "
            "directory No plugin found (libnccl-net.so), using internal implementation",
            "Using network Socket",
        ),
        FALLEN | {"cause": "plugin-missing"},
    ),
    Variant(
        "missing-2.21",
        two("NET/Plugin: No plugin found (libnccl-net.so)", "Using internal network plugin.", "Using network Socket"),
        FALLEN | {"cause": "plugin-missing"},
    ),
    Variant(
        "missing-2.22",
        two("NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.", "Using network Socket"),
        FALLEN | {"cause": "plugin-missing"},
    ),
    Variant(
        "missing-2.26",
        two("NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.", *SOCKET),
        FALLEN | {"cause": "no-ib-device"},
    ),
    Variant(
        "missing-2.27",
        two("NET/Plugin: Could not find: libnccl-net-ofi.so libnccl-net.so", "Using network Socket"),
        FALLEN | {"cause": "plugin-missing"},
    ),
    Variant(
        "unloadable-glibc",
        two(
            "NET/Plugin: libnccl-net-ofi.so: /lib64/libc.so.6: version `GLIBC_2.38' not found "
            "(required by /opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so)",
            *SOCKET,
        ),
        FALLEN | {"cause": "plugin-unloadable"},
    ),
    Variant(
        "unloadable-libfabric",
        two(
            "NET/Plugin: libnccl-net.so: libfabric.so.1: cannot open shared object file: No such file or directory",
            *SOCKET,
        ),
        FALLEN | {"cause": "plugin-unloadable"},
    ),
    Variant(
        "refused-2.28",
        two("Failed to initialize NET plugin Libfabric", *SOCKET),
        FALLEN | {"cause": "plugin-init-failed"},
    ),
    Variant(
        "no-verbs-library",
        two("Failed to open libibverbs.so[.1]", "NET/Socket : Using [0]eth0:10.0.0.1<0>", "Using network Socket"),
        FALLEN | {"cause": "no-verbs-library"},
    ),
    Variant(
        "disabled-by-environment",
        two("NCCL_IB_DISABLE set by environment to 1.", *SOCKET),
        FALLEN | {"cause": "disabled-by-environment"},
    ),
    Variant(
        "forced-by-environment",
        two("NCCL_NET set by environment to Socket.", "Using network Socket"),
        FALLEN | {"cause": "disabled-by-environment"},
    ),
    Variant("assigned-only-2.27", two("Initialized NET plugin Socket", "Assigned NET plugin Socket to comm"), FALLEN),
    Variant(
        "sockets-by-design",
        two(*SOCKET),
        {"transport": "socket", "fallback": False, "verdict": "not-applicable"},
        machine="a2-highgpu-8g",
    ),
    Variant(
        "socket-line-beside-efa",
        two("NET/Socket : Using [0]eth0:10.0.0.1<0>", EFA, "Using network AWS Libfabric"),
        {"transport": "efa", "rdma": True, "fallback": False, "verdict": "healthy"},
    ),
    Variant(
        "threads-line-is-no-device-list",
        info("NET/Socket: Using 2 threads and 8 sockets per thread"),
        {"transport": None, "verdict": "undetermined", "socket_interfaces": []},
    ),
    # versions before the word "network"
    Variant(
        "2.4-rings",
        info(
            "Ring 00 : 35 -> 34 [send] via NET/Socket/0",
            "Ring 00 : 33 -> 35 [receive] via NET/Socket/0",
            "comm 0x7efe rank 35 nranks 64 cudaDev 0 nvmlDev 0 - Init COMPLETE",
        ),
        {"transport": "socket", "net_channels": {"socket": 2}, "nranks": 64, "evidence": "channels"},
    ),
    Variant(
        "2.4-internal",
        info("Using internal Network IB", "NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:10.0.0.1<0>"),
        {"transport": "ib", "network_name": "IB", "evidence": "selected"},
    ),
    Variant(
        "2.5-gdr",
        info("Ring 00 : 15[3d000] -> 0[1b000] [send] via NET/IB/0/GDRDMA"),
        {"transport": "ib-verbs", "gdr": "all", "net_channels": {"ib": 1}, "inter_node_edges": [[15, 0]]},
    ),
    Variant(
        "2.3-socket-sideband",
        info("NET/IB : Using interface eth0 for sideband communication"),
        {"transport": None, "hcas": []},
    ),
    # aws-ofi-nccl
    Variant(
        "ofi-1.6",
        info("NET/OFI Selected Provider is efa (found 4 nics)", "Using network AWS Libfabric"),
        {"transport": "efa", "efa_nics": 4, "provider": "efa", "network_name": "AWS Libfabric"},
    ),
    Variant(
        "ofi-1.14",
        info("NET/OFI Selected provider is efa, fabric is efa (found 32 nics)", "Using network Libfabric"),
        {"transport": "efa", "efa_nics": 32, "fabric": "efa", "network_name": "Libfabric"},
    ),
    Variant(
        "ofi-tcp",
        two("NET/OFI Selected Provider is tcp;ofi_rxm (found 1 nics)", "Using network AWS Libfabric"),
        {
            "transport": "libfabric-tcp",
            "rdma": False,
            "fallback": True,
            "verdict": "degraded",
            "cause": "libfabric-over-tcp",
        },
    ),
    Variant(
        "ofi-sockets",
        two("NET/OFI Selected Provider is sockets", "Using network AWS Libfabric"),
        {"transport": "libfabric-tcp", "rdma": False},
    ),
    Variant("ofi-verbs", info("NET/OFI Selected Provider is verbs;ofi_rxm"), {"transport": "libfabric", "rdma": True}),
    Variant(
        "ofi-name-only",
        info("Using network AWS Libfabric"),
        {"transport": "libfabric", "provider": None, "rdma": None, "verdict": "undetermined"},
    ),
    Variant(
        "ofi-no-provider",
        info("NET/OFI Initializing aws-ofi-nccl 1.13.0", "NET/OFI Couldn't find any optimal provider"),
        {"transport": None, "verdict": "efa-unavailable"},
    ),
    Variant(
        "ofi-init-failed",
        info("NET/OFI Initializing aws-ofi-nccl 1.9.1-aws", "NET/OFI aws-ofi-nccl initialization failed"),
        {"plugin_version": "1.9.1-aws", "verdict": "efa-unavailable"},
    ),
    Variant(
        "ofi-fewer-nics",
        info("NET/OFI Selected provider is efa, fabric is efa (found 8 nics)", "Using network Libfabric"),
        {"verdict": "degraded", "cause": "fewer-nics"},
        machine="p5en.48xlarge",
    ),
    Variant("ofi-all-nics", info(EFA, "Using network Libfabric"), {"verdict": "healthy"}, machine="p5en.48xlarge"),
    Variant(
        "ofi-gdr-disabled",
        "node-a:1:2 [0] nccl_net_ofi_rdma_init:7 NCCL WARN NET/OFI GDR disabled on GDR-supported "
        "instance type p5.48xlarge\n" + info(EFA, "Using network Libfabric"),
        {"gdr": "none", "verdict": "degraded"},
    ),
    Variant(
        "ofi-empty-list",
        "libfabric:77:1700000000::core:core:fi_getinfo_():1368<warn> fi_getinfo: provider efa output "
        "empty list\n" + info("NET/OFI Initializing aws-ofi-nccl 1.12.1-aws"),
        {"verdict": "efa-unavailable"},
    ),
    # Google Cloud
    Variant(
        "gib",
        info(
            "NET/gIB : Initializing gIB v1.0.6",
            "Using network gIB",
            "Channel 00/0 : 7[7] -> 8[0] [send] via NET/gIB/3/GDRDMA",
        ),
        {"transport": "gib", "rdma": True, "gdr": "all", "net_channels": {"gib": 1, "socket": 0}, "verdict": "healthy"},
    ),
    Variant(
        "fastrak",
        info(
            "NET/FasTrak :Initializing network FasTrak, version: 1.0.17",
            "Using network FasTrak",
            "Channel 00/0 : 7[7] -> 8[0] [send] via NET/FasTrak/3(5)/GDRDMA",
        ),
        {"transport": "fastrak", "rdma": True, "gdr": "all", "verdict": "healthy"},
    ),
    Variant(
        "fastrak-no-rxdm",
        info("Using network FasTrak", "NET/FasTrak : GPU Direct RDMA Disabled for HCA 0 'eth1'"),
        {"transport": "fastrak", "gdr": "none", "verdict": "degraded", "cause": "no-gpudirect"},
    ),
    Variant(
        "fastsocket",
        info("NET/FastSocket : Using [0]eth0:10.0.0.1<0>", "Using network FastSocket"),
        {"transport": "fastsocket", "rdma": False, "verdict": "undetermined"},
    ),
    Variant(
        "started-without-selection",
        info("NET/GPUDirectTCPX initialization start"),
        {"transport": None, "fallback": False, "verdict": "undetermined", "evidence": "none"},
    ),
    # verbs plugins
    Variant(
        "ibext-v11",
        info(
            "NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB ib0:10.0.0.1<0>",
            "Using network IBext_v11",
            "Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IBext_v11/0/GDRDMA",
        ),
        {"transport": "ib", "network_name": "IBext_v11", "net_channels": {"ib": 1}, "hca_count": 2},
    ),
    Variant("sharp", info("Using network SHARP"), {"transport": "ib-verbs", "rdma": True}),
    Variant(
        "ucx",
        info("NET/UCX : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB", "Using network UCX"),
        {"transport": "ib", "rdma": True},
    ),
    Variant("ucx-name-only", info("Using network UCX"), {"rdma": None, "verdict": "undetermined"}),
    Variant(
        "ethernet-word",
        info("NET/IB : Using [0]mlx5_bond_0:1/RoCE [RO]; OOB bond0:10.0.0.1<0>", "Using network IB"),
        {"transport": "roce", "hcas": ["mlx5_bond_0:1/RoCE"]},
    ),
    Variant(
        "unknown-network",
        info("Using network Spectrum9"),
        {"transport": None, "network_name": "Spectrum9", "rdma": None, "verdict": "undetermined", "fallback": None},
    ),
    # channel suffixes
    Variant(
        "pxn",
        info("Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/3(2)/GDRDMA"),
        {"gdr": "all", "net_channels": {"ib": 1}},
    ),
    Variant("pci-suffix", info("Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/3/GDRDMA(PCI)"), {"gdr": "all"}),
    Variant("shared", info("Channel 00/1 : 7[7] -> 8[0] [receive] via NET/IB/3/GDRDMA/Shared"), {"gdr": "all"}),
    Variant("shared-without-gdr", info("Channel 00/1 : 7[7] -> 8[0] [receive] via NET/IB/3/Shared"), {"gdr": "none"}),
    Variant(
        "receive-only",
        info(
            "Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IB/0/GDRDMA",
            "Channel 00/0 : 8[0] -> 7[7] [send] via NET/IB/0",
        ),
        {"gdr": "receive-only", "verdict": "degraded"},
    ),
    Variant(
        "flush-none",
        info("Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Libfabric/0/GDRDMA/flush=None"),
        {"gdr": "all"},
    ),
    Variant(
        "torn-channel-word",
        info("Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/3/GDRD"),
        {"net_channels": {}, "gdr": None},
    ),
    Variant(
        "torn-network",
        "node-a:1:2 [0] NCCL INFO Using network AWS Libf",
        {"transport": None, "verdict": "undetermined"},
    ),
    Variant(
        "torn-channel", "node-a:1:2 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/Sock", {"net_channels": {}}
    ),
    Variant(
        "ring-gdr-0",
        two("Using network IB", "Connected all rings, use ring PXN 0 GDR 0"),
        {"gdr": "none", "verdict": "degraded", "cause": "no-gpudirect"},
    ),
    Variant(
        "ring-gdr-differs",
        two("Using network IB")
        + info("Connected all rings, use ring PXN 0 GDR 1")
        + info("Connected all rings, use ring PXN 0 GDR 0", host="node-b", pid=12),
        {"gdr": "partial", "verdict": "degraded"},
    ),
    Variant(
        "gdr-per-hca", info("NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'", "Using network IB"), {"gdr": "all"}
    ),
    Variant(
        "rate-below",
        info("NET/IB : Made virtual device [4] name=mlx5_0+mlx5_1 speed=200000 ndevs=2", "Using network gIB"),
        {"verdict": "degraded", "cause": "wrong-rate"},
        machine="a3-ultragpu-8g",
    ),
    # what never touches a NIC
    Variant(
        "one-node",
        "".join(info(SHAPE.format(r=r, n=2, nodes=1, local=2, mnnvl=0), pid=10 + r) for r in (0, 1))
        + info("Using network Socket", "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read"),
        {"verdict": "not-applicable", "rdma": None, "fallback": None, "nnodes": 1, "p2p_channels": 1},
    ),
    Variant(
        "placement",
        "".join(info(SHAPE.format(r=r, n=2, nodes=1, local=2, mnnvl=0), pid=10 + r) for r in (0, 1)),
        {"verdict": "invalid", "cause": "hidden-by-placement"},
        nodes=2,
    ),
    Variant(
        "nvlink-domain",
        info(
            SHAPE.format(r=0, n=2, nodes=2, local=1, mnnvl=1),
            "Using network IB",
            "Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL",
        ),
        {"verdict": "suspicious", "cause": "hidden-by-nvlink"},
    ),
    Variant(
        "single-rank",
        info(COMM.format(r=0, n=1), "Using network Socket"),
        {"verdict": "not-applicable", "fallback": None, "nranks": 1},
    ),
    # mixtures
    Variant(
        "one-host-on-sockets",
        info(EFA, "Using network Libfabric") + info(*SOCKET, host="node-b", pid=12),
        {"fallback": True, "rdma": False, "verdict": "degraded", "cause": "mixed-transport", "hosts": 2},
    ),
    Variant(
        "providers-differ",
        info(EFA) + info("NET/OFI Selected Provider is tcp", host="node-b", pid=12),
        {"verdict": "degraded", "cause": "mixed-transport"},
    ),
    Variant(
        "libfabric-over-a-subnet",
        two("NET/OFI Selected provider is tcp, fabric is 172.31.0.0/20 (found 2 nics)", "Using network Libfabric"),
        {"transport": "libfabric-tcp", "fallback": True, "verdict": "degraded", "cause": "libfabric-over-tcp"},
    ),
    Variant(
        "sockets-initialised-beside-a-plugin",
        info("NET/OFI Initializing aws-ofi-nccl 1.17.1", "NET/Socket : Using [0]eth0:10.0.0.1<0>"),
        {"transport": None, "fallback": False, "verdict": "undetermined", "cause": None},
    ),
    Variant(
        "forced-by-environment-in-capitals",
        two("NCCL_NET set by environment to SOCKET.", "Using network Socket"),
        FALLEN | {"cause": "disabled-by-environment"},
    ),
    # what ends a job
    Variant(
        "completion-error",
        "node-a:1:2 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer "
        "10.0.0.2<4711> with status=12 opcode=1 len=0 vendor err 129 (Send) localGid ::ffff:10.0.0.1\n",
        {
            "transport": "roce",
            "verdict": "failed",
            "fatal": True,
            "cause": "ib-completion-error",
            "evidence": "indirect",
        },
    ),
    Variant(
        "pinned-absent-2.26",
        "\nnode-a:1:2 [0] net.cc:1 NCCL WARN Error: network AWS Libfabric not found.\n",
        {"verdict": "failed", "cause": "pinned-network-absent", "fatal": True},
    ),
    Variant(
        "pinned-absent-2.28",
        "[2026-03-13 22:26:02] node-a:1:2 [0] plugin/net.cc:1 NCCL WARN Failed to initialize any NET plugin\n",
        {"verdict": "failed", "cause": "pinned-network-absent", "timestamp": "2026-03-13 22:26:02"},
    ),
    Variant(
        "warn-2.30-function",
        "[2026-03-13 22:26:02] node-a:1:2 [0] transport/net_ib.cc:12 (ncclIbTest) NCCL WARN "
        "Call to ibv_poll_cq failed with error Invalid argument\n",
        {"verdict": "failed", "cause": "ibv_poll_cq: Invalid argument", "hosts": 1},
    ),
    Variant(
        "peer-reset",
        "node-a:1:2 [0] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer "
        "node-b.example.com<4711>\n",
        {"verdict": "failed", "fatal": True},
    ),
    Variant(
        "retrying-is-not-fatal",
        info("Using network IB") + "node-a:1:2 [0] misc/socket.cc:483 NCCL WARN "
        "socketStartConnect: Call to connect returned Connection refused, retrying\n",
        {"fatal": False, "verdict": "healthy", "warnings": 1},
    ),
    Variant(
        "watchdog",
        info("Using network IB") + "[rank3]:[E ProcessGroupNCCL.cpp:523] [Rank 3] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)\n",
        {"verdict": "failed", "cause": "collective-timeout"},
    ),
    Variant(
        "other-warnings-are-shown",
        info("Using network IB") + "node-a:1:2 [0] graph/search.cc:890 NCCL WARN Could not "
        "find a path for pattern 4, falling back to simple order\n",
        {"verdict": "healthy", "warnings": 1, "fatal": False},
    ),
    Variant(
        "verbs-library-warning",
        "node-a:1:2 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\n" + info("Using network Socket"),
        FALLEN | {"cause": "no-verbs-library", "warnings": 1},
    ),
    Variant(
        "proxy-failed",
        "node-a:1:2 [3] proxy.cc:1519 NCCL WARN [Proxy Service 11] Failed to execute operation Connect from rank 11, "
        "retcode 2\n" + info("Channel 00/0 : 0[0] -> 8[0] [receive] via NET/Socket/0"),
        {"verdict": "failed", "transport": "socket", "cause": "proxy-failed"},
    ),
    Variant(
        "redacted-host",
        "<cluster>:920:1145 [1] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [receive] via NET/Socket/0\n",
        {"hosts": None, "transport": "socket", "devices_seen": [1]},
    ),
    Variant(
        "ofi-open-failed",
        "[1,23]<stdout>:node-a:1:2 [7] create_nccl_ofi_component:459 NCCL WARN NET/OFI Couldn't open AV. RC: -22, ERROR: "
        "Invalid argument\n",
        {"verdict": "failed", "cause": "ofi-call-failed", "prefix_rank": 23},
    ),
    Variant(
        "ofi-endpoint-failed",
        "node-a:1:2 [0] nccl_net_ofi_domain_get_ep:969 NCCL WARN NET/OFI Creating new endpoint for domain 0x7f failed: "
        "Invalid argument\n",
        {"verdict": "failed", "cause": "ofi-call-failed"},
    ),
    Variant(
        "efa-completion-error",
        "libfabric:7:1708520807::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 5, message: Invalid address My EFA addr\n"
        + info("Channel 00/0 : 0[4] -> 8[4] [send] via NET/AWS Libfabric/4/GDRDMA"),
        {"verdict": "failed", "cause": "efa-completion-error", "transport": "libfabric"},
    ),
    Variant(
        "message-transfer-tool",
        "INFO: Function: ofi_init Line: 686: NET/OFI Selected Provider is efa\n"
        "WARN: Function: create_nccl_ofi_component Line: 459: NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument\n",
        {"transport": "efa", "verdict": "failed", "cause": "ofi-call-failed"},
    ),
    Variant(
        "2.4-bootstrap-sockets",
        "NCCL version 2.4.2+cuda10.0\n" + info("NET/Socket : Using [0]enp1s0f0:10.0.0.1<0>"),
        {"transport": None, "verdict": "undetermined", "fallback": None},
    ),
    Variant(
        "2.4-no-device",
        "NCCL version 2.4.7+cuda9.2\n" + info("NET/Socket : Using [0]ens3:10.0.0.1<0>", "NET/IB : No device found."),
        {"transport": "socket", "fallback": True, "cause": "no-ib-device"},
    ),
    Variant(
        "terminal-frame",
        "│ task-1:28:53 [0] NCCL INFO Channel 00 : 3[51000] -> 0[cb000] [receive] via NET/IB/0      │\n",
        {"transport": "ib-verbs", "gdr": "none", "hosts": 1, "net_channels": {"ib": 1, "socket": 0}},
    ),
    Variant("channel-cut-in-front", "     8[4] -> 0[4] [receive] via NET/AWS Libfabric/4/GDRDMA\n", {"gdr": "all"}),
    # shapes of lines
    Variant("no-thread-id", "node-a:11 [0] NCCL INFO Using network IB\n", {"transport": "ib-verbs", "hosts": 1}),
    Variant("tabs", "\t\tnode-a:11:12 [0] NCCL INFO Using network IB\n", {"transport": "ib-verbs", "hosts": 1}),
    Variant("dotted-host", "gpu-1.example.com:11:12 [0] NCCL INFO Using network IB\n", {"hosts": 1}),
    Variant(
        "redacted-pids", "node-a:XXXX:XXXX [0] NCCL INFO Using network IB\n", {"transport": "ib-verbs", "hosts": 1}
    ),
    Variant(
        "glued",
        "node-a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/readnode-b:3:4 [1] NCCL INFO "
        "Using network Socket\n" + info("Using network Socket"),
        {"transport": "socket", "selected_counts": {"Socket": 2}},
    ),
    Variant("version-in-prefix", info("NCCL version 2.30.7+cuda13.0"), {"nccl_version": "2.30.7"}),
    Variant("version-alone", "NCCL version 2.4.8+cuda10.1\n" + info("Using network IB"), {"nccl_version": "2.4.8"}),
    Variant("empty-message", "node-a:1:2 [0] NCCL INFO \n", {"transport": None, "verdict": "undetermined"}),
)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_reads_the_wording(variant: Variant) -> None:
    """One wording of one version, alone or with the lines that decide it."""
    answer = judge(from_text(variant.text), machine_type=variant.machine, nodes=variant.nodes)
    assert differences(variant.expect, answer.to_json()) == []
    assert answer.exit_code != 0
