"""What the hosts of all reports did: ranges, NCCL calls, API calls and sampled metrics, on one axis."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import polars as pl

from nsysddp.ingest.part import Notes, Part
from nsysddp.join import clocks
from nsysddp.join.drift import Line
from nsysddp.join.ranks import Ranks
from nsysddp.model import schema
from nsysddp.model.markers import ASKED_PHASES, DEFAULT_STEP_PATTERN, WELL_KNOWN_STEP_PATTERNS

Offsets = Mapping[int, clocks.Clock]
"""Clock number to its alignment."""


class Names:
    """How the ranges of a run are named.

    Args:
        parts: the reports.
        notes: where a choice is said.
    """

    def __init__(self, parts: Sequence[Part], notes: Notes) -> None:
        self.parts, self.notes = parts, notes

    @cached_property
    def _counts(self) -> dict[str, int]:
        """How many ranges have each text?"""
        counts: Counter[str] = Counter()
        for part in self.parts:
            if part.ranges is not None:
                named = part.ranges.filter(pl.col("style") != "mark")["text"].value_counts()
                counts.update(dict(named.iter_rows()))
        return counts

    def _named(self, pattern: str) -> int:
        """How many ranges does the pattern name?"""
        wanted = re.compile(pattern, re.IGNORECASE)
        return sum(count for text, count in self._counts.items() if wanted.fullmatch(text))

    def step_pattern(self, asked: str) -> str:
        """The pattern that names the steps: the one asked for, else a well-known one that names several ranges."""
        if asked != DEFAULT_STEP_PATTERN or self._named(asked):
            return asked
        found = next((pattern for pattern in WELL_KNOWN_STEP_PATTERNS if self._named(pattern) > 1), None)
        if found is None:
            return asked
        self.notes.assumptions.append(
            f"steps are the ranges named like '{found}' (--step-pattern names others)"
        )
        return found

    def other_ranges(self, step: str, phases: Mapping[str, str]) -> tuple[str, ...]:
        """Names of other ranges that repeat, where none is named like a step, or like a phase that is asked about."""
        if self._named(step) and all(self._named(phases[name]) for name in ASKED_PHASES):
            return ()
        return tuple(dict.fromkeys(family for part in self.parts for family in part.families))


def ranges_and_operations(parts: Sequence[Part]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """``schema.RANGES`` and ``schema.OPERATIONS`` on the anchored axis."""
    ranges, operations = [schema.RANGES.empty()], [schema.OPERATIONS.empty()]
    for part in parts:
        for target, frame, table in (
            (ranges, part.ranges, schema.RANGES),
            (operations, part.operations, schema.OPERATIONS),
        ):
            if frame is not None:
                target.append(table.check(placed(frame, part)))
    order = ["process", "thread", "start_ns", "end_ns"]
    return (
        pl.concat(ranges).sort([*order, "text"], descending=[False, False, False, True, False]),
        pl.concat(operations).sort([*order, "call"], descending=[False, False, False, True, False]),
    )


def placed(frame: pl.DataFrame, part: Part, line: Line | None = None) -> pl.DataFrame:
    """Rows of one report with its processes numbered among those of all, on the axis of session starts.

    Args:
        frame: the rows; where nothing moves, their columns are not copied.
        part: the report.
        line: what to correct its clock by, for the aligned axis.
    """
    moved = []
    if part.first_process:
        moved.append(pl.col("process") + part.first_process)
    if part.shift or line not in (None, Line()):
        times = [pl.col(name) + part.shift for name in ("start_ns", "end_ns") if name in frame.columns]
        moved += [line.move(time) for time in times] if line else times
    return frame.with_columns(moved)


def host_table(parts: Sequence[Part], name: str, table: schema.Table, offsets: Offsets) -> pl.DataFrame:
    """One table of the hosts on the aligned axis; the parts hand over theirs, which are long."""
    made = []
    for part in parts:
        frame = getattr(part, name)
        setattr(part, name, None)
        if frame is not None:
            made.append(table.check(placed(frame, part, offsets[part.clock].line)))
    return made[0] if len(made) == 1 else pl.concat(made or [table.empty()], rechunk=True)


def aligned(parts: Sequence[Part], frame: pl.DataFrame, offsets: Offsets) -> pl.DataFrame:
    """Host times on the aligned axis."""
    lines = [offsets[part.clock].line for part in parts for _ in part.processes]
    if all(line == Line() for line in lines):
        return frame
    process = frame["process"].to_numpy()
    offset, rate, origin = (
        np.array([getattr(line, name) for line in lines], dtype=dtype)[process]
        for name, dtype in (("offset_ns", np.int64), ("rate", np.float64), ("origin_ns", np.int64))
    )
    times = {name: frame[name].to_numpy() for name in ("start_ns", "end_ns")}
    return frame.with_columns(
        pl.Series(name, time + offset + np.rint((time - origin) * rate).astype(np.int64))
        for name, time in times.items()
    )


def metrics(parts: Sequence[Part], ranks: Ranks, offsets: Offsets) -> pl.DataFrame:
    """``schema.METRICS``, of the GPUs that ranks ran on: samples of a shared GPU are those of each of its ranks."""
    made = [schema.METRICS.empty()]
    for number, part in enumerate(parts):
        frame = part.metrics
        if frame is None:
            continue
        mapping = part.about.gpu_of
        ranks_on = [
            (mapping[lane.pid, lane.device], lane.rank)
            for lane in ranks.lanes
            if lane.report == number and lane.pid is not None and (lane.pid, lane.device) in mapping
        ]
        keys = pl.DataFrame(ranks_on, schema={"gpu": pl.Int64, "rank": pl.Int32}, orient="row").unique()
        made.append(
            schema.METRICS.check(
                frame.join(keys, on="gpu").with_columns(
                    offsets[part.clock].line.move(pl.col("time_ns") + part.shift)
                )
            )
        )
    return pl.concat(made).sort("rank", "metric", "time_ns")


def network(parts: Sequence[Part], hosts: Sequence[str], offsets: Offsets) -> pl.DataFrame:
    """``schema.NETWORK``: of each host those of its first report that holds any, since all of them see the same."""
    made = [schema.NETWORK.empty()]
    seen: set[str] = set()
    for part, host in zip(parts, hosts, strict=True):
        frame = part.network
        if frame is None or frame.is_empty() or host in seen:
            continue
        seen.add(host)
        line = offsets[part.clock].line
        moved = [line.move(pl.col(name) + part.shift) for name in ("start_ns", "end_ns")]
        made.append(schema.NETWORK.check(frame.with_columns(*moved, host=pl.lit(host))))
    return pl.concat(made).sort("host", "device", "metric", "start_ns")
