"""The answer: rows, findings, assumptions and warnings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from nsysddp.model import pools
from nsysddp.model.errors import CannotTell
from nsysddp.model.result import Finding, Result
from nsysddp.model.units import ms
from nsysddp.model.warnings import Warning
from nsysddp.questions.rebucket import Buckets
from nsysddp.questions.whatif.layouts import apart, bucket_scenarios
from nsysddp.questions.whatif.model import Model
from nsysddp.questions.whatif.request import Ask
from nsysddp.questions.whatif.scenarios import standard
from nsysddp.questions.whatif.tables import WHATIF, WHATIF_LINK, WHATIF_REPLAY
from nsysddp.questions.whatif.wire import Wire

if TYPE_CHECKING:
    from nsysddp.questions import Context

GOOD_REPLAY = 0.02
"""A self-replay error below this is what the model is meant for."""


def whatif(context: Context, ask: Ask | None = None) -> Result:
    """How long would a step be in each of the scenarios, and how good is the replay that says so?

    Args:
        context: of a trace loaded with ``host_calls=True``, and ``shapes=True`` for scenarios about contention.
        ask: the scenarios.

    Returns:
        The tables ``whatif``, ``whatif_replay`` and ``whatif_link``.

    Raises:
        CannotTell: the trace has no host calls, or does not show the buckets that a scenario is about.
        UsageError: the parameters are not those of the buckets.
        AnalysisError: the replay is circular.
    """
    ask = ask or Ask()
    trace = context.trace
    if trace.calls is None or trace.calls.is_empty():
        raise CannotTell("a replay needs the host's calls", do="capture with --trace=cuda,nvtx")
    model = _small(context, ask)
    rows = [model.row("unchanged", model.unchanged_ns)]
    if ask.standard:
        rows += standard(model, ask)
    bucket_rows, wire, buckets = bucket_scenarios(model, ask)
    rows += bucket_rows
    frames = {
        "whatif": WHATIF.frame(rows),
        "whatif_replay": WHATIF_REPLAY.frame(model.replayed()),
        "whatif_link": WHATIF_LINK.frame(_link_rows(wire)),
    }
    return Result(
        trace,
        frames,
        findings=_findings(frames, model),
        assumptions=_assumptions(model, ask, buckets),
        warnings=_warnings(model, wire),
    )


def _small(context: Context, ask: Ask) -> Model:
    """What predictions start from, without the binding edges: while the scenarios run nobody asks for them."""
    model = Model.of(context, ask)
    _ = context.buckets  # the last to follow those edges, made while they are there
    context.let_go_of_graph()
    pools.hand_back()
    return replace(model, graph=model.graph.without_edges())


def _link_rows(wire: Wire | None) -> list[dict[str, object]]:
    if wire is None:
        return []
    line = wire.line
    return [
        {
            "kind": line.kind,
            "group_size": line.group_size,
            "latency_ns": round(line.latency_ns) if line.has_latency else None,
            "bandwidth_gbps": line.bandwidth_gbps,
            "error_ratio": line.error_ratio,
            "spread_ratio": line.spread_ratio,
            "smallest_bytes": line.smallest_bytes,
            "largest_bytes": line.largest_bytes,
            "small_bytes": wire.small_bytes,
            "small_ns": None if wire.small_ns is None else round(wire.small_ns),
            "samples": line.samples,
            "sizes": line.sizes,
        }
    ]


# --- what it means ---------------------------------------------------------------------------------------------------


def _about_caps(caps: pl.DataFrame) -> Finding:
    """Which bucket caps are the shortest, which are longer, and of which that is not known."""
    changes = dict(caps.select("scenario", "change_ratio").iter_rows())

    def listed(names: list[str], *, changed: bool = False) -> str:
        shown = [
            name.removeprefix("cap_") + (f" ({changes[name]:+.1%})" if changed else "") for name in names
        ]
        return ", ".join(shown) + " MiB"

    shortest = caps.sort("step_ns", "scenario").row(0, named=True)
    same, longer, unsure = apart(caps)
    span = f"{ms(shortest['step_ns']):.3f} ms, {ms(shortest['low_ns']):.3f} to {ms(shortest['high_ns']):.3f}"
    if len(same) == caps.height and caps.height > 1:
        text = (
            f"The bucket caps {listed(same)} cannot be told apart: the capture allows differences below 1 % between "
            f"their steps (from {span}); none is named the best."
        )
    elif len(same) > 1:
        text = f"The bucket caps {listed(same)} cannot be told apart (from {span})."
    else:
        text = f"The shortest step is predicted for a bucket cap of {listed(same)}: {span}."
    if longer and len(same) > 1:
        text += f" Longer than these: {listed(longer, changed=True)}."
    if unsure:
        text += f" Predicted to be longer, but by no more than the capture leaves open: {listed(unsure, changed=True)}."
    rows = tuple({"table": "whatif", "scenario": name} for name in same)
    return Finding("bucket_caps", text, value=shortest["step_ns"], unit="ns", rows=rows, severity=2.0)


def _findings(frames: dict[str, pl.DataFrame], model: Model) -> tuple[Finding, ...]:
    table = frames["whatif"]
    used = frames["whatif_replay"].filter("is_used")
    found = [
        Finding(
            "whatif_replay",
            f"Replaying the run unchanged gives its {used.height} used step{'s' if used.height > 1 else ''} to "
            f"{model.replay_error_ratio:.2%} (largest error of one: "
            f"{max(abs(error) for error in used['error_ratio'].to_list()):.2%}).",
            value=model.replay_error_ratio,
            unit="ratio",
            rows=({"table": "whatif_replay"},),
            severity=3.0,
        )
    ]
    caps = table.filter(pl.col("scenario").str.starts_with("cap_"), pl.col("step_ns").is_not_null())
    if caps.height:
        found.append(_about_caps(caps))
    for row in table.filter(pl.col("scenario") != "unchanged").iter_rows(named=True):
        if row["step_ns"] is None or row["scenario"].startswith("cap_"):
            continue
        sure = row["high_ns"] < model.base_ns or row["low_ns"] > model.base_ns
        change = 0.0 if abs(row["change_ratio"]) < 5e-4 else row["change_ratio"]
        text = f"{row['scenario']}: {ms(row['step_ns']):.3f} ms a step ({change:+.1%}" + (
            ")" if sure else ", within the error)"
        )
        if not change and row["reason"]:
            text += f": {row['reason']}"
        found.append(
            Finding(
                "whatif",
                text,
                value=row["step_ns"],
                unit="ns",
                rows=({"table": "whatif", "scenario": row["scenario"]},),
                severity=round(abs(row["change_ratio"]), 9),  # no rounding error decides what stands first
            )
        )
    return tuple(sorted(found, key=lambda finding: -finding.severity))


def _assumptions(model: Model, ask: Ask, buckets: Buckets | None) -> tuple[str, ...]:
    said = [
        "kernels keep their recorded durations, but for what communication beside them costs where it is shorter or "
        "elsewhere, as far as contention is known"
    ]
    used = int(model.steps.steady.sum())
    said.append(
        f"a step is its window of the critical path over all ranks, mean of {used} step{'s' if used > 1 else ''}: no "
        "warm-up and, of several, not the first; each rank's own windows (analyze) differ from it"
    )
    if ask.measured_step_ns is not None:
        said.append(
            f"the host's time is scaled by {model.host_scale:.2f}, so that the replay gives the step that was measured "
            "without the profiler"
        )
    else:
        said.append(
            "predictions are of the profiled run, whose host time is lengthened (--measured-step: of the run without)"
        )
    if buckets is not None and (ask.caps_mib or ask.orders):
        cost = max(buckets.hook_ns.values()) * model.host_scale
        own = ", with what the annotation and the profiler add" if buckets.annotated else ""
        said.append(f"each bucket costs the host {ms(cost):.3f} ms in its hook, as recorded and scaled{own}")
        said.append(
            "parameter sizes as given"
            if ask.parameter_bytes is not None
            else "single parameter sizes are unknown: a bucket's bytes are spread evenly over its parameters, "
            "and these over the launches since the bucket before"
        )
    return tuple(said)


def _warnings(model: Model, wire: Wire | None) -> tuple[Warning, ...]:
    made = [*model.context.trace.warnings]
    if model.replay_error_ratio > GOOD_REPLAY:
        text = f"the self-replay error is {model.replay_error_ratio:.1%}, above {GOOD_REPLAY:.0%}"
        made.append(Warning("whatif_replay_error", 1, text))
    if model.missed_ratio > GOOD_REPLAY:
        text = (
            f"no host time makes the replay give the measured step: it misses it by {model.missed_ratio:.1%}, since "
            "kernels of the profiled run are slower than without the profiler, or it is another setting"
        )
        made.append(Warning("whatif_measured_step", 1, text))
    if wire is not None and wire.latency_ns:
        made.append(
            Warning(
                "whatif_one_size",
                1,
                "all gradient messages have about one size and no small one was seen: the link's latency is unknown",
            )
        )
    return tuple(made)
