"""Where on the host's lines were gradient buckets launched, and what of the host's time is theirs?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.model.errors import CannotTell

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.dependencies.graph import Graph
    from nsysddp.dependencies.host import HostLines
    from nsysddp.questions import Context

    Ints = NDArray[np.int64]

_NONE = np.empty(0, dtype=np.int64)
_PAUSE_NS = 100_000
"""Longer than this the host is not away within a hook that is not recorded."""

_QUEUE_CALLS = (
    "Event",
    "StreamWait",
    "Capture",
    "KernelGetName",
    "KernelGetAttribute",
    "FuncGet",
    "PointerGet",
)


@dataclass(frozen=True)
class Recorded:
    """One gradient bucket of one backward on one rank, as it ran.

    Attributes:
        event: row of its collective.
        bytes: message size.
        parameters: how many; 1 where unknown.
        calls: host line positions inside its hook (they are taken out).
        hook_start_ns, hook_end_ns: the hook.
        launched_ns: end of its launch call.
        launches: host line positions of the launches between the hook before and this one: where its parameters got
            ready.
        before: host line position of the call before the hook.
    """

    event: int
    bytes: int
    parameters: int
    calls: Ints
    hook_start_ns: int
    hook_end_ns: int
    launched_ns: int
    launches: Ints
    before: int


@dataclass(frozen=True)
class _Calls:
    """Calls of one thread, which follow each other.

    Attributes:
        position: on their rank's line, shape (calls,).
        start, end: in ns.
    """

    position: Ints
    start: Ints
    end: Ints

    @classmethod
    def of(cls, lines: HostLines, position: Ints) -> _Calls:
        return cls(position, lines.start[position], lines.end[position])

    def within(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Which lie in each ``[start, end]``: the first, and one past the last."""
        first = np.searchsorted(self.start, start, side="left")
        return first, np.maximum(first, np.searchsorted(self.end, end, side="right"))


@dataclass(frozen=True)
class _Thread:
    """The calls of a thread on a rank's line.

    Attributes:
        calls: all of them.
        launching: those that launch.
        usual_gap_ns: median time of the host's between a launch and the call before it.
        begun, through: of each call the first, and one past the last, of the queue operations directly around it.
    """

    calls: _Calls
    launching: _Calls
    usual_gap_ns: float
    begun: Ints
    through: Ints


