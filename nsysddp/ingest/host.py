"""Read what the host did: launch calls, NVTX ranges, NCCL calls, event records, synchronisations, GPU metrics."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import polars as pl

from nsysddp.ingest import sql
from nsysddp.ingest.columns import NONE, Bulk, Codes, Gathered, Ids, integers, plausible, shared
from nsysddp.ingest.gpu import strings
from nsysddp.ingest.report import RECORDS, RUNTIME, SYNCS, Report
from nsysddp.ingest.threads import NOBODY, THREAD_MASK, count_threadless, processes_of
from nsysddp.model import schema
from nsysddp.model.errors import MissingTable
from nsysddp.model.trace import in_parallel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.ingest.columns import Column

T = TypeVar("T")

_API_VERSION = re.compile(r"_v\d+(_ptsz|_ptds)?$|_(ptsz|ptds)$")


def api_name(name: str) -> str:
    """A CUDA API name without its version suffix: ``cudaLaunchKernel_v7000`` -> ``cudaLaunchKernel``."""
    return _API_VERSION.sub("", name)


@dataclass
class Launches:
    """Launch calls of some events, row by row with them.

    Attributes:
        start, end: the call, in ns; 0 where there is none.
        thread: the thread that made it.
        known: is there one?
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    thread: NDArray[np.int32]
    known: NDArray[np.bool_]

    @classmethod
    def unknown(cls, size: int) -> Launches:
        """No launch known."""
        return cls(
            np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int32), np.zeros(size, bool)
        )

    def of(self, rows: NDArray[Any] | slice) -> Launches:
        """The launches of these rows."""
        return Launches(self.start[rows], self.end[rows], self.thread[rows], self.known[rows])


def _lower_bits() -> NDArray[np.int8]:
    """Of each byte and each of its bits (byte * 8 + bit): how many lower bits are set; -1 if the bit itself is not."""
    byte, bit = np.divmod(np.arange(256 * 8), 8)
    lower = [
        (one & ((1 << place) - 1)).bit_count() for one, place in zip(byte.tolist(), bit.tolist(), strict=True)
    ]
    return np.where(byte >> bit & 1, lower, -1).astype(np.int8)


