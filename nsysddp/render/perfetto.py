"""How does a run look in Perfetto? A ``.pftrace`` with the ranks, their streams and threads, and what hangs together.

    critical path      one track; tied ranks have a track each
    rank R             steps        windows and phases
                       figures      transfer, wait, not split; exposed
                       stream N     events; a flow leads from the call that launched each
                       thread N     CUDA calls (where they were read) and NVTX ranges

A second kind of flow joins the kernels of one collective over the ranks. Slices of a track nest or follow each other;
what does neither has a further track of the same name. Times are those of the run; the same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any

import polars as pl

from nsysddp.model.errors import UsageError
from nsysddp.model.intervals import Intervals
from nsysddp.model.names import visible

if TYPE_CHECKING:
    from nsysddp.questions import Context
    from nsysddp.render.html.sections import Part

_COLLECTIVE_FLOWS = 1 << 48
"""Flows of collectives are numbered from here on, flows of launches below."""

_NOTES = ("kind", "bytes", "wait_ns", "transfer_ns", "last_rank", "match", "collective_id")


@dataclass(frozen=True)
class Slice:
    """One thing that happened on a track.

    Attributes:
        start_ns, end_ns: when; equal for what has no length.
        name: what.
        category: which kind of thing, for filters.
        flows: flows that go through it.
        notes: further facts.
    """

    start_ns: int
    end_ns: int
    name: str
    category: str
    flows: tuple[int, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)


def check_perfetto() -> None:
    """Refuse where the library that writes Perfetto's format is missing.

    Raises:
        UsageError: it is not installed.
    """
    if find_spec("perfetto") is None:
        raise UsageError(
            "the package perfetto, which writes this format, is not installed",
            do="pip install 'nsysddp[perfetto]'",
        )


def write_perfetto(context: Context, stream: IO[bytes], *, critical_path: Part | None = None) -> int:
    """Write the run as a Perfetto trace; returns the number of slices.

    Args:
        context: what the analyses share; its selection decides which events are written.
        stream: where to.
        critical_path: the answer of ``questions.critical_path.critical_path`` on the same trace.
    """
    writer = _Writer(stream, _origin(context, critical_path))
    if critical_path is not None:
        group = writer.track("critical path", None, 0)
        for place, (name, slices) in enumerate(_paths(critical_path.tables["critical_path"])):
            writer.write(name, group, place, slices)
    events = _events(context)
    facts = {row["rank"]: row for row in context.trace.ranks.to_dicts()}
    for place, rank in enumerate(context.trace.rank_numbers, start=1):
        mine = events.filter(pl.col("rank") == rank)
        if mine.is_empty():
            continue
        where = ", ".join(
            word
            for word in (facts[rank]["host"], f"device {facts[rank]['device']}", facts[rank]["gpu_name"])
            if word
        )
        group = writer.track(f"rank {rank} ({visible(where)})", None, place)
        tracks: list[tuple[str, Iterable[Slice]]] = [
            ("steps", _steps(context, rank)),
            ("transfer and wait", _split(context, rank)),
            ("exposed", _exposed(context, rank)),
            *_streams(mine),
            *_threads(context, rank, mine),
        ]
        for order, (name, slices) in enumerate(tracks):
            writer.write(name, group, order, slices)
    return writer.slices


# --- what is written


def _origin(context: Context, critical_path: Part | None) -> int:
    """What is taken from every time: Perfetto knows no time below 0."""
    firsts = [context.trace.events["start_ns"].min(), context.trace.ranges["start_ns"].min()]
    if context.trace.launches is not None:
        firsts.append(context.trace.launches["launch_ns"].min())
    if context.trace.calls is not None:
        firsts.append(context.trace.calls["start_ns"].min())
    if critical_path is not None:
        firsts.append(critical_path.tables["critical_path"]["start_ns"].min())
    return min(0, *(first for first in firsts if isinstance(first, int)))


def _events(context: Context) -> pl.DataFrame:
    """The chosen events with their names, what is known of communication, and their flows."""
    trace = context.trace
    timed = context.timed.select(
        pl.col("event").cast(pl.UInt32),
        "kind",
        "match",
        "collective_id",
        "last_rank",
        pl.col("bytes").alias("payload"),
        wait_ns=pl.col("transfer_start_ns") - pl.col("start_ns"),
        transfer_ns=pl.col("end_ns") - pl.col("transfer_start_ns"),
    )
    step = context.attribution.step_names().alias("step")
    return (
        trace.events.with_columns(step, text=trace.names["text"].gather(trace.events["name"].to_numpy()))
        .with_row_index("event")
        .filter(pl.Series(context.keep))
        .join(timed, on="event", how="left", maintain_order="left")
        .with_columns(bytes=pl.coalesce("bytes", "payload"))
    )


def _streams(mine: pl.DataFrame) -> Iterator[tuple[str, Iterable[Slice]]]:
    """One track a stream, in order of context and number."""
    several = mine["context"].n_unique() > 1
    for (number, stream), part in mine.sort("context", "stream", "start_ns", "end_ns", "event").group_by(
        "context", "stream", maintain_order=True
    ):
        yield f"stream {stream}" + (f", context {number}" if several else ""), _event_slices(part)


def _event_slices(part: pl.DataFrame) -> Iterator[Slice]:
    for row in part.iter_rows(named=True):
        flows = (row["event"] + 1,) if row["correlation"] >= 0 else ()
        if row["collective_id"] is not None:
            flows += (_COLLECTIVE_FLOWS + row["collective_id"],)
        notes = {name: row[name] for name in _NOTES if row[name] is not None}
        if row["step"] is not None:
            notes["launched in"] = row["step"]
        yield Slice(row["start_ns"], row["end_ns"], row["text"], row["class"], flows, notes)


def _steps(context: Context, rank: int) -> Iterator[Slice]:
    names = dict(context.attribution.steps.select("step_index", "name").iter_rows())
    for window in context.windows.windows:
        if window.rank == rank:
            name = names.get(window.step, "capture")
            yield Slice(window.start, window.end, name, "step", notes={"warm-up": window.is_warmup})


def _split(context: Context, rank: int) -> list[Slice]:
    split = context.splits[rank]
    parts = (("transfer", split.transfer), ("wait", split.wait), ("not split", split.unsplit))
    return sorted((one for name, some in parts for one in _set(name, some)), key=lambda one: one.start_ns)


def _exposed(context: Context, rank: int) -> Iterator[Slice]:
    trace = context.trace
    if not trace.union(rank, ["graph"]).length_ns:
        yield from _set(
            "exposed", trace.union(rank, ["communication"]) - trace.union(rank, ["compute", "spin"])
        )


def _set(name: str, some: Intervals) -> Iterator[Slice]:
    for start, end in zip(some.start.tolist(), some.end.tolist(), strict=True):
        yield Slice(start, end, name, name)


def _threads(context: Context, rank: int, mine: pl.DataFrame) -> Iterator[tuple[str, Iterable[Slice]]]:
    """What the rank's process did on the host, from the first launch of the chosen events to their end."""
    trace = context.trace
    process = trace.process_of_rank[rank]
    launches = _launches(context, mine)
    start = int(launches["start_ns"].to_numpy().min(initial=int(mine["start_ns"].to_numpy().min())))
    end = int(mine["end_ns"].to_numpy().max())
    within = (pl.col("process") == process) & (pl.col("end_ns") >= start) & (pl.col("start_ns") < end)
    ranges = trace.ranges.filter(within).select(
        "thread",
        "start_ns",
        "end_ns",
        name="text",
        category=pl.lit("range"),
        flows=pl.lit([], pl.List(pl.Int64)),
    )
    calls = launches.select("thread", "start_ns", "end_ns", "name", category=pl.lit("launch"), flows="flows")
    if trace.calls is not None:
        flows = launches.group_by("correlation").agg(pl.col("flows").explode())
        calls = (
            trace.calls.filter(within)
            .join(flows, on="correlation", how="left", maintain_order="left")
            .select(
                "thread",
                "start_ns",
                "end_ns",
                "name",
                category=pl.lit("call"),
                flows=pl.col("flows").fill_null([]),
            )
        )
    every = pl.concat([ranges, calls.cast(ranges.schema)]).sort("thread", "start_ns", "end_ns", "name")
    for (thread,), part in every.group_by("thread", maintain_order=True):
        yield (
            f"thread {thread}",
            (
                Slice(row["start_ns"], row["end_ns"], row["name"], row["category"], tuple(row["flows"]))
                for row in part.iter_rows(named=True)
            ),
        )


