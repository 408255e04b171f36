"""Which rank of the run has which place in a communicator?

As a recorded ncclCommInit says, else by the order of rank numbers among the members, which is how process groups are
made. Where members were not captured only what was recorded is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import polars as pl


def places(
    operations: pl.DataFrame,
    members: Mapping[str, Sequence[int]],
    process_of_rank: Mapping[int, int],
) -> dict[tuple[int, str], int]:
    """(rank, communicator) to the rank inside the communicator.

    Args:
        operations: ``schema.OPERATIONS``.
        members: of each communicator the captured ranks, ascending.
        process_of_rank: rank to row of the processes.
    """
    recorded = {
        (int(process), communicator): int(own)
        for process, communicator, own in operations.filter(
            pl.col("own_rank").is_not_null() & pl.col("communicator").is_not_null()
        )
        .select("process", "communicator", "own_rank")
        .iter_rows()
    }
    devices = Counter(process_of_rank.values())
    made = {}
    for communicator, ranks in members.items():
        for position, rank in enumerate(ranks):
            process = process_of_rank[rank]
            alone = devices[process] == 1
            made[rank, communicator] = recorded.get((process, communicator), position) if alone else position
    return made
