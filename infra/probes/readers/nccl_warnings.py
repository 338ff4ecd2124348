"""What NCCL's WARN lines, its plugins and the frameworks above it say went wrong, as stable codes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from infra.model.reading import LogWarning

# Healthy jobs print these too. Path search: NCCL goes on with a plain order (a public single-node run at full rate).
# RCCL's advice on NUMA balancing and the IOMMU: ROCm/rccl#696, #1261; ROCm/rocm-systems#7916 calls it a false positive.
# aws-ofi-nccl: optional symbol and optional GDRCopy, in public logs of runs that went well. Without libibverbs NCCL's
# own verbs network is left out, which a plugin does not need; where it leads to sockets, the sockets are the finding.
_HARMLESS = re.compile(
    r"Could not find a path for pattern \d+, falling back to simple order|returned .*, retrying|"
    r"NUMA auto bal?ancing enabled|Missing \"(?:amd_iommu=on|iommu=pt|HSA_FORCE_FINE_GRAIN_PCIE=1)\" from|"
    r"NET/OFI (?:Could not find ncclGetVersion symbol|Failed to initialize GDRCopy)|Failed to open libibverbs"
)
# Sockets' errors handed on, without the proxy's or the transport's that a lost peer brings: PyTorch before 2.6 aborts
# its communicators at the end of a run that went well, which closes the sockets between them (NVIDIA/Fuser#3055).
_OF_AN_ABORT = re.compile(r"(?:^| )misc/socket\.cc:\d+ -> 3$")
# Xids after which a GPU is lost or has to be reset (NVIDIA's Xid catalogue); others may be an application's own fault.
_LOST_GPU = r"NVRM: Xid \([^)]*\): (?:46|48|62|64|74|79|95|119|120|140)\b"
# Ordered: the first that matches names the warning. (pattern, code or None to build it from the match, fatal)
_KNOWN: tuple[tuple[re.Pattern[str], str | None, bool], ...] = tuple(
    (re.compile(pattern), code, fatal)
    for pattern, code, fatal in (
        (r"rx ctrl timeout|tx ctrl timeout|ctrl timeout cnt", "tcpx-control-timeout", False),
        (r"Call to (?P<call>\w+) (?:from|to) \S+ failed ?: (?P<error>[A-Z][\w /-]+)", None, True),
        (
            r"Call to (?P<call>\w+) failed(?: with(?: error)?)?(?: (?P<errno>\d{1,9}))? ?:? ?(?P<error>[A-Z][\w /-]+)",
            None,
            True,
        ),
        (r"Call to (?P<call>\w+) returned (?P<error>[A-Z][\w /-]+), retrying", None, False),
        (r"(?P<call>ibv_\w+|ncclSocket\w+|socket\w+).{0,80}?(?:failed|timed out)", "network-call-failed", True),
        (
            r"Got completion (?:from peer|with).{0,120}?status=(?:\w+ ?\()?(?P<status>\d{1,9})",
            "ib-completion-error",
            True,
        ),
        (r"Got completion .{0,120}?status=\w*_ERR\b", "ib-completion-error", True),
        (
            r"async fatal event|Got async event ?: .*(?:fatal|catastrophic)|encountered a fatal error \(detected in",
            "ib-device-failed",
            True,
        ),
        (r"Got (?:non-fatal )?async event|GID table changed|unknown event type", "ib-async-event", False),
        (r"\(shim\) mismatch enforced", "gib-settings", True),
        (
            r"\(shim\) mismatch recommended|cannot find config file at default paths|"
            r"No NCCL_TUNER_CONFIG_PATH provided|NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE does not exist",
            "gib-settings",
            False,
        ),
        (r"register failed against receive_datapath_manager", "receive-path-unreachable", False),
        (r"commReclaim: .*in abort, error|Communicator .* aborted due to", "communicator-aborted", True),
        (r"RAS:? .*peer .*(?:considered |declared )?(?:dead|DEAD)", "peer-dead", True),
        (r"CUDA out of memory|OutOfMemoryError|Cuda failure 2 |out of memory", "gpu-out-of-memory", True),
        (_LOST_GPU, "gpu-lost", True),
        (r"NVRM: Xid", "gpu-xid", False),
        (
            r"\[Hardware Error\]|AER: Uncorrected|mlx5_core .*[Ll]ink.?[Dd]own|"
            r"(?:mlx5_core|efa) .*(?:timed out|timeout|health poll failed|compromised|fatal)",
            "kernel-device-error",
            False,
        ),
        (
            r"NET/OFI Request.*completed with error|completed with error\.? ?RC|completion with error",
            "ofi-completion-error",
            True,
        ),
        (r"efa_rdm_\w+_handle_error\(\).*err: \d+", "efa-completion-error", True),
        (r"NET/OFI (?:Couldn't (?:open|create|enable|bind)|Creating .* failed)", "ofi-call-failed", True),
        (r"Unable to find a protocol that worked", "ofi-no-protocol", True),
        (
            r"Only EFA provider is supported|Couldn't find any optimal provider|No eligible providers? w|"
            r"find an optimal provider",
            "no-efa-device",
            False,
        ),
        (r"NET/OFI .*\bRC: -?\d", "ofi-call-failed", True),
        (r"GDR disabled on GDR-supported instance type", "gdr-disabled-on-instance", False),
        (r"Failed to open libibverbs", "no-verbs-library", False),
        (r"^libibverbs: Warning: (?:couldn't open config dir|no userspace device)", "no-verbs-driver", False),
        (r"Error encountered progressing operation|Failed to execute operation", "proxy-failed", True),
        (r"Failed to initialize any NET plugin|network \S.* not found", "pinned-network-absent", True),
        (r"aws-ofi-nccl initialization failed", "ofi-init-failed", False),
        (
            r"socketFinalize\w+: wrong type|ncclSocketInit: connecting to address with family|"
            r"wrong (?:magic|type) \S+ !=",
            "socket-handshake-failed",
            True,
        ),
        (r"no socket interface found|No socket interface found|No interface found", "no-socket-interface", True),
        (
            r"[Uu]nhandled (?:cuda|system) error|nccl(?:UnhandledCuda|System|Internal|Remote)Error",
            "nccl-error",
            True,
        ),
        (r"NCCL [Ee]rror(?: \d+)?(?::| in)", "nccl-error", True),
        (r"Cuda failure|CUDA failure|CUDA error", "cuda-failure", True),
        (r"Connection closed by (?:remote )?peer|connection closed by|peer .* closed", "peer-closed", True),
        (
            r"Connection refused|Connection timed out|Connection reset|No route to host|Network is unreachable",
            "connection-failed",
            True,
        ),
        # NCCL hands an error on from call to call, each with its place, at INFO; 7 is "in progress".
        (r"(?:^| )[\w/]+\.(?:cc|cu|h):\d+ -> [1-689]\b", "call-failed", False),
        (r"NCCL operations have failed or timed out", "collective-timeout", True),
        (r"Watchdog caught collective operation timeout|collective operation timeout", "collective-timeout", True),
        (r"Message truncated ?: received", "version-mismatch", True),
        (r"Mismatched?|mismatch", "version-mismatch", False),
        (
            r"Error while creating shared memory segment|Error: failed to extend /dev/shm",
            "shared-memory-too-small",
            True,
        ),
        (r"Missing .*(?:iommu|ACS|nvidia_peermem)|nv_peer_mem|peer ?mem", "peer-memory-module-missing", False),
        (r"FI_HMEM capability requires RDMA", "efa-without-rdma", False),
        (r"provider efa output empty list|fi_getinfo.*efa returned -61", "no-efa-device", False),
    )
)
_FACTS = re.compile(r"local GID index (?P<gid_index>\d{1,9})|on dev (?P<dev>[^\s,]+)|nic \d+, (?P<nic>[\w.\-]+)")


_OUTSIDE = re.compile(
    rb"mce: \[Hardware Error\][^\n]*|AER: Uncorrected[^\n]*|(?:mlx5_core|efa) [0-9a-f:.]{12}: [^\n]*|"
    rb"libfabric:[^\n]*|libibverbs: Warning: [^\n]*|Watchdog caught [^\n]*|WARN: Function: [^\n]*|NVRM: Xid [^\n]*|"
    rb"(?:RuntimeError|AcceleratorError|DistBackendError|OutOfMemoryError): [^\n]*"
)
_OUTSIDE_WORDS = (
    *(b"libfabric:", b"libibverbs:", b"Watchdog caught ", b"WARN: Function: ", b"NVRM: Xid ", b"Error: "),
    *(b"[Hardware Error]", b"AER: Uncorrected", b"mlx5_core ", b"efa 0000:"),
)
_MOST = 64
_CODES = 256  # codes of system calls hold their error's text, so that there may be any number


class Warned:
    """What was warned of. However much it is, one of each code is kept, and one of each weight.

    A weight is whether it is fatal, and where it is harmless: everywhere, at an abort alone, or nowhere.
    """

    def __init__(self) -> None:
        self.kept: list[LogWarning] = []
        self.count = 0
        self._codes: set[str] = set()
        self._weights: set[tuple[bool, object]] = set()

    def take(self, warning: LogWarning) -> None:
        """Keep it, if there is room or none of its kind yet."""
        self.count += 1
        weight = warning.fatal, warning.facts.get("harmless")
        new = warning.code not in self._codes and len(self._codes) < _CODES
        if len(self.kept) < _MOST or new or weight not in self._weights:
            self.kept.append(warning)
            self._codes.add(warning.code)
            self._weights.add(weight)


def is_error(text: str) -> bool | None:
    """Of the last thing that NCCL warned of, as nccl-tests repeats it: an error, or (None) nobody knows."""
    warning = classify(text)
    if not text.strip() or warning.facts.get("harmless") is True:
        return False
    return True if warning.fatal or re.search(r"(?i)fail|error|abort|tim(?:ed |e)out", text) else None


def outside(text: bytes) -> Iterator[LogWarning]:
    """Known warnings in lines of libfabric, of the kernel and of frameworks, which carry no NCCL prefix."""
    if any(word in text for word in _OUTSIDE_WORDS):
        for match in _OUTSIDE.finditer(text):
            warning = classify(match.group().decode("utf-8", "replace").strip())
            if warning.code != "other":
                yield warning


def classify(text: str, host: str = "", time: str = "") -> LogWarning:
    """The warning in stable words; `other` and not fatal when unknown."""
    for pattern, code, fatal in _KNOWN:
        match = pattern.search(text)
        if match:
            named = {k: v for k, v in match.groupdict().items() if v}
            return LogWarning(
                code=code or f"{named['call']}: {named['error'].strip().rstrip('.')}",
                text=text[:500],
                fatal=fatal,
                host=host,
                time=time,
                facts=_facts(text, named) | ({} if fatal else _harmless(text)),
            )
    return LogWarning(code="other", text=text[:500], fatal=False, host=host, time=time, facts=_harmless(text))


def _harmless(text: str) -> dict[str, Any]:
    if _OF_AN_ABORT.search(text):
        return {"harmless": "where-aborted"}
    return {"harmless": True} if _HARMLESS.search(text) else {}


def _facts(text: str, named: dict[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {k: int(named[k]) for k in ("errno", "status") if k in named}
    if "call" in named:
        facts["call"] = named["call"]
    for match in _FACTS.finditer(text):
        if match["gid_index"]:
            facts["gid_index"] = int(match["gid_index"])
        if match["dev"]:
            facts["dev"] = match["dev"]
        if match["nic"]:
            facts["nic"] = match["nic"]
    if re.search(r"[Gg][Ii][Dd]s?:? ?::ffff:", text):
        facts["link_layer"] = "RoCE"  # an IPv4-mapped GID exists on RoCE v2 only
    return facts
