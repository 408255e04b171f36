"""Random runs against the slow oracle, the interval algebra against a grid, and changes that must change nothing."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import polars as pl
import pytest
from drawing import Ids, Plan, draw, write_split
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nsysddp.join.load import load
from nsysddp.model.intervals import GroupedAxis, Intervals, grouped_union
from nsysddp.model.trace import whole_groups
from nsysddp.questions import analyze
from nsysddp.questions.kernels import medians
from nsysddp.questions.steps import Selection

SPANS = st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20)), max_size=12)


def grid(spans: list[tuple[int, int]]) -> set[int]:
    return {at for start, end in spans for at in range(start, end)}


def made(spans: list[tuple[int, int]]) -> Intervals:
    return Intervals.union_of([a for a, _ in spans], [b for _, b in spans])


def instants(some: Intervals) -> set[int]:
    """The instants of a set, after checking that it is in normal form."""
    assert (some.start < some.end).all()
    assert (some.end[:-1] < some.start[1:]).all()
    return grid(list(zip(some.start.tolist(), some.end.tolist(), strict=True)))


@given(SPANS, SPANS)
def test_algebra_is_that_of_sets_of_instants(one: list, two: list) -> None:
    a, b = made(one), made(two)
    assert instants(a) == grid(one)
    assert instants(a | b) == grid(one) | grid(two)
    assert instants(a & b) == grid(one) & grid(two)
    assert instants(a - b) == grid(one) - grid(two)
    assert a.length_ns == len(grid(one))
    assert (a == b) == (grid(one) == grid(two))
    assert a != "no interval"


def test_a_set_that_lies_inside_the_bounds_is_not_copied() -> None:
    a = made([(1, 3), (5, 9)])
    for low, high in ((1, 9), (-4, 20)):
        assert np.shares_memory(a.clip(low, high).start, a.start)
        assert np.shares_memory(a.clip(low, high).end, a.end)


@given(SPANS, st.integers(-25, 25), st.integers(-25, 25))
def test_bounds(one: list, low: int, high: int) -> None:
    a = made(one)
    assert instants(a.complement(low, high)) == set(range(low, high)) - grid(one)
    assert instants(a.clip(low, high)) == grid(one) & set(range(low, high))
    assert int(a.length_within(low, high)) == len(grid(one) & set(range(low, high)))
    assert int(a.covered_before(low)) == len([at for at in grid(one) if at < low])
    assert instants(Intervals.span(low, high)) == set(range(low, high))


@given(SPANS)
def test_lengths_of_many_bounds_at_once(one: list) -> None:
    a = made(one)
    starts, ends = np.meshgrid(np.arange(-22, 22, 3), np.arange(-22, 22, 3))
    found = a.length_within(starts, ends)
    assert found.shape == starts.shape
    for low, high, size in zip(starts.flat, ends.flat, found.flat, strict=True):
        assert size == len(grid(one) & set(range(low, high)))


@example([(0, 1), (3, 4)], [(0, 9)])
@given(SPANS, SPANS)
def test_lengths_of_many_bounds_by_ascending_start(one: list, bounds: list) -> None:
    a = made(one)
    for some in (sorted(bounds), sorted(bounds * 3), bounds * 3):  # the last do not ascend
        start, end = (np.array([bound[i] for bound in some], dtype=np.int64) for i in range(2))
        assert a.length_within_each(start, end).tolist() == a.length_within(start, end).tolist()


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 12))
def test_whole_groups_are_worked_on_together(keys: list[int], most: int) -> None:
    keys.sort()
    table = pl.DataFrame({"key": pl.Series(keys, dtype=pl.Int64), "row": range(len(keys))})
    parts = whole_groups(table, ["key"], most)
    assert pl.concat(parts).equals(table)
    seen = [set(part["key"]) for part in parts]
    assert sum(map(len, seen)) == len(set(keys))  # no group is in two parts
    largest = max((keys.count(key) for key in keys), default=0)
    assert all(part.height < most + largest for part in parts if part.height)


@given(SPANS, SPANS, st.integers(-25, 25))
def test_length_shared_before_an_instant(one: list, two: list, at: int) -> None:
    found = made(one).shared_before(made(two), [at, at + 3])
    assert found.tolist() == [len([x for x in grid(one) & grid(two) if x < at + late]) for late in (0, 3)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=14), st.sampled_from([0, 62]))
def test_medians_of_groups(rows: list, scale: int) -> None:
    group = np.array([row[0] for row in rows], dtype=np.int32)
    values = np.array([row[1] << scale if row[1] < 2 else row[1] for row in rows], dtype=np.int64)
    found = medians(group, values, np.bincount(group, minlength=5)).tolist()
    for number in range(5):
        mine = values[group == number].tolist() or [0]
        assert found[number] == (statistics.median_low(mine) + statistics.median_high(mine)) // 2


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-9, 9), st.integers(-9, 9)), max_size=14))
def test_union_in_groups(rows: list) -> None:
    group, start, end = grouped_union(*([row[i] for row in rows] for i in range(3)))
    found: dict[int, list] = {}
    for g, a, b in zip(group.tolist(), start.tolist(), end.tolist(), strict=True):
        found.setdefault(g, []).append((a, b))
    assert list(found) == sorted(found)
    for g in range(4):
        wanted = grid([(a, b) for own, a, b in rows if own == g])
        pieces = found.get(g, [])
        assert grid(pieces) == wanted
        assert made(pieces) == Intervals(
            *(np.array([p[i] for p in pieces], dtype=np.int64) for i in range(2))
        )


def test_extreme_times_do_not_overflow() -> None:
    far = 1 << 61
    some = Intervals.union_of([-far, 0], [-far + 5, far])
    assert some.length_ns == 5 + far
    group, start, end = grouped_union([0, 5_000, 5_000], [-far, -far, 0], [far, 0, far])
    assert (group.tolist(), start.tolist(), end.tolist()) == ([0, 5000], [-far, -far], [far, far])


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(-20, 20)), max_size=20), st.sampled_from([1, 1 << 56])
)
def test_algebra_of_one_axis_for_all_groups(pairs: list[tuple[int, int]], scale: int) -> None:
    """Short axes hold values, too long ones their places; both order and give back what was placed."""
    group = np.array([g for g, _ in pairs], dtype=np.int64)
    value = np.array([v * scale for _, v in pairs], dtype=np.int64)
    axis = GroupedAxis(value, 6)
    place = axis.place(group, value)
    order = np.argsort(place, kind="stable")
    assert order.tolist() == np.lexsort((value, group)).tolist()
    assert axis.value(place, group).tolist() == value.tolist()
    same = [(a == c and b == d) for a, b in pairs for c, d in pairs]
    assert (place[:, None] == place[None, :]).ravel().tolist() == same


def test_an_empty_set() -> None:
    nothing = Intervals.empty()
    assert len(nothing) == nothing.length_ns == int(nothing.covered_before(5)) == 0
    assert (nothing & made([(0, 3)])) == (nothing - made([(0, 3)])) == nothing
    assert (made([(0, 3)]) - nothing) == made([(0, 3)])
    assert repr(made([(0, 3), (5, 6)])) == "Intervals([0,3) [5,6))"
    assert repr(made([(3 * n, 3 * n + 1) for n in range(9)])).endswith(" ...)")


# --- whole runs ---------------------------------------------------------------------------------------------

SETTINGS = settings(
    derandomize=True,
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def agree(wanted: list[dict[str, Any]], found: pl.DataFrame, by: list[str]) -> None:
    """Every figure that the oracle knows is the frame's, row by row."""
    rows = found.to_dicts()
    assert len(rows) == len(wanted), (wanted, rows)

    def key(row: dict[str, Any]) -> list[Any]:
        return [(row[name] is None, row[name]) for name in by]

    for want, row in zip(sorted(wanted, key=key), sorted(rows, key=key), strict=True):
        assert want == {name: row[name] for name in want}


