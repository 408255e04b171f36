"""Which NCCL operations does a communication kernel carry?

Definitions, "Wait and transfer": a kernel takes the payload of the NCCL range on its launching thread that contains
the start of its launch call; if that is ``ncclGroupEnd``, of all NCCL operations since the matching outermost
``ncclGroupStart`` (one kernel, many operations).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

KIND_OF_CALL = {
    "ncclAllReduce": "all_reduce",
    "ncclAllGather": "all_gather",
    "ncclReduceScatter": "reduce_scatter",
    "ncclBroadcast": "broadcast",
    "ncclBcast": "broadcast",
    "ncclReduce": "reduce",
    "ncclSend": "send",
    "ncclRecv": "recv",
    "ncclAlltoAll": "all_to_all",
    "ncclAllToAll": "all_to_all",
    "ncclGather": "gather",
    "ncclScatter": "scatter",
}
KERNEL_TASK = "NCCL Kernel Task Proto "
"""How ranges around a launch begin in which NCCL says how it runs a collective; they are no calls of the program."""

_MESSAGE_IS_PER_RANK = ("all_gather", "reduce_scatter", "all_to_all")


@dataclass
class Carried:
    """Which operations each communication kernel carries.

    Attributes:
        only: row of the one operation of each kernel; -1 if it carries none or several.
        several: kernel to the rows of its operations, in host order, where it carries more than one.
        shared: kernels of a call that launched several and did not record which carries what: their sizes and
            sequence are unknown.
    """

    only: NDArray[np.int64]
    several: dict[int, tuple[int, ...]]
    shared: set[int]


def carried_operations(
    operations: pl.DataFrame,
    process: NDArray[Any],
    thread: NDArray[Any],
    launch_ns: NDArray[Any],
    launched: NDArray[Any],
    rank: NDArray[Any],
) -> Carried:
    """The operations of each communication kernel.

    Args:
        operations: ``schema.OPERATIONS``, any order.
        process: process of each kernel.
        thread: thread of its launch.
        launch_ns: start of its launch.
        launched: False where the kernel has no launch row.
        rank: rank of each kernel, to tell the devices of one process apart.
    """
    result = Carried(np.full(launched.size, -1, dtype=np.int64), {}, set())
    if not operations.height or not launched.any():
        return result
    calls = operations["call"].to_numpy()
    is_call = ~operations["call"].str.starts_with(KERNEL_TASK).to_numpy()
    start, end = operations["start_ns"].to_numpy(), operations["end_ns"].to_numpy()
    lane_of_call = operations["process"].to_numpy().astype(np.int64) << 32 | operations["thread"].to_numpy()
    lane_of_kernel = process.astype(np.int64) << 32 | thread.astype(np.int64)
    for lane in np.unique(lane_of_kernel[launched]).tolist():
        rows = np.flatnonzero((lane_of_call == lane) & is_call)
        kernels = np.flatnonzero(launched & (lane_of_kernel == lane))
        if not rows.size:
            continue
        timeline = _Timeline(rows, start, end, calls)
        at = timeline.containing(launch_ns[kernels])
        kernels, at = kernels[at >= 0], at[at >= 0]
        _, where, times = np.unique(at, return_inverse=True, return_counts=True)
        simple = (times[where] == 1) & timeline.is_operation[at]
        result.only[kernels[simple]] = timeline.rows[at[simple]]
        by_call: dict[int, list[int]] = defaultdict(list)
        for kernel, position in zip(kernels[~simple].tolist(), at[~simple].tolist(), strict=True):
            by_call[position].append(kernel)
        for position, members in by_call.items():
            _share(timeline.operations_of(position), members, rank, operations, result)
    return result


class _Timeline:
    """NCCL calls of one thread that no other NCCL call contains, in order."""

    def __init__(
        self, rows: NDArray[Any], start: NDArray[Any], end: NDArray[Any], calls: NDArray[Any]
    ) -> None:
        order = np.lexsort((-end[rows], start[rows]))
        rows = rows[order]
        reach = np.maximum.accumulate(end[rows])
        outer = np.ones(rows.size, dtype=bool)
        outer[1:] = start[rows[1:]] >= reach[:-1]
        self.rows = rows[outer]
        self.start = start[self.rows]
        self.end = end[self.rows]
        self.calls = calls[self.rows]
        self.is_operation = np.isin(self.calls, list(KIND_OF_CALL))
        self._group_start = self._groups()

    def _groups(self) -> dict[int, int | None]:
        """Position of each ncclGroupEnd to the position of its ncclGroupStart; None if that was not captured."""
        opened: list[int] = []
        found: dict[int, int | None] = {}
        marks = np.flatnonzero(np.isin(self.calls, ("ncclGroupStart", "ncclGroupEnd")))
        for position in marks.tolist():
            if self.calls[position] == "ncclGroupStart":
                opened.append(position)
            else:
                found[position] = opened.pop() if opened else None
        return found

    def containing(self, at: NDArray[Any]) -> NDArray[np.int64]:
        """Position of the call that contains each instant; -1 if none."""
        position = np.searchsorted(self.start, at, side="right") - 1
        inside = (position >= 0) & (at < self.end[np.maximum(position, 0)])
        return np.where(inside, position, -1)

    def operations_of(self, position: int) -> list[int]:
        """Rows of the operations that a kernel launched in this call carries."""
        if self.calls[position] != "ncclGroupEnd":
            return [int(self.rows[position])] if self.calls[position] in KIND_OF_CALL else []
        begun = self._group_start.get(position)
        if begun is None:
            return []
        members = range(begun + 1, position)
        return [int(self.rows[member]) for member in members if self.calls[member] in KIND_OF_CALL]


def _share(
    found: list[int], kernels: list[int], rank: NDArray[Any], operations: pl.DataFrame, result: Carried
) -> None:
    """Divide the operations of one call among the kernels that it launched."""
    if not found:
        return
    devices = sorted({int(rank[kernel]) for kernel in kernels})
    if len(devices) > 1 and len(found) % len(devices) == 0:
        # One process drives several GPUs: the group repeats each operation for each device, in device order.
        for number, device in enumerate(devices):
            own = [kernel for kernel in kernels if rank[kernel] == device]
            _share(found[number :: len(devices)], own, rank, operations, result)
        return
    for kernel, rows in zip(kernels, _divided(found, len(kernels), operations), strict=True):
        if len(rows) == 1:
            result.only[kernel] = rows[0]
        else:
            result.several[kernel] = tuple(rows)
        if len(rows) == len(found) and len(kernels) > 1:
            result.shared.add(kernel)


def _divided(found: list[int], kernels: int, operations: pl.DataFrame) -> list[list[int]]:
    """Operations of each of the kernels on one device; all of them for each if nothing tells."""
    if kernels == 1:
        return [found]
    if len(found) == kernels:
        return [[operation] for operation in found]
    communicators = operations["communicator"].gather(found).to_list()
    distinct = list(dict.fromkeys(communicators))
    if len(distinct) == kernels and None not in distinct:
        return [
            [operation for operation, own in zip(found, communicators, strict=True) if own == wanted]
            for wanted in distinct
        ]
    return [found] * kernels


def kind_of(calls: Sequence[str], peers: Sequence[int | None]) -> str | None:
    """The collective kind of the operations of one kernel; None if there are none.

    A group of as many sends as receives, over at least two peers (or two of each where the peers are not
    recorded), to the same peers both ways, is an all-to-all; other sends and receives are ``send_recv``; a group of
    different collectives is ``grouped``.
    """
    kinds = [KIND_OF_CALL[call] for call in calls]
    if not kinds:
        return None
    if set(kinds) <= {"send", "recv"}:
        sends = [peer for kind, peer in zip(kinds, peers, strict=True) if kind == "send"]
        receives = [peer for kind, peer in zip(kinds, peers, strict=True) if kind == "recv"]
        both_ways = len(sends) == len(receives) >= 2
        if None in sends or None in receives:
            return "all_to_all" if both_ways else "send_recv"
        same = sorted(map(int, sends)) == sorted(map(int, receives))  # type: ignore[arg-type]
        return "all_to_all" if both_ways and same and len(set(sends)) == len(sends) else "send_recv"
    return kinds[0] if len(set(kinds)) == 1 else "grouped"


def message_bytes(
    kind: str, calls: Sequence[str], sizes: Sequence[int | None], group_size: int | None
) -> int | None:
    """Message size by the rule of its kind (definitions, bandwidth); None where a size is unknown.

    Grouped operations add up. NCCL's payload holds the per-rank size for all-gather, reduce-scatter and
    all-to-all, which counts once for each rank.
    """
    if not sizes or any(size is None for size in sizes):
        return None
    known = [int(size) for size in sizes if size is not None]
    kinds = [KIND_OF_CALL[call] for call in calls]
    if set(kinds) <= {"send", "recv"}:
        return max(
            sum(size for size, way in zip(known, kinds, strict=True) if way == "send"),
            sum(size for size, way in zip(known, kinds, strict=True) if way == "recv"),
        )
    if kind in _MESSAGE_IS_PER_RANK:
        return sum(known) * group_size if group_size else None
    return sum(known) if kind != "grouped" else None
