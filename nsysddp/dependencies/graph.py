"""What did each GPU event and host call have to wait for last? The dependency graph of a run, from what was recorded.

Every event and call gets its *binding* predecessor: of all that it had to wait for, the one that finished last, not
after its own start. The critical path is then a walk along these (``critical_path``). Each kind of edge is one
``Rule`` that can be left out, so that a test can show what it is needed for. Source: ``docs/definitions.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, IntEnum, auto
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.dependencies.host import CLOCK_NS, Blocking, HostLines, blocking_kind, host_lines
from nsysddp.dependencies.queues import MARK, NEVER, RECORD, WAIT, Queues, follow_queues
from nsysddp.dependencies.sparse import Sparse
from nsysddp.model import pools, schema
from nsysddp.model.errors import AnalysisError
from nsysddp.model.trace import in_parallel
from nsysddp.model.units import NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from nsysddp.model.trace import Trace

    Ints = NDArray[np.int64]
    Rows = NDArray[np.int32]

LATENCY_NS = 10 * NS_PER_US
"""An event that has all it needs, on a device that is free, starts within this time."""

START_UP_NS, LAUNCH_NS = 20 * NS_PER_US, 100 * NS_PER_US
"""What has all it needs, on a device that is free, starts within the first; from its launch on, within the second."""


class Rule(Enum):
    """One rule of the graph; see the definition of the critical path."""

    QUEUE = auto()
    """An event waits for the one ahead of it in its queue."""
    EVENT = auto()
    """An event waits for what the stream waits enqueued ahead of it stand for."""
    PASS_THROUGH = auto()
    """A record also stands for what its queue waited for."""
    GRAPH_NODES = auto()
    """Nodes of one CUDA graph launch have no order among each other."""
    LAUNCH = auto()
    """An event waits for the end of the call that launched it."""
    EARLY_START = auto()
    """If it ran before that call returned, it waited for the call's start."""
    HOST_ORDER = auto()
    """A call waits for the one before it in its rank's line."""
    NESTED_CALLS = auto()
    """Calls inside another call are part of it."""
    POLLING_THREADS = auto()
    """Threads that never launch work on a rank are not in its line."""
    SYNC_DEVICE = auto()
    """A device synchronisation waits for all work launched before it on the rank."""
    SYNC_STREAM = auto()
    """A stream synchronisation waits for what is enqueued in the stream."""
    SYNC_EVENT = auto()
    """An event synchronisation waits for what the newest earlier record of the event stands for."""
    SYNC_COPY = auto()
    """A blocking copy waits for its own event."""
    ARRIVAL = auto()
    """A collective cannot transfer before the last rank has arrived."""


ALL_RULES = frozenset(Rule)

_SYNC_RULES = {
    Blocking.DEVICE: Rule.SYNC_DEVICE,
    Blocking.STREAM: Rule.SYNC_STREAM,
    Blocking.EVENT: Rule.SYNC_EVENT,
    Blocking.COPY: Rule.SYNC_COPY,
    Blocking.COPY_PAGEABLE: Rule.SYNC_COPY,
}


class Edge(IntEnum):
    """By what a node hangs on its binding predecessor; the first three in the order of ``_bind_events``."""

    NONE = 0
    STREAM = 1
    EVENT = 2
    LAUNCH = 3
    HOST = 4
    SYNC = 5
    ARRIVAL = 6


