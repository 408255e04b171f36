"""The terminal screen of a diagnosis: causes by cost, each with what to try and what would refute it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from nsysddp.model.names import counted
from nsysddp.model.units import ms
from nsysddp.render.screen import bullet, care, console, heading, indented, title

if TYPE_CHECKING:
    from rich.console import Console

    from nsysddp.model.result import Result

WORTH_A_BLOCK = 0.005
"""Share of the step from which on a cause is told in full; smaller ones share a line."""

_CONFIDENCE = {"high": "green", "medium": "yellow", "low": "dim"}


def print_diagnosis(result: Result, out: Console | None = None) -> None:
    """Print where the step goes, then each cause in full, then what this capture cannot tell."""
    screen = out or console()
    rows = result["diagnosis"].to_dicts()
    steps = result["diagnosis_step"]
    windows = steps["step_index"].drop_nulls().n_unique()
    screen.print(title(result, counted(windows, "steady step") if windows else "whole capture"))
    screen.print(indented(result.findings[0].message, "bold", below=1))
    large = [row for row in rows if row["cost_ns"] is None or row["step_ratio"] >= WORTH_A_BLOCK]
    for number, row in enumerate(large, 1):
        screen.print(_block(number, row))
    small = [row for row in rows if row not in large]
    if small:
        listed = ", ".join(f"{row['cause']} {ms(row['cost_ns']):.3f}" for row in small)
        screen.print(Text(f"below {WORTH_A_BLOCK:.1%} of the path, in ms: {listed}", style="dim"))
    unjudged = result["diagnosis_unjudged"]
    if unjudged.height:
        heading(screen, "This capture does not tell")
        for cause, reason, capture in unjudged.iter_rows():
            screen.print(bullet(f"{cause}: {reason}; capture: {capture}"))
    care(screen, result)


def _block(number: int, row: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(width=2, justify="right", style="bold")
    grid.add_column(ratio=1, overflow="fold")
    cost = "fault" if row["cost_ns"] is None else f"{ms(row['cost_ns']):.3f} ms a step"
    if (row["saving_ns"] or 0) < (row["cost_ns"] or 0) and row["saving_ns"] is not None:
        cost += f", at most {ms(row['saving_ns']):.3f} to save"
    head = Text.assemble((row["cause"], "bold"), "  ", (cost, "bold red"), "  ")
    head.append(f"confidence {row['confidence']}", style=_CONFIDENCE[row["confidence"]])
    if row["doubt"]:
        head.append(f": {row['doubt']}", style="dim")
    grid.add_row(str(number), head)
    grid.add_row("", Text(row["claim"]))
    for label, text in (("try", row["try_next"]), ("refuted if", row["refuted_by"])):
        grid.add_row("", Text.assemble((f"{label}: ", "bold"), text))
    grid.add_row("", "")
    return grid


def markdown(result: Result) -> str:
    """The same as a Markdown section: one table of costs, then a paragraph a cause."""
    lines = [
        result.findings[0].message,
        "",
        "| cause | ms a step | of the critical path | confidence |",
        "|---|---:|---:|---|",
    ]
    rows = result["diagnosis"].to_dicts()
    for row in rows:
        cost = "fault" if row["cost_ns"] is None else f"{ms(row['cost_ns']):.3f}"
        share = "" if row["step_ratio"] is None else f"{row['step_ratio']:.1%}"
        lines.append(f"| {row['cause']} | {cost} | {share} | {row['confidence']} |")
    for number, row in enumerate(rows, 1):
        lines += [
            "",
            f"**{number}. {row['cause']}** {_escaped(row['claim'])}",
            f"Try: {_escaped(row['try_next'])}. Refuted if: {_escaped(row['refuted_by'])}."
            + (f" Doubt: {_escaped(row['doubt'])}." if row["doubt"] else ""),
        ]
    if result["diagnosis_unjudged"].height:
        lines += ["", "This capture does not tell:", ""]
        lines += [
            f"* {cause}: {_escaped(reason)}; capture: {_escaped(capture)}"
            for cause, reason, capture in result["diagnosis_unjudged"].iter_rows()
        ]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>|" else character for character in text)
