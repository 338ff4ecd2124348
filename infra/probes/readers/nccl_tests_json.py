"""nccl-tests' `-J` document. Its `env` key dumps the whole environment, secrets included: it is never looked at."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from infra.model.measurement import LARGEST, whole
from infra.model.reading import BandwidthTest, DeviceLine, Kind, NcclTests, Row, ToolReading
from infra.probes.readers.nccl_tests_rows import short_host
from infra.probes.readers.nccl_warnings import is_error

MAX_DOCUMENTS = 1_000
_SIGNATURE = re.compile(r'"(?:out_of_place|average_bus_bandwidth|out_of_bounds)"\s*:')
_OP = re.compile(
    r"(all_reduce|all_gather|reduce_scatter|alltoallv?|sendrecv|broadcast|reduce|gather|scatter|hypercube)_perf"
)


def read_nccl_tests_json(text: str) -> ToolReading | None:
    """Read the document, whole or cut, or None when it is none."""
    if not _SIGNATURE.search(text) or '"results"' not in text:
        return None
    tests = tuple(_test(document, intact=intact) for document, intact in _documents(text))
    return ToolReading(kind=Kind.NCCL_TESTS, tool="nccl-tests-json", tests=NcclTests(tests=tests)) if tests else None


def _documents(text: str) -> Iterator[tuple[Mapping[str, Any], bool]]:
    """Every document with whether it is whole. The last one is not when text follows that is no document."""
    decoder = json.JSONDecoder(object_pairs_hook=_once)
    found: list[Mapping[str, Any]] = []
    # The first one begins a line, where other text goes before it.
    at = text.find("{", text.rfind("\n{", 0, text.index('"results"')) + 1)
    while at >= 0 and len(found) < MAX_DOCUMENTS:
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        found.append(document)
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text) or text[at] != "{":
            break
    rest = text[at:].strip()
    for document in found[:-1]:
        yield document, True
    for document in found[-1:]:
        yield document, not rest
    if '"results"' in rest:
        yield {"results": _salvage(rest)}, False


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; no tool names one thing twice, and of two nobody knows which is meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        msg = "a key stands twice in one object"
        raise ValueError(msg)
    return found


def _salvage(text: str) -> list[Any]:
    """The whole result objects of a document that was cut."""
    at = text.index('"results"')
    decoder, found = json.JSONDecoder(), []
    at = text.find("{", at)
    while at >= 0:
        try:
            row, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        if not isinstance(row, dict) or "size" not in row:
            break
        found.append(row)
        at = text.find("{", end)
    return found


def _test(document: Mapping[str, Any], *, intact: bool) -> BandwidthTest:
    results = document.get("results")
    raw = [r for r in results if isinstance(r, Mapping)] if isinstance(results, list) else []
    rows = [row for r in raw if (row := _row(r)) is not None]
    bounds, average = document.get("out_of_bounds"), document.get("average_bus_bandwidth")
    if not _status(bounds):  # "unchecked", or nothing: whatever the rows count, nobody compared
        rows = [replace(row, wrong=None, wrong_in_place=None) if not row.wrong else row for row in rows]
    config = document.get("config")
    config = config if isinstance(config, Mapping) else {}
    listed = _list(config, "devices") or _list(document, "devices")
    devices = [d for entry in listed if (d := _device(entry)) is not None]
    errors, doubts = _errors(document)
    args = " ".join(str(a) for a in _list(document, "args"))
    op = _OP.search(args)
    out_of_bounds = whole(bounds.get("count")) if isinstance(bounds, Mapping) else None
    value = _figure(average.get("bandwidth")) if isinstance(average, Mapping) else None
    return BandwidthTest(
        op=op[1] if op else None,
        rows=tuple(rows),
        torn_rows=(len(results) if isinstance(results, list) else 0) - len(rows),
        headers=1,
        devices=tuple(devices),
        ranks=_ranks({d.rank for d in devices}, config),
        parameters=_parameters(config, raw),
        out_of_bounds=() if out_of_bounds is None else (out_of_bounds,),
        out_of_bounds_status=_status(bounds),
        averages_gb_s=() if value is None else (value,),
        average_status=_status(average),
        errors=errors,
        conflicts=doubts,
        version=str(document["version"]) if "version" in document else None,
        nccl_version=_nccl_version(document.get("nccl_version")),
        complete=intact and bool(document.get("end_time")) and value is not None,
    )


def _ranks(listed: set[int], config: Mapping[str, Any]) -> int | None:
    """How many there are: of a process with several GPUs only the first is listed, of a single process only rank 0."""
    each = (whole(config.get("nthreads")) or 1) * (whole(config.get("ngpus")) or 1)
    for step in (each, 1):
        if listed and listed == {rank * step for rank in range(len(listed))}:
            return len(listed) * step
    return None


def _row(raw: Mapping[str, Any]) -> Row | None:
    size = whole(raw.get("size"))
    out, inp = raw.get("out_of_place"), raw.get("in_place")
    if size is None or not (isinstance(out, Mapping) or isinstance(inp, Mapping)):
        return None
    sides = [_side(side) if isinstance(side, Mapping) else (None, None, None, None) for side in (out, inp)]
    redop = raw.get("redop")
    return Row(
        size_bytes=size,
        count=whole(raw.get("count")),
        type=str(raw.get("type") or ""),
        redop=str(redop) if redop else None,
        time_us=sides[0][0],
        algbw_gb_s=sides[0][1],
        busbw_gb_s=sides[0][2],
        wrong=sides[0][3],
        time_in_place_us=sides[1][0],
        algbw_in_place_gb_s=sides[1][1],
        busbw_in_place_gb_s=sides[1][2],
        wrong_in_place=sides[1][3],
    )


def _side(raw: Mapping[str, Any]) -> tuple[float | None, float | None, float | None, float | None]:
    time = _figure(raw["time"] if "time" in raw else raw.get("cpu_time"))  # with -C
    return time, _figure(raw.get("alg_bw")), _figure(raw.get("bus_bw")), _figure(raw.get("nwrong"))


def _device(raw: Any) -> DeviceLine | None:
    if not isinstance(raw, Mapping):
        return None
    rank, host = whole(raw.get("rank")), raw.get("hostname") or raw.get("host")
    if rank is None or not host:
        return None
    return DeviceLine(
        rank=rank,
        host=short_host(str(host)),
        pid=str(raw.get("pid", "")),
        device=str(raw.get("device", "")),
        name=str(raw.get("device_info") or raw.get("device_name") or raw.get("name") or "").strip(),
        group=str(raw.get("group", "")),
        bus=next((str(v) for k, v in raw.items() if "bus" in k.lower() or k.lower() in {"device_hex", "pci"}), ""),
    )


def _parameters(config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The sweep's limits in the words of the text header, where this version names them."""
    names = {k.lower().replace("_", ""): v for k, v in config.items()}
    found = {}
    limits = {"minbytes": "minBytes", "minimumbytes": "minBytes", "maxbytes": "maxBytes", "maximumbytes": "maxBytes"}
    for key, name in limits.items():
        if whole(names.get(key)) is not None:
            found[name] = str(names[key])
    factor = whole(names.get("stepfactor"))
    if factor is not None and factor > 1:
        found["step"] = f"{factor}(factor)"
    elif whole(names.get("stepbytes")):
        found["step"] = f"{names['stepbytes']}(bytes)"
    done = [n for row in rows if (n := whole(row.get("actual_iterations"))) is not None]
    done += [n for key in ("iters", "iterations", "numiters") if (n := whole(names.get(key))) is not None]
    if done:
        found["iters"] = str(min(done))
    checked = next((names[key] for key in ("validation", "datacheck", "check") if key in names), None)
    if str(checked).lower() in {"0", "false"}:
        found["validation"] = "0"
    return found


