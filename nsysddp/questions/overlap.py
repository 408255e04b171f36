"""How much communication is hidden under computation, per rank and window, and what is left exposed?

Definitions, "Interval decomposition". With C communication, P compute and spin, M memory, G graph spans, W window::

    hidden = |C & P|   exposed = |C - P|   exposed_memory = |M - P - C|   graph = |G - P - C - M|
    idle = |W - P - C - M - G|      hidden + exposed = communication
    compute + exposed + exposed_memory + graph + idle = window

Both identities are asserted on every row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.model import schema
from nsysddp.model.errors import AnalysisError
from nsysddp.model.intervals import Intervals
from nsysddp.model.schema import FLAG, FLOAT, INT, RANK_NUMBER, STEP_NAME, declare

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace
    from nsysddp.questions.attribution import Attribution
    from nsysddp.questions.collectives import Split
    from nsysddp.questions.window import Window, Windows


UNKNOWN_UNDER_GRAPHS = (
    "hidden_communication_ns",
    "exposed_communication_ns",
    "hidden_transfer_ns",
    "hidden_wait_ns",
    "exposed_transfer_ns",
    "exposed_wait_ns",
    "hidden_unsplit_ns",
    "exposed_unsplit_ns",
    "overlap_ratio",
)
_NEVER = np.iinfo(np.int64).min
"""Before everything: the end of no events."""

_SPLIT_COLUMNS = ("hidden_transfer_ns", "hidden_wait_ns", "exposed_transfer_ns", "exposed_wait_ns")

OVERLAP = declare(
    "overlap",
    "one rank and window (a step, or the whole capture)",
    [
        RANK_NUMBER,
        ("pid", INT, "process id on its host"),
        ("device", INT, "CUDA ordinal inside that process"),
        STEP_NAME,
        ("step_index", INT, "0-based order of the step; null for the whole capture"),
        ("is_warmup", FLAG, "a leading step longer than 1.5 x the median of the rest"),
        ("window_ns", INT, "|W|"),
        ("compute_ns", INT, "|P|, compute and spin kernels"),
        ("spin_ns", INT, "|spin|, contained in compute_ns"),
        ("communication_ns", INT, "|C|"),
        ("hidden_communication_ns", INT, "|C & P|"),
        ("exposed_communication_ns", INT, "|C - P|"),
        ("hidden_transfer_ns", INT, "transfer part of C under P: what overlap really saved"),
        ("hidden_wait_ns", INT, "wait for later ranks under P"),
        ("exposed_transfer_ns", INT, "transfer part of C - P"),
        ("exposed_wait_ns", INT, "wait part of C - P: load imbalance, not network"),
        ("hidden_unsplit_ns", INT, "part of C & P without a valid match or with unusable clocks"),
        ("exposed_unsplit_ns", INT, "part of C - P without a valid match or with unusable clocks"),
        ("exposed_memory_ns", INT, "|M - P - C|, copies and memsets alone"),
        ("p2p_copy_ns", INT, "|peer-to-peer copies|, contained in M"),
        ("graph_ns", INT, "|G - P - C - M|, whole-graph spans of unknown content"),
        ("idle_ns", INT, "|W - P - C - M - G|"),
        (
            "tail_communication_ns",
            INT,
            "communication after the last backward compute; null without backward",
        ),
        ("tail_wait_ns", INT, "wait inside the tail"),
        ("tail_transfer_ns", INT, "transfer inside the tail"),
        ("overlap_ratio", FLOAT, "hidden / communication; null when communication is 0"),
        ("kernels", INT, "kernels launched in the step (by launch, not by time)"),
        ("collectives", INT, "collective kernels launched in the step"),
    ],
)


@dataclass(frozen=True)
class _Sets:
    """The interval sets of one rank that the decomposition measures; all lengths come from them."""

    compute: Intervals
    spin: Intervals
    communication: Intervals
    exposed_memory: Intervals
    p2p: Intervals
    graph: Intervals
    graph_any: Intervals
    busy: Intervals
    split: Split


def _sets(trace: Trace, rank: int, split: Split) -> _Sets:
    compute = trace.union(rank, ["compute", "spin"])
    communication = trace.union(rank, ["communication"])
    memory = trace.union(rank, ["memory"])
    graph = trace.union(rank, ["graph"])
    return _Sets(
        compute=compute,
        spin=trace.union(rank, ["spin"]),
        communication=communication,
        exposed_memory=memory - compute - communication,
        p2p=_peer_copies(trace, rank),
        graph=graph - compute - communication - memory,
        graph_any=graph,
        busy=trace.fresh_union(rank, schema.CLASSES),
        split=split,
    )


def _peer_copies(trace: Trace, rank: int) -> Intervals:
    peer = [number for number, text in enumerate(trace.names["text"].to_list()) if text == schema.P2P_COPY]
    if not peer:
        return Intervals.empty()
    events = trace.events_of(rank).filter(pl.col("name").is_in(peer) & (pl.col("class") == "memory"))
    return Intervals.union_of(events["start_ns"].to_numpy(), events["end_ns"].to_numpy(), is_sorted=True)


def overlap_table(
    trace: Trace, attribution: Attribution, chosen: Windows, splits: Mapping[int, Split]
) -> pl.DataFrame:
    """The decomposition of every window (``OVERLAP``).

    Where a window holds whole-graph spans, hidden, exposed and overlap columns are null.

    Raises:
        AnalysisError: an identity does not hold.
    """
    place = {
        rank: (pid, device) for rank, pid, device in trace.ranks.select("rank", "pid", "device").iter_rows()
    }
    names = dict(attribution.steps.select("step_index", "name").iter_rows())
    last_backward = _last_backward(attribution)

    def of_rank(rank: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        windows = list(chosen.of(rank))
        if not windows:
            return rows
        sets = _sets(trace, rank, splits[rank])
        measured = _measure(sets, windows)
        _assert_identities(measured, windows)
        counts = _counts(trace, attribution, rank, windows, chosen.per)
        last_range = last_backward.get(trace.process_of_rank[rank], {})
        tails = _tails(trace, attribution, rank, windows, splits[rank], last_range)
        for number, window in enumerate(windows):
            row: dict[str, Any] = {name: int(values[number]) for name, values in measured.items()}
            holds_graphs = row.pop("graph_any_ns") > 0
            matched = row.pop("matched_ns")
            if row["communication_ns"] and not matched:
                row.update(dict.fromkeys(_SPLIT_COLUMNS))
            row["overlap_ratio"] = (
                row["hidden_communication_ns"] / row["communication_ns"] if row["communication_ns"] else None
            )
            row.update(tails[number])
            if holds_graphs:
                row.update(dict.fromkeys(UNKNOWN_UNDER_GRAPHS))
            pid, device = place[rank]
            row.update(
                rank=rank,
                pid=pid,
                device=device,
                step=names.get(window.step),
                step_index=window.step if window.step >= 0 else None,
                is_warmup=window.is_warmup,
                kernels=int(counts[0][number]),
                collectives=int(counts[1][number]),
            )
            rows.append(row)
        return rows

    return OVERLAP.frame([row for rows in trace.each_rank(of_rank) for row in rows])


def _measure(sets: _Sets, windows: list[Window]) -> dict[str, NDArray[np.int64]]:
    """Every length of every window, all from cumulative coverage at the window edges."""
    start = np.array([window.start for window in windows], dtype=np.int64)
    end = np.array([window.end for window in windows], dtype=np.int64)

    def within(some: Intervals) -> NDArray[np.int64]:
        return some.length_within(start, end)

    edges = np.concatenate([start, end])

    def shared(some: Intervals, other: Intervals) -> NDArray[np.int64]:
        before, until = np.split(some.shared_before(other, edges), 2)
        length: NDArray[np.int64] = np.maximum(until - before, 0)
        return length

    window = end - start
    communication, split = sets.communication, sets.split
    transfer, wait, unsplit = within(split.transfer), within(split.wait), within(split.unsplit)
    hidden_transfer = shared(split.transfer, sets.compute)
    hidden_wait = shared(split.wait, sets.compute)
    hidden_unsplit = shared(split.unsplit, sets.compute)
    without_compute = sets.compute.complement(*communication.bounds)
    return {
        "window_ns": window,
        "compute_ns": within(sets.compute),
        "spin_ns": within(sets.spin),
        "communication_ns": within(communication),
        "hidden_communication_ns": shared(communication, sets.compute),
        "exposed_communication_ns": shared(communication, without_compute),
        "hidden_transfer_ns": hidden_transfer,
        "hidden_wait_ns": hidden_wait,
        "exposed_transfer_ns": transfer - hidden_transfer,
        "exposed_wait_ns": wait - hidden_wait,
        "hidden_unsplit_ns": hidden_unsplit,
        "exposed_unsplit_ns": unsplit - hidden_unsplit,
        "exposed_memory_ns": within(sets.exposed_memory),
        "p2p_copy_ns": within(sets.p2p),
        "graph_ns": within(sets.graph),
        "idle_ns": window - within(sets.busy),
        "graph_any_ns": within(sets.graph_any),
        "matched_ns": transfer + wait,
    }


def _assert_identities(measured: Mapping[str, NDArray[np.int64]], windows: list[Window]) -> None:
    """The books of every window balance."""
    sizes = np.array([window.end - window.start for window in windows], dtype=np.int64)
    parts = sum(
        measured[name]
        for name in ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "graph_ns", "idle_ns")
    )
    split = sum(
        measured[f"{where}_{what}_ns"]
        for where in ("hidden", "exposed")
        for what in ("transfer", "wait", "unsplit")
    )
    communication = measured["communication_ns"]
    sound = (
        (measured["hidden_communication_ns"] + measured["exposed_communication_ns"] == communication)
        & (parts == measured["window_ns"])
        & (measured["window_ns"] == sizes)
        & (split == communication)
        & (measured["spin_ns"] <= measured["compute_ns"])
        & (np.min(list(measured.values()), axis=0) >= 0)
    )
    if not sound.all():
        number = int(np.argmin(sound))
        window, row = windows[number], {name: int(values[number]) for name, values in measured.items()}
        raise AnalysisError(
            f"the books of rank {window.rank} do not balance in [{window.start}, {window.end}): {row}",
            do="please report this with the export",
        )


def _counts(
    trace: Trace, attribution: Attribution, rank: int, windows: list[Window], per: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Kernels and collective kernels of each window: by launch for steps, by start for a capture or cut of it."""
    first, last = trace.rows_of(rank)
    events = trace.events_of(rank)
    is_kernel = trace.is_kernel[events["name"].to_numpy()]
    is_collective = trace.is_class(rank, ["communication"])
    if per == "step":
        index = attribution.step[first:last] + 1  # 0: none
        steps = np.array([window.step for window in windows]) + 1
        kernels, collectives = (
            np.bincount(index[some], minlength=steps.max() + 1) for some in (is_kernel, is_collective)
        )
        return kernels[steps], collectives[steps]
    start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    made = []
    for window in windows:
        # An empty event at the very end of the capture is one of its events.
        begun = start <= window.end if window.end == end.max() else start < window.end
        inside = begun & ((end > window.start) | (start >= window.start))
        made.append((np.count_nonzero(inside & is_kernel), np.count_nonzero(inside & is_collective)))
    both = np.array(made, dtype=np.int64)
    return both[:, 0], both[:, 1]


