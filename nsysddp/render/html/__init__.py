"""What did a run do with its time? One page: verdict, findings, ranks, a timeline to walk in, tables, provenance.

The page is one file. It asks no network for anything, and a Content-Security-Policy that names the hashes of its own
two programs and of its style lets nothing else run. Texts of a trace are data: escaped where they are markup, and set
as text by the program. The same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

import nsysddp
from nsysddp.questions.steps import steady
from nsysddp.render import per_rank
from nsysddp.render.detail import duration
from nsysddp.render.html.heat import heat_of, pairs_of
from nsysddp.render.html.looks import all_looks, bar_of, legend, look_style, used_looks
from nsysddp.render.html.packed import few_of, timeline_of
from nsysddp.render.html.places import Places
from nsysddp.render.html.program import program
from nsysddp.render.html.safe import environment, json_text, policy, template_text, trusted, vendored_text
from nsysddp.render.html.sections import (
    communicators_part,
    comparison_part,
    diagnosis_part,
    path_part,
    provenance_of,
    stragglers_part,
)
from nsysddp.render.html.tables import BUCKETS, LONG, long_table, rank_table

if TYPE_CHECKING:
    from nsysddp.model.result import Result
    from nsysddp.questions import Context
    from nsysddp.render.html.sections import Part


_NOTHING = {"id": "finding-0", "code": "none", "message": "Nothing was found.", "place": None, "rows": ()}


def html_report(
    result: Result,
    *,
    context: Context,
    critical_path: Part | None = None,
    buckets: Part | None = None,
    diagnosis: Part | None = None,
    comparison: Part | None = None,
    stragglers: Part | None = None,
    communicators: Part | None = None,
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
        stragglers: the answer of ``questions.stragglers``: late ranks, and a map of ranks by steps.
        communicators: the answer of ``questions.communicators``.
        answers: what else belongs to the verdict: sentences under names of their own.
        provenance: further facts about where the page comes from, such as capture settings. No secrets: they are shown.

    Returns:
        The page's text, to be written as UTF-8; the same input gives the same text.
    """
    long = _long_tables(result, buckets)
    path = None if critical_path is None else critical_path.tables["critical_path"]
    first = _named_ranks(result, stragglers)
    timeline, columns = timeline_of(context, path, first=first)
    places = Places(
        result,
        context,
        path,
        kept=long[0]["kept"],
        buckets=long[1]["name"] == "bucket",
        origin_ns=timeline["origin_ns"],
    )
    findings = [places.finding(one, f"finding-{number}") for number, one in enumerate(result.findings)]
    for one in long:
        said = buckets.findings if buckets is not None and one["name"] == "bucket" else ()
        one["findings"] = [places.finding(each, f"bucket-{number}") for number, each in enumerate(said)]
    labels, figures = per_rank.figures(result)
    bars = [(bar.rank, bar_of(f"rank {bar.rank}", bar.window_ns, bar.parts)) for bar in per_rank.bars(result)]
    few = few_of([figure.rank for figure in figures], first)
    page_program, plot_program = program(), vendored_text("uPlot.iife.min.js")
    style = vendored_text("uPlot.min.css").strip() + "\n" + template_text("report.css") + look_style()
    steps = context.used_steps
    host_of = dict(context.trace.ranks.select("rank", "host").iter_rows())
    pairs = pairs_of(communicators, host_of, steps[0] if steps else None)
    parts = [
        path_part(critical_path, places),
        diagnosis_part(diagnosis, places),
        communicators_part(communicators, places, pairs),
        comparison_part(comparison, places),
    ]
    shown = [part for part in parts if part]
    heat = heat_of(stragglers)
    template = environment().get_template("report.html.j2")
    page: str = template.render(
        policy=policy((style,), (plot_program, page_program)),
        version=nsysddp.__version__,
        title=_title(result),
        scope=_scope(result, context),
        style=trusted(style),
        verdict=findings[0] if findings else _NOTHING,
        findings=findings,
        answers=[*_largest_cause(diagnosis), *answers],
        spread=per_rank.spread(result),
        contents=_contents(long, shown, has_map=heat is not None, map_first=len(few) < len(figures)),
        ranks=rank_table(result, labels, figures),
        few_ranks=rank_table(result, labels, figures, few) if len(few) < len(figures) else None,
        has_path=path is not None,
        legend=legend(timeline, path is not None),
        timeline_notes=_timeline_notes(timeline),
        bars=[bar for _, bar in bars],
        few_bars=[bar for rank, bar in bars if rank in few] if len(few) < len(bars) else None,
        bars_caption=_bars_caption(result),
        bars_legend=used_looks(bar.parts for bar in per_rank.bars(result)),
        heat=None if heat is None else stragglers_part(stragglers, places, heat),
        long_tables=long,
        parts=shown,
        provenance=provenance_of(result, context, provenance or {}),
        licence=vendored_text("LICENSE.uPlot").strip().splitlines(),
        data=[(f"table-{table['name']}", json_text(table["data"])) for table in long if table["rows"]]
        + [
            (f"{name}-data", json_text(cells))
            for name, cells in (("heat", heat), ("pairs", pairs))
            if cells is not None
        ]
        + [("timeline-data", json_text(timeline)), ("timeline-looks", json_text(all_looks()))],
        columns=columns,
        program=trusted(page_program),
        plot_program=trusted(plot_program),
    )
    return page


