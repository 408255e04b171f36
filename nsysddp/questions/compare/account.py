"""What changed in the step? Parts that sum to it exactly, in means over steps and then over runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import polars as pl

from nsysddp.model.errors import AnalysisError
from nsysddp.questions.compare.run import OPTIONAL, PATH_PARTS
from nsysddp.questions.compare.tables import ACCOUNT

if TYPE_CHECKING:
    from nsysddp.questions.compare.run import Run


WINDOW_PARTS = (
    "compute",
    "contention",
    "exposed_transfer",
    "exposed_wait",
    "exposed_unsplit",
    "memory",
    "graph",
    "host",
    "idle",
)


def account_of(base: Sequence[Run], new: Sequence[Run]) -> pl.DataFrame:
    """The parts of each rank's window and of the job's critical path, base against new (``ACCOUNT``)."""
    rows: list[dict[str, Any]] = []
    ranks = sorted(set.intersection(*({*run.ranks} for run in (*base, *new))))
    for rank in ranks:
        sides = [[run.windows[rank] for run in side] for side in (base, new)]
        steps = [step for side in sides for windows in side for step in windows]
        known = {
            part: holder
            for part, holder in (("contention", "compute"), ("host", "idle"))
            if all(part in step for step in steps)
        }
        names = [
            part for part in WINDOW_PARTS if part in steps[0] and (part not in OPTIONAL or part in known)
        ]
        rows += _parts("window", rank, names, *(_taken_out(side, known) for side in sides))
    if all(run.paths for run in (*base, *new)):
        rows += _parts(
            "critical_path", None, tuple(PATH_PARTS), *([run.paths for run in side] for side in (base, new))
        )
    return ACCOUNT.frame(rows)


def _taken_out(
    runs: Sequence[Sequence[Mapping[str, int]]], parts: Mapping[str, str]
) -> list[list[dict[str, int]]]:
    """The windows with the parts that every one knows taken out of what contains them."""
    return [
        [
            {
                **{name: value for name, value in step.items() if name not in OPTIONAL},
                **{holder: step[holder] - step[part] for part, holder in parts.items()},
                **{part: step[part] for part in parts},
            }
            for step in steps
        ]
        for steps in runs
    ]


def _parts(
    view: str,
    rank: int | None,
    names: Sequence[str],
    base: Sequence[Sequence[Mapping[str, int]]],
    new: Sequence[Sequence[Mapping[str, int]]],
) -> list[dict[str, Any]]:
    sides = [_whole_parts(names, side) for side in (base, new)]
    rows: list[dict[str, Any]] = [
        {
            "view": view,
            "rank": rank,
            "part": part,
            "base_ns": sides[0][part],
            "new_ns": sides[1][part],
            "change_ns": sides[1][part] - sides[0][part],
        }
        for part in ("step", *names)
        if part == "step" or sides[0][part] or sides[1][part]
    ]
    whole, *parts = rows
    if any(
        whole[column] != sum(part[column] for part in parts) for column in ("base_ns", "new_ns", "change_ns")
    ):
        raise AnalysisError(
            f"the {view} account of {'the job' if rank is None else f'rank {rank}'} does not balance"
        )
    return rows


def _whole_parts(names: Sequence[str], runs: Sequence[Sequence[Mapping[str, int]]]) -> dict[str, int]:
    """Means over steps, then over runs, as integers that sum to their whole (largest remainders go up)."""
    mean = {
        part: sum((Fraction(sum(step[part] for step in steps), len(steps)) for steps in runs), Fraction())
        / len(runs)
        for part in ("step", *names)
    }
    whole = round(mean["step"])
    floors = {part: mean[part].__floor__() for part in names}
    missing = whole - sum(floors.values())
    by_remainder = sorted(names, key=lambda part: floors[part] - mean[part])
    for part in by_remainder[:missing]:
        floors[part] += 1
    return {"step": whole, **floors}
