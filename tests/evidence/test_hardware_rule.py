"""Devices and storage: a missing tool is no missing device, and nothing passes that was not seen."""

import io
import json
from dataclasses import replace

import pytest

from infra.fabrics import fabric_of
from infra.model.cluster import Node
from infra.model.verdict import Outcome
from infra.probes.readers.detect import read
from infra.probes.readers.lines import from_text
from infra.probes.readers.lnet import LnetSight
from tasks.judge import judge as judge_output
from tasks.rules.hardware import (
    MACHINE_LABEL,
    ClientIo,
    judge_devices,
    judge_reports,
    judge_storage,
    other_machines,
)
from tasks.rules.storage_verdict import client_of

P5EN = fabric_of("p5en.48xlarge")
PORT = {"1": {"state": "4: ACTIVE", "rate": "200 Gb/sec", "link_layer": "Unspecified"}}


def report(**changes):
    names = [f"rdmap{i}s0" for i in range(16)]
    good = {
        "ok": True,
        "gpus": {"state": "ok", "count": 8},
        "infiniband": [f"uverbs{i}" for i in range(16)],
        "verbs": {name: {"driver": "efa", "ports": PORT} for name in names},
        "fi_info": {"state": "ok", "domains": [f"{name}-rdm" for name in names]},
        "memlock": {"soft_bytes": None, "hard_bytes": None, "ipc_lock": True},
        "libraries": [{"path": "/opt/amazon/ofi-nccl/lib/libnccl-net.so", "loads": True, "error": ""}],
        "interfaces_missing": [],
    }
    return {**good, **changes}


def ports_of(bad=3, **changes):
    """All devices, one of which has a port of another kind."""
    return {
        f"rdmap{i}s0": {"driver": "efa", "ports": {"1": {**PORT["1"], **(changes if i == bad else {})}}}
        for i in range(16)
    }


def judge(**changes):
    return judge_devices({"a": report(), "b": report(**changes)}, ["a", "b"], P5EN)


def test_all_devices_on_all_nodes_pass():
    assert judge().outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"gpus": {"state": "ok", "count": 7}}, "gpu-count"),
        ({"verbs": {}}, "rdma-count"),
        ({"infiniband": []}, "rdma-count"),
        ({"verbs": {f"d{i}": {"driver": "mlx5_core", "ports": PORT} for i in range(16)}}, "rdma-count"),
        (
            {"verbs": {f"d{i}": {"driver": "efa", "ports": {"1": {"state": "1: DOWN"}}} for i in range(16)}},
            "rdma-port-down",
        ),
        ({"verbs": ports_of(state="5: ACTIVE_DEFER")}, "rdma-port-down"),
        ({"verbs": ports_of(rate="100 Gb/sec (2X HDR)")}, "rdma-rate"),
        ({"fi_info": {"state": "failed", "domains": [], "message": "fi_getinfo: -61"}}, "efa-domains"),
        ({"memlock": {"soft_bytes": 65536, "ipc_lock": False}}, "memlock"),
        ({"libraries": []}, "plugin-missing"),
        ({"libraries": [{"path": "/l/libnccl-net.so", "loads": False, "error": "GLIBC_2.38"}]}, "plugin-unloadable"),
        ({"interfaces_missing": ["NCCL_SOCKET_IFNAME=ens5"]}, "interface-missing"),
    ],
)
def test_each_defect_fails_with_its_own_code_and_names_the_node(change, code):
    verdict = judge(**change)
    assert verdict.outcome is Outcome.FAIL
    assert [(f.code, f.object) for f in verdict.findings] == [(code, "node b")]
    assert verdict.findings[0].remedy


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": {"state": "missing", "count": None}},
        {"fi_info": {"state": "missing", "domains": []}},
        {"fi_info": {"state": "timed-out", "domains": []}},
        {"memlock": None},
        {"ok": None},
        {"verbs": ports_of(state="")},
        {"verbs": ports_of(rate="")},
        {"verbs": ports_of() | {"rdmap3s0": {"driver": "efa", "ports": {}}}},
        {"verbs": ports_of() | {"rdmap3s0": {"driver": "efa", "ports": {"1": "4: ACTIVE"}}}},
        {"verbs": ports_of() | {"rdmap3s0": {"driver": "efa", "ports": ["1"]}}},
    ],
)
def test_a_tool_that_is_missing_or_silent_is_unmeasured_not_bad(change):
    verdict = judge(**change)
    assert verdict.outcome is Outcome.UNMEASURED
    assert not verdict.findings


def test_a_node_without_a_report_and_an_unknown_machine_are_unmeasured():
    assert judge_devices({"a": report()}, ["a", "b"], P5EN).outcome is Outcome.UNMEASURED
    assert judge_devices({"a": report()}, ["a"], None).outcome is Outcome.UNMEASURED
    assert judge_devices({}, [], P5EN).outcome is Outcome.UNMEASURED


