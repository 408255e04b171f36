"""How much of each collective is waiting for the last rank, and how much is transfer?

Definitions, "Wait and transfer". For collective *i* on rank *r* with kernel ``[s, e)``::

    ready = max over ranks of s;  wait = [s, min(ready, e));  transfer = [min(ready, e), e)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.join.arrivals import ROOTED
from nsysddp.model.intervals import Intervals
from nsysddp.model.schema import FLOAT, INT, RANK_NUMBER, STEP_NAME, TEXT, declare
from nsysddp.model.units import gbps
from nsysddp.questions import overlap

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace
    from nsysddp.questions.attribution import Attribution
    from nsysddp.questions.steps import Selection

_COMPUTE_SHARE, _COMMUNICATION_SHARE = 0.5, 0.25
"""From these shares of its rank's computing and communication on, a stream is one that computes and communicates."""

UNUSABLE_CLOCKS = "unmatched:the clocks of the reports differ too much"

COLLECTIVE = declare(
    "collective",
    "one collective on one rank (one kernel; grouped operations share a kernel)",
    [
        ("collective_id", INT, "equal on all ranks of a matched collective; null where unmatched"),
        RANK_NUMBER,
        ("kind", TEXT, "all_reduce, all_gather, reduce_scatter, broadcast, ..., or unknown"),
        ("communicator", TEXT, "NCCL's communicator id in hex; null without payloads"),
        ("sequence", INT, "number of the operation in its communicator since the capture began"),
        ("group_size", INT, "ranks in the communicator; null if it cannot be known"),
        ("bytes", INT, "message size by the rule of its kind; null without payloads"),
        ("stream", INT, "CUDA stream inside the process"),
        ("start_ns", INT, "start of the kernel"),
        ("end_ns", INT, "end of the kernel"),
        ("ready_ns", INT, "latest start over the ranks; null where unmatched or the clocks cannot tell"),
        ("wait_ns", INT, "min(ready, end) - start"),
        ("transfer_ns", INT, "end - min(ready, end)"),
        ("hidden_ns", INT, "the part of the kernel under compute of its device"),
        ("exposed_ns", INT, "the part under no compute"),
        ("algbw_gbps", FLOAT, "bytes / shortest kernel over the ranks, decimal GB/s"),
        ("busbw_gbps", FLOAT, "algbw x the nccl-tests factor of its kind"),
        ("last_rank", INT, "the rank that arrived last"),
        ("match", TEXT, "sequence, order, or unmatched:REASON"),
        STEP_NAME,
        ("phase", TEXT, "phase in which it was launched; null if none or unknown"),
        ("kernel", TEXT, "kernel name"),
    ],
)

STRAGGLER = declare(
    "straggler",
    "one rank in one step: how often it was the last to arrive, and what that cost the others",
    [
        RANK_NUMBER,
        STEP_NAME,
        ("collectives", INT, "matched collectives of the step"),
        ("collectives_last", INT, "of those, where this rank arrived last"),
        ("arrival_skew_sum_ns", INT, "sum over those of (this rank's start - the earliest start)"),
        ("arrival_skew_max_ns", INT, "largest of those"),
        ("imposed_wait_ns", INT, "wait of all other ranks in the collectives where it was last"),
        ("first_phase", TEXT, "first phase of the step in which it fell behind; null if no phases are known"),
    ],
)


@dataclass(frozen=True)
class Split:
    """A rank's communication in three disjoint sets: transfer, wait, and what could not be split.

    An instant is transfer if any collective transfers then, else wait if any waits, else unsplit.
    """

    transfer: Intervals
    wait: Intervals
    unsplit: Intervals


def timed(trace: Trace) -> pl.DataFrame:
    """Every communication event with its counterpart's times.

    Returns:
        ``schema.COLLECTIVES`` plus rank, start_ns, end_ns, stream, name (row of names) and, where matched on usable
        clocks, ready_ns, transfer_start_ns = min(ready, end), last_rank, shortest_ns; else null.
    """
    frame = trace.collectives
    rows = frame["event"]
    events = trace.events.select("rank", "start_ns", "end_ns", "stream", "name")[rows.to_numpy()]
    joined = pl.concat([frame, events], how="horizontal").with_columns(pl.col("rank").cast(pl.Int64))
    joined = _refuse_bad_clocks(trace, joined)
    matched = joined.filter(pl.col("match").is_in(["sequence", "order"]))
    simple = matched.filter(pl.col("ready_peers").is_null())
    per_collective = simple.group_by("collective_id").agg(
        pl.col("start_ns").max().alias("ready_ns"),
        (pl.col("end_ns") - pl.col("start_ns")).min().alias("shortest_ns"),
        pl.col("rank").sort_by("start_ns", "rank").last().alias("last_rank"),
    )
    simple = simple.join(per_collective, on="collective_id", how="left").select(
        "event", "ready_ns", "shortest_ns", "last_rank"
    )
    return (
        joined.join(
            pl.concat([simple, _ready_of_peers(trace, matched)]),
            on="event",
            how="left",
            maintain_order="left",
        )
        .with_columns(pl.min_horizontal("ready_ns", "end_ns").alias("transfer_start_ns"))
        .with_columns(pl.when(pl.col("ready_ns").is_not_null()).then(pl.col("transfer_start_ns")))
    )


