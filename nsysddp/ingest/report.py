"""Open one nsys export, safely: what it is, which tables and columns it has, what it can answer.

A report is opened read-only and never changed. Capabilities come from the tables and columns found, never from
a version number; a table that is missing and one without rows are the same thing.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import urllib.parse
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsysddp.ingest.columnar import OF_NSYS, Columnar, exports_in, is_export, quoted
from nsysddp.ingest.hashing import Hashing, hashing_of
from nsysddp.ingest.nsys import export
from nsysddp.ingest.packed import promised_bytes, unpack
from nsysddp.ingest.queries import spelling
from nsysddp.model.errors import MissingTable, NotAReport, ReportError, UnsupportedSchema
from nsysddp.model.names import visible
from nsysddp.model.scratch import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType

    Exporter = Callable[[Path, Path], Path]

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPH_TRACE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
GRAPH_NODES = "CUDA_GRAPH_NODE_EVENTS"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
RECORDS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
NVTX = "NVTX_EVENTS"

KNOWN_MAJOR = 3
"""Newest major export schema this reader was tried on; a newer one is read with a warning."""

_SQLITE = b"SQLite format 3\0"
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ONE_TABLE = (b"PAR1", b"ARROW1")
_WAL_HEADER_BYTES = 32
_STEPS_BETWEEN_LOOKS = 1_000_000
_TEXTS = "StringIds"
_READ_FLAGS = "capture with `nsys profile --trace=cuda,nvtx` around the steps of interest"


@dataclass
class Report(AbstractContextManager["Report"]):
    """One open export. Use as a context manager; temporary files go away with it.

    Attributes:
        path: the file or folder as the user gave it.
        database: the SQLite file that is read (a temporary one for compressed input, ``.nsys-rep``, a folder of
            tables, or a report whose latest changes are still in a file beside it).
        columnar: the tables of an export that is a folder; ``database`` then has them as far as they were asked for.
        tables: table name to the set of its columns, for every table with at least one row. A versioned table
            such as ``CUPTI_ACTIVITY_KIND_KERNEL_V3`` also appears under its plain name if that has no rows.
        aliases: plain table name to the name it is really read from, where they differ.
        unnumbered: tables, by the name they are read from, whose rows have no rowid (views, for example).
    """

    path: Path
    database: Path
    columnar: Columnar | None = None
    tables: dict[str, frozenset[str]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    unnumbered: frozenset[str] = frozenset()
    _stack: ExitStack = field(default_factory=ExitStack, repr=False)
    _hashing: Hashing | None = field(default=None, repr=False)
    _connection: sqlite3.Connection | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Base name of the file; folders can be private and are never shown."""
        return visible(self.path.name)

    @property
    def uri(self) -> str:
        """SQLite URI of the database, read-only.

        Beside a database in WAL mode even a reader would make ``-wal`` and ``-shm`` files. It is opened as immutable,
        which makes none and also works in a read-only folder; ``_settled`` saw to it that its log holds nothing.
        """
        path = self.database.resolve()
        with path.open("rb") as handle:
            wal = handle.read(20)[18:19] == b"\x02" or _beside(path, "-wal").exists()
        return f"file:{urllib.parse.quote(os.fsencode(path))}?{'immutable=1' if wal else 'mode=ro'}"

    @property
    def connection(self) -> sqlite3.Connection:
        """A connection for small tables and inspection; text that is not UTF-8 is replaced, not refused."""
        if self._connection is None:
            self._connection = self.connect()
            self._stack.callback(self._connection.close)
        return self._connection

    def connect(self) -> sqlite3.Connection:
        """A new read-only connection."""
        connection = sqlite3.connect(self.uri, uri=True, check_same_thread=False)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.execute("PRAGMA query_only = 1")
        # Now and then SQLite lets Python look whether it was interrupted.
        connection.set_progress_handler(lambda: 0, _STEPS_BETWEEN_LOOKS)
        return connection

    def supply(self, *tables: str, counted: bool = False) -> None:
        """Have these tables in the database, which of a folder has none at first.

        Args:
            tables: by their names in ``tables``.
            counted: have as many rows of the others as they hold, without what is in them.
        """
        if self.columnar is not None:
            wanted = {self.aliases.get(table, table).lower() for table in tables}
            found = self.columnar.tables.items()
            self.columnar.supply(
                {
                    name: columns if name.lower() in wanted else ()
                    for name, columns in found
                    if counted or name.lower() in wanted
                }
            )

    def require_columns(self, table: str, columns: Iterable[str]) -> None:
        """Refuse an export whose table lacks columns without which nothing can be said, naming them.

        Raises:
            MissingTable: naming table and columns.
        """
        missing = sorted(set(columns) - self.tables.get(table, frozenset()))
        if missing:
            raise MissingTable(
                f"table {table} has no column {', '.join(missing)}",
                file=self.path,
                do="export the report again with an unmodified nsys",
            )

    @property
    def sha256(self) -> str:
        """SHA-256 of the file as given (of a folder as in ``hashing``), computed beside the reading."""
        if (digest := self.start_hashing().result()) is None:
            raise ReportError("the file could not be read to its end", file=self.path)
        return digest

    def start_hashing(self) -> Hashing:
        """Hash the file in the background, while fewer threads are at work than there are cores."""
        if self._hashing is None:
            self._hashing = hashing_of(self.path)
        return self._hashing

    @contextmanager
    def every_core(self) -> Iterator[None]:
        """Hashing pauses meanwhile: what is read here keeps every core busy, and other parts of the work do not."""
        if self._hashing is None:  # nobody has asked for the hash
            yield
            return
        self._hashing.pause()
        try:
            yield
        finally:
            self._hashing.resume()

    def has(self, table: str, *columns: str) -> bool:
        """Does the table exist with rows, and with these columns?"""
        return set(columns) <= self.tables.get(table, frozenset()) if table in self.tables else False

    def scalar(self, sql: str, *values: Any) -> Any:
        """First column of the first row of one of this module's own inspections; None without a row."""
        row = self.connection.execute(sql, values).fetchone()
        return row[0] if row else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def open_report(path: str | Path, *, nsys: str | None = None, every_table: bool = False) -> Report:
    """Open an export (SQLite, plain, gzip or zstd; a folder of Parquet or Arrow files), or an ``.nsys-rep``.

    Args:
        path: the file or folder.
        nsys: the nsys executable for ``.nsys-rep`` files; searched on PATH if None.
        every_table: of an ``.nsys-rep`` also the tables that no question of ours reads.

    Raises:
        NotAReport: foreign, truncated, encrypted, empty, or another format; the message names the cause.
        ReportError: if the file cannot be read at all.
    """
    source = Path(path)
    stack = ExitStack()
    try:
        exporter = partial(export, nsys=nsys, every_table=every_table)
        readable = source if is_export(source) else _readable(source, _head(source), stack, exporter)
        if readable.is_dir():
            report = _folder(source, readable, stack)
        else:
            report = Report(source, readable, _stack=stack)
            _inspect(report, *_listed(report))
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        stack.close()
        raise refusal(source, error) from error
    except BaseException:
        stack.close()
        raise
    return report


