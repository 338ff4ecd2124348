"""What comes out of a sandbox says so, whatever the command."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from flows import cli
from flows.commands.options import cluster_of, load_spec
from infra.kube.kubeconfig import EXTENSION
from infra.model.spec import MigrationSpec
from tasks import progress

SPEC = Path(__file__).parents[2] / "infra" / "examples" / "sandbox-eks.yaml"
CLOCK = {"clock": {"origin": "2026-01-01T00:00:00Z", "started": 0.0, "rate": 60.0}}


def kubeconfig(where: Path) -> str:
    clusters = [
        {"name": "live", "cluster": {"server": "http://127.0.0.1:1"}},
        {
            "name": "toy",
            "cluster": {
                "server": "http://127.0.0.1:2",
                "extensions": [{"name": EXTENSION, "extension": CLOCK}],
            },
        },
    ]
    contexts = [{"name": c["name"], "context": {"cluster": c["name"], "user": "u"}} for c in clusters]
    path = where / "config"
    given = {"clusters": clusters, "contexts": contexts, "users": [{"name": "u", "user": {}}], "current-context": "toy"}
    path.write_text(yaml.safe_dump(given))
    return str(path)


def test_commands_to_type_name_files_as_they_can_be_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC.read_text())
    monkeypatch.chdir(tmp_path)
    load_spec("spec.yaml", MigrationSpec, "config", None)
    assert (
        progress.complete("poolshift plan SPEC")
        == f"poolshift plan --kubeconfig {tmp_path}/config {tmp_path}/spec.yaml"
    )
    cluster_of("config", None)
    assert progress.complete("poolshift status") == f"poolshift status --kubeconfig {tmp_path}/config"
    progress.reword(None)


def test_each_command_of_a_sandbox_says_once_that_it_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = kubeconfig(tmp_path)
    for given, times in (((path, None), 1), ((path, "toy"), 1), ((path, "live"), 0), ((str(tmp_path / "no"), None), 0)):
        cluster_of(*given)
        assert capsys.readouterr().err.count("simulated: ") == times, given
        load_spec(str(SPEC), MigrationSpec, *given)
        assert capsys.readouterr().err.count("simulated: ") == times, given
    assert cli.run(["audit", "--kubeconfig", path, "--json"]) != 0
    assert capsys.readouterr().err == ""
