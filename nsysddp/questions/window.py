"""When does each step happen on a GPU? Windows that tile a rank's time, made of what each step launched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysddp.model.warnings import Warning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace

    Times = NDArray[np.int64]


_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True)
class Window:
    """One window of one rank: ``[start, end)`` in ns, and the step it belongs to (-1: whole capture)."""

    rank: int
    step: int
    start: int
    end: int
    is_warmup: bool = False


@dataclass(frozen=True)
class Windows:
    """The windows that were asked for, and why fewer or others if so."""

    windows: tuple[Window, ...]
    per: str
    warnings: tuple[Warning, ...] = ()
    assumptions: tuple[str, ...] = ()

    def of(self, rank: int) -> Sequence[Window]:
        """The windows of one rank, in order."""
        return self._of_ranks.get(rank, ())

    @cached_property
    def _of_ranks(self) -> dict[int, list[Window]]:
        found: dict[int, list[Window]] = {}
        for window in self.windows:
            found.setdefault(window.rank, []).append(window)
        return found


def rank_windows(trace: Trace, rank: int, step: NDArray[Any]) -> list[Window]:
    """Tiling windows of one rank's steps (definitions, "Windows are time")."""
    first, last = trace.rows_of(rank)
    mine = step[first:last]
    if not (mine >= 0).any():
        return []
    events = trace.events_of(rank)
    start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    computes = trace.is_class(rank, ["compute", "spin"]) & (end > start)
    # Events that follow each other are mostly of one step: runs of them are few, and quickly grouped.
    heads = np.flatnonzero(np.diff(mine, prepend=mine[0] - 1))
    of_run, size = mine[heads], int(mine.max()) + 1

    def earliest(times: Times) -> Times:
        found = np.full(size + 1, _LATEST)  # the last place is for events in no step, which have step -1
        np.minimum.at(found, of_run, np.minimum.reduceat(times, heads))
        return found

    def latest(times: Times) -> Times:
        found = np.full(size + 1, _EARLIEST)
        np.maximum.at(found, of_run, np.maximum.reduceat(times, heads))
        return found

    opens, closes = earliest(start), latest(end)
    compute_opens = earliest(np.where(computes, start, _LATEST))
    compute_closes = latest(np.where(computes, end, _EARLIEST))
    numbers = np.flatnonzero(closes[:size] > _EARLIEST).tolist()
    starts: list[int] = []
    for place, number in enumerate(numbers):
        begin = int(opens[number])
        if (
            place
        ):  # a step without compute computes first at _LATEST and last at _EARLIEST, which bound nothing
            begin = max(begin, int(compute_closes[numbers[place - 1]]))
            begin = max(min(begin, int(compute_opens[number])), starts[-1])
        starts.append(begin)
    # A window ends where the next step begins; it does not stretch over steps in which the rank launched nothing.
    own = [max(int(closes[number]), begin) for number, begin in zip(numbers, starts, strict=True)]
    follows = [after == number + 1 for number, after in pairwise(numbers)]
    ends = [
        after if is_next else min(after, mine)
        for after, is_next, mine in zip(starts[1:], follows, own[:-1], strict=True)
    ] + [own[-1]]
    return [Window(rank, number, a, b) for number, a, b in zip(numbers, starts, ends, strict=True)]