class Places:
    """Where on the host's lines buckets were launched."""

    def __init__(self, context: Context, graph: Graph) -> None:
        assert context.trace.calls is not None
        self._trace, self._lines = context.trace, graph.lines
        names = context.trace.calls["name"]
        known = names.unique().drop_nulls()
        queueing = known.filter(known.cast(pl.String).str.contains_any(list(_QUEUE_CALLS)))
        self._prepares = names.is_in(queueing.implode()).fill_null(value=False)
        self._launching = np.zeros(self._lines.start.size, dtype=bool)
        self._launching[self._lines.launcher[self._lines.launcher >= 0]] = True
        self._hook_ends = _hook_ends(context)
        phases = context.attribution.phases.filter(pl.col("phase") == "backward").sort("start_ns")
        self._backwards = {
            key: part["start_ns"].to_numpy() for key, part in phases.group_by("process", "step_index")
        }

    def _backward_start(self, rank: int, step: int, before: int) -> int:
        """Start of the last backward range of the step that begins before an instant; far in the past without one."""
        starts = self._backwards.get((self._trace.process_of_rank[rank], step), _NONE)
        found = int(np.searchsorted(starts, before, side="right"))
        return int(starts[found - 1]) if found else before - 10**12

    def recorded(self, rows: pl.DataFrame) -> tuple[list[Recorded], dict[int, Ints]]:
        """The buckets with the host's part in each.

        Args:
            rows: of ``BUCKET`` with ``event``, backward by backward in order of launch.

        Returns:
            The buckets in this order; for how long the host idled before hooks of each rank that are not recorded
            themselves, beyond the usual, in ns.

        Raises:
            CannotTell: the launch of one is not in the trace.
        """
        lines = self._lines
        call = lines.launcher[rows["event"].to_numpy()]
        if (call < 0).any():
            raise CannotTell("a bucket has no launch call in the trace", do="capture with --trace=cuda,nvtx")
        hook = rows["hook_ns"]
        ends = [
            self._hook_ends.get((self._trace.process_of_rank[rank], start))
            for rank, start in zip(rows["rank"], hook, strict=True)
        ]
        marked = np.asarray([end is not None for end in ends])
        start, end = hook.fill_null(0).to_numpy().copy(), np.asarray([end or 0 for end in ends])
        rank, thread_of = rows["rank"].to_numpy(), lines.threads_of(call)
        inside = np.zeros((2, call.size), dtype=np.int64)
        idle = np.zeros(call.size)
        threads = {}
        for key in dict.fromkeys(zip(rank.tolist(), thread_of.tolist(), strict=True)):
            thread = self._thread(*key)
            of_thread = (rank == key[0]) & (thread_of == key[1])
            threads[key] = thread, of_thread
            here = np.flatnonzero(of_thread & marked)
            inside[:, here] = thread.calls.within(start[here], end[here])
            here = np.flatnonzero(of_thread & ~marked)
            place = np.searchsorted(thread.calls.position, call[here])
            first, last = inside[:, here] = thread.begun[place], thread.through[place]
            start[here], end[here] = thread.calls.start[first], thread.calls.end[last - 1]
            ahead = lines.before[thread.calls.position[first]]
            away = start[here] - lines.end[ahead] - thread.usual_gap_ns
            idle[here] = np.where(ahead >= 0, np.maximum(away, 0.0), 0.0)
        since = self._since(rows, end)
        made: dict[int, Recorded] = {}
        for thread, of_thread in threads.values():
            here = np.flatnonzero(of_thread)
            launches = thread.launching.within(since[here], start[here])
            made |= self._of_thread(rows, here, thread, inside[:, here], launches, start, end)
        idles = {int(number): idle[(rank == number) & ~marked] for number in np.unique(rank[~marked])}
        return [made[row] for row in range(call.size)], idles

    def _since(self, rows: pl.DataFrame, end: Ints) -> Ints:
        """For each bucket the end of the hook before it, or the start of the backward."""
        since = np.concatenate([end[:1], end[:-1]])
        keys = ["rank", "step_index", "micro_step"]
        place = 0
        backwards = rows.group_by(keys, maintain_order=True).agg(pl.min("launched_ns"), count=pl.len())
        for rank, step, _, launched, count in backwards.iter_rows():
            since[place] = self._backward_start(rank, step, launched or 0)
            place += count
        return since

    def _of_thread(
        self,
        rows: pl.DataFrame,
        here: Ints,
        thread: _Thread,
        inside: Ints,
        launches: tuple[Ints, Ints],
        start: Ints,
        end: Ints,
    ) -> dict[int, Recorded]:
        """The buckets of these rows, which one thread launched, by row."""
        lines, chosen = self._lines, rows[here]
        call = lines.launcher[chosen["event"].to_numpy()]
        calls, launching = thread.calls.position, thread.launching.position
        begun = np.where(inside[1] > inside[0], calls[np.minimum(inside[0], calls.size - 1)], call)
        columns = (
            here,
            chosen["event"],
            chosen["bytes"],
            chosen["parameters"].fill_null(1),
            *inside,
            start[here],
            end[here],
            lines.end[call],
            *launches,
            lines.before[begun],
        )
        # Copies, since views would keep all calls of the thread.
        return {
            row: Recorded(
                event=event,
                bytes=size,
                parameters=parameters or 1,
                calls=calls[first:last].copy(),
                hook_start_ns=hook_start,
                hook_end_ns=hook_end,
                launched_ns=launched,
                launches=launching[first_launch:last_launch].copy(),
                before=before,
            )
            for (
                row,
                event,
                size,
                parameters,
                first,
                last,
                hook_start,
                hook_end,
                launched,
                first_launch,
                last_launch,
                before,
            ) in zip(
                *(
                    column.to_list() if isinstance(column, pl.Series) else column.tolist()
                    for column in columns
                ),
                strict=True,
            )
        }

    def _thread(self, rank: int, number: int) -> _Thread:
        """A thread with calls on the rank's line."""
        lines = self._lines
        mine = np.flatnonzero((lines.rank == rank) & (lines.thread == number))
        launching = mine[self._launching[mine]]
        ahead = lines.before[launching]
        gap = (lines.start[launching] - lines.end[ahead])[ahead >= 0]
        calls = _Calls.of(lines, mine)
        prepares = self._prepares.gather(lines.row[mine]).to_numpy() & ~self._launching[mine]
        away = np.ones(mine.size + 1, dtype=bool)  # the host, before each call
        away[1:-1] = calls.start[1:] - calls.end[:-1] > _PAUSE_NS
        place = np.arange(mine.size)
        # Without annotation a hook is the launch with the queue operations directly around it on its thread.
        stops = np.where(prepares & ~away[1:], -1, place)
        before = np.maximum.accumulate(np.concatenate([[-1], stops[:-1]])) if mine.size else place
        stops = np.where(prepares & ~away[:-1], mine.size, place)
        after = np.minimum.accumulate(np.append(stops[1:], mine.size)[::-1])[::-1] if mine.size else place
        return _Thread(
            calls,
            _Calls.of(lines, launching),
            float(np.median(gap)) if gap.size else 0.0,
            before + 1,
            after,
        )


def _hook_ends(context: Context) -> dict[tuple[int, int], int]:
    ranges = context.trace.ranges.filter(pl.col("text").str.starts_with("nsysddp:bucket="))
    return {
        (process, start): end
        for process, start, end in ranges.select("process", "start_ns", "end_ns").iter_rows()
    }
