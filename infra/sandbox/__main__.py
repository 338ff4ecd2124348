"""`python -m infra.sandbox --scenario healthy --cloud eks --port N --kubeconfig FILE`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from infra.errors import PoolshiftError
from infra.sandbox.run import serve


def main() -> int:
    """Serve until a signal. Exit code of the error tree."""
    parser = argparse.ArgumentParser(prog="python -m infra.sandbox", description=__doc__)
    parser.add_argument("--scenario", default="healthy")
    parser.add_argument("--cloud", choices=("eks", "gke"), default="eks")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--kubeconfig", type=Path)
    parser.add_argument("--control-plane", choices=("embedded", "real"), default="embedded")
    parser.add_argument("--rate", type=float, help="seconds of the sandbox in one second; default: the scenario's")
    args = parser.parse_args()
    try:
        serve(
            args.scenario,
            args.cloud,
            port=args.port,
            kubeconfig=args.kubeconfig,
            control_plane=args.control_plane,
            rate=args.rate,
        )
    except PoolshiftError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
