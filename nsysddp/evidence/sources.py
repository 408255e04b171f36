"""Which runs were given, from which files, and what do they say? What comparison, claims and bundle all start from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsysddp.ingest.columnar import exports_in, is_export, table_files
from nsysddp.model.errors import AnalysisError, CaptureError, NotAReport, ReportError, UsageError
from nsysddp.model.inputs import read_text
from nsysddp.model.markers import DEFAULT_PHASE_PATTERNS, DEFAULT_STEP_PATTERN
from nsysddp.model.names import visible
from nsysddp.model.scratch import scratch_folder
from nsysddp.model.units import NS_PER_US, ms

if TYPE_CHECKING:
    import polars as pl

    from nsysddp.model.result import Result
    from nsysddp.questions import Context
    from nsysddp.questions.compare.run import Run
    from nsysddp.questions.request import Request as Asked
    from nsysddp.questions.steps import Selection

REPORTS = (".sqlite", ".sqlite.gz", ".sqlite.zst", ".nsys-rep")
"""Endings of a report in a folder, the one to prefer first."""

_USABLE = ("ok", "checks_failed")


@dataclass(frozen=True)
class Source:
    """One run as files.

    Attributes:
        name: for messages and tables: the base name of its folder or report, or the base names of its reports.
        reports: the reports, one or one a rank.
        extra: run.json, records and summary of a capture.
    """

    name: str
    reports: tuple[Path, ...]
    extra: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """Everything that is read."""
        return (*self.reports, *self.extra)


@dataclass(frozen=True)
class Where:
    """Where reports are read, and what was read of them kept; it changes no number.

    Attributes:
        jobs: processes that read them; None: as many as suit them.
        scheduler: address of a dask scheduler whose workers do, or ``local:N``.
        cache: folder in which what was read is kept and used again.
    """

    jobs: int | None = None
    scheduler: str | None = None
    cache: Path | None = None


USUAL = Where()
"""In as many processes as suit the reports, and kept nowhere."""


@dataclass(frozen=True)
class Reading:
    """How reports are read and which part of them is taken; everything that changes a number.

    Attributes:
        per: ``step`` or ``capture``.
        from_ns, to_ns: cut on the common axis; None is open.
        first_step, last_step: half-open range of step_index; None is open.
        skip_warmup: leading steps left out.
        step_pattern, phase_patterns: which ranges are steps and phases, the latter beside the default ones.
        clock_tolerance_ns: clock residual up to which wait and transfer are told apart.
        rules: kernel rules before the shipped ones, as text; None without.
    """

    per: str = "step"
    from_ns: int | None = None
    to_ns: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    skip_warmup: int = 0
    step_pattern: str = DEFAULT_STEP_PATTERN
    phase_patterns: Mapping[str, str] = field(default_factory=dict)
    clock_tolerance_ns: int = 100_000
    rules: str | None = None

    def __post_init__(self) -> None:
        """A phase given as it is anyway is not given."""
        own = {
            name: pattern
            for name, pattern in self.phase_patterns.items()
            if DEFAULT_PHASE_PATTERNS.get(name) != pattern
        }
        object.__setattr__(self, "phase_patterns", own)

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    def asked(self, command: str, question: str, options: Mapping[str, Any]) -> Asked:
        """The record of what was asked of runs that are read so."""
        from nsysddp.questions.request import Request

        return Request(
            command=command,
            question=question,
            selection=self.selection,
            step_pattern=self.step_pattern,
            phase_patterns={**DEFAULT_PHASE_PATTERNS, **self.phase_patterns},
            rules_sha256=None if self.rules is None else hashlib.sha256(self.rules.encode()).hexdigest(),
            clock_tolerance_ns=self.clock_tolerance_ns,
            options=options,
        )

    @classmethod
    def of(cls, asked: Asked, rules: str | None) -> Reading:
        """How it was read, by the record of what was asked.

        Args:
            asked: the record.
            rules: the text of which it holds the hash.

        Raises:
            ValueError: the rules are not those.
        """
        digest = None if rules is None else hashlib.sha256(rules.encode()).hexdigest()
        if digest != asked.rules_sha256:
            raise ValueError("rules of another hash")
        return cls(
            **asdict(asked.selection),
            step_pattern=asked.step_pattern,
            phase_patterns=asked.phase_patterns,
            clock_tolerance_ns=asked.clock_tolerance_ns,
            rules=rules,
        )

    @property
    def options(self) -> list[str]:
        """The options of the command line that ask for it; of rules only that there are some."""
        default = Reading()
        first, last = ("" if bound is None else str(bound) for bound in (self.first_step, self.last_step))
        spelled = (
            ("--per", self.per if self.per != default.per else None),
            ("--from", None if self.from_ns is None else f"{ms(self.from_ns):.6f}"),
            ("--to", None if self.to_ns is None else f"{ms(self.to_ns):.6f}"),
            ("--steps", f"{first}:{last}" if first or last else None),
            ("--skip-warmup", str(self.skip_warmup) if self.skip_warmup else None),
            ("--step-pattern", self.step_pattern if self.step_pattern != default.step_pattern else None),
            *(("--phase-pattern", f"{name}={pattern}") for name, pattern in self.phase_patterns.items()),
            (
                "--clock-tolerance",
                f"{self.clock_tolerance_ns / NS_PER_US:g}"
                if self.clock_tolerance_ns != default.clock_tolerance_ns
                else None,
            ),
            ("--rules", None if self.rules is None else "rules.toml"),
        )
        return [word for name, value in spelled if value is not None for word in (name, value)]

    @property
    def selection(self) -> Selection:
        """The part of a run."""
        from nsysddp.questions.steps import Selection

        return Selection(
            self.per, self.from_ns, self.to_ns, self.first_step, self.last_step, self.skip_warmup
        )


@dataclass(frozen=True)
class File:
    """One file that a run was read from: base name, size, SHA-256."""

    name: str
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> File:
        """What the file is; of a folder that is an export, the size and hash of its tables together."""
        parts = table_files(path) if path.is_dir() else [path]
        return cls(visible(path.name), sum(part.stat().st_size for part in parts), sha256_of(path))


@dataclass(frozen=True)
class Recorded:
    """What a capture recorded beside its reports, fit to be shown to others.

    Attributes:
        facts: what has to be alike between runs; None without run.json.
        settings: how it was captured, from run.json; None without.
        measured: job metrics that the workload itself measured, one value a step.
    """

    facts: Mapping[str, str] | None
    settings: Mapping[str, Any] | None
    measured: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Loaded:
    """One run, read and analysed.

    Attributes:
        source: its files.
        files: what they are; of a redacted export, what the report was that it stands for.
        result: the tables, findings, assumptions and warnings of ``analyze``.
        more: the critical path, contention and idle causes, as far as the trace tells them.
        path: the critical path; None where the selection cuts time.
        context: what the analyses shared.
        recorded: what the capture recorded.
        run: what a comparison needs.
    """

    source: Source
    files: tuple[File, ...]
    result: Result
    more: Mapping[str, pl.DataFrame]
    path: Result | None
    context: Context
    recorded: Recorded
    run: Run


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, or of an export that is a folder.

    Raises:
        ReportError: it cannot be read, or is a pipe.
    """
    from nsysddp.ingest import hashing
    from nsysddp.ingest.report import refuse_pipe

    refuse_pipe(path)
    try:
        return hashing.sha256_of(path)
    except OSError as error:
        raise ReportError(f"cannot be read: {error.strerror}", file=path) from error


