"""What does a comparison need of one run?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysddp.model.errors import AnalysisError
from nsysddp.questions.compare.metrics import RANK_METRICS
from nsysddp.questions.statistics import Floats
from nsysddp.questions.steps import steady

HOST_CAUSES = ("launch_late", "synchronisation", "allocation")
"""Causes of idle time (``IDLE_CAUSES``) that make the part ``host``."""

PATH_PARTS: dict[str, tuple[str, ...]] = {
    "compute": ("compute", "spin"),
    "transfer": ("transfer",),
    "unmatched_communication": ("unmatched_communication",),
    "wait": ("wait",),
    "memory": ("memory",),
    "graph": ("graph",),
    "host": ("host", "host_gap", "sync"),
    "gap": ("gap", "queued"),
    "unknown": ("unknown",),
}
"""Parts of the critical path account, and the kinds of pieces in each."""
OPTIONAL = ("contention", "host")


@dataclass(frozen=True)
class Run:
    """One repeat, reduced to what a comparison needs.

    Attributes:
        name: for messages.
        samples: steady steps by (metric, rank); rank None is the job.
        unknown: why a (metric, rank) has no samples although its table is there.
        windows: per rank, for each steady step ``step`` and the parts of its window in ns; ``contention`` and ``host``
            only where they are known (they are contained in ``compute`` and ``idle`` then, too).
        paths: for each steady step the parts of the job's critical path in ns; empty without host calls.
        facts: what has to be alike: name to value as text.
        recorded: whether run.json was there.
    """

    name: str
    samples: Mapping[tuple[str, int | None], Floats]
    unknown: Mapping[tuple[str, int | None], str]
    windows: Mapping[int, Sequence[Mapping[str, int]]]
    paths: Sequence[Mapping[str, int]]
    facts: Mapping[str, str]
    recorded: bool

    @property
    def ranks(self) -> list[int]:
        """All ranks in ascending order."""
        return sorted(self.windows)


def run_of(
    name: str,
    tables: Mapping[str, pl.DataFrame],
    *,
    facts: Mapping[str, str] | None = None,
    measured: Mapping[str, Sequence[float]] | None = None,
) -> Run:
    """What a comparison needs of one run.

    Args:
        name: for messages.
        tables: ``overlap`` and ``rank``; ``phase``, ``contention_step``, ``idle_step`` and the tables of
            ``critical_path`` where there are.
        facts: what the capture says of itself (``facts_of``); None without.
        measured: values of job metrics that the workload itself recorded, one a step.

    Raises:
        AnalysisError: the parts of a window do not sum to it.
    """
    overlap = steady(tables["overlap"])
    samples: dict[tuple[str, int | None], Floats] = {}
    unknown: dict[tuple[str, int | None], str] = {}
    overlap = _with_more(overlap, tables)
    for (rank,), part in overlap.group_by("rank", maintain_order=True):
        assert isinstance(rank, int)
        for metric in RANK_METRICS:
            column = part[metric.name]
            if column.null_count() == 0:
                samples[metric.name, rank] = column.to_numpy().astype(np.float64)
            else:
                unknown[metric.name, rank] = f"unknown in {column.null_count()} of {column.len()} steps"
    for rank in set(tables["rank"]["rank"]) - set(overlap["rank"]):
        unknown["window_ns", rank] = "no window of steps"
    ranks = overlap["rank"].n_unique()
    job = overlap.group_by("step_index", maintain_order=True).agg(
        pl.col("window_ns").max(), pl.col("rank").n_unique().alias("ranks")
    )
    complete = job.filter((pl.col("ranks") == ranks) & pl.col("step_index").is_not_null())
    if complete.height:
        samples["step_ns", None] = complete["window_ns"].to_numpy().astype(np.float64)
    else:
        unknown["step_ns", None] = "the trace shows no step of every rank"
    paths = _paths(tables)
    if paths:
        samples["critical_communication_ns", None] = np.array(
            [path["transfer"] + path["unmatched_communication"] for path in paths], np.float64
        )
    for metric_name, values in (measured or {}).items():
        if len(values):
            samples[metric_name, None] = np.asarray(values, np.float64)
    return Run(
        name=name,
        samples=samples,
        unknown=unknown,
        windows=_windows(overlap),
        paths=paths,
        facts={**_hardware(tables["rank"]), **(facts or {})},
        recorded=facts is not None,
    )


def _with_more(overlap: pl.DataFrame, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The windows with ``backward_ns`` (spans on the GPU), ``contention_ns`` and ``host_ns``; null where unknown."""
    key = ["rank", "step_index"]
    if "phase" in tables:
        spans = (
            tables["phase"]
            .filter((pl.col("phase") == "backward") & pl.col("gpu_start_ns").is_not_null())
            .group_by("rank", "step")
            .agg((pl.col("gpu_end_ns") - pl.col("gpu_start_ns")).sum().alias("backward_ns"))
        )
        overlap = overlap.join(spans, on=["rank", "step"], how="left", maintain_order="left")
    if "contention_step" in tables:
        cost = tables["contention_step"].select(*key, "contention_ns")
        overlap = overlap.join(cost, on=key, how="left", nulls_equal=True, maintain_order="left")
    if "idle_step" in tables:
        late = (
            tables["idle_step"]
            .filter(pl.col("cause").cast(pl.String).is_in(HOST_CAUSES))
            .group_by(key)
            .agg(pl.col("idle_ns").sum().alias("host_ns"))
        )
        overlap = overlap.join(late, on=key, how="left", nulls_equal=True, maintain_order="left")
        overlap = overlap.with_columns(pl.col("host_ns").fill_null(0))
    absent = [name for name in ("backward_ns", "contention_ns", "host_ns") if name not in overlap.columns]
    return overlap.with_columns(pl.lit(None, pl.Int64).alias(name) for name in absent)


