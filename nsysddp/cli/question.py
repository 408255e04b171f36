"""The command of a question: the same options, forms and outputs for every one, made from ``Question``."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsysddp.cli.examples import with_examples
from nsysddp.cli.options import Request, run_options
from nsysddp.cli.outputs import Outputs, output_options
from nsysddp.cli.saying import say
from nsysddp.model.errors import UsageError
from nsysddp.questions.question import question

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsysddp.model.result import Result
    from nsysddp.questions.question import Option, Question

_SCREENS = {
    "analysis": "nsysddp.render.text:print_result",
    "buckets": "nsysddp.render.per_step:print_buckets",
    "communicators": "nsysddp.render.communicators:print_communicators",
    "contention": "nsysddp.render.per_step:print_contention",
    "critical_path": "nsysddp.render.critical_path:print_critical_path",
    "diagnosis": "nsysddp.render.diagnosis:print_diagnosis",
    "idle": "nsysddp.render.per_step:print_idle",
    "whatif": "nsysddp.render.whatif:print_whatif",
    "slack": "nsysddp.render.slack:print_slack",
}
"""Questions with a screen of their own; the others show their findings and one table."""

_PICTURES = {
    "communicators": ("nsysddp.render.maps:draw_pairs", "Draw who sends how much to whom, how fast"),
    "stragglers": (
        "nsysddp.render.maps:draw_lateness",
        "Draw own time of every rank and step beyond the peers'",
    ),
}
"""Questions with a picture: what draws it, and what it shows."""

_PAGES = {"diagnosis": "nsysddp.render.diagnosis:markdown"}
"""Questions of which Markdown is more than one table."""


def question_command(name: str) -> click.Command:
    """The command that asks the question ``name`` (of its module).

    Every one has the options that choose reports and windows, ``--format``, ``--table``, ``--out``, ``--force``,
    ``--save``, ``--label``, ``--db``, ``--json-schema``, and those that the question declares.
    """
    asked = question(name)

    def run(request: Request, outputs: Outputs, picture: Path | None = None, **given: Any) -> None:
        from nsysddp.render import document
        from nsysddp.render.files import check_file

        outputs.check(request.inputs)
        if picture is not None:
            from nsysddp.render.timeline import kind_of

            kind_of(picture)
            check_file(picture, force=outputs.force, inputs=request.inputs)
        selection = request.selection()
        asked.check(selection)
        options = {option.name: _value(option, given[option.name]) for option in asked.options}
        with request.context(asked, selection) as context:
            result = asked.answer(context, **options)
        if picture is not None:
            from nsysddp.render.timeline import save

            save(_found(_PICTURES[name][0])(result), picture, force=outputs.force)
            say(f"wrote {picture}")
        outputs.give(
            result.tables,
            shown=asked.shown,
            write=partial(document.write, result),
            text=lambda: _print(name, asked, result),
            markdown=(lambda: _found(_PAGES[name])(result)) if name in _PAGES else None,
        )
        if outputs.save:
            from nsysddp.store.database import save as keep

            number = keep(document.as_dict(result), url=outputs.db, label=outputs.label)
            click.echo(f"saved as run {number}", err=True)

    made = click.command(
        asked.command,
        short_help=asked.ask,
        help=f"{asked.ask}\n\n{asked.more}",
    )
    wrapped: Any = run
    if name in _PICTURES:
        wrapped = _picture_option(_PICTURES[name][1])(wrapped)
    for option in reversed(asked.options):
        wrapped = _click_option(option)(wrapped)
    tables = [table.name for table in asked.tables]
    outputs = output_options(tables, asked.shown, partial(_schema, asked))
    return with_examples(
        made(run_options(outputs(wrapped))),
        [f"{asked.command} {example}" for example in asked.examples],
    )


def _schema(asked: Question) -> dict[str, Any]:
    from nsysddp.render.document import json_schema

    return json_schema(asked)


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


def _picture_option(what: str) -> Callable[[Any], Any]:
    return click.option(
        "-o",
        "picture",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"{what}: .png, .svg or .pdf.",
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


def _print(name: str, asked: Question, result: Result) -> None:
    from nsysddp.render.text import print_question

    if name in _SCREENS:
        _found(_SCREENS[name])(result)
    else:
        print_question(result, asked.shown)
