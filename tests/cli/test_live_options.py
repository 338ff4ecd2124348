"""An option's help says what is true of the command."""

from __future__ import annotations

import inspect

import pytest

from flows import cli
from flows.commands import app

_CALLED = [c.callback for c in app.registered_commands if c.callback]
COMMANDS = {called.__name__: set(inspect.signature(called).parameters) for called in _CALLED}
LIVE = sorted(name for name, takes in COMMANDS.items() if "kubeconfig" in takes and "spec" not in takes)


def test_a_command_that_takes_no_spec_does_not_speak_of_the_specs_own_cluster(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert {"status", "pause", "drain", "audit"} <= set(LIVE)
    for name in LIVE:
        assert cli.run([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert "the spec's" not in said
    assert said.count("current one") >= 4


def test_a_command_that_takes_a_spec_says_that_the_cluster_is_its(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plan", "--help"]) == 0
    assert "the spec's" in capsys.readouterr().out
