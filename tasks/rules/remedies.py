"""What to do about what a collective's log says went wrong, by the codes of the log's reader. Pure."""

from __future__ import annotations

_LINK_REMEDY = (
    "Check the link, the GID index and that both nodes share the RDMA network; test the pair with ib_write_bw"
)
_NETWORK_REMEDY = (
    "Check that pods of both nodes reach one another (NCCL_SOCKET_IFNAME, security groups, firewall) and that no rank "
    "ended earlier: the first failing rank's log says why"
)
_PEER_REMEDY = "Look for the rank that ended first: its log, the pod's exit code and the node's kernel log say why"
_EFA_REMEDY = (
    "Check that the security group allows all traffic within itself and that the EFA driver, libfabric and plugin fit "
    "one another; test the pair with fi_pingpong"
)
_GPU_REMEDY = (
    "Look for Xid lines in the node's kernel log (dmesg) and run dcgmi diag -r 3; replace the node if it repeats"
)
_READ_ON = (
    "Read the lines of that rank before this one, and run again with NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,NET,ENV"
)
_BY_CODE = {
    "ib-completion-error": _LINK_REMEDY,
    "ib-device-failed": "The adapter failed: read dmesg and mlxfwmanager on the node, reset or replace it",
    "ib-async-event": "Check the port with ibstat and the node's kernel log; a flapping port needs its cable or switch "
    "port replaced",
    "pinned-network-absent": "The pinned network is not there: check the plugin in the image and the RDMA resource in "
    "the pod",
    "ofi-completion-error": _EFA_REMEDY,
    "efa-completion-error": _EFA_REMEDY,
    "ofi-call-failed": _EFA_REMEDY,
    "ofi-no-protocol": _EFA_REMEDY,
    "network-call-failed": _NETWORK_REMEDY,
    "connection-failed": _NETWORK_REMEDY,
    "socket-handshake-failed": "Another program or job spoke on the port: give each job a rendezvous address and "
    "port of its own",
    "no-socket-interface": "Name an interface that the pod has in NCCL_SOCKET_IFNAME, or leave it unset",
    "proxy-failed": _PEER_REMEDY,
    "peer-closed": _PEER_REMEDY,
    "peer-dead": _PEER_REMEDY,
    "communicator-aborted": _PEER_REMEDY,
    "nccl-error": "Read the first NCCL WARN line of any rank: it names what failed (NCCL_DEBUG=WARN or INFO shows it)",
    "collective-timeout": "Find the rank that did not enter the collective (py-spy dump, flight recorder) and its "
    "first warning",
    "cuda-failure": _GPU_REMEDY,
    "gpu-lost": _GPU_REMEDY,
    "gpu-xid": _GPU_REMEDY,
    "gpu-out-of-memory": "Free the GPU of other processes (nvidia-smi), or run a smaller job",
    "shared-memory-too-small": "Mount an emptyDir with medium Memory at /dev/shm in the pod",
    "gib-settings": "Source the plugin's own settings before the program: /usr/local/gib/scripts/set_nccl_env.sh "
    "(gIB), nccl-env-profile.sh beside the library (FasTrak)",
    "receive-path-unreachable": "Run the receive-path daemon (rxdm) beside the ranks in every pod, in the plugin's "
    "version",
    "version-mismatch": "Use one image and one environment for all ranks",
}


def remedy_of(code: str) -> str:
    """What to do about a warning; codes of system calls read `call: error`."""
    if code.startswith("ibv_"):
        return _LINK_REMEDY
    if code in _BY_CODE:
        return _BY_CODE[code]
    return _NETWORK_REMEDY if ": " in code else _READ_ON
