"""Which kernels on different ranks are the same collective?

Definitions, "Wait and transfer". With payloads: (communicator, sequence in that communicator), after finding the
offset between ranks at which kind, bytes and ends agree. Send/receive: (communicator, sender, receiver, n-th).
Without payloads: (stream role, order, kind) where all ranks show the same sequence. What cannot be matched
stays unmatched, with the reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from nsysddp.ingest.attribute import KIND_OF_CALL, Carried, kind_of, message_bytes

SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Kinds in which no rank can end before all have arrived: their ends must agree between ranks."""

_MAX_OFFSET = 4096


@dataclass
class Kernel:
    """One communication kernel on its way to a counterpart."""

    event: int
    rank: int
    clock: int
    start: int
    end: int
    stream: int
    named_kind: str | None
    operations: tuple[int, ...] = ()
    shared: bool = False
    kind: str = "unknown"
    communicator: str | None = None
    sequence: int | None = None
    payload_bytes: int | None = None
    group_size: int | None = None
    collective: int | None = None
    match: str = "unmatched"
    peers: list[int] | None = None


@dataclass
class Matched:
    """All communication kernels with their counterparts, and what had to be inferred."""

    kernels: list[Kernel]
    calls: list[str]
    sizes: list[int | None]
    counts: Counter[str] = field(default_factory=Counter)

    def message_bytes(self, kernel: Kernel) -> int | None:
        """Message size of a kernel by the rule of its kind; None where it cannot be known."""
        if kernel.shared:
            return None
        calls = [self.calls[op] for op in kernel.operations]
        known = [self.sizes[op] for op in kernel.operations]
        return message_bytes(kernel.kind, calls, known, kernel.group_size)


def match(
    kernels: list[Kernel],
    operations: pl.DataFrame,
    carried: Sequence[Carried],
    rank_process: dict[int, int],
    world_size: int | None,
    tolerance_ns: int,
) -> Matched:
    """Find the counterpart of every kernel.

    Args:
        kernels: all communication kernels, ordered by (rank, start).
        operations: ``schema.OPERATIONS``.
        carried: operations of each kernel.
        rank_process: rank to process row.
        world_size: ranks of the job as it says itself; None if it does not.
        tolerance_ns: how far ends of one collective may lie apart between ranks of one clock.
    """
    calls = operations["call"].to_list()
    sizes = operations["bytes"].to_list()
    found = Matched(kernels, calls, sizes)
    _describe(found, operations, carried, rank_process)
    ids = _Ids()
    ranks = sorted(rank_process)
    members = _members(kernels)
    incomplete = world_size is not None and world_size > len(ranks)
    sized = _declared_sizes(operations)
    groups: dict[str, list[Kernel]] = defaultdict(list)
    rest: list[Kernel] = []
    transfers: list[Kernel] = []
    for kernel in kernels:
        if kernel.communicator is None:
            rest.append(kernel)
        elif kernel.operations and {calls[op] for op in kernel.operations} <= {"ncclSend", "ncclRecv"}:
            transfers.append(kernel)
        else:
            groups[kernel.communicator].append(kernel)
    for communicator in sorted(groups):
        of_ranks = sorted(members[communicator])
        size = sized.get(communicator)
        for kernel in groups[communicator]:
            kernel.group_size = size or len(of_ranks)
        if (size or 0) > len(of_ranks) or (size is None and incomplete and of_ranks == ranks):
            for kernel in groups[communicator]:
                kernel.match = "unmatched:ranks of the communicator are missing"
                kernel.group_size = size
        else:
            _by_sequence(groups[communicator], of_ranks, tolerance_ns, ids, found)
    _point_to_point(transfers, operations, members, sized, rank_process, ids, found)
    _by_order(rest, ranks, tolerance_ns, incomplete, ids, found)
    for kernel in kernels:
        found.counts[kernel.match] += 1
    return found


class _Ids:
    def __init__(self) -> None:
        self.next = 0

    def new(self) -> int:
        self.next += 1
        return self.next - 1


