"""What predictions start from: the recorded program, its unchanged replay, and how far a prediction can be wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from nsysddp.dependencies import replay
from nsysddp.model.errors import AnalysisError
from nsysddp.questions.critical_path import PATH_KIND, PATH_STEP, critical_path
from nsysddp.questions.whatif.request import Ask
from nsysddp.questions.whatif.sharing import Transfers
from nsysddp.questions.whatif.slowing import Kernels, Slowing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.dependencies.graph import Graph
    from nsysddp.model.result import Result
    from nsysddp.questions import Context

    Floats = NDArray[np.float64]

LEAST_VARIATION = 0.01
"""Runs of one setting differ by at least this, however much alike the few steps of one capture are."""

_FEW_STEPS = 3
_FEW_STEPS_VARIATION = 0.05
"""Fewer steps than that say nothing about their own spread."""

MISSED_AT_LEAST = 0.15
"""Share of what the replay misses of a measured step that counts for every prediction; more for larger changes."""

_OF_CHANGE = 0.1
"""Share of a predicted change by which it can be wrong: medians stand for single executions, means for latencies."""

_HOST_SCALES = (0.05, 2.0)
_HALVINGS = 10
_NO_MATTER = 0.002
"""A step that much longer does not hang on the host."""

HOST_KINDS = ("host", "host_gap")
"""Kinds of pieces of a critical path that are the host's time."""


