"""A revalidation that does not pass ends with what to type."""

from __future__ import annotations

import pytest

from flows import present
from infra.model.spec import EksPool
from infra.model.verdict import Finding, Level, Outcome, Verdict
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
