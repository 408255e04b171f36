"""Read what the host did: launch calls, NVTX ranges, NCCL calls, event records, synchronisations, GPU metrics."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.ingest import sql
from nsysddp.ingest.columns import NONE, Codes, Gathered, frame, integers, plausible
from nsysddp.ingest.gpu import strings
from nsysddp.ingest.payload import Schemas
from nsysddp.ingest.report import NVTX, RECORDS, RUNTIME, SYNCS, Report
from nsysddp.markers import parse_bucket_mark, parse_rank_mark
from nsysddp.names import visible

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

THREAD_MASK = 0xFFFFFF
_MARK, _PUSH_POP, _START_END, _IMPORTED, _IMPORTED_START_END, _DOMAIN = 34, 59, 60, 70, 71, 75
_STYLE = {
    _MARK: "mark",
    _PUSH_POP: "push_pop",
    _START_END: "start_end",
    _IMPORTED: "push_pop",
    _IMPORTED_START_END: "start_end",
}
NCCL_CALL = re.compile(
    r"nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|Send|Recv|All[Tt]o[Aa]ll|Gather|Scatter"
    r"|GroupStart|GroupEnd|CommInit\w*|CommSplit)"
)
"""NCCL API calls whose ranges matter; NCCL's domain has others (ncclCommCount, ...)."""

_NEVER = np.iinfo(np.int64).min
"""Stands for the end of a range that has none."""

_API_VERSION = re.compile(r"_v\d+(_ptsz|_ptds)?$|_(ptsz|ptds)$")


def api_name(name: str) -> str:
    """A CUDA API name without its version suffix: ``cudaLaunchKernel_v7000`` -> ``cudaLaunchKernel``."""
    return _API_VERSION.sub("", name)


