"""Where poolshift keeps what is its own on this machine: reports, the ledger, its Prefect server's files."""

from __future__ import annotations

import os
from pathlib import Path

from infra.errors import BadSpec


def home() -> Path:
    """$POOLSHIFT_HOME, else the XDG state folder; made if absent. Raises BadSpec when it cannot be."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    path = Path(os.environ.get("POOLSHIFT_HOME") or f"{state}/poolshift").expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise BadSpec(
            f"POOLSHIFT_HOME {path}", f"cannot be made: {cause.strerror or cause}", remedy="name a folder of your own"
        ) from cause
    return path
