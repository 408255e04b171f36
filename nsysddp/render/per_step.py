"""Terminal screens of questions whose answer has a row a step: each rank's steps in one row, by their median."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
from rich.text import Text

from nsysddp.model.names import counted, members_text
from nsysddp.model.units import BYTES_PER_MIB
from nsysddp.questions.steps import steady
from nsysddp.questions.summary import milliseconds, over_steps
from nsysddp.render.screen import MOST_ROWS, Column, Grid, bullet, care, console, title

if TYPE_CHECKING:
    from rich.console import Console

    from nsysddp.model.result import Result

_MOST_FINDINGS = 6


def print_idle(result: Result, out: Console | None = None) -> None:
    """Print how long each rank was idle a step for which cause."""
    screen = out or console()
    frame = result["idle_step"]
    _begin(screen, result, frame)
    rows = over_steps(frame, ["rank", "cause"], ["idle_ns", "pieces", "longest_ns"])
    grid = Grid(
        [
            Column("rank", style="bold"),
            Column("cause", left=True),
            Column("idle"),
            Column("least", spare=4),
            Column("largest", spare=4),
            Column("in steps", spare=2),
            Column("pieces", spare=3),
            Column("longest\npiece", spare=5),
        ]
    )
    for row in _largest(rows, "idle_ns").iter_rows(named=True):
        grid.add(
            str(row["rank"]),
            row["cause"].replace("_", " "),
            *(_ms(row[name]) for name in ("idle_ns", "least", "largest")),
            f"{row['present']} of {row['steps']}",
            f"{row['pieces']:,.0f}",
            _ms(row["longest_ns"]),
        )
    _table(screen, grid, frame, "Idle time by cause", rows.height, "--table idle_step --format csv")
    care(screen, result)


def print_contention(result: Result, out: Console | None = None) -> None:
    """Print what overlap hides and costs each rank a step."""
    screen = out or console()
    frame = result["contention_step"]
    _begin(screen, result, frame)
    values = [
        "net_overlap_gain_ns",
        "hidden_transfer_ns",
        "contention_ns",
        "contention_low_ns",
        "contention_high_ns",
    ]
    rows = over_steps(frame, ["rank"], values)
    known = dict(
        steady(frame).group_by("rank").agg(pl.col("net_overlap_gain_ns").count()).iter_rows()
    )  # fmt: skip
    shown = rows.filter(pl.col("contention_ns").is_not_null())
    columns = [(name, column) for name, column in _CONTENTION if shown[name].null_count() < shown.height]
    grid = Grid(
        [
            Column("rank", style="bold"),
            *(column for _, column in columns),
            Column("known\nin steps", spare=2),
        ]
    )
    for row in _largest(shown, "contention_ns").iter_rows(named=True):
        grid.add(
            str(row["rank"]),
            *(_ms(row[name]) for name, _ in columns),
            f"{known.get(row['rank'], 0)} of {row['steps']}",
        )
    if shown.height:
        rest = "--table contention_step --format csv"
        _table(screen, grid, frame, "Gain and cost of overlap", shown.height, rest)
    silent = rows.filter(pl.col("contention_ns").is_null())
    said = set()
    for reason, ranks in _reasons(frame, silent):
        hidden = silent.filter(pl.col("rank").is_in(ranks))["hidden_transfer_ns"].drop_nulls()
        hides = "" if hidden.is_empty() else f", which hide {_between(hidden)} ms of transfer"
        who = counted(len(ranks), "rank")
        who = f"all {who}" if len(ranks) == rows.height > 1 else f"{who} ({members_text(ranks)})"
        screen.print(bullet(f"What overlap costs and gains is not known of {who}{hides}: {reason}"))
        said.add(f"windows without a net gain: {reason}")
    others = tuple(warning for warning in result.warnings if warning.message not in said)
    care(screen, replace(result, warnings=others))


_CONTENTION = (
    ("hidden_transfer_ns", Column("hidden\ntransfer", style="green")),
    ("contention_ns", Column("slowing of\ncompute", style="red")),
    ("contention_low_ns", Column("from", spare=3)),
    ("contention_high_ns", Column("to", spare=3)),
    ("net_overlap_gain_ns", Column("net gain")),
)


def _reasons(frame: pl.DataFrame, silent: pl.DataFrame) -> list[tuple[str, list[int]]]:
    """Ranks of which nothing is known by the reason that most of their steps give."""
    each = (
        steady(frame)
        .join(silent.select("rank"), on="rank", how="semi")
        .group_by("rank")
        .agg(pl.col("reason").drop_nulls().mode().sort().first())
        .with_columns(pl.col("reason").fill_null("no steady step"))
    )
    found = each.group_by("reason").agg(pl.col("rank").sort()).sort("reason")
    return list(found.iter_rows())


def _between(values: pl.Series) -> str:
    known = values.to_list()
    low, high = _ms(min(known)), _ms(max(known))
    return low if low == high else f"{low} to {high}"


_BUCKET_TIMES = (
    ("exposed_ns", "exposed", 0),
    ("hidden_transfer_ns", "hidden\ntransfer", 1),
    ("exposed_transfer_ns", "exposed\ntransfer", 2),
    ("wait_ns", "wait", 3),
    ("transfer_ns", "transfer", 4),
    ("launch_late_ns", "launched\nlate", 5),
    ("queued_ns", "queued", 6),
    ("pending_ns", "pending", 7),
)


def print_buckets(result: Result, out: Console | None = None) -> None:
    """Print each bucket's times a step on each rank."""
    screen = out or console()
    frame = result["bucket"]
    _begin(screen, result, frame)
    if not frame.height:
        care(screen, result)
        return
    keys = ["rank", "role", "micro_step", "bucket"]
    summed = frame.group_by(*keys, "step_index", "is_warmup", maintain_order=True).agg(
        *(pl.col(name).sum() for name, _, _ in _BUCKET_TIMES), pl.col("bytes").sum()
    )
    for name in ("bytes", *(name for name, _, _ in _BUCKET_TIMES)):
        if frame[name].null_count():
            unknown = frame.group_by(*keys, "step_index").agg(pl.col(name).is_null().any().alias("unknown"))
            summed = (
                summed.join(
                    unknown, on=[*keys, "step_index"], nulls_equal=True, maintain_order="left", how="left"
                )
                .with_columns(pl.when("unknown").then(None).otherwise(pl.col(name)).alias(name))
                .drop("unknown")
            )
    rows = over_steps(summed, keys, [*(name for name, _, _ in _BUCKET_TIMES), "bytes"])
    times = [column for column in _BUCKET_TIMES if rows[column[0]].null_count() < rows.height]
    several = rows["role"].n_unique() > 1
    micro = rows["micro_step"].n_unique() > 1
    sized = rows["bytes"].null_count() < rows.height
    grid = Grid(
        [
            Column("rank", style="bold"),
            *([Column("role", left=True)] if several else []),
            *([Column("micro-\nstep")] if micro else []),
            Column("bucket"),
            *([Column("MiB", spare=2)] if sized else []),
            *(Column(head, spare=spare) for _, head, spare in times),
        ],
        gap=1 if screen.width <= _NARROW else 2,
    )
    for row in _largest(rows, "exposed_ns").iter_rows(named=True):
        grid.add(
            str(row["rank"]),
            *([row["role"].replace("_", " ")] if several else []),
            *([str(row["micro_step"])] if micro else []),
            str(row["bucket"]),
            *(["?" if row["bytes"] is None else f"{row['bytes'] / BYTES_PER_MIB:.1f}"] if sized else []),
            *(_ms(row[name]) for name, _, _ in times),
        )
    _table(screen, grid, frame, "Each bucket", rows.height, "--table bucket --format csv")
    care(screen, result)


