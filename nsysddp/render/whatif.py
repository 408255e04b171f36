"""The terminal screen of a what-if: the replay's error first, then every prediction with its band."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsysddp.model.names import counted
from nsysddp.model.units import BYTES_PER_MIB, ms
from nsysddp.render.screen import MOST_ROWS, Column, Grid, bullet, care, console, heading, indented
from nsysddp.render.screen import title as screen_title

if TYPE_CHECKING:
    from rich.console import Console

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
"""A change of less than this ratio is shown as none."""


def print_whatif(result: Result, out: Console | None = None) -> None:
    """Print the predictions."""
    screen = out or console()
    replayed = result["whatif_replay"].height
    screen.print(screen_title(result, counted(replayed, "step")))
    codes = ("whatif_replay", "bucket_caps")
    for number, finding in enumerate(found for found in result.findings if found.code in codes):
        screen.print(indented(finding.message, "" if number else "bold"))
    rows = result["whatif"].to_dicts()
    plain = [row for row in rows if row["step_ns"] is not None and row["buckets"] is None]
    layouts = [row for row in rows if row["step_ns"] is not None and row["buckets"] is not None]
    heading(screen, "Replayed step in ms (mean of the steady steps)")
    _print_rows(screen, plain, buckets=False)
    if layouts:
        heading(screen, "Other buckets")
        _print_rows(screen, layouts, buckets=True)
    if any(row["is_captured"] for row in layouts):
        screen.print(indented("* the captured buckets", "dim"))
    _print_links(screen, result)
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["reason"]:
            reasons.setdefault(row["reason"], []).append(title(row["scenario"]))
    if reasons:
        heading(screen, "Why")
        for reason, names in reasons.items():
            screen.print(bullet(f"{', '.join(names)}: {reason}"))
    care(screen, result)


def _print_links(screen: Console, result: Result) -> None:
    """What is known of each link, that messages of another size are predicted with."""
    columns = ("kind", "group_size", "latency_ns", "bandwidth_gbps", "error_ratio")
    links = result["whatif_link"].select(columns).rows()
    if links:
        screen.print()
    for kind, size, latency, bandwidth, error in links[:MOST_ROWS]:
        parts = [f"{kind.replace('_', '-')} over {size} ranks" if size else kind.replace("_", "-")]
        parts.append("latency unknown" if latency is None else f"latency {latency / 1000:.1f} us")
        parts.append("bandwidth unknown" if bandwidth is None else f"{bandwidth:.1f} GB/s")
        screen.print(indented(f"link: {', '.join(parts)}, median deviation {error:.1%}", "dim"))


def title(scenario: str) -> str:
    """A scenario in words."""
    if scenario.startswith("cap_"):
        return f"bucket cap {scenario.removeprefix('cap_')} MiB"
    if scenario.startswith("faster_"):
        factor = float(scenario.removeprefix("faster_"))
        return (
            f"communication {factor:g} x faster" if factor >= 1 else f"communication {1 / factor:g} x slower"
        )
    return _TITLES[scenario]


def _print_rows(screen: Console, rows: list[dict[str, Any]], *, buckets: bool) -> None:
    more = [Column("buckets"), Column("last, MiB", spare=2)] if buckets else []
    grid = Grid(
        [
            Column("scenario", left=True),
            Column("replayed"),
            Column("from", spare=1),
            Column("to", spare=1),
            Column("change"),
            *more,
        ]
    )
    for row in rows:
        cells = [title(row["scenario"]) + (" *" if row["is_captured"] else "")]
        cells += [f"{ms(row[name]):,.3f}" for name in ("step_ns", "low_ns", "high_ns")]
        cells.append(_change(row))
        if buckets:
            cells += [str(row["buckets"]), f"{row['last_bucket_bytes'] / BYTES_PER_MIB:.1f}"]
        grid.add(*cells)
    grid.print(screen, "--table whatif --format csv")


def _change(row: dict[str, Any]) -> str:
    """The change; what rounds to nothing has no sign."""
    if row["scenario"] == "unchanged":
        return ""
    return "none" if abs(row["change_ratio"]) < _NOTHING else f"{row['change_ratio']:+.1%}"
