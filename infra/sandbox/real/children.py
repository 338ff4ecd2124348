"""Child processes that never outlive us: stopped in reverse order, and killed when this process just vanishes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

# Reads process ids until its stdin closes, which the kernel does however this process ends (exception, SIGTERM,
# kill -9), then kills those and removes the folder. "none" says that they ended in order and their ids may by now
# belong to others. PR_SET_PDEATHSIG would be shorter, but it fires when the *thread* that started the child ends.
_REAPER = """
pids=""
while read -r pid; do
  if [ "$pid" = none ]; then pids=""; else pids="$pid $pids"; fi
done
for pid in $pids; do kill -s KILL -- "-$pid" 2>/dev/null; done
rm -rf -- "$1"
"""

# A kubelet starts a component again that ends by itself, and components count on it: kube-scheduler exits when an
# outage has left its cache in disorder. One that ends within five seconds is broken, and stays down.
_KEEPER = """
trap 'kill "$child" 2>/dev/null; wait "$child"; exit 0' TERM
while :; do
  began=$(date +%s)
  "$@" & child=$!
  wait "$child"
  code=$?
  [ $(($(date +%s) - began)) -lt 5 ] && exit "$code"
  echo "ended with status $code and started again"
done
"""


@dataclass(kw_only=True)
class Child:
    """One started process and the file that takes its output."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def ended(self) -> int | None:
        """The exit status, or None while it runs."""
        return self.process.poll()

    def last_words(self, lines: int = 5) -> str:
        """The end of its log, for an error message."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        wanted = [line for line in text.splitlines() if line.strip()]
        return "\n".join(line[:400] for line in wanted[-lines:])


@dataclass
class Children:
    """Processes with logs in `folder`; `stop` ends them and removes the folder."""

    folder: Path
    patience: float = 10.0
    """Seconds between SIGTERM and SIGKILL."""
    children: list[Child] = field(default_factory=list)
    _reaper: subprocess.Popen[bytes] | None = None

    def start(self, name: str, command: list[str], *, kept: bool = False) -> Child:
        """Start one more child in a session of its own, so that Ctrl-C reaches us and we end it in order.

        `kept`: started again when it ends by itself.
        """
        if kept:
            command = ["/bin/sh", "-c", _KEEPER, name, *command]
        reaper = self._started_reaper()
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        assert reaper.stdin is not None
        reaper.stdin.write(f"{process.pid}\n".encode())
        reaper.stdin.flush()
        child = Child(name=name, process=process, log=log)
        self.children.append(child)
        return child

    def _started_reaper(self) -> subprocess.Popen[bytes]:
        if self._reaper is None:
            self._reaper = subprocess.Popen(
                ["/bin/sh", "-c", _REAPER, "reaper", str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self._reaper

    def fallen(self) -> Child | None:
        """The first child that has ended by itself, in starting order (the cause comes before its victims)."""
        return next((child for child in self.children if child.ended() is not None), None)

    def restart(self, name: str, command: list[str], *, kept: bool = False) -> Child:
        """Start `name` again after it was ended, in its old place of the order."""
        place = next(i for i, child in enumerate(self.children) if child.name == name)
        child = self.start(name, command, kept=kept)
        self.children[place] = self.children.pop()
        return child

    def stop(self) -> None:
        """End all, last started first, and wait for each: an etcd that still holds its port spoils the next start."""
        for child in reversed(self.children):
            end(child.process, self.patience)
        self.children.clear()
        if self._reaper is not None and self._reaper.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._reaper.stdin.write(b"none\n")
                self._reaper.stdin.close()
            self._reaper.wait(timeout=30)
            self._reaper = None


def end(process: subprocess.Popen[bytes], patience: float) -> None:
    """SIGTERM to its session, then SIGKILL after `patience` seconds; returns when the process is gone."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