def _describe(
    found: Matched, operations: pl.DataFrame, carried: Sequence[Carried], rank_process: dict[int, int]
) -> None:
    """Kind, communicator, sequence and payload size of each kernel from the operations it carries."""
    sequence = _sequences(operations)
    communicators = operations["communicator"].to_list()
    peers = operations["peer"].to_list()
    shares_process = Counter(rank_process.values())
    per_lane: dict[tuple[int, str], int] = defaultdict(int)
    for kernel, share in zip(found.kernels, carried, strict=True):
        kernel.operations, kernel.shared = share.operations, share.shared
        names = [found.calls[op] for op in share.operations]
        kernel.kind = kind_of(names, [peers[op] for op in share.operations]) or kernel.named_kind or "unknown"
        own = {communicators[op] for op in share.operations}
        if len(own) == 1 and None not in own and not share.shared:
            (kernel.communicator,) = own
            if shares_process[rank_process[kernel.rank]] == 1:
                kernel.sequence = sequence[share.operations[0]]
            else:
                assert kernel.communicator is not None
                key = (kernel.rank, kernel.communicator)
                kernel.sequence = per_lane[key]
                per_lane[key] += len(share.operations)
        known = [found.sizes[op] for op in share.operations]
        if known and None not in known and not share.shared:
            kernel.payload_bytes = sum(int(size) for size in known if size is not None)


def _sequences(operations: pl.DataFrame) -> list[int]:
    """Number of each operation in its process and communicator, in host order."""
    order = operations.with_row_index("row").sort("process", "start_ns", "row")
    counters: dict[tuple[int, str | None, bool], int] = defaultdict(int)
    numbers = [0] * operations.height
    for row, process, call, communicator in order.select(
        "row", "process", "call", "communicator"
    ).iter_rows():
        if call not in KIND_OF_CALL:
            continue
        key = (process, communicator, call in ("ncclSend", "ncclRecv"))
        numbers[row] = counters[key]
        counters[key] += 1
    return numbers


def _members(kernels: Sequence[Kernel]) -> dict[str, set[int]]:
    """Ranks seen in each communicator."""
    seen: dict[str, set[int]] = defaultdict(set)
    for kernel in kernels:
        if kernel.communicator is not None:
            seen[kernel.communicator].add(kernel.rank)
    return seen


def _declared_sizes(operations: pl.DataFrame) -> dict[str, int]:
    """Communicator sizes that a recorded ncclCommInit told."""
    told = operations.filter(pl.col("ranks").is_not_null() & pl.col("communicator").is_not_null())
    return {str(name): int(size) for name, size in told.select("communicator", "ranks").iter_rows()}


def _by_sequence(kernels: list[Kernel], ranks: list[int], tolerance: int, ids: _Ids, found: Matched) -> None:
    if len(ranks) < 2:
        for kernel in kernels:
            kernel.match = "unmatched:only one rank of the communicator was captured"
            kernel.group_size = kernel.group_size if (kernel.group_size or 0) > 1 else None
        return
    lines = {rank: [kernel for kernel in kernels if kernel.rank == rank] for rank in ranks}
    for line in lines.values():
        line.sort(key=lambda kernel: (kernel.sequence or 0, kernel.start))
    reference = max(ranks, key=lambda rank: (len(lines[rank]), -rank))
    offsets: dict[int, int | None] = {reference: 0}
    for rank in ranks:
        if rank != reference:
            offsets[rank] = _offset(lines[reference], lines[rank], tolerance)
            if offsets[rank]:
                found.counts["sequence offset"] += 1
    if any(offset is None for offset in offsets.values()):
        for kernel in kernels:
            kernel.match = "unmatched:the sequences of the ranks do not fit together"
        return
    at: dict[int, dict[int, Kernel]] = defaultdict(dict)
    for rank in ranks:
        for kernel in lines[rank]:
            at[(kernel.sequence or 0) + (offsets[rank] or 0)][rank] = kernel
    for group in at.values():
        members = list(group.values())
        if len(group) < len(ranks):
            reason = "unmatched:missing on a rank"
        elif len({(kernel.kind, kernel.payload_bytes) for kernel in members}) > 1:
            reason = "unmatched:kind or size differs between ranks"
        elif not _ends_agree(members, tolerance):
            reason = "unmatched:the ends do not agree"
        else:
            _join(members, "sequence", ids)
            continue
        for kernel in members:
            kernel.match = reason


def _join(members: Sequence[Kernel], how: str, ids: _Ids) -> None:
    number = ids.new()
    for kernel in members:
        kernel.collective, kernel.match = number, how


def _ends_agree(members: Sequence[Kernel], tolerance: int) -> bool:
    """Ends of one synchronising collective lie together, on every shared clock.

    Only ranks of one clock are compared: between clocks the ends are what the alignment is made from.
    """
    if members[0].kind not in SYNCHRONISING:
        return True
    by_clock: dict[int, list[int]] = defaultdict(list)
    for kernel in members:
        by_clock[kernel.clock].append(kernel.end)
    return all(max(ends) - min(ends) <= 10 * tolerance for ends in by_clock.values())


