"""The terminal screen of an analysis: the verdict first, then each rank's figures, then what was assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsysddp.model.units import ms
from nsysddp.questions.steps import steady
from nsysddp.render.per_rank import median, milliseconds, spread, without_window

if TYPE_CHECKING:
    from nsysddp.model.result import Result

WIDE = 110
"""From this width on, columns that a first look does not need are shown too."""


def console() -> Console:
    """Stdout; colour only on a terminal, no markup or emoji from data."""
    return Console(highlight=False, markup=False, emoji=False)


def print_result(result: Result, out: Console | None = None) -> None:
    """Print what a reader needs first."""
    screen = out or console()
    screen.print(_title(result))
    if result.findings:
        screen.print(Padding(Text(result.findings[0].message, style="bold"), (0, 0, 1, 2)))
    screen.print(_rank_table(result, wide=screen.width >= WIDE))
    screen.print(Padding(_spread(result), (0, 0, 1, 2)))
    rest = result.findings[1:]
    if rest:
        screen.print(Text("Findings", style="bold"))
        for finding in rest[:_MOST_FINDINGS]:
            screen.print(_bullet(finding.message))
        if len(rest) > _MOST_FINDINGS:
            screen.print(_bullet(f"and {len(rest) - _MOST_FINDINGS} more (--format json has all)"))
        screen.print()
    notes = [f"{warning.message} ({warning.count:,})" for warning in result.warnings] + list(
        result.assumptions
    )
    if notes:
        screen.print(Text("Read with care", style="bold"))
        for note in notes:
            screen.print(_bullet(note, style="dim"))


_MOST_FINDINGS = 12


def _bullet(text: str, style: str = "") -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=3, justify="right")
    grid.add_column(overflow="fold")
    grid.add_row(Text("•", style=style), Text(text, style=style))
    return grid


def _title(result: Result) -> Text:
    inputs = result.trace.inputs
    what = inputs[0].name if len(inputs) == 1 else f"{len(inputs)} reports"
    ranks = len(result.trace.rank_numbers)
    steps = result["overlap"]["step_index"].drop_nulls().n_unique()
    span = _count(steps, "step") if steps else "whole capture"
    title = Text(what, style="bold")
    title.append(f"   {_count(ranks, 'rank')}, {span}", style="dim")
    return title


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


_COLUMNS: tuple[tuple[str, str, str, bool], ...] = (
    ("window_ns", "step", "", False),
    ("compute_ns", "compute", "", False),
    ("hidden_transfer_ns", "hidden\ntransfer", "green", False),
    ("hidden_wait_ns", "hidden\nwait", "", False),
    ("exposed_transfer_ns", "exposed\ntransfer", "red", False),
    ("exposed_wait_ns", "exposed\nwait", "yellow", False),
    ("unsplit_ns", "comm.\nunsplit", "", False),
    ("tail_communication_ns", "tail", "", False),
    ("exposed_memory_ns", "copies\nalone", "", True),
    ("graph_ns", "graphs", "", False),
    ("idle_ns", "idle", "", False),
)


def _rank_table(result: Result, *, wide: bool) -> Table:
    frame = steady(result["overlap"]).with_columns(
        (pl.col("hidden_unsplit_ns") + pl.col("exposed_unsplit_ns")).alias("unsplit_ns")
    )
    windows = int(frame.group_by("rank").len()["len"].max() or 1)  # type: ignore[arg-type]
    whole = frame["step_index"].null_count() == frame.height
    caption = (
        "ms of the whole capture"
        if whole
        else f"ms, median of {_count(windows, 'steady step')}"
        if windows > 1
        else "ms"
    )
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1 if wide else 0), title=f"Each rank ({caption})",
        title_style="dim", title_justify="left", show_edge=False,
    )  # fmt: skip
    table.add_column("rank", justify="right", style="bold")
    shown = [column for column in _COLUMNS if _worth_showing(frame, column[0]) and (wide or not column[3])]
    for _, title, style, _ in shown:
        table.add_column("window" if whole and title == "step" else title, justify="right", style=style)
    table.add_column("overlap\nof comm.", justify="right")
    if wide:
        table.add_column("kernels", justify="right")
        table.add_column("collec-\ntives", justify="right")
    for (rank,), part in frame.group_by("rank", maintain_order=True):
        cells = [str(rank)] + [milliseconds(median(part, name), 3 if wide else 2) for name, _, _, _ in shown]
        cells.append(_ratio(part))
        if wide:
            cells += [_number(median(part, "kernels")), _number(median(part, "collectives"))]
        table.add_row(*cells)
    for rank in without_window(result):
        table.add_row(str(rank), *["?"] * (len(table.columns) - 1))
    return table


def _worth_showing(frame: pl.DataFrame, name: str) -> bool:
    """Columns that are nothing but zero or unknown for optional kinds of time are left out."""
    if name in ("unsplit_ns", "graph_ns", "exposed_memory_ns", "tail_communication_ns"):
        return bool((frame[name].fill_null(0) > 0).any())
    return True


def _ratio(part: pl.DataFrame) -> str:
    hidden, total = part["hidden_communication_ns"], part["communication_ns"]
    if hidden.null_count() or not total.sum():
        return "n/a"
    return f"{100 * float(hidden.sum()) / float(total.sum()):.1f}%"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _spread(result: Result) -> Text:
    """Slowest, fastest and spread: one rank never stands for all."""
    legend = "overlap is hidden / all communication of the rank"
    told = spread(result)
    return Text(f"{told}; {legend}" if told else f"{legend}; ? is unknown, n/a not applicable", style="dim")


def print_table(result: Result, name: str, out: Console | None = None) -> None:
    """Print one table in full, one line a row."""
    screen = out or console()
    frame = result[name]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column, dtype in frame.schema.items():
        table.add_column(column, justify="right" if dtype.is_numeric() else "left", overflow="fold")
    for row in frame.iter_rows():
        table.add_row(
            *(
                Text("" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value))
                for value in row
            )
        )
    screen.print(table)


def print_side_by_side(results: dict[str, Result], out: Console | None = None) -> None:
    """Print several runs one below the other: verdict and figures of each rank."""
    screen = out or console()
    for name, result in results.items():
        screen.print(Text(name, style="bold underline"))
        screen.print(Padding(Text(result.findings[0].message, style="bold"), (0, 0, 0, 2)))
        for finding in result.findings[1:]:
            if finding.severity >= _HEADLINE:
                screen.print(_bullet(finding.message))
        screen.print(_rank_table(result, wide=screen.width >= WIDE))
        screen.print(Padding(_spread(result), (0, 0, 1, 2)))


_HEADLINE = 70
"""Findings from this severity on belong beside the verdict."""


def print_question(result: Result, table: str, out: Console | None = None) -> None:
    """Print the findings of one question and one of its tables, times in ms; lines are as long as they must be."""
    screen = out or console()
    for finding in result.findings[:_MOST_FINDINGS]:
        screen.print(_bullet(finding.message))
    if result.findings:
        screen.print()
    frame = result[table]
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, title=table, title_justify="left")
    columns = [name for name in frame.columns if frame[name].null_count() < frame.height]
    for name in columns:
        numeric = frame.schema[name].is_numeric()
        title = f"{name.removesuffix('_ns')}\nms" if name.endswith("_ns") else name
        shown.add_column(title, justify="right" if numeric else "left", no_wrap=True)
    for row in frame.head(_MOST_ROWS).select(columns).iter_rows():
        shown.add_row(*(_cell(name, value) for name, value in zip(columns, row, strict=True)))
    screen.width = max(
        screen.width, shown.__rich_measure__(screen, screen.options.update(width=10_000)).maximum
    )
    screen.print(shown)
    if frame.height > _MOST_ROWS:
        screen.print(Text(f"{_MOST_ROWS} of {frame.height:,} rows; --format csv has all", style="dim"))
    for warning in result.warnings:
        screen.print(_bullet(f"{warning.message} ({warning.count:,})", style="dim"))


_MOST_ROWS = 60


def _cell(name: str, value: Any) -> Text:
    if value is None:
        return Text("")
    if name.endswith("_ns"):
        return Text(f"{ms(value):,.3f}")
    return Text(f"{value:.3f}" if isinstance(value, float) else str(value))
