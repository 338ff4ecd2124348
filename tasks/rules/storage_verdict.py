"""From what fio printed on each node to a record and verdicts: the run that was asked for, on Lustre. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from infra.model.reading import Reading
from infra.probes.readers.figures import number
from infra.probes.readers.lnet import LnetSight
from tasks.rules import hardware, lustre_path
from tasks.rules.hardware import ClientIo
from tasks.rules.probe_verdict import ProbeAnswer, Setting
from tasks.rules.reading_verdict import bad_end

_OF_NO_JOB = {"output-format"}  # options of the program
_ROUNDED = 0.01  # fio stops each job within an operation of its time: 1009 ms of 1 s were seen (fio 3.33)


def answer_storage(
    readings: Mapping[str, Reading],
    setting: Setting,
    baseline: Sequence[ClientIo] | None,
    lnet: Mapping[str, Sequence[LnetSight]] | None = None,
    *,
    asked: Sequence[str],
) -> ProbeAnswer:
    """Direct I/O of every node as it was `asked` for, and (where `lnet` is given) the network that carried it."""
    # A line that names another node is of another pod's output, wherever it was found.
    own = {node: [sight for sight in seen if sight.node == node] for node, seen in (lnet or {}).items()}
    clients = [client_of(node, reading, own.get(node, ()), asked) for node, reading in readings.items()]
    verdict = hardware.judge_storage(clients, setting.nodes, setting.fabric, baseline)
    moved = {node: _moved_bytes(readings.get(node)) for node in setting.nodes}
    record = {"clients": [_client_record(c) for c in clients]}
    path = () if lnet is None else (lustre_path.judge_path(own, moved),)
    return ProbeAnswer(record=record, verdicts=(verdict, *path), versions={})


def _moved_bytes(reading: Reading | None) -> float | None:
    """What fio says it read and wrote, bytes."""
    figures = reading.tool.figures if reading is not None and reading.tool is not None else {}
    both = [_number(figures.get(name)) for name in ("write_io_bytes", "read_io_bytes")]
    return sum(n for n in both if n is not None) if any(both) else None


def client_of(node: str, reading: Reading, sights: Sequence[LnetSight], asked: Sequence[str] | None = None) -> ClientIo:
    """One node's fio output; a figure that it lacks stays None.

    Cached, impossible or short ones make it incomplete, and so does a local disk, and a directory that neither its
    mount nor LNet's counters (`sights`) show to be on Lustre. `asked` are the probe's arguments; None compares none.
    """
    tool = reading.tool if reading.tool is not None and reading.tool.tool == "fio" else None
    figures = tool.figures if tool else {}
    trusted = tool is not None and tool.complete is True and not tool.suspicious and figures.get("direct") is True
    trusted = trusted and not any(
        figures.get(f"{s}_{lost}_ios") for s in ("read", "write") for lost in ("short", "drop")
    )
    # A shared file system has no block device on its clients; where fio shows one, the mount is not there.
    trusted = trusted and not figures.get("local_disks") and bad_end(reading) is None
    doubt = lustre_path.elsewhere(sights, figures.get("directories") or (), _moved_bytes(reading)) if trusted else ""
    doubt = doubt or (otherwise(figures, asked) if trusted and asked is not None else "")
    listed = figures.get("errors") or ()
    return ClientIo(
        node=node,
        write_bytes_s=_number(figures.get("write_bytes_s")),
        read_bytes_s=_number(figures.get("read_bytes_s")),
        errors=max(len(listed), int(tool is not None and tool.healthy is False)),
        complete=trusted and not doubt,
        doubt=doubt,
    )


def otherwise(figures: Mapping[str, Any], asked: Sequence[str]) -> str:
    """Why these jobs are not those that were asked for, or "". fio 3.33 tells no option that has no value."""
    told, wanted = figures.get("options") or (), _jobs_of(asked)
    if len(told) != len(wanted):
        return f"fio tells of {len(told)} jobs, {len(wanted)} were asked for"
    for seen, job in zip(told, wanted, strict=True):
        name = job.get("name")
        for key in sorted({*job, *seen}):
            if key not in job:
                return f"fio was told {key} for job {name}, which nobody asked for"
            if (seen.get(key) or "") not in ({job[key]} if job[key] else {"", "1"}):
                return f"job {name} of fio had {key} {seen.get(key) or 'untold'}, {job[key]} was asked for"
        seconds, took = number(job.get("runtime", "")), _number(figures.get(f"{job.get('rw')}_runtime_ms"))
        if seconds and (took is None or took < seconds * 1000 * (1 - _ROUNDED)):
            return f"job {name} of fio ran {took or 0:g} ms of the {seconds:g} s that it was told"
    return ""


def _jobs_of(arguments: Sequence[str]) -> list[dict[str, str]]:
    """The options of each job of a command line: those before the first name are every job's."""
    shared: dict[str, str] = {}
    jobs: list[dict[str, str]] = []
    for word in arguments:
        key, _, value = word.removeprefix("--").partition("=")
        if key == "name":
            jobs.append(dict(shared))
        if key not in _OF_NO_JOB:
            (jobs[-1] if jobs else shared)[key] = value
    return jobs


def clients_of(record: Mapping[str, Any]) -> list[ClientIo]:
    """Back from a record."""
    return [
        ClientIo(
            node=str(raw.get("node", "")),
            write_bytes_s=_number(raw.get("write_bytes_s")),
            read_bytes_s=_number(raw.get("read_bytes_s")),
            errors=int(_number(raw.get("errors")) or 0),
            complete=raw.get("complete") is True,
            doubt=str(raw.get("doubt") or ""),
        )
        for raw in record.get("clients") or ()
        if isinstance(raw, Mapping)
    ]


def _client_record(client: ClientIo) -> dict[str, Any]:
    return {
        "node": client.node,
        "write_bytes_s": client.write_bytes_s,
        "read_bytes_s": client.read_bytes_s,
        "errors": client.errors,
        "complete": client.complete,
        **({"doubt": client.doubt} if client.doubt else {}),
    }


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
