"""`poolshift report --verify` on a ledger that a sandbox's cluster remembers the end of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flows import cli
from infra.errors import Unreachable
from infra.kube import api
from infra.kube.api import Kube
from infra.ledger import Entry, Ledger
from infra.ledger.store import ENTRIES, RAW
from infra.model.evidence import Evidence
from infra.model.spec import Cluster, RevalidationSpec
from infra.model.verdict import Outcome, Verdict
from infra.sandbox import run as sandbox
from tasks import heads, ledgers, revalidation
from tasks.validate import Validation


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("sandbox") / "kubeconfig"
    with sandbox.start("healthy", "eks", kubeconfig=path):
        yield path


@pytest.fixture
def kube(kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kube:
    """The cluster, with a home and a ledger of this test's own."""
    monkeypatch.setenv("POOLSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("POOLSHIFT_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    return api.connect(Cluster(kubeconfig=str(kubeconfig)))


def keep(kube: Kube | None, count: int = 3) -> None:
    raw = b"NCCL INFO Using network Socket"
    for number in range(count):
        seen = Evidence(
            probe="bandwidth", mode="pinned", pool="p", machine_type="p5en.48xlarge", nodes=(ledgers.location(),),
            node_uids=(), spec_hash="", measured=f"2026-01-0{number + 1}T00:00:00Z", raw_digest="",
        )  # fmt: skip
        verdict = Verdict(check="transport-proof", outcome=Outcome.FAIL, reason="sockets")
        ledgers.keep("moved", "p", seen.measured, verdicts=[verdict], evidence=[seen], raw={"": raw}, kube=kube)


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = cli.run(["report", "--verify", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def change(statement: Any) -> None:
    with Ledger.open(ledgers.location()) as ledger, ledger._engine.begin() as connection:
        connection.execute(statement)


def test_a_ledger_that_is_what_was_written_passes_and_says_with_what_its_end_was_compared(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(kube)
    code, found = report(capsys)

    assert (code, found["outcome"], found["entries"]) == (0, "pass", 6)
    assert found["compared"] == ["this machine", "the cluster"]
    assert cli.run(["report", "moved", "--verify"]) == 0
    assert "pass: ledger sqlite" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("statement", "first"),
    [
        (ENTRIES.update().where(ENTRIES.c.seq == 2).values(outcome="pass"), 2),
        (ENTRIES.update().where(ENTRIES.c.seq == 5).values(at="2026-01-04T00:00:00Z"), 5),
        (RAW.update().values(data=b"x"), 1),
        (ENTRIES.delete().where(ENTRIES.c.seq == 3), 3),
        (ENTRIES.delete().where(ENTRIES.c.seq == 6), 6),
        (ENTRIES.delete().where(ENTRIES.c.seq >= 2), 2),
        (ENTRIES.delete(), 1),
    ],
    ids=["verdict", "time", "raw output", "a row", "the last row", "all but the first", "everything"],
)
def test_a_change_anywhere_is_named_by_its_first_entry_with_what_was_expected(
    kube: Kube, capsys: pytest.CaptureFixture[str], statement: Any, first: int
) -> None:
    keep(kube)
    change(statement)
    code, found = report(capsys)

    assert code == 3
    assert found["first"]["entry"] == first
    assert found["first"]["expected"]
    assert cli.run(["report", "--verify"]) == 3
    assert f"entry {first} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("statement", "more"),
    [
        (ENTRIES.delete().where(ENTRIES.c.seq >= 5), 1),
        (ENTRIES.delete().where(ENTRIES.c.seq >= 5), 3),
        (ENTRIES.delete().where(ENTRIES.c.seq >= 2), 3),
    ],
    ids=["as many as before", "more than before", "nearly all anew"],
)
def test_entries_written_after_others_were_dropped_do_not_hide_it(
    kube: Kube,
    capsys: pytest.CaptureFixture[str],
    statement: Any,
    more: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep(kube)
    change(statement)
    keep(kube, more)

    assert report(capsys)[0] == 3
    monkeypatch.setenv("POOLSHIFT_HOME", str(tmp_path / "another"))  # only the cluster remembers there
    assert report(capsys)[0] == 3


def test_a_ledger_begun_in_the_place_of_another_is_no_pass_and_says_what_to_do(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the other one held cannot be told from this one."""
    keep(kube)
    change(ENTRIES.delete())
    ledgers.decide("another", "p", "2026-02-01T00:00:00Z", "approval", "migrate", {}, True, kube)
    code, found = report(capsys)

    assert (code, found["outcome"], len(found["notes"])) == (4, "unmeasured", 2)
    assert all("another ledger in this place, of 6 entries" in note for note in found["notes"])
    assert cli.run(["report", "--verify"]) == 4
    assert "next: put the other ledger back" in capsys.readouterr().out


def test_another_ledger_in_the_place_of_one_that_is_remembered_is_no_pass(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(kube)
    change(ENTRIES.delete())
    with Ledger.open(ledgers.location()) as ledger:
        from infra.ledger import Entry

        ledger.append(Entry(at="2026-01-01T00:00:00Z", kind="verdict", run="moved", pool="p", subject="s"))
    code, found = report(capsys)

    assert code == 3
    assert "another ledger" in found["first"]["what"]


def test_a_whole_chain_whose_end_nobody_remembers_is_unmeasured(
    kube: Kube, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(None)
    monkeypatch.setenv("POOLSHIFT_HOME", str(tmp_path / "another"))
    code, found = report(capsys)

    assert (code, found["outcome"], found["breaks"]) == (4, "unmeasured", [])
    assert len(found["notes"]) == 2


def test_without_a_cluster_the_end_that_this_machine_remembers_decides_and_that_is_said(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(kube)
    code, found = report(capsys, "--kubeconfig", "/nowhere")

    assert (code, found["compared"]) == (0, ["this machine"])
    assert "/nowhere" in found["notes"][0]


def test_a_ledger_that_is_not_there_is_not_made_by_looking_for_it(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = report(capsys)

    assert (code, found["error"]) == (1, "NotFound")
    assert not Path(ledgers.location()).exists()


def test_a_run_that_the_ledger_does_not_know_is_not_verified(kube: Kube, capsys: pytest.CaptureFixture[str]) -> None:
    keep(kube)
    code, found = report(capsys, "unknown")

    assert (code, found["object"], found["expected"]) == (1, "run unknown", "one of: moved")
    assert found["next"].startswith("poolshift report moved --verify")


def test_a_report_without_a_name_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report"]) == 2


def test_the_cluster_keeps_one_head_for_each_ledger_and_only_the_newest(kube: Kube) -> None:
    from infra.kube import heads

    before = len(heads.read(kube))
    keep(kube)
    keep(kube)
    assert len(heads.read(kube)) == before + 1
    assert max(h["seq"] for h in heads.read(kube)) == 12


def test_revalidation_finds_a_pool_that_slid_from_its_own_past_and_says_nothing_of_a_young_one(kube: Kube) -> None:
    pool = {"kind": "eks", "region": "us-east-2", "cluster": "train", "name": "gpu-old"}
    spec = RevalidationSpec.model_validate({"pools": [pool]})

    def measured(day: int, gb_s: float) -> dict[str, Any]:
        row = {"round": 0, "size_bytes": 1 << 28, "time_us": 1.0, "algbw_gb_s": 1.0, "busbw_gb_s": gb_s}
        seen = Evidence(
            probe="transport-proof", mode="pinned", pool="arn", machine_type="p5en.48xlarge", nodes=("a", "b"),
            node_uids=("1", "2"), spec_hash="s", measured=f"2026-01-0{day}T00:00:00Z", complete=True,
            reading={"complete": True, "rows": [row]}, simulated=True,
        ).seal()  # fmt: skip
        proven = Verdict(check="transport-proof", outcome=Outcome.PASS, reason="RDMA on every rank")
        proof = Validation(verdicts=(proven,), evidence=(seen,))
        return revalidation._result(kube, spec, spec.pools[0], [proven], proof, "", print)

    young = [measured(day, 350.0) for day in (1, 2, 3)]
    assert [(f["outcome"], f["since"], f["drift"]["outcome"]) for f in young] == [("pass", "", "unmeasured")] * 3
    assert measured(4, 340.0)["drift"]["outcome"] == "pass"
    slid = measured(5, 300.0)
    assert slid["outcome"] == "fail"
    assert "14% worse than 350 GB/s" in slid["summary"]
    assert slid["since"].startswith("2026-01-05")
    again = measured(6, 300.0)
    assert again["since"].startswith("2026-01-05")


def test_heads_that_are_remembered_at_once_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each into its own file first: with one name for all, the second found its own moved away."""
    monkeypatch.setenv("POOLSHIFT_HOME", str(tmp_path))

    def run(number: int) -> None:
        with Ledger.open(str(tmp_path / f"{number}.db")) as ledger:
            for at in range(5):
                ledger.append(Entry(at=str(at), kind="run", run="r", pool="p", subject="s"))
                heads.remember(ledger, None, str(at))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(8)))
    assert heads.of_machine()
    assert not list(tmp_path.glob("*.part"))


def test_a_home_that_takes_no_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setenv("POOLSHIFT_HOME", str(tmp_path))
    (tmp_path / "ledger-heads.json").mkdir()
    with Ledger.open(str(tmp_path / "l.db")) as ledger:
        ledger.append(Entry(at="t", kind="run", run="r", pool="p", subject="s"))
        with pytest.raises(Unreachable, match=r"ledger-heads\.json"):
            heads.remember(ledger, None, "t")
