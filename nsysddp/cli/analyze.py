"""``nsysddp analyze``: the main job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysddp.cli.emit import emit, format_option
from nsysddp.cli.options import Request, selection_options
from nsysddp.model.errors import UsageError

if TYPE_CHECKING:
    from nsysddp.model.result import Result


def _print_schema(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from nsysddp.render.document import json_schema

        click.echo(json.dumps(json_schema(), indent=2))
        context.exit()


@click.command("analyze", short_help="How much communication is hidden, and what is exposed?")
@selection_options
@format_option
@click.option(
    "--table", metavar="NAME", help="Table of csv and markdown (default overlap); `--format json` has all."
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Write every table and the document."
)
@click.option("--force", is_flag=True, help="Replace an earlier result in --out.")
@click.option("--save", is_flag=True, help="Keep the result in the results database (see `nsysddp runs`).")
@click.option("--db", metavar="URL", help="Results database for --save.")
@click.option(
    "--json-schema",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_schema,
    help="Print the JSON Schema of the document and stop.",
)
def command(
    request: Request, form: str, table: str | None, out: Path | None, force: bool, save: bool, db: str | None
) -> None:
    """How much communication is hidden, what is exposed, per rank and step?

    REPORT is an nsys SQLite export (also .gz or .zst) or an .nsys-rep; several are ranks or nodes of one run.
    """
    from nsysddp.model.schema import TABLES
    from nsysddp.questions import analyze
    from nsysddp.render import document

    if table is not None and table not in TABLES:
        raise UsageError(f"there is no table {table!r}", do=f"choose one of {', '.join(TABLES)}")
    if out is not None:
        document.check_target(out, force=force, inputs=request.inputs)
    result = analyze(request.load(), request.selection())
    if out is not None:
        document.write_folder(result, out, force=force)
    if save:
        from nsysddp.store.database import save as keep

        number = keep(document.as_dict(result), url=db)
        click.echo(f"saved as run {number}", err=True)
    emit(result, form, table or "overlap", lambda: _print(result, table))


def _print(result: Result, table: str | None) -> None:
    from nsysddp.render.text import print_result, print_table

    if table is None:
        print_result(result)
    else:
        print_table(result, table)