def _refuse_bad_clocks(trace: Trace, joined: pl.DataFrame) -> pl.DataFrame:
    """Collectives over clocks that do not agree are not split; those of ranks that share a clock are."""
    clocks = trace.ranks.select(
        pl.col("rank").cast(pl.Int64),
        pl.struct("clock_offset_ns", "clock_drift_ppm", "clock_residual_ns").rank("dense").alias("clock"),
        (pl.col("clock_residual_ns") > trace.clock_tolerance_ns).fill_null(False).alias("is_bad"),
    )
    if not clocks["is_bad"].any():
        return joined
    crossing = (
        joined.filter(pl.col("collective_id").is_not_null())
        .join(clocks, on="rank")
        .group_by("collective_id")
        .agg(pl.col("is_bad").any(), pl.col("clock").n_unique())
        .filter(pl.col("is_bad") & (pl.col("clock") > 1))["collective_id"]
    )
    crossed = pl.col("collective_id").is_in(crossing.implode())
    return joined.with_columns(
        pl.when(crossed).then(pl.lit(UNUSABLE_CLOCKS)).otherwise(pl.col("match")).alias("match")
    )


def _ready_of_peers(trace: Trace, matched: pl.DataFrame) -> pl.DataFrame:
    """Where not all wait for all: ready is the latest start over the kernels waited for and the kernel itself.

    The shortest kernel tells the bandwidth; of a rooted operation, which a rank may leave before others arrive, the
    time from the last arrival to the last end does.
    """
    transfers = matched.filter(pl.col("ready_peers").is_not_null()).select("event", "ready_peers")
    themselves = transfers.select("event", pl.col("event").alias("ready_peers"))
    pairs = pl.concat([transfers.explode("ready_peers").drop_nulls(), themselves])
    peers = pairs["ready_peers"].to_numpy()
    looked_up = pairs.with_columns(
        trace.events["start_ns"].gather(peers),
        trace.events["end_ns"].gather(peers),
        trace.events["rank"].gather(peers).cast(pl.Int64),
    )
    found = looked_up.group_by("event").agg(
        pl.col("start_ns").max().alias("ready_ns"),
        (pl.col("end_ns") - pl.col("start_ns")).min().alias("shortest_ns"),
        pl.col("rank").sort_by("start_ns", "rank").last().alias("last_rank"),
    )
    after_last = matched.filter(pl.col("kind").is_in(ROOTED)).select(
        "event", last_ns=(pl.col("end_ns").max() - pl.col("start_ns").max()).over("collective_id")
    )
    return found.join(after_last, on="event", how="left").select(
        "event", "ready_ns", pl.coalesce("last_ns", "shortest_ns").alias("shortest_ns"), "last_rank"
    )


def splits(trace: Trace, frame: pl.DataFrame) -> dict[int, Split]:
    """The communication of each rank in transfer, wait and unsplit time; asserts that they tile it."""

    def of_rank(rank: int) -> Split:
        mine = frame.filter(pl.col("rank") == rank)
        known = mine.filter(pl.col("ready_ns").is_not_null())
        start, middle, end = (known[name].to_numpy() for name in ("start_ns", "transfer_start_ns", "end_ns"))
        transfer = Intervals.union_of(middle, end)
        wait = Intervals.union_of(start, middle) - transfer
        everything = trace.union(rank, ["communication"])
        unsplit = everything - (transfer | wait) if known.height < mine.height else Intervals.empty()
        assert transfer.length_ns + wait.length_ns + unsplit.length_ns == everything.length_ns
        return Split(transfer, wait, unsplit)

    return dict(zip(trace.rank_numbers, trace.each_rank(of_rank), strict=True))


BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
    "send_recv": lambda _: 1.0,
}
"""busbw / algbw by kind, as in nccl-tests doc/PERFORMANCE.md."""


