"""Logs of device plugins: NVIDIA's, EFA's, the shared RDMA plugin's and SR-IOV's."""

from __future__ import annotations

import re

from infra.model.reading import Kind, ToolReading

_COMPONENTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("aws-efa-k8s-device-plugin", re.compile(r"aws-efa|EFA [Dd]evice|Fetching EFA devices|vpc\.amazonaws\.com/efa")),
    ("rdma-shared-device-plugin", re.compile(r"RDMA Shared Device Plugin|rdma-shared|hca_shared_devices")),
    ("sriov-network-device-plugin", re.compile(r"SR-?IOV Network Device Plugin|sriov-?dp|sriov_device")),
    ("nvidia-gpu-device-plugin", re.compile(r"nvidia_gpu\.go|GKE GPU device plugin|nvidia-gpu-device-plugin")),
    (
        "nvidia-device-plugin",
        re.compile(r"NVIDIA Device Plugin|nvidia-device-plugin|NVML|nvidia\.com/gpu|nvidiaDriverRoot|nvidia-container"),
    ),
)
# Ordered: the first that matches is the cause.
_CAUSES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("exec-format-error", re.compile(r"exec format error")),
    ("nvml-library-not-found", re.compile(r"could not load NVML library|libnvidia-ml\.so\S*: cannot open")),
    ("nvml-driver-mismatch", re.compile(r"Driver/library version mismatch")),
    ("nvml-driver-not-loaded", re.compile(r"Driver Not Loaded|[Ff]ailed to initialize NVML")),
    ("too-many-inotify-instances", re.compile(r"too many open files|inotify_init")),
    (
        "kubelet-socket-refused",
        re.compile(
            r"(?:connection refused|no such file).{0,80}kubelet\.sock|kubelet\.sock.{0,80}(?:refused|no such file)"
        ),
    ),
    ("registration-failed", re.compile(r"[Cc]ould not register device plugin|[Ff]ailed to register")),
    (
        "no-devices",
        re.compile(r"No devices found|[Nn]o (?:valid )?EFA devices|no devices in device pool|no (?:RDMA|rdma) devices"),
    ),
    ("incompatible-platform", re.compile(r"[Ii]ncompatible (?:platform|strategy)")),
    ("crashed", re.compile(r"^panic: |fatal error: |SIGSEGV", re.M)),
)
_REGISTERED = re.compile(r"Registered device plugin|[Rr]egistered .*with [Kk]ubelet|registered with kubelet")
_KLOG = re.compile(r"^(?:[│|>\s]*|\S+ std(?:out|err) [FP] )[IWEF](\d\d)(\d\d) (\d\d:\d\d:\d\d)\.\d+", re.M)
_PLAIN = re.compile(r"^[│|>\s]*(\d{4})[/-](\d\d)[/-](\d\d)[ T](\d\d:\d\d:\d\d)", re.M)
_DEVICE = re.compile(r"\bdevice: (\w+),uverbs\d+,")
_VERSION = re.compile(r'[Vv]ersion[=:]\s*(?:<\s*)?"?([\w.\-+]+)')


def read_device_plugin(text: str) -> ToolReading | None:
    """Read a device plugin's log, or None. klog lines carry month and day but no year."""
    component = next((name for name, pattern in _COMPONENTS if pattern.search(text)), None)
    klog, plain = _KLOG.search(text), _PLAIN.search(text)
    exec_error = re.search(r"^(?:standard_init_linux|exec )\S*.*exec format error", text, re.M)
    if exec_error is None and (component is None or not (klog or plain)):
        return None
    causes = [(match.start(), code) for code, pattern in _CAUSES if (match := _last(pattern, text))]
    registered = _last(_REGISTERED, text)
    # A registration after the last complaint means that the plugin came up after all.
    lasting = [(at, code) for at, code in causes if registered is None or at > registered.start()]
    said = _line_at(text, lasting[0][0]) if lasting else None
    started = None
    if klog:
        started = f"{klog[1]}-{klog[2]}T{klog[3]}"
    elif plain:
        started = f"{plain[1]}-{plain[2]}-{plain[3]}T{plain[4]}"
    version = _VERSION.search(text)
    return ToolReading(
        kind=Kind.K8S,
        tool="device-plugin",
        figures={
            "component": component,
            "version": version[1] if version else None,
            "started": started,
            "registered": registered is not None,
            "devices": len(set(_DEVICE.findall(text))) or None,
            "error": said,
        },
        healthy=False if lasting else (True if registered else None),
        cause=lasting[0][1] if lasting else None,
    )


def _line_at(text: str, at: int) -> str:
    """The line that says it, without the time and place that klog puts before its words."""
    end = text.find("\n", at)
    line = text[text.rfind("\n", 0, at) + 1 : len(text) if end < 0 else end]
    return re.sub(r"^.*?\S+\.go:\d+\] ", "", line).strip()[:200]


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    match = None
    for match in pattern.finditer(text):  # noqa: B007
        pass
    return match