def _offset(reference: list[Kernel], other: list[Kernel], tolerance: int) -> int | None:
    """What to add to the other rank's sequence numbers; None if no offset fits.

    At the right offset kinds and sizes agree everywhere and the ends of synchronising collectives lie together: on a
    shared clock absolutely, between clocks up to one constant. Training repeats itself, so kind and size
    alone cannot tell one step from the next.
    """
    mine = _Line(reference)
    theirs = _Line(other)
    shared = reference[0].clock == other[0].clock
    reach = min(_MAX_OFFSET, max(mine.span, theirs.span))
    middle = mine.first - theirs.first
    candidates = sorted({0, *range(-reach, reach + 1), *range(middle - 64, middle + 65)}, key=abs)
    best: tuple[float, float, int] | None = None
    fits: list[tuple[float, float, int]] = []
    for offset in candidates:
        score = mine.score(theirs, offset, shared)
        if score is None:
            continue
        if score[0] <= tolerance and offset == 0 and shared:
            return 0
        fits.append((score[0], score[1], offset))
        best = min(best, fits[-1]) if best else fits[-1]
    if best is None or best[0] > tolerance:
        return None
    near = [fit for fit in fits if fit[0] <= max(2 * best[0], tolerance / 5)]
    return min(near, key=lambda fit: (fit[1], abs(fit[2])))[2]


