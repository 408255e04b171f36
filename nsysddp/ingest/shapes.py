"""Read with which grid and block each kernel was launched."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.ingest import sql
from nsysddp.ingest.columns import NONE, Bulk, integers, shared
from nsysddp.ingest.report import KERNEL, Report
from nsysddp.model.errors import ReportError
from nsysddp.model.schema import SHAPES

if TYPE_CHECKING:
    from nsysddp.ingest.columns import Column

_AXES = ("x", "y", "z")


def read_shapes(report: Report, kernels: int, events: int) -> pl.DataFrame:
    """Grid and block of the first ``kernels`` of ``events`` rows, in row order; null for the rest.

    Raises:
        ReportError: the table changed after the events were read, so rows cannot be aligned.
    """
    ranges = sql.row_ranges(report, KERNEL)
    codes = Bulk(ranges, {"grid": np.int32, "block": np.int32}, report.name, sql.most_rows(report))
    known = {"grid": _Texts(), "block": _Texts()}

    def consume(part: int, rows: pl.DataFrame) -> None:
        if rows.height:
            sizes = {
                of: [integers(rows, f"{of}_{axis}", np.int32, report.name, null=NONE) for axis in _AXES]
                for of in known
            }
            codes.add(part, {of: texts.encode(*sizes[of]) for of, texts in known.items()})

    sql.scan(report, "kernel_shapes", consume, table=KERNEL)
    if codes.rows != kernels:
        raise ReportError(
            "the file changed while it was read",
            file=report.path,
            do="read it again when nothing writes to it",
        )
    shapes = SHAPES.check(
        pl.DataFrame(
            {of: texts.values.gather(shared(codes.column(of), null=NONE)) for of, texts in known.items()}
        )
    )
    if events == kernels:
        return shapes
    rest = pl.DataFrame({of: [None] * (events - kernels) for of in known}, schema=SHAPES.dtypes)
    return pl.concat([shapes, rest], rechunk=True)


class _Texts:
    """A code for each distinct size over three axes, shared by the reading threads."""

    def __init__(self) -> None:
        self._code: dict[tuple[int, int, int], int] = {}
        self._lock = threading.Lock()

    @property
    def values(self) -> pl.Series:
        """The texts, in order of their codes."""
        return pl.Series([f"{x}x{y}x{z}" for x, y, z in self._code], dtype=pl.Categorical)

    def encode(self, x: Column, y: Column, z: Column) -> Column:
        """The code of each size; ``NONE`` where the export does not say."""
        # Blocks have at most 1024 threads an axis, and all but the first axis of a grid 65535 blocks.
        if y.max() >= 1 << 16 or z.max() >= 1 << 16 or min(y.min(), z.min()) < 0:
            keys = np.stack([x, y, z], axis=1)
            distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        else:
            packed = x.astype(np.int64) << 32 | y.astype(np.int64) << 16 | z
            different = np.sort(pl.Series(packed).unique().to_numpy())
            distinct = np.stack([different >> 32, different >> 16 & 0xFFFF, different & 0xFFFF], axis=1)
            inverse = np.searchsorted(different, packed)
        with self._lock:
            codes = [
                NONE if size[0] < 0 else self._code.setdefault((size[0], size[1], size[2]), len(self._code))
                for size in distinct.tolist()
            ]
        found: Column = np.asarray(codes, dtype=np.int32)[inverse.ravel()]
        return found
