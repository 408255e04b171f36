"""The yardstick of the benchmark: read seven kernel columns as Arrow, two row ranges on two threads, nothing else.

python bench/raw_read.py EXPORT
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import adbc_driver_sqlite.dbapi as adbc
import pyarrow as pa

TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
COLUMNS = "start, end, deviceId, streamId, globalPid, correlationId, shortName"
BATCH_ROWS = 65536


def read(path: Path, low: int, high: int) -> pa.Table:
    """The columns of the rows whose rowid lies in [low, high)."""
    with adbc.connect(f"file:{path}?mode=ro") as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
        cursor.execute(f"SELECT {COLUMNS} FROM {TABLE} WHERE rowid >= ? AND rowid < ?", (low, high))
        return cursor.fetch_arrow_table()


def kernel_rows(path: Path) -> int:
    """Read all rows in two ranges; how many there were."""
    with adbc.connect(f"file:{path}?mode=ro") as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT min(rowid), max(rowid) + 1 FROM {TABLE}")
        ((low, high),) = cursor.fetchall()
    middle = (low + high) // 2
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(read, (path, path), (low, middle), (middle, high)))
    return sum(part.num_rows for part in parts)


if __name__ == "__main__":
    print(kernel_rows(Path(sys.argv[1])))
