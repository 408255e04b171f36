"""What a table is, how a frame is checked, and the tables of a ``Trace``.

Every table that leaves this package is declared where its question lives; ``questions.tables`` collects them.
Names, types and meanings are a contract: the JSON document, the CSV files, the reference and the tests are made from
them.
Integers are ``Int64``, times are nanoseconds on the run's common axis, null means *unknown* and is never 0.
The definitions behind the numbers are in ``docs/definitions.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from nsysddp.model.errors import AnalysisError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

INT = pl.Int64()
FLOAT = pl.Float64()
TEXT = pl.String()
FLAG = pl.Boolean()

CLASSES = ("communication", "spin", "compute", "memory", "graph")
"""What a GPU event can be; each event is exactly one of these."""

CLASS = pl.Enum(list(CLASSES))


P2P_COPY = "memcpy PtoP"
"""Operation name of a peer-to-peer copy."""


@dataclass(frozen=True)
class Column:
    """One column: name, polars type, what it says (with its unit where the name does not tell)."""

    name: str
    dtype: pl.DataType
    meaning: str


@dataclass(frozen=True)
class Table:
    """One table: its name, what one row is, and its columns in order."""

    name: str
    row: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """The column names in order."""
        return [column.name for column in self.columns]

    @property
    def dtypes(self) -> dict[str, pl.DataType]:
        """Column name to polars type, in order."""
        return {column.name: column.dtype for column in self.columns}

    def empty(self) -> pl.DataFrame:
        """A frame of this table without rows."""
        return pl.DataFrame(schema=self.dtypes)

    def frame(self, rows: Sequence[Mapping[str, object]]) -> pl.DataFrame:
        """A checked frame from row mappings; keys that are absent become null.

        Raises:
            AnalysisError: if a row has a key that the table does not know.
        """
        unknown = {key for row in rows for key in row} - set(self.names)
        if unknown:
            raise AnalysisError(f"table {self.name} has no column {sorted(unknown)}")
        complete = [{name: row.get(name) for name in self.names} for row in rows]
        return pl.DataFrame(complete, schema=self.dtypes, orient="row")

    def check(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with exactly this table's columns in order and types.

        Raises:
            AnalysisError: if a column is missing or cannot be cast without loss.
        """
        missing = set(self.names) - set(frame.columns)
        if missing:
            raise AnalysisError(f"table {self.name} lacks {sorted(missing)}")
        columns = ((frame[name], dtype) for name, dtype in self.dtypes.items())
        return pl.DataFrame(
            [column if column.dtype == dtype else column.cast(dtype) for column, dtype in columns]
        )


def declare(name: str, row: str, columns: Iterable[tuple[str, pl.DataType, str]]) -> Table:
    """A table whose columns are given as (name, type, meaning)."""
    return Table(name, row, tuple(Column(*column) for column in columns))


RANK_NUMBER = ("rank", INT, "rank number in the run")
STEP_NAME = ("step", TEXT, "name of the step range; null for the whole capture")

RANK = declare(
    "rank",
    "one rank: one (process, device) that ran GPU work",
    [
        RANK_NUMBER,
        ("rank_source", TEXT, "where the number comes from: marker, environment, file_name or inferred"),
        ("report", TEXT, "base name of the report"),
        ("host", TEXT, "stable alias of the host (host-1, ...)"),
        ("pid", INT, "process id on its host"),
        ("device", INT, "CUDA ordinal inside that process"),
        ("gpu_uuid", TEXT, "UUID of the physical GPU; null if the export does not say"),
        ("gpu_name", TEXT, "product name of the physical GPU; null if the export does not say"),
        ("world_size", INT, "ranks of the job as it said itself (marker or environment); null if it did not"),
        ("clock_offset_ns", INT, "added to this report's anchored times to align it with the others"),
        (
            "clock_residual_ns",
            INT,
            "median absolute deviation left after alignment; null if nothing could be compared",
        ),
        ("clock_method", TEXT, "shared, anchor, collectives or none"),
        ("kernels", INT, "kernels executed"),
        ("first_ns", INT, "start of the first GPU event"),
        ("last_ns", INT, "end of the last GPU event"),
    ],
)


