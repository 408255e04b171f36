"""Slack on a terminal: what each role costs, and how much slower or faster its transfers can or would have to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from nsysddp.model.names import counted
from nsysddp.model.units import ms
from nsysddp.render.screen import Column, Grid, bullet, care, console, heading, title

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from nsysddp.model.result import Result


def print_slack(result: Result, out: Console | None = None) -> None:
    """Print what each role costs in words, then its figures, then why some of them are not there."""
    screen = out or console()
    roles = result["slack_role"]
    steps = result["slack"]["step_index"].drop_nulls().n_unique()
    screen.print(title(result, counted(steps, "step") if steps else "whole capture"))
    screen.print()
    for finding in result.findings:
        screen.print(bullet(finding.message))
    if roles.height:
        heading(screen, f"Roles (ms a step; a step takes {ms(roles['step_ns'][0]):.2f})")
        _print_roles(screen, result)
    care(screen, result, *_without_bandwidth(result))


def _print_roles(screen: Console, result: Result) -> None:
    grid = Grid(
        [
            Column("role", left=True, whole=True, style="bold"),
            Column("collectives", spare=4),
            Column("exposed", style="red"),
            Column("costs"),
            Column("GB/s\n(bus)", spare=3),
            Column("latency\ndecides", spare=2),
            Column("can be\nslower"),
            Column("enough\nGB/s", spare=5),
            Column("faster"),
            Column("needs\nGB/s", spare=5),
            Column("leaves"),
        ]
    )
    for row in result["slack_role"].iter_rows(named=True):
        grid.add(
            row["role"] or "not reported",
            f"{row['collectives']:,}",
            _time(row["exposed_ns"]),
            _time(row["costs_ns"]),
            *_figures(row),
        )
    grid.print(screen, "--table slack_role --format csv")


def _figures(row: Mapping[str, Any]) -> list[str]:
    """Speeds; ``-`` where there is none to name."""
    return [
        _speed(row["busbw_gbps"]),
        "?" if row["latency_ratio"] is None else f"{row['latency_ratio']:.0%}",
        f"{row['slower_ratio']:.2f}x",
        _speed(row["sufficient_gbps"]),
        "-" if row["faster_ratio"] is None else f"{row['faster_ratio']:g}x",
        _speed(row["faster_gbps"]),
        "-" if row["left_ns"] is None else _time(row["left_ns"]),
    ]


def _speed(gbps: float | None) -> str:
    return "-" if gbps is None else f"{gbps:.1f}" if gbps >= _LEAST_GBPS else "<0.1"


_LEAST_GBPS = 0.05


def _time(ns: int | None) -> str:
    return "?" if ns is None else f"{ms(ns):.2f}"


def _without_bandwidth(result: Result) -> list[str]:
    """Why no bandwidth is named, each reason once with the roles that it is of; that latency decides stands above."""
    known = result["slack_role"].drop_nulls("reason").filter(pl.col("latency_ratio").is_null())
    reasons: dict[str, list[str]] = {}
    for role, reason in known.select("role", "reason").iter_rows():
        reasons.setdefault(reason, []).append(role or "role not reported")
    return [f"no bandwidth is named of {', '.join(roles)}: {reason}" for reason, roles in reasons.items()]
