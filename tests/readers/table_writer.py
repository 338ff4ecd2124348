"""Writes nccl-tests tables in the column layouts of its versions. Simulated output, for tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

GIB = 1 << 30
_CURVE = {256 << 20: 343.0, 512 << 20: 393.0, 1 * GIB: 437.0, 2 * GIB: 444.0, 4 * GIB: 466.0, 8 * GIB: 479.0}


@dataclass(frozen=True, kw_only=True)
class Table:
    """A run. `layout`: modern, error (before 2022-08), no-redop, stamped (-S), jitter (-I), replay."""

    layout: str = "modern"
    ranks: int = 16
    hosts: int = 2
    factor: float = 1.0
    wrong: int = 0
    rows: int = len(_CURVE)
    independent: bool = False
    footer: bool = True
    markers: bool = True
    op: str = "all_reduce"

    @classmethod
    def with_defect(cls, defect: str) -> Table:
        """A run that must not pass, by what is wrong with it."""
        return {
            "wrong": replace(cls(), wrong=7),
            "slow": replace(cls(), factor=0.1),
            "short": replace(cls(), rows=3),
            "single": replace(cls(), independent=True, ranks=1, hosts=1),
            "one-host": replace(cls(), hosts=1),
        }[defect]


def write_table(table: Table) -> bytes:
    """The whole output."""
    copies = 4 if table.independent else 1
    text: list[str] = []
    if table.markers:
        text += ["# nccl-tests version 2.17.4 nccl-headers=22809 nccl-library=22809"] * copies
        text += [f"# Collective test starting: {table.op}_perf"] * copies
    for copy in range(copies):
        text += _header(table, copy)
    text += _captions(table.layout)
    text += [_row(table, size, busbw) for size, busbw in list(_CURVE.items())[: table.rows] for _ in range(copies)]
    if table.footer:
        status = "FAILED" if table.wrong else "OK"
        text += [
            f"# Out of bounds values : {table.wrong * table.rows} {status}",
            f"# Avg bus bandwidth    : {_average(table):.1f}",
            "#",
        ] * copies
        text += [f"# Collective test concluded: {table.op}_perf"] * (copies if table.markers else 0)
    return ("\n".join(text) + "\n").encode()


def _header(table: Table, copy: int) -> list[str]:
    sizes = list(_CURVE)
    per_host = max(1, table.ranks // table.hosts)
    return [
        f"# nThread 1 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: 2(factor) warmup iters: 5 iters: 20 "
        "agg iters: 1 validation: 1 graph: 0",
        "#",
        "# Using devices",
        *(
            f"#  Rank {rank:2d} Group  0 Pid {7000 + rank + 100 * copy:6d} on     node-{rank // per_host + 1} device "
            f"{rank % per_host:2d} [0000:{0x53 + rank % per_host:02x}:00] NVIDIA H200"
            for rank in range(table.ranks)
        ),
        "#",
    ]


def _average(table: Table) -> float:
    """Of the rows that are printed, as nccl-tests does it."""
    shown = list(_CURVE.values())[: table.rows]
    return round(table.factor * sum(shown) / len(shown), 4) if table.ranks > 1 else 0.0


def _captions(layout: str) -> list[str]:
    check = "error" if layout in {"error", "no-redop"} else "#wrong"
    side = f"time   algbw   busbw {check}" + ("  i_min  i_max  i_p99  i_cv%" if layout == "jitter" else "")
    lead = "#       size         count      type" + ("" if layout == "no-redop" else "   redop    root")
    units = "(us)  (GB/s)  (GB/s)"
    return [
        f"#{'out-of-place':>74}{'in-place':>31}          ",
        f"{lead}     {side}     {side}" + ("  timestamp" if layout == "stamped" else ""),
        f"#        (B)    (elements)                               {units}            {units}",
    ]


def _row(table: Table, size: int, busbw: float) -> str:
    busbw = busbw * table.factor
    share = 2 * (table.ranks - 1) / table.ranks if table.ranks > 1 else 0.0
    algbw = busbw / share if share else 900.0
    time = size / algbw / 1e3
    check = {"error": "0e+00", "no-redop": "0e+00"}.get(table.layout, str(table.wrong))
    half = f"{time:9.1f} {algbw:7.2f} {busbw if share else 0.0:7.2f} {check:>6}"
    if table.layout == "jitter":
        half += f" {time * 0.9:8.1f} {time * 1.1:8.1f} {time * 1.05:8.1f} {2.5:6.2f}"
    lead = f"{size:12d} {size // 4:13d} {'float':>9}" + ("" if table.layout == "no-redop" else f" {'sum':>7} {-1:7d}")
    first = " " * len(half) if table.layout == "replay" else half
    return f"{lead} {first} {half}" + (" 2026-03-13 22:26:02" if table.layout == "stamped" else "")
