"""Options that several commands share, and how they become a Trace and a Selection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsysddp.execute import Place
from nsysddp.ingest.given import named_by, reports_given
from nsysddp.ingest.hashing import hash_ahead
from nsysddp.model.errors import UsageError
from nsysddp.model.markers import DEFAULT_STEP_PATTERN
from nsysddp.model.units import ns_from_ms, ns_from_us

if TYPE_CHECKING:
    from nsysddp.model.trace import Trace
    from nsysddp.questions.context import Context
    from nsysddp.questions.question import Question
    from nsysddp.questions.steps import Selection

_LONGEST_MS = 1e12
"""Thirty years."""

INCOMPLETE = "nsysddp.incomplete"
"""Key of click's ``meta`` that is set where reports are missing in what was answered."""

Command = Callable[..., Any]


@dataclass(frozen=True)
class Request:
    """What the shared options say: which reports, read how, and which part of them."""

    reports: tuple[Path, ...]
    per: str
    from_ms: float | None
    to_ms: float | None
    steps: str | None
    skip_warmup: int
    step_pattern: str
    phase_patterns: Mapping[str, str]
    rules: Path | None
    clock_tolerance_us: float
    jobs: int | None = None
    scheduler: str | None = None
    cache: Path | None = None
    strict: bool = False

    @property
    def inputs(self) -> tuple[Path, ...]:
        """Every file that is read, as it was given."""
        return self.reports if self.rules is None else (*self.reports, self.rules)

    def load(
        self,
        *,
        launches: bool | None = None,
        host_calls: bool = False,
        shapes: bool = False,
        metrics: bool = False,
    ) -> Trace:
        """Read the reports, with progress on a terminal; what to read as in ``ingest.load.load``."""
        from nsysddp.join.load import load

        with self._how() as how:
            trace = load(
                self.reports,
                **how,
                launches=self.per == "step" if launches is None else launches,
                host_calls=host_calls,
                shapes=shapes,
                metrics=metrics,
            )
        self.note_missing(trace)
        return trace

    @contextmanager
    def context(self, asked: Question, selection: Selection) -> Iterator[Context]:
        """What a question is asked of; a run stays in shares where its answer is made of ranks apart."""
        # A question that can do without launches needs them for steps only.
        reads = dict.fromkeys(asked.reads, True) or {"launches": self.per == "step"}
        if not asked.rankwise:
            from nsysddp.questions.context import context_of

            yield context_of(self.load(**reads), selection)
            return
        from nsysddp.join.apart import load_apart
        from nsysddp.questions.apart import context_of_run

        with self._how() as how, load_apart(self.reports, **how, **reads) as run:
            context = context_of_run(run, selection)
            self.note_missing(context.trace)
            yield context

    @staticmethod
    def note_missing(trace: Trace) -> None:
        """Remember for the exit code that reports are missing."""
        if trace.missing:
            click.get_current_context().meta[INCOMPLETE] = True

    @contextmanager
    def _how(self) -> Iterator[dict[str, Any]]:
        """Arguments of ``load``, with progress on a terminal meanwhile."""
        from nsysddp.cli.progress import shown

        if not self.clock_tolerance_us < _LONGEST_MS:
            raise UsageError(
                f"--clock-tolerance {self.clock_tolerance_us:g} is no time", do="give microseconds"
            )
        with shown() as progress:
            yield {
                "rules": self.rules,
                "step_pattern": self.step_pattern,
                "phase_patterns": self.phase_patterns,
                "clock_tolerance_ns": ns_from_us(self.clock_tolerance_us),
                "progress": progress,
                "jobs": self.jobs,
                "scheduler": self.scheduler,
                "cache": self.cache,
                "strict": self.strict,
            }

    def selection(self) -> Selection:
        """The part of the run that is asked for."""
        from nsysddp.questions.steps import Selection

        first, last = _step_range(self.steps)
        for name, value in (("--from", self.from_ms), ("--to", self.to_ms)):
            if value is not None and not abs(value) < _LONGEST_MS:
                raise UsageError(f"{name} {value:g} is no time", do="give milliseconds since session start")
        return Selection(
            per=self.per,
            from_ns=None if self.from_ms is None else ns_from_ms(self.from_ms),
            to_ns=None if self.to_ms is None else ns_from_ms(self.to_ms),
            first_step=first,
            last_step=last,
            skip_warmup=self.skip_warmup,
        )


