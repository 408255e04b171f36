"""What would the recorded run be with other DDP buckets? The recorded gradient collectives out, modelled ones in.

For each rank and backward, on the host's line of calls (``h`` the hook of a bucket, ``*`` a gradient getting ready):

    recorded   ──launch*──launch──launch*──[h: all-reduce 0]──launch*──launch──launch*──[h: all-reduce 1]──
    other cap  ──launch*──[h 0]──launch──launch*──[h 1]──launch*──[h 2]──launch──launch*──[h 3]────────────

* **Which gradients, when.** The recorded buckets say how many parameters and bytes got ready until each hook. Single
  sizes are taken from the caller; without, a bucket's bytes are spread evenly over its parameters. Within the launches
  between two hooks the parameters of a bucket are spread evenly: the last one is ready at the hook.
* **Which buckets.** ``ddp.reducer.rebuilt_layout`` with the ready order and the cap.
* **Host.** A hook costs what the recorded hooks cost on that rank (their median); the recorded ones are taken out.
  Without annotation a hook is the launch with the queue operations around it, as far as the host does not pause between
  them (for 100 us: a wait queued behind the last bucket is the step's), and of the time ahead of it what all
  buckets have more than the launches of their thread: what comes with every bucket is the bucket's.
* **GPU.** A collective waits for the last event that had been launched on the producing stream at its hook, for the
  collective before it, and for the other ranks; its transfer is that of the fitted link. Computation keeps its recorded
  durations, contention included.
* **After.** What waited for a recorded bucket waits for the bucket that holds its last parameter; what waited for the
  last one (the optimizer) for the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.ddp.reducer import Parameter, Settings, rebuilt_layout
from nsysddp.dependencies.draft import Draft
from nsysddp.dependencies.replay import AHEAD, LAUNCH, WAIT, Program
from nsysddp.model.errors import CannotTell, UsageError

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
class Backward:
    """One backward of one rank.

    Attributes:
        rank, step, number: whose it is, and which of its step.
        meeting: id of its first collective, which the ranks of one group share.
        buckets: in order of launch.
    """

    rank: int
    step: int
    number: int
    meeting: int
    buckets: tuple[Recorded, ...]


@dataclass(frozen=True)
class Buckets:
    """What is known of the buckets of a run.

    Attributes:
        backwards: all of them.
        sizes: bytes of the parameters in the order in which they got ready.
        measured_sizes: the sizes were given, rather than spread evenly.
        annotated: the buckets come from annotation.
        hook_ns, launch_ns: host time of a hook, and of its part up to the end of the launch, per rank.
        unknown_parameters: the number of parameters is unknown, and a bucket was taken for one.
    """

    backwards: tuple[Backward, ...]
    sizes: tuple[int, ...]
    measured_sizes: bool
    annotated: bool
    hook_ns: Mapping[int, float]
    launch_ns: Mapping[int, float]
    unknown_parameters: bool

    @property
    def caps_of_layout(self) -> tuple[int, ...]:
        """Bytes of the recorded buckets, in order of launch."""
        return tuple(bucket.bytes for bucket in self.backwards[0].buckets)


def recorded_buckets(
    context: Context, graph: Graph, table: pl.DataFrame, sizes: Sequence[int] | None = None
) -> Buckets:
    """The gradient buckets of a run with the host's part in each.

    Args:
        context: of a trace with host calls.
        graph: its graph.
        table: ``BUCKET`` rows.
        sizes: bytes of the parameters in ready order.

    Raises:
        CannotTell: there are none, or they cannot be placed on the host's line.
        UsageError: the sizes do not fit them.
    """
    rows = table.filter(pl.col("role") == "gradients", pl.col("step_index").is_not_null())
    events = context.timed.select("event", "rank", "stream", "start_ns").unique(
        ["rank", "stream", "start_ns"]
    )
    rows = rows.join(
        events,
        left_on=["rank", "stream", "started_ns"],
        right_on=["rank", "stream", "start_ns"],
        how="left",
        maintain_order="left",
    )
    if rows.is_empty() or rows["event"].null_count():
        raise CannotTell(
            "the trace shows no gradient buckets", do="annotate the run, or name its backward ranges"
        )
    if rows["bytes"].null_count():
        raise CannotTell("the sizes of the buckets are unknown", do="export with --include-blobs=true")
    if rows["collective_id"].null_count():
        raise CannotTell("not all buckets could be matched over the ranks", do="capture every rank")
    place = _Places(context, graph)
    made: list[Backward] = []
    before_hook: dict[int, list[float]] = {}
    for (rank, step, number), part in rows.group_by("rank", "step_index", "micro_step", maintain_order=True):
        in_order = part.sort("launched_ns")
        buckets: list[Recorded] = []
        since = place.backward_start(int(rank), int(step), int(in_order["launched_ns"].min() or 0))  # type: ignore[arg-type]
        for row in in_order.iter_rows(named=True):
            bucket, idle = place.recorded(int(rank), row, since)
            buckets.append(bucket)
            if idle is not None:
                before_hook.setdefault(int(rank), []).append(idle)
            since = bucket.hook_end_ns
        made.append(
            Backward(int(rank), int(step), int(number), int(in_order["collective_id"][0]), tuple(buckets))
        )
    ahead = {rank: round(float(np.quantile(idle, 0.25))) for rank, idle in before_hook.items()}
    made = [_begun_earlier(backward, ahead.get(backward.rank, 0)) for backward in made]
    known = rows["parameters"].is_not_null().all()
    hooks = {
        rank: np.median(
            [
                b.hook_end_ns - b.hook_start_ns
                for backward in made
                if backward.rank == rank
                for b in backward.buckets
            ]
        )
        for rank in {backward.rank for backward in made}
    }
    launches = {
        rank: np.median(
            [
                b.launched_ns - b.hook_start_ns
                for backward in made
                if backward.rank == rank
                for b in backward.buckets
            ]
        )
        for rank in {backward.rank for backward in made}
    }
    _same_layout(made)
    return Buckets(
        backwards=tuple(made),
        sizes=_sizes(made[0], sizes),
        measured_sizes=sizes is not None,
        annotated=bool((rows["source"] == "annotation").all()),
        hook_ns={rank: float(value) for rank, value in hooks.items()},
        launch_ns={rank: float(min(launches[rank], hooks[rank])) for rank in hooks},
        unknown_parameters=sizes is None and not known,
    )


def _begun_earlier(backward: Backward, own: int) -> Backward:
    """The backward with hooks that begin earlier, by what three of four hooks of its rank have ahead of them."""
    if not own:
        return backward
    earlier = (replace(bucket, hook_start_ns=bucket.hook_start_ns - own) for bucket in backward.buckets)
    return replace(backward, buckets=tuple(earlier))


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

    def within(self, start: int, end: int) -> Ints:
        """Positions of those that lie in ``[start, end]``."""
        first = np.searchsorted(self.start, start, side="left")
        last = np.searchsorted(self.end, end, side="right")
        chosen: Ints = self.position[
            first : max(first, last)
        ].copy()  # a view would keep all calls of the thread
        return chosen


@dataclass(frozen=True)
class _Thread:
    """The calls of a thread on a rank's line.

    Attributes:
        calls: all of them.
        launching: those that launch.
        usual_gap_ns: median time of the host's between a launch and the call before it.
    """

    calls: _Calls
    launching: _Calls
    usual_gap_ns: float


class _Places:
    """Where on the host's lines buckets were launched."""

    def __init__(self, context: Context, graph: Graph) -> None:
        assert context.trace.calls is not None
        self._trace, self._lines = context.trace, graph.lines
        self._names = context.trace.calls["name"]
        self._launching = np.zeros(self._lines.start.size, dtype=bool)
        self._launching[self._lines.launcher[self._lines.launcher >= 0]] = True
        self._threads: dict[tuple[int, int], _Thread] = {}
        self._hook_ends = _hook_ends(context)
        phases = context.attribution.phases.filter(pl.col("phase") == "backward").sort("start_ns")
        self._backwards = {
            key: part["start_ns"].to_numpy() for key, part in phases.group_by("process", "step_index")
        }

    def backward_start(self, rank: int, step: int, before: int) -> int:
        """Start of the last backward range of the step that begins before an instant; far in the past without one."""
        starts = self._backwards.get((self._trace.process_of_rank[rank], step), _NONE)
        found = int(np.searchsorted(starts, before, side="right"))
        return int(starts[found - 1]) if found else before - 10**12

    def recorded(self, rank: int, row: Mapping[str, Any], since: int) -> tuple[Recorded, float | None]:
        """A bucket with the host's part in it, and for how long the host idled before its hook, beyond the usual.

        Args:
            rank: its rank.
            row: of ``BUCKET``, with ``event``.
            since: end of the hook before it, or start of the backward.

        Returns:
            The bucket; idle time in ns, None where the hook itself is recorded.

        Raises:
            CannotTell: its launch is not in the trace.
        """
        lines = self._lines
        call = int(lines.launcher[row["event"]])
        if call < 0:
            raise CannotTell("a bucket has no launch call in the trace", do="capture with --trace=cuda,nvtx")
        thread, idle = self._thread(rank, call), None
        end = self._hook_ends.get((self._trace.process_of_rank[rank], row["hook_ns"]))
        if row["hook_ns"] is not None and end is not None:
            start = int(row["hook_ns"])
            inside = thread.calls.within(start, end)
        else:
            inside = self._around(thread.calls.position, call)
            start, end = int(lines.start[inside[0]]), int(lines.end[inside[-1]])
            ahead = lines.before[inside[0]]
            idle = max(0.0, start - int(lines.end[ahead]) - thread.usual_gap_ns) if ahead >= 0 else 0.0
        bucket = Recorded(
            event=row["event"],
            bytes=row["bytes"],
            parameters=row["parameters"] or 1,
            calls=inside,
            hook_start_ns=start,
            hook_end_ns=end,
            launched_ns=int(lines.end[call]),
            launches=thread.launching.within(since, start),
            before=int(lines.before[inside[0] if inside.size else call]),
        )
        return bucket, idle

    def _thread(self, rank: int, call: int) -> _Thread:
        """The thread that made a call of the rank's line."""
        lines = self._lines
        key = rank, int(lines.threads_of(np.asarray([call]))[0])
        if key not in self._threads:
            mine = np.flatnonzero((lines.rank == rank) & (lines.thread == key[1]))
            launching = mine[self._launching[mine]]
            ahead = lines.before[launching]
            gap = (lines.start[launching] - lines.end[ahead])[ahead >= 0]
            self._threads[key] = _Thread(
                _Calls.of(lines, mine),
                _Calls.of(lines, launching),
                float(np.median(gap)) if gap.size else 0.0,
            )
        return self._threads[key]

    def _around(self, mine: Ints, call: int) -> Ints:
        """Without annotation: the launch with the queue operations directly around it on its thread."""
        first = last = int(np.searchsorted(mine, call))
        while self._prepares(mine, first - 1) and not self._pauses_before(mine, first):
            first -= 1
        while self._prepares(mine, last + 1) and not self._pauses_before(mine, last + 1):
            last += 1
        chosen: Ints = mine[first : last + 1].copy()
        return chosen

    def _pauses_before(self, mine: Ints, place: int) -> bool:
        """Was the host away between a call and the one before? Then the two are not of one hook."""
        return bool(self._lines.start[mine[place]] - self._lines.end[mine[place - 1]] > _PAUSE_NS)

    def _prepares(self, mine: Ints, place: int) -> bool:
        if not 0 <= place < mine.size or self._launching[mine[place]]:
            return False
        name = self._names[int(self._lines.row[mine[place]])] or ""
        return any(word in name for word in _QUEUE_CALLS)