@dataclass(frozen=True)
class Graph:
    """Binding predecessors of all events and calls.

    Nodes are numbered: first the events (row of ``Trace.events``), then the calls of the host lines
    (``lines``), then for each call that waited for an event a second node, its *entry*: the part before it waited,
    which an event launched by that very call (a blocking copy) hangs on.

    A node's own time is ``[begin, end)``. If the walk comes from a successor that began before ``end`` (an event
    that ran before its launch call returned) it is cut there.

    Attributes:
        trace: what it was made from.
        begin: start of each node's own time, in ns; of a call that waited, the end of what it waited for.
        before: binding predecessor within the rank, -1 if none is known.
        edge: kind of the edge to it (``Edge``).
        ambiguous: the event ran before its launch call returned, and its predecessor ended inside that call.
        ready: for each event the time from which it transferred: the last arrival of its collective if that was
            inside the event, else its start; shape (events,).
        last: for each event the event of the rank that arrived last (itself if it is no matched collective, or
            if it ended before); shape (events,).
        matched: the event is communication whose transfer is known from a valid match; shape (events,).
        queues: order of the queues and edges by CUDA events.
        lines: calls of the host; without any if the export has none.
        counts: what could not be resolved, by name (see ``EVIDENCE``), over the whole capture.
    """

    trace: Trace
    begin: Ints
    before: Rows
    edge: NDArray[np.uint8]
    ambiguous: NDArray[np.bool_]
    ready: Sparse
    last: Sparse
    matched: NDArray[np.bool_]
    queues: Queues
    lines: HostLines
    counts: dict[str, int]

    @property
    def events(self) -> int:
        """Number of events, which is also the first node that is a call."""
        return self.trace.events.height

    def without_edges(self) -> Graph:
        """The queues and lines alone, for a replay, which keeps all edges itself: binding ones take much memory."""
        nobody = np.empty(0, dtype=np.int32)
        kinds = np.empty(0, dtype=np.uint8)
        flags = np.empty(0, dtype=np.bool_)
        return replace(
            self, begin=np.empty(0, dtype=np.int64), before=nobody, edge=kinds, ambiguous=flags, matched=flags
        )

    def line_of(self, node: NDArray[Any]) -> NDArray[Any]:
        """Position in ``lines`` of nodes that are calls, be it the call or its entry."""
        calls = self.lines.start.size
        place: NDArray[Any] = node - self.events
        entered = place >= calls
        place[entered] = self.lines.awaited.at[place[entered] - calls]
        return place

    def ends(self, nodes: NDArray[Any]) -> Ints:
        """End of the own time of some nodes, in ns."""
        is_event = nodes < self.events
        end = np.empty(nodes.size, dtype=np.int64)
        end[is_event] = self.trace.events["end_ns"].to_numpy()[nodes[is_event]]
        end[~is_event] = self.lines.end[self.line_of(nodes[~is_event])]
        return end

    def jumps(self, nodes: NDArray[Any]) -> NDArray[np.bool_]:
        """Does a path over all ranks go on at another event here, which arrived last?"""
        leaves = nodes < self.events
        leaves[leaves] = self.last[nodes[leaves]] != nodes[leaves]
        return leaves

    def at(self, nodes: NDArray[Any], *, across: bool) -> tuple[Ints, NDArray[np.uint8]]:
        """``begin`` and ``edge`` of nodes; of a path over all ranks it is the last arrival at which it leaves them."""
        begin, edge = self.begin[nodes], self.edge[nodes]
        if across:
            leaves = self.jumps(nodes)
            begin[leaves], edge[leaves] = self.ready[nodes[leaves]], Edge.ARRIVAL
        return begin, edge


EVIDENCE = {
    "waits": "stream waits",
    "unresolved_waits": "stream waits whose record is not in the capture",
    "empty_waits": "stream waits for a record made before any event of the capture",
    "late_waits": "events that started before what they waited for had ended (edge left out)",
    "events": "GPU events",
    "unlaunched_events": "events without a launch call",
    "early_events": "events that ran before their launch call returned",
    "clamped_launches": "events that started up to 20 us before their launch call (clocks: the call is taken to begin "
    "with them)",
    "negative_launches": "events that started before their launch call (edge left out)",
    "ambiguous_launches": "early events whose other predecessor ended inside the launch call",
    "unordered_graph_nodes": "nodes of CUDA graphs whose order inside the graph is unknown",
    "communication": "communication events",
    "unmatched_communication": "communication events without a usable match on other ranks",
    "ended_before_arrival": "matched communication events that ended before the last arrival (no jump)",
    "blocking_calls": "synchronising calls",
    "unresolved_calls": "stream or event synchronisations of which nothing says what they waited for",
    "early_returns": "synchronising calls that returned up to 20 us before the recorded end of what they waited for "
    "(clocks: they waited for it all the same)",
}


