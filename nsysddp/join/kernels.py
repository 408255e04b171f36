"""What is known of each communication kernel, before and after matching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysddp.join.arrivals import ROOTED
from nsysddp.model.classify import KINDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Column = NDArray[Any]


ALL_KINDS = (*KINDS, "send", "recv", "grouped")
"""Kinds of kernels and of single operations; a code is a position in this tuple."""

SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Kinds in which no rank can end before all have arrived: their ends must agree between ranks."""

CODE = {name: code for code, name in enumerate(ALL_KINDS)}
IS_SYNCHRONISING = np.isin(ALL_KINDS, SYNCHRONISING)
IS_PER_RANK = np.isin(ALL_KINDS, ("all_gather", "reduce_scatter", "all_to_all"))
IS_ROOTED = np.isin(ALL_KINDS, ROOTED)
IS_POINT_TO_POINT = np.isin(ALL_KINDS, ("send", "recv"))
NONE = -1
"""Where a code, a number or a size is not known."""

REASONS = (
    "unmatched:not examined",
    "sequence",
    "order",
    "unmatched:only one rank of the communicator was captured",
    "unmatched:ranks of the communicator are missing",
    "unmatched:the sequences of the ranks do not fit together",
    "unmatched:missing on a rank",
    "unmatched:kind or size differs between ranks",
    "unmatched:the ends do not agree",
    "unmatched:the payload names no peer",
    "unmatched:the counterpart was not captured",
    "unmatched:ranks of the job are missing",
    "unmatched:only one rank was captured",
    "unmatched:the ranks do not show the same sequence",
    "unmatched:who sends to whom is not recorded",
    "unmatched:which ranks form a group is not recorded",
    "unmatched:which rank is the root is not recorded",
)
"""Every value of the column ``match``."""
REASON = {text.removeprefix("unmatched:"): code for code, text in enumerate(REASONS)}


@dataclass
class Kernels:
    """All communication kernels, ordered by (rank, start), one array a property.

    Attributes:
        event: row of the events frame.
        rank, clock, start, end, stream: as recorded.
        kind: code of the collective kind; before matching, what the name tells (-1: nothing).
        communicator: code of the communicator; -1 if unknown.
        sequence: number in the communicator; -1 if unknown.
        payload: payload size in bytes; -1 if unknown.
        group_size: ranks of the communicator; -1 if unknown.
        root: rank that is the root of a rooted operation; -1 if there is none, or it is not known.
        collective: id equal over ranks; -1 where unmatched.
        reason: position in ``REASONS``.
        peers: rooted operations, sends and receives: kernel to the events that it waits for.
    """

    event: Column
    rank: Column
    clock: Column
    start: Column
    end: Column
    stream: Column
    kind: Column
    communicator: Column
    sequence: Column
    payload: Column
    group_size: Column
    root: Column
    collective: Column
    reason: Column
    peers: dict[int, list[int]]

    @classmethod
    def of(
        cls,
        event: Column,
        rank: Column,
        clock: Column,
        start: Column,
        end: Column,
        stream: Column,
        kind: Column,
    ) -> Kernels:
        """Kernels of which nothing but the recording is known."""

        def unknown() -> Column:
            return np.full(event.size, NONE, dtype=np.int64)

        return cls(
            event, rank, clock, start, end, stream, kind,
            communicator=unknown(), sequence=unknown(), payload=unknown(), group_size=unknown(), root=unknown(),
            collective=unknown(),
            reason=np.zeros(event.size, np.int64), peers={},
        )  # fmt: skip
