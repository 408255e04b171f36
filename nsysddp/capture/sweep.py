"""Which bucket cap makes the step shortest, and which caps cannot be told apart from it?

Every cap is captured ``repeat`` times, interleaved: round 1 takes all caps, then round 2 in another order, and so
on, so that a drift of the machine touches all alike. A step of the job lasts as long as on its slowest rank:

    step_ns[cap, round, i] = max over ranks of step_ns[cap, round, rank, i]        (unprofiled, measured steps)

    median_ns[cap, round] = median over i of step_ns[cap, round, i]
    d[cap, round]         = median_ns[cap, round] - median_ns[best, round]

The rounds are blocks, so the differences within them are compared: the mean of d has a Student interval over the
rounds. A cap is *tied* with the best one if its interval holds 0. The best is chosen from the same data, so any
pair could have become the comparison, and the level is divided by the number of pairs (Bonferroni). A bootstrap over
so few rounds would be too sure: on equal caps with 8 rounds it told some apart in 30 % of sweeps instead of 5 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nsysddp.capture.command import Settings
from nsysddp.capture.plan import Plan, plan_preset
from nsysddp.capture.presets import find_preset
from nsysddp.capture.run import Captured
from nsysddp.capture.tool import Nsys
from nsysddp.ingest.measured import Steps, job_steps
from nsysddp.model.errors import AnalysisError
from nsysddp.model.names import counted
from nsysddp.questions.statistics import CONFIDENCE as LEVEL
from nsysddp.questions.statistics import MIN_RUNS as MIN_ROUNDS
from nsysddp.questions.statistics import student_quantile


@dataclass(frozen=True)
class CapSteps:
    """The step times of one cap: ``rounds[i]`` are the job's measured steps of round i, in ns."""

    cap_mib: float
    rounds: tuple[Steps, ...]

    @property
    def medians(self) -> npt.NDArray[np.float64]:
        """The median step of each round."""
        return np.array([np.median(steps) for steps in self.rounds])


@dataclass(frozen=True)
class Verdict:
    """How a cap compares with the best one.

    Attributes:
        cap_mib: the cap.
        median_ns: median step of a run, averaged over the rounds.
        p95_ns: 95th percentile of all its steps.
        difference_ns: ``median_ns`` minus that of the best cap.
        low_ns: lower end of the interval of that difference; None where there are too few rounds.
        high_ns: upper end.
        is_best: it has the smallest median.
        is_tied: it cannot be told apart from the best; None where that is unknown.
    """

    cap_mib: float
    median_ns: int
    p95_ns: int
    difference_ns: int
    low_ns: int | None
    high_ns: int | None
    is_best: bool
    is_tied: bool | None