@dataclass(frozen=True)
class Model:
    """The recorded program, its unchanged replay, and what a prediction starts from.

    Attributes:
        context, graph: what it was made from.
        paths: the critical paths of its steps.
        program: the recorded program, its host scaled.
        steps: which events end which step.
        recorded: lengths of the recorded steps.
        lengths: lengths of the replayed steps (host not scaled).
        unchanged_ns: mean step of the replay of ``program``.
        base_ns: mean step that predictions start from: recorded, or measured without the profiler.
        host_scale: of the host's time.
        replay_error_ratio: self-replay error.
        missed_ratio: by which the replay misses the step that was measured without the profiler; 0 without one.
        variation_ratio: what runs of one setting differ by at least.
    """

    context: Context
    graph: Graph
    paths: Result
    program: replay.Program
    steps: replay.Steps
    recorded: Floats
    lengths: Floats
    unchanged_ns: float
    base_ns: float
    host_scale: float
    replay_error_ratio: float
    missed_ratio: float
    variation_ratio: float

    @classmethod
    def of(cls, context: Context, ask: Ask, paths: Result | None = None) -> Model:
        """Replay a run unchanged.

        Args:
            context: of the run.
            ask: how it is asked for.
            paths: the critical paths of all steps, where they are known already.

        Raises:
            AnalysisError: no step has any length, or the replay is circular.
        """
        graph = context.graph
        paths = paths or critical_path(context.trace, graph=graph, attribution=context.attribution)
        # Of long captures the pieces take more memory than all that is asked of the paths.
        paths = replace(paths, tables={name: paths[name] for name in (PATH_STEP.name, PATH_KIND.name)})
        warm = paths["critical_path_step"].filter("is_warmup")["step_index"].drop_nulls().unique().to_list()
        steps = replay.steps_of(graph, context.attribution, warm)
        program = replay.recorded(graph)
        recorded = steps.lengths(context.trace.events["end_ns"].to_numpy().astype(np.float64))
        lengths = steps.lengths(replay.run(program, calls=False).end)
        base = steps.mean(recorded)
        if base <= 0:
            raise AnalysisError("the trace has no step with any length")
        error = abs(steps.mean(lengths) / base - 1)
        used = recorded[steps.steady]
        variation = max(
            float(np.std(used) / used.mean()),
            LEAST_VARIATION if used.size >= _FEW_STEPS else _FEW_STEPS_VARIATION,
        )
        scale, unchanged, missed = 1.0, steps.mean(lengths), 0.0
        if ask.measured_step_ns is not None:
            scale, unchanged = _fit_host(program, steps, ask.measured_step_ns)
            base = float(ask.measured_step_ns)
            missed = abs(unchanged / base - 1)
            variation = LEAST_VARIATION  # the level is measured
        return cls(
            context=context,
            graph=graph,
            paths=paths,
            program=program.with_host(scale),
            steps=steps,
            recorded=recorded,
            lengths=lengths,
            unchanged_ns=unchanged,
            base_ns=base,
            host_scale=scale,
            replay_error_ratio=error,
            missed_ratio=missed,
            variation_ratio=variation,
        )

    @cached_property
    def kernels(self) -> Kernels:
        """The kernels that communication can slow down."""
        return Kernels.of(self.context.trace)

    @cached_property
    def slowing(self) -> Slowing:
        """What they lose beside it."""
        return Slowing.of(self.context)

    @cached_property
    def transfers(self) -> Transfers:
        """Transfers that can share a link, and what that costs them."""
        return Transfers.of(self.context.trace, self.program)

    def error_ratio(self, ratio: float) -> float:
        """Of a prediction that is ``ratio`` of the unchanged step, apart from what its own scenario leaves open.

        What the replay misses of a measured step counts as far as something changes: predictions are relative to it.
        """
        missed = self.missed_ratio * min(1.0, max(MISSED_AT_LEAST, 2 * abs(ratio - 1)))
        return self.replay_error_ratio + self.variation_ratio + missed + _OF_CHANGE * abs(ratio - 1)

    def mean_of(self, schedule: replay.Schedule, added: Mapping[int, int] | None = None) -> float:
        """Mean steady step of a schedule, ns."""
        return self.steps.mean(self.steps.lengths(schedule.end, added))

    def mean(self, program: replay.Program, added: Mapping[int, int] | None = None) -> float:
        """Mean steady step of a replay, ns."""
        return self.mean_of(replay.run(program, calls=False), added)

    def row(
        self, scenario: str, mean_ns: float, *others: float, reason: str | None = None
    ) -> dict[str, object]:
        """A row of ``whatif`` from the mean replayed step, and from those of all else that the capture leaves open."""
        return self.predicted(
            scenario, mean_ns / self.unchanged_ns, [other / self.unchanged_ns for other in others]
        ) | {"reason": reason}

    def predicted(
        self, scenario: str, ratio: float, others: Sequence[float] = (), error: float = 0.0
    ) -> dict[str, object]:
        """A row of ``whatif``, from ratios to the unchanged step; ``error`` is more, of this scenario alone."""
        low, high = min([ratio, *others]), max([ratio, *others])
        low *= self.base_ns * (1 - min(1.0, self.error_ratio(low) + error))
        high *= self.base_ns * (1 + self.error_ratio(high) + error)
        step = ratio * self.base_ns
        return {
            "scenario": scenario,
            "step_ns": round(step),
            "low_ns": round(low),
            "high_ns": round(high),
            "change_ns": round(step - self.base_ns),
            "change_ratio": ratio - 1,
            "error_ratio": (high - low) / 2 / step if step else None,
        }

    def on_path(self, kinds: Sequence[str]) -> float:
        """Time of these kinds on the critical path of a used step, mean; of tied paths the least."""
        table, steps = self.paths["critical_path_kind"], self.paths["critical_path_step"]
        used = [int(number) for number in self.steps.numbers[self.steps.steady]]
        chosen = pl.col("step_index").is_in(used) if self.steps.names[0] is not None else pl.lit(True)
        sums = (
            steps.filter(chosen)
            .select("step_index", "path_rank")
            .join(
                table.filter(pl.col("kind").is_in(kinds))
                .group_by("step_index", "path_rank")
                .agg(pl.col("duration_ns").sum()),
                on=["step_index", "path_rank"],
                how="left",
                nulls_equal=True,
            )
            .group_by("step_index")
            .agg(pl.col("duration_ns").fill_null(0).min())
        )
        return float(sums["duration_ns"].mean() or 0.0)  # type: ignore[arg-type]

    def replayed(self) -> list[dict[str, object]]:
        """Rows of ``whatif_replay``."""
        by_step = self.steps.names[0] is not None
        return [
            {
                "step": name,
                "step_index": int(number) if by_step else None,
                "is_used": bool(used),
                "recorded_ns": round(was),
                "replayed_ns": round(now),
                "error_ratio": now / was - 1 if was else None,
            }
            for name, number, used, was, now in zip(
                self.steps.names,
                self.steps.numbers,
                self.steps.steady,
                self.recorded.tolist(),
                self.lengths.tolist(),
                strict=True,
            )
        ]


def _fit_host(program: replay.Program, steps: replay.Steps, measured_ns: int) -> tuple[float, float]:
    """The scale of the host's time with which the replay reproduces a measured step, and the step that it gives.

    The replayed step grows with the scale, so it is bisected. Where even the fastest host is too slow, the GPU bounds
    the replay: then the largest scale (up to 1) is taken with which the host does not matter, and the difference is
    part of the error. The same where the slowest host is too fast.
    """

    def step(scale: float) -> float:
        return steps.mean(steps.lengths(replay.run(program.with_host(scale), calls=False).end))

    low, high = _HOST_SCALES
    floor = step(low)
    target = float(measured_ns)
    if floor >= measured_ns:
        target, high = floor * (1 + _NO_MATTER), 1.0
    if step(high) <= target:
        return high, step(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if step(middle) < target else (low, middle)
    return low, step(low)
