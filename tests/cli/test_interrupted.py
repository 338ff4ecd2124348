"""Ctrl-C at any moment of a command: one line and exit code 130, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Sends SIGINT to itself at the moment when a module is looked for, as the console script starts the program.
AT_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs have it ignored
module = sys.argv[1]
class Here:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            if len(sys.argv) > 2 and sys.argv[-1] == "-":
                raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()  # as Python 3.11 words it
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Here())
from flows.cli import main
sys.argv[:2] = ["poolshift"]
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("flows.commands", "--help"),
        ("typer", "--version"),
        ("infra.errors", "plan SPEC"),
        ("flows.commands.servers", "serve"),
        ("flows.specs", "plan infra/examples/eks-p5en.yaml"),
        ("pydantic", "status"),
        ("tasks.judge", "judge README.md"),
        ("tasks.judge", "judge -"),
    ],
)
def test_an_interrupt_while_the_program_loads_is_one_line_and_exit_code_130(module: str, command: str) -> None:
    line = [sys.executable, "-c", AT_IMPORT, module, *command.split()]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)

    assert done.returncode == 130
    assert done.stderr.strip().splitlines() == ["interrupted; run the same command again to continue"]
    assert done.stdout == ""