def _status(raw: Any) -> tuple[str, ...]:
    """The booleans are strings: "true", "false", "unchecked"."""
    okay = str(raw.get("okay")).lower() if isinstance(raw, Mapping) else ""
    return ("OK",) if okay == "true" else (("FAILED",) if okay == "false" else ())


def _errors(document: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the document calls errors, in whatever form, and what nobody knows to be one.

    In a list stands NCCL's last warning, which is empty where nothing was said.
    """
    raw = document.get("errors")
    said = [str(e)[:300] for e in raw] if isinstance(raw, list) else []
    errors = [text for text in said if is_error(text)]
    if raw and not isinstance(raw, list):
        errors.append(str(raw)[:300])
    bitwise = document.get("bitwise_mismatches")
    if isinstance(bitwise, Mapping) and (_status(bitwise) == ("FAILED",) or whole(bitwise.get("count"))):
        errors.append(f"Bitwise mismatches: {bitwise.get('count')}")
    return tuple(errors), tuple(f"NCCL warned last of: {text}" for text in said if is_error(text) is None)


def _list(document: Mapping[str, Any], key: str) -> list[Any]:
    value = document.get(key)
    return value if isinstance(value, list) else []


def _figure(value: object) -> float | None:
    """A finite number; "nan", null and "unchecked" are none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        return None
    return float(value)


def _nccl_version(value: object) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value // 10000}.{value // 100 % 100}.{value % 100}"
    return str(value) if isinstance(value, str) else None