# --- frames of a Trace -------------------------------------------------------------------------------------

EVENTS = declare(
    "events",
    "one GPU event, ordered by rank, start, end, stream, name, correlation",
    [
        ("rank", pl.Int32(), "rank number"),
        ("class", CLASS, "what it is"),
        ("start_ns", INT, "start"),
        ("end_ns", INT, "end, not before start"),
        ("name", pl.Int32(), "row of the names frame"),
        ("context", pl.Int32(), "CUDA context inside the process"),
        ("stream", pl.Int32(), "CUDA stream inside the process"),
        ("correlation", INT, "id of its launch call inside the process; -1 if none"),
        ("in_graph", FLAG, "a node of a CUDA graph: its stream and launch say nothing about order"),
        ("bytes", INT, "bytes of a copy or memset; null otherwise"),
    ],
)

NAMES = declare(
    "names",
    "one distinct name of a GPU event (row number = EVENTS.name)",
    [
        ("text", TEXT, "kernel name, or the operation of a copy or memset"),
        ("class", CLASS, "class of its events unless a launch says otherwise"),
        ("rule", TEXT, "the rule that decided, or 'unclassified'"),
        ("kind", TEXT, "collective kind that the name tells; null if it does not"),
        ("group", TEXT, "kernel, memory or graph: which table its events come from"),
    ],
)

LAUNCHES = declare(
    "launches",
    "launch call of the event in the same row of EVENTS (null: no launch row)",
    [
        ("launch_ns", INT, "start of the call"),
        ("launch_end_ns", INT, "end of the call"),
        ("thread", pl.Int32(), "id of the calling thread inside its process"),
    ],
)

RANGES = declare(
    "ranges",
    "one NVTX range that names a step, a phase, or a mark or bucket of ours, per process and thread",
    [
        ("process", pl.Int32(), "row of the processes frame"),
        ("thread", INT, "id of the thread that opened it"),
        ("start_ns", INT, "start"),
        ("end_ns", INT, "end; equal to start for a mark"),
        ("text", TEXT, "name"),
        ("style", TEXT, "push_pop, start_end or mark"),
    ],
)

OPERATIONS = declare(
    "operations",
    "one NCCL call that its NVTX domain recorded, per process and thread",
    [
        ("process", pl.Int32(), "row of the processes frame"),
        ("thread", INT, "calling thread"),
        ("start_ns", INT, "start of the call"),
        ("end_ns", INT, "end of the call"),
        ("call", TEXT, "ncclAllReduce, ncclGroupEnd, ..."),
        ("communicator", TEXT, "communicator id in hex; null without payload"),
        ("bytes", INT, "message size field of the payload; null without"),
        ("reduction", TEXT, "reduction operation; null if none"),
        ("root", INT, "root rank; null if none"),
        ("peer", INT, "peer rank of a send or receive; null if none"),
        ("ranks", INT, "number of ranks, where the call creates a communicator"),
        ("own_rank", INT, "rank in the communicator, where the call creates it"),
    ],
)

COLLECTIVES = declare(
    "collectives",
    "one communication event with the operation it carries and its counterpart on other ranks",
    [
        ("event", INT, "row of EVENTS"),
        ("collective_id", INT, "equal on all ranks of a matched collective; null where unmatched"),
        ("kind", TEXT, "collective kind"),
        ("communicator", TEXT, "communicator id in hex; null if unknown"),
        ("sequence", INT, "number in its communicator since the capture began"),
        ("group_size", INT, "ranks in the communicator; null if unknown"),
        ("bytes", INT, "message size by the rule of its kind; null if unknown"),
        ("match", TEXT, "sequence, order, or unmatched:REASON"),
        (
            "ready_peers",
            pl.List(pl.Int64()),
            "rooted operations, sends and receives: rows of EVENTS it waits for or itself; null where all wait for all",
        ),
    ],
)

CALLS = declare(
    "calls",
    "one CUDA runtime or driver call",
    [
        ("process", pl.Int32(), "row of the processes frame"),
        ("thread", pl.Int32(), "id of the calling thread inside its process"),
        ("start_ns", INT, "start"),
        ("end_ns", INT, "end"),
        ("name", pl.Categorical(), "API name without its version suffix"),
        ("correlation", INT, "id that links it to GPU events of the process; -1 if none"),
    ],
)

