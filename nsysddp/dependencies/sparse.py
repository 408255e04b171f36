"""Columns over millions of events or calls that take no memory for what says nothing, or stands elsewhere already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Where = NDArray[Any] | slice | int


@dataclass(frozen=True)
class Sparse:
    """A column of which few rows say something of their own; it is indexed like the array that it stands for.

    Attributes:
        at: those rows, ascending; shape (stored,).
        value: what they say; shape (stored,).
        others: what other rows hold, by their numbers.
        size: number of rows of the column.
    """

    at: NDArray[Any]
    value: NDArray[Any]
    others: Callable[[NDArray[Any]], NDArray[Any]]
    size: int

    @classmethod
    def of(cls, at: NDArray[Any], value: NDArray[Any], size: int) -> Sparse:
        """Row numbers where there are some, ``at`` ascends, and -1 in all other rows."""
        known = np.flatnonzero(value >= 0)
        return cls(at[known].astype(np.int32), value[known].astype(np.int32), _none, size)

    def __getitem__(self, where: Where) -> Any:
        """The values in some rows: an array, or for one row its value."""
        if isinstance(where, slice):
            return self._between(*where.indices(self.size)[:2])
        rows = np.asarray(where)
        place = np.minimum(np.searchsorted(self.at, rows), max(self.at.size - 1, 0))
        found = self.others(rows)
        if self.at.size:
            stored = self.at[place] == rows
            found = np.where(stored, self.value[place], found)
        return found if found.ndim else found[()]

    def _between(self, first: int, last: int) -> NDArray[Any]:
        made = self.others(np.arange(first, last, dtype=np.int32))
        low, high = np.searchsorted(self.at, (first, last))
        made[self.at[low:high] - first] = self.value[low:high]
        return made


def _none(rows: NDArray[Any]) -> NDArray[np.int32]:
    return np.full(rows.shape, -1, dtype=np.int32)


@dataclass(frozen=True)
class Gathered:
    """The values of a column in some rows, looked up when they are asked for; indexed like an array; shape of row."""

    value: NDArray[Any]
    row: NDArray[Any]

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.row.size

    def __getitem__(self, where: Where) -> Any:
        """The values in some places: an array, or for one place its value."""
        return self.value[self.row[where]]
