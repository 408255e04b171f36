"""The two sides of a comparison as they are given: reports, captures, kept runs, a baseline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsysddp.cli.emit import say
from nsysddp.model.errors import UsageError

if TYPE_CHECKING:
    from nsysddp.evidence.sources import Reading
    from nsysddp.questions.compare.run import Run
    from nsysddp.store.baselines import Baseline


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


STORED = re.compile(r"run:(\d{1,18})")


def runs_of(
    base: Sequence[Path], new: Sequence[Path], reading: Reading, *, db: str | None = None, save: bool = False
) -> tuple[list[Run], list[Run]]:
    """The runs of both sides, read from files or from the results database.

    Raises:
        UsageError: a stored run is asked for with options that it cannot follow, or a report is given twice.
    """
    from nsysddp.evidence.sources import Reading, check_alike, load_one, read_capture, repeats

    sides: list[list[Run]] = []
    files = [[path for path in side if not STORED.fullmatch(str(path))] for side in (base, new)]
    check_alike(repeats(files[0]), repeats(files[1]))
    for side, paths in zip((base, new), files, strict=True):
        made: list[Run] = []
        for path in side:
            stored = STORED.fullmatch(str(path))
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
        stored = STORED.fullmatch(str(path))
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


def baseline_for(name: str, reading: Reading, reports: Sequence[str], *, db: str | None) -> Baseline:
    """The baseline that runs with this reading are compared with.

    Args:
        name: its name.
        reading: how the runs are read.
        reports: SHA-256 of their reports.
        db: results database.

    Raises:
        UsageError: the baseline was read otherwise, or from one of the same reports.
        EvidenceError: there is none of this name.
    """
    import nsysddp
    from nsysddp.store.baselines import load_baseline

    found = load_baseline(name, url=db)
    wanted = reading.as_dict()
    differing = sorted(key for key in {*wanted, *found.reading} if wanted.get(key) != found.reading.get(key))
    if differing:
        raise UsageError(
            f"baseline {name} was read with other options ({', '.join(differing)})",
            do="give the same ones, or set it again with these",
        )
    if set(found.reports) & set(reports):
        raise UsageError(
            f"a report given is one of baseline {name}: it would be compared with itself",
            do="every repeat is a capture of its own",
        )
    if found.tool_version != nsysddp.__version__:
        click.echo(
            f"note: baseline {name} was analysed by nsysddp {found.tool_version}, these runs by {nsysddp.__version__}",
            err=True,
        )
    return found
