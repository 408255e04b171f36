"""``nsysddp compare``: is the new side faster, and what changed?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysddp.cli.emit import say
from nsysddp.cli.options import Request, selection_options
from nsysddp.cli.sides import STORED, WithMany, baseline_for, hashes_of, runs_of
from nsysddp.model.errors import UsageError

if TYPE_CHECKING:
    pass


@click.command("compare", cls=WithMany, short_help="Is the new side faster, how sure, and what changed?")
@selection_options
@click.option(
    "--with",
    "new",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="NEW...",
    help="The other side: every value up to the next option.",
)
@click.option(
    "--against",
    metavar="NAME",
    help="Compare the REPORTs with this baseline (nsysddp baseline) instead: they are then the new side.",
)
@click.option(
    "--allow-unlike", is_flag=True, help="Compare although GPU, ranks, warm-up or nsys flags differ."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown"]),
    default="text",
    show_default=True,
    help="What goes to stdout.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Picture: .png, .svg or .pdf.",
)
@click.option("--force", is_flag=True, help="Replace an existing picture.")
@click.option("--save", is_flag=True, help="Keep the result of every run in the results database.")
@click.option("--db", metavar="URL", help="Results database of run:N, --against and --save.")
def command(
    request: Request,
    new: tuple[Path, ...],
    against: str | None,
    allow_unlike: bool,
    form: str,
    plot: Path | None,
    force: bool,
    save: bool,
    db: str | None,
) -> None:
    """Is the side given --with faster than the base, how sure is that, and what in the step changed?

    Each REPORT and each NEW is one run: a report, a folder of `nsysddp capture` (or one that holds several, or the
    reports of all ranks), or run:N of the results database. Three runs a side are the least for a verdict: steps of
    one run are not independent.

    \b
    nsysddp compare out/before-* --with out/after-*
    nsysddp compare run:3 run:4 run:5 --with run:8 run:9 run:10
    nsysddp compare out/after-* --against main
    """  # noqa: D301 (click's own mark)
    from nsysddp.cli.reading import inputs_of, reading_of
    from nsysddp.evidence.sources import repeats
    from nsysddp.questions.compare import compare
    from nsysddp.render.compare import as_dict, draw_comparison, markdown, print_comparison
    from nsysddp.render.files import check_file
    from nsysddp.render.text import console
    from nsysddp.render.timeline import kind_of
    from nsysddp.render.timeline import save as save_picture

    if (against is None) == (not new):
        raise UsageError("one other side is needed", do="give --with NEW... or --against NAME")
    if plot is not None:
        kind_of(plot)
        files = [path for path in (*request.reports, *new) if not STORED.fullmatch(str(path))]
        check_file(plot, force=force, inputs=inputs_of(request, repeats(files)))
    reading = reading_of(request)
    if against is None:
        base_runs, new_runs = runs_of(request.reports, new, reading, db=db, save=save)
    else:
        baseline = baseline_for(against, reading, hashes_of(request.reports, db=db), db=db)
        base_runs = list(baseline.runs)
        _, new_runs = runs_of((), request.reports, reading, db=db, save=save)
    found = compare(base_runs, new_runs, allow_unlike=allow_unlike)
    if plot is not None:
        save_picture(draw_comparison(found), plot, force=force)
        say(f"wrote {plot}")
    if form == "json":
        click.echo(json.dumps(as_dict(found), ensure_ascii=False))
    elif form == "markdown":
        click.echo(markdown(found))
    else:
        print_comparison(found, console())
