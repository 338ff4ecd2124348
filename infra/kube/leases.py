"""One migration per pool: a Kubernetes Lease, whoever starts it and from wherever.

Expiry is judged as client-go does, without comparing clocks of two machines: a foreign lease is dead when its
holder and renewTime have not changed for a whole lease duration *while we watched*. A holder on this very host
whose process is gone is dead at once, so a restart after `kill -9` does not wait. Leases run on the wall clock even
in the sandbox: they are about processes, and those live in real time.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from infra.clock import Clock, SystemClock, rfc3339_micro
from infra.errors import Conflict, NotFound, PoolshiftError, Refused, Unreachable
from infra.kube.api import Kube
from infra.kube.patience import OUTAGE_SECONDS
from infra.model.record import MANAGED_BY, RUN

DURATION = 15  # seconds; client-go's default for leader election
RENEW_EVERY = 5.0
PATIENCE = 4.0  # seconds for one request of a renewal, which takes two: a dead connection must not outlast the lease
AWAY = OUTAGE_SECONDS  # wall-clock seconds for which it may have expired without anybody having taken it


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a lease, spelled run/host/pid/boot so that a person can find the process."""

    run: str
    host: str
    pid: int
    boot: str = ""

    @classmethod
    def here(cls, run: str) -> Holder:
        """The process that asks."""
        return cls(run=run, host=socket.gethostname(), pid=os.getpid(), boot=_boot_id())

    @classmethod
    def parse(cls, identity: str) -> Holder | None:
        """Read `str(holder)` back; None for anything that poolshift did not write."""
        match = re.fullmatch(r"(.+)/([^/]+)/(\d+)/([^/]*)", identity)
        return cls(run=match[1], host=match[2], pid=int(match[3]), boot=match[4]) if match else None

    def __str__(self) -> str:
        return f"{self.run}/{self.host}/{self.pid}/{self.boot}"

    @property
    def is_gone(self) -> bool:
        """True only when it provably ran on this host and boot, and its process does not exist any more."""
        if self.host != socket.gethostname() or self.boot != _boot_id():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


def _boot_id() -> str:
    """Tells a reused pid after a reboot, and a container from its host, apart; "" where the kernel offers none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()[:8]
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


@dataclass(kw_only=True)
class Held:
    """A lease that this process holds and renews until `release`."""

    name: str
    holder: Holder
    taken: str = ""
    renewed: float = field(default_factory=time.monotonic)
    """When the renewal that the server confirmed last was sent, by `time.monotonic`: it cannot have expired sooner."""
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def age(self) -> float:
        """Wall-clock seconds since the renewal that was confirmed last."""
        return time.monotonic() - self.renewed

    def lost(self) -> str:
        """Why it is no longer ours, or "": somebody has taken it, or nobody could renew it.

        While it may have expired this waits, so that nothing is written meanwhile: for the next renewal, at most as
        long as a server that is away is waited for (`AWAY`).
        """
        while not self.taken and DURATION < self.age <= DURATION + AWAY and not self.stop.is_set():
            SystemClock().sleep(0.1)
        if self.taken or self.age <= DURATION or self.stop.is_set():
            return self.taken
        return f"not renewed for {self.age:.0f} s"

    def check(self) -> None:
        """Raise Refused when it is lost: the caller must not write any more."""
        if why := self.lost():
            raise Refused(f"lease {self.name}", why, remedy="see who runs now: poolshift status, then run again")


_HERE: list[Held] = []  # of this process, so that work in any thread can see that it must stop


def lost() -> str:
    """Why this process must not write any more, or "": one of its leases is no longer its own. See `Held.lost`."""
    return next((why for lease in _HERE if (why := lease.lost())), "")


def check() -> None:
    """Raise Refused when one of this process's leases is lost. For writes to a cloud, asked right before each."""
    for lease in _HERE:
        lease.check()


def _path(kube: Kube, name: str = "") -> str:
    base = f"/apis/coordination.k8s.io/v1/namespaces/{kube.namespace}/leases"
    return f"{base}/{name}" if name else base


def lease_name(identity: str) -> str:
    """A pool's identity as a DNS name of at most 63 characters."""
    slug = re.sub(r"[^a-z0-9]+", "-", identity.lower()).strip("-")
    return f"pool-{slug}"[-63:].strip("-")


@contextmanager
def hold(kube: Kube, identities: list[str], run: str, clock: Clock | None = None) -> Iterator[list[Held]]:
    """Hold one lease per pool identity while the body runs; sorted, so two runs cannot deadlock.

    Raises:
        Refused: somebody else holds one of them, alive; says who, where, and for which run.

    """
    kube = kube.guarded(lambda: "")  # a renewal must not wait until it is known that it was made
    held: list[Held] = []
    threads: list[threading.Thread] = []
    try:
        for identity in sorted(set(identities)):
            lease = acquire(kube, lease_name(identity), run, clock or SystemClock())
            held.append(lease)
            _HERE.append(lease)
            thread = threading.Thread(target=_renew, args=(kube, lease), daemon=True, name=f"renew {lease.name}")
            thread.start()
            threads.append(thread)
        yield held
    finally:
        for lease in held:
            lease.stop.set()
        for thread in threads:
            thread.join(timeout=10)
        for lease in held:
            _HERE.remove(lease)
            release(kube, lease)


