"""The map: a part of every report, read wherever it is done, and which reports are missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from nsysddp.execute import Place
from nsysddp.execute.executor import Executor, Lost
from nsysddp.ingest.part import Part, Progress, Wanted
from nsysddp.ingest.reading import Source, Task, make, make_apart, read, taken
from nsysddp.join.identity import rank_in_name
from nsysddp.model.errors import RankConflict, ReportError
from nsysddp.model.names import natural, visible
from nsysddp.model.scratch import scratch_folder
from nsysddp.model.trace import Missing

T = TypeVar("T")


def read_all(
    paths: Sequence[Path],
    wanted: Wanted,
    place: Place,
    *,
    cache: Path | None,
    strict: bool,
    progress: Progress | None,
) -> tuple[list[Part], tuple[Missing, ...]]:
    """The parts of those reports that can be read, in order, and the others.

    Args:
        paths: the reports.
        wanted: what is to be read of each.
        place: where they are read.
        cache: folder in which parts are kept from run to run.
        strict: raise what is wrong with a report, instead of going on without it.
        progress: told of reports, or of rows of the only one.

    Raises:
        ReportError: there is one report only, or ``strict``, and it cannot be read; no report can be.
    """
    refuse_duplicates(paths)
    done = _Done(progress, len(paths))
    if place.is_here and cache is None:
        return sorted_out(paths, _read_here(paths, wanted, done, strict=strict or len(paths) == 1), strict)
    with ExitStack() as stack:
        # A scheduler's workers need not see this machine's folders: without a cache that all see, parts are sent.
        work = None if cache or place.scheduler else stack.enter_context(scratch_folder())
        made = place.executor().map(make, _tasks(paths, wanted, work, cache), done)
        return sorted_out(paths, [_part(one, path) for one, path in zip(made, paths, strict=True)], strict)


def read_apart(
    paths: Sequence[Path],
    wanted: Wanted,
    executor: Executor,
    work: Path | None,
    *,
    cache: Path | None,
    strict: bool,
    progress: Progress | None,
) -> tuple[list[Source], tuple[Missing, ...]]:
    """As ``read_all``, but the parts stay where they are made: in ``work``, the cache, or nowhere, to be read again."""
    refuse_duplicates(paths)
    made = executor.map(make_apart, _tasks(paths, wanted, work, cache), _Done(progress, len(paths)))
    found = [lost(one, path) if isinstance(one, Lost) else one for one, path in zip(made, paths, strict=True)]
    return sorted_out(paths, found, strict)


def sorted_out(
    paths: Sequence[Path], found: Sequence[T | ReportError], strict: bool
) -> tuple[list[T], tuple[Missing, ...]]:
    """What was found of the reports, and which are missing.

    Raises:
        ReportError: all are, or with ``strict`` any.
    """
    failed = [(path, one) for path, one in zip(paths, found, strict=True) if isinstance(one, ReportError)]
    if failed and (strict or len(failed) == len(found)):
        raise failed[0][1]
    return [one for one in found if not isinstance(one, ReportError)], tuple(
        Missing(visible(path.name), rank_in_name(path.name), error.what) for path, error in failed
    )


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Reports in the order of the ranks that their names tell, then of their names, however they are given."""

    def place(path: Path) -> tuple[object, ...]:
        rank = rank_in_name(path.name)
        return rank is None, rank or 0, natural(path.name), natural(str(path))

    return sorted(paths, key=place)


def refuse_duplicates(paths: Sequence[Path]) -> None:
    """Refuse a report that is given twice, by whatever name.

    Raises:
        RankConflict: one is.
    """
    seen: dict[Path, Path] = {}
    for path in paths:
        other = seen.setdefault(path.resolve(), path)
        if other is not path:
            raise RankConflict(f"{visible(path.name)} is given twice", do="name each report once")


class _Done:
    """Tells how many reports are done; of the only report, how many rows."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total = progress, total

    @property
    def rows(self) -> Progress | None:
        """Called with rows."""
        return self._progress if self._total == 1 else None

    def __call__(self, _: object = None) -> None:
        if self._progress and self._total > 1:
            self._progress("reports", 1, self._total)


def _read_here(
    paths: Sequence[Path], wanted: Wanted, done: _Done, *, strict: bool
) -> list[Part | ReportError]:
    found: list[Part | ReportError] = []
    for path in paths:
        try:
            found.append(read(path, wanted, done.rows))
        except ReportError as error:
            if strict:
                raise
            found.append(error)
        done()
    return found


def _tasks(paths: Sequence[Path], wanted: Wanted, work: Path | None, cache: Path | None) -> list[Task]:
    return [
        Task(number, path.absolute(), wanted, work, cache and cache.absolute())
        for number, path in enumerate(paths)
    ]


def _part(made: Path | bytes | ReportError | Lost, path: Path) -> Part | ReportError:
    if isinstance(made, Lost):
        return lost(made, path)
    return made if isinstance(made, ReportError) else taken(made, path)


def lost(made: Lost, path: Path) -> ReportError:
    """What is said of a report whose worker was lost."""
    return ReportError(made.reason, file=path, do="read it with fewer --jobs, or where there is more memory")
