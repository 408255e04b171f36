"""Read one report somewhere: the piece of work that is done for each report of a run, in this process or in another."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import nsysddp
from nsysddp.ingest import kept
from nsysddp.ingest.brief import brief
from nsysddp.ingest.hashing import sha256_of
from nsysddp.ingest.part import Part, Progress, Wanted, read_part
from nsysddp.ingest.report import open_report
from nsysddp.model.errors import ReportError, UsageError


@dataclass(frozen=True)
class Task:
    """One report to read.

    Attributes:
        number: among the reports.
        path: the report.
        wanted: what is to be read of it.
        work: a folder that whoever asked can read too, for the part; None: the part is sent.
        cache: folder in which parts are kept from run to run; None: there is none.
        version: of the program that asks.
    """

    number: int
    path: Path
    wanted: Wanted
    work: Path | None = None
    cache: Path | None = None
    version: str = nsysddp.__version__


def read(path: Path, wanted: Wanted, progress: Progress | None = None) -> Part:
    """The part of a report, read here.

    Raises:
        ReportError: it cannot be read.
    """
    with open_report(path, nsys=wanted.nsys) as report:
        report.start_hashing()
        return read_part(report, wanted, progress)


def make(task: Task) -> Path | bytes | ReportError:
    """Read a report.

    Returns:
        The file of its part, its bytes, or why it cannot be read.

    Raises:
        UsageError: another version of this program asks, or the cache cannot be written.
    """
    try:
        made = _made(task)
        return made if isinstance(made, Path) else _bytes_of(made)
    except ReportError as error:
        return error


@dataclass(frozen=True)
class Source:
    """Where a part is to be had that stays where it is.

    Attributes:
        task: that made it.
        file: where it lies; None: nowhere, so that its report is read again.
        brief: what the join needs of it (``ingest.brief``), as the bytes of a part; empty once it is joined.
    """

    task: Task
    file: Path | None
    brief: bytes

    def part(self) -> Part:
        """The part.

        Raises:
            ReportError: its report has to be read again and cannot be.
        """
        return (
            read(self.task.path, self.task.wanted) if self.file is None else taken(self.file, self.task.path)
        )


def make_apart(task: Task) -> Source | ReportError:
    """As ``make``; of the part only what the join needs is handed over."""
    try:
        made = _made(task)
    except ReportError as error:
        return error
    file = made if isinstance(made, Path) else None
    part = taken(made, task.path) if isinstance(made, Path) else made
    return Source(task, file, _bytes_of(brief(part, task.wanted.rules)))


def _made(task: Task) -> Path | Part:
    """The part, or its file if there is a place for it."""
    if task.version != nsysddp.__version__:
        raise UsageError(
            f"a worker has nsysddp {nsysddp.__version__}, and this is {task.version}",
            do="install the same version for the workers",
        )
    if task.cache is not None:
        return _from_cache(task, task.cache)
    part = read(task.path, task.wanted)
    if task.work is None:
        return part
    file = task.work / f"{task.number}.part"
    with file.open("w+b") as stream:
        kept.write(part, stream)
    return file


def _bytes_of(part: Part) -> bytes:
    stream = io.BytesIO()
    kept.write(part, stream)
    return stream.getvalue()


def _from_cache(task: Task, cache: Path) -> Path:
    try:
        digest = sha256_of(task.path)
    except OSError as error:
        raise ReportError(f"cannot be read: {error.strerror}", file=task.path) from error
    key = kept.key_of(task.path, digest, task.wanted)
    with kept.Folder(cache).locked(key) as folder:
        found = folder.get(key)
        return found or folder.put(key, read(task.path, task.wanted))


def taken(made: Path | bytes, path: Path) -> Part:
    """The part of the report at ``path`` that ``make`` made."""
    return kept.decoded(kept.opened(made) if isinstance(made, Path) else pa.py_buffer(made), path)
