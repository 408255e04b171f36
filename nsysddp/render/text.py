"""The terminal screen of an analysis: what bounds the step, each rank's figures, then what else was found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from nsysddp.model.names import counted
from nsysddp.render import per_rank
from nsysddp.render.screen import (
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
    import polars as pl
    from rich.console import Console

    from nsysddp.model.result import Finding, Result

__all__ = ["console", "print_question", "print_result", "print_side_by_side", "print_table"]

_MOST_FINDINGS = 8
_MOST_RANKS = 16


def print_result(result: Result, out: Console | None = None) -> None:
    """Print what a reader needs first."""
    screen = out or console()
    steps = result["overlap"]["step_index"].drop_nulls().n_unique()
    screen.print(title(result, counted(steps, "step") if steps else "whole capture"))
    if result.findings:
        screen.print(indented(result.findings[0].message, "bold", below=1))
    _print_ranks(screen, result)
    rest = [finding for finding in result.findings[1:] if finding.code != "capture_incomplete"]
    if rest:
        heading(screen, "Findings")
        for finding in rest[:_MOST_FINDINGS]:
            screen.print(bullet(finding.message))
        if len(rest) > _MOST_FINDINGS:
            screen.print(bullet(f"and {len(rest) - _MOST_FINDINGS} more (--format json has all)"))
    care(screen, result, *_incomplete(result.findings))


def _incomplete(findings: tuple[Finding, ...]) -> list[str]:
    """What nsys says of a capture is in ``doctor``; here only that it says something."""
    reports = sum(finding.code == "capture_incomplete" for finding in findings)
    where = "this report" if reports == 1 else counted(reports, "report")
    return [f"nsys says that events of {where} can be missing (nsysddp doctor)"] if reports else []


def _print_ranks(screen: Console, result: Result) -> None:
    labels, rows = per_rank.figures(result)
    few, which = rows, "Each rank"
    if len(rows) > _MOST_RANKS:
        first = result.findings[0].rank if result.findings else None  # it need not be among the slowest
        order = sorted(rows, key=lambda row: (row.rank != first, -(row.window_ns or 0), row.rank))
        few = sorted(order[:_MOST_RANKS], key=lambda row: row.rank)
        named = "" if first is None else f"Rank {first} and the "
        slowest = len(few) if first is None else len(few) - 1
        which = f"{named or 'The '}{slowest} slowest{' others' if named else ''} of {len(rows):,} ranks"
    heading_text = f"{which} ({per_rank.caption(result)})"
    screen.print(Text(heading_text, style="dim"))
    grid = Grid(
        [Column("rank", style="bold"), *(_column(label) for label in labels)],
        gap=2 if screen.width > _NARROW else 1,
    )
    for row in few:
        grid.add(str(row.rank), *(cell.replace(" %", "%") for cell in row.cells))
    grid.print(screen, "--table overlap --format csv")
    spread = per_rank.spread(result)
    if spread:
        screen.print(indented(spread, "dim"))
    unknown = any("?" in row.cells for row in rows)
    if unknown:
        screen.print(indented("? is unknown", "dim"))


_NARROW = 90
_STYLES = {"hidden transfer": "green", "exposed transfer": "red", "exposed wait": "yellow"}
_SPARE = {
    "collectives": NOT_MISSED + 1,
    "kernels": NOT_MISSED,
    "of it spin": 7,
    "copies alone": 5,
    "peer copies": 4,
    "tail": 3,
}
_HEADS = {
    "communication, unsplit": "comm.\nunsplit",
    "overlap of comm.": "overlap\nof comm.",
    "collectives": "collec-\ntives",
    "of it spin": "of it\nspin",
}


def _column(label: str) -> Column:
    head = _HEADS.get(label, label.replace(" ", "\n", 1))
    return Column(head, style=_STYLES.get(label, ""), spare=_SPARE.get(label, 0))


def print_side_by_side(results: dict[str, Result], out: Console | None = None) -> None:
    """Print several runs one below the other: what bounds the step, and figures of each rank."""
    screen = out or console()
    for name, result in results.items():
        heading(screen, name)
        screen.print(indented(result.findings[0].message, "bold"))
        for finding in result.findings[1:]:
            if finding.severity >= _HEADLINE:
                screen.print(bullet(finding.message))
        screen.print()
        _print_ranks(screen, result)


_HEADLINE = 70
"""Findings from this severity on belong beside the verdict."""


def print_question(result: Result, table: str, out: Console | None = None) -> None:
    """Print the findings of one question and one of its tables, times in ms."""
    screen = out or console()
    for finding in result.findings[:_MOST_FINDINGS]:
        screen.print(bullet(finding.message))
    if result.findings:
        screen.print()
    _print_frame(screen, result[table], table)
    care(screen, result)


def print_table(frame: pl.DataFrame, name: str, out: Console | None = None) -> None:
    """Print one table, a line a row, as far as it fits; times in ms."""
    _print_frame(out or console(), frame, name)


def _print_frame(screen: Console, frame: pl.DataFrame, name: str) -> None:
    """A table as it is: what is the same in all rows is said once, above it."""
    same: list[str] = []
    varying: list[str] = []
    for column in frame.columns:
        known = frame[column].drop_nulls()
        if not known.len():
            continue
        alike = frame.height > 1 and known.len() == frame.height and known.n_unique() == 1
        (same if alike else varying).append(column)
    screen.print(Text(f"{name}: {counted(frame.height, 'row')}", style="bold"))
    if same:
        said = ", ".join(f"{_head(column)} {_cell(column, frame[column][0])}" for column in same)
        screen.print(indented(f"in every row: {said}", "dim"))
    grid = Grid(
        [
            Column(
                _head(column).replace(" ", "\n", 1),
                left=not frame.schema[column].is_numeric(),
                spare=place if place >= _KEPT else 0,
            )
            for place, column in enumerate(varying)
        ],
        total=frame.height,
    )
    for row in frame.select(varying).head(_MOST_ROWS).iter_rows():
        grid.add(*(_cell(column, value) for column, value in zip(varying, row, strict=True)))
    if varying:
        grid.print(screen, f"--table {name} --format csv", most=_MOST_ROWS)


_KEPT = 3
_MOST_ROWS = 20


def _head(column: str) -> str:
    return f"{column.removesuffix('_ns')} ms" if column.endswith("_ns") else column


def _cell(column: str, value: object) -> str:
    if value is None:
        return ""
    if column.endswith("_ns") and isinstance(value, (int, float)):
        return f"{value / 1e6:,.3f}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
