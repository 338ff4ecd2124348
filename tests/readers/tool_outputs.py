"""Outputs of small tools as they print them, for tests: simulated where no real one is at hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

PERFTEST_RULE = "-" * 87
PERFTEST = f"""{PERFTEST_RULE}
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : mlx5_0
 Number of qps   : 1		Transport type : IB
 Connection type : RC		Using SRQ      : OFF
 Mtu             : 4096[B]
 Link type       : Ethernet
{PERFTEST_RULE}
 local address: LID 0000 QPN 0x0127 PSN 0x3d1b2c
 GID: 00:00:255:255:10:00:00:01
 remote address: LID 0000 QPN 0x0128 PSN 0x8d1b2c
 GID: 00:00:255:255:10:00:00:02
{PERFTEST_RULE}
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             392.11             391.72		   0.747144
{PERFTEST_RULE}
"""
FIO_JSON = {
    "fio version": "fio-3.36",
    "global options": {"direct": "1"},
    "jobs": [
        {
            "jobname": "seq",
            "error": 0,
            "read": {
                "io_bytes": 64 << 30,
                "bw_bytes": 12_000_000_000,
                "bw": 11718750,
                "iops": 11444.0,
                "runtime": 5700,
                "total_ios": 65536,
                "short_ios": 0,
                "clat_ns": {"mean": 1.5e6},
            },
            "write": {"io_bytes": 0, "bw_bytes": 0, "bw": 0, "iops": 0, "runtime": 0, "total_ios": 0, "short_ios": 0},
        }
    ],
}


P5EN = (85, 86, 87, 88, 110, 111, 112, 113, 135, 136, 137, 138, 160, 161, 162, 163)  # PCI buses of its NICs
P4D = (16, 32, 144, 160)


def fi_info(devices: Iterable[int], buses: Sequence[int] = P5EN) -> str:
    """fi_info -p efa of libfabric 2, which lists each device under two fabrics."""
    return "".join(
        f"provider: efa\n    fabric: {fabric}\n    domain: rdmap{buses[n]}s0-rdm\n    version: 201.0\n"
        "    type: FI_EP_RDM\n    protocol: FI_PROTO_EFA\n"
        for n in devices
        for fabric in ("efa", "efa-direct")
    )


FI_INFO = fi_info(range(16))
PINGPONG = """bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
64      10      =10      1.2k        0.00s     11.13       5.75       0.17
1m      10      =10      20m         0.01s   1873.21     559.77       0.00
"""


def ibstat(*states: str) -> str:
    return "".join(
        f"CA 'rdmap{P5EN[n]}s0'\n\tCA type: \n\tNumber of ports: 1\n\tPort 1:\n\t\tState: {state}\n"
        "\t\tPhysical state: LinkUp\n\t\tRate: 200\n\t\tLink layer: Unknown\n"
        for n, state in enumerate(states)
    )


def steps(*, warmup: int, seconds: tuple[float, ...], first: int = 0) -> str:
    """A training payload's lines; those before step `first` are lost."""
    start = {
        "poolshift": "train-step",
        "event": "start",
        "v": 1,
        "ranks": 16,
        "hosts": 2,
        "steps": len(seconds),
        "warmup": warmup,
    }
    lines = [
        {"poolshift": "train-step", "event": "step", "step": n, "seconds": 30.0, "warmup": True} for n in range(warmup)
    ]
    lines += [
        {"poolshift": "train-step", "event": "step", "step": warmup + n, "seconds": s, "warmup": False}
        for n, s in enumerate(seconds)
    ]
    end = {"poolshift": "train-step", "event": "end", "ok": True}
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (start, *lines[first:], end))
