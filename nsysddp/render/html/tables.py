"""The page's tables: those of ranks and sections as cells, the long ones as packed columns that sort and filter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from nsysddp.model.names import visible
from nsysddp.questions.tables import every_table
from nsysddp.render import per_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsysddp.model.result import Result


MOST_ROWS = 15_000
"""Rows of a long table that a page holds at most; the ones with most exposed communication stay."""

MOST_SHOWN = 40
"""Rows of a short table."""

_NAMES = frozenset({"name", "kernel", "producer"})
"""Columns of kernels and calls, whose names can be very long."""

_PROSE = 45
"""Texts longer than this are set in lines."""

LONG: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "collective",
        "Collectives",
        ("rank", "step", "phase", "kind", "bytes", "start_ns", "wait_ns", "transfer_ns", "hidden_ns", "exposed_ns",
         "busbw_gbps", "last_rank", "stream", "match", "kernel"),
        ("end_ns", "collective_id", "sequence"),
        ("rank", "step", "kind", "stream"),
    ),
    (
        "overlap",
        "Each rank and step",
        ("rank", "step", "is_warmup", "window_ns", "compute_ns", "hidden_transfer_ns", "hidden_wait_ns",
         "exposed_transfer_ns", "exposed_wait_ns", "exposed_memory_ns", "graph_ns", "idle_ns",
         "tail_communication_ns", "overlap_ratio", "kernels", "collectives"),
        ("step_index",),
        ("rank", "step"),
    ),
    (
        "straggler",
        "Who arrived last",
        ("rank", "step", "collectives", "collectives_last", "imposed_wait_ns", "arrival_skew_sum_ns",
         "arrival_skew_max_ns", "first_phase"),
        (),
        ("rank", "step"),
    ),
    (
        "kernel_class",
        "Kernels, and as what they count",
        ("rank", "class", "name", "count", "total_ns", "median_ns", "hidden_ns"),
        ("rule",),
        ("rank", "class"),
    ),
)  # fmt: skip
"""Tables that sort and filter: name, title, columns shown, columns held for the timeline, columns with a choice."""

BUCKETS = (
    "bucket",
    "Buckets",
    ("rank", "step", "role", "bucket", "source", "bytes", "ready_ns", "launched_ns", "started_ns", "launch_late_ns",
     "queued_ns", "pending_ns", "wait_ns", "transfer_ns", "exposed_ns", "tail_ns", "held_by", "producer"),
    ("ended_ns", "step_index"),
    ("rank", "step", "bucket", "role"),
)  # fmt: skip

NOUNS = {
    "collective": "collectives",
    "bucket": "buckets",
    "overlap": "steps",
    "straggler": "last arrivals",
    "kernel_class": "kernels",
}
"""What the rows of a long table are called in links and in the page's contents."""

_JUMPS = frozenset({"collective", "overlap", "bucket"})


def rank_table(
    result: Result, labels: list[str], figures: list[per_rank.Figures], few: Sequence[int] | None = None
) -> dict[str, Any]:
    """One row a rank: its figures, the slowest and the fastest tagged, and where it ran.

    Args:
        result: the answer of ``analyze``.
        labels: heads of the figures.
        figures: of every rank.
        few: ranks that have a row; all by default. Links lead to the table of all.
    """
    facts = {row["rank"]: row for row in result["rank"].to_dicts()}
    order = sorted((figure.window_ns, figure.rank) for figure in figures if figure.window_ns is not None)
    tags = {order[-1][1]: "slowest", order[0][1]: "fastest"} if len(order) > 1 else {}
    rows = []
    for one in figures:
        if few is not None and one.rank not in few:
            continue
        fact = facts[one.rank]
        place = [fact["host"], None if fact["device"] is None else f"device {fact['device']}"]
        where = ", ".join(word for word in (*place, fact["gpu_name"]) if word)
        rows.append(
            {
                "id": f"rank-{one.rank}" if few is None else None,
                "tag": tags.get(one.rank),
                "cells": [str(one.rank), *one.cells, where],
            }
        )
    heads = [_head("rank"), *(_head(label, number=True) for label in labels), _head("where")]
    return {
        "caption": f"{per_rank.caption(result)}; overlap is hidden / all communication of the rank; ? is unknown, "
        "n/a not applicable",
        "heads": heads,
        "rows": rows,
        "note": None,
    }


