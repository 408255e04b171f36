"""Read one report somewhere: the piece of work that is done for each report of a run, in this process or in another."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import nsysddp
from nsysddp.ingest import kept
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
    if task.version != nsysddp.__version__:
        raise UsageError(
            f"a worker has nsysddp {nsysddp.__version__}, and this is {task.version}",
            do="install the same version for the workers",
        )
    try:
        if task.cache is not None:
            return _from_cache(task, task.cache)
        part = read(task.path, task.wanted)
        if task.work is not None:
            file = task.work / f"{task.number}.part"
            with file.open("w+b") as stream:
                kept.write(part, stream)
            return file
        sent = io.BytesIO()
        kept.write(part, sent)
        return sent.getvalue()
    except ReportError as error:
        return error


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