@SETTINGS
@given(st.integers(0, 2**40))
def test_every_table_of_a_random_run(tmp_path: Path, seed: int) -> None:
    plan = draw(random.Random(seed))
    scene = plan.scene()
    path = plan.export().write(tmp_path / "run.sqlite", shuffle=seed)
    trace = load(path)
    agree(oracle.capture(scene), analyze(trace, Selection(per="capture"))["overlap"], ["rank"])
    result = analyze(trace)
    agree(
        oracle.collectives(scene),
        result["collective"],
        ["rank", "start_ns", "end_ns", "transfer_ns", "hidden_ns"],
    )
    ids: dict[int, set] = {}
    for row in result["collective"].drop_nulls("collective_id").to_dicts():
        ids.setdefault(row["collective_id"], set()).add((row["communicator"], row["sequence"], row["rank"]))
    told = oracle.steps(scene)
    if not told.step_of:
        assert result["overlap"]["step_index"].null_count() == plan.ranks
        assert "no_steps" in {one.code for one in result.warnings}
        return
    agree(oracle.overlap(scene), result["overlap"], ["rank", "step_index"])
    agree(oracle.phases(scene), result["phase"], ["rank", "host_start_ns", "host_end_ns", "phase"])
    agree(oracle.outside(scene), result["outside_steps"], ["rank", "class"])


