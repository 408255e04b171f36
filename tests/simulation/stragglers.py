"""How often is nobody late called a straggler, and how small a slowness is found?

    python -m tests.simulation.stragglers                      all parts, then the page
    python -m tests.simulation.stragglers --part dp --part tp  some parts anew; the others stay as they were

Two kinds of job. *Drawn*: the own time of each rank and step is drawn as a summary, which is all that the search looks
at; that is how 512 ranks and thousands of jobs are affordable. *Simulated*: training jobs run by the simulator, written
as exports, loaded and asked, as a user would. In half of the drawn jobs noise has heavy tails (Student's t with four
degrees of freedom, scaled to the same standard deviation).

A clean job with any finding is a false alarm. A planted slowness (all kernels of one rank in every step) is *found* if
the rank is named as slow, and *wrongly named* if anything else is.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import truth
from .export import write
from .jobs import Job, Planted, simulate
from .judge import false_alarms

SLOWNESS = (0.0, 0.01, 0.02, 0.05, 0.10)
LEAST = 0.004

SEED = 3
"""Thresholds were chosen on jobs of other seeds: 0 and 1, and 2, on which periodic steps were found by chance."""

LATE_RANK = 1
"""The rank that is slower in simulated jobs."""

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass
class Tally:
    """Jobs of one kind: how many, in how many the planted rank was found, in how many anything else was named.

    Of simulated jobs also their first seed (the others follow), and in how many ``diagnose`` named the planted rank as
    a straggler, and in how many another one (of clean ones: a first cause that is none).
    """

    name: str
    ranks: int
    steps: int
    slowness: float
    jobs: int = 0
    found: int = 0
    wrong: int = 0
    first_seed: int | None = None
    diagnosed: int = 0
    misdiagnosed: int = 0


def drawn(ranks: int, steps: int, noise: float, slowness: float, rng: np.random.Generator) -> Floats:
    """Lateness of each rank and step against the median; the first rank is slower."""
    if rng.random() < 0.5:
        own = 1 + noise * rng.standard_normal((ranks, steps))
    else:
        own = 1 + noise * rng.standard_t(4, (ranks, steps)) / math.sqrt(2)
    own[0] *= 1 + slowness
    if ranks > 16:
        return np.asarray(own / np.median(own, axis=0) - 1)
    return np.array(
        [own[rank] / np.median(np.delete(own, rank, axis=0), axis=0) - 1 for rank in range(ranks)]
    )


def draw(name: str, ranks: int, steps: int, noise: float, jobs: int) -> Iterator[Tally]:
    """Drawn jobs, clean and with each slowness; of planted ones a tenth as many."""
    from nsysddp.questions.stragglers.kinds import find_late

    for slowness in SLOWNESS:
        tally = Tally(name, ranks, steps, slowness)
        rng = np.random.default_rng([SEED, ranks, steps, round(1e4 * noise), round(1e4 * slowness)])
        for _ in range(jobs if not slowness else max(10, jobs // 10)):
            late = find_late(drawn(ranks, steps, noise, slowness, rng), LEAST)
            tally.jobs += 1
            tally.found += any(one.row == 0 and one.kind == "slow" for one in late) and slowness > 0
            tally.wrong += any(not slowness or one.row or one.kind != "slow" for one in late)
        yield tally


def simulated(name: str, make: Callable[[int, float], Job], clean: int, planted: int) -> Iterator[Tally]:
    """Simulated jobs, from their exports: so many clean ones, and of each slowness."""
    for slowness in SLOWNESS:
        first = make(0, slowness)
        tally = Tally(name, first.ranks, first.steps, slowness, first_seed=first.seed)
        for number in range(planted if slowness else clean):
            job = make(number, slowness)
            answer = Answer.of(job)
            tally.jobs += 1
            tally.found += slowness > 0 and (LATE_RANK, "slow") in answer.late
            tally.wrong += any(not slowness or one != (LATE_RANK, "slow") for one in answer.late)
            tally.diagnosed += slowness > 0 and LATE_RANK in answer.diagnosed
            tally.misdiagnosed += bool(answer.diagnosed - {LATE_RANK}) if slowness else answer.is_false_alarm
        yield tally


@dataclass(frozen=True)
class Answer:
    """What is said of one simulated job.

    Attributes:
        late: rank (None: of a host) and kind of each row of ``stragglers``.
        diagnosed: ranks that ``diagnose`` names as stragglers, with confidence medium or high.
        is_false_alarm: of a clean job: the first cause of ``diagnose`` is at least 3 % of the step, with confidence
            medium or high, and the job without anything of the kind is less than 1 % shorter.
    """

    late: list[tuple[int | None, str]]
    diagnosed: set[int | None]
    is_false_alarm: bool

    @classmethod
    def of(cls, job: Job) -> Answer:
        """Simulate a job, write its exports, load them and ask."""
        import nsysddp
        from nsysddp.questions import context_of
        from nsysddp.questions.question import question

        with tempfile.TemporaryDirectory() as folder:
            run = simulate(job)
            step = truth.mean(truth.steps(run))
            paths = write(run, Path(folder))
            del run  # of 512 ranks it takes as much memory as the answers
            context = context_of(nsysddp.load(paths, host_calls=True, shapes=True, metrics=True))
            late = question("stragglers").answer(context)["late"].to_dicts()
            causes = question("diagnosis").answer(context)["diagnosis"].to_dicts()
        costly = [row for row in causes if row["cost_ns"] is not None]
        return cls(
            late=[(row["rank"], row["kind"]) for row in late],
            diagnosed={
                row["rank"] for row in costly if row["cause"] == "straggler" and row["confidence"] != "low"
            },
            is_false_alarm=job.planted is None and bool(false_alarms(job, costly[:1], step)),
        )


def job_of(
    kind: str, ranks: int, group: int, steps: int = 10, layers: int = 2
) -> Callable[[int, float], Job]:
    """Jobs of one shape by seed and slowness of rank 1."""

    def make(seed: int, slowness: float) -> Job:
        planted = Planted("slow_rank", 1 + slowness, rank=LATE_RANK) if slowness else None
        return Job(
            kind=kind,
            ranks=ranks,
            group=group,
            steps=steps,
            layers=layers,
            seed=1000 * SEED + seed,
            planted=planted,
        )

    return make


def page(tallies: list[Tally]) -> str:
    """The results as Markdown."""
    drawn_jobs = [tally for tally in tallies if tally.first_seed is None]
    simulated_jobs = [tally for tally in tallies if tally.first_seed is not None]
    return "\n".join(
        [
            "# Stragglers: false alarms and what is found",
            "",
            "How often `nsysddp stragglers` names anybody in a job in which nobody is late, and how small a",
            "slowness of one rank it finds (`python -m tests.simulation.stragglers`). None of these jobs ran on",
            "GPUs. Thresholds were chosen on jobs of other seeds than these. The rules:",
            "[definitions](../definitions.md),",
            "[tests/simulation/stragglers.py](../../tests/simulation/stragglers.py). *Others named*: planted jobs",
            "in which anybody or anything else was named too.",
            "",
            "## Drawn numbers",
            "",
            "Summaries (own time of each rank and step, which is all that the search looks at) with the noise",
            "given, half of them with heavy tails.",
            _clean(drawn_jobs),
            "",
            *_table(drawn_jobs),
            "",
            "## Simulated jobs",
            "",
            "Jobs run by the simulator (two layers, 1 % jitter of every kernel, call and transfer), written as",
            "exports, and loaded and asked as a user would. Seeds follow each other; planted jobs begin with the",
            "same one.",
            _clean(simulated_jobs),
            "",
            *_table(simulated_jobs),
            "",
            "## What `diagnose` says of the simulated jobs",
            "",
            "*False first cause*: of a clean job a first cause of at least 3 % of the step, with confidence",
            "medium or high, without which the job, simulated again, is less than 1 % shorter. In planted jobs:",
            "how often the slow rank is among the causes as a straggler with confidence medium or high, and how",
            "often another rank is.",
            _clean(simulated_jobs, "misdiagnosed"),
            "",
            *_table(simulated_jobs, "diagnosed", "misdiagnosed", "false first cause"),
            "",
        ]
    )


def _clean(tallies: list[Tally], wrong: str = "wrong") -> str:
    """How many clean jobs there are, and in how many something was said."""
    clean = [tally for tally in tallies if not tally.slowness]
    jobs, alarms = sum(tally.jobs for tally in clean), sum(getattr(tally, wrong) for tally in clean)
    said = (
        f"Clean jobs: {jobs:,}, with a false alarm {alarms} ({alarms / max(jobs, 1):.2%}; wanted below 1 %)"
    )
    if alarms or not jobs:
        return f"{said}."
    most = 1 - 0.05 ** (1 / jobs)  # at this rate none of so many is seen with 5 % of chance
    return f"{said}. So few jobs show only that it is below {most:.1%} (95 % confidence)."


def _table(
    tallies: list[Tally], found: str = "found", wrong: str = "wrong", alarms: str = "false alarms"
) -> list[str]:
    """One row a kind of job: false alarms of clean ones, then what was found of each slowness."""
    lines = [
        f"| jobs | ranks | steps | seeds | {alarms} | 1 % slower | 2 % | 5 % | 10 % | others named |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for clean in (tally for tally in tallies if not tally.slowness):
        planted = [
            tally
            for tally in tallies
            if tally.slowness
            and (tally.name, tally.ranks, tally.steps) == (clean.name, clean.ranks, clean.steps)
        ]
        first = clean.first_seed
        cells = [
            clean.name,
            str(clean.ranks),
            str(clean.steps),
            str(SEED) if first is None else f"{first} to {first + clean.jobs - 1}",
            f"{getattr(clean, wrong)} of {clean.jobs}",
            *(f"{getattr(tally, found)} of {tally.jobs}" for tally in planted),
            f"{sum(getattr(tally, wrong) for tally in planted)} of {sum(tally.jobs for tally in planted)}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


SHAPES = {
    "dp": (8, 1),
    "tp": (8, 2),
    "hsdp": (8, 4),
    "pp": (8, 4),
    "64 ranks, dp": (64, 1),
    "64 ranks, hsdp": (64, 8),
    "512 ranks, hsdp": (512, 8),
}
"""Ranks and size of the inner groups of each part that is simulated."""

TIMES = {8: (10, 1), 64: (10, 1), 512: (2, 1)}
"""By ranks: so many times ``--simulated`` jobs are clean, and so many times are planted of each slowness."""

NOISES = {"noise 0.3 %": 0.003, "noise 1 %": 0.01}
PARTS = (*NOISES, *SHAPES)
DATA = Path(__file__).parents[2] / "docs" / "results" / "stragglers.json"


def part_of(name: str, drawn_jobs: int, simulated_jobs: int) -> Iterator[Tally]:
    """All tallies of one part."""
    if name in NOISES:
        for ranks, steps, share in (
            (8, 10, 1.0),
            (8, 30, 1.0),
            (64, 10, 0.5),
            (64, 30, 0.25),
            (512, 10, 0.4),
        ):
            yield from draw(f"drawn, {name}", ranks, steps, NOISES[name], max(10, round(drawn_jobs * share)))
    else:
        ranks, group = SHAPES[name]
        clean, planted = TIMES[ranks]
        kind = name.split()[-1]
        make = job_of(kind, ranks, group)
        yield from simulated(f"simulated, {kind}", make, clean * simulated_jobs, planted * simulated_jobs)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=PARTS, help="only these, beside those kept")
    parser.add_argument("--drawn", type=int, default=400, help="clean jobs of 8 ranks and of each noise")
    parser.add_argument("--simulated", type=int, default=3, help="jobs of each shape and slowness")
    given = parser.parse_args()
    kept = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
    for name in given.part or PARTS:
        kept[name] = [asdict(tally) for tally in part_of(name, given.drawn, given.simulated)]
    DATA.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    tallies = [Tally(**row) for name in PARTS for row in kept.get(name, [])]
    DATA.with_suffix(".md").write_text(page(tallies), encoding="utf-8")


if __name__ == "__main__":
    main()
