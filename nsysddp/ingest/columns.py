"""Turn Arrow batches of an export into small typed numpy columns, checked value by value.

Nulls, text in a number column and times out of range are what damaged exports hold; each is either refused with
one clear line or left out and counted, never silently turned into a number.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.model.errors import ReportError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Column = NDArray[Any]

TIME_LIMIT_NS = 1 << 61
"""Times beyond this (73 years) cannot be real and would overflow when clocks are aligned."""

_WORTH_SHARING = 100_000
"""Rows from which on not copying is worth importing Arrow's machinery for it."""

NONE = -1
"""Stands for a null id (correlation, context, process) in numpy columns."""


class Codes:
    """Small consecutive codes for a few large integers (process ids), shared by the reading threads."""

    def __init__(self) -> None:
        self._code: dict[int, int] = {}
        self._lock = threading.Lock()

    @property
    def values(self) -> list[int]:
        """The encoded values; a value's position is its code."""
        return list(self._code)

    def settle(self) -> list[int]:
        """Number the values in ascending order, whichever thread met which first; the new code of each old one."""
        before = self.values
        self._code = {value: code for code, value in enumerate(sorted(before))}
        return [self._code[value] for value in before]

    def encode(self, values: Column, *, add: bool = True) -> Column:
        """Codes of the values as int32; -1 for a value that is new while ``add`` is off."""
        codes = np.full(values.size, -1, dtype=np.int32)
        left = values.size
        for value, code in list(self._code.items()):
            hit = values == value
            count = int(np.count_nonzero(hit))
            if count:
                codes[hit] = code
                left -= count
            if not left:
                return codes
        if add:
            fresh = codes < 0
            for value in np.unique(values[fresh]).tolist():
                with self._lock:
                    code = self._code.setdefault(int(value), len(self._code))
                codes[values == value] = code
        return codes


class Ids:
    """Codes of a few distinct ids (StringIds of kernel names), by a table that grows with the largest id."""

    _LARGEST = 1 << 24

    def __init__(self, first: int) -> None:
        self._first = first
        self._codes = Codes()
        self._table = np.full(1024, NONE, dtype=np.int32)
        self._lock = threading.Lock()

    @property
    def values(self) -> list[int]:
        """The ids, in order of their codes."""
        return self._codes.values

    def encode(self, ids: Column) -> Column:
        """Code of each id, counted from the first code of this table."""
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high > self._LARGEST:
            far: Column = self._codes.encode(ids.astype(np.int64)) + np.int32(self._first)
            return far
        table = self._table
        codes: Column | None = table[ids] if high < table.size else None
        if codes is None or (codes == NONE).any():
            with self._lock:
                known = self._codes.encode(np.unique(ids).astype(np.int64))
                table = np.full(max(self._table.size, 2 * (high + 1)), NONE, dtype=np.int32)
                table[: self._table.size] = self._table
                table[np.unique(ids)] = known + np.int32(self._first)
                self._table = table
            codes = table[ids]
        return codes


def integers(
    batch: pl.DataFrame, name: str, dtype: type[np.generic], report: str, *, null: int | None = None
) -> Column:
    """One integer column of a batch.

    Args:
        batch: the rows.
        name: column of the query.
        dtype: numpy type it must fit in.
        report: file name for messages.
        null: what stands for null; None refuses nulls.

    Raises:
        ReportError: nulls, text, reals, or values that do not fit.
    """
    column = batch[name]
    if not column.dtype.is_integer() and column.null_count() < column.len():
        raise _damaged(f"column {name} holds {column.dtype} values", report)
    if column.null_count():
        if null is None:
            raise _damaged(f"column {name} holds NULL", report)
        column = column.cast(pl.Int64).fill_null(null)
    values = column.to_numpy()
    limits = np.iinfo(np.dtype(dtype))
    if (
        values.size
        and np.dtype(dtype).itemsize < 8
        and (values.min() < limits.min or values.max() > limits.max)
    ):
        raise _damaged(f"column {name} holds values that no real export has", report)
    return values.astype(dtype)


def _damaged(what: str, report: str) -> ReportError:
    return ReportError(what, file=report, do="the export is damaged: export the report again")


