"""The command of a question: the same options, forms and outputs for every one, made from ``Question``."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsysddp.cli.emit import emit, format_option
from nsysddp.cli.examples import with_examples
from nsysddp.cli.options import Request, selection_options
from nsysddp.model.errors import UsageError
from nsysddp.questions.question import VERBS, question

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsysddp.model.result import Result
    from nsysddp.questions.question import Option, Question

_SCREENS = {
    "analysis": "nsysddp.render.text:print_result",
    "buckets": "nsysddp.render.per_step:print_buckets",
    "contention": "nsysddp.render.per_step:print_contention",
    "critical_path": "nsysddp.render.critical_path:print_critical_path",
    "diagnosis": "nsysddp.render.diagnosis:print_diagnosis",
    "idle": "nsysddp.render.per_step:print_idle",
    "whatif": "nsysddp.render.whatif:print_whatif",
}
"""Questions with a screen of their own; the others show their findings and one table."""

_PAGES = {"diagnosis": "nsysddp.render.diagnosis:markdown"}
"""Questions of which Markdown is more than one table."""


def question_command(name: str) -> click.Command:
    """The command that asks the question ``name`` (of its module).

    Every one has the options that choose reports and windows, ``--format``, ``--table``, ``--out``, ``--force``,
    ``--save``, ``--label``, ``--db``, ``--json-schema``, and those that the question declares.
    """
    asked = question(name)
    command = VERBS.get(name, name.replace("_", "-"))
    tables = [table.name for table in asked.tables]

    def run(
        request: Request,
        form: str,
        table: str | None,
        out: Path | None,
        force: bool,
        save: bool,
        label: str | None,
        db: str | None,
        **given: Any,
    ) -> None:
        from nsysddp.questions.context import context_of
        from nsysddp.render import document

        if out is not None:
            document.check_target(out, force=force, inputs=request.inputs)
        selection = request.selection()
        asked.check(selection)
        options = {one.name: _value(one, given[one.name]) for one in asked.options}
        trace = request.load(**_reads(asked, request))
        result = asked.answer(context_of(trace, selection), **options)
        if table is not None and table not in result.tables:
            raise UsageError(f"the answer has no table {table} with these options", do="leave out --table")
        if out is not None:
            document.write_folder(result, out, force=force)
        if save:
            from nsysddp.store.database import save as keep

            number = keep(document.as_dict(result), url=db, label=label)
            click.echo(f"saved as run {number}", err=True)
        if form == "markdown" and table is None and name in _PAGES:
            click.echo(_found(_PAGES[name])(result))
        else:
            emit(result, form, table or asked.shown, lambda: _print(name, asked, result, table))

    made = click.command(
        command,
        short_help=asked.ask,
        help=f"{asked.ask}\n\n{asked.more}",
    )
    wrapped: Any = run
    for option in reversed([*_outputs(asked, tables), *(_click_option(one) for one in asked.options)]):
        wrapped = option(wrapped)
    return with_examples(
        made(selection_options(format_option(wrapped))),
        [f"{command} {example}" for example in asked.examples],
    )


def _reads(asked: Question, request: Request) -> dict[str, bool]:
    """What ``load`` must read; a question that can do without launches needs them for steps only."""
    return dict.fromkeys(asked.reads, True) or {"launches": request.per == "step"}


def _outputs(asked: Question, tables: list[str]) -> list[Callable[[Any], Any]]:
    def print_schema(context: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted:
            from nsysddp.render.document import json_schema

            click.echo(json.dumps(json_schema(asked), indent=2))
            context.exit()

    return [
        click.option(
            "--table",
            type=click.Choice(tables),
            help=f"One table in full, as text, csv or markdown (default of the last two: {asked.shown}).",
        ),
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Write every table and the document.",
        ),
        click.option("--force", is_flag=True, help="Replace an earlier result in --out."),
        click.option(
            "--save", is_flag=True, help="Keep the result in the results database (see `nsysddp runs`)."
        ),
        click.option("--label", metavar="TEXT", help="Name of the kept result."),
        click.option("--db", metavar="URL", help="Results database for --save."),
        click.option(
            "--json-schema",
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=print_schema,
            help="Print the JSON Schema of the document and stop.",
        ),
    ]


def _click_option(one: Option) -> Callable[[Any], Any]:
    flag = f"--{one.name.replace('_', '-')}"
    if one.parse is None:
        return click.option(flag, one.name, is_flag=True, help=one.help)
    return click.option(
        flag,
        one.name,
        type=click.Choice(one.choices) if one.choices else str,
        multiple=one.multiple,
        metavar=one.metavar,
        help=one.help,
    )


def _value(one: Option, given: Any) -> Any:
    """The value of what was given on the command line."""
    if one.parse is None:
        return given
    if one.multiple:
        return tuple(one.parse(text) for text in given)
    if given is None:
        return one.default
    try:
        return one.parse(given)
    except UsageError as error:
        raise UsageError(f"--{one.name.replace('_', '-')}: {error}") from None


def _found(place: str) -> Callable[..., Any]:
    module, _, function = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


def _print(name: str, asked: Question, result: Result, table: str | None) -> None:
    from nsysddp.render.text import print_question, print_table

    if table is not None and name in _SCREENS:
        print_table(result, table)
    elif name in _SCREENS:
        _found(_SCREENS[name])(result)
    else:
        print_question(result, table or asked.shown)