def build(trace: Trace, *, rules: Iterable[Rule] = ALL_RULES) -> Graph:
    """What each event and call of the trace waited for last.

    Args:
        trace: loaded with its host tables; without them the graph has queue order and collectives only.
        rules: the kinds of edges to use; all of them but in tests.
    """
    pools.hand_back()
    active = frozenset(rules)
    events = trace.events
    count = events.height
    operations = _operations(trace)
    queues = follow_queues(
        trace,
        operations.filter(pl.col("operation").is_not_null()),
        pass_through=Rule.PASS_THROUGH in active,
        order_in_graphs=Rule.GRAPH_NODES not in active,
    )
    ready, last, matched, ended_early = _arrivals(trace, active)
    lines = _lines(trace, operations, queues, ready, active)
    hosts = _bind_calls(trace, lines, active)
    bound = _bind_events(trace, queues, lines, ready, hosts, active)
    pools.hand_back()
    communication = (events["class"] == "communication").to_numpy()
    return Graph(
        trace=trace,
        begin=hosts.begin,
        before=hosts.before,
        edge=hosts.edge,
        ambiguous=bound.ambiguous,
        ready=ready,
        last=last,
        matched=matched,
        queues=queues,
        lines=lines,
        counts={
            "waits": queues.waits,
            "unresolved_waits": queues.unresolved_waits,
            "empty_waits": queues.empty_waits,
            "late_waits": bound.late_waits,
            "events": count,
            "unlaunched_events": int((lines.launcher < 0).sum()),
            "early_events": bound.early,
            "clamped_launches": bound.clamped,
            "negative_launches": bound.negative,
            "ambiguous_launches": int(bound.ambiguous.sum()),
            "unordered_graph_nodes": int(queues.inside_graph.sum()),
            "communication": int(communication.sum()),
            "unmatched_communication": int((communication & ~matched).sum()) - ended_early,
            "ended_before_arrival": ended_early,
            "blocking_calls": lines.blocking_calls,
            "unresolved_calls": lines.unresolved_calls,
            "early_returns": lines.early_returns,
        },
    )


@dataclass(frozen=True)
class _Hosts:
    """All nodes: events, calls, then the entries of calls that waited for an event; edges of events are made later.

    Of each call also the node on which an event that it launched hangs (``entry``), and since when it ran for these
    (``entered``): an event that started before its launch call did, by no more than the clocks can differ, pulls it
    forward.
    """

    begin: Ints
    before: Rows
    edge: NDArray[np.uint8]
    entry: Rows
    entered: Ints


def _bind_calls(trace: Trace, lines: HostLines, active: frozenset[Rule]) -> _Hosts:
    """Binding predecessors of calls, with room for those of events."""
    start, end = trace.events["start_ns"].to_numpy(), trace.events["end_ns"].to_numpy()
    events, calls = end.size, lines.row.size
    waiting, awaited = lines.awaited.at, lines.awaited.value
    begin = np.empty(events + calls + waiting.size, dtype=np.int64)
    begin[:events] = start
    before, edge = np.full(begin.size, -1, dtype=np.int32), np.zeros(begin.size, dtype=np.uint8)
    entry, entered = np.empty(calls, dtype=np.int32), np.empty(calls, dtype=np.int64)

    def of_line(number: int) -> None:
        """Fill the slices of one rank's line; its calls are counted from its first."""
        ranks, firsts = lines.ranks
        first, last = firsts[number : number + 2].tolist()
        here, those = (
            slice(first, last),
            slice(*np.searchsorted(waiting, (first, last)).tolist()),
        )
        nodes, entries = (
            slice(events + first, events + last),
            slice(events + calls + those.start, events + calls + those.stop),
        )
        waits, opened = waiting[those] - first, lines.start[here]
        order = lines.ahead(here) if Rule.HOST_ORDER in active else np.full(opened.size, -1, dtype=np.int32)
        begun = opened.copy()
        begun[waits] = np.minimum(end[awaited[those]], lines.end[waiting[those]])
        # An event that started before its launch call pulls it forward, but never before the call ahead of it begins.
        rows = slice(*trace.rows_of(int(ranks[number])))
        call, pulled = _early(lines.launcher[rows] - np.int32(first), opened, start[rows])
        ahead = order[call]
        floor = np.where(ahead >= 0, begun[ahead], NEVER) if begun.size else pulled
        np.minimum.at(opened, call, np.maximum(pulled, floor))
        entered[here] = begin[nodes] = opened
        begin[nodes][waits], begin[entries] = begun[waits], opened[waits]

        before[nodes] = np.where(order >= 0, order + np.int32(nodes.start), np.int32(-1))
        before[entries] = before[nodes][waits]
        for part in (nodes, entries):
            edge[part] = np.where(before[part] >= 0, np.uint8(Edge.HOST), np.uint8(Edge.NONE))
        before[nodes][waits], edge[nodes][waits] = awaited[those], Edge.SYNC
        entry[here] = np.arange(nodes.start, nodes.stop)
        entry[here][waits] = np.arange(entries.start, entries.stop)

    in_parallel(range(lines.ranks[0].size), of_line, events=events)
    return _Hosts(begin, before, edge, entry, entered)


