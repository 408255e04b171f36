"""Who took part: the ranks of all reports, their processes and GPUs, and the axis that their times are put on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.ingest.columns import TIME_LIMIT_NS
from nsysddp.ingest.part import Notes, Part
from nsysddp.join import clocks
from nsysddp.join.identity import Lane, assign_ranks, host_aliases, rank_claims
from nsysddp.model import schema
from nsysddp.model.errors import UsageError
from nsysddp.model.markers import RankMark, parse_rank_mark
from nsysddp.model.names import ranks_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_NAMED = 8
"""Ranks whose reports are named in a sentence; the table of ranks has all."""


def put_on_axis(parts: Sequence[Part]) -> None:
    """Put every report on the axis of the earliest session start, by UTC where known."""
    numbers = clocks.clocks_of([part.anchor for part in parts])
    known = [part.anchor for part in parts if part.anchor is not None]
    zero = min(known) if known else 0
    first = 0
    for part, number in zip(parts, numbers, strict=True):
        part.clock = number
        part.shift = part.anchor - zero if part.anchor is not None else 0
        if abs(part.shift) >= TIME_LIMIT_NS:
            raise UsageError(
                "the session starts of the reports lie decades apart",
                file=part.path,
                do="analyse reports of one run together",
            )
        part.first_process = first
        first += len(part.processes)


def _lanes(parts: Sequence[Part], hosts: Sequence[str]) -> list[Lane]:
    """The (process, device) pairs of all reports that ran GPU work, report by report."""
    lanes = []
    for number, part in enumerate(parts):
        host = hosts[number] if part.about.host else None
        for (process, device), (first, last) in zip(part.events.lanes, part.events.spans, strict=True):
            lanes.append(
                Lane(
                    report=number,
                    report_name=part.name,
                    process=part.first_process + process,
                    pid=part.pid(process),
                    device=device,
                    host_key=host,
                    first_ns=first + part.shift,
                    last_ns=last + part.shift,
                    is_anchored=part.anchor is not None,
                )
            )
    return lanes


def rows_of(rank: NDArray[np.integer[Any]], number: int) -> tuple[int, int]:
    """First and one-past-last row of a rank in the column of ordered ranks, which is not converted for that."""
    first, last = np.searchsorted(rank, np.array([number, number + 1], dtype=rank.dtype))
    return int(first), int(last)


class Lanes:
    """Ranks, and where their events come from.

    Args:
        lanes: the ranks in order, each a (process, device).
    """

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = lanes

    @cached_property
    def process_of_rank(self) -> dict[int, int]:
        """Rank to row of ``processes``."""
        return {int(lane.rank or 0): lane.process for lane in self.lanes}

    def lane_of(self, rank: NDArray[Any]) -> NDArray[np.int64]:
        """Position in ``lanes`` of each rank number."""
        return np.searchsorted([lane.rank or 0 for lane in self.lanes], rank)

    def process_of(self, rank: NDArray[Any]) -> NDArray[np.int64]:
        """Row of ``processes`` of each rank number."""
        return np.array([lane.process for lane in self.lanes], dtype=np.int64)[self.lane_of(rank)]


class Ranks(Lanes):
    """The ranks of a run.

    Args:
        parts: the reports, put on one axis.
        ranges: ``schema.RANGES`` of all reports, with the marks by which ranks name themselves.
        notes: where what was inferred or contradicts itself is kept.
        missing: how many reports of the run could not be read.

    Attributes:
        hosts: alias of each report's host.
        silent: report and pid of processes that launched work of which their report holds no GPU event.
    """

    def __init__(self, parts: Sequence[Part], ranges: pl.DataFrame, notes: Notes, missing: int = 0) -> None:
        self.parts = parts
        self.notes = notes
        self.missing = missing
        self.hosts = host_aliases([part.about.host for part in parts])
        self._found = _lanes(parts, self.hosts)
        super().__init__(self._ranked(ranges))
        self.silent = self._without_gpu_events()

    def clock_of(self, rank: NDArray[Any]) -> NDArray[np.int64]:
        """Clock of each rank number."""
        clock = np.array([self.parts[lane.report].clock for lane in self.lanes], dtype=np.int64)
        return clock[self.lane_of(rank)]

    @property
    def world_size(self) -> int | None:
        """Ranks of the job, as it says itself or as what is missing shows; None if nothing tells."""
        sizes = [lane.world_size for lane in self.lanes if lane.world_size is not None]
        if self.silent or self.missing:
            sizes.append(len(self.lanes) + len(self.silent) + self.missing)
        return max(sizes, default=None)

    @property
    def world_sizes(self) -> dict[int, set[int]]:
        """Report to the sizes of the job that its ranks name."""
        sizes: dict[int, set[int]] = defaultdict(set)
        for lane in self.lanes:
            if lane.world_size is not None:
                sizes[lane.report].add(lane.world_size)
        return sizes

    def _ranked(self, ranges: pl.DataFrame) -> list[Lane]:
        marks: dict[int, list[RankMark]] = defaultdict(list)
        for process, text in ranges.select("process", "text").iter_rows():
            mark = parse_rank_mark(text)
            if mark is not None and mark not in marks[process]:
                marks[process].append(mark)
        lanes_of = Counter(lane.report for lane in self._found)
        for number, part in enumerate(self.parts):
            claims = rank_claims(part.about.environment)
            others = [f"{name}={rank}" for name, rank, _ in claims[1:] if rank != claims[0][1]]
            self.notes.warn(
                "rank_sources_differ",
                len(others) if lanes_of[number] == 1 else 0,
                f"{part.name}: the environment says {claims[0][0]}={claims[0][1]} and {', '.join(others)}; "
                "the first counts"
                if others
                else "",
            )
        placed = []
        for lane in self._found:
            about = self.parts[lane.report].about
            physical = about.gpu_of.get((lane.pid, lane.device)) if lane.pid is not None else None
            if physical is not None:
                _, uuid, bus = about.gpus.get(physical, ("", None, ""))
                lane = replace(lane, gpu_key=f"{bus}#{physical:06d}", gpu_uuid=uuid)
            placed.append(lane)
        environment = {number: part.about.environment for number, part in enumerate(self.parts)}
        ranked = assign_ranks(placed, marks, environment)
        self._doubt_world_sizes(ranked)
        if any(lane.source == "inferred" for lane in ranked) and len(ranked) > 1:
            which = "; ".join(
                f"{lane.rank}: {lane.report_name}"
                for lane in ranked[:_MOST_NAMED]
                if lane.source == "inferred"
            )
            more = "; ..." if len(ranked) > _MOST_NAMED else ""
            of_reports = f" ({which}{more})" if len(self.parts) > 1 else ""
            self.notes.assumptions.append(
                f"rank numbers are inferred from host, physical GPU and pid{of_reports}; mark them with "
                "nsysddp.annotate to be sure"
            )
        return ranked

    def _without_gpu_events(self) -> list[tuple[str, int]]:
        """Report and pid of the processes that launched work of which the report holds no GPU event."""
        silent = [(part.name, pid) for part in self.parts for pid in part.about.silent]
        shown = sum(part.about.shown for part in self.parts)
        if silent:
            which = ", ".join(f"pid {pid} of {name}" for name, pid in silent)
            self.notes.warn(
                "process_without_gpu_events",
                len(silent),
                f"GPU data for {shown} of {shown + len(silent)} processes: {which} launched work of which the report "
                "holds no GPU event; nothing is said of its rank (capture again; nsys says why in its diagnostics)",
            )
        return silent

    def _doubt_world_sizes(self, ranked: Sequence[Lane]) -> None:
        """Say where the ranks and what they tell of the size of their job do not fit together."""
        worlds = sorted({lane.world_size for lane in ranked if lane.world_size is not None})
        self.notes.warn(
            "world_sizes_differ",
            len(worlds) if len(worlds) > 1 else 0,
            f"ranks name jobs of different sizes: {', '.join(map(str, worlds))}; are the reports of one run?",
        )
        beyond = [
            lane for lane in ranked if lane.world_size is not None and (lane.rank or 0) >= lane.world_size
        ]
        self.notes.warn(
            "rank_beyond_world_size",
            len(beyond),
            f"a job of {beyond[0].world_size} has no {ranks_text([lane.rank or 0 for lane in beyond])}"
            if beyond
            else "",
        )

    def processes(self) -> pl.DataFrame:
        """``schema.PROCESSES``."""
        rows = []
        for number, part in enumerate(self.parts):
            for code in range(len(part.processes)):
                rows.append(
                    {
                        "process": part.first_process + code,
                        "report": number,
                        "pid": part.pid(code),
                        "host": self.hosts[number],
                    }
                )
        return schema.PROCESSES.frame(rows)

    def table(self, offsets: Mapping[int, clocks.Clock]) -> pl.DataFrame:
        """``schema.RANK``, with spans on the aligned axis and the offset of every clock."""
        rows = []
        for lane in self.lanes:
            events = self.parts[lane.report].events
            place = events.lanes.index((lane.process - self.parts[lane.report].first_process, lane.device))
            listed = self.parts[lane.report].about.gpus
            mapping = self.parts[lane.report].about.gpu_of
            physical = mapping.get((lane.pid, lane.device)) if lane.pid is not None else None
            models = {name for name, _, _ in listed.values()}
            only_model = models.pop() if len(models) == 1 else ""
            known = listed.get(physical) if physical is not None else None
            name, uuid, _ = known or (only_model, None, "")
            clock = offsets[self.parts[lane.report].clock]
            span = np.array([lane.first_ns, lane.last_ns])
            first, last = (span + clock.line.at(span)).tolist()
            rows.append(
                {
                    "rank": lane.rank,
                    "rank_source": lane.source,
                    "report": lane.report_name,
                    "host": self.hosts[lane.report],
                    "pid": lane.pid,
                    "device": lane.device,
                    "gpu_uuid": uuid,
                    "gpu_name": name or None,
                    "world_size": lane.world_size,
                    "clock_offset_ns": clock.line.offset_ns,
                    "clock_drift_ppm": clock.line.rate * 1e6,
                    "clock_residual_ns": clock.residual_ns,
                    "clock_method": clock.method,
                    "kernels": events.kernels[place],
                    "first_ns": first,
                    "last_ns": last,
                }
            )
        return schema.RANK.frame(rows)
