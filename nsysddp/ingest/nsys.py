"""Export an ``.nsys-rep`` through the nsys that is installed: to Parquet where it can, else to SQLite."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from nsysddp.ingest.columnar import is_export
from nsysddp.model.errors import NotAReport, ReportError
from nsysddp.model.scratch import program

EXPORT_LIMIT_S = 3600
"""A report of tens of gigabytes exports in well under this; beyond it the importer hangs."""

TABLES = (
    "StringIds", "CUPTI_.*", "CUDA_GRAPH.*", "NVTX_.*", "GPU_METRICS", "NET_.*_METRIC", "TARGET_INFO_.*",
    "META_DATA_.*", "DIAGNOSTIC_EVENT", "PROCESSES", "ANALYSIS_DETAILS",
)  # fmt: skip
"""What any question reads, as patterns of nsys; samples, scheduling and system calls are often most of a report."""

_VERSION = re.compile(rb"20\d\d\.\d+\.\d+(?:\.\d+)?")
_HEAD_BYTES = 1 << 16


def export(report: Path, folder: Path, *, nsys: str | None = None, every_table: bool = False) -> Path:
    """Export a report, with NVTX payloads where this nsys can; the folder of tables or SQLite file that it became.

    Args:
        report: the ``.nsys-rep`` (or ``.qdrep``) file; never changed.
        folder: a folder of ours to write into.
        nsys: the executable; searched on PATH if None.
        every_table: also those that no question of ours reads.

    Raises:
        ReportError: there is no nsys; NotAReport: nsys cannot read the file (both versions are named).
    """
    executable = shutil.which(nsys or "nsys")
    if executable is None:
        raise ReportError(
            "is an Nsight Systems report that must be exported first, and nsys is not on PATH",
            file=report,
            do=f"run `nsys export --type sqlite --include-blobs=true {report.name}` where nsys is installed",
        )
    if sys.stderr.isatty():
        sys.stderr.write(f"exporting {report.name} with nsys ...\n")
    tables = [] if every_table else [f"--tables={','.join(TABLES)}"]
    said = ""
    # nsys before 2024.6 writes no Parquet with payloads, and before that knows no payloads at all.
    for kind, options in (
        ("parquetdir", ["--include-blobs=true", *tables]),
        ("sqlite", ["--include-blobs=true"]),
        ("sqlite", []),
    ):
        if kind == "sqlite" and not options and "include-blobs" not in said:
            break
        target = folder / f"{report.stem}.{kind}"
        command = [executable, "export", "--type", kind, "--force-overwrite", "true", "--output", str(target)]
        code, said = _run([*command, *options, str(report)], report)
        if not code and (is_export(target) if kind == "parquetdir" else target.is_file()):
            return target
    raise NotAReport(
        f"nsys {_installed(executable)} cannot export it (the file names {_written_by(report)}): {_cause(said)}",
        file=report,
        do="export it with the nsys that wrote it, or a newer one",
    )


def _run(command: list[str], report: Path) -> tuple[int, str]:
    """Exit code and output of nsys."""
    try:
        with program(command) as started:
            said, _ = started.communicate(timeout=EXPORT_LIMIT_S)
            return started.returncode, said.decode(errors="replace")
    except OSError as error:
        raise ReportError(
            f"nsys does not run: {error.strerror}", file=report, do="check the installation"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ReportError(
            "nsys export did not end within an hour", file=report, do="export it by hand"
        ) from error


def _cause(output: str) -> str:
    """The line of nsys' output that says why, without the path of the file."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"(?i)error|fail|version|support|corrupt|invalid", line)]
    return re.sub(r"/\S+", "<path>", (telling or lines or ["it gave no reason"])[0])[:200]


def _installed(program: str) -> str:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "of unknown version"
    found = _VERSION.search(said)
    return found[0].decode() if found else "of unknown version"


def _written_by(report: Path) -> str:
    """The product version inside the head of a report, if it is spelled out there."""
    with report.open("rb") as handle:
        found = _VERSION.search(handle.read(_HEAD_BYTES))
    return f"version {found[0].decode()}" if found else "no version"
