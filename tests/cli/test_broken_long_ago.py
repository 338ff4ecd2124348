"""The founding story, looked for before any work moves: a plugin that nobody saw break."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import cli
from infra.sandbox import run as sandbox


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "kubeconfig"
    with sandbox.start("plugin-broken-271-days", "eks", kubeconfig=path):
        yield path


def test_a_plugin_that_broke_long_ago_is_named_with_the_number_of_days(
    kubeconfig: Path, tmp_path: Path, prefect: None, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "revalidate.yaml"
    spec.write_text(
        "name: nightly\npools:\n- {kind: eks, region: us-east-2, cluster: train, name: gpu-old}\n"
        "probe_idle_nodes: false\n"
    )

    code = cli.run(["revalidate", str(spec), "--json", "--kubeconfig", str(kubeconfig)])

    shown = capsys.readouterr()
    assert code == 3, shown.err
    (pool,) = json.loads(shown.out)["pools"]
    assert "(271 days)" in pool["since"]
    assert "aws-efa-k8s-device-plugin" in pool["summary"]
