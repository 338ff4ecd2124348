"""The budget of GPU-minutes: one for the run, whoever goes on with it, and never overdrawn by what is under way."""

import json
import re

import pytest

from flows import cli
from flows.commands.options import load_spec
from infra.kube import records
from infra.model.spec import MigrationSpec, Validation
from infra.probes import catalogue
from tasks import planning
from tasks.rules import cost
from tasks.spending import Spending, read_note

PROOF = catalogue.transport_proof(Validation())
NEED = cost.of(PROOF, 2, 8)


def spending(**given):
    return Spending(kube=None, run="r", **{"budget": 100.0, **given})


def test_what_is_under_way_counts_with_its_estimate_until_its_cost_is_known():
    run = spending()
    run.begin("a", 30.0)
    assert run.left() == 70
    run.end("a", 12.5)
    assert run.left() == 87.5


def test_a_probe_taken_up_again_after_a_kill_has_its_share_already():
    run = spending(budget=NEED, held={"t/transport-proof": NEED})
    assert run.refusal(PROOF, 2, 8, "t/transport-proof") == ""
    assert "0 of" in run.refusal(PROOF, 2, 8, "other")


def test_a_probe_whose_end_is_not_known_stays_counted_with_its_estimate():
    run = spending(spent=10.0)
    run.begin("a", 30.0)
    run.begin("b", 5.0)
    run.end("b", 4.0)
    assert run.counted == 44


def test_what_a_killed_process_has_counted_is_neither_counted_twice_nor_forgotten():
    """The process was killed before it could delete the Job that it had counted, or after that."""
    first = spending()
    first.begin("a", 30.0)
    first.count("a", "job-1", 12.0)

    def next_one():
        return spending(held={"a": 30.0}, known={"a": {"job-1": 12.0}})

    assert (first.held, first.known) == (next_one().held, next_one().known)
    assert next_one().left("a") == 88

    adopted = next_one()
    adopted.begin("a", 30.0)
    adopted.count("a", "job-1", 13.0)
    adopted.end("a", 13.0)
    assert adopted.counted == 13

    anew = next_one()
    anew.begin("a", 30.0)
    anew.count("a", "job-2", 10.0)
    anew.end("a", 10.0)
    assert anew.counted == 22


def test_a_budget_is_never_overdrawn_below_zero():
    assert spending(spent=250.0).left() == 0


@pytest.mark.parametrize(
    "note",
    [
        None,
        [],
        "x",
        {"spent": "many", "held": [1], "known": {"a": 1}},
        {"spent": -3, "held": {"a": "b"}, "known": {"a": {"u": -1}}},
        {"spent": float("inf")},
    ],
)
def test_a_note_that_cannot_be_read_gives_no_credit(note):
    """Nothing negative and nothing endless comes out of it."""
    spent, held, known = read_note(note)
    assert 0 <= spending(spent=spent, held=held, known=known).left() <= 100


def test_raising_the_budget_does_not_make_another_spec_of_it():
    """A run that its budget stopped goes on with a larger one; its evidence is as good as before."""
    spec = {"name": "m", "validation": {"budget_gpu_minutes": 600.0, "train_steps": 40}}
    raised = {**spec, "validation": {**spec["validation"], "budget_gpu_minutes": 900.0}}
    other = {**spec, "validation": {**spec["validation"], "train_steps": 41}}
    assert records.spec_hash(json.dumps(spec)) == records.spec_hash(json.dumps(raised))
    assert records.spec_hash(json.dumps(spec)) != records.spec_hash(json.dumps(other))


def test_two_scouts_cost_a_hundredth_of_the_whole():
    whole = cost.estimate(catalogue.all_probes(Validation()), 2, 8).gpu_minutes
    assert cost.of(catalogue.scout(catalogue.workload_path(Validation())), 2, 8) < 0.02 * whole


def test_the_command_line_sets_the_budget_for_this_time_and_the_run_stays_the_same():
    given = load_spec("infra/examples/eks-p5en.yaml", MigrationSpec, None, None)
    raised = load_spec("infra/examples/eks-p5en.yaml", MigrationSpec, None, None, 900.0)
    assert raised.validation.budget_gpu_minutes == 900.0
    assert records.spec_hash(given.model_dump_json()) == records.spec_hash(raised.model_dump_json())


@pytest.mark.parametrize("command", ["plan", "migrate", "revalidate"])
@pytest.mark.parametrize("budget", ["0", "-1", "many"])
def test_a_budget_that_is_none_is_a_usage_error(command, budget, capsys):
    assert cli.run([command, "infra/examples/eks-p5en.yaml", "--budget", budget]) == 2
    assert "--budget" in capsys.readouterr().err


def test_both_pools_are_in_the_estimate_of_a_plan():
    baseline = cost.estimate(catalogue.baseline_probes(Validation()), 2, 8)
    both = baseline.named("baseline").plus(cost.estimate(catalogue.all_probes(Validation()), 2, 8))
    assert "baseline train-step" in both.wording()
    assert "GPU-minutes" in both.wording()
    assert both.gpu_minutes > baseline.gpu_minutes


@pytest.mark.parametrize("minutes", [(37.4, 37.4, 56.3, 24.000000001, 0.0, 147.6), (0.2, 0.2), (1.0,)])
def test_a_total_of_gpu_minutes_is_the_sum_of_the_parts_beside_it_and_enough(minutes):
    made = cost.Estimate(items=tuple(cost.Cost(probe=f"p{i}", gpu_minutes=m) for i, m in enumerate(minutes)))
    total, *parts = (int(n) for n in re.findall(r"(?<![p\d])\d+", made.wording()))
    assert total == sum(parts) == made.whole_minutes >= made.gpu_minutes - 1e-6


def test_a_budget_below_one_is_not_shown_as_none():
    probe = catalogue.transport_proof(Validation())
    assert "0.1 of 0.1 are left" in cost.over_budget(probe, 2, 8, left=0.1, budget=0.1)
    (finding,) = planning._over_budget(cost.estimate([probe], 2, 8), 0.1)
    assert finding.observed.startswith("0.1, and the validation needs about ")
