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
from tasks.rules.hardware import judge_devices, judge_storage
from tasks.rules.probe_verdict import Setting, answer_devices, client_of

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


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed: apt-get install fio")
def test_the_catalogues_fio_line_runs_and_is_read(tmp_path):
    """The very options of the probe, on a small file for a short time."""
    probe = catalogue.storage(Validation(storage_claim="train/data"))
    small = {"--size=8G": "--size=4M", "--numjobs=8": "--numjobs=1", "--runtime=30": "--runtime=1", "--ramp_time=5": ""}
    small |= {f"--directory={catalogue.STORAGE_MOUNT}": f"--directory={tmp_path}", "--direct=1": "--direct=0"}
    line = ["fio", *(new for arg in probe.args if (new := small.get(arg, arg)))]
    done = subprocess.run(line, capture_output=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    jobs = json.loads(done.stdout)["jobs"]
    assert [(j["jobname"], j["error"]) for j in jobs] == [("write", 0), ("read", 0)]
    client = client_of("node-a", read(io.BytesIO(done.stdout)))
    assert client.write_bytes_s > 0
    assert client.read_bytes_s > 0
    assert client.errors == 0
    assert client.complete is False  # not with --direct=1 here: a page cache may have answered
    assert judge_storage([client], ["node-a"], None, None).outcome is Outcome.UNMEASURED
