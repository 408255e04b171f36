"""Reports -> Trace: read every input, put all events on one axis, name the ranks, match the collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from nsysddp.execute import Place
from nsysddp.ingest.attribute import carried_operations
from nsysddp.ingest.columns import NONE
from nsysddp.ingest.given import reports_given
from nsysddp.ingest.observers import effects_of
from nsysddp.ingest.part import Notes, Part, Progress, Wanted
from nsysddp.join import clocks
from nsysddp.join.events import CLASS_CODES, Events
from nsysddp.join.host import Names, aligned, host_table, ranges_and_operations
from nsysddp.join.host import metrics as sampled_metrics
from nsysddp.join.host import network as sampled_network
from nsysddp.join.kernels import ALL_KINDS, Kernels
from nsysddp.join.match import Matched, match
from nsysddp.join.parts import in_order, read_all
from nsysddp.join.ranks import Ranks, put_on_axis
from nsysddp.join.runs import refuse_several_runs
from nsysddp.join.sharing import shared_gpus
from nsysddp.model import schema
from nsysddp.model.classify import Rules, load_rules
from nsysddp.model.errors import UsageError
from nsysddp.model.markers import DEFAULT_PHASE_PATTERNS, DEFAULT_STEP_PATTERN, WELL_KNOWN_STEP_PATTERNS
from nsysddp.model.trace import Missing, Trace
from nsysddp.model.units import NS_PER_US

NOTABLE_CORRECTION_NS = 1_000_000
"""A clock that had to be corrected by more is said: anchors of hosts in step differ by less."""

_MOST_NAMED = 8
"""Missing reports that a sentence names; the document names all."""

_CUT_SHORT = 0.1
"""A report that ends earlier than the others by more than this part of the run was cut short."""

DEFAULT_TOLERANCE_NS = 100 * NS_PER_US


def load(
    *reports: str | Path | Sequence[str | Path],
    rules: str | Path | Rules | None = None,
    step_pattern: str = DEFAULT_STEP_PATTERN,
    phase_patterns: Mapping[str, str] | None = None,
    clock_tolerance_ns: int = DEFAULT_TOLERANCE_NS,
    launches: bool = True,
    host_calls: bool = False,
    shapes: bool = False,
    metrics: bool = False,
    nsys: str | None = None,
    jobs: int | None = 1,
    scheduler: str | None = None,
    cache: str | Path | None = None,
    strict: bool = True,
    progress: Progress | None = None,
) -> Trace:
    """What happened in a run? Reads one or more nsys reports of it into one Trace.

    Args:
        reports: exports (``.sqlite``, also gzip or zstd; folders of Parquet or Arrow files, or a folder of such), or
            ``.nsys-rep`` files; several are ranks or nodes of one run.
        rules: a TOML file with kernel rules that go before the shipped ones.
        step_pattern: regular expression of step range names (full match, case-insensitive).
        phase_patterns: phase name to regular expression, added to the default phases.
        clock_tolerance_ns: residual above which wait and transfer are not told between reports.
        launches: read launch calls, which steps and phases are made from.
        host_calls: read all API calls, event records and synchronisations, which the critical path is made from.
        shapes: read grid and block of every kernel.
        metrics: read sampled GPU metrics.
        nsys: nsys executable for ``.nsys-rep`` files.
        jobs: processes that read reports; None: as many as suit them. A script that asks for more than one needs the
            usual ``if __name__ == "__main__"``.
        scheduler: address of a dask scheduler whose workers read reports, or ``local:N``.
        cache: folder in which what was read is kept and used again.
        strict: raise an error if a report cannot be read, instead of going on without it (``Trace.missing``).
        progress: called while reports, or long tables, are read.

    Returns:
        The trace, validated.

    Raises:
        ReportError: an input cannot be read; NoGpuEvents: there is nothing to analyse; RankConflict: two inputs claim
        one rank; UsageError: a pattern or rule file is malformed.
    """
    asked = asked_for(
        *reports,
        rules=rules,
        step_pattern=step_pattern,
        phase_patterns=phase_patterns,
        clock_tolerance_ns=clock_tolerance_ns,
        launches=launches,
        host_calls=host_calls,
        shapes=shapes,
        metrics=metrics,
        nsys=nsys,
        jobs=jobs,
        scheduler=scheduler,
        cache=cache,
        strict=strict,
        progress=progress,
    )
    return load_together(asked)


@dataclass(frozen=True)
class Asked:
    """What is to be loaded, and how; all but ``paths`` as of ``load``.

    Attributes:
        paths: the reports, in order.
        wanted: what is to be read of each.
        place: where they are read.
    """

    paths: Sequence[Path]
    wanted: Wanted
    place: Place
    cache: Path | None
    strict: bool
    progress: Progress | None
    clock_tolerance_ns: int


def asked_for(
    *reports: str | Path | Sequence[str | Path],
    rules: str | Path | Rules | None = None,
    step_pattern: str = DEFAULT_STEP_PATTERN,
    phase_patterns: Mapping[str, str] | None = None,
    clock_tolerance_ns: int = DEFAULT_TOLERANCE_NS,
    jobs: int | None = 1,
    scheduler: str | None = None,
    cache: str | Path | None = None,
    strict: bool = True,
    progress: Progress | None = None,
    **wanted: Any,
) -> Asked:
    """What the arguments of ``load`` ask for.

    Raises:
        UsageError: no report is given, or a pattern or rule file is malformed.
    """
    given = [
        Path(path) for group in reports for path in (group if not isinstance(group, (str, Path)) else [group])
    ]
    paths = in_order(reports_given(given))
    if not paths:
        raise UsageError("no report given")
    usual = step_pattern == DEFAULT_STEP_PATTERN
    read = Wanted(
        rules=rules if isinstance(rules, Rules) else load_rules(rules),
        steps=(step_pattern, *(WELL_KNOWN_STEP_PATTERNS if usual else ())),
        phases={**DEFAULT_PHASE_PATTERNS, **(phase_patterns or {})},
        **wanted,
    )
    read.check()
    where = Place.of(jobs, scheduler, paths)
    return Asked(paths, read, where, Path(cache) if cache else None, strict, progress, clock_tolerance_ns)


def load_together(asked: Asked) -> Trace:
    """As ``load``."""
    parts, missing = read_all(
        asked.paths,
        asked.wanted,
        asked.place,
        cache=asked.cache,
        strict=asked.strict,
        progress=asked.progress,
    )
    return Run(parts, missing, asked.wanted, Notes(), asked.clock_tolerance_ns).trace


@dataclass
class Run:
    """Everything read, or of every report what communicates, on its way to a Trace.

    Attributes:
        parts: the reports; they hand over their columns.
        missing: reports that could not be read.
        wanted: what was to be read.
        notes: where what had to be left out or inferred is kept.
        tolerance: clock residual above which wait and transfer are not told, ns.
        ranks: the ranks; once the trace is made.
        line_of_rank: the correction of the clock of each rank; once the trace is made.
    """

    parts: list[Part]
    missing: tuple[Missing, ...]
    wanted: Wanted
    notes: Notes
    tolerance: int

    @cached_property
    def trace(self) -> Trace:
        """The run."""
        put_on_axis(self.parts)
        for part in self.parts:
            for note in part.notes:
                self.notes.warn(*note)
        effects = effects_of(name for part in self.parts for name in part.about.observing)
        self.notes.warn(
            "observer_effect", len(effects), "the environment changes what is measured: " + "; ".join(effects)
        )
        self._say_missing()
        named = Names(self.parts, self.notes)
        step_pattern = named.step_pattern(self.wanted.steps[0])
        ranges, operations = ranges_and_operations(self.parts)
        self.ranks = ranks = Ranks(self.parts, ranges, self.notes, len(self.missing))
        refuse_several_runs(self.parts, operations, ranks.world_sizes)
        events = Events(self.parts, ranks, self.wanted.rules, self.notes)
        events.count_copies_of_nccl(operations)
        matched = self._match(events, operations, ranks)
        offsets = self._align(matched.kernels)
        collectives = self._matched(matched, offsets)
        self.line_of_rank = line_of_rank = {
            int(lane.rank or 0): offsets[self.parts[lane.report].clock].line for lane in ranks.lanes
        }
        events.move(line_of_rank)
        frame = events.frame()
        processes = ranks.processes()
        events.describe_unknown_names()

        def table(name: str, form: schema.Table) -> pl.DataFrame | None:
            return host_table(self.parts, name, form, offsets) if self.wanted.host_calls else None

        of_ranks = ranks.table(offsets)
        self._say_cut_short(of_ranks, collectives)
        made = Trace(
            ranks=of_ranks,
            processes=processes,
            events=frame,
            names=schema.NAMES.check(events.names),
            ranges=schema.RANGES.check(aligned(self.parts, ranges, offsets)),
            operations=schema.OPERATIONS.check(aligned(self.parts, operations, offsets)),
            collectives=collectives,
            inputs=tuple(part.hashed_input() for part in self.parts),
            process_of_rank=ranks.process_of_rank,
            clock_tolerance_ns=self.tolerance,
            rules_sha256=self.wanted.rules.sha256,
            step_pattern=step_pattern,
            phase_patterns=dict(self.wanted.phases),
            other_ranges=named.other_ranges(step_pattern, self.wanted.phases),
            launches=events.launch_frame(line_of_rank),
            shapes=events.shapes() if self.wanted.shapes else None,
            calls=table("calls", schema.CALLS),
            records=table("records", schema.RECORDS),
            syncs=table("syncs", schema.SYNCS),
            metrics=sampled_metrics(self.parts, ranks, offsets) if self.wanted.metrics else None,
            network=sampled_network(self.parts, ranks.hosts, offsets) if self.wanted.metrics else None,
            missing=self.missing,
            warnings=self.notes.warnings(),
            assumptions=tuple(self.notes.assumptions),
        )
        of_one_gpu = shared_gpus(made)
        return replace(made, warnings=(*of_one_gpu, *made.warnings)) if of_one_gpu else made

    def _say_missing(self) -> None:
        named = [
            f"{missing.name}{'' if missing.rank is None else f' (rank {missing.rank})'}: {missing.reason}"
            for missing in self.missing
        ]
        more = f"; and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        self.notes.warn(
            "report_missing",
            len(named),
            f"{len(named)} of {len(named) + len(self.parts)} reports could not be read, and nothing here is about "
            f"them: {'; '.join(named[:_MOST_NAMED])}{more}",
        )

    def _say_cut_short(self, ranks: pl.DataFrame, collectives: pl.DataFrame) -> None:
        """Name the reports of ranks that end long before the others, where collectives of the others miss them."""
        missed = collectives.filter(pl.col("match") == "unmatched:missing on a rank").height
        reach = int(ranks["last_ns"].max() or 0)  # type: ignore[arg-type]
        span = reach - int(ranks["first_ns"].min() or 0)  # type: ignore[arg-type]
        short = ranks.filter(reach - pl.col("last_ns") > _CUT_SHORT * span)
        names = short["report"].unique(maintain_order=True).to_list()
        earliest = reach - int(short["last_ns"].min() or 0)  # type: ignore[arg-type]
        self.notes.warn(
            "cut_short",
            short.height if missed else 0,
            f"reports of ranks that end before the others: {', '.join(names[:_MOST_NAMED])}"
            f"{', ...' if len(names) > _MOST_NAMED else ''} (by up to {earliest / 1e6:.1f} ms); collectives are "
            "compared on the part that all ranks share",
        )

    def _match(self, events: Events, operations: pl.DataFrame, ranks: Ranks) -> Matched:
        rows = np.flatnonzero(events.class_code == CLASS_CODES["communication"])
        code = np.array(
            [ALL_KINDS.index(kind) if kind else NONE for kind in events.names["kind"].to_list()], np.int64
        )
        rank, columns = events.rank[rows], events.columns
        kernels = Kernels.of(
            event=rows,
            rank=rank.astype(np.int64),
            clock=ranks.clock_of(rank),
            start=columns["start_ns"][rows],
            end=columns["end_ns"][rows],
            stream=columns["stream"][rows].astype(np.int64),
            kind=code[columns["name"][rows]],
        )
        launch = events.launches_of(rows)
        carried = carried_operations(
            operations, ranks.process_of(rank), launch.thread, launch.start, launch.known, rank
        )
        return match(kernels, operations, carried, ranks.process_of_rank, ranks.world_size, self.tolerance)

    def _matched(self, found: Matched, offsets: Mapping[int, clocks.Clock]) -> pl.DataFrame:
        table, counts = found.on_axis({number: clock.line for number, clock in offsets.items()})
        reasons = {how: count for how, count in sorted(counts.items()) if how.startswith("unmatched:")}
        self.notes.warn(
            "unmatched_collectives",
            sum(reasons.values()),
            "communication kernels without a counterpart on other ranks: "
            + "; ".join(f"{count} because {how.partition(':')[2]}" for how, count in reasons.items()),
        )
        self.notes.warn(
            "sequence_offset",
            found.offsets,
            "communicators in which the capture began at another collective on a rank; matched after shifting",
        )
        if counts["order"]:
            self.notes.assumptions.append(
                f"{counts['order']} communication kernels are matched over ranks by stream, order and kind, "
                "because no NCCL payload says which belong together (export with --include-blobs=true)"
            )
        return table

    def _align(self, kernels: Kernels) -> dict[int, clocks.Clock]:
        """The alignment of every clock, and what is to be said of it."""
        anchored = {part.clock: part.anchor is not None for part in self.parts}
        offsets = clocks.align(kernels, anchored)
        unusable = {
            number
            for number, clock in offsets.items()
            if clock.residual_ns is not None and clock.residual_ns > self.tolerance
        }
        if unusable:
            worst = max(offsets[number].residual_ns or 0 for number in unusable)
            self.notes.warn(
                "clock_residual",
                len(unusable),
                f"clocks of reports agree only to {worst / NS_PER_US:.0f} us (tolerance "
                f"{self.tolerance / NS_PER_US:.0f} us): wait and transfer between them are not told",
            )
        moved = {part.name: offsets[part.clock].line.offset_ns for part in self.parts}
        far = {name: offset for name, offset in moved.items() if abs(offset) > NOTABLE_CORRECTION_NS}
        worst_name = max(far, key=lambda name: abs(far[name]), default="")
        self.notes.warn(
            "clock_corrected",
            len(far),
            f"clocks of {len(far)} of {len(self.parts)} reports were corrected by more than 1 ms against their session "
            f"starts, by the ends of matched collectives; most {worst_name}, by {far.get(worst_name, 0) / 1e6:+.3f} ms",
        )
        rates = {part.name: offsets[part.clock].line.rate for part in self.parts}
        fastest = max(rates, key=lambda name: abs(rates[name]))
        self.notes.warn(
            "clock_drift",
            sum(rate != 0 for rate in rates.values()),
            "clocks drift against the first report's and were corrected in proportion to time, by the ends of matched "
            f"collectives; most {fastest}, by {rates[fastest] * 1e6:+.1f} ppm",
        )
        self.notes.warn(
            "clock_unknown",
            sum(clock.method == "none" for clock in offsets.values()),
            "reports share neither a session start nor a matched collective with the first one: their times are not "
            "comparable with its times",
        )
        return offsets
