"""Which NVTX ranges did the host open, and which NCCL calls do they tell?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.ingest import sql
from nsysddp.ingest.attribute import KERNEL_TASK
from nsysddp.ingest.columns import Codes, Gathered, integers, plausible
from nsysddp.ingest.payload import Schemas
from nsysddp.ingest.report import NVTX, Report
from nsysddp.ingest.threads import THREAD_MASK, count_threadless, processes_of
from nsysddp.model.markers import named_group, parse_bucket_mark, parse_group_mark, parse_rank_mark
from nsysddp.model.names import visible

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    rf"|{KERNEL_TASK}\w+"
)
"""NCCL API calls whose ranges matter; NCCL's domain has others (ncclCommCount, ...)."""

NCCL_DOMAIN = "NCCL"
"""Name of NCCL's NVTX domain; a program can have ranges of the same names in domains of its own."""

_NEVER = np.iinfo(np.int64).min
"""Stands for the end of a range that has none."""


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
    """Ranges that name steps, phases, marks, buckets or groups of ranks, and NCCL's calls with their payloads.

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
        threadless.append(count_threadless(thread, code))
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
                or parse_group_mark(text) is not None
                or named_group(text) is not None
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
                ("algorithm", pl.String),
                ("protocol", pl.String),
                ("channels", pl.Int64),
            )
        ),
    )
    return HostRanges(ranges, operations, skipped, dropped, threadless)
