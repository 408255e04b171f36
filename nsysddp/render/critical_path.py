"""The terminal screen of a critical path: what it consists of, window by window, and what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsysddp.model.units import ms
from nsysddp.questions.critical_path import KINDS
from nsysddp.render.text import WIDE, console

if TYPE_CHECKING:
    from nsysddp.model.result import Result

_MOST_PATHS = 16
_STYLES = {"transfer": "red", "wait": "yellow", "unmatched_communication": "red"}


def print_critical_path(result: Result, out: Console | None = None) -> None:
    """Print the verdict, each path by kinds, the largest causes, communication, and what to read with care."""
    screen = out or console()
    names = [one.name for one in result.trace.inputs]
    what = names[0] if len(names) == 1 else f"{len(names)} reports"
    windows = result["critical_path_step"]["step_index"].drop_nulls().n_unique()
    title = Text(what, style="bold")
    part = _count(windows, "step") if windows else "whole capture"
    title.append(f"   {_count(len(result.trace.rank_numbers), 'rank')}, {part}", style="dim")
    screen.print(title)
    for finding in result.findings[:1]:
        screen.print(Padding(Text(finding.message, style="bold"), (0, 0, 0, 2)))
    steps = result["critical_path_step"]
    tied = "; ~ tied: other ranks end within 50 us" if steps["tied"].any() else ""
    _head(screen, f"Each path in ms; it ends with the last event of its rank{tied}", steps.height)
    screen.print(_paths(result, wide=screen.width >= WIDE))
    if result.findings[1:]:
        _head(screen, "Largest causes")
        for finding in result.findings[1:]:
            screen.print(Padding(Text(f"• {finding.message}"), (0, 0, 0, 1)))
    frame = result.tables.get("critical_path_communication")
    if frame is not None and (frame["exposed_communication_ns"].fill_null(1) > 0).any():
        _head(
            screen,
            "Communication in ms: on the critical path, exposed (under no compute), in the tail (after backward)",
            frame.height,
        )
        screen.print(_communication(frame))
    notes = [f"{warning.message} ({warning.count:,})" for warning in result.warnings] + list(
        result.assumptions
    )
    _head(screen, "Read with care")
    for note in notes:
        screen.print(Padding(Text(f"• {note}", style="dim"), (0, 0, 0, 1)))


def _paths(result: Result, *, wide: bool) -> Table:
    steps = result["critical_path_step"]
    key = ["step", "step_index", "path_rank"]
    kinds = result["critical_path_kind"]
    large = kinds.filter(pl.col("path_ratio") >= _WORTH_A_COLUMN)["kind"].unique().to_list()
    shown = [kind for kind in KINDS if kind in large]
    rows = steps.join(
        kinds.pivot(on="kind", index=key, values="duration_ns"),
        on=key,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    digits = 3 if wide else 2
    table = _table()
    table.add_column("step")
    for name in ("end", "path"):
        table.add_column(name, justify="right")
    for kind in shown:
        table.add_column(_HEADS.get(kind, kind), justify="right", style=_STYLES.get(kind, ""))
    table.add_column("rest", justify="right")
    table.add_column("recorded", justify="right")
    for row in rows.head(_MOST_PATHS).iter_rows(named=True):
        values = [row[kind] or 0 for kind in shown]
        table.add_row(
            Text(f"{row['step'] or 'capture'}{' (warm-up)' if row['is_warmup'] else ''}"),
            f"{'~' if row['tied'] else ''}rank {row['path_rank']}",
            *(_ms(value, digits) for value in (row["path_ns"], *values, row["path_ns"] - sum(values))),
            "n/a" if row["recorded_ratio"] is None else f"{row['recorded_ratio']:.1%}",
        )
    return table


_WORTH_A_COLUMN = 0.01
"""Share of some path from which on a kind has a column of its own."""

_HEADS = {"unmatched_communication": "unmatched\ncomm.", "host_gap": "host\ngap"}


def _communication(frame: pl.DataFrame) -> Table:
    table = _table()
    for name in ("step", "path of", "rank", "critical", "exposed", "of it wait", "tail"):
        table.add_column(name, justify="left" if name == "step" else "right")
    for row in frame.head(_MOST_PATHS).iter_rows(named=True):
        table.add_row(
            Text(row["step"] or "capture"),
            str(row["path_rank"]),
            str(row["rank"]),
            *(
                _ms(row[name], 3)
                for name in (
                    "critical_communication_ns",
                    "exposed_communication_ns",
                    "exposed_wait_ns",
                    "tail_communication_ns",
                )
            ),
        )
    return table


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)


def _head(screen: Console, title: str, rows: int = 0) -> None:
    more = f" (first {_MOST_PATHS} of {rows}; --format csv has all)" if rows > _MOST_PATHS else ""
    screen.print(Text(f"\n{title}{more}", style="bold"))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _ms(value: int | None, digits: int) -> str:
    return "?" if value is None else "-" if value == 0 else f"{ms(value):,.{digits}f}"
