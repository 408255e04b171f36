"""Pools of memory of the C library, which keep what was freed. Standard library only: they are set before all else."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_ARENA_MAX, _ARENAS = -8, 2
"""``M_ARENA_MAX`` of malloc.h, and how many: of this thread and of all others, which work on large arrays."""


def few_pools() -> None:
    """Have all threads take memory from few pools, from now on.

    The C library gives each of the first threads a pool of its own, and every pool keeps what was freed there, out of
    reach of the others: after a capture of 10 million kernels a third of all memory.
    """
    _ask_c_library("mallopt", _ARENA_MAX, _ARENAS)


def hand_back() -> None:
    """Give the system what the C library keeps of freed memory: after long captures hundreds of MB in several pools."""
    _ask_c_library("malloc_trim", 0)


def _ask_c_library(function: str, *values: int) -> None:
    # Another system, or another C library, keeps by its own rules.
    with suppress(OSError, AttributeError, TypeError):
        getattr(ctypes.CDLL(None), function)(*values)
