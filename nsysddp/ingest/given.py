"""Which reports does somebody mean: files, folders of them, patterns, and lists (``@FILE``).

Standard library only: it is asked before the libraries that read reports are imported.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

from nsysddp.ingest.columnar import exports_in, is_export
from nsysddp.model.errors import UsageError
from nsysddp.model.inputs import read_text
from nsysddp.model.names import natural, visible

_EXPORTED = (".sqlite", ".sqlite.gz", ".sqlite.zst")
_CAPTURED = (".nsys-rep", ".nsys-rep.gz", ".nsys-rep.zst")


def reports_given(paths: Iterable[Path]) -> list[Path]:
    """All reports that these stand for, in the order in which they are given."""
    return [report for path in paths for report in reports_of(path)]


def reports_of(path: Path) -> list[Path]:
    """The reports that one path stands for, in natural order.

    Of a folder these are the exports and reports in it (of a report and its export, the export); of a list or a pattern
    those of what it names.

    Raises:
        UsageError: as of ``named_by``, or nothing matches a pattern.
    """
    names = named_by(path)
    if names == [path] and _is_pattern(path):
        raise UsageError(f"nothing matches {visible(path.name)}")
    return [
        report
        for named in names
        for report in ((_in_folder(named) or [named]) if named.is_dir() and not is_export(named) else [named])
    ]


def _is_pattern(path: Path) -> bool:
    return glob.has_magic(str(path)) and not path.exists()


def named_by(path: Path) -> list[Path]:
    """The files and folders that one path names.

    Of ``@FILE`` what its lines name (relative to its folder; ``#`` begins a remark), of a pattern what matches it, in
    natural order. A path that is neither, or that nothing matches, names itself, whether it is there or not.

    Raises:
        UsageError: a list cannot be read, or holds a list.
    """
    if str(path).startswith("@"):
        return _listed(Path(str(path)[1:]))
    if _is_pattern(path):
        found = sorted(glob.glob(str(path), recursive=True), key=natural)  # noqa: PTH207 - of any base
        return [Path(name) for name in found] or [path]
    return [path]


def _listed(path: Path) -> list[Path]:
    try:
        lines = [line.strip() for line in read_text(path).splitlines()]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"the list cannot be read: {reason}", file=path) from error
    named = [line for line in lines if line and not line.startswith("#")]
    if not named:
        raise UsageError("the list names no report", file=path)
    for line in named:
        if line.startswith("@"):
            raise UsageError("a list names reports, not lists", file=path, do="write ./@name if it is a file")
    return [one for line in named for one in named_by(path.parent / line)]


def _in_folder(folder: Path) -> list[Path]:
    """The exports in a folder, and the reports in it that have none beside them."""
    try:
        files = [file for file in folder.iterdir() if file.is_file()]
    except OSError:
        return []
    exports = [*exports_in(folder), *(file for file in files if file.name.lower().endswith(_EXPORTED))]
    known = {_stem(export) for export in exports}
    captured = (file for file in files if file.name.lower().endswith(_CAPTURED))
    reports = [file for file in captured if _stem(file) not in known]
    return sorted([*exports, *reports], key=lambda path: natural(path.name))


def _stem(path: Path) -> str:
    """The name without what says in which form it is: that of a report and of its exports is one."""
    name = path.name
    for ending in (*_EXPORTED, *_CAPTURED, "_parquetdir", "_pqtdir", "_arwdir", ".parquetdir", ".arrowdir"):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name
