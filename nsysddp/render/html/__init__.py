"""What did a run do with its time? One page: verdict, findings, ranks, a timeline to walk in, tables, provenance.

The page is one file. It asks no network for anything, and a Content-Security-Policy that names the hashes of its own
two programs and of its style lets nothing else run. Texts of a trace are data: escaped where they are markup, and set
as text by the program. The same input gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

import nsysddp
from nsysddp.model.names import visible
from nsysddp.model.schema import MORE_TABLES, TABLES
from nsysddp.questions.critical_path import KINDS
from nsysddp.questions.steps import steady
from nsysddp.render import per_rank
from nsysddp.render.compare import COMPARED, drawn_rows, interval, key_of, number, percent, shown_rank, who
from nsysddp.render.detail import duration
from nsysddp.render.html.packed import timeline_of
from nsysddp.render.html.program import program
from nsysddp.render.theme import INK, LOOKS, PAPER

if TYPE_CHECKING:
    from nsysddp.model.result import Finding, Result
    from nsysddp.model.warnings import Warning
    from nsysddp.questions import Context

MOST_ROWS = 15_000
"""Rows of a long table that a page holds at most; the ones with most exposed communication stay."""

MOST_SHOWN = 40
"""Rows of a short table."""

_NAMES = frozenset({"name", "kernel", "producer"})
"""Columns of kernels and calls, whose names can be very long."""

_PROSE = 45
"""Texts longer than this are set in lines."""

_DARK = {
    "compute": "#2A93D4",
    "exposed": "#FFFFFF",
    "graph": "#8A6A7E",
    "idle": "#4D555F",
    "inferred": "#3A4048",
}
"""Fills that a dark page needs lighter or darker."""

_EXTRA = {
    "host": ("host call", "#8C7BB8", PAPER),
    "inferred": ("gap, queued or unknown", "#C9CDD2", INK),
}
"""Looks that only a critical path needs: label, fill, ink."""

_LONG: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
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

_BUCKETS = (
    "bucket",
    "Buckets",
    ("rank", "step", "role", "bucket", "source", "bytes", "ready_ns", "launched_ns", "started_ns", "launch_late_ns",
     "queued_ns", "pending_ns", "wait_ns", "transfer_ns", "exposed_ns", "tail_ns", "held_by", "producer"),
    ("ended_ns", "step_index"),
    ("rank", "step", "bucket", "role"),
)  # fmt: skip

_NOUNS = {
    "collective": "collectives",
    "bucket": "buckets",
    "overlap": "steps",
    "straggler": "last arrivals",
    "kernel_class": "kernels",
}
"""What the rows of a long table are called in links and in the page's contents."""

_JUMPS = frozenset({"collective", "overlap", "bucket"})

_PLACE_BY = {
    "overlap_on_every_rank": "hidden_ns",
    "overlap_on_some_ranks": "hidden_ns",
    "overlap_unsplit": "hidden_ns",
    "overlap_is_waiting": "wait_ns",
    "exposed_is_waiting": "wait_ns",
    "no_overlap": "exposed_ns",
    "late_rank": "wait_ns",
    "bound_by_communication": "exposed_ns",
    "communication_on_compute_stream": "exposed_ns",
}
"""Findings about communication are shown at the collective that has most of this."""

_NOTHING = {"id": "finding-0", "code": "none", "message": "Nothing was found.", "place": None, "rows": ()}


class Part(Protocol):
    """What a further section of the page is made of; a ``Result`` is one."""

    @property
    def tables(self) -> Mapping[str, pl.DataFrame]:
        """Frames by name."""

    @property
    def findings(self) -> Sequence[Finding]:
        """Claims, most important first."""

    @property
    def assumptions(self) -> Sequence[str]:
        """What was taken for granted."""

    @property
    def warnings(self) -> Sequence[Warning]:
        """What was missing or inferred."""


