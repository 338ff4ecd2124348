# ruff: noqa: E501 - what a tool printed stands on one line here as it did there
"""Kinds of oddity in which public reports carry outputs: lost marks, doubled lines, glued stamps, other columns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from case_files import differences
from nccl_writer import Job, write
from tool_outputs import PERFTEST, ibstat, steps

from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import judge


@dataclass(frozen=True)
class Report:
    name: str
    text: str
    expect: dict[str, Any]
    machine: str | None = None


TABLE = """ nThread 1 nGpus 1 minBytes 67108864 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 5 agg iters: 1 validation: 1 graph: 0
 Using devices
  Rank  0 Group  0 Pid    127 on worker-0 device  0 [0x00] NVIDIA A10G
  Rank  1 Group  0 Pid    128 on worker-1 device  0 [0x00] NVIDIA A10G
                                                              out-of-place                       in-place
       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
    67108864      16777216     float     sum      -1   2367.6   28.34   28.34      0   2389.8   28.08   28.08      0
   134217728      33554432     float     sum      -1   3539.5   37.92   37.92      0   3266.7   41.09   41.09      0
 Out of bounds values : 0 OK
 Avg bus bandwidth    : 27.46
"""
ERROR_COLUMN = """#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
   268435456      67108864     float     sum   122131    2.20    4.33  2e-06   122165    2.20    4.33  2e-06
   536870912     134217728     float     sum   244833    2.19    4.32  2e-06   244844    2.19    4.32  1e+00
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 4.32178
"""
ELBENCHO_CSV = """ISO date,label,path type,threads,direct IO,operation,time ms [first],time ms [last],IOPS [first],IOPS [last],MiB/s [first],MiB/s [last]
2026-05-22T16:09:38,,dir,8,1,MKDIRS,2,5,,,,
2026-05-22T16:09:38,,dir,8,1,WRITE,2134,2784,3494,2941,3494,2941
2026-05-22T16:09:41,,dir,8,1,READ,846,905,9673,9048,9673,9048
"""
IOR_CSV = """access,bw(MiB/s),IOPS,Latency,block(KiB),xfer(KiB),open(s),wr/rd(s),close(s),total(s),numTasks,iter
write,24102.25,24107.1,0.0053,1048576.0,1024.0,0.0011,5.4,0.0009,5.41,128,0
write,25110.5,25120.3,0.0051,1048576.0,1024.0,0.0011,5.2,0.0009,5.21,128,1
read,22660.25,22661.3,0.0057,1048576.0,1024.0,0.0011,5.8,0.0009,5.81,128,0
"""
HOST = "ip-10-0-0-1:79:80 [0] NCCL INFO "
STAMP = "2026-05-16T16:39:51.208"

REPORTS = (
    # a bandwidth table
    Report(
        "comment-marks-lost",
        TABLE,
        {"ranks": 2, "hosts": 2, "rows": 2, "peak_busbw": 37.92, "valid_multinode": True, "out_of_bounds": 0},
    ),
    Report(
        "patch-marks",
        "".join(f"+{line}\n" for line in TABLE.splitlines()),
        {"rows": 2, "peak_busbw": 37.92, "peak_busbw_in_place": 41.09},
    ),
    Report(
        "rounding-is-no-corruption",
        ERROR_COLUMN,
        {"rows": 2, "wrong": None, "corruption": False, "verdict": "undetermined", "oob_status": "OK"},
    ),
    Report(
        "rows-alone-with-an-operator-but-no-root",
        "   268435456      67108864     float     sum   122131    2.20    4.33  2e-06   122165    2.20    4.34  2e-06\n",
        {"rows": 1, "torn_rows": 0, "peak_busbw": 4.33, "peak_busbw_in_place": 4.34, "redop": "sum"},
    ),
    Report("wrong-without-mark", TABLE.replace("#wrong", "wrong"), {"rows": 2, "wrong": 0, "peak_busbw": 37.92}),
    # NCCL's lines
    Report(
        "stamp-glued-to-host",
        f"  | {STAMP}-07:00{HOST}Using network AWS Libfabric | {HOST}Using network AWS Libfabric\n  | {STAMP}-07:00 | {HOST}cudaDriverVersion 12040\n",
        {"hosts": 1, "selected_counts": {"AWS Libfabric": 1}},
    ),
    Report("zulu-glued-to-host", f"{STAMP}Z{HOST}Using network IB\n{HOST}Using network IB\n", {"hosts": 1}),
    Report(
        "channels-doubled-in-the-line",
        f"{STAMP}-07:00{HOST}Channel 00/0 : 3[3] -> 8[0] [send] via NET/IB/0/GDRDMA | {HOST}Channel 00/0 : 3[3] -> 8[0] [send] via NET/IB/0/GDRDMA\n",
        {"hosts": 1, "gdr": "all", "inter_node_edges": [[3, 8]]},
    ),
    Report(
        "communicator-behind-the-channel",
        "k8s17:581:581 [0] NCCL INFO Channel 00/0 : 16[17000] -> 0[21000] [send] via NET/IB/1/GDRDMA comm 0x5609976f9470 nRanks 32\n",
        {"transport": "ib-verbs", "gdr": "all", "net_channels": {"ib": 1, "socket": 0}},
    ),
    Report(
        "rank-before-the-message",
        "[1] NCCL INFO [Rank 1] ncclCommInitRank comm 0x7213b0e8c000 rank 1 nranks 16 cudaDev 1 nvmlDev 1 busId 8c000 commId 0x3a - Init START\n",
        {"nranks": 16},
    ),
    Report(
        "two-ray-prefixes",
        "(EngineCore_DP0 pid=1088) (RayWorkerWrapper pid=285, ip=192.168.177.12) spark2:285:285 [0] NCCL INFO Using network IB\n",
        {"hosts": 1, "transport": "ib-verbs"},
    ),
    Report(
        "stamp-on-a-line-of-its-own",
        f"{STAMP}Z\nalgo-1:18057:18130 [0] NCCL INFO NET/OFI Running on p4d.24xlarge platform, Setting NCCL_TOPO_FILE\n{STAMP}Z\nalgo-1:18062:18131 [5] NCCL INFO NET/OFI Using Libfabric version 1.22\n",
        {"hosts": 1, "platform": "p4d.24xlarge", "libfabric_version": "1.22"},
    ),
    Report(
        "own-verbs-refused-is-no-plugin-failure",
        "".join(
            f"node-{h}:1:2 [0] NCCL INFO {m}\n"
            for h in "ab"
            for m in (
                "NET/Plugin: Could not find: libnccl-net.so",
                "Failed to initialize NET plugin IB",
                "Initialized NET plugin Socket",
                "Using network Socket",
            )
        ),
        {"transport": "socket", "fallback": True, "verdict": "degraded", "cause": "plugin-missing"},
    ),
    Report(
        "missing-plugin-beside-no-device-where-only-the-plugin-reaches-the-fabric",
        f"{HOST}NET/Plugin: Could not find: libnccl-net.so\n{HOST}NET/IB : No device found.\n{HOST}Using network Socket\n",
        {"cause": "plugin-missing"},
        "p5en.48xlarge",
    ),
    Report(
        "efa-refused",
        f"ip-10-0-0-1:79:80 [7] ofi_init:700 NCCL WARN NET/OFI Only EFA provider is supported\n{HOST}NET/IB : No device found.\n{HOST}NET/Socket : Using [0]ens5:10.0.0.1<0>\n",
        {"transport": "socket", "cause": "no-efa-device", "fallback": True},
    ),
    Report(
        "bootstrap-handshake",
        f"{HOST}Using network IB\nip-10-0-0-1:79:80 [2] misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3\n",
        {"verdict": "failed", "fatal": True, "cause": "socket-handshake-failed"},
    ),
    Report(
        "all-ranks-on-one-host",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n"
        "#   Rank  0 Pid  17754 on ml-0 device  0 [0x06] Tesla V100\n#   Rank  1 Pid  17755 on ml-0 device  1 [0x07] Tesla V100\n"
        "ml-0:17754:17754 [0] NCCL INFO NET/IB : No device found.\nml-0:17754:17754 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>\n",
        {"fallback": None, "rdma": None, "hosts": 1},
    ),
    # storage
    Report(
        "elbencho-csv",
        ELBENCHO_CSV,
        {
            "tool": "elbencho",
            "write_first_mib_s": 3494,
            "write_last_mib_s": 2941,
            "read_last_mib_s": 9048,
            "direct": True,
        },
    ),
    Report(
        "elbencho-csv-cut",
        ELBENCHO_CSV[: ELBENCHO_CSV.rindex(",")],
        {"write_last_mib_s": 2941, "read_last_mib_s": None, "read_first_mib_s": None},
    ),
    Report(
        "elbencho-error",
        "OPERATION RESULT TYPE        FIRST DONE  LAST DONE\n========= ================   ==========  =========\nWRITE     Elapsed ms       :       1210       7353\n"
        "          Throughput MiB/s :      50501      35647\n---\n=== [ HOST: w1:1611 (Rank: 0) ] ===\n  ERROR: Unexpected short file read. Path: /mnt\n",
        {"tool": "elbencho", "write_last_mib_s": 35647, "verdict": "failed", "cause": "io-error"},
    ),
    Report(
        "ior-csv",
        IOR_CSV,
        {
            "tool": "ior",
            "max_write_mib_s": 25110.5,
            "max_read_mib_s": 22660.25,
            "write_rows_mib_s": [24102.25, 25110.5],
            "iterations": 2,
        },
    ),
    Report(
        "fio-behind-a-logger",
        "12:06:53 DEBUG| [stdout] Run status group 3 (all jobs):\n12:06:53 DEBUG| [stdout]    READ: bw=76.6MiB/s (80.3MB/s), 76.6MiB/s-76.6MiB/s (80.3MB/s-80.3MB/s), io=1024MiB (1074MB), run=13373-13373msec\n",
        {"tool": "fio", "format": "fio3", "read_mib_s": 76.6},
    ),
    Report(
        "fio-3-before-its-summary",
        "randread: (groupid=0, jobs=16): err= 0: pid=12123: Tue Dec 20 08:33:20 2022\n   read: IOPS=3068, BW=6137MiB/s (6435MB/s)(1798GiB/300005msec)\n",
        {"tool": "fio", "read_mib_s": 6137, "complete": False},
    ),
    Report(
        "fio-2-before-its-summary",
        "iometer: (groupid=0, jobs=1): err= 0: pid=21423: Thu May  9 16:33:14 2013\n  read : io=326081KB, bw=1023.3KB/s, iops=170 , runt=318686msec\n  write: io=81920KB, bw=257.05KB/s, iops=42 , runt=318686msec\n",
        {"tool": "fio", "format": "fio2", "read_kb_s": 1023.3, "write_kb_s": 257.05, "complete": False},
    ),
    # devices and counters
    Report(
        "counters-as-a-list",
        "alloc_pd_err :0\nrdma_read_bytes :7\nrx_bytes :2\nrx_drops :0\nrx_pkts :0\ntx_bytes :40\ntx_pkts :1\n",
        {"tool": "counters", "tx_bytes": 40, "rx_bytes": 2, "rdma_read_bytes": 7},
    ),
    Report(
        "counters-of-ethernet",
        "NIC statistics:\n     rx_packets: 100\n     tx_bytes: 4000\n     rx_bytes: 2000\n",
        {"kind": "unknown"},
    ),
    Report(
        "ibstatus",
        "Infiniband device 'mlx5_0' port 1 status:\n\tstate:\t\t 4: ACTIVE\n\tphys state:\t 5: LinkUp\n\trate:\t\t 200 Gb/sec (4X HDR)\n\tlink_layer:\t InfiniBand\n",
        {"tool": "ibstatus", "device": "mlx5_0", "rate_gbps": 200.0, "healthy": True, "link_layer": "InfiniBand"},
    ),
    Report(
        "rdma-link",
        "link rdmap0s6/1 state ACTIVE physical_state LINK_UP\nlink mlx5_1/1 state DOWN physical_state DISABLED netdev eth3\n",
        {"tool": "rdma-link", "down": ["mlx5_1"], "cause": "port-down", "verdict": "failed"},
    ),
    Report(
        "fabtests",
        "fi_rdm_tagged_bw -p efa -s fe80::1 -P 0 fe80::2\nbytes   iters   total       time     MB/sec    usec/xfer   Mxfers/sec\n64      20k     1.2m        0.03s     42.74       1.50       0.67\n1.5m    200     300m        0.05s   6899.89     227.96       0.00\n",
        {"tool": "fabtests", "provider": "efa", "peak_mb_s": 6899.89},
    ),
    Report(
        "fi-pingpong-refused",
        "[error] util/pingpong.c:408 : failed to connect: Connection refused\n",
        {"tool": "fi_pingpong", "verdict": "failed", "cause": "no-transfer"},
    ),
    Report(
        "bidirectional-is-the-sum-of-both-ways",
        PERFTEST.replace("RDMA_Write BW Test", "RDMA_Write Bidirectional BW Test"),
        {"verdict": "degraded", "bw_average_gbps": 391.72},
        "a3-ultragpu-8g",
    ),
)


@pytest.mark.parametrize("report", REPORTS, ids=lambda r: r.name)
def test_reads_the_oddity(report: Report) -> None:
    """Each kind of oddity keeps its figures, and none of them is a proof."""
    answer = judge(from_text(report.text), machine_type=report.machine)
    assert differences(report.expect, json.loads(json.dumps(answer.to_json()))) == []
    assert answer.outcome is not Outcome.PASS


@pytest.mark.parametrize(
    ("fabric", "nics", "machine"),
    [
        ("efa", 16, "a3-ultragpu-8g"),
        ("gib", 8, "p5en.48xlarge"),
        ("ib", 8, "p5en.48xlarge"),
        ("fastrak", 8, "a3-ultragpu-8g"),
    ],
)
def test_another_fabric_proves_nothing_about_this_machine_type(fabric: str, nics: int, machine: str) -> None:
    """The network that proves must be one that the machine type accepts, however healthy the log is."""
    answer = judge(from_text(write(Job(fabric=fabric, nics=nics, gpus=8, rounds=2))), machine_type=machine, nodes=2)
    assert answer.outcome is not Outcome.PASS
    assert "other-network" in {f.code for f in answer.findings}


def test_warm_up_is_dropped_by_number() -> None:
    """Whatever is lost of the head of a log, the measured steps stay the measured ones."""
    whole = judge(from_text(steps(warmup=3, seconds=(6.0, 6.1, 6.2))))
    assert (whole.fields["steps"], whole.fields["median_step_s"], whole.fields["complete"]) == (3, 6.1, True)
    headless = judge(from_text(steps(warmup=3, seconds=(6.0, 6.1, 6.2), first=2)))
    assert (headless.fields["steps"], headless.fields["median_step_s"]) == (3, 6.1)


@pytest.mark.parametrize(
    ("text", "machine"),
    [
        pytest.param(ibstat(*["Active"] * 16), "a3-ultragpu-8g", id="devices-of-another-cloud"),
        pytest.param(ibstat(*["Active"] * 15) * 2, "p5en.48xlarge", id="the-same-list-twice"),
        pytest.param(PERFTEST.replace("391.72", "191.72"), "p5en.48xlarge", id="a-nic-of-another-kind"),
    ],
)
def test_devices_of_another_machine_prove_nothing(text: str, machine: str) -> None:
    """Enough devices, but not this machine type's, or the same ones counted again."""
    assert judge(from_text(text), machine_type=machine).outcome is not Outcome.PASS