def _same_layout(backwards: Sequence[Backward]) -> None:
    layouts = {tuple((b.bytes, b.parameters) for b in backward.buckets) for backward in backwards}
    if len(layouts) > 1:
        raise CannotTell(
            "the buckets differ between steps or ranks",
            do="leave out the steps before DDP rebuilt its buckets",
        )


def _sizes(backward: Backward, given: Sequence[int] | None) -> tuple[int, ...]:
    """Bytes of the parameters in ready order."""
    if given is None:
        spread: list[int] = []
        for bucket in backward.buckets:
            each, rest = divmod(bucket.bytes, bucket.parameters)
            spread += [each + (number < rest) for number in range(bucket.parameters)]
        return tuple(spread)
    total = sum(bucket.bytes for bucket in backward.buckets)
    if sum(given) != total:
        raise UsageError(
            f"the given parameters have {sum(given):,} bytes, the buckets of the trace {total:,}",
            do="give one size in bytes for each parameter that has a gradient, in ready order",
        )
    return tuple(given)


def _hook_ends(context: Context) -> dict[tuple[int, int], int]:
    ranges = context.trace.ranges.filter(pl.col("text").str.starts_with("nsysddp:bucket="))
    return {
        (process, start): end
        for process, start, end in ranges.select("process", "start_ns", "end_ns").iter_rows()
    }


