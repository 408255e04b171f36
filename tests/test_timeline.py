"""The timeline: what is shown, at which level of detail, and that any trace gives a legible, repeatable picture."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from builder import Export
from click.testing import CliRunner
from conftest import FIXTURES
from hypothesis import given, settings
from hypothesis import strategies as st
from scene import MS, Scene

from nsysddp.cli.timeline import command
from nsysddp.join.load import load
from nsysddp.model import schema
from nsysddp.model.errors import UsageError
from nsysddp.model.intervals import Intervals
from nsysddp.model.trace import Trace
from nsysddp.questions import Context, context_of
from nsysddp.questions.steps import Selection
from nsysddp.render import lanes
from nsysddp.render.detail import (
    CHARACTER_IN,
    View,
    as_bars,
    as_columns,
    claimed_ns,
    clusters,
    duration,
    ranges_of,
    ticks,
)
from nsysddp.render.lanes import Lane, scene_of
from nsysddp.render.theme import LOOKS, PHASES, phase_look, short
from nsysddp.render.timeline import PLOT_IN, draw_timeline, save

# --- drawings --------------------------------------------------------------------------------------------------


def two_ranks() -> Scene:
    """Two steps on two ranks; rank 1 comes late to each of two all-reduces."""
    scene = Scene()
    for rank in (0, 1):
        for step in (0, 1):
            t = 20.0 * step + rank
            scene.range(rank, f"step {step}", t - 1, t + 12)
            scene.range(rank, "forward", t - 0.9, t + 3)
            scene.range(rank, "backward", t + 3, t + 11)
            scene.launch(rank, 7, (t, t + 8), "gemm", ("main", t - 0.5, t - 0.4))
            scene.launch(rank, 13, (t + 8, t + 9), "memcpy HtoD", ("main", t, t + 0.1), kind="memory")
    for step in (0, 1):
        for place in (4, 10):
            members = [
                scene.launch(
                    rank,
                    17,
                    (20 * step + place + rank, 20 * step + place + 3),
                    "nccl",
                    ("main", 20 * step + place - 2, 20 * step + place - 1.9),
                    kind="communication",
                )
                for rank in (0, 1)
            ]
            scene.collective(*members)
    return scene


def context(scene: Scene | Trace, **chosen: Any) -> Context:
    trace = scene.trace() if isinstance(scene, Scene) else scene
    return context_of(trace, Selection(**chosen))


def events(*rows: tuple[int, str, int, int], **changes: Any) -> Trace:
    """A trace of (rank, class, start_ns, end_ns) without launches, in any number."""
    frame = pl.DataFrame(rows, schema=["rank", "class", "start_ns", "end_ns"], orient="row").sort(
        "rank", "start_ns", "end_ns"
    )
    kinds = list(schema.CLASSES)
    frame = frame.with_columns(
        pl.col("class").replace_strict(kinds, range(len(kinds))).alias("name"),
        pl.lit(1).alias("context"),
        pl.lit(7).alias("stream"),
        pl.lit(-1).alias("correlation"),
        pl.lit(False).alias("in_graph"),
        pl.lit(None).alias("bytes"),
    )
    made = schema.EVENTS.check(frame)
    numbers = sorted({row[0] for row in rows})
    spans = {rank: made.filter(pl.col("rank") == rank) for rank in numbers}
    communication = made.with_row_index("event").filter(pl.col("class") == "communication")
    trace = Trace(
        ranks=schema.RANK.frame(
            [
                {"rank": r, "first_ns": s["start_ns"].min(), "last_ns": s["end_ns"].max(), "pid": r}
                for r, s in spans.items()
            ]
        ),
        processes=schema.PROCESSES.frame([{"process": r, "report": 0, "pid": r} for r in numbers]),
        events=made,
        names=schema.NAMES.frame([{"text": kind, "class": kind, "group": "kernel"} for kind in kinds]),
        ranges=schema.RANGES.empty(),
        operations=schema.OPERATIONS.empty(),
        collectives=schema.COLLECTIVES.frame(
            [{"event": e, "match": "unmatched:test"} for e in communication["event"].to_list()]
        ),
        inputs=(),
        process_of_rank={r: r for r in numbers},
    )
    return replace(trace, **changes)


def collections(figure: Any) -> dict[str, list[Any]]:
    """Outlines of every look that was drawn, by its key."""
    return {
        one.get_label(): one.get_paths()
        for one in figure.axes[0].collections
        if not one.get_label().startswith("_")
    }


def words(figure: Any) -> list[str]:
    keys = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return [text.get_text() for text in (*figure.texts, *figure.axes[0].texts)] + keys


def lane(scene: lanes.Scene, rank: int, name: str) -> Lane:
    row = next(row for row in scene.rows if row.rank == rank)
    return next(one for one in row.lanes if one.name == name)


def spans_ms(some: Intervals) -> list[tuple[float, float]]:
    return [(a / MS, b / MS) for a, b in zip(some.start.tolist(), some.end.tolist(), strict=True)]


# --- level of detail -------------------------------------------------------------------------------------------

spans = st.lists(st.tuples(st.integers(-500, 2500), st.integers(0, 400)), max_size=40)


@given(spans, st.integers(1, 2000), st.sampled_from([0.05, 1.0, 7.3]))
@settings(max_examples=150, deadline=None)
def test_bars_hold_every_event_and_columns_keep_the_time(
    drawn: list[tuple[int, int]], span: int, width: float
) -> None:
    some = Intervals.union_of([a for a, _ in drawn], [a + n for a, n in drawn])
    view = View(0, span, width)
    inside = some.clip(0, span)
    bars = as_bars(some, view)
    assert (inside - bars).length_ns == 0
    assert len(bars) <= len(inside)
    assert len(bars) <= round(width * 100) + 1
    if len(bars):
        assert bars.start[0] >= 0
        assert bars.end[-1] <= span
        assert (bars.end - bars.start).min() >= min(view.pixel, span)
    assert claimed_ns([some], view) == bars.length_ns - inside.length_ns >= 0
    columns = as_columns(some, view)
    reach = int(view.columns()[-1])
    assert reach >= span
    assert columns.size <= round(width * 100)
    assert columns.sum() * view.pixel == pytest.approx(some.clip(0, reach).length_ns)
    assert ((columns >= 0) & (columns <= 1)).all()


def test_a_view_keeps_whole_nanoseconds_far_from_zero() -> None:
    view = View(2**60, 2**60 + 1000, 10.0)
    assert view.x([2**60, 2**60 + 1, 2**60 + 1000]).tolist() == [0.0, 0.01, 10.0]


@pytest.mark.parametrize(
    ("start", "end", "first", "second"),
    [
        (0, 60 * MS, "0", "5"),
        (72_897_700_000, 73_197_000_000, "72,900", "72,950"),
        (0, 1, "0.000000", "0.000001"),
        (10**15, 10**15 + 2_000, "1,000,000,000.0000", "1,000,000,000.0005"),
        (-7_000 * MS, -6_000 * MS, "−7,000", "−6,900"),
    ],
)
def test_ticks_are_round_and_written_in_ms(start: int, end: int, first: str, second: str) -> None:
    assert [label for _, label in ticks(View(start, end, 9.0), 9)][:2] == [first, second]


@given(st.integers(-(2**61), 2**61), st.integers(1, 2**61), st.floats(1, 12))
@settings(max_examples=150, deadline=None)
def test_ticks_lie_in_the_view_and_their_labels_apart(start: int, span: int, width: float) -> None:
    view = View(start, start + span, width)
    made = ticks(view, 9)
    places = [place for place, _ in made]
    assert all(start <= place <= start + span for place in places)
    assert len(places) <= 14
    for (a, one), (b, two) in pairwise(made):
        assert (b - a) * width / span >= (len(one) + len(two)) / 2 * CHARACTER_IN * 9


def test_numbers_too_near_to_each_other_share_a_label() -> None:
    places = np.array([0.0, 1.0, 1.05, 1.1, 3.0, 5.0, 5.02])
    made = clusters(places, [1, 2, 3, 4, 5, 6, 1], [0, 0, 0, 0, 0, 0, 1], 7)
    assert [label for _, label in made] == ["1", "2–4", "5", "(2)"]
    assert [place for place, _ in made] == pytest.approx([0, 1.05, 3, 5.01])


@given(
    st.lists(st.floats(0, 9), max_size=60).map(sorted),
    st.integers(1, 5),
)
@settings(max_examples=100, deadline=None)
def test_labels_never_overlap_and_lose_no_number(places: list[float], steps: int) -> None:
    numbers = list(range(1, len(places) + 1))
    owner = [place * steps // max(len(places), 1) for place in range(len(places))]
    made = clusters(np.array(places), numbers, owner, 7)
    for (a, one), (b, two) in pairwise(made):
        assert b - a >= (len(one) + len(two)) / 2 * CHARACTER_IN * 7
    held = 0
    for _, label in made:
        low, _, high = label.strip("()").partition("–")
        held += int(low) if label.startswith("(") else int(high or low) - int(low) + 1
    assert held == len(places)


def test_words_for_lengths_and_ranks() -> None:
    assert [duration(n) for n in (1, 999, 1_500, 38_240, 1_250_000, 123_456_789, 60 * 10**9)] == [
        *("1 ns", "999 ns", "1.5 µs", "38.2 µs", "1.25 ms", "123 ms", "60 s")
    ]
    assert ranges_of([0, 2, 3, 4, 9]) == "0, 2-4, 9"
    assert short("abcdefghij", 7) == "abc…hij"
    assert short("a\x1b[31m\nb", 20) == "a\ufffd[31m\ufffdb"


# --- what is shown ---------------------------------------------------------------------------------------------


def test_lanes_hold_the_sets_of_the_analyses() -> None:
    made = scene_of(context(two_ranks()), PLOT_IN)
    assert [one.name for one in made.rows[0].lanes] == [
        "compute",
        "communication",
        "exposed",
        "memory",
        "idle",
    ]
    parts = {look.key: spans_ms(some) for look, some in lane(made, 0, "communication").parts}
    assert parts == {
        "wait": [(4, 5), (10, 11), (24, 25), (30, 31)],
        "unsplit": [],
        "transfer": [(5, 7), (11, 13), (25, 27), (31, 33)],
    }
    assert spans_ms(lane(made, 0, "exposed").parts[0][1]) == [(10, 13), (30, 33)]
    assert spans_ms(lane(made, 0, "idle").parts[0][1]) == [(9, 10), (13, 20), (29, 30)]
    assert [(phase.look.label, spans_ms(phase.spans)[0]) for phase in made.rows[1].phases] == [
        ("backward", (4, 12)),
        ("forward", (0.1, 4)),
    ]
    assert [label for _, label in made.rows[0].numbers] == ["1", "2", "1", "2"]
    assert [(w.step, w.start / MS, w.end / MS) for w in made.rows[0].windows] == [(0, 0, 20), (1, 20, 33)]


def test_lanes_are_the_same_on_all_ranks() -> None:
    trace = events((0, "compute", 0, 10), (0, "spin", 10, 20), (1, "memory", 5, 9), (2, "graph", 0, 3))
    made = scene_of(context(trace), PLOT_IN)
    assert {tuple(one.name for one in row.lanes) for row in made.rows} == {
        ("compute", "spin", "memory", "graph", "idle")
    }


def test_one_strip_per_rank_where_there_are_many() -> None:
    rows = [
        (rank, kind, a, b) for rank in range(64) for kind, a, b in (("compute", 0, 50), ("memory", 40, 90))
    ]
    made = scene_of(context(events(*rows, *((r, "communication", 45, 60) for r in range(64)))), PLOT_IN)
    assert not made.full
    assert [one.name for one in made.rows[0].lanes] == ["work", "communication", "exposed"]
    work = {look.key: some for look, some in made.rows[0].lanes[0].parts}
    assert (work["compute"].length_ns, work["memory"].length_ns) == (50, 40)
    figure = draw_timeline(context(events(*rows)))
    assert figure.get_figheight() < 18
    labels = [text for text in figure.axes[0].texts if re.fullmatch(r"rank \d+", text.get_text())]
    assert len(labels) == 64
    assert min(text.get_fontsize() for text in labels) >= 7


def test_more_ranks_than_a_page_holds_are_thinned_and_that_is_said() -> None:
    trace = events(*((rank, "compute", 0, 10 + rank) for rank in range(1000)))
    made = scene_of(context(trace), PLOT_IN)
    assert len(made.rows) == lanes.MOST_RANKS
    assert (made.rows[0].rank, made.rows[-1].rank) == (0, 999)
    assert any("100 of 1,000 ranks are drawn" in note for note in made.notes)


def test_ranks_are_chosen_and_unknown_ones_refused() -> None:
    made = scene_of(context(two_ranks()), PLOT_IN, [1])
    assert [row.rank for row in made.rows] == [1]
    assert "rank 1 of 2" in made.subtitle
    with pytest.raises(UsageError, match=r"there is no rank 7; choose from 0-1"):
        scene_of(context(two_ranks()), PLOT_IN, [0, 7])


def test_the_time_asked_for_is_the_time_shown() -> None:
    made = scene_of(context(two_ranks(), per="capture", from_ns=5 * MS, to_ns=8 * MS), PLOT_IN)
    assert (made.view.start, made.view.end) == (5 * MS, 8 * MS)
    assert "part of the capture" in made.subtitle
    made = scene_of(context(two_ranks(), first_step=1), PLOT_IN)
    assert 19 * MS < made.view.start <= 20 * MS
    assert "1 of 2 steps (step 1)" in made.subtitle


def test_nothing_is_marked_exposed_beside_graphs_of_unknown_content() -> None:
    rows = [(0, "communication", 10, 30), (0, "compute", 0, 10)]
    known = scene_of(context(events(*rows)), PLOT_IN)
    assert lane(known, 0, "exposed").parts[0][1].length_ns == 20
    unknown = scene_of(context(events(*rows, (0, "graph", 40, 60))), PLOT_IN)
    assert lane(unknown, 0, "exposed").parts[0][1].length_ns == 0
    assert any("is unknown" in note for note in unknown.notes)
    figure = draw_timeline(context(events(*rows, (0, "graph", 40, 60))))
    assert "CUDA graph, content unknown" in words(figure)
    hatched = [one for one in figure.axes[0].collections if one.get_label() == "graph"]
    assert hatched[0].get_hatch()


def test_unmatched_collectives_have_no_number_beside_matched_ones() -> None:
    scene = two_ranks()
    stray = scene.launch(0, 17, (14, 15), "nccl", ("main", 9, 9.1), kind="communication")
    scene.collective(stray, matched=False)
    made = scene_of(context(scene), PLOT_IN)
    assert [label for _, label in made.rows[0].numbers] == ["1", "2", "1", "2"]
    assert spans_ms({k.key: v for k, v in lane(made, 0, "communication").parts}["unsplit"]) == [(14, 15)]
    alone = scene_of(context(events((0, "communication", 0, 9), (0, "communication", 50, 60))), PLOT_IN)
    assert [label for _, label in alone.rows[0].numbers] == ["1", "2"]


@pytest.mark.parametrize(
    ("method", "residual", "said"),
    [
        ("shared", None, "the ranks share one"),
        ("collectives", 31_000, "residual 31 µs"),
        ("collectives", 310_000, "above the tolerance of 100 µs"),
        ("anchor", None, "uncertainty is unknown"),
        ("none", None, "cannot be compared"),
    ],
)
def test_the_uncertainty_of_the_clocks_is_said(method: str, residual: int | None, said: str) -> None:
    trace = events((0, "compute", 0, 9), (1, "compute", 0, 9))
    ranks = trace.ranks.with_columns(
        pl.lit(method).alias("clock_method"), pl.lit(residual, pl.Int64).alias("clock_residual_ns")
    )
    made = scene_of(context(replace(trace, ranks=ranks)), PLOT_IN)
    assert [note for note in made.notes if said in note]


# --- level of detail of a picture --------------------------------------------------------------------------------


def many(count: int) -> Trace:
    """Kernels of 1 us every 2 us, with a collective every hundredth."""
    start = np.arange(count, dtype=np.int64) * 2_000
    rows = [(0, "compute", a, a + 1_000) for a in start.tolist()]
    rows += [(0, "communication", a, a + 3_000) for a in start[::100].tolist()]
    return events(*rows)


def test_the_number_of_shapes_does_not_grow_with_the_events() -> None:
    few, lots = (draw_timeline(context(many(count))) for count in (2_000, 200_000))
    for figure in (few, lots):
        axes = figure.axes[0]
        assert len(axes.collections) < 25
        assert len(axes.texts) < 600
        points = sum(len(path.vertices) for one in axes.collections for path in one.get_paths())
        assert points < 25_000
    assert len(lots.axes[0].collections) == len(few.axes[0].collections)


def test_dense_lanes_are_columns_as_high_as_their_share_of_time() -> None:
    made = scene_of(context(many(200_000)), PLOT_IN)
    assert "compute" in made.columns
    assert any(note.startswith("202,000 GPU events. Events shorter than a pixel") for note in made.notes)
    assert any("a column is one pixel" in note for note in made.notes)
    outline = collections(draw_timeline(context(many(200_000))))["compute"]
    vertices = np.concatenate([path.vertices for path in outline])
    height = vertices[:, 1].max() - vertices[:, 1].min()
    assert height == pytest.approx(0.5 * 0.22, abs=0.02)


def test_few_events_are_bars_at_their_own_times() -> None:
    made = scene_of(context(two_ranks()), PLOT_IN)
    assert not made.columns
    figure = draw_timeline(context(two_ranks()))
    paths = collections(figure)["compute"]
    edges = sorted((path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in paths)
    wanted = sorted(
        (made.view.x(start * MS).item(), made.view.x((start + 8) * MS).item()) for start in (0, 1, 20, 21)
    )
    assert np.allclose(edges, wanted)


def test_hundreds_of_steps_are_named_and_bounded_now_and_then() -> None:
    scene = Scene()
    for step in range(300):
        scene.range(0, f"step {step}", 10 * step, 10 * step + 9)
        scene.launch(0, 7, (10 * step, 10 * step + 9), "gemm", ("main", 10 * step, 10 * step + 0.1))
    made = scene_of(context(scene), PLOT_IN)
    assert made.every == 20
    assert "Every 20th step is named and bounded." in made.notes
    names = [text for text in words(draw_timeline(context(scene))) if re.fullmatch(r"step \d+", text)]
    assert names == [f"step {step}" for step in range(0, 300, 40)]


# --- odd traces --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [
        [(0, "compute", 5, 6)],
        [(0, "communication", 5, 5)],
        [(0, "compute", 5, 5), (0, "compute", 7, 7)],
        [(0, "memory", -7_000_000_000, -6_999_000_000)],
        [(0, "compute", -5, 3), (1, "compute", 10**15, 10**15 + 1)],
        [(3, "graph", 0, 10), (900_000, "spin", 2, 4)],
    ],
)
@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_odd_traces_give_a_picture(rows: list[tuple[int, str, int, int]], kind: str, tmp_path: Path) -> None:
    figure = draw_timeline(context(events(*rows)))
    save(figure, tmp_path / f"a.{kind}")
    assert (tmp_path / f"a.{kind}").stat().st_size > 1000
    assert [path.name for path in tmp_path.iterdir()] == [f"a.{kind}"]


def test_events_of_no_length_are_counted() -> None:
    made = scene_of(context(events((0, "compute", 5, 5), (0, "compute", 5, 900))), PLOT_IN)
    assert made.notes[0] == "2 GPU events. 1 of no length is not drawn."


ODD_NAMES = [
    "step 1 $\\frac{1}{0}$",
    "step 2 $x",
    "step 3 <b>&amp;</b>",
    "step 4 \x1b[31mred\x07\n",
    "step 5 ___",
]


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_names_are_text_and_nothing_else(kind: str, tmp_path: Path) -> None:
    scene = Scene()
    for number, name in enumerate(ODD_NAMES):
        scene.range(0, name, 10 * number, 10 * number + 9)
        scene.range(0, "fwd_$^{", 10 * number, 10 * number + 9)
        scene.launch(0, 7, (10 * number, 10 * number + 9), "k", ("main", 10 * number, 10 * number + 0.1))
    trace = replace(
        scene.trace(),
        step_pattern=r"(?s)step.*",
        phase_patterns={"$\\bad_{<i>\x1b[0m": r"fwd.*", "compute": "x"},
    )
    figure = draw_timeline(context(trace))
    save(figure, tmp_path / f"a.{kind}")
    shown = words(figure)
    assert "step 1 $\\frac{1}{0}$" in shown
    assert "host: $\\bad_{<i>\ufffd[0m" in shown
    assert not [text for text in shown if "\x1b" in text or "\x07" in text]
    if kind == "svg":
        assert "step 3 &lt;b&gt;&amp;amp;&lt;/b&gt;" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_a_phase_may_have_the_name_of_a_class() -> None:
    scene = two_ranks()
    trace = replace(scene.trace(), phase_patterns={"compute": "forward", "idle": "backward"})
    shown = collections(draw_timeline(context(trace)))
    assert {"compute", "idle", "phase: compute", "phase: idle"} <= set(shown)


# --- the page ----------------------------------------------------------------------------------------------------


def test_axis_legend_title_and_notes_say_what_is_shown() -> None:
    figure = draw_timeline(context(two_ranks()))
    axes = figure.axes[0]
    assert axes.get_xlabel().endswith("session start, ms")
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels[:4] == ["0", "5", "10", "15"]
    shown = words(figure)
    for text in (
        "rank 0",
        "rank 1",
        "compute",
        "communication",
        "exposed",
        "idle",
        "step 0 (warm-up)",
        "step 1",
        "host",
    ):
        assert text in shown
    for key in ("compute", "transfer", "wait", "exposed", "memory", "idle"):
        assert LOOKS[key].label in shown
    assert LOOKS["spin"].label not in shown
    assert "step boundary" in shown
    assert any("One rank" in text or "Clocks:" in text for text in shown)
    assert min(text.get_fontsize() for text in (*figure.texts, *axes.texts)) >= 7


def test_no_text_leaves_the_page() -> None:
    figure = draw_timeline(context(two_ranks()))
    figure.canvas.draw()
    page = figure.bbox
    for text in (*figure.texts, *figure.axes[0].texts, *figure.legends):
        box = text.get_window_extent()
        assert page.x0 <= box.x0
        assert box.x1 <= page.x1
        assert page.y0 <= box.y0
        assert box.y1 <= page.y1


def lightness(colour: str) -> float:
    """Relative luminance of ``#rrggbb`` (WCAG 2), 0 to 1."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(
    "together",
    [["compute", "spin", "memory", "graph"], ["transfer", "wait", "unsplit"], ["exposed", "transfer"]],
)
def test_classes_that_share_a_strip_differ_without_colour(together: list[str]) -> None:
    looks = [LOOKS[key] for key in together]
    for place, one in enumerate(looks):
        for other in looks[place + 1 :]:
            bright, dark = sorted([lightness(one.fill), lightness(other.fill)], reverse=True)
            assert one.hatch != other.hatch or (bright + 0.05) / (dark + 0.05) > 1.5, (one.key, other.key)


