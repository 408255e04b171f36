"""A comparison in words: titles, values with units, the verdict in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

from nsysddp.model.units import ms
from nsysddp.questions.compare.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsysddp.questions.compare import Comparison


_MEDIANS = "median of each run, mean over the runs"
_STEP_OF_JOB = {
    "measured_step_ns": f"the job's unprofiled step (slowest rank, {_MEDIANS})",
    "step_ns": f"the job's profiled step (slowest rank of each step, {_MEDIANS})",
    "throughput": f"the job's throughput (slowest rank, {_MEDIANS})",
}


class Compared(Protocol):
    """What holds the tables of a comparison (``questions.compare.tables.TABLES``)."""

    @property
    def tables(self) -> Mapping[str, pl.DataFrame]:
        """Frames by name."""


COMPARED = ("comparison", "account", "matrix")
"""Tables that a comparison is drawn from."""
_TITLES = {
    "measured_step_ns": "step, unprofiled",
    "step_ns": "step, profiled",
    "throughput": "throughput",
    "critical_communication_ns": "critical communication",
    "window_ns": "step window",
    "backward_ns": "backward",
    "compute_ns": "compute",
    "hidden_transfer_ns": "hidden transfer",
    "exposed_transfer_ns": "exposed transfer",
    "hidden_wait_ns": "hidden wait",
    "exposed_wait_ns": "exposed wait",
    "exposed_communication_ns": "exposed communication",
    "tail_communication_ns": "tail",
    "exposed_memory_ns": "copies alone",
    "contention_ns": "contention",
    "idle_ns": "idle",
    "kernels": "kernels",
}

_PART_TITLES = {"memory": "copies alone", "unknown": "before the first call"}


def title_of(metric: str) -> str:
    """A metric's name for people."""
    return _TITLES.get(metric, metric)


def part_title(part: str) -> str:
    """The name of a part of an account for people."""
    return _PART_TITLES.get(part, part.replace("_", " "))


def number(value: float | None, unit: str, *, sign: bool = False, bare: bool = False) -> str:
    """A value of a metric for people, with its unit unless ``bare``; a dash for unknown."""
    if value is None:
        return "–"
    shown = ms(value) if unit == "ns" else value
    digits = 3 if unit == "ns" else 0 if float(value).is_integer() else 2
    return f"{shown:{'+' if sign else ''},.{digits}f}{' ms' if unit == 'ns' and not bare else ''}".replace(
        "-", "−"
    )


def percent(ratio: float | None) -> str:
    """A relative change for people."""
    return "–" if ratio is None else f"{100 * ratio:+.1f} %".replace("-", "−")


def sentence(comparison: Comparison) -> str:
    """The verdict on the step, with its numbers and how sure they are."""
    row = comparison.headline
    counts = f"{row['base_runs']} and {row['new_runs']} run{'s' if row['new_runs'] != 1 else ''}"
    change = (
        f"{title_of(row['metric'])} {number(row['base'], row['unit'])} → {number(row['new'], row['unit'])} "
        f"({number(row['difference'], row['unit'], sign=True)}, {percent(row['change_ratio'])}"
    )
    if row["low"] is not None:
        change += f"; 95 % interval {interval(row)}"
    change += ")"
    if row["verdict"] == "not enough data":
        only = " (within these runs)" if row["scope"] == "these_runs" else ""
        return f"Not enough data for a verdict: {change}{only}, {counts}; at least 3 a side are needed."
    if row["verdict"] == "no difference shown":
        found = number(row["detectable"], row["unit"])
        return f"No difference shown: {change}, {counts}; a difference of {found} would have been."
    return f"The new side is {row['verdict']}: {change}, {counts}."


def interval(row: Mapping[str, Any]) -> str:
    """The interval of a row of ``comparison``; a dash without."""
    if row["low"] is None:
        return "–"
    low = number(row["low"], row["unit"], sign=True).removesuffix(" ms")
    return f"{low}..{number(row['high'], row['unit'], sign=True)}"


def which_is_which(comparison: Comparison) -> list[str]:
    """Every figure of a step that is shown and moved the other way than the headline, with what either is.

    A job's step lasts as long as on its slowest rank, which can be another one in each step, and a median leaves out
    what a mean counts: all of these can be right at once, and side by side they seem to contradict each other.
    """
    headline = comparison.headline
    direction = _longer(headline["metric"], headline["difference"])
    others: list[tuple[str, str, float]] = []
    rank = shown_rank(comparison)
    frame = comparison.tables["comparison"].filter(
        pl.col("difference").is_not_null()
        & (
            (pl.col("rank").is_null() & pl.col("metric").is_in([*_STEP_OF_JOB]))
            | ((pl.col("rank") == (-1 if rank is None else rank)) & (pl.col("metric") == "window_ns"))
        )
    )
    for row in frame.iter_rows(named=True):
        whose = _STEP_OF_JOB.get(row["metric"]) or f"rank {row['rank']}'s own step, {_MEDIANS}"
        others.append((row["metric"], whose, row["difference"]))
    for view, of_rank, whose in (
        ("window", rank, f"rank {rank}'s own step, mean of all its steps"),
        ("critical_path", None, "the job's critical path, mean of all its steps"),
    ):
        rows = account_rows(comparison, view, of_rank)
        if rows and not (view == "window" and rank is None):
            others.append(("step_ns", whose, float(rows[0]["change_ns"])))
    found = [
        f"{whose}: {number(change, METRICS[metric].unit, sign=True)}"
        for metric, whose, change in others
        if direction * _longer(metric, change) < 0
    ]
    if not found:
        return []
    what = (
        _STEP_OF_JOB[headline["metric"]]
        if headline["metric"] in _STEP_OF_JOB
        else title_of(headline["metric"])
    )
    change = number(headline["difference"], headline["unit"], sign=True)
    return [
        f"Not the same thing, and not the same sign: {change} is of {what}; the other way went {'; '.join(found)}."
    ]


def _longer(metric: str, change: float) -> float:
    """Above 0 where the change is for the worse."""
    return -change if METRICS[metric].better == "higher" else change


def shown_rank(comparison: Compared) -> int | None:
    """The rank whose figures stand for the rest on a screen: the new side's slowest, where both sides have it."""
    both = comparison.tables["account"].filter(pl.col("rank").is_not_null())["rank"].unique().to_list()
    slowest = comparison.tables["matrix"].filter(
        (pl.col("side") == "new")
        & (pl.col("metric") == "window_ns")
        & pl.col("is_slowest")
        & pl.col("rank").is_in(both)
    )
    return int(slowest["rank"][-1]) if slowest.height else min(both, default=None)


def who(comparison: Compared, rank: int) -> str:
    """The shown rank in words, and why it is that one."""
    window = comparison.tables["matrix"].filter((pl.col("metric") == "window_ns") & (pl.col("side") == "new"))
    slowest = window.filter(pl.col("is_slowest"))["rank"].to_list()
    if rank in slowest and window.height > 1:
        return f"rank {rank}, the slowest of the new side"
    return f"rank {rank}"


def names_text(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def account_rows(comparison: Comparison, view: str, rank: int | None) -> list[dict[str, Any]]:
    """The rows of one account."""
    of_rank = pl.col("rank").is_null() if rank is None else pl.col("rank") == rank
    return comparison.tables["account"].filter((pl.col("view") == view) & of_rank).to_dicts()