def refusal(source: Path, error: BaseException) -> ReportError:
    """What it means for the reader that SQLite refused to read a report.

    Raises:
        KeyboardInterrupt: it did because of one.
    """
    if str(error) == "interrupted":
        raise KeyboardInterrupt from None
    if "locked" in str(error):
        return ReportError(
            "is locked by another program, which writes to it", file=source, do="wait until that is done"
        )
    if "readonly database" in str(error):
        return ReportError(
            "is in the middle of a change that was never finished (its -journal file lies beside it)",
            file=source,
            do="wait until the export is done, or export it again",
        )
    return NotAReport(
        f"the SQLite file is damaged or incomplete ({str(error)[:100]})",
        file=source,
        do="export the report again",
    )


def refuse_pipe(source: Path) -> None:
    """Refuse what can be read once at most: a report is read several times, and a pipe without a writer never ends.

    Raises:
        NotAReport: it is a pipe, a socket or a device.
    """
    if source.exists() and not source.is_file() and not source.is_dir():
        raise NotAReport(
            "is a pipe or a device, not a file", file=source, do="write it to a file and name that"
        )


def _head(source: Path) -> bytes:
    try:
        if source.is_dir():
            inside = (
                "the exports in it, one" if exports_in(source) else "the .sqlite or .nsys-rep files in it"
            )
            raise NotAReport("is a folder, not a report", file=source, do=f"name {inside}")
        refuse_pipe(source)
        with source.open("rb") as handle:
            head = handle.read(100)
    except OSError as error:
        raise ReportError(f"cannot be read: {error.strerror}", file=source) from error
    if not head:
        raise NotAReport("the file is empty", file=source, do="export the report again")
    return head


