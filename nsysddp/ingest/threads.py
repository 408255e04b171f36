"""Which process does a thread of the export belong to?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nsysddp.ingest.columns import NONE, Codes

if TYPE_CHECKING:
    from numpy.typing import NDArray


THREAD_MASK = 0xFFFFFF
"""The bits of a globalTid that say which thread of its process it is."""

NOBODY = 0
"""Stands for the globalTid or globalPid of a row that names none."""


def processes_of(thread: NDArray[Any], processes: Codes) -> NDArray[Any]:
    """Process code of each globalTid (or globalPid); -1 if it did no GPU work.

    A row that names none is of the only process; so is every row if the GPU events name no process at all.
    """
    only = processes.values if len(processes.values) == 1 else []
    if only == [NONE]:
        return np.zeros(thread.size, np.int32)
    code = processes.encode(thread & ~np.int64(THREAD_MASK), add=False)
    if only:
        code[thread == NOBODY] = 0
    return code


def count_threadless(thread: NDArray[Any], code: NDArray[Any]) -> int:
    """How many rows are of no known process because they name no thread?"""
    return int(np.count_nonzero((code < 0) & (thread == NOBODY)))
