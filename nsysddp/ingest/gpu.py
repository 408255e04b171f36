"""Read every GPU event of a report: kernels, copies, memsets, whole graphs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysddp.ingest import sql
from nsysddp.ingest.columns import NONE, Bulk, Codes, frame, integers, plausible
from nsysddp.ingest.report import GRAPH_TRACE, KERNEL, MEMCPY, MEMSET, RUNTIME, Report
from nsysddp.names import visible
from nsysddp.schema import P2P_COPY

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from nsysddp.classify import Rules

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
    "process": np.int32,
    "device": np.int32,
    "context": np.int32,
    "stream": np.int32,
    "correlation": np.int64,
    "name": np.int32,
    "graph_node": np.bool_,
    "bytes": np.int64,
}


@dataclass
class GpuEvents:
    """Raw GPU events of one report in row order, columns as numpy arrays.

    Attributes:
        columns: start_ns, end_ns, process (code of globalPid), device, context, stream, correlation, name (row of
            ``names``), graph_node (bool), bytes (-1 where the event has none).
        names: (group, text) of each distinct name; group is kernel, memory or graph.
        dropped: rows whose times cannot be.
        kernels: how many of the rows, from the front, come from the kernel table.
    """

    columns: dict[str, NDArray[Any]]
    names: list[tuple[str, str]]
    dropped: int
    kernels: int


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
    kernels = _scan(report, processes, _kernel_query(report, rules), KERNEL, "name_id", progress)
    copies = _scan(report, processes, "memcpy", MEMCPY, "operation", progress)
    memsets = _scan(report, processes, "memset", MEMSET, None, progress)
    graphs = _scan(report, processes, "graphs", GRAPH_TRACE, None, progress)
    distinct, kernel_codes = _compact(kernels.column("name"))
    texts = strings(report, distinct)
    names = [("kernel", texts.get(int(number), f"unknown kernel {number}")) for number in distinct]
    copy_kinds, copy_codes = _compact(copies.column("name"))
    codes = [kernel_codes, copy_codes + np.int32(len(names))]
    names += [("memory", COPY_KINDS.get(int(kind), COPY_KINDS[0])) for kind in copy_kinds]
    for source, group, text in ((memsets, "memory", MEMSET_NAME), (graphs, "graph", GRAPH_NAME)):
        codes.append(np.full(source.rows, len(names), dtype=np.int32))
        names += [(group, text)] if source.rows else []
    sources = (kernels, copies, memsets, graphs)
    columns = {
        name: _joined([source.column(name) for source in sources]) for name in _FIELDS if name != "name"
    }
    columns["name"] = _joined(codes)
    return GpuEvents(columns, names, sum(source.dropped for source in sources), kernel_codes.size)


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """The parts one after another; a part that is alone is not copied."""
    filled = [part for part in parts if part.size]
    return filled[0] if len(filled) == 1 else np.concatenate(parts)


def _kernel_query(report: Report, rules: Rules) -> str:
    """The cheapest query that answers: with demangled names, or graph nodes, only where they can matter.

    Short names decide almost every class; demangled ones are read where a rule needs a namespace. Columns far back in
    a row are slow to reach, so graph nodes are asked for only in reports that mention a graph launch.
    """
    needs_full = report.has(KERNEL, "demangledName") and any(
        sql.rows(report, "string_contains", literal=hint) for hint in rules.full_name_hints
    )
    if needs_full:
        return "kernels_by_full_name"
    has_calls = RUNTIME in report.tables
    graphs = not has_calls or bool(sql.rows(report, "string_contains", literal="GraphLaunch"))
    return "kernels" if graphs else "kernels_outside_graphs"


def _scan(
    report: Report,
    processes: Codes,
    query: str,
    table: str,
    name_column: str | None,
    progress: Callable[[int], None] | None,
) -> Bulk:
    gathered = Bulk(sql.row_ranges(report, table), _FIELDS, report.name, report.database.stat().st_size)
    has_bytes = "bytes" in sql.get(query).columns
    has_graph = "graph_node" in sql.get(query).columns

    def consume(part: int, batch: pa.RecordBatch) -> None:
        rows = frame(batch)
        file = report.name
        start = integers(rows, "start_ns", np.int64, file)
        end = integers(rows, "end_ns", np.int64, file)
        columns: dict[str, Any] = {
            "start_ns": start,
            "end_ns": end,
            "process": processes.encode(integers(rows, "process", np.int64, file, null=NONE)),
            "device": integers(rows, "device", np.int32, file),
            "context": integers(rows, "context", np.int32, file, null=NONE),
            "stream": integers(rows, "stream", np.int32, file),
            "correlation": integers(rows, "correlation", np.int64, file, null=NONE),
            "name": integers(rows, name_column, np.int32, file, null=0)
            if name_column
            else np.zeros_like(start),
            "graph_node": rows["graph_node"].is_not_null().to_numpy() if has_graph else np.zeros_like(start),
            "bytes": integers(rows, "bytes", np.int64, file) if has_bytes else np.full_like(start, NONE),
        }
        real = plausible(start, end)
        dropped = rows.height - int(np.count_nonzero(real))
        gathered.add(
            part, {name: values[real] for name, values in columns.items()} if dropped else columns, dropped
        )

    sql.scan(report, query, consume, table=table, progress=progress)
    return gathered


def _compact(ids: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The distinct ids in order, and each row's position among them (int32)."""
    if not ids.size:
        return ids, np.empty(0, dtype=np.int32)
    low, high = int(ids.min()), int(ids.max())
    if high - low <= 4 * ids.size + 1_000_000:
        present = np.zeros(high - low + 1, dtype=bool)
        present[ids - low] = True
        distinct = np.flatnonzero(present)
        code = np.zeros(high - low + 1, dtype=np.int32)
        code[distinct] = np.arange(distinct.size, dtype=np.int32)
        return distinct + low, code[ids - low]
    distinct, inverse = np.unique(ids, return_inverse=True)
    return distinct, inverse.astype(np.int32)


def strings(report: Report, ids: NDArray[Any]) -> dict[int, str]:
    """Texts of the given StringIds; an id that is not there is absent."""
    wanted = json.dumps([int(number) for number in ids])
    return {int(row["id"]): visible(str(row["value"])) for row in sql.rows(report, "strings", ids=wanted)}
