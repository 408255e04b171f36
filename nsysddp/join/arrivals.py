"""For whose arrival did a kernel wait, where not every rank needs every other?

Definitions, "Rooted and one-sided operations". A kernel waits only for arrivals before its own end, and only for ranks
whose data it needs: in broadcast and scatter all need the root; in reduce and gather the root needs all, and another
rank only room at the root; a receive needs its sender, a send only room at its receiver.

    broadcast   root  ──████──                 waits for nobody, and may leave before others arrive
                r1    ████████──               waits for the root
                r2    ───────────███──         waits for nobody: the root has been there
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

FROM_ROOT = ("broadcast", "scatter")
TO_ROOT = ("reduce", "gather")
ROOTED = (*FROM_ROOT, *TO_ROOT)

_NO_ROOT = -1


def waited_for(
    event: NDArray[Any],
    collective: NDArray[Any],
    kind: NDArray[Any],
    rank: NDArray[Any],
    root: NDArray[Any],
    start: NDArray[Any],
    end: NDArray[Any],
) -> pl.DataFrame:
    """Whom each kernel of matched rooted operations waited for.

    Args:
        event: row of EVENTS of each kernel, as all that follows of shape (kernels,).
        collective: id of its operation, equal over ranks.
        kind: name of its kind, one of ``ROOTED``.
        rank: its rank.
        root: the rank that is the root; -1 if that is not recorded.
        start: its start on the axis of all ranks.
        end: its end there.

    Returns:
        One row a kernel, in the order given: ``peers``, rows of EVENTS that it waited for or that came before it
        (itself among them), null if that is not known; ``fits``, false where it cannot be of this operation, since it
        ended before data that it needed could come.
    """
    rows = pl.DataFrame(
        {
            "event": event,
            "id": collective,
            "kind": pl.Series(kind, dtype=pl.String),
            "rank": rank,
            "root": root,
            "start": start,
            "end": end,
        }
    ).with_row_index("place")
    of_root = pl.col("rank") == pl.col("root")

    def at_root(column: str) -> pl.Expr:
        return pl.col(column).filter(of_root).first().over("id")

    # The next later start of the operation: without a root only ranks that saw none before their end are certain.
    later = pl.col("start").shift(-1)
    told = (
        rows.sort("id", "start", "place")
        .with_columns(
            root_event=at_root("event"),
            root_start=at_root("start"),
            all_events=pl.col("event").over("id", mapping_strategy="join"),
            last_start=pl.col("start").max().over("id"),
            next_start=pl.when(later > pl.col("start")).then(later).fill_null(strategy="backward").over("id"),
        )
        .sort("place")
    )
    itself = pl.concat_list("event")
    with_root = pl.concat_list("event", "root_event")
    known = (pl.col("root") != _NO_ROOT) & pl.col("root_event").is_not_null()
    from_root = pl.col("kind").is_in(FROM_ROOT)
    root_was_there = pl.col("root_start") < pl.col("end")
    alone = pl.col("next_start").is_null() | (pl.col("next_start") >= pl.col("end"))
    return told.select(
        peers=pl.when(known & of_root & from_root)
        .then(itself)
        .when(known & of_root)
        .then("all_events")
        .when(known & root_was_there)
        .then(with_root)
        .when(known | alone)
        .then(itself),
        fits=pl.when(known & of_root & ~from_root)
        .then(pl.col("last_start") < pl.col("end"))
        .when(known & from_root)
        .then(root_was_there)
        .otherwise(True),
    )