def html_report(
    result: Result,
    *,
    context: Context,
    critical_path: Part | None = None,
    buckets: Part | None = None,
    diagnosis: Part | None = None,
    comparison: Part | None = None,
    answers: Sequence[tuple[str, Sequence[str]]] = (),
    provenance: Mapping[str, str] | None = None,
) -> str:
    """What did this run do with its time, on one page that needs nothing else?

    Args:
        result: the answer of ``analyze``.
        context: what it was computed from.
        critical_path: the answer of ``questions.critical_path.critical_path`` on the same trace.
        buckets: the answer of ``questions.buckets.buckets``.
        diagnosis: causes and remedies.
        comparison: this run beside others.
        answers: what else belongs to the verdict: sentences under names of their own.
        provenance: further facts about where the page comes from, such as capture settings. No secrets: they are shown.

    Returns:
        The page's text, to be written as UTF-8; the same input gives the same text.
    """
    long = [_long_table(result[one[0]], *one) for one in _LONG]
    if buckets is not None and buckets.tables["bucket"].height:
        long.insert(1, _long_table(buckets.tables["bucket"], *_BUCKETS))
    path = None if critical_path is None else critical_path.tables["critical_path"]
    timeline, columns = timeline_of(context, path)
    places = _Places(
        result,
        context,
        path,
        kept=long[0]["kept"],
        buckets=long[1]["name"] == "bucket",
        origin_ns=timeline["origin_ns"],
    )
    findings = [places.finding(one, f"finding-{number}") for number, one in enumerate(result.findings)]
    for one in long:
        told = buckets.findings if buckets is not None and one["name"] == "bucket" else ()
        one["findings"] = [places.finding(each, f"bucket-{number}") for number, each in enumerate(told)]
    labels, figures = per_rank.figures(result)
    bars = per_rank.bars(result)
    page_program, plot_program = program(), _vendored("uPlot.iife.min.js")
    style = _vendored("uPlot.min.css").strip() + "\n" + _template("report.css") + _look_style()
    parts = [
        _path_part(critical_path, places),
        _diagnosis_part(diagnosis, places),
        _comparison_part(comparison, places),
    ]
    shown = [part for part in parts if part]
    contents = [("ranks", "Ranks"), ("timeline", "Timeline"), ("decomposition", "Time")]
    contents += [(one["anchor"], one["short"]) for one in long]
    contents += [(part["anchor"], part["title"]) for part in shown]
    contents.append(("provenance", "Provenance"))
    template = _environment().get_template("report.html.j2")
    page: str = template.render(
        policy=_policy((style,), (plot_program, page_program)),
        version=nsysddp.__version__,
        title=_title(result),
        scope=_scope(result, context),
        style=_trusted(style),
        verdict=findings[0] if findings else _NOTHING,
        findings=findings,
        answers=[*_largest_cause(diagnosis), *answers],
        spread=per_rank.spread(result),
        contents=contents,
        ranks=_rank_table(result, labels, figures),
        has_path=path is not None,
        legend=_legend(timeline, path is not None),
        timeline_notes=_timeline_notes(timeline),
        bars=[_bar(f"rank {bar.rank}", bar.window_ns, bar.parts) for bar in bars],
        bars_caption=_bars_caption(result),
        bars_legend=_used(bar.parts for bar in bars),
        long_tables=long,
        parts=shown,
        provenance=_provenance(result, context, provenance or {}),
        licence=_vendored("LICENSE.uPlot").strip().splitlines(),
        data=[(f"table-{one['name']}", _json(one["data"])) for one in long if one["rows"]]
        + [("timeline-data", _json(timeline)), ("timeline-looks", _json(_looks()))],
        columns=columns,
        program=_trusted(page_program),
        plot_program=_trusted(plot_program),
    )
    return page


def _largest_cause(diagnosis: Part | None) -> list[tuple[str, Sequence[str]]]:
    """What the diagnosis puts first, beside what bounds the step; nothing without a diagnosis."""
    frame = None if diagnosis is None else diagnosis.tables.get("diagnosis")
    if frame is None:
        return []
    claims = frame.filter(pl.col("cost_ns").is_not_null())["claim"].to_list()
    return [("Largest cause on the path", claims[:1])] if claims else []


