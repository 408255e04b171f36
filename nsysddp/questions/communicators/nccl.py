"""With which algorithm, protocol and channels did each group's collectives run, as far as NCCL says so?

A range around the launch (``NCCL Kernel Task Proto ...``, proposed for NCCL in 2026) or a payload with such a field is
NCCL's own word. The name of a kernel is much less: NCCL builds few kernels, and each
of them runs what was chosen at launch. In the usual build ``..._TREE_LL`` runs trees and ``..._RING_LL`` everything
else (rings, NVLS, CollNet, PAT), both with any protocol. Only where kernels of a run end otherwise too was NCCL built
with a kernel for each, and kernels for symmetric memory are named for what they do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from nsysddp.ingest.attribute import KERNEL_TASK
from nsysddp.model.schema import INT, TEXT, Column, Table
from nsysddp.questions.communicators.groups import IN_NO_GROUP, bus_bandwidth
from nsysddp.questions.communicators.pairs import carried_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nsysddp.model.trace import Trace
    from nsysddp.questions.communicators.groups import Groups

NCCL_SAYS = Table(
    "nccl_says",
    "one kernel of NCCL in one group, with what NCCL says of how it ran, over the steps used",
    (
        Column("group", INT, "number of the group"),
        Column("role", TEXT, "role of the group"),
        Column("kind", TEXT, "kind of the collectives"),
        Column("kernel", TEXT, "name of the kernel without arguments"),
        Column("kernels", INT, "kernels over all ranks"),
        Column("smallest_bytes", INT, "smallest message; null where none is known"),
        Column("largest_bytes", INT, "largest message; null where none is known"),
        Column("busbw_gbps", pl.Float64(), "bus bytes / transfer, decimal GB/s; null if unknown"),
        Column("algorithm", TEXT, "algorithm; null: not said"),
        Column("protocol", TEXT, "protocol; null: not said"),
        Column("channels", INT, "channels; null: not said"),
        Column("source", TEXT, "NCCL (ranges and payloads), or kernel name; null: nothing is said"),
        Column("note", TEXT, "what is not said, and why"),
    ),
)

_ENDING = re.compile(
    r"_?(?P<algorithm>RING|TREE|COLLNET_DIRECT|COLLNET_CHAIN|COLLNET|NVLS_TREE|NVLS|PAT)_?(?P<protocol>LL128|LL|SIMPLE)"
    r"(?=_|Kernel|$)",
    re.IGNORECASE,
)
_SYMMETRIC = re.compile(
    r"ncclSymk?DevKernel_(?:AllReduce|AllGather|ReduceScatter|AllToAll)_(?P<algorithm>\w+?)"
    r"(?:_(?:sum|prod|min|max|avg|premulsum|sumpostdiv)_\w+)?"
)
_USUAL = ({"RING", "TREE"}, {"LL"})
"""Algorithms and protocols in the names of NCCL's usual build, whatever is run."""

_SAYS = {"algorithm": pl.String(), "protocol": pl.String(), "channels": pl.Int64()}
_NOT_IN_PAYLOAD = "not in this NCCL's payload"
_NO_PAYLOAD = "no payload was exported (--include-blobs=true)"


@dataclass(frozen=True)
class Word:
    """What the name of a kernel says; None: nothing."""

    algorithm: str | None = None
    protocol: str | None = None
    note: str = ""


def words_of(kernels: Iterable[str]) -> dict[str, Word]:
    """What the names of NCCL's kernels of one run say of algorithm and protocol, by name without arguments."""
    names = set(kernels)
    endings = {name: found for name in names if (found := _ENDING.search(name))}
    algorithms = {found["algorithm"].upper() for found in endings.values()}
    protocols = {found["protocol"].upper() for found in endings.values()}
    by_protocol = bool(protocols - _USUAL[1])
    by_algorithm = bool(algorithms - _USUAL[0])
    made = {}
    for name in names:
        if symmetric := _SYMMETRIC.fullmatch(name):
            algorithm = symmetric["algorithm"]
            made[name] = Word(algorithm, "LL" if re.search(r"LL(?!128)", algorithm) else None)
        elif found := endings.get(name):
            algorithm, protocol = found["algorithm"].upper(), found["protocol"].upper()
            exact = by_algorithm or algorithm != "RING"
            notes = [
                *([] if exact else ["a RING kernel also runs NVLS, CollNet and PAT"]),
                *([] if by_protocol else ["one kernel runs every protocol, whatever its name ends in"]),
            ]
            made[name] = Word(
                algorithm if exact else None, protocol if by_protocol else None, "; ".join(notes)
            )
        else:
            made[name] = Word(note="the kernel's name says neither")
    return made


