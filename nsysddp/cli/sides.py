"""The two sides of a comparison as they are given: reports, captures, kept runs, a baseline."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsysddp.cli.saying import say
from nsysddp.ingest.given import named_by
from nsysddp.model.errors import EvidenceError, NotAReport, UsageError

if TYPE_CHECKING:
    from nsysddp.evidence.sources import Loaded, Reading, Source, Where
    from nsysddp.questions.compare.run import Run
    from nsysddp.store.baselines import Baseline

AGAINST = "--against"
"""The option that gives the other side, in every command that has one."""

_STORED = re.compile(r"run:(\d{1,18})")
_BASELINE = "baseline:"


def against_option(what: str) -> Callable[[Any], Any]:
    """``--against OTHER...``: every value up to the next option is one run of the other side, or the one a baseline."""
    return click.option(
        AGAINST,
        multiple=True,
        metavar="OTHER...",
        help=f"{what}: every value up to the next option.",
    )


@dataclass(frozen=True)
class Side:
    """One side as it was given.

    Attributes:
        files: reports and folders of captures.
        kept: numbers of runs of the results database.
        baseline: name of the baseline that is the whole side; None without.
    """

    files: tuple[Path, ...] = ()
    kept: tuple[int, ...] = ()
    baseline: str | None = None

    @property
    def sources(self) -> list[Source]:
        """The runs that are files.

        Raises:
            NotAReport: there is no such file.
        """
        from nsysddp.evidence.sources import repeats

        return repeats(self.files)


def side_of(values: Sequence[str | Path], *, db: str | None = None, baselines: bool = False) -> Side:
    """What the values of one side stand for.

    Lists (``@FILE``) and patterns are what they name; ``run:N`` is a kept run and ``baseline:NAME`` a baseline.
    Anything else is a file or folder if it is there; one word that is none and does not end as a report does is the
    name of a baseline.

    Args:
        values: as they were given.
        db: results database.
        baselines: may the side be a baseline?

    Raises:
        UsageError: a baseline is given beside other runs, or one word is both a baseline and a file.
        NotAReport: there is no such file.
    """
    words = [word for value in values for word in _words_of(str(value))]
    if baselines:
        names = [word for word in words if _is_baseline(word, alone=len(words) == 1, db=db)]
        if names and len(words) > 1:
            raise UsageError(
                f"{names[0]} is a baseline, and with more beside it there are two bases",
                do="give one of them",
            )
        if names:
            return Side(baseline=names[0].removeprefix(_BASELINE))
    stored = [_STORED.fullmatch(word) for word in words]
    files = tuple(Path(word) for word, match in zip(words, stored, strict=True) if not match)
    absent = next((path for path in files if not path.exists()), None)
    if absent is not None:
        raise NotAReport("there is no such file or folder", file=absent)
    return Side(files, tuple(int(match[1]) for match in stored if match))


def _words_of(word: str) -> list[str]:
    """What a list or pattern names; any other word as it was given, since ``./x`` is no baseline."""
    named = named_by(Path(word))
    return [word] if named == [Path(word)] else [str(path) for path in named]


def _is_baseline(word: str, *, alone: bool, db: str | None) -> bool:
    """Is this word the name of a baseline?

    Raises:
        UsageError: it is also a file or folder.
    """
    from nsysddp.evidence.sources import REPORTS

    path = Path(word)
    if word.startswith(_BASELINE) or _STORED.fullmatch(word):
        return not _STORED.fullmatch(word)
    if not path.exists():
        return not word.endswith(REPORTS) if alone else _there_is_baseline(word, db)
    if path.name != word or not _there_is_baseline(word, db):
        return False
    raise UsageError(
        f"{word} is a baseline and also a file or folder here", do=f"write {_BASELINE}{word} or ./{word}"
    )


def _there_is_baseline(name: str, db: str | None) -> bool:
    try:
        from nsysddp.store.baselines import load_baseline

        load_baseline(name, url=db)
    except (EvidenceError, ImportError):  # nor can there be one where there is no database
        return False
    return True


def loaded(
    side: Side,
    reading: Reading,
    where: Where,
    *,
    db: str | None = None,
    keep: Callable[[Loaded], None] | None = None,
) -> list[Run]:
    """The runs of a side that is no baseline, read from files or from the results database, kept runs first.

    Args:
        side: what was given.
        reading: how files are read.
        where: where they are.
        db: results database.
        keep: called with every run that was read from files.

    Raises:
        UsageError: a kept run is asked for with options that it cannot follow.
    """
    from nsysddp.evidence.sources import Reading, load_one

    runs: list[Run] = []
    for number in side.kept:
        if reading != Reading():
            raise UsageError(
                f"run:{number} was analysed when it was saved", do="give its reports to read it otherwise"
            )
        runs.append(_kept_run(number, db))
    for source in side.sources:
        run = load_one(source, reading, where)
        if keep is not None:
            keep(run)
        runs.append(run.run)
    return runs


def keeper(db: str | None, label: str | None) -> Callable[[Loaded], None]:
    """What ``loaded`` calls to keep each run in the results database."""

    def keep(run: Loaded) -> None:
        from nsysddp.evidence.sources import read_capture
        from nsysddp.render import document
        from nsysddp.store.database import save

        capture = next((read_capture(path) for path in run.source.extra if path.name == "run.json"), None)
        number = save(document.as_dict(run.result), url=db, label=label, run=capture)
        say(f"saved {run.source.name} as run {number}")

    return keep


def other_runs(
    side: Side,
    reading: Reading,
    where: Where,
    compared: Callable[[], Sequence[str]],
    *,
    db: str | None,
    keep: Callable[[Loaded], None] | None = None,
) -> Sequence[Run]:
    """The runs of the other side, baseline or not.

    Args:
        side: the other side.
        reading: how the runs are read.
        where: where they are.
        compared: SHA-256 of the reports that are compared with it; asked for only where it is a baseline.
        db: results database.
        keep: called with every run that was read from files.

    Raises:
        UsageError: a report is one of the baseline, or the baseline was read otherwise.
        EvidenceError: there is no such baseline.
    """
    if side.baseline is not None:
        return baseline_for(side.baseline, reading, compared(), db=db).runs
    return loaded(side, reading, where, db=db, keep=keep)


def hashes_of(side: Side, *, db: str | None = None) -> list[str]:
    """SHA-256 of every report of these runs, from files or from the results database."""
    from nsysddp.evidence.sources import sha256_of

    hashes = [sha256_of(report) for source in side.sources for report in source.reports]
    for number in side.kept:
        from nsysddp.store.database import load_run

        inputs = load_run(number, url=db).inputs
        hashes += [str(row["sha256"]) for row in inputs if row["sha256"]]
    return hashes


def _kept_run(run_id: int, db: str | None) -> Run:
    from nsysddp.questions.compare.facts import facts_of
    from nsysddp.questions.compare.run import run_of
    from nsysddp.questions.tables import every_table
    from nsysddp.store.database import load_document, load_run

    document: dict[str, Any] = load_document(run_id, url=db)
    if "overlap" not in document["tables"]:
        raise UsageError(
            f"run:{run_id} does not say where the time went", do="keep the result of analyze --save"
        )
    capture = load_run(run_id, url=db).capture
    known = every_table()
    tables = {name: known[name].frame(rows) for name, rows in document["tables"].items() if name in known}
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
        say(
            f"note: baseline {name} was analysed by nsysddp {found.tool_version}, these runs by {nsysddp.__version__}"
        )
    return found