def compare_caps(measured: Sequence[CapSteps], *, level: float = LEVEL) -> list[Verdict]:
    """Which cap is best, and which are tied with it?

    Args:
        measured: every cap with the same rounds.
        level: joint confidence of all intervals.

    Raises:
        AnalysisError: no cap, a cap without steps, or different numbers of rounds.
    """
    counts = {len(cap.rounds) for cap in measured}
    if len(counts) != 1 or not all(steps.size for cap in measured for steps in cap.rounds):
        raise AnalysisError("every cap needs the same number of rounds, and every run a measured step")
    rounds = counts.pop()
    best = min(measured, key=lambda cap: float(cap.medians.mean()))
    pairs = max(1, len(measured) * (len(measured) - 1) // 2)
    verdicts = []
    for cap in measured:
        difference = cap.medians - best.medians
        low = high = None
        tied: bool | None = None if rounds < MIN_ROUNDS else True
        if rounds >= MIN_ROUNDS and cap is not best:
            reach = (
                student_quantile(1 - (1 - level) / 2 / pairs, rounds - 1)
                * difference.std(ddof=1)
                / rounds**0.5
            )
            low, high = round(difference.mean() - reach), round(difference.mean() + reach)
            tied = low <= 0 <= high
        verdicts.append(
            Verdict(
                cap_mib=cap.cap_mib,
                median_ns=round(cap.medians.mean()),
                p95_ns=round(float(np.quantile(np.concatenate(cap.rounds), 0.95))),
                difference_ns=round(difference.mean()),
                low_ns=low,
                high_ns=high,
                is_best=cap is best,
                is_tied=tied,
            )
        )
    return verdicts


def interleaved(caps: Sequence[float], repeat: int) -> list[tuple[int, float]]:
    """(round, cap) in the order of running: each round starts one cap later than the one before."""
    return [(turn + 1, caps[(turn + at) % len(caps)]) for turn in range(repeat) for at in range(len(caps))]


def plan_sweep(
    caps: Sequence[float], settings: Settings, *, out: Path, repeat: int, nsys: Nsys | None, python: str
) -> list[Plan]:
    """Which captures does a sweep of DDP's bucket cap over the GPT workload make?"""
    gpt = find_preset("gpt_ddp")
    plans = []
    for turn, cap in interleaved(caps, repeat):
        preset = replace(gpt, name=f"cap{cap:g}", arguments=("--bucket-cap", f"{cap:g}"))
        plan = plan_preset(preset, turn, settings, out=out, nsys=nsys, python=python)
        plans.append(replace(plan, variables={"bucket_cap_mib": cap}))
    return plans


GPU_COLUMNS = (
    "kernels",
    "collectives",
    "hidden_transfer_ns",
    "exposed_transfer_ns",
    "hidden_wait_ns",
    "exposed_wait_ns",
    "tail_communication_ns",
)
"""Columns of the overlap table that a sweep shows, each the median over the captured steps of all rounds."""


@dataclass(frozen=True)
class CapRank:
    """What the traces of one cap say about one rank: ``GPU_COLUMNS``, None where they cannot say."""

    cap_mib: float
    rank: int
    figures: Mapping[str, int | None]


@dataclass(frozen=True)
class Sweep:
    """The outcome of a sweep.

    Attributes:
        verdicts: one a cap.
        ranks: one a cap and rank; empty on CPU ranks.
        correct: per cap, whether all checks of all runs held (equal replicas among them).
        rounds: how many runs each cap had.
    """

    verdicts: tuple[Verdict, ...]
    ranks: tuple[CapRank, ...]
    correct: Mapping[float, bool]
    rounds: int

    @property
    def conclusion(self) -> str:
        """The best cap and those that cannot be told apart from it, in words."""
        best = next(verdict for verdict in self.verdicts if verdict.is_best)
        if best.is_tied is None:
            return (
                f"smallest median at {best.cap_mib:g} MiB; {counted(self.rounds, 'run')} a cap cannot tell caps apart, "
                f"use --repeat {MIN_ROUNDS} or more"
            )
        tied = [f"{v.cap_mib:g}" for v in self.verdicts if v.is_tied and not v.is_best]
        others = f"cannot be told apart from it: {', '.join(tied)} MiB" if tied else "all others are slower"
        return f"best bucket cap {best.cap_mib:g} MiB; {others} ({LEVEL:.0%} for all comparisons together)"

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "format": "nsysddp sweep 1",
            "rounds": self.rounds,
            "conclusion": self.conclusion,
            "caps": [
                {**vars(verdict), "correct": self.correct[verdict.cap_mib]} for verdict in self.verdicts
            ],
            "ranks": [{"cap_mib": row.cap_mib, "rank": row.rank, **row.figures} for row in self.ranks],
        }

    def text(self) -> str:
        """The same as two tables and a sentence."""
        interval_head = f"{LEVEL:.0%} interval ms"
        lines = [
            f"{'cap MiB':>8} {'step median ms':>15} {'P95 ms':>9} {'- best ms':>10} {interval_head:>20}  correct"
        ]
        for verdict in self.verdicts:
            interval = (
                f"{verdict.low_ns / 1e6:+.3f} .. {verdict.high_ns / 1e6:+.3f}"
                if verdict.low_ns is not None and verdict.high_ns is not None
                else "-"
            )
            mark = "  best" if verdict.is_best else "  tied" if verdict.is_tied else ""
            lines.append(
                f"{verdict.cap_mib:>8g} {verdict.median_ns / 1e6:>15.3f} {verdict.p95_ns / 1e6:>9.3f} "
                f"{verdict.difference_ns / 1e6:>+10.3f} {interval:>20}  "
                f"{'yes' if self.correct[verdict.cap_mib] else 'NO'}{mark}"
            )
        if self.ranks:
            heads = [name.removesuffix("_ns").replace("_", " ") for name in GPU_COLUMNS]
            lines += [
                "",
                "medians over captured steps, times in ms",
                f"{'cap MiB':>8} {'rank':>4}  " + "  ".join(heads),
            ]
            for row in self.ranks:
                cells = [
                    _cell(name, row.figures[name]).rjust(len(head))
                    for name, head in zip(GPU_COLUMNS, heads, strict=True)
                ]
                lines.append(f"{row.cap_mib:>8g} {row.rank:>4}  " + "  ".join(cells))
        else:
            lines += ["", "no GPU events: kernels, hidden and exposed communication are unknown"]
        return "\n".join([*lines, "", self.conclusion])


def _cell(name: str, value: int | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1e6:.3f}" if name.endswith("_ns") else str(value)


def summarise(captured: Sequence[tuple[float, Captured]]) -> Sweep:
    """What do these captures say? ``captured``: the cap of each, in the order of running."""
    by_cap: dict[float, list[Captured]] = {}
    for cap, one in captured:
        by_cap.setdefault(cap, []).append(one)
    measured = [
        CapSteps(
            cap, tuple(job_steps(one.plan.folder) for one in sorted(runs, key=lambda run: run.plan.repeat))
        )
        for cap, runs in sorted(by_cap.items())
    ]
    return Sweep(
        verdicts=tuple(compare_caps(measured)),
        ranks=tuple(row for cap, runs in sorted(by_cap.items()) for row in _gpu_figures(cap, runs)),
        correct={
            cap: all(run.summary is not None and run.summary["ok"] for run in runs)
            for cap, runs in by_cap.items()
        },
        rounds=min(len(runs) for runs in by_cap.values()),
    )


def _gpu_figures(cap: float, runs: Sequence[Captured]) -> list[CapRank]:
    results = [run.result for run in runs if run.result is not None]
    if len(results) != len(runs):
        return []
    import polars as pl

    overlap = pl.concat([result["overlap"] for result in results]).filter(
        ~pl.col("is_warmup").fill_null(False)
    )
    rows = []
    for rank in overlap["rank"].unique().sort().to_list():
        frame = overlap.filter(pl.col("rank") == rank)
        figures: dict[str, int | None] = {}
        for name in GPU_COLUMNS:
            column = frame[name]
            median = column.median() if column.null_count() == 0 else None
            figures[name] = round(float(str(median))) if median is not None else None
        rows.append(CapRank(cap, rank, figures))
    return rows
