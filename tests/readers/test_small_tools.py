# ruff: noqa: E501 - what a tool printed stands on one line here as it did there
"""fio, IOR, elbencho, perftest, libfabric's and the verbs tools, counters, device plugins."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from case_files import differences
from tool_outputs import FI_INFO, FIO_JSON, PERFTEST, PERFTEST_RULE, PINGPONG, ibstat

from infra.probes.readers.lines import from_text
from tasks.judge import judge

TOOLS: dict[str, tuple[str, dict[str, Any], int]] = {
    "perftest-gbps": (
        PERFTEST,
        {
            "tool": "perftest",
            "bw_average_gbps": 391.72,
            "bw_peak_gbps": 392.11,
            "msg_size_bytes": 65536,
            "device": "mlx5_0",
            "link_type": "Ethernet",
            "complete": True,
        },
        4,
    ),
    "perftest-mib": (
        PERFTEST.replace("Gb/sec", "MiB/sec"),
        {"bw_average_mib_s": 391.72, "bw_average_gbps": None},
        4,
    ),
    "perftest-cut": (
        PERFTEST[: PERFTEST.rindex("391.72")],
        {"tool": "perftest", "bw_average_gbps": None, "complete": False},
        4,
    ),
    "perftest-latency": (
        "                    RDMA_Write Latency Test\n #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    "
        "t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]\n 2       1000          1.79           "
        "5.68         1.83               1.85            0.13            2.04                    5.68\n"
        + PERFTEST_RULE
        + "\n",
        {"t_avg_us": 1.85, "msg_size_bytes": 2, "complete": True},
        4,
    ),
    "perftest-failed": (
        PERFTEST.split(" #bytes")[0] + " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n",
        {"tool": "perftest", "healthy": False, "verdict": "failed"},
        3,
    ),
    "perftest-json": (
        json.dumps(
            {
                "test_info": {"test": "Write", "Device": "mlx5_0", "Link_type": "Ethernet", "rate_units": "Gb/sec"},
                "results": {
                    "MsgSize": 65536,
                    "n_iterations": 5000,
                    "BW_peak": 392.1,
                    "BW_average": 391.7,
                    "MsgRate": 0.7,
                },
            }
        ),
        {"tool": "perftest", "bw_average_gbps": 391.7, "msg_size_bytes": 65536},
        4,
    ),
    "perftest-json-without-unit": (
        json.dumps({"test_info": {"test": "Write"}, "results": {"MsgSize": 65536, "BW_average": 391.7}}),
        {"bw_average_gbps": None, "bw_average_as_printed": 391.7},
        4,
    ),
    "fi-info": (FI_INFO, {"tool": "fi_info", "efa_device_found": True, "efa_domains": 16, "provider": "efa"}, 4),
    "fi-info-none": (
        "fi_getinfo: -61 (No data available)\n",
        {"tool": "fi_info", "efa_device_found": False, "error": -61},
        3,
    ),
    "fi-info-tool-missing": (
        "bash: fi_info: command not found\n",
        {"tool": "fi_info", "efa_device_found": None, "cause": "tool-missing", "healthy": None},
        4,
    ),
    "fi-pingpong-tcp": (
        "$ fi_pingpong -p tcp -e rdm 127.0.0.1\n" + PINGPONG,
        {"tool": "fi_pingpong", "provider": "tcp", "rdma": False, "peak_mb_s": 1873.21, "cause": "not-rdma"},
        3,
    ),
    "fi-pingpong-unknown": (PINGPONG, {"tool": "fi_pingpong", "provider": None, "rdma": None}, 4),
    "ibv-devinfo": (
        "hca_id:\tmlx5_0\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t28.39.1002\n\t\tport:\t1\n\t\t\tstate:\t\t\t"
        "PORT_ACTIVE (4)\n\t\t\tactive_mtu:\t\t4096 (5)\n\t\t\tactive_width:\t\t4X (2)\n\t\t\tactive_speed:\t\t100.0 Gbps (128)\n"
        "\t\t\tlink_layer:\t\tInfiniBand\n",
        {
            "tool": "ibv_devinfo",
            "device": "mlx5_0",
            "state": "PORT_ACTIVE",
            "active_mtu_bytes": 4096,
            "rate_gbps": 400.0,
            "healthy": True,
            "efa": False,
        },
        4,
    ),
    "ibv-devinfo-none": (
        "No IB devices found\n",
        {"tool": "ibv_devinfo", "cause": "no-ib-device", "healthy": False},
        3,
    ),
    "ibstat-two": (ibstat("Active", "Active"), {"tool": "ibstat", "device_count": 2, "healthy": True}, 4),
    "ibstat-down": (
        ibstat("Active", "Down"),
        {"tool": "ibstat", "healthy": False, "down": ["rdmap86s0"], "cause": "port-down"},
        3,
    ),
    "counters-rdma-statistic": (
        "link rdmap86s0/1 tx_bytes 1000 tx_pkts 4 rx_bytes 2000 rdma_read_bytes 7 rx_drops 0\n"
        "link rdmap87s0/1 tx_bytes 10 tx_pkts 4 rx_bytes 20 rdma_read_bytes 0 rx_drops 3\n",
        {"tool": "counters", "tx_bytes": 1010, "rx_bytes": 2020, "errors": {"rdmap87s0.rx_drops": 3}},
        4,
    ),
    "counters-rdma-statistic-pretty": (
        "link rdmap86s0/1 \n    tx_bytes 1000 \n    tx_pkts 4 \n    rx_bytes 2000 \n    rx_drops 0 \n"
        "link rdmap87s0/1 \n    tx_bytes 10 \n    tx_pkts 4 \n    rx_bytes 20 \n    rx_drops 3 \n",
        {"tool": "counters", "tx_bytes": 1010, "rx_bytes": 2020, "errors": {"rdmap87s0.rx_drops": 3}},
        4,
    ),
    "counters-rdma-statistic-wrapped": (
        "link rdmap86s0/1 tx_bytes 1000 tx_pkts 4\nrx_bytes 2000 rx_drops\n5\n"
        "link rdmap87s0/1 tx_bytes 10 tx_pkts 4 rx_bytes 20\n",
        {"tool": "counters", "tx_bytes": 1010, "rx_bytes": 2020, "errors": {"rdmap86s0.rx_drops": 5}},
        4,
    ),
    "counters-mlx5-words": (
        "/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data:1000\n"
        "/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data:500\n",
        {"tool": "counters", "tx_bytes": 4000, "rx_bytes": 2000},
        4,
    ),
    "counters-two-snapshots": (
        "/sys/class/infiniband/rdmap0s0/ports/1/hw_counters/tx_bytes:1000\n"
        "/sys/class/infiniband/rdmap0s0/ports/1/hw_counters/tx_bytes:5000\n",
        {"moved_bytes": 4000, "tx_bytes": 5000},
        4,
    ),
    "lnet": (
        "net:\n    - net type: efa\n      local NI(s):\n        - nid: 10.0.0.1@efa\n          statistics:\n              "
        "send_count: 900\n              recv_count: 800\n    - net type: tcp\n      local NI(s):\n        - nid: 10.0.0.1@tcp\n"
        "          statistics:\n              send_count: 10\n              recv_count: 12\n",
        {
            "tool": "lnetctl",
            "nets": {"efa": {"send_count": 900, "recv_count": 800}, "tcp": {"send_count": 10, "recv_count": 12}},
        },
        4,
    ),
    "fio-json": (
        "fio: this platform does not support process shared mutexes\n" + json.dumps(FIO_JSON),
        {
            "tool": "fio",
            "valid_json": True,
            "read_bytes_s": 12_000_000_000,
            "write_bytes_s": 0,
            "direct": True,
            "complete": True,
            "bytes_per_io": 1048576,
            "suspicious": False,
        },
        4,
    ),
    "fio-json-error": (
        json.dumps(FIO_JSON | {"jobs": [FIO_JSON["jobs"][0] | {"error": 5}]}),  # type: ignore[index]
        {"tool": "fio", "verdict": "failed", "healthy": False},
        3,
    ),
    "fio3-text": (
        "seq: (groupid=0, jobs=8): err= 0: pid=77: Fri Mar 13 22:26:02 2026\n  read: IOPS=11.4k, BW=11.2GiB/s\n\n"
        "Run status group 0 (all jobs):\n   READ: bw=11.2GiB/s (12.0GB/s), 11.2GiB/s-11.2GiB/s (12.0GB/s-12.0GB/s), "
        "io=672GiB (722GB), run=60001-60001msec\n",
        {"tool": "fio", "format": "fio3", "read_mib_s": 11468.8, "complete": True, "healthy": None},
        4,
    ),
    "fio-text-error": (
        "seq: (groupid=0, jobs=1): err= 5 (file:io_u.c): pid=77\n\nRun status group 0 (all jobs):\n",
        {"tool": "fio", "verdict": "failed"},
        3,
    ),
    "ior-json": (
        json.dumps(
            {
                "Version": "4.0.0",
                "tests": [
                    {
                        "Results": [
                            [{"access": "write", "bwMiB": 25110.5, "iter": 0}],
                            [{"access": "read", "bwMiB": 22660.25, "iter": 0}],
                        ]
                    }
                ],
            }
        ),
        {"tool": "ior", "max_write_mib_s": 25110.5, "max_read_mib_s": 22660.25},
        4,
    ),
    "fio-json-second-document-failed": (
        json.dumps(FIO_JSON) + "\n" + json.dumps(FIO_JSON | {"jobs": [FIO_JSON["jobs"][0] | {"error": 5}]}),  # type: ignore[index]
        {"tool": "fio", "verdict": "failed", "documents": 2, "complete": False, "errors": [5]},
        3,
    ),
    "fio-json-two-documents": (
        json.dumps(FIO_JSON) * 2,
        {"tool": "fio", "verdict": "undetermined", "complete": False},
        4,
    ),
    "ior-wrong-data": (
        "IOR-4.0.0: MPI Coordinated Test of Parallel I/O\nWARNING: Incorrect data on read (3 errors found).\n"
        "Max Read:  9123.45 MiB/sec (9566.62 MB/sec)\nFinished            : Mon Mar  2 10:01:00 2026\n",
        {"tool": "ior", "verdict": "failed", "cause": "data-corruption", "max_read_mib_s": 9123.45},
        3,
    ),
    "ior-error": (
        "IOR-4.0.0: MPI Coordinated Test of Parallel I/O\napi: POSIX MiB\nERROR: open64() failed, errno 28\n",
        {"tool": "ior", "verdict": "failed", "cause": "io-error"},
        3,
    ),
    "ior-summary-only": (
        "Operation   Max(MiB)   Min(MiB)  Mean(MiB)     StdDev   Max(OPs)\nwrite         565.67     560.00     563.00       0.00     565.67 MPIIO      0\n",
        {"tool": "ior", "max_write_mib_s": 565.67, "mean_write_mib_s": 563.0, "write_rows_mib_s": []},
        4,
    ),
    "perftest-caption-without-hash": (
        "                    RDMA_Read BW Test\n #bytes     iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 2          1000             4.86               4.67               2.450225\n",
        {"tool": "perftest", "bw_average_mb_s": 4.67, "complete": False},
        4,
    ),
    "plugin-containerd": (
        "2023-10-19T14:25:03.801614288+08:00 stderr F I1019 06:25:03.801505       1 main.go:154] Starting FS watcher.\n"
        '2023-10-19T14:25:03.9+08:00 stderr F     "nvidiaDriverRoot": "/",\n'
        "2023-10-19T14:25:03.9+08:00 stderr F E1019 06:25:03.9       1 factory.go:115] Incompatible platform detected\n"
        "2023-10-19T14:25:03.9+08:00 stderr F I1019 06:25:03.9       1 main.go:287] No devices found. Waiting indefinitely.\n",
        {"component": "nvidia-device-plugin", "healthy": False, "cause": "no-devices", "started": "10-19T06:25:03"},
        3,
    ),
    "elbencho": (
        "OPERATION   RESULT TYPE         FIRST DONE   LAST DONE\n=========== ================    ==========   =========\n"
        "WRITE       Elapsed time     :     10.832s     11.071s\n            IOPS             :       16905       16612\n"
        "            Throughput MiB/s :       16905       16612\n---\n"
        "READ        Elapsed time     :      9.100s      9.400s\n            Throughput MiB/s :       20100       19800\n---\n",
        {
            "tool": "elbencho",
            "write_first_mib_s": 16905.0,
            "write_last_mib_s": 16612.0,
            "read_last_mib_s": 19800.0,
            "complete": True,
        },
        4,
    ),
    "elbencho-cut-in-a-phase": (
        "OPERATION RESULT TYPE        FIRST DONE  LAST DONE\n========= ================   ==========  =========\n"
        "WRITE     Elapsed ms       :      48210      53880\n          Throughput MB/s  :      20120      19005\n---\n"
        "READ      Elapsed ms       :      40150      43000\n",
        {"tool": "elbencho", "write_first_mb_s": 20120.0, "write_last_mb_s": 19005.0, "complete": False},
        4,
    ),
    "ibdev2netdev": (
        "mlx5_0 port 1 ==> eth2 (Up)\nmlx5_1 port 1 ==> eth3 (Up)\n",
        {"tool": "ibdev2netdev", "device_count": 2, "down": [], "complete": True, "healthy": True},
        4,
    ),
    "ibdev2netdev-down": (
        "user@spark:~$ ibdev2netdev\nrocep1s0f0 port 1 ==> enp1s0f0np0 (Down)\nrocep1s0f1 port 1 ==> enp1s0f1np1 (Up)\n",
        {"tool": "ibdev2netdev", "device_count": 2, "down": ["rocep1s0f0"], "healthy": False, "cause": "port-down"},
        3,
    ),
    "ibdev2netdev-infiniband": (
        "mlx5_0 port 1 ==> ib0 (Up)\nmlx5_1 port 1 ==> ib1 (Down)\n",
        {"tool": "ibdev2netdev", "device_count": 2, "down": [], "complete": True, "healthy": None},
        4,
    ),
    "ibdev2netdev-verbose": (
        "0000:0c:00.0 mlx5_0 (MT4129 - MCX75310AAS-NEAT) NVIDIA ConnectX-7, 400GbE / NDR IB (default mode) fw 28.39.1002 port 1 (ACTIVE) ==> ibp12s0 (Down)\n"
        "0000:9d:00.0 mlx5_1 (MT4129 - MCX75310AAS-NEAT) NVIDIA ConnectX-7, 400GbE / NDR IB (default mode) fw 28.39.1002 port 1 (DOWN  ) ==> ibp157s0 (Down)\n",
        {"tool": "ibdev2netdev", "device_count": 2, "down": ["mlx5_1"], "healthy": False},
        3,
    ),
    "ethtool": (
        "NIC statistics:\n     rx_bytes: 2195783498134\n     tx_bytes: 26552\n     rx_vport_rdma_unicast_bytes: 500\n"
        "     rx_vport_rdma_multicast_bytes: 5\n     tx_vport_rdma_unicast_bytes: 600\n     tx_bytes_phy: 27152\n     rx_discards_phy: 3\n",
        {
            "tool": "ethtool",
            "lists": 1,
            "tx_rdma_bytes": 600,
            "rx_rdma_bytes": 505,
            "tx_kernel_bytes": 26552,
            "tx_wire_bytes": 27152,
            "errors": {"rx_discards_phy": 3},
            "healthy": None,
        },
        4,
    ),
    "ethtool-twice": (
        "NIC statistics:\n     tx_vport_rdma_unicast_bytes: 600\nNIC statistics:\n     tx_vport_rdma_unicast_bytes: 900\n",
        {"tool": "ethtool", "lists": 2, "tx_rdma_bytes": None},
        4,
    ),
    "plugin-registered": (
        "2026/03/13 22:26:02 Starting FS watcher.\n2026/03/13 22:26:02 Registered device plugin for 'nvidia.com/gpu' with Kubelet\n",
        {"component": "nvidia-device-plugin", "healthy": True, "started": "2026-03-13T22:26:02"},
        4,
    ),
    "plugin-efa-none": (
        "2026/03/13 22:26:02 Fetching EFA devices.\n2026/03/13 22:26:02 No devices found.\n",
        {"component": "aws-efa-k8s-device-plugin", "healthy": False, "cause": "no-devices"},
        3,
    ),
    "plugin-efa-invalid-in-a-terminal": (
        "│ 2026/02/03 15:23:32 Fetching EFA devices.      │\n│ 2026/02/03 15:23:32 Error to get IB device: %v. No valid EFA devices found   │\n",
        {
            "component": "aws-efa-k8s-device-plugin",
            "healthy": False,
            "cause": "no-devices",
            "started": "2026-02-03T15:23:32",
        },
        3,
    ),
    "plugin-efa-registered": (
        "2024/03/13 22:16:00 Fetching EFA devices.\n2024/03/13 22:16:00 device: rdmap79s0,uverbs0,/sys/class/infiniband_verbs/uverbs0,/sys/class/infiniband/rdmap79s0\n\n"
        "2024/03/13 22:16:00 Starting to serve on /var/lib/kubelet/device-plugins/aws-efa-device-plugin.sock\n"
        "2024/03/13 22:16:00 Registered device plugin with Kubelet\n",
        {"component": "aws-efa-k8s-device-plugin", "healthy": True, "devices": 1},
        4,
    ),
    "plugin-wrong-architecture": (
        "exec /usr/bin/efa-k8s-device-plugin: exec format error\n",
        {"healthy": False, "cause": "exec-format-error"},
        3,
    ),
    "plugin-recovered": (
        "I0819 07:02:54.756486       1 main.go:235] Starting NVIDIA Device Plugin\n"
        "E0819 07:02:54.757556       1 main.go:1] Failed to initialize NVML: Driver Not Loaded\n"
        "I0819 07:09:54.757556       1 server.go:1] Registered device plugin for 'nvidia.com/gpu' with Kubelet\n",
        {"component": "nvidia-device-plugin", "healthy": True, "cause": None, "started": "08-19T07:02:54"},
        4,
    ),
    "plugin-rdma-shared-empty": (
        "2026/03/13 22:26:02 Starting K8s RDMA Shared Device Plugin version= master\n"
        "2026/03/13 22:26:02 Warning: no devices in device pool, creating empty resource server for hca_shared_devices_a\n",
        {"component": "rdma-shared-device-plugin", "healthy": False, "cause": "no-devices"},
        3,
    ),
    "nothing-known": (
        "Hello, this is a letter about the weather.\n",
        {"kind": "unknown", "verdict": "undetermined"},
        4,
    ),
    "empty": ("", {"kind": "unknown", "verdict": "undetermined"}, 4),
}


@pytest.mark.parametrize("name", TOOLS)
def test_reads_the_tool(name: str) -> None:
    """The tool is found by itself, and its figures keep their unit."""
    text, expect, exit_code = TOOLS[name]
    answer = judge(from_text(text))
    assert differences(expect, json.loads(json.dumps(answer.to_json()))) == []
    assert answer.exit_code == exit_code


@pytest.mark.parametrize(
    ("text", "machine", "exit_code"),
    [
        pytest.param(FI_INFO, "p5en.48xlarge", 0, id="all-efa-domains"),
        pytest.param(FI_INFO, "p5.48xlarge", 3, id="half-of-the-efa-domains"),
        pytest.param(ibstat(*["Active"] * 16), "p5en.48xlarge", 0, id="all-ports"),
        pytest.param(ibstat(*["Active"] * 15), "p5en.48xlarge", 3, id="a-port-is-missing"),
        pytest.param(PERFTEST, "a3-ultragpu-8g", 0, id="a-nic-at-rate"),
        pytest.param(PERFTEST.replace("391.72", "191.72"), "a3-ultragpu-8g", 3, id="a-nic-at-half-rate"),
        pytest.param(PERFTEST.replace("391.72", "791.72"), "a3-ultragpu-8g", 4, id="faster-than-the-wire"),
        pytest.param(FI_INFO[:-40], "p5en.48xlarge", 4, id="cut"),
    ],
)
def test_a_machine_type_turns_figures_into_verdicts(text: str, machine: str, exit_code: int) -> None:
    """Only against an expectation can a device list or a bandwidth pass."""
    assert judge(from_text(text), machine_type=machine).exit_code == exit_code


def test_short_operations_of_fio_are_said() -> None:
    text = json.dumps(FIO_JSON).replace('"short_ios": 0', '"short_ios": 9000')
    assert [f.code for f in judge(from_text(text)).findings] == ["short-ios"]


def test_wrong_data_is_quoted_and_says_what_to_do() -> None:
    (finding,) = judge(from_text(TOOLS["ior-wrong-data"][0])).findings
    assert "3 errors found" in finding.observed
    assert finding.remedy


@pytest.mark.parametrize("blank", ["\n", "\n ", " \r\n", "\n\t"])
def test_a_file_of_empty_lines_takes_no_time(blank: str) -> None:
    """No pattern begins anew in each of the lines that it has passed over: that took minutes."""
    begun = time.process_time()
    judge(from_text(blank * 100_000))
    assert time.process_time() - begun < 10