def folder_sources(folder: Path) -> list[Source]:
    """The runs in a folder: the capture that it is, the captures below it, or the reports of one run.

    Raises:
        CaptureError: a capture did not end well.
        NotAReport: there is nothing to read.
    """
    if not (folder / "run.json").is_file():
        captures = sorted((path.parent for path in folder.glob("*/run.json")), key=_natural)
        if captures:
            return [source for capture in captures for source in folder_sources(capture)]
        return [Source(folder.resolve().name, _reports(folder))]
    outcome = (read_capture(folder / "run.json").get("outcome") or {}).get("kind")
    if outcome not in _USABLE:
        raise CaptureError(
            f"this capture ended as {outcome}", file=folder, do="capture it again, or leave it out"
        )
    extra = [folder / "run.json", folder / "summary.json", *sorted(folder.glob("records_rank*.jsonl"))]
    return [Source(folder.resolve().name, _reports(folder), tuple(path for path in extra if path.is_file()))]


def _natural(path: Path) -> list[tuple[int, str]]:
    import re

    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _reports(folder: Path) -> tuple[Path, ...]:
    files = sorted((path for path in folder.iterdir() if path.is_file()), key=_natural)
    by_form = [[path for path in files if path.name.endswith(ending)] for ending in REPORTS]
    by_form.insert(-1, exports_in(folder))  # rather than to export the .nsys-rep beside them again
    found = next((some for some in by_form if some), None)
    if found is None:
        raise NotAReport(
            "holds neither run.json nor a report", file=folder, do="give a capture folder or reports"
        )
    return tuple(found)


