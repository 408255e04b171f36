"""Commands of one question each: findings and tables of an analysis that `analyze` leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from nsysddp.cli.emit import emit, format_option
from nsysddp.cli.options import Request, selection_options

if TYPE_CHECKING:
    from nsysddp.model.result import Result
    from nsysddp.questions import Context


def question_command(
    name: str, question: str, more: str, tables: tuple[str, ...], run: Callable[[Context], Result]
) -> click.Command:
    """A command that loads everything, answers one question, and prints its tables.

    Args:
        name: of the command.
        question: first line of its help.
        more: the rest of its help.
        tables: its tables, the one that text shows first.
        run: the analysis; imported when called.
    """

    @click.command(name, short_help=question, help=f"{question}\n\n{more}")
    @selection_options
    @format_option
    @click.option(
        "--table",
        type=click.Choice(tables),
        default=tables[0],
        show_default=True,
        help="Table; json has all.",
    )
    def command(request: Request, form: str, table: str) -> None:
        from nsysddp.questions import context_of

        trace = request.load(launches=True, host_calls=True, shapes=True, metrics=True)
        result = run(context_of(trace, request.selection()))
        emit(result, form, table, lambda: _print(result, table))

    return command


def _print(result: Result, table: str) -> None:
    from nsysddp.render.text import print_question

    print_question(result, table)
