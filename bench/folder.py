"""Write a generated SQLite export as the folder of Parquet files that nsys exports of the same report.

    python bench/folder.py /tmp/bench/1000000.sqlite /tmp/bench/1000000

Tables and columns keep their names, integers are unsigned where nothing is negative, enumerations are left out, and a
row group has 2^20 rows. Read batch by batch, so a table of any length takes little memory.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import adbc_driver_sqlite.dbapi as adbc
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

BATCH_ROWS = 1 << 20
TIMES = ("start", "end")


def write(database: Path, folder: Path) -> Path:
    """Make the folder, whole or not at all; one that is there is left as it is."""
    if folder.exists():
        return folder
    beside = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    with adbc.connect(f"file:{database}?mode=ro") as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
        cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'ENUM%'")
        for (name,) in cursor.fetchall():
            cursor.execute(f'SELECT * FROM "{name}"')
            _write(cursor.fetch_record_batch(), beside / f"{name}.parquet")
    beside.rename(folder)
    return folder


def _write(batches: pa.RecordBatchReader, path: Path) -> None:
    writer = None
    for batch in batches:
        table = pa.Table.from_batches([batch])
        if writer is None:
            kinds = pa.schema([(name, _kind(name, table[name])) for name in table.column_names])
            writer = pq.ParquetWriter(path, kinds)
        writer.write_table(table.cast(kinds), row_group_size=BATCH_ROWS)
    if writer is None:
        pq.write_table(batches.schema.empty_table(), path)
    else:
        writer.close()


def _kind(name: str, values: pa.ChunkedArray) -> pa.DataType:
    """The type of a column: times are signed, ids are not, and a column without a value holds integers."""
    if pa.types.is_null(values.type):
        return pa.uint32()
    if not pa.types.is_integer(values.type) or name in TIMES:
        return values.type
    return pa.int64() if (pc.min(values).as_py() or 0) < 0 else pa.uint64()


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), Path(sys.argv[2])))
