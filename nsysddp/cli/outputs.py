"""What the command of a question hands out: forms on stdout, one table, a folder of everything, a kept result."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from nsysddp.model.errors import UsageError

if TYPE_CHECKING:
    import polars as pl


form_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "csv", "markdown"]),
    default="text",
    show_default=True,
    help="What goes to stdout.",
)


@dataclass(frozen=True)
class Outputs:
    """What was asked for.

    Attributes:
        form: what goes to stdout: text, json, csv or markdown.
        table: the table for text, csv and markdown; None for the whole text or the one that is shown.
        out: folder for every table and the document.
        force: may an earlier output be replaced?
        save: keep the result in the results database.
        label: name of the kept result.
        db: the results database.
    """

    form: str
    table: str | None
    out: Path | None
    force: bool
    save: bool
    label: str | None
    db: str | None

    def check(self, inputs: Iterable[Path]) -> None:
        """Refuse a folder that cannot be written, before any work is done.

        Raises:
            UsageError: as of ``document.check_target``.
        """
        if self.out is not None:
            from nsysddp.render import document

            document.check_target(self.out, force=self.force, inputs=inputs)

    def give(
        self,
        tables: Mapping[str, pl.DataFrame],
        *,
        shown: str,
        write: Callable[[TextIO], None],
        text: Callable[[], None],
        markdown: Callable[[], str] | None = None,
    ) -> None:
        """Write the folder, and print what stdout gets.

        Args:
            tables: of the answer.
            shown: the table that csv and markdown show if none is named.
            write: writes the document.
            text: prints the text; only called for it, as it imports what draws tables on a terminal.
            markdown: the whole answer in Markdown, where that is more than one table.

        Raises:
            UsageError: the answer has no such table, or the folder cannot be written.
        """
        from nsysddp.render import document
        from nsysddp.render import tables as render

        if self.table is not None and self.table not in tables:
            raise UsageError(
                f"the answer has no table {self.table} with these options", do="leave out --table"
            )
        if self.out is not None:
            document.write_tables(tables, write, self.out, force=self.force)
        frame = tables[self.table or shown]
        if self.form == "json":
            write(sys.stdout)
        elif self.form == "csv":
            click.echo(render.csv(frame), nl=False)
        elif self.form == "markdown":
            whole = markdown if self.table is None else None
            click.echo(render.markdown(frame) if whole is None else whole())
        elif self.table is not None:
            from nsysddp.render.text import print_table

            print_table(frame, self.table)
        else:
            text()


def output_options(
    tables: Sequence[str], shown: str, schema: Callable[[], dict[str, Any]]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of ``Outputs``, and ``--json-schema``; the command gets one ``outputs``.

    Args:
        tables: names of the tables that an answer can have.
        shown: the one that csv and markdown show if none is named.
        schema: makes the JSON Schema of the document.
    """

    def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_outputs(*args: Any, **given: Any) -> Any:
            outputs = Outputs(**{field.name: given.pop(field.name) for field in fields(Outputs)})
            return command(*args, outputs=outputs, **given)

        wrapped: Any = with_outputs
        for option in reversed(_options(tables, shown, schema)):
            wrapped = option(wrapped)
        return wrapped  # type: ignore[no-any-return]

    return with_options


def _options(
    tables: Sequence[str], shown: str, schema: Callable[[], dict[str, Any]]
) -> list[Callable[[Any], Any]]:
    def print_schema(context: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted:
            click.echo(json.dumps(schema(), indent=2))
            context.exit()

    return [
        form_option,
        click.option(
            "--table",
            type=click.Choice(tables),
            help=f"One table in full, as text, csv or markdown (default of the last two: {shown}).",
        ),
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Write every table and the document.",
        ),
        click.option("--force", is_flag=True, help="Replace an earlier output."),
        click.option(
            "--save", is_flag=True, help="Keep the result in the results database (see `nsysddp runs`)."
        ),
        click.option("--label", metavar="TEXT", help="Name of the kept result."),
        click.option("--db", metavar="URL", help="Results database."),
        click.option(
            "--json-schema",
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=print_schema,
            help="Print the JSON Schema of the document and stop.",
        ),
    ]
