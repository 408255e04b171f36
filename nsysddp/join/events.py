"""The GPU events of all ranks in one order: names and classes, launch calls, shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.ingest import host
from nsysddp.ingest.attribute import carried_operations
from nsysddp.ingest.columns import NONE, shared
from nsysddp.ingest.part import Notes, Part
from nsysddp.join.drift import Line
from nsysddp.join.identity import Lane
from nsysddp.join.ranks import Lanes, rows_of
from nsysddp.model import large, schema
from nsysddp.model.classify import UNCLASSIFIED, Rules, looks_collective
from nsysddp.model.trace import in_parallel

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLASS_CODES = {name: code for code, name in enumerate(schema.CLASSES)}
"""Class of an event to its code in ``Events.class_code``."""

_LAUNCH = ("start", "end", "thread", "known")
"""Columns of launch calls."""


class Events:
    """The events of a run, ordered by rank and start; times are on the anchored axis until ``move`` is called.

    Args:
        parts: the reports; the columns of their events are taken from them.
        ranks: the ranks.
        rules: kernel name to class.
        notes: where what had to be left out is counted.

    Attributes:
        names: ``schema.NAMES``.
        columns: column name to values, shape (events,).
        rank: rank of each event.
        class_code: its class, a position in ``schema.CLASSES``.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        ranks: Lanes,
        rules: Rules,
        notes: Notes,
    ) -> None:
        self.parts, self.ranks, self.rules, self.notes = parts, ranks, rules, notes
        self.names, name_of = self._names()
        self.columns, self.rank = self._gathered(name_of)
        self._calls, self._sought = self._launches()
        self.class_code = self.names["class"].to_physical().to_numpy()[self.columns["name"]]

    def _names(self) -> tuple[pl.DataFrame, list[NDArray[Any]]]:
        """Distinct names over all reports with their classes, and each report's codes in that list."""
        known: dict[tuple[str, str], int] = {}
        per_report = []
        for part in self.parts:
            codes = [known.setdefault(name, len(known)) for name in part.events.names]
            per_report.append(np.asarray(codes, dtype=np.int32))
        # A canonical order makes ties between events independent of the order of rows in the file.
        order = sorted(known)
        place = {known[name]: number for number, name in enumerate(order)}
        remap = np.asarray([place[number] for number in range(len(order))], dtype=np.int32)
        rows: list[tuple[str, str, str, str | None, str]] = []
        for group, text in order:
            if group == "graph":
                rows.append((text, "graph", "whole-graph span", None, group))
                continue
            verdict = self.rules.kernel(text) if group == "kernel" else self.rules.memory(text)
            rows.append((text, verdict.class_, verdict.rule, verdict.kind, group))
        frame = pl.DataFrame(
            rows,
            schema=schema.NAMES.dtypes,
            orient="row",
        )
        return frame, [remap[codes] if codes.size else codes for codes in per_report]

    def _gathered(self, name_of: Sequence[NDArray[Any]]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """All columns in the order (rank, start, end, stream, name, correlation, bytes), and the rank column."""
        columns: dict[str, NDArray[Any]] = {}
        for name in tuple(self.parts[0].events.columns):
            # One column after the other, and those of the parts are let go: both together would take twice the memory.
            column = self._in_rank_order([part.events.columns.pop(name) for part in self.parts])
            if name == "name":
                for lane, here in self._places:
                    if not _is_identity(name_of[lane.report]):
                        column = _writable(column)
                        np.take(name_of[lane.report], column[here], out=column[here], mode="clip")
            elif name in ("start_ns", "end_ns"):
                for lane, here in self._places:
                    if shift := self.parts[lane.report].shift:
                        column = _writable(column)
                        column[here] += shift
            columns[name] = column
        rank = large.room(self._places[-1][1].stop, np.int32)
        for lane, here in self._places:
            rank[here] = lane.rank or 0
        return columns, rank

    @cached_property
    def _places(self) -> list[tuple[Lane, slice]]:
        """The ranks in order, and where their events are."""
        ends = np.cumsum([rows.stop - rows.start for _, rows in self._sources]).tolist()
        return [
            (lane, slice(end - (rows.stop - rows.start), end))
            for (lane, rows), end in zip(self._sources, ends, strict=True)
        ]

    @cached_property
    def _sources(self) -> list[tuple[Lane, slice]]:
        """The ranks in order, and where their events are in their part."""
        found = []
        for lane in self.ranks.lanes:
            part = self.parts[lane.report]
            found.append((lane, part.events.rows_of(lane.process - part.first_process, lane.device)))
        return found

    def _in_rank_order(self, of_parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Values of the events of all parts, rank by rank; the array itself where that is how they lie."""
        if len(of_parts) == 1 and all(rows == here for (_, rows), (_, here) in self._matching):
            return of_parts[0]
        return large.joined([of_parts[lane.report][rows] for lane, rows in self._sources])

    @property
    def _matching(self) -> Iterator[tuple[tuple[Lane, slice], tuple[Lane, slice]]]:
        return zip(self._sources, self._places, strict=True)

    def _launches(self) -> tuple[host.Launches | None, NDArray[np.int64] | None]:
        """The launch calls that the parts hold, and of which events they are (None: of all)."""
        if all(part.launches is None for part in self.parts):
            return None, None
        for part in self.parts:
            if part.launches is not None:
                _shift(part.launches, part.shift)
        if all(part.sought is None for part in self.parts):
            found = [part.launches or host.Launches.unknown(part.events.ends[-1]) for part in self.parts]
            return host.Launches(
                *(self._in_rank_order([getattr(piece, name) for piece in found]) for name in _LAUNCH)
            ), None
        rows, pieces = [], []
        for (lane, source), (_, here) in self._matching:
            part = self.parts[lane.report]
            if part.launches is None or part.sought is None:
                continue
            first, last = np.searchsorted(part.sought, [source.start, source.stop])
            rows.append(part.sought[first:last] + (here.start - source.start))
            pieces.append(part.launches.of(slice(first, last)))
        return host.Launches(
            *(np.concatenate([getattr(piece, name) for piece in pieces]) for name in _LAUNCH)
        ), np.concatenate(rows)

    def launches_of(self, rows: NDArray[Any]) -> host.Launches:
        """The launches of some events, on the anchored axis; unknown where they were not sought."""
        if self._calls is None:
            return host.Launches.unknown(rows.size)
        if self._sought is None:
            return self._calls.of(rows)
        found = host.Launches.unknown(rows.size)
        if self._sought.size:
            at = np.minimum(np.searchsorted(self._sought, rows), self._sought.size - 1)
            there = self._sought[at] == rows
            for name in _LAUNCH:
                getattr(found, name)[there] = getattr(self._calls, name)[at[there]]
        return found

    def launch_frame(self, line_of_rank: Mapping[int, Line]) -> pl.DataFrame | None:
        """``schema.LAUNCHES`` of all events, on the aligned axis; None if they were not all read."""
        if self._calls is None or self._sought is not None:
            return None
        calls = self._calls
        for number, line in line_of_rank.items():
            if line != Line():
                here = slice(*rows_of(self.rank, number))
                calls.start, calls.end = _writable(calls.start), _writable(calls.end)
                calls.start[here] += line.at(calls.start[here])
                calls.end[here] += line.at(calls.end[here])
        known = None if calls.known.all() else calls.known
        columns: dict[str, NDArray[Any]] = {
            "launch_ns": calls.start,
            "launch_end_ns": calls.end,
            "thread": calls.thread,
        }
        return schema.LAUNCHES.check(
            pl.DataFrame({name: shared(values, known=known) for name, values in columns.items()})
        )

    def count_copies_of_nccl(self, operations: pl.DataFrame) -> None:
        """Peer-to-peer copies launched inside an NCCL range are copy-engine collectives, hence communication."""
        if not operations.height or not self._peer_names:
            return
        copies = np.flatnonzero(
            (self.class_code == CLASS_CODES["memory"]) & np.isin(self.columns["name"], self._peer_names)
        )
        if not copies.size:
            return
        launch = self.launches_of(copies)
        carried = carried_operations(
            operations,
            self.ranks.process_of(self.rank[copies]),
            launch.thread,
            launch.start,
            launch.known,
            self.rank[copies],
        )
        inside = carried.only >= 0
        inside[list(carried.several)] = True
        self.class_code[copies[inside]] = CLASS_CODES["communication"]
        if inside.any():
            self.notes.assumptions.append(
                "peer-to-peer copies launched inside an NCCL call are counted as communication"
            )

    def move(self, line_of_rank: Mapping[int, Line]) -> None:
        """Correct the clocks: move the times of each rank, in place."""
        for number, line in line_of_rank.items():
            if line != Line():
                here = slice(*rows_of(self.rank, number))
                for name in ("start_ns", "end_ns"):
                    self.columns[name] = _writable(self.columns[name])
                    self.columns[name][here] += line.at(self.columns[name][here])

    def frame(self) -> pl.DataFrame:
        """``schema.EVENTS``."""
        events = pl.DataFrame(
            {
                "rank": shared(self.rank),
                "class": _classes(self.class_code),
                **{
                    name: shared(self.columns[name])
                    for name in ("start_ns", "end_ns", "name", "context", "stream")
                },
                "correlation": self._correlation(),
                "in_graph": self.columns["graph_node"],
                "bytes": shared(self.columns["bytes"], null=NONE),
            }
        )
        return schema.EVENTS.check(events)

    def _correlation(self) -> pl.Series:
        """Ids of launch calls; unknown where calls were not read."""
        if "correlation" in self.columns:
            return shared(self.columns["correlation"])
        return pl.repeat(None, self.rank.size, dtype=pl.Int64, eager=True)

    def shapes(self) -> pl.DataFrame:
        """Grid and block row by row with the events."""
        made = [schema.SHAPES.empty()]
        for lane, rows in self._sources:
            frame = self.parts[lane.report].shapes
            assert frame is not None
            made.append(frame[rows])
        # Of several reports they are copied: slices would keep all that was read of each in memory.
        return schema.SHAPES.check(pl.concat(made, rechunk=len(self.parts) > 1))

    @property
    def _peer_names(self) -> list[int]:
        order = sorted({name for part in self.parts for name in part.events.names})
        return [
            number
            for number, (group, text) in enumerate(order)
            if group == "memory" and text == schema.P2P_COPY
        ]

    def describe_unknown_names(self) -> None:
        """Warn about kernels that no rule knows."""
        unknown = self.names.filter((pl.col("rule") == UNCLASSIFIED) & (pl.col("group") == "kernel"))
        suspicious = [text for text in unknown["text"].to_list() if looks_collective(text)]
        self.notes.warn(
            "unclassified_kernels",
            unknown.height,
            "kernel names that no rule knows count as compute; see table kernel_class, rule 'unclassified'",
        )
        self.notes.warn(
            "suspected_collectives",
            len(suspicious),
            "unclassified kernels are named like collectives: give --rules if they communicate",
        )


def _is_identity(codes: NDArray[Any]) -> bool:
    return bool((codes == np.arange(codes.size)).all())


def _writable(values: NDArray[Any]) -> NDArray[Any]:
    """The array, or a copy of one that lies in a file."""
    return values if values.flags.writeable else values.copy()


def _shift(calls: host.Launches, by: int) -> None:
    """Move launch calls to another axis, in place."""
    if by:
        calls.start, calls.end = _writable(calls.start), _writable(calls.end)
        for times in (calls.start, calls.end):
            np.add(times, by, out=times, where=calls.known)


def _classes(code: NDArray[np.uint8]) -> pl.Series:
    """Class of each event; a part at a time, because polars looks things up by numbers eight times as long."""
    classes = pl.Series(schema.CLASSES, dtype=schema.CLASS)
    parts = np.array_split(code, code.size // 1_000_000 + 1)
    return pl.concat(in_parallel(parts, classes.gather, events=code.size), rechunk=True)
