"""Columns of all events: of many reports together they can be more than memory, and no rank needs those of the others.

Large ones lie in files without a name, which go with the process. Where memory is short the system writes them out and
lets go of what nobody reads at the moment; columns in ordinary memory would end the process instead.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike, NDArray

IN_A_FILE_BYTES = 64 << 20
"""A column from this size on lies in a file."""


def room(size: int, dtype: DTypeLike) -> NDArray[Any]:
    """An array to be filled, shape (size,); what is in it at first is not said."""
    kind = np.dtype(dtype)
    wanted = size * kind.itemsize
    if wanted < max(IN_A_FILE_BYTES, 1):
        return np.empty(size, dtype=kind)
    try:
        with tempfile.TemporaryFile() as file:
            # Reserved at once: of a disk that is full later the system would tell by killing the process.
            os.posix_fallocate(file.fileno(), 0, wanted)
            return np.frombuffer(mmap.mmap(file.fileno(), wanted), dtype=kind)
    except (OSError, AttributeError):  # no room there, or a system that reserves none
        return np.empty(size, dtype=kind)


def filled(size: int, value: int, dtype: DTypeLike) -> NDArray[Any]:
    """An array of one value, shape (size,)."""
    made = room(size, dtype)
    made.fill(value)
    return made


def joined(pieces: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The pieces one after the other, shape (sum of their sizes,)."""
    return np.concatenate(pieces, out=room(sum(piece.size for piece in pieces), np.result_type(*pieces)))