def _launches(context: Context, mine: pl.DataFrame) -> pl.DataFrame:
    """The calls that launched the events: one row a call, with the flows to all that it launched."""
    trace = context.trace
    if trace.launches is None:
        raise AssertionError("launches were not read")
    rows = trace.launches[mine["event"].to_numpy()].with_columns(
        mine["correlation"], flow=mine["event"].cast(pl.Int64) + 1
    )
    return (
        rows.filter(pl.col("launch_ns").is_not_null(), pl.col("correlation") >= 0)
        .group_by("correlation", "thread", "launch_ns", "launch_end_ns", maintain_order=True)
        .agg(flows=pl.col("flow"))
        .select(
            "correlation",
            pl.col("thread").cast(pl.Int64),
            start_ns="launch_ns",
            end_ns="launch_end_ns",
            name=pl.lit("launch"),
            flows="flows",
        )
    )


def _paths(path: pl.DataFrame) -> Iterator[tuple[str, Iterable[Slice]]]:
    """One track for the first path of every window, further ones where ranks are tied."""
    ties = (
        path.select("step_index", "path_rank")
        .unique()
        .sort("step_index", "path_rank")
        .with_columns(subrow=pl.int_range(pl.len()).over("step_index"))
    )
    placed = path.join(ties, on=["step_index", "path_rank"], how="left", nulls_equal=True).sort(
        "subrow", "start_ns", "end_ns"
    )
    for (subrow,), part in placed.group_by("subrow", maintain_order=True):
        yield "critical path" if subrow == 0 else f"tied path {subrow}", _pieces(part)


