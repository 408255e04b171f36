"""A file that appears whole or not at all, and never in place of another unless that was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from nsysddp.model.errors import UsageError
from nsysddp.model.scratch import publish, scratch_folder


def check_file(path: Path, *, force: bool, inputs: Iterable[Path] = ()) -> None:
    """Refuse a place that cannot be written, before any work is done.

    Args:
        path: where the output goes.
        force: may it replace a file?
        inputs: every file that is read; none of them may be replaced, under whatever name or link.

    Raises:
        UsageError: it is an input or lies in an export, exists and may not be replaced, is no regular file, or has no
        folder to be in.
    """
    refuse_inside(path)
    for report in inputs:
        with suppress(OSError):  # one of them is not there
            if path.samefile(report):
                raise UsageError("is an input of this command", file=path, do="name another place")
    folder = resolved(path).parent
    if path.is_dir():
        raise UsageError("is a folder", file=path, do="name a file in it")
    if path.exists() and not path.is_file():  # a device or pipe would be replaced, not written to
        raise UsageError("is no regular file", file=path, do="name a file")
    if path.exists() and not force:
        raise UsageError("the file is there already", file=path, do="name another or give --force")
    if not folder.is_dir():
        raise UsageError("its folder does not exist", file=path, do="create it first")


def refuse_inside(path: Path) -> None:
    """Refuse a place in a folder that is an export: nothing is added to a report.

    Raises:
        UsageError: it lies in one.
    """
    from nsysddp.ingest.columnar import is_export

    place = resolved(path)
    if export := next((folder for folder in place.parents if is_export(folder)), None):
        raise UsageError(f"lies in {export.name}, which is a report", file=path, do="name another place")


@contextmanager
def whole_file(path: Path, *, force: bool) -> Iterator[IO[bytes]]:
    """A stream to a file beside ``path``, which takes its place when all has been written.

    Args:
        path: the place.
        force: may it replace a file? Without, one that another process has put there meanwhile stays.

    Raises:
        UsageError: the place cannot be written.
    """
    try:
        with scratch_folder(path.parent) as folder:
            beside = folder / "output"
            with beside.open("wb") as stream:
                yield stream
            publish(beside, path, replace=force)
    except FileExistsError:
        raise UsageError("the file is there already", file=path, do="name another or give --force") from None
    except OSError as error:
        raise unwritable(path, error) from None


def resolved(path: Path) -> Path:
    """The place that a path names.

    Raises:
        UsageError: it is a link that leads back to itself.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        raise UsageError("is a link to itself", file=path, do="name another place") from None


def unwritable(path: Path, error: OSError) -> UsageError:
    """What to tell about a place that the system refuses."""
    return UsageError(f"cannot be written ({error.strerror or error})", file=path, do="name another place")
