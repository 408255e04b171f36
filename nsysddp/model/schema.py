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
NAME, SMALL = pl.Categorical(), pl.Int32()
"""Text and numbers of tables with millions of rows: of few distinct values, and below 2^31."""

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
        ("clock_drift_ppm", FLOAT, "what is added grows by as many us a second; 0 where no drift is shown"),
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
        (
            "correlation",
            INT,
            "id of its launch call inside the process; -1 if none; null where calls were not read",
        ),
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
        ("algorithm", TEXT, "algorithm, where NCCL's payload says it; else null"),
        ("protocol", TEXT, "protocol, where NCCL's payload says it; else null"),
        ("channels", INT, "channels, where NCCL's payload says it; else null"),
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

NETWORK = declare(
    "network",
    "one sampled counter of a network adapter or an InfiniBand switch",
    [
        ("host", TEXT, "alias of the host whose report holds it"),
        ("device", TEXT, "NIC 0, switch 0 ..., by their ids"),
        ("start_ns", INT, "begin of the interval that it is of"),
        ("end_ns", INT, "end of the interval that it is of"),
        ("metric", TEXT, "name of the counter"),
        ("unit", TEXT, "its unit (bytes/ms); empty if the export has none"),
        ("value", FLOAT, "mean of the interval"),
    ],
)

# --- tables of single questions, which `nsysddp analyze` does not write --------------------------------------

STEP_INDEX = ("step_index", INT, "0-based order of the step; null for the whole capture")
IS_WARMUP = ("is_warmup", FLAG, "a leading step longer than 1.5 x the median of the rest")