RECORDS = declare(
    "records",
    "one cudaEventRecord",
    [
        ("process", pl.Int32(), "row of the processes frame"),
        ("context", INT, "context"),
        ("stream", INT, "stream whose last work the event stands for"),
        ("correlation", INT, "its call; -1 if none"),
        ("event_id", INT, "CUDA event (reused)"),
        ("sync_id", INT, "joins with SYNCS.sync_id inside the process; null in old exports"),
    ],
)

SYNCS = declare(
    "syncs",
    "one synchronisation row: a stream wait, or a call that blocks the host",
    [
        ("process", pl.Int32(), "row of the processes frame"),
        ("start_ns", INT, "start"),
        ("end_ns", INT, "end"),
        ("context", INT, "context"),
        ("stream", INT, "stream that waits, or that is waited for"),
        ("correlation", INT, "its call; -1 if none"),
        ("type", INT, "1 event, 2 stream wait, 3 stream, 4 context (CUPTI's syncType)"),
        ("event_id", INT, "CUDA event (reused)"),
        ("sync_id", INT, "joins with RECORDS.sync_id inside the process; null if none"),
    ],
)

PROCESSES = declare(
    "processes",
    "one profiled process",
    [
        ("process", pl.Int32(), "row number"),
        ("report", INT, "row of the inputs"),
        ("pid", INT, "process id on its host"),
        ("host", TEXT, "stable alias of the host"),
    ],
)

SHAPES = declare(
    "shapes",
    "launch shape of the event in the same row of EVENTS (null for copies and graphs)",
    [
        ("grid", pl.Categorical(), "grid dimensions as XxYxZ"),
        ("block", pl.Categorical(), "block dimensions as XxYxZ"),
    ],
)

METRICS = declare(
    "metrics",
    "one sampled GPU metric",
    [
        ("rank", pl.Int32(), "rank whose physical GPU was sampled"),
        ("time_ns", INT, "time of the sample"),
        ("metric", TEXT, "name of the metric"),
        ("value", FLOAT, "value, in % where the name says so"),
    ],
)

# --- tables of single questions, which `nsysddp analyze` does not write --------------------------------------

STEP_INDEX = ("step_index", INT, "0-based order of the step; null for the whole capture")
IS_WARMUP = ("is_warmup", FLAG, "a leading step longer than 1.5 x the median of the rest")

CONTENTION = declare(
    "contention",
    "one kernel (or one kind and size of collective) that ran beside the other side, on one rank and in one phase",
    [
        RANK_NUMBER,
        ("side", TEXT, "compute: kernels beside communication; communication: transfers beside compute"),
        ("phase", TEXT, "phase in which it was launched; null if none"),
        ("name", TEXT, "kernel name; collective kind on the communication side"),
        ("grid", TEXT, "grid dimensions; null on the communication side"),
        ("block", TEXT, "block dimensions; null on the communication side"),
        (
            "after",
            TEXT,
            "kernel ahead of it in its queue: a shape does other work in other places; null if none",
        ),
        ("bytes", INT, "message size; null on the compute side"),
        ("alone", INT, "executions with nothing of the other side beside them"),
        ("accompanied", INT, "executions of which at least half has the other side beside it"),
        ("partial", INT, "executions between the two: not compared, but their time beside it has its cost"),
        ("alone_median_ns", INT, "median duration alone, rounded down; null if never"),
        ("accompanied_median_ns", INT, "median duration accompanied, rounded down; null if never"),
        ("ratio", FLOAT, "accompanied median / alone median; null with a reason"),
        ("ratio_low", FLOAT, "2.5 % of the bootstrap"),
        ("ratio_high", FLOAT, "97.5 % of the bootstrap"),
        ("beside_ns", INT, "sum over its executions of the time beside the other side"),
        (
            "cost_per_step_ns",
            INT,
            "beside x (1 - 1 / ratio) per window; negative where it was faster; null with a reason",
        ),
        ("reason", TEXT, "why there is no ratio: too_few_alone, too_few_accompanied or mixed_work"),
    ],
)

