"""What an analysis prints: its tables and findings in the form that was asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from nsysddp.model.names import visible

if TYPE_CHECKING:
    from nsysddp.model.result import Result

format_option: Callable[[Any], Any] = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "csv", "markdown"]),
    default="text",
    show_default=True,
    help="What goes to stdout.",
)


def say(line: str) -> None:
    """Say on stderr what was done; names in it cannot steer the terminal."""
    with suppress(OSError):  # it was done, even if nobody can be told
        click.echo(visible(line), err=True)


def emit(result: Result, form: str, table: str, text: Callable[[], None]) -> None:
    """Print a result to stdout.

    Args:
        result: what an analysis handed back.
        form: of ``format_option``.
        table: the table that csv and markdown show; json has all.
        text: prints the text; only called for it, as it imports what draws tables on a terminal.
    """
    from nsysddp.render import document, tables

    if form == "json":
        document.write(result, sys.stdout)
    elif form == "csv":
        click.echo(tables.csv(result[table]), nl=False)
    elif form == "markdown":
        click.echo(tables.markdown(result[table]))
    else:
        text()
