"""Which host time is in, or follows from, a call that waits for the GPU, and what kind of call is that?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.dependencies.graph import Graph

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


def are_of_kind(parts: pl.DataFrame, *kinds: str) -> NDArray[np.bool_]:
    """Which parts of a path are of one of these kinds? Of millions no text is made."""
    flags: NDArray[np.bool_] = parts["kind"].is_in(kinds).to_numpy()
    return flags


def blocking_calls(graph: Graph, parts: pl.DataFrame, host: NDArray[np.bool_]) -> Ints:
    """The call (position in the graph's lines) that each part of host time is in or follows from; -1 if none.

    Host time follows from a call until the path leaves the host, at most for as long as the call had blocked the host:
    without it, the host would have been that much earlier. A long piece is a cause of its own.

    Args:
        graph: the dependency graph.
        parts: parts of the path, in order of path and time.
        host: which of them are host time.
    """
    lines = graph.lines
    found = np.full(parts.height, -1, dtype=np.int64)
    blocks = np.flatnonzero(are_of_kind(parts, "sync"))
    found[blocks] = _calls_at(graph, parts["rank"].to_numpy()[blocks], parts["end_ns"].to_numpy()[blocks])
    event = parts["event"].fill_null(-1).to_numpy()
    own_copy = _own_copies(graph, event, are_of_kind(parts, "memory"))
    found[own_copy] = lines.launcher[event[own_copy]]
    if not (found >= 0).any():
        return found
    path, duration = parts["path"].to_numpy(), (parts["end_ns"] - parts["start_ns"]).to_numpy()
    place = np.arange(parts.height)
    on_host = host | (found >= 0)
    fresh = np.ones(parts.height, dtype=bool)
    fresh[1:] = ~(on_host[1:] & on_host[:-1] & (path[1:] == path[:-1]))
    run_start = np.maximum.accumulate(np.where(fresh, place, 0))
    last = np.maximum.accumulate(np.where(found >= 0, place, -1))
    elapsed = np.cumsum(duration) - duration
    since = elapsed - elapsed[last] - duration[last]
    call = found[last]
    follows = host & (last >= run_start) & (since < lines.end[call] - lines.start[call])
    follows &= ~parts["is_long"].to_numpy()
    return np.where(found >= 0, found, np.where(follows, call, -1))


def _own_copies(graph: Graph, event: Ints, memory: NDArray[np.bool_]) -> Ints:
    """Places of the copies that held up the very call that made them, as those from pageable memory do."""
    copies = np.flatnonzero(memory & (event >= 0))
    launcher = graph.lines.launcher[event[copies]]
    known = launcher >= 0
    copies, launcher = copies[known], launcher[known]
    held: Ints = copies[graph.lines.awaited[launcher] == event[copies]]
    return held


def _calls_at(graph: Graph, rank: Ints, end: Ints) -> Ints:
    """The blocking call of the rank that is in progress, or has just returned, at each time."""
    lines = graph.lines
    waiting = lines.awaited.at
    found = np.full(rank.size, -1, dtype=np.int64)
    for number in np.unique(rank):
        calls = waiting[lines.ranks_of(waiting) == number]
        calls = calls[np.argsort(lines.end[calls], kind="stable")]
        mine = np.flatnonzero(rank == number)
        at = np.searchsorted(lines.end[calls], end[mine], side="left").clip(max=calls.size - 1)
        found[mine] = calls[at]
    return found
