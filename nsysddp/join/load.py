"""Reports -> Trace: read every input, put all events on one axis, name the ranks, match the collectives."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.ingest import gpu, host, sql
from nsysddp.ingest.attribute import carried_operations
from nsysddp.ingest.columns import NONE, TIME_LIMIT_NS, Codes, shared, stable_order
from nsysddp.ingest.inspect import capabilities, exported, shifted_times
from nsysddp.ingest.naming import families
from nsysddp.ingest.report import (
    GRAPH_TRACE,
    KERNEL,
    KNOWN_MAJOR,
    NVTX,
    RUNTIME,
    Report,
    no_gpu_events_advice,
    open_report,
)
from nsysddp.join import clocks
from nsysddp.join.identity import Lane, assign_ranks, host_aliases, rank_claims
from nsysddp.join.match import ALL_KINDS, Kernels, Matched, match
from nsysddp.join.sharing import shared_gpus
from nsysddp.model import schema
from nsysddp.model.classify import UNCLASSIFIED, Rules, load_rules, looks_collective
from nsysddp.model.errors import NoGpuEvents, RankConflict, UnsupportedSchema, UsageError
from nsysddp.model.markers import (
    ASKED_PHASES,
    DEFAULT_PHASE_PATTERNS,
    DEFAULT_STEP_PATTERN,
    WELL_KNOWN_STEP_PATTERNS,
    RankMark,
    parse_rank_mark,
)
from nsysddp.model.names import ranks_text
from nsysddp.model.trace import Input, Trace, in_parallel
from nsysddp.model.units import NS_PER_US
from nsysddp.model.warnings import Warning

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOTABLE_CORRECTION_NS = 1_000_000
"""A clock that had to be corrected by more is said: anchors of hosts in step differ by less."""

DEFAULT_TOLERANCE_NS = 100 * NS_PER_US
_MOST_NAMED = 8
"""Ranks whose reports are named in a sentence; the table of ranks has all."""

_CLASS_CODES = {name: code for code, name in enumerate(schema.CLASSES)}


@dataclass
class _Part:
    """What was read from one report, before ranks and clocks are known."""

    report: Report
    events: gpu.GpuEvents
    processes: Codes
    anchor: int | None
    ranges: host.HostRanges | None = None
    first_process: int = 0
    clock: int = 0
    shift: int = 0


@dataclass
class _Notes:
    """Warnings and assumptions gathered on the way, counted by code."""

    counts: Counter[str] = field(default_factory=Counter)
    messages: dict[str, str] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)

    def warn(self, code: str, count: int, message: str) -> None:
        if count:
            self.counts[code] += count
            self.messages[code] = message

    def warnings(self) -> tuple[Warning, ...]:
        return tuple(Warning(code, self.counts[code], self.messages[code]) for code in sorted(self.counts))


Progress = Callable[[str, int, int | None], None]
"""Called with what is being read, rows read since the last call, and the total rows if known."""


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
    progress: Progress | None = None,
) -> Trace:
    """What happened in a run? Reads one or more nsys reports of it into one Trace.

    Args:
        reports: exports (``.sqlite``, also gzip or zstd) or ``.nsys-rep`` files; several are ranks or nodes of one run.
        rules: a TOML file with kernel rules that go before the shipped ones.
        step_pattern: regular expression of step range names (full match, case-insensitive).
        phase_patterns: phase name to regular expression, added to the default phases.
        clock_tolerance_ns: residual above which wait and transfer are not told between reports.
        launches: read launch calls, which steps and phases are made from.
        host_calls: read all API calls, event records and synchronisations, which the critical path is made from.
        shapes: read grid and block of every kernel.
        metrics: read sampled GPU metrics.
        nsys: nsys executable for ``.nsys-rep`` files.
        progress: called while long tables are read.

    Returns:
        The trace, validated.

    Raises:
        ReportError: an input cannot be read; NoGpuEvents: there is nothing to analyse; RankConflict: two inputs claim
        one rank; UsageError: a pattern or rule file is malformed.
    """
    paths = [
        Path(path) for group in reports for path in (group if not isinstance(group, (str, Path)) else [group])
    ]
    if not paths:
        raise UsageError("no report given")
    table = rules if isinstance(rules, Rules) else load_rules(rules)
    usual = step_pattern == DEFAULT_STEP_PATTERN
    patterns = _patterns((step_pattern, *(WELL_KNOWN_STEP_PATTERNS if usual else ())), phase_patterns)
    notes = _Notes()
    with ExitStack() as stack:
        opened = [stack.enter_context(open_report(path, nsys=nsys)) for path in paths]
        for report in opened:
            report.start_hashing()
        _refuse_duplicates(opened)
        parts = [_read(report, table, patterns, notes, progress) for report in opened]
        hosts = host_aliases([_host_key(report) for report in opened])
        _anchor(parts)
        run = _Run(parts, _lanes(parts, hosts), hosts, table, notes, clock_tolerance_ns, progress)
        return run.trace(
            step_pattern=run.step_pattern(step_pattern),
            phases={**DEFAULT_PHASE_PATTERNS, **(phase_patterns or {})},
            launches=launches,
            host_calls=host_calls,
            shapes=shapes,
            metrics=metrics,
        )


def _patterns(steps: Sequence[str], phases: Mapping[str, str] | None) -> list[re.Pattern[str]]:
    made = []
    for text in (*steps, *{**DEFAULT_PHASE_PATTERNS, **(phases or {})}.values()):
        try:
            made.append(re.compile(text, re.IGNORECASE))
        except re.error as error:
            raise UsageError(f"bad regular expression {text!r}: {error}") from error
    return made


def _refuse_duplicates(opened: Sequence[Report]) -> None:
    seen: dict[Path, Report] = {}
    for report in opened:
        other = seen.setdefault(report.path.resolve(), report)
        if other is not report:
            raise RankConflict(f"{report.name} is given twice", do="name each report once")


def _host_key(report: Report) -> str | None:
    """What identifies the host of a report: its name, else its set of GPU UUIDs."""
    named = sql.rows(report, "host_identity")
    if named:
        return str(named[0]["value"])
    uuids = sorted(str(row["uuid"]) for row in sql.rows(report, "gpus") if row["uuid"])
    return "|".join(uuids) or None


def _read(
    report: Report,
    rules: Rules,
    patterns: Sequence[re.Pattern[str]],
    notes: _Notes,
    progress: Progress | None,
) -> _Part:
    for name in sorted(report.tables.keys() - {KERNEL, report.aliases.get(KERNEL)}):
        if re.match(r"(?i)CUPTI_ACTIVITY_KIND_\w*KERNEL", name):
            raise UnsupportedSchema(
                f"holds kernels in table {name}, which this version does not know",
                file=report.path,
                do="export the report with an nsys that writes " + KERNEL,
            )
    if KERNEL not in report.tables and GRAPH_TRACE not in report.tables:
        raise NoGpuEvents(
            "the report holds no GPU kernels (the kernel table is missing or empty)",
            file=report.path,
            do=no_gpu_events_advice(),
        )
    for plain, actual in report.aliases.items():
        notes.warn("renamed_table", 1, f"{report.name}: table {actual} is read as {plain}")

    processes = Codes()
    events = gpu.read(report, processes, rules, _told(progress, f"{report.name}: GPU events"))
    notes.warn(
        "impossible_times",
        events.dropped,
        "GPU events that end before they start, or lie beyond any real time, were left out",
    )
    notes.warn(
        "unnamed_kernels",
        events.unnamed,
        "kernel names that the export does not hold: such kernels count as compute, though they may communicate",
    )
    if not events.columns["start_ns"].size:
        raise NoGpuEvents(
            "the report holds no usable GPU events", file=report.path, do=no_gpu_events_advice()
        )
    ranges = (
        host.read_nvtx(
            report,
            processes,
            patterns,
            int(events.columns["end_ns"].max()),
            _told(progress, f"{report.name}: NVTX ranges"),
        )
        if NVTX in report.tables
        else None
    )
    if ranges is not None:
        notes.warn(
            "impossible_range_times", ranges.dropped, "NVTX ranges with impossible times were left out"
        )
        notes.warn("ranges_without_thread", ranges.threadless, _threadless("NVTX ranges", NVTX))
        notes.warn(
            "payloads_skipped",
            ranges.skipped_payloads,
            "NVTX payloads whose schema is missing, ambiguous or malformed, or numbers impossible, were not decoded",
        )
    started = sql.rows(report, "session")
    anchor = started[0]["utc_epoch_ns"] if started and not shifted_times(report) else None
    return _Part(report, events, processes, anchor if isinstance(anchor, int) else None, ranges)


def _threadless(what: str, table: str) -> str:
    return f"{what} whose thread is not told ({table}.globalTid), so that they are of no known process, were left out"


def _told(progress: Progress | None, what: str) -> Callable[[int], None] | None:
    """Progress of one table."""
    return (lambda rows: progress(what, rows, None)) if progress else None


def _rows_of(rank: NDArray[np.integer[Any]], number: int) -> tuple[int, int]:
    """First and one-past-last row of a rank in the column of ordered ranks, which is not converted for that."""
    first, last = np.searchsorted(rank, np.array([number, number + 1], dtype=rank.dtype))
    return int(first), int(last)


def _anchor(parts: Sequence[_Part]) -> None:
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
                file=part.report.path,
                do="analyse reports of one run together",
            )
        part.first_process = first
        first += len(part.processes.values)


def _lanes(parts: Sequence[_Part], hosts: Sequence[str]) -> list[Lane]:
    """The (process, device) pairs of all reports that ran GPU work, report by report."""
    lanes = []
    for number, part in enumerate(parts):
        host = hosts[number] if _host_key(part.report) else None
        for (process, device), (first, last) in zip(part.events.lanes, part.events.spans, strict=True):
            global_pid = part.processes.values[process]
            lanes.append(
                Lane(
                    report=number,
                    report_name=part.report.name,
                    process=part.first_process + process,
                    pid=_pid(global_pid),
                    device=device,
                    host_key=host,
                    first_ns=first + part.shift,
                    last_ns=last + part.shift,
                    is_anchored=part.anchor is not None,
                )
            )
    return lanes


def _pid(global_pid: int) -> int | None:
    """Process id on its host; None in reduced exports, whose events name no process."""
    return (global_pid >> 24) & 0xFFFFFF if global_pid != NONE else None


def _classes(code: NDArray[np.uint8]) -> pl.Series:
    """Class of each event; a part at a time, because polars looks things up by numbers eight times as long."""
    classes = pl.Series(schema.CLASSES, dtype=schema.CLASS)
    parts = np.array_split(code, code.size // 1_000_000 + 1)
    return pl.concat(in_parallel(parts, classes.gather, events=code.size), rechunk=True)


def _lane_of(ranked: Sequence[Lane], rank: NDArray[Any]) -> NDArray[np.int64]:
    """Position in ``ranked`` of each rank number."""
    return np.searchsorted([lane.rank or 0 for lane in ranked], rank)


def _process_of(ranked: Sequence[Lane], rank: NDArray[Any]) -> NDArray[np.int64]:
    """Row of ``processes`` of each rank number."""
    return np.array([lane.process for lane in ranked], dtype=np.int64)[_lane_of(ranked, rank)]


@dataclass
class _Run:
    """Everything read, on its way to a Trace."""

    parts: list[_Part]
    lanes: list[Lane]
    hosts: list[str]
    rules: Rules
    notes: _Notes
    tolerance: int
    progress: Progress | None
    calls: host.Launches | None = None
    sought: NDArray[np.int64] | None = None
    silent: Sequence[tuple[str, int]] = ()

    def trace(
        self,
        *,
        step_pattern: str,
        phases: Mapping[str, str],
        launches: bool,
        host_calls: bool,
        shapes: bool,
        metrics: bool,
    ) -> Trace:
        ranges, operations = self._host_frames()
        gpus = [self._gpus(part) for part in self.parts]
        ranked = self._ranked(ranges, gpus)
        self.silent = self._without_gpu_events(gpus)
        names, name_of = self._names()
        ordered, rank = self._ordered(ranked, name_of, keep_rows=shapes)
        rank_process = {int(lane.rank or 0): lane.process for lane in ranked}
        if any(RUNTIME in part.report.tables for part in self.parts):
            if launches:
                self._read_launches(ordered, rank, ranked, None)
            elif operations.height:  # NCCL's calls are all that launches are needed for
                may_communicate = names["class"].eq("communication") | names["text"].eq(schema.P2P_COPY)
                sought = np.flatnonzero(may_communicate.to_numpy()[ordered["name"]])
                self._read_launches(ordered, rank, ranked, sought)
        class_code = names["class"].to_physical().to_numpy()[ordered["name"]]
        self._copies_of_nccl(ordered, class_code, operations, rank, ranked)
        matched = self._match(ordered, rank, class_code, names, operations, rank_process, ranked)
        offsets = self._align(matched.kernels, ordered, rank, ranked)
        collectives = self._matched(matched, offsets)
        offset_of_rank = {
            int(lane.rank or 0): offsets[self.parts[lane.report].clock].offset_ns for lane in ranked
        }
        ranges = self._shifted(ranges, offsets)
        operations = self._shifted(operations, offsets)
        events = pl.DataFrame(
            {
                "rank": shared(rank),
                "class": _classes(class_code),
                **{
                    name: shared(ordered[name])
                    for name in ("start_ns", "end_ns", "name", "context", "stream")
                },
                "correlation": shared(ordered["correlation"]),
                "in_graph": ordered["graph_node"],
                "bytes": shared(ordered["bytes"], null=NONE),
            }
        )
        processes = self._processes()
        self._describe_missing(names)
        made = Trace(
            ranks=self._rank_table(ranked, events, names, gpus, offsets),
            processes=processes,
            events=schema.EVENTS.check(events),
            names=schema.NAMES.check(names),
            ranges=schema.RANGES.check(ranges),
            operations=schema.OPERATIONS.check(operations),
            collectives=collectives,
            inputs=tuple(self._input(part) for part in self.parts),
            process_of_rank=rank_process,
            clock_tolerance_ns=self.tolerance,
            rules_sha256=self.rules.sha256,
            step_pattern=step_pattern,
            phase_patterns=dict(phases),
            other_ranges=self._other_ranges(step_pattern, phases),
            launches=self._launch_frame(rank, offset_of_rank),
            shapes=self._shapes(ranked, rank) if shapes else None,
            calls=self._host_table(host.read_calls, schema.CALLS, offsets) if host_calls else None,
            records=self._host_table(host.read_records, schema.RECORDS, offsets) if host_calls else None,
            syncs=self._host_table(host.read_syncs, schema.SYNCS, offsets) if host_calls else None,
            metrics=self._metrics(ranked, offsets, gpus) if metrics else None,
            warnings=self.notes.warnings(),
            assumptions=tuple(self.notes.assumptions),
        )
        of_one_gpu = shared_gpus(made)
        return replace(made, warnings=(*of_one_gpu, *made.warnings)) if of_one_gpu else made

    @cached_property
    def _range_counts(self) -> dict[str, int]:
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
        return sum(count for text, count in self._range_counts.items() if wanted.fullmatch(text))

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

    def _other_ranges(self, step: str, phases: Mapping[str, str]) -> tuple[str, ...]:
        """Names of other ranges that repeat, where none is named like a step, or like a phase that is asked about."""
        if self._named(step) and all(self._named(phases[name]) for name in ASKED_PHASES):
            return ()
        return tuple(dict.fromkeys(str(one) for part in self.parts for one in families(part.report)))

    # --- who ------------------------------------------------------------------------------------------------

    def _gpus(self, part: _Part) -> tuple[dict[tuple[int, int], int], dict[int, tuple[str, str | None, str]]]:
        """(pid, CUDA ordinal) to GPU, and GPU to (name, uuid, bus)."""
        report = part.report
        listed = {
            int(row["gpu"]): (
                str(row["name"] or ""),
                str(row["uuid"]) if row["uuid"] else None,
                str(row["bus"] or ""),
            )
            for row in sql.rows(report, "gpus")
            if row["gpu"] is not None
        }
        for row in sql.rows(report, "cuda_gpus"):
            if row["gpu"] is None:
                continue
            listed.setdefault(int(row["gpu"]), (str(row["name"] or ""), None, ""))
        mapping = {
            (int(row["pid"]), int(row["device"])): int(row["gpu"])
            for row in sql.rows(report, "cuda_devices")
            if None not in (row["pid"], row["device"], row["gpu"])
        }
        return mapping, listed

    def _ranked(self, ranges: pl.DataFrame, gpus: Sequence[Any]) -> list[Lane]:
        marks: dict[int, list[RankMark]] = defaultdict(list)
        for process, text in ranges.select("process", "text").iter_rows():
            mark = parse_rank_mark(text)
            if mark is not None and mark not in marks[process]:
                marks[process].append(mark)
        environment: dict[int, dict[str, int]] = {}
        for number, part in enumerate(self.parts):
            found: dict[str, set[int]] = defaultdict(set)
            for row in sql.rows(part.report, "rank_environment"):
                name, _, value = str(row["value"]).partition("=")
                value = value.strip().strip("\"'")
                if value.isascii() and value.isdecimal() and len(value) < 10:
                    found[name].add(int(value))
            # Environments that differ are of several processes, and nothing says which is whose.
            environment[number] = {name: values.pop() for name, values in found.items() if len(values) == 1}
            claims = rank_claims(environment[number])
            others = [f"{name}={rank}" for name, rank, _ in claims[1:] if rank != claims[0][1]]
            alone = sum(lane.report == number for lane in self.lanes) == 1
            self.notes.warn(
                "rank_sources_differ",
                len(others) if alone else 0,
                f"{part.report.name}: the environment says {claims[0][0]}={claims[0][1]} and {', '.join(others)}; "
                "the first counts"
                if others
                else "",
            )
        placed = []
        for lane in self.lanes:
            mapping, listed = gpus[lane.report]
            physical = mapping.get((lane.pid, lane.device)) if lane.pid is not None else None
            if physical is not None:
                _, uuid, bus = listed.get(physical, ("", None, ""))
                lane = replace(lane, gpu_key=f"{bus}#{physical:06d}", gpu_uuid=uuid)
            placed.append(lane)
        ranked = assign_ranks(placed, marks, environment)
        self._doubt_world_sizes(ranked)
        if any(lane.source == "inferred" for lane in ranked) and len(ranked) > 1:
            which = "; ".join(
                f"{lane.rank}: {lane.report_name}"
                for lane in ranked[:_MOST_NAMED]
                if lane.source == "inferred"
            )
            more = "; ..." if len(ranked) > _MOST_NAMED else ""
            listed = f" ({which}{more})" if len(self.parts) > 1 else ""
            self.notes.assumptions.append(
                f"rank numbers are inferred from host, physical GPU and pid{listed}; mark them with nsysddp.annotate "
                "to be sure"
            )
        return ranked

    def _without_gpu_events(self, gpus: Sequence[Any]) -> list[tuple[str, int]]:
        """Report and pid of the processes that launched work of which the report holds no GPU event."""
        silent = []
        shown = 0
        for part, (mapping, _) in zip(self.parts, gpus, strict=True):
            pids = {_pid(part.processes.values[process]) for process, _ in part.events.lanes}
            shown += len(pids)
            others = {pid for pid, _ in mapping} | {_pid(value) for value in part.processes.values}
            if RUNTIME in part.report.tables and None not in pids:
                silent += [
                    (part.report.name, pid)
                    for pid in sorted(pid for pid in others - pids if pid is not None)
                    if sql.rows(part.report, "launching_process", pid=pid)
                ]
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

    def _processes(self) -> pl.DataFrame:
        rows = []
        for number, part in enumerate(self.parts):
            for code, global_pid in enumerate(part.processes.values):
                rows.append(
                    {
                        "process": part.first_process + code,
                        "report": number,
                        "pid": _pid(global_pid),
                        "host": self.hosts[number],
                    }
                )
        return schema.PROCESSES.frame(rows)

    def _rank_table(
        self,
        ranked: Sequence[Lane],
        events: pl.DataFrame,
        names: pl.DataFrame,
        gpus: Sequence[Any],
        offsets: Mapping[int, clocks.Clock],
    ) -> pl.DataFrame:
        is_kernel = names["group"].eq("kernel").to_numpy()
        rank, code = events["rank"].to_numpy(), events["name"].to_numpy()
        start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
        rows = []
        for lane in ranked:
            first, last = _rows_of(rank, lane.rank or 0)
            mapping, listed = gpus[lane.report]
            physical = mapping.get((lane.pid, lane.device)) if lane.pid is not None else None
            models = {name for name, _, _ in listed.values()}
            name, uuid, _ = listed.get(physical, (models.pop() if len(models) == 1 else None, None, ""))
            clock = offsets[self.parts[lane.report].clock]
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
                    "clock_offset_ns": clock.offset_ns,
                    "clock_residual_ns": clock.residual_ns,
                    "clock_method": clock.method,
                    "kernels": int(np.count_nonzero(is_kernel[code[first:last]])),
                    "first_ns": int(start[first]),
                    "last_ns": int(end[first:last].max()),
                }
            )
        return schema.RANK.frame(rows)

    # --- what -----------------------------------------------------------------------------------------------

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
        self, ranked: Sequence[Lane], name_of: Sequence[NDArray[Any]], *, keep_rows: bool
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
            lane = ranked[number]
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

        rows_of = in_parallel(range(len(ranked)), order_of, events=total)
        ends = np.cumsum([rows.size for rows in rows_of]).tolist()
        slices = [slice(end - rows.size, end) for rows, end in zip(rows_of, ends, strict=True)]
        for part in self.parts:
            del part.events.columns["lane"]
        ordered: dict[str, NDArray[Any]] = {}
        # One column after the other, and the unordered one is let go: both orders together would take twice the memory.
        for name in tuple(self.parts[0].events.columns):
            column = np.empty(ends[-1], dtype=self.parts[0].events.columns[name].dtype)

            def gather(number: int, name: str = name, column: NDArray[Any] = column) -> None:
                report, here = ranked[number].report, column[slices[number]]
                np.take(self.parts[report].events.columns[name], rows_of[number], out=here, mode="clip")
                if name in ("start_ns", "end_ns"):
                    here += self.parts[report].shift
                elif name == "name":
                    np.take(name_of[report], here, out=here, mode="clip")

            in_parallel(range(len(ranked)), gather, events=total)
            ordered[name] = column
            for part in self.parts:
                del part.events.columns[name]
        ordered["bytes"] = np.full(ends[-1], NONE, dtype=np.int64)
        rank = np.empty(ends[-1], dtype=np.int32)
        for lane, rows, here in zip(ranked, rows_of, slices, strict=True):
            part = self.parts[lane.report]
            sized = np.flatnonzero(rows >= part.events.kernels)
            ordered["bytes"][here][sized] = part.events.bytes_of(rows[sized])
            rank[here] = lane.rank or 0
        self.rows = np.concatenate(rows_of) if keep_rows else np.empty(0, dtype=np.int64)
        return ordered, rank

    def _read_launches(
        self,
        ordered: Mapping[str, NDArray[Any]],
        rank: NDArray[Any],
        ranked: Sequence[Lane],
        sought: NDArray[Any] | None,
    ) -> None:
        """Read the launch calls of all events, or of those that are sought, on the anchored axis.

        Args:
            ordered: columns of all events.
            rank: rank of each.
            ranked: the lanes, by rank.
            sought: rows of the events whose launches are needed; None: all of them.
        """
        columns = ordered["correlation"] if sought is None else ordered["correlation"][sought]
        rank_of = rank if sought is None else rank[sought]
        self.calls = host.Launches.unknown(columns.size)
        self.sought = sought
        for number, part in enumerate(self.parts):
            if RUNTIME not in part.report.tables:
                continue
            lanes = []
            for lane in ranked:
                if lane.report == number:
                    first, last = _rows_of(rank_of, lane.rank or 0)
                    lanes.append((lane.process - part.first_process, first, columns[first:last]))
            table = host.LaunchTable(lanes, self.calls, len(part.processes.values))
            dropped, threadless = host.read_launches(
                part.report,
                part.processes,
                table,
                _told(self.progress, f"{part.report.name}: launch calls"),
                only=None if sought is None else np.concatenate([correlation for _, _, correlation in lanes]),
            )
            table.finish(part.shift)
            self.notes.warn("impossible_call_times", dropped, "API calls with impossible times were left out")
            self.notes.warn("calls_without_thread", threadless, _threadless("API calls", RUNTIME))

    def _launches(self, rows: NDArray[Any]) -> host.Launches:
        """The launches of some events, on the anchored axis; unknown where they were not sought."""
        if self.calls is None:
            return host.Launches.unknown(rows.size)
        return self.calls.of(rows if self.sought is None else np.searchsorted(self.sought, rows))

    def _launch_frame(self, rank: NDArray[Any], offset_of_rank: Mapping[int, int]) -> pl.DataFrame | None:
        """``schema.LAUNCHES`` of all events, on the aligned axis; None if they were not all read."""
        if self.calls is None or self.sought is not None:
            return None
        calls = self.calls
        for number, offset in offset_of_rank.items():
            here = slice(*_rows_of(rank, number))
            if offset:
                calls.start[here] += offset
                calls.end[here] += offset
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

    def _copies_of_nccl(
        self,
        ordered: Mapping[str, NDArray[Any]],
        class_code: NDArray[Any],
        operations: pl.DataFrame,
        rank: NDArray[Any],
        ranked: Sequence[Lane],
    ) -> None:
        """Peer-to-peer copies launched inside an NCCL range are copy-engine collectives."""
        if not operations.height or not self._peer_names:
            return
        copies = np.flatnonzero(
            (class_code == _CLASS_CODES["memory"]) & np.isin(ordered["name"], self._peer_names)
        )
        if not copies.size:
            return
        launch = self._launches(copies)
        carried = carried_operations(
            operations,
            _process_of(ranked, rank[copies]),
            launch.thread,
            launch.start,
            launch.known,
            rank[copies],
        )
        inside = carried.only >= 0
        inside[list(carried.several)] = True
        class_code[copies[inside]] = _CLASS_CODES["communication"]
        if inside.any():
            self.notes.assumptions.append(
                "peer-to-peer copies launched inside an NCCL call are counted as communication"
            )

    # --- host -----------------------------------------------------------------------------------------------

    def _host_frames(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        ranges, operations = [schema.RANGES.empty()], [schema.OPERATIONS.empty()]
        for part in self.parts:
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

    def _host_table(
        self,
        read: Callable[[Report, Codes], pl.DataFrame],
        table: schema.Table,
        offsets: Mapping[int, clocks.Clock],
    ) -> pl.DataFrame:
        made = [table.empty()]
        for part in self.parts:
            shift = part.shift + offsets[part.clock].offset_ns
            frame = read(part.report, part.processes).with_columns(pl.col("process") + part.first_process)
            times = [name for name in ("start_ns", "end_ns") if name in frame.columns]
            made.append(table.check(frame.with_columns(pl.col(name) + shift for name in times)))
        return pl.concat(made)

    def _shifted(self, frame: pl.DataFrame, offsets: Mapping[int, clocks.Clock]) -> pl.DataFrame:
        """Host times on the aligned axis."""
        for part in self.parts:
            offset = offsets[part.clock].offset_ns
            if offset:
                last = part.first_process + len(part.processes.values)
                mine = pl.col("process").is_between(part.first_process, last - 1)
                frame = frame.with_columns(
                    pl.when(mine).then(pl.col(name) + offset).otherwise(pl.col(name)).alias(name)
                    for name in ("start_ns", "end_ns")
                )
        return frame

    def _shapes(self, ranked: Sequence[Lane], rank: NDArray[Any]) -> pl.DataFrame:
        """Grid and block row by row with the events."""
        from nsysddp.ingest.shapes import read_shapes

        frames = [
            read_shapes(part.report, part.events.kernels, part.events.kernels + part.events.bytes.size)
            for part in self.parts
        ]
        pieces = []
        for lane in ranked:
            first, last = _rows_of(rank, lane.rank or 0)
            pieces.append(frames[lane.report][self.rows[first:last]])
        return schema.SHAPES.check(pl.concat(pieces))

    def _metrics(
        self, ranked: Sequence[Lane], offsets: Mapping[int, clocks.Clock], gpus: Sequence[Any]
    ) -> pl.DataFrame:
        made = [schema.METRICS.empty()]
        for number, part in enumerate(self.parts):
            frame = host.read_metrics(part.report)
            mapping = gpus[number][0]
            rank_of = {
                mapping[lane.pid, lane.device]: lane.rank
                for lane in ranked
                if lane.report == number and lane.pid is not None and (lane.pid, lane.device) in mapping
            }
            keys = pl.DataFrame(
                list(rank_of.items()), schema={"gpu": pl.Int64, "rank": pl.Int32}, orient="row"
            )
            made.append(
                schema.METRICS.check(
                    frame.join(keys, on="gpu").with_columns(
                        pl.col("time_ns") + part.shift + offsets[part.clock].offset_ns
                    )
                )
            )
        return pl.concat(made).sort("rank", "metric", "time_ns")

    # --- which ----------------------------------------------------------------------------------------------

    def _match(
        self,
        ordered: Mapping[str, NDArray[Any]],
        rank: NDArray[Any],
        class_code: NDArray[Any],
        names: pl.DataFrame,
        operations: pl.DataFrame,
        rank_process: dict[int, int],
        ranked: Sequence[Lane],
    ) -> Matched:
        rows = np.flatnonzero(class_code == _CLASS_CODES["communication"])
        code = np.array(
            [ALL_KINDS.index(kind) if kind else NONE for kind in names["kind"].to_list()], np.int64
        )
        clock_of_lane = np.array([self.parts[lane.report].clock for lane in ranked], dtype=np.int64)
        kernels = Kernels.of(
            event=rows,
            rank=rank[rows].astype(np.int64),
            clock=clock_of_lane[_lane_of(ranked, rank[rows])],
            start=ordered["start_ns"][rows],
            end=ordered["end_ns"][rows],
            stream=ordered["stream"][rows].astype(np.int64),
            kind=code[ordered["name"][rows]],
        )
        launch = self._launches(rows)
        carried = carried_operations(
            operations, _process_of(ranked, rank[rows]), launch.thread, launch.start, launch.known, rank[rows]
        )
        worlds = [lane.world_size for lane in ranked if lane.world_size is not None]
        if self.silent:  # processes that worked on GPUs, too, are ranks that nobody recorded
            worlds.append(len(ranked) + len(self.silent))
        return match(kernels, operations, carried, rank_process, max(worlds, default=None), self.tolerance)

    def _matched(self, found: Matched, offsets: Mapping[int, clocks.Clock]) -> pl.DataFrame:
        table, counts = found.on_axis({number: clock.offset_ns for number, clock in offsets.items()})
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

    def _align(
        self,
        kernels: Kernels,
        ordered: dict[str, NDArray[Any]],
        rank: NDArray[Any],
        ranked: Sequence[Lane],
    ) -> dict[int, clocks.Clock]:
        """Correct the clocks of reports against each other; times move in place."""
        anchored = {part.clock: part.anchor is not None for part in self.parts}
        offsets = clocks.align(kernels, anchored)
        for lane in ranked:
            offset = offsets[self.parts[lane.report].clock].offset_ns
            if offset:
                first, last = _rows_of(rank, lane.rank or 0)
                ordered["start_ns"][first:last] += offset
                ordered["end_ns"][first:last] += offset
        self.unusable_clocks = {
            number
            for number, clock in offsets.items()
            if clock.residual_ns is not None and clock.residual_ns > self.tolerance
        }
        if self.unusable_clocks:
            worst = max(offsets[number].residual_ns or 0 for number in self.unusable_clocks)
            self.notes.warn(
                "clock_residual",
                len(self.unusable_clocks),
                f"clocks of reports agree only to {worst / NS_PER_US:.0f} us (tolerance "
                f"{self.tolerance / NS_PER_US:.0f} us): wait and transfer between them are not told",
            )
        moved = {part.report.name: offsets[part.clock].offset_ns for part in self.parts}
        far = {name: offset for name, offset in moved.items() if abs(offset) > NOTABLE_CORRECTION_NS}
        worst_name = max(far, key=lambda name: abs(far[name]), default="")
        self.notes.warn(
            "clock_corrected",
            len(far),
            f"clocks of {len(far)} of {len(self.parts)} reports were corrected by more than 1 ms against their session "
            f"starts, by the ends of matched collectives; most {worst_name}, by {far.get(worst_name, 0) / 1e6:+.3f} ms",
        )
        self.notes.warn(
            "clock_unknown",
            sum(clock.method == "none" for clock in offsets.values()),
            "reports share neither a session start nor a matched collective with the first one: their times are not "
            "comparable with its times",
        )
        return offsets

    # --- about ----------------------------------------------------------------------------------------------

    @property
    def _peer_names(self) -> list[int]:
        order = sorted({name for part in self.parts for name in part.events.names})
        return [
            number
            for number, (group, text) in enumerate(order)
            if group == "memory" and text == schema.P2P_COPY
        ]

    def _describe_missing(self, names: pl.DataFrame) -> None:
        unknown = names.filter((pl.col("rule") == UNCLASSIFIED) & (pl.col("group") == "kernel"))
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

    def _input(self, part: _Part) -> Input:
        report = part.report
        told = exported(report)
        captured = {
            str(row["name"]).rpartition(":")[2]: str(row["value"]).lower()
            for row in sql.rows(report, "capture_metadata")
        }
        version = told.get("EXPORT_SCHEMA_VERSION")
        major = re.match("[^0-9]*0*([0-9]+)", version or "")
        if major and (len(major[1]), major[1]) > (len(str(KNOWN_MAJOR)), str(KNOWN_MAJOR)):
            self.notes.warn(
                "newer_schema",
                1,
                f"{report.name} has export schema {version}, newer than the {KNOWN_MAJOR}.x this version was tried on",
            )
        if shifted_times(report):
            self.notes.warn(
                "shifted_times",
                1,
                f"{report.name} was exported with normalised or shifted times: its session start is no anchor",
            )
        return Input(
            name=report.name,
            sha256=report.sha256,
            nsys_version=told.get("EXPORT_PRODUCT_VERSION"),
            schema=version,
            graph_mode=captured.get("MODE"),
            tables=frozenset(report.tables),
            capabilities=capabilities(report),
            start_epoch_ns=part.anchor,
            diagnostics=tuple(sql.diagnostics(report)),
        )
