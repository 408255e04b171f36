"""Is the new side faster than the base, by how much, how sure is that, and what changed in the step?

A side is a set of runs (repeats). Every metric is compared on its own: for the job as a whole where it has one value a
step, else on each rank; nothing is averaged over ranks. For the statistics see ``statistics``.

    step_ns[run, step] = max over ranks of W[run, rank, step]       (a job's step lasts as long as on its slowest rank)

The account of a rank adds up what its window is made of, in means over steps and then over runs, since means add up and
medians do not::

    d window = d compute + d exposed_transfer + d exposed_wait + d exposed_unsplit + d memory + d graph + d idle

Where it is known, what communication beside it cost computation is taken out of compute as *contention*, and the idle
time in which the GPU lacked work because the host was late or blocked is taken out of idle as *host*. The account of
the job does the same with the pieces of its critical path. All are exact: integers that sum to the whole, asserted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import polars as pl

from nsysddp.model.errors import AnalysisError, CannotTell, UsageError
from nsysddp.model.names import counted, ranks_text
from nsysddp.model.schema import FLAG, FLOAT, INT, TEXT, Column, Table
from nsysddp.questions.statistics import MIN_RUNS, Difference, Floats, difference
from nsysddp.questions.steps import steady

Better = Literal["lower", "higher", "neither"]


@dataclass(frozen=True)
class Metric:
    """One thing that is compared: name, unit, which way is better, and what it is."""

    name: str
    unit: str
    better: Better
    meaning: str


JOB_METRICS = (
    Metric(
        "measured_step_ns", "ns", "lower", "step by the workload's own clock, unprofiled steps, slowest rank"
    ),
    Metric("step_ns", "ns", "lower", "profiled step window of the slowest rank"),
    Metric(
        "throughput",
        "per s",
        "higher",
        "what the workload counted per second (tokens, samples), slowest rank",
    ),
    Metric("critical_communication_ns", "ns", "lower", "communication on the critical path over all ranks"),
)
"""Metrics of the job as a whole, the one that decides the verdict first."""

RANK_METRICS = (
    Metric("window_ns", "ns", "lower", "step window"),
    Metric("backward_ns", "ns", "lower", "span of the GPU events launched in backward"),
    Metric("compute_ns", "ns", "neither", "computation"),
    Metric("hidden_transfer_ns", "ns", "higher", "transfer under computation: what overlap saved"),
    Metric("exposed_transfer_ns", "ns", "lower", "transfer without computation"),
    Metric("hidden_wait_ns", "ns", "neither", "waiting for later ranks under computation"),
    Metric("exposed_wait_ns", "ns", "lower", "waiting for later ranks without computation"),
    Metric("exposed_communication_ns", "ns", "lower", "communication without computation"),
    Metric("tail_communication_ns", "ns", "lower", "communication after the last backward computation"),
    Metric("exposed_memory_ns", "ns", "lower", "copies and memsets alone"),
    Metric("contention_ns", "ns", "lower", "computation that communication beside it cost"),
    Metric("idle_ns", "ns", "lower", "nothing ran"),
    Metric("kernels", "count", "neither", "kernels launched in the step"),
)
"""Metrics of each rank."""

METRICS: dict[str, Metric] = {metric.name: metric for metric in (*JOB_METRICS, *RANK_METRICS)}

_SPEED = ("measured_step_ns", "step_ns", "throughput", "window_ns", "backward_ns")
"""Of these, better is called faster."""

COMPARISON = Table(
    "comparison",
    "one metric of the job or of one rank, base against new",
    (
        Column("metric", TEXT, "name of the metric"),
        Column("rank", INT, "rank; null: the job"),
        Column("unit", TEXT, "unit of all values of the row"),
        Column("base", FLOAT, "mean over the base runs of a run's median step"),
        Column("new", FLOAT, "the same of the new runs"),
        Column("difference", FLOAT, "new - base"),
        Column("change_ratio", FLOAT, "difference / base; null when base is 0"),
        Column(
            "low", FLOAT, "lower end of the 95 % interval of the difference; null where the data allows none"
        ),
        Column("high", FLOAT, "its upper end"),
        Column("detectable", FLOAT, "smallest difference that this data would have shown (4 times of 5)"),
        Column("scope", TEXT, "runs: holds for further runs; these_runs: only for the runs measured; none"),
        Column("verdict", TEXT, "faster, slower, lower, higher, no difference shown, or not enough data"),
        Column("base_runs", INT, "runs of the base"),
        Column("new_runs", INT, "runs of the new side"),
        Column("base_steps", INT, "steady steps of all base runs"),
        Column("new_steps", INT, "the same of the new side"),
        Column("reason", TEXT, "why a value or verdict is missing; null otherwise"),
    ),
)

ACCOUNT = Table(
    "account",
    "one part of a step, base against new; the parts of one (view, rank) sum to its 'step' row exactly",
    (
        Column("view", TEXT, "window: time on the rank's GPU; critical_path: what the job's step hung on"),
        Column("rank", INT, "rank; null: the job"),
        Column("part", TEXT, "step (the whole), or what it is made of"),
        Column("base_ns", INT, "mean over steps, then over runs"),
        Column("new_ns", INT, "the same of the new side"),
        Column("change_ns", INT, "new_ns - base_ns"),
    ),
)

MATRIX = Table(
    "matrix",
    "one metric on one rank of one side, over the steady steps of all its runs",
    (
        Column("side", TEXT, "base or new"),
        Column("metric", TEXT, "name of the metric"),
        Column("rank", INT, "rank"),
        Column("steps", INT, "steps"),
        Column("median", FLOAT, "median"),
        Column("p95", FLOAT, "95th percentile, a value that occurred; null under 20 steps"),
        Column("p99", FLOAT, "99th percentile, a value that occurred; null under 100 steps"),
        Column("largest", FLOAT, "largest"),
        Column(
            "is_slowest",
            FLAG,
            "no rank of this side has a larger median, and some a smaller",
        ),
    ),
)

UNLIKE = Table(
    "unlike",
    "one thing besides the times in which the two sides, or the runs of one side, are not alike",
    (
        Column("what", TEXT, "what differs"),
        Column("base", TEXT, "its values in the base runs"),
        Column("new", TEXT, "its values in the new runs"),
        Column(
            "refused", FLAG, "a difference of this kind makes the comparison meaningless unless it is wanted"
        ),
    ),
)

TABLES = {table.name: table for table in (COMPARISON, ACCOUNT, MATRIX, UNLIKE)}

_MATRIX_METRICS = ("window_ns", "backward_ns", "exposed_transfer_ns", "exposed_wait_ns")
LEAST_STEPS = {0.95: 20, 0.99: 100}
"""Steps from which a percentile is told: under them it is the largest value under another name."""

WINDOW_PARTS = (
    "compute",
    "contention",
    "exposed_transfer",
    "exposed_wait",
    "exposed_unsplit",
    "memory",
    "graph",
    "host",
    "idle",
)
_OPTIONAL = ("contention", "host")
HOST_CAUSES = ("launch_late", "synchronisation", "allocation")
"""Causes of idle time (``schema.IDLE_CAUSES``) that make the part ``host``."""

PATH_PARTS: dict[str, tuple[str, ...]] = {
    "compute": ("compute", "spin"),
    "transfer": ("transfer",),
    "unmatched_communication": ("unmatched_communication",),
    "wait": ("wait",),
    "memory": ("memory",),
    "graph": ("graph",),
    "host": ("host", "host_gap", "sync"),
    "gap": ("gap", "queued"),
    "unknown": ("unknown",),
}
"""Parts of the critical path account, and the kinds of pieces in each."""

REFUSED = ("GPU", "ranks", "program", "backend", "warm-up", "nsys flags", "CUDA graph trace")
"""Sides that differ in one of these are not compared unless that is asked for."""

UNRECORDED = ("program", "warm-up", "seed", "nsys flags")
"""What only run.json of a capture tells."""


@dataclass(frozen=True)
class Run:
    """One repeat, reduced to what a comparison needs.

    Attributes:
        name: for messages.
        samples: steady steps by (metric, rank); rank None is the job.
        unknown: why a (metric, rank) has no samples although its table is there.
        windows: per rank, for each steady step ``step`` and the parts of its window in ns; ``contention`` and ``host``
            only where they are known (they are contained in ``compute`` and ``idle`` then, too).
        paths: for each steady step the parts of the job's critical path in ns; empty without host calls.
        facts: what has to be alike: name to value as text.
        recorded: whether run.json was there.
    """

    name: str
    samples: Mapping[tuple[str, int | None], Floats]
    unknown: Mapping[tuple[str, int | None], str]
    windows: Mapping[int, Sequence[Mapping[str, int]]]
    paths: Sequence[Mapping[str, int]]
    facts: Mapping[str, str]
    recorded: bool

    @property
    def ranks(self) -> list[int]:
        """All ranks in ascending order."""
        return sorted(self.windows)


@dataclass(frozen=True)
class Comparison:
    """The outcome: tables, what is unlike, and what to read it with.

    Attributes:
        base, new: names of the runs of each side.
        tables: ``comparison``, ``account``, ``matrix`` and ``unlike`` as in ``TABLES``.
        warnings: what limits the answer.
        assumptions: how it is to be read.
    """

    base: tuple[str, ...]
    new: tuple[str, ...]
    tables: Mapping[str, pl.DataFrame]
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...]
    runs: tuple[tuple[Run, ...], tuple[Run, ...]] = field(repr=False, compare=False)

    @property
    def headline(self) -> Mapping[str, Any]:
        """The row of ``comparison`` that decides: the first job metric that both sides have."""
        frame = self.tables["comparison"].filter(
            pl.col("rank").is_null() & pl.col("difference").is_not_null()
        )
        return frame.row(0, named=True)

    def difference(self, metric: str, rank: int | None, *, factor: float = 1.0) -> Difference | None:
        """``statistics.difference`` of one metric; None where a side does not have it."""
        sides = [[run.samples.get((metric, rank)) for run in side] for side in self.runs]
        known = [[steps for steps in side if steps is not None] for side in sides]
        if any(len(all_of) != len(some) for all_of, some in zip(sides, known, strict=True)):
            return None
        return difference(known[0], known[1], factor=factor)


def run_of(
    name: str,
    tables: Mapping[str, pl.DataFrame],
    *,
    facts: Mapping[str, str] | None = None,
    measured: Mapping[str, Sequence[float]] | None = None,
) -> Run:
    """What a comparison needs of one run.

    Args:
        name: for messages.
        tables: ``overlap`` and ``rank``; ``phase``, ``contention_step``, ``idle_step`` and the tables of
            ``critical_path`` where there are.
        facts: what the capture says of itself (``facts_of``); None without.
        measured: values of job metrics that the workload itself recorded, one a step.

    Raises:
        AnalysisError: the parts of a window do not sum to it.
    """
    overlap = steady(tables["overlap"])
    samples: dict[tuple[str, int | None], Floats] = {}
    unknown: dict[tuple[str, int | None], str] = {}
    overlap = _with_more(overlap, tables)
    for (rank,), part in overlap.group_by("rank", maintain_order=True):
        assert isinstance(rank, int)
        for metric in RANK_METRICS:
            column = part[metric.name]
            if column.null_count() == 0:
                samples[metric.name, rank] = column.to_numpy().astype(np.float64)
            else:
                unknown[metric.name, rank] = f"unknown in {column.null_count()} of {column.len()} steps"
    for rank in set(tables["rank"]["rank"]) - set(overlap["rank"]):
        unknown["window_ns", rank] = "no window of steps"
    ranks = overlap["rank"].n_unique()
    job = overlap.group_by("step_index", maintain_order=True).agg(
        pl.col("window_ns").max(), pl.col("rank").n_unique().alias("ranks")
    )
    complete = job.filter((pl.col("ranks") == ranks) & pl.col("step_index").is_not_null())
    if complete.height:
        samples["step_ns", None] = complete["window_ns"].to_numpy().astype(np.float64)
    else:
        unknown["step_ns", None] = "the trace shows no step of every rank"
    paths = _paths(tables)
    if paths:
        samples["critical_communication_ns", None] = np.array(
            [path["transfer"] + path["unmatched_communication"] for path in paths], np.float64
        )
    for metric_name, values in (measured or {}).items():
        if len(values):
            samples[metric_name, None] = np.asarray(values, np.float64)
    return Run(
        name=name,
        samples=samples,
        unknown=unknown,
        windows=_windows(overlap),
        paths=paths,
        facts={**_hardware(tables["rank"]), **(facts or {})},
        recorded=facts is not None,
    )


def _with_more(overlap: pl.DataFrame, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The windows with ``backward_ns`` (spans on the GPU), ``contention_ns`` and ``host_ns``; null where unknown."""
    key = ["rank", "step_index"]
    if "phase" in tables:
        spans = (
            tables["phase"]
            .filter((pl.col("phase") == "backward") & pl.col("gpu_start_ns").is_not_null())
            .group_by("rank", "step")
            .agg((pl.col("gpu_end_ns") - pl.col("gpu_start_ns")).sum().alias("backward_ns"))
        )
        overlap = overlap.join(spans, on=["rank", "step"], how="left", maintain_order="left")
    if "contention_step" in tables:
        cost = tables["contention_step"].select(*key, "contention_ns")
        overlap = overlap.join(cost, on=key, how="left", nulls_equal=True, maintain_order="left")
    if "idle_step" in tables:
        late = (
            tables["idle_step"]
            .filter(pl.col("cause").cast(pl.String).is_in(HOST_CAUSES))
            .group_by(key)
            .agg(pl.col("idle_ns").sum().alias("host_ns"))
        )
        overlap = overlap.join(late, on=key, how="left", nulls_equal=True, maintain_order="left")
        overlap = overlap.with_columns(pl.col("host_ns").fill_null(0))
    absent = [name for name in ("backward_ns", "contention_ns", "host_ns") if name not in overlap.columns]
    return overlap.with_columns(pl.lit(None, pl.Int64).alias(name) for name in absent)


