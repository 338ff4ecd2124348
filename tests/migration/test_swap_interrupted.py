"""A signal in the second slice of a swap, while work leaves and while machines do: it stops, and goes on from there."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from infra.model.record import Step, StepState
from infra.model.spec import MigrationSpec
from tests.migration.looks import pool_nodes
from tests.migration.swapping import slices, workloads
from tests.migration.test_steered import of_ours, read_until, the_rest

ENDS = {signal.SIGINT: 130, signal.SIGTERM: -signal.SIGTERM}


def interrupt(process: subprocess.Popen[str], sign: signal.Signals, *words: str) -> None:
    """Send it the signal once it has said these words, one after another; it says how to go on."""
    for said in words:
        read_until(process, said)
    process.send_signal(sign)
    code, err = the_rest(process)
    assert code == ENDS[sign], err
    assert "the same command" in err


@pytest.mark.slow
@pytest.mark.parametrize("sign", ENDS)
def test_a_swap_goes_on_after_a_signal_in_its_second_slice(stage: Callable[..., Any], sign: signal.Signals) -> None:
    here = stage("reservation-shared", "eks")
    written = yaml.safe_load(here.spec.read_text()) | {"cluster": {"kubeconfig": str(here.kubeconfig)}}
    spec = MigrationSpec.model_validate(written)
    before = workloads(spec)

    # While work leaves the slice: it is opened again, and nothing is given up.
    interrupt(here.start("migrate", str(here.spec)), sign, "slice 2 of 2", "cordoning")
    found = slices(spec)
    assert (found[1]["stage"], found[2]["stage"]) == ("open", "chosen")
    source = of_ours(here.kube)
    assert sorted(source) == sorted(found[2]["nodes"])
    assert not any(source.values()), source

    # While its machines are given up: they were proven empty, and stay closed until they are gone.
    interrupt(here.start("migrate", str(here.spec)), sign, "slice 2: giving up")
    found = slices(spec)
    assert found[2]["stage"] in ("drained", "giving")
    assert all("cordoned" in marks for marks in of_ours(here.kube).values())
    asked = found[2]["nodes"]

    ended = here.migrate()
    assert ended.code == 0, ended.err
    assert here.record().steps[Step.RETIRE].state is StepState.DONE
    found = slices(spec)
    assert [(n, s["stage"], len(s["new"])) for n, s in sorted(found.items())] == [(1, "open", 2), (2, "open", 2)]
    assert found[2]["nodes"] == asked
    assert (len(pool_nodes(here.kube, "gpu-old")), len(pool_nodes(here.kube, "gpu-rdma"))) == (0, 4)
    assert workloads(spec) == before
