"""What did the sampled counters of network adapters and InfiniBand switches say?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.ingest import sql
from nsysddp.ingest.columns import Gathered, integers, plausible
from nsysddp.model.names import visible

if TYPE_CHECKING:
    from nsysddp.ingest.report import Report

NIC, SWITCH = "NET_NIC_METRIC", "NET_IB_SWITCH_METRIC"

_FIELDS = ("start_ns", "end_ns", "device", "list_id", "idx")


def read_network(report: Report) -> pl.DataFrame:
    """Samples of one report: device (``NIC 0``, ``switch 0``, by their ids), start_ns, end_ns, metric, unit, value.

    Devices are numbered, since the names of adapters can be those of machines.
    """
    counters = pl.DataFrame(
        [
            (int(row["list_id"]), int(row["idx"]), visible(str(row["name"])), visible(str(row["unit"] or "")))
            for row in sql.rows(report, "network_metric_names")
            if None not in (row["list_id"], row["idx"], row["name"])
        ],
        schema={"list_id": pl.Int64, "idx": pl.Int64, "metric": pl.String, "unit": pl.String},
        orient="row",
    )
    made = [
        _samples(report, query, table, kind)
        for query, table, kind in (("nic_metrics", NIC, "NIC"), ("switch_metrics", SWITCH, "switch"))
    ]
    return (
        pl.concat(made)
        .join(counters.unique(["list_id", "idx"], keep="first"), on=["list_id", "idx"])
        .select("device", "start_ns", "end_ns", "metric", "unit", "value")
        .sort("device", "metric", "start_ns")
    )


def _samples(report: Report, query: str, table: str, kind: str) -> pl.DataFrame:
    gathered = Gathered()

    def consume(part: int, rows: pl.DataFrame) -> None:
        columns = {name: integers(rows, name, np.int64, report.name) for name in _FIELDS}
        value = rows["value"].cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
        good = plausible(columns["start_ns"], columns["end_ns"]) & np.isfinite(value)
        gathered.add(part, {"value": value[good], **{name: column[good] for name, column in columns.items()}})

    sql.scan(report, query, consume, table=table)
    made = pl.DataFrame(
        {name: gathered.column(name, np.int64) for name in _FIELDS}
        | {"value": gathered.column("value", np.float64)}
    )
    number = pl.col("device").rank("dense").cast(pl.Int64) - 1
    return made.with_columns(device=pl.lit(f"{kind} ") + number.cast(pl.String))
