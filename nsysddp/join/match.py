"""Which kernels on different ranks are the same collective?

Definitions, "Wait and transfer". With payloads: (communicator, sequence in that communicator), after finding the
offset between ranks at which kind, bytes and ends agree. Send/receive: (communicator, sender, receiver, n-th).
Without payloads: (stream role, order, kind) where all ranks show the same sequence. What cannot be matched
stays unmatched, with the reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.ingest.attribute import KIND_OF_CALL, Carried, kind_of, message_bytes
from nsysddp.join.arrivals import waited_for
from nsysddp.join.drift import Line
from nsysddp.join.groups import groups_of
from nsysddp.join.kernels import (
    ALL_KINDS,
    CODE,
    IS_PER_RANK,
    IS_POINT_TO_POINT,
    IS_ROOTED,
    IS_SYNCHRONISING,
    NONE,
    REASON,
    REASONS,
)
from nsysddp.join.members import places
from nsysddp.join.sequences import SHARE_APART, NumberedKernels, numbers_in_sequence
from nsysddp.model import schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.join.kernels import Kernels

    Column = NDArray[Any]


@dataclass
class Matched:
    """What matching found.

    Attributes:
        kernels: the kernels, with counterparts.
        offsets: communicators in which a rank's sequence began at another collective.
    """

    kernels: Kernels
    offsets: int
    _job: _Job

    def on_axis(self, line_of_clock: Mapping[int, Line]) -> tuple[pl.DataFrame, Counter[str]]:
        """The answer, once all kernels are on one axis.

        Args:
            line_of_clock: what to add to the times of each clock.

        Returns:
            ``schema.COLLECTIVES``, and value of ``match`` to how many kernels have it.
        """
        self._job.arrivals(line_of_clock)
        counted = zip(*np.unique(self.kernels.reason, return_counts=True), strict=True)
        return self._job.table(), Counter({REASONS[int(code)]: int(count) for code, count in counted})


def match(
    kernels: Kernels,
    operations: pl.DataFrame,
    carried: Carried,
    rank_process: Mapping[int, int],
    world_size: int | None,
    tolerance_ns: int,
) -> Matched:
    """Find the counterpart of every kernel.

    Args:
        kernels: all communication kernels.
        operations: ``schema.OPERATIONS``.
        carried: operations of each kernel.
        rank_process: rank to process row.
        world_size: ranks of the job as it says itself; None if it does not.
        tolerance_ns: how far ends of one collective may lie apart between ranks of one clock.
    """
    job = _Job(kernels, operations, carried, rank_process, world_size, tolerance_ns)
    job.describe()
    job.by_communicator()
    job.point_to_point()
    job.by_order()
    return Matched(kernels, job.shifted, job)


class _Job:
    """One matching, step by step."""

    def __init__(
        self,
        kernels: Kernels,
        operations: pl.DataFrame,
        carried: Carried,
        rank_process: Mapping[int, int],
        world_size: int | None,
        tolerance: int,
    ) -> None:
        self.kernels = kernels
        self.operations = operations
        self.carried = carried
        self.rank_process = rank_process
        self.ranks = sorted(rank_process)
        self.ranks_missing = world_size is not None and world_size > len(self.ranks)
        self.tolerance = tolerance
        self.shifted = 0
        self._next = 0
        self.communicators = operations["communicator"].drop_nulls().unique().sort().to_list()
        self.calls = operations["call"].to_list()
        self.sizes = operations["bytes"].to_list()
        self.is_transfer = np.zeros(kernels.event.size, dtype=bool)

    # --- what each kernel carries ----------------------------------------------------------------------------

    def describe(self) -> None:
        """Kind, communicator, sequence and payload size of each kernel from the operations it carries."""
        kernels, carried = self.kernels, self.carried
        code = {name: number for number, name in enumerate(self.communicators)}
        of_operation = np.array(
            [code.get(name, NONE) for name in self.operations["communicator"].to_list()], np.int64
        )
        kind = np.array([CODE.get(KIND_OF_CALL.get(call, ""), NONE) for call in self.calls], np.int64)
        size = self.operations["bytes"].fill_null(NONE).to_numpy()
        number = numbers_in_sequence(self.operations)
        one = np.flatnonzero(carried.only >= 0)
        rows = carried.only[one]
        point = IS_POINT_TO_POINT[kind[rows]] if one.size else np.zeros(0, bool)
        kernels.kind[one] = np.where(point, CODE["send_recv"], kind[rows])
        kernels.communicator[one] = of_operation[rows]
        kernels.sequence[one] = number[rows]
        kernels.payload[one] = size[rows]
        kernels.root[one] = self.operations["root"].fill_null(NONE).to_numpy()[rows]
        self.is_transfer[one] = point
        peers = self.operations["peer"].to_list()
        for kernel, some in carried.several.items():
            names = [self.calls[row] for row in some]
            told = kind_of(names, [peers[row] for row in some])
            kernels.kind[kernel] = CODE[told] if told else kernels.kind[kernel]
            own = {int(of_operation[row]) for row in some}
            if len(own) == 1:
                kernels.communicator[kernel] = own.pop()
                kernels.sequence[kernel] = number[some[0]]
            if all(size[row] >= 0 for row in some):
                kernels.payload[kernel] = sum(int(size[row]) for row in some)
            self.is_transfer[kernel] = {"ncclSend", "ncclRecv"} >= set(names)
        unclear = np.array(sorted(carried.shared), dtype=np.int64)
        for column in (kernels.communicator, kernels.sequence, kernels.payload):
            column[unclear] = NONE
        kernels.kind[kernels.kind < 0] = CODE["unknown"]
        self._number_by_device()

    def _number_by_device(self) -> None:
        """Where one process drives several GPUs, count each device's own operations."""
        kernels = self.kernels
        lanes = Counter(self.rank_process.values())
        several = [rank for rank, process in self.rank_process.items() if lanes[process] > 1]
        mine = np.flatnonzero(np.isin(kernels.rank, several) & (kernels.communicator >= 0))
        taken: dict[tuple[int, int], int] = defaultdict(int)
        for kernel in mine.tolist():
            key = (int(kernels.rank[kernel]), int(kernels.communicator[kernel]))
            kernels.sequence[kernel] = taken[key]
            taken[key] += len(self.carried.several.get(kernel, (0,)))

    # --- by communicator and sequence --------------------------------------------------------------------------

    def by_communicator(self) -> None:
        """Match collectives whose communicator is known."""
        kernels = self.kernels
        declared = self._declared_sizes()
        known = np.flatnonzero(kernels.communicator >= 0)
        order = known[np.argsort(kernels.communicator[known], kind="stable")]
        cuts = np.flatnonzero(np.diff(kernels.communicator[order])) + 1
        for rows in np.split(order, cuts):
            if not rows.size:
                continue
            members = np.unique(kernels.rank[rows])
            told = declared.get(int(kernels.communicator[rows[0]]))
            kernels.group_size[rows] = told or members.size
            everyone = members.size == len(self.ranks)
            collective = rows[~self.is_transfer[rows]]
            if (told or 0) > members.size or (told is None and self.ranks_missing and everyone):
                kernels.group_size[rows] = told or NONE
                self._leave(rows, "ranks of the communicator are missing")
            elif members.size < 2:
                kernels.group_size[rows] = told if told and told > 1 else NONE
                self._leave(rows, "only one rank of the communicator was captured")
            elif collective.size:
                self._by_sequence(collective, members)

    def _declared_sizes(self) -> dict[int, int]:
        """Communicator sizes that a recorded ncclCommInit told."""
        told = self.operations.filter(pl.col("ranks").is_not_null() & pl.col("communicator").is_not_null())
        code = {name: number for number, name in enumerate(self.communicators)}
        return {code[name]: int(size) for name, size in told.select("communicator", "ranks").iter_rows()}

    def _by_sequence(self, rows: Column, members: Column) -> None:
        kernels = self.kernels
        of_rank = rows[np.argsort(kernels.rank[rows], kind="stable")]
        lines = dict(
            zip(
                members.tolist(),
                np.split(of_rank, np.searchsorted(kernels.rank[of_rank], members[1:])),
                strict=True,
            )
        )
        lines = {
            rank: line[np.lexsort((kernels.start[line], kernels.sequence[line]))]
            for rank, line in lines.items()
            if line.size
        }
        if len(lines) < members.size:
            self._leave(rows, "missing on a rank")
            return
        reference = max(lines, key=lambda rank: (lines[rank].size, -rank))
        own = NumberedKernels(kernels, lines[reference])
        at = {reference: kernels.sequence[lines[reference]]}
        for rank, line in lines.items():
            if rank == reference:
                continue
            offset = own.offset_of(NumberedKernels(kernels, line), self.tolerance)
            if offset is None:
                self._leave(rows, "the sequences of the ranks do not fit together")
                return
            self.shifted += offset != 0
            at[rank] = kernels.sequence[line] + offset
        self._join(
            np.concatenate([lines[rank] for rank in lines]),
            np.concatenate([at[rank] for rank in lines]),
            len(lines),
            "sequence",
        )

    def _join(self, rows: Column, position: Column, ranks: int, how: str) -> None:
        """Give one id to the kernels at each position, if they can be one collective."""
        kernels = self.kernels
        order = np.lexsort((kernels.rank[rows], position))
        rows, position = rows[order], position[order]
        heads = np.flatnonzero(np.r_[True, position[1:] != position[:-1]])
        size = np.diff(np.r_[heads, rows.size])
        group = np.repeat(np.arange(heads.size), size)
        twice = np.r_[False, (group[1:] == group[:-1]) & (kernels.rank[rows[1:]] == kernels.rank[rows[:-1]])]
        whole = (size == ranks) & ~np.logical_or.reduceat(twice, heads)
        alike = _same(kernels.kind[rows], heads) & _same(kernels.payload[rows], heads)
        close = self._ends_agree(rows, heads)
        good = whole & alike & close
        ids = np.cumsum(good) - 1 + self._next
        self._next += int(good.sum())
        member = good[group]
        kernels.collective[rows[member]] = ids[group[member]]
        kernels.reason[rows[member]] = REASON[how]
        for wrong, why in (
            (~close, "the ends do not agree"),
            (~alike, "kind or size differs between ranks"),
            (~whole, "missing on a rank"),
        ):
            self._leave(rows[wrong[group]], why)

    def _ends_agree(self, rows: Column, heads: Column) -> Column:
        """Ends of each synchronising collective lie together on every shared clock, after all have arrived.

        Only ranks of one clock are compared: between clocks the ends are what the alignment is made from.
        """
        kernels = self.kernels
        agree = ~IS_SYNCHRONISING[kernels.kind[rows[heads]]]
        spread = np.zeros(heads.size, dtype=np.int64)
        early = np.zeros(heads.size, dtype=np.int64)
        for clock in np.unique(kernels.clock[rows]).tolist():
            mine = kernels.clock[rows] == clock
            latest = np.maximum.reduceat(np.where(mine, kernels.end[rows], np.iinfo(np.int64).min), heads)
            earliest = np.minimum.reduceat(np.where(mine, kernels.end[rows], np.iinfo(np.int64).max), heads)
            there = latest >= earliest
            spread[there] = np.maximum(spread[there], latest[there] - earliest[there])
            arrived = np.maximum.reduceat(np.where(mine, kernels.start[rows], np.iinfo(np.int64).min), heads)
            early[there] = np.maximum(early[there], arrived[there] - earliest[there])
        shortest = np.minimum.reduceat(kernels.end[rows] - kernels.start[rows], heads)
        apart = np.maximum(10 * self.tolerance, SHARE_APART * shortest)
        return agree | ((spread <= apart) & (early <= self.tolerance))

    def _leave(self, rows: Column, why: str) -> None:
        self.kernels.reason[rows] = REASON[why]

    # --- sends and receives --------------------------------------------------------------------------------------

    def point_to_point(self) -> None:
        """Join sends with receives by (communicator, sender, receiver, n-th)."""
        kernels = self.kernels
        rows = np.flatnonzero(self.is_transfer & (kernels.communicator >= 0) & (kernels.reason == 0))
        if not rows.size:
            return
        own_rank = self._own_ranks()
        peers = self.operations["peer"].to_list()
        starts = self.operations["start_ns"].to_list()
        nth: Counter[tuple[int, int, int, int]] = Counter()
        ends: dict[tuple[int, int, int, int], dict[str, int]] = defaultdict(dict)
        touched: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
        work = sorted(
            (int(kernels.rank[kernel]), starts[row], row, kernel)
            for kernel in rows.tolist()
            for row in self.carried.several.get(kernel, (int(self.carried.only[kernel]),))
        )
        for rank, _, row, kernel in work:
            communicator = int(kernels.communicator[kernel])
            own, peer = own_rank.get((rank, communicator)), peers[row]
            if own is None or peer is None:
                kernels.reason[kernel] = REASON["the payload names no peer"]
                continue
            way = "send" if self.calls[row] == "ncclSend" else "recv"
            sender, receiver = (own, peer) if way == "send" else (peer, own)
            if sender == receiver:
                continue  # a message to oneself waits for nobody
            line = (rank, communicator, sender, receiver)
            key = (communicator, sender, receiver, nth[line])
            nth[line] += 1
            ends[key][way] = kernel
            touched[kernel].append(key)
        self._join_transfers(rows, ends, touched)

    def _join_transfers(
        self,
        rows: Column,
        ends: Mapping[tuple[int, int, int, int], Mapping[str, int]],
        touched: Mapping[int, Sequence[tuple[int, int, int, int]]],
    ) -> None:
        kernels = self.kernels
        others_of: dict[int, set[int]] = {}
        for kernel in rows.tolist():
            if kernels.reason[kernel]:
                continue
            keys = touched.get(kernel, [])
            if not keys or any(len(ends[key]) < 2 for key in keys):
                kernels.reason[kernel] = REASON["the counterpart was not captured"]
                continue
            others = {other for key in keys for other in ends[key].values() if other != kernel}
            pairs = [(ends[key]["send"], ends[key]["recv"]) for key in keys]
            # A sender may leave before its receiver comes; nobody can receive before it was sent.
            if any(
                kernels.clock[sender] == kernels.clock[receiver]
                and kernels.start[sender] >= kernels.end[receiver]
                for sender, receiver in pairs
            ):
                kernels.reason[kernel] = REASON["the ends do not agree"]
                continue
            others_of[kernel] = others
        for kernel, others in others_of.items():
            if not others <= others_of.keys():
                kernels.reason[kernel] = REASON["the counterpart was not captured"]
        paired = {kernel: others for kernel, others in others_of.items() if not kernels.reason[kernel]}
        for kernel in paired:
            if kernels.collective[kernel] >= 0:
                continue
            reached = [kernel]
            while reached:
                current = reached.pop()
                if current in paired and kernels.collective[current] < 0:
                    kernels.collective[current] = self._next
                    kernels.reason[current] = REASON["sequence"]
                    kernels.peers[current] = sorted(int(kernels.event[other]) for other in paired[current])
                    reached.extend(paired[current])
            self._next += 1

    def _own_ranks(self) -> dict[tuple[int, int], int]:
        """(rank, code of the communicator) to the rank inside the communicator."""
        kernels = self.kernels
        code = {name: number for number, name in enumerate(self.communicators)}
        used = np.unique(kernels.communicator[kernels.communicator >= 0]).tolist()
        members = {
            self.communicators[number]: np.unique(kernels.rank[kernels.communicator == number]).tolist()
            for number in used
        }
        found = places(self.operations, members, self.rank_process)
        return {(rank, code[communicator]): place for (rank, communicator), place in found.items()}

    # --- by order -------------------------------------------------------------------------------------------------

    def by_order(self) -> None:
        """Without payloads: streams with the same sequence of kinds on every rank play the same role."""
        kernels = self.kernels
        rows = np.flatnonzero((kernels.communicator < 0) & (kernels.reason == 0))
        if not rows.size:
            return
        if self.ranks_missing:
            self._leave(rows, "ranks of the job are missing")
            return
        if len(self.ranks) < 2:
            self._leave(rows, "only one rank was captured")
            return
        roles: dict[tuple[bytes, int], dict[int, Column]] = defaultdict(dict)
        for rank in self.ranks:
            mine = rows[kernels.rank[rows] == rank]
            streams, first = np.unique(kernels.stream[mine], return_index=True)
            seen: Counter[bytes] = Counter()
            for stream in streams[np.argsort(first, kind="stable")]:
                line = mine[kernels.stream[mine] == stream]
                kinds = kernels.kind[line].tobytes()
                roles[kinds, seen[kinds]][rank] = line
                seen[kinds] += 1
        for by_rank in roles.values():
            self._by_role(by_rank)

    def _by_role(self, by_rank: Mapping[int, Column]) -> None:
        kernels = self.kernels
        whole = np.concatenate([by_rank[rank] for rank in sorted(by_rank)])
        lines = [by_rank[rank] for rank in sorted(by_rank)]
        kinds = kernels.kind[lines[0]]
        if len(by_rank) < len(self.ranks):
            self._leave(whole, "the ranks do not show the same sequence")
            return
        if len(by_rank) > 2 and (kinds == CODE["send_recv"]).any():
            self._leave(whole, "who sends to whom is not recorded")
            return
        groups: list[Column] | None = [np.arange(len(lines))]
        if IS_SYNCHRONISING[kinds].any():
            synchronising = np.stack(lines)[:, IS_SYNCHRONISING[kinds]]
            groups = groups_of(
                kernels.start[synchronising],
                kernels.end[synchronising],
                np.array([kernels.clock[line[0]] for line in lines]),
                self.tolerance,
            )
        elif len(lines) > 3:
            groups = None  # ends of other kinds need not lie together: nothing tells the groups
        if groups is None:
            why = "which ranks form a group is not recorded" if len(lines) > 3 else "the ends do not agree"
            self._leave(whole, why)
            return
        for group in groups:
            members = np.concatenate([lines[number] for number in group])
            kernels.group_size[members] = group.size
            self._join(members, np.tile(np.arange(kinds.size), group.size), group.size, "order")

    # --- whom it waited for ---------------------------------------------------------------------------------------

    def arrivals(self, line_of_clock: Mapping[int, Line]) -> None:
        """Whom the kernels of rooted operations, sends and receives waited for, on the common axis."""
        kernels = self.kernels
        start, end = kernels.start.copy(), kernels.end.copy()
        for clock in np.unique(kernels.clock).tolist():
            mine = np.flatnonzero(kernels.clock == clock)
            for times in (start, end):
                times[mine] += line_of_clock[clock].at(times[mine])
        self._number(start)
        rows = np.flatnonzero((kernels.collective >= 0) & IS_ROOTED[kernels.kind])
        found = waited_for(
            kernels.event[rows],
            kernels.collective[rows],
            np.asarray(ALL_KINDS)[kernels.kind[rows]],
            kernels.rank[rows],
            self._roots()[rows],
            start[rows],
            end[rows],
        )
        for row, peers, fits in zip(rows.tolist(), found["peers"].to_list(), found["fits"], strict=True):
            if not fits or peers is None:
                why = "which rank is the root is not recorded" if fits else "the ends do not agree"
                kernels.collective[row] = NONE
                kernels.reason[row] = REASON[why]
            else:
                kernels.peers[row] = peers
        began = dict(zip(kernels.event.tolist(), start.tolist(), strict=True))
        for row in np.flatnonzero((kernels.collective >= 0) & (kernels.kind == CODE["send_recv"])).tolist():
            if row in kernels.peers:
                present = [peer for peer in kernels.peers[row] if began[peer] < end[row]]
                kernels.peers[row] = present or [int(kernels.event[row])]

    def _roots(self) -> Column:
        """Rank of the job that is each kernel's root, from the root's number inside its communicator; -1 if unknown."""
        kernels = self.kernels
        roots = np.full(kernels.event.size, NONE, dtype=np.int64)
        rows = np.flatnonzero((kernels.root >= 0) & (kernels.communicator >= 0) & IS_ROOTED[kernels.kind])
        if rows.size:
            rank_of = {(communicator, own): rank for (rank, communicator), own in self._own_ranks().items()}
            roots[rows] = [
                rank_of.get((int(kernels.communicator[row]), int(kernels.root[row])), NONE) for row in rows
            ]
        return roots

    # --- the answer -----------------------------------------------------------------------------------------------

    def _number(self, start: Column) -> None:
        """Number the collectives by their first arrival, so that no name of a communicator and no clock decides."""
        kernels = self.kernels
        known = np.flatnonzero(kernels.collective >= 0)
        known = known[np.lexsort((kernels.event[known], start[known]))]
        ids, first, inverse = np.unique(kernels.collective[known], return_index=True, return_inverse=True)
        place = np.empty(ids.size, dtype=np.int64)
        place[np.argsort(first)] = np.arange(ids.size)
        kernels.collective[known] = place[inverse.ravel()]

    def table(self) -> pl.DataFrame:
        """``schema.COLLECTIVES`` of all kernels."""
        kernels = self.kernels
        names = pl.Series([*self.communicators, None], dtype=pl.String)
        peers = pl.Series(
            [kernels.peers.get(kernel) for kernel in range(kernels.event.size)]
            if kernels.peers
            else [None] * kernels.event.size,
            dtype=pl.List(pl.Int64),
        )

        def known(values: Column) -> pl.Series:
            return pl.select(
                pl.when(pl.lit(pl.Series(values >= 0))).then(pl.lit(pl.Series(values)))
            ).to_series()

        return schema.COLLECTIVES.check(
            pl.DataFrame(
                {
                    "event": kernels.event,
                    "collective_id": known(kernels.collective),
                    "kind": pl.Series(ALL_KINDS, dtype=pl.String).gather(kernels.kind),
                    "communicator": names.gather(
                        np.where(kernels.communicator >= 0, kernels.communicator, len(self.communicators))
                    ),
                    "sequence": known(kernels.sequence),
                    "group_size": known(kernels.group_size),
                    "bytes": known(self._message_bytes()),
                    "match": pl.Series(REASONS, dtype=pl.String).gather(kernels.reason),
                    "ready_peers": peers,
                }
            )
        )

    def _message_bytes(self) -> Column:
        """Message size of each kernel by the rule of its kind; -1 where it cannot be known."""
        kernels = self.kernels
        per_rank = IS_PER_RANK[kernels.kind]
        size = np.where(per_rank, kernels.payload * kernels.group_size, kernels.payload)
        size[(kernels.payload < 0) | (per_rank & (kernels.group_size < 0))] = NONE
        for kernel, rows in self.carried.several.items():
            if kernel in self.carried.shared:
                continue
            told = message_bytes(
                ALL_KINDS[int(kernels.kind[kernel])],
                [self.calls[row] for row in rows],
                [self.sizes[row] for row in rows],
                int(kernels.group_size[kernel]) if kernels.group_size[kernel] > 0 else None,
            )
            size[kernel] = NONE if told is None else told
        return size


def _same(values: Column, heads: Column) -> Column:
    """For each group: are all its values equal?"""
    alike: Column = np.minimum.reduceat(values, heads) == np.maximum.reduceat(values, heads)
    return alike
