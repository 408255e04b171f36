"""``nsysddp compare``: is the new side faster, and what changed?"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsysddp.cli.emit import say
from nsysddp.cli.options import Request, selection_options
from nsysddp.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsysddp.evidence.sources import Reading
    from nsysddp.questions.compare.run import Run


class WithMany(click.Command):
    """A command whose ``--with`` takes every value up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat ``--with`` before each of its values, as click wants it."""
        return super().parse_args(ctx, spread("--with", args))


def spread(option: str, args: Sequence[str]) -> list[str]:
    """``--with a b --x`` as ``--with a --with b --x``."""
    made: list[str] = []
    inside = False
    for place, word in enumerate(args):
        if word == option:
            inside = True
            following = args[place + 1 : place + 2]
            if not following or following[0].startswith("-"):
                made.append(word)  # click says that a value is missing
        elif inside and not word.startswith("-"):
            made += [option, word]
        else:
            inside = False
            made.append(word)
    return made


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
    """
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
        files = [path for path in (*request.reports, *new) if not _STORED.fullmatch(str(path))]
        check_file(plot, force=force, inputs=inputs_of(request, repeats(files)))
    reading = reading_of(request)
    if against is None:
        base_runs, new_runs = runs_of(request.reports, new, reading, db=db, save=save)
    else:
        from nsysddp.cli.baseline import baseline_for

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


_STORED = re.compile(r"run:(\d{1,18})")


def runs_of(
    base: Sequence[Path], new: Sequence[Path], reading: Reading, *, db: str | None = None, save: bool = False
) -> tuple[list[Run], list[Run]]:
    """The runs of both sides, read from files or from the results database.

    Raises:
        UsageError: a stored run is asked for with options that it cannot follow, or a report is given twice.
    """
    from nsysddp.evidence.sources import Reading, check_alike, load_one, read_capture, repeats

    sides: list[list[Run]] = []
    files = [[path for path in side if not _STORED.fullmatch(str(path))] for side in (base, new)]
    check_alike(repeats(files[0]), repeats(files[1]))
    for side, paths in zip((base, new), files, strict=True):
        made: list[Run] = []
        for path in side:
            stored = _STORED.fullmatch(str(path))
            if stored:
                if reading != Reading():
                    raise UsageError(
                        f"run:{stored[1]} was analysed when it was saved",
                        do="give its reports to read it otherwise",
                    )
                made.append(_stored_run(int(stored[1]), db))
        for source in repeats(paths):
            loaded = load_one(source, reading)
            made.append(loaded.run)
            if save:
                from nsysddp.render import document
                from nsysddp.store.database import save as keep

                capture = next((read_capture(path) for path in source.extra if path.name == "run.json"), None)
                kept = keep(document.as_dict(loaded.result), url=db, run=capture)
                say(f"saved {source.name} as run {kept}")
        sides.append(made)
    return sides[0], sides[1]


def hashes_of(paths: Sequence[Path], *, db: str | None = None) -> list[str]:
    """SHA-256 of every report of these runs, from files or from the results database."""
    from nsysddp.evidence.sources import repeats, sha256_of

    made = []
    for path in paths:
        stored = _STORED.fullmatch(str(path))
        if stored:
            from nsysddp.store.database import load_run

            inputs = load_run(int(stored[1]), url=db).inputs
            made += [str(one["sha256"]) for one in inputs if one["sha256"]]
        else:
            made += [sha256_of(report) for source in repeats([path]) for report in source.reports]
    return made


def _stored_run(run_id: int, db: str | None) -> Run:
    from nsysddp.model.schema import TABLES
    from nsysddp.questions.compare.facts import facts_of
    from nsysddp.questions.compare.run import run_of
    from nsysddp.store.database import load_document, load_run

    document: dict[str, Any] = load_document(run_id, url=db)
    capture = load_run(run_id, url=db).capture
    tables = {name: TABLES[name].frame(rows) for name, rows in document["tables"].items() if name in TABLES}
    return run_of(f"run:{run_id}", tables, facts=None if capture is None else facts_of(capture))
