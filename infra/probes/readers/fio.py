"""fio 2 and 3, text and JSON, whole or cut. fio 2 writes KB and means KiB; in JSON `bw` is KiB/s, `bw_bytes` B/s."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from infra.model.reading import Kind, ToolReading
from infra.probes.readers.figures import json_objects, number

_SMALLEST_IO = 512  # bytes; a smaller average never reached a block device
_LARGEST_IO = 1 << 28  # bytes; more than fio is ever told to move in one operation
_MOST_IOPS = 20e6  # per client; beyond it only a cache answers
_SHORTEST_MS = 1000  # below, only buffers have answered
_ROUNDED = 0.1  # runtimes are whole milliseconds, and a group's is that of its longest job
_STARTED = re.compile(r"\(groupid=\d+, jobs=\d+\): err=|^(?:.*[\s|\]])?Starting \d+ (?:process|thread)", re.M)
_ENDED = re.compile(r"run=\d+-\d+ ?msec|maxt=\d+ *msec")
_STOPPED = re.compile(r"^fio: terminating on signal", re.M)
_GROUP = re.compile(r"Run status group (\d+)")
_FIO2 = re.compile(
    r"^(?:.*[\s|\]])?(READ|WRITE|MIXED|TRIM): io=([\d.]+)([KMGT]?)B?, aggrb=([\d.]+)([KMGT]?)B?/s, .*maxt=(\d+)\s*msec",
    re.M,
)
_FIO3 = re.compile(  # with --kb_base=1000 the decimal figure stands first
    r"^(?:.*[\s|\]])?(READ|WRITE|MIXED|TRIM): bw=(?:[\d.]+[kKMGT]?B/s \()?([\d.]+)([KMGT]?)iB/s"
    r"(?: \([\d.]+[kKMGT]?B/s)?\).*?io=(?:[\d.]+[kKMGT]?B \()?[\d.]+[KMGT]?iB",
    re.M,
)
# A job's own line, for excerpts that end before the summary.
_JOB = re.compile(r"\(groupid=\d+, jobs=\d+\): err=")
_JOB2 = re.compile(r"^(?:.*[\s|\]])?(read|write) ?: io=[\d.]+[KMGT]?B, bw=([\d.]+)([KMGT]?)B/s, iops=", re.M)
_JOB3 = re.compile(r"^(?:.*[\s|\]])?(read|write): IOPS=[\d.]+[kMG]?, BW=([\d.]+)([KMGT]?)iB/s \(", re.M)
_ERROR = re.compile(r"err=\s*([1-9]\d*)")
_IO_ERROR = re.compile(r"^fio: (?:io_u error|pid=\d+, err=[1-9]|ENOSPC).*$", re.M)
# Options under which no storage is measured, or less of it than the figures say.
_ENGINES = {"libaio", "io_uring", "sync", "psync", "vsync", "pvsync", "pvsync2", "posixaio", "libcufile"}
_EMPTY = ("zero_buffers", "dedupe_percentage", "buffer_compress_percentage", "verify_only", "buffered")
_POWER = {"": 0, "K": 1, "k": 1, "M": 2, "G": 3, "T": 4}
_PAIR = re.compile(r'"(\w+)"\s*:\s*(-?[\d.]+(?:e[+-]?\d+)?)')


def read_fio(text: str) -> ToolReading | None:
    """Read fio's output, or None when the text is no fio output."""
    if '"fio version"' in text or ('"bw_bytes"' in text and '"io_bytes"' in text):
        return _read_json(text)
    if "Run status group" in text or any(p.search(text) for p in (_JOB, _FIO2, _FIO3, _IO_ERROR)):
        return _read_text(text)
    return None