def test_rates_that_older_efa_drivers_give_for_any_device_are_not_judged():
    fixed = {name: {"driver": "efa", "ports": {"1": {**PORT["1"], "rate": "100 Gb/sec"}}} for name in ports_of()}
    assert judge(verbs=fixed).outcome is Outcome.PASS


@pytest.mark.parametrize("other", [{"gpus": {"state": "ok", "count": 7}}, {"ok": False}, {}])
@pytest.mark.parametrize("turned", [False, True])
def test_two_reports_of_one_node_prove_nothing_and_a_defect_in_either_counts(other, turned):
    pair = [report(node="a"), report(node="a", **other)]
    found = judge_reports([*(reversed(pair) if turned else pair), report(node="b")], ["a", "b"], P5EN)
    assert found.outcome is (Outcome.FAIL if "gpus" in other else Outcome.UNMEASURED)


@pytest.mark.parametrize(
    "part", ["gpus", "infiniband", "verbs", "fi_info", "memlock", "libraries", "interfaces_missing"]
)
@pytest.mark.parametrize("value", [7, "text", ["x"], {"x": 1}, None, True])
def test_a_report_of_any_shape_is_judged_without_an_error(part, value):
    assert judge(**{part: value}).outcome in set(Outcome)


def test_reports_in_a_file_are_judged_against_the_machine_type():
    lines = [json.dumps({"poolshift": "device", "node": node, **report()}) for node in ("a", "b")]
    text = "\n".join(lines) + "\n"

    def outcome(text, **known):
        return judge_output(from_text(text), **known).outcome

    assert outcome(text, machine_type="p5en.48xlarge", nodes=2) is Outcome.PASS
    assert outcome(text, machine_type="p5en.48xlarge", nodes=3) is Outcome.UNMEASURED
    assert outcome(text, machine_type="p5.48xlarge", nodes=2) is Outcome.FAIL
    assert outcome(text) is outcome(text + lines[0][:40] + "\n", machine_type="p5en.48xlarge") is Outcome.UNMEASURED


CONTRADICTORY = {
    "an error beside ok": {"error": "boom"},
    "a tool that failed, and its count": {"gpus": {"state": "failed", "count": 8}},
    "GPUs of another machine": {"gpus": {"state": "ok", "count": 8, "names": ["Tesla T4"]}},
    "more devices than there are": {
        "verbs": {f"rdmap{n}s0": {"driver": "efa", "ports": PORT} for n in range(17)},
        "infiniband": [f"uverbs{n}" for n in range(17)],
    },
    "one device file listed often": {"infiniband": ["uverbs0"] * 16},
    "faster than the machine type": {"verbs": ports_of(rate="400 Gb/sec (4X NDR)")},
    "active without a link": {"verbs": ports_of(phys_state="3: Disabled")},
    "domains of a tool that failed": {
        "fi_info": {"state": "failed", "domains": [f"rdmap{n}s0-rdm" for n in range(16)]}
    },
    "another network's plugin": {"libraries": [{"path": "/usr/lib/libnccl-net-spcx.so", "loads": True}]},
    "EFA's plugin broken, another's whole": {
        "libraries": [
            {"path": "/opt/amazon/libnccl-net-ofi.so", "loads": False, "error": "GLIBC_2.38"},
            {"path": "/opt/hpcx/libnccl-net-sharp.so", "loads": True},
        ]
    },
    "a file that is no library": {"libraries": [{"path": "/tmp/libnccl-net.txt", "loads": True}]},
    "interfaces nobody looked for": {"interfaces_missing": None},
}


@pytest.mark.parametrize("name", CONTRADICTORY)
def test_a_report_that_contradicts_itself_or_the_machine_type_is_no_pass_and_says_why(name):
    found = judge(**CONTRADICTORY[name])
    assert found.outcome is not Outcome.PASS
    assert found.reason


@pytest.mark.parametrize("name", ["libnccl-net.so", "libnccl-net-ofi.so", "libnccl-net-aws-ofi.so", "libnccl-net.so.0"])
def test_each_name_of_efas_plugin_is_taken(name):
    assert judge(libraries=[{"path": f"/opt/amazon/ofi-nccl/lib/{name}", "loads": True}]).outcome is Outcome.PASS


@pytest.mark.parametrize("gone", ["gpus", "infiniband", "verbs", "fi_info", "memlock", "libraries"])
def test_a_report_that_lacks_a_part_never_passes(gone):
    less = {key: value for key, value in report().items() if key != gone}
    assert judge_devices({"a": less}, ["a"], P5EN).outcome is not Outcome.PASS


