"""Groups of ranks on a terminal: what each role costs, the groups, and the evidence for their roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsysddp.model.names import counted
from nsysddp.model.units import ms
from nsysddp.render.screen import Column, Grid, bullet, care, console, heading, title

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from nsysddp.model.result import Result


def print_communicators(result: Result, out: Console | None = None) -> None:
    """Print roles in words, then the groups (times summed over the steps), then why the roles are these."""
    screen = out or console()
    groups = result["communicator"]
    steps = groups["steps"].max()
    span = counted(int(steps), "step") if isinstance(steps, int) else "whole capture"
    screen.print(title(result, span))
    screen.print()
    for finding in result.findings:
        screen.print(bullet(finding.message))
    if groups.height:
        heading(screen, f"Groups (ms, summed over the {span}, of the rank that is exposed longest)")
        _print_groups(screen, result)
        heading(screen, "Evidence for the roles")
        reasons = groups.select("role", "evidence").unique(maintain_order=True)
        for role, evidence in reasons.iter_rows():
            screen.print(bullet(f"{role or 'not reported'}: {evidence or 'unknown'}", style="dim"))
        heading(screen, "What NCCL says of algorithm, protocol and channels")
        for line in dict.fromkeys(map(_sentence, result["nccl_says"].iter_rows(named=True))):
            screen.print(bullet(line, style="dim"))
    care(screen, result)


def _sentence(row: Mapping[str, Any]) -> str:
    kind = row["kind"].replace("_", "-")
    if row["source"] is None:
        return f"{kind}: nothing; {row['note']}"
    channels = None if row["channels"] is None else counted(row["channels"], "channel")
    known = ", ".join(filter(None, [row["algorithm"], row["protocol"], channels]))
    return f"{kind} of group {row['group']}: {known} (by {row['source']})"


def _print_groups(screen: Console, result: Result) -> None:
    groups = result["communicator"]
    grid = Grid(
        [
            Column("group", style="bold"),
            Column("role", left=True),
            Column("ranks", left=True),
            Column("hosts", spare=1),
            Column("kinds", left=True, spare=2),
            Column("rank"),
            Column("MB", spare=4),
            Column("hidden", style="green"),
            Column("exposed\ntransfer", style="red"),
            Column("exposed\nwait", style="yellow"),
            *([Column("exposed\nunsplit")] if groups["exposed_unsplit_ns"].sum() else []),
            Column("GB/s\n(bus)", spare=3),
        ]
    )
    unsplit = len(grid.columns) == 12
    for row in groups.iter_rows(named=True):
        cells = _cells(row)
        grid.add(*(cells if unsplit else [*cells[:10], cells[11]]))
    grid.print(screen, "--table communicator --format csv")


def _cells(row: Mapping[str, Any]) -> list[str]:
    hidden = [row[f"hidden_{part}_ns"] for part in ("transfer", "wait", "unsplit")]
    return [
        "" if row["group"] is None else str(row["group"]),
        row["role"] or "?",
        row["ranks"] or "?",
        "?" if row["hosts"] is None else str(row["hosts"]),
        row["kinds"],
        str(row["rank"]),
        "?" if row["bytes"] is None else f"{row['bytes'] / 1e6:,.0f}",
        "?" if None in hidden else f"{ms(sum(hidden)):.2f}",
        *(_time(row[f"exposed_{part}_ns"]) for part in ("transfer", "wait", "unsplit")),
        "?" if row["busbw_gbps"] is None else f"{row['busbw_gbps']:.1f}",
    ]


def _time(ns: int | None) -> str:
    return "?" if ns is None else f"{ms(ns):.2f}"