def nccl_table(groups: Groups) -> pl.DataFrame:
    """The table ``nccl_says``."""
    trace = groups.trace
    events = groups.events.filter(pl.col("group") != IN_NO_GROUP)
    texts = [text.partition("(")[0] for text in trace.names["text"].to_list()]
    events = events.with_columns(
        kernel=pl.Series([texts[row] for row in events["name"].to_list()], dtype=pl.String)
    ).join(_payloads(trace, events), on="event", how="left", maintain_order="left")
    words = words_of(events["kernel"].unique().to_list())
    by = ["group", "role", "kind", "kernel", "algorithm", "protocol", "channels"]
    exported = trace.operations["communicator"].count() + trace.operations["bytes"].count() > 0
    unknown = _NOT_IN_PAYLOAD if exported else _NO_PAYLOAD
    rows = []
    for key, part in events.group_by(by, maintain_order=True):
        row = dict(zip(by, key, strict=True))
        rows.append(
            _shown(row, words[str(row["kernel"])], unknown)
            | {
                "kernels": part.height,
                "smallest_bytes": part["bytes"].min(),
                "largest_bytes": part["bytes"].max(),
                "busbw_gbps": bus_bandwidth(part),
            }
        )
    return NCCL_SAYS.frame(rows).sort("group", "kind", "kernel", "algorithm", "protocol", "channels")


def _shown(row: Mapping[str, object], word: Word, unknown: str) -> dict[str, object]:
    """The payload's word where it has one, else that of the name."""
    if any(row[field] is not None for field in ("algorithm", "protocol", "channels")):
        silent = [field for field in ("algorithm", "protocol", "channels") if row[field] is None]
        return {**row, "source": "NCCL", "note": f"{', '.join(silent)}: {unknown}" if silent else ""}
    note = "; ".join(filter(None, [f"algorithm, protocol, channels: {unknown}", word.note]))
    source = "kernel name" if word.algorithm or word.protocol else None
    return {**row, "algorithm": word.algorithm, "protocol": word.protocol, "source": source, "note": note}


def _payloads(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """What NCCL says of each kernel: event, algorithm, protocol, channels; at most one row an event.

    By the range of a task around the launch, else by the payload of the one call that the kernel carries.
    """
    if trace.launches is None or not events.height:
        return pl.DataFrame(schema={"event": events.schema["event"], **_SAYS})
    return pl.concat([_of_tasks(trace, events), _of_calls(trace, events)]).unique("event", keep="first")


def _of_calls(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    empty = pl.DataFrame(schema={"event": events.schema["event"], **_SAYS})
    calls = trace.operations.filter(~pl.col("call").str.starts_with(KERNEL_TASK))
    if not calls.select(pl.any_horizontal(pl.col(list(_SAYS)).is_not_null()).any()).item():
        return empty
    only = carried_by(trace, events["event"].to_numpy()).only
    single = only >= 0
    said = trace.operations[only[single]].select(list(_SAYS))
    return said.with_columns(event=events["event"].filter(pl.Series(single))).select(empty.columns)


def _of_tasks(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Kernels in whose launch one task lies; of kernels that carry several nothing tells which is which."""
    empty = pl.DataFrame(schema={"event": events.schema["event"], **_SAYS})
    tasks = trace.operations.filter(pl.col("call").str.starts_with(KERNEL_TASK)).sort("start_ns")
    if not tasks.height or trace.launches is None:
        return empty
    named = pl.col("call").str.strip_prefix(KERNEL_TASK).str.to_lowercase()
    tasks = tasks.with_columns(
        pl.col("process").cast(pl.Int64),
        pl.col("thread").cast(pl.Int64),
        protocol=pl.coalesce("protocol", pl.when(named != "unknown").then(named)),
        opened=pl.int_range(pl.len()).over("process", "thread") + 1,
    )
    ends = tasks.select("process", "thread", pl.col("end_ns").alias("at")).sort("at")
    ends = ends.with_columns(closed=pl.int_range(pl.len()).over("process", "thread") + 1)
    calls = trace.launches[events["event"].to_numpy()]
    process = [trace.process_of_rank[rank] for rank in events["rank"].to_list()]
    launched = (
        events.select("event")
        .with_columns(
            process=pl.Series(process, dtype=pl.Int64),
            thread=calls["thread"].cast(pl.Int64),
            at=calls["launch_ns"],
        )
        .drop_nulls()
        .sort("at")
    )
    by = ["process", "thread"]
    return (
        launched.join_asof(tasks, left_on="at", right_on="start_ns", by=by, check_sortedness=False)
        .join_asof(ends, on="at", by=by, check_sortedness=False, allow_exact_matches=False)
        .filter(pl.col("opened") - pl.col("closed").fill_null(0) == 1)
        .select(empty.columns)
    )