def _read_json(text: str) -> ToolReading:
    """One document, or several: the figures are the first's, an error of any of them counts."""
    found, whole = json_objects(text)
    documents = [d for d in map(_with_jobs, found) if _is_jobs(d.get("jobs"))]
    if not documents:
        return _read_fragment(text)
    document, jobs = documents[0], documents[0]["jobs"]
    figures: dict[str, Any] = {"format": "json", "valid_json": True, "fio_version": document.get("fio version")}
    apart = any("stonewall" in o for job in jobs if isinstance(o := job.get("job options"), dict))
    doubts = []
    for side in ("read", "write"):
        parts = [job[side] for job in jobs if isinstance(job.get(side), dict)]
        moving = [part for part in parts if number(part.get("io_bytes")) or number(part.get("bw_bytes"))]
        figures |= _side(side, parts, together=not apart or len(moving) < 2)
        doubts += [doubt for part in moving if (doubt := _contradiction(side, part))]
    # An error that is no number is still one, told in its own words.
    given = [job["error"] for d in documents for job in d["jobs"] if job.get("error")]
    errors = [error if number(error) is not None else str(error)[:40] for error in given]
    options = [d.get("global options") for d in documents] + [
        j.get("job options") for d in documents for j in d["jobs"]
    ]
    doubts += [doubt for o in options if isinstance(o, dict) if (doubt := _not_storage(o))]
    disks = [d.get("name") for each in documents for d in each.get("disk_util") or () if isinstance(d, dict)]
    if disks:
        figures["local_disks"] = [str(disk) for disk in disks]
    if places := sorted({place for o in options if isinstance(o, dict) for place in _places(o)}):
        figures["directories"] = places
    told = [{**_options(d, "global options"), **_options(j, "job options")} for d in documents for j in d["jobs"]]
    figures["options"] = [{str(key): str(value or "") for key, value in each.items()} for each in told]
    direct = {str(each.get("direct", "")) for each in told}
    figures["direct"] = direct == {"1"} if direct != {""} else None
    doubts += [doubt for job, each in zip(jobs, told, strict=False) if (doubt := _cut_short(job, each))]
    figures["jobs"] = len(jobs)
    figures["errors"] = errors
    if len(documents) > 1:
        figures["documents"] = len(documents)
    complete = whole and len(documents) == 1 and bool(jobs) and all("error" in job for job in jobs)
    complete = complete and not _STOPPED.search(text)
    failed = bool(errors or _IO_ERROR.search(text))
    return _reading(figures, complete=complete, failed=failed, doubt=next(iter(doubts), None))


def _with_jobs(document: dict[str, Any]) -> dict[str, Any]:
    """`fio --client` calls them client_stats, and of several clients lists their sum behind them."""
    clients = document.get("client_stats")
    if "jobs" in document or not _is_jobs(clients):
        return document
    return {**document, "jobs": [client for client in clients or () if client.get("jobname") != "All clients"]}


