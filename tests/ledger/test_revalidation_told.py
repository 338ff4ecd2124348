"""A revalidation that does not pass ends with what to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows import present
from infra.model.spec import EksPool
from infra.model.verdict import Finding, Level, Outcome, Verdict
from tasks import ledgers
from tasks.revalidation import _shape


def test_a_pool_that_fails_is_told_with_the_command_that_mends_its_first_cause(
    capsys: pytest.CaptureFixture[str],
) -> None:
    image = Finding(level=Level.BLOCK, code="plugin-image-missing", object="daemonset a", observed="x", remedy="set it")
    short = Finding(level=Level.BLOCK, code="devices-missing", object="pool p", observed="0", remedy="look at it")
    part = EksPool.model_validate({"kind": "eks", "region": "us-east-2", "cluster": "c", "name": "p"})
    failed = Verdict(check="readiness", outcome=Outcome.FAIL, reason="no plugin", findings=(image, short))
    passed = Verdict(check="readiness", outcome=Outcome.PASS, reason="ready", findings=(image,))
    bad, good = (_shape(part, [v], "", "", simulated=True) for v in (failed, passed))

    assert (bad["next"], good["next"]) == (["set it"], [])
    present.revalidation({"run": "r", "pools": [bad, good]}, as_json=False)
    told = capsys.readouterr()
    assert (told.out + told.err).count("set it") == 1
    assert "look at it" not in told.out + told.err


def test_the_last_proof_is_the_newest_pass_of_this_pool_and_of_this_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POOLSHIFT_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.setenv("POOLSHIFT_HOME", str(tmp_path))
    assert ledgers.last_pass("p", "transport-proof", simulated=False) == ""
    for day, outcome, pool, simulated in (
        (1, Outcome.PASS, "p", False),
        (2, Outcome.PASS, "p", False),
        (3, Outcome.FAIL, "p", False),
        (4, Outcome.PASS, "p", True),
        (5, Outcome.PASS, "q", False),
    ):
        proof = Verdict(check="transport-proof", outcome=outcome)
        ledgers.keep("r", pool, f"2026-01-0{day}T00:00:00Z", verdicts=[proof], simulated=simulated)
    assert ledgers.last_pass("p", "transport-proof", simulated=False) == "2026-01-02T00:00:00Z"
