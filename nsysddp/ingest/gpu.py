"""Read every GPU event of a report: kernels, copies, memsets, whole graphs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysddp.ingest import queries, sql
from nsysddp.ingest.columns import NONE, Bulk, Codes, Ids, integers, plausible
from nsysddp.ingest.report import GRAPH_NODES, GRAPH_TRACE, KERNEL, MEMCPY, MEMSET, RUNTIME, Report
from nsysddp.model.errors import MissingTable
from nsysddp.model.names import visible
from nsysddp.model.schema import P2P_COPY

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from nsysddp.model.classify import Rules

COPY_KINDS = {
    0: "memcpy unknown", 1: "memcpy HtoD", 2: "memcpy DtoH", 3: "memcpy HtoA", 4: "memcpy AtoH",
    5: "memcpy AtoA", 6: "memcpy AtoD", 7: "memcpy DtoA", 8: "memcpy DtoD", 9: "memcpy HtoH",
    10: P2P_COPY, 11: "unified memory HtoD", 12: "unified memory DtoH", 13: "unified memory DtoD",
}  # fmt: skip
"""ENUM_CUDA_MEMCPY_OPER; built in because the table is often absent."""

MEMSET_NAME = "memset"
GRAPH_NAME = "CUDA graph"

_FIELDS: dict[str, type[np.generic]] = {
    "start_ns": np.int64,
    "end_ns": np.int64,
    "lane": np.int32,
    "context": np.int32,
    "stream": np.int32,
    "correlation": np.int64,
    "name": np.int32,
    "graph_node": np.bool_,
}


@dataclass
class GpuEvents:
    """Raw GPU events of one report in row order, kernels first, columns as numpy arrays.

    Attributes:
        columns: start_ns, end_ns, lane (row of ``lanes``), context, stream, correlation, name (row of ``names``),
            graph_node (bool).
        bytes: size of each copy and memset, -1 for a graph; for the rows after the kernels.
        lanes: (process code, device) of each lane.
        spans: first start and last end of each lane, in ns.
        names: (group, text) of each distinct name; group is kernel, memory or graph.
        dropped: rows whose times cannot be.
        kernels: how many of the rows, from the front, come from the kernel table.
        unnamed: kernel names (ids) of which the export holds no text.
    """

    columns: dict[str, NDArray[Any]]
    bytes: NDArray[np.int64]
    lanes: list[tuple[int, int]]
    spans: list[tuple[int, int]]
    names: list[tuple[str, str]]
    dropped: int
    kernels: int
    unnamed: int

    def bytes_of(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Size of these events; -1 for kernels and graphs."""
        found = np.full(rows.size, NONE, dtype=np.int64)
        sized = np.flatnonzero(rows >= self.kernels)
        found[sized] = self.bytes[rows[sized] - self.kernels]
        return found


def read(
    report: Report, processes: Codes, rules: Rules, progress: Callable[[int], None] | None = None
) -> GpuEvents:
    """All GPU events of a report.

    Args:
        report: the export.
        processes: codes of ``globalPid``, shared with the other readers of this report.
        rules: says whether short kernel names are enough.
        progress: called with row counts.

    Raises:
        ReportError: a value that cannot be; MissingTable: a column without which kernels mean nothing.
    """
    tables = (
        (_kernel_query(report, rules), KERNEL, "name_id"),
        ("memcpy", MEMCPY, "operation"),
        ("memset", MEMSET, None),
        ("graphs", GRAPH_TRACE, None),
    )
    ranges = [sql.row_ranges(report, table) for _, table, _ in tables]
    first_part = np.cumsum([0, *map(len, ranges)]).tolist()
    most = sql.most_rows(report)
    everything = Bulk([one for some in ranges for one in some], _FIELDS, report.name, most)
    rest = [one for some in ranges[1:] for one in some]
    sizes = Bulk(rest, {"bytes": np.int64}, report.name, most)
    lanes = _Lanes()
    names: list[tuple[str, str]] = []
    nameless = _Nameless(report)
    kernels = unnamed = 0
    for number, (query, table, column) in enumerate(tables):
        ids = Ids(len(names))
        _scan(
            report, processes, query, table, column, progress,
            into=_Target(
                everything, sizes if number else None, first_part[number], first_part[1], lanes, ids, nameless
            ),
        )  # fmt: skip
        found, missing = _names(report, number, ids.values)
        names += found
        if number == 0:
            kernels, unnamed = everything.rows, missing
    columns = {name: everything.column(name) for name in _FIELDS}
    code = processes.settle()
    settled = [(code[process], device) for process, device in lanes.values]
    return GpuEvents(
        columns, sizes.column("bytes"), settled, lanes.spans, names, everything.dropped, kernels, unnamed
    )


