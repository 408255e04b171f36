"""Which NCCL operations does a communication kernel carry?

Definitions, "Wait and transfer": a kernel takes the payload of the NCCL range on its launching thread that contains
the start of its launch call; if that is ``ncclGroupEnd``, of all NCCL operations since the matching outermost
``ncclGroupStart`` (one kernel, many operations).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

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
_MESSAGE_IS_PER_RANK = ("all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class Carried:
    """What one communication kernel carries.

    Attributes:
        operations: rows of the operations frame, in host order; empty if the trace does not tell.
        shared: True if the split of a group over several kernels is not recorded, so sizes are unknown.
    """

    operations: tuple[int, ...]
    shared: bool = False


def carried_operations(
    operations: pl.DataFrame,
    process: np.ndarray,
    thread: np.ndarray,
    launch_ns: np.ndarray,
    launched: np.ndarray,
    rank: np.ndarray,
) -> list[Carried]:
    """The operations of each communication kernel.

    Args:
        operations: ``schema.OPERATIONS``, any order.
        process, thread, launch_ns: launch of each kernel.
        launched: False where the kernel has no launch row.
        rank: rank of each kernel, to tell the devices of one process apart.
    """
    result = [Carried(())] * launched.size
    if not operations.height:
        return result
    lanes: dict[tuple[int, int], list[int]] = defaultdict(list)
    ops_process = operations["process"].to_list()
    ops_thread = operations["thread"].to_list()
    for row, key in enumerate(zip(ops_process, ops_thread, strict=True)):
        lanes[key].append(row)
    start = operations["start_ns"].to_numpy()
    end = operations["end_ns"].to_numpy()
    calls = operations["call"].to_list()
    rows_by_lane: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in np.flatnonzero(launched).tolist():
        rows_by_lane[int(process[row]), int(thread[row])].append(row)
    for key, kernels in rows_by_lane.items():
        rows = lanes.get(key)
        if not rows:
            continue
        timeline = _Timeline(np.asarray(rows), start, end, calls)
        at = timeline.containing(launch_ns[kernels])
        in_call: dict[int, list[int]] = defaultdict(list)
        for kernel, position in zip(kernels, at.tolist(), strict=True):
            if position >= 0:
                in_call[position].append(kernel)
        for position, members in in_call.items():
            found = timeline.operations_of(position)
            for kernel, carried in zip(members, _share(found, members, rank, operations), strict=True):
                result[kernel] = carried
    return result


class _Timeline:
    """NCCL calls of one thread that no other NCCL call contains, in order."""

    def __init__(self, rows: np.ndarray, start: np.ndarray, end: np.ndarray, calls: Sequence[str]) -> None:
        order = np.lexsort((-end[rows], start[rows]))
        rows = rows[order]
        reach = np.maximum.accumulate(end[rows])
        outer = np.ones(rows.size, dtype=bool)
        outer[1:] = start[rows[1:]] >= reach[:-1]
        self.rows = rows[outer]
        self.start = start[self.rows]
        self.end = end[self.rows]
        self.calls = [calls[row] for row in self.rows.tolist()]
        self._group_start = self._groups()

    def _groups(self) -> dict[int, int | None]:
        """Position of each outermost ncclGroupEnd to the position of its ncclGroupStart."""
        opened: list[int] = []
        found: dict[int, int | None] = {}
        for position, call in enumerate(self.calls):
            if call == "ncclGroupStart":
                opened.append(position)
            elif call == "ncclGroupEnd":
                begun = opened.pop() if opened else None
                found[position] = begun
        return found

    def containing(self, at: np.ndarray) -> np.ndarray:
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


def _share(found: list[int], kernels: list[int], rank: np.ndarray, operations: pl.DataFrame) -> list[Carried]:
    """Divide the operations of one call among the kernels that it launched."""
    if len(kernels) == 1 or not found:
        return [Carried(tuple(found))] * len(kernels)
    devices = sorted({int(rank[kernel]) for kernel in kernels})
    if len(devices) > 1:
        # One process drives several GPUs: the group repeats each operation for each device, in device order.
        if len(found) % len(devices):
            return [Carried(tuple(found), shared=True)] * len(kernels)
        by_device = {
            device: _share(
                found[number :: len(devices)],
                [kernel for kernel in kernels if rank[kernel] == device],
                rank,
                operations,
            )
            for number, device in enumerate(devices)
        }
        taken: dict[int, int] = defaultdict(int)
        shares = []
        for kernel in kernels:
            device = int(rank[kernel])
            shares.append(by_device[device][taken[device]])
            taken[device] += 1
        return shares
    if len(found) == len(kernels):
        return [Carried((operation,)) for operation in found]
    communicators = operations["communicator"].gather(found).to_list()
    distinct = list(dict.fromkeys(communicators))
    if len(distinct) == len(kernels) and None not in distinct:
        return [
            Carried(tuple(op for op, comm in zip(found, communicators, strict=True) if comm == wanted))
            for wanted in distinct
        ]
    return [Carried(tuple(found), shared=True)] * len(kernels)


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
