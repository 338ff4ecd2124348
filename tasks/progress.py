"""One progress line on standard error, which leaves standard output to results."""

from __future__ import annotations

import sys
from datetime import datetime


def say(text: str) -> None:
    """Write one line with the local time."""
    stamp = datetime.now().astimezone().strftime("%H:%M:%S")
    sys.stderr.write(f"{stamp}  {text}\n")
    sys.stderr.flush()
