"""Read an export that is a folder of Parquet or Arrow files, one file a table (``nsys export --type parquetdir``).

Tables and columns have the names of the SQLite export; types are unsigned, rows have no numbers, and bytes are declared
as text. A long table is read in batches of the columns that are asked for. Small questions are asked in SQL: a private
SQLite database has all tables of the folder, and a column of one is copied there when a question first reads it.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nsysddp.model.errors import NotAReport, ReportError, UnsupportedSchema
from nsysddp.model.names import natural, visible

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

PARQUET, ARROW = ".parquet", ".arrow"
OF_NSYS = ("CUPTI_ACTIVITY", "TARGET_INFO", "META_DATA", "NVTX", "ANALYSIS")
"""How names of tables begin that tell an export of nsys from anything else."""

_BATCH_ROWS = 1 << 18
_ALWAYS_ROWS, _MOST_ROWS_A_BYTE = 1 << 20, 16
"""Rows of events differ, so that many of them take more than a few bits each; small tables may be anything."""
_BYTES = ("binaryData",)
"""Columns that hold bytes although some exports declare them as text."""


def table_files(folder: Path) -> list[Path]:
    """The files of tables in a folder, by name; OSError if it cannot be listed."""
    return sorted(
        path for path in folder.iterdir() if path.suffix.lower() in (PARQUET, ARROW) and path.is_file()
    )


def is_export(path: Path) -> bool:
    """Is this a folder that holds the tables of one export?"""
    try:
        return path.is_dir() and any(file.name.upper().startswith(OF_NSYS) for file in table_files(path))
    except OSError:
        return False


def exports_in(folder: Path) -> list[Path]:
    """The folders in this one that are exports, in natural order; none where it cannot be listed."""
    try:
        return sorted(filter(is_export, folder.iterdir()), key=lambda path: natural(path.name))
    except OSError:
        return []


class _Table(Protocol):
    """One file: its columns with their SQL types, and where each piece that can be read alone ends (in rows)."""

    path: Path
    columns: Mapping[str, str]
    ends: Sequence[int]

    def pieces(self, columns: Sequence[str], first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Batches of the pieces numbered ``first`` up to ``last``."""


class _Parquet:
    """A Parquet file; its pieces are row groups."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self.path = path
        with pq.ParquetFile(path) as file:
            self.columns: Mapping[str, str] = _sql_types(file.schema_arrow)
            groups = (file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups))
            self.ends: Sequence[int] = list(accumulate(groups))

    def pieces(self, columns: Sequence[str], first: int, last: int) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.path, pre_buffer=False) as file:
            groups = list(range(first, last))
            yield from file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=list(columns))


class _Arrow:
    """A file of Arrow's IPC, with or without an index at its end; its pieces are record batches."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._opened() as (schema, batches):
            self.columns: Mapping[str, str] = _sql_types(schema)
            self.ends: Sequence[int] = list(accumulate(batch.num_rows for batch in batches))

    def pieces(self, columns: Sequence[str], first: int, last: int) -> Iterator[pa.RecordBatch]:
        with self._opened() as (_, batches):
            for number, batch in enumerate(batches):
                if number >= last:
                    return
                if number >= first:
                    chosen = batch.select(list(columns))
                    yield from (chosen[a : a + _BATCH_ROWS] for a in range(0, batch.num_rows, _BATCH_ROWS))

    @contextmanager
    def _opened(self) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        import pyarrow as pa

        with pa.memory_map(str(self.path)) as source:
            try:
                indexed = pa.ipc.open_file(source)
            except pa.ArrowInvalid:  # no index: a stream
                source.seek(0)
                stream = pa.ipc.open_stream(source)
                yield stream.schema, iter(stream)
            else:
                numbers = range(indexed.num_record_batches)
                yield indexed.schema, (indexed.get_batch(number) for number in numbers)


