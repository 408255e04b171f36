"""Further sections of the page: critical path, diagnosis, comparison, provenance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

import nsysddp
from nsysddp.questions.critical_path import KINDS
from nsysddp.render import per_rank
from nsysddp.render.compare.picture import drawn_rows, key_of
from nsysddp.render.compare.words import COMPARED, interval, number, percent, shown_rank, who
from nsysddp.render.detail import duration
from nsysddp.render.html.tables import short_table

if TYPE_CHECKING:
    from nsysddp.model.result import Finding, Result
    from nsysddp.model.warnings import Warning
    from nsysddp.questions import Context
    from nsysddp.render.html.places import Places


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


def part_of(anchor: str, title: str, part: Part | None, places: Places) -> dict[str, Any] | None:
    """A section as the template takes it: findings with their places, tables, notes; None without an answer."""
    if part is None:
        return None
    return {
        "anchor": anchor,
        "title": title,
        "findings": [places.finding(one, f"{anchor}-{number}") for number, one in enumerate(part.findings)],
        "intervals": None,
        "map": None,
        "tables": [
            short_table(name.replace("_", " "), frame) for name, frame in part.tables.items() if frame.height
        ],
        "notes": _notes(part),
    }


def comparison_part(part: Part | None, places: Places) -> dict[str, Any] | None:
    """The comparison with its intervals drawn: the same rows and the same meaning as in its picture."""
    made = part_of("comparison", "Comparison", part, places)
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


def path_part(part: Part | None, places: Places) -> dict[str, Any] | None:
    """The critical path: what it consists of, largest first, and each window's path."""
    made = part_of("critical-path", "Critical path", part, places)
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
        short_table("Each path by kinds of pieces, which add up to it", paths),
        short_table("What the paths consist of, the largest first", largest, 15),
        *(
            short_table("Communication: on the critical path, exposed and in the tail", part.tables[name])
            for name in ("critical_path_communication",)
            if name in part.tables
        ),
    ]
    return made


def diagnosis_part(part: Part | None, places: Places) -> dict[str, Any] | None:
    """The causes by cost, each with what to try and what would refute it, what they rest on, and what is not told."""
    made = part_of("diagnosis", "Diagnosis", part, places)
    if made is None or part is None:
        return made
    # The claims are the findings above; here is what they leave open.
    told = ("steps", "of_steps", "claim", "rank", "phase")
    captions = {
        "diagnosis": "Causes by their time on the critical path a steady step or, where less, by what they save",
        "diagnosis_unjudged": "What this capture does not tell",
        "diagnosis_evidence": "What the costs rest on: time of the critical path, the largest first",
    }
    made["tables"] = [
        short_table(caption, part.tables[name].drop(*told, strict=False), 15)
        for name, caption in captions.items()
        if name in part.tables and part.tables[name].height
    ]
    return made


def communicators_part(
    part: Part | None, places: Places, pairs_map: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """What groups of ranks cost and are for, who sends to whom, and the pairs that carry most."""
    made = part_of("communicators", "Groups of ranks", part, places)
    if made is None or part is None or not part.tables["communicator"].height:
        return None
    if pairs_map is not None:
        side = len(pairs_map["rows"])
        made["map"] = f"{side} senders by {side} receivers"
    pairs = part.tables["pair"].sort("bytes", descending=True, nulls_last=True)
    captions = (
        (
            "communicator_role",
            "What each role costs, summed over the steps, on the rank that is exposed longest",
        ),
        ("communicator", "Groups, the longest exposed first"),
    )
    made["tables"] = [
        *(short_table(caption, part.tables[name], 20) for name, caption in captions),
        *([short_table("Pairs of ranks, those that carry most first", pairs, 20)] if pairs.height else []),
    ]
    return made


def stragglers_part(part: Part | None, places: Places, heat: Mapping[str, Any]) -> dict[str, Any] | None:
    """Late ranks, hosts and links, beside the map of ranks by steps."""
    made = part_of("ranks-by-step", "Ranks by step", part, places)
    if made is None or part is None:
        return None
    made["words"] = f"{len(heat['ranks'])} ranks by {len(heat['steps'])} steps"
    late = part.tables["late"]
    made["tables"] = [short_table("What is late", late, 20)] if late.height else []
    made["notes"] = [f"{heat['left_out']:,} later steps are not in the map."] if heat["left_out"] else []
    return made


def _notes(part: Part) -> list[str]:
    return [f"{warning.message} ({warning.count:,})" for warning in part.warnings] + list(part.assumptions)


def provenance_of(result: Result, context: Context, further: Mapping[str, str]) -> dict[str, Any]:
    """Where the page comes from: reports and hashes, version, bounds, clocks, warnings, assumptions."""
    trace, asked = result.trace, context.selection
    inputs = pl.DataFrame(
        {
            "report": [report.name for report in trace.inputs],
            "sha256": [report.sha256 for report in trace.inputs],
            "nsys": [report.nsys_version for report in trace.inputs],
            "schema": [report.schema for report in trace.inputs],
            "CUDA graphs": [report.graph_mode for report in trace.inputs],
            "nsys says": [" ".join(sorted(report.diagnostics)) or None for report in trace.inputs],
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
            short_table("Reports, hashed as they were given", inputs),
            short_table("How the page was made", settings),
            short_table("Ranks and clocks; times in ms", clocks),
        ],
        "warnings": [f"{warning.message} ({warning.count:,})" for warning in result.warnings],
        "assumptions": list(result.assumptions),
    }
