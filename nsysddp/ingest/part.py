"""One report read: everything that a question can need of it, before ranks and clocks are known.

A part depends on its report and on what was asked alone, so it can be read in another process and kept (``kept``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from nsysddp.ingest import facts, gpu, host, nvtx, sql
from nsysddp.ingest.brief import may_communicate
from nsysddp.ingest.columns import Codes
from nsysddp.ingest.hashing import Hashing
from nsysddp.ingest.inspect import exported, shifted_times
from nsysddp.ingest.naming import families
from nsysddp.ingest.network import read_network
from nsysddp.ingest.ordered import Ordered, ordered
from nsysddp.ingest.report import GRAPH_TRACE, KERNEL, NVTX, RUNTIME, Report, no_gpu_events_advice
from nsysddp.ingest.shapes import read_shapes
from nsysddp.model.classify import Rules
from nsysddp.model.errors import NoGpuEvents, ReportError, UnsupportedSchema, UsageError
from nsysddp.model.markers import ASKED_PHASES
from nsysddp.model.trace import Input
from nsysddp.model.warnings import Warning

Progress = Callable[[str, int, int | None], None]
"""Called with what is being read, rows read since the last call, and the total rows if known."""


@dataclass(frozen=True)
class Wanted:
    """What is to be read of each report of a run.

    Attributes:
        rules: kernel name to class.
        steps: patterns of step ranges, the one that was asked for first.
        phases: phase to its pattern.
        launches: launch calls of all events; else only of those that communicate.
        host_calls: all API calls, event records and synchronisations.
        shapes: grid and block of every kernel.
        metrics: sampled GPU metrics, and counters of adapters and switches.
        nsys: nsys executable for ``.nsys-rep`` files.
    """

    rules: Rules
    steps: tuple[str, ...]
    phases: Mapping[str, str]
    launches: bool = True
    host_calls: bool = False
    shapes: bool = False
    metrics: bool = False
    nsys: str | None = None

    def check(self) -> None:
        """Refuse what is no regular expression.

        Raises:
            UsageError: one of the patterns is none.
        """
        assert self.patterns

    @cached_property
    def patterns(self) -> list[re.Pattern[str]]:
        """The names of ranges that are kept."""
        made = []
        for text in (*self.steps, *self.phases.values()):
            try:
                made.append(re.compile(text, re.IGNORECASE))
            except re.error as error:
                raise UsageError(f"bad regular expression {text!r}: {error}") from error
        return made


@dataclass
class Part:
    """What was read from one report; times count from its session start, processes by codes of its own.

    Attributes:
        path: of the report, for messages.
        name: of the report, as it is shown.
        input: as the run names it; without a hash where that is still being computed (``hashing``).
        anchor: UTC of its session start in ns; None if it does not say, or its times do not count from there.
        processes: ``globalPid`` of each process code.
        about: what it says of its host, GPUs and launcher.
        events: its GPU events in order.
        launches: launch calls, row by row with ``sought``; None if there are none to read.
        sought: rows of the events whose launches were read; None: of all.
        ranges, operations: its NVTX ranges and NCCL calls; None if it has none.
        families: names of ranges that repeat, where no range is named like a step or a phase.
        calls, records, syncs, shapes, metrics, network: what was asked for, else None.
        notes: what had to be left out: code, count and message.
        hashing: the hash of the report under way; None if ``input`` has it.
        first_process: number of its first process among those of all reports.
        clock: number of its clock among those of all reports.
        shift: what to add to its times in ns to put them on the axis of all reports by session starts.
    """

    path: Path
    name: str
    input: Input
    anchor: int | None
    processes: tuple[int, ...]
    about: facts.About
    events: Ordered
    launches: host.Launches | None = None
    sought: np.ndarray | None = None
    ranges: pl.DataFrame | None = None
    operations: pl.DataFrame | None = None
    families: tuple[str, ...] = ()
    calls: pl.DataFrame | None = None
    records: pl.DataFrame | None = None
    syncs: pl.DataFrame | None = None
    shapes: pl.DataFrame | None = None
    metrics: pl.DataFrame | None = None
    network: pl.DataFrame | None = None
    notes: tuple[tuple[str, int, str], ...] = ()
    hashing: Hashing | None = None
    first_process: int = 0
    clock: int = 0
    shift: int = 0

    def pid(self, process: int) -> int | None:
        """Process id of a process code on its host; None in reduced exports, whose events name no process."""
        return facts.pid_of(self.processes[process])

    def hashed_input(self) -> Input:
        """The report as the run names it, with its hash, waited for.

        Raises:
            ReportError: the file could not be read to its end.
        """
        if self.hashing is not None:
            digest = self.hashing.result()
            if digest is None:
                raise ReportError("the file could not be read to its end", file=self.path)
            self.input, self.hashing = replace(self.input, sha256=digest), None
        return self.input


@dataclass
class Notes:
    """Warnings and assumptions gathered on the way, counted by code."""

    counts: Counter[str] = field(default_factory=Counter)
    messages: dict[str, str] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)

    def warn(self, code: str, count: int, message: str) -> None:
        """Count a warning; none where the count is 0."""
        if count:
            self.counts[code] += count
            self.messages[code] = message

    def warnings(self) -> tuple[Warning, ...]:
        """All of them, by code."""
        return tuple(Warning(code, self.counts[code], self.messages[code]) for code in sorted(self.counts))


def read_part(report: Report, wanted: Wanted, progress: Progress | None = None) -> Part:
    """What does one report hold of what is wanted?

    Args:
        report: opened; its hash is under way afterwards.
        wanted: what is to be read.
        progress: called while long tables are read.

    Raises:
        NoGpuEvents: there is nothing to analyse; UnsupportedSchema: kernels lie in a table that is not known.
    """
    _refuse_unknown_kernels(report)
    notes: list[tuple[str, int, str]] = []
    for plain, actual in report.aliases.items():
        notes.append(("renamed_table", 1, f"{report.name}: table {actual} is read as {plain}"))
    processes = Codes()
    raw = gpu.read(report, processes, wanted.rules, counted(progress, f"{report.name}: GPU events"))
    notes += [
        (
            "impossible_times",
            raw.dropped,
            "GPU events that end before they start, or lie beyond any real time, were left out",
        ),
        (
            "unnamed_kernels",
            raw.unnamed,
            "kernel names that the export does not hold: such kernels count as compute, though they may communicate",
        ),
    ]
    if not raw.columns["start_ns"].size:
        raise NoGpuEvents(
            "the report holds no usable GPU events", file=report.path, do=no_gpu_events_advice()
        )
    kernels, total, last = raw.kernels, raw.columns["start_ns"].size, int(raw.columns["end_ns"].max())
    events, rows = ordered(raw, keep_rows=wanted.shapes)
    del raw
    told, started = exported(report), sql.rows(report, "session")
    anchor = started[0]["utc_epoch_ns"] if started and not shifted_times(told) else None
    anchor = anchor if isinstance(anchor, int) else None
    part = Part(
        path=report.path,
        name=report.name,
        input=facts.input_of(report, told, anchor),
        anchor=anchor,
        processes=tuple(processes.values),
        about=facts.about(report, processes, events.lanes),
        events=events,
        hashing=report.start_hashing(),
    )
    if NVTX in report.tables:
        _read_ranges(report, part, processes, wanted, last, notes, progress)
    if RUNTIME in report.tables:
        _read_launches(report, part, processes, wanted, notes, progress)
    if not wanted.launches and not wanted.host_calls:
        del part.events.columns["correlation"]  # nothing else asks for the calls of all events
    if wanted.shapes:
        part.shapes = read_shapes(report, kernels, total)[rows]
    if wanted.host_calls:
        if part.calls is None:
            part.calls = host.read_calls(report, processes).frame()
        part.records = host.read_records(report, processes)
        part.syncs = host.read_syncs(report, processes)
    if wanted.metrics:
        part.metrics = host.read_metrics(report)
        part.network = read_network(report)
    part.notes = (*(note for note in notes if note[1]), *facts.notes_of(report, told))
    return part


def _refuse_unknown_kernels(report: Report) -> None:
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


def _read_ranges(
    report: Report,
    part: Part,
    processes: Codes,
    wanted: Wanted,
    last_ns: int,
    notes: list[tuple[str, int, str]],
    progress: Progress | None,
) -> None:
    """The ranges that name steps, phases and marks, and NCCL's calls."""
    read = nvtx.read_nvtx(
        report, processes, wanted.patterns, last_ns, counted(progress, f"{report.name}: NVTX ranges")
    )
    part.ranges, part.operations = read.ranges, read.operations
    notes += [
        ("impossible_range_times", read.dropped, "NVTX ranges with impossible times were left out"),
        ("ranges_without_thread", read.threadless, _threadless("NVTX ranges", NVTX)),
        (
            "payloads_skipped",
            read.skipped_payloads,
            "NVTX payloads whose schema is missing, ambiguous or malformed, or numbers impossible, were not decoded",
        ),
    ]
    if not _named(read.ranges, wanted):
        part.families = tuple(str(family) for family in families(report))