_NARROW = 90


def _begin(screen: Console, result: Result, frame: pl.DataFrame) -> None:
    steps = frame["step_index"].drop_nulls().n_unique()
    screen.print(title(result, counted(steps, "step") if steps else "whole capture"))
    for finding in result.findings[:_MOST_FINDINGS]:
        screen.print(bullet(finding.message))
    if len(result.findings) > _MOST_FINDINGS:
        screen.print(bullet(f"and {len(result.findings) - _MOST_FINDINGS} more (--format json has all)"))
    if result.findings:
        screen.print()


def _table(screen: Console, grid: Grid, frame: pl.DataFrame, what: str, rows: int, rest: str) -> None:
    """The table under what it shows: of how many steps, and whether it shows all rows."""
    steps = steady(frame)["step_index"].drop_nulls().n_unique()
    of = f"ms, median of {steps} steady steps" if steps > 1 else "ms a step" if steps else "ms of the capture"
    most = f"; the {MOST_ROWS} largest of {rows:,}, all with {rest}" if rows > MOST_ROWS else ""
    screen.print(Text(f"{what} ({of}{most})", style="dim"))
    grid.print(screen, rest)


def _largest(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """As many rows as a screen holds, those with most of a figure, in their order."""
    if rows.height <= MOST_ROWS:
        return rows
    return (
        rows.with_row_index("place")
        .sort(pl.col(name).fill_null(-1), "place", descending=[True, False])
        .head(MOST_ROWS)
        .sort("place")
        .drop("place")
    )


def _ms(ns: float | None) -> str:
    if ns is None:
        return "?"
    return "-" if ns == 0 else milliseconds(ns, 3) if ns > 0 else f"-{milliseconds(-ns, 3)}"