@settings(SETTINGS, max_examples=30)
@given(st.integers(0, 2**40), st.integers(0, 3), st.integers(1, 4))
def test_every_cut_of_a_random_run(tmp_path: Path, seed: int, first: int, more: int) -> None:
    """Windows cut by time hold what the oracle sees inside them; a choice of steps keeps their rows."""
    plan = draw(random.Random(seed))
    scene = plan.scene()
    trace = load(plan.export().write(tmp_path / "run.sqlite"))
    low = min(event.start for event in scene.events)
    high = max(event.end for event in scene.events)
    a, b = low + (high - low) * first // 5, low + (high - low) * (first + more) // 5
    if a < b and a < high and b > low:
        cut = analyze(trace, Selection(per="capture", from_ns=a, to_ns=b))["overlap"]
        wanted = [{**oracle.decompose(scene, rank, (a, b)), "rank": rank} for rank in scene.ranks]
        agree(wanted, cut, ["rank"])
        for row in cut.to_dicts():
            shares = [row[name] for name in oracle.LENGTHS if row[name] is not None]
            assert all(0 <= part <= row["window_ns"] for part in shares)
    steps = oracle.overlap(scene)
    kept = [row for row in steps if first <= row["step_index"] < first + more]
    if kept:
        chosen = analyze(trace, Selection(first_step=first, last_step=first + more))["overlap"]
        agree(kept, chosen, ["rank", "step_index"])


def document(path: Path | list[Path]) -> dict[str, Any]:
    """Every table but for what names the input."""
    trace = load(path)
    result = analyze(trace)
    tables = dict(result.tables.items())
    tables["rank"] = tables["rank"].drop("report")
    found: dict[str, Any] = {name: frame.to_dicts() for name, frame in tables.items()}
    found["findings"] = [(one.code, one.rank, one.step, one.value, one.message) for one in result.findings]
    found["warnings"] = [(one.code, one.count) for one in result.warnings]
    return found


def without(found: dict[str, Any], *columns: str) -> dict[str, Any]:
    """The document without columns that may differ."""
    return {
        name: [{key: value for key, value in row.items() if key not in columns} for row in rows]
        if rows and isinstance(rows[0], dict)
        else rows
        for name, rows in found.items()
    }


CHANGES: dict[str, tuple[Callable[[Plan, Path, int], Any], tuple[str, ...], int]] = {
    "rows in another order": (
        lambda plan, to, seed: plan.export().write(to / "b.sqlite", shuffle=seed),
        (),
        0,
    ),
    "one file a process": (lambda plan, to, seed: list(write_split(plan.export(), to)), (), 0),
    "one file a process, given in another order": (
        lambda plan, to, seed: list(write_split(plan.export(), to))[::-1],
        ("host",),
        0,
    ),
    "empty tables written": (lambda plan, to, seed: plan.export().write(to / "b.sqlite", lazy=False), (), 0),
    "other ids": (
        lambda plan, to, seed: plan.export(Ids(40_000, 1000, 70_000, 9_999, 0x5A5A5A5A5A, 800)).write(
            to / "b.sqlite"
        ),
        ("pid", "stream", "communicator"),
        0,
    ),
    "a common clock": (
        lambda plan, to, seed: plan.export().write(to / "b.sqlite", shift_ns=-7_000_000_123),
        (),
        -7_000_000_123,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@settings(SETTINGS, max_examples=14)
@given(seed=st.integers(0, 2**40))
@example(seed=800)  # a rank that ends early, alone in its report
def test_changes_that_change_nothing(change: str, tmp_path: Path, seed: int) -> None:
    plan = draw(random.Random(seed))
    apply, columns, shift = CHANGES[change]
    before = without(document(plan.export().write(tmp_path / "a.sqlite")), *columns)
    after = without(document(apply(plan, tmp_path, seed)), *columns)
    if shift:
        for rows in after.values():
            for row in rows:
                if isinstance(row, dict):
                    for name in _MOMENTS:
                        if row.get(name) is not None:
                            row[name] -= shift
    assert after == before


_MOMENTS = (
    "start_ns", "end_ns", "ready_ns", "first_ns", "last_ns",
    "host_start_ns", "host_end_ns", "gpu_start_ns", "gpu_end_ns",
)  # fmt: skip
