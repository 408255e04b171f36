"""A run as validated frames: what happened on every rank, on one time axis, and where it came from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import polars as pl

from nsysddp.model.errors import AnalysisError
from nsysddp.model.intervals import Intervals
from nsysddp.model.markers import DEFAULT_PHASE_PATTERNS, DEFAULT_STEP_PATTERN
from nsysddp.model.schema import CLASSES

if TYPE_CHECKING:
    from nsysddp.model.warnings import Warning


T = TypeVar("T")
S = TypeVar("S")

_WORTH_THREADS = 200_000
"""Events from which on several ranks are worked on at a time."""


_MOST_KEPT = 1 << 17
"""Intervals of a union that is kept for the next who asks."""


def in_parallel(tasks: Iterable[S], work: Callable[[S], T], *, events: int) -> list[T]:
    """The results of ``work`` for each task, in order, computed by a few threads where there are many events.

    numpy and polars let go of the interpreter lock, so ranks, which do not depend on each other, keep every core busy.
    """
    todo = list(tasks)
    workers = min(len(todo), os.cpu_count() or 1) if events >= _WORTH_THREADS else 1
    if workers < 2:
        return [work(task) for task in todo]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, todo))


def whole_groups(table: pl.DataFrame, by: Sequence[str], most: int) -> list[pl.DataFrame]:
    """The rows of a table that is ordered by groups, some whole groups at a time: about ``most`` rows, or one group.

    Args:
        table: its rows, those of a group together.
        by: integers that tell the groups apart.
        most: rows.
    """
    changes = np.zeros(max(table.height - 1, 0), dtype=bool)
    for name in by:
        values = table[name].fill_null(-1).to_numpy()
        changes |= values[1:] != values[:-1]
    heads = np.append(0, np.flatnonzero(changes) + 1)
    cuts = [0, *heads[np.flatnonzero(np.diff(heads // most)) + 1].tolist(), table.height]
    return [table[first:last] for first, last in pairwise(cuts)]


@dataclass(frozen=True)
class Input:
    """One report as it was read.

    Attributes:
        name: base name of the file.
        sha256: hash of the file's bytes as given (compressed files: of the compressed bytes).
        nsys_version: product version that wrote the export; None if the export does not say.
        schema: export schema version; None if the export does not say.
        graph_mode: ``node``, ``graph`` or None: how CUDA graphs were traced.
        tables: tables with at least one row.
        capabilities: what can be answered from it (see ``ingest.report``).
        start_epoch_ns: UTC of the session start; None if unknown.
        diagnostics: messages of severity >= 2 that nsys left, as far as they can be shown.
    """

    name: str
    sha256: str
    nsys_version: str | None
    schema: str | None
    graph_mode: str | None
    tables: frozenset[str]
    capabilities: frozenset[str]
    start_epoch_ns: int | None
    diagnostics: tuple[str, ...] = ()


@dataclass(frozen=True)
class Missing:
    """A report that was asked for and is not part of the answer.

    Attributes:
        name: base name of the file.
        rank: the rank that its name tells; None if it tells none.
        reason: why it is missing.
    """

    name: str
    rank: int | None
    reason: str


@dataclass(frozen=True)
class Trace:
    """The frames of one run; see ``schema`` for each frame's columns.

    ``launches``, ``shapes``, ``calls``, ``records``, ``syncs`` and ``metrics`` are None unless they were
    asked for when loading: *not read* is not the same as *empty*.

    Attributes:
        ranks: one row per rank (``schema.RANK``), ordered by rank.
        processes: ``schema.PROCESSES``.
        events: ``schema.EVENTS``, ordered; the slice of one rank is contiguous.
        names: ``schema.NAMES``.
        ranges: ``schema.RANGES``: steps, phases, marks and buckets by their NVTX ranges.
        operations: ``schema.OPERATIONS``: NCCL calls.
        collectives: ``schema.COLLECTIVES``: matched communication events.
        launches: ``schema.LAUNCHES``, row by row with events.
        shapes: ``schema.SHAPES``, row by row with events.
        calls: ``schema.CALLS``.
        records: ``schema.RECORDS``.
        syncs: ``schema.SYNCS``.
        metrics: ``schema.METRICS``.
        network: ``schema.NETWORK``; None where ``metrics`` is.
        inputs: the reports.
        missing: reports that could not be read; the answer is about the others.
        warnings: what reading had to leave out or infer.
        assumptions: what reading took for granted.
        process_of_rank: rank to row of ``processes``.
        clock_tolerance_ns: clock residual above which wait and transfer are not told.
        step_pattern, phase_patterns: the patterns that decided which ranges were read.
        other_ranges: names of ranges that repeat, as they are shown, where no range is named like a step or a phase.
        rules_sha256: hash of the user's kernel rules; None if only the shipped ones decide.
    """

    ranks: pl.DataFrame
    processes: pl.DataFrame
    events: pl.DataFrame
    names: pl.DataFrame
    ranges: pl.DataFrame
    operations: pl.DataFrame
    collectives: pl.DataFrame
    inputs: tuple[Input, ...]
    process_of_rank: dict[int, int]
    clock_tolerance_ns: int = 100_000
    step_pattern: str = DEFAULT_STEP_PATTERN
    phase_patterns: dict[str, str] = field(default_factory=lambda: dict(DEFAULT_PHASE_PATTERNS))
    rules_sha256: str | None = None
    other_ranges: tuple[str, ...] = ()
    launches: pl.DataFrame | None = None
    shapes: pl.DataFrame | None = None
    calls: pl.DataFrame | None = None
    records: pl.DataFrame | None = None
    syncs: pl.DataFrame | None = None
    metrics: pl.DataFrame | None = None
    network: pl.DataFrame | None = None
    missing: tuple[Missing, ...] = ()
    warnings: tuple[Warning, ...] = ()
    assumptions: tuple[str, ...] = ()
    _cache: dict[tuple[int, frozenset[str]], Intervals] = field(
        default_factory=dict, repr=False, compare=False
    )

    @cached_property
    def is_kernel(self) -> np.ndarray:
        """For each row of ``names``: does it name a kernel (not a copy, memset or graph)?"""
        return (self.names["group"] == "kernel").to_numpy()

    @cached_property
    def rank_numbers(self) -> list[int]:
        """All ranks in ascending order."""
        return self.ranks["rank"].to_list()

    def each_rank(self, work: Callable[[int], T]) -> list[T]:
        """``work`` for every rank, in order; several ranks at a time on long traces."""
        return in_parallel(self.rank_numbers, work, events=self.events.height)

    @cached_property
    def _bounds(self) -> dict[int, tuple[int, int]]:
        ranks = self.events["rank"].to_numpy()
        wanted = np.asarray(self.rank_numbers, dtype=ranks.dtype)
        first = np.searchsorted(ranks, wanted, side="left")
        last = np.searchsorted(ranks, wanted, side="right")
        return {int(rank): (int(a), int(b)) for rank, a, b in zip(wanted, first, last, strict=True)}

    def rows_of(self, rank: int) -> tuple[int, int]:
        """First and one-past-last row of the rank in ``events`` (and ``launches``, ``shapes``)."""
        if rank not in self._bounds:
            raise AnalysisError(f"there is no rank {rank} in this trace")
        return self._bounds[rank]

    def events_of(self, rank: int) -> pl.DataFrame:
        """The rank's events, a zero-copy slice in order of start."""
        first, last = self.rows_of(rank)
        return self.events.slice(first, last - first)

    @cached_property
    def first_calls(self) -> dict[int, int]:
        """Process to the start of its first API call; empty where calls were not read."""
        if self.calls is None:
            return {}
        return dict(self.calls.group_by("process").agg(pl.col("start_ns").min()).iter_rows())

    def call_names(self, rows: np.ndarray) -> pl.Series:
        """API names of some calls, by their rows in ``calls``."""
        assert self.calls is not None
        names: pl.Series = self.calls["name"].gather(rows).cast(pl.String)
        return names

    def calls_named(self, chosen: Callable[[str], bool]) -> np.ndarray:
        """For each call: is its API name one of those that are chosen? Every name is looked at once."""
        assert self.calls is not None
        names = self.calls["name"].unique().drop_nulls()
        yes = names.filter(pl.Series([chosen(name) for name in names.cast(pl.String)], dtype=pl.Boolean))
        return self.calls["name"].is_in(yes.implode()).fill_null(False).to_numpy()

    def is_class(self, rank: int, classes: Iterable[str]) -> np.ndarray:
        """For each of the rank's events: is it of one of these classes?"""
        first, last = self.rows_of(rank)
        codes = self._class_codes[first:last]
        found = np.zeros(codes.size, dtype=bool)
        for name in set(classes):
            found |= codes == CLASSES.index(name)
        return found

    @cached_property
    def _class_codes(self) -> np.ndarray:
        return self.events["class"].to_physical().to_numpy()

    def union(self, rank: int, classes: Iterable[str]) -> Intervals:
        """The union of the rank's events of the given classes, as disjoint ordered intervals.

        Zero-length events take no part (definitions). Kept for the next who asks, unless it is so long that making it
        again is cheaper than its memory.
        """
        key = (rank, frozenset(classes))
        found = self._cache.get(key)
        if found is None:
            found = self.fresh_union(*key)
            if len(found) <= _MOST_KEPT:
                self._cache[key] = found
        return found

    def fresh_union(self, rank: int, classes: Iterable[str]) -> Intervals:
        """As ``union``, for a set that is needed once, and not kept."""
        events = self.events_of(rank)
        wanted = self.is_class(rank, classes)
        start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
        if not wanted.all():
            start, end = start[wanted], end[wanted]
        return Intervals.union_of(start, end, is_sorted=True)
