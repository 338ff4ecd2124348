"""`make demo`: the founding story and its end, on loopback, with real processes. Everything shown is simulated.

Two clusters, one spec. In the first the RDMA plugin's image has been missing for 271 days, so NCCL silently runs on
sockets, on the old pool and on the new one, and the migration is refused with the old pool untouched. In the second the
same spec passes and the old pool goes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from flows import console, orchestrator
from flows.reaching import Reach
from infra.errors import Unreachable
from infra.sandbox.scenario import load
from tasks.home import home
from tasks.rules.wording import plural

EXAMPLES = Path(__file__).parent.parent / "infra" / "examples"
REFUSED, HEALTHY = "plugin-broken-271-days", "healthy"
READY_LIMIT = 60.0  # seconds for a sandbox to say `ready`
T = TypeVar("T")


@dataclass(kw_only=True)
class Stage:
    """One scenario: its sandbox process and how the migration on it ended."""

    scenario: str
    kubeconfig: Path
    process: subprocess.Popen[str]
    exit_code: int | None = None
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)


def demo(*, cloud: str, keep: bool) -> int:
    """Run both scenarios and say what happened. 0: both ended as they should; 1: one did not, with the difference."""
    spec = EXAMPLES / f"sandbox-{cloud}.yaml"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by `finally`, as Ctrl-C
    rate = load(HEALTHY).clock.rate
    console.say(
        f"poolshift demo on {cloud.upper()}: everything below is simulated, on loopback, in a cluster whose clock runs "
        f"{rate:.0f} times as fast as the one on the left"
    )
    stages: list[Stage] = []
    sandboxes: list[Future[Stage]] = []
    servers: list[Future[tuple[subprocess.Popen[bytes], str]]] = []
    work = Path(tempfile.mkdtemp(prefix="poolshift-demo-"))
    try:
        with ThreadPoolExecutor() as pool:
            servers.append(pool.submit(orchestrator.start_server, shared=keep))
            sandboxes.append(pool.submit(_start, REFUSED, cloud, work))
            stages.append(sandboxes[0].result())
            _, url = servers[0].result()
            sandboxes.append(pool.submit(_start, HEALTHY, cloud, work))
            console.say(f"Prefect UI: {url.removesuffix('/api')}")
            _act(1, "the new pool's RDMA plugin never starts", stages[0], spec, url, lambda: _untouched(stages[0]))
            stages.append(sandboxes[1].result())
            _act(2, "the same spec, the plugin in order", stages[1], spec, url, dict)
        orchestrator.await_recorder(url)
        wrong = _conclude(stages)
        if keep:
            console.say(f"Prefect UI stays at {url.removesuffix('/api')} until Ctrl-C")
            _until_interrupt()
        return 1 if wrong else 0
    finally:
        # Whatever came up is ended, also what nobody has asked for yet when act 1, or a start, was cut short.
        for stage in _came_up(sandboxes):
            _stop(stage.process)
        for server, _ in _came_up(servers):
            orchestrator.stop_server(server)
        shutil.rmtree(work, ignore_errors=True)


def _came_up(started: Iterable[Future[T]]) -> list[T]:
    return [each.result() for each in started if each.done() and not each.cancelled() and each.exception() is None]


def _start(scenario: str, cloud: str, work: Path) -> Stage:
    """Start a sandbox and wait for its `ready`."""
    kubeconfig = work / f"{scenario}.kubeconfig"
    command = [sys.executable, "-m", "flows.cli", "sandbox", "--scenario", scenario, "--cloud", cloud]
    log_path = work / f"{scenario}.log"
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [*command, "--kubeconfig", str(kubeconfig)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    timer = threading.Timer(READY_LIMIT, process.kill)
    timer.start()
    line = process.stdout.readline() if process.stdout else ""
    timer.cancel()
    if not line.startswith("ready "):
        _stop(process)
        words = log_path.read_text().strip().splitlines()[-5:]
        raise Unreachable(f"sandbox {scenario}", f"did not become ready: {' | '.join(words) or 'no output'}")
    return Stage(scenario=scenario, kubeconfig=kubeconfig, process=process)


def _act(number: int, title: str, stage: Stage, spec: Path, url: str, after: Callable[[], dict[str, Any]]) -> None:
    """One migration as its own process, its lines shown as they come; its exit code is what a script would see."""
    console.say("")
    console.say(f"== {number} of 2: {title} ({stage.scenario}) ==")
    console.say(f"$ poolshift migrate {_short(spec)} --kubeconfig {stage.kubeconfig.name}")
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "migrate", str(spec), "--kubeconfig", str(stage.kubeconfig), "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PREFECT_API_URL": url, "POOLSHIFT_REPORTS": str(_reports(stage))},
        check=False,
    )
    stage.exit_code, stage.seconds = done.returncode, time.monotonic() - started
    stage.facts = {**_facts(stage), **after()}
    console.say(f"exit code {stage.exit_code} after {stage.seconds:.0f} s")


def _reports(stage: Stage) -> Path:
    """Both runs have one name, so their reports lie in folders of their own."""
    return home() / "reports" / stage.scenario


def _facts(stage: Stage) -> dict[str, Any]:
    """What the run left in the cluster, for the closing words."""
    from infra.kube import api, records
    from infra.model.spec import Cluster
    from tasks import report

    kube = api.connect(Cluster(kubeconfig=str(stage.kubeconfig)))
    runs = records.list_runs(kube)
    if not runs:
        return {}
    reach = Reach(kubeconfig=str(stage.kubeconfig))
    told = {name: reach.complete(text) for name, text in report.facts(runs[-1]).items()}
    return {**told, "report": _reports(stage) / runs[-1].name / "report.html"}


def _untouched(stage: Stage) -> dict[str, Any]:
    """Is the old pool as it was: no cordon, no fence of ours, and is the new one fenced off?"""
    from infra.kube import api
    from infra.model.record import FENCE_TAINT
    from infra.model.spec import Cluster
    from tasks.opening import is_closed

    kube = api.connect(Cluster(kubeconfig=str(stage.kubeconfig)))
    old = touched = fenced = new = 0
    for node in kube.list("/api/v1/nodes"):
        taints = {t.get("key") for t in (node.get("spec") or {}).get("taints") or ()}
        if any(value.endswith("gpu-old") for value in (node["metadata"].get("labels") or {}).values()):
            old += 1
            touched += bool((node.get("spec") or {}).get("unschedulable") or FENCE_TAINT in taints)
        elif any(value.endswith("gpu-rdma") for value in (node["metadata"].get("labels") or {}).values()):
            new += 1
            fenced += is_closed(node)
    return {"old_nodes": old, "old_touched": touched, "new_nodes": new, "new_fenced": fenced}


def _conclude(stages: list[Stage]) -> list[str]:
    """The plain-words summary, and what went otherwise than it should."""
    refused, healthy = stages
    f, h = refused.facts, healthy.facts
    wrong = []
    if refused.exit_code != 3:
        wrong.append(f"{REFUSED} ended with exit code {refused.exit_code}, expected 3 (gate held)")
    if f.get("old_touched") or not f.get("old_nodes"):
        wrong.append(f"{REFUSED} touched {f.get('old_touched')} of {f.get('old_nodes')} old nodes, expected none")
    if not f.get("new_nodes") or f.get("new_fenced") != f.get("new_nodes"):
        wrong.append(f"{REFUSED} left {f.get('new_fenced')} of {f.get('new_nodes')} new nodes fenced, expected all")
    if healthy.exit_code != 0:
        wrong.append(f"{HEALTHY} ended with exit code {healthy.exit_code}, expected 0")
    lines = [
        "",
        "== what happened (simulated) ==",
        f"1. Refused, exit code {refused.exit_code}. {f.get('plugin', 'The plugin is not named.')}",
        f"   {f.get('history', '')}",
        f"   {f.get('transport', '')}",
        f"   {f.get('remedy', '')}",
        f"   The old pool is untouched ({plural(f.get('old_nodes', 0), 'node')}), the new one fenced off "
        f"({f.get('new_fenced', 0)} of {plural(f.get('new_nodes', 0), 'node')}).",
        f"2. Migrated, exit code {healthy.exit_code}. {h.get('moved', '')}",
        f"   {h.get('steps', '')}",
        f"   {h.get('bandwidth', '')}",
        f"   {h.get('retired', '')}",
        f"Reports: {f.get('report', '(none)')}",
        f"         {h.get('report', '(none)')}",
    ]
    for line in lines:
        if line.strip() or not line:
            console.say(line)
    for line in wrong:
        console.say(f"NOT AS IT SHOULD BE: {line}")
    return wrong


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _stop(process: subprocess.Popen[str]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(sign)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                continue


def _until_interrupt() -> None:
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        console.say("stopped")
