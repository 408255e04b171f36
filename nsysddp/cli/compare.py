"""``nsysddp compare``: is the new side faster, and what changed?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from nsysddp.cli.options import Request, reading_options
from nsysddp.cli.outputs import Outputs, output_options
from nsysddp.cli.saying import say
from nsysddp.cli.sides import AGAINST, against_option, hashes_of, keeper, loaded, other_runs, side_of
from nsysddp.cli.words import Worded
from nsysddp.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsysddp.questions.compare import Comparison

_TABLES = ("comparison", "account", "matrix", "unlike")


def _schema() -> dict[str, Any]:
    from nsysddp.render.compare.document import json_schema

    return json_schema()


@click.command(
    "compare",
    cls=Worded,
    many=(AGAINST, "--with"),
    old={"--plot": "-o"},
    short_help="Is the new side faster, how sure, and what changed?",
)
@reading_options
@against_option("What the REPORTs are compared with")
@click.option("--with", "with_", multiple=True, type=click.Path(path_type=Path), hidden=True)
@click.option(
    "--allow-unlike", is_flag=True, help="Compare although GPU, ranks, warm-up or nsys flags differ."
)
@click.option(
    "-o",
    "picture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw it: .png, .svg or .pdf.",
)
@output_options(_TABLES, "comparison", _schema)
def command(
    request: Request,
    against: tuple[str, ...],
    with_: tuple[Path, ...],
    allow_unlike: bool,
    picture: Path | None,
    outputs: Outputs,
) -> None:
    """Are the REPORTs faster than what they are compared with, how sure is that, and what in the step changed?

    Each REPORT and each OTHER is one run: a report, a folder of `nsysddp capture` (or one that holds several, or the
    reports of all ranks), or run:N of the results database. OTHER can also be one baseline (nsysddp baseline). Three
    runs a side are the least for a verdict: steps of one run are not independent. --save keeps the result of every run.
    """
    from nsysddp.cli.reading import inputs_of, reading_of, where_of
    from nsysddp.evidence.sources import check_alike
    from nsysddp.questions.compare import compare
    from nsysddp.render.compare.picture import draw_comparison
    from nsysddp.render.compare.tables import markdown, print_comparison
    from nsysddp.render.files import check_file
    from nsysddp.render.text import console
    from nsysddp.render.timeline import kind_of, save

    if bool(against) == bool(with_):
        raise UsageError("one other side is needed", do=f"give {AGAINST} OTHER...")
    # --with, as it was called before, gave the new side.
    values, others = (request.reports, against) if against else (with_, request.reports)
    new, base = side_of(values), side_of(others, db=outputs.db, baselines=bool(against))
    sources, base_sources = new.sources, base.sources
    inputs = inputs_of(request, [*sources, *base_sources])
    if picture is not None:
        kind_of(picture)
        check_file(picture, force=outputs.force, inputs=inputs)
    outputs.check(inputs)
    check_alike(base_sources, sources)
    reading, where = reading_of(request), where_of(request)
    asked = reading.asked("compare", "compare", {"allow_unlike": allow_unlike}).as_dict()
    keep = keeper(outputs.db, outputs.label) if outputs.save else None
    base_runs = other_runs(
        base, reading, where, lambda: hashes_of(new, db=outputs.db), db=outputs.db, keep=keep
    )
    found = compare(
        base_runs, loaded(new, reading, where, db=outputs.db, keep=keep), allow_unlike=allow_unlike
    )
    if picture is not None:
        save(draw_comparison(found), picture, force=outputs.force)
        say(f"wrote {picture}")
    outputs.give(
        found.tables,
        shown="comparison",
        write=lambda stream: _write(found, asked, stream),
        text=lambda: print_comparison(found, console()),
        markdown=lambda: markdown(found),
    )


def _write(found: Comparison, asked: Mapping[str, Any], stream: TextIO) -> None:
    """Write the document."""
    from nsysddp.render.compare.document import document

    stream.write(json.dumps(document(found, asked), ensure_ascii=False) + "\n")