def _early(launcher: Rows, opened: Ints, start: Ints) -> tuple[Rows, Ints]:
    """Calls of a line with events that started before them, by no more than clocks can differ; and these starts."""
    launched = np.flatnonzero(launcher >= 0)
    call, begun = launcher[launched], start[launched]
    ahead = opened[call] - begun
    early = np.flatnonzero((ahead > 0) & (ahead <= CLOCK_NS))
    return call[early], begun[early]


@dataclass(frozen=True)
class _Bound:
    """What could not be told of the binding predecessors of events: events and edges by their number."""

    ambiguous: NDArray[np.bool_]
    early: int
    clamped: int
    negative: int
    late_waits: int


def _bind_events(
    trace: Trace, queues: Queues, lines: HostLines, ready: Sparse, hosts: _Hosts, active: frozenset[Rule]
) -> _Bound:
    """Of what is ahead in the queue, what was waited for, and the launch: the one that let the event go last.

    Writes ``before`` and ``edge`` of events into ``hosts``.
    """
    start, end = trace.events["start_ns"].to_numpy(), trace.events["end_ns"].to_numpy()
    waiting, awaited = queues.awaits.owner, queues.awaits.event
    usable = end[awaited] <= start[waiting]
    signal = queues.awaits.latest(end, start.size, usable)
    before, edge = hosts.before[: start.size], hosts.edge[: start.size]
    ambiguous = np.zeros(start.size, dtype=bool)

    def of_rank(rank: int) -> tuple[int, int, int]:
        """Fill the rank's slices; how many events ran early, were pulled forward, came before their launch."""
        here = slice(*trace.rows_of(rank))
        begun, ahead = start[here], queues.before[here]
        latest = np.full(begun.size, NEVER, dtype=np.int64)

        def wait(let_go: Ints, other: NDArray[Any], kind: Edge) -> None:
            """Of two that let the event go at one time the earlier kind counts."""
            later = let_go > latest
            latest[later], before[here][later], edge[here][later] = let_go[later], other[later], kind

        if Rule.QUEUE in active:
            finished = end[ahead] <= begun
            # An overlapping predecessor (programmatic dependent launch) let this event go at a time that is not
            # recorded: just before it started. But a collective that still waited for its peers then had no part in it.
            let_go = end[ahead]
            overlap = np.flatnonzero(~finished)
            let_go[overlap] = np.maximum(start[ahead[overlap]], begun[overlap] - LATENCY_NS)
            let_go[overlap[ready[ahead[overlap]] > begun[overlap]]] = NEVER
            let_go[ahead < 0] = NEVER
            wait(let_go, ahead, Edge.STREAM)
        if Rule.EVENT in active:
            waited_for = signal[here]
            wait(np.where(waited_for >= 0, end[waited_for], NEVER), waited_for, Edge.EVENT)

        call = lines.launcher[here]
        launched = np.flatnonzero(call >= 0)
        call, started = call[launched], begun[launched]
        opened, closed = hosts.entered[call], lines.end[call]
        early = (closed > started) & (opened <= started)
        if Rule.LAUNCH in active:
            let_go = np.full(begun.size, NEVER, dtype=np.int64)
            let_go[launched] = np.where(closed <= started, closed, NEVER)
            if Rule.EARLY_START in active:
                let_go[launched[early]] = opened[early]
            entry = np.full(begun.size, -1, dtype=np.int32)
            entry[launched] = hosts.entry[call]
            wait(let_go, entry, Edge.LAUNCH)
        ambiguous[here][launched] = early & (latest[launched] > opened)
        clamped = (lines.start[call] > started) & (opened <= started)
        return int(early.sum()), int(clamped.sum()), int((opened > started).sum())

    counts = np.array(trace.each_rank(of_rank)).reshape(-1, 3).sum(axis=0)
    return _Bound(
        ambiguous=ambiguous,
        early=int(counts[0]),
        clamped=int(counts[1]),
        negative=int(counts[2]),
        late_waits=int(np.unique(waiting[~usable]).size),
    )


