"""What a small tool's defects are called, and what to do next about an output. Words only."""

from __future__ import annotations

from infra.model.reading import ToolReading

QUOTED = {
    "perftest",
    "ior",
    "device-plugin",
    "fi_pingpong",
    "fabtests",
    "iblinkinfo",
}  # whose error is a line of its own words
OBSERVED = {
    "io-error": "an operation failed: its error is in the output",
    "no-transfer": "no transfer is shown",
    "no-matching-provider": "libfabric found no device of the provider that was asked for",
    "not-rdma": "the provider is TCP or shared memory: a path is shown, RDMA is not",
    "net-down": "a network interface of LNet is down",
    "no-ib-device": "no RDMA device is visible",
    "nvml-library-not-found": "the plugin cannot load NVIDIA's management library",
    "no-devices": "the plugin found no device to advertise",
    "exec-format-error": "the image is built for another architecture",
}
REMEDIES = {
    "not-rdma": "Run it again with the fabric's provider (-p efa)",
    "no-ib-device": "Request the RDMA resource in the pod; check the device plugin and the driver on the node",
    "nvml-library-not-found": "Run the plugin under the NVIDIA runtime class, or mount the driver's libraries",
    "no-devices": "Check the machine type, the network interfaces of the launch template and the plugin's selectors",
    "exec-format-error": "Use an image for the node's architecture",
    "net-down": "Check the interface below it, then lnetctl ping and the client's mount",
    "port-down": "Check cable and switch port, or replace the node",
    "implausible": "Measure between two nodes, past every cache",
    "implausible-storage": "Run it again past every cache: direct I/O (fio --direct=1, IOR -B, elbencho --direct), and "
    "more data than the nodes have memory",
    "io-error": "Check the mount and the servers of the file system, then run it again",
    "data-corruption": "Keep the node out of the pool: what was read is not what was written",
    "no-transfer": "Start the server side first, and check that the nodes reach each other",
    "transfer-failed": "Start the server side first, check that the nodes reach each other; on EFA, that the security "
    "group lets all traffic to itself pass",
    "link-below-its-best": "Check cable and switch port, and that the subnet manager runs",
    "no-matching-provider": "Request the RDMA resource in the pod; check the driver and the provider on the node",
    "completion-error": "Check the link and the peer; on RoCE, the GID index and the network's lossless class",
    "peer-not-reached": "Start the server side first, and check address, port and security group",
    "memory-registration-failed": "Raise the limit of locked memory (IPC_LOCK); for a GPU's, load nvidia_peermem",
    "queue-pair-failed": "Check that both ends use the same link layer and a routable GID (-x)",
}


_RUN = "Judge a run over the same nodes, with --machine and --nodes: what nccl-tests and NCCL_DEBUG=INFO print"
_STORAGE = "Compare it with the same job on the other pool: no machine type has a figure for storage"
_INSTEAD = {
    "fio": _STORAGE,
    "ior": _STORAGE,
    "elbencho": _STORAGE,
    "libfabric-log": "Give what fi_info -p efa prints on the node",
    "iblinkinfo": "Give what ibstat prints on each node",
    "device-plugin": "poolshift audit, with what kubectl get nodes,daemonsets,pods,events -A -o json prints",
}
_NODE_LISTS = "Give what ibstat or ibv_devinfo -v prints on the node"


def instead(reading: ToolReading) -> str:
    """What to give in place of an output that no machine type has a figure for."""
    return _INSTEAD.get(reading.tool, _NODE_LISTS if reading.tool == "fi_info" else _RUN)