def _names(report: Report, table: int, ids: list[int]) -> tuple[list[tuple[str, str]], int]:
    """Group and text of the names of one table (kernels, copies, memsets, graphs), and how many have no text."""
    if table == 0:
        texts = strings(report, np.array(ids, dtype=np.int64))
        return [("kernel", texts.get(number, f"unknown kernel {number}")) for number in ids], len(ids) - len(
            texts
        )
    if table == 1:
        return [("memory", COPY_KINDS.get(kind, COPY_KINDS[0])) for kind in ids], 0
    return [("memory", MEMSET_NAME) if table == 2 else ("graph", GRAPH_NAME)] if ids else [], 0


class _Nameless:
    """Whose are events that name no process, as in reduced exports? Looked up when such an event is met."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._process: int | None = None
        self._lock = threading.Lock()

    @property
    def process(self) -> int:
        """The only process of the report; ``NONE`` if it names none at all.

        Raises:
            MissingTable: there are several.
        """
        with self._lock:
            if self._process is None:
                named = [int(row["process"]) for row in sql.rows(self._report, "processes")]
                listed = {row["pid"] for row in sql.rows(self._report, "cuda_devices")}
                if len(named) > 1 or (not named and len(listed) > 1):
                    raise MissingTable(
                        f"GPU events name no process (globalPid), but {max(len(named), len(listed))} processes "
                        "used a GPU: whose they are cannot be told",
                        file=self._report.path,
                        do="export the report again with an unmodified nsys",
                    )
                self._process = named[0] if named else NONE
            return self._process


class _Lanes:
    """Codes of (process, device), and the span of each lane; shared by the reading threads."""

    def __init__(self) -> None:
        self._codes = Codes()
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._lock = threading.Lock()

    @property
    def values(self) -> list[tuple[int, int]]:
        """(process code, device) of each lane."""
        sign = 1 << 31  # of a device, the lower 32 bits of a value
        return [(value >> 32, ((value & 0xFFFFFFFF) ^ sign) - sign) for value in self._codes.values]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First start and last end of each lane."""
        return [(self._first[code], self._last[code]) for code in range(len(self._first))]

    def encode(
        self, process: NDArray[Any], device: NDArray[Any], start: NDArray[Any], end: NDArray[Any]
    ) -> NDArray[Any]:
        """Lane of each event of a batch."""
        codes = self._codes.encode(process.astype(np.int64) << 32 | (device.astype(np.int64) & 0xFFFFFFFF))
        present = np.flatnonzero(np.bincount(codes)).tolist()
        for code in present:
            mine = slice(None) if len(present) == 1 else np.flatnonzero(codes == code)
            first, last = int(start[mine].min()), int(end[mine].max())
            with self._lock:
                self._first[code] = min(first, self._first.get(code, first))
                self._last[code] = max(last, self._last.get(code, last))
        return codes


@dataclass
class _Target:
    """Where the rows of one table go."""

    everything: Bulk
    sizes: Bulk | None
    first_part: int
    first_sized_part: int
    lanes: _Lanes
    ids: Ids
    nameless: _Nameless