def with_bus_bytes(events: pl.DataFrame) -> pl.DataFrame:
    """The events with ``bus_bytes``: what the links of their collective move; null where a part is unknown."""
    kinds = events.select("kind", "group_size").unique()
    known = kinds.filter(pl.col("kind").is_in(list(BUS_FACTORS)) & (pl.col("group_size") > 0))
    factor = [BUS_FACTORS[kind](size) for kind, size in known.iter_rows()]
    factors = known.with_columns(factor=pl.Series(factor, dtype=pl.Float64))
    joined = events.join(factors, on=["kind", "group_size"], how="left", maintain_order="left")
    return joined.with_columns(bus_bytes=pl.col("bytes") * pl.col("factor")).drop("factor")


def bandwidth(
    kind: str, size: int | None, shortest_ns: int | None, group_size: int | None
) -> tuple[float | None, float | None]:
    """Algbw and busbw in decimal GB/s, from the last arriver's view.

    algbw = bytes / shortest kernel; busbw = algbw x factor(kind, n). None where a part is unknown or the time is 0.
    """
    if size is None or not shortest_ns:
        return None, None
    alg = gbps(size, shortest_ns)
    if group_size is None or kind not in BUS_FACTORS:
        return alg, None
    return alg, alg * BUS_FACTORS[kind](group_size)


def on_compute_streams(trace: Trace, attribution: Attribution) -> pl.DataFrame:
    """Which streams do most of their rank's computing and much of its communication, which so cannot overlap?

    Within steps, where there are any: outside, ranks wait for each other in barriers. Graph nodes say nothing about
    streams, and a rank with whole CUDA graphs has none to show.

    Returns:
        rank, context, stream, ``communication`` and ``compute`` there, and what the rank does of either (``all``,
        ``most``), in ns.
    """
    has_steps = bool((attribution.step >= 0).any())  # of none is it known without launches

    def of_rank(rank: int) -> dict[str, NDArray[Any]]:
        """What streams that communicated ran outside graphs, beside everything the rank ran.

        Shares are of that, graph nodes included: what ran outside the graphs may be a trifle.
        """
        first, last = trace.rows_of(rank)
        events = trace.events_of(rank)
        talks, computes = trace.is_class(rank, ["communication"]), trace.is_class(rank, ["compute", "spin"])
        if has_steps:
            within = attribution.step[first:last] >= 0
            talks, computes = talks & within, computes & within
        duration = events["end_ns"].to_numpy() - events["start_ns"].to_numpy()
        stream = events["stream"].to_numpy()
        talking = np.isin(stream, np.unique(stream[talks])) & (talks | computes)
        rows = np.flatnonzero(talking & ~events["in_graph"].to_numpy())
        return {
            "rank": np.full(rows.size, rank, dtype=np.int32),
            "context": events["context"].to_numpy()[rows],
            "stream": stream[rows],
            "communication": np.where(talks[rows], duration[rows], 0),
            "compute": np.where(computes[rows], duration[rows], 0),
            "all": np.full(rows.size, duration[talks].sum()),
            "most": np.full(rows.size, duration[computes].sum()),
        }

    per = (
        pl.DataFrame(overlap.joined(trace.each_rank(of_rank)))
        .group_by("rank", "context", "stream", "all", "most")
        .agg(pl.col("communication", "compute").sum())
    )
    traced_whole = pl.Series(
        [rank for rank in trace.rank_numbers if len(trace.union(rank, ["graph"]))], dtype=pl.Int32
    )
    return per.filter(
        (pl.col("compute") >= _COMPUTE_SHARE * pl.col("most"))
        & (pl.col("compute") > 0)
        & (pl.col("communication") >= _COMMUNICATION_SHARE * pl.col("all"))  # a barrier there is no diagnosis
        & (pl.col("communication") > 0)
        & ~pl.col("rank").is_in(traced_whole.implode())
    ).sort("rank", "stream", "context")