CONTENTION_STEP = declare(
    "contention_step",
    "what overlap gained and cost in one window of one rank",
    [
        RANK_NUMBER,
        STEP_NAME,
        STEP_INDEX,
        IS_WARMUP,
        ("hidden_communication_ns", INT, "|C & P|"),
        ("hidden_transfer_ns", INT, "transfer part of it: what overlap saved"),
        (
            "measured_ratio",
            FLOAT,
            "share of the time beside communication whose kernels have a ratio; null if none ran",
        ),
        ("contention_ns", INT, "compute time that communication beside it cost; null with a reason"),
        ("contention_low_ns", INT, "2.5 % of the bootstrap"),
        ("contention_high_ns", INT, "97.5 % of the bootstrap"),
        ("net_overlap_gain_ns", INT, "hidden_transfer - contention; null with a reason"),
        ("net_overlap_gain_low_ns", INT, "hidden_transfer - contention_high"),
        ("net_overlap_gain_high_ns", INT, "hidden_transfer - contention_low"),
        ("reason", TEXT, "why a figure is null, and what to capture"),
    ],
)

CONTENTION_METRIC = declare(
    "contention_metric",
    "one sampled GPU metric on one rank in one situation",
    [
        RANK_NUMBER,
        ("metric", TEXT, "name of the metric"),
        ("situation", TEXT, "compute_alone, both, communication_alone or neither"),
        ("samples", INT, "samples whose whole sampling interval (nine tenths of it) lies in the situation"),
        ("mean_value", FLOAT, "mean of those samples, in the unit of the metric"),
        ("median_value", FLOAT, "median of those samples"),
    ],
)

IDLE_CAUSES = (
    "launch_late",
    "event_wait",
    "communication_wait",
    "memory_copy",
    "synchronisation",
    "stream_latency",
    "allocation",
    "other_process",
    "unexplained",
    "end_of_work",
    "unknown",
)
"""Why a GPU was idle; see ``questions.idle``."""

IDLE = declare(
    "idle",
    "one piece of an idle gap of one rank, with its cause; the pieces of all causes tile the idle time",
    [
        RANK_NUMBER,
        STEP_NAME,
        STEP_INDEX,
        ("gap", INT, "number of the gap on its rank, in order of time; a gap over a window's edge is two"),
        ("start_ns", INT, "start of the piece"),
        ("end_ns", INT, "end of the piece"),
        ("cause", pl.Enum(list(IDLE_CAUSES)), "why"),
        (
            "activity",
            TEXT,
            "what went on: call, host_gap (host between calls), sync, latency, other_rank, nothing",
        ),
        (
            "name",
            TEXT,
            "call or host gap: API name of the call (after the gap); other_rank: the event that ran there",
        ),
        ("thread", INT, "thread of that call"),
        ("delayed_event", INT, "row of the trace's events: what ended the gap; null at the end of work"),
        ("delayed_name", TEXT, "its name"),
        ("phase", TEXT, "phase in which that was launched"),
        (
            "awaited_event",
            INT,
            "row of the trace's events that the event or synchronising call waited for; null if none or not known",
        ),
        ("awaited_name", TEXT, "its name"),
        (
            "waits_for",
            INT,
            "rank that arrived last in the awaited collective (or on which the awaited event ran)",
        ),
        (
            "call",
            TEXT,
            "synchronising, copying or allocating call that this piece is part or consequence of; null if none",
        ),
        ("call_start_ns", INT, "its start, which tells the call apart"),
        ("consequence", FLAG, "the idle time came after that call, out of the lead that the host lost in it"),
    ],
)

IDLE_STEP = declare(
    "idle_step",
    "one cause of idle time in one window of one rank",
    [
        RANK_NUMBER,
        STEP_NAME,
        STEP_INDEX,
        IS_WARMUP,
        ("cause", pl.Enum(list(IDLE_CAUSES)), "why"),
        ("idle_ns", INT, "sum of the pieces, which do not overlap"),
        ("pieces", INT, "number of pieces"),
        ("longest_ns", INT, "longest piece"),
        ("window_ratio", FLOAT, "idle_ns / window"),
    ],
)