def test_text_on_a_look_can_be_read() -> None:
    for look in [*PHASES.values(), *(phase_look(f"own {place}", place) for place in range(6))]:
        bright, dark = sorted([lightness(look.fill), lightness(look.ink)], reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, look


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def report(tmp_path: Path) -> Path:
    export = Export(unit="ms")
    export.lanes(
        """
        rank 0 | host "step 0"[0,100)   s7 g[0,50) g[60,90)   s17 c[20,80)
        rank 1 | host "step 0"[0,100)   s7 g[0,50)            s17 c[40,80)
        """
    )
    path = tmp_path / "a_$b$.sqlite"
    export.write(path)
    return path


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_same_input_gives_the_same_bytes(report: Path, kind: str, tmp_path: Path) -> None:
    made = []
    for number in range(2):
        out = tmp_path / f"{number}.{kind}"
        code = "from nsysddp.cli.timeline import command; command()"
        subprocess.run(
            [sys.executable, "-c", code, str(report), "-o", str(out)], check=True, capture_output=True
        )
        made.append(out.read_bytes())
    assert made[0] == made[1]


def test_text_stays_text_in_vector_pictures(report: Path, tmp_path: Path) -> None:
    figure = draw_timeline(context(load(report)))
    save(figure, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert ">a_$b$.sqlite  ·  2 ranks" in text
    assert "<dc:date>" not in text
    save(figure, tmp_path / "a.pdf")
    assert b"/FontFile2" in (tmp_path / "a.pdf").read_bytes()
    assert b"/CreationDate" not in (tmp_path / "a.pdf").read_bytes()


def test_command_writes_the_picture_and_never_over_another(report: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.png"
    run = CliRunner().invoke(command, [str(report), "-o", str(out), "--ranks", "0", "--per", "capture"])
    assert run.exit_code == 0, run.output
    assert out.read_bytes().startswith(b"\x89PNG")
    before = out.read_bytes()
    again = CliRunner().invoke(command, [str(report), "-o", str(out)])
    assert isinstance(again.exception, UsageError)
    assert out.read_bytes() == before
    forced = CliRunner().invoke(command, [str(report), "-o", str(out), "--force"])
    assert forced.exit_code == 0
    assert out.read_bytes() != before


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["-o", "a.jpg"], "a picture cannot be written as .jpg"),
        (["-o", "picture"], "without an ending"),
        (["-o", "nowhere/a.png"], "folder does not exist"),
        (["-o", "b.png", "--ranks", "5"], "there is no rank 5"),
    ],
)
def test_command_refuses_in_one_line(
    report: Path, tmp_path: Path, arguments: list[str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(command, [str(report), *arguments])
    assert isinstance(run.exception, UsageError)
    assert what in str(run.exception)
    assert "\n" not in str(run.exception)
    assert {path.name for path in tmp_path.iterdir()} == {report.name}


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "1-", "0-9999999"])
def test_command_refuses_malformed_ranks(report: Path, text: str) -> None:
    run = CliRunner().invoke(command, [str(report), "-o", "never.png", "--ranks", text])
    assert run.exit_code == 2
    assert "0,2-5" in run.output


