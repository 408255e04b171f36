"""Idle time in words: what is to be read with care, and the largest cause of each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from nsysddp.model.names import ranks_text
from nsysddp.model.result import Finding
from nsysddp.model.units import ms
from nsysddp.model.warnings import Warning
from nsysddp.questions.summary import over_steps

if TYPE_CHECKING:
    from nsysddp.model.trace import Trace


def warnings_of(trace: Trace, pieces: pl.DataFrame) -> tuple[Warning, ...]:
    """What is missing, unknown or unexplained, with how often."""
    made = []
    if trace.calls is None or trace.calls.is_empty():
        made.append(
            Warning(
                "idle_without_calls",
                1,
                "host calls are missing, so late launches cannot be told from other idle time (capture with "
                "--trace=cuda)",
            )
        )
    unknown = pieces.filter(pl.col("cause") == "unknown").height
    if unknown:
        made.append(
            Warning(
                "idle_unknown",
                unknown,
                "idle pieces of which nothing in the capture says what they waited for",
            )
        )
    unexplained = pieces.filter(pl.col("cause") == "unexplained").height
    if unexplained:
        made.append(
            Warning(
                "idle_unexplained",
                unexplained,
                "idle pieces in which work was launched and, as far as the capture shows, ready, and the GPU did not "
                "run it (another process or preemption: capture all processes of the host, and as root "
                "--gpuctxsw=true; a wait that is not recorded: --cuda-event-trace=true)",
            )
        )
    return tuple(made)


def findings_of(steps: pl.DataFrame) -> tuple[Finding, ...]:
    """The largest cause of idle time of each rank, by the median of the steady steps; ranks that share it together."""
    span = " a step" if steps["step_index"].null_count() < steps.height else ""
    largest = (
        over_steps(steps, ["rank", "cause"], ["idle_ns"])
        .sort("rank", "idle_ns", descending=[False, True], maintain_order=True)
        .unique("rank", keep="first", maintain_order=True)
    )
    made = []
    for (cause,), part in largest.group_by("cause", maintain_order=True):
        ranks, lengths = part["rank"].to_list(), sorted(part["idle_ns"].to_list())
        between = " to ".join(dict.fromkeys(f"{ms(length):.3f}" for length in (lengths[0], lengths[-1])))
        made.append(
            Finding(
                code="idle",
                message=f"{ranks_text(ranks)}: most idle time is {str(cause).replace('_', ' ')} ({between} ms{span})",
                rank=ranks[0] if len(ranks) == 1 else None,
                value=lengths[-1],
                unit="ns",
                rows=tuple({"table": "idle_step", "rank": rank, "cause": cause} for rank in ranks),
                severity=lengths[-1],
            )
        )
    return tuple(made)
