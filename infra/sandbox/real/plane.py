"""Start the four processes, wait until the cluster answers, and always stop what was started."""

from __future__ import annotations

import json
import os
import secrets
import signal
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from infra.errors import PoolshiftError
from infra.ports import free_port, refuse_busy
from infra.sandbox.real import certificates
from infra.sandbox.real.binaries import Binaries, find
from infra.sandbox.real.children import Children

USERS = {
    "admin": ("poolshift-sandbox", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
}
"""Who gets a token: short name -> (user, group). The components use the roles that RBAC bootstraps for them."""

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "userGroups": ["system:masters"]},
        {"level": "None", "users": ["system:kube-controller-manager", "system:kube-scheduler"]},
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata"},
    ],
}
"""Who is neither the administrator nor a component leaves a line for each request: what its role needs."""

AUDIT_LOG = "audit.log"

KEPT = ("kube-controller-manager", "kube-scheduler")
"""Started again when they end by themselves."""

READY_SECONDS = 90.0
"""How long a start may take: about 8 s on two idle cores, many times that on a busy machine."""


class ControlPlaneFailed(PoolshiftError):
    """A process of the control plane ended, or did not become ready; quotes its log."""


@dataclass(kw_only=True)
class RealControlPlane:
    """A running control plane. Use it as a context manager, or call `stop` in a finally."""

    version: str
    url: str
    token: str
    ca: str
    etcd_url: str
    folder: Path
    children: Children
    commands: dict[str, list[str]] = field(repr=False)

    @property
    def kubeconfig_dict(self) -> dict[str, Any]:
        """A kubeconfig of the cluster's administrator, as a document to write or to load."""
        return kubeconfig(self.url, self.ca, self.token)

    def requests(self, user: str) -> list[dict[str, Any]]:
        """The audit events of a user, in the order in which they were answered. Not of an administrator."""
        log = self.folder / AUDIT_LOG
        events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [event for event in events if event["user"]["username"] == user]

    def failure(self) -> ControlPlaneFailed | None:
        """What has gone wrong with the processes since the start, or None; costs nothing to ask."""
        fallen = self.children.fallen()
        if fallen is None:
            return None
        return ControlPlaneFailed(
            f"real control plane, {fallen.name}",
            f"ended with status {fallen.ended()}: {fallen.last_words(3)}",
            expected="a running process",
            remedy="stop the sandbox and start it again; what the cluster held is lost",
        )

    def stop_process(self, name: str) -> None:
        """Kill one process, as an outage would. The rest goes on; `start_process` brings it back."""
        process = next(child.process for child in self.children.children if child.name == name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def start_process(self, name: str) -> None:
        """Start one process again where it was: same port, same data. Returns when the API server is ready."""
        self.children.restart(name, self.commands[name], kept=name in KEPT)
        self._wait(f"{self.url}/readyz", name)

    def _wait(self, url: str, name: str) -> None:
        _wait_for(name, self.children, lambda: _answers(url, self.ca, self.token))

    def stop(self) -> None:
        """End all processes and remove their folder. Does nothing the second time."""
        self.children.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(version: str | None = None, *, port: int | None = None) -> RealControlPlane:
    """Start a control plane of `version` (see binaries.find) with its API server on `port`, or on a free one.

    Raises MissingBinaries when there is nothing to start, ControlPlaneFailed when a process ends or is not ready
    after READY_SECONDS; whatever had started is stopped then.
    """
    binaries = find(version)
    if port is not None:
        refuse_busy(port)
    children = Children(Path(tempfile.mkdtemp(prefix="poolshift-control-plane-")))
    try:
        return _start(binaries, children, port or free_port())
    except BaseException:
        children.stop()
        raise


def _start(binaries: Binaries, children: Children, port: int) -> RealControlPlane:
    folder = children.folder
    made = certificates.write(folder)
    tokens = {name: secrets.token_hex(16) for name in USERS}
    _write_tokens(folder / "tokens.csv", tokens)
    url = f"https://127.0.0.1:{port}"
    _write_private(folder / "audit-policy.json", json.dumps(AUDIT_POLICY))
    for name in ("kube-controller-manager", "kube-scheduler"):
        _write_private(folder / f"{name}.conf", json.dumps(kubeconfig(url, made.ca_pem, tokens[name])))
    etcd_url, commands = _commands(binaries, folder, made, port)
    plane = RealControlPlane(
        version=binaries.version,
        url=url,
        token=tokens["admin"],
        ca=made.ca_pem,
        etcd_url=etcd_url,
        folder=folder,
        children=children,
        commands=commands,
    )
    children.start("etcd", commands["etcd"])
    _wait_for("etcd", children, lambda: _answers(f"{etcd_url}/health", None, ""))
    children.start("kube-apiserver", commands["kube-apiserver"])
    plane._wait(f"{url}/readyz", "kube-apiserver")
    # Not before: until RBAC has bootstrapped their roles they would be refused, and back off.
    for name in KEPT:
        children.start(name, commands[name], kept=True)
    # The controller manager's first visible deed; a pod created before it is refused for want of an account.
    plane._wait(f"{url}/api/v1/namespaces/default/serviceaccounts/default", "kube-controller-manager")
    scheduler = f"https://127.0.0.1:{_option(commands['kube-scheduler'], '--secure-port')}/healthz"
    _wait_for("kube-scheduler", children, lambda: _answers(scheduler, None, ""))
    return plane


def _commands(
    binaries: Binaries, folder: Path, made: certificates.Certificates, port: int
) -> tuple[str, dict[str, list[str]]]:
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    return client, {
        "etcd": [
            binaries.path("etcd"),
            f"--data-dir={folder / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ],
        "kube-apiserver": [
            binaries.path("kube-apiserver"),
            f"--etcd-servers={client}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={made.serving}",
            f"--tls-private-key-file={made.serving_key}",
            f"--cert-dir={folder}",
            f"--service-account-key-file={made.account_key}",
            f"--service-account-signing-key-file={made.account_key}",
            "--service-account-issuer=https://poolshift-sandbox.invalid",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged",  # device plugins and RDMA installers are privileged DaemonSets
            f"--audit-policy-file={folder / 'audit-policy.json'}",
            f"--audit-log-path={folder / AUDIT_LOG}",
        ],
        "kube-controller-manager": [
            binaries.path("kube-controller-manager"),
            f"--kubeconfig={folder / 'kube-controller-manager.conf'}",
            f"--service-account-private-key-file={made.account_key}",
            f"--root-ca-file={made.ca}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
        ],
        "kube-scheduler": [
            binaries.path("kube-scheduler"),
            f"--kubeconfig={folder / 'kube-scheduler.conf'}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
        ],
    }


def _option(command: list[str], name: str) -> str:
    return next(part.removeprefix(f"{name}=") for part in command if part.startswith(f"{name}="))


def kubeconfig(url: str, ca: str, token: str) -> dict[str, Any]:
    """A kubeconfig with one cluster, one user and one context, all called "sandbox"."""
    from base64 import b64encode

    name = "sandbox"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": name,
                "cluster": {"server": url, "certificate-authority-data": b64encode(ca.encode()).decode()},
            }
        ],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def _write_tokens(path: Path, tokens: dict[str, str]) -> None:
    lines = (f'{tokens[name]},{user},{name},"{group}"\n' for name, (user, group) in USERS.items())
    _write_private(path, "".join(lines))


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def _wait_for(name: str, children: Children, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not ready():
        fallen = children.fallen()
        if fallen is not None:
            raise ControlPlaneFailed(
                f"real control plane, {fallen.name}",
                f"ended with status {fallen.ended()} while {name} was to become ready: {fallen.last_words()}",
                expected="a running process",
                remedy="read the quoted log; start again when a port was taken in between",
            )
        if time.monotonic() > deadline:
            child = next(child for child in children.children if child.name == name)
            raise ControlPlaneFailed(
                f"real control plane, {name}",
                f"not ready after {READY_SECONDS:.0f} s: {child.last_words()}",
                expected="ready",
                remedy="give the machine more room, or read the quoted log",
            )
        time.sleep(0.1)


def _answers(url: str, ca: str | None, token: str) -> bool:
    """Whether `url` answers 200. Without `ca` the certificate is not checked (loopback, self-signed)."""
    context = ssl.create_default_context(cadata=ca) if ca else ssl._create_unverified_context()  # noqa: S323
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - loopback, and the scheme is ours
    try:
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False
