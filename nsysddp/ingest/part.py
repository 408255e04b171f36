"""One report read: its events, processes and ranges, before ranks and clocks are known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nsysddp.ingest import gpu, host, sql
from nsysddp.ingest.columns import NONE, Codes
from nsysddp.ingest.inspect import capabilities, exported, shifted_times
from nsysddp.ingest.report import GRAPH_TRACE, KERNEL, KNOWN_MAJOR, NVTX, Report, no_gpu_events_advice
from nsysddp.model.classify import Rules
from nsysddp.model.errors import NoGpuEvents, UnsupportedSchema
from nsysddp.model.trace import Input
from nsysddp.model.warnings import Warning

Progress = Callable[[str, int, int | None], None]
"""Called with what is being read, rows read since the last call, and the total rows if known."""


@dataclass
class Part:
    """What was read from one report.

    Attributes:
        report: opened.
        events: its GPU events.
        processes: its processes, by code.
        anchor: UTC of its session start in ns; None if it does not say, or its times do not count from there.
        ranges: its NVTX ranges; None if it has none.
        first_process: number of its first process among those of all reports.
        clock: number of its clock among those of all reports.
        shift: what to add to its times in ns to put them on the axis of all reports by session starts.
    """

    report: Report
    events: gpu.GpuEvents
    processes: Codes
    anchor: int | None
    ranges: host.HostRanges | None = None
    first_process: int = 0
    clock: int = 0
    shift: int = 0

    def pid(self, process: int) -> int | None:
        """Process id of a process code on its host; None in reduced exports, whose events name no process."""
        global_pid = self.processes.values[process]
        return (global_pid >> 24) & 0xFFFFFF if global_pid != NONE else None


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


def read_part(
    report: Report,
    rules: Rules,
    patterns: Sequence[re.Pattern[str]],
    notes: Notes,
    progress: Progress | None,
) -> Part:
    """What does one report hold: its GPU events, and the ranges that name steps, phases and marks?

    Args:
        report: opened.
        rules: kernel name to class.
        patterns: which ranges are kept.
        notes: where what had to be left out is counted.
        progress: called while long tables are read.

    Raises:
        NoGpuEvents: there is nothing to analyse; UnsupportedSchema: kernels lie in a table that is not known.
    """
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
    events = gpu.read(report, processes, rules, counted(progress, f"{report.name}: GPU events"))
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
            counted(progress, f"{report.name}: NVTX ranges"),
        )
        if NVTX in report.tables
        else None
    )
    if ranges is not None:
        notes.warn(
            "impossible_range_times", ranges.dropped, "NVTX ranges with impossible times were left out"
        )
        notes.warn("ranges_without_thread", ranges.threadless, threadless("NVTX ranges", NVTX))
        notes.warn(
            "payloads_skipped",
            ranges.skipped_payloads,
            "NVTX payloads whose schema is missing, ambiguous or malformed, or numbers impossible, were not decoded",
        )
    started = sql.rows(report, "session")
    anchor = started[0]["utc_epoch_ns"] if started and not shifted_times(report) else None
    return Part(report, events, processes, anchor if isinstance(anchor, int) else None, ranges)


def threadless(what: str, table: str) -> str:
    """The warning about rows that name no thread."""
    return f"{what} whose thread is not told ({table}.globalTid), so that they are of no known process, were left out"


def counted(progress: Progress | None, what: str) -> Callable[[int], None] | None:
    """The progress of one table, for its reader."""
    return (lambda rows: progress(what, rows, None)) if progress else None


def gpus_of(report: Report) -> tuple[dict[tuple[int, int], int], dict[int, tuple[str, str | None, str]]]:
    """(pid, CUDA ordinal) to physical GPU, and physical GPU to (name, uuid, bus location)."""
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


def input_of(part: Part, notes: Notes) -> Input:
    """The report as the run names it, with what nsys and the export say of themselves."""
    report = part.report
    told = exported(report)
    captured = {
        str(row["name"]).rpartition(":")[2]: str(row["value"]).lower()
        for row in sql.rows(report, "capture_metadata")
    }
    version = told.get("EXPORT_SCHEMA_VERSION")
    major = re.match("[^0-9]*0*([0-9]+)", version or "")
    if major and (len(major[1]), major[1]) > (len(str(KNOWN_MAJOR)), str(KNOWN_MAJOR)):
        notes.warn(
            "newer_schema",
            1,
            f"{report.name} has export schema {version}, newer than the {KNOWN_MAJOR}.x this version was tried on",
        )
    if shifted_times(report):
        notes.warn(
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


def host_key(report: Report) -> str | None:
    """What identifies the host of a report: its name, else its set of GPU UUIDs."""
    named = sql.rows(report, "host_identity")
    if named:
        return str(named[0]["value"])
    uuids = sorted(str(row["uuid"]) for row in sql.rows(report, "gpus") if row["uuid"])
    return "|".join(uuids) or None