def _pieces(part: pl.DataFrame) -> Iterator[Slice]:
    for row in part.iter_rows(named=True):
        where = "" if row["rank"] is None else f"rank {row['rank']}: "
        notes = {
            name: row[name]
            for name in ("rank", "step", "phase", "stream", "thread", "via", "waits_for", "path_rank")
            if row[name] is not None
        }
        words = " ".join(word for word in (row["kind"].replace("_", " "), row["name"]) if word)
        yield Slice(row["start_ns"], row["end_ns"], where + words, row["kind"], notes=notes)


# --- how it is written


def lanes(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Slices laid out so that those of a lane nest or follow each other; the first lane that fits takes each."""
    made: list[list[Slice]] = []
    open_ends: list[list[int]] = []
    for slice in sorted(slices, key=lambda slice: (slice.start_ns, -slice.end_ns)):
        for ends in open_ends:
            while ends and ends[-1] <= slice.start_ns:
                ends.pop()
        place = next(
            (place for place, ends in enumerate(open_ends) if not ends or ends[-1] >= slice.end_ns), len(made)
        )
        if place == len(made):
            made.append([])
            open_ends.append([])
        made[place].append(slice)
        open_ends[place].append(slice.end_ns)
    return made


class _Writer:
    """Packets of one sequence; a name is written once and referred to from then on."""

    def __init__(self, stream: IO[bytes], origin_ns: int) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
            TracePacket,
            TrackDescriptor,
            TrackEvent,
        )
        from perfetto.trace_builder.proto_builder import (
            StreamingTraceProtoBuilder,
        )

        self.slices = 0
        self._builder = StreamingTraceProtoBuilder(stream)
        self._origin_ns = origin_ns
        self._tracks = 0
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._begin, self._end = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END
        self._explicit = TrackDescriptor.EXPLICIT
        self._needs_state = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        first = self._packet()
        first.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        self._builder.write_packet(first)

    def _packet(self) -> Any:
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = 1
        return packet

    def track(self, name: str, parent: int | None, order: int) -> int:
        """Describe a track; returns its id."""
        self._tracks += 1
        packet = self._packet()
        descriptor = packet.track_descriptor
        descriptor.uuid = self._tracks
        descriptor.name = name
        if parent is not None:
            descriptor.parent_uuid = parent
        descriptor.sibling_order_rank = order
        descriptor.child_ordering = self._explicit
        self._builder.write_packet(packet)
        return self._tracks

    def write(self, name: str, parent: int, order: int, slices: Iterable[Slice]) -> None:
        """Write slices to a track of this name, and to further ones where they do not nest."""
        for lane in lanes(slices):
            track = self.track(name, parent, order)
            open_ends: list[int] = []
            for slice in lane:
                while open_ends and open_ends[-1] <= slice.start_ns:
                    self._close(track, open_ends.pop())
                self._open(track, slice)
                open_ends.append(slice.end_ns)
            while open_ends:
                self._close(track, open_ends.pop())

    def _open(self, track: int, one: Slice) -> None:
        packet = self._event(track, one.start_ns)
        event = packet.track_event
        event.type = self._begin
        event.name_iid = self._interned(packet, "event_names", self._names, visible(one.name))
        event.category_iids.append(self._interned(packet, "event_categories", self._categories, one.category))
        event.flow_ids.extend(one.flows)
        for name, value in one.notes.items():
            note = event.debug_annotations.add()
            note.name = name
            if isinstance(value, bool):
                note.bool_value = value
            elif isinstance(value, int):
                note.int_value = value
            else:
                note.string_value = visible(str(value))
        self._builder.write_packet(packet)
        self.slices += 1

    def _close(self, track: int, at_ns: int) -> None:
        packet = self._event(track, at_ns)
        packet.track_event.type = self._end
        self._builder.write_packet(packet)

    def _event(self, track: int, at_ns: int) -> Any:
        packet = self._packet()
        packet.sequence_flags = self._needs_state
        packet.timestamp = at_ns - self._origin_ns
        packet.track_event.track_uuid = track
        return packet

    def _interned(self, packet: Any, kind: str, known: dict[str, int], text: str) -> int:
        if text not in known:
            known[text] = len(known) + 1
            entry = getattr(packet.interned_data, kind).add()
            entry.iid, entry.name = known[text], text
        return known[text]
