"""How is one capture made, from the launch to a folder that explains itself?

    <out>/<name>-<repeat>/
        report.nsys-rep, report.sqlite   what nsys recorded, and its export (one pair a rank with --per-rank); with
                                         --export parquetdir the folder report_pqtdir
        records_rank*.jsonl, summary.json  what a preset workload measured itself
        log.txt                          what nsys and the program printed
        run.json                         where all this comes from, and how it ended
        README.md                        the same for people, with the verdict

``run.json`` says ``running`` from the first moment and how it ended at the last, so that a folder never looks
complete when it is not. An interrupted capture, or one that ran out of space, leaves no folder at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsysddp.capture import failures, processes, provenance
from nsysddp.capture.failures import Failure
from nsysddp.capture.folder import Record, prepare_folder, summary_of, write_readme
from nsysddp.capture.plan import ADDED_ENVIRONMENT, hidden_export
from nsysddp.capture.verdict import inspect_exports, verdict_of
from nsysddp.model.scratch import removed_by_signal, scratch_folder

if TYPE_CHECKING:
    from nsysddp.capture.plan import Plan
    from nsysddp.model.result import Result


@dataclass(frozen=True)
class Captured:
    """One finished capture.

    Attributes:
        plan: what was asked for.
        verdict: what it shows, as text.
        exports: the exports, one a report.
        result: the analysis; None where there is nothing to analyse (CPU ranks).
        summary: the workload's own ``summary.json``; None for programs that write none.
    """

    plan: Plan
    verdict: str
    exports: tuple[Path, ...]
    result: Result | None
    summary: dict[str, Any] | None

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """What the workload itself found wrong (layout, replicas); empty where all is well or nothing is checked."""
        return tuple(self.summary["failed_checks"]) if self.summary else ()


def capture(
    plan: Plan,
    machine: provenance.Machine,
    *,
    timeout_s: float,
    force: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Captured:
    """Run, record, export and analyse one capture, and write its folder.

    Raises:
        Failure: one of ``failures.KINDS``; ``run.json`` in the folder says the same, unless nothing is kept.
        UsageError: the folder is taken.
    """
    try:
        prepare_folder(plan.folder, force=force, say=say)
    except OSError as error:
        raise _refused(plan, error) from error
    try:  # from here on the folder is ours to remove
        with removed_by_signal(plan.folder):
            return _capture(plan, machine, timeout_s=timeout_s, say=say)
    except KeyboardInterrupt:
        shutil.rmtree(plan.folder, ignore_errors=True)
        raise Failure(
            "interrupted",
            f"interrupted while capturing {plan.name}: its processes are ended and its files removed",
            do="start it again",
        ) from None
    except OSError as error:
        shutil.rmtree(plan.folder, ignore_errors=True)
        raise _refused(plan, error) from error


def _refused(plan: Plan, error: OSError) -> Failure:
    full = failures.disk_full(_existing(plan.folder), error=error)
    what = f"{error.strerror}: {Path(error.filename).name}" if error.filename else str(error.strerror)
    return full or Failure("refused", what, do="check the program's name, and that --out can be written to")


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.resolve().parents) if place.exists())


def _capture(
    plan: Plan, machine: provenance.Machine, *, timeout_s: float, say: Callable[[str], None]
) -> Captured:
    record = Record(plan, machine)
    record.write("running", "not finished")
    log = plan.folder / "log.txt"
    try:
        with scratch_folder() as scratch:
            env = {**os.environ, **ADDED_ENVIRONMENT, "TMPDIR": str(scratch)}
            say(f"{plan.name} {plan.repeat}: running on {plan.ranks or 'all'} ranks")
            ended = processes.run_command(
                plan.profile(), env=env, cwd=Path.cwd(), log=log, timeout_s=timeout_s
            )
            record.ended("profile", ended)
            reports = _check_run(plan, ended, log, scratch, timeout_s)
            exports = []
            for report in reports:
                say(f"{plan.name} {plan.repeat}: exporting {report.name}")
                exports.append(_export(plan, report, env, record, timeout_s))
        say(f"{plan.name} {plan.repeat}: analysing")
        summary = summary_of(plan)
        contents = inspect_exports(exports)
        record.diagnostics = contents.diagnostics
        verdict, result = verdict_of(plan, exports, contents, record)
    except Failure as failure:
        if failure.kind == "disk_full":
            shutil.rmtree(plan.folder, ignore_errors=True)
        else:
            write_readme(plan, f"This capture failed: {failure}")
            # The full message can quote the program's output, which does not belong into run.json.
            record.write(failure.kind, failures.KINDS[failure.kind], ranks=failure.ranks)
        raise
    write_readme(plan, verdict)
    captured = Captured(plan, verdict, tuple(exports), result, summary)
    if captured.failed_checks:
        record.write("checks_failed", "; ".join(captured.failed_checks))
    else:
        found = result.findings[0].message if result and result.findings else verdict.splitlines()[0]
        record.write("ok" if result is not None else "cpu_only", found)
    return captured


def _check_run(plan: Plan, ended: processes.Ended, log: Path, scratch: Path, timeout_s: float) -> list[Path]:
    """The reports of a run that went well.

    Raises:
        Failure: it did not; partial reports are removed, and a recording that nsys could not import is kept.
    """
    text = log.read_text(errors="replace")
    if full := failures.disk_full(plan.folder, log=text):
        raise full
    recordings = [*plan.folder.glob("*.qdstrm"), *scratch.rglob("*.qdstrm")]
    reports = sorted(plan.folder.glob("report*.nsys-rep"))
    if ended.returncode is None:
        for path in (*recordings, *reports):
            path.unlink()
        raise _hang(plan, ended, timeout_s)
    if recordings and not reports and not failures.names_failed_rank(text):
        kept = [
            shutil.move(path, plan.folder / f"report{at or ''}.qdstrm") for at, path in enumerate(recordings)
        ]
        raise Failure(
            "importer_failed",
            f"nsys recorded the run but its importer failed: {failures.last_line(text)}",
            do=f"import {Path(kept[0]).name} in the run's folder where QdstrmImporter works (its libraries, such as "
            "libdw, may be missing here)",
            details=tuple(failures.log_lines(text)[-8:]),
        )
    summary = summary_of(plan)
    if ended.returncode != 0 and not (summary and summary["failed_checks"]):
        raise failures.workload_failure(text, ended.returncode)
    if plan.preset is not None and summary is None:
        raise Failure(
            "workload_failed", "the workload left no readable summary.json", do="see log.txt of the run"
        )
    if plan.nsys is None:
        return []
    if not reports and plan.settings.waits_for_profiler_start:
        raise Failure(
            "empty_capture",
            "the program ended well but never called cudaProfilerStart, so nothing was captured",
            do="put nsysddp.annotate.capture_window around the steps, or record all of it with "
            "--capture-range none",
        )
    missing = [report.name for report in plan.reports() if report not in reports]
    if missing:
        raise Failure(
            "incomplete_report",
            f"nsys wrote no {', '.join(missing)}",
            do="see log.txt of the run",
            details=tuple(failures.log_lines(text)[-8:]),
        )
    return reports


def _hang(plan: Plan, ended: processes.Ended, timeout_s: float) -> Failure:
    stacks = "\n\n".join(f"rank {stuck.rank}\n{stuck.stack}" for stuck in ended.stuck)
    where = "; ".join(f"rank {stuck.rank} in {stuck.where}" for stuck in ended.stuck)
    if not ended.stuck:
        return Failure(
            "hang",
            f"no rank was left and the launch still ran after {timeout_s:g} s; all processes are ended",
            do="see log.txt of the run",
        )
    (plan.folder / "stacks.txt").write_text(stacks + "\n")
    alive = f"{len(ended.stuck)} of {plan.ranks} ranks" if plan.ranks else f"{len(ended.stuck)} ranks"
    return Failure(
        "hang",
        f"{alive} still ran after {timeout_s:g} s: {where}; all processes are ended",
        do="see stacks.txt of the run, or give more time with --timeout",
        details=tuple(stacks.splitlines()),
        ranks=tuple(stuck.rank for stuck in ended.stuck),
    )


def _export(plan: Plan, report: Path, env: dict[str, str], record: Record, timeout_s: float) -> Path:
    """The finished export of a report; an unfinished one is removed.

    Raises:
        Failure: nsys could not export it.
    """
    hidden, log = hidden_export(report, plan.settings.export), Path(env["TMPDIR"]) / "export.txt"
    log.unlink(missing_ok=True)
    try:
        argv = plan.export(report)
        ended = processes.run_command(argv, env=env, cwd=Path.cwd(), log=log, timeout_s=timeout_s)
        record.ended(f"export {report.name}", ended)
        text = log.read_text(errors="replace")
        if full := failures.disk_full(plan.folder, log=text):
            raise full
        if ended.returncode != 0 or not hidden.exists():
            took = (
                f"did not end within {timeout_s:g} s"
                if ended.returncode is None
                else failures.last_line(text)
            )
            raise Failure(
                "export_failed",
                f"nsys could not export {report.name}: {took}",
                do="the report may be incomplete; capture again, or export it with a newer nsys",
                details=tuple(failures.log_lines(text)[-8:]),
            )
        return hidden.replace(hidden.with_name(hidden.name.removeprefix(".")))
    finally:
        shutil.rmtree(hidden, ignore_errors=True) if hidden.is_dir() else hidden.unlink(missing_ok=True)
