"""Export an ``.nsys-rep`` to SQLite through the nsys that is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from nsysddp.model.errors import NotAReport, ReportError
from nsysddp.model.scratch import program

EXPORT_LIMIT_S = 3600
"""A report of tens of gigabytes exports in well under this; beyond it the importer hangs."""

_VERSION = re.compile(rb"20\d\d\.\d+\.\d+(?:\.\d+)?")
_HEAD_BYTES = 1 << 16


def export(report: Path, target: Path, *, nsys: str | None = None) -> Path:
    """Write the SQLite export of a report, with NVTX payloads where this nsys can export them.

    Args:
        report: the ``.nsys-rep`` (or ``.qdrep``) file; never changed.
        target: the SQLite file to write, in a folder of ours.
        nsys: the executable; searched on PATH if None.

    Raises:
        ReportError: there is no nsys; NotAReport: nsys cannot read the file (both versions are named).
    """
    program = shutil.which(nsys or "nsys")
    if program is None:
        raise ReportError(
            "is an Nsight Systems report that must be exported first, and nsys is not on PATH",
            file=report,
            do=f"run `nsys export --type sqlite --include-blobs=true {report.name}` where nsys is installed",
        )
    if sys.stderr.isatty():
        sys.stderr.write(f"exporting {report.name} with nsys ...\n")
    command = [program, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(target)]
    code, said = _run([*command, "--include-blobs=true", str(report)], report)
    if code and "include-blobs" in said:
        code, said = _run([*command, str(report)], report)  # nsys before 2024.6 knows no such option
    if code or not target.is_file():
        raise NotAReport(
            f"nsys {_installed(program)} cannot export it (the file names {_written_by(report)}): {_cause(said)}",
            file=report,
            do="export it with the nsys that wrote it, or a newer one",
        )
    return target


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
