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

import io
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nsysddp
from nsysddp.capture import command, failures, processes, provenance
from nsysddp.capture.command import Settings
from nsysddp.capture.failures import Failure
from nsysddp.capture.presets import Preset, find_preset
from nsysddp.capture.tool import NEWEST_TESTED, Nsys, find_nsys, inspect_nsys
from nsysddp.model.errors import NoGpuEvents, ReportError, UsageError
from nsysddp.model.scratch import remove_abandoned, removed_by_signal, scratch_folder

if TYPE_CHECKING:
    from nsysddp.model.result import Result

ADDED_ENVIRONMENT = {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
"""What every launch gets: stacks upon SIGABRT (the time limit), and a log in order."""


@dataclass(frozen=True)
class Plan:
    """One capture that is to be made.

    Attributes:
        name: of the run; its folder is ``<name>-<repeat>``.
        repeat: which repeat this is, from 1.
        folder: where everything goes.
        target: the launch of the program on all ranks.
        settings: how it is run and what is recorded.
        preset: the preset, None for a program of the user's.
        nsys: the nsys to use, None to run without (CPU ranks only).
        variables: what was varied, for run.json (``{"bucket_cap_mib": 4}`` in a sweep).
    """

    name: str
    repeat: int
    folder: Path
    target: tuple[str, ...]
    settings: Settings
    preset: Preset | None = None
    nsys: Nsys | None = None
    variables: dict[str, Any] = field(default_factory=dict)

    @property
    def ranks(self) -> int | None:
        """How many ranks this node runs, None if the launch does not say."""
        if self.preset is not None:
            return self.settings.nproc
        launch = command.parse_torchrun(self.target)
        return launch.nproc if launch else None

    def recorder(self) -> list[str]:
        """The prefix that makes nsys record; empty without nsys."""
        if self.nsys is None:
            return []
        report = self.folder / "report"
        options = self.nsys.profile_options
        return command.recorder_argv(self.nsys.path, self.settings, report, options=options)

    def profile(self) -> list[str]:
        """The command line that runs the program, under nsys where there is one."""
        if self.nsys is None:
            return list(self.target)
        python = provenance.launch_python(self.target, "python")
        return command.profile_argv(self.recorder(), self.settings, self.target, python=python)

    def export(self, report: Path) -> list[str]:
        """The command line that exports a report, to a hidden place that is renamed when it's whole."""
        if self.nsys is None:
            raise ValueError("nothing to export without nsys")
        blobs = self.nsys.exports_blobs
        kind = self.settings.export
        return command.export_argv(self.nsys.path, report, _hidden(report, kind), kind=kind, blobs=blobs)

    def reports(self) -> list[Path]:
        """The reports that nsys is to write, as far as the number of ranks is known."""
        if not self.settings.per_rank:
            return [self.folder / "report.nsys-rep"]
        return [self.folder / f"report_rank{rank}.nsys-rep" for rank in range(self.ranks or 1)]

    def dry_run(self) -> str:
        """The exact command lines, as a shell would take them."""
        env = " ".join(f"{name}={value}" for name, value in ADDED_ENVIRONMENT.items())
        lines = [f"{env} {shlex.join(self.profile())}"]
        if self.nsys is not None:
            lines += [shlex.join(self.export(report)) for report in self.reports()]
        return "\n".join(lines)


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


def choose_nsys(
    path: str | None,
    settings: Settings,
    *,
    dry_run: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Nsys | None:
    """Which nsys records? None: none is there, and CPU ranks run without.

    A dry run needs none: the command lines of the newest tested one are shown then.

    Raises:
        Failure: none is there and GPUs are to be captured, or the one given does not run.
    """
    try:
        return inspect_nsys(find_nsys(path))
    except Failure:
        if dry_run and path is None:
            return Nsys(
                "nsys", ".".join(map(str, NEWEST_TESTED)), frozenset(), frozenset({"--include-blobs"})
            )
        if settings.backend == "nccl" or path is not None:
            raise
        say("nsys is not there: the program runs, and nothing is captured")
        return None


def plan_presets(
    names: Sequence[str],
    settings: Settings,
    *,
    out: Path,
    repeat: int,
    nsys: Nsys | None,
    python: str,
) -> list[Plan]:
    """Which captures do these presets make? All of them once, then all again: drift hits all alike.

    Raises:
        UsageError: an unknown preset, or one named twice.
    """
    if len(set(names)) != len(names):
        raise UsageError("a preset is named twice", do="use --repeat for repeats")
    plans = []
    for turn in range(1, repeat + 1):
        for preset in map(find_preset, names):
            plans.append(plan_preset(preset, turn, settings, out=out, nsys=nsys, python=python))
    return plans


def plan_preset(
    preset: Preset, turn: int, settings: Settings, *, out: Path, nsys: Nsys | None, python: str
) -> Plan:
    """One capture of a preset, the ``turn``-th of its kind."""
    folder = out / f"{preset.name}-{turn}"
    target = command.workload_argv(preset, settings, python=python, out=folder)
    if preset.expects_error:  # it fails before any window opens
        settings = replace(settings, capture_range="none")
    return Plan(preset.name, turn, folder, tuple(target), settings, preset, nsys)


def plan_program(
    program: Sequence[str], settings: Settings, *, out: Path, repeat: int, nsys: Nsys | None
) -> list[Plan]:
    """Which captures does a program of the user's make? They are named after its script."""
    launch = command.parse_torchrun(program)
    words = launch.rank if launch else [word for word in program if not word.startswith("-")]
    script = next((word for word in words if word.endswith(".py")), words[0])
    name = re.sub(r"[^\w.-]", "_", Path(script).stem)
    return [
        Plan(name, turn, out / f"{name}-{turn}", tuple(program), settings, None, nsys)
        for turn in range(1, repeat + 1)
    ]


def check_machine(plans: Sequence[Plan]) -> provenance.Machine:
    """Can these plans run here? Asked before anything is started.

    Raises:
        Failure: nsys lacks an option, torch is missing, no GPU or fewer than ranks.
    """
    plan = plans[0]
    if plan.nsys is not None:
        plan.nsys.require(plan.recorder())
    machine = provenance.inspect_machine(provenance.launch_python(plan.target, sys.executable))
    if plan.settings.backend == "nccl":
        provenance.require_gpus(machine, plan.ranks)
    elif plan.preset is not None and machine.versions["torch"] is None:
        raise failures.torch_missing()
    return machine


def _hidden(report: Path, kind: str) -> Path:
    return report.with_name(f".{report.stem}{command.EXPORT_ENDINGS[kind]}")


def prepare_folder(folder: Path, *, force: bool, say: Callable[[str], None]) -> None:
    """Make the folder of a run, empty.

    What a failed capture left is replaced, and that is said; anything else only with ``force``, and a folder
    that no capture made, or to which somebody added a file since a capture finished, never.

    Raises:
        UsageError: the folder is taken.
    """
    remove_abandoned(folder)
    if folder.exists() and any(folder.iterdir()):
        kind = _recorded_outcome(folder)
        if kind is None:
            raise UsageError(f"{folder} exists and holds no capture", do="choose another place with --out")
        if not force and kind in _WORTH_KEEPING:
            what = "a capture that is running or was killed" if kind == "running" else "a finished capture"
            raise UsageError(f"{folder} holds {what}", do="choose another --out, or replace it with --force")
        if kind in _FINISHED and (added := _added(folder)):
            raise UsageError(
                f"{folder} holds {added[0]}, which is not of the capture",
                do="move it away, or choose another --out",
            )
        say(f"replacing {folder}, which holds {'a failed' if not force else 'an earlier'} capture ({kind})")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)


_FINISHED = ("ok", "cpu_only", "checks_failed", "analysis_failed")
_WORTH_KEEPING = (*_FINISHED, "running")
"""Outcomes that are replaced only with ``force``."""


def _recorded_outcome(folder: Path) -> str | None:
    try:
        kind = json.loads((folder / "run.json").read_text())["outcome"]["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(kind)


def _added(folder: Path) -> list[str]:
    """Files that are not among those that the record of the capture names."""
    named = json.loads((folder / "run.json").read_text()).get("files", {})
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return [name for name in files if name != "run.json" and name not in named]


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
    record = _Record(plan, machine)
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
        summary = _summary(plan)
        contents = _inspect(exports)
        record.diagnostics = contents.diagnostics
        verdict, result = _verdict(plan, exports, contents, record)
    except Failure as failure:
        if failure.kind == "disk_full":
            shutil.rmtree(plan.folder, ignore_errors=True)
        else:
            _readme(plan, f"This capture failed: {failure}")
            # The full message can quote the program's output, which does not belong into run.json.
            record.write(failure.kind, failures.KINDS[failure.kind], ranks=failure.ranks)
        raise
    _readme(plan, verdict)
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
    summary = _summary(plan)
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


def _export(plan: Plan, report: Path, env: dict[str, str], record: _Record, timeout_s: float) -> Path:
    """The finished export of a report; an unfinished one is removed.

    Raises:
        Failure: nsys could not export it.
    """
    hidden, log = _hidden(report, plan.settings.export), Path(env["TMPDIR"]) / "export.txt"
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


def _summary(plan: Plan) -> dict[str, Any] | None:
    """What a preset measured itself; None for other programs, and where it wrote nothing readable."""
    if plan.preset is None:
        return None
    try:
        content: dict[str, Any] = json.loads((plan.folder / "summary.json").read_text())
    except (OSError, ValueError):
        return None
    return content


_PUSH_POP, _START_END, _ERROR = 59, 60, 3
"""NVTX event types of ranges, and nsys's severity of an error (``queries/nvtx.sql``, ``queries/diagnostics.sql``)."""


@dataclass(frozen=True)
class _Contents:
    """What the exports hold besides GPU events: ranges, the processes that opened them, and nsys's complaints.

    Complaints go into files as far as they can be shown to anybody; the errors are whole, for whoever captures.
    """

    ranges: int
    processes: int
    diagnostics: tuple[str, ...]
    errors: tuple[str, ...]


def _inspect(exports: Sequence[Path]) -> _Contents:
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
    return _Contents(
        ranges,
        len(opened_by),
        diagnostics=tuple(dict.fromkeys(public(str(message["text"])) for message in messages)),
        errors=tuple(str(message["text"]) for message in messages if message["severity"] >= _ERROR),
    )


def _unreadable(error: ReportError) -> Failure:
    return Failure(
        "incomplete_report", f"the export cannot be read: {error}", do="capture again; the report is kept"
    )


def _verdict(
    plan: Plan, exports: Sequence[Path], contents: _Contents, record: _Record
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
        _readme(plan, "Captured and exported, but the analysis failed.")
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


def _cpu_verdict(contents: _Contents) -> str:
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


_SUMMARY = (
    "options",
    "world_size",
    "device",
    "bucket_cap_mib",
    "layout_bytes",
    "has_rebuilt",
    "enough_samples",
    "failed_checks",
    "ok",
)
"""What run.json repeats of a workload's summary: how DDP was set up, and whether it did as expected."""


class _Record:
    """run.json while it grows."""

    def __init__(self, plan: Plan, machine: provenance.Machine) -> None:
        self.plan = plan
        self.machine = machine
        self.started = datetime.now(timezone.utc)
        self.steps: list[dict[str, Any]] = []
        self.diagnostics: tuple[str, ...] = ()

    def ended(self, what: str, ended: processes.Ended) -> None:
        """Note the exit state of one command (``exit_code`` null: the time limit ended it)."""
        self.steps.append({"what": what, "exit_code": ended.returncode, "seconds": round(ended.seconds, 3)})

    def write(self, kind: str, message: str, *, ranks: tuple[int, ...] = ()) -> None:
        """Write the file with this outcome and the hashes of all other files of the folder."""
        plan, base, summary = self.plan, Path.cwd(), _summary(self.plan)
        nsys = plan.nsys.version if plan.nsys else None
        exports = [plan.export(report) for report in plan.reports()] if plan.nsys else []
        files = provenance.hash_files(plan.folder)
        files.pop("run.json", None)
        content = {
            "format": "nsysddp run 1",
            "name": plan.name,
            "repeat": plan.repeat,
            "started_utc": self.started.isoformat(timespec="seconds"),
            "outcome": {
                "kind": kind,
                "message": message,
                "ranks": list(ranks),
                "exit_states": self.steps,
            },
            "diagnostics": list(self.diagnostics),
            "command": {
                "profile": command.public_argv(plan.profile(), base=base),
                "export": [command.public_argv(argv, base=base) for argv in exports],
            },
            "configuration": {
                "preset": plan.preset.name if plan.preset else None,
                "ranks": plan.ranks,
                **asdict(plan.settings),
                **plan.variables,
            },
            "workload": {name: summary[name] for name in _SUMMARY if name in summary} if summary else None,
            "git": provenance.git_state(base),
            "versions": {"nsysddp": nsysddp.__version__, "nsys": nsys, **self.machine.versions},
            "gpus": list(self.machine.gpus),
            "topology": self.machine.topology,
            "environment": {**provenance.public_environment(os.environ), **ADDED_ENVIRONMENT},
            "files": files,
        }
        provenance.write_json(plan.folder / "run.json", content)


def _readme(plan: Plan, verdict: str) -> None:
    what = plan.preset.shows if plan.preset else "a program of yours"
    listing = {
        "report*.nsys-rep": "what Nsight Systems recorded; opens in its GUI",
        "report*.sqlite": "its export, which nsysddp reads",
        "report*_pqtdir": "its export, which nsysddp reads",
        "report*.qdstrm": "a recording that still has to be imported",
        "records_rank*.jsonl": "what each rank measured itself: one line an iteration",
        "summary.json": "the same summed up, and whether the replicas are equal",
        "stacks.txt": "where every rank was at the time limit",
        "log.txt": "what nsys and the program printed",
        "run.json": "command, configuration, versions, GPUs, exit states, hashes of the files",
    }
    files = [f"- `{name}`: {text}" for name, text in listing.items() if any(plan.folder.glob(name))]
    exports = sorted(plan.folder.glob(f"report*{command.EXPORT_ENDINGS[plan.settings.export]}"))
    again = f"    nsysddp analyze {' '.join(path.name for path in exports)}"
    lines = [
        f"# {plan.name}, repeat {plan.repeat}",
        "",
        f"Captured by nsysddp {nsysddp.__version__}: {what}.",
        "",
        "## Verdict",
        "",
        *(f"    {line}".rstrip() for line in verdict.strip().splitlines()),
        "",
        "## Files",
        "",
        *files,
        "",
        "The reports and the log hold the environment and the command line of the run: `nsysddp redact` them before",
        "you hand them on.",
        *(["", "## Analyse it again", "", again] if exports else []),
    ]
    (plan.folder / "README.md").write_text("\n".join(lines) + "\n")
