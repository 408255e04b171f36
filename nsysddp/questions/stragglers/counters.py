"""What did the sampled counters of the links say while collectives used them?

A sample is of an interval. It counts for a step that holds all of it, and for transfers if they fill nine tenths of it.
Counters of a GPU (NVLink, C2C, PCIe) stand beside the collectives of its rank, those of a host's adapters and of
switches beside the collectives of the host's ranks whose group spans hosts. They are evidence and change no number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.model.intervals import Intervals
from nsysddp.model.schema import FLOAT, INT, TEXT, Column, Table
from nsysddp.model.warnings import Warning
from nsysddp.questions.communicators.groups import IN_NO_GROUP, bus_bandwidth

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nsysddp.questions.communicators.groups import Groups
    from nsysddp.questions.context import Context
    from nsysddp.questions.window import Window

LINK_COUNTER = Table(
    "link_counter",
    "one sampled counter of one link in one step, beside the collectives that could use the link",
    (
        Column("host", TEXT, "alias of the host"),
        Column("rank", INT, "rank whose GPU it is; null for adapters and switches"),
        Column("device", TEXT, "GPU, NIC 0, switch 0 ... (numbered by their ids)"),
        Column("counter", TEXT, "name of the counter"),
        Column("unit", TEXT, "unit: % of what the link can carry, bytes/ms ...; null if it is not known"),
        Column("step", TEXT, "name of the step"),
        Column("step_index", INT, "0-based order of the step"),
        Column("samples", INT, "samples that lie in the step"),
        Column("mean_value", FLOAT, "their mean"),
        Column("most_value", FLOAT, "their largest"),
        Column("transfer_samples", INT, "of those, samples that transfers fill"),
        Column("transfer_value", FLOAT, "mean of these; null without any"),
        Column("collectives", INT, "collectives that could use the link"),
        Column("busbw_gbps", FLOAT, "bus bandwidth of these, decimal GB/s; null if unknown"),
    ),
)

_LINKS = r"(?i)NVLink|PCIe|C2C"
"""Counters of a GPU that are of links."""

_ACROSS_HOSTS = ("NIC", "switch")
_FILLED = 0.9


def link_counters(context: Context) -> pl.DataFrame:
    """The table ``link_counter``; empty where nothing was sampled."""
    devices = list(_devices(context))
    if not devices:
        return LINK_COUNTER.empty()
    groups = context.groups.groups
    named = dict(context.attribution.steps.select("step_index", "name").iter_rows())
    shared = groups.events.filter(pl.col("group") != IN_NO_GROUP)
    events = {int(rank): part for (rank,), part in shared.group_by("rank", maintain_order=True)}
    windows: dict[int, list[Window]] = {}
    for window in context.windows.windows:
        windows.setdefault(window.rank, []).append(window)
    ranks_on: dict[str, list[int]] = {}
    for rank, host in groups.host_of.items():
        ranks_on.setdefault(host, []).append(rank)
    rows: list[dict[str, Any]] = []
    for host, only, device, samples in devices:
        ranks = ranks_on[host] if only is None else [only]
        parts = [events[rank] for rank in ranks if rank in events]
        users = _users(groups, pl.concat(parts) if parts else shared.clear(), device)
        spans = _spans([window for rank in ranks for window in windows.get(rank, [])], context.used_steps)
        for row in _in_steps(samples, users, spans):
            rows.append(
                {"host": host, "rank": only, "device": device, "step": named[row["step_index"]], **row}
            )
    order = ["host", "rank", "device", "counter", "step_index"]
    return LINK_COUNTER.frame(rows).sort(order, nulls_last=True)


def _spans(windows: Iterable[Window], used: Iterable[int]) -> dict[int, tuple[int, int]]:
    """First start and last end of each step used over these windows."""
    found: dict[int, tuple[int, int]] = {}
    for window in windows:
        first, last = found.get(window.step, (window.start, window.end))
        found[window.step] = (min(first, window.start), max(last, window.end))
    return {step: found[step] for step in used if step in found}


def missing_counters(counters: pl.DataFrame) -> tuple[Warning, ...]:
    """What was not traced."""
    if counters.height:
        return ()
    flags = "--gpu-metrics-devices=all for NVLink and PCIe, --nic-metrics=true for adapters"
    return (Warning("no_link_counters", 1, f"counters of links were not traced (capture with {flags})"),)


def evidence_of(counters: pl.DataFrame, ranks: Iterable[int], hosts: Iterable[str]) -> str:
    """A sentence on what the counters of these ranks, or of their hosts, show beside those of others; empty if nothing.

    Of the counters that are known on both sides, the one that is highest elsewhere.
    """
    here = pl.col("rank").is_in(list(ranks)).fill_null(False) | (
        pl.col("rank").is_null() & pl.col("host").is_in(list(hosts))
    )
    known = counters.filter(
        pl.col("transfer_value").is_not_null() & ~pl.col("counter").str.contains("(?i)protocol")
    )
    means = (
        known.group_by("counter", "unit")
        .agg(
            here=pl.col("transfer_value").filter(here).mean(),
            elsewhere=pl.col("transfer_value").filter(~here).mean(),
        )
        .drop_nulls(["here", "elsewhere"])
        .filter(pl.col("elsewhere") > 0)
        .sort("elsewhere", "counter", descending=[True, False])
    )
    if not means.height:
        return ""
    row = means.row(0, named=True)
    unit = f" {row['unit']}" if row["unit"] else ""
    return (
        f" While it transfers, {row['counter'].partition(' [')[0]} is {row['here']:,.1f}{unit}, "
        f"elsewhere {row['elsewhere']:,.1f}{unit}."
    )


def _devices(context: Context) -> Iterator[tuple[str, int | None, str, pl.DataFrame]]:
    """Host, rank (of a GPU), device, and its samples: counter, unit, start_ns, end_ns, value."""
    trace, host_of = context.trace, context.groups.groups.host_of
    if trace.metrics is not None:
        links = trace.metrics.filter(pl.col("metric").str.contains(_LINKS)).sort("rank", "metric", "time_ns")
        for (rank,), samples in links.group_by("rank", maintain_order=True):
            yield host_of[int(rank)], int(rank), "GPU", _as_intervals(samples)
    if trace.network is not None:
        for (host, device), samples in trace.network.group_by("host", "device", maintain_order=True):
            yield str(host), None, str(device), samples.rename({"metric": "counter"})


def _as_intervals(samples: pl.DataFrame) -> pl.DataFrame:
    """A sample of a GPU metric tells of the interval that ends with it; the usual one where that is shorter."""
    gap = pl.col("time_ns").diff().over("metric")
    usual = gap.median().over("metric").fill_null(0).cast(pl.Int64)
    return samples.select(
        pl.col("metric").alias("counter"),
        unit=pl.when(pl.col("metric").str.contains("%", literal=True)).then(pl.lit("%")),
        start_ns=pl.col("time_ns") - pl.min_horizontal(gap.fill_null(usual), usual),
        end_ns=pl.col("time_ns"),
        value=pl.col("value"),
    )


def _users(groups: Groups, events: pl.DataFrame, device: str) -> pl.DataFrame:
    """Of these events those that could use the device."""
    if not device.startswith(_ACROSS_HOSTS):
        return events
    across = [group.number for group in groups.all if groups.hosts(group.ranks) > 1]
    return events.filter(pl.col("group").is_in(across))


def _in_steps(
    samples: pl.DataFrame, events: pl.DataFrame, spans: Mapping[int, tuple[int, int]]
) -> Iterator[dict[str, Any]]:
    """The counters of a device in every step; each step looks at its own samples only."""
    known = events.filter(pl.col("ready_ns").is_not_null())
    transfer = Intervals.union_of(known["transfer_start_ns"].to_numpy(), known["end_ns"].to_numpy())
    ordered = samples.sort("start_ns", "counter", maintain_order=True)
    start, end = ordered["start_ns"].to_numpy(), ordered["end_ns"].to_numpy()
    filled = (transfer.length_within(start, end) >= _FILLED * (end - start)) & (end > start)
    ordered = ordered.with_columns(filled=pl.Series(filled))
    for step, (first, last) in spans.items():
        low, high = np.searchsorted(start, [first, last]).tolist()
        inside = ordered[low:high].filter(pl.col("end_ns") <= last)
        mine = events.filter(pl.col("step") == step)
        counted = inside.group_by("counter", "unit", maintain_order=True).agg(
            samples=pl.len().cast(pl.Int64),
            mean_value=pl.col("value").mean(),
            most_value=pl.col("value").max(),
            transfer_samples=pl.col("filled").sum().cast(pl.Int64),
            transfer_value=pl.col("value").filter("filled").mean(),
        )
        used = {"collectives": mine["collective_id"].n_unique(), "busbw_gbps": bus_bandwidth(mine)}
        for row in counted.iter_rows(named=True):
            yield {"step_index": step, **row, **used}
