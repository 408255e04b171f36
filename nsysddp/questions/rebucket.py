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
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.ddp.reducer import Parameter, Settings, rebuilt_layout
from nsysddp.dependencies.draft import Draft
from nsysddp.dependencies.replay import AHEAD, LAUNCH, WAIT, Program
from nsysddp.model.errors import CannotTell, UsageError
from nsysddp.questions.hooks import Places, Recorded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.dependencies.graph import Graph
    from nsysddp.questions import Context

    Ints = NDArray[np.int64]


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
    keys = ["rank", "step_index", "micro_step"]
    begun = pl.first("place").over(keys)
    rows = rows.with_row_index("place").sort(begun, "launched_ns", maintain_order=True)
    found, idle = Places(context, graph).recorded(rows)
    ahead = {rank: round(float(np.quantile(times, 0.25))) for rank, times in idle.items()}
    made: list[Backward] = []
    for rank, step, micro_step, meeting, count, first in (
        rows.group_by(keys, maintain_order=True)
        .agg(pl.first("collective_id"), count=pl.len())
        .with_columns(first=pl.col("count").cum_sum() - pl.col("count"))
        .iter_rows()
    ):
        own = Backward(rank, step, micro_step, meeting, tuple(found[first : first + count]))
        made.append(_begun_earlier(own, ahead.get(rank, 0)))
    known = rows["parameters"].is_not_null().all()
    hooks, launches = _medians_of_rank(made)
    _same_layout(made)
    return Buckets(
        backwards=tuple(made),
        sizes=_sizes(made[0], sizes),
        measured_sizes=sizes is not None,
        annotated=bool((rows["source"] == "annotation").all()),
        hook_ns=hooks,
        launch_ns={rank: min(launches[rank], hooks[rank]) for rank in hooks},
        unknown_parameters=sizes is None and not known,
    )


def _medians_of_rank(backwards: Sequence[Backward]) -> tuple[dict[int, float], dict[int, float]]:
    """Median length of the hooks of each rank, and of their parts up to the end of the launch, ns."""
    hooks: dict[int, list[int]] = {}
    launches: dict[int, list[int]] = {}
    for backward in backwards:
        for bucket in backward.buckets:
            hooks.setdefault(backward.rank, []).append(bucket.hook_end_ns - bucket.hook_start_ns)
            launches.setdefault(backward.rank, []).append(bucket.launched_ns - bucket.hook_start_ns)
    hook, launch = (
        {rank: float(np.median(times)) for rank, times in found.items()} for found in (hooks, launches)
    )
    return hook, launch


def _begun_earlier(backward: Backward, own: int) -> Backward:
    """The backward with hooks that begin earlier, by what three of four hooks of its rank have ahead of them."""
    if not own:
        return backward
    earlier = (replace(bucket, hook_start_ns=bucket.hook_start_ns - own) for bucket in backward.buckets)
    return replace(backward, buckets=tuple(earlier))


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
    followers = _Followers.of(base)
    collectives = [bucket.event for backward in buckets.backwards for bucket in backward.buckets]
    hooks = [events + bucket.calls for backward in buckets.backwards for bucket in backward.buckets]
    draft.take_out(np.concatenate([np.asarray(collectives, dtype=np.int64), *hooks]))
    draft.ahead[collectives] = -1
    queues: dict[tuple[int, int, int] | int, Ints] = {}
    replaced: dict[int, int] = {}
    steps: dict[int, int] = {}
    ranks: dict[int, int] = {}
    arrivals: dict[tuple[int, int], int] = {}
    for backward in buckets.backwards:
        rank = backward.rank
        hook = buckets.hook_ns[rank] * host_scale
        launch = buckets.launch_ns[rank] * host_scale
        _close_gaps(draft, graph, backward, followers, host_scale)
        places = _positions(backward, old_sizes, buckets)
        old_events = [bucket.event for bucket in backward.buckets]
        producer = int(graph.queues.awaited[old_events[0]])
        key_of_queue = (rank, *_queue_of(graph, producer)) if producer >= 0 else rank
        if key_of_queue not in queues:
            queues[key_of_queue] = _producing(graph, rank, producer)
        queue_rows = queues[key_of_queue]
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
            for follower in followers.behind(events + place):
                draft.ahead[follower] = node
        for event, members in zip(old_events, old_sizes, strict=True):
            last_parameter = members[-1]
            replaced[event] = added[new_of_parameter[last_parameter]]
        replaced[old_events[-1]] = added[-1]
    draft.redirect(replaced)
    return Rebuilt(draft.program(), tuple(sizes), steps, ranks)


@dataclass(frozen=True)
class _Followers:
    """Calls by the call before them on their line, and where those of each begin."""

    calls: Ints
    ahead: Ints

    @classmethod
    def of(cls, base: Program) -> _Followers:
        """Those of a program."""
        calls = np.flatnonzero(base.is_call & (base.structure.ahead >= 0))
        ahead = base.structure.ahead[calls].astype(np.int64)
        order = np.argsort(ahead, kind="stable")
        return cls(calls[order], ahead[order])

    def behind(self, call: int) -> list[int]:
        """The calls behind a call."""
        first, last = self.ahead.searchsorted(call), self.ahead.searchsorted(call, "right")
        found: list[int] = self.calls[first:last].tolist()
        return found


def _close_gaps(
    draft: Draft, graph: Graph, backward: Backward, followers: _Followers, host_scale: float
) -> None:
    """The host time of the recorded hooks, which are taken out, vanishes; the rest stays as it was."""
    lines, events = graph.lines, draft.base.events
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
            for follower in followers.behind(node):
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


def _queue_of(graph: Graph, event: int) -> tuple[int, int]:
    """Context and stream of an event."""
    events = graph.trace.events
    return events["context"][event], events["stream"][event]


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
