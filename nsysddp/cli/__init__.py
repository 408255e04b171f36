"""The ``nsysddp`` command: thin commands, loaded when called; the only room that knows exit codes."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import io
import sys
from importlib import import_module

import click

import nsysddp
from nsysddp.model.errors import NoGpuEvents, NsysddpError, RankConflict, ReportError, UsageError

EXIT_CODES = {
    0: "ok",
    1: "anything unforeseen, or a claim that fails (check)",
    2: "usage",
    3: "unreadable input",
    4: "no GPU events to analyse",
    5: "rank conflict",
    6: "undecidable: the trace cannot tell (check)",
}
"""Every exit code with its meaning; the README's table is made from it."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

COMMANDS = (
    "analyze",
    "timeline",
    "critical-path",
    "diagnose",
    "whatif",
    "buckets",
    "contention",
    "idle",
    "compare",
    "check",
    "evidence",
    "verify",
    "report",
    "export",
    "redact",
    "capture",
    "sweep",
    "runs",
    "query",
    "doctor",
    "demo",
)


class _LazyGroup(click.Group):
    """Imports a command's module only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [name for name in COMMANDS if _exists(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS or not _exists(cmd_name):
            return None
        command = import_module(_module(cmd_name)).command
        assert isinstance(command, click.Command)
        return command


def _module(name: str) -> str:
    return f"nsysddp.cli.{name.replace('-', '_')}"


def _exists(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(_module(name)) is not None


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(nsysddp.__version__, prog_name="nsysddp")
def cli() -> None:
    """Prove from Nsight Systems traces how much communication is really hidden, and what to change."""


def exit_code(error: NsysddpError) -> int:
    """The documented exit code of an error."""
    if isinstance(error, UsageError):
        return 2
    if isinstance(error, RankConflict):
        return 5
    if isinstance(error, NoGpuEvents):
        return 4
    if isinstance(error, ReportError):
        return 3
    return 1


def main(argv: list[str] | None = None) -> None:
    """Run the command line; errors become one line on stderr and an exit code."""
    # At exit Python looks for garbage in everything that was imported; the system takes it all back anyway.
    atexit.register(gc.freeze)
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character shows a question mark
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = cli.main(args=argv, prog_name="nsysddp", standalone_mode=False)
        if sys.stdout is not None:  # what does not fit on a full disk is known only now
            sys.stdout.flush()
    except NsysddpError as error:
        _say(str(error))
        sys.exit(exit_code(error))
    except click.UsageError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        _say(error.format_message())
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away (`| head`); that is not an error of ours.
        sys.stderr.close()
        sys.exit(0)
    except MemoryError:
        _say("not enough memory for this report; analyse a part of it with --steps, or fewer ranks at a time")
        sys.exit(1)
    except Exception as error:
        import os

        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            _say(f"the output cannot be written ({error.strerror}); make room, or write it elsewhere")
            # Python flushes once more at exit: let that go nowhere.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(2)
        if os.environ.get("NSYSDDP_DEBUG"):
            raise
        _say(
            f"unforeseen {type(error).__name__}: {' '.join(str(error).split())[:300]}; please report it "
            "(NSYSDDP_DEBUG=1 shows the traceback)"
        )
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _say(line: str) -> None:
    from nsysddp.model.names import visible

    click.echo(f"nsysddp: error: {visible(line)}", err=True)
