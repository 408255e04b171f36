"""Who is late, since when and in what way: statistics on drawn matrices, then simulated jobs from their exports."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import Export
from command import run
from simulation import jobs
from simulation.export import write
from simulation.jobs import MS, Host, Job, Planted, simulate
from simulation.stragglers import DATA, PARTS, Tally, page, part_of

import nsysddp
from nsysddp.model.result import Result
from nsysddp.questions.stragglers.kinds import Late, find_late
from nsysddp.questions.stragglers.matrix import Matrix
from nsysddp.questions.stragglers.who import stragglers_of

Floats = np.ndarray[Any, np.dtype[np.float64]]

# --- drawn matrices --------------------------------------------------------------------------------------------------


def beyond_peers(own: Floats) -> Floats:
    """Own time over the median of the other ranks, less 1."""
    rows = [own[row] / np.median(np.delete(own, row, axis=0), axis=0) - 1 for row in range(len(own))]
    return np.array(rows)


def drawn(ranks: int, steps: int, seed: int, noise: float = 0.003) -> Floats:
    return 1 + noise * np.random.default_rng(seed).standard_normal((ranks, steps))


def found(own: Floats) -> list[Late]:
    return find_late(beyond_peers(own), 0.004)


@pytest.mark.parametrize(("ranks", "steps"), [(2, 6), (3, 12), (8, 5), (8, 40), (64, 12), (300, 8)])
def test_chance_alone_makes_no_straggler(ranks: int, steps: int) -> None:
    assert sum(bool(found(drawn(ranks, steps, seed))) for seed in range(30)) <= 1


@pytest.mark.parametrize("seed", [8, 23, 39, 62, 85])
def test_of_512_ranks_with_heavy_tails_none_is_late_every_third_step(seed: int) -> None:
    """Three values of a few thousand stand high together now and then, more often than normal noise would."""
    own = 1 + 0.01 * np.random.default_rng([5, seed]).standard_t(4, (512, 10)) / math.sqrt(2)
    assert not find_late(own / np.median(own, axis=0) - 1, 0.004)


def test_gpus_that_differ_for_good_make_no_straggler() -> None:
    for seed in range(20):
        own = drawn(32, 20, seed, 0.001) * (1 + 0.01 * np.random.default_rng(seed).standard_normal((32, 1)))
        assert not [late for late in found(own) if late.lateness < 0.03]


WAYS: dict[str, Callable[[int], Floats]] = {
    "slow": lambda steps: np.full(steps, 0.03),
    "changed": lambda steps: np.where(np.arange(steps) >= steps // 2, 0.04, 0.0),
    "drift": lambda steps: np.linspace(0, 0.06, steps),
    "periodic": lambda steps: np.where(np.arange(steps) % 5 == 2, 0.05, 0.0),
    "one_off": lambda steps: np.where(np.arange(steps) == 7, 0.2, 0.0),
}


@pytest.mark.parametrize("ranks", [3, 8, 50])
@pytest.mark.parametrize("kind", WAYS)
def test_each_way_of_being_late_is_told_apart_on_the_rank_that_is(kind: str, ranks: int) -> None:
    steps = 24
    planted = WAYS[kind](steps)
    for seed in range(6):
        own = drawn(ranks, steps, seed)
        own[1] *= 1 + planted
        first = found(own)[0]
        assert (first.row, first.kind) == (1, kind)
        assert first.period == (5 if kind == "periodic" else None)
        if kind != "drift":
            assert (first.late == (planted > 0)).all()
        assert first.lateness == pytest.approx(planted[first.late].mean(), abs=0.015)
        assert not [late for late in found(own) if late.row != 1]


def test_a_slow_rank_that_also_stops_once_is_said_to_do_both() -> None:
    own = drawn(8, 20, 5)
    own[3] *= 1.04
    own[3, 11] *= 1.2
    kinds = {late.kind: late for late in found(own)}
    assert set(kinds) == {"slow", "one_off"}
    assert np.flatnonzero(kinds["one_off"].late).tolist() == [11]


def test_of_two_ranks_the_slower_one_is_late_and_the_other_is_not() -> None:
    own = drawn(2, 20, 1)
    own[1] *= 1.05
    assert [(late.row, late.kind) for late in found(own)] == [(1, "slow")]


def test_a_rank_of_which_steps_are_unknown_is_judged_by_the_others() -> None:
    own = drawn(8, 20, 2)
    own[4] *= 1.05
    own[4, :6] = np.nan
    matrix = beyond_peers(np.where(np.isnan(own), 1.0, own))
    matrix[np.isnan(own)] = np.nan
    (late,) = find_late(matrix, 0.004)
    assert (late.row, int(late.late.sum())) == (4, 14)


def matrix(own: Floats, per_host: int) -> Matrix:
    ranks, steps = own.shape
    peers = own / (1 + beyond_peers(own))
    late = own - peers
    return Matrix(
        ranks=np.arange(ranks),
        hosts=np.array([f"host-{rank // per_host + 1}" for rank in range(ranks)]),
        program=np.zeros(ranks, dtype=np.int64),
        steps=np.arange(steps),
        names=tuple(f"step {step}" for step in range(steps)),
        lateness=late,
        compute=late,
        idle=np.zeros_like(late),
        own=peers,
        window=np.full(steps, 1.2),
        communication=1.2 - own,
    )


@pytest.mark.parametrize("hosts", [2, 4])
def test_a_host_of_which_every_rank_is_late_is_named_and_not_its_ranks(hosts: int) -> None:
    own = drawn(4 * hosts, 12, 3)
    own[4:8] *= 1.03
    found = stragglers_of(matrix(own, 4))
    assert [(one.host, one.rows) for one in found] == [("host-2", (4, 5, 6, 7))]
    assert found[0].lateness_ns == pytest.approx(0.03, rel=0.15)


def test_one_late_rank_makes_no_late_host() -> None:
    for per_host in (2, 4):
        own = drawn(4 * per_host, 12, 4)
        own[1] *= 1.05
        assert [(one.host, one.rows) for one in stragglers_of(matrix(own, per_host))] == [(None, (1,))]


# --- jobs ------------------------------------------------------------------------------------------------------------


def asked(made: Job, folder: Path, **options: Any) -> Result:
    return nsysddp.ask(nsysddp.load(write(simulate(made), folder)), "stragglers", **options)


def job(kind: str = "dp", ranks: int = 4, group: int = 1, **changes: Any) -> Job:
    return Job(**{"kind": kind, "ranks": ranks, "group": group, "steps": 8, "layers": 2, **changes})


@pytest.mark.parametrize(
    ("kind", "ranks", "group"), [("dp", 3, 1), ("hsdp", 4, 2), ("tp", 4, 2), ("pp", 4, 2), ("ep", 4, 2)]
)
def test_nobody_is_late_in_a_clean_job_and_what_would_have_been_seen_is_said(
    kind: str, ranks: int, group: int, tmp_path: Path
) -> None:
    result = asked(job(kind, ranks, group, per_host=2), tmp_path)
    assert not result["late"].height
    (finding,) = result.findings
    assert finding.code == "no_straggler"
    assert finding.value is not None
    assert 0.004 <= finding.value < 0.1


@pytest.mark.parametrize(("kind", "group"), [("dp", 1), ("hsdp", 2), ("tp", 2), ("pp", 2)])
def test_a_slow_rank_is_late_by_what_it_takes_longer_and_shows_the_least_nccl_time(
    kind: str, group: int, tmp_path: Path
) -> None:
    made = job(kind, 4, group, planted=Planted("slow_rank", 1.05, rank=2))
    result = asked(made, tmp_path)
    row = result["late"].row(0, named=True)
    assert (row["what"], row["rank"], row["kind"], row["part"]) == ("rank", 2, "slow", "compute")
    assert result["late"].height == 1
    computing = nsysddp.analyze(result.trace)["overlap"].filter(rank=0)["compute_ns"].median()
    assert row["lateness_ns"] == pytest.approx(0.05 * float(computing), rel=0.25)  # type: ignore[arg-type]
    if kind == "dp":
        assert row["least_nccl"] == "yes"
        assert "least NCCL time" in result.findings[0].message


def test_a_host_that_stops_makes_its_gpu_idle_and_is_late_by_that(tmp_path: Path) -> None:
    made = job(item_each_step=True, planted=Planted("pause_one", 2 * MS, rank=1, phase="forward"))
    row = asked(made, tmp_path)["late"].row(0, named=True)
    assert (row["rank"], row["kind"], row["part"]) == (1, "slow", "host")
    assert row["lateness_ns"] == pytest.approx(2 * MS, rel=0.1)


@pytest.fixture
def slow_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[int], float]], None]:
    """Plant on one rank a slowness that depends on the step."""

    def plant(rank: int, factor: Callable[[int], float]) -> None:
        original = Host.kernel

        def kernel(self: Host, name: str, ns: float, stream: int = jobs.COMPUTE) -> Any:
            return original(self, name, ns * (factor(self.step) if self.rank == rank else 1), stream)

        monkeypatch.setattr(Host, "kernel", kernel)

    return plant


@pytest.mark.parametrize(
    ("factor", "kind", "first", "late", "words"),
    [
        (lambda step: 1.06 if step >= 9 else 1.0, "changed", 9, 7, "from step 9 on"),
        (lambda step: 1.06 if step % 4 == 2 else 1.0, "periodic", 2, 4, "every 4th step, first in step 2"),
        (lambda step: 1.1 if step == 5 else 1.0, "one_off", 5, 1, "once, in step 5"),
    ],
)
def test_since_when_and_how_often_is_said(
    factor: Callable[[int], float],
    kind: str,
    first: int,
    late: int,
    words: str,
    slow_in: Callable[[int, Callable[[int], float]], None],
    tmp_path: Path,
) -> None:
    slow_in(2, factor)
    result = asked(job(steps=16), tmp_path)
    row = result["late"].row(0, named=True)
    assert (row["rank"], row["kind"], row["since_index"], row["late_steps"]) == (2, kind, first, late)
    assert words in result.findings[0].message


def test_a_rank_that_gets_slower_and_slower_drifts(
    slow_in: Callable[[int, Callable[[int], float]], None], tmp_path: Path
) -> None:
    slow_in(1, lambda step: 1 + 0.006 * step)
    row = asked(job(steps=16), tmp_path)["late"].row(0, named=True)
    assert (row["rank"], row["kind"]) == (1, "drift")


@pytest.mark.parametrize(
    ("made", "what", "ranks"),
    [
        (job("tp", 6, 2, planted=Planted("slow_pair", 2.0, pair=(2, 3))), "group", "2 and 3"),
        (job("hsdp", 6, 3, planted=Planted("slow_pair", 2.0, pair=(1, 4))), "group", "1 and 4"),
        (job("pp", 6, 2, planted=Planted("slow_pair", 2.0, pair=(1, 4))), "pair", "1 to 4"),
    ],
)
def test_a_slow_link_is_found_beside_links_that_do_the_same(
    made: Job, what: str, ranks: str, tmp_path: Path
) -> None:
    result = asked(made, tmp_path)
    links = result["late"].filter(part="transfer")
    assert (what, ranks) in links.select("what", "ranks").rows()
    assert links["ratio"].max() == pytest.approx(0.9, abs=0.3)
    assert not result["late"].filter(what="rank").height


@pytest.mark.parametrize("kind", ["hsdp", "tp", "pp", "ep"])
def test_links_that_are_equal_are_not_called_slow(kind: str, tmp_path: Path) -> None:
    assert not asked(job(kind, 8, 4, per_host=4), tmp_path)["late"].height


def test_of_a_job_with_one_group_no_link_is_blamed(tmp_path: Path) -> None:
    assert not asked(job(planted=Planted("slow_link", 3.0)), tmp_path)["late"].height


def test_own_time_and_lateness_of_a_drawn_step(tmp_path: Path) -> None:
    export = Export()
    export.lanes("""
        rank 0 | host "step 0"[0,100)   s7 g[0,50)    s17 c[50,90)
        rank 1 | host "step 0"[0,100)   s7 g[0,80)    s17 c[80,90)
        rank 2 | host "step 0"[0,100)   s7 g[0,20) g[30,60)    s17 c[60,90)
    """)
    table = nsysddp.ask(nsysddp.load(export.write(tmp_path / "a.sqlite")), "stragglers")["lateness"]
    assert (table["own_ns"] // MS).to_list() == [50, 80, 60]
    assert (table["lateness_ns"] // MS).to_list() == [-20, 25, -5]
    assert (table["idle_late_ns"] // MS).to_list() == [-5, -5, 10]


def test_too_few_steps_say_nothing(tmp_path: Path) -> None:
    result = asked(job(steps=2, planted=Planted("slow_rank", 1.5, rank=1)), tmp_path)
    assert not result["late"].height
    assert "too few" in result.findings[0].message


def test_without_steps_or_with_a_shared_gpu_nobody_is_blamed(tmp_path: Path) -> None:
    export = Export()
    export.lanes("""
        rank 0 | s7 g[0,50) s17 c[50,90)
        rank 1 | s7 g[0,80) s17 c[80,90)
    """)
    ran = run("stragglers", export.write(tmp_path / "a.sqlite"))
    assert ran.code == 0, ran.err
    assert "no steps are known (--step-pattern)" in " ".join(ran.out.split())


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_screen_fits(columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    made = job(planted=Planted("slow_rank", 1.05, rank=2))
    ran = run("stragglers", *write(simulate(made), tmp_path))
    assert max(map(len, ran.out.splitlines())) <= int(columns)
    assert "Rank 2 is late in every step" in " ".join(ran.out.split())


def test_time_and_memory_grow_with_ranks_and_not_with_their_square() -> None:
    """The statistics of 2,000 ranks look at few rows only."""
    own = drawn(2000, 6, 1)
    own[77] *= 1.05
    late = find_late(own / np.median(own, axis=0) - 1, 0.004)
    assert (late[0].row, late[0].kind) == (77, "slow")


def test_a_clean_job_of_other_jitter_is_clean(tmp_path: Path) -> None:
    assert not asked(replace(job(ranks=6), jitter=0.05), tmp_path)["late"].height


# --- published results -----------------------------------------------------------------------------------------------


def published() -> list[Tally]:
    kept = json.loads(DATA.read_text(encoding="utf-8"))
    return [Tally(**row) for name in PARTS for row in kept[name]]


def test_the_published_page_is_that_of_its_data() -> None:
    text = DATA.with_suffix(".md").read_text(encoding="utf-8")
    assert text == page(published()), "run `python -m tests.simulation.stragglers --part dp`"


def test_of_the_published_clean_jobs_less_than_one_in_a_hundred_raised_an_alarm() -> None:
    clean = [tally for tally in published() if not tally.slowness]
    assert {tally.ranks for tally in clean} == {8, 64, 512}
    assert sum(tally.wrong for tally in clean) < 0.01 * sum(tally.jobs for tally in clean)
    for ranks in (8, 64, 512):
        mine = [tally for tally in clean if tally.ranks == ranks]
        assert sum(tally.wrong for tally in mine) < 0.01 * sum(tally.jobs for tally in mine)


def test_the_results_are_the_same_again() -> None:
    again = list(islice(part_of("noise 0.3 %", 10, 1), 5))
    assert [tally.slowness for tally in again] == [0.0, 0.01, 0.02, 0.05, 0.1]
    assert [tally.found for tally in again[2:]] == [10, 10, 10]
    assert [tally.wrong for tally in again] == [0] * 5