def _readable(source: Path, head: bytes, stack: ExitStack, export: Exporter) -> Path:
    """The plain SQLite file, or the folder of tables, behind any accepted file."""
    if head.startswith((_GZIP, _ZSTD)):
        plain = stack.enter_context(scratch_folder()) / _plain_name(source)
        unpack(source, plain, lambda first: _accept(source, plain, first))
        return _unpacked(source, plain, _head(plain), stack, export)
    return _unpacked(source, source, head, stack, export)


def _plain_name(source: Path) -> str:
    return source.stem or "report"


def _unpacked(source: Path, plain: Path, head: bytes, stack: ExitStack, export: Exporter) -> Path:
    _accept(source, plain, head)
    if head.startswith(_SQLITE):
        _check_complete(source, plain, head)
        return _settled(source, plain, stack)
    return export(plain, stack.enter_context(scratch_folder()))


def _accept(source: Path, plain: Path, head: bytes) -> None:
    """Refuse what is neither an export nor a report, by its first bytes and its name.

    Raises:
        NotAReport: it is neither.
    """
    if head.startswith(_SQLITE) or ".nsys-rep" in plain.name.lower() or ".qdrep" in plain.name.lower():
        return
    if ".qdstrm" in source.name.lower():
        raise NotAReport(
            "is a raw .qdstrm stream that nsys has not imported yet",
            file=source,
            do="import it with QdstrmImporter of the nsys that wrote it, then export to SQLite",
        )
    if head.startswith(_ONE_TABLE):
        raise NotAReport("is one table of an export", file=source, do="give the folder in which it lies")
    raise NotAReport(
        "is no SQLite file (foreign or encrypted)",
        file=source,
        do="give an export made by `nsys export --type sqlite --include-blobs=true report.nsys-rep`",
    )


def _settled(source: Path, plain: Path, stack: ExitStack) -> Path:
    """The database with what its write-ahead log holds: itself if that is nothing, else a private copy of both.

    SQLite cannot read such a log without writing beside it, and the folder of an input is not ours to write to.
    """
    database = plain.resolve()
    log = _beside(database, "-wal")
    if not log.is_file() or log.stat().st_size <= _WAL_HEADER_BYTES:
        return plain
    copy = stack.enter_context(scratch_folder()) / "report.sqlite"
    try:
        before = [(file.stat().st_size, file.stat().st_mtime_ns) for file in (database, log)]
        shutil.copyfile(database, copy)
        shutil.copyfile(log, _beside(copy, "-wal"))
        after = [(file.stat().st_size, file.stat().st_mtime_ns) for file in (database, log)]
    except OSError as error:
        raise ReportError(f"cannot be copied to read its -wal file: {error.strerror}", file=source) from error
    if before != after:
        raise ReportError("is being written by another program", file=source, do="wait until that is done")
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")  # moves the log into the copy
    return copy


def _beside(database: Path, ending: str) -> Path:
    """A file that SQLite keeps beside a database."""
    return database.with_name(database.name + ending)


def _check_complete(source: Path, plain: Path, head: bytes) -> None:
    """Compare the size that the SQLite header promises with the size on disk."""
    if len(head) < 100:
        raise NotAReport("the SQLite file is truncated", file=source, do="copy or export it again")
    size, promised = plain.stat().st_size, promised_bytes(head)
    if promised is not None and size < promised:
        raise NotAReport(
            f"the SQLite file is truncated: {size:,} of {promised:,} bytes",
            file=source,
            do="copy or export it again",
        )


def _folder(source: Path, folder: Path, stack: ExitStack) -> Report:
    """A report whose tables are the files of a folder."""
    private = stack.enter_context(scratch_folder())
    columnar = Columnar(folder, private / "report.sqlite")
    report = Report(source, private / "report.sqlite", columnar, _stack=stack)
    rows = {name: True if columnar.rows(name) else None for name in columnar.tables}
    _inspect(report, columnar.tables, rows)
    return report


