"""The terminal screen of a what-if: the replay's error first, then every prediction with its band."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsysddp.model.units import BYTES_PER_MIB, ms
from nsysddp.render.text import console

if TYPE_CHECKING:
    from nsysddp.model.result import Result

_TITLES = {
    "unchanged": "as it is",
    "no_communication": "no communication",
    "no_straggler": "no straggler",
    "no_contention": "no contention",
    "optimizer_in_backward": "optimizer in backward",
    "order_ready": "buckets filled as gradients get ready",
    "order_reverse": "buckets filled the other way round",
}

_NOTHING = 5e-4
"""A change that is shown as none has no sign."""


def print_whatif(result: Result, out: Console | None = None) -> None:
    """Print the predictions."""
    screen = out or console()
    inputs = result.trace.inputs
    screen.print(Text(inputs[0].name if len(inputs) == 1 else f"{len(inputs)} reports", style="bold"))
    codes = ("whatif_replay", "bucket_caps")
    for finding in (one for one in result.findings if one.code in codes):
        screen.print(Padding(Text(finding.message), (0, 0, 0, 2)))
    rows = result["whatif"].to_dicts()
    plain = [row for row in rows if row["step_ns"] is not None and row["buckets"] is None]
    screen.print(Text("\nPredicted step in ms (mean of the steady steps)", style="bold"))
    screen.print(_table(plain, buckets=False))
    layouts = [row for row in rows if row["step_ns"] is not None and row["buckets"] is not None]
    if layouts:
        screen.print(Text("\nOther buckets", style="bold"))
        screen.print(_table(layouts, buckets=True))
    if any(row["is_captured"] for row in layouts):
        screen.print(Padding(Text("* the captured buckets", style="dim"), (0, 0, 0, 2)))
    for kind, size, latency, bandwidth, error in (
        result["whatif_link"]
        .select("kind", "group_size", "latency_ns", "bandwidth_gbps", "error_ratio")
        .iter_rows()
    ):
        parts = [f"{kind.replace('_', '-')} over {size} ranks" if size else kind.replace("_", "-")]
        parts.append("latency unknown" if latency is None else f"latency {latency / 1000:.1f} us")
        parts.append("bandwidth unknown" if bandwidth is None else f"{bandwidth:.1f} GB/s")
        screen.print(
            Padding(
                Text(f"link: {', '.join(parts)}, median deviation {error:.1%}", style="dim"), (1, 0, 0, 2)
            )
        )
    screen.print(Text("\nRead with care", style="bold"))
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["reason"]:
            reasons.setdefault(row["reason"], []).append(title(row["scenario"]))
    notes = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    for note in [*notes, *(one.message for one in result.warnings), *result.assumptions]:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=2, justify="right")
        grid.add_column(overflow="fold")
        grid.add_row(Text("•", style="dim"), Text(note, style="dim"))
        screen.print(grid)


def title(scenario: str) -> str:
    """A scenario in words."""
    if scenario.startswith("cap_"):
        return f"bucket cap {scenario.removeprefix('cap_')} MiB"
    if scenario.startswith("faster_"):
        return f"communication {scenario.removeprefix('faster_')} x faster"
    return _TITLES[scenario]


def _table(rows: list[dict[str, Any]], *, buckets: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    table.add_column("scenario")
    for name in ("step", "from", "to", "change"):
        table.add_column(name, justify="right")
    if buckets:
        table.add_column("buckets", justify="right")
        table.add_column("last, MiB", justify="right")
    for row in rows:
        captured = " *" if row["is_captured"] else ""
        ratio = 0.0 if abs(row["change_ratio"]) < _NOTHING else row["change_ratio"]
        change = "" if row["scenario"] == "unchanged" else f"{ratio:+.1%}"
        cells = [Text(title(row["scenario"]) + captured)]
        cells += [Text(f"{ms(row[name]):,.3f}") for name in ("step_ns", "low_ns", "high_ns")]
        cells.append(Text(change, style=_style(row)))
        if buckets:
            cells += [Text(str(row["buckets"])), Text(f"{row['last_bucket_bytes'] / BYTES_PER_MIB:.1f}")]
        table.add_row(*cells)
    return table


def _style(row: dict[str, Any]) -> str:
    """Colour only for changes beyond their error."""
    if abs(row["change_ratio"]) <= row["error_ratio"]:
        return "dim"
    return "green" if row["change_ratio"] < 0 else "red"
