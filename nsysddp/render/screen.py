"""What all terminal screens share: their width, their lines, and tables that fit.

A terminal's width is its own (``COLUMNS`` decides where it is set); a pipe's is 100. A table is never wider: columns
that a first look needs least are left out, then text is shortened, and the screen says where the rest is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsysddp.model.names import counted, visible
from nsysddp.render.theme import short

if TYPE_CHECKING:
    from nsysddp.model.result import Result

PIPED = 100
"""Width of what does not go to a terminal."""

MOST_ROWS = 20
"""Rows of one table on a screen."""

NOT_MISSED = 100
_LEAST_TEXT = 12
_MOST_NAMED = 4


def console() -> Console:
    """Stdout; colour only on a terminal, no markup or emoji from data."""
    piped = not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdecimal()
    return Console(highlight=False, markup=False, emoji=False, width=PIPED if piped else None)


def title(result: Result, windows: str) -> Text:
    """First line of a screen: the report, how many ranks, what part."""
    inputs = result.trace.inputs
    what = visible(inputs[0].name) if len(inputs) == 1 else counted(len(inputs), "report")
    line = Text(what, style="bold")
    line.append(f"   {counted(len(result.trace.rank_numbers), 'rank')}, {windows}", style="dim")
    return line


def bullet(text: str, style: str = "") -> Table:
    """One item of a list, wrapped under itself."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=2, justify="right")
    grid.add_column(overflow="fold")
    grid.add_row(Text("•", style=style), Text(text, style=style))
    return grid


def indented(text: str, style: str = "", *, below: int = 0, above: int = 0) -> Padding:
    """A paragraph, two columns in, with empty lines above and below."""
    return Padding(Text(text, style=style), (above, 0, below, 2))


def heading(screen: Console, text: str) -> None:
    """An empty line and a heading."""
    screen.print()
    screen.print(Text(text, style="bold"))


def care(screen: Console, result: Result, *more: str) -> None:
    """What this run's numbers lack or rest on. What holds for every run is in the definitions, and not repeated."""
    found = {finding.code for finding in result.findings}
    said = [
        *more,
        *(
            warning.message if warning.count == 1 else f"{warning.message} ({warning.count:,})"
            for warning in result.warnings
            if warning.code not in _IN_DOCTOR and _IN_FINDINGS.get(warning.code) not in found
        ),
        *(assumption for assumption in result.assumptions if assumption in result.trace.assumptions),
    ]
    if said:
        heading(screen, "Read with care")
        for note in dict.fromkeys(said):
            screen.print(bullet(note, style="dim"))


_IN_DOCTOR = frozenset({"unclassified_kernels", "no_gpu_metrics", "no_link_counters"})
_IN_FINDINGS = {
    "whole_graph_spans": "whole_graph",
    "suspected_collectives": "suspected_collectives",
    "clock_residual": "clock_unusable",
    "process_without_gpu_events": "gpu_data_missing",
    "report_missing": "report_missing",
    "shared_gpu": "shared_gpu",
}
"""Warnings that are said as findings where there is one of this code."""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        head: its title; may have several lines.
        left: is it text? Then it is set to the left, and can be shortened.
        style: colour of its cells.
        spare: columns with larger numbers are left out first where the screen is narrow; 0: never. From ``NOT_MISSED``
            on the screen does not say so.
        whole: is it text that is never shortened?
    """

    head: str
    left: bool = False
    style: str = ""
    spare: int = 0
    whole: bool = False


@dataclass
class Grid:
    """A table that fits a screen.

    Attributes:
        columns: as they stand.
        rows: cells, a text for each column.
        gap: blanks between columns.
        total: rows that there are, where only the first of them were added.
    """

    columns: Sequence[Column]
    rows: list[Sequence[str]] = field(default_factory=list)
    gap: int = 2
    total: int | None = None

    def add(self, *cells: str) -> None:
        """Append a row; control characters of names are spelled out."""
        self.rows.append([visible(cell) for cell in cells])

    def print(self, screen: Console, rest: str = "--format csv", *, most: int = MOST_ROWS) -> None:
        """Print it, and what was left out with where to find it."""
        rows = self.rows[:most]
        shown = self._fitting(screen.width, rows)
        widths = self._widths(shown, rows)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, self.gap - 1, 0, 0), show_edge=False)
        for place in shown:
            column = self.columns[place]
            table.add_column(
                Text(column.head),
                justify="left" if column.left else "right",
                style=column.style,
                no_wrap=True,
            )
        allotted = self._allotted(widths, screen.width - self.gap * (len(shown) - 1))
        for row in rows:
            cells = (short(row[at], allotted[at]) if self.columns[at].left else row[at] for at in shown)
            table.add_row(*map(Text, cells))
        screen.print(table)
        left_out = [
            column.head.replace("\n", " ")
            for place, column in enumerate(self.columns)
            if place not in shown and column.spare < NOT_MISSED
        ]
        said = (
            [f"{len(rows)} of {self.total or len(self.rows):,} rows"]
            if (self.total or len(self.rows)) > len(rows)
            else []
        )
        if len(left_out) > _MOST_NAMED:
            said.append(f"{len(shown)} of {len(self.columns)} columns")
        elif left_out:
            said.append(f"without {', '.join(left_out)}")
        if said:
            screen.print(indented(f"{'; '.join(said)}: {rest} has all", "dim"))

    def _widths(self, shown: Sequence[int], rows: Sequence[Sequence[str]]) -> dict[int, int]:
        return {
            place: max(
                *(len(line) for line in self.columns[place].head.split("\n")),
                *(len(row[place]) for row in rows),
                1,
            )
            for place in shown
        }  # fmt: skip

    def _fitting(self, width: int, rows: Sequence[Sequence[str]]) -> list[int]:
        """Columns that fit, the spare ones out first; of text columns at least some characters must."""
        shown = list(range(len(self.columns)))
        while True:
            needed = sum(self._least(place, whole) for place, whole in self._widths(shown, rows).items())
            spare = [place for place in shown if self.columns[place].spare]
            if needed + self.gap * (len(shown) - 1) <= width or not spare:
                return shown
            shown.remove(max(spare, key=lambda place: (self.columns[place].spare, place)))

    def _allotted(self, widths: Mapping[int, int], room: int) -> dict[int, int]:
        """The width of each column where all have ``room`` characters: the widest texts give way first."""
        allotted = dict(widths)
        while sum(allotted.values()) > room:
            texts = [place for place, width in allotted.items() if width > self._least(place, width)]
            if not texts:
                break
            allotted[max(texts, key=lambda place: (allotted[place], place))] -= 1
        return allotted

    def _least(self, place: int, width: int) -> int:
        """What a column of this width must have: text can be shortened, to some characters and its head."""
        column = self.columns[place]
        if column.whole:
            return width
        return min(width, max(_LEAST_TEXT, *map(len, column.head.split("\n")))) if column.left else width
