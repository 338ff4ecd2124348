"""A launcher, a log shipper or a person put something around every line: the reading stays the same."""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
import random
from collections.abc import Callable

import pytest
from nccl_writer import Job, lines, write

from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import JudgeResult, judge

JOB = Job(gpus=8, rounds=2)
MACHINE = "p5en.48xlarge"
STYLES: dict[str, Callable[[int, str], str]] = {
    "openmpi-tag-output": lambda rank, line: f"[1,{rank}]<stdout>:{line}",
    "openmpi-tag-output-blank": lambda rank, line: f"[1,{rank}]<stdout>: {line}",
    "prrte": lambda rank, line: f"[prterun-node-1-77@1,{rank}]<stdout>: {line}",
    "srun-label": lambda rank, line: f"{rank:2d}: {line}",
    "kubectl-prefix": lambda rank, line: f"[pod/probe-{rank // 8}-x7k2p/main] {line}",
    "kubectl-timestamps": lambda rank, line: f"2026-03-13T22:26:02.{rank:09d}Z {line}",
    "kubectl-prefix-timestamps": lambda rank, line: (
        f"[pod/probe-{rank // 8}-x7/main] 2026-03-13T22:26:02.{rank:09d}Z {line}"
    ),
    "kubectl-timestamps-zone": lambda rank, line: f"2026-03-13T22:26:02.{rank:09d}-07:00 {line}",
    "ray": lambda rank, line: f"(RayTrainWorker pid={rank}, ip=10.0.0.{rank // 8}) {line}",
    "ray-colour": lambda rank, line: f"\x1b[36m(RayTrainWorker pid={rank}, ip=10.0.0.{rank // 8})\x1b[0m {line}",
    "torchrun-tee": lambda rank, line: f"[default{rank % 8}]:{line}",
    "launcher-rank": lambda rank, line: f"[{rank}] {line}",
    "cloudwatch-export": lambda rank, line: f"  | 2026-03-13T22:26:02.525Z | {line}",
    "docker-compose": lambda rank, line: f"worker-{rank // 8}-1  | {line}",
    "journald": lambda rank, line: f"Mar 13 22:26:02 node-{rank // 8 + 1} train[4711]: {line}",
    "containerd": lambda _rank, line: f"2026-03-13T22:26:02.525411Z stdout F {line}",
    "quoted-mail": lambda _rank, line: f"> {line}",
    "quoted-twice": lambda _rank, line: f"> > {line}",
    "indented": lambda _rank, line: f"        {line}",
    "pdsh": lambda rank, line: f"node-{rank // 8 + 1}: {line}",
    "stern": lambda rank, line: f"probe-{rank // 8} main {line}",
    "nccl-timestamp": lambda _rank, line: f"[2026-03-13 22:26:02] {line}",
    "docker-json": lambda _rank, line: json.dumps(
        {"log": line + "\n", "stream": "stdout", "time": "2026-03-13T22:26:02Z"}
    ),
    "cloud-logging-json": lambda _rank, line: json.dumps({"insertId": "1", "textPayload": line + "\n"}),
}
# What an export of logs puts around them: of these, no table and no program's own JSON is read.
EXPORTS: dict[str, Callable[[str], str]] = {
    "pretty-json": lambda line: f'    "textPayload": {json.dumps(line + chr(10))},',
    "pretty-json-last": lambda line: f'      "message": {json.dumps(line)}',
    "json-array": lambda line: f"  {json.dumps(line)},",
    "json-lines-of-arrays": lambda line: json.dumps([line]),
    "nested-json": lambda line: json.dumps({"jsonPayload": {"message": line}, "severity": "INFO"}),
    "csv": lambda line: f'2026-03-13T22:26:02Z,"pod-1","{line.replace(chr(34), chr(34) * 2)}",stdout',
    "logfmt": lambda line: f"ts=2026-03-13T22:26:02Z level=info msg={json.dumps(line)} pod=a",
    "fluent-bit": lambda line: f'[0] kube.var.log: [[1710368762.1, {{}}], {{"log"=>{json.dumps(line)}}}]',
    "ansible": lambda line: f"        {json.dumps(line)},",
    "tagged": lambda line: f"  {json.dumps('[1,3]<stdout>: ' + line)},",
    "stamped": lambda line: f"  {json.dumps('[2026-03-13 22:26:02] ' + line)},",
}


def read(data: bytes) -> JudgeResult:
    return judge(from_text(data), machine_type=MACHINE, nodes=2)


def same(found: JudgeResult, plain: JudgeResult) -> bool:
    keys = (
        "transport",
        "provider",
        "gdr",
        "rdma",
        "net_channels",
        "p2p_channels",
        "hosts",
        "nranks",
        "selected_counts",
    )
    return all(found.fields[k] == plain.fields[k] for k in keys) and found.outcome is plain.outcome


@pytest.fixture(scope="module")
def plain() -> JudgeResult:
    found = read(write(JOB))
    assert found.outcome is Outcome.PASS
    return found


@pytest.mark.parametrize("style", STYLES)
def test_a_prefix_changes_nothing(style: str, plain: JudgeResult) -> None:
    """Ranks, hosts, channels and the proof are found behind every prefix."""
    assert same(read(write(JOB, STYLES[style])), plain)


