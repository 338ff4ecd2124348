"""The NCCL lines, against the table of line forms by version (NCCL 2.18 to 2.30, aws-ofi-nccl 1.7 to 1.21)."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from infra.sandbox.fabric.collective import Setting, SweepArgs, TrainArgs, sweep, train
from infra.sandbox.fabric.generation import generation_of
from infra.sandbox.fabric.machine import Host, Loss, Transport, machine_of
from infra.sandbox.fabric.nccl_log import Job, Member

START = datetime(2026, 3, 2, 8, tzinfo=UTC)
NGC = "nvcr.io/nvidia/pytorch:{}-py3"
PREFIX = re.compile(r"^[\w.-]+:\d+:\d+ \[\d+\] NCCL INFO \S")
CHANNEL = re.compile(
    r"Channel \d\d/0 : \d+\[\d\] -> \d+\[\d\] \[(send|receive)\] via"
    r" NET/(AWS Libfabric|Libfabric|gIB|Socket)/\d+(/GDRDMA)?$"
)


def setting(
    transport: Transport,
    *,
    image: str = NGC.format("25.09"),
    machine_type: str = "p5en.48xlarge",
    loss: Loss = "",
    env: dict[str, str] | None = None,
    gdr: bool = True,
    nodes: int = 2,
    ofi: bool = True,
    other: Transport | None = None,
) -> Setting:
    machine = machine_of(machine_type)
    assert machine is not None
    members = []
    for index in range(nodes):
        chosen = other if other and index else transport
        nics = (1.0,) * machine.fabric.nics if chosen != "socket" else ()
        host = Host(node=f"node-{index}", machine=machine, transport=chosen, loss=loss, gdr=gdr, nics=nics)
        members.append(
            Member(host=host, hostname=f"probe-{index}", address=f"10.1.0.{index}", ranks=8, first_rank=8 * index)
        )
    job = Job(members=members, generation=generation_of(image), env=env or {}, seed="test", ofi_in_image=ofi)
    return Setting(job=job, start=START)


def texts(run: Setting, *, rounds: int = 1) -> list[list[str]]:
    args = SweepArgs(sizes=[1 << 26, 1 << 28], rounds=rounds)
    return [[line.text for line in transcript.lines] for transcript in sweep(run, args)]


def test_every_rank_names_its_network_once_for_each_communicator():
    for log in texts(setting("efa"), rounds=2):
        for local in range(8):
            mine = [t for t in log if f" [{local}] NCCL INFO Using network Libfabric" in t]
            assert len(mine) == 2


def test_info_lines_carry_the_prefix_of_nccl():
    for log in texts(setting("efa")):
        info = [text for text in log if "NCCL INFO" in text]
        assert len(info) > 100
        assert all(PREFIX.match(text) for text in info)


@pytest.mark.parametrize(
    ("transport", "machine_type", "gdr"),
    [("efa", "p5en.48xlarge", True), ("efa", "p5.48xlarge", False), ("roce", "a3-ultragpu-8g", True)],
)
def test_channels_say_the_transport_and_gdr(transport, machine_type, gdr):
    for log in texts(setting(transport, machine_type=machine_type, gdr=gdr)):
        channels = [text.split("NCCL INFO ")[1] for text in log if "via NET/" in text]
        assert len(channels) == 32  # 16 rings, one way in and one way out of each node
        assert all(CHANNEL.match(text) for text in channels)
        assert all(("/GDRDMA" in text) == gdr for text in channels)
        assert all(f"GDR {int(gdr)}" in text for text in log if "Connected all rings" in text)


def test_every_gpu_and_every_device_of_a_p5en_is_used():
    (first, _) = texts(setting("efa"))
    used = {text.rsplit("/", 2)[1] for text in first if "[receive] via NET/" in text}
    assert used == {str(index) for index in range(16)}


def test_each_channel_crosses_between_nodes_in_both_logs_alike():
    first, second = texts(setting("efa"))

    def edges(log: list[str], way: str) -> set[tuple[str, str]]:
        found = (re.search(rf"Channel (\d\d)/0 : (.*) \[{way}\]", text) for text in log)
        return {(match[1], match[2]) for match in found if match}

    assert edges(first, "send") == edges(second, "receive")
    assert edges(second, "send") == edges(first, "receive")


@pytest.mark.parametrize(
    ("release", "present", "absent"),
    [
        ("24.05", ["Using network AWS Libfabric", "NCCL version 2.21.5+cuda12.4"], ["Assigned NET plugin"]),
        (
            "24.07",
            [
                "NET/Plugin: Loaded net plugin AWS Libfabric (v8)",
                "NET/OFI Selected Provider is efa (found 16 nics)",
                "NET/OFI Using transport protocol RDMA",
                "Bootstrap : Using eth0:10.1.0.0<0>",
                "NCCL version 2.22.3+cuda12.5",
            ],
            ["Assigned NET plugin", "ring PXN"],
        ),
        (
            "25.09",
            [
                "Successfully loaded external plugin libnccl-net.so",
                "NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)",
                "NET/OFI Using transport protocol RDMA (platform set)",
                "Initialized NET plugin Libfabric",
                "Assigned NET plugin Libfabric to comm",
                "Connected all rings, use ring PXN 0 GDR 1",
                "Bootstrap: Using eth0:10.1.0.0<0>",
            ],
            [],
        ),
        ("25.11", ["Successfully loaded external network plugin libnccl-net.so", "NCCL version 2.28.9+cuda13.0"], []),
    ],
)
def test_lines_are_those_of_their_generation(release, present, absent):
    log = "\n".join(texts(setting("efa", image=NGC.format(release)))[0])
    assert all(text in log for text in present)
    assert not any(text in log for text in absent)


@pytest.mark.parametrize(
    ("release", "text"),
    [
        ("23.09", "NET/Plugin : No plugin found, using internal implementation"),
        ("24.05", "Using internal network plugin."),
        ("24.07", "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin."),
        ("25.04", "NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin."),
        ("25.09", "NET/Plugin: Could not find: libnccl-net.so"),
    ],
)
def test_a_missing_plugin_reads_as_in_its_generation(release, text):
    for log in texts(setting("socket", image=NGC.format(release), loss="no-device", ofi=False)):
        joined = "\n".join(log)
        assert text in joined
        assert "NET/IB : No device found." in joined
        assert joined.count("Using network Socket") == 8
        assert "via NET/Socket/0" in joined
        assert "/GDRDMA" not in joined


def test_the_ofi_plugin_without_devices_fails_and_leaves_sockets():
    log = "\n".join(texts(setting("socket", loss="no-device"))[0])
    assert "NET/OFI No eligible providers were found" in log
    assert "NCCL WARN NET/OFI Unable to find a protocol that worked.  Failing initialization." in log
    assert "Assigned NET plugin Socket to comm" in log


def test_gib_lines():
    log = "\n".join(texts(setting("roce", machine_type="a3-ultragpu-8g"))[0])
    assert "NET/gIB : Initializing gIB v" in log
    assert "Assigned NET plugin gIB to comm" in log
    assert "NET/gIB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'" in log


@pytest.mark.parametrize("name", ["AWS Libfabric", "Libfabric"])
def test_the_ofi_plugin_answers_to_both_names(name):
    log = "\n".join(texts(setting("efa", env={"NCCL_NET": name}))[0])
    assert log.count(f"Using network {name}") == 8
    assert f"NCCL_NET set by environment to {name}" in log


@pytest.mark.parametrize(
    ("release", "text"),
    [("24.07", "NCCL WARN Error: network gIB not found."), ("25.09", "NCCL WARN Failed to initialize any NET plugin")],
)
def test_a_pinned_network_that_is_absent_ends_the_run(release, text):
    run = setting("socket", image=NGC.format(release), machine_type="a3-ultragpu-8g", env={"NCCL_NET": "gIB"})
    transcripts = sweep(run, SweepArgs(sizes=[1 << 26]))
    assert all(transcript.exit_code == 1 for transcript in transcripts)
    log = "\n".join(line.text for line in transcripts[0].lines)
    assert text in log
    assert '"event":"row"' not in log


def test_nodes_on_different_networks_hang_until_the_watchdog():
    transcripts = sweep(setting("efa", other="socket", loss="no-device"), SweepArgs(sizes=[1 << 26], timeout=300))
    assert all(transcript.exit_code != 0 and transcript.seconds > 300 for transcript in transcripts)
    log = "\n".join(line.text for line in transcripts[0].lines)
    assert "Watchdog caught collective operation timeout" in log
    assert '"event":"end"' not in log
    assert "Init COMPLETE" not in log


def test_the_same_run_prints_the_same_and_another_one_other_noise():
    assert texts(setting("efa")) == texts(setting("efa"))
    args = TrainArgs(steps=3)
    one, two = (train(setting("efa"), args)[0] for _ in range(2))
    assert one == two


def test_lines_come_in_order_of_time():
    for transcript in sweep(setting("efa"), SweepArgs(sizes=[1 << 26], rounds=2)):
        moments = [line.at for line in transcript.lines]
        assert moments == sorted(moments)
        assert moments[-1] <= transcript.seconds


@pytest.mark.parametrize(
    ("release", "transport", "loss", "expected"),
    [
        ("24.07", "efa", "", {"transport": "efa", "rdma": True, "fallback": False, "gdr": "all"}),
        ("25.09", "efa", "", {"transport": "efa", "rdma": True, "fallback": False, "gdr": "all"}),
        ("24.07", "socket", "no-device", {"transport": "socket", "rdma": False, "fallback": True}),
        ("25.09", "socket", "no-device", {"transport": "socket", "rdma": False, "fallback": True}),
    ],
)
def test_the_reader_of_real_logs_reads_these_alike(release, transport, loss, expected):
    import io

    from tasks.judge import judge

    for log in texts(setting(transport, image=NGC.format(release), loss=loss), rounds=2):
        answer = judge(io.BytesIO("\n".join(log).encode())).to_json()
        assert {key: answer[key] for key in expected} == expected
        assert (answer["nranks"], answer["nnodes"]) == (16, 2)
