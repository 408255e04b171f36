"""Groups of ranks on a terminal: what each role costs, the groups, and the evidence for their roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from nsysddp.model.names import counted, members_brief
from nsysddp.model.units import ms
from nsysddp.render.screen import MOST_ROWS, Column, Grid, bullet, care, console, heading, title

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
        for line in _sentences(result["nccl_says"]):
            screen.print(bullet(line, style="dim"))
    care(screen, result)


def _sentences(says: pl.DataFrame) -> Iterator[str]:
    """What NCCL says, each thing once: of which kinds, and of how many groups."""
    said: dict[str, tuple[dict[str, None], dict[int | None, None]]] = {}
    for row in says.iter_rows(named=True):
        kinds, groups = said.setdefault(_said(row), ({}, {}))
        kinds[row["kind"].replace("_", "-")] = None
        if row["source"] is not None:
            groups[row["group"]] = None
    for text, (kinds, groups) in said.items():
        of = (
            f" of group {next(iter(groups))}"
            if len(groups) == 1
            else f" of {len(groups)} groups"
            if groups
            else ""
        )
        yield f"{', '.join(kinds)}{of}: {text}"


def _said(row: Mapping[str, Any]) -> str:
    if row["source"] is None:
        return f"nothing; {row['note']}"
    channels = None if row["channels"] is None else counted(row["channels"], "channel")
    return f"{', '.join(filter(None, [row['algorithm'], row['protocol'], channels]))} (by {row['source']})"


def _print_groups(screen: Console, result: Result) -> None:
    groups = result["communicator"]
    grid = Grid(
        [
            Column("group", style="bold"),
            Column("role", left=True),
            Column("ranks", left=True, whole=True),
            Column("hosts", spare=1),
            Column("kinds", left=True, whole=True, spare=5),
            Column("rank"),
            Column("MB", spare=4),
            Column("hidden", style="green"),
            Column("exposed\ntransfer", style="red"),
            Column("exposed\nwait", style="yellow"),
            *([Column("exposed\nunsplit")] if groups["exposed_unsplit_ns"].sum() else []),
            Column("GB/s\n(bus)", spare=3),
        ]
    )
    grid.total = groups.height
    unsplit = len(grid.columns) == 12
    members = dict(
        result["communicator_rank"].group_by("group").agg(pl.col("rank").unique().sort()).iter_rows()
    )
    for row in groups.head(MOST_ROWS).iter_rows(named=True):
        cells = _cells(row, members[row["group"]])
        grid.add(*(cells if unsplit else [*cells[:10], cells[11]]))
    grid.print(screen, "--table communicator --format csv")


def _cells(row: Mapping[str, Any], members: Sequence[int]) -> list[str]:
    hidden = [row[f"hidden_{part}_ns"] for part in ("transfer", "wait", "unsplit")]
    return [
        "" if row["group"] is None else str(row["group"]),
        row["role"] or "?",
        "?" if row["ranks"] is None else members_brief(members),
        "?" if row["hosts"] is None else str(row["hosts"]),
        row["kinds"].replace("_", "-"),
        str(row["rank"]),
        "?" if row["bytes"] is None else f"{row['bytes'] / 1e6:,.0f}",
        "?" if None in hidden else f"{ms(sum(hidden)):.2f}",
        *(_time(row[f"exposed_{part}_ns"]) for part in ("transfer", "wait", "unsplit")),
        _bandwidth(row["busbw_gbps"]),
    ]


def _bandwidth(gbps: float | None) -> str:
    """A bandwidth; of a few bytes it is nearly nothing, and never 0."""
    return "?" if gbps is None else "<0.1" if 0 < gbps < _LEAST_GBPS else f"{gbps:.1f}"


_LEAST_GBPS = 0.05


def _time(ns: int | None) -> str:
    return "?" if ns is None else f"{ms(ns):.2f}"