def _kernel_query(report: Report, rules: Rules) -> str:
    """The cheapest query that answers: with demangled names, or graph nodes, only where they can matter.

    Short names decide almost every class; demangled ones are read where a rule needs a namespace. Columns far back in
    a row are slow to reach, so graph nodes are asked for only where there can be any.
    """
    needs_full = report.has(KERNEL, "demangledName") and any(
        sql.rows(report, "string_contains", literal=hint) for hint in rules.full_name_hints
    )
    if needs_full:
        return "kernels_by_full_name"
    return "kernels" if _may_hold_graph_nodes(report) else "kernels_outside_graphs"


def _may_hold_graph_nodes(report: Report) -> bool:
    """Can kernels be nodes of a CUDA graph?

    Not if the capture traced graphs as a whole, or does not say but knows its calls, and none is a graph launch.
    """

    def mentions(literal: str) -> bool:
        return bool(sql.rows(report, "string_contains", literal=literal))

    if not report.has(KERNEL, "graphNodeId"):
        return False
    settings = {str(row["name"]): str(row["value"]).lower() for row in sql.rows(report, "capture_metadata")}
    modes = {value for name, value in settings.items() if name.endswith("GRAPH_TRACE_OPTIONS:MODE")}
    if modes - {"graph"} or GRAPH_NODES in report.tables or mentions("GraphLaunch"):
        return True
    return RUNTIME not in report.tables or not (modes or mentions("LaunchKernel"))


def _scan(
    report: Report,
    processes: Codes,
    query: str,
    table: str,
    name_column: str | None,
    progress: Callable[[int], None] | None,
    *,
    into: _Target,
) -> None:
    has_bytes = "bytes" in queries.get(query).columns
    has_graph = "graph_node" in queries.get(query).columns

    def consume(part: int, rows: pl.DataFrame) -> None:
        if not rows.height:
            return
        file = report.name
        start = integers(rows, "start_ns", np.int64, file)
        end = integers(rows, "end_ns", np.int64, file)
        process = integers(rows, "process", np.int64, file, null=NONE)
        if rows["process"].null_count():
            process = np.where(process == NONE, into.nameless.process, process)
        process = processes.encode(process)
        device = integers(rows, "device", np.int32, file)
        columns: dict[str, Any] = {
            "start_ns": start,
            "end_ns": end,
            "context": integers(rows, "context", np.int32, file, null=NONE),
            "stream": integers(rows, "stream", np.int32, file),
            "correlation": integers(rows, "correlation", np.int64, file, null=NONE),
            "name": integers(rows, name_column, np.int32, file, null=NONE)
            if name_column
            else np.zeros_like(device),
            "graph_node": rows["graph_node"].is_not_null().to_numpy()
            if has_graph
            else np.zeros(rows.height, bool),
        }
        if into.sizes is not None:
            columns["bytes"] = (
                integers(rows, "bytes", np.int64, file) if has_bytes else np.full_like(start, NONE)
            )
        real = plausible(start, end)
        dropped = rows.height - int(np.count_nonzero(real))
        if dropped:
            columns = {name: values[real] for name, values in columns.items()}
            process, device = process[real], device[real]
        if dropped < rows.height:
            columns["lane"] = into.lanes.encode(process, device, columns["start_ns"], columns["end_ns"])
            columns["name"] = into.ids.encode(columns["name"])
        else:
            columns["lane"] = process
        if into.sizes is not None:
            sizes = columns.pop("bytes")
            into.sizes.add(into.first_part + part - into.first_sized_part, {"bytes": sizes})
        into.everything.add(into.first_part + part, columns, dropped)

    sql.scan(report, query, consume, table=table, progress=progress)


def strings(report: Report, ids: NDArray[Any]) -> dict[int, str]:
    """Texts of the given StringIds; an id that is not there is absent."""
    wanted = json.dumps([int(number) for number in ids])
    return {int(row["id"]): visible(str(row["value"])) for row in sql.rows(report, "strings", ids=wanted)}