def client(node, write=9e9, read=10e9, errors=0, complete=True):
    return ClientIo(node=node, write_bytes_s=write, read_bytes_s=read, errors=errors, complete=complete)


BEFORE = [client("x"), client("y")]
AFTER = [client("a"), client("b")]


def storage(clients, baseline=BEFORE):
    return judge_storage(clients, ["a", "b"], P5EN, baseline).outcome


def test_as_fast_as_the_source_passes_and_ten_percent_less_fails():
    assert storage(AFTER) is Outcome.PASS
    assert storage([client("a", read=8.0e9), client("b", read=8.0e9)]) is Outcome.FAIL


MANY = [client(f"s{i}") for i in range(16)]


@pytest.mark.parametrize("way", ["write", "read"])
@pytest.mark.parametrize("left", [1e6, 3e9])
def test_one_client_far_below_the_others_fails_and_is_named_though_the_mean_is_good(way, left):
    found = [client(f"t{i}", **({way: left} if i == 3 else {})) for i in range(16)]
    verdict = judge_storage(found, [c.node for c in found], P5EN, MANY)
    assert verdict.outcome is Outcome.FAIL
    assert f"node t3 ({way}" in verdict.reason


def test_a_broken_client_of_the_source_lowers_no_floor_for_the_target():
    before = [client("s0", read=1e6), *MANY[1:]]
    found = [client(f"t{i}", read=1e6 if i == 3 else 10e9) for i in range(16)]
    assert judge_storage(found, [c.node for c in found], P5EN, before).outcome is Outcome.FAIL


def test_clients_that_differ_as_they_did_on_the_source_pass():
    before = [client(f"s{i}", read=6e9 if i % 2 else 12e9) for i in range(16)]
    found = [client(f"t{i}", read=5.5e9 if i % 2 else 12e9) for i in range(16)]
    assert judge_storage(found, [c.node for c in found], P5EN, before).outcome is Outcome.PASS


def test_more_clients_that_share_one_total_are_not_compared_one_by_one():
    found = [client(f"t{i}", write=4.5e9, read=5e9) for i in range(4)]
    assert judge_storage(found, [c.node for c in found], P5EN, BEFORE).outcome is Outcome.UNMEASURED


def test_errors_fail():
    assert storage([client("a", errors=2), client("b")]) is Outcome.FAIL


@pytest.mark.parametrize(
    "clients",
    [
        [client("a")],
        [client("a"), client("b", complete=False)],
        [client("a"), client("b", read=None)],
        [client("a"), client("b", write=0.0)],
        [client("a"), client("b", read=300e9)],
        [],
    ],
    ids=["node missing", "cut", "no read", "no write", "above the client's ceiling", "nothing"],
)
def test_what_is_not_whole_or_not_plausible_is_unmeasured(clients):
    assert storage(clients) is Outcome.UNMEASURED


def test_without_a_whole_baseline_it_is_measured_not_judged():
    assert storage(AFTER, None) is Outcome.UNMEASURED
    assert storage(AFTER, [replace(BEFORE[0], complete=False)]) is Outcome.UNMEASURED


MOVED = {
    "io_bytes": 300_000_000_000,
    "bw_bytes": 10_000_000_000,
    "runtime": 30_000,
    "total_ios": 70_000,
    "short_ios": 0,
}


def fio(*jobs, options=None, before="", **changes):
    """A fio document of jobs that read and write the same."""
    side = {**MOVED, **changes}
    shown = jobs or ({"error": 0, "read": side, "write": side, "job options": options or {}},)
    return before + json.dumps({"fio version": "fio-3.36", "global options": {"direct": "1"}, "jobs": list(shown)})


def sights(kind="lustre", directory="/data", **changes):
    """What the storage payload says of fio's directory before and after."""
    mount = {"directory": directory, "at": directory, "type": kind} if kind else None
    before = LnetSight(when="before", node="a", nets=None, connections=(), mount=mount)
    return [before, replace(before, when="after", **changes)]


def client_from(text, seen=None):
    return client_of("a", read(io.BytesIO(text.encode())), sights() if seen is None else seen)


def test_fio_that_agrees_with_itself_is_a_client():
    found = client_from(fio())
    assert (found.complete, found.read_bytes_s, found.errors) == (True, 10e9, 0)


@pytest.mark.parametrize(
    "text",
    [
        fio(io_bytes=1000),
        fio(bw_bytes=20_000_000_000),
        fio(runtime=30, io_bytes=300_000_000),
        fio(total_ios=0),
        fio(short_ios=900),
        fio(before="fio: terminating on signal 15\n"),
        fio({"read": MOVED, "write": MOVED}),
    ],
    ids=["few bytes", "twice the rate", "30 ms", "no operation", "short", "stopped", "no error field"],
)
def test_fio_that_contradicts_itself_or_was_cut_short_is_no_client(text):
    assert not client_from(text).complete


