"""What did an event hang on at each instant of the gap in front of it?

Walking back from the event along the binding predecessors of ``dependencies.graph`` until the gap's start tells it, so
the pieces of a gap tile it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nsysddp.dependencies.graph import Graph
from nsysddp.model.errors import AnalysisError
from nsysddp.model.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Gaps:
    """Idle gaps of all ranks, ordered by rank and time; all shape (gaps,).

    ``event`` is the row of the event that ended the gap (or comes next, if a window's edge ended it), -1 if none does.
    ``window`` is the row of the context's windows.
    """

    rank: Ints
    window: Ints
    start: Ints
    end: Ints
    event: Ints


@dataclass(frozen=True)
class Pieces:
    """Pieces of gaps, ordered by gap and time; all shape (pieces,).

    ``node`` is the node of the graph that ran in the piece (``ran``), or that was waiting to begin; -1 if none.
    """

    gap: Ints
    start: Ints
    end: Ints
    node: Ints
    ran: Flags


def ends_of(graph: Graph) -> Ints:
    """End of every node, in ns: what walks back from many gaps take."""
    return graph.ends(np.arange(graph.before.size, dtype=np.int32))


def pieces_of(graph: Graph, gaps: Gaps, ends: Ints | None = None) -> Pieces:
    """Walk back from the end of every gap to its start.

    The usual gap hangs directly on an event that had ended by its start, and is one piece. The others are walked one
    node at a time; gaps of a rank are disjoint, so each node is visited about once.

    Args:
        graph: what hangs on what.
        gaps: the gaps.
        ends: of ``ends_of``, for those who ask rank by rank; made here otherwise.
    """
    event = gaps.event
    some = event >= 0
    before = np.where(some, graph.before[event], -1)
    reach = np.where(before >= 0, np.minimum(graph.ends(before), graph.begin[event]), gaps.start)
    whole = ~some | (reach <= gaps.start)
    gap, start, end = np.flatnonzero(whole), gaps.start[whole], gaps.end[whole]
    node, ran = np.where(some, event, -1)[whole], np.zeros(gap.size, dtype=bool)

    walked = _walk(graph, gaps, np.flatnonzero(~whole), ends_of(graph) if ends is None else ends)
    gap = np.concatenate([gap, walked[:, 0]])
    start = np.concatenate([start, walked[:, 1]])
    end = np.concatenate([end, walked[:, 2]])
    node = np.concatenate([node, walked[:, 3]])
    ran = np.concatenate([ran, walked[:, 4].astype(bool)])
    order = np.lexsort((start, gap))
    return Pieces(gap[order], start[order], end[order], node[order], ran[order])


def _walk(graph: Graph, gaps: Gaps, which: Ints, ends: Ints) -> Ints:
    """Rows (gap, start, end, node, ran) of the given gaps."""
    begin, end, before = (memoryview(np.ascontiguousarray(a).data) for a in (graph.begin, ends, graph.before))
    rows: list[tuple[int, int, int, int, bool]] = []
    for gap, event, low, high in zip(
        which.tolist(),
        gaps.event[which].tolist(),
        gaps.start[which].tolist(),
        gaps.end[which].tolist(),
        strict=True,
    ):
        node, time = event, high
        while time > low:
            ahead = before[node]
            reach = low if ahead < 0 else max(low, min(end[ahead], begin[node]))
            if reach < time:  # waiting to begin
                rows.append((gap, reach, time, node, False))
                time = reach
            if ahead < 0 or time <= low:
                break
            opened = max(low, begin[ahead])
            if opened < time:  # the predecessor itself
                rows.append((gap, opened, time, ahead, True))
                time = opened
            node = ahead
    return np.array(rows, dtype=np.int64).reshape(-1, 5)


def cut_where(
    gaps: Gaps, pieces: Pieces, spans: Mapping[int, Intervals], which: Flags
) -> tuple[Pieces, Flags]:
    """Cut some pieces where the spans of their rank begin and end.

    Args:
        gaps: the gaps.
        pieces: the pieces of the gaps.
        spans: per rank; a rank that is left out has none.
        which: the pieces to cut, shape (pieces,).

    Returns:
        All pieces, and which of them were to be cut and lie within the spans.
    """
    rank = gaps.rank[pieces.gap]
    owner, start, end = [np.flatnonzero(~which)], [pieces.start[~which]], [pieces.end[~which]]
    within = [np.zeros(owner[0].size, dtype=bool)]
    for number in np.unique(rank[which]):
        mine = np.flatnonzero(which & (rank == number))
        mine = mine[np.argsort(pieces.start[mine])]  # pieces of one rank do not overlap
        busy = spans.get(int(number), Intervals.empty())
        points = np.unique(np.concatenate([pieces.start[mine], busy.start, busy.end]))
        place = np.searchsorted(pieces.start[mine], points, side="right") - 1
        holder = mine[np.maximum(place, 0)]
        inside = (place >= 0) & (points < pieces.end[holder])
        opened, holder = points[inside], holder[inside]
        closed = np.minimum(np.append(points[1:], np.iinfo(np.int64).max)[inside], pieces.end[holder])
        owner.append(holder)
        start.append(opened)
        end.append(closed)
        within.append(busy.length_within(opened, closed) > 0)
    part, opens, closes = (np.concatenate(column) for column in (owner, start, end))
    order = np.lexsort((opens, pieces.gap[part]))
    part = part[order]
    cut = Pieces(pieces.gap[part], opens[order], closes[order], pieces.node[part], pieces.ran[part])
    return cut, np.concatenate(within)[order]


def length_of_runs(pieces: Pieces, *alike: Ints | Flags) -> Ints:
    """For each piece the length of the run of pieces of one gap and node that it is part of, in ns.

    What was cut waited for as long as all its parts.

    Args:
        pieces: the pieces of the gaps.
        alike: what else is the same for all pieces of a run; shape (pieces,) each.
    """
    if not pieces.start.size:
        return np.empty(0, dtype=np.int64)
    same = np.ones(pieces.start.size - 1, dtype=bool)
    for column in (pieces.gap, pieces.node, pieces.ran, *alike):
        same &= column[1:] == column[:-1]
    run = np.cumsum(np.append(True, ~same)) - 1
    length = np.zeros(int(run[-1]) + 1, dtype=np.int64)
    np.add.at(length, run, pieces.end - pieces.start)
    of_pieces: Ints = length[run]
    return of_pieces


def assert_tiling(gaps: Gaps, pieces: Pieces) -> None:
    """The pieces of every gap follow each other from its start to its end."""
    same = pieces.gap[1:] == pieces.gap[:-1]
    heads = np.flatnonzero(np.concatenate([[True], ~same])) if pieces.gap.size else pieces.gap
    tails = np.flatnonzero(np.concatenate([~same, [True]])) if pieces.gap.size else pieces.gap
    if (
        heads.size != gaps.start.size
        or np.any(pieces.end[:-1][same] != pieces.start[1:][same])
        or np.any(pieces.start[heads] != gaps.start)
        or np.any(pieces.end[tails] != gaps.end)
        or np.any(pieces.end <= pieces.start)
    ):
        raise AnalysisError("the causes of idle time do not tile it")
