"""Inputs that no tool prints, long enough that a reader which looks at anything twice would never end."""

from __future__ import annotations

import gzip
import random

import pytest
from nccl_writer import Job, write

from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import judge

SAID = b"node-1:1000:1010 [0] NCCL INFO x"
ODD = {
    "a long word beside a quoted line": b'{"data":"' + SAID + b'","blob":"' + b"A" * 300_000 + b'"}\n',
    "escaped quotes that nobody closes": b'x="' + SAID + b'" z="' + b'\\"' * 150_000 + b"\n",
    "a quoted line that nobody closes": b'"' + (SAID + b'\\"') * 10_000 + b"\n",
    "quoted lines in a payload's": b'"poolshift" ' + (b'"' + SAID + b'" ') * 10_000 + b"\n",
    "a line of NCCL's name": b"NCCL INFO " * 100_000,
    "a line of ranks": b"a:1 [1] " * 40_000 + b"NCCL INFO Using network Socket\n",
    "a line of launchers": b"[1,2]<stdout>:" * 30_000 + b"NCCL INFO x",
    "a line of time stamps": b"2026-01-01T00:00:00Z " * 50_000 + b"NCCL INFO x",
    "empty lines": b"\r" * 200_000,
    "a blank line": b" " * 500_000 + b"hca_id:",
    "blanks behind a word": b"local address:" + b" " * 500_000,
    "brackets": b"[" * 100_000,
    "objects": b'{"a":' * 50_000,
    "envelopes": b'{"log":' * 20_000,
    "results": b'{"results":[' + b'{"size":1,"out_of_place":{}},' * 20_000,
    "a number of 100,000 digits": b"Max Write: " + b"9" * 100_000 + b" MiB/sec",
    "captions": b"#bytes #iterations " * 20_000,
    "providers": b"provider: efa\n" * 20_000,
    "devices": b"CA '" * 50_000,
    "half a colour": b"\x1b[" * 100_000,
    "noise": random.Random(1).randbytes(200_000),
    "nothing": b"",
    "half a letter": b"\xff\xfea",
    "an archive that ends early": gzip.compress(write(Job()))[:900],
    "an archive that is none": b"BZh91AY&SY" + b"x" * 1000,
}


@pytest.mark.parametrize("name", ODD)
def test_no_input_hangs_breaks_or_passes(name: str) -> None:
    found = judge(from_text(ODD[name]), machine_type="p5en.48xlarge", nodes=2)
    assert found.outcome is not Outcome.PASS
    assert found.findings or found.missing or any(v.reason for v in found.verdicts)