LAUNCH_QUEUE = declare(
    "launch_queue",
    "one change of the number of launched and not yet started events of one rank",
    [
        RANK_NUMBER,
        ("time_ns", INT, "from this time"),
        ("depth", INT, "events launched and not yet started"),
    ],
)

LAUNCH_QUEUE_STEP = declare(
    "launch_queue_step",
    "launch-queue depth in one window of one rank",
    [
        RANK_NUMBER,
        STEP_NAME,
        STEP_INDEX,
        IS_WARMUP,
        ("mean_depth", FLOAT, "mean over time; null when the window is empty"),
        ("max_depth", INT, "largest depth"),
        ("empty_ns", INT, "time in which nothing was launched ahead"),
        ("unlaunched", INT, "events that started in it without a launch row: not in the depth"),
    ],
)

BUCKET = declare(
    "bucket",
    "one DDP bucket (or FSDP unit) of one step on one rank, in order of launch",
    [
        RANK_NUMBER,
        STEP_NAME,
        STEP_INDEX,
        IS_WARMUP,
        ("role", TEXT, "gradients (all-reduce), gather_forward, gather_backward or reduce_scatter"),
        (
            "bucket",
            INT,
            "number of the bucket: DDP's own from the annotation, else the order of launch in its role",
        ),
        ("source", TEXT, "annotation, or inferred from the order of launches"),
        ("micro_step", INT, "which backward (forward) range of the step, 0-based: gradient accumulation"),
        ("is_last", FLAG, "last bucket of its backward (by the annotation or the order)"),
        ("collective_id", INT, "of its first communication kernel; null where unmatched"),
        ("communicator", TEXT, "communicator id in hex; null if unknown"),
        ("stream", INT, "CUDA stream of its communication"),
        ("events", INT, "communication kernels of the bucket"),
        ("bytes", INT, "bytes: of the bucket by the annotation, else of the message; null if unknown"),
        ("parameters", INT, "parameters in it, from the annotation; null without"),
        ("hook_ns", INT, "host time at which its communication hook began; null without annotation"),
        (
            "launched_ns",
            INT,
            "start of the launch call of its first communication kernel; null without launch row",
        ),
        ("ready_ns", INT, "end of the last event of the producing queue that it waited for; null if unknown"),
        (
            "ready_source",
            TEXT,
            "event (a recorded CUDA event), launch_order (last compute launched before), or null",
        ),
        ("producer", TEXT, "name of that event"),
        ("started_ns", INT, "start of its first communication kernel"),
        ("ended_ns", INT, "end of its last communication kernel"),
        ("launch_late_ns", INT, "max(0, launched - ready): ready on the GPU, not yet launched by the host"),
        (
            "queued_ns",
            INT,
            "time, ready and launched, in which the communication ahead in its queue still ran",
        ),
        ("queued_behind", INT, "row of the trace's events that was ahead and held it; null if none"),
        (
            "pending_ns",
            INT,
            "time, ready, launched and first in its queue, until it started: latency, or no room on the GPU",
        ),
        (
            "held_by",
            INT,
            "head-of-line: earlier bucket of which its launch waited for (same role); null if none",
        ),
        (
            "arrival_skew_ns",
            INT,
            "latest - earliest start of its collective over the ranks; null where unmatched",
        ),
        ("last_rank", INT, "rank that arrived last"),
        ("wait_ns", INT, "sum over its kernels of the wait for later ranks; null where unmatched"),
        ("transfer_ns", INT, "sum over its kernels of the transfer; null where unmatched"),
        ("hidden_ns", INT, "|its kernels & P|"),
        ("exposed_ns", INT, "|its kernels - P|"),
        ("hidden_transfer_ns", INT, "transfer under compute; null where unmatched"),
        ("exposed_transfer_ns", INT, "transfer under no compute; null where unmatched"),
        ("tail_ns", INT, "part of its kernels after the step's last backward compute; null without backward"),
        ("consumer_ns", INT, "gathers: start of the first compute event that waited for it; null if unknown"),
        (
            "slack_ns",
            INT,
            "gathers: end of the work ahead of the consumer - ended; negative: compute waited that long",
        ),
        (
            "prefetch_distance",
            INT,
            "gathers: units launched up to this one whose consumer was not yet launched, less one",
        ),
    ],
)