class _Line:
    """One rank's kernels of a communicator as arrays indexed by sequence number."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.sequence = np.array([kernel.sequence or 0 for kernel in kernels])
        self.label = np.array([hash((kernel.kind, kernel.payload_bytes)) for kernel in kernels])
        self.end = np.array([kernel.end for kernel in kernels])
        self.synchronising = np.array([kernel.kind in SYNCHRONISING for kernel in kernels])
        self.first = int(self.sequence[0])
        self.span = int(self.sequence[-1]) - self.first + 1

    def score(self, other: _Line, offset: int, shared_clock: bool) -> tuple[float, float] | None:
        """Spread and median of the differences of ends at this offset; None if something disagrees."""
        at = np.searchsorted(self.sequence, other.sequence + offset)
        at_safe = np.minimum(at, self.sequence.size - 1)
        same = self.sequence[at_safe] == other.sequence + offset
        if not same.any() or (self.label[at_safe[same]] != other.label[same]).any():
            return None
        usable = same & other.synchronising
        if not usable.any():
            return (0.0, float(abs(offset)))
        difference = (other.end[usable] - self.end[at_safe[usable]]).astype(np.float64)
        middle = float(np.median(difference))
        if shared_clock:
            return (float(np.median(np.abs(difference))), abs(middle))
        # More overlap is better evidence: a single pair has no spread at all.
        spread = float(np.median(np.abs(difference - middle)))
        thin = 1e18 if usable.sum() < min(3, self.sequence.size, other.sequence.size) else 0.0
        return (spread + thin, abs(middle))


def _point_to_point(
    kernels: list[Kernel],
    operations: pl.DataFrame,
    members: dict[str, set[int]],
    sized: dict[str, int],
    rank_process: Mapping[int, int],
    ids: _Ids,
    found: Matched,
) -> None:
    """Join sends with receives by (communicator, sender, receiver, n-th)."""
    peers = operations["peer"].to_list()
    own_rank = _own_ranks(operations, members, rank_process)
    nth: Counter[tuple[int, str, int, int]] = Counter()
    ends: dict[tuple[str, int, int, int], dict[str, Kernel]] = defaultdict(dict)
    touched: dict[int, list[tuple[str, int, int, int]]] = defaultdict(list)
    starts = operations["start_ns"].to_list()
    work = sorted(
        ((starts[op], op, kernel) for kernel in kernels for op in kernel.operations),
        key=lambda item: (item[2].rank, item[0], item[1]),
    )
    for _, op, kernel in work:
        communicator = kernel.communicator
        assert communicator is not None
        own = own_rank.get((kernel.rank, communicator))
        peer = peers[op]
        if own is None or peer is None:
            kernel.match = "unmatched:the payload names no peer"
            continue
        way = "send" if found.calls[op] == "ncclSend" else "recv"
        sender, receiver = (own, peer) if way == "send" else (peer, own)
        if sender == receiver:
            continue  # a message to oneself waits for nobody
        number = nth[kernel.rank, communicator, sender, receiver]
        nth[kernel.rank, communicator, sender, receiver] += 1
        key = (communicator, sender, receiver, number)
        ends[key][way] = kernel
        touched[kernel.event].append(key)
    neighbours: dict[int, set[int]] = defaultdict(set)
    by_event = {kernel.event: kernel for kernel in kernels}
    for kernel in kernels:
        if kernel.communicator is not None:
            size = sized.get(kernel.communicator)
            kernel.group_size = size or len(members[kernel.communicator])
        keys = touched.get(kernel.event, [])
        whole = bool(keys) and all(len(ends[key]) == 2 for key in keys)
        others = {other.event for key in keys for other in ends[key].values() if other is not kernel}
        together = all(
            by_event[other].clock != kernel.clock
            or (by_event[other].start < kernel.end and kernel.start < by_event[other].end)
            for other in others
        )
        if kernel.match.startswith("unmatched:"):
            continue
        if whole and together:
            kernel.match = "sequence"
            kernel.peers = sorted(others)
            neighbours[kernel.event] |= others
        else:
            kernel.match = (
                "unmatched:the counterpart was not captured"
                if not whole
                else "unmatched:the ends do not agree"
            )
    _components(kernels, neighbours, ids)


def _own_ranks(
    operations: pl.DataFrame, members: Mapping[str, set[int]], rank_process: Mapping[int, int]
) -> dict[tuple[int, str], int]:
    """(rank, communicator) to the rank inside the communicator.

    As a recorded ncclCommInit tells, else by the order of rank numbers among the members, which is how process
    groups are made.
    """
    told = {
        (int(process), str(communicator)): int(own)
        for process, communicator, own in operations.filter(
            pl.col("own_rank").is_not_null() & pl.col("communicator").is_not_null()
        )
        .select("process", "communicator", "own_rank")
        .iter_rows()
    }
    shared = Counter(rank_process.values())
    return {
        (rank, communicator): (
            told.get((rank_process[rank], communicator), position)
            if shared[rank_process[rank]] == 1
            else position
        )
        for communicator, ranks in members.items()
        for position, rank in enumerate(sorted(ranks))
    }


def _components(kernels: Sequence[Kernel], neighbours: dict[int, set[int]], ids: _Ids) -> None:
    """One collective id for all kernels that wait for each other, directly or not."""
    by_event = {kernel.event: kernel for kernel in kernels}
    for kernel in kernels:
        if kernel.match != "sequence" or kernel.collective is not None:
            continue
        number = ids.new()
        open_ends = [kernel.event]
        while open_ends:
            current = by_event[open_ends.pop()]
            if current.collective is None and current.match == "sequence":
                current.collective = number
                open_ends.extend(neighbours[current.event])


def _by_order(
    kernels: list[Kernel],
    ranks: list[int],
    tolerance: int,
    incomplete: bool,
    ids: _Ids,
    found: Matched,
) -> None:
    """Without payloads: streams with the same sequence of kinds on every rank play the same role."""

    def leave(reason: str, some: Sequence[Kernel]) -> None:
        for kernel in some:
            kernel.match = f"unmatched:{reason}"

    if not kernels:
        return
    if incomplete:
        leave("ranks of the job are missing", kernels)
        return
    if len(ranks) < 2:
        leave("only one rank was captured", kernels)
        return
    lines: dict[int, dict[int, list[Kernel]]] = defaultdict(lambda: defaultdict(list))
    for kernel in kernels:
        lines[kernel.rank][kernel.stream].append(kernel)
    roles: dict[tuple[tuple[str, ...], int], dict[int, list[Kernel]]] = defaultdict(dict)
    for rank in ranks:
        seen: Counter[tuple[str, ...]] = Counter()
        for line in sorted(lines[rank].values(), key=lambda line: (line[0].start, line[0].stream)):
            kinds = tuple(kernel.kind for kernel in line)
            roles[kinds, seen[kinds]][rank] = line
            seen[kinds] += 1
    for (kinds, _), by_rank in roles.items():
        whole = [kernel for line in by_rank.values() for kernel in line]
        if len(by_rank) < len(ranks):
            leave("the ranks do not show the same sequence", whole)
            continue
        if len(ranks) > 2 and any(kind.startswith("send_recv") for kind in kinds):
            leave("who sends to whom is not recorded", whole)
            continue
        spreads = [
            max(line[position].end for line in by_rank.values())
            - min(line[position].end for line in by_rank.values())
            for position, kind in enumerate(kinds)
            if kind in SYNCHRONISING
        ]
        one_clock = len({line[0].clock for line in by_rank.values()}) == 1
        if one_clock and spreads and np.median(spreads) > tolerance:
            leave("the ends do not agree", whole)
            continue
        for position in range(len(kinds)):
            members = [by_rank[rank][position] for rank in ranks]
            if _ends_agree(members, tolerance):
                for kernel in members:
                    kernel.group_size = len(ranks)
                _join(members, "order", ids)
            else:
                leave("the ends do not agree", members)
