"""What does a capture show, and is it sound?"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsysddp.capture import failures
from nsysddp.capture.failures import Failure
from nsysddp.capture.folder import write_readme
from nsysddp.model.errors import NoGpuEvents, ReportError

if TYPE_CHECKING:
    from nsysddp.capture.folder import Record
    from nsysddp.capture.plan import Plan
    from nsysddp.model.result import Result


_PUSH_POP, _START_END, _ERROR = 59, 60, 3
"""NVTX event types of ranges, and nsys's severity of an error (``queries/nvtx.sql``, ``queries/diagnostics.sql``)."""


@dataclass(frozen=True)
class Contents:
    """What the exports hold besides GPU events: ranges, the processes that opened them, and nsys's complaints.

    Complaints go into files as far as they can be shown to anybody; the errors are whole, for whoever captures.
    """

    ranges: int
    processes: int
    diagnostics: tuple[str, ...]
    errors: tuple[str, ...]


def inspect_exports(exports: Sequence[Path]) -> Contents:
    """Are the exports sound, and what do they hold?

    Raises:
        Failure: one of them cannot be read.
    """
    from nsysddp.ingest.diagnostics import public
    from nsysddp.ingest.report import open_report
    from nsysddp.ingest.sql import rows

    ranges, opened_by = 0, set()
    messages: list[dict[str, Any]] = []
    try:
        for export in exports:
            with open_report(export) as report:
                messages += rows(report, "diagnostics")
                events = rows(report, "nvtx", first_row=0, last_row=2**62)
            pushed = [event for event in events if event["type"] in (_PUSH_POP, _START_END)]
            ranges += len(pushed)
            opened_by |= {(export, event["thread"] >> 24) for event in pushed}
    except ReportError as error:
        raise _unreadable(error) from error
    return Contents(
        ranges,
        len(opened_by),
        diagnostics=tuple(dict.fromkeys(public(str(message["text"])) for message in messages)),
        errors=tuple(str(message["text"]) for message in messages if message["severity"] >= _ERROR),
    )


def _unreadable(error: ReportError) -> Failure:
    return Failure(
        "incomplete_report", f"the export cannot be read: {error}", do="capture again; the report is kept"
    )


def verdict_of(
    plan: Plan, exports: Sequence[Path], contents: Contents, record: Record
) -> tuple[str, Result | None]:
    """What does the capture show, as text and, of GPUs, as the analysis behind it?

    Raises:
        Failure: no GPU event although GPUs were traced, no range on CPU ranks, or nsys says that it lost events.
    """
    if not exports:
        return "The program ran without nsys: nothing was captured, and nothing is known about overlap.", None
    if plan.settings.backend == "gloo":
        return _cpu_verdict(contents), None
    if contents.errors:
        raise Failure(
            "incomplete_report",
            "nsys itself says that the report is incomplete",
            do="see above what it says, and capture fewer steps",
            details=contents.errors,
        )
    from nsysddp.join.load import load
    from nsysddp.questions import analyze

    try:
        result = analyze(load(exports))
    except NoGpuEvents as error:
        raise Failure(
            "empty_capture",
            "the captured part holds no GPU event",
            do="put the capture window around steps that compute on a GPU",
        ) from error
    except ReportError as error:
        raise _unreadable(error) from error
    except Exception:  # the capture is whole, whatever becomes of our reading of it
        write_readme(plan, "Captured and exported, but the analysis failed.")
        record.write("analysis_failed", failures.KINDS["analysis_failed"])
        raise
    return _as_text(result), result


def _as_text(result: Result) -> str:
    """What ``nsysddp analyze`` prints, as text of a fixed width."""
    from rich.console import Console

    from nsysddp.render.text import print_result

    page = io.StringIO()
    print_result(result, Console(file=page, width=120, highlight=False, markup=False, emoji=False))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def _cpu_verdict(contents: Contents) -> str:
    if contents.ranges == 0:
        raise Failure(
            "empty_capture",
            "the program ran on CPU ranks and not one NVTX range was captured",
            do="annotate the loop with nsysddp.annotate, and install nvtx==0.2.8 where torch has no CUDA",
        )
    return (
        f"Captured {contents.ranges} NVTX ranges of {contents.processes} processes on CPU ranks, and no GPU events.\n"
        "Overlap cannot be proved on CPU: only GPU intervals are evidence of it. Capture with --backend nccl."
    )
