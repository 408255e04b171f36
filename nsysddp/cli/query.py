"""``nsysddp query``: the SQL behind the numbers, and anybody's own SQL, on a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsysddp.cli.words import file_option
from nsysddp.model.errors import QueryError, UsageError

if TYPE_CHECKING:
    import polars as pl


@click.command("query", short_help="The SQL behind the numbers, and your own, on a report.")
@click.argument("name", required=False, metavar="[NAME|FILE.sql]")
@click.argument("report", required=False, type=click.Path(path_type=Path))
@click.option("--show", is_flag=True, help="Print the SQL file instead of running it.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "csv", "json", "parquet"]),
    default="text",
    show_default=True,
    help="parquet needs -o.",
)
@click.option("--limit", type=click.IntRange(min=1), help="At most this many rows.")
@file_option("Write there instead of to stdout.", required=False)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(
    name: str | None,
    report: Path | None,
    show: bool,
    form: str,
    limit: int | None,
    out: Path | None,
    force: bool,
) -> None:
    """List the queries, show one, or run one (or your own FILE.sql) on a REPORT, read-only.

    Columns hold what the export holds: process ids are packed (globalPid), texts can hold names and paths.
    """
    from nsysddp.ingest import queries

    if name is None:
        _list()
        return
    if show or report is None:
        if name.endswith(".sql"):
            raise UsageError("name the report on which to run the file", do="nsysddp query FILE.sql REPORT")
        click.echo((queries.folder() / f"{queries.get(name).name}.sql").read_text(encoding="utf-8"), nl=False)
        return
    if form == "parquet" and out is None:
        raise UsageError("parquet is no text", do="give -o FILE")
    if out is not None:
        from nsysddp.render.files import check_file

        check_file(out, force=force, inputs=[report, Path(name)] if name.endswith(".sql") else [report])
    _write(_run(name, report, limit), form, out, force=force)


def _list() -> None:
    from rich.table import Table

    from nsysddp.ingest import queries
    from nsysddp.render.text import console

    table = Table(box=None, pad_edge=False, padding=(0, 2), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name in queries.names():
        table.add_row(name, queries.get(name).question)
    console().print(table)


def _run(name: str, path: Path, limit: int | None) -> pl.DataFrame:
    import polars as pl

    from nsysddp.ingest import sql
    from nsysddp.ingest.report import open_report
    from nsysddp.model.inputs import read_text
    from nsysddp.model.names import visible

    with open_report(path, every_table=name.endswith(".sql")) as report:
        if name.endswith(".sql"):
            file = Path(name)
            try:
                text = read_text(file)
            except (OSError, UnicodeDecodeError) as error:
                raise QueryError(
                    f"cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})", file=file
                ) from error
            columns, rows = sql.run_user_sql(report, text, limit)
        else:
            columns, rows = sql.run_named(report, name, limit)
    unique = [
        column if columns.index(column) == number else f"{column}_{number}"
        for number, column in enumerate(columns)
    ]
    series = [
        pl.Series(visible(unique[number]), [_shown(row[number]) for row in rows], strict=False)
        for number in range(len(unique))
    ]
    return pl.DataFrame(series)


def _shown(value: Any) -> Any:
    from nsysddp.model.names import visible

    if isinstance(value, bytes):
        return value.hex()
    return visible(value) if isinstance(value, str) else value


def _write(frame: pl.DataFrame, form: str, out: Path | None, *, force: bool) -> None:
    import io

    from nsysddp.render import tables
    from nsysddp.render.files import whole_file

    if form == "parquet":
        packed = io.BytesIO()
        frame.write_parquet(packed)
        content = packed.getvalue()
    elif form == "csv":
        content = tables.csv(frame).encode()
    elif form == "json":
        content = frame.write_json().encode() + b"\n"
    else:
        content = _text(frame).encode()
    if out is None:
        click.echo(content.decode(), nl=False)
        return
    with whole_file(out, force=force) as stream:
        stream.write(content)


def _text(frame: pl.DataFrame) -> str:
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for column, dtype in frame.schema.items():
        table.add_column(Text(column), justify="right" if dtype.is_numeric() else "left", no_wrap=True)
    for row in frame.iter_rows():
        table.add_row(*(Text("" if value is None else str(value)) for value in row))
    screen = Console(highlight=False, markup=False, emoji=False)
    # Numbers are never folded: where the screen is too narrow, lines are as long as they are.
    screen.width = max(
        screen.width, Measurement.get(screen, screen.options.update(width=100_000), table).maximum
    )
    with screen.capture() as captured:
        screen.print(table)
    return captured.get()
