"""The GPU events of one report in order: lane by lane, by start, whatever the order of rows in the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysddp.ingest.columns import NONE, stable_order
from nsysddp.model.trace import in_parallel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.ingest.gpu import GpuEvents


@dataclass
class Ordered:
    """GPU events of one report in the order (lane, start, end, stream, name, correlation, bytes).

    Attributes:
        columns: start_ns, end_ns, context, stream, name (row of ``names``), graph_node (bool), bytes (-1 where there
            are none) and, while calls are looked for, correlation; each of shape (events,).
        lanes: (process code, device) of each lane.
        ends: one past the last row of each lane.
        spans: first start and last end of each lane, in ns.
        names: (group, text) of each distinct name, in order; group is kernel, memory or graph.
        kernels: how many events of each lane are kernels.
    """

    columns: dict[str, NDArray[Any]]
    lanes: list[tuple[int, int]]
    ends: list[int]
    spans: list[tuple[int, int]]
    names: list[tuple[str, str]]
    kernels: list[int]

    def rows_of(self, process: int, device: int) -> slice:
        """The rows of one lane."""
        lane = self.lanes.index((process, device))
        return slice(self.ends[lane - 1] if lane else 0, self.ends[lane])


def ordered(events: GpuEvents, *, keep_rows: bool) -> tuple[Ordered, NDArray[np.int64]]:
    """The events in order; their columns are taken from ``events``.

    Returns:
        The events, and with ``keep_rows`` the row of each in its report, else nothing.
    """
    # A canonical order of names makes ties between events independent of the order of rows in the file.
    names = sorted(set(events.names))
    place = {name: number for number, name in enumerate(names)}
    code = np.array([place[name] for name in events.names], dtype=np.int32)
    order = sorted(range(len(events.lanes)), key=lambda lane: events.lanes[lane])
    raw, total = events.columns, events.columns["lane"].size

    def order_of(lane: int) -> NDArray[Any]:
        """Rows of one lane, in order."""
        rows = np.flatnonzero(raw["lane"] == lane) if len(order) > 1 else None

        def ties(places: NDArray[Any]) -> list[NDArray[Any]]:
            some = places if rows is None else rows[places]
            return [
                raw["end_ns"][some],
                raw["stream"][some],
                code[raw["name"][some]],
                raw["correlation"][some],
                events.bytes_of(some),
            ]

        if rows is None:
            return stable_order(raw["start_ns"], ties)
        return rows[stable_order(raw["start_ns"][rows], ties)]

    rows_in = in_parallel(order, order_of, events=total)
    ends = np.cumsum([rows.size for rows in rows_in]).tolist()
    slices = [slice(end - rows.size, end) for rows, end in zip(rows_in, ends, strict=True)]
    del raw["lane"]
    columns: dict[str, NDArray[Any]] = {}
    # One column after the other, and the unordered one is let go: both orders together would take twice the memory.
    for name in tuple(raw):
        column = np.empty(total, dtype=raw[name].dtype)

        def gather(number: int, name: str = name, column: NDArray[Any] = column) -> None:
            here = column[slices[number]]
            np.take(raw[name], rows_in[number], out=here, mode="clip")
            if name == "name":
                np.take(code, here, out=here, mode="clip")

        in_parallel(range(len(order)), gather, events=total)
        columns[name] = column
        del raw[name]
    columns["bytes"] = np.full(total, NONE, dtype=np.int64)
    for rows, here in zip(rows_in, slices, strict=True):
        sized = np.flatnonzero(rows >= events.kernels)
        columns["bytes"][here][sized] = events.bytes_of(rows[sized])
    kept = np.concatenate(rows_in) if keep_rows else np.empty(0, dtype=np.int64)
    lanes, spans = ([some[lane] for lane in order] for some in (events.lanes, events.spans))
    is_kernel = np.array([group == "kernel" for group, _ in names], dtype=bool)
    counts = [int(np.count_nonzero(is_kernel[columns["name"][here]])) for here in slices]
    return Ordered(columns, lanes, ends, spans, names, counts), kept
