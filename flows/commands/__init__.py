"""The commands, in the order of `poolshift --help`, and how a command line is run with them.

Their imports are lazy: `poolshift --help` answers at once, and `judge` never loads Prefect.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from flows import console
from flows.commands import alone, migrations, options, runs, servers
from infra.errors import BadSpec, PoolshiftError
from tasks import progress

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Move GPU workloads to a new RDMA-capable node pool, and retire the old one only after measured gates pass.",
    epilog="Exit codes: 0 done or pass, 1 error, 2 usage or bad spec, 3 gate held (fail), 4 unmeasured, "
    "5 refused by the plan, 130 interrupted.",
)
for command in (
    *(migrations.plan, migrations.migrate, migrations.revalidate, migrations.rollback),
    *(runs.approve, runs.pause, runs.resume, runs.cancel, runs.status, runs.report),
    *(alone.judge, alone.audit, alone.blockers, alone.drain),
    *(servers.sandbox, servers.serve, servers.demo),
):
    app.command()(command)


@app.callback()
def _of_all(
    version: Annotated[bool, typer.Option("--version", help="Say which version this is, and end")] = False,
) -> None:
    """Options of no command; `invoke` answers them, so that `--version` works without one."""


# Every complaint about the command line derives from it; typer does not export it by name.
_USAGE: Any = typer.BadParameter.__mro__[2]
_INTERRUPTED = 130  # as shells say of a process that SIGINT ended


def invoke(arguments: list[str]) -> int:
    """Run one command line and return its exit code. Our errors become words; an interrupt is the caller's."""
    if arguments == ["--version"]:
        from importlib.metadata import version

        sys.stdout.write(f"poolshift {version('poolshift')}\n")
        return 0
    progress.reword(None)  # what another command line was given
    before = options.AS_JSON.set("--json" in arguments)
    try:
        code = int(app(args=_as_kubectl(arguments), prog_name="poolshift", standalone_mode=False) or 0)
    except PoolshiftError as error:
        console.show_error(error, as_json="--json" in arguments)
        return error.exit_code
    except typer.Exit as stop:
        return int(stop.exit_code)
    except _USAGE as error:
        error.show()
        _explain(error)
        return 2
    except typer.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output left; a traceback would tell nobody anything
        return 141  # as a shell says of a process that a closed pipe ended
    finally:
        options.AS_JSON.reset(before)
    if code == _INTERRUPTED:  # typer's answer to a Ctrl-C, which it keeps to itself; no command gives it
        raise KeyboardInterrupt
    return code


def _explain(error: Any) -> None:
    """What the option takes, whose value cannot be read: its unit and an example, as the help says them."""
    option: Any = getattr(error, "param", None)
    if isinstance(error, typer.BadParameter) and getattr(option, "help", None):
        unit = f" {option.metavar}" if option.metavar else ""
        sys.stderr.write(f"  expected {max(option.opts, key=len)}{unit}: {option.help}\n")


def _as_kubectl(arguments: list[str]) -> list[str]:
    """Switches of `drain` as users of kubectl write them: --force=true, --dry-run=server.

    Raises BadSpec for a flag of kubectl drain that there is not, with the reason.
    """
    if arguments[:1] != ["drain"]:
        return arguments
    given = [argument.partition("=") for argument in arguments]
    for name, _, value in given:
        if name in alone.KUBECTL_ONLY and value not in _UNUSED:
            why, instead = alone.KUBECTL_ONLY[name]
            raise BadSpec(f"poolshift drain {name}", why, expected="kubectl's flag left out", remedy=instead)
    off = {"--dry-run": ("none", "false")}
    on = {"--dry-run": ("client", "server", "true")}
    kept: list[str] = []
    for name, equals, value in given:
        switch = equals and name in _SWITCHES
        if name in alone.KUBECTL_ONLY or (switch and value in off.get(name, ("false",))):
            continue
        kept.append(name if switch and value in on.get(name, ("true",)) else name + equals + value)
    return kept


_UNUSED = ("false", "0", "0s")  # given, and asks for nothing
_SWITCHES = ("--dry-run", "--ignore-daemonsets", "--delete-emptydir-data", "--force")