def _windows(overlap: pl.DataFrame) -> dict[int, list[dict[str, int]]]:
    """The parts of every window; they sum to it.

    Where whole CUDA graphs hide what is communication, exposed communication is what the other parts leave.
    """
    found: dict[int, list[dict[str, int]]] = {}
    for row in overlap.iter_rows(named=True):
        parts = {
            "compute": row["compute_ns"],
            "exposed_transfer": row["exposed_transfer_ns"] or 0,
            "exposed_wait": row["exposed_wait_ns"] or 0,
            "memory": row["exposed_memory_ns"],
            "graph": row["graph_ns"],
            "idle": row["idle_ns"],
        }
        parts["exposed_unsplit"] = row["window_ns"] - sum(parts.values())
        known = row["exposed_communication_ns"]
        split = parts["exposed_transfer"] + parts["exposed_wait"] + parts["exposed_unsplit"]
        if parts["exposed_unsplit"] < 0 or (known is not None and split != known):
            raise AnalysisError(
                f"the parts of rank {row['rank']}'s {row['step'] or 'capture'} do not sum to it"
            )
        more = {part: row[f"{part}_ns"] for part in _OPTIONAL if row[f"{part}_ns"] is not None}
        found.setdefault(row["rank"], []).append({"step": row["window_ns"], **parts, **more})
    return found