class LaunchTable:
    """Which event does each launch call belong to, by process and correlation id, without a join?

    Correlation ids are small and fairly dense integers inside a process. A set of bits over them says which ids events
    carry; how many such ids are lower is the slot of an id, and the slot holds the row of its event. Where ids are not
    dense, a sorted array does the same. If several calls carry one id (a runtime call around a driver call), the
    outermost, that is the earliest, counts.

    Args:
        lanes: process code, first row in ``into`` and correlation ids (-1 if none) of each run of events.
        into: where the calls are written.
        processes: number of process codes.
    """

    _UNKNOWN = np.iinfo(np.int64).max
    _DENSE = 16
    """Ids per event up to which bits over all ids are the better table."""

    def __init__(
        self, lanes: Sequence[tuple[int, int, NDArray[Any]]], into: Launches, processes: int
    ) -> None:
        self._lanes, self._into = lanes, into
        self._events_in_all = sum(correlation.size for _, _, correlation in lanes)
        self._low = np.full(processes, self._UNKNOWN, dtype=np.int64)
        high = np.full(processes, -1, dtype=np.int64)
        self._carried = 0
        for (code, _, _), (carried, least, most) in zip(lanes, self._each_lane(self._span), strict=True):
            self._carried += carried
            self._low[code], high[code] = min(self._low[code], least), max(high[code], most)
        self._size = np.maximum(high - self._low + 1, 0)
        whole = -(-self._size // 8) * 8  # a byte belongs to one process
        self._first = np.cumsum(whole) - whole
        self._keys: NDArray[np.int64] | None = None
        if int(whole.sum()) > self._DENSE * self._events_in_all + 1_000_000:
            self._keys = np.unique(np.concatenate([self._events(*lane)[0] for lane in lanes]))
            slots = self._keys.size
        else:
            self._lower = _lower_bits()
            bits_in = (self._lower.reshape(256, 8).max(axis=1) + 1).astype(np.int8)
            of_process = in_parallel(
                enumerate(whole.tolist()), lambda of: self._bits_of(*of), events=self._events_in_all
            )
            self._bits = np.concatenate(of_process)
            count = np.concatenate([bits_in[bits] for bits in of_process])
            self._base = np.cumsum(count, dtype=np.int32)
            slots = int(self._base[-1]) if self._base.size else 0
            self._base -= count
        self._row = np.empty(slots, dtype=np.int32)
        self._each_lane(self._enter_rows)

    def _each_lane(self, work: Callable[[int, int, NDArray[Any]], T]) -> list[T]:
        return in_parallel(self._lanes, lambda lane: work(*lane), events=self._events_in_all)

    def _span(self, _: int, first: int, correlation: NDArray[Any]) -> tuple[int, int, int]:
        """How many events of a lane carry an id, and the least and the largest; marks that no call is known yet."""
        self._into.start[first : first + correlation.size] = self._UNKNOWN
        ids = correlation[self._real(correlation)]
        return (ids.size, int(ids.min()), int(ids.max())) if ids.size else (0, self._UNKNOWN, -1)

    def _enter_rows(self, code: int, first: int, correlation: NDArray[Any]) -> None:
        position, rows = self._events(code, first, correlation)
        self._row[self._slots(position)] = rows

    @staticmethod
    def _real(correlation: NDArray[Any]) -> NDArray[np.bool_]:
        """CUPTI's ids have 32 bits; anything far beyond is damage."""
        real: NDArray[np.bool_] = (correlation >= 0) & (correlation < 1 << 48)
        return real

    def _events(
        self, code: int, first: int, correlation: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Position and row of each event of a lane that carries an id."""
        rows = np.flatnonzero(self._real(correlation))
        return correlation[rows] + (self._first[code] - self._low[code]), rows + first

    def _bits_of(self, code: int, size: int) -> NDArray[np.uint8]:
        """Which ids of one process do events carry?"""
        carried = np.zeros(size, dtype=bool)
        for lane in self._lanes:
            if lane[0] == code:
                carried[self._events(*lane)[0] - self._first[code]] = True
        return np.packbits(carried, bitorder="little")

    def _slots(self, position: NDArray[np.int64]) -> NDArray[Any]:
        """Slot of each position; -1 where no event carries the id."""
        if self._keys is not None:
            if not self._keys.size:
                return np.full(position.size, -1)
            at = np.minimum(np.searchsorted(self._keys, position), self._keys.size - 1)
            return np.where(self._keys[at] == position, at, -1)
        byte = position >> 3
        lower = self._lower[(self._bits[byte].astype(np.int64) << 3) | (position & 7)]
        return np.where(lower >= 0, self._base[byte] + lower, -1)

    def rows(self, process: NDArray[Any], correlation: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Which of these calls (of known processes) launched an event, and the row of the event."""
        place = correlation - self._low[process]
        calls = np.flatnonzero((place >= 0) & (place < self._size[process]))
        slot = self._slots(place[calls] + self._first[process[calls]])
        calls, slot = calls[slot >= 0], slot[slot >= 0]
        return calls, self._row[slot]

    def fill(self, row: NDArray[Any], start: NDArray[Any], end: NDArray[Any], thread: NDArray[Any]) -> None:
        """Enter the calls of these events; the earliest call stays, the longest of two that start together."""
        into = self._into
        earlier = start < into.start[row]
        self._enter(row[earlier], start[earlier], end[earlier], thread[earlier])
        # Two calls of one id, in this batch or in an earlier one: enter those again, the winner last.
        again = np.flatnonzero(
            (start < into.start[row])
            | ((start == into.start[row]) & ((end != into.end[row]) | (thread != into.thread[row])))
        )
        if again.size:
            again = again[np.lexsort((thread[again], -end[again], start[again]))[::-1]]
            row, start, end, thread = row[again], start[again], end[again], thread[again]
            better = (start < into.start[row]) | (
                (start == into.start[row])
                & ((end > into.end[row]) | ((end == into.end[row]) & (thread < into.thread[row])))
            )
            self._enter(row[better], start[better], end[better], thread[better])

    def _enter(self, row: NDArray[Any], start: NDArray[Any], end: NDArray[Any], thread: NDArray[Any]) -> None:
        into = self._into
        into.start[row], into.end[row], into.thread[row] = start, end, thread

    def finish(self) -> None:
        """All calls are entered: give them to every event that carries their id."""
        into = self._into
        if self._carried > self._row.size:  # nodes of a graph carry the id of its launch
            for lane in self._lanes:
                position, rows = self._events(*lane)
                entered = self._row[self._slots(position)]
                for column in (into.start, into.end, into.thread):
                    column[rows] = column[entered]
        self._each_lane(self._settle)

    def _settle(self, _: int, first: int, correlation: NDArray[Any]) -> None:
        into, here = self._into, slice(first, first + correlation.size)
        known = into.known[here] = into.start[here] != self._UNKNOWN
        if not known.all():
            into.start[here][~known] = into.end[here][~known] = 0


def read_launches(
    report: Report,
    processes: Codes,
    table: LaunchTable | None,
    progress: Callable[[int], None] | None = None,
    *,
    only: NDArray[Any] | None = None,
    calls: CallRows | None = None,
) -> tuple[int, int]:
    """Fill the launch table, or keep all calls, or both, from the runtime rows, which are read once.

    Args:
        report: the export.
        processes: codes of its processes.
        table: to be filled; None if no launches are sought.
        progress: called with row counts.
        only: correlation ids that matter; the others are not even fetched. None reads all calls.
        calls: where all calls are kept, if they are.

    Returns:
        How many rows had times that cannot be, and how many were of no known process, as they name no thread.
    """
    lock = threading.Lock()
    left_out = [0, 0]

    def consume(part: int, rows: pl.DataFrame) -> None:
        file = report.name
        start = integers(rows, "start_ns", np.int64, file)
        end = integers(rows, "end_ns", np.int64, file)
        thread = integers(rows, "thread", np.int64, file, null=NOBODY)
        correlation = integers(rows, "correlation", np.int64, file, null=NONE)
        code = processes_of(thread, processes)
        real = plausible(start, end)
        mine = np.flatnonzero(real & (code >= 0))
        short = (thread & THREAD_MASK).astype(np.int32)
        if calls is not None:
            read = {
                "process": code,
                "thread": short,
                "start_ns": start,
                "end_ns": end,
                "correlation": correlation,
            }
            calls.add(part, rows, mine, read)
        if table is not None:
            launching, row = table.rows(code[mine], correlation[mine])
            launching = mine[launching]
            found = start[launching], end[launching], short[launching]
        with lock:
            if table is not None:
                table.fill(row, *found)
            left_out[0] += rows.height - int(np.count_nonzero(real))
            left_out[1] += count_threadless(thread, code) if mine.size < rows.height else 0

    if only is None:
        query = "launches" if calls is None else "calls"
        sql.scan(report, query, consume, table=RUNTIME, progress=progress)
    else:
        ids = json.dumps(np.unique(only).tolist())
        sql.scan(report, "launches_of", consume, table=RUNTIME, progress=progress, ids=ids)
    return left_out[0], left_out[1]


class CallRows:
    """Every runtime and driver call of the processes that did GPU work, as the table of calls is read.

    Args:
        report: the export.
    """

    _FIELDS: Mapping[str, type[np.generic]] = {
        "process": np.int32,
        "thread": np.int32,
        "start_ns": np.int64,
        "end_ns": np.int64,
        "name": np.int32,
        "correlation": np.int64,
    }

    def __init__(self, report: Report) -> None:
        self._report = report
        self._names = Ids(0)
        self._columns = Bulk(
            sql.row_ranges(report, RUNTIME), self._FIELDS, report.name, sql.most_rows(report)
        )

    def add(
        self, part: int, rows: pl.DataFrame, kept: NDArray[np.int64], columns: Mapping[str, Column]
    ) -> None:
        """The rows of a batch that are kept; all their columns but the name have been read."""
        if kept.size:
            named = self._names.encode(integers(rows, "name_id", np.int64, self._report.name))
            self._columns.add(
                part,
                {name: (named if name == "name" else columns[name])[kept] for name in self._FIELDS},
            )

    def frame(self) -> pl.DataFrame:
        """``schema.CALLS``, process = code, unaligned; the rows are handed over."""
        columns = {name: self._columns.column(name) for name in self._FIELDS}
        texts = strings(self._report, np.asarray(self._names.values, dtype=np.int64))
        spelled = [api_name(texts.get(number, "unknown")) for number in self._names.values]
        named = pl.Series(spelled, dtype=pl.Categorical).gather(shared(columns.pop("name")))
        return schema.CALLS.check(
            pl.DataFrame({"name": named, **{name: shared(values) for name, values in columns.items()}})
        )


def read_calls(report: Report, processes: Codes) -> CallRows:
    """Every runtime and driver call of the processes that did GPU work, where no launches are sought among them."""
    calls = CallRows(report)
    read_launches(report, processes, None, calls=calls)
    return calls


def read_records(report: Report, processes: Codes) -> pl.DataFrame:
    """Event records (schema.RECORDS, process = code)."""
    return _sync_table(
        report,
        processes,
        "event_records",
        RECORDS,
        ("context", "stream", "correlation", "event_id", "sync_id"),
    )


def read_syncs(report: Report, processes: Codes) -> pl.DataFrame:
    """Synchronisation rows (schema.SYNCS, process = code, unaligned)."""
    return _sync_table(
        report,
        processes,
        "synchronizations",
        SYNCS,
        ("start_ns", "end_ns", "context", "stream", "correlation", "type", "event_id", "sync_id"),
    )


def _sync_table(
    report: Report, processes: Codes, query: str, table: str, fields: Sequence[str]
) -> pl.DataFrame:
    gathered = Gathered()

    def consume(part: int, rows: pl.DataFrame) -> None:
        file = report.name
        process = integers(rows, "process", np.int64, file, null=NOBODY)
        code = processes_of(process, processes)
        if count_threadless(process, code):
            raise MissingTable(
                f"rows of {table} name no process (globalPid), and several used a GPU",
                file=report.path,
                do="export the report again with an unmodified nsys",
            )
        columns = {name: integers(rows, name, np.int64, file, null=NONE) for name in fields}
        good = code >= 0
        if "start_ns" in columns:
            good &= plausible(columns["start_ns"], columns["end_ns"])
        gathered.add(
            part, {"process": code[good], **{name: values[good] for name, values in columns.items()}}
        )

    sql.scan(report, query, consume, table=table)
    made = pl.DataFrame(
        {
            "process": gathered.column("process", np.int32),
            **{name: gathered.column(name, np.int64) for name in fields},
        }
    )
    return made.with_columns(
        pl.when(pl.col("sync_id") >= 0).then(pl.col("sync_id")).otherwise(None).alias("sync_id")
    )


def read_metrics(report: Report) -> pl.DataFrame:
    """Sampled GPU metrics: gpu (index in the metric source), time_ns, metric, value; unaligned."""
    names = {
        (int(row["type_id"]), int(row["metric_id"])): str(row["name"])
        for row in sql.rows(report, "gpu_metric_names")
        if None not in row.values()
    }
    gathered = Gathered()

    def consume(part: int, rows: pl.DataFrame) -> None:
        gathered.add(
            part,
            {
                name: integers(rows, name, np.int64, report.name)
                for name in ("time_ns", "type_id", "metric_id", "value")
            },
        )

    sql.scan(report, "gpu_metrics", consume, table="GPU_METRICS")
    made = pl.DataFrame(
        {name: gathered.column(name, np.int64) for name in ("time_ns", "type_id", "metric_id", "value")}
    )
    keys = pl.DataFrame(
        [(key[0], key[1], text) for key, text in names.items()],
        schema={"type_id": pl.Int64, "metric_id": pl.Int64, "metric": pl.String},
        orient="row",
    )
    return made.join(keys, on=["type_id", "metric_id"], how="inner").select(
        (pl.col("type_id") & 0xFF).alias("gpu"),
        "time_ns",
        "metric",
        pl.col("value").cast(pl.Float64),
    )
