"""A Prefect for commands that are run in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows import orchestrator


@pytest.fixture
def prefect(prefect_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The one of all; what its client holds back is sent before it may be gone."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_url)
    yield
    orchestrator.flush()