def _operations(trace: Trace) -> pl.DataFrame:
    """What the host did to queues, and its synchronising calls, ordered by process and time.

    One row per record, stream wait and synchronising call that has a row: ``process``, ``context``, ``stream``,
    ``time_ns``, ``operation`` (null for a call that asks nothing of a queue), ``sync_id``, ``event_id``, ``row`` of
    ``Trace.calls`` and ``kind`` (Blocking) of the call.
    """
    calls = trace.calls if trace.calls is not None else schema.CALLS.empty()
    records = trace.records if trace.records is not None else schema.RECORDS.empty()
    syncs = trace.syncs if trace.syncs is not None else schema.SYNCS.empty()
    columns = ["process", "context", "stream", "correlation", "event_id", "sync_id"]
    rows = pl.concat(
        [
            records.select(*columns, fallback_ns=pl.lit(None, pl.Int64), type=pl.lit(0, pl.Int64)),
            syncs.select(*columns, fallback_ns="start_ns", type="type"),
        ]
    )
    kinds = {name: int(blocking_kind(name)) for name in calls["name"].unique().to_list() if name is not None}

    def rows_with(chosen: pl.Series) -> pl.DataFrame:
        number = chosen.arg_true()
        return calls.select("process", "correlation", "name", "start_ns")[number].with_columns(
            pl.col("name").cast(pl.String), row=number.cast(pl.Int64)
        )

    # Processes count their calls alike: only those that a row of the same process asks for.
    pair = pl.col("process").cast(pl.Int64) * (1 << 32) + pl.col("correlation")
    asked = rows.filter(pl.col("correlation") >= 0).select(pair).to_series().unique().drop_nulls()
    linked = rows_with(calls.select(pair.is_in(asked.implode())).to_series())
    rows = rows.join(
        linked.sort(
            "start_ns"
        ).unique(  # of a runtime call around a driver call with the same id, the outer one
            ["process", "correlation"], keep="first", maintain_order=True
        ),
        on=["process", "correlation"],
        how="left",
    )
    # A call without any row still blocks: most device synchronisations have none.
    blocks = pl.Series([name for name, kind in kinds.items() if kind], dtype=pl.Categorical)
    bare = (
        rows_with(calls["name"].is_in(blocks.implode()))
        .filter(~pl.col("row").is_in(rows["row"].drop_nulls().implode()))
        .drop("correlation")
    )
    kind = pl.col("name").replace_strict(kinds, default=0, return_dtype=pl.Int64)
    return (
        pl.concat([rows, bare], how="diagonal")
        .with_columns(
            kind=kind,
            time_ns=pl.coalesce("start_ns", "fallback_ns"),
        )
        .with_columns(
            operation=pl.when(pl.col("type") == 0)
            .then(RECORD)
            .when(pl.col("kind") == int(Blocking.STREAM))
            .then(MARK)
            # A stream synchronisation is logged as a wait too, for no record (sync id null), at times without a call.
            .when((pl.col("type") == 2) & (pl.col("sync_id").is_not_null() | pl.col("row").is_not_null()))
            .then(WAIT)
        )
        .with_columns(
            # Without a queue (no row), or without a time, nothing can be said about a queue.
            operation=pl.when(pl.col("time_ns").is_not_null() & pl.col("stream").is_not_null()).then(
                "operation"
            )
        )
        .sort("process", "time_ns", maintain_order=True)
    )


