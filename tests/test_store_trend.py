"""Trends: which rank stands for a run, when a change is called one, and what the picture shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_store_database import document, overlap_row

from nsysddp.model.errors import EvidenceError, UsageError
from nsysddp.questions import changes as statistics
from nsysddp.questions.changes import find_changes
from nsysddp.render import trend as picture
from nsysddp.render.trend import ChangePoint, Trend, TrendPoint, draw_trend
from nsysddp.store.database import save
from nsysddp.store.trend import median_interval, trend

# ------------------------------------------------------------ change points


def places(values: Any) -> list[int]:
    return [place for place, _ in find_changes(values)]


def noisy(*levels: tuple[int, float], spread: float = 1.0, seed: int = 1) -> list[float]:
    rng = np.random.default_rng(seed)
    return [float(level + spread * rng.standard_normal()) for count, level in levels for _ in range(count)]


@pytest.mark.parametrize(
    "levels",
    [
        [(10, 0), (10, 8)],
        [(6, 0), (14, -8)],
        [(10, 0), (10, 8), (10, 0)],
        [(8, 0), (8, 8), (8, 16), (8, 8)],
        [(40, 0), (20, 8), (40, 3)],
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_clear_changes_are_found_where_they_are(levels: list[tuple[int, float]], seed: int) -> None:
    expected = list(np.cumsum([count for count, _ in levels])[:-1])
    assert places(noisy(*levels, spread=0.5, seed=seed)) == expected


@pytest.mark.parametrize("values", [[], [1.0], [5.0] * 50, [0.0, 1.0] * 3, [1.0, 2.0] * 20])
def test_no_change_where_there_is_none(values: list[float]) -> None:
    assert places(values) == []


def test_one_odd_run_is_not_a_change() -> None:
    values = noisy((20, 0.0), seed=3)
    assert places(values) == []
    values[10] = 1e9
    assert places(values) == []


def test_nine_runs_cannot_show_a_change_and_ten_can() -> None:
    assert statistics.SHORTEST_SERIES == 10
    for before in range(10):
        assert places([0.0] * before + [1.0] * (9 - before)) == []
    ((place, p_value),) = find_changes([0.0] * 5 + [1.0] * 5)
    assert place == 5
    assert p_value == pytest.approx(2 / 252, abs=0.006), "2 of the 252 orders of five and five are as clear"


def test_random_series_seldom_show_a_change() -> None:
    """Two searches at 1 % each: of 300 series without a change about 6 show one."""
    false_alarms = sum(bool(places(noisy((20, 0.0), seed=seed))) for seed in range(300))
    assert 1 <= false_alarms <= 14


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-50, 50), max_size=24))
@example([0, 0, 0, 0, 0, 0, 0, -4, -9, -9, -1])  # where it stands depends on the values, too
def test_whether_there_is_a_change_depends_on_the_order_of_values_only(values: list[int]) -> None:
    assert bool(find_changes(values)) == bool(find_changes([np.exp(value / 10.0) for value in values]))
    assert all(3 <= place <= len(values) - 3 for place in places(values))


def test_the_search_of_a_thousand_runs_looks_at_few_lengths_and_stretches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[int] = []
    clearest = statistics._clearest_part
    monkeypatch.setattr(
        statistics, "_clearest_part", lambda values: searched.append(len(values)) or clearest(values)
    )
    assert places(noisy((300, 0), (40, 5), (660, 0), spread=1.0)) == [300, 340]
    assert sum(searched) <= 3 * 1000, "each run is looked at a few times"
    assert len(statistics._passing_sizes(1000)) < 40, "lengths grow by a share"


# ------------------------------------------------------------ intervals


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 10**12), min_size=5, max_size=40))
def test_an_interval_contains_its_median_and_stays_in_the_data(values: list[int]) -> None:
    interval = median_interval(np.array(values, np.float64))
    assert interval is not None
    low, high = interval
    assert min(values) <= low <= np.median(values) <= high <= max(values)


@pytest.mark.parametrize("count", range(5))
def test_too_few_steps_have_no_interval(count: int) -> None:
    assert median_interval(np.arange(count, dtype=np.float64)) is None


def test_intervals_cover_the_true_median() -> None:
    rng = np.random.default_rng(5)
    bounds = [median_interval(rng.standard_normal(60)) for _ in range(200)]
    covered = sum(low <= 0 <= high for low, high in filter(None, bounds))
    assert 176 <= covered <= 199


def test_alike_neighbours_widen_the_interval() -> None:
    rng = np.random.default_rng(2)
    values = np.repeat(rng.standard_normal(25), 4)
    shuffled = rng.permutation(values)
    (low, high), (narrow_low, narrow_high) = (
        median_interval(values) or (0, 0),
        median_interval(shuffled) or (0, 0),
    )
    assert high - low > narrow_high - narrow_low


# ------------------------------------------------------------ trends


def run_of(number: int, exposed: dict[int, list[int]], **changes: Any) -> dict[str, Any]:
    """A document with these exposed times, by rank and step (step 0 is warm-up)."""
    result = document(number, ranks=len(exposed))
    result["tables"]["overlap"] = [
        overlap_row(rank, step, value, **changes)
        for rank, values in exposed.items()
        for step, value in enumerate(values)
    ]
    return result


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "results.db")


def test_a_run_stands_for_its_worst_rank(url: str) -> None:
    save(run_of(1, {0: [999, 10, 30, 20], 1: [999, 40, 60, 50], 3: [0, 5, 5, 5]}), url=url, label="a")
    (cost,) = trend("exposed_communication_ns", url=url).points
    assert (cost.rank, cost.value, cost.best, cost.steps, cost.low, cost.high) == (1, 50, 5, 3, None, None)
    (gain,) = trend("overlap_ratio", url=url).points
    assert (gain.rank, gain.value, gain.best) == (1, 20 / 70, 20 / 25)
    (asked,) = trend("exposed_communication_ns", url=url, rank=0).points
    assert (asked.rank, asked.value, asked.best) == (0, 20, 20)
    (missing,) = trend("exposed_communication_ns", url=url, rank=2).points
    assert (missing.rank, missing.value, missing.steps) == (None, None, 0)


def test_what_is_unknown_is_left_out_and_said(url: str) -> None:
    first = save(run_of(1, {0: [1, 2, 3]}), url=url)
    result = trend("hidden_transfer_ns", url=url)
    assert [(point.run_id, point.value) for point in result.points] == [(first, None)]
    assert result.warnings[0].startswith(f"hidden_transfer_ns is unknown in run {first}")
    assert "Not enough runs" in result.warnings[1]


def series(url: str, levels: list[int], **record: Callable[[int], Any]) -> list[int]:
    rng = np.random.default_rng(0)
    return [
        save(
            run_of(
                index,
                {rank: [int(level + rng.integers(0, 40) + 9 * rank) for _ in range(9)] for rank in (0, 1)},
            ),
            url=url,
            label=f"night {index}",
            run={key: make(index) for key, make in record.items()},
        )
        for index, level in enumerate(levels)
    ]


def test_a_change_is_named_with_what_else_changed(url: str) -> None:
    numbers = series(
        url,
        [1000] * 6 + [1500] * 6,
        bucket_cap_mb=lambda index: 25 if index < 6 else 4,
        started_at=lambda index: f"2026-01-{index + 1:02d}",
        config=lambda index: {"seed": 7, "git": "abc" if index < 3 else "def"},
    )
    result = trend("exposed_communication_ns", url=url)
    (change,) = result.change_points
    assert (change.run_id, change.previous_run_id, change.label) == (numbers[6], numbers[5], "night 6")
    assert change.differences == ("bucket_cap_mb 25 → 4",)
    assert change.low < 500 < change.high
    assert change.low < change.after - change.before < change.high
    words = picture.describe_change(result, change)
    assert words.startswith(f"run {numbers[6]} (night 6): +4")
    assert "% of the old level" in words
    assert trend("compute_ns", url=url).change_points == ()
    assert trend("exposed_communication_ns", url=url, last=6).change_points == ()


def test_unlike_runs_are_pointed_out(url: str) -> None:
    save(run_of(1, {0: [1, 2]}), url=url)
    other = run_of(2, {0: [1, 2], 1: [1, 2]})
    other["tables"]["rank"][0]["gpu_name"] = "Tesla V100"
    save(other, url=url)
    warnings = " | ".join(trend("window_ns", url=url).warnings)
    assert "GPU differs (NVIDIA H200; NVIDIA H200, Tesla V100)" in warnings
    assert "number of ranks differs (1; 2)" in warnings


def test_wrong_questions_are_one_line(url: str) -> None:
    with pytest.raises(EvidenceError, match="no results database"):
        trend("window_ns", url=url)
    save(document(), url=url)
    with pytest.raises(UsageError, match="there is no metric speed"):
        trend("speed", url=url)
    with pytest.raises(EvidenceError, match="no kept run fits"):
        trend("window_ns", url=url, tags=["nightly"])


# ------------------------------------------------------------ the picture


@pytest.mark.parametrize("kind", picture.FORMATS)
def test_pictures_are_the_same_bytes_every_time(url: str, tmp_path: Path, kind: str) -> None:
    series(url, [1000] * 6 + [1500] * 6)
    result = trend("exposed_communication_ns", url=url)
    first, second = tmp_path / f"a.{kind}", tmp_path / f"b.{kind}"
    draw_trend(result, first)
    draw_trend(result, second)
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size > 5000


def by_hand(
    count: int, *, changes: Sequence[int] = (), metric: str = "exposed_communication_ns", label: str = "night"
) -> Trend:
    """A trend of ``count`` runs as the picture sees it: one in seven unknown, one in five without an interval."""
    points = []
    one = {"overlap_ratio": 0.3, "kernels": 60_000.0}.get(metric, 1e6)
    for index in range(count):
        value = None if index % 7 == 6 else one * (1 + index % 4 / 10)
        spread = 0.05 * one
        certain = value is not None and index % 5 != 4
        points.append(
            TrendPoint(
                run_id=4000 + index,
                label=label,
                created_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
                rank=None if value is None else 1,
                value=value,
                low=value - spread if value is not None and certain else None,
                high=value + spread if value is not None and certain else None,
                best=None if value is None else value / 2,
                steps=9,
            )
        )
    shifts = [
        ChangePoint(
            4000 + place,
            label,
            3999 + place,
            one,
            1.5 * one,
            0.4 * one,
            0.6 * one,
            0.0005,
            ("a long setting 1 → 2",) * 20,
        )
        for place in changes
    ]
    return Trend(metric, None, False, 0.95, tuple(points), tuple(shifts), ())


def test_names_are_shown_verbatim(tmp_path: Path) -> None:
    odd = "<float, 4> $x_1$ \x1b[0m </script>"
    draw_trend(by_hand(12, changes=[6], label=odd), tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert "run 4006 (&lt;float, 4&gt; $x_1$ \ufffd[0m &lt;/script&gt;): +50.0 % of the old level" in drawn
    assert "<float" not in drawn
    assert "\x1b" not in drawn


@pytest.mark.parametrize(
    ("count", "changes"),
    [(1, []), (5, []), (10, [5]), (12, [6]), (30, [3, 6, 9, 20]), (300, [100, 103, 200])],
)
@pytest.mark.parametrize("metric", ["exposed_communication_ns", "overlap_ratio", "kernels"])
def test_every_word_is_on_the_page_and_large_enough_for_print(
    count: int, changes: list[int], metric: str
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    figure = picture._compose(
        by_hand(count, changes=changes, metric=metric, label="a label that is rather long")
    )
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    page, renderer = figure.bbox, canvas.get_renderer()
    words = [word for word in figure.findobj(Text) if word.get_text() and word.get_visible()]
    assert len(words) > 4
    for word in words:
        box = word.get_window_extent(renderer)
        assert page.x0 <= box.x0 <= box.x1 <= page.x1, word.get_text()
        assert page.y0 <= box.y0 <= box.y1 <= page.y1, word.get_text()
        assert word.get_fontsize() >= 8.5
    (axes,) = figure.axes
    ticks = [tick.get_window_extent(renderer) for tick in axes.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(ticks))


def test_other_endings_are_refused(url: str, tmp_path: Path) -> None:
    save(document(), url=url)
    with pytest.raises(UsageError, match=r"cannot be written as \.gif; end its name in \.png, \.svg, \.pdf"):
        draw_trend(trend("window_ns", url=url), tmp_path / "a.gif")
    assert list(tmp_path.glob("a.*")) == []
