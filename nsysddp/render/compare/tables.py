"""A comparison as tables: on the screen and in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from nsysddp.render.compare.words import (
    _MEDIANS,
    account_rows,
    interval,
    names_text,
    number,
    part_title,
    percent,
    sentence,
    shown_rank,
    title_of,
    which_is_which,
    who,
)
from nsysddp.render.theme import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from nsysddp.questions.compare import Comparison


NOTE = "* holds for these very runs only"


_SPARE = {"": 3, "detectable": 2, "P99": 1, "P95": 1}
"""Columns that a narrow screen leaves out."""


def rows_for_people(comparison: Comparison, rank: int | None) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the metrics of the job (``rank`` None) or of one rank."""
    heads = ["metric", "base", "new", "change", "", "95 % interval", "detectable", "verdict"]
    of_rank = pl.col("rank").is_null() if rank is None else pl.col("rank") == rank
    cells = []
    for row in comparison.tables["comparison"].filter(of_rank).iter_rows(named=True):
        if row["difference"] is None or row["base"] == row["new"] == 0:
            continue
        unit = row["unit"]
        cells.append(
            [
                title_of(row["metric"]),
                number(row["base"], unit, bare=True),
                number(row["new"], unit, bare=True),
                number(row["difference"], unit, sign=True, bare=True),
                percent(row["change_ratio"]),
                interval(row).removesuffix(" ms") + (" *" if row["scope"] == "these_runs" else ""),
                number(row["detectable"], unit, bare=True),
                row["verdict"],
            ]
        )
    kept = [place for place in range(len(heads)) if place < 5 or any(row[place] != "–" for row in cells)]
    return [heads[place] for place in kept], [[row[place] for place in kept] for row in cells]


def account_for_people(
    comparison: Comparison, view: str, rank: int | None
) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of one account, the whole last."""
    rows = account_rows(comparison, view, rank)
    cells = [
        [
            part_title(row["part"]),
            number(row["base_ns"], "ns", bare=True),
            number(row["new_ns"], "ns", bare=True),
            number(row["change_ns"], "ns", sign=True, bare=True),
        ]
        for row in (*rows[1:], *rows[:1])
    ]
    return ["part of the step", "base", "new", "change"], cells


def matrix_for_people(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the matrix of percentiles."""
    heads = ["side", "metric", "rank", "steps", "median", "P95", "P99", "largest", ""]
    cells = [
        [
            row["side"],
            title_of(row["metric"]),
            str(row["rank"]),
            str(row["steps"]),
            *(number(row[name], "ns", bare=True) for name in ("median", "p95", "p99", "largest")),
            "slowest" if row["is_slowest"] else "",
        ]
        for row in comparison.tables["matrix"].iter_rows(named=True)
    ]
    kept = [
        place for place in range(len(heads)) if place not in (5, 6) or any(row[place] != "–" for row in cells)
    ]
    return [heads[place] for place in kept], [[row[place] for place in kept] for row in cells]


def sections(comparison: Comparison) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, heads and cells of every table that a reader needs first."""
    rank = shown_rank(comparison)
    made = [(f"The job (ms; {_MEDIANS})", *rows_for_people(comparison, None))]
    if rank is not None:
        made.append(
            (f"{who(comparison, rank).capitalize()} (ms; {_MEDIANS})", *rows_for_people(comparison, rank))
        )
        made.append(
            (
                f"What changed in rank {rank}'s step (ms, means of all steps, which add up; time on its GPU)",
                *account_for_people(comparison, "window", rank),
            )
        )
    if account_rows(comparison, "critical_path", None):
        made.append(
            (
                "What changed on the job's critical path (ms, means of all steps, which add up)",
                *account_for_people(comparison, "critical_path", None),
            )
        )
    made.append(("Percentiles of each rank (ms)", *matrix_for_people(comparison)))
    return made


def print_comparison(comparison: Comparison, out: Console) -> None:
    """Print what a reader needs first."""
    from rich.text import Text

    from nsysddp.render.screen import Column, Grid, bullet, indented

    out.print(Text(f"{names_text(comparison.base)}  →  {names_text(comparison.new)}", style="dim"))
    out.print(indented(sentence(comparison), "bold"))
    for note in which_is_which(comparison):
        out.print(indented(note))
    for title, heads, cells in sections(comparison):
        out.print()
        out.print(Text(title, style="dim"))
        last = len(heads) - 1
        grid = Grid(
            [
                Column(
                    head,
                    left=place == 0 or head in ("verdict", "metric") or (place == last and not head),
                    spare=0 if place == last or head not in _SPARE else _SPARE[head],
                )
                for place, head in enumerate(heads)
            ]
        )
        for row in cells:
            grid.add(*row)
        grid.print(out, "--format json")
    if (comparison.tables["comparison"]["scope"] == "these_runs").any():
        out.print(indented(NOTE, "dim"))
    if comparison.warnings:
        out.print()
    for warning in comparison.warnings:
        out.print(bullet(warning, "dim"))


def markdown(comparison: Comparison, *, brief: bool = False) -> str:
    """The same in GitHub's Markdown; ``brief`` leaves out the sentence and the percentiles of each rank."""
    lines = []
    if not brief:
        lines = [f"**{escaped(sentence(comparison))}**", ""]
        lines += [line for note in which_is_which(comparison) for line in (escaped(note), "")]
    for title, heads, cells in sections(comparison)[: -1 if brief else None]:
        lines += [f"**{title}**", "", *markdown_table(heads, cells), ""]
    if (comparison.tables["comparison"]["scope"] == "these_runs").any():
        lines += [NOTE.replace("*", "\\*"), ""]
    lines += [f"- {escaped(note)}" for note in (*comparison.warnings, *comparison.assumptions)]
    return "\n".join(lines)


def markdown_table(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table in GitHub's Markdown, text of the data escaped."""
    lines = [heads, ["---" if place == 0 else "---:" for place in range(len(heads))], *cells]
    return [
        f"| {' | '.join(cell if number == 1 else escaped(cell) for cell in row)} |"
        for number, row in enumerate(lines)
    ]


def escaped(text: str) -> str:
    """Text of the data that Markdown would read as markup, made plain."""
    made = printable(text).replace("\\", "\\\\")
    for special in "|<>*_`[]":
        made = made.replace(special, "\\" + special)
    return made
