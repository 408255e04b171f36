"""Write a SQLite export as the folder of Parquet or Arrow files that nsys would have exported from the same report."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

Kind = Literal["parquet", "arrow", "stream"]


def as_folder(database: Path, folder: Path, kind: Kind = "parquet", *, rows: int = 1 << 20) -> Path:
    """The tables of an export as files of a new folder, as real ones are: unsigned, bytes as text, no enumerations.

    Args:
        database: the SQLite export.
        folder: what to make.
        kind: Parquet; Arrow with an index at the end of each file, or as a stream without.
        rows: of a row group or record batch.
    """
    folder.mkdir()
    with closing(sqlite3.connect(database)) as connection:
        connection.text_factory = bytes
        for (raw,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            name = raw.decode()
            if not name.startswith("ENUM_"):
                _write(_table(connection, name), folder / name, kind, rows)
    return folder


def _table(connection: sqlite3.Connection, name: str) -> pa.Table:
    declared = {
        row[1].decode(): row[2].decode() for row in connection.execute(f'PRAGMA table_info("{name}")')
    }
    cells = connection.execute(f'SELECT * FROM "{name}"').fetchall()
    columns = {
        column: _column([row[number] for row in cells], kind, is_time=column in ("start", "end"))
        for number, (column, kind) in enumerate(declared.items())
    }
    return pa.table(columns)


def _column(values: Sequence[Any], declared: str, *, is_time: bool) -> pa.Array:
    known = [value for value in values if value is not None]
    if any(isinstance(value, bytes) for value in known) or (not known and "INT" not in declared.upper()):
        return pa.array(values, pa.large_binary()).view(pa.large_string())  # not even checked for being UTF-8
    if any(isinstance(value, float) for value in known):
        return pa.array(values, pa.float64())
    if is_time or min(known, default=0) < 0:
        return pa.array(values, pa.int64())
    return pa.array(values, pa.uint32() if max(known, default=0) < 1 << 32 else pa.uint64())


def _write(table: pa.Table, stem: Path, kind: Kind, rows: int) -> None:
    if kind == "parquet":
        pq.write_table(table, f"{stem}.parquet", row_group_size=rows)
        return
    new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
    with new(f"{stem}.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
