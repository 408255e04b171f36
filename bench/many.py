"""Generate the reports of one job on many hosts: a report a rank, each with the clock of its host.

    python bench/many.py /tmp/bench/512 --reports 512 --kernels 4000

The ranks are those of ``generate.py``. A host has eight of them and a session of its own, begun up to a second before
the job; what its reports say of that moment is up to 2 ms wrong, so that clocks have to be found.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import generate
import numpy as np

PER_HOST = 8
UTC_NS = 1_795_972_367_577_878_054


def session(number: int, seed: int) -> tuple[int, int]:
    """How long before the job's zero the session of a host began, in ns, and what its reports say of that moment."""
    rng = np.random.default_rng([seed, number, 2])
    before, wrong = (int(rng.integers(0, most)) for most in (10**9, 2 * 10**6))
    return before, UTC_NS - before + wrong


def reports(folder: Path, count: int, kernels: int, seed: int = 0, jobs: int = 1) -> list[Path]:
    """Write the reports of a job of ``count`` ranks with ``kernels`` kernels each; their paths, by rank."""
    per_step = min(1000, kernels // 4)
    size = generate.Size(kernels=kernels * count, ranks=count, kernels_per_step=per_step, seed=seed)
    ranks = generate.simulate(size)
    todo = []
    for number, rank in enumerate(ranks):
        before, utc_ns = session(number // PER_HOST, seed)
        own = generate.Rank(**{name: times + before for name, times in vars(rank).items()})
        place = generate.Place(number, f"node{number // PER_HOST}", number % PER_HOST, utc_ns)
        todo.append(
            (folder / f"rank{number:04}.sqlite", replace(size, kernels=kernels, ranks=1), [own], place)
        )
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for written in [pool.submit(generate.write, *given) for given in todo]:
            written.result()
    return [path for path, *_ in todo]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--reports", type=int, default=512)
    parser.add_argument("--kernels", type=int, default=4_000, help="of each report")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    made = reports(given.folder, given.reports, given.kernels, given.seed, given.jobs)
    print(f"{len(made)} reports, {sum(path.stat().st_size for path in made) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