_OPTIONS = (
    click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="REPORT..."),
    click.option(
        "--per",
        type=click.Choice(["step", "capture"]),
        default="step",
        show_default=True,
        help="Window of a row.",
    ),
    click.option(
        "--from",
        "from_ms",
        type=float,
        metavar="MS",
        help="Leave out what is before (ms since session start).",
    ),
    click.option("--to", "to_ms", type=float, metavar="MS", help="Leave out what is after."),
    click.option("--steps", metavar="A:B", help="Half-open range of step_index, e.g. 2:5 or 3:."),
    click.option(
        "--skip-warmup",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Leave out the first N steps.",
    ),
    click.option(
        "--step-pattern",
        default=DEFAULT_STEP_PATTERN,
        metavar="REGEX",
        help="Names of step ranges (full match).",
    ),
    click.option(
        "--phase-pattern",
        "phase_pattern",
        multiple=True,
        metavar="NAME=REGEX",
        help="A phase by the names of its ranges; repeatable.",
    ),
    click.option(
        "--rules",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Kernel rules (TOML) before the shipped.",
    ),
    click.option(
        "--clock-tolerance",
        "clock_tolerance_us",
        type=click.FloatRange(min=0),
        default=100.0,
        show_default=True,
        metavar="US",
        help="Clock residual up to which wait and transfer are told apart.",
    ),
)


def selection_options(command: Command) -> Command:
    """Add REPORT... and the options that choose windows; the command gets one ``request``."""
    from functools import wraps

    @wraps(command)
    def with_request(
        *args: Any,
        reports: tuple[Path, ...],
        per: str,
        from_ms: float | None,
        to_ms: float | None,
        steps: str | None,
        skip_warmup: int,
        step_pattern: str,
        phase_pattern: tuple[str, ...],
        rules: Path | None,
        clock_tolerance_us: float,
        **kwargs: Any,
    ) -> Any:
        request = Request(
            reports=reports,
            per=per,
            from_ms=from_ms,
            to_ms=to_ms,
            steps=steps,
            skip_warmup=skip_warmup,
            step_pattern=step_pattern,
            phase_patterns=_phases(phase_pattern),
            rules=rules,
            clock_tolerance_us=clock_tolerance_us,
        )
        return command(*args, request=request, **kwargs)

    wrapped: Command = with_request
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


_READING = (
    click.option(
        "--jobs",
        type=click.IntRange(min=1, max=1024),
        metavar="N",
        help="Read reports in N processes (default: as many as cores, where there is enough to read).",
    ),
    click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="Read reports on the workers of this dask scheduler, or of one with N workers here (local:N).",
    ),
    click.option(
        "--cache",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Keep what was read of reports there, and use it again.",
    ),
)


def reading_options(command: Command) -> Command:
    """As ``selection_options``, and where reports are read; lists and patterns are what they name."""
    from functools import wraps

    @wraps(command)
    def with_place(
        *args: Any,
        request: Request,
        jobs: int | None,
        scheduler: str | None,
        cache: Path | None,
        **kwargs: Any,
    ) -> Any:
        reports = tuple(named for path in request.reports for named in named_by(path))
        Place.of(jobs, scheduler, ())  # two places are refused before anything is read
        request = replace(request, reports=reports, jobs=jobs, scheduler=scheduler, cache=cache)
        return command(*args, request=request, **kwargs)

    wrapped: Command = with_place
    for option in reversed(_READING):
        wrapped = option(wrapped)
    return selection_options(wrapped)


def run_options(command: Command) -> Command:
    """As ``reading_options``, for a command whose reports are of one run: folders of them, and what cannot be read."""
    from functools import wraps

    @wraps(command)
    def with_reports(*args: Any, request: Request, strict: bool, **kwargs: Any) -> Any:
        reports = tuple(reports_given(request.reports))
        if Place.of(request.jobs, request.scheduler, reports).is_here:
            hash_ahead(reports)  # while the libraries are imported one core idles
        return command(*args, request=replace(request, reports=reports, strict=strict), **kwargs)

    return reading_options(
        click.option(
            "--strict", is_flag=True, help="Fail if a report cannot be read, instead of going on without it."
        )(with_reports)
    )


def _phases(given: tuple[str, ...]) -> dict[str, str]:
    made = {}
    for text in given:
        name, equals, pattern = text.partition("=")
        if not equals or not name or not pattern:
            raise UsageError(f"--phase-pattern {text!r} is not NAME=REGEX")
        made[name] = pattern
    return made


def _step_range(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    found = re.fullmatch(r"(\d*):(\d*)", text)
    if not found:
        raise UsageError(f"--steps {text!r} is not A:B", do="write 2:5, 3: or :4")
    first, last = (int(part) if part else None for part in found.groups())
    if first is not None and last is not None and last <= first:
        raise UsageError(f"--steps {text} is empty", do="the range is half-open: 2:3 is step 2")
    return first, last