class LaunchTable:
    """Launch calls by process and correlation id, without a join.

    Correlation ids are small and fairly dense integers inside a process: an array over them says which slot an id
    has, and the slots, one for each id that an event carries, hold the calls. Where ids are not dense, a sorted array
    does the same. If several calls carry one id (a runtime call around a driver call), the outermost, that is the
    earliest, counts.

    Args:
        process: process code of each event.
        correlation: id of its launch; -1 if none.
        processes: number of processes whose calls are entered.
    """

    UNKNOWN = np.iinfo(np.int64).max
    _DENSE = 16
    """Ids per event up to which an array over all ids is the better table."""

    def __init__(self, process: NDArray[Any], correlation: NDArray[Any], processes: int) -> None:
        codes = processes
        self._low = np.zeros(codes, dtype=np.int64)
        self._size = np.zeros(codes, dtype=np.int64)
        real = self._real(correlation)
        for code in range(codes):
            ids = correlation[real & (process == code)]
            if ids.size:
                self._low[code] = ids.min()
                self._size[code] = int(ids.max()) - int(self._low[code]) + 1
        self._first = np.cumsum(self._size) - self._size
        reach = sum(self._size.tolist())
        self._keys: NDArray[np.int64] | None = None
        if reach > self._DENSE * correlation.size + 1_000_000:
            self._keys = np.unique(self._position(process, correlation)[real])
            slots = self._keys.size
        else:
            self._slot = np.full(reach, -1, dtype=np.int32)
            self._slot[self._position(process, correlation)[real]] = 0
            used = np.flatnonzero(self._slot == 0)
            self._slot[used] = np.arange(used.size, dtype=np.int32)
            slots = used.size
        self.start = np.full(slots, self.UNKNOWN, dtype=np.int64)
        self.end = np.zeros(slots, dtype=np.int64)
        self.thread = np.zeros(slots, dtype=np.int32)

    @staticmethod
    def _real(correlation: NDArray[Any]) -> NDArray[np.bool_]:
        """CUPTI's ids have 32 bits; anything far beyond is damage."""
        real: NDArray[np.bool_] = (correlation >= 0) & (correlation < 1 << 48)
        return real

    def _position(self, process: NDArray[Any], correlation: NDArray[Any]) -> NDArray[np.int64]:
        position: NDArray[np.int64] = correlation + (self._first - self._low)[process]
        return position

    def _slots(self, process: NDArray[Any], correlation: NDArray[Any]) -> NDArray[Any]:
        """Slot of each (process, id); -1 where no event carries the id. Processes are known codes."""
        if not self.start.size:
            return np.full(process.size, -1, dtype=np.int32)
        inside = (correlation >= self._low[process]) & (
            correlation - self._low[process] < self._size[process]
        )
        position = np.where(inside, self._position(process, correlation), 0)
        if self._keys is None:
            return np.where(inside, self._slot[position], -1)
        at = np.minimum(np.searchsorted(self._keys, position), self._keys.size - 1)
        return np.where(inside & (self._keys[at] == position), at, -1)

    def fill(
        self,
        process: NDArray[Any],
        correlation: NDArray[Any],
        start: NDArray[Any],
        end: NDArray[Any],
        thread: NDArray[Any],
    ) -> None:
        """Enter calls of known processes; the earliest call of an id stays, the longest of two that start together."""
        slot = self._slots(process, correlation)
        useful = np.flatnonzero(slot >= 0)
        slot, start, end, thread = slot[useful], start[useful], end[useful], thread[useful]
        earlier = start < self.start[slot]
        self._enter(slot[earlier], start[earlier], end[earlier], thread[earlier])
        # Two calls of one id, in this batch or in an earlier one: enter those again, the winner last.
        again = np.flatnonzero(
            (start < self.start[slot])
            | ((start == self.start[slot]) & ((end != self.end[slot]) | (thread != self.thread[slot])))
        )
        if again.size:
            again = again[np.lexsort((thread[again], -end[again], start[again]))[::-1]]
            slot, start, end, thread = slot[again], start[again], end[again], thread[again]
            better = (start < self.start[slot]) | (
                (start == self.start[slot])
                & ((end > self.end[slot]) | ((end == self.end[slot]) & (thread < self.thread[slot])))
            )
            self._enter(slot[better], start[better], end[better], thread[better])

    def _enter(
        self, slot: NDArray[Any], start: NDArray[Any], end: NDArray[Any], thread: NDArray[Any]
    ) -> None:
        self.start[slot], self.end[slot], self.thread[slot] = start, end, thread

    def look_up(
        self, process: NDArray[Any], correlation: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Start, end, thread of the launch of each event, and whether it has one."""
        if not self.start.size:
            nothing = np.zeros(process.size, dtype=np.int64)
            return nothing, nothing, nothing.astype(np.int32), nothing.astype(bool)
        slot = self._slots(process, correlation)
        safe = np.maximum(slot, 0)
        known = (slot >= 0) & (self.start[safe] != self.UNKNOWN)
        return (
            np.where(known, self.start[safe], 0),
            np.where(known, self.end[safe], 0),
            np.where(known, self.thread[safe], 0).astype(np.int32),
            known,
        )


def process_of(thread: NDArray[Any]) -> NDArray[Any]:
    """GlobalPid of a globalTid."""
    process: NDArray[Any] = thread & ~np.int64(THREAD_MASK)
    return process


def read_launches(
    report: Report,
    processes: Codes,
    table: LaunchTable,
    progress: Callable[[int], None] | None = None,
    *,
    only: NDArray[Any] | None = None,
) -> int:
    """Fill the launch table from the runtime rows.

    Args:
        report: the export.
        processes: codes of its processes.
        table: to be filled.
        progress: called with row counts.
        only: correlation ids that matter; the others are not even fetched. None reads all calls.

    Returns:
        How many rows had times that cannot be.
    """
    single = processes.values == [NONE]
    lock = threading.Lock()
    dropped = [0]

    def consume(_: int, batch: pa.RecordBatch) -> None:
        rows = frame(batch)
        file = report.name
        start = integers(rows, "start_ns", np.int64, file)
        end = integers(rows, "end_ns", np.int64, file)
        thread = integers(rows, "thread", np.int64, file, null=0)
        correlation = integers(rows, "correlation", np.int64, file, null=NONE)
        code = np.zeros(rows.height, np.int32) if single else processes.encode(process_of(thread), add=False)
        real = plausible(start, end)
        short = (thread & THREAD_MASK).astype(np.int32)
        mine = real & (code >= 0)
        if not mine.all():
            code, correlation, start, end, short = (
                values[mine] for values in (code, correlation, start, end, short)
            )
        with lock:
            table.fill(code, correlation, start, end, short)
            dropped[0] += int(np.count_nonzero(~real))

    if only is None:
        sql.scan(report, "launches", consume, table=RUNTIME, progress=progress)
    else:
        ids = json.dumps(np.unique(only).tolist())
        sql.scan(report, "launches_of", consume, table=RUNTIME, progress=progress, ids=ids)
    return dropped[0]


@dataclass
class HostRanges:
    """NVTX of one report: ``ranges`` and ``operations`` as in the schema, process = code, times unaligned."""

    ranges: pl.DataFrame
    operations: pl.DataFrame
    skipped_payloads: int
    dropped: int


def read_nvtx(
    report: Report,
    processes: Codes,
    patterns: Sequence[re.Pattern[str]],
    capture_end: int,
    progress: Callable[[int], None] | None = None,
) -> HostRanges:
    """Ranges that name steps, phases, marks or buckets, and NCCL's calls with their payloads.

    A report can hold millions of ranges of other kinds: names are decided once per distinct text, and only the
    rows that matter are kept. A range that never ended, as the capture did first, lasts until the next of its kind
    (the pattern it matches) on its thread, else until ``capture_end``.
    """
    interest = _Interest(patterns)
    gathered = Gathered()
    single = processes.values == [NONE]
    text_ids: dict[int, int] = {}
    if report.has(NVTX, "textId"):
        text_ids = interest.decide_registered(report)

    def consume(part: int, batch: pa.RecordBatch) -> None:
        rows = frame(batch)
        file = report.name
        start = integers(rows, "start_ns", np.int64, file)
        end = integers(rows, "end_ns", np.int64, file, null=_NEVER)
        never = end == _NEVER
        end[never] = start[never]
        text_id = integers(rows, "text_id", np.int64, file)
        role = np.zeros(rows.height, dtype=np.int32)
        inline = rows["text"].bin.size(unit="b").to_numpy() > 0 if rows.height else np.zeros(0, bool)
        if inline.any():
            role[inline] = interest.decide(rows["text"].filter(pl.Series(inline)))
        registered = ~inline & (text_id >= 0)
        if registered.any() and text_ids:
            some = pl.Series(text_id[registered])
            role[registered] = some.replace_strict(text_ids, default=0, return_dtype=pl.Int32).to_numpy()
        wanted = np.flatnonzero(role)
        if not wanted.size:
            return
        kept = rows[wanted]
        thread = integers(kept, "thread", np.int64, file)
        code = np.zeros(wanted.size, np.int32) if single else processes.encode(process_of(thread), add=False)
        real = plausible(start[wanted], end[wanted])
        good = real & (code >= 0)
        gathered.add(
            part,
            {
                "process": code[good],
                "thread": (thread & THREAD_MASK)[good],
                "start_ns": start[wanted][good],
                "end_ns": end[wanted][good],
                "never": never[wanted][good],
                "type": integers(kept, "type", np.int32, file)[good],
                "domain": integers(kept, "domain", np.int64, file)[good],
                "role": role[wanted][good],
                "payload": kept["payload"].to_numpy()[good],
            },
            int(np.count_nonzero(~real)),
        )

    sql.scan(report, "nvtx", consume, table=NVTX, progress=progress)
    return _split(report, gathered, interest, capture_end)


class _Interest:
    """Which texts matter, decided once per distinct text; a role is the position in ``texts`` plus one."""

    def __init__(self, patterns: Sequence[re.Pattern[str]]) -> None:
        self.patterns = patterns
        self.texts: list[str] = []
        self._role: dict[str, int] = {}
        self._of_bytes: dict[bytes, int] = {}

    def role(self, text: str) -> int:
        """0 if the text is none of ours, else its role."""
        if text not in self._role:
            matters = (
                NCCL_CALL.fullmatch(text) is not None
                or any(pattern.fullmatch(text) for pattern in self.patterns)
                or parse_rank_mark(text) is not None
                or parse_bucket_mark(text) is not None
            )
            if not matters:
                return 0
            self._role[text] = len(self.texts) + 1
            self.texts.append(text)
        return self._role[text]

    def kind(self, text: str) -> int:
        """Number of the first pattern that the text matches; one more than the last for marks of our own."""
        matches = (number for number, one in enumerate(self.patterns) if one.fullmatch(text))
        return next(matches, len(self.patterns))

    def decide(self, texts: pl.Series) -> NDArray[Any]:
        """Roles of inline texts (bytes)."""
        distinct = texts.unique()
        roles = {raw: self.role(visible(bytes(raw).decode("utf-8", "replace"))) for raw in distinct.to_list()}
        mine = {raw: role for raw, role in roles.items() if role}
        if not mine:
            return np.zeros(texts.len(), dtype=np.int32)
        keys = pl.DataFrame(
            {"text": list(mine), "role": list(mine.values())}, schema_overrides={"role": pl.Int32}
        )
        joined = pl.DataFrame({"text": texts}).join(keys, on="text", how="left", maintain_order="left")
        return joined["role"].fill_null(0).to_numpy()

    def decide_registered(self, report: Report) -> dict[int, int]:
        """StringIds.id to role, for the registered texts that matter."""
        found: dict[int, int] = {}
        for row in sql.rows(report, "nvtx_texts"):
            role = self.role(visible(str(row["value"])))
            if role:
                found[int(row["id"])] = role
        return found


def _closed(
    columns: Mapping[str, NDArray[Any]], never: NDArray[Any], kind: NDArray[Any], capture_end: int
) -> NDArray[Any]:
    """Ends of the ranges, where those that never ended last until the next of their kind, or the capture's end."""
    end: NDArray[Any] = columns["end_ns"].copy()
    order = np.lexsort((columns["start_ns"], kind, columns["thread"], columns["process"]))
    start = columns["start_ns"][order]
    line = np.stack([columns[name][order].astype(np.int64) for name in ("process", "thread")] + [kind[order]])
    for place in np.flatnonzero(never[order]).tolist():
        later = place + 1
        while later < start.size and start[later] == start[place]:
            later += 1
        same = later < start.size and (line[:, later] == line[:, place]).all()
        end[order[place]] = start[later] if same else max(capture_end, int(start[place]))
    return end


def _split(report: Report, gathered: Gathered, interest: _Interest, capture_end: int) -> HostRanges:
    """Ranges apart from NCCL's calls, the latter with decoded payloads."""
    dropped = gathered.dropped
    texts = np.array(["", *interest.texts], dtype=object)
    role = gathered.column("role", np.int32)
    kind = gathered.column("type", np.int32)
    columns: dict[str, Any] = {
        "process": gathered.column("process", np.int32),
        "thread": gathered.column("thread", np.int64),
        "start_ns": gathered.column("start_ns", np.int64),
        "end_ns": gathered.column("end_ns", np.int64),
    }
    domain = gathered.column("domain", np.int64)
    pieces = [piece for part in sorted(gathered.parts) for piece in gathered.parts[part]["payload"]]
    payload = np.concatenate(pieces) if pieces else np.empty(0, dtype=object)
    text = texts[role]
    is_call = np.array([NCCL_CALL.fullmatch(name) is not None for name in texts])[role] & np.isin(
        kind, (_PUSH_POP, _START_END)
    )
    is_range = ~is_call & np.isin(kind, list(_STYLE))
    never = gathered.column("never", np.bool_) & is_range & (kind != _MARK)
    if never.any():
        pattern = np.array([interest.kind(name) for name in texts], dtype=np.int64)[role]
        rows = np.flatnonzero(is_range & (kind != _MARK))
        columns["end_ns"][rows] = _closed(
            {name: values[rows] for name, values in columns.items()}, never[rows], pattern[rows], capture_end
        )
    ranges = pl.DataFrame({name: values[is_range] for name, values in columns.items()}).with_columns(
        text=pl.Series(text[is_range].tolist(), dtype=pl.String),
        style=pl.Series([_STYLE[int(code)] for code in kind[is_range]], dtype=pl.String),
    )
    blobs = [bytes(blob) for blob in payload[is_call].tolist()]
    schemas = (
        Schemas(sql.rows(report, "payload_entries"), sql.rows(report, "payload_enums"))
        if any(blobs)
        else None
    )
    skipped = 0
    decoded: Mapping[str, list[Any]] = {}
    if schemas is not None:
        fields = schemas.decode(domain[is_call].tolist(), blobs)
        skipped = fields.skipped
        decoded = vars(fields)
    count = int(np.count_nonzero(is_call))
    operations = pl.DataFrame({name: values[is_call] for name, values in columns.items()}).with_columns(
        pl.Series("call", text[is_call].tolist(), dtype=pl.String),
        *(
            pl.Series(name, decoded.get(name, [None] * count), dtype=dtype, strict=False)
            for name, dtype in (
                ("communicator", pl.String),
                ("bytes", pl.Int64),
                ("reduction", pl.String),
                ("root", pl.Int64),
                ("peer", pl.Int64),
                ("ranks", pl.Int64),
                ("own_rank", pl.Int64),
            )
        ),
    )
    return HostRanges(ranges, operations, skipped, dropped)


def read_calls(
    report: Report, processes: Codes, progress: Callable[[int], None] | None = None
) -> pl.DataFrame:
    """Every runtime and driver call of the profiled processes (schema.CALLS, process = code, unaligned)."""
    gathered = Gathered()
    single = processes.values == [NONE]

    def consume(part: int, batch: pa.RecordBatch) -> None:
        rows = frame(batch)
        file = report.name
        start = integers(rows, "start_ns", np.int64, file)
        end = integers(rows, "end_ns", np.int64, file)
        thread = integers(rows, "thread", np.int64, file, null=0)
        code = np.zeros(rows.height, np.int32) if single else processes.encode(process_of(thread), add=False)
        good = plausible(start, end) & (code >= 0)
        gathered.add(
            part,
            {
                "process": code[good],
                "thread": (thread & THREAD_MASK)[good],
                "start_ns": start[good],
                "end_ns": end[good],
                "name": integers(rows, "name_id", np.int64, file)[good],
                "correlation": integers(rows, "correlation", np.int64, file, null=NONE)[good],
            },
        )

    sql.scan(report, "calls", consume, table=RUNTIME, progress=progress)
    name = gathered.column("name", np.int64)
    distinct, inverse = np.unique(name, return_inverse=True)
    texts = strings(report, distinct)
    spelled = pl.Series([api_name(texts.get(int(number), "unknown")) for number in distinct], dtype=pl.String)
    return pl.DataFrame(
        {
            "process": gathered.column("process", np.int32),
            "thread": gathered.column("thread", np.int64),
            "start_ns": gathered.column("start_ns", np.int64),
            "end_ns": gathered.column("end_ns", np.int64),
            "name": spelled.gather(inverse) if distinct.size else pl.Series([], dtype=pl.String),
            "correlation": gathered.column("correlation", np.int64),
        }
    )


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
    single = processes.values == [NONE]

    def consume(part: int, batch: pa.RecordBatch) -> None:
        rows = frame(batch)
        file = report.name
        process = integers(rows, "process", np.int64, file, null=NONE)
        code = np.zeros(rows.height, np.int32) if single else processes.encode(process, add=False)
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
    }
    gathered = Gathered()

    def consume(part: int, batch: pa.RecordBatch) -> None:
        rows = frame(batch)
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