@dataclass
class Gathered:
    """Columns collected from batches of several row ranges, put back into row order at the end."""

    parts: dict[int, dict[str, list[Column]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    dropped: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, part: int, columns: Mapping[str, Column], dropped: int = 0) -> None:
        """Append one batch of a row range."""
        with self._lock:
            for name, values in columns.items():
                self.parts[part][name].append(values)
            self.dropped += dropped

    def column(self, name: str, dtype: type[np.generic]) -> Column:
        """One column over all ranges; its parts are released."""
        pieces = [piece for part in sorted(self.parts) for piece in self.parts[part].pop(name, [])]
        return np.concatenate(pieces).astype(dtype, copy=False) if pieces else np.empty(0, dtype=dtype)


class Bulk:
    """Typed columns of a long table, written in place by the threads that read its row ranges.

    Memory is set aside once for all rows that the rowids allow and only touched where rows are; collecting batches
    and joining them at the end would need it twice.

    Args:
        ranges: first and last rowid of each range.
        dtypes: column to numpy type.
        report: file name for messages.
        most: how many rows can be in the file at all, whatever their numbers are.
    """

    def __init__(
        self,
        ranges: Sequence[tuple[int, int]],
        dtypes: Mapping[str, type[np.generic]],
        report: str,
        most: int,
    ) -> None:
        self._report = report
        sizes = [min(max(last - first + 1, 0), most) for first, last in ranges]
        self._begin = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
        self._filled = [0] * len(sizes)
        self._columns = {name: np.empty(sum(sizes), dtype=dtype) for name, dtype in dtypes.items()}
        self.dropped = 0
        self._lock = threading.Lock()

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return sum(self._filled)

    def add(self, part: int, columns: Mapping[str, Column], dropped: int = 0) -> None:
        """Append one batch to its row range."""
        size = len(next(iter(columns.values())))
        first = self._begin[part] + self._filled[part]
        if first + size > self._begin[part + 1]:
            raise _damaged("a table holds more rows than it has row numbers for", self._report)
        for name, values in columns.items():
            self._columns[name][first : first + size] = values
        self._filled[part] += size
        if dropped:
            with self._lock:
                self.dropped += dropped

    def column(self, name: str) -> Column:
        """One column over all ranges, in row order; the object lets go of it."""
        values = self._columns.pop(name)
        if self.rows == values.size:
            return values
        pieces = [values[a : a + size] for a, size in zip(self._begin, self._filled, strict=False)]
        return np.concatenate(pieces) if pieces else values


def plausible(start: Column, end: Column) -> Column:
    """Which rows have times that can be: in range, and not ending before they start."""
    return (end >= start) & (start > -TIME_LIMIT_NS) & (end < TIME_LIMIT_NS)


def frame(batch: pa.RecordBatch) -> pl.DataFrame:
    """An Arrow batch as a polars frame, without copying."""
    made = pl.from_arrow(batch)
    assert isinstance(made, pl.DataFrame)
    return made


def shared(values: Column, *, null: int | None = None, known: Column | None = None) -> pl.Series:
    """A polars series over the array's own memory where that is large; null where ``null`` stands or not known."""
    known = known if null is None else values != null
    if values.size < _WORTH_SHARING:
        series = pl.Series(values)
        return series if known is None else series.set(pl.Series(~known), None)
    import pyarrow as pa

    # ``pa.array`` with a mask would copy the values.
    valid = None if known is None else pa.py_buffer(np.packbits(known, bitorder="little"))
    array = pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), values.size, [valid, pa.py_buffer(np.ascontiguousarray(values))]
    )
    made = pl.from_arrow(array)
    assert isinstance(made, pl.Series)
    return made


def stable_order(start: Column, ties: Callable[[Column], Sequence[Column]]) -> Column:
    """Order by start, ties by further columns, as row positions; nearly sorted input costs one pass.

    Exports come nearly sorted, so the merge sort behind ``stable`` is linear; the few runs of equal starts are
    then put into a canonical order, which makes every answer independent of the order of rows in the file.
    """
    order = np.argsort(start, kind="stable")
    ascending = start[order]
    same = np.flatnonzero(ascending[1:] == ascending[:-1])
    if same.size:
        member = np.zeros(start.size, dtype=bool)
        member[same] = True
        member[same + 1] = True
        places = np.flatnonzero(member)
        rows = order[places]
        keys = list(reversed(ties(rows)))
        order[places] = rows[np.lexsort([*keys, start[rows]])]
    return order