@dataclass(frozen=True)
class Rebuilt:
    """A program with other buckets.

    Attributes:
        program: to be run.
        layout_bytes: size of each bucket in order of launch.
        steps, ranks: step and rank of each added collective, by node.
    """

    program: Program
    layout_bytes: tuple[int, ...]
    steps: Mapping[int, int]
    ranks: Mapping[int, int]


def layout_for(sizes: Sequence[int], cap_bytes: int, *, reverse: bool = False) -> list[tuple[int, ...]]:
    """Which parameters (by their place in ready order) share a bucket with this cap, in order of launch.

    Args:
        sizes: bytes in ready order.
        cap_bytes: ``bucket_cap_mb`` in bytes.
        reverse: fill buckets in the reverse of the ready order, as a first layout in the wrong order would.
    """
    parameters = [Parameter(str(number), size) for number, size in enumerate(sizes)]
    order = range(len(sizes) - 1, -1, -1) if reverse else range(len(sizes))
    layout = rebuilt_layout(parameters, list(order), Settings(bucket_cap_bytes=cap_bytes))
    return [bucket.parameters for bucket in layout.buckets]


def captured_layout(buckets: Buckets) -> list[tuple[int, ...]]:
    """The recorded buckets as places in ready order."""
    made, at = [], 0
    if buckets.measured_sizes:
        bounds = np.cumsum(buckets.sizes)
        limit = 0
        for bucket in buckets.backwards[0].buckets:
            limit += bucket.bytes
            end = int(np.searchsorted(bounds, limit, side="left")) + 1
            made.append(tuple(range(at, end)))
            at = end
        return made
    for bucket in buckets.backwards[0].buckets:
        made.append(tuple(range(at, at + bucket.parameters)))
        at += bucket.parameters
    return made


