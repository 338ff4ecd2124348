"""What keeps a table of nccl-tests from being one measurement, though every row of it can be read. Pure."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from statistics import fmean

from infra.fabrics import Fabric
from infra.model.reading import BandwidthTest, DeviceLine, Row
from tasks.rules.wording import and_more, size

FEWEST_ITERATIONS = 5  # the mean of fewer is the time of one launch, or of one hiccup
AVERAGE_OFF = 0.02  # the footer's average is of the rows' own figures, printed with fewer digits
_ELEMENT = {"float": 4, "half": 2, "double": 8, "bfloat16": 2, "bf16": 2, "char": 1, "int": 4}
_NAMELESS = re.compile(r"localhost$|127\.|::1$|0\.0\.0\.0$")


def doubt_of(test: BandwidthTest) -> str:
    """The first reason why this is not one run as it was printed, or ""."""
    return (
        and_more(list(test.conflicts), 3)
        or _iterations(test)
        or _unchecked(test)
        or _order(test)
        or _elements(test)
        or _average(test)
        or _devices(test)
    )


def other_gpus(test: BandwidthTest, fabric: Fabric | None) -> str:
    """GPUs that the machine type does not have: another pool was measured, or ""."""
    names = sorted({d.name for d in test.devices if d.name})
    if fabric is None:
        return ""
    strange = [name for name in names if not fabric.has_gpu(name)]
    if not strange:
        return ""
    return f"the run's GPUs are {and_more(strange, 3)}, {fabric.machine_type} has {fabric.gpu}"


def _iterations(test: BandwidthTest) -> str:
    told = test.parameters.get("iters", "")
    if told.isdigit() and int(told) < FEWEST_ITERATIONS:
        return f"{told} iterations (-n) are no measurement, {FEWEST_ITERATIONS} are the fewest"
    return ""


def _unchecked(test: BandwidthTest) -> str:
    if test.parameters.get("validation") == "0" and any(row.wrong is not None for row in test.rows):
        return "the run was told to check no sums, and its rows count wrong ones"
    return ""


def _order(test: BandwidthTest) -> str:
    """A sweep goes up; where it begins anew (-N), it begins at its first size."""
    first = test.rows[0].size_bytes if test.rows else 0
    for before, after in pairwise(row.size_bytes for row in test.rows):
        if after < before and after != first:
            return f"the row of {size(after)} stands behind that of {size(before)}: rows were lost, or moved"
    return ""


def _elements(test: BandwidthTest) -> str:
    """An all-reduce of so many elements of a type has so many bytes, and an operator.

    Of a collective without a name the count may be each rank's share (all-gather, reduce-scatter, alltoall); then it
    is that in every row.
    """
    if test.op not in {None, "all_reduce"}:
        return ""
    parts: dict[int, Row] = {}
    for row in test.rows:
        if test.op == "all_reduce" and row.redop == "none":
            return "an all-reduce without an operator"
        each = _element_bytes(row.type)
        if not each or row.count is None or row.redop is None or row.count == row.size_bytes == 0:
            continue
        part, rest = divmod(row.size_bytes, row.count * each) if row.count else (0, 1)
        parts.setdefault(0 if rest else part, row)
    whole = not parts or set(parts) == {1}
    shares = test.op is None and len(parts) == 1 and 0 not in parts and test.ranks in {None, *parts}
    if whole or shares:
        return ""
    row = next(row for part, row in parts.items() if part != 1)
    return f"{row.count} elements of type {row.type} are not {row.size_bytes} bytes"


def _element_bytes(kind: str) -> int | None:
    if kind.startswith(("fp8", "f8")):
        return 1
    bits = re.search(r"(8|16|32|64)$", kind)
    return _ELEMENT.get(kind) or (int(bits[1]) // 8 if bits else None)


def _average(test: BandwidthTest) -> str:
    """The footer's mean is over both halves of all rows; with rows missing it is of another set."""
    if len(test.averages_gb_s) != 1 or test.torn_rows or not test.complete:
        return ""
    figures = [f for row in test.rows for f in (row.busbw_gb_s, row.busbw_in_place_gb_s) if f is not None]
    if not figures or len(figures) != 2 * len(test.rows):
        return ""
    mean, told = fmean(figures), test.averages_gb_s[0]
    if abs(mean - told) <= AVERAGE_OFF * max(mean, told) + 0.02:
        return ""
    return f"the rows' average is {mean:.4g} GB/s, the footer says {told:.4g} GB/s"


def _place(d: DeviceLine) -> str:
    """An address names a GPU; of older versions' bus alone there may be two (p4d), or all GPUs of a virtual machine."""
    if d.bus:
        return d.bus if ":" in d.bus else f"bus {d.bus} device {d.device}"
    return f"{d.pid} device {d.device}"


def _devices(test: BandwidthTest) -> str:
    hosts = {d.host for d in test.devices}
    if len(hosts) > 1 and (nameless := sorted(h for h in hosts if _NAMELESS.match(h))):
        return f"hosts that call themselves {and_more(nameless, 2)}: which ranks share one is not shown"
    if len(groups := {d.group for d in test.devices}) > 1:
        return f"ranks in {len(groups)} groups (NCCL_TESTS_SPLIT): each is a communicator of its own"
    names = {d.name for d in test.devices if d.name}
    if len(names) > 1:
        return f"GPUs of several kinds: {and_more(sorted(names), 3)}"
    places = Counter((d.host, _place(d)) for d in test.devices)
    twice = [f"{place} of {host}" for (host, place), times in places.items() if times > 1]
    return f"several ranks on one GPU: {and_more(twice, 3)}" if twice else ""
