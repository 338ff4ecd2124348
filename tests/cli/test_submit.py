"""`migrate --submit`: at which Prefect, what it says where there is none, and how the run's end is told."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from flows import cli, orchestrator, submit
from infra.errors import GateHeld, Refused, Unreachable
from infra.model.record import Step, StepRecord, StepState

SPEC = Path(__file__).parents[2] / "infra" / "examples" / "sandbox-eks.yaml"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home without a server, and no API named; what a test's API leaves in the environment goes with it."""
    own = {"PREFECT_HOME": str(tmp_path), "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"}
    for name, value in {**orchestrator.QUIET, **own}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("POOLSHIFT_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_URL", "")
    return tmp_path


class _Well(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


def test_without_a_prefect_it_says_so_at_once_and_starts_none(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["migrate", str(SPEC), "--submit"]) == 1
    said = capsys.readouterr().err
    assert "PREFECT_API_URL is not set and no poolshift serve runs here" in said
    assert "poolshift serve in another shell" in said
    assert "export PREFECT_API_URL=http" in said
    assert not (alone / "prefect").exists()


def test_it_goes_to_the_server_that_serve_of_the_same_home_made_known(alone: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Well)
    threading.Thread(target=server.serve_forever).start()
    url = f"http://127.0.0.1:{server.server_port}/api"
    try:
        (alone / "server.json").write_text(json.dumps({"url": url, "pid": 1}))
        with orchestrator.served_api() as found:
            assert found == url
    finally:
        server.shutdown()
        server.server_close()


def test_what_to_type_next_is_not_hidden_in_what_was_observed() -> None:
    held = submit.failure(
        "Flow run encountered an exception: GateHeld: gate: held. fail: readiness; expected every verdict pass; "
        "next: kubectl set image x; and run again",
        "run",
        "id",
    )
    assert isinstance(held, GateHeld)
    assert (held.observed, held.expected) == ("gate: held. fail: readiness", "every verdict pass")
    assert held.remedy.startswith("kubectl set image x; and run again")
    assert "poolshift status run" in held.remedy
    assert isinstance(submit.failure("Refused: no", "run", "id"), Refused)
    crashed = submit.failure("Flow run process exited with status code 9", "run", "id")
    assert isinstance(crashed, Unreachable)
    assert crashed.remedy.startswith("poolshift status run")


@pytest.mark.parametrize(
    ("summary", "said"),
    [("held. fail: readiness", "held: fail: readiness"), ("4 nodes left", "held: 4 nodes left"), ("", "held")],
)
def test_a_step_does_not_say_its_state_twice(summary: str, said: str) -> None:
    assert StepRecord(step=Step.GATE, state=StepState.HELD, started="", summary=summary).standing == said
