"""What does a report hold, and which questions can it answer?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nsysddp.ingest import sql
from nsysddp.ingest.naming import families
from nsysddp.ingest.network import NIC, SWITCH
from nsysddp.ingest.report import GRAPH_TRACE, KERNEL, NVTX, RUNTIME, SYNCS, Report, open_report


@dataclass(frozen=True)
class Ability:
    """One question, whether this report answers it, and what would bring the answer if not."""

    question: str
    answered: bool
    remedy: str


@dataclass(frozen=True)
class Inspection:
    """What is in a report.

    Attributes:
        name: base name.
        nsys_version, schema: as the export says; None if it does not.
        rows: table to number of rows, for tables that matter here.
        abilities: the questions.
        diagnostics: warnings that nsys itself left, as far as they can be shown.
        families: names of ranges that repeat, for --step-pattern and --phase-pattern.
    """

    name: str
    nsys_version: str | None
    schema: str | None
    rows: dict[str, int]
    abilities: tuple[Ability, ...]
    diagnostics: tuple[str, ...]
    families: tuple[str, ...] = ()


_QUESTIONS: tuple[tuple[str, str, str], ...] = (
    ("kernels", "overlap per capture, kernel classes", "nsys profile --trace=cuda,nvtx"),
    ("launches", "steps and phases of GPU work (launch calls)", "nsys profile --trace=cuda,nvtx"),
    (
        "nvtx",
        "steps and phases by name (NVTX ranges)",
        "nsys profile --trace=cuda,nvtx, and mark steps with nsysddp.annotate",
    ),
    (
        "payloads",
        "message sizes, communicators, bus bandwidth (NCCL payloads)",
        "nsys export --include-blobs=true, with NCCL >= 2.20 and nsys >= 2024.6",
    ),
    (
        "event_edges",
        "critical path from recorded event edges",
        "nsys >= 2025.1, --cuda-event-trace=true where it is off",
    ),
    ("physical_gpus", "which physical GPU a rank ran on", "nsys >= 2025.1"),
    ("anchor", "alignment with other reports (session start)", "nsys >= 2022.1"),
    (
        "gpu_metrics",
        "SM, DRAM and link activity beside communication",
        "nsys profile --gpu-metrics-devices=all (needs permission)",
    ),
    (
        "network_metrics",
        "counters of network adapters beside communication",
        "nsys profile --nic-metrics=true",
    ),
    ("no_graph_spans", "what CUDA graphs hold", "nsys profile --cuda-graph-trace=node"),
)


def inspect(path: Path) -> Inspection:
    """Look into a report without analysing it.

    Raises:
        ReportError: it cannot be read.
    """
    with open_report(path) as report:
        able = set(capabilities(report))
        if KERNEL in report.tables:
            able.add("kernels")
        if "graph_spans" not in able:
            able.add("no_graph_spans")
        told = exported(report)
        rows = {
            table: sql.count(report, table) for table in sorted(report.tables) if table.startswith(_SHOWN)
        }
        return Inspection(
            name=report.name,
            nsys_version=told.get("EXPORT_PRODUCT_VERSION"),
            schema=told.get("EXPORT_SCHEMA_VERSION"),
            rows=rows,
            abilities=tuple(Ability(question, key in able, remedy) for key, question, remedy in _QUESTIONS),
            diagnostics=tuple(sql.diagnostics(report)),
            families=tuple(str(family) for family in families(report)),
        )


_SHOWN = ("CUPTI_", "NVTX_EVENTS", "GPU_METRICS", "CUDA_GRAPH")


def exported(report: Report) -> dict[str, str]:
    """What the export says of itself; the version of its schema also where only the parts of it are there."""
    told = {
        str(row["name"]): str(row["value"])
        for name in ("export_metadata", "export_metadata_old")
        for row in sql.rows(report, name)
        if row["value"] is not None
    }
    parts = [told.get(f"EXPORT_SCHEMA_VERSION_{part}") for part in ("MAJOR", "MINOR", "MICRO")]
    if parts[0]:
        told.setdefault("EXPORT_SCHEMA_VERSION", ".".join(part for part in parts if part))
    return told


def shifted_times(told: Mapping[str, str]) -> bool:
    """Were event times changed by the export, so that they no longer count from the session start?

    Args:
        told: what the export says of itself (``exported``).
    """
    shift = told.get("EXPORT_PARAM_TIME_SHIFT", "0")
    return told.get("EXPORT_PARAM_TIME_NORMALIZE", "false").lower() == "true" or shift not in ("0", "")


def capabilities(report: Report) -> frozenset[str]:
    """What the export can answer, by the tables and columns found."""
    has = report.has
    tests = {
        "launches": RUNTIME in report.tables and has(KERNEL, "correlationId"),
        "nvtx": NVTX in report.tables,
        "payloads": "NVTX_PAYLOAD_SCHEMA_ENTRIES" in report.tables and bool(sql.rows(report, "has_payloads")),
        "event_edges": has(SYNCS, "eventSyncId"),
        "physical_gpus": has("TARGET_INFO_CUDA_DEVICE", "gpuId") and has("TARGET_INFO_GPU", "id"),
        "anchor": has("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"),
        "gpu_metrics": "GPU_METRICS" in report.tables,
        "network_metrics": not report.tables.keys().isdisjoint((NIC, SWITCH)),
        "graph_spans": GRAPH_TRACE in report.tables,
    }
    return frozenset(name for name, there in tests.items() if there)