def _last_backward(attribution: Attribution) -> dict[int, dict[int, int]]:
    """Process to step to the row, in ``phases``, of the step's last backward range."""
    found: dict[int, dict[int, int]] = {}
    backward = (
        attribution.phases.with_row_index("row")
        .filter((pl.col("phase") == "backward") & (pl.col("step_index") >= 0))
        .sort("start_ns", "row")
        .select("process", "step_index", "row")
    )
    for process, step, row in backward.iter_rows():
        found.setdefault(process, {})[step] = row
    return found


def _tails(
    trace: Trace,
    attribution: Attribution,
    rank: int,
    windows: list[Window],
    split: Split,
    last_range: Mapping[int, int],
) -> list[dict[str, int | None]]:
    """Reduction of gradients after the last backward compute of each step (definitions, "Tail").

    comm_finish = end of the last gradient reduction of the step; backward_finish = end of the last compute event
    launched in backward no later than the launch of that reduction. With several backward ranges in a step the last
    counts. Null where no reduction is seen.
    """
    nothing: dict[str, int | None] = dict.fromkeys(
        ("tail_communication_ns", "tail_wait_ns", "tail_transfer_ns")
    )
    if not last_range or trace.launches is None:
        return [nothing] * len(windows)
    first, last = trace.rows_of(rank)
    size = max(last_range) + 1
    range_of = np.full(size + 1, -2, dtype=np.int64)  # no step (-1) is the last place, which has no range
    range_of[list(last_range)] = list(last_range.values())
    step = np.minimum(attribution.step[first:last], size)
    in_backward = attribution.phase_range[first:last] == range_of[step]
    end, launch = (
        trace.events_of(rank)["end_ns"].to_numpy(),
        trace.launches["launch_ns"].slice(first, last - first).fill_null(_NEVER).to_numpy(),
    )
    rows = _gradient_reductions(trace, attribution, rank, step, in_backward, range_of, launch)
    order = np.lexsort((launch[rows], end[rows]))  # the last of a step comes last, and is what stays
    limit, finish = np.full(size + 1, _NEVER), np.full(size + 1, _NEVER)
    limit[step[rows][order]], finish[step[rows][order]] = launch[rows][order], end[rows][order]
    rows = np.flatnonzero(in_backward & trace.is_class(rank, ["compute", "spin"]))
    rows = rows[launch[rows] <= limit[step[rows]]]
    latest = np.full(size + 1, _NEVER)
    np.maximum.at(latest, step[rows], end[rows])
    of_window = np.minimum([window.step if window.step >= 0 else size for window in windows], size)
    known = (finish[of_window] > _NEVER) & (latest[of_window] > _NEVER)
    begun = np.where(known, latest[of_window], 0)
    finished = np.where(known, finish[of_window], 0)
    split_known = split.unsplit.length_within(begun, finished) == 0
    waits, transfers = (some.length_within(begun, finished).tolist() for some in (split.wait, split.transfer))
    return [
        {
            "tail_communication_ns": length,
            "tail_wait_ns": waits[number] if split_known[number] else None,
            "tail_transfer_ns": transfers[number] if split_known[number] else None,
        }
        if known[number]
        else nothing
        for number, length in enumerate(np.maximum(finished - begun, 0).tolist())
    ]


