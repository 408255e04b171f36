"""Read with which grid and block each kernel was launched."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysddp.ingest import sql
from nsysddp.ingest.columns import NONE, Gathered, integers
from nsysddp.ingest.report import KERNEL, Report
from nsysddp.model.errors import ReportError

_AXES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


def read_shapes(report: Report, kernels: int, events: int) -> pl.DataFrame:
    """Grid and block of the first ``kernels`` of ``events`` rows, in row order; null for the rest.

    Raises:
        ReportError: the table changed after the events were read, so rows cannot be aligned.
    """
    gathered = Gathered()

    def consume(part: int, rows: pl.DataFrame) -> None:
        gathered.add(part, {axis: integers(rows, axis, np.int32, report.name, null=NONE) for axis in _AXES})

    sql.scan(report, "kernel_shapes", consume, table=KERNEL)
    columns = {axis: gathered.column(axis, np.int32) for axis in _AXES}
    if columns["grid_x"].size != kernels:
        raise ReportError(
            "the file changed while it was read",
            file=report.path,
            do="read it again when nothing writes to it",
        )
    shapes = pl.DataFrame(columns).select(
        pl.when(pl.col("grid_x") >= 0)
        .then(pl.format("{}x{}x{}", "grid_x", "grid_y", "grid_z"))
        .alias("grid"),
        pl.when(pl.col("block_x") >= 0)
        .then(pl.format("{}x{}x{}", "block_x", "block_y", "block_z"))
        .alias("block"),
    )
    rest = pl.DataFrame(
        {"grid": [None] * (events - kernels), "block": [None] * (events - kernels)}, schema=schema_of()
    )
    return pl.concat([shapes, rest])


def schema_of() -> dict[str, pl.DataType]:
    """Types of the two columns."""
    return {"grid": pl.String(), "block": pl.String()}
