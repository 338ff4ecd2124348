"""`drain_nodes` on its own: what a kubectl user expects, and what kubectl does not do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from flows import cli, present
from infra.errors import NotFound, Refused
from infra.kube.api import MERGE_PATCH
from infra.model.verdict import Finding, Level
from infra.model.workload import Selector
from tasks import standalone
from tasks.drain import DrainOptions, drain_nodes
from tasks.drain_report import DrainReport, NodePlan
from tasks.draining import read_timeout
from tasks.emptiness import verify_empty
from tasks.rules.outcome import End, Tally, worst_end


@pytest.fixture
def pools(build, kubelet):
    for name in ("old-0", "old-1"):
        build.node(name)
    build.node("new-0", "new", unschedulable=True)
    return build


def cordoned(build):
    found = build.kube.list("/api/v1/nodes")
    return {n["metadata"]["name"] for n in found if n["spec"].get("unschedulable")}


class Opened:
    """Which nodes are made schedulable by us while the body runs."""

    def __init__(self, kube):
        self.kube, self.send, self.nodes = kube, kube.open, []

    def __enter__(self):
        self.kube.open = self._open
        return self

    def __exit__(self, *_):
        del self.kube.open

    def _open(self, method, path, **how):
        spec = json.loads(how.get("body") or b"{}").get("spec") or {}
        if method == "PATCH" and "unschedulable" in spec and not spec["unschedulable"]:
            self.nodes.append(path.rsplit("/", 1)[1])
        return self.send(method, path, **how)


def mark(kube, name):
    """As a drain of another machine leaves it that was killed."""
    run = "drain-000000000000-1-abcdef"
    prior = f'{{"run": "{run}", "unschedulable": false, "cordoned": true}}'
    meta = {"labels": {"poolshift.dev/run": run}, "annotations": {"poolshift.dev/prior": prior}}
    body = {"metadata": meta, "spec": {"unschedulable": True}}
    kube.request("PATCH", f"/api/v1/nodes/{name}", body=body, content_type=MERGE_PATCH)


def is_held(pod):
    return any(c.get("reason") == "Unschedulable" for c in pod["status"].get("conditions") or ())


def marks(build):
    return [k for n in build.kube.list("/api/v1/nodes") for k in str(n).split("'") if k.startswith("poolshift.dev/")]


def test_a_node_with_a_blocker_is_left_alone_and_the_others_go_on_and_a_dry_run_says_so(kube, pools, capsys):
    pools.deployment("web", 4)
    pools.pod("alone", "old-1")
    pools.until_ready(5)
    pools.uncordon("new-0")
    here = Counter(p["spec"]["nodeName"] for p in pools.pods() if p["metadata"]["name"] != "alone")

    dry = drain_nodes(kube, ["old-0", "old-1"], DrainOptions(dry_run=True))
    stays = []
    report = drain_nodes(kube, ["old-0", "old-1"], DrainOptions(), say=stays.append)

    told = dry.to_json()
    by = [{"object": "pod default/alone", "code": "unmanaged"}]
    assert told["plan"]["old-0"] == {"drain": True, "pods": here["old-0"], "blocked_by": []}
    assert told["plan"]["old-1"] == {"drain": False, "pods": here["old-1"], "blocked_by": by}
    assert (told["pods"], told["held_up"], dry.exit_code) == (here["old-0"], here["old-1"], 5)
    present.drain(dry, as_json=False)
    said = " ".join(capsys.readouterr().err.split())
    assert "would leave old-0; nothing would leave old-1 until what blocks is gone" in said
    assert report.nodes == {"old-1": End.FAILED, "old-0": End.DRAINED}
    assert [(f.code, f.object) for f in report.blocked] == [("unmanaged", "pod default/alone")]
    assert (report.exit_code, report.refused) == (5, ("old-1",))
    assert stays[0].startswith("pod default/alone: ")
    assert stays[1].startswith("  next: ")
    assert stays[2] == "cordoned 1 node"
    present.drain(report, as_json=False)
    ends = [line.partition("  ")[2] for line in capsys.readouterr().err.splitlines()]
    assert "node old-1: refused; nothing was changed: not cordoned by this drain, no pod evicted" in ends
    assert any(line.startswith("drained, but old-1 refused: ") for line in ends)
    assert ends[-1] == stays[1]
    assert cordoned(pools) == {"old-0"}
    assert marks(pools) == []


@pytest.mark.parametrize(
    ("spec", "options", "code"),
    [
        ({}, {"force": True}, "unmanaged"),
        ({"volumes": [{"name": "v", "emptyDir": {}}]}, {"force": True, "delete_emptydir_data": True}, "local-storage"),
    ],
)
def test_a_flag_opens_what_it_names_and_nothing_else(kube, pools, spec, options, code):
    pools.pod("alone", "old-0", **spec)
    pools.until_ready(1)

    without = {k: v for k, v in options.items() if k != list(options)[-1]}
    refused = drain_nodes(kube, ["old-0"], DrainOptions(**without))
    assert (refused.exit_code, code in {f.code for f in refused.blocked}) == (5, True)
    assert refused.requests > 0
    assert refused.tally.sent == 0
    assert drain_nodes(kube, ["old-0"], DrainOptions(**options)).exit_code == 0


def test_a_dry_run_shows_the_blockers_and_touches_nothing(kube, pools):
    pools.deployment("web", 4, budget={"minAvailable": "100%"})
    pools.until_ready(4)

    report = drain_nodes(kube, ["old-0", "old-1"], DrainOptions(dry_run=True))

    assert {f.code for f in report.blocked} == {"pdb-never"}
    assert report.tally.sent == 0
    assert cordoned(pools) == {"new-0"}


def test_after_a_timeout_exactly_the_cordons_of_this_drain_are_taken_back(kube, kubelet, pools):
    pools.deployment("web", 4)
    pools.until_ready(4)
    kubelet.never_ends = lambda pod: True
    pools.cordon("old-1")

    stays, passes = [], []
    options = DrainOptions(timeout=timedelta(seconds=1.5))
    report = drain_nodes(kube, ["old-0", "old-1"], options, say=stays.append, passing=passes.append)

    assert stays[0] == "cordoned 1 node; already cordoned: old-1"
    assert [line for line in stays if "pods gone" in line] == []  # else a line a second in every log
    assert [line for line in passes if "pods gone" not in line] == []
    assert report.end is End.FAILED
    assert {p.code for p in report.left} <= {"stuck-terminating", "wave-deadline"}
    assert [p.reason for p in report.left if p.reason == p.code] == []  # words for a person, not our own code
    assert report.restored == ("old-0", "old-1")
    assert cordoned(pools) == {"old-1", "new-0"}  # others' cordons stay
    assert marks(pools) == []


def test_a_drain_that_is_cancelled_ends_at_once_and_says_unknown(kube, kubelet, pools):
    pools.deployment("web", 4)
    pools.until_ready(4)
    kubelet.never_ends = lambda pod: True
    stop = threading.Event()

    report = drain_nodes(kube, ["old-0", "old-1"], DrainOptions(), say=lambda line: stop.set(), cancelled=stop.is_set)

    assert report.end is End.UNKNOWN
    assert report.exit_code == 4
    assert cordoned(pools) == {"new-0"}


def test_an_interrupt_takes_the_cordons_back_and_is_passed_on(kube, kubelet, pools):
    pools.deployment("web", 4)
    pools.until_ready(4)
    kubelet.never_ends = lambda pod: True

    def interrupt(line):
        if "pods gone" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drain_nodes(kube, ["old-0", "old-1"], DrainOptions(), passing=interrupt)
    assert cordoned(pools) == {"new-0"}
    assert marks(pools) == []


def test_a_selector_moves_the_pods_it_picks_and_no_others(kube, pools):
    pools.deployment("web", 2)
    pools.deployment("db", 2)
    pools.until_ready(4)
    pools.uncordon("new-0")

    report = drain_nodes(kube, ["old-0", "old-1"], DrainOptions(pod_selector=Selector(labels={"app": "web"})))

    assert report.exit_code == 0, report.to_json()
    where = {p["metadata"]["labels"]["app"]: p["spec"]["nodeName"] for p in pools.pods()}
    assert where["web"] == "new-0"
    assert where["db"].startswith("old")
    assert report.to_json()["selected_pods_only"], "a program must not take it for a proven empty node"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("0s", 0), ("90s", 90), ("1h30m", 5400), ("1.5h", 5400), ("500ms", 0.5), ("2d", 172800)],
)
def test_a_timeout_is_read_as_kubectl_reads_it(text, seconds):
    assert read_timeout(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "5", "1.5", "s", "5x", "-5s", "5s ", "5 s", "5s5", "nan", "1e9s", "90000000h", "9" * 400 + "h"]
)
def test_a_timeout_without_unit_or_end_is_refused_before_the_cluster_is_asked(text, capsys):
    assert cli.run(["drain", "old-0", f"--timeout={text}", "--kubeconfig", "/nowhere"]) == 2
    assert "--timeout" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["--grace-period=99999999999999999999", "--evictions-per-second=inf"])
def test_a_number_that_no_request_can_carry_is_a_usage_error(given, capsys):
    assert cli.run(["drain", "old-0", given, "--kubeconfig", "/nowhere"]) == 2
    assert given.partition("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("--disable-eviction", "no flag here does that"),
        ("--disable-eviction=true", "past their budgets"),
        ("--skip-wait-for-delete-timeout=5", "pods as gone that still end"),
        ("--chunk-size=500", "in pages"),
        ("--delete-local-data", "--delete-emptydir-data"),
    ],
)
def test_a_flag_of_kubectl_that_is_not_here_is_refused_with_the_reason_and_in_no_help(given, why, capsys):
    assert cli.run(["drain", "old-0", given, "--kubeconfig", "/nowhere"]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert "  next: " in said
    cli.run(["drain", "--help"])
    assert given.partition("=")[0] not in capsys.readouterr().out


@pytest.mark.parametrize("given", ["--disable-eviction=false", "--chunk-size=0"])
def test_a_flag_of_kubectl_that_asks_for_nothing_is_taken(given, capsys):
    cli.run(["drain", "old-0", given, "--kubeconfig", "/nowhere"])
    assert given.partition("=")[0] not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("begun", "refused", "code"),
    [
        ([End.DRAINED], False, 0),
        ([End.DRAINED], True, 5),
        ([], True, 5),
        ([End.DRAINED, End.FAILED], True, 1),
        ([End.FAILED, End.UNKNOWN], True, 4),
    ],
)
def test_the_exit_code_says_what_became_of_what_was_begun_then_whether_any_was_refused(begun, refused, code):
    block = Finding(level=Level.BLOCK, code="pdb-never", object="pod a/b", observed="never", remedy="mend it")
    nodes = {f"n{number}": end for number, end in enumerate(begun)} | ({"stuck": End.FAILED} if refused else {})
    plan = {name: NodePlan(pods=1, blocked=(block,) if name == "stuck" else ()) for name in nodes}
    for dry in (False, True):
        report = DrainReport(
            end=worst_end(nodes.values()), nodes=nodes, plan=plan, warnings=(), left=(), unproven=(), restored=(),
            tally=Tally(), requests=1, seconds=0.1, dry_run=dry,
        )  # fmt: skip
        assert report.exit_code == code


def test_a_closed_budget_is_named_with_its_numbers_and_what_keeps_its_replacement_out(kube, pools, fast_clock):
    pools.cordon("old-1")
    pools.deployment("web", 2, budget={"maxUnavailable": 1})
    pools.until_ready(2)

    said = []
    options = DrainOptions(timeout=timedelta(minutes=3))
    report = drain_nodes(kube, ["old-0"], options, clock=fast_clock, say=said.append)

    # With no room anywhere the replacement stays Pending, so the budget never opens again.
    assert report.end is End.FAILED
    assert report.tally.accepted == 1
    (left,) = report.left
    assert left.reason.startswith("budget default/web needs 1 healthy of 2 and has 1; not ready: default/web-")
    assert "is on no node: 0/3 nodes are available: 3 node(s) were unschedulable" in left.reason
    assert left.remedy.endswith("kubectl uncordon new-0 old-1")
    assert left.pod.owner.kind == "ReplicaSet"
    (told,) = (line for line in said if "is on no node" in line)  # once, while it waits
    assert told == f"pod {left.pod.key}: {left.reason}"
    assert said[said.index(told) + 1] == f"  next: {left.remedy}"


def test_what_a_killed_drain_has_left_without_room_is_told_before_the_next_goes_on(kube, kubelet, pools):
    pools.deployment("web", 4, budget={"maxUnavailable": 1})
    pools.until_ready(4)
    pools.cordon("new-0")
    for name in ("old-0", "old-1"):
        mark(kube, name)
    gone = next(p["metadata"]["name"] for p in pools.pods())
    kube.delete(f"/api/v1/namespaces/default/pods/{gone}")
    pools.until(lambda: any(not p["spec"].get("nodeName") and is_held(p) for p in pools.pods()), "a replica Pending")

    said = []
    options = DrainOptions(timeout=timedelta(seconds=1), take_over=True)
    drain_nodes(kube, ["old-0"], options, say=said.append)

    (told,) = (line for line in said if "is on no node" in line)
    remedy = said[said.index(told) + 1]
    assert said.index(remedy) < said.index("already cordoned: old-0")
    assert remedy.startswith("  next: ")
    assert remedy.endswith("open what no run of poolshift has cordoned: kubectl uncordon new-0")
    assert "mend those pods" not in remedy


def test_a_node_that_is_not_there_is_refused_before_anything_else(kube, pools):
    with pytest.raises(NotFound, match="node old-9"):
        drain_nodes(kube, ["old-0", "old-9"], DrainOptions())
    assert cordoned(pools) == {"new-0"}


AT_THE_END = """
import atexit, os, signal, sys
from flows.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs have it ignored
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.argv[:1] = ["poolshift", "drain", "old-0", "--kubeconfig"]
main()
"""

CHILD = """
import sys
from infra.model.spec import Cluster
from tasks import draining
from tasks.progress import say
draining.drain(Cluster(kubeconfig=sys.argv[1]), draining.Request(nodes=("old-0", "node/old-1")))
"""


@pytest.fixture
def killed(kubeconfig):
    """A drain in a process of its own that is sent a signal, right after its cordons unless told otherwise."""

    def kill(command, signal_, at=b"cordoned"):
        root = Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        with subprocess.Popen([*command, kubeconfig], cwd=root, env=environment, stderr=subprocess.PIPE) as child:
            for line in child.stderr:
                kill.said.append(line.decode())
                if at in line:
                    child.send_signal(signal_)
            return child.wait()

    kill.said = []
    return kill


def test_a_drain_that_was_killed_is_taken_up_by_the_next_and_what_was_cordoned_before_stays(
    kube, kubelet, pools, killed
):
    pools.deployment("web", 4)
    pools.until_ready(4)
    kubelet.never_ends = lambda pod: True
    pools.cordon("old-1")
    assert killed([sys.executable, "-c", CHILD], signal.SIGKILL) == -9
    assert cordoned(pools) == {"old-0", "old-1", "new-0"}

    said = []
    options = DrainOptions(timeout=timedelta(seconds=1))
    with Opened(kube) as opened:
        report = drain_nodes(kube, ["old-0", "old-1"], options, say=lambda line: said.append((line, cordoned(pools))))

    assert next(line for line, _ in said).startswith("took up what drain-")
    assert {"old-0", "old-1"} <= said[-2][1], "closed all the time: an open node takes the pods that wait"
    assert opened.nodes == ["old-0"], "once, at the end"
    assert report.restored == ("old-0", "old-1")
    assert cordoned(pools) == {"old-1", "new-0"}
    assert marks(pools) == []


def test_a_node_that_a_killed_drain_has_left_cordoned_beside_ours_is_named(kube, kubelet, pools, killed):
    pools.deployment("web", 4)
    pools.until_ready(4)
    kubelet.never_ends = lambda pod: True
    assert killed([sys.executable, "-c", CHILD], signal.SIGKILL) == -9
    kubelet.never_ends = lambda pod: False
    pools.uncordon("new-0")

    said = []
    report = drain_nodes(kube, ["old-0"], DrainOptions(timeout=timedelta(seconds=20)), say=said.append)

    assert report.nodes == {"old-0": End.DRAINED}, report.to_json()
    assert "it has left old-1 cordoned too: poolshift drain old-1" in said
    assert cordoned(pools) == {"old-0", "old-1"}


def test_a_pod_that_the_proof_shows_and_the_watch_did_not_yet_is_drained_too(kube, kubelet, pools, monkeypatch):
    pools.uncordon("new-0")
    proofs = []

    def bound_right_before(kube, uids):
        if not proofs:
            pools.pod("late", "old-0")
        proofs.append(verify_empty(kube, uids))
        return proofs[-1]

    monkeypatch.setattr(standalone, "verify_empty", bound_right_before)
    options = DrainOptions(timeout=timedelta(seconds=30), force=True)

    report = drain_nodes(kube, ["old-0"], options)

    assert [f.code for f in proofs[0]] == ["pod-still-there"]
    assert report.nodes == {"old-0": End.DRAINED}, report.to_json()
    assert report.tally.accepted == 1


def test_an_interrupt_after_all_is_proven_empty_changes_nothing_about_the_answer(kube, kubelet, pools, killed):
    pools.deployment("web", 2)
    pools.until_ready(2)
    pools.uncordon("new-0")
    proven = []

    report = drain_nodes(kube, ["old-1"], DrainOptions(), proven=lambda: proven.append(cordoned(pools)))
    assert (report.exit_code, proven) == (0, [{"old-1"}])
    assert killed([sys.executable, "-c", AT_THE_END], signal.SIGINT, b": drained") == 0
    assert "interrupted" not in "".join(killed.said)
    assert cordoned(pools) == {"old-0", "old-1"}
    assert marks(pools) == []


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM])
def test_a_drain_that_is_told_to_end_takes_its_cordons_back_and_says_how_to_go_on(kubelet, pools, killed, signal_):
    pools.deployment("web", 4)
    pools.until_ready(4)
    kubelet.never_ends = lambda pod: True
    command = [sys.executable, "-m", "flows.cli", "drain", "old-0", "node/old-1", "--force=true", "--kubeconfig"]

    assert killed(command, signal_) == 130
    assert cordoned(pools) == {"new-0"}
    assert marks(pools) == []
    said = "".join(killed.said)
    assert "interrupted" in said
    assert "took back the cordons of this drain: old-0, old-1" in said
    assert "to go on: poolshift drain old-0 node/old-1 --kubeconfig " in said
    assert "--force\n" in said


def test_of_two_drains_of_one_node_the_second_is_refused_and_may_take_over(kube, kubelet, pools):
    pools.deployment("web", 4)
    pools.until_ready(4)
    mark(kube, "old-0")

    with pytest.raises(Refused, match="drain-000000000000-1-abcdef"):
        drain_nodes(kube, ["old-0", "old-1"], DrainOptions())
    assert cordoned(pools) == {"old-0", "new-0"}
    pools.uncordon("new-0")
    assert drain_nodes(kube, ["old-0"], DrainOptions(take_over=True)).exit_code == 0


def test_a_node_that_goes_while_it_is_drained_is_empty_when_no_pod_names_it(kube, kubelet, pools):
    pools.deployment("web", 4)
    pools.until_ready(4)
    pools.uncordon("new-0")

    def remove(line):
        if "cordoned" in line:
            kube.delete("/api/v1/nodes/old-1")

    report = drain_nodes(kube, ["old-0", "old-1"], DrainOptions(timeout=timedelta(seconds=20)), say=remove)

    assert report.nodes == {"old-0": End.DRAINED, "old-1": End.DRAINED}, report.to_json()