def long_table(
    frame: pl.DataFrame,
    name: str,
    title: str,
    columns: tuple[str, ...],
    held: tuple[str, ...],
    facets: tuple[str, ...],
) -> dict[str, Any]:
    """A table that sorts and filters, with its columns packed.

    Args:
        frame: all its rows.
        name: the table's, as it is declared.
        title: what the page calls it.
        columns: those shown.
        held: those that only the timeline needs.
        facets: those that offer a choice.

    Returns:
        What the template shows, and in ``data`` what the page's program reads; ``kept`` are the rows that are in it.
    """
    contract = every_table()[name]
    meaning = {column.name: column.meaning for column in contract.columns}
    frame, note = _shortened(frame.with_row_index("row"), name)
    packed = [
        {
            "name": column,
            "label": _label(column),
            "kind": _kind(column, frame[column].dtype),
            "meaning": meaning[column],
            "facet": column in facets,
            "held": column in held,
            "wide": column in _NAMES,
            **_packed(column, frame[column]),
        }
        for column in (*columns, *held)
    ]
    return {
        "name": name,
        "anchor": f"table-of-{name.replace('_', '-')}",
        "title": title,
        "short": NOUNS[name].capitalize(),
        "note": note,
        "rows": frame.height,
        "kept": frame["row"],
        "data": {
            "name": name,
            "title": title,
            "caption": f"{contract.row[0].upper()}{contract.row[1:]}",
            "rows": frame.height,
            "jump": name in _JUMPS,
            "columns": packed,
        },
    }


def _shortened(frame: pl.DataFrame, name: str) -> tuple[pl.DataFrame, str | None]:
    """The rows that a page can hold, and what it says of the others."""
    if frame.height <= MOST_ROWS:
        return frame, None
    times = ("exposed_ns", "total_ns", "window_ns", "imposed_wait_ns")
    by = next((time for time in times if time in frame.columns), "row")
    note = (
        f"The {MOST_ROWS:,} rows with most {_label(by).removesuffix(' (ms)')} of {frame.height:,}; "
        f"nsysddp analyze --table {name} --format csv has all."
    )
    most = frame.sort(by, "row", descending=[True, False], nulls_last=True).head(MOST_ROWS)
    return most.sort("row"), note


def _packed(name: str, series: pl.Series) -> dict[str, Any]:
    """A column's values; of texts each word once, and its places."""
    if _kind(name, series.dtype) != "text":
        return {"data": [float(f"{value:.5g}") if isinstance(value, float) else value for value in series]}
    words = series.drop_nulls().unique(maintain_order=True).to_list()
    places = {word: place for place, word in enumerate(words)}
    return {
        "words": [visible(str(word)) for word in words],
        "data": [None if word is None else places[word] for word in series.to_list()],
    }


def short_table(caption: str, frame: pl.DataFrame, most: int = MOST_SHOWN) -> dict[str, Any]:
    """A table of a few rows as texts, without columns that are empty."""
    names = [name for name in frame.columns if frame[name].null_count() < frame.height] or frame.columns[:1]
    heads = [
        _head(
            _label(name),
            number=frame[name].dtype.is_numeric(),
            name=name in _NAMES,
            prose=frame[name].dtype == pl.String and bool((frame[name].str.len_chars() > _PROSE).any()),
        )
        for name in names
    ]
    rows = [
        {
            "cells": _cells(row),
            "id": None,
            "tag": None,
        }
        for row in frame.head(most).select(names).iter_rows(named=True)
    ]
    more = frame.height - len(rows)
    return {
        "caption": caption,
        "heads": heads,
        "rows": rows,
        "note": f"{more:,} more rows are not shown." if more else None,
    }


def _head(label: str, *, number: bool = False, name: bool = False, prose: bool = False) -> dict[str, Any]:
    return {"label": label, "number": number, "name": name, "prose": prose}


def _kind(name: str, dtype: pl.DataType) -> str:
    if dtype == pl.Boolean:
        return "flag"
    if not dtype.is_numeric():
        return "text"
    if name.endswith("_ns"):
        return "ns"
    if name == "bytes" or name.endswith("_bytes"):
        return "bytes"
    return "float" if dtype.is_float() else "int"


def _label(name: str) -> str:
    name = name.replace("tail_communication", "tail").replace("is_warmup", "warm-up")
    stem, _, unit = name.rpartition("_")
    if unit == "ns":
        return f"{stem.replace('_', ' ')} (ms)"
    if unit == "gbps":
        return f"{stem} (GB/s)"
    return {"bytes": "payload"}.get(name, name.replace("_", " "))


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("_ns") and isinstance(value, (int, float)) and not isinstance(value, bool):
        return _milliseconds(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{100 * value:.1f} %" if name.endswith("_ratio") else f"{value:,.4g}"
    if name == "kind":
        return str(value).replace("_", " ")
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return (
        f"{value:,}" if isinstance(value, int) and name.endswith(("count", "pieces", "bytes")) else str(value)
    )


def _cells(row: Mapping[str, Any]) -> list[str]:
    """The texts of a row; where the row itself says that its values are ns, they are shown in ms."""
    in_ns = row.get("unit") == "ns" or str(row.get("metric", "")).endswith("_ns")
    made = []
    for name, value in row.items():
        if in_ns and isinstance(value, float) and not name.endswith("_ratio"):
            made.append(_milliseconds(value))
        elif in_ns and name == "unit":
            made.append("ms")
        elif name == "metric":
            label = _label(str(value))
            made.append(label.removesuffix(" (ms)") if "unit" in row else label)
        else:
            made.append(_cell(name, value))
    return made


def _milliseconds(ns: float) -> str:
    return per_rank.milliseconds(ns) if ns >= 0 else f"−{per_rank.milliseconds(-ns)}"
