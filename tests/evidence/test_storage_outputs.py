"""What storage probes print: only the run of these very nodes, as it was told, says what the file system gives."""

import io
import json

import pytest

from infra.fabrics import fabric_of
from infra.model.verdict import Outcome
from infra.probes.readers.detect import read
from infra.probes.readers.lnet import split_lnet
from tasks.judge import judge_reading
from tasks.rules.hardware import ClientIo
from tasks.rules.probe_verdict import Setting
from tasks.rules.storage_verdict import answer_storage

RATE, SECONDS, BLOCK = 2_000_000_000, 30, 4 << 20
SETTING = Setting(nodes=("node-a", "node-b"), gpus=8, fabric=fabric_of("p5en.48xlarge"))
BEFORE = [ClientIo(node=n, write_bytes_s=RATE, read_bytes_s=RATE, errors=0, complete=True) for n in ("x", "y")]


ASKED = (
    *("--output-format=json", "--direct=1", "--ioengine=psync", "--directory=/mnt/poolshift", "--time_based"),
    *("--runtime=30", "--name=write", "--rw=write", "--name=read", "--stonewall", "--rw=read"),
)


def side(seconds=SECONDS):
    moved = RATE * seconds
    return {
        "io_bytes": moved,
        "io_kbytes": moved >> 10,
        "bw_bytes": RATE if seconds else 0,
        "iops": RATE / BLOCK,
        "runtime": seconds * 1000,
        "total_ios": moved // BLOCK,
        "short_ios": 0,
        "drop_ios": 0,
    }


def document(seconds=SECONDS, told=None, **of_job):
    """fio's JSON of the catalogue's line; `of_job` are options of the reading job alone."""
    shared = {"direct": "1", "ioengine": "psync", "directory": "/mnt/poolshift", "runtime": "30"}
    jobs = [
        {
            "jobname": way,
            "error": 0,
            "job options": {"name": way, "rw": way, **(of_job if way == "read" else {})},
            "read": side(seconds if way == "read" else 0),
            "write": side(seconds if way == "write" else 0),
        }
        for way in ("write", "read")
    ]
    return {"fio version": "fio-3.36", "global options": shared if told is None else told, "jobs": jobs}


def printed(node, fio=None):
    def line(when, count):
        seen = {
            "poolshift": "lnet",
            "when": when,
            "node": node,
            "nets": {"efa": {"send": count, "recv": count}, "tcp": {"send": 40, "recv": 40}},
            "connections": ["10.0.1.2@efa"],
            "mount": {"directory": "/mnt/poolshift", "at": "/mnt/poolshift", "type": "lustre"},
        }
        return "\n" + json.dumps(seen, separators=(",", ":")) + "\n"

    return f"{line('before', 1000)}{json.dumps(fio or document(), indent=2)}\n{line('after', 201000)}".encode()


def verdicts(first, second=None):
    parts = {"node-a": first, "node-b": second or printed("node-b")}
    split = {node: split_lnet(part) for node, part in parts.items()}
    readings = {node: read(io.BytesIO(rest)) for node, (_, rest) in split.items()}
    answer = answer_storage(readings, SETTING, BEFORE, {node: seen for node, (seen, _) in split.items()}, asked=ASKED)
    return [v.outcome for v in answer.verdicts]


def test_the_output_of_both_nodes_passes():
    assert verdicts(printed("node-a")) == [Outcome.PASS, Outcome.PASS]


def test_one_nodes_output_is_none_of_another():
    """However it got there: its mount and its network say nothing of this one's."""
    assert verdicts(printed("node-a"), printed("node-a")) == [Outcome.UNMEASURED, Outcome.UNMEASURED]


