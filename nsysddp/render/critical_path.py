"""The terminal screen of a critical path: what it consists of, rank by rank, and what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from nsysddp.model.names import counted
from nsysddp.model.units import ms
from nsysddp.questions.critical_path import KINDS
from nsysddp.questions.summary import milliseconds
from nsysddp.render.screen import (
    MOST_ROWS,
    NOT_MISSED,
    Column,
    Grid,
    bullet,
    care,
    console,
    heading,
    indented,
    title,
)

if TYPE_CHECKING:
    from rich.console import Console

    from nsysddp.model.result import Result

_MOST_STEPS = 8
"""Paths up to which each is a row; more are summarised by the rank that they end on."""

_ODD = 1.5
"""A step whose path is longer than the median by this factor is named."""

_KEY = ["step", "step_index", "path_rank"]
_TIMES = {
    "critical": "critical_communication_ns",
    "exposed": "exposed_communication_ns",
    "of it wait": "exposed_wait_ns",
    "tail": "tail_communication_ns",
}
_STYLES = {"transfer": "red", "wait": "yellow", "unmatched_communication": "red"}


def print_critical_path(result: Result, out: Console | None = None) -> None:
    """Print what the paths consist of, the largest causes, communication, and what to read with care."""
    screen = out or console()
    steps = result["critical_path_step"]
    windows = steps["step_index"].drop_nulls().n_unique()
    screen.print(title(result, counted(windows, "step") if windows else "whole capture"))
    for finding in result.findings[:1]:
        screen.print(indented(finding.message, "bold"))
    _print_paths(screen, result)
    if result.findings[1:]:
        heading(screen, "Largest causes")
        for finding in result.findings[1:]:
            screen.print(bullet(finding.message))
    frame = result.tables.get("critical_path_communication")
    if frame is not None and (frame["exposed_communication_ns"].fill_null(1) > 0).any():
        _print_communication(screen, frame)
    care(screen, result)


def _print_paths(screen: Console, result: Result) -> None:
    steps = result["critical_path_step"]
    kinds = result["critical_path_kind"]
    large = kinds.filter(pl.col("path_ratio") >= _WORTH_A_COLUMN)["kind"].unique().to_list()
    shown = [kind for kind in KINDS if kind in large]
    rows = steps.join(
        kinds.pivot(on="kind", index=_KEY, values="duration_ns"),
        on=_KEY,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    ).with_columns(pl.col(shown).fill_null(0))
    few = rows.height <= _MOST_STEPS
    tied = "; ~ tied: others end within 50 us" if steps["tied"].any() else ""
    every = rows.height if few else rows.filter(~pl.col("is_warmup"))["path_rank"].n_unique()
    most = _MOST_TIED if steps["tied"].any() and every > MOST_ROWS else MOST_ROWS
    heading(
        screen,
        f"{'Each path' if few else 'Paths by the rank that they end on'} (ms{_statistic(rows, few)}{tied})",
    )
    grid = Grid(
        [
            *([Column("step", left=True)] if few else [Column("steps")]),
            Column("ends on"),
            Column("path"),
            *([] if few else [Column("least", spare=12), Column("largest", spare=12)]),
            *(
                Column(_HEADS.get(kind, kind), style=_STYLES.get(kind, ""), spare=2 + place)
                for place, kind in enumerate(shown)
            ),
            Column("rest", spare=NOT_MISSED),
            Column("recorded", spare=NOT_MISSED),
        ],
        gap=2 if screen.width > _NARROW else 1,
    )
    digits = 3 if screen.width > _NARROW else 2
    grid.total = every
    for row in rows.iter_rows(named=True) if few else _by_rank(rows, shown)[:most]:
        values = [row[kind] or 0 for kind in shown]
        grid.add(
            f"{row['step'] or 'capture'}{' (warm-up)' if row['is_warmup'] else ''}"
            if few
            else f"{row['steps']:,}",
            f"{'~' if row['tied'] else ''}rank {row['path_rank']}",
            _ms(row["path_ns"], digits),
            *(() if few else (_ms(row["least"], digits), _ms(row["largest"], digits))),
            *(_ms(value, digits) for value in values),
            _ms(row["path_ns"] - sum(values), digits),
            "n/a" if row["recorded_ratio"] is None else f"{row['recorded_ratio']:.1%}",
        )
    if every > most == _MOST_TIED:
        screen.print(indented(_tied(steps), "dim"))
    grid.print(screen, "--table critical_path_kind --format csv")
    if not few:
        _print_odd(screen, rows)


def _tied(steps: pl.DataFrame) -> str:
    """How many ranks are tied, and by how much their paths differ."""
    each = steps.filter(~pl.col("is_warmup")).group_by("step_index").agg(pl.len(), pl.col("path_ns"))
    ranks = sorted(set(each["len"].to_list()))
    apart = max(max(lengths) - min(lengths) for lengths in each["path_ns"].to_list())
    tied = str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
    return f"{tied} ranks are tied in a step; their paths differ by {ms(apart):.3f} ms at most: a few stand for all"


_MOST_TIED = 4
"""Rows of ranks that end together: more would say the same."""


def _statistic(rows: pl.DataFrame, few: bool) -> str:
    steady_steps = rows.filter(~pl.col("is_warmup"))["step_index"].n_unique()
    return "" if few else f", median of {steady_steps} steady steps"


def _by_rank(rows: pl.DataFrame, kinds: list[str]) -> list[dict[str, Any]]:
    """One row for the steady steps whose path ends on a rank, those with most steps first."""
    return (
        rows.filter(~pl.col("is_warmup"))
        .group_by("path_rank")
        .agg(
            pl.len().alias("steps"),
            pl.col("tied").any(),
            pl.col("path_ns").min().alias("least"),
            pl.col("path_ns").max().alias("largest"),
            pl.col("path_ns", "recorded_ratio", *kinds).median(),
        )
        .sort("steps", "path_rank", descending=[True, False])
        .to_dicts()
    )


def _print_odd(screen: Console, rows: pl.DataFrame) -> None:
    """Steps that are much longer than the rest, and warm-up."""
    typical = rows.filter(~pl.col("is_warmup"))["path_ns"].median()
    if not isinstance(typical, (int, float)):
        return
    odd = (
        rows.filter((pl.col("path_ns") > _ODD * typical) | pl.col("is_warmup"))
        .unique("step_index", maintain_order=True)
        .sort("path_ns", descending=True)
    )
    if odd.height:
        shown = [
            f"{row['step']}{' (warm-up)' if row['is_warmup'] else ''} {ms(row['path_ns']):,.3f}"
            for row in odd.head(_MOST_ODD).iter_rows(named=True)
        ]
        more = f" and {odd.height - len(shown)} more" if odd.height > len(shown) else ""
        screen.print(indented(f"unlike the rest: {', '.join(shown)}{more}", "dim"))


_MOST_ODD = 4
_NARROW = 90


_WORTH_A_COLUMN = 0.01
"""Share of some path from which on a kind has a column of its own."""

_HEADS = {"unmatched_communication": "unmatched\ncomm.", "host_gap": "host\ngap"}


def _print_communication(screen: Console, frame: pl.DataFrame) -> None:
    few = frame.height <= _MOST_STEPS
    shown = frame if few else _communication_by_rank(frame)
    heading(
        screen,
        "Communication in ms: on the critical path, exposed (under no compute), in the tail (after backward)"
        + ("" if few else "; medians, of tied paths the most"),
    )
    grid = Grid(
        [
            *([Column("step", left=True), Column("path of")] if few else []),
            Column("rank"),
            *(Column(name) for name in _TIMES),
        ]
    )
    for row in shown.iter_rows(named=True):
        grid.add(
            *([row["step"] or "capture", str(row["path_rank"])] if few else []),
            str(row["rank"]),
            *(_ms(row[name], 3) for name in _TIMES.values()),
        )
    grid.print(screen, "--table critical_path_communication --format csv")


def _communication_by_rank(frame: pl.DataFrame) -> pl.DataFrame:
    """Medians over the steps of each rank, of tied paths the most; of many ranks those with most exposed."""
    rows = (
        frame.group_by("step_index", "rank", maintain_order=True)
        .agg(pl.col(*_TIMES.values()).max())
        .group_by("rank", maintain_order=True)
        .agg(pl.col(*_TIMES.values()).median())
    )
    if rows.height <= MOST_ROWS:
        return rows.sort("rank")
    return rows.sort("exposed_communication_ns", "rank", descending=[True, False], nulls_last=True)


def _ms(value: float | None, digits: int) -> str:
    return "?" if value is None else "-" if value == 0 else milliseconds(value, digits)
