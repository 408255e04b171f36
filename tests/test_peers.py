"""What is the same part of a program on several ranks, and by how much one lasts longer: against a slow oracle."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from builder import Export

from nsysddp.join.load import load
from nsysddp.questions import own_time, peers
from nsysddp.questions.context import context_of
from nsysddp.questions.steps import Selection


@dataclass
class Drawn:
    """The own line of a rank: of each event step, name and its parts in ns, ordered by step."""

    step: np.ndarray
    name: np.ndarray
    parts: np.ndarray

    def measured(self, rank: int, steps: int) -> peers.Measured:
        names, counts = np.unique(self.name, return_counts=True)
        return peers.Measured(
            rank,
            (names.astype(np.int32), counts.astype(np.int64)),
            np.bincount(self.step + 1, minlength=steps + 1),
            lambda first, last: (
                self.step[first:last].astype(np.int32),
                self.name[first:last].astype(np.int32),
            ),
            lambda rows: peers.Parts(*self.parts[:, rows]),
        )


def drawn(rng: np.random.Generator, ranks: int, steps: int, *, names: int) -> list[Drawn]:
    """Lines of one program, of which ranks leave out, add and rename events, in any order within a step."""
    size = int(rng.integers(2, 30))
    base = rng.integers(0, names, (steps + 1, size))
    lines = []
    for _ in range(ranks):
        step, name = [], []
        for number in range(-1, steps):
            own = base[number + 1].copy()
            rng.shuffle(own)
            if rng.random() < 0.3:
                own[rng.integers(size)] = names  # another kernel was chosen: as many events as elsewhere
            if rng.random() < 0.3:
                own = np.append(own, rng.integers(0, names))
            name += own.tolist()
            step += [number] * own.size
        parts = rng.integers(0, 50, (3, len(step)))
        parts[:, rng.random(len(step)) < 0.1] += 3 << 31
        lines.append(Drawn(np.array(step), np.array(name), parts))
    return lines


def slowly(lines: list[Drawn]) -> list[list[tuple[float, float]]]:
    """Of each event of each rank by how much its gap and what it adds are longer than the median of the others'."""
    kinds: list[list[tuple[int, int, int]]] = []
    counts = [Counter(zip(line.step.tolist(), line.name.tolist(), strict=True)) for line in lines]
    for line in lines:
        seen: Counter[tuple[int, int]] = Counter()
        mine = []
        for step, name in zip(line.step.tolist(), line.name.tolist(), strict=True):
            of_step = [{kind: n for kind, n in count.items() if kind[0] == step} for count in counts]
            differ = any(one != of_step[0] for one in of_step)
            as_many = len({sum(one.values()) for one in of_step}) == 1
            kind = (step, -1 if differ and as_many else name)
            mine.append((*kind, seen[kind]))
            seen[kind] += 1
        kinds.append(mine)
    known: dict[tuple[int, int, int], dict[int, np.ndarray]] = defaultdict(dict)
    for rank, (line, mine) in enumerate(zip(lines, kinds, strict=True)):
        for kind, parts in zip(mine, line.parts.T, strict=True):
            known[kind][rank] = parts
    found = []
    for rank, mine in enumerate(kinds):
        rows = []
        for kind in mine:
            gap, run, spun = known[kind][rank].tolist()
            others = [known[kind].get(other, np.zeros(3)) for other in range(len(lines)) if other != rank]
            longer = float(np.rint(run - median(float(other[1]) for other in others)))
            if longer < 0 and sum(float(other[2]) for other in others) > spun:
                longer = 0.0
            rows.append((float(np.rint(gap - median(float(other[0]) for other in others))), longer))
        found.append(rows)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_parts_are_compared_as_a_slow_oracle_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    ranks, steps = int(rng.integers(2, 7)), int(rng.integers(0, 4))
    lines = drawn(rng, ranks, steps, names=int(rng.integers(1, 6)))
    monkeypatch.setattr(peers, "_EVENTS_AT_A_TIME", int(rng.choice([1, 40, 10_000])))
    monkeypatch.setattr(peers, "_VALUES_AT_A_TIME", int(rng.choice([1, 7, 10_000])))
    measured = [line.measured(rank, steps) for rank, line in enumerate(lines)]
    found: list[dict[int, tuple[float, float]]] = [{} for _ in lines]
    for same in peers.by_steps(measured):
        assert len(same.places) == ranks

        def keep(compared: peers.Compared, same: peers.Same = same) -> None:
            for place, first, rows, gap, run in zip(
                same.places, same.first, *vars(compared).values(), strict=True
            ):
                found[place].update(
                    zip((first + rows).tolist(), zip(gap.tolist(), run.tolist(), strict=True), strict=True)
                )

        same.each(keep)
    right = slowly(lines)
    for mine, expected in zip(found, right, strict=True):
        assert [mine[row] for row in range(len(expected))] == expected
    every = list(range(-1, steps))
    lateness = own_time.lateness_of(measured, dict.fromkeys(range(ranks), every))
    assert lateness == {
        rank: sum(gap + run for gap, run in rows) / len(every) for rank, rows in enumerate(right)
    }


def test_a_gap_of_seconds_is_as_exact_as_any(tmp_path: Path) -> None:
    """Gaps of less than two seconds are kept in 32 bits."""
    export = Export()
    export.lanes("""
        rank 0 | host "step 0"[0,9000)   s7 g[0,50) h[50,100)         s17 c[8000,8010)
        rank 1 | host "step 0"[0,9000)   s7 g[0,50) h[4000,4050)      s17 c[8000,8010)
    """)
    context = context_of(load(export.write(tmp_path / "a.sqlite")), Selection())
    lateness = own_time.own_lateness(context.trace, context.attribution, context.splits, {0: [0], 1: [0]})
    assert lateness == {0: -3_950_000_000, 1: 3_950_000_000}