@pytest.mark.parametrize(
    "fio",
    [
        document(seconds=2),
        document(direct="0"),
        document(told={"directory": "/mnt/poolshift"}, direct="1"),
        document(told={"directory": "/mnt/poolshift"}),
        document(rate="1g"),
        document(ioengine="libaio"),
        document(told={"direct": "1", "directory": "/mnt/poolshift", "runtime": "30"}),
        document(told={"direct": "1", "ioengine": "psync", "directory": "/mnt/poolshift", "runtime": "2"}),
        document(rw="randread"),
    ],
    ids=[
        "stopped after 2 s of 30",
        "one job past no cache",
        "direct told of one job",
        "direct not told",
        "an option nobody asked for",
        "another engine",
        "an option untold",
        "another time",
        "another pattern",
    ],
)
def test_a_run_that_ended_early_or_through_a_cache_is_unmeasured(fio):
    assert verdicts(printed("node-a", fio))[0] is Outcome.UNMEASURED


def read_text(text):
    return judge_reading(read(io.BytesIO(text.encode())))


def test_a_client_of_fio_servers_shows_the_sum_of_its_clients_once():
    jobs = [job for job in document()["jobs"] if job["jobname"] == "write"]
    clients = [{**job, "hostname": host} for host in ("10.0.0.1", "10.0.0.2") for job in jobs]
    total = {**clients[0], "jobname": "All clients", "write": {**side(), "bw_bytes": 2 * RATE}}
    found = read_text(
        "<10.0.0.1> fio: run\n" + json.dumps({"fio version": "fio-3.36", "client_stats": [*clients, total]})
    )
    assert found.fields["valid_json"] is True
    assert found.fields["write_bytes_s"] == 2 * RATE
    assert found.outcome is Outcome.UNMEASURED


def test_fio_that_could_not_begin_is_a_failure_and_not_an_unknown_text():
    found = read_text(
        "fio: pid=0, err=2/file:filesetup.c:1155, func=total_file_size, error=No such file or directory\n"
    )
    assert found.outcome is Outcome.FAIL


KB_1000 = """fio-3.33
w: (groupid=0, jobs=2): err= 0: pid=20613: Tue Dec  1 00:47:46 2026
Run status group 0 (all jobs):
  WRITE: bw=466MB/s (444MiB/s), 466MB/s-466MB/s (444MiB/s-444MiB/s), io=16.8MB (16.0MiB), run=36-36msec
"""


def test_binary_figures_are_read_where_decimal_ones_stand_before_them():
    found = read_text(KB_1000)
    assert found.fields["write_mib_s"] == 444
    assert found.fields["complete"] is True


ELBENCHO = """COMMAND LINE: "elbencho" "-w" "-r" "-s" "256k" "--timelimit" "1800" "--direct" "/mnt/lustre"

OPERATION   RESULT TYPE         FIRST DONE   LAST DONE
=========== ================    ==========   =========
WRITE       Elapsed time     :   30m0.262s   30m0.279s
            Throughput MiB/s :          21          21
---
"""


def test_a_phase_of_elbencho_that_was_asked_for_and_did_not_run_is_missed():
    """A time limit that ends the writing leaves out the reading (breuner/elbencho#93)."""
    assert read_text(ELBENCHO).fields["complete"] is False
    assert read_text(ELBENCHO.replace('"-r" ', "")).fields["complete"] is True


IOR_2 = """IOR-2.10.3: MPI Coordinated Test of Parallel I/O

Run began: Mon Apr  9 12:30:11 2012
Operation  Max (MiB)  Min (MiB)  Mean (MiB)   Std Dev  Max (OPs)  Min (OPs)  Mean (OPs)   Std Dev  Mean (s)
---------  ---------  ---------  ----------   -------  ---------  ---------  ----------   -------  --------
write        1871.32    1871.32     1871.32      0.00     467.83     467.83      467.83      0.00  35.02132   EXCEL

Max Write: 1871.32 MiB/sec (1962.22 MB/sec)

Run finished: Mon Apr  9 12:31:20 2012
"""


def test_ior_2_ends_in_its_own_words():
    assert read_text(IOR_2).fields["complete"] is True
    assert read_text(IOR_2[: IOR_2.index("Run finished")]).fields["complete"] is False
