"""A Lustre file system and its clients, and fio's JSON about them.

A client moves the least of what its own path allows, what its streams to the object servers allow, and its share
of what the file system was provisioned for (validation facts, §2c Lustre).
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from infra.sandbox.fabric import physics
from infra.sandbox.fabric.machine import Host
from infra.sandbox.fabric.transcript import Tape, Transcript

TIB_PER_SERVER = 2.4  # capacity behind one object server of an SSD file system
STREAM_GB_S = 0.625  # 5 Gb/s between one client and one server over TCP
CLIENT_SHARE = 0.9  # of the client's ceiling that a well-striped read reaches
OTHER_ZONE_SHARE = 0.35  # of the stream rate, with a round trip of about 0.8 ms instead of 0.15 ms
ROUND_TRIP = 0.15e-3
OTHER_ZONE_ROUND_TRIP = 0.8e-3


@dataclass(frozen=True, kw_only=True)
class FileSystem:
    """The file system as one pool sees it."""

    capacity_tib: float
    mb_s_per_tib: float
    same_zone: bool = True

    @property
    def provisioned_gb_s(self) -> float:
        """What was bought."""
        return self.capacity_tib * self.mb_s_per_tib / 1000


@dataclass(frozen=True, kw_only=True)
class FioArgs:
    """The arguments that matter. `rw` as fio writes it; sizes in bytes; `told` are all, as they were written."""

    name: str = "probe"
    rw: str = "read"
    block: int = 1 << 20
    size: int = 8 << 30
    jobs: int = 1
    depth: int = 1
    runtime: float = 0.0
    ramp: float = 0.0
    directory: str = ""
    told: Mapping[str, str] = field(default_factory=dict)


def client_gb_s(host: Host, system: FileSystem, args: FioArgs, *, clients: int) -> float:
    """GB/s of one client among `clients`."""
    paths = host.machine.fabric.storage_client_gb_s
    efa = host.transport == "efa" and system.same_zone and "efa" in paths
    ceiling = paths.get("efa" if efa else "tcp", host.machine.ethernet_gb_s) * CLIENT_SHARE
    servers = max(1, round(system.capacity_tib / TIB_PER_SERVER))
    streams = ceiling if efa else servers * STREAM_GB_S * (1.0 if system.same_zone else OTHER_ZONE_SHARE)
    trip = ROUND_TRIP if system.same_zone else OTHER_ZONE_ROUND_TRIP
    queue = args.jobs * args.depth * args.block / 1e9 / (trip + args.block / (2.5e9))
    return min(ceiling, streams, queue, system.provisioned_gb_s / clients)


def fio(
    host: Host, system: FileSystem, jobs: Sequence[FioArgs], *, clients: int, start_unix: float, seed: str
) -> Transcript:
    """The storage payload: LNet's line before and after one fio run with `--output-format=json`.

    Its jobs run one after another, as `--stonewall` has them. The counters are not visible in the container.
    """
    rng = random.Random(seed)
    at, entries = 1.0, []
    for args in jobs:
        rate = physics.noisy(client_gb_s(host, system, args, clients=clients) * 1e9, rng, 0.02)
        seconds = args.runtime or args.size * args.jobs / rate
        at += args.ramp + seconds
        entries.append(_job(args, rate, int(rate * seconds // args.block * args.block), seconds))
    document = {
        "fio version": "fio-3.36",
        "timestamp": int(start_unix + at),
        "timestamp_ms": int((start_unix + at) * 1000),
        "time": datetime.fromtimestamp(start_unix + at, UTC).strftime("%a %b %e %H:%M:%S %Y"),
        "jobs": entries,
    }
    tape = Tape()
    place = next((job.directory for job in jobs if job.directory), "")
    if place:
        tape.say(0.5, "", _lnet("before", host, place))
    tape.say(at, *json.dumps(document, indent=2).split("\n"))
    if place:
        tape.say(at + 0.2, "", _lnet("after", host, place))
    return tape.finish(at + 0.5)


def _lnet(when: str, host: Host, place: str) -> str:
    mount = {"directory": place, "at": place, "type": "lustre"}
    seen: dict[str, object] = {
        "poolshift": "lnet",
        "when": when,
        "node": host.node,
        "nets": None,
        "connections": [],
        "mount": mount,
    }
    return json.dumps(seen, separators=(",", ":"))


def _job(args: FioArgs, rate: float, moved: int, seconds: float) -> dict[str, object]:
    reads = "read" in args.rw
    done, idle = _side(args, rate, moved, seconds), _side(args, 0.0, 0, 0.0)
    return {
        "jobname": args.name,
        "groupid": 0,
        "error": 0,
        "eta": 0,
        "elapsed": int(seconds) + 1,
        "job options": {key: value for key, value in args.told.items() if value and key != "output-format"},
        "read": done if reads else idle,
        "write": idle if reads else done,
        "trim": idle,
        "sync": {"total_ios": 0, "lat_ns": {"min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0}},
        "job_runtime": int(seconds * 1000) * args.jobs,
        "usr_cpu": 1.2,
        "sys_cpu": 8.4,
        "ctx": moved // args.block,
        "majf": 0,
        "minf": 64,
    }


def _side(args: FioArgs, rate: float, moved: int, seconds: float) -> dict[str, object]:
    ios = moved // args.block
    latency = args.jobs * args.depth * args.block / rate * 1e9 if rate else 0.0
    spread = {"min": int(latency * 0.5), "max": int(latency * 4), "mean": latency, "stddev": latency * 0.2, "N": ios}
    return {
        "io_bytes": moved,
        "io_kbytes": moved >> 10,
        "bw_bytes": int(rate),
        "bw": int(rate) >> 10,
        "iops": rate / args.block,
        "runtime": int(seconds * 1000),
        "total_ios": ios,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": {"min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0},
        "clat_ns": spread,
        "lat_ns": spread,
        "bw_min": int(rate * 0.94) >> 10,
        "bw_max": int(rate * 1.06) >> 10,
        "bw_agg": 100.0 if rate else 0.0,
        "bw_mean": rate / 1024,
        "bw_dev": rate / 1024 * 0.02,
        "bw_samples": int(seconds * 2) * args.jobs,
        "iops_mean": rate / args.block,
        "iops_samples": int(seconds * 2) * args.jobs,
    }
