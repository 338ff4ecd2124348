"""A Prefect API to run against: the one of PREFECT_API_URL, or a server child of our own on loopback.

Prefect's ephemeral server is never used: it ends before its event queue is written and loses most task runs. The
settings are put into the environment before Prefect is imported, because it reads them then. Telemetry and calls to
the outside are off.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from infra.errors import PoolshiftError, Unreachable
from infra.ports import free_port
from tasks.home import home
from tasks.progress import say

QUIET: Mapping[str, str] = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # The default UI makes the browser call a third party; this one calls nobody.
    "PREFECT_SERVER_UI_V2_ENABLED": "false",
    "PREFECT_CLI_PROMPT": "false",
}
# Of a server that ends with the run: schedules, workers and automations are for one that lives on; their loops cost.
_SHORT_LIVED: Mapping[str, str] = {
    f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false"
    for name in (
        "CANCELLATION_CLEANUP",
        "CLEANUP_RECONCILER",
        "FOREMAN",
        "LATE_RUNS",
        "PAUSE_EXPIRATIONS",
        "REPOSSESSOR",
        "SCHEDULER",
        "TRIGGERS",
    )
}
# Seconds; a fresh home with its database migrations takes 8 on two idle cores, minutes on busy ones.
START_LIMIT = 180.0
LIFE_SIGN = 15.0  # seconds without a word, while it starts
FLUSH_LIMIT = 10.0
RECORDER_LIMIT = 20.0  # seconds to wait for task-run rows, which are written behind the flow
# What the server runs as: Prefect's command line, and a thread that ends it when standard input closes. The kernel
# closes that pipe however the parent ends, `kill -9` included, so no server is ever left behind.
_SERVER = """
import os, runpy, signal, threading, time
def follow():
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
    os._exit(1)
threading.Thread(target=follow, daemon=True).start()
runpy.run_module("prefect", run_name="__main__", alter_sys=True)
"""


def settle_environment(url: str) -> None:
    """Point this process at an API and away from everything else; where Prefect is imported already, it reads anew."""
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    os.environ["PREFECT_API_URL"] = url
    os.environ.setdefault("PREFECT_HOME", str(home() / "prefect"))
    # Steps write to the run's log in the UI; the terminal is ours, so Prefect's own lines stay off it.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    if "prefect.context" in sys.modules:
        sys.modules["prefect.context"].refresh_global_settings_context()


@contextmanager
def prefect_api(*, shared: bool = False) -> Iterator[str]:
    """The URL of an API that answers, with the environment set for it.

    In this order: PREFECT_API_URL; a server that `poolshift serve` or a kept demo left running here; a child that
    lives as long as this block. `shared`: such a child is made known to other poolshift processes of this home;
    otherwise nobody else comes to depend on a server that ends with this block.

    Raises:
        Unreachable: the given API does not answer, or the child does not start (its last words are in the message).

    """
    given = os.environ.get("PREFECT_API_URL")
    if given:
        if not healthy(given):
            raise Unreachable(
                f"Prefect API {given}",
                "does not answer /health",
                remedy="start it, or unset PREFECT_API_URL to let poolshift start its own",
            )
        settle_environment(given)
        yield given
        return
    running = known_server()
    if running:
        settle_environment(running)
        yield running
        return
    child, url = start_server(shared=shared)
    try:
        settle_environment(url)
        yield url
    except KeyboardInterrupt:
        say("interrupted; Prefect writes down how the run ended, which takes some seconds")
        raise
    finally:
        flush()
        await_recorder(url)
        os.environ.pop("PREFECT_API_URL", None)
        stop_server(child)


@contextmanager
def served_api() -> Iterator[str]:
    """The URL of an API at which somebody serves the deployments, with the environment set for it.

    PREFECT_API_URL, else the server that `poolshift serve` of this home made known. Never one of our own: nothing is
    registered there.

    Raises:
        Unreachable: neither is there, or PREFECT_API_URL does not answer.

    """
    if not os.environ.get("PREFECT_API_URL") and known_server() is None:
        raise Unreachable(
            "Prefect",
            "PREFECT_API_URL is not set and no poolshift serve runs here",
            expected="a Prefect API at which the deployments are served",
            remedy="poolshift serve in another shell, then here the line that it prints: "
            "export PREFECT_API_URL=http://127.0.0.1:PORT/api",
        )
    with prefect_api() as url:
        yield url


def flush() -> None:
    """Send what Prefect's client still holds back: at exit it would look for a server that is gone, for minutes."""
    if "prefect" not in sys.modules:
        return
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (APILogWorker, EventsWorker):
        worker.drain_all(timeout=FLUSH_LIMIT)


