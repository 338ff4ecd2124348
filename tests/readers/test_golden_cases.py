from __future__ import annotations

import json

import pytest
from case_files import Case, cases, differences

from infra.model.verdict import Outcome
from tasks.judge import judge

KINDS = ("nccl-log", "nccl-tests", "storage", "fabric", "k8s")


@pytest.mark.parametrize("case", list(cases(*KINDS)), ids=lambda c: c.name)
def test_reads_what_the_real_output_says(case: Case) -> None:
    """Every figure and verdict of the case, and none of the claims that would be false."""
    answer = json.loads(json.dumps(judge(case.input).to_json()))
    assert differences(case.expect, answer) == []


@pytest.mark.parametrize("case", list(cases(*KINDS)), ids=lambda c: c.name)
def test_an_excerpt_is_no_proof(case: Case) -> None:
    """Trimmed outputs lack ranks, ends or expectations: none of them opens a gate."""
    result = judge(case.input)
    assert result.outcome is not Outcome.PASS
    assert result.exit_code in {3, 4}
    assert result.lines()