def rebuild(
    base: Program,
    graph: Graph,
    buckets: Buckets,
    layout: Sequence[Sequence[int]],
    transfer_ns: Callable[[float], float],
    *,
    host_scale: float = 1.0,
) -> Rebuilt:
    """The program with the gradients in these buckets.

    Args:
        base: the recorded program, its host already scaled.
        graph: what it was made from.
        buckets: the recorded buckets.
        layout: the parameters of each bucket, in order of launch.
        transfer_ns: time of a collective by its bytes.
        host_scale: by which hooks are scaled like the rest of the host.
    """
    draft = Draft(base)
    events, lines = base.events, graph.lines
    sizes = [sum(buckets.sizes[number] for number in bucket) for bucket in layout]
    # In order: a bucket is launched when it and all before it are complete.
    completes = np.maximum.accumulate([max(bucket) for bucket in layout])
    old_sizes = captured_layout(buckets)
    new_of_parameter = {number: place for place, bucket in enumerate(layout) for number in bucket}
    start = graph.trace.events["start_ns"].to_numpy()
    followers = _followers(base)
    replaced: dict[int, int] = {}
    steps: dict[int, int] = {}
    ranks: dict[int, int] = {}
    arrivals: dict[tuple[int, int], int] = {}
    for backward in buckets.backwards:
        rank = backward.rank
        hook = buckets.hook_ns[rank] * host_scale
        launch = buckets.launch_ns[rank] * host_scale
        _take_out(draft, graph, backward, followers, host_scale)
        places = _positions(backward, old_sizes, buckets)
        old_events = [bucket.event for bucket in backward.buckets]
        producer = int(graph.queues.awaited[old_events[0]])
        queue_rows = _producing(graph, rank, producer)
        launchers = lines.launcher[queue_rows]
        previous = int(base.structure.ahead[old_events[0]])
        previous = replaced.get(previous, previous)
        added: list[int] = []
        inserted: dict[int, int] = {}
        for number, (size, last) in enumerate(zip(sizes, completes.tolist(), strict=True)):
            place = places[last]
            at = inserted.get(place, events + place)
            when = float(lines.end[place])
            first = draft.add(ahead=at, duration=launch, origin=when, is_call=1)
            rest = draft.add(ahead=first, duration=hook - launch, origin=when, is_call=1)
            inserted[place] = rest
            ready = int(np.searchsorted(launchers, place, side="right")) - 1
            key = (backward.meeting, number)
            if key not in arrivals:
                arrivals[key] = draft.new_arrival()
            node = draft.add(
                ahead=added[-1] if added else previous,
                ahead_lag=base.latency[AHEAD, 1],
                launcher=first,
                launch_lag=base.latency[LAUNCH, 1],
                duration=transfer_ns(size),
                arrival=arrivals[key],
                origin=max(when, float(start[queue_rows[ready]]) if ready >= 0 else when),
            )
            draft.meet(arrivals[key], node)
            if ready >= 0:
                draft.wait(node, int(queue_rows[ready]), base.latency[WAIT, 1])
            added.append(node)
            steps[node], ranks[node] = backward.step, rank
        for place, node in inserted.items():
            for follower in followers.get(events + place, ()):
                draft.ahead[follower] = node
        for event, members in zip(old_events, old_sizes, strict=True):
            last_parameter = members[-1]
            replaced[event] = added[new_of_parameter[last_parameter]]
        replaced[old_events[-1]] = added[-1]
    draft.redirect(replaced)
    return Rebuilt(draft.program(), tuple(sizes), steps, ranks)


