"""What was misspelt is answered with what was probably meant, or with what there is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows import cli
from infra.fabrics import load
from infra.model.pools import MACHINE_LABEL, pool_names
from tasks import draining
from tasks.rules.nearest import did_you_mean, nearest


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("p5em.48xlarge", ["p5e.48xlarge", "p5en.48xlarge"]),
        ("p5en.48xlagre", ["p5en.48xlarge"]),
        ("P5EN.48xlarge", ["p5en.48xlarge"]),
        ("c7i.metal", []),
    ],
)
def test_every_name_that_is_as_near_is_offered(written: str, meant: list[str]) -> None:
    assert nearest(written, load()) == meant


def test_nothing_is_guessed_where_nothing_is_near_or_there_is_nothing() -> None:
    assert did_you_mean("x", []) == ""
    assert did_you_mean("training", ["gpu-old", "gpu-rdma"]) == ""
    assert did_you_mean("gpu-odl", ["gpu-old", "gpu-rdma"]) == "did you mean gpu-old?"


def test_a_family_of_machines_is_found_by_the_family_that_is_near(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text("hello\n")
    assert cli.run(["judge", str(tmp_path / "log"), "--machine", "p5em"]) == 2
    assert "did you mean --machine p5e.48xlarge or p5en.48xlarge?" in capsys.readouterr().err


def test_pools_are_called_by_their_most_specific_label() -> None:
    marked = {"eks.amazonaws.com/nodegroup": "gpu-old", MACHINE_LABEL: "p4d.24xlarge"}
    assert pool_names([marked, marked, {MACHINE_LABEL: "m5.large"}, {}]) == ["gpu-old", "m5.large"]


def test_a_pool_that_has_no_node_is_answered_with_those_that_have() -> None:
    missing = draining.no_such_pool("gpu-odl", ["gpu-old", "gpu-rdma"])
    assert (missing.expected, missing.remedy) == ("one of gpu-old, gpu-rdma", "did you mean --pool gpu-old?")
    assert draining.no_such_pool("x", []).remedy == "kubectl get nodes --show-labels"


def test_a_context_is_corrected_where_it_was_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contexts = [{"name": name, "context": {}} for name in ("prod", "dev")]
    (tmp_path / "k").write_text(json.dumps({"contexts": contexts, "clusters": [], "users": []}))
    assert cli.run(["status", "--kubeconfig", str(tmp_path / "k"), "--context", "prd"]) == 2
    assert "--context prod, or" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "unit"),
    [
        ("drain n --grace-period 30s", "--grace-period SECONDS: Seconds for each pod, e.g. 30"),
        ("drain n --evictions-per-second 5/s", "--evictions-per-second N: "),
        ("plan s --budget 10m", "--budget MINUTES: GPU-minutes"),
    ],
)
def test_a_number_that_cannot_be_read_is_answered_with_its_unit(
    line: str, unit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(line.split()) == 2
    assert f"expected {unit}" in capsys.readouterr().err