def _is_report(path: Path) -> bool:
    return not path.is_dir() or is_export(path)


def ranks_of_one_run(paths: Sequence[Path]) -> list[Source]:
    """Sources of paths of which reports together are the ranks of one run, and each folder is one run or several."""
    _must_exist(paths)
    reports = tuple(path for path in paths if _is_report(path))
    made = [source for path in paths if not _is_report(path) for source in folder_sources(path)]
    if reports:
        made.insert(0, Source(", ".join(path.name for path in reports), reports))
    return _distinct(made)


def repeats(paths: Sequence[Path]) -> list[Source]:
    """Sources of paths of which each report is a run of its own, and each folder is one run or several."""
    _must_exist(paths)
    made = [
        source
        for path in paths
        for source in ([Source(path.name, (path,))] if _is_report(path) else folder_sources(path))
    ]
    return _distinct(made)


def _must_exist(paths: Sequence[Path]) -> None:
    for path in paths:
        if not path.exists():
            raise NotAReport("there is no such file or folder", file=path)


def _distinct(made: list[Source]) -> list[Source]:
    """The sources under names of their own: a second of one name gets its number."""
    seen: dict[str, int] = {}
    named = []
    for source in made:
        name = visible(source.name)
        number = seen[name] = seen.get(name, 0) + 1
        named.append(replace(source, name=name if number == 1 else f"{name} ({number})"))
    return named


def read_capture(path: Path) -> dict[str, Any]:
    """run.json of a capture.

    Raises:
        CaptureError: it is none.
    """
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError) as error:
        raise CaptureError(f"not a readable run.json ({type(error).__name__})", file=path) from None
    if not isinstance(content, dict) or not str(content.get("format", "")).startswith("nsysddp run "):
        raise CaptureError("not the run.json of a capture", file=path, do="give the folder of a capture")
    return content


def load_all(sources: Iterable[Source], reading: Reading, where: Where = USUAL) -> list[Loaded]:
    """Read and analyse runs, one after the other.

    Raises:
        UsageError: two sides give one file twice; ReportError and CaptureError as when reading.
    """
    return [load_one(source, reading, where) for source in sources]


def load_one(
    source: Source,
    reading: Reading,
    where: Where = USUAL,
    *,
    stands_for: Sequence[File] = (),
    kept: Recorded | None = None,
) -> Loaded:
    """Read and analyse one run, with everything that its reports can tell.

    Args:
        source: its files.
        reading: how to read them.
        where: where to read them.
        stands_for: the files of the run in order, reports first; the reports to read are redacted copies of those and
            go by their names and hashes.
        kept: what the capture recorded, where its files are not there.

    Raises:
        UsageError, ReportError, CaptureError: as of reading and analysing.
    """
    from nsysddp.join.load import load
    from nsysddp.questions.analysis import QUESTION
    from nsysddp.questions.compare.run import run_of
    from nsysddp.questions.context import context_of

    with scratch_folder() as scratch:
        rules = None
        if reading.rules is not None:
            rules = scratch / "rules.toml"
            rules.write_text(reading.rules, encoding="utf-8")
        trace = load(
            source.reports,
            rules=rules,
            step_pattern=reading.step_pattern,
            phase_patterns=reading.phase_patterns,
            clock_tolerance_ns=reading.clock_tolerance_ns,
            launches=True,
            host_calls=True,
            shapes=True,
            jobs=where.jobs,
            scheduler=where.scheduler,
            cache=where.cache,
        )
    if stands_for:
        originals = stands_for[: len(source.reports)]
        names = {visible(path.name): file.name for path, file in zip(source.reports, originals, strict=True)}
        inputs = tuple(
            replace(one, name=file.name, sha256=file.sha256)
            for one, file in zip(trace.inputs, originals, strict=True)
        )
        ranks = trace.ranks.with_columns(trace.ranks["report"].replace(names))
        trace = replace(trace, inputs=inputs, ranks=ranks)
    context = context_of(trace, reading.selection)
    result = QUESTION.answer(context)
    path, more = _more(context, result)
    kept = recorded(source) if kept is None else kept
    return Loaded(
        source=source,
        files=tuple(stands_for) or tuple(File.of(path) for path in source.files),
        result=result,
        more=more,
        path=path,
        context=context,
        recorded=kept,
        run=run_of(source.name, {**result.tables, **more}, facts=kept.facts, measured=kept.measured),
    )