def _taken_out(
    runs: Sequence[Sequence[Mapping[str, int]]], parts: Mapping[str, str]
) -> list[list[dict[str, int]]]:
    """The windows with the parts that every one knows taken out of what contains them."""
    return [
        [
            {
                **{name: value for name, value in step.items() if name not in _OPTIONAL},
                **{holder: step[holder] - step[part] for part, holder in parts.items()},
                **{part: step[part] for part in parts},
            }
            for step in steps
        ]
        for steps in runs
    ]


def _paths(tables: Mapping[str, pl.DataFrame]) -> list[dict[str, int]]:
    """Parts of the job's critical path of each steady step; of tied ranks the longest path."""
    if "critical_path_step" not in tables:
        return []
    steps = tables["critical_path_step"]
    kept = steps.filter(~pl.col("is_warmup"))
    steps = (kept if kept.height else steps).sort(
        ["step_index", "path_ns", "path_rank"], descending=[False, True, False]
    )
    found = []
    for row in steps.unique("step_index", keep="first", maintain_order=True).iter_rows(named=True):
        mine = tables["critical_path_kind"].filter(
            pl.col("step_index").eq_missing(row["step_index"]) & (pl.col("path_rank") == row["path_rank"])
        )
        kinds = {str(kind): int(length) for kind, length in mine.select("kind", "duration_ns").iter_rows()}
        parts = {part: sum(kinds.pop(kind, 0) for kind in kinds_of) for part, kinds_of in PATH_PARTS.items()}
        if kinds or sum(parts.values()) != row["path_ns"]:
            raise AnalysisError(
                f"the pieces of the critical path of {row['step'] or 'the capture'} do not sum to it"
            )
        found.append({"step": row["path_ns"], **parts})
    return found


