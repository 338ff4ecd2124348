"""A process that goes on after a command is ended by the same signals as before it."""

from __future__ import annotations

import signal

import pytest

from flows import cli

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def handlers():
    return [signal.getsignal(number) for number in SIGNALS]


@pytest.mark.parametrize(("node", "code"), [("n1", 0), ("missing", 1)])
def test_a_drain_leaves_no_signal_ignored_or_taken(kube, build, kubeconfig, node, code):
    build.node("n1")
    before = handlers()
    assert cli.run(["drain", node, "--kubeconfig", kubeconfig]) == code
    assert handlers() == before
