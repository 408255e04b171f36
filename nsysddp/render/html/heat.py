"""Ranks by steps and senders by receivers, a cell each: what the maps of the page are drawn from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.model.names import natural, visible
from nsysddp.render.maps import LATE_SHARE, by_step, exchanged_between

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsysddp.render.html.sections import Part

_FIGURES = (
    ("lateness_ns", "own time beyond the peers'", "ns", LATE_SHARE),
    ("exposed_communication_ns", "exposed communication", "ns", 0.0),
    ("busbw_gbps", "bus bandwidth", "gbps", 0.0),
)
"""Column of ``lateness``, its name on the page, its unit, and the share of the step that is full colour at least."""

_MOST_CELLS = 120_000
"""More steps are left out at the end: a page stays within its bounds."""


def heat_of(part: Part | None) -> dict[str, Any] | None:
    """The data of the map; None without two ranks and two steps.

    Returns:
        ``rows`` (names), ``ranks`` and ``hosts`` by row, ``steps`` (names) and ``indexes`` by column, ``left_out``
        steps, ``figures`` (each with its values by row and column, in us or GB/s, null where unknown, the least that
        is full colour, and whether less than nothing has a meaning), ``orders`` of the rows by name.
    """
    if part is None or "lateness" not in part.tables:
        return None
    frame = part.tables["lateness"].filter(pl.col("step_index").is_not_null())
    steps = frame.select("step_index", "step").unique("step_index").sort("step_index")
    ranks = frame.select("rank", "host").unique("rank").sort("rank")
    if ranks.height < 2 or steps.height < 2:
        return None
    kept = steps.head(max(2, _MOST_CELLS // ranks.height))
    frame = frame.filter(pl.col("step_index") <= kept["step_index"][-1])
    shown = ranks["rank"].to_list(), kept["step_index"].to_numpy()
    figures = []
    step_ns = float(np.median(frame["window_ns"].to_numpy()))
    for name, label, unit, least in _FIGURES:
        scale = 1e3 if unit == "ns" else 1.0
        table = by_step(frame, name, *shown) / scale
        if not np.isnan(table).all():
            values = [
                [None if np.isnan(value) else round(value, 1) for value in line] for line in table.tolist()
            ]
            figures.append(
                {
                    "name": label,
                    "unit": unit,
                    "values": values,
                    "least": round(least * step_ns / scale, 1),
                    "signed": name == "lateness_ns",
                }
            )
    if not figures:
        return None
    hosts = ranks["host"].to_list()
    return {
        "rows": [f"rank {rank}" for rank in ranks["rank"].to_list()],
        "ranks": ranks["rank"].to_list(),
        "hosts": hosts,
        "steps": kept["step"].to_list(),
        "indexes": kept["step_index"].to_list(),
        "left_out": steps.height - kept.height,
        "figures": figures,
        "orders": {
            "lateness": _by_lateness(frame, ranks),
            "rank": list(range(ranks.height)),
            "host": _by_host(hosts),
        },
    }


NO_MESSAGES = "-"
"""The value of a cell whose two ranks send nothing to each other: neither unknown nor zero."""


def pairs_of(
    part: Part | None, host_of: Mapping[int, str | None], first_step: int | None
) -> dict[str, Any] | None:
    """The data of the matrix of pairs, of many ranks by host; None where no messages are known.

    Args:
        part: the answer of ``questions.communicators``.
        host_of: rank to its host.
        first_step: where a click on a cell leads; None without steps.

    Returns:
        As of ``heat_of``, with receivers for steps; a cell without messages is ``NO_MESSAGES``.
    """
    if part is None or part.tables.get("pair", pl.DataFrame()).is_empty():
        return None
    pairs = part.tables["pair"]
    exchanged = exchanged_between(pairs, host_of)
    of_hosts = exchanged.what == "hosts"
    shown = {visible(host or "?"): rank for rank, host in sorted(host_of.items(), reverse=True)}
    ranks = [shown[name] if of_hosts else int(name) for name in exchanged.names]
    names = [name if of_hosts else f"rank {name}" for name in exchanged.names]
    figures = [
        {
            "name": label,
            "unit": unit,
            "values": [
                [
                    NO_MESSAGES if not talks else None if np.isnan(value) else round(value, 1)
                    for value, talks in zip(*line, strict=True)
                ]
                for line in zip(values.tolist(), exchanged.talks.tolist(), strict=True)
            ],
            "least": 0.0,
            "signed": False,
        }
        for label, unit, values in (
            ("bandwidth, alone on the link", "gbps", exchanged.rate),
            ("sent", "mb", exchanged.sent),
        )
        if not np.isnan(values).all()
    ]
    if not figures:
        return None
    hosts = [visible(host_of[rank] or "?") for rank in ranks]
    return {
        "rows": names,
        "ranks": ranks,
        "hosts": hosts,
        "steps": list(exchanged.names),
        "to": "to " if of_hosts else "to rank ",
        "indexes": [first_step] * len(names),
        "left_out": 0,
        "figures": figures,
        "orders": {"rank": list(range(len(names)))},
    }


def _by_lateness(frame: pl.DataFrame, ranks: pl.DataFrame) -> list[int]:
    """Rows, the latest first."""
    mean = frame.group_by("rank").agg(pl.col("lateness_ns").mean())
    late = ranks.join(mean, on="rank", how="left")["lateness_ns"].fill_null(-np.inf).to_numpy()
    order: list[int] = np.argsort(-late, kind="stable").tolist()
    return order


def _by_host(hosts: list[str]) -> list[int]:
    return sorted(range(len(hosts)), key=lambda row: (natural(hosts[row]), row))
