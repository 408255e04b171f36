"""What the hosts of all reports did: ranges, NCCL calls, API calls and sampled metrics, on one axis."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import polars as pl

from nsysddp.ingest import host
from nsysddp.ingest.columns import Codes
from nsysddp.ingest.naming import families
from nsysddp.ingest.part import Notes, Part
from nsysddp.ingest.report import Report
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
                named = part.ranges.ranges.filter(pl.col("style") != "mark")["text"].value_counts()
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
        return tuple(dict.fromkeys(str(one) for part in self.parts for one in families(part.report)))


def ranges_and_operations(parts: Sequence[Part]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """``schema.RANGES`` and ``schema.OPERATIONS`` on the anchored axis."""
    ranges, operations = [schema.RANGES.empty()], [schema.OPERATIONS.empty()]
    for part in parts:
        if part.ranges is None:
            continue
        for target, frame, table in (
            (ranges, part.ranges.ranges, schema.RANGES),
            (operations, part.ranges.operations, schema.OPERATIONS),
        ):
            target.append(
                table.check(
                    frame.with_columns(
                        pl.col("process") + part.first_process,
                        pl.col("start_ns") + part.shift,
                        pl.col("end_ns") + part.shift,
                    )
                )
            )
    order = ["process", "thread", "start_ns", "end_ns"]
    return (
        pl.concat(ranges).sort([*order, "text"], descending=[False, False, False, True, False]),
        pl.concat(operations).sort([*order, "call"], descending=[False, False, False, True, False]),
    )


def host_table(
    parts: Sequence[Part],
    read: Callable[[Report, Codes], pl.DataFrame],
    table: schema.Table,
    offsets: Offsets,
) -> pl.DataFrame:
    """One table of the hosts, read now, on the aligned axis."""
    made = [table.empty()]
    for part in parts:
        line = offsets[part.clock].line
        frame = read(part.report, part.processes).with_columns(pl.col("process") + part.first_process)
        times = [name for name in ("start_ns", "end_ns") if name in frame.columns]
        made.append(table.check(frame.with_columns(line.move(pl.col(name) + part.shift) for name in times)))
    return pl.concat(made)


def aligned(parts: Sequence[Part], frame: pl.DataFrame, offsets: Offsets) -> pl.DataFrame:
    """Host times on the aligned axis."""
    for part in parts:
        line = offsets[part.clock].line
        if line != Line():
            last = part.first_process + len(part.processes.values)
            mine = pl.col("process").is_between(part.first_process, last - 1)
            frame = frame.with_columns(
                pl.when(mine).then(line.move(pl.col(name))).otherwise(pl.col(name)).alias(name)
                for name in ("start_ns", "end_ns")
            )
    return frame


def metrics(parts: Sequence[Part], ranks: Ranks, offsets: Offsets) -> pl.DataFrame:
    """``schema.METRICS``, of the GPUs that ranks ran on."""
    made = [schema.METRICS.empty()]
    for number, part in enumerate(parts):
        frame = host.read_metrics(part.report)
        mapping = ranks.gpus[number][0]
        rank_of = {
            mapping[lane.pid, lane.device]: lane.rank
            for lane in ranks.lanes
            if lane.report == number and lane.pid is not None and (lane.pid, lane.device) in mapping
        }
        keys = pl.DataFrame(list(rank_of.items()), schema={"gpu": pl.Int64, "rank": pl.Int32}, orient="row")
        made.append(
            schema.METRICS.check(
                frame.join(keys, on="gpu").with_columns(
                    offsets[part.clock].line.move(pl.col("time_ns") + part.shift)
                )
            )
        )
    return pl.concat(made).sort("rank", "metric", "time_ns")
