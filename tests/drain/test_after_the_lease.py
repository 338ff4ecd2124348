"""A lease that is lost at any line that a move says: from then on it writes nothing, whatever it was about to do."""

from __future__ import annotations

import pytest

from infra.kube.api import Kube
from infra.kube.lines import Lines
from infra.model.spec import Drain
from tasks.drain import move
from tasks.steering import Steer

DRAIN = Drain.model_validate({"waves": {"size": 1}})
OLD, NEW = ("old-0", "old-1"), ("new-0", "new-1")
# Room is kept, the first wave cordoned, a replica started, a checkpoint asked for, the gang stopped, the last wave.
LINES = (0, 1, 2, 3, 5, 8)


@pytest.fixture
def pools(build, kubelet):
    for name in OLD:
        build.node(name, "old")
    for name in NEW:
        build.node(name, "new", unschedulable=True)
    build.deployment("web", 4, budget={"maxUnavailable": 2})
    build.deployment("single", 1)
    build.job("train", 2, gpus=4)
    build.until_ready(7)
    for name in NEW:
        build.uncordon(name)
    return build


@pytest.fixture
def writes(monkeypatch):
    """What the move sends that is no read, over the client's connections and over those of a drain."""
    sent = []

    def note(owner, name, kube_of):
        send = getattr(owner, name)

        def noted(this, method, path, *args, **more):
            if method != "GET" and kube_of(this).barred.__name__ == "barred":  # others write too, unguarded
                sent.append(f"{method} {path}")
            return send(this, method, path, *args, **more)

        monkeypatch.setattr(owner, name, noted)

    note(Kube, "open", lambda kube: kube)
    note(Lines, "send", lambda lines: lines._kube)
    return sent


@pytest.mark.parametrize("line", LINES)
def test_nothing_is_written_after_it(line, kube, pools, fast_clock, checkpointing, writes):
    said, before = [], []

    def barred():
        return "taken over by r1/elsewhere" if before else ""

    def say(text):
        said.append(text)
        if len(said) == line + 1:
            before.append(len(writes))

    with checkpointing("train", fast_clock):
        report = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, say, steer=Steer(barred=barred))

    assert writes[before[0] :] == [], said
    assert before[0] > 0
    assert "the lease is lost: taken over by r1/elsewhere" in report.reason