def with_option(name, value):
    return fio().replace('"direct": "1"', f'"direct": "1", "{name}": "{value}"')


NOT_THE_FILE_SYSTEM = {
    "dropped operations": fio(drop_ios=900),
    "gigabytes in an operation": fio(total_ios=3),
    "died afterwards": fio() + "\nKilled\n",
    "a local disk": fio().replace('"jobs"', '"disk_util": [{"name": "nvme0n1", "util": 99.0}], "jobs"'),
    "no engine": with_option("ioengine", "null"),
    "memory": with_option("ioengine", "mmap"),
    "a device": with_option("filename", "/dev/nvme0n1"),
    "through the page cache": with_option("buffered", "1"),
    "zeros": with_option("zero_buffers", ""),
    "one block again and again": with_option("dedupe_percentage", "100"),
    "nothing written": with_option("verify_only", ""),
}


@pytest.mark.parametrize("name", NOT_THE_FILE_SYSTEM)
def test_fio_that_did_not_measure_the_shared_file_system_is_no_client(name):
    assert not client_from(NOT_THE_FILE_SYSTEM[name]).complete


def in_directory(name, text=None):
    return (text or fio()).replace('"direct": "1"', f'"direct": "1", "directory": "{name}"')


ELSEWHERE = {
    "memory": (fio(), sights("tmpfs"), "is on tmpfs"),
    "the container's own layers": (fio(), sights("overlay"), "is on overlay"),
    "another file server": (fio(), sights("nfs4"), "is on nfs4"),
    "a file system of no name": (fio(), sights(""), "not shown, neither"),
    "another directory than was looked at": (in_directory("/tmp/x"), sights(), "fio worked in /tmp/x"),
    "one that begins alike": (in_directory("/data2"), sights(), "fio worked in /data2"),
    "a file elsewhere": (with_option("filename", "/scratch/file"), sights(), "fio worked in /scratch"),
    "one of several elsewhere": (in_directory("/data:/tmp"), sights(), "fio worked in /tmp"),
    "mounted anew": (fio(), sights(mount={"directory": "/data", "at": "/", "type": "lustre"}), "meanwhile"),
    "looked at once": (fio(), sights()[:1], "before and after"),
    "not looked at": (fio(), [], "before and after"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_fio_that_is_not_shown_to_have_been_on_lustre_proves_no_storage(name):
    text, seen, why = ELSEWHERE[name]
    client = client_from(text, seen)
    assert not client.complete
    assert why in client.doubt
    verdict = judge_storage([client], ["a"], P5EN, [replace(client, complete=True, doubt="")])
    assert verdict.outcome is Outcome.UNMEASURED
    assert why in verdict.reason


def test_lnets_counters_show_lustre_where_no_mount_is_seen_and_only_if_they_carry_the_bytes():
    seen = sights("")
    enough, few = ([replace(seen[0], nets={"tcp": {"send": 5}}), replace(seen[1], nets={"tcp": {"send": n}})]
                   for n in (900_000, 900))  # fmt: skip
    assert client_from(fio(), enough).complete
    assert not client_from(fio(), few).complete
    assert client_from(in_directory("/data/pod-1")).complete


def test_a_full_file_system_is_an_error():
    assert client_from(fio(before="fio: ENOSPC on laying out file, stopping\n")).errors == 1


def test_an_engine_and_an_empty_list_of_disks_are_no_doubt():
    """Lustre has no block device on its clients."""
    text = fio().replace('"direct": "1"', '"direct": "1", "ioengine": "libaio", "zero_buffers": "0"')
    assert client_from(text.replace('"jobs"', '"disk_util": [], "jobs"')).complete


def test_rates_of_jobs_that_ran_one_after_another_are_not_added():
    job = {"error": 0, "read": MOVED, "write": MOVED}
    assert client_from(fio(job, job)).read_bytes_s == 20e9
    assert client_from(fio(job, {**job, "job options": {"stonewall": ""}})).read_bytes_s is None


def test_a_pool_is_of_the_type_that_every_nodes_label_says():
    """The spec's or the cloud's word is not enough: a node without the label may be anything of that shape."""

    def node(name, **labels):
        return Node(name=name, uid=name, labels=labels)

    said = {MACHINE_LABEL: "p5en.48xlarge"}
    assert other_machines([node("a", **said), node("b", **said)], "p5en.48xlarge") == ""
    assert "b is p6-b300.48xlarge" in other_machines(
        [node("a", **said), node("b", **{MACHINE_LABEL: "p6-b300.48xlarge"})], "p5en.48xlarge"
    )
    assert "b does not say" in other_machines([node("a", **said), node("b")], "p5en.48xlarge")
