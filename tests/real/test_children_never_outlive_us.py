"""Whatever started the control plane may end in any way: nothing that it started stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.sandbox.real.children import Children
from tests.migration.killing import may_rename_the_host

ROOT = Path(__file__).parents[2]
OWNER = """
import signal, sys, time
from pathlib import Path
from infra.sandbox.real.children import Children
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell started us in the background
children = Children(Path(sys.argv[1]))
for name in ("one", "two"):
    print(children.start(name, ["sleep", "600"]).process.pid, flush=True)
time.sleep(600)
"""

ATTEMPT = """
import os, sys
from tests.migration.killing import attempt
attempt(["sandbox", "--scenario", "healthy"], os.environ, host=sys.argv[1])
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_and_folder_are_gone_when_their_owner_is_killed(tmp_path: Path, signum: int) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert owner.stdout is not None
    pids = [int(owner.stdout.readline()) for _ in range(2)]
    assert all(map(is_running, pids))
    owner.send_signal(signum)
    owner.wait(timeout=10)
    owner.stdout.close()
    deadline = time.monotonic() + 10
    while (any(map(is_running, pids)) or folder.exists()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_running, pids))
    assert not folder.exists()


def runs_poolshift(pid: int) -> bool:
    """What it was started to become."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return words[1:3] == [b"-m", b"flows.cli"]


@pytest.mark.parametrize("host", ["", "elsewhere"])
def test_a_poolshift_that_a_test_runs_ends_when_the_test_is_killed(host: str) -> None:
    if host and not may_rename_the_host():
        pytest.skip("a host name of its own needs root")
    owner = subprocess.Popen([sys.executable, "-c", ATTEMPT, host], cwd=ROOT)
    deadline = time.monotonic() + 10
    children: list[int] = []
    while not any(map(runs_poolshift, children)):
        children = [int(pid) for pid in Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split()]
        assert time.monotonic() < deadline
    owner.kill()
    owner.wait(timeout=10)
    while any(map(is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_running, children))


def test_stop_ends_all_and_removes_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    children = Children(folder)
    pids = [children.start(name, ["sleep", "600"]).process.pid for name in ("one", "two")]
    children.stop()
    assert not any(map(is_running, pids))
    assert not folder.exists()
    children.stop()  # a second time does nothing


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    children = Children(folder, patience=0.2)
    child = children.start("stubborn", ["/bin/sh", "-c", "trap '' TERM; echo set; while :; do sleep 0.05; done"])
    while "set" not in child.last_words():
        time.sleep(0.01)
    children.stop()
    assert child.process.returncode == -signal.SIGKILL


def test_a_child_that_ends_by_itself_is_named_with_its_last_words(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    children = Children(folder)
    try:
        children.start("steady", ["sleep", "600"])
        child = children.start("etcd", ["/bin/sh", "-c", "echo bind: address already in use >&2; exit 3"])
        child.process.wait(timeout=10)
        fallen = children.fallen()
        assert fallen is child
        assert (fallen.ended(), fallen.last_words()) == (3, "bind: address already in use")
    finally:
        children.stop()


def test_ids_of_children_that_ended_in_order_are_not_killed_again(tmp_path: Path) -> None:
    """The reaper forgets them at stop: by then an id may belong to somebody else."""
    folder = tmp_path / "work"
    folder.mkdir()
    children = Children(folder)
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        children.start("one", ["sleep", "600"])
        reaper = children._reaper
        assert reaper is not None
        assert reaper.stdin is not None
        reaper.stdin.write(f"{bystander.pid}\n".encode())  # as if an id had been given anew
        reaper.stdin.flush()
        children.stop()
        assert bystander.poll() is None
    finally:
        os.kill(bystander.pid, signal.SIGKILL)
        bystander.wait()


def test_a_kept_child_that_ends_at_once_is_broken_and_stays_down(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    children = Children(folder)
    try:
        child = children.start("scheduler", ["/bin/sh", "-c", "echo no such flag; exit 7"], kept=True)
        assert child.process.wait(timeout=10) == 7
        assert child.last_words() == "no such flag"
    finally:
        children.stop()


def test_a_kept_child_goes_with_its_keeper(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    children = Children(folder)
    child = children.start("scheduler", ["/bin/sh", "-c", "echo $$; exec sleep 600"], kept=True)
    while not child.last_words():
        time.sleep(0.01)
    pid = int(child.last_words())
    assert is_running(pid)
    children.stop()
    assert not is_running(pid)