def _more(context: Context, result: Result) -> tuple[Result | None, dict[str, pl.DataFrame]]:
    """The critical path, and the tables of the further analyses that a comparison uses."""
    from nsysddp.questions.critical_path import critical_path

    tables = {
        "contention_step": context.contention["contention_step"],
        "idle_step": context.idle["idle_step"],
    }
    selection = context.selection
    if selection.from_ns is not None or selection.to_ns is not None:
        # Its windows are its own, and a cut in time would not be theirs.
        return None, tables
    whole = not result["overlap"]["step_index"].drop_nulls().len()
    path = critical_path(
        context.trace,
        "capture" if whole else "step",
        first_step=0 if whole else max(selection.first_step or 0, selection.skip_warmup),
        last_step=None if whole else selection.last_step,
        graph=context.graph,
        attribution=context.attribution,
    )
    return path, tables | {name: path[name] for name in ("critical_path_step", "critical_path_kind")}


_SETTINGS = ("name", "repeat", "configuration", "workload", "versions", "gpus", "environment", "git")
"""Keys of run.json that go into evidence; its command line can hold what is nobody else's business."""


def recorded(source: Source) -> Recorded:
    """What did the capture record beside the reports?

    Raises:
        CaptureError: one of its files cannot be read.
    """
    from nsysddp.questions.compare.facts import facts_of

    measured = _measured(source)
    capture = next((read_capture(path) for path in source.extra if path.name == "run.json"), None)
    if capture is None:
        return Recorded(None, None, measured)
    settings = {key: capture[key] for key in _SETTINGS if capture.get(key) is not None}
    return Recorded(facts_of(capture), settings, measured)


def _measured(source: Source) -> dict[str, list[float]]:
    """Job metrics that the workload itself recorded; empty where it recorded none."""
    from nsysddp.ingest.measured import job_steps

    found: dict[str, list[float]] = {}
    records = [path for path in source.extra if path.name.startswith("records_rank") and path.stat().st_size]
    if records:
        # Records without measured steps of all ranks are no fault of the capture: the step is then the profiled one.
        with suppress(AnalysisError):
            found["measured_step_ns"] = [float(step) for step in job_steps(records[0].parent)]
    for path in source.extra:
        if path.name == "summary.json":
            try:
                ranks = json.loads(read_text(path)).get("ranks") or []
                rates = [float(rank["throughput"]["per_rank"]) for rank in ranks if "throughput" in rank]
            except (ValueError, TypeError, KeyError, AttributeError):
                raise CaptureError("not a readable summary of a workload", file=path) from None
            if rates and len(rates) == len(ranks):
                found["throughput"] = [min(rates)]
    return found


def check_alike(base: Sequence[Source], new: Sequence[Source]) -> None:
    """Refuse a report that is on both sides, or twice on one: it would be compared with itself.

    Raises:
        UsageError: there is one.
    """
    seen: dict[str, str] = {}
    for source in (*base, *new):
        for path in source.reports:
            digest = sha256_of(path)
            if digest in seen:
                raise UsageError(
                    f"the same report is given twice ({seen[digest]} and {source.name})",
                    do="every repeat is a capture of its own",
                )
            seen[digest] = source.name
