"""Write what stands between marks in the reference and in README.md: ``python docs/reference/make.py``.

Everything there comes from what the program itself reads: commands and options from the command line, tables,
findings and warnings from the registry of questions, exit codes from the room that exits.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import click

from nsysddp.cli import EXIT_CODES, cli
from nsysddp.cli.options import selection_options
from nsysddp.model.keys import KEYS
from nsysddp.model.warnings import WARNING_CODES
from nsysddp.questions.analysis import ANALYSES
from nsysddp.questions.question import Question, asked, question

HERE = Path(__file__).resolve().parent
README = HERE.parent.parent / "README.md"
PAGES = (
    README,
    *(HERE / f"{name}.md" for name in ("commands", "tables", "findings", "warnings", "exit-codes")),
)


def filled(text: str) -> str:
    """A page with what stands between its marks made anew.

    Raises:
        KeyError: it has a mark of which nothing is known.
    """
    made = parts()
    marks = re.compile(r"(<!-- made: ([a-z ]+) -->\n).*?(<!-- /made -->)", re.DOTALL)
    return marks.sub(lambda found: f"{found[1]}\n{made[found[2]]}\n\n{found[3]}", text)


@cache
def parts() -> dict[str, str]:
    """What can stand between marks: its name to its text."""
    choosing, handing = _shared()
    return {
        "list of commands": _list_of_commands(),
        "choosing options": _options(choosing),
        "answer options": _options(handing),
        "commands": _join(
            part for name, command in _every_command() for part in _command(name, command, choosing, handing)
        ),
        "tables": _tables(),
        "findings": _findings(),
        "warnings of reading": _codes(WARNING_CODES),
        "warnings of questions": _warnings(),
        "exit codes": _codes({str(code): meaning for code, meaning in EXIT_CODES.items()}),
    }


# --- commands -------------------------------------------------------------------------------------------------


def _every_command() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli, info_name="nsysddp")
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        yield name, command


def _shared() -> tuple[list[click.Parameter], list[click.Parameter]]:
    """Options that choose reports and windows, and those by which every question hands out its answer."""

    @click.command()
    @selection_options
    def reading() -> None:
        """Nothing."""

    choosing = [one for one in reading.params if isinstance(one, click.Option)]
    questions = [command for name, command in _every_command() if _question_of(name)]
    known = {_key(one) for one in choosing}
    common = set.intersection(*({_key(one) for one in command.params} for command in questions)) - known
    handing = [one for one in questions[0].params if _key(one) in common and one.name != "reports"]
    return choosing, [_any_table() if one.name == "table" else one for one in handing]


def _any_table() -> click.Option:
    """The option --table without the names of one question."""
    return click.Option(
        ["--table"], type=click.Choice(["NAME"]), help="One table in full, as text, csv or markdown."
    )


def _question_of(command: str) -> Question | None:
    return dict(_every_question()).get(command)


def _key(parameter: click.Parameter) -> tuple[str, ...]:
    """What makes two options one: how they are written and what kind of value they take."""
    return (*parameter.opts, str(getattr(parameter, "metavar", None)), type(parameter.type).__name__)


def _list_of_commands() -> str:
    rows = [
        (f"[`{name}`](docs/reference/commands.md#{name})", command.get_short_help_str(110).rstrip("."))
        for name, command in _every_command()
    ]
    return _table(("command", "question"), rows)


def _command(
    name: str,
    command: click.Command,
    choosing: Sequence[click.Parameter],
    handing: Sequence[click.Parameter],
    above: str = "nsysddp",
) -> list[str]:
    context = click.Context(command, info_name=f"{above} {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    heading = f"## {name}" if above == "nsysddp" else f"### {above.split()[-1]} {name}"
    parts = [heading, *_prose(command), f"Usage: `{above} {name} {usage}`"]
    parameters = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    keys = {_key(one) for one in parameters}
    links = []
    for group, link in (
        (choosing, "[which reports, read how](#which-reports-read-how)"),
        (handing, "[what comes out](#what-comes-out)"),
    ):
        shared = {_key(one) for one in group}
        if shared <= keys:
            parameters = [one for one in parameters if _key(one) not in shared]
            links.append(link)
    if links:
        parts.append(f"Options: {', '.join(links)}{', and' if parameters else '.'}")
    if parameters:
        parts.append(_options(parameters))
    wanted = _question_of(name) if above == "nsysddp" else None
    if wanted is not None:
        tables = ", ".join(f"[`{table.name}`](tables.md#{table.name})" for table in wanted.tables)
        parts.append(f"Tables: {tables}. CSV and Markdown print `{wanted.shown}` where none is named.")
    if isinstance(command, click.Group):
        for under in command.list_commands(context):
            subcommand = command.get_command(context, under)
            assert subcommand is not None
            parts += _command(under, subcommand, choosing, handing, f"{above} {name}")
    return parts


def _prose(command: click.Command) -> list[str]:
    """The help of a command as Markdown, with its examples."""
    made = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(command.help or "")):
        made.append(_text(" ".join(paragraph.split())))
    if command.epilog:
        lines = (line.strip() for line in command.epilog.splitlines()[2:])
        made.append("```console\n" + "\n".join(lines) + "\n```")
    return made


def _options(parameters: Sequence[click.Parameter]) -> str:
    rows = []
    for one in parameters:
        record = one.get_help_record(click.Context(click.Command("nsysddp"), show_default=True))
        assert record is not None
        rows.append((_code(record[0]), record[1]))
    return _table(("option", "meaning"), rows)


# --- the contract of the answers ------------------------------------------------------------------------------


def _tables() -> str:
    made = []
    needs = {one.table: f"{one.question} Needs: {one.needs}." for one in ANALYSES}
    for command, wanted in _every_question():
        made += [f"## Tables of {command}", _text(wanted.ask)]
        for table in wanted.tables:
            rows = [(f"`{one.name}`", str(one.dtype).partition("(")[0], one.meaning) for one in table.columns]
            about = needs.get(table.name, "")
            key = ", ".join(f"`{name}`" for name in KEYS.get(table.name, ())) or "none"
            made += [f"### {table.name}", _text(f"{about} One row: {table.row}. Key: {key}.".strip())]
            made.append(_table(("column", "type", "meaning"), rows))
    return _join(made)


def _findings() -> str:
    return _join(
        part for command, one in _every_question() for part in (f"## {command}", _codes(one.findings))
    )


def _warnings() -> str:
    made = ((command, one.warnings) for command, one in _every_question() if one.warnings)
    return _join(part for command, own in made for part in (f"## {command}", _codes(own)))


def _every_question() -> Iterator[tuple[str, Question]]:
    """The command of each question, and the question."""
    for name in asked():
        yield question(name).command, question(name)


# --- Markdown -------------------------------------------------------------------------------------------------


def _codes(meanings: Mapping[str, str]) -> str:
    return _table(("code", "meaning"), [(f"`{code}`", meaning) for code, meaning in meanings.items()])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in lines)


def _code(text: str) -> str:
    """Code in a cell; a bar inside backticks would be shown with its backslash."""
    return f"<code>{text.replace('<', '&lt;').replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")


def _text(text: str) -> str:
    """The text of a page: what would be markup is none, except code."""
    return "".join(
        part if number % 2 else part.replace("<", "&lt;").replace("*", "\\*")
        for number, part in enumerate(re.split(r"(`[^`]*`|<code>.*?</code>)", text))
    )


def _join(parts: Iterable[str]) -> str:
    return "\n\n".join(parts)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