def collective_table(
    trace: Trace, frame: pl.DataFrame, attribution: Attribution, keep: NDArray[np.bool_]
) -> pl.DataFrame:
    """One row per collective and rank (``COLLECTIVE``), of the steps or the time asked for (by launch).

    Beside a whole CUDA graph, which may compute, hidden and exposed are null.
    """
    part = frame.filter(pl.Series(keep[frame["event"].to_numpy()]))
    beside = np.zeros(part.height, dtype=np.int64)
    known = np.ones(part.height, dtype=bool)
    starts, ends = part["start_ns"].to_numpy(), part["end_ns"].to_numpy()
    bounds = np.searchsorted(part["rank"].to_numpy(), [*trace.rank_numbers, np.iinfo(np.int32).max])
    for rank, first, last in zip(trace.rank_numbers, bounds[:-1], bounds[1:], strict=True):
        rows = slice(first, last)
        start, end = starts[rows], ends[rows]
        beside[rows] = trace.union(rank, ["compute", "spin"]).length_within(start, end)
        known[rows] = trace.union(rank, ["graph"]).length_within(start, end) == 0
    hidden = pl.select(pl.when(pl.Series(known)).then(pl.Series(beside)).alias("hidden_ns")).to_series()
    events = part["event"].to_numpy()
    # All ranks of a collective share one rate.
    asked = part.select("kind", "bytes", "shortest_ns", "group_size").rows()
    rate_of = {row: bandwidth(*row) for row in set(asked)}
    rates = [rate_of[row] for row in asked]
    names = trace.names["text"].gather(part["name"].to_numpy())
    return COLLECTIVE.check(
        part.with_columns(
            (pl.col("transfer_start_ns") - pl.col("start_ns")).alias("wait_ns"),
            (pl.col("end_ns") - pl.col("transfer_start_ns")).alias("transfer_ns"),
            hidden,
            (pl.col("end_ns") - pl.col("start_ns") - hidden).alias("exposed_ns"),
            pl.Series("algbw_gbps", [rate[0] for rate in rates], dtype=pl.Float64),
            pl.Series("busbw_gbps", [rate[1] for rate in rates], dtype=pl.Float64),
            attribution.step_names(events).alias("step"),
            attribution.phase_names(events).alias("phase"),
            names.alias("kernel"),
            pl.when(pl.col("ready_ns").is_not_null()).then(pl.col("collective_id")).alias("collective_id"),
        ).sort("rank", "start_ns", "end_ns", "stream", maintain_order=True)
    )


def selected_events(trace: Trace, attribution: Attribution, per: str, selection: Selection) -> np.ndarray:
    """Which events belong to the windows (of steps or of the capture) that were asked for.

    With steps chosen by number: events launched in them. With a time range: events that touch it.
    """
    keep = np.ones(trace.events.height, dtype=bool)
    if per == "step" and selection.by_number:
        keep &= attribution.step >= max(selection.first_step or 0, selection.skip_warmup)
        keep &= attribution.step < (np.inf if selection.last_step is None else selection.last_step)
    if selection.from_ns is not None:
        keep &= trace.events["end_ns"].to_numpy() > selection.from_ns
    if selection.to_ns is not None:
        keep &= trace.events["start_ns"].to_numpy() < selection.to_ns
    return keep


def straggler_table(collective: pl.DataFrame, fell_behind: pl.DataFrame) -> pl.DataFrame:
    """Which rank was how often the last to arrive in each step, and what that cost the others?

    A rank's skew in a collective where it came last is its start minus the earliest start. Where all arrive together
    none came last.

    Args:
        collective: ``COLLECTIVE``.
        fell_behind: the first phase of each rank and step in which it took longer than the others
            (``own_time.phases_behind``).
    """
    known = collective.filter(pl.col("ready_ns").is_not_null() & pl.col("collective_id").is_not_null())
    if not known.height:
        return STRAGGLER.empty()
    per = known.group_by("collective_id").agg(
        pl.col("start_ns").min().alias("earliest"),
        pl.len().alias("ranks"),
    )
    # In a rooted operation ranks wait for different ones: last is whom another waited for.
    others = known.filter(pl.col("last_rank") != pl.col("rank"))
    blamed = others.group_by("collective_id", rank="last_rank").agg(pl.col("wait_ns").sum().alias("imposed"))
    known = (
        known.join(per.filter(pl.col("ranks") > 1), on="collective_id", how="inner")
        .join(blamed, on=["collective_id", "rank"], how="left")
        .with_columns((pl.col("imposed").fill_null(0) > 0).alias("is_last"))
    )
    last = pl.col("is_last")
    skew = pl.col("start_ns") - pl.col("earliest")
    made = known.group_by("rank", "step").agg(
        pl.len().alias("collectives"),
        last.sum().alias("collectives_last"),
        skew.filter(last).sum().alias("arrival_skew_sum_ns"),
        skew.filter(last).max().fill_null(0).alias("arrival_skew_max_ns"),
        pl.col("imposed").sum().alias("imposed_wait_ns"),
        pl.col("phase").sort_by("start_ns").filter(last.sort_by("start_ns")).first().alias("came_last"),
        pl.col("start_ns").min().alias("at"),
    )
    made = made.join(fell_behind, on=["rank", "step"], how="left", nulls_equal=True).with_columns(
        # Where nothing took longer on it: the phase of the first collective at which it came last.
        first_phase=pl.when(pl.col("collectives_last") > 0).then(pl.coalesce("phase", "came_last"))
    )
    return STRAGGLER.check(made.sort("at", "rank").sort("rank", maintain_order=True))