def _hardware(ranks: pl.DataFrame) -> dict[str, str]:
    gpus = ranks["gpu_name"].drop_nulls().to_list()
    facts = {"ranks": str(ranks.height)}
    if len(gpus) == ranks.height:
        facts["GPU"] = ", ".join(f"{gpus.count(name)} x {name}" for name in sorted(set(gpus)))
    return facts


def facts_of(capture: Mapping[str, Any]) -> dict[str, str]:
    """What run.json of a capture says that has to be alike: configuration, program, nsys flags, versions.

    Values of the program's own arguments are shown only where they are numbers: others can be paths or secrets, and are
    told apart by the first digits of their hash.
    """
    facts: dict[str, str] = {}
    configuration = dict(capture.get("configuration") or {})
    spelled = {"warmup": "warm-up", "steps": "measured steps", "cuda_graph_trace": "CUDA graph trace"}
    for key, value in configuration.items():
        if key not in ("ranks", "nproc", "export"):  # how many, and in which form they were kept
            facts[spelled.get(key, key.replace("_", " "))] = _text(value)
    workload = capture.get("workload") or {}
    for key in ("bucket_cap_mib", "layout_bytes"):
        if key in workload:
            facts.setdefault(key.replace("_", " "), _text(workload[key]))
    for key, value in (workload.get("options") or {}).items():
        facts.setdefault(spelled.get(key, f"option {key.replace('_', ' ')}"), _text(value))
    profile = (capture.get("command") or {}).get("profile")
    flags, program, arguments = _command(profile or [])
    if profile:  # a results database keeps no command line: what it said is then not known, and not nothing
        facts.update({"nsys flags": " ".join(flags), "program": program})
    if not workload.get("options"):
        facts.update(_arguments(arguments))
    for key, value in (capture.get("versions") or {}).items():
        facts[f"version of {key}"] = _text(value)
    for key, value in (capture.get("environment") or {}).items():
        facts[f"environment {key}"] = _text(value)
    git = capture.get("git") or {}
    if "commit" in git:
        facts["git commit"] = f"{str(git['commit'])[:12]}{' with changes' if git.get('changed') else ''}"
    return facts


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_text(one) for one in value)
    return "none" if value is None else str(value)


