"""The ``nsysddp`` command: thin commands, loaded when called; the only room that knows exit codes."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import io
import os
import signal
import sys
from difflib import get_close_matches
from functools import cache
from importlib import import_module

import click

import nsysddp
from nsysddp.model import pools, scratch
from nsysddp.model.errors import CannotTell, NoGpuEvents, NsysddpError, RankConflict, ReportError, UsageError
from nsysddp.questions.question import asked, command_of

EXIT_CODES = {
    0: "ok",
    1: "anything unforeseen, or a claim that fails (check)",
    2: "usage",
    3: "unreadable input",
    4: "no GPU events to analyse",
    5: "rank conflict",
    6: "undecidable: the trace cannot tell (check, compare, whatif)",
    7: "nothing is wrong, but not everything could be checked: not verified (verify)",
    8: "the answer is whole but for reports that could not be read, which it names",
    129: "ended by SIGHUP: the terminal went away",
    130: "interrupted (Ctrl-C, SIGINT)",
    143: "ended by SIGTERM",
}
"""Every exit code with its meaning; the reference is made from it."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_NO_MEMORY = (
    "not enough memory for these reports, which are read whole; give fewer reports at a time, capture fewer steps, or "
    "use a machine with more"
)
"""No option of a question reads less of a report, so none is advised."""

_ORDER = (
    "analyze",
    "timeline",
    "critical-path",
    "diagnose",
    "whatif",
    "buckets",
    "contention",
    "idle",
    "communicators",
    "slack",
    "stragglers",
    "pipelines",
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
    "baseline",
    "query",
    "doctor",
    "skill",
    "mcp",
    "demo",
)
"""Commands in the order in which they are listed; further questions come last."""


@cache
def _questions() -> dict[str, str]:
    """Command to the question that it asks."""
    return {command_of(name): name for name in asked()}


class _LazyGroup(click.Group):
    """Imports what a command needs only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [*_ORDER, *sorted(set(_questions()) - set(_ORDER))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _questions():
            from nsysddp.cli.question import question_command

            return question_command(_questions()[cmd_name])
        if cmd_name not in self.list_commands(ctx):
            return None
        from nsysddp.cli.examples import add_examples

        command = import_module(f"nsysddp.cli.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return add_examples(command, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of this name; of a wrong one the nearest is named."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not close:
                raise
            raise click.UsageError(f"{error.message} Did you mean {close[0]!r}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Every command with its line; those of questions are read, not imported."""
        rows = []
        for name in self.list_commands(ctx):
            key = _questions().get(name)
            command = None if key else self.get_command(ctx, name)
            rows.append((name, asked()[key] if key else command.get_short_help_str(90) if command else ""))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(nsysddp.__version__, prog_name="nsysddp")
def cli() -> None:
    """Prove from Nsight Systems traces how much communication is really hidden, and what to change."""


@cli.result_callback()
def _finished(result: object) -> object:
    """The exit code of a command that ended: also that its answer lacks reports."""
    from nsysddp.cli.options import INCOMPLETE

    return result or (8 if click.get_current_context().meta.get(INCOMPLETE) else 0)


def exit_code(error: NsysddpError) -> int:
    """The documented exit code of an error."""
    if isinstance(error, UsageError):
        return 2
    if isinstance(error, CannotTell):
        return 6
    if isinstance(error, RankConflict):
        return 5
    if isinstance(error, NoGpuEvents):
        return 4
    if isinstance(error, ReportError):
        return 3
    return 1


def main(argv: list[str] | None = None) -> None:
    """Run the command line; errors become one line on stderr and an exit code.

    A signal ends the process at once, with nothing left behind (see ``nsysddp.model.scratch``).
    """
    _open_closed_streams()
    pools.few_pools()
    with scratch.signals_end():
        scratch.remove_abandoned()
        _run(argv)


def _open_closed_streams() -> None:
    """Where a stream was closed (``2>&-``), open nothing's: else the next file that is opened would take its place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


def _run(argv: list[str] | None) -> None:
    # At exit Python looks for garbage in everything that was imported; the system takes it all back anyway.
    atexit.register(gc.freeze)
    atexit.register(_let_messages_go)
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character shows a question mark
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = cli.main(args=argv, prog_name="nsysddp", standalone_mode=False)
        if sys.stdout is not None:  # what does not fit on a full disk is known only now
            sys.stdout.flush()
    except NsysddpError as error:
        _say(str(error))
        sys.exit(_interruption() or exit_code(error))
    except click.UsageError as error:
        command = f" {error.ctx.command_path}" if error.ctx else " nsysddp"
        _say(f"{error.format_message()} See{command} --help.")
        sys.exit(2)
    except click.ClickException as error:
        _say(error.format_message())
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        code = _interruption() or 128 + signal.SIGINT
        _say(scratch.ENDING_SIGNALS[signal.Signals(code - 128)])
        sys.exit(code)
    except BrokenPipeError:
        # The reader of our output went away (`| head`); that is not an error of ours.
        sys.stderr.close()
        sys.exit(0)
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of polars is no Exception
        if _is_lack_of_memory(error):
            _say(_NO_MEMORY)
            sys.exit(1)
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


def _let_messages_go() -> None:
    """Messages that cannot be written, a library's too, do not change the exit code: Python flushes again at exit."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _is_lack_of_memory(error: BaseException) -> bool:
    """Without memory no thread can start either, and the library of the interpreter's objects gets none."""
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ("can't start new thread", "PyObject pointer is null")
    )


def _interruption() -> int | None:
    """The exit code where a signal made the command unwind, whatever came of that."""
    number = scratch.ended_by()
    return None if number is None else 128 + number


def _say(line: str) -> None:
    from nsysddp.model.names import visible

    with contextlib.suppress(OSError):  # nobody can be told, but the exit code still says it
        click.echo(f"nsysddp: error: {visible(line)}", err=True)