def _followers(base: Program) -> dict[int, list[int]]:
    """Calls by the call before them on their line."""
    found: dict[int, list[int]] = {}
    ahead = base.structure.ahead
    for node in np.flatnonzero(base.is_call & (ahead >= 0)).tolist():
        found.setdefault(int(ahead[node]), []).append(node)
    return found


def _take_out(
    draft: Draft, graph: Graph, backward: Backward, followers: Mapping[int, Sequence[int]], host_scale: float
) -> None:
    """The host time of the recorded hooks, and the collectives themselves, vanish; the rest stays as it was."""
    lines, events = graph.lines, draft.base.events
    collectives = np.asarray([bucket.event for bucket in backward.buckets], dtype=np.int64)
    draft.take_out(np.concatenate([collectives, *(events + bucket.calls for bucket in backward.buckets)]))
    draft.ahead[collectives] = -1
    for bucket in backward.buckets:
        inside = {events + int(call) for call in bucket.calls}
        for node in sorted(inside):
            ahead = int(draft.base.structure.ahead[node])
            if ahead in inside or ahead < 0:
                draft.ahead_lag[node] = 0
            else:
                draft.ahead_lag[node] = (
                    max(0, bucket.hook_start_ns - int(lines.end[ahead - events])) * host_scale
                )
            for follower in followers.get(node, ()):
                if follower not in inside:
                    left = int(lines.start[follower - events]) - bucket.hook_end_ns
                    draft.ahead_lag[follower] = max(0, left) * host_scale


def _positions(backward: Backward, members: Sequence[Sequence[int]], buckets: Buckets) -> list[int]:
    """For each parameter the host line position of the call after which it was ready."""
    places: list[int] = []
    for bucket, numbers in zip(backward.buckets, members, strict=True):
        count = len(numbers)
        for number in range(count):
            last = number == count - 1
            share = -(-(number + 1) * bucket.launches.size // count) - 1
            inner = int(bucket.launches[max(share, 0)]) if bucket.launches.size else bucket.before
            places.append(bucket.before if last else inner)
    assert len(places) == len(buckets.sizes)
    return [int(place) for place in np.maximum.accumulate(places)]


def _producing(graph: Graph, rank: int, producer: int) -> Ints:
    """Events of the queue that produces gradients, in order of their launches; all compute where it is unknown."""
    first, last = graph.trace.rows_of(rank)
    events = graph.trace.events_of(rank)
    if producer >= 0:
        row = producer - first
        same = (events["stream"] == events["stream"][row]) & (events["context"] == events["context"][row])
    else:
        same = events["class"] != "communication"
    rows = first + np.flatnonzero(same.to_numpy() & (graph.lines.launcher[first:last] >= 0))
    return rows[np.argsort(graph.lines.launcher[rows], kind="stable")]
