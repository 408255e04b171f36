"""How much longer than its peers did each rank take for its own work in each step?

    own      = window - exposed communication            what a rank waits for is not its own, nor is a slow transfer
    lateness = own - median of its peers' own in the same step

Peers run the same program (``peers.programs_of``): stages of a pipeline that run other kernels are not compared.
The same holds part by part: computing, and what the host left the GPU without work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.model.schema import FLAG, FLOAT, INT, TEXT, Column, Table
from nsysddp.questions.collectives import with_bus_bytes
from nsysddp.questions.peers import median_of_others, programs_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions.context import Context

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

LATENESS = Table(
    "lateness",
    "one rank and step: its own time against its peers'",
    (
        Column("rank", INT, "rank"),
        Column("host", TEXT, "alias of its host"),
        Column("step", TEXT, "name of the step"),
        Column("step_index", INT, "0-based order of the step"),
        Column("is_warmup", FLAG, "a leading step longer than 1.5 x the median of the rest, on any rank"),
        Column("window_ns", INT, "|W|"),
        Column("own_ns", INT, "window - exposed communication; null beside whole CUDA graphs"),
        Column("lateness_ns", INT, "own - median of its peers' in this step; null without peers"),
        Column("compute_late_ns", INT, "the same of computing"),
        Column(
            "idle_late_ns", INT, "the same of idle time and copies alone: what the host left the GPU without"
        ),
        Column("communication_ns", INT, "|C|: NCCL's kernels, waiting included"),
        Column("exposed_communication_ns", INT, "|C - P|"),
        Column("exposed_wait_ns", INT, "wait part of it; null where unknown"),
        Column(
            "busbw_gbps",
            FLOAT,
            "bus bytes / transfer of the collectives launched in the step; null if unknown",
        ),
    ),
)


@dataclass(frozen=True)
class Matrix:
    """The steps used, as arrays of the shape (ranks, steps).

    Attributes:
        ranks: rank of each row.
        hosts: host of each row.
        program: rows with the same number run the same program.
        steps: index of each column.
        names: name of each column.
        lateness: in ns; NaN where unknown.
        compute, idle: its parts.
        own: own time of the peers (their median) in ns.
        window: median over the ranks of the step, ns; shape (steps,).
        communication: NCCL's kernels, ns.
    """

    ranks: Ints
    hosts: NDArray[np.str_]
    program: Ints
    steps: Ints
    names: tuple[str, ...]
    lateness: Floats
    compute: Floats
    idle: Floats
    own: Floats
    window: Floats
    communication: Floats

    @property
    def relative(self) -> Floats:
        """Lateness over the own time of the peers."""
        made: Floats = self.lateness / self.own
        return made

    @property
    def centred(self) -> Floats:
        """Own time over the median of all that run the program, less 1: for comparing several ranks with several."""
        own = self.lateness + self.own
        made = np.full(own.shape, np.nan)
        for number in np.unique(self.program):
            mine = self.program == number
            if mine.sum() > 1:
                made[mine] = own[mine] / np.nanmedian(own[mine], axis=0) - 1
        return made


def lateness_table(context: Context) -> pl.DataFrame:
    """The table ``lateness``, of every step asked for; linear in ranks and steps."""
    frame = context.decomposition.filter(pl.col("step_index").is_not_null())
    own = pl.col("window_ns") - pl.col("exposed_communication_ns")
    frame = frame.with_columns(
        own_ns=own,
        idle=pl.col("idle_ns") + pl.col("exposed_memory_ns"),
        is_warmup=pl.col("is_warmup").any().over("step_index"),
    )
    program = programs_of(context.trace)
    hosts = context.trace.ranks.select("rank", "host")
    frame = (
        frame.join(program, on="rank", how="left")
        .join(hosts, on="rank", how="left")
        .join(_bandwidths(context), on=["rank", "step_index"], how="left")
        .with_columns(
            _beyond("own_ns", frame, program).alias("lateness_ns"),
            _beyond("compute_ns", frame, program).alias("compute_late_ns"),
            _beyond("idle", frame, program).alias("idle_late_ns"),
        )
    )
    return LATENESS.check(frame.sort("step_index", "rank").sort("rank", maintain_order=True))


def _beyond(column: str, frame: pl.DataFrame, program: pl.DataFrame) -> pl.Series:
    """A column less the median of the peers' in the same step; null where it is unknown or nobody is a peer."""
    rows = frame.join(program, on="rank", how="left", maintain_order="left").with_row_index("place")
    known = rows.filter(pl.col(column).is_not_null() & pl.col("program").is_not_null())
    group = (
        known.select(pl.struct("program", "step_index").rank("dense").cast(pl.Int64) - 1)
        .to_series()
        .to_numpy()
    )
    value = known[column].to_numpy()
    beyond = np.full(rows.height, np.nan)
    if value.size:
        others = np.bincount(group)[group] - 1
        beyond[known["place"].to_numpy()] = value - median_of_others(group, value, others)
    made: pl.Series = pl.Series(beyond).fill_nan(None).round().cast(pl.Int64)
    return made


def _bandwidths(context: Context) -> pl.DataFrame:
    """Bus bandwidth of each rank and step."""
    events = context.timed.with_columns(
        step_index=pl.Series(context.attribution.step[context.timed["event"].to_numpy()], dtype=pl.Int64)
    )
    known = with_bus_bytes(events).filter(
        pl.col("bus_bytes").is_not_null() & (pl.col("shortest_ns") > 0) & (pl.col("step_index") >= 0)
    )
    return known.group_by("rank", "step_index").agg(
        busbw_gbps=pl.col("bus_bytes").sum() / pl.col("shortest_ns").sum()
    )


def matrix_of(table: pl.DataFrame, program: pl.DataFrame, used: list[int]) -> Matrix | None:
    """The steps used as arrays; None if there are none, or nobody has peers."""
    frame = table.filter(pl.col("step_index").is_in(used))
    if not frame["lateness_ns"].count():
        return None
    ranks = frame["rank"].unique().sort()
    columns = frame.select("step_index", "step").unique("step_index").sort("step_index")
    row = np.searchsorted(ranks.to_numpy(), frame["rank"].to_numpy())
    column = np.searchsorted(columns["step_index"].to_numpy(), frame["step_index"].to_numpy())

    def spread(name: str) -> Floats:
        made = np.full((ranks.len(), columns.height), np.nan)
        made[row, column] = frame[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
        return made

    hosts = np.empty(ranks.len(), dtype=object)
    hosts[row] = frame["host"].to_list()
    own, late = spread("own_ns"), spread("lateness_ns")
    return Matrix(
        ranks=ranks.to_numpy(),
        hosts=hosts.astype(str),
        program=ranks.to_frame().join(program, on="rank", how="left")["program"].fill_null(-1).to_numpy(),
        steps=columns["step_index"].to_numpy(),
        names=tuple(columns["step"].to_list()),
        lateness=late,
        compute=spread("compute_late_ns"),
        idle=spread("idle_late_ns"),
        own=np.maximum(own - late, 1.0),
        window=np.nanmedian(spread("window_ns"), axis=0),
        communication=spread("communication_ns"),
    )