# --- safe in a page -------------------------------------------------------------------------------------


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
    from markupsafe import Markup

    def safe(value: Any) -> Any:
        return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    return Environment(
        loader=PackageLoader(__package__, "page"),
        autoescape=select_autoescape(default=True, default_for_string=True, enabled_extensions=("j2",)),
        undefined=StrictUndefined,
        finalize=safe,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _trusted(text: str) -> Any:
    """Our own program or style, put into the page as it is; it must not be able to end its element."""
    from markupsafe import Markup

    assert "</script" not in text.lower()
    assert "</style" not in text.lower()
    return Markup(text)


def _json(value: Any) -> Any:
    """JSON for a script element: what could end the element, or be a line end in old readers, is spelled out."""
    from markupsafe import Markup

    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def _policy(styles: Iterable[str], programs: Iterable[str]) -> str:
    def hashes(texts: Iterable[str]) -> str:
        digests = (hashlib.sha256(text.encode()).digest() for text in texts)
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes(programs)}; style-src {hashes(styles)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _template(name: str) -> str:
    return (files(__package__) / "page" / name).read_text(encoding="utf-8")


def _vendored(name: str) -> str:
    return (files(__package__) / "vendor" / name).read_text(encoding="utf-8")


# --- looks ----------------------------------------------------------------------------------------------


def _looks() -> dict[str, dict[str, str]]:
    made = {key: (look.label, look.fill, look.ink) for key, look in LOOKS.items()} | _EXTRA
    return {
        key: {
            "label": label,
            "fill": fill,
            "ink": ink,
            "dark": _DARK.get(key, fill),
            "dark_ink": INK if key == "exposed" else PAPER if key in _DARK else ink,
        }
        for key, (label, fill, ink) in made.items()
    }


def _look_style() -> str:
    """The fills of bars and legends, light and, on screens, dark."""
    looks = _looks()
    light = "".join(f".fill-{key}{{fill:{look['fill']}}}" for key, look in looks.items())

    def dark(scope: str) -> str:
        return "".join(f"{scope} .fill-{key}{{fill:{fill}}}" for key, fill in _DARK.items())

    return (
        f"{light}\n@media screen{{{dark(':root[data-theme=dark]')}"
        f"@media (prefers-color-scheme:dark){{{dark(':root:not([data-theme])')}}}}}\n"
    )


def _legend(timeline: dict[str, Any], has_path: bool) -> list[tuple[str, str]]:
    used = {
        part["look"]
        for rank in timeline["ranks"]
        for lane in rank["lanes"]
        for part in lane["parts"]
        if part["set"]["gap"][1]
    }
    keys = [key for key in LOOKS if key in used] + (["host", "inferred"] if has_path else [])
    return [(key, _looks()[key]["label"]) for key in keys]


def _used(bars: Iterable[tuple[tuple[str, str, int, float], ...]]) -> list[tuple[str, str]]:
    labels = {look: label for parts in bars for label, look, _, _ in parts}
    return [(key, labels[key]) for key in _looks() if key in labels]


def _bar(name: str, total: int, parts: Iterable[tuple[str, str, int, float]]) -> dict[str, Any]:
    """One bar as rectangles on 1,000 units; the words carry the same numbers."""
    at, rectangles, words = 0.0, [], []
    for label, look, ns, share in parts:
        said = f"{label} {per_rank.milliseconds(ns)} ms ({100 * share:.1f} %)"
        words.append(said)
        rectangles.append(
            {"x": f"{1000 * at:.2f}", "width": f"{1000 * share:.2f}", "look": look, "words": said}
        )
        at += share
    return {
        "rank": name,
        "parts": rectangles,
        "words": f"{name}, {per_rank.milliseconds(total)} ms: {', '.join(words)}",
    }


# --- texts ----------------------------------------------------------------------------------------------


def _title(result: Result) -> str:
    inputs = result.trace.inputs
    return (
        inputs[0].name
        if len(inputs) == 1
        else f"{len(inputs)} reports, {inputs[0].name} to {inputs[-1].name}"
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _scope(result: Result, context: Context) -> str:
    frame = result["overlap"]
    steps = frame["step_index"].drop_nulls().n_unique()
    said = [
        _count(len(result.trace.rank_numbers), "rank"),
        _count(steps, "step") if steps else "whole capture",
    ]
    asked = context.selection
    if asked.from_ns is not None or asked.to_ns is not None:
        said.append("part of the time")
    if asked.skip_warmup:
        said.append(f"without the first {_count(asked.skip_warmup, 'step')}")
    return ", ".join(said)


def _bars_caption(result: Result) -> str:
    frame = steady(result["overlap"])
    most = int(max(frame.group_by("rank").len()["len"].to_list(), default=0))
    what = (
        "the whole capture"
        if frame["step_index"].null_count() == frame.height
        else f"the {_count(most, 'steady step')}"
    )
    return f"Each bar is {what} of a rank; its parts add up to it. Communication under compute is inside compute."


def _timeline_notes(timeline: dict[str, Any]) -> list[str]:
    notes = [
        f"{timeline['events']:,} GPU events, each with its name. Where boxes would be narrower than a pixel, "
        "a column's height is the share of its time that is covered."
    ]
    if timeline["left_out"]:
        notes = [
            f"{timeline['events']:,} GPU events of {duration(timeline['brief_ns'])} and longer, and all communication "
            f"where that fits, have a box of their own. {timeline['left_out']:,} shorter ones have none: their time is "
            "in the columns. Choose fewer steps (--steps) to see them."
        ]
    if timeline["resolution_ns"]:
        notes.append(
            f"Sets of very many pieces are held merged where less than {duration(timeline['resolution_ns'])} apart; "
            "how much of each piece is covered is exact."
        )
    if timeline["ranks_left_out"]:
        notes.append(f"{timeline['ranks_left_out']:,} ranks are not drawn: the others are evenly spread.")
    if timeline["path"] and timeline["path"]["left_out"]:
        notes.append(f"{timeline['path']['left_out']:,} short pieces of the critical path are not drawn.")
    return notes


# --- tables ---------------------------------------------------------------------------------------------


def _rank_table(result: Result, labels: list[str], figures: list[per_rank.Figures]) -> dict[str, Any]:
    facts = {row["rank"]: row for row in result["rank"].to_dicts()}
    order = sorted((one.window_ns, one.rank) for one in figures if one.window_ns is not None)
    tags = {order[-1][1]: "slowest", order[0][1]: "fastest"} if len(order) > 1 else {}
    rows = []
    for one in figures:
        fact = facts[one.rank]
        place = [fact["host"], None if fact["device"] is None else f"device {fact['device']}"]
        where = ", ".join(word for word in (*place, fact["gpu_name"]) if word)
        rows.append(
            {
                "id": f"rank-{one.rank}",
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


def _long_table(
    frame: pl.DataFrame,
    name: str,
    title: str,
    columns: tuple[str, ...],
    held: tuple[str, ...],
    facets: tuple[str, ...],
) -> dict[str, Any]:
    contract = TABLES[name] if name in TABLES else MORE_TABLES[name]
    frame = frame.with_row_index("row")
    note = None
    if frame.height > MOST_ROWS:
        by = next(
            (
                one
                for one in ("exposed_ns", "total_ns", "window_ns", "imposed_wait_ns")
                if one in frame.columns
            ),
            "row",
        )
        note = (
            f"The {MOST_ROWS:,} rows with most {_label(by).removesuffix(' (ms)')} of {frame.height:,}; "
            f"nsysddp analyze --table {name} --format csv has all."
        )
        frame = frame.sort(by, "row", descending=[True, False], nulls_last=True).head(MOST_ROWS).sort("row")
    meaning = {column.name: column.meaning for column in contract.columns}
    packed = []
    for column in (*columns, *held):
        series = frame[column]
        kind = _kind(column, series.dtype)
        one: dict[str, Any] = {
            "name": column,
            "label": _label(column),
            "kind": kind,
            "meaning": meaning[column],
            "facet": column in facets,
            "held": column in held,
            "wide": column in _NAMES,
        }
        if kind == "text":
            words = series.drop_nulls().unique(maintain_order=True).to_list()
            places = {word: place for place, word in enumerate(words)}
            one |= {
                "words": [visible(str(word)) for word in words],
                "data": [None if word is None else places[word] for word in series.to_list()],
            }
        else:
            one["data"] = [
                float(f"{value:.5g}") if isinstance(value, float) else value for value in series.to_list()
            ]
        packed.append(one)
    return {
        "name": name,
        "anchor": f"table-of-{name.replace('_', '-')}",
        "title": title,
        "short": _NOUNS[name].capitalize(),
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


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("_ns") and isinstance(value, (int, float)) and not isinstance(value, bool):
        return per_rank.milliseconds(value) if value >= 0 else f"−{per_rank.milliseconds(-value)}"
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
            made.append(
                per_rank.milliseconds(abs(value)) if value >= 0 else f"−{per_rank.milliseconds(-value)}"
            )
        elif in_ns and name == "unit":
            made.append("ms")
        elif in_ns and name == "metric":
            made.append(_label(str(value)).removesuffix(" (ms)"))
        else:
            made.append(_cell(name, value))
    return made


def _short_table(caption: str, frame: pl.DataFrame, most: int = MOST_SHOWN) -> dict[str, Any]:
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
            "cells": [_cell(name, value) for name, value in zip(names, row, strict=True)],
            "id": None,
            "tag": None,
        }
        for row in frame.head(most).select(names).iter_rows()
    ]
    more = frame.height - len(rows)
    return {
        "caption": caption,
        "heads": heads,
        "rows": rows,
        "note": f"{more:,} more rows are not shown." if more else None,
    }


# --- places of findings ---------------------------------------------------------------------------------


class _Places:
    """Where in the timeline and in the tables a finding is seen."""

    def __init__(
        self,
        result: Result,
        context: Context,
        path: pl.DataFrame | None,
        *,
        kept: pl.Series,
        buckets: bool,
        origin_ns: int,
    ) -> None:
        self._buckets = buckets
        self._path = path
        self._origin_ns = origin_ns
        self._collective = result["collective"][kept.to_list()].with_row_index("row")
        self._windows = {(one.rank, one.step): one for one in context.every_window.windows}
        self._steps = {
            name: index for index, name in context.attribution.steps.select("step_index", "name").iter_rows()
        }
        self._ranks = set(result["overlap"]["rank"].to_list())

    def finding(self, finding: Finding, name: str) -> dict[str, Any]:
        """The finding as the page shows it."""
        rows = [self._row(row) for row in finding.rows[:2]]
        place = self._place(finding)
        return {
            "id": name,
            "code": finding.code,
            "message": finding.message,
            "place": None if place is None else json.dumps(place, separators=(",", ":")),
            "rows": [row for row in rows if row],
        }

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        table, rank, step = row.get("table"), row.get("rank"), row.get("step")
        known = {one[0]: one for one in (*_LONG, *([_BUCKETS] if self._buckets else []))}
        if table in ("overlap", "rank") and step is None:
            if rank not in self._ranks:
                return {"anchor": "ranks", "label": "ranks", "filter": None}
            return {"anchor": f"rank-{rank}", "label": f"rank {rank}", "filter": None}
        if table in known:
            keys = {key: value for key, value in row.items() if key in known[table][2] and value is not None}
            where = " ".join(str(value) for key, value in keys.items() if key in ("step",))
            who = "" if rank is None else f" of rank {rank}"
            label = f"{_NOUNS[str(table)]}{who}{f', {where}' if where else ''}"
            chosen = json.dumps({**keys, "table": table}, separators=(",", ":"))
            return {"anchor": f"table-of-{str(table).replace('_', '-')}", "label": label, "filter": chosen}
        return None

    def _place(self, finding: Finding) -> dict[str, Any] | None:
        """The collective, the piece of the critical path, the step or the rank that shows it best."""
        return self._worst_collective(finding) or self._longest_piece(finding) or self._window(finding)

    def _worst_collective(self, finding: Finding) -> dict[str, Any] | None:
        by = _PLACE_BY.get(finding.code)
        if by is None:
            return None
        part = self._collective.filter(pl.col(by).is_not_null())
        # Who waits for a late rank is another one.
        whose = "last_rank" if finding.code == "late_rank" else "rank"
        for column, value in ((whose, finding.rank), ("step", finding.step)):
            if value is not None:
                part = part.filter(pl.col(column) == value)
        streams = [row["stream"] for row in finding.rows if "stream" in row]
        if streams:
            part = part.filter(pl.col("stream").is_in(streams))
        if part.is_empty():
            return None
        return {"collective": part.sort(by, "row", descending=[True, False])["row"][0]}

    def _longest_piece(self, finding: Finding) -> dict[str, Any] | None:
        row = next((row for row in finding.rows if row.get("table") == "critical_path_cause"), None)
        if row is None or self._path is None:
            return None
        part = self._path
        for column in ("kind", "rank", "phase", "name"):
            if column in row:
                part = part.filter(pl.col(column).cast(pl.String).eq_missing(_text(row[column])))
        if part.is_empty():
            return None
        longest = part.sort(pl.col("start_ns") - pl.col("end_ns"), "start_ns").row(0, named=True)
        return self._span(longest["rank"], longest["start_ns"], longest["end_ns"], air=2)

    def _window(self, finding: Finding) -> dict[str, Any] | None:
        step = finding.step or next((row["step"] for row in finding.rows if row.get("step")), None)
        if step in self._steps:
            return {"step": self._steps[step], **({} if finding.rank is None else {"rank": finding.rank})}
        mine = [one for (owner, _), one in self._windows.items() if owner == finding.rank]
        if not mine:
            return None
        return self._span(finding.rank, min(one.start for one in mine), max(one.end for one in mine), air=0)

    def _span(self, rank: int | None, start_ns: int, end_ns: int, *, air: float) -> dict[str, Any]:
        return {"rank": rank, "from": start_ns - self._origin_ns, "to": end_ns - self._origin_ns, "air": air}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


# --- further sections -----------------------------------------------------------------------------------


def _part(anchor: str, title: str, part: Part | None, places: _Places) -> dict[str, Any] | None:
    if part is None:
        return None
    return {
        "anchor": anchor,
        "title": title,
        "findings": [places.finding(one, f"{anchor}-{number}") for number, one in enumerate(part.findings)],
        "intervals": None,
        "tables": [
            _short_table(name.replace("_", " "), frame) for name, frame in part.tables.items() if frame.height
        ],
        "notes": _notes(part),
    }


def _comparison_part(part: Part | None, places: _Places) -> dict[str, Any] | None:
    """The comparison with its intervals drawn: the same rows and the same meaning as in its picture."""
    made = _part("comparison", "Comparison", part, places)
    if made is None or part is None or not {*COMPARED} <= set(part.tables):
        return made
    rows = drawn_rows(part)
    ends: list[float] = [0.0, *(row["difference"] for row in rows)]
    for row in rows:
        ends += [row["low"], row["high"]] if row["low"] is not None else []
        ends += [-row["detectable"], row["detectable"]] if row["detectable"] is not None else []
    low, high = min(ends), max(ends)
    room = (high - low) or 1.0

    def x(value: float) -> float:
        return 20.0 + 960.0 * (value - low) / room

    rank = shown_rank(part)
    made["intervals"] = {
        "caption": "The job" if rank is None else f"The job, and {who(part, rank)}",
        "key": key_of(rows, weak="pale"),
        "zero": f"{x(0):.2f}",
        "rows": [_interval(row, x) for row in rows],
    }
    return made


def _interval(row: Mapping[str, Any], x: Callable[[float], float]) -> dict[str, Any]:
    """One row of ``drawn_rows`` as rectangles on 1,000 units, and in words."""

    def reach(low: float, high: float) -> dict[str, str]:
        return {"x": f"{x(low):.2f}", "width": f"{max(x(high) - x(low), 1.0):.2f}"}

    change = f"{number(row['difference'], row['unit'], sign=True)} ({percent(row['change_ratio'])})"
    told = row["detectable"] is not None
    return {
        "label": row["label"],
        "decided": row["decided"],
        "weak": row["scope"] == "these_runs",
        "missed": reach(-row["detectable"], row["detectable"]) if told else None,
        "line": None if row["low"] is None else reach(row["low"], row["high"]),
        "point": f"{x(row['difference']) - 4:.2f}",
        "change": change,
        "interval": interval(row),
        "words": f"{row['label']}: {change}"
        + (f", 95 % interval {interval(row)}" if row["low"] is not None else ", no interval"),
    }


def _path_part(part: Part | None, places: _Places) -> dict[str, Any] | None:
    """The critical path: what it consists of, largest first, and each window's path."""
    made = _part("critical-path", "Critical path", part, places)
    if made is None or part is None:
        return None
    kinds, causes = part.tables["critical_path_kind"], part.tables["critical_path_cause"]
    by = ["kind", "rank", "phase", "name"]
    largest = (
        causes.group_by(by, maintain_order=True)
        .agg(pl.col("duration_ns").sum(), pl.col("pieces").sum())
        .sort("duration_ns", *by, descending=[True] + [False] * len(by), nulls_last=True)
    )
    wide = kinds.with_columns(pl.col("kind").cast(pl.String)).pivot(
        "kind", index=["step", "path_rank"], values="duration_ns", aggregate_function="sum"
    )
    found = [kind for kind in KINDS if kind in wide.columns]
    paths = wide.select("step", "path_rank", *(pl.col(name).alias(f"{name}_ns") for name in found))
    made["tables"] = [
        _short_table("Each path by kinds of pieces, which add up to it", paths),
        _short_table("What the paths consist of, the largest first", largest, 15),
        *(
            _short_table("Communication: on the critical path, exposed and in the tail", part.tables[name])
            for name in ("critical_path_communication",)
            if name in part.tables
        ),
    ]
    return made


def _diagnosis_part(part: Part | None, places: _Places) -> dict[str, Any] | None:
    """The causes by cost, each with what to try and what would refute it, what they rest on, and what is not told."""
    made = _part("diagnosis", "Diagnosis", part, places)
    if made is None or part is None:
        return made
    # The claims are the findings above; here is what they leave open.
    told = ("steps", "of_steps", "claim", "rank", "phase")
    captions = {
        "diagnosis": "Causes by what each costs at most per steady step; faults have no cost and come last",
        "diagnosis_unjudged": "What this capture does not tell",
        "diagnosis_evidence": "What the costs rest on: time of the critical path, the largest first",
    }
    made["tables"] = [
        _short_table(caption, part.tables[name].drop(*told, strict=False), 15)
        for name, caption in captions.items()
        if name in part.tables and part.tables[name].height
    ]
    return made


def _notes(part: Part) -> list[str]:
    return [f"{warning.message} ({warning.count:,})" for warning in part.warnings] + list(part.assumptions)


def _provenance(result: Result, context: Context, further: Mapping[str, str]) -> dict[str, Any]:
    trace, asked = result.trace, context.selection
    inputs = pl.DataFrame(
        {
            "report": [one.name for one in trace.inputs],
            "sha256": [one.sha256 for one in trace.inputs],
            "nsys": [one.nsys_version for one in trace.inputs],
            "schema": [one.schema for one in trace.inputs],
            "CUDA graphs": [one.graph_mode for one in trace.inputs],
            "nsys says": [" ".join(sorted(one.diagnostics)) or None for one in trace.inputs],
        },
        schema_overrides=dict.fromkeys(["nsys", "schema", "CUDA graphs", "nsys says"], pl.String),
    )
    clocks = result["rank"].select(
        "rank", "rank_source", "report", "host", "pid", "device", "gpu_name", "clock_method", "clock_offset_ns",
        "clock_residual_ns",
    )  # fmt: skip
    facts = {
        "tool": f"nsysddp {nsysddp.__version__}",
        "window of a row": context.windows.per,
        "step pattern": trace.step_pattern,
        "clock tolerance": duration(trace.clock_tolerance_ns),
    }
    bounds = {
        "from": None if asked.from_ns is None else f"{per_rank.milliseconds(asked.from_ns)} ms",
        "to": None if asked.to_ns is None else f"{per_rank.milliseconds(asked.to_ns)} ms",
        "first step": None if asked.first_step is None else str(asked.first_step),
        "steps before": None if asked.last_step is None else str(asked.last_step),
        "steps left out as warm-up": str(asked.skip_warmup) if asked.skip_warmup else None,
    }
    facts |= {key: text for key, text in bounds.items() if text is not None} | dict(further)
    settings = pl.DataFrame({"fact": list(facts), "value": list(facts.values())})
    return {
        "tables": [
            _short_table("Reports, hashed as they were given", inputs),
            _short_table("How the page was made", settings),
            _short_table("Ranks and clocks; times in ms", clocks),
        ],
        "warnings": [f"{one.message} ({one.count:,})" for one in result.warnings],
        "assumptions": list(result.assumptions),
    }