def _options(part: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return options if isinstance(options := part.get(name), dict) else {}


def _cut_short(job: Mapping[str, Any], options: Mapping[str, Any]) -> str | None:
    """A job that is told its time takes it; one that ended before was stopped, or is of another run."""
    seconds = number(str(options.get("runtime", "")))
    if seconds is None or "time_based" not in options:
        return None
    for side in ("read", "write"):
        part = job.get(side)
        took = number(part.get("runtime")) if isinstance(part, dict) and number(part.get("io_bytes")) else None
        if took is not None and took < seconds * 1000 * (1 - _ROUNDED):
            return f"{side}: ran {took} ms of the {seconds} s that it was told"
    return None


def _not_storage(options: Mapping[str, Any]) -> str | None:
    """Why a job with these options did not measure a file system."""
    engine = str(options.get("ioengine", "psync"))
    if engine not in _ENGINES:
        return f"ioengine={engine} does no I/O of a file system that could be judged"
    if str(options.get("filename", "")).startswith("/dev/"):
        return f"filename={options['filename']} is a device, no file system"
    told = next((name for name in _EMPTY if name in options and str(options[name]) not in {"0", "false"}), None)
    return f"with {told} less is moved than the figures say" if told else None


def _places(options: Mapping[str, Any]) -> list[str]:
    """The directories that a job is told to work in; it may be told several, with colons between."""
    found = [place for place in str(options.get("directory", "")).split(":") if place]
    files = [file for file in str(options.get("filename", "")).split(":") if file.startswith("/")]
    return found + [file.rpartition("/")[0] or "/" for file in files]


def _is_jobs(jobs: object) -> bool:
    return isinstance(jobs, list) and all(isinstance(job, dict) for job in jobs)


def _contradiction(side: str, part: Mapping[str, Any]) -> str | None:
    """A rate is bytes over runtime; where the three disagree, one of them is not what fio printed."""
    size, rate, runtime = (number(part.get(key)) for key in ("io_bytes", "bw_bytes", "runtime"))
    if size is None or rate is None or runtime is None:
        return None
    if abs(size - rate * runtime / 1000) > _ROUNDED * max(size, rate * runtime / 1000):
        return f"{side}: {size} bytes in {runtime} ms are not {rate} bytes/s"
    if number(part.get("total_ios")) == 0:
        return f"{side}: {size} bytes in no operation at all"
    return f"{side}: a run of {runtime} ms shows a burst, no rate" if runtime < _SHORTEST_MS else None


def _side(side: str, parts: list[Mapping[str, Any]], *, together: bool = True) -> dict[str, Any]:
    """One direction of all jobs: rates add up over jobs that ran side by side (`together`), and over no others."""
    if not parts:
        return {}
    found: dict[str, Any] = {}
    for key, name in (
        ("bw_bytes", "bytes_s"),
        ("iops", "iops"),
        ("io_bytes", "io_bytes"),
        ("total_ios", "ios"),
        ("short_ios", "short_ios"),
        ("drop_ios", "drop_ios"),
    ):
        if not together and key in {"bw_bytes", "iops"}:
            continue
        # fio 2 has no bw_bytes, and its io_bytes are KiB.
        told = [p for p in parts if key != "io_bytes" or {"bw_bytes", "io_kbytes"} & set(p)]
        numbers = [n for p in told if (n := number(p.get(key))) is not None]
        if len(numbers) == len(parts) or (numbers and key in {"short_ios", "drop_ios"}):
            found[f"{side}_{name}"] = sum(numbers)
    runtimes = [n for p in parts if (n := number(p.get("runtime"))) is not None]
    if runtimes:
        found[f"{side}_runtime_ms"] = max(runtimes)
    latency = parts[0].get("clat_ns") if len(parts) == 1 else None
    if isinstance(latency, Mapping):
        found[f"{side}_clat_mean_ns"] = number(latency.get("mean"))
        percentiles = latency.get("percentile")
        if isinstance(percentiles, Mapping):
            found[f"{side}_clat_p99_ns"] = number(percentiles.get("99.000000"))
    return found


def _read_fragment(text: str) -> ToolReading:
    """Part of a JSON document: the objects that are whole enough to carry a key and its value."""
    figures: dict[str, Any] = {"format": "json", "valid_json": False}
    sections = list(re.finditer(r'"(read|write|trim)"\s*:\s*\{', text))
    bounds = [m.end() for m in sections] + [len(text)]
    for index, section in enumerate(sections):
        side = section[1]
        if side != "trim" and f"{side}_bytes_s" not in figures:
            pairs: dict[str, float] = {}
            for key, value in _PAIR.findall(text[bounds[index] : bounds[index + 1]]):
                figure = number(value)
                if figure is not None:
                    pairs.setdefault(key, figure)
            figures |= _side(side, [pairs])
    before = text[: sections[0].start()] if sections else text
    if sections and sections[0][1] == "write" and "read_bytes_s" not in figures:
        # fio prints read before write: what stands before `"write"` is the end of the read object.
        tail = dict(_PAIR.findall(before))
        if tail.get("bw_max") == "0" and tail.get("bw_samples") == "0":
            figures["read_bytes_s"] = 0
    return _reading(figures, complete=False, failed=False)


def _read_text(text: str) -> ToolReading:
    groups: list[dict[str, Any]] = []
    marks = [(m.start(), number(m[1])) for m in _GROUP.finditer(text)]
    fio2, ended = bool(_FIO2.search(text) or _JOB2.search(text)), True
    for match in (_FIO2 if fio2 else _FIO3).finditer(text):
        group = next((n for at, n in reversed(marks) if at < match.start()), None)
        entry: dict[str, Any] = {"group": group, "rw": match[1]}
        if fio2:
            entry["kb_s"] = _scaled(match[4], match[5], 1)
        else:
            entry["mib_s"] = _scaled(match[2], match[3], 2)
        groups.append(entry)
        ended = ended and _ENDED.search(text, match.start(), _line_end(text, match.start())) is not None
    figures: dict[str, Any] = {"format": "fio2" if fio2 else "fio3", "groups": groups}
    times = Counter(f"{g['rw']} of group {g['group']}" for g in groups)
    repeated = sorted(name for name, count in times.items() if count > 1)
    if repeated:
        figures["seen_twice"] = repeated
    for side in ("READ", "WRITE") if not repeated else ():
        of_side = [g for g in groups if g["rw"] == side]
        if len(of_side) == 1:
            key, value = ("kb_s", of_side[0]["kb_s"]) if fio2 else ("mib_s", of_side[0]["mib_s"])
            figures[f"{side.lower()}_{key}"] = value
    if not groups:
        figures |= _jobs(text, fio2=fio2)
    undamaged = ended and all(g["kb_s" if fio2 else "mib_s"] is not None for g in groups)
    # A job that stands behind the last summary has none of its own; a group has one line of a kind in a run.
    last = max((match.start() for match in _STARTED.finditer(text)), default=-1)
    undamaged = undamaged and (not marks or last < marks[-1][0]) and not repeated
    failed = bool(_ERROR.search(text) or _IO_ERROR.search(text))
    return _reading(
        figures,
        complete=bool(groups) and undamaged and text.endswith("\n") and not _STOPPED.search(text),
        failed=failed,
    )


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _jobs(text: str, *, fio2: bool) -> dict[str, Any]:
    """The rate of each side, where one job (or one group of jobs reported together) has it."""
    found: dict[str, list[float]] = {}
    for match in (_JOB2 if fio2 else _JOB3).finditer(text):
        rate = _scaled(match[2], match[3], 1 if fio2 else 2)
        if rate is not None:
            found.setdefault(match[1], []).append(rate)
    return {f"{side}_{'kb_s' if fio2 else 'mib_s'}": rates[0] for side, rates in found.items() if len(rates) == 1}


def _reading(figures: dict[str, Any], *, complete: bool, failed: bool, doubt: str | None = None) -> ToolReading:
    suspicious = doubt
    for side in ("write", "read"):
        ios, size, iops = (figures.get(f"{side}_{k}") for k in ("ios", "io_bytes", "iops"))
        if ios and size:
            figures.setdefault("bytes_per_io", round(size / ios, 3))
            if size / ios < _SMALLEST_IO:
                suspicious = "the average I/O is smaller than a sector: a cache answered, not the storage"
            if size / ios > _LARGEST_IO:
                suspicious = f"{ios} operations cannot have moved {size} bytes"
        if iops and iops > _MOST_IOPS:
            suspicious = "more operations a second than any client of a file system makes"
    return ToolReading(
        kind=Kind.STORAGE,
        tool="fio",
        figures=figures,
        complete=complete,
        healthy=False if failed else None,
        cause="io-error" if failed else None,
        suspicious=suspicious,
    )


def _scaled(value: str, unit: str, target: int) -> float | None:
    """A figure with a binary unit letter, in 1024^target; None where it is damaged."""
    plain = number(value)
    if plain is None:
        return None
    scaled = plain * 1024.0 ** (_POWER[unit] - target)
    return int(scaled) if scaled.is_integer() else scaled