def _arguments(words: Sequence[str]) -> dict[str, str]:
    """Each option of a program with its values, numbers as they are and text as the first digits of its hash."""
    found: dict[str, list[str]] = {}
    option = "argument"
    for word in words:
        if re.fullmatch(r"--?[A-Za-z][\w-]*(=.*)?", word, re.DOTALL):
            name, equals, value = word.partition("=")
            option = f"argument {name}"
            found.setdefault(option, [])
            if equals:
                found[option].append(_shown(value))
        else:
            found.setdefault(option, []).append(_shown(word))
    return {name: " ".join(values) or "given" for name, values in found.items()}


def _shown(value: str) -> str:
    if re.fullmatch(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", value, re.IGNORECASE):
        return value
    return f"text {hashlib.sha256(value.encode()).hexdigest()[:6]}"


def _public_flag(flag: str) -> str:
    """A flag of nsys; its value only where it is a plain setting."""
    name, equals, value = flag.partition("=")
    plain = re.fullmatch(r"[\w,.:-]*", value) and "env" not in name
    return flag if plain else f"{name}{equals}..."


_PLACES = ("--output", "--out", "--force-overwrite")


def _command(argv: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """The flags of nsys, the program's base name, and its arguments, without where output goes."""
    flags: list[str] = []
    rest = list(argv)
    at = next((i for i, word in enumerate(rest) if word.rpartition("/")[2].startswith("nsys")), None)
    if at is not None:
        after = rest[at + 1 :]
        if after[:1] == ["profile"]:
            after = after[1:]
        while after and after[0].startswith("-"):
            flags.append(_public_flag(after.pop(0)))
        rest = after
    script = next((i for i, word in enumerate(rest) if word.endswith(".py")), None)
    if script is None:
        return _without_places(flags), " ".join(rest[:1]), _without_places(rest[1:])
    return _without_places(flags), rest[script].rpartition("/")[2], _without_places(rest[script + 1 :])


def _without_places(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _PLACES:
            skip = True
        elif word.partition("=")[0] not in _PLACES:
            kept.append(word)
    return kept


def unlike(base: Sequence[Run], new: Sequence[Run]) -> pl.DataFrame:
    """In what besides the times are the sides, or the runs of one, not alike (``UNLIKE``)?

    A fact that only some of the runs tell is left out here, and warned of by ``compare``.
    """
    rows = []
    every = (*base, *new)
    names = dict.fromkeys(name for run in every for name in run.facts)
    for name in sorted(names, key=lambda one: (one not in REFUSED, list(names).index(one))):
        sides = [
            " / ".join(dict.fromkeys(run.facts[name] for run in side if name in run.facts))
            for side in (base, new)
        ]
        if len({run.facts[name] for run in every if name in run.facts}) > 1:
            rows.append(
                {
                    "what": name,
                    "base": sides[0] or "not recorded",
                    "new": sides[1] or "not recorded",
                    "refused": name in REFUSED,
                }
            )
    return UNLIKE.frame(rows)


def compare(base: Sequence[Run], new: Sequence[Run], *, allow_unlike: bool = False) -> Comparison:
    """Is ``new`` faster than ``base``, how sure is that, and what in the step changed?

    Args:
        base: the repeats of the one side.
        new: those of the other.
        allow_unlike: compare although the sides differ in something of ``REFUSED``.

    Raises:
        UsageError: a side is empty, or the sides are unlike.
        CannotTell: no step can be compared.
        AnalysisError: an account does not balance.
    """
    if not base or not new:
        raise UsageError("a comparison needs at least one run on each side")
    differing = unlike(base, new)
    refused = differing.filter(pl.col("refused"))
    if refused.height and not allow_unlike:
        named = "; ".join(f"{what}: {one} against {other}" for what, one, other, _ in refused.iter_rows())
        raise UsageError(
            f"the runs are not alike ({named})", do="compare like with like, or give --allow-unlike"
        )
    made = Comparison(
        base=tuple(run.name for run in base),
        new=tuple(run.name for run in new),
        tables={},
        warnings=(),
        assumptions=ASSUMPTIONS,
        runs=(tuple(base), tuple(new)),
    )
    tables = {
        "comparison": _comparison(made),
        "account": _account(base, new),
        "matrix": _matrix(base, new),
        "unlike": differing,
    }
    if not tables["comparison"].filter(pl.col("rank").is_null() & pl.col("difference").is_not_null()).height:
        raise CannotTell(
            "no step can be compared: the trace shows none that every rank has",
            do="mark steps with NVTX (nsysddp.annotate), or give --step-pattern; see nsysddp analyze of each run",
        )
    return Comparison(made.base, made.new, tables, _warnings(base, new, differing), ASSUMPTIONS, made.runs)


ASSUMPTIONS = (
    "every interval is at 95 % by itself: of twenty metrics without any difference about one shows one",
    "profiled steps are slower than unprofiled ones; both sides are assumed to be slowed alike",
)


def _warnings(base: Sequence[Run], new: Sequence[Run], differing: pl.DataFrame) -> tuple[str, ...]:
    said = []
    if min(len(base), len(new)) < MIN_RUNS:
        said.append(
            f"{len(base)} and {counted(len(new), 'run')}: at least {MIN_RUNS} a side are needed to say anything about "
            "further runs; intervals hold for these very runs only"
        )
    bare = [run.name for run in (*base, *new) if not run.recorded]
    if bare:
        said.append(
            f"without run.json of a capture it is not known whether {', '.join(UNRECORDED)} were alike "
            f"({', '.join(dict.fromkeys(bare))})"
        )
    every = (*base, *new)
    partly = {
        what: [run.name for run in every if run.recorded and what not in run.facts]
        for what in UNRECORDED
        if any(what in run.facts for run in every)
    }
    said += [
        f"it is not known whether {what} was alike: not kept of {', '.join(dict.fromkeys(names))}"
        for what, names in partly.items()
        if names
    ]
    for run in (*base, *new):
        absent = sorted(rank for _, rank in run.unknown if rank is not None and rank not in run.windows)
        if absent:
            said.append(
                f"{run.name} has no figures of {ranks_text(absent)}: its step is that of the other ranks"
            )
    steps = [
        samples.size for run in (*base, *new) if (samples := run.samples.get(("step_ns", None))) is not None
    ]
    if steps and len(set(steps)) > 1:
        said.append(f"the runs have {min(steps)} to {max(steps)} steady steps")
    said += [f"{what} differs: {one} against {other}" for what, one, other, _ in differing.iter_rows()]
    return tuple(said)


def _comparison(made: Comparison) -> pl.DataFrame:
    rows = []
    ranks = sorted({rank for side in made.runs for run in side for rank in run.ranks})
    keys = [(metric, None) for metric in JOB_METRICS] + [
        (metric, rank) for rank in ranks for metric in RANK_METRICS
    ]
    for metric, rank in keys:
        key = (metric.name, rank)
        if not any(key in run.samples or key in run.unknown for side in made.runs for run in side):
            continue
        row: dict[str, Any] = {"metric": metric.name, "rank": rank, "unit": metric.unit}
        for side, runs in zip(("base", "new"), made.runs, strict=True):
            row[f"{side}_runs"] = len(runs)
            row[f"{side}_steps"] = sum(run.samples[key].size for run in runs if key in run.samples)
        found = made.difference(*key)
        if found is None:
            row.update(scope="none", verdict=NOT_ENOUGH, reason=_why_missing(made, key))
        else:
            row.update(
                base=found.base,
                new=found.new,
                difference=found.difference,
                change_ratio=found.difference / found.base if found.base else None,
                low=found.low,
                high=found.high,
                detectable=found.detectable,
                scope=found.scope,
                verdict=verdict(metric, found),
                reason=None if found.scope == "runs" else _why_undecided(found),
            )
        rows.append(row)
    return COMPARISON.frame(rows)


NOT_ENOUGH = "not enough data"
NO_DIFFERENCE = "no difference shown"


def verdict(metric: Metric, found: Difference) -> str:
    """faster, slower, lower, higher, no difference shown, or not enough data."""
    if found.scope != "runs":
        return NOT_ENOUGH
    if not found.decided:
        return NO_DIFFERENCE
    less = found.difference < 0
    if metric.name in _SPEED:
        return "faster" if less == (metric.better == "lower") else "slower"
    return "lower" if less else "higher"


def _why_undecided(found: Difference) -> str:
    counts = f"{found.base_runs} and {counted(found.new_runs, 'run')}, {MIN_RUNS} a side are needed"
    return (
        counts
        if found.scope == "these_runs"
        else f"{counts}; too few steps to say how well these were measured"
    )


def _why_missing(made: Comparison, key: tuple[str, int | None]) -> str:
    for run in (run for side in made.runs for run in side):
        if key not in run.samples:
            return f"{run.name}: {run.unknown.get(key, 'not recorded')}"
    raise AnalysisError(f"{key} is missing in no run")


def _account(base: Sequence[Run], new: Sequence[Run]) -> pl.DataFrame:
    rows: list[dict[str, Any]] = []
    ranks = sorted(set.intersection(*({*run.ranks} for run in (*base, *new))))
    for rank in ranks:
        sides = [[run.windows[rank] for run in side] for side in (base, new)]
        steps = [step for side in sides for windows in side for step in windows]
        known = {
            part: holder
            for part, holder in (("contention", "compute"), ("host", "idle"))
            if all(part in step for step in steps)
        }
        names = [
            part for part in WINDOW_PARTS if part in steps[0] and (part not in _OPTIONAL or part in known)
        ]
        rows += _parts("window", rank, names, *(_taken_out(side, known) for side in sides))
    if all(run.paths for run in (*base, *new)):
        rows += _parts(
            "critical_path", None, tuple(PATH_PARTS), *([run.paths for run in side] for side in (base, new))
        )
    return ACCOUNT.frame(rows)


def _parts(
    view: str,
    rank: int | None,
    names: Sequence[str],
    base: Sequence[Sequence[Mapping[str, int]]],
    new: Sequence[Sequence[Mapping[str, int]]],
) -> list[dict[str, Any]]:
    sides = [_whole_parts(names, side) for side in (base, new)]
    rows: list[dict[str, Any]] = [
        {
            "view": view,
            "rank": rank,
            "part": part,
            "base_ns": sides[0][part],
            "new_ns": sides[1][part],
            "change_ns": sides[1][part] - sides[0][part],
        }
        for part in ("step", *names)
        if part == "step" or sides[0][part] or sides[1][part]
    ]
    whole, *parts = rows
    if any(
        whole[column] != sum(part[column] for part in parts) for column in ("base_ns", "new_ns", "change_ns")
    ):
        raise AnalysisError(
            f"the {view} account of {'the job' if rank is None else f'rank {rank}'} does not balance"
        )
    return rows


def _whole_parts(names: Sequence[str], runs: Sequence[Sequence[Mapping[str, int]]]) -> dict[str, int]:
    """Means over steps, then over runs, as integers that sum to their whole (largest remainders go up)."""
    mean = {
        part: sum((Fraction(sum(step[part] for step in steps), len(steps)) for steps in runs), Fraction())
        / len(runs)
        for part in ("step", *names)
    }
    whole = round(mean["step"])
    floors = {part: mean[part].__floor__() for part in names}
    missing = whole - sum(floors.values())
    by_remainder = sorted(names, key=lambda part: floors[part] - mean[part])
    for part in by_remainder[:missing]:
        floors[part] += 1
    return {"step": whole, **floors}


def _matrix(base: Sequence[Run], new: Sequence[Run]) -> pl.DataFrame:
    rows = []
    for side, runs in (("base", base), ("new", new)):
        for metric in _MATRIX_METRICS:
            of_metric: list[dict[str, Any]] = []
            for rank in sorted({rank for run in runs for rank in run.ranks}):
                known = [run.samples[metric, rank] for run in runs if (metric, rank) in run.samples]
                if not known:
                    continue
                steps = np.concatenate(known)
                of_metric.append(
                    {
                        "side": side,
                        "metric": metric,
                        "rank": rank,
                        "steps": steps.size,
                        "median": float(np.median(steps)),
                        "p95": percentile(steps, 0.95),
                        "p99": percentile(steps, 0.99),
                        "largest": float(steps.max()),
                    }
                )
            medians = [row["median"] for row in of_metric]
            for row, value in zip(of_metric, medians, strict=True):
                row["is_slowest"] = value == max(medians) and (value > min(medians) or len(medians) == 1)
            rows += of_metric
    return MATRIX.frame(rows)


def percentile(steps: Floats, share: float) -> float | None:
    """The smallest value that at least this share of the steps does not exceed; None for too few steps."""
    if steps.size < LEAST_STEPS.get(share, 1):
        return None
    return float(np.sort(steps)[int(np.ceil(round(share * steps.size, 9))) - 1])
