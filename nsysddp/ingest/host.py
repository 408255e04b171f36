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
from nsysddp.ingest.columns import NONE, Bulk, Codes, Gathered, Ids, integers, plausible, shared
from nsysddp.ingest.gpu import strings
from nsysddp.ingest.payload import Schemas
from nsysddp.ingest.report import NVTX, RECORDS, RUNTIME, SYNCS, Report
from nsysddp.model import schema
from nsysddp.model.errors import MissingTable
from nsysddp.model.markers import parse_bucket_mark, parse_rank_mark
from nsysddp.model.names import visible

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.ingest.columns import Column

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

NCCL_DOMAIN = "NCCL"
"""Name of NCCL's NVTX domain; a program can have ranges of the same names in domains of its own."""

_NEVER = np.iinfo(np.int64).min
"""Stands for the end of a range that has none."""

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
        self._low = np.full(processes, self._UNKNOWN, dtype=np.int64)
        high = np.full(processes, -1, dtype=np.int64)
        for code, first, correlation in lanes:
            into.start[first : first + correlation.size] = self._UNKNOWN
            ids = correlation[self._real(correlation)]
            if ids.size:
                self._low[code] = min(self._low[code], ids.min())
                high[code] = max(high[code], ids.max())
        self._size = np.maximum(high - self._low + 1, 0)
        whole = -(-self._size // 8) * 8  # a byte belongs to one process
        self._first = np.cumsum(whole) - whole
        carried = sum(correlation.size for _, _, correlation in lanes)
        self._keys: NDArray[np.int64] | None = None
        if int(whole.sum()) > self._DENSE * carried + 1_000_000:
            self._keys = np.unique(np.concatenate([self._events(*lane)[0] for lane in lanes]))
            slots = self._keys.size
        else:
            self._lower = _lower_bits()
            bits_in = (self._lower.reshape(256, 8).max(axis=1) + 1).astype(np.int8)
            of_process = [self._bits_of(code, int(size)) for code, size in enumerate(whole)]
            self._bits = np.concatenate(of_process)
            count = np.concatenate([bits_in[bits] for bits in of_process])
            self._base = np.cumsum(count, dtype=np.int32)
            slots = int(self._base[-1]) if self._base.size else 0
            self._base -= count
        self._row = np.empty(slots, dtype=np.int32)
        for lane in lanes:
            position, rows = self._events(*lane)
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
        carried = [self._events(*lane) for lane in self._lanes]
        if (
            sum(rows.size for _, rows in carried) > self._row.size
        ):  # nodes of a graph carry the id of its launch
            for position, rows in carried:
                entered = self._row[self._slots(position)]
                for column in (into.start, into.end, into.thread):
                    column[rows] = column[entered]
        for _, first, correlation in self._lanes:
            here = slice(first, first + correlation.size)
            known = into.known[here] = into.start[here] != self._UNKNOWN
            if not known.all():
                into.start[here][~known] = into.end[here][~known] = 0


_NOBODY = 0
"""Stands for the globalTid or globalPid of a row that names none."""


def processes_of(thread: NDArray[Any], processes: Codes) -> NDArray[Any]:
    """Process code of each globalTid (or globalPid); -1 if it did no GPU work.

    A row that names none is of the only process; so is every row if the GPU events name no process at all.
    """
    only = processes.values if len(processes.values) == 1 else []
    if only == [NONE]:
        return np.zeros(thread.size, np.int32)
    code = processes.encode(thread & ~np.int64(THREAD_MASK), add=False)
    if only:
        code[thread == _NOBODY] = 0
    return code


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
        thread = integers(rows, "thread", np.int64, file, null=_NOBODY)
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
            left_out[1] += _threadless(thread, code) if mine.size < rows.height else 0

    if only is None:
        query = "launches" if calls is None else "calls"
        sql.scan(report, query, consume, table=RUNTIME, progress=progress)
    else:
        ids = json.dumps(np.unique(only).tolist())
        sql.scan(report, "launches_of", consume, table=RUNTIME, progress=progress, ids=ids)
    return left_out[0], left_out[1]


def _threadless(thread: NDArray[Any], code: NDArray[Any]) -> int:
    """How many rows are of no known process because they name no thread?"""
    return int(np.count_nonzero((code < 0) & (thread == _NOBODY)))


@dataclass
class HostRanges:
    """NVTX of one report: ``ranges`` and ``operations`` as in the schema, process = code, times unaligned.

    Attributes:
        skipped_payloads: payloads that could not be decoded.
        dropped: ranges with impossible times, left out.
        threadless: ranges of no known process, as they name no thread, left out.
    """

    ranges: pl.DataFrame
    operations: pl.DataFrame
    skipped_payloads: int
    dropped: int
    threadless: int


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
    interest = _Interest(patterns, str(report.scalar("PRAGMA encoding")))
    gathered = Gathered()
    threadless: list[int] = []
    text_ids: dict[int, int] = {}
    if report.has(NVTX, "textId"):
        text_ids = interest.decide_registered(report)

    def consume(part: int, rows: pl.DataFrame) -> None:
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
        code = processes_of(thread, processes)
        threadless.append(_threadless(thread, code))
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
    return _split(report, gathered, interest, capture_end, sum(threadless))


class _Interest:
    """Which texts matter, decided once per distinct text; a role is the position in ``texts`` plus one."""

    def __init__(self, patterns: Sequence[re.Pattern[str]], encoding: str) -> None:
        self.patterns = patterns
        self._encoding = encoding
        self.texts: list[str] = []
        self._role: dict[str, int] = {}
        self._of_bytes: dict[bytes, int] = {}

    def role(self, text: str) -> int:
        """0 if the text is none of ours, else its role."""
        if text not in self._role:
            matters = (
                text == NCCL_DOMAIN
                or NCCL_CALL.fullmatch(text) is not None
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
        roles = {
            raw: self.role(visible(bytes(raw).decode(self._encoding, "replace")))
            for raw in distinct.to_list()
        }
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


def _in_nccl_domain(process: NDArray[Any], domain: NDArray[Any], named: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows are in NCCL's NVTX domain? ``named``: the rows that name it; of a process without one, all can be."""
    key = process.astype(np.int64) << 32 | (domain & 0xFFFFFFFF)
    found: NDArray[np.bool_] = np.isin(key, key[named]) | ~np.isin(process, process[named])
    return found


def _split(
    report: Report, gathered: Gathered, interest: _Interest, capture_end: int, threadless: int
) -> HostRanges:
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
    named_call = np.array([NCCL_CALL.fullmatch(name) is not None for name in texts])[role]
    is_call = (
        named_call
        & np.isin(kind, (_PUSH_POP, _START_END))
        & _in_nccl_domain(columns["process"], domain, (kind == _DOMAIN) & (text == NCCL_DOMAIN))
    )
    is_range = ~named_call & (text != NCCL_DOMAIN) & np.isin(kind, list(_STYLE))
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
    return HostRanges(ranges, operations, skipped, dropped, threadless)


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
        process = integers(rows, "process", np.int64, file, null=_NOBODY)
        code = processes_of(process, processes)
        if _threadless(process, code):
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
