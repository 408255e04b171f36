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

from .export import write
from .jobs import Job, Planted, simulate

SLOWNESS = (0.0, 0.01, 0.02, 0.05, 0.10)
LEAST = 0.004

SEED = 3
"""Thresholds were chosen on jobs of other seeds: 0 and 1, and 2, on which periodic steps were found by chance."""

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass
class Tally:
    """Jobs of one kind: how many, in how many the planted rank was found, in how many anything else was named."""

    name: str
    ranks: int
    steps: int
    slowness: float
    jobs: int = 0
    found: int = 0
    wrong: int = 0


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


def simulated(name: str, make: Callable[[int, float], Job], jobs: int) -> Iterator[Tally]:
    """Simulated jobs, from their exports."""
    import nsysddp

    for slowness in SLOWNESS:
        tally = Tally(name, make(0, 0.0).ranks, make(0, 0.0).steps, slowness)
        for seed in range(jobs if slowness else 4 * jobs):
            with tempfile.TemporaryDirectory() as folder:
                made = simulate(make(seed, slowness))
                trace = nsysddp.load(write(made, Path(folder)))
                rows = nsysddp.ask(trace, "stragglers")["late"]
            named = [(row["rank"], row["kind"]) for row in rows.to_dicts()]
            tally.jobs += 1
            tally.found += slowness > 0 and (1, "slow") in named
            tally.wrong += any(not slowness or one != (1, "slow") for one in named)
        yield tally


def job_of(
    kind: str, ranks: int, group: int, steps: int = 10, layers: int = 2
) -> Callable[[int, float], Job]:
    """Jobs of one shape by seed and slowness of rank 1."""

    def make(seed: int, slowness: float) -> Job:
        planted = Planted("slow_rank", 1 + slowness, rank=1) if slowness else None
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
    clean = [tally for tally in tallies if not tally.slowness]
    lines = [
        "# Stragglers: false alarms and what is found",
        "",
        "How often `nsysddp stragglers` names anybody in a job in which nobody is late, and how small a slowness of",
        "one rank it finds (`python -m tests.simulation.stragglers`).",
        "Drawn jobs are summaries (own time of each rank and step) with the noise given, half of them with heavy",
        "tails; simulated jobs are run, exported and asked as a user would. None ran on GPUs. Thresholds were chosen",
        "on jobs of other seeds than these. The rules:",
        "[definitions](../definitions.md), [tests/simulation/stragglers.py](../../tests/simulation/stragglers.py).",
        "",
        f"Clean jobs: {sum(one.jobs for one in clean):,}, with a false alarm "
        f"{sum(one.wrong for one in clean)} ({sum(one.wrong for one in clean) / sum(one.jobs for one in clean):.2%}; "
        "wanted below 1 %).",
        "",
        "| jobs | ranks | steps | false alarms | 1 % slower | 2 % | 5 % | 10 % | others named |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in clean:
        same = [
            t
            for t in tallies
            if (t.name, t.ranks, t.steps) == (one.name, one.ranks, one.steps) and t.slowness
        ]
        planted = " | ".join(f"{t.found} of {t.jobs}" for t in same)
        others = sum(t.wrong for t in same)
        lines.append(
            f"| {one.name} | {one.ranks} | {one.steps} | {one.wrong} of {one.jobs} | {planted} | "
            f"{others} of {sum(t.jobs for t in same)} |"
        )
    return "\n".join([*lines, ""])


SHAPES = {
    "dp": (8, 1),
    "tp": (8, 2),
    "hsdp": (8, 4),
    "pp": (8, 4),
    "64 ranks, dp": (64, 1),
    "64 ranks, hsdp": (64, 8),
}
_FEWER_AT_64 = 3
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
        jobs = simulated_jobs if ranks < 64 else -(-simulated_jobs // _FEWER_AT_64)
        yield from simulated(f"simulated, {name.split()[-1]}", job_of(name.split()[-1], ranks, group), jobs)


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
