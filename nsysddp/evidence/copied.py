"""Write the tables of a redacted copy as a folder of Parquet files, the form of the report that it is a copy of."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from nsysddp.ingest.columnar import PARQUET, quoted

_ROWS = 100_000
_BYTES = "binaryData"


def write_folder(database: Path, folder: Path) -> None:
    """Each table of the copy as a file of a new folder: integers, text, and payloads as bytes.

    Raises:
        OSError: the place cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    with closing(sqlite3.connect(database)) as connection:
        listed = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in listed:
            declared = connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
            schema = pa.schema(
                (
                    name,
                    pa.large_binary() if name == _BYTES else pa.int64() if kind == "INTEGER" else pa.string(),
                )
                for _, name, kind, *_ in declared
            )
            rows = connection.execute(f"SELECT * FROM {quoted(table)} ORDER BY rowid")
            with pq.ParquetWriter(folder / f"{table}{PARQUET}", schema, compression="zstd") as writer:
                while some := rows.fetchmany(_ROWS):
                    columns = zip(*some, strict=True)
                    arrays = [
                        pa.array(cells, field.type) for cells, field in zip(columns, schema, strict=True)
                    ]
                    writer.write_batch(pa.record_batch(arrays, schema=schema))
