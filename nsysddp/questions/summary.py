"""What does a rank's step look like? One row a rank, each figure by the same statistic over its steady windows.

The statistic is the median of the steps. Where a rank communicates (or hides communication) in fewer than half of its
steps, as with gradient accumulation, a median would show none of it: then every figure is the sum over the steps.
Sentences, tables, pages and comparisons take a rank's figures from here, so that one name is one number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from nsysddp.model.units import ms
from nsysddp.questions.steps import steady

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nsysddp.model.result import Result

FIGURES = (
    "window_ns",
    "compute_ns",
    "spin_ns",
    "communication_ns",
    "hidden_communication_ns",
    "exposed_communication_ns",
    "hidden_transfer_ns",
    "hidden_wait_ns",
    "exposed_transfer_ns",
    "exposed_wait_ns",
    "hidden_unsplit_ns",
    "exposed_unsplit_ns",
    "unsplit_ns",
    "exposed_memory_ns",
    "p2p_copy_ns",
    "graph_ns",
    "idle_ns",
    "tail_communication_ns",
    "kernels",
    "collectives",
)
"""Columns of ``overlap`` that have a figure; ``unsplit_ns`` is hidden and exposed together."""

_SHOWN_BY_A_MEDIAN = ("communication_ns", "hidden_communication_ns")
_LEAST_DIGITS, _MOST_DIGITS = 2, 4


@dataclass(frozen=True)
class Summary:
    """Each rank's figures.

    Attributes:
        rows: one row a rank in order: ``rank``, ``FIGURES`` (null: known in none of its windows), ``overlap_ratio``
            (of these figures), ``windows``, ``split_windows`` (how many of them tell wait from transfer).
        statistic: what each figure is of the rank's windows; ``only`` where each rank has one.
        windows: most windows of a rank.
        of_steps: are the windows steps? Else they are the capture, or a part of it.
    """

    rows: pl.DataFrame
    statistic: Literal["median", "sum", "only"]
    windows: int
    of_steps: bool

    @property
    def span(self) -> str:
        """What a figure is of, to be put behind it: `` a step``, `` over 4 steps`` or nothing (the capture)."""
        if not self.of_steps:
            return ""
        return f" over {self.windows} steps" if self.statistic == "sum" else " a step"

    @property
    def caption(self) -> str:
        """What the figures are, for the head of a table."""
        if not self.of_steps:
            return "ms of the whole capture"
        if self.statistic == "only":
            return "ms of the only steady step"
        if self.statistic == "sum":
            return f"ms, sum of {self.windows} steady steps: not every step communicates"
        return f"ms, median of {self.windows} steady steps"

    @property
    def digits(self) -> int:
        """Decimals of a figure in ms: some 4 digits of the longest window."""
        longest = self.rows["window_ns"].max()
        if not isinstance(longest, (int, float)) or longest <= 0:
            return 2
        return min(max(3 - math.floor(math.log10(ms(longest))), _LEAST_DIGITS), _MOST_DIGITS)

    def text(self, ns: float) -> str:
        """A time in ms, without its unit; what rounding would make nothing is ``<0.01``."""
        return milliseconds(ns, self.digits)

    def range(self, values: Iterable[float]) -> str:
        """Least and largest in ms, without the unit; once if they read the same."""
        known = sorted(values)
        return " to ".join(dict.fromkeys((self.text(known[0]), self.text(known[-1]))))

    def slowest(self) -> Mapping[str, Any] | None:
        """The row of the rank whose window is longest; None without rows."""
        found = self.rows.sort("window_ns", "rank").tail(1).to_dicts()
        return found[0] if found else None

    def fastest(self) -> Mapping[str, Any] | None:
        """The row of the rank whose window is shortest; None without rows."""
        found = self.rows.sort("window_ns", "rank").head(1).to_dicts()
        return found[0] if found else None


def milliseconds(ns: float, digits: int) -> str:
    """Nanoseconds as text in ms; ``<0.001`` where rounding would make it look like nothing."""
    if 0 < ms(ns) < 0.5 * 10**-digits:
        return f"<{10**-digits:.{digits}f}"
    return f"{ms(ns):,.{digits}f}"


def summary(result: Result) -> Summary:
    """The figures of every rank that has a window, from the table ``overlap``."""
    frame = steady(result["overlap"]).with_columns(
        unsplit_ns=pl.col("hidden_unsplit_ns") + pl.col("exposed_unsplit_ns")
    )
    of_steps = frame["step_index"].null_count() < frame.height
    windows = int(max(frame.group_by("rank").len()["len"].to_list(), default=0))
    sums = windows > 1 and _median_hides(frame)
    rows = (
        frame.group_by("rank")
        .agg(
            *(_sum(name) if sums else pl.col(name).median() for name in FIGURES),
            pl.len().alias("windows"),
            pl.col("exposed_wait_ns").count().alias("split_windows"),
        )
        .with_columns(
            (pl.col("hidden_communication_ns") / pl.col("communication_ns")).fill_nan(None).alias("overlap_ratio")
        )
        .sort("rank")
    )  # fmt: skip
    return Summary(rows, "only" if windows <= 1 else "sum" if sums else "median", windows, of_steps)


def _sum(name: str) -> pl.Expr:
    """The sum; unknown if a part is."""
    return pl.when(pl.col(name).is_null().any()).then(None).otherwise(pl.col(name).sum()).alias(name)


def _median_hides(frame: pl.DataFrame) -> bool:
    """Is the median of some rank nothing where its sum is something?"""
    hides = (
        (pl.col(name).median() == 0) & (pl.col(name).sum() > 0) for name in _SHOWN_BY_A_MEDIAN
    )  # fmt: skip
    return bool(frame.group_by("rank").agg(pl.any_horizontal(*hides).alias("hides"))["hides"].any())


def over_steps(frame: pl.DataFrame, keys: Sequence[str], values: Sequence[str]) -> pl.DataFrame:
    """Rows of steady steps as one row a key: each value's median over the steps.

    Args:
        frame: rows with ``rank``, ``step_index``, ``is_warmup``; one a step and key.
        keys: what a row is about besides its step; begins with ``rank``.
        values: the figures, Int64; a step that has no row of a key has none of it: 0. Null is unknown and left out.

    Returns:
        ``keys``, ``steps`` (of the rank), ``present`` (steps with a row), each value's median, and ``least`` and
        ``largest`` of the first one.
    """
    chosen = steady(frame)
    steps = chosen.select("rank", "step_index").unique(maintain_order=True)
    of_rank = steps.group_by("rank").agg(pl.len().alias("steps"))
    every = (
        chosen.select(keys)
        .unique(maintain_order=True)
        .join(steps, on="rank", how="inner", maintain_order="left_right")
    )
    filled = every.join(
        chosen.select(*keys, "step_index", *values).with_columns(found=True),
        on=[*keys, "step_index"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    absent = pl.col("found").is_null()
    first = pl.col(values[0])
    return (
        filled.with_columns(pl.when(absent).then(0).otherwise(pl.col(name)).alias(name) for name in values)
        .group_by(keys, maintain_order=True)
        .agg(
            pl.col("found").count().alias("present"),
            first.min().alias("least"),
            first.max().alias("largest"),
            *(pl.col(name).median() for name in values),
        )
        .join(of_rank, on="rank", how="left", maintain_order="left")
    )
