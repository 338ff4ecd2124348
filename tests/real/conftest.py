"""The real control plane of this session: started once, stopped always."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.sandbox import real


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest) -> Iterator[real.RealControlPlane]:
    """One for all tests of this folder. Its absence is an error where the real one was asked for."""
    if os.environ.get("POOLSHIFT_REAL_API") != "1" and request.config.option.markexpr != "real":
        pytest.skip("`make test-real` runs these")
    with real.start(os.environ.get("POOLSHIFT_REAL_VERSION")) as started:
        yield started


@pytest.fixture(scope="session")
def kubeconfig(plane: real.RealControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The administrator's kubeconfig as a file."""
    path = tmp_path_factory.mktemp("kube") / "config"
    path.write_text(json.dumps(plane.kubeconfig_dict))
    return path


@pytest.fixture(scope="session")
def kubectl(kubeconfig: Path) -> list[str]:
    """The start of a kubectl command line as the administrator."""
    return ["kubectl", f"--kubeconfig={kubeconfig}"]