class Columnar:
    """One export as a folder of tables.

    Args:
        folder: where the files are.
        database: path of the private SQLite database that is to be made.

    Attributes:
        tables: table to its columns, also of those without rows; the database has the same tables and columns.

    Raises:
        NotAReport: a file is damaged; UnsupportedSchema: a table is there twice.
    """

    def __init__(self, folder: Path, database: Path) -> None:
        self._folder, self._database = folder, database
        self._files: dict[str, _Table] = {}
        self._held: dict[str, tuple[frozenset[str], bool]] = {}
        self._lock = threading.Lock()
        for path in table_files(folder):
            if path.stem.lower() in self._files:
                raise UnsupportedSchema(
                    f"holds table {visible(path.stem)} in two files",
                    file=folder,
                    do="export the report again, into a new folder",
                )
            with self._reading(path):
                opened: _Table = _Parquet(path) if path.suffix.lower() == PARQUET else _Arrow(path)
            self._files[path.stem.lower()] = opened
            if self.rows(path.stem) > max(_ALWAYS_ROWS, _MOST_ROWS_A_BYTE * path.stat().st_size):
                raise NotAReport(
                    f"file {visible(path.name)} in it claims more rows than a table of an export can have",
                    file=folder,
                    do="do not trust it; if it is yours, export the report again",
                )
        self.tables = {file.path.stem: tuple(file.columns) for file in self._files.values()}
        with closing(sqlite3.connect(database)) as connection:
            for name, columns in self.tables.items():
                kinds = self._files[name.lower()].columns
                typed = ", ".join(f"{quoted(column)} {kinds[column]}" for column in columns)
                connection.execute(f"CREATE TABLE {quoted(name)} ({typed or 'nothing'})")
            connection.commit()

    def rows(self, table: str) -> int:
        """Number of rows of a table, whatever the case of its name."""
        ends = self._files[table.lower()].ends
        return ends[-1] if ends else 0

    def row_ranges(self, table: str, parts: int) -> list[tuple[int, int]]:
        """First and last row, counted from 1, of at most ``parts`` ranges of about one size that are read apart."""
        ends, rows = self._files[table.lower()].ends, self.rows(table)
        cuts = {ends[bisect_left(ends, rows * part // parts)] for part in range(1, parts)} if rows else set()
        edges = [0, *sorted(cut for cut in cuts if 0 < cut < rows), rows]
        return [(before + 1, last) for before, last in pairwise(edges) if before < last]

    def batches(self, table: str, columns: Sequence[str], rows: tuple[int, int]) -> Iterator[pl.DataFrame]:
        """These columns of a range that ``row_ranges`` gave, batch by batch, with the number of each row as ``rowid``.

        Integers are signed and have 64 bits; texts are bytes, as what a report calls text need not be any.
        """
        import polars as pl

        file = self._files[table.lower()]
        spelled = {name.lower(): name for name in file.columns}
        first, last = (bisect_left(file.ends, row) for row in rows)
        number = rows[0]
        with self._reading(file.path):
            for batch in file.pieces([spelled[name.lower()] for name in columns], first, last + 1):
                plain = [
                    pl.Series(name, pl.from_arrow(_plain(array)))
                    for name, array in zip(columns, batch.columns, strict=True)
                ]
                rowid = pl.int_range(number, number + batch.num_rows, dtype=pl.Int64, eager=True)
                yield pl.DataFrame([rowid.alias("rowid"), *plain])
                number += batch.num_rows

    def supply(self, wanted: Mapping[str, Collection[str]], *, distinct: Collection[str] = ()) -> None:
        """Have these columns of these tables in the database.

        Args:
            wanted: table to columns; of a table without columns the number of rows counts.
            distinct: tables of which only different rows are needed.
        """
        with self._lock, closing(sqlite3.connect(self._database)) as connection:
            for table, columns in wanted.items():
                held, whole = self._held.get(table.lower(), (frozenset(), False))
                asked = held | {name.lower() for name in columns}
                if table.lower() in self._held and held == asked and (whole or table in distinct):
                    continue
                whole = whole or table not in distinct
                self._copy(connection, table, asked, whole=whole)
                self._held[table.lower()] = asked, whole
            connection.commit()

    def _copy(
        self, connection: sqlite3.Connection, table: str, asked: Collection[str], *, whole: bool
    ) -> None:
        """Put these columns of a table into the database, in place of what it holds of the table."""
        file = self._files[table.lower()]
        columns = [name for name in file.columns if name.lower() in asked]
        connection.execute(f"DELETE FROM {quoted(table)}")
        rows = self.rows(table)
        if not columns or not rows:
            connection.executemany(f"INSERT INTO {quoted(table)} DEFAULT VALUES", [()] * rows)
            return
        # Text that is no UTF-8 stays as it is: it enters as bytes.
        texts = {name for name in columns if file.columns[name] == "TEXT" and name not in _BYTES}
        marks = ", ".join("CAST(? AS TEXT)" if name in texts else "?" for name in columns)
        into = ", ".join(map(quoted, columns))
        insert = f"INSERT INTO {quoted(table)} ({into}) VALUES ({marks})"
        batches = self.batches(table, columns, (1, rows))
        for batch in batches if whole else _different(batches, columns):
            connection.executemany(insert, batch.select(columns).rows())

    def columns_read(self, sql: str) -> dict[str, set[str]]:
        """Which columns of which tables does a statement read? sqlite3.Error if it cannot be understood."""
        found: dict[str, set[str]] = {}

        def note(action: int, table: str | None, column: str | None, *_: Any) -> int:
            if action == sqlite3.SQLITE_READ and table in self.tables:
                found.setdefault(table, set()).update([column] if column else [])
            return sqlite3.SQLITE_OK

        with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)) as connection:
            connection.set_authorizer(note)
            connection.execute(f"EXPLAIN {sql}").fetchall()
        return found

    @contextmanager
    def _reading(self, path: Path) -> Iterator[None]:
        """What goes wrong with a file is told in one line."""
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno:
                raise ReportError(
                    f"file {visible(path.name)} cannot be read: {error.strerror}", file=self._folder
                ) from error
            reason = re.sub(r"\S*/\S+", "<path>", " ".join(str(error).split()))[:100]
            raise NotAReport(
                f"file {visible(path.name)} in it is damaged or incomplete ({reason})",
                file=self._folder,
                do="export the report again",
            ) from error


def quoted(identifier: str) -> str:
    """An SQL identifier in quotes; names in a report are data and can hold anything."""
    return '"' + identifier.replace('"', '""') + '"'


def _different(batches: Iterator[pl.DataFrame], columns: list[str]) -> Iterator[pl.DataFrame]:
    """One frame of the different rows, in the order in which they are met first."""
    import polars as pl

    found = [batch.select(columns).unique(maintain_order=True) for batch in batches]
    yield pl.concat(found, how="vertical_relaxed").unique(maintain_order=True)


def _sql_types(schema: pa.Schema) -> dict[str, str]:
    """Columns with the types that they have in a SQLite export."""
    import pyarrow.types as kinds

    def sql_type(kind: pa.DataType) -> str:
        if kinds.is_dictionary(kind):
            kind = kind.value_type
        if kinds.is_floating(kind):
            return "REAL"
        if kinds.is_integer(kind) or kinds.is_boolean(kind):
            return "INTEGER"
        return "BLOB" if kinds.is_binary(kind) or kinds.is_large_binary(kind) else "TEXT"

    return {field.name: sql_type(field.type) for field in schema}


def _plain(array: pa.Array) -> pa.Array:
    """Integers with 64 bits and a sign, as SQLite keeps them; text as bytes; anything else as it is."""
    import pyarrow as pa
    import pyarrow.types as kinds

    if kinds.is_dictionary(array.type):
        array = array.dictionary_decode()
    if kinds.is_uint64(array.type):
        return array.view(pa.int64())
    if kinds.is_integer(array.type) or kinds.is_boolean(array.type):
        return array.cast(pa.int64())
    if kinds.is_string(array.type) or kinds.is_large_string(array.type):
        return array.cast(pa.large_binary())
    return array