def _windows(overlap: pl.DataFrame) -> dict[int, list[dict[str, int]]]:
    """The parts of every window; they sum to it.

    Where whole CUDA graphs hide what is communication, exposed communication is what the other parts leave.
    """
    found: dict[int, list[dict[str, int]]] = {}
    for row in overlap.iter_rows(named=True):
        parts = {
            "compute": row["compute_ns"],
            "exposed_transfer": row["exposed_transfer_ns"] or 0,
            "exposed_wait": row["exposed_wait_ns"] or 0,
            "memory": row["exposed_memory_ns"],
            "graph": row["graph_ns"],
            "idle": row["idle_ns"],
        }
        parts["exposed_unsplit"] = row["window_ns"] - sum(parts.values())
        known = row["exposed_communication_ns"]
        split = parts["exposed_transfer"] + parts["exposed_wait"] + parts["exposed_unsplit"]
        if parts["exposed_unsplit"] < 0 or (known is not None and split != known):
            raise AnalysisError(
                f"the parts of rank {row['rank']}'s {row['step'] or 'capture'} do not sum to it"
            )
        more = {part: row[f"{part}_ns"] for part in OPTIONAL if row[f"{part}_ns"] is not None}
        found.setdefault(row["rank"], []).append({"step": row["window_ns"], **parts, **more})
    return found


def _paths(tables: Mapping[str, pl.DataFrame]) -> list[dict[str, int]]:
    """Parts of the job's critical path of each steady step; of tied ranks the longest path."""
    if "critical_path_step" not in tables:
        return []
    steps = tables["critical_path_step"]
    kept = steps.filter(~pl.col("is_warmup"))
    steps = (kept if kept.height else steps).sort(
        ["step_index", "path_ns", "path_rank"], descending=[False, True, False]
    )
    found = []
    for row in steps.unique("step_index", keep="first", maintain_order=True).iter_rows(named=True):
        mine = tables["critical_path_kind"].filter(
            pl.col("step_index").eq_missing(row["step_index"]) & (pl.col("path_rank") == row["path_rank"])
        )
        kinds = {str(kind): int(length) for kind, length in mine.select("kind", "duration_ns").iter_rows()}
        parts = {part: sum(kinds.pop(kind, 0) for kind in kinds_of) for part, kinds_of in PATH_PARTS.items()}
        if kinds or sum(parts.values()) != row["path_ns"]:
            raise AnalysisError(
                f"the pieces of the critical path of {row['step'] or 'the capture'} do not sum to it"
            )
        found.append({"step": row["path_ns"], **parts})
    return found


def _hardware(ranks: pl.DataFrame) -> dict[str, str]:
    gpus = ranks["gpu_name"].drop_nulls().to_list()
    facts = {"ranks": str(ranks.height)}
    if len(gpus) == ranks.height:
        facts["GPU"] = ", ".join(f"{gpus.count(name)} x {name}" for name in sorted(set(gpus)))
    return facts