def _long_tables(result: Result, buckets: Part | None) -> list[dict[str, Any]]:
    """The tables that sort and filter, buckets second where there are any."""
    long = [long_table(result[table[0]], *table) for table in LONG]
    if buckets is not None and buckets.tables["bucket"].height:
        long.insert(1, long_table(buckets.tables["bucket"], *BUCKETS))
    return long


def _contents(
    long: list[dict[str, Any]], parts: list[dict[str, Any]], *, has_map: bool, map_first: bool
) -> list[tuple[str, str]]:
    """Anchors and names of all sections, in the page's order; of many ranks their map by steps comes first."""
    by_step = [("ranks-by-step", "Ranks by step")] if has_map else []
    return [
        *(by_step if map_first else []),
        ("ranks", "Ranks"),
        ("timeline", "Timeline"),
        ("decomposition", "Time"),
        *([] if map_first else by_step),
        *((table["anchor"], table["short"]) for table in long),
        *((part["anchor"], part["title"]) for part in parts),
        ("provenance", "Provenance"),
    ]


def _named_ranks(result: Result, stragglers: Part | None) -> list[int]:
    """Ranks to show first where there are many: those that findings name, the slowest, the fastest."""
    found = [*result.findings, *(() if stragglers is None else stragglers.findings)]
    named = [finding.rank for finding in found if finding.rank is not None]
    order = [
        rank
        for _, rank in sorted(
            (figure.window_ns, figure.rank)
            for figure in per_rank.figures(result)[1]
            if figure.window_ns is not None
        )
    ]
    return [*named, *order[-1:], *order[:1]]


def _largest_cause(diagnosis: Part | None) -> list[tuple[str, Sequence[str]]]:
    """What the diagnosis puts first, beside what bounds the step; nothing without a diagnosis."""
    frame = None if diagnosis is None else diagnosis.tables.get("diagnosis")
    if frame is None:
        return []
    claims = frame.filter(pl.col("cost_ns").is_not_null())["claim"].to_list()
    return [("Largest cause on the path", claims[:1])] if claims else []


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
        notes.append(f"Of {timeline['ranks_left_out']:,} ranks the page holds no events.")
    if len(timeline["drawn"]) < len(timeline["ranks"]):
        notes.append(
            f"{len(timeline['drawn'])} of {len(timeline['ranks']):,} ranks are drawn: those that findings name, the "
            "slowest, the fastest, and evenly spread ones. Others are drawn when they are chosen above or in the map."
        )
    if timeline["path"] and timeline["path"]["left_out"]:
        notes.append(f"{timeline['path']['left_out']:,} short pieces of the critical path are not drawn.")
    return notes
