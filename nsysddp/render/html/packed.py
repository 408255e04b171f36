"""How does a timeline of a million events fit into one page? Interval sets and events as bytes, and what was merged.

A page holds two things of each lane:

* its *sets*, such as transfer or idle: exact, or, where they are too many, with neighbours merged that are less than
  ``resolution_ns`` apart. A merged piece keeps how much of it is covered, so that sums stay exact;
* its *events*, each with its name: all of them, or, where they are too many, those of ``brief_ns`` and longer.

Numbers are columns of LEB128 varints (https://webassembly.github.io/spec/core/binary/values.html), seven bits a byte,
in one run of bytes; the document says where each column begins and how many numbers it holds.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.model.intervals import Intervals
from nsysddp.model.names import visible
from nsysddp.questions.steps import step_windows
from nsysddp.render.lanes import MOST_RANKS_IN_FULL, Row, rows_in_full, with_work

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from nsysddp.questions import Context
    from nsysddp.questions.window import Window

    Ints = NDArray[np.int64]

MOST_EVENTS = 1_050_000
"""Events that a page holds at most; each takes six to eight bytes of text."""

MOST_PIECES = 300_000
"""Pieces of all sets of a page at most, if merging can achieve that."""

MOST_PATH_PIECES = 150_000
"""Pieces of the critical path of a page at most: the longest ones."""

MOST_BYTES = 8_800_000
"""Bytes of all columns at most; in base64 they are a third more."""

MOST_DRAWN = 32
"""Ranks that the page shows at once; the others when they are asked for."""

_MOST_HELD = 1_024
"""Ranks of which a page holds the events at most."""

_TELLING = frozenset({"communication", "exposed"})
"""Lanes that a reader zooms into for their edges: two thirds of the pieces are theirs."""


@dataclass
class Columns:
    """Columns of numbers, one after the other; times are kept relative to ``origin_ns``."""

    origin_ns: int
    size: int = 0
    _parts: list[bytes] = field(default_factory=list)

    def add(self, values: ArrayLike) -> list[int]:
        """Append a column; returns where it begins and how many numbers it holds."""
        numbers = np.asarray(values, dtype=np.int64)
        part = varints(numbers)
        place = [self.size, int(numbers.size)]
        self._parts.append(part)
        self.size += len(part)
        return place

    def add_ascending(self, times_ns: ArrayLike) -> list[int]:
        """Append times that ascend, as distances: the first from the origin, each other from the one before."""
        return self.add(np.diff(np.asarray(times_ns, dtype=np.int64), prepend=np.int64(self.origin_ns)))

    def add_set(self, pieces: Pieces) -> dict[str, list[int]]:
        """Append pieces: the gap before each, its length and, if any is not covered in full, how much is not."""
        before = np.append(np.int64(self.origin_ns), pieces.end)[:-1]
        made = {"gap": self.add(pieces.start - before), "length": self.add(pieces.end - pieces.start)}
        open_ns = pieces.end - pieces.start - pieces.covered
        if open_ns.any():
            made["open"] = self.add(open_ns)
        return made

    def text(self) -> str:
        """All columns in base64."""
        return base64.b64encode(b"".join(self._parts)).decode("ascii")


def varints(values: ArrayLike) -> bytes:
    """Non-negative integers as LEB128: seven bits a byte, lowest first, the high bit set on all but the last.

    Raises:
        ValueError: a number is negative.
    """
    signed = np.asarray(values, dtype=np.int64)
    if signed.size and int(signed.min()) < 0:
        raise ValueError("a varint cannot be negative")
    numbers = signed.astype(np.uint64)
    sizes = np.ones(numbers.size, dtype=np.int64)
    for bits in range(7, 63, 7):
        sizes += numbers >= np.uint64(1 << bits)
    places = np.cumsum(sizes) - sizes
    out = np.zeros(int(sizes.sum()), dtype=np.uint8)
    for byte in range(int(sizes.max(initial=0))):
        has = sizes > byte
        low = (numbers[has] >> np.uint64(7 * byte)) & np.uint64(0x7F)
        more = (sizes[has] > byte + 1).astype(np.uint64) << np.uint64(7)
        out[places[has] + byte] = (low | more).astype(np.uint8)
    return out.tobytes()


@dataclass(frozen=True)
class Pieces:
    """A set of instants, or an outline of it: disjoint pieces in order, and how much of each is covered."""

    start: Ints
    end: Ints
    covered: Ints


def outline(some: Intervals, apart_ns: int) -> Pieces:
    """The set with neighbours merged that are less than ``apart_ns`` apart; with 0 or 1 the set itself.

    The covered time of each piece is exact: the sum over all pieces is the length of the set.
    """
    if not len(some):
        return Pieces(some.start, some.end, some.start)
    opens = np.concatenate([[True], some.start[1:] - some.end[:-1] >= apart_ns])
    heads = np.flatnonzero(opens)
    tails = np.append(heads[1:] - 1, len(some) - 1)
    covered = np.add.reduceat(some.end - some.start, heads)
    assert int(covered.sum()) == some.length_ns
    return Pieces(some.start[heads], some.end[tails], covered)


def resolution(sets: Sequence[Intervals], most: int) -> tuple[int, int]:
    """How far must sets be merged so that all together have at most ``most`` pieces?

    Sets of few pieces stay exact; the others share what is left, and one distance for all.

    Returns:
        A number of pieces up to which a set stays exact, and the smallest power of two such that merging in the
        others what is less apart is enough (0: nothing is merged; at worst each set becomes one piece).
    """
    sizes = np.sort(np.array([len(spans) for spans in sets], dtype=np.int64))
    if int(sizes.sum()) <= most:
        return most, 0
    # The fair share: the largest size such that all smaller sets leave at least as much to each of the rest.
    before = np.cumsum(sizes) - sizes
    fits = sizes * np.arange(sizes.size, 0, -1) + before <= most
    exact = int(sizes[fits].max(initial=0))
    large = [spans for spans in sets if len(spans) > exact]
    room = most - int(sizes[sizes <= exact].sum()) - len(large)
    # Gaps by their number of bits, which is the exponent; members do not touch, so none is 0.
    bits = np.zeros(65, dtype=np.int64)
    for spans in large:
        bits += np.bincount(np.frexp(spans.start[1:] - spans.end[:-1])[1], minlength=bits.size)
    longer = np.cumsum(bits[::-1])[::-1]  # with at least so many bits, so of 2 ** (bits - 1) and more
    return exact, 1 << max(int(np.argmax(longer <= max(room, 0))) - 1, 0)


def brief(length_ns: Ints, always: NDArray[np.bool_], most: int) -> int:
    """The smallest power of two (or 0) such that at most ``most`` events are as long, or are always kept."""
    if length_ns.size <= most:
        return 0
    least = 1
    while np.count_nonzero((length_ns >= least) | always) > most and least < 1 << 62:
        least *= 2
    return least


def timeline_of(
    context: Context,
    path: pl.DataFrame | None = None,
    *,
    first: Sequence[int] = (),
    most_events: int = MOST_EVENTS,
    most_pieces: int = MOST_PIECES,
    most_bytes: int = MOST_BYTES,
) -> tuple[dict[str, Any], str]:
    """Everything that the page's timeline shows.

    Args:
        context: what the analyses share; its windows decide which part of time is shown.
        path: the table ``critical_path``, if it is known.
        first: ranks that are drawn first where there are too many to draw at once; none: evenly spread ones.
        most_events: events kept at most.
        most_pieces: pieces of all interval sets at most.
        most_bytes: bytes of all columns at most; fewer events are kept until that holds.

    Returns:
        The document, ready for JSON, in which a column is ``[offset, count]`` and times are relative to ``origin_ns``;
        and the columns' bytes in base64.
    """
    rows = _rows(context, first)
    drawn = few_of([row.rank for row in rows], first)
    while True:
        document, columns = _packed(context, rows, path, most_events, most_pieces)
        document["drawn"] = drawn
        if columns.size <= most_bytes or not document["events"]:
            return document, columns.text()
        most_events = int(min(most_events, document["events"]) * min(0.9, most_bytes / columns.size))


def _packed(
    context: Context, rows: Sequence[Row], path: pl.DataFrame | None, most_events: int, most_pieces: int
) -> tuple[dict[str, Any], Columns]:
    start, end = _extent(context, [row.rank for row in rows])
    shown, brief_ns, events = _events(context, [row.rank for row in rows], start, end, most_events)
    names = _names(context, shown)
    columns = Columns(int(np.min(shown["start_ns"].to_numpy(), initial=start)))
    merge = {
        telling: resolution(
            [
                part.clip(start, end)
                for row in rows
                for lane in row.lanes
                if (lane.name in _TELLING) == telling
                for _, part in lane.parts
            ],
            share,
        )
        for telling, share in ((True, 2 * most_pieces // 3), (False, most_pieces // 3))
    }
    steps = step_windows(context.trace, context.attribution)
    described = []
    for row in rows:
        mine = shown.filter(pl.col("rank") == row.rank)
        lanes = []
        for lane in row.lanes:
            exact, apart_ns = merge[lane.name in _TELLING]
            parts = [
                {
                    "look": look.key,
                    "set": columns.add_set(outline(part, 0 if len(part) <= exact else apart_ns)),
                }
                for look, part in ((look, some.clip(start, end)) for look, some in lane.parts)
            ]
            lanes.append(
                {
                    "name": lane.name,
                    "label": lane.label,
                    "parts": parts,
                    **_boxes(columns, lane.name, mine, names),
                }
            )
        spans = [(phase.look, outline(phase.spans.clip(start, end), 0)) for phase in row.phases]
        described.append(
            {
                "rank": row.rank,
                "place": [visible(line) for line in row.place],
                "lanes": lanes,
                "phases": [
                    {"label": look.label, "fill": look.fill, "ink": look.ink, "set": columns.add_set(some)}
                    for look, some in spans
                ],
                "windows": _windows(columns, [step for step in steps if step.rank == row.rank], start, end),
            }
        )
    document = {
        "origin_ns": columns.origin_ns,
        "view": [start - columns.origin_ns, end - columns.origin_ns],
        "resolution_ns": max(apart_ns for _, apart_ns in merge.values()),
        "brief_ns": brief_ns,
        "events": shown.height,
        "left_out": events - shown.height,
        "ranks_left_out": len(with_work(context, context.trace.rank_numbers)) - len(rows),
        "names": [visible(name) for name in names["text"]],
        "steps": {
            str(index): visible(name)
            for index, name in context.attribution.steps.select("step_index", "name").iter_rows()
        },
        "ranks": described,
        "path": None if path is None else _path(columns, path, start, end),
    }
    return document, columns


def few_of(ranks: Sequence[int], first: Sequence[int], most: int = MOST_DRAWN) -> list[int]:
    """At most so many of these ranks, ascending: those that come first, and evenly spread ones."""
    if len(ranks) <= most:
        return list(ranks)
    known = set(ranks)
    chosen = [rank for rank in dict.fromkeys(first) if rank in known][:most]
    others = [rank for rank in ranks if rank not in chosen]
    places = np.linspace(0, len(others) - 1, most - len(chosen)).round().astype(int)
    return sorted([*chosen, *(others[place] for place in places.tolist())])


def _rows(context: Context, first: Sequence[int]) -> list[Row]:
    """Every lane of each rank; of more than a page holds, those that come first and evenly spread ones."""
    ranks = few_of(with_work(context, context.trace.rank_numbers), first, _MOST_HELD)
    rows: list[Row] = []
    for begin in range(0, len(ranks), MOST_RANKS_IN_FULL):
        rows += rows_in_full(context, ranks[begin : begin + MOST_RANKS_IN_FULL])
    return rows


def _extent(context: Context, ranks: Sequence[int]) -> tuple[int, int]:
    """From the first to the last window of the ranks, or the bounds that were asked for."""
    every = context.windows.windows
    chosen = [window for window in every if window.rank in set(ranks)] or every
    asked = context.selection
    start = min(window.start for window in chosen) if asked.from_ns is None else asked.from_ns
    end = max(window.end for window in chosen) if asked.to_ns is None else asked.to_ns
    return start, max(end, start + 1)


def _events(
    context: Context, ranks: Sequence[int], start: int, end: int, most: int
) -> tuple[pl.DataFrame, int, int]:
    """The events that touch the part shown and have a box of their own.

    Communication is kept whatever its length, unless it alone is more than half of what a page holds.

    Returns:
        The events, of which ``wait`` is one more than the wait of communication, 0 where unknown; the length from which
        on others have a box; and how many events there are.
    """
    events = context.trace.events
    touches = pl.col("rank").is_in(list(ranks)) & (pl.col("end_ns") >= start) & (pl.col("start_ns") < end)
    there = events.select(touches).to_series().to_numpy()
    communication = there & (events["class"] == "communication").to_numpy()
    if np.count_nonzero(communication) > most // 2:
        communication = np.zeros_like(communication)
    length = np.where(there, _length(events), -1)
    least = brief(length[there], communication[there], most)
    rows = np.flatnonzero((length >= least) | communication)
    waits = context.timed.filter(pl.col("transfer_start_ns").is_not_null()).select(
        pl.col("event").cast(pl.UInt32), wait=pl.col("transfer_start_ns") - pl.col("start_ns") + 1
    )
    shown = (
        events.select("rank", "class", "start_ns", "end_ns", "name", "context", "stream")[rows]
        .with_columns(event=pl.Series(rows, dtype=pl.UInt32))
        .join(waits, on="event", how="left", maintain_order="left")
        .with_columns(pl.col("wait").fill_null(0))
    )
    return shown, least, int(np.count_nonzero(there))


def _names(context: Context, events: pl.DataFrame) -> pl.DataFrame:
    """The names of events, the most frequent first."""
    return (
        events["name"]
        .value_counts(name="uses")
        .with_columns(text=pl.col("name").replace_strict(dict(enumerate(context.trace.names["text"]))))
        .sort("uses", "text", "name", descending=[True, False, False])
        .with_row_index("place")
    )


def _boxes(columns: Columns, lane: str, mine: pl.DataFrame, names: pl.DataFrame) -> dict[str, Any]:
    """The events of one lane, and the streams whose events are drawn below each other."""
    part = mine.filter(pl.col("class").cast(pl.String) == lane).sort("start_ns", "end_ns", "event")
    if part.is_empty():
        return {}
    streams = (
        part.group_by("context", "stream")
        .agg(time=(pl.col("end_ns") - pl.col("start_ns")).sum())
        .sort("time", "context", "stream", descending=[True, False, False])
        .with_row_index("subrow")
    )
    placed = part.join(streams, on=["context", "stream"], how="left", maintain_order="left").join(
        names.select("name", "place"), on="name", how="left", maintain_order="left"
    )
    boxes = {
        "start": columns.add_ascending(placed["start_ns"]),
        "length": columns.add(placed["end_ns"] - placed["start_ns"]),
        "name": columns.add(placed["place"]),
    }
    if streams.height > 1:
        boxes["stream"] = columns.add(placed["subrow"])
    if lane == "communication":
        boxes["wait"] = columns.add(placed["wait"])
    return {"boxes": boxes, "streams": streams["stream"].to_list()}


def _windows(columns: Columns, some: Sequence[Window], start: int, end: int) -> dict[str, Any]:
    seen = [window for window in some if window.end > start and window.start < end]
    return {
        "step": columns.add([window.step for window in seen]),
        "start": columns.add_ascending([max(window.start, start) for window in seen]),
        "length": columns.add([min(window.end, end) - max(window.start, start) for window in seen]),
        "warm": columns.add([int(window.is_warmup) for window in seen]),
    }


def _path(columns: Columns, path: pl.DataFrame, start: int, end: int) -> dict[str, Any]:
    """The pieces of the critical path; paths of tied ranks are drawn below each other, in rows."""
    ties = (
        path.select("step_index", "path_rank")
        .unique()
        .sort("step_index", "path_rank")
        .with_columns(subrow=pl.int_range(pl.len()).over("step_index"))
    )
    inside = path.select(pl.col("start_ns", "end_ns").clip(start, end))
    length = _length(inside)
    real = length > 0
    least = brief(length[real], np.zeros(np.count_nonzero(real), dtype=bool), MOST_PATH_PIECES)
    rows = np.flatnonzero(real & (length >= least))
    shown = (
        path.select("step_index", "path_rank", "kind", "name", "rank")[rows]
        .hstack(inside[rows])
        .with_columns(pl.col("name").fill_null(""), pl.col("rank").fill_null(-1) + 1)
        .join(ties, on=["step_index", "path_rank"], how="left", nulls_equal=True)
        .sort("subrow", "start_ns", "end_ns")
    )
    names = shown["name"].value_counts(name="uses")
    names = names.sort("uses", pl.col("name").cast(pl.String), descending=[True, False])
    kinds = sorted(shown["kind"].unique().to_list())
    described = []
    for _, part in shown.group_by("subrow", maintain_order=True):
        row = part.join(names.with_row_index("place"), on="name", how="left", maintain_order="left")
        kind = row["kind"].replace_strict(
            {kind: place for place, kind in enumerate(kinds)}, return_dtype=pl.Int64
        )
        described.append(
            {
                **columns.add_set(Pieces(row["start_ns"].to_numpy(), row["end_ns"].to_numpy(), _length(row))),
                # One number for both: most are below 128, and so one byte.
                "what": columns.add(kind + len(kinds) * row["rank"]),
                "name": columns.add(row["place"]),
            }
        )
    return {
        "kinds": kinds,
        "names": [visible(name) for name in names["name"]],
        "left_out": int(np.count_nonzero(real)) - shown.height,
        "rows": described,
    }


def _length(frame: pl.DataFrame) -> Ints:
    length: Ints = (frame["end_ns"] - frame["start_ns"]).to_numpy()
    return length