_REDUCING = ("all_reduce", "reduce_scatter", "reduce")

_SMALL_BYTES = 1024
"""Reductions after backward of up to this size are norms, losses and flags, not gradients."""


def _gradient_reductions(
    trace: Trace,
    attribution: Attribution,
    rank: int,
    step: NDArray[Any],
    in_backward: NDArray[np.bool_],
    range_of: NDArray[np.int64],
    launch: NDArray[Any],
) -> NDArray[np.int64]:
    """Which of the rank's events reduce gradients (row numbers within the rank)?

    What backward launched and is a reduction, or names no kind; and reductions that were launched later in the step, if
    backward launched none or their size says that they hold gradients.
    """
    first, last = trace.rows_of(rank)
    event = trace.collectives["event"].to_numpy()
    mine = slice(*np.searchsorted(event, (first, last)))
    rows = event[mine] - first
    kind = trace.collectives["kind"][mine].fill_null("unknown")
    size = trace.collectives["bytes"][mine].fill_null(0).to_numpy()
    reduces = kind.is_in(_REDUCING).to_numpy()
    within = in_backward[rows] & (reduces | kind.is_in(["unknown", "grouped"]).to_numpy())
    counted = np.zeros(range_of.size, dtype=bool)
    counted[step[rows[within]]] = True
    begins = np.append(attribution.phases["start_ns"].to_numpy(), np.iinfo(np.int64).max)
    of_step = range_of[step[rows]]
    later = (of_step >= 0) & ~in_backward[rows] & (launch[rows] >= begins[np.maximum(of_step, -1)])
    large = size > _SMALL_BYTES
    has_large = np.zeros(range_of.size, dtype=bool)
    has_large[step[rows[later & reduces & large]]] = True
    alone = ~counted[step[rows]] & (large | ~has_large[step[rows]])
    found: NDArray[np.int64] = rows[within | (later & reduces & (large | alone))]
    return found


def or_null(values: NDArray[np.int64], unknown: NDArray[np.bool_]) -> pl.Series:
    """The values; null where they are unknown."""
    return pl.Series(values).set(pl.Series(unknown), None)


def joined(parts: Iterable[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Columns of several ranks one below the other; ranks without columns have no rows."""
    filled = [part for part in parts if part]
    return {name: np.concatenate([part[name] for part in filled]) for name in (filled[0] if filled else ())}


def summed(
    pieces: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    groups: int,
    minus: Intervals | None = None,
) -> NDArray[np.int64]:
    """``|pieces - minus|`` of group 0, 1, ...; pieces as ``grouped_union`` gives them."""
    group, start, end = pieces
    length = end - start
    if minus is not None:
        length = length - minus.length_within(start, end)
    total = np.zeros(groups, dtype=np.int64)
    np.add.at(total, group, length)
    return total