def acquire(kube: Kube, name: str, run: str, clock: Clock) -> Held:
    """Take the lease, or wait at most one lease duration to see whether its holder is alive."""
    me = Holder.here(run)
    for _ in range(3):
        current = _read(kube, name)
        try:
            if current is None:
                _ask(kube, "POST", _path(kube), body=_lease(name, kube.namespace, me, run), retry=False)
                return Held(name=name, holder=me)
            spec = current.get("spec") or {}
            identity = spec.get("holderIdentity") or ""
            if identity and identity != str(me):
                _wait_until_dead(kube, name, spec, clock)
            current["spec"] = {**_lease(name, kube.namespace, me, run)["spec"]}
            _ask(kube, "PUT", _path(kube, name), body=current, retry=False)
            return Held(name=name, holder=me)
        except Conflict:
            continue  # somebody moved between our read and our write: look again
    raise _refusal(name, "another process that starts at this very moment")


def _ask(kube: Kube, method: str, path: str, **how: Any) -> dict[str, Any]:
    """The Lease that the API server answers with.

    What stands before it may answer in its place while it is away: Unreachable. A NotFound that is raised is the
    server's own word.
    """
    answer = kube.request(method, path, **how)
    if answer.get("kind") != "Lease":
        raise Unreachable(f"{method} {path}", f"the answer is no Lease: kind {answer.get('kind')!r}")
    return answer


def _read(kube: Kube, name: str) -> dict[str, Any] | None:
    """The lease, or None where the API server itself says that there is none."""
    try:
        return _ask(kube, "GET", _path(kube, name))
    except NotFound:
        return None


def _wait_until_dead(kube: Kube, name: str, spec: dict[str, Any], clock: Clock) -> None:
    """Return when the holder is dead. Raises Refused as soon as it shows a sign of life."""
    identity = spec.get("holderIdentity") or ""
    holder = Holder.parse(identity)
    if holder is not None and holder.is_gone:
        return
    duration = int(spec.get("leaseDurationSeconds") or DURATION)
    for _ in range(duration + 1):
        clock.sleep(1.0)
        now = (_read(kube, name) or {}).get("spec") or {}
        if not now.get("holderIdentity"):
            return
        if (now.get("holderIdentity"), now.get("renewTime")) != (identity, spec.get("renewTime")):
            raise _refusal(name, str(now.get("holderIdentity")))


def _refusal(name: str, identity: str) -> Refused:
    holder = Holder.parse(identity)
    who = f"run {holder.run!r}, process {holder.pid} on host {holder.host}" if holder else identity
    return Refused(
        f"lease {name}",
        f"held by {who}",
        expected="no other run on this pool",
        remedy="let it finish, or stop it there; then run again (poolshift status shows where it stands)",
    )


def _lease(name: str, namespace: str, holder: Holder, run: str) -> dict[str, Any]:
    now = rfc3339_micro(SystemClock().now())
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace, "labels": {RUN: run, MANAGED_BY: "poolshift"}},
        "spec": {
            "holderIdentity": str(holder),
            "leaseDurationSeconds": DURATION,
            "acquireTime": now,
            "renewTime": now,
        },
    }


def _renew(kube: Kube, lease: Held) -> None:
    """Renew until told to stop, or until it is lost: no more writes under it.

    `Held.lost` goes by the age of the last renewal, so it shows whatever this thread hangs in. No answer is waited for
    longer than leaves time for another try before the lease expires.
    """
    while not lease.stop.wait(RENEW_EVERY) and not lease.taken and lease.age <= DURATION + AWAY:
        try:
            current = _ask(kube, "GET", _path(kube, lease.name), timeout=PATIENCE, retry=False)
            identity = (current.get("spec") or {}).get("holderIdentity")
            if not identity:
                continue  # nobody has taken it: whoever does will show
            if identity != str(lease.holder):
                lease.taken = f"taken over by {identity}"
                return
            sent = time.monotonic()
            current["spec"]["renewTime"] = rfc3339_micro(SystemClock().now())
            _ask(kube, "PUT", _path(kube, lease.name), body=current, timeout=PATIENCE, retry=False)
            lease.renewed = sent
        except NotFound:
            lease.taken = "deleted by somebody"
            return
        except PoolshiftError:
            continue  # the next round tries again; a taker-over shows in holderIdentity


def release(kube: Kube, lease: Held) -> None:
    """Give the lease back if it is still ours. Failure is harmless: it expires."""
    path = _path(kube, lease.name)
    try:
        current = kube.request("GET", path, timeout=PATIENCE, retry=False)
        if (current.get("spec") or {}).get("holderIdentity") == str(lease.holder):
            options = {"apiVersion": "v1", "kind": "DeleteOptions"}
            body = {**options, "preconditions": {"uid": current["metadata"]["uid"]}}
            kube.request("DELETE", path, body=body, timeout=PATIENCE, retry=False)
    except PoolshiftError:
        return
