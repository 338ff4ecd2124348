"""How runs that did not go through are told: refused by the plan, cancelled, rolled back; in logs and reports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows import cli
from flows.reaching import Reach
from infra.errors import PoolshiftError, Refused, facts_of
from infra.kube.records import RunRecord
from infra.model.pools import IssueClass, Pool, PoolIssue, PoolState
from infra.model.record import Step, StepRecord, StepState
from infra.model.spec import MigrationSpec
from infra.model.verdict import Finding, Level
from tasks import approvals, pools, progress, report, wishes
from tasks.rules import story_ended
from tasks.rules.folding import alike, first_causes, first_clause, lines
from tasks.rules.outcome import Progress
from tasks.standalone import where_it_stands


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    progress.reword(None)


def block(code: str, what: str, observed: str, remedy: str = "") -> Finding:
    return Finding(level=Level.BLOCK, code=code, object=what, observed=observed, remedy=remedy)


def record(*steps: StepRecord, **notes: Any) -> RunRecord:
    return RunRecord(
        name="r", kind="migration", created="", spec_hash="", spec={}, steps={s.step: s for s in steps}, notes=notes
    )


def step(name: Step, state: StepState, summary: str = "", **data: Any) -> StepRecord:
    return StepRecord(step=name, state=state, started="2026-01-01T00:00:00Z", summary=summary, data=data)


def told(found: RunRecord, folder: Path, **more: Any) -> str:
    report.render(found, folder, simulated=False, when="2026-01-02T00:00:00Z", **more)
    return (folder / "report.md").read_text()


def test_a_run_that_its_plan_refused_is_told_by_what_stands_in_the_way_each_with_its_remedy(tmp_path: Path) -> None:
    blocks = [
        block("pdb-blocks", "pod a/b", "budget a/c allows none", "kubectl -n a edit pdb c"),
        block("bare", "pod a/d", "no owner", "delete it"),
    ]
    held = step(Step.PLAN, StepState.HELD, "refused: 2 things stand in the way", findings=[b.to_dict() for b in blocks])
    stopped = Refused("plan r", "2 things stand in the way", expected="none", remedy="x")
    progress.reword(Reach(kubeconfig="k", spec="my spec.yaml").complete)
    text = told(record(held), tmp_path, stopped=stopped)
    title, *rest = text.splitlines()

    assert title == "# Refused by the plan: 2 things stand in the way"
    assert "nothing was touched" in text
    assert "1. kubectl --kubeconfig k -n a edit pdb c" in text
    assert "poolshift migrate --kubeconfig k 'my spec.yaml'" in text
    assert "**block pdb-blocks**. Next: kubectl --kubeconfig k -n a edit pdb c" in text
    assert "; next:" not in "".join(rest)


def test_a_step_that_failed_is_told_without_its_whole_error_in_the_title(tmp_path: Path) -> None:
    error = PoolshiftError("pool x", "is away", expected="a pool", remedy="poolshift migrate SPEC")
    text = told(record(step(Step.PROVISION, StepState.FAILED, error.wording())), tmp_path, stopped=error)

    assert text.splitlines()[0] == "# Stopped at provision: pool x: is away"
    assert "1. poolshift migrate SPEC" in text
    assert facts_of(error.wording()) == ("pool x: is away", "a pool", "poolshift migrate SPEC")
    assert facts_of("only this") == ("only this", "", "")


@pytest.mark.parametrize("closed", [("n2", "n1"), (), None])
def test_a_cancelled_run_says_who_and_when_what_had_moved_what_stays_closed_and_how_it_goes_on(
    tmp_path: Path, closed: tuple[str, ...] | None
) -> None:
    wish = {"wish": "cancel", "by": "Bob", "at": "2026-01-01T10:00:00Z", "reason": "not today"}
    rows = [{"pods moved": 3, "empty": "1 of 1"}, {"pods moved": 2, "empty": "1 of 2"}]
    found = record(step(Step.MIGRATE, StepState.STARTED), wish=wish, **{"waves-shown": {"rows": rows}})
    ended = story_ended.cancelled("r", wish, found.notes, closed)
    text = told(found, tmp_path, stopped=Refused("run r", "x"), ended=ended)

    assert text.startswith("# Cancelled by Bob at 2026-01-01T10:00:00Z: not today\n")
    assert "5 pods had moved in 2 waves, 2 nodes emptied" in text
    assert {"n1": "n1, n2.", "": "No node", None: "could not be read"}[
        "n1" if closed else None if closed is None else ""
    ] in text
    assert "poolshift resume r, then poolshift migrate SPEC" in text
    assert "poolshift rollback r" in text
    assert "No work had been moved" in story_ended.cancelled("r", wish, {}, ()).lead


def test_a_report_says_that_its_run_was_rolled_back_and_what_was_put_back(tmp_path: Path) -> None:
    ended = story_ended.undone("ann", "2026-01-03T00:00:00Z", ["restored 2 nodes: a, b"], "")
    text = told(record(step(Step.GATE, StepState.HELD, "held. fail: x")), tmp_path, ended=ended)

    assert text.startswith("# Rolled back by ann at 2026-01-03T00:00:00Z")
    assert "Put back: restored 2 nodes: a, b." in text
    assert "poolshift rollback" not in text


def test_alike_findings_are_one_line_of_a_log() -> None:
    devices = [block("devices-missing", "pool p", f"networks/rdma-{n}: 0 allocatable on a") for n in range(8)]
    pods = [block("target-resource", f"pod a/p-{n}", "asks for 1 gpu", "change it") for n in range(5)]

    assert lines([*devices, *pods]) == [
        "block devices-missing: pool p: networks/rdma-0, networks/rdma-1 and 6 more: 0 allocatable on a",
        "block target-resource: pod a/p-0, pod a/p-1, pod a/p-2 and 2 more: asks for 1 gpu. change it",
    ]
    assert len(lines([block("a", "x", "at 1: y"), block("a", "x", "at 2: y")])) == 2
    assert first_clause("no plugin; since May; and more") == "no plugin"
    assert len(first_clause("x" * 400)) < 200


def test_what_follows_from_an_unknown_machine_type_is_counted_and_not_repeated() -> None:
    root = block("machine-type-unknown", "machine type x", "is not known")
    others = [block("target-resource", f"pod {n}", "asks") for n in range(3)]
    quota = block("quota", "q", "too small")

    first, last = first_causes([root, *others, quota])
    assert first.observed == "is not known; 3 other findings follow from it"
    assert last == quota
    assert first_causes([*others, quota]) == [*others, quota]


def test_one_thing_that_follows_from_an_unknown_machine_type_is_said_to_follow() -> None:
    root = block("machine-type-unknown", "machine type x", "is not known")
    assert first_causes([root, block("target-resource", "p", "asks")])[0].observed.endswith(
        "1 other finding follows from it"
    )


def test_alike_findings_are_one_in_plans_and_drains_too() -> None:
    pods = [block("pdb-never", f"pod a/p-{n}", "budget a/b: never", "patch it") for n in range(3)]
    other = block("pdb-never", "pod a/q", "budget a/c: never", "patch it")

    assert alike([pods[0], other, *pods[1:]]) == [
        replace(pods[0], object="pod a/p-0, pod a/p-1, pod a/p-2"),
        other,
    ]
    assert alike([pods[0], pods[0]]) == [pods[0]]


def test_a_drain_beside_refused_nodes_says_of_which_its_numbers_are() -> None:
    none = Progress(total=0, gone=0, terminating=0, waiting=(), per_second=0.0)
    assert where_it_stands(none, 0) == "no pod has to leave"
    assert where_it_stands(none, 2) == "no pod has to leave (but for 2 refused nodes, whose pods stay)"


def test_a_yes_that_nobody_asks_for_is_refused() -> None:
    passed = record(step(Step.GATE, StepState.DONE))
    with pytest.raises(Refused, match="asks for no approval"):
        approvals.check(passed)
    asking = replace(passed, spec={"approval": {"ask": True}})
    approvals.check(asking)
    with pytest.raises(Refused, match="has not been judged yet"):
        approvals.check(replace(asking, steps={}))


def test_what_is_said_to_remove_a_pool_removes_it() -> None:
    """A rollback alone leaves what was made."""
    root = Path(__file__).parents[2]
    files = [path for part in ("flows", "tasks", "infra") for path in (root / part).rglob("*.py")]
    remove = re.compile(r"remov\w+ [^\n]*poolshift rollback SPEC(?! --remove)|poolshift rollback SPEC (to )?remove")
    assert [path.name for path in files if remove.search(path.read_text())] == []

    issue = PoolIssue(issue_class=IssueClass.CAPACITY, code="InsufficientInstanceCapacity", message="none left")
    pool = Pool(kind="eks", name="p", identity="", state=PoolState.FAILED, machine_type="m", nodes=2, issues=(issue,))
    assert "poolshift rollback SPEC --remove-target" in pools.failure(pool).remedy


@pytest.mark.parametrize(
    ("said", "completed"),
    [
        ("poolshift plan SPEC", "poolshift plan --kubeconfig k s.yaml"),
        ("waits: poolshift resume r", "waits: poolshift resume --kubeconfig k r"),
        ("poolshift rollback SPEC --remove-target", "poolshift rollback --kubeconfig k s.yaml --remove-target"),
        ("poolshift report r --rejudge SPEC", "poolshift report --kubeconfig k r --rejudge SPEC"),
    ],
)
def test_every_line_that_is_said_has_the_cluster_and_the_spec_in_its_commands(
    said: str, completed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reach = Reach(kubeconfig="k", spec="s.yaml")
    progress.reword(reach.complete)
    progress.say(said)
    assert capsys.readouterr().err.rstrip().endswith(f"  {completed}")
    assert reach.complete(completed) == completed
    progress.reword(None)
    progress.say(said)
    assert capsys.readouterr().err.rstrip().endswith(f"  {said}")


@pytest.mark.parametrize(
    ("wish", "now", "said"),
    [
        (wishes.Wish.PAUSE, Step.VALIDATE, "it holds when step validate is finished"),
        (wishes.Wish.CANCEL, Step.VALIDATE, "it ends when step validate is finished"),
        (wishes.Wish.PAUSE, Step.MIGRATE, "the wave that has begun is finished"),
        (wishes.Wish.CANCEL, Step.MIGRATE, "no further eviction"),
        (wishes.Wish.PAUSE, None, "it holds before its next step"),
    ],
)
def test_a_wish_is_answered_with_the_step_after_which_it_counts(wish: wishes.Wish, now: Step | None, said: str) -> None:
    steps = [step(Step.PLAN, StepState.DONE), *([step(now, StepState.STARTED)] if now else [])]
    assert said in wishes._outcome(wish, record(*steps))


def test_a_wrong_value_is_named_once() -> None:
    from flows import specs

    with pytest.raises(PoolshiftError) as error:
        specs.parse({"name": "a", "soak": {"duration": "6 parsecs"}}, MigrationSpec)
    assert error.value.observed.count("6 parsecs") == 1


def test_a_file_that_is_no_kubeconfig_is_told_what_one_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.kc").write_text("not one")
    assert cli.run(["status", "--kubeconfig", str(tmp_path / "bad.kc")]) == 2
    said = capsys.readouterr().err
    assert "holds text that is no kubeconfig" in said
    assert "clusters, contexts and users" in said
