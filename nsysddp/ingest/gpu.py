"""Read every GPU event of a report: kernels, copies, memsets, whole graphs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysddp.ingest import sql
from nsysddp.ingest.columns import NONE, Codes, Gathered, frame, integers, plausible
from nsysddp.ingest.report import GRAPH_TRACE, KERNEL, MEMCPY, MEMSET, Report
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
    kernel_query = _kernel_query(report, rules)
    sources = [
        _scan(report, processes, kernel_query, KERNEL, "name_id", progress),
        _scan(report, processes, "memcpy", MEMCPY, "operation", progress),
        _scan(report, processes, "memset", MEMSET, None, progress),
        _scan(report, processes, "graphs", GRAPH_TRACE, None, progress),
    ]
    kernel_ids = sources[0].column("name", np.int32)
    distinct, kernel_codes = _compact(kernel_ids)
    texts = strings(report, distinct)
    names = [("kernel", texts.get(int(number), f"unknown kernel {number}")) for number in distinct]
    codes = [kernel_codes]
    copy_ids, copy_codes = _compact(sources[1].column("name", np.int32))
    codes.append(copy_codes + len(names))
    names += [("memory", COPY_KINDS.get(int(kind), "memcpy unknown")) for kind in copy_ids]
    for source, group, text in ((sources[2], "memory", MEMSET_NAME), (sources[3], "graph", GRAPH_NAME)):
        rows = source.column("name", np.int32).size
        codes.append(np.full(rows, len(names), dtype=np.int32))
        names += [(group, text)] if rows else []
    columns = {
        name: np.concatenate([source.column(name, dtype) for source in sources])
        for name, dtype in _FIELDS.items()
        if name != "name"
    }
    sizes = [
        np.full(kernel_codes.size, NONE, dtype=np.int64),
        sources[1].column("bytes", np.int64),
        sources[2].column("bytes", np.int64),
        np.full(codes[3].size, NONE, dtype=np.int64),
    ]
    columns["bytes"] = np.concatenate(sizes)
    columns["name"] = np.concatenate(codes)
    return GpuEvents(columns, names, sum(source.dropped for source in sources), kernel_codes.size)


def _kernel_query(report: Report, rules: Rules) -> str:
    """Short names decide almost everything; demangled ones are read where a rule needs a namespace."""
    if not report.has(KERNEL, "demangledName") or not rules.full_name_hints:
        return "kernels"
    hinted = any(sql.rows(report, "string_contains", literal=hint) for hint in rules.full_name_hints)
    return "kernels_by_full_name" if hinted else "kernels"


def _scan(
    report: Report,
    processes: Codes,
    query: str,
    table: str,
    name_column: str | None,
    progress: Callable[[int], None] | None,
) -> Gathered:
    gathered = Gathered()
    has_bytes = "bytes" in sql.get(query).columns
    has_graph = "graph_node" in sql.get(query).columns

    def consume(part: int, batch: pa.RecordBatch) -> None:
        rows = frame(batch)
        if not rows.height:
            return
        file = report.name
        start = integers(rows, "start_ns", np.int64, file)
        end = integers(rows, "end_ns", np.int64, file)
        columns = {
            "start_ns": start,
            "end_ns": end,
            "process": processes.encode(integers(rows, "process", np.int64, file, null=NONE)),
            "device": integers(rows, "device", np.int32, file),
            "context": integers(rows, "context", np.int32, file, null=NONE),
            "stream": integers(rows, "stream", np.int32, file),
            "correlation": integers(rows, "correlation", np.int64, file, null=NONE),
            "name": (
                integers(rows, name_column, np.int32, file, null=0)
                if name_column
                else np.zeros(rows.height, dtype=np.int32)
            ),
            "graph_node": (
                rows["graph_node"].is_not_null().to_numpy() if has_graph else np.zeros(rows.height, bool)
            ),
        }
        if has_bytes:
            columns["bytes"] = integers(rows, "bytes", np.int64, file)
        real = plausible(start, end)
        kept = int(np.count_nonzero(real))
        if kept < rows.height:
            columns = {name: values[real] for name, values in columns.items()}
        gathered.add(part, columns, rows.height - kept)

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
