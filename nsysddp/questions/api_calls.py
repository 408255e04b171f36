"""Which kind of CUDA call is this, by its name?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ALLOCATING = (
    r"(?i)^cu(da)?(Free|Malloc|HostAlloc|HostRegister|HostUnregister"
    r"|Mem(Alloc|Free|Map|Unmap|Create|Release|HostAlloc|HostRegister|AddressReserve|AddressFree))"
)
"""Calls that allocate or free memory; those in order of a stream (``...Async``) do not block."""

COPYING = r"(?i)^cu(da)?(Memcpy|Memset)"


def is_allocation(names: pl.Series) -> NDArray[np.bool_]:
    """Which names are of calls that allocate or free memory, and can wait for all GPU work?"""
    return are_like(names, ALLOCATING) & ~are_like(names, "Async")


def is_copy(names: pl.Series) -> NDArray[np.bool_]:
    """Which names are of calls that copy?"""
    return are_like(names, COPYING)


def are_like(names: pl.Series, pattern: str) -> NDArray[np.bool_]:
    """Which names hold the pattern? Every name is looked at once."""
    distinct = names.unique().drop_nulls()
    alike = distinct.filter(distinct.cast(pl.String).str.contains(pattern))
    flags: NDArray[np.bool_] = names.is_in(alike.implode()).fill_null(False).to_numpy()
    return flags