def start_server(port: int | None = None, *, shared: bool = False) -> tuple[subprocess.Popen[bytes], str]:
    """Start `prefect server start` and wait until it answers. The caller stops it; it ends with the caller anyway.

    `shared`: write its address down, so that other poolshift processes of this home find it.
    """
    number = port or free_port()
    url = f"http://127.0.0.1:{number}/api"
    say(f"starting a Prefect server on {url.removesuffix('/api')} (about 10 seconds, longer on a busy machine)")
    environment = {
        **({} if shared else _SHORT_LIVED),
        **os.environ,
        **QUIET,
        "PREFECT_HOME": str(home() / "prefect"),
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_UI_API_URL": url,  # the page asks port 4200 otherwise, wherever its server listens
    }
    environment.pop("PREFECT_API_URL", None)
    log_path = home() / "prefect-server.log"
    command = [sys.executable, "-c", _SERVER, "server", "start", "--host", "127.0.0.1"]
    with log_path.open("wb") as log:
        child = subprocess.Popen(
            [*command, "--port", str(number), "--log-level", "ERROR"],
            env=environment,
            stdin=subprocess.PIPE,  # never written to: see _SERVER
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C is ours to handle: the server must outlive it to record the end
        )
    try:
        if _answers(child, url):
            if shared:
                _remember(url, child.pid)
            return child, url
    except BaseException:
        stop_server(child)
        raise
    stop_server(child)
    words = log_path.read_text(errors="replace").strip().splitlines()[-5:]
    raise Unreachable(
        f"Prefect server on 127.0.0.1:{number}",
        f"did not start within {START_LIMIT:.0f} s: {' | '.join(words) or 'no output'}",
        remedy=f"read {log_path}; or set PREFECT_API_URL to a server you have",
    )


def _answers(child: subprocess.Popen[bytes], url: str) -> bool:
    """True as soon as the server answers; False when it ends before, or takes longer than START_LIMIT."""
    begun = time.monotonic()
    said = begun
    while (now := time.monotonic()) < begun + START_LIMIT:
        if healthy(url):
            say(f"the Prefect server answers after {now - begun:.0f} s")
            return True
        if child.poll() is not None:
            return False
        if now - said >= LIFE_SIGN:
            said = now
            say(f"the Prefect server still starts, {now - begun:.0f} s so far; given up after {START_LIMIT:.0f} s")
        time.sleep(0.1)
    return False


def stop_server(child: subprocess.Popen[bytes]) -> None:
    """End the child, politely first."""
    _forget(child.pid)
    for sign, patience in ((signal.SIGINT, 10.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        if child.poll() is not None:
            break
        child.send_signal(sign)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=patience)
    if child.stdin is not None:
        # Last: closing it is a second SIGINT, on which the server drops what it has not written.
        child.stdin.close()


def healthy(url: str) -> bool:
    """Does the API answer /health with 200?"""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2.0) as answer:  # noqa: S310 - the user's own URL
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def known_server() -> str | None:
    """A server that another poolshift process of this home keeps running, if it answers."""
    url = str(_noted().get("url", ""))
    return url if url and healthy(url) else None


def _noted() -> dict[str, Any]:
    """What server.json says; empty when there is none, or none that can be read."""
    try:
        found = json.loads((home() / "server.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(url: str, pid: int) -> None:
    (home() / "server.json").write_text(json.dumps({"url": url, "pid": pid}))


def _forget(pid: int) -> None:
    """Take our own entry away. One that another process has written since is left alone."""
    if _noted().get("pid") == pid:
        (home() / "server.json").unlink(missing_ok=True)


def await_recorder(url: str) -> None:
    """Wait until the count of recorded task runs stands still: rows are written some seconds behind the flow."""
    deadline, last = time.monotonic() + RECORDER_LIMIT, -1
    while time.monotonic() < deadline:
        try:
            count = post(url, "/task_runs/count", {})
        except PoolshiftError:
            return
        if count == last:
            return
        last = int(str(count))
        time.sleep(0.5)


def post(url: str, path: str, body: object, *, tries: int = 6) -> object:
    """POST JSON to the Prefect API. SQLite answers 503 while it is busy, so 408/429/502/503 are tried again."""
    data = json.dumps(body).encode()
    for attempt in range(tries):
        request = urllib.request.Request(  # noqa: S310 - the user's own URL
            f"{url}{path}", data=data, method="POST", headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as cause:
            if cause.code not in (408, 429, 502, 503) or attempt + 1 == tries:
                text = cause.read()[:300].decode(errors="replace")
                raise Unreachable(f"Prefect API {url}", f"{cause.code} on POST {path}: {text}") from cause
        except (urllib.error.URLError, OSError) as cause:
            if attempt + 1 == tries:
                raise Unreachable(f"Prefect API {url}", f"no answer to POST {path}: {cause}") from cause
        time.sleep(0.5 * 2**attempt)
    raise AssertionError("unreachable: the loop returns or raises")
