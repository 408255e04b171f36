"""What did the ranks of a workload measure themselves? Their JSONL records as one validated frame.

The records are written by ``workloads/common.py``, one JSON object a figure; :data:`SCHEMA` names every
field.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from nsysddp.model.errors import CaptureError
from nsysddp.model.scratch import publish, scratch_folder

SCHEMA: dict[str, pl.DataType] = {
    "config": pl.String(),
    "rank": pl.Int32(),
    "world_size": pl.Int32(),
    "iteration": pl.Int32(),
    "stage": pl.String(),
    "record": pl.String(),
    "name": pl.String(),
    "clock": pl.String(),
    "time_ns": pl.Int64(),
    "value": pl.Float64(),
    "position": pl.Int32(),
    "index": pl.Int32(),
    "bytes": pl.Int64(),
    "parameters": pl.Int32(),
    "is_last": pl.Boolean(),
}
"""Every field of a record. ``time_ns`` is a duration (records ``time`` and ``ddp_logger``) or the time
since the step's start (``bucket`` and ``ready``), read from ``clock``; ``position`` counts within the step,
``index`` is the bucket's or parameter's own number; what a record does not say is null."""

REQUIRED = ("config", "rank", "world_size", "iteration", "stage", "record")
STAGES = ("warmup", "window", "measured")
RECORDS = ("time", "bucket", "ready", "ddp_logger", "value")
CLOCKS = ("cuda_event", "host", "hook", "ddp_logger")


def read_records(folder: Path) -> pl.DataFrame:
    """What did every rank of the run in ``folder`` record?

    Args:
        folder: holds ``records_rank{R}.jsonl`` of every rank.

    Returns:
        One row a figure with the columns of :data:`SCHEMA`, in rank order and each rank's own order.

    Raises:
        CaptureError: no records, a line that is no JSON or has another type, a field or word that is
            unknown, a file whose rows are another rank's, or ranks missing.
    """
    files = sorted(folder.glob("records_rank*.jsonl"))
    if not files:
        raise CaptureError(
            "no records_rank*.jsonl in this folder", file=folder, do="give the --out folder of a workload"
        )
    frames = [_read(file) for file in files]
    everything = pl.concat(frames).sort("rank", maintain_order=True)
    seen = everything["rank"].unique().sort().to_list()
    world = everything["world_size"].unique().to_list()
    if world != [len(seen)] or seen != list(range(len(seen))) or len(files) != len(seen):
        raise CaptureError(
            f"records of ranks {seen} in {len(files)} files, of a world of {' or '.join(map(str, world))}",
            file=folder,
            do="keep the records of one run, with every rank's file, in a folder of their own",
        )
    return everything


def _read(file: Path) -> pl.DataFrame:
    try:
        # Types are inferred from every line and compared below: a given schema would turn a misfit into null.
        found = pl.read_ndjson(file, infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise CaptureError(
            f"not a file of JSON lines ({reason})", file=file, do="run the workload again"
        ) from None
    unknown = [name for name in found.columns if name not in SCHEMA]
    if unknown:
        raise CaptureError(
            f"unknown fields {', '.join(unknown)}", file=file, do="use the nsysddp that wrote it"
        )
    absent = [name for name in REQUIRED if name not in found.columns or found[name].null_count()]
    if absent:
        raise CaptureError(f"records without {', '.join(absent)}", file=file, do="run the workload again")
    for name, dtype in found.schema.items():
        if dtype != SCHEMA[name] and not (dtype.is_numeric() and SCHEMA[name].is_numeric()):
            raise CaptureError(
                f"{name} is {dtype}, not {SCHEMA[name]}", file=file, do="run the workload again"
            )
    frame = found.select(
        pl.col(name).cast(dtype) if name in found.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in SCHEMA.items()
    )
    for name, words in (("stage", STAGES), ("record", RECORDS), ("clock", CLOCKS)):
        foreign = sorted(set(frame[name].drop_nulls()) - set(words))
        if foreign:
            raise CaptureError(
                f"{name} {', '.join(foreign)}", file=file, do=f"the words for it are {', '.join(words)}"
            )
    named = file.stem.removeprefix("records_rank")
    if [str(rank) for rank in frame["rank"].unique()] != [named]:
        raise CaptureError(
            "holds records of another rank than its name says", file=file, do="restore its name"
        )
    return frame


def summarize(records: pl.DataFrame) -> pl.DataFrame:
    """How long did the steps and phases of each rank take, by each clock, once measured?

    Only stage ``measured``. Percentiles are linear between neighbours; ranks are never averaged.

    Returns:
        One row a (config, rank, name, clock): ``count``, ``median_ns``, ``p95_ns``, ``p99_ns``, ``min_ns``,
        ``max_ns`` (Int64).
    """
    time = pl.col("time_ns")

    def quantile(share: float, name: str) -> pl.Expr:
        return time.quantile(share, "linear").round().cast(pl.Int64).alias(name)

    return (
        records.filter(pl.col("record") == "time", pl.col("stage") == "measured")
        .group_by("config", "rank", "name", "clock")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            quantile(0.50, "median_ns"),
            quantile(0.95, "p95_ns"),
            quantile(0.99, "p99_ns"),
            time.min().alias("min_ns"),
            time.max().alias("max_ns"),
        )
        .sort("config", "rank", "name", "clock")
    )


def to_parquet(folder: Path, out: Path | None = None) -> Path:
    """Write the records of all ranks of the run in ``folder`` as one Parquet file.

    Args:
        folder: holds ``records_rank{R}.jsonl`` of every rank.
        out: the file to write; ``records.parquet`` in ``folder`` by default.

    Returns:
        The file written; never half-written, since it is renamed into place.

    Raises:
        CaptureError: see :func:`read_records`.
    """
    records = read_records(folder)
    out = out or folder / "records.parquet"
    with scratch_folder(out.parent) as scratch:
        records.write_parquet(scratch / "records")
        publish(scratch / "records", out, replace=True)
    return out