# --- real captures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "h200/delay_cap4",
        "h200/blobs_ddp",
        "h200/graph_graph",
        "public/r2026.2.1_s3.25.0__2gpu_sendrecv_after",
        "public/c2023.4.4_s3.7.2__1proc_4gpu",
    ],
)
def test_real_captures_are_drawn(name: str, unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    whole = context(load(unpacked(name)))
    figure = draw_timeline(whole)
    save(figure, tmp_path / "a.png")
    shown = scene_of(whole, PLOT_IN)
    assert len(shown.rows) == len(whole.trace.rank_numbers)
    for row in shown.rows:
        for one in row.lanes:
            for look, some in one.parts:
                drawn = collections(figure).get(look.key)
                inside = some.clip(shown.view.start, shown.view.end)
                assert drawn or not len(inside), (row.rank, look.key)


def test_twelve_buckets_are_numbered_on_both_ranks(unpacked: Callable[[str], Path]) -> None:
    made = scene_of(context(load(unpacked("h200/delay_cap4"))), PLOT_IN)
    for row in made.rows:
        assert [label for _, label in row.numbers] == [str(number) for number in range(1, 13)]


# --- strips of groups ------------------------------------------------------------------------------------------


def strips_of(context: Context, width_in: float = 8.0) -> dict[int, dict[str, Lane]]:
    """The lanes between ``exposed`` and what follows it, by rank and name."""
    others = {"compute", "spin", "communication", "exposed", "memory", "graph", "idle"}
    return {
        row.rank: {lane.name: lane for lane in row.lanes if lane.name not in others}
        for row in scene_of(context, width_in).rows
    }


def test_each_role_of_a_rank_has_a_strip_that_tells_hidden_from_exposed() -> None:
    context = context_of(load(FIXTURES / "shared_gpu" / "hsdp.sqlite.gz"))
    found = strips_of(context)
    assert sorted(found) == [0, 1, 2, 3]
    assert all(set(strips) == {"shard", "replicate"} for strips in found.values())
    trace, exposed = context.trace, {}
    for row in scene_of(context, 8.0).rows:
        exposed[row.rank] = next(
            part for lane in row.lanes if lane.name == "exposed" for _, part in lane.parts
        )
    for rank, strips in found.items():
        parts = {look.key: some for look, some in strips["shard"].parts}
        other = {look.key: some for look, some in strips["replicate"].parts}
        assert not len(parts["hidden"] & exposed[rank])
        assert not len(parts["exposed"] - exposed[rank])
        # All but the barriers at the ends of the capture is of one of the two.
        every = parts["hidden"] | parts["exposed"] | other["hidden"] | other["exposed"]
        whole = trace.union(rank, ["communication"])
        assert not len(every - whole)
        assert every.length_ns > 0.98 * whole.length_ns


def test_one_group_for_all_needs_no_strip() -> None:
    context = context_of(load(FIXTURES / "shared_gpu" / "late.sqlite.gz"))
    assert not any(strips_of(context).values())
