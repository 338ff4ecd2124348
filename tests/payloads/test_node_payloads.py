"""The per-node probes, really run: our device report with the standard library alone, and fio where it is installed."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra.fabrics import fabric_of
from infra.model.spec import Validation
from infra.model.verdict import Outcome
from infra.probes import catalogue
from infra.probes.readers.detect import read
from infra.probes.readers.lnet import split_lnet
from tasks.judge import judge
from tasks.rules.hardware import judge_devices, judge_storage
from tasks.rules.lustre_path import judge_path
from tasks.rules.probe_verdict import Setting, answer_devices
from tasks.rules.storage_verdict import answer_storage, client_of, otherwise

DEVICE = Path(__file__).parents[2] / "infra" / "probes" / "payloads" / "device.py"


def device(root="/", **env):
    line = [sys.executable, "-I", str(DEVICE)]
    own = {"PATH": os.environ["PATH"], "NODE_NAME": "node-a", "POOLSHIFT_ROOT": str(root), **env}
    return subprocess.run(line, env=own, capture_output=True, check=True, timeout=60).stdout


def test_a_machine_without_devices_says_so_in_one_line():
    output = device()
    report = json.loads(output)
    assert output.count(b"\n") == 1
    assert report["node"] == "node-a"
    assert report["ok"] is True
    assert isinstance(report["gpus"], dict)


def test_a_missing_tool_is_missing_and_not_zero_devices(tmp_path):
    report = json.loads(device(PATH=str(tmp_path)))
    assert report["gpus"] == {"state": "missing", "count": None, "names": [], "driver": [], "message": ""}


def test_what_a_tool_prints_in_no_known_letters_is_kept_and_told(tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf 'Ger\\344t nicht gefunden\\n'; exit 9\n")
    tool.chmod(0o755)
    report = json.loads(device(PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert (report["gpus"]["state"], report["gpus"]["count"]) == ("failed", None)
    assert report["gpus"]["message"].endswith("t nicht gefunden")
    assert isinstance(report["memlock"]["ipc_lock"], bool)


def test_devices_ports_and_drivers_are_read_from_the_kernels_tree(tmp_path):
    for index in range(16):
        entry = tmp_path / f"sys/class/infiniband/rdmap{index}s0"
        port = entry / "ports/1"
        port.mkdir(parents=True)
        for key, value in (("state", "4: ACTIVE"), ("rate", "200 Gb/sec"), ("link_layer", "Unspecified")):
            (port / key).write_text(value + "\n")
        driver = tmp_path / "sys/bus/pci/drivers/efa"
        driver.mkdir(parents=True, exist_ok=True)
        (entry / "device").mkdir()
        (entry / "device" / "driver").symlink_to(driver)
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    for index in range(16):
        (tmp_path / f"dev/infiniband/uverbs{index}").touch()
    report = json.loads(device(tmp_path))
    assert len(report["verbs"]) == len(report["infiniband"]) == 16
    assert report["verbs"]["rdmap3s0"]["driver"] == "efa"
    assert report["verbs"]["rdmap3s0"]["ports"]["1"]["state"] == "4: ACTIVE"


def test_a_plugin_that_cannot_be_loaded_is_told_with_the_loaders_words(tmp_path):
    (tmp_path / "libnccl-net.so").write_bytes(b"not a library")
    report = json.loads(device(LD_LIBRARY_PATH=str(tmp_path)))
    plugin = next(item for item in report["libraries"] if item["path"].startswith(str(tmp_path)))
    assert plugin["loads"] is False
    assert "libnccl-net.so" in plugin["error"]


def test_an_interface_that_nccl_is_told_to_use_and_that_is_not_there(tmp_path):
    (tmp_path / "sys/class/net/eth0").mkdir(parents=True)
    report = json.loads(device(tmp_path, NCCL_SOCKET_IFNAME="eth,ens5"))
    assert report["interfaces_missing"] == ["NCCL_SOCKET_IFNAME=ens5"]
    assert report["nccl_env"] == ["NCCL_SOCKET_IFNAME"]


def test_a_real_report_of_this_machine_never_passes_for_a_gpu_machine():
    reading = read(io.BytesIO(device()))
    setting = Setting(nodes=("node-a",), gpus=8, fabric=fabric_of("p5en.48xlarge"))
    assert answer_devices(reading, setting).verdicts[0].outcome is not Outcome.PASS
    assert judge_devices({}, ["node-a"], setting.fabric).outcome is Outcome.UNMEASURED


NODE_A = Setting(nodes=("node-a",), gpus=8, fabric=None)
LNETCTL = """#!/bin/sh
n=$(cat "$0.count" 2>/dev/null || echo 0); echo $((n + 1)) > "$0.count"
sends=$((n * 600))
printf 'net:\\n    - net type: lo\\n      local NI(s):\\n        - nid: 0@lo\\n'
printf '          statistics:\\n              send_count: 0\\n'
printf '    - net type: tcp\\n      local NI(s):\\n        - nid: 10.0.0.9@tcp\\n          statistics:\\n'
printf '              send_count: 40\\n              recv_count: 41\\n              drop_count: 0\\n'
printf '    - net type: efa\\n      local NI(s):\\n        - nid: 10.0.0.9@efa\\n          statistics:\\n'
printf '              send_count: %d\\n              recv_count: 7\\n' $sends
"""


def storage(line, folder, path="", root=""):
    """The storage payload around a command."""
    script = DEVICE.parent / "storage.sh"
    env = {"PATH": f"{path}:{os.environ['PATH']}", "NODE_NAME": "node-a", "POOLSHIFT_ROOT": str(root)}
    return subprocess.run(["sh", str(script), *line], env=env, capture_output=True, timeout=60, check=False, cwd=folder)


def test_lnets_counters_and_the_servers_connections_are_read_around_the_program(tmp_path):
    tool = tmp_path / "bin/lnetctl"
    tool.parent.mkdir()
    tool.write_text(LNETCTL.replace("\\\\n", "\\n"))
    tool.chmod(0o755)
    for number, nid in enumerate(("10.0.1.2@efa", "10.0.1.3@efa", "10.0.1.2@efa")):
        entry = tmp_path / f"sys/fs/lustre/osc/fs-OST{number:04d}"
        entry.mkdir(parents=True)
        (entry / "ost_conn_uuid").write_text(nid + "\n")
    done = storage(["echo", "{}"], tmp_path, path=tool.parent, root=tmp_path)
    sights, rest = split_lnet(done.stdout)
    assert rest.strip() == b"{}"
    assert [{net: sum(n.values()) for net, n in s.nets.items()} for s in sights] == [
        {"tcp": 81, "efa": 7},
        {"tcp": 81, "efa": 607},
    ]
    assert sights[1].connections == ("10.0.1.2@efa", "10.0.1.3@efa")
    assert judge_path({"node-a": sights}, {"node-a": 600 * 2.0**20}).outcome is Outcome.PASS


MOUNTS = """21 1 0:19 / / rw,relatime shared:1 - overlay overlay rw,lowerdir=/a
30 21 0:41 / {0} rw,nosuid shared:9 master:4 - {1} 10.0.0.9@tcp:/fsx rw,flock
31 21 0:42 / {0}-beside rw - ext4 /dev/sda1 rw
"""


def test_the_file_system_of_the_programs_directory_is_the_kernels_word_not_the_mounts_name(tmp_path):
    place = tmp_path / "data"
    (place / "pod").mkdir(parents=True)
    table = tmp_path / "proc/self/mountinfo"
    table.parent.mkdir(parents=True)
    for kind in ("lustre", "nfs4"):
        table.write_text(MOUNTS.format(place, kind))
        done = storage(["echo", f"--directory={place}/pod"], tmp_path, root=tmp_path)
        before, after = split_lnet(done.stdout)[0]
        assert before.mount == after.mount == {"directory": f"{place}/pod", "at": str(place), "type": kind}
    for line in (["echo", f"--directory={tmp_path}/missing"], ["echo"]):
        assert [s.mount for s in split_lnet(storage(line, tmp_path, root=tmp_path).stdout)[0]] == [None, None]
    assert {s.mount["type"] for s in split_lnet(storage(["echo", "--directory=/proc"], tmp_path).stdout)[0]} == {"proc"}


def test_a_mount_point_with_a_blank_is_not_the_root(tmp_path):
    place = tmp_path / "my data"
    place.mkdir()
    table = tmp_path / "proc/self/mountinfo"
    table.parent.mkdir(parents=True)
    table.write_text(MOUNTS.format(str(place).replace(" ", "\\040"), "lustre"))
    done = storage(["echo", f"--directory={place}"], tmp_path, root=tmp_path)
    shown = {"directory": str(place), "at": str(place), "type": "lustre"}
    assert [s.mount for s in split_lnet(done.stdout)[0]] == [shown, shown]


def test_the_programs_exit_code_is_the_payloads_own(tmp_path):
    assert storage(["sh", "-c", "exit 7"], tmp_path).returncode == 7
    assert storage(["no-such-program"], tmp_path).returncode != 0


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed: apt-get install fio")
def test_the_catalogues_fio_line_runs_and_is_read(tmp_path):
    """The very options of the probe, on a small file for a short time."""
    probe = catalogue.storage(Validation(storage_claim="train/data"))
    small = {"--size=8G": "--size=4M", "--numjobs=8": "--numjobs=1", "--runtime=30": "--runtime=1", "--ramp_time=5": ""}
    small |= {f"--directory={catalogue.STORAGE_MOUNT}": f"--directory={tmp_path}", "--direct=1": "--direct=0"}
    line = ["fio", *(new for arg in probe.args if (new := small.get(arg, arg)))]
    done = storage(line, tmp_path)
    assert done.returncode == 0, done.stderr
    sights, rest = split_lnet(done.stdout)
    jobs = json.loads(rest)["jobs"]
    assert [(j["jobname"], j["error"]) for j in jobs] == [("write", 0), ("read", 0)]
    assert [(s.when, s.node, s.nets) for s in sights] == [("before", "node-a", None), ("after", "node-a", None)]
    answer = answer_storage({"node-a": read(io.BytesIO(rest))}, NODE_A, None, {"node-a": sights}, asked=line[1:])
    assert answer.verdicts[1].outcome is Outcome.UNMEASURED
    assert "not visible" in answer.verdicts[1].reason
    assert {s.mount["directory"] for s in sights} == {str(tmp_path)}  # fio's own JSON says the same of its jobs
    assert read(io.BytesIO(rest)).tool.figures["directories"] == [str(tmp_path)]
    client = client_of("node-a", read(io.BytesIO(rest)), sights)
    options = read(io.BytesIO(rest)).tool.figures
    assert not otherwise(options, line[1:])  # fio tells of itself what it was told
    assert "bs 4M" in otherwise(options, [arg.replace("--bs=4M", "--bs=1M") for arg in line[1:]])
    assert client.write_bytes_s > 0
    assert client.read_bytes_s > 0
    assert client.errors == 0
    assert client.complete is False  # not with --direct=1 here: a page cache may have answered
    assert judge_storage([client], ["node-a"], None, None).outcome is Outcome.UNMEASURED


@pytest.mark.parametrize("script", ["all_reduce.py", "train_step.py"])
def test_an_image_without_pytorch_ends_badly_says_so_and_measures_nothing(script):
    path = DEVICE.parent / script
    code = f"import runpy, sys; sys.modules['torch'] = None; runpy.run_path({str(path)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert b"torch" in done.stderr
    assert judge(io.BytesIO(done.stdout + done.stderr)).outcome is Outcome.UNMEASURED