@pytest.mark.parametrize("style", EXPORTS)
def test_quotes_around_every_line_change_nothing_of_what_nccl_says(style: str) -> None:
    """Only the program's end is not in the log alone."""
    log = write(Job(gpus=8, rounds=2, payload=False)).decode().splitlines()
    bare, quoted = (read("".join(f"{put(line)}\n" for line in log).encode()) for put in (str, EXPORTS[style]))
    (lacks,) = bare.missing
    assert lacks.startswith("the end of the run")
    assert same(quoted, bare)
    assert quoted.missing == bare.missing


CRASH = "Segmentation fault (core dumped)"


@pytest.mark.parametrize(
    "envelope",
    [
        pytest.param(lambda line: json.dumps({"data": line, "err": CRASH}), id="another-field"),
        pytest.param(lambda line: json.dumps({"data": line, "reason": "OOMKilled"}), id="a-reason"),
        pytest.param(lambda line: json.dumps({"log": line, "message": CRASH}), id="two-texts"),
        pytest.param(lambda line: f"level=info msg={json.dumps(line)} err={json.dumps(CRASH)}", id="logfmt"),
        pytest.param(lambda line: f'"{line}" {CRASH}', id="behind"),
        pytest.param(lambda line: f'{CRASH}, "{line}"', id="before"),
    ],
)
def test_what_stands_beside_a_quoted_line_is_heard(envelope: Callable[[str], str]) -> None:
    log = write(JOB).decode().splitlines()
    said = next(n for n, line in enumerate(log) if "via NET/" in line)
    log[said] = envelope(log[said])
    found = read("".join(f"{line}\n" for line in log).encode())
    assert found.outcome is Outcome.FAIL, found.lines()


def test_two_quoted_lines_in_one_are_both_heard() -> None:
    log = write(Job(gpus=8, rounds=2, payload=False, socket_ranks=frozenset({3}))).decode().splitlines()
    quoted = (f'"{line}" "{other}"\n' for line, other in zip(log[::2], log[1::2], strict=False))
    assert read("".join(quoted).encode()).verdict == read("".join(f"{line}\n" for line in log).encode()).verdict


@pytest.mark.parametrize(
    "encode",
    [
        pytest.param(lambda b: b.replace(b"\n", b"\r\n"), id="crlf"),
        pytest.param(lambda b: b.replace(b"\n", b"\r"), id="cr"),
        pytest.param(lambda b: codecs.BOM_UTF8 + b, id="bom"),
        pytest.param(lambda b: codecs.BOM_UTF16_LE + b.decode().encode("utf-16-le"), id="utf-16"),
        pytest.param(gzip.compress, id="gzip"),
        pytest.param(bz2.compress, id="bzip2"),
        pytest.param(lzma.compress, id="xz"),
        pytest.param(lambda b: bz2.compress(b[:1000]) + bz2.compress(b[1000:]), id="two-archives-in-one"),
        pytest.param(lambda b: b"\n".join(b"\x1b[32m" + line + b"\x1b[0m" for line in b.split(b"\n")), id="ansi"),
        pytest.param(lambda b: b.replace(b"\n", b"  \n"), id="trailing-blanks"),
        pytest.param(lambda b: b.replace(b"\n", b"\n\n"), id="blank-lines"),
    ],
)
def test_an_encoding_changes_nothing(encode: Callable[[bytes], bytes], plain: JudgeResult) -> None:
    """Windows line ends, byte-order marks, UTF-16, colours and gzip are undone before any reader looks."""
    assert same(read(encode(write(JOB))), plain)


@pytest.mark.parametrize("seed", range(5))
def test_interleaved_ranks_are_told_apart(seed: int, plain: JudgeResult) -> None:
    """Each rank's lines keep their order, the ranks are mixed: the proof still stands."""
    queues: dict[int, list[str]] = {}
    for rank, line in lines(JOB):
        queues.setdefault(rank, []).append(line)
    rng, mixed = random.Random(seed), []
    while queues:
        rank = rng.choice(list(queues))
        mixed.append(queues[rank].pop(0))
        if not queues[rank]:
            del queues[rank]
    assert same(read(("\n".join(mixed) + "\n").encode()), plain)


@pytest.mark.parametrize("seed", range(5))
def test_lines_written_into_one_another_make_no_new_host(seed: int) -> None:
    """Lost line ends glue host names to other text: such a name is no host, and the run is not proven by it."""
    text, rng = write(JOB).decode().split("\n"), random.Random(seed)
    glued = "".join(line + ("" if rng.random() < 0.1 else "\n") for line in text)
    found = read(glued.encode())
    assert found.fields["hosts"] == 2
    assert found.fields["transport"] == "efa"


def test_a_log_of_one_pod_does_not_speak_for_the_other() -> None:
    """Half of the ranks are missing: the excerpt is healthy, the job is not proven."""
    half = b"\n".join(line for line in write(JOB).split(b"\n") if b"node-2:" not in line)
    found = read(half)
    assert found.outcome is Outcome.UNMEASURED
    assert any("distinct hosts" in item for item in found.missing)


def test_redacted_hosts_prove_nothing() -> None:
    """Without host and process id the lines cannot be given to ranks."""
    found = read(b"\n".join(line[line.find(b"[") :] if b"NCCL" in line else line for line in write(JOB).split(b"\n")))
    assert found.fields["transport"] == "efa"
    assert found.outcome is not Outcome.PASS
