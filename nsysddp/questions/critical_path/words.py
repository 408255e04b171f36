"""Critical paths in words: what they consist of, and what is to be read with care."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from nsysddp.dependencies.graph import EVIDENCE, Graph
from nsysddp.model.names import counted, visible
from nsysddp.model.result import Finding
from nsysddp.model.units import ms
from nsysddp.model.warnings import Warning
from nsysddp.questions.attribution import Attribution
from nsysddp.questions.critical_path.tables import DOUBTS, GRADES, KIND_WORDS

if TYPE_CHECKING:
    from nsysddp.model.trace import Trace
    from nsysddp.questions.critical_path.walk import Per


def grade_of(trace: Trace) -> str:
    """How much the path can rest on, from what the capture holds."""
    if trace.calls is None or trace.launches is None or trace.calls.is_empty():
        return "gpu_only"
    names = trace.calls["name"].unique().cast(pl.String)
    used = names.str.contains(r"^(cuda|cu)(StreamWaitEvent|EventRecord)").any()
    recorded = trace.records is not None and trace.records["sync_id"].is_not_null().any()
    return "no_events" if used and not recorded else "full"


def warnings_of(
    graph: Graph, grade: str, steps: pl.DataFrame, per: Per, launched: Attribution
) -> tuple[Warning, ...]:
    """What is missing, inferred or unresolved, with how often."""
    counts = graph.counts
    found: list[tuple[str, int, str]] = []
    if grade != "full":
        found.append((f"critical_path_{grade}", 1, f"critical path at lower grade: {GRADES[grade]}"))
    if per == "step" and not (launched.step >= 0).any():
        found.append(("no_steps", 1, "no step ranges: the path is that of the whole capture"))
    for name in DOUBTS:
        if counts[name]:
            found.append((f"critical_path_{name}", counts[name], EVIDENCE[name]))
    tied = int(steps.filter("tied").n_unique("step_index")) if steps.height else 0
    if tied:
        found.append(
            ("critical_path_tied", tied, "windows in which several ranks end within 50 us: all are given")
        )
    return tuple(Warning(*warning) for warning in found)


def findings_of(tables: dict[str, pl.DataFrame], most: int = 6) -> tuple[Finding, ...]:
    """What the windows' paths consist of, in ns per steady window; of tied paths what all of them share."""
    steps = tables["critical_path_step"].filter(~pl.col("is_warmup"))
    windows = steps.group_by("step_index").agg(pl.col("path_ns").min(), paths=pl.len())
    if windows.is_empty():
        return ()
    total = int(windows["path_ns"].sum())
    noun = "capture" if steps["step_index"].null_count() else "step"
    tied = int((windows["paths"] > 1).sum())
    kinds = _shared(tables["critical_path_kind"], windows, ["kind"])
    shares = ", ".join(
        f"{_in_words(kind)} {duration / total:.1%}"
        for kind, duration in kinds.iter_rows()
        if duration >= _LEAST_SHOWN * total
    )
    each = total / windows.height
    headline = f"{ms(each):.3f} ms of critical path per {noun}: {shares}"
    if tied:
        headline += f"; {_tied(windows['paths'].to_list(), noun)}, so none is named as last"
    found = [Finding("critical_path", headline, value=each, unit="ns", severity=1.0)]
    cause = ["kind", "rank", "phase", "name"]
    for kind, rank, phase, name, duration in (
        _shared(tables["critical_path_cause"], windows, cause).head(most).iter_rows()
    ):
        shown = None if name is None else _short(name)
        words = [_in_words(kind), f"before {shown}" if kind in _BEFORE_KINDS and shown else shown]
        words.append("before a rank's first call in the capture" if rank is None else f"on rank {rank}")
        words.append(f"in {phase}" if phase else None)
        found.append(
            Finding(
                code="critical_path_cause",
                message=f"{' '.join(word for word in words if word)}: {ms(duration / windows.height):.3f} ms per "
                f"{noun}, {duration / total:.1%} of the critical path",
                rank=rank,
                value=duration / windows.height,
                unit="ns",
                rows=(
                    {
                        "table": "critical_path_cause",
                        "kind": kind,
                        "rank": rank,
                        "phase": phase,
                        "name": name,
                    },
                ),
                severity=duration / total,
            )
        )
    return tuple(found)


def _tied(paths: list[int], noun: str) -> str:
    """How many ranks end together, in how many of the windows."""
    tied = [count for count in paths if count > 1]
    where = f"in {len(tied)} of {counted(len(paths), 'step')} " if noun == "step" else ""
    up_to = "up to " if len(set(tied)) > 1 else ""
    return f"{where}{up_to}{counted(max(tied), 'rank')} end within 50 us of each other"


_LEAST_SHOWN = 0.0005
"""Share of the path below which a kind is 0.0 %."""


def _in_words(kind: str) -> str:
    return KIND_WORDS.get(kind, kind)


_BEFORE_KINDS = ("host_gap", "gap", "queued", "unknown")


def _short(name: str, most: int = 60) -> str:
    """A kernel's name for a sentence: kernel names reach thousands of characters, and can hold anything."""
    text = visible(name)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _shared(parts: pl.DataFrame, windows: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Sum over windows of what all paths of a window have of each part, the largest first."""
    return (
        parts.group_by("step_index", "path_rank", *by)
        .agg(pl.col("duration_ns").sum())
        .group_by("step_index", *by)
        .agg(pl.col("duration_ns").min(), having=pl.len())
        .join(windows, on="step_index", how="inner", nulls_equal=True)
        .filter(pl.col("having") == pl.col("paths"))
        .group_by(by)
        .agg(pl.col("duration_ns").sum())
        .sort("duration_ns", *by, descending=[True] + [False] * len(by), nulls_last=True)
    )
