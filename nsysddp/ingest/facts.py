"""What a report says of itself, its host, its GPUs and the launcher of its processes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nsysddp.ingest import sql
from nsysddp.ingest.columns import NONE, Codes
from nsysddp.ingest.inspect import capabilities, shifted_times
from nsysddp.ingest.observers import observing
from nsysddp.ingest.report import KNOWN_MAJOR, RUNTIME, Report
from nsysddp.model.trace import Input


@dataclass(frozen=True)
class About:
    """Who and where.

    Attributes:
        host: what identifies the host: its name, else its set of GPU UUIDs; None if the report does not say. Private.
        gpu_of: (pid, CUDA ordinal) to physical GPU.
        gpus: physical GPU to (name, uuid, bus location).
        environment: variables of the environment that tell ranks and sizes.
        observing: variables that are set in it and change what is measured.
        silent: pids of processes that launched work of which the report holds no GPU event.
        shown: how many processes have GPU events.
    """

    host: str | None
    gpu_of: Mapping[tuple[int, int], int]
    gpus: Mapping[int, tuple[str, str | None, str]]
    environment: Mapping[str, int]
    observing: tuple[str, ...]
    silent: tuple[int, ...]
    shown: int


def about(report: Report, processes: Codes, lanes: Sequence[tuple[int, int]]) -> About:
    """Who and where, by the report whose GPU events are of these processes and lanes."""
    gpu_of, gpus = _gpus_of(report)
    with_events = {pid_of(processes.values[process]) for process, _ in lanes}
    named = {pid for pid, _ in gpu_of} | {pid_of(value) for value in processes.values}
    silent: tuple[int, ...] = ()
    if RUNTIME in report.tables and None not in with_events:
        others = sorted(pid for pid in named - with_events if pid is not None)
        silent = tuple(pid for pid in others if sql.rows(report, "launching_process", pid=pid))
    return About(
        _host_key(report), gpu_of, gpus, _environment(report), observing(report), silent, len(with_events)
    )


def pid_of(process: int) -> int | None:
    """The pid in a ``globalPid``; None if there is none."""
    return (process >> 24) & 0xFFFFFF if process != NONE else None


def _environment(report: Report) -> dict[str, int]:
    """Variables that have one value; environments that differ are of several processes, and nothing says which."""
    found: dict[str, set[int]] = defaultdict(set)
    for row in sql.rows(report, "rank_environment"):
        name, _, value = str(row["value"]).partition("=")
        value = value.strip().strip("\"'")
        if value.isascii() and value.isdecimal() and len(value) < 10:
            found[name].add(int(value))
    return {name: values.pop() for name, values in found.items() if len(values) == 1}


def _gpus_of(
    report: Report,
) -> tuple[dict[tuple[int, int], int], dict[int, tuple[str, str | None, str]]]:
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


def _host_key(report: Report) -> str | None:
    """What identifies the host of a report: its name, else its set of GPU UUIDs."""
    named = sql.rows(report, "host_identity")
    if named:
        return str(named[0]["value"])
    uuids = sorted(str(row["uuid"]) for row in sql.rows(report, "gpus") if row["uuid"])
    return "|".join(uuids) or None


def input_of(report: Report, told: Mapping[str, str], anchor: int | None) -> Input:
    """The report as the run names it, with what nsys and the export say of themselves; its hash comes later."""
    captured = {
        str(row["name"]).rpartition(":")[2]: str(row["value"]).lower()
        for row in sql.rows(report, "capture_metadata")
    }
    return Input(
        name=report.name,
        sha256="",
        nsys_version=told.get("EXPORT_PRODUCT_VERSION"),
        schema=told.get("EXPORT_SCHEMA_VERSION"),
        graph_mode=captured.get("MODE"),
        tables=frozenset(report.tables),
        capabilities=capabilities(report),
        start_epoch_ns=anchor,
        diagnostics=tuple(sql.diagnostics(report)),
    )


def notes_of(report: Report, told: Mapping[str, str]) -> list[tuple[str, int, str]]:
    """What the export says of itself that has to be said: code, count and message."""
    notes = []
    version = told.get("EXPORT_SCHEMA_VERSION")
    major = re.match("[^0-9]*0*([0-9]+)", version or "")
    if major and (len(major[1]), major[1]) > (len(str(KNOWN_MAJOR)), str(KNOWN_MAJOR)):
        text = f"{report.name} has export schema {version}, newer than the {KNOWN_MAJOR}.x this version was tried on"
        notes.append(("newer_schema", 1, text))
    if shifted_times(told):
        text = f"{report.name} was exported with normalised or shifted times: its session start is no anchor"
        notes.append(("shifted_times", 1, text))
    return notes