def _named(ranges: pl.DataFrame, wanted: Wanted) -> bool:
    """Are steps and every phase that is asked about named in this report? Then they are in the run."""
    texts = ranges.filter(pl.col("style") != "mark")["text"].to_list()

    def named(pattern: str) -> int:
        wanted_name = re.compile(pattern, re.IGNORECASE)
        return sum(wanted_name.fullmatch(text) is not None for text in texts)

    steps = named(wanted.steps[0]) > 0 or any(named(pattern) > 1 for pattern in wanted.steps[1:])
    return steps and all(named(wanted.phases[name]) for name in ASKED_PHASES)


def _read_launches(
    report: Report,
    part: Part,
    processes: Codes,
    wanted: Wanted,
    notes: list[tuple[str, int, str]],
    progress: Progress | None,
) -> None:
    """The launch calls of all events; if they are not wanted, of those that NCCL's calls are told apart by."""
    events = part.events
    if not wanted.launches:
        if part.operations is None or not part.operations.height:
            return
        part.sought = np.flatnonzero(may_communicate(events.names, wanted.rules)[events.columns["name"]])
    correlation = events.columns["correlation"]
    correlation = correlation if part.sought is None else correlation[part.sought]
    bounds = np.array([0, *events.ends])
    if part.sought is not None:
        bounds = np.searchsorted(part.sought, bounds)
    lanes = [
        (process, int(first), correlation[first:last])
        for (process, _), first, last in zip(events.lanes, bounds[:-1], bounds[1:], strict=True)
    ]
    part.launches = host.Launches.unknown(correlation.size)
    table = host.LaunchTable(lanes, part.launches, len(part.processes))
    # The table of calls is long and read once.
    calls = host.CallRows(report) if wanted.host_calls and part.sought is None else None
    dropped, nobodys = host.read_launches(
        report,
        processes,
        table,
        counted(progress, f"{report.name}: launch calls"),
        only=None if part.sought is None else correlation,
        calls=calls,
    )
    table.finish()
    part.calls = None if calls is None else calls.frame()
    notes += [
        ("impossible_call_times", dropped, "API calls with impossible times were left out"),
        ("calls_without_thread", nobodys, _threadless("API calls", RUNTIME)),
    ]


def _threadless(what: str, table: str) -> str:
    """The warning about rows that name no thread."""
    return f"{what} whose thread is not told ({table}.globalTid), so that they are of no known process, were left out"


def counted(progress: Progress | None, what: str) -> Callable[[int], None] | None:
    """The progress of one table, for its reader."""
    return (lambda rows: progress(what, rows, None)) if progress else None
