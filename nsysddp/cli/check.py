"""``nsysddp check``: do claims hold?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysddp.cli.options import Request, reading_options
from nsysddp.cli.outputs import form_option
from nsysddp.cli.sides import AGAINST, against_option, other_runs, side_of
from nsysddp.cli.words import Worded
from nsysddp.model.errors import UsageError

if TYPE_CHECKING:
    from nsysddp.evidence.claims.claim import Claim
    from nsysddp.evidence.claims.reading import Claims
    from nsysddp.questions.compare.run import Run


def _list_metrics(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from nsysddp.evidence.claims.claim import metric_names

    for name, meaning in metric_names():
        click.echo(f"{name:<26}{meaning}")
    context.exit()


@click.command(
    "check",
    cls=Worded,
    many=(AGAINST,),
    old={"--base": AGAINST},
    short_help="Do claims about a run hold? For CI: exits 0, 1 or 6.",
)
@reading_options
@click.option("--claim", "texts", multiple=True, metavar="TEXT", help="A claim; repeatable.")
@click.option(
    "--claims",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='TOML: question = "...", and below [claims] lines of name = "claim".',
)
@against_option("What claims of a change compare with, reports, captures, run:N or a baseline")
@click.option("--db", metavar="URL", help="Results database of --against.")
@click.option(
    "--allow-unlike", is_flag=True, help="Compare although GPU, ranks, warm-up or nsys flags differ."
)
@form_option
@click.option(
    "--junit",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write JUnit XML (replaced if it is there).",
)
@click.option(
    "--annotations",
    type=click.Choice(["github", "gitlab"]),
    help="Print workflow commands (github) or a Code Quality report (gitlab) instead.",
)
@click.option(
    "--metrics",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_list_metrics,
    help="List the metrics.",
)
def command(
    request: Request,
    texts: tuple[str, ...],
    file: Path | None,
    against: tuple[str, ...],
    db: str | None,
    allow_unlike: bool,
    form: str,
    junit: Path | None,
    annotations: str | None,
) -> int:
    """Do claims about a run hold? Exits 0 if all pass, 1 if one fails, 6 if none fails but one cannot be decided.

    REPORTs are the ranks of one run; each folder of `nsysddp capture` is a repeat.
    """
    from nsysddp.cli.reading import inputs_of, reading_of, where_of
    from nsysddp.evidence.claims import check
    from nsysddp.evidence.sources import check_alike, load_all, ranks_of_one_run, sha256_of
    from nsysddp.questions.compare import compare
    from nsysddp.render import claims as render
    from nsysddp.render import tables
    from nsysddp.render.files import check_file, whole_file
    from nsysddp.render.text import console

    if form != "text" and annotations:
        raise UsageError(f"--format {form} and --annotations both want stdout", do="give one of them")
    sources, base = ranks_of_one_run(request.reports), side_of(against, db=db, baselines=True)
    base_sources = base.sources
    if junit is not None:
        check_file(junit, force=True, inputs=inputs_of(request, [*sources, *base_sources], file))
    claims = gather(texts, file)
    reading = reading_of(request)
    check_alike(base_sources, sources)
    where = where_of(request)
    runs = load_all(sources, reading, where)
    others: Sequence[Run] = ()
    if against:
        others = other_runs(
            base,
            reading,
            where,
            lambda: [sha256_of(path) for source in sources for path in source.reports],
            db=db,
        )
    comparison = None
    if others:
        comparison = compare(others, [run.run for run in runs], allow_unlike=allow_unlike)
    answers = check(claims.claims, runs, comparison)
    if junit is not None:
        with whole_file(junit, force=True) as stream:
            stream.write(render.junit(answers).encode("utf-8"))
    if annotations == "github":
        click.echo(render.github(answers), nl=False)
    elif annotations == "gitlab":
        click.echo(render.gitlab(answers), nl=False)
    elif form == "json":
        document = {
            "schema_version": 1,
            "question": claims.question,
            "claims": [answer.as_dict() for answer in answers],
        }
        click.echo(json.dumps(document, ensure_ascii=False))
    elif form == "csv":
        click.echo(tables.csv(render.table(answers)), nl=False)
    elif form == "markdown":
        click.echo(tables.markdown(render.table(answers)))
    else:
        render.print_claims(answers, console())
    outcomes = {answer.outcome for answer in answers}
    return 1 if "fail" in outcomes else 6 if "undecidable" in outcomes else 0


def gather(texts: Sequence[str], file: Path | None) -> Claims:
    """The claims of the command line after those of the file.

    Raises:
        UsageError: there is none, or one cannot be understood.
    """
    from nsysddp.evidence.claims.reading import Claims, parse, read_claims

    read = read_claims(file) if file is not None else Claims(None, ())
    made: tuple[Claim, ...] = (*read.claims, *(parse(text) for text in texts))
    if not made:
        raise UsageError("there is no claim to check", do="give --claim TEXT or --claims FILE")
    return Claims(read.question, made)