def _listed(report: Report) -> tuple[dict[str, tuple[str, ...]], dict[str, bool | None]]:
    """Columns of each table of a database, and whether its rows have a rowid (None: it has no rows).

    Raises:
        UnsupportedSchema: as of ``_real_tables``.
    """
    with closing(report.connect()) as connection:
        columns = {
            name: tuple(str(row[1]) for row in connection.execute(f"PRAGMA table_info({quoted(name)})"))
            for name in _real_tables(report, connection)
            if not name.startswith("sqlite_")
        }
        return columns, {name: _numbered(connection, name, found) for name, found in columns.items()}


def _inspect(
    report: Report, listed: Mapping[str, Iterable[str]], numbered: Mapping[str, bool | None]
) -> None:
    """Fill ``tables``, ``aliases`` and ``unnumbered``; refuse what is no nsys export.

    Names are spelled as in the queries: for SQLite case means nothing.
    """
    spelled = spelling()
    columns = {
        spelled.get(name.lower(), name): frozenset(spelled.get(column.lower(), column) for column in found)
        for name, found in listed.items()
    }
    if not any(name.upper().startswith(OF_NSYS) for name in columns):
        raise NotAReport(
            f"is a SQLite file but no nsys export ({_tables_text(columns)})",
            file=report.path,
            do="give an export made by `nsys export --type sqlite`",
        )
    rows = {spelled.get(name.lower(), name): how for name, how in numbered.items()}
    report.tables = {name: columns[name] for name, how in rows.items() if how is not None}
    report.unnumbered = frozenset(name for name, how in rows.items() if how is False)
    for name in sorted(report.tables):
        plain = re.sub(r"(?i)_V\d+$", "", name)
        plain = spelled.get(plain.lower(), plain)
        if plain == name:
            continue
        if plain not in report.tables:
            report.tables[plain] = report.tables[name]
            report.aliases[plain] = name
        elif plain.lower() in spelled:
            other = report.aliases.get(plain, plain)
            raise UnsupportedSchema(
                f"tables {other} and {name} both hold rows, and which of them count is unknown",
                file=report.path,
                do="export the report again with one nsys, into a new file",
            )
    if _TEXTS not in {*columns, *report.tables}:
        raise MissingTable(
            f"has no table {_TEXTS}, so nothing in it has a name",
            file=report.path,
            do="export the report again with an unmodified nsys",
        )


def _real_tables(report: Report, connection: sqlite3.Connection) -> list[str]:
    """Names of the tables whose rows are in the file; what computes its rows is never read.

    Raises:
        UnsupportedSchema: one of the names that we read is a view or a virtual table; its rows need have no end.
    """
    spelled = spelling()
    listed = connection.execute("SELECT name, rootpage FROM sqlite_master WHERE type IN ('table', 'view')")
    real = []
    for name, root in ((str(row[0]), row[1]) for row in listed):
        if root:
            real.append(name)
        elif re.sub(r"_v\d+$", "", name.lower()) in spelled:
            raise UnsupportedSchema(
                f"{name} is a view or a virtual table, not a table of an export",
                file=report.path,
                do="export the report again with an unmodified nsys",
            )
    return real


def _tables_text(columns: dict[str, frozenset[str]]) -> str:
    return f"{len(columns)} tables, none of Nsight Systems" if columns else "it has no tables"


def _numbered(connection: sqlite3.Connection, table: str, columns: Iterable[str]) -> bool | None:
    """Do its rows have a rowid, as those of most tables? None if there are no rows."""
    source = quoted(table)
    try:
        row = connection.execute(f"SELECT rowid FROM {source} LIMIT 1").fetchone()
    except sqlite3.OperationalError:
        row = connection.execute(f"SELECT NULL FROM {source} LIMIT 1").fetchone()
    hidden = any(column.lower() == "rowid" for column in columns)
    return None if row is None else row[0] is not None and not hidden


def no_gpu_events_advice() -> str:
    """What to do about a capture without kernels."""
    return _READ_FLAGS