def _lines(
    trace: Trace, operations: pl.DataFrame, queues: Queues, ready: Sparse, active: frozenset[Rule]
) -> HostLines:
    """The calls of the host with what they waited for."""
    if trace.calls is None or trace.launches is None or trace.calls.is_empty():
        return HostLines.empty(trace.events.height)
    on_queue = operations["operation"].is_not_null().to_numpy()
    valued = operations.with_columns(
        value=np.where(on_queue, np.cumsum(on_queue) - 1, -1)  # number of the operation among those on queues
    )
    blocking = valued.filter(pl.col("row").is_not_null(), pl.col("kind") > 0)
    recorded = valued.filter(pl.col("operation") == RECORD).select(
        "process", "event_id", "time_ns", recorded="value"
    )
    # What an event synchronisation waits for: the newest earlier record of that event (ids are reused).
    blocking = (
        blocking.sort("time_ns")
        .join_asof(
            recorded.sort("time_ns"),
            on="time_ns",
            by=["process", "event_id"],
            strategy="backward",
            check_sortedness=False,
        )
        .with_columns(
            source=pl.when(pl.col("kind") == int(Blocking.EVENT))
            .then(pl.col("recorded").fill_null(-1))
            .otherwise("value")
        )
    )
    off = [int(kind) for kind, rule in _SYNC_RULES.items() if rule not in active]
    return host_lines(
        trace,
        blocking.filter(~pl.col("kind").is_in(off)).select("row", "kind", "source"),
        queues,
        ready,
        fold=Rule.NESTED_CALLS in active,
        all_threads=Rule.POLLING_THREADS not in active,
    )


def _arrivals(trace: Trace, active: frozenset[Rule]) -> tuple[Sparse, Sparse, NDArray[np.bool_], int]:
    """``ready``, ``last`` and ``matched`` of every event, and how many ended before the last arrival."""
    start, end = trace.events["start_ns"].to_numpy(), trace.events["end_ns"].to_numpy()
    count = start.size
    matched = np.zeros(count, dtype=bool)

    def of(member: Ints, arriver: Ints, arrival: Ints) -> tuple[Sparse, Sparse]:
        return (
            Sparse(member, arrival, lambda rows: start[rows], count),
            Sparse(member, arriver.astype(np.int32), lambda rows: rows.astype(np.int32), count),
        )

    if Rule.ARRIVAL not in active:
        none = np.empty(0, dtype=np.int64)
        return *of(none, none, none), matched, 0
    doubtful = trace.ranks.filter(pl.col("clock_residual_ns") > trace.clock_tolerance_ns)["rank"].to_list()
    event = trace.collectives["event"]
    rows = trace.collectives.with_columns(
        rank=trace.events["rank"].gather(event), start_ns=trace.events["start_ns"].gather(event)
    ).filter(pl.col("collective_id").is_not_null(), ~pl.col("rank").is_in(doubtful))
    # Of several that arrived at once the highest rank counts, as in the collective table.
    groups = (
        rows.filter(pl.col("ready_peers").is_null())
        .sort("collective_id", "start_ns", "rank", descending=[False, True, True])
        .with_columns(
            last=pl.col("event").first().over("collective_id"),
            ready=pl.col("start_ns").first().over("collective_id"),
            members=pl.len().over("collective_id"),
        )
        .filter(pl.col("members") > 1)
        .select("event", "last", "ready")
    )
    peers = (
        rows.filter(pl.col("ready_peers").is_not_null())
        .select("event", peer="ready_peers")
        .explode("peer")
        .drop_nulls("peer")
    )
    pairs = (
        peers.with_columns(ready=trace.events["start_ns"].gather(peers["peer"]))
        .sort("event", "ready", "peer", descending=[False, True, True])
        .unique("event", keep="first", maintain_order=True)
        .select("event", last="peer", ready="ready")
    )
    found = pl.concat([groups, pairs])
    member, arriver, arrival = (found[name].to_numpy() for name in ("event", "last", "ready"))
    own = start[member] >= arrival  # it arrived last itself, or at the same time
    arriver, arrival = np.where(own, member, arriver), np.where(own, start[member], arrival)
    in_time = own | (arrival < end[member])
    ended_early = int((~in_time).sum())
    member, arriver, arrival = member[in_time], arriver[in_time], arrival[in_time]
    matched[member] = True
    order = np.argsort(member, kind="stable")
    return *of(member[order], arriver[order], arrival[order]), matched, ended_early


def check(graph: Graph) -> None:
    """Assert that no node begins before its binding predecessor does.

    Raises:
        AnalysisError: if one does: then a walk would go forward in time.
    """
    nodes = np.arange(graph.before.size)
    leaves = graph.jumps(nodes)
    for before, across in (
        (graph.before, False),
        (np.where(leaves, graph.last[np.minimum(nodes, graph.events - 1)], graph.before), True),
    ):
        begin, _ = graph.at(nodes, across=across)
        linked = np.flatnonzero(before >= 0)
        if np.any(begin[before[linked]] > begin[linked]):
            raise AnalysisError("the dependency graph has an edge that leads forward in time")
