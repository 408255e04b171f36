"""The GPU events of all ranks in one order: names and classes, launch calls, shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.ingest import host
from nsysddp.ingest.attribute import carried_operations
from nsysddp.ingest.columns import NONE, shared, stable_order
from nsysddp.ingest.part import Notes, Part, Progress, counted, threadless
from nsysddp.ingest.report import RUNTIME
from nsysddp.join.drift import Line
from nsysddp.join.ranks import Ranks, rows_of
from nsysddp.model import schema
from nsysddp.model.classify import UNCLASSIFIED, Rules, looks_collective
from nsysddp.model.trace import in_parallel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.join.clocks import Clock

CLASS_CODES = {name: code for code, name in enumerate(schema.CLASSES)}
"""Class of an event to its code in ``Events.class_code``."""


class Events:
    """The events of a run, ordered by rank and start; times are on the anchored axis until ``move`` is called.

    Args:
        parts: the reports; their columns are taken from them.
        ranks: the ranks.
        rules: kernel name to class.
        notes: where what had to be left out is counted.
        progress: called while long tables are read.
        keep_rows: remember the row of each event in its report, which ``shapes`` needs.

    Attributes:
        names: ``schema.NAMES``.
        columns: column name to values, shape (events,).
        rank: rank of each event.
        class_code: its class, a position in ``schema.CLASSES``.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        ranks: Ranks,
        rules: Rules,
        notes: Notes,
        progress: Progress | None,
        *,
        keep_rows: bool,
    ) -> None:
        self.parts, self.ranks, self.rules = parts, ranks, rules
        self.notes, self.progress = notes, progress
        self._calls: host.Launches | None = None
        self._kept: dict[int, host.CallRows] = {}
        self._sought: NDArray[np.int64] | None = None
        self.names, name_of = self._names()
        self.columns, self.rank = self._ordered(name_of, keep_rows=keep_rows)
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

    def _ordered(
        self, name_of: Sequence[NDArray[Any]], *, keep_rows: bool
    ) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """All columns in the order (rank, start, end, stream, name, correlation, bytes), and the rank column.

        Each rank is gathered and sorted on its own, several at a time. With ``keep_rows`` the row of each event in
        its report is remembered too, which tells launch shapes apart.
        """
        code_of = {
            (part.first_process + process, device): code
            for part in self.parts
            for code, (process, device) in enumerate(part.events.lanes)
        }
        total = sum(part.events.columns["lane"].size for part in self.parts)

        def order_of(number: int) -> NDArray[Any]:
            """Rows of one rank in its report, in order."""
            lane = self.ranks.lanes[number]
            part, codes = self.parts[lane.report], name_of[lane.report]
            raw = part.events.columns
            rows = np.flatnonzero(raw["lane"] == code_of[lane.process, lane.device])

            def ties(places: NDArray[Any]) -> list[NDArray[Any]]:
                some = rows[places]
                return [
                    raw["end_ns"][some],
                    raw["stream"][some],
                    codes[raw["name"][some]],
                    raw["correlation"][some],
                    part.events.bytes_of(some),
                ]

            return rows[stable_order(raw["start_ns"][rows], ties)]

        rows_in = in_parallel(range(len(self.ranks.lanes)), order_of, events=total)
        ends = np.cumsum([rows.size for rows in rows_in]).tolist()
        slices = [slice(end - rows.size, end) for rows, end in zip(rows_in, ends, strict=True)]
        for part in self.parts:
            del part.events.columns["lane"]
        ordered: dict[str, NDArray[Any]] = {}
        # One column after the other, and the unordered one is let go: both orders together would take twice the memory.
        for name in tuple(self.parts[0].events.columns):
            column = np.empty(ends[-1], dtype=self.parts[0].events.columns[name].dtype)

            def gather(number: int, name: str = name, column: NDArray[Any] = column) -> None:
                report, here = self.ranks.lanes[number].report, column[slices[number]]
                np.take(self.parts[report].events.columns[name], rows_in[number], out=here, mode="clip")
                if name in ("start_ns", "end_ns"):
                    here += self.parts[report].shift
                elif name == "name":
                    np.take(name_of[report], here, out=here, mode="clip")

            in_parallel(range(len(self.ranks.lanes)), gather, events=total)
            ordered[name] = column
            for part in self.parts:
                del part.events.columns[name]
        ordered["bytes"] = np.full(ends[-1], NONE, dtype=np.int64)
        rank = np.empty(ends[-1], dtype=np.int32)
        for lane, rows, here in zip(self.ranks.lanes, rows_in, slices, strict=True):
            part = self.parts[lane.report]
            sized = np.flatnonzero(rows >= part.events.kernels)
            ordered["bytes"][here][sized] = part.events.bytes_of(rows[sized])
            rank[here] = lane.rank or 0
        self._rows = np.concatenate(rows_in) if keep_rows else np.empty(0, dtype=np.int64)
        return ordered, rank

    def read_launches(self, sought: NDArray[Any] | None, *, keep_calls: bool = False) -> None:
        """Read the launch calls of all events, or of those that are sought, on the anchored axis.

        Args:
            sought: rows of the events whose launches are needed; None: all of them.
            keep_calls: remember all other calls too, for ``call_frame``; the table is long and read once.
        """
        columns = self.columns["correlation"] if sought is None else self.columns["correlation"][sought]
        rank_of = self.rank if sought is None else self.rank[sought]
        self._calls = host.Launches.unknown(columns.size)
        self._sought = sought
        for number, part in enumerate(self.parts):
            if RUNTIME not in part.report.tables:
                continue
            lanes = []
            for lane in self.ranks.lanes:
                if lane.report == number:
                    first, last = rows_of(rank_of, lane.rank or 0)
                    lanes.append((lane.process - part.first_process, first, columns[first:last]))
            table = host.LaunchTable(lanes, self._calls, len(part.processes.values))
            kept = host.CallRows(part.report) if keep_calls and sought is None else None
            if kept is not None:
                self._kept[number] = kept
            dropped, nobodys = host.read_launches(
                part.report,
                part.processes,
                table,
                counted(self.progress, f"{part.report.name}: launch calls"),
                only=None if sought is None else np.concatenate([correlation for _, _, correlation in lanes]),
                calls=kept,
            )
            table.finish(part.shift)
            self.notes.warn("impossible_call_times", dropped, "API calls with impossible times were left out")
            self.notes.warn("calls_without_thread", nobodys, threadless("API calls", RUNTIME))

    def call_frame(self, offsets: Mapping[int, Clock]) -> pl.DataFrame:
        """``schema.CALLS``, on the aligned axis; calls that were not kept with the launches are read now."""
        made = []
        for number, part in enumerate(self.parts):
            calls = self._kept.pop(number, None)
            if calls is None:
                calls = host.read_calls(part.report, part.processes)
            frame, line = calls.frame(part.first_process, part.shift), offsets[part.clock].line
            if line != Line():
                frame = frame.with_columns(line.move(pl.col(name)) for name in ("start_ns", "end_ns"))
            made.append(frame)
        return made[0] if len(made) == 1 else pl.concat(made, rechunk=True)

    def launches_of(self, rows: NDArray[Any]) -> host.Launches:
        """The launches of some events, on the anchored axis; unknown where they were not sought."""
        if self._calls is None:
            return host.Launches.unknown(rows.size)
        return self._calls.of(rows if self._sought is None else np.searchsorted(self._sought, rows))

    def launch_frame(self, line_of_rank: Mapping[int, Line]) -> pl.DataFrame | None:
        """``schema.LAUNCHES`` of all events, on the aligned axis; None if they were not all read."""
        if self._calls is None or self._sought is not None:
            return None
        calls = self._calls
        for number, line in line_of_rank.items():
            here = slice(*rows_of(self.rank, number))
            if line != Line():
                calls.start[here] += line.at(calls.start[here])
                calls.end[here] += line.at(calls.end[here])
        frame = pl.DataFrame(
            {
                "launch_ns": shared(calls.start),
                "launch_end_ns": shared(calls.end),
                "thread": shared(calls.thread),
            }
        )
        if not calls.known.all():
            frame = frame.with_columns(pl.when(pl.Series(calls.known)).then(pl.all()))
        return schema.LAUNCHES.check(frame)

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

    def may_communicate(self) -> NDArray[np.int64]:
        """Rows of the events whose launches tell which NCCL operation they carry."""
        named = self.names["class"].eq("communication") | self.names["text"].eq(schema.P2P_COPY)
        return np.flatnonzero(named.to_numpy()[self.columns["name"]])

    def move(self, line_of_rank: Mapping[int, Line]) -> None:
        """Correct the clocks: move the times of each rank, in place."""
        for number, line in line_of_rank.items():
            if line != Line():
                here = slice(*rows_of(self.rank, number))
                for name in ("start_ns", "end_ns"):
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
                "correlation": shared(self.columns["correlation"]),
                "in_graph": self.columns["graph_node"],
                "bytes": shared(self.columns["bytes"], null=NONE),
            }
        )
        return schema.EVENTS.check(events)

    def shapes(self) -> pl.DataFrame:
        """Grid and block row by row with the events."""
        from nsysddp.ingest.shapes import read_shapes

        frames = [
            read_shapes(part.report, part.events.kernels, part.events.kernels + part.events.bytes.size)
            for part in self.parts
        ]
        pieces = []
        for lane in self.ranks.lanes:
            first, last = rows_of(self.rank, lane.rank or 0)
            pieces.append(frames[lane.report][self._rows[first:last]])
        return schema.SHAPES.check(pl.concat(pieces))

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


def _classes(code: NDArray[np.uint8]) -> pl.Series:
    """Class of each event; a part at a time, because polars looks things up by numbers eight times as long."""
    classes = pl.Series(schema.CLASSES, dtype=schema.CLASS)
    parts = np.array_split(code, code.size // 1_000_000 + 1)
    return pl.concat(in_parallel(parts, classes.gather, events=code.size), rechunk=True)
