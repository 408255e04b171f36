"""Pictures of ranks by steps and of pairs: what is drawn is what the tables hold, at 8 ranks and at 512."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import run
from simulation.export import write
from simulation.jobs import Job, Planted, simulate

from nsysddp.join.load import load
from nsysddp.model.errors import CannotTell
from nsysddp.model.result import Result
from nsysddp.questions import context_of
from nsysddp.questions.communicators import communicators
from nsysddp.questions.stragglers import stragglers
from nsysddp.render.maps import draw_lateness, draw_pairs


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Result:
    job = Job(
        ranks=6, steps=4, layers=2, per_host=3, planted=Planted("slow_rank", 1.3, rank=4, phase="backward")
    )
    return stragglers(context_of(load(write(simulate(job), tmp_path_factory.mktemp("late")), launches=True)))


@pytest.fixture(scope="module")
def piped(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Result]:
    job = Job("pp", 8, 4, per_host=4, steps=3, layers=4, planted=Planted("slow_pair", 6.0, pair=(1, 2)))
    paths = write(simulate(job), tmp_path_factory.mktemp("piped"), per_rank=False)
    return paths, communicators(context_of(load(paths, host_calls=True)))


def cells(axes: Any) -> np.ndarray:
    return np.asarray(axes.get_images()[-1].get_array().filled(np.nan))


def with_table(result: Result, name: str, frame: pl.DataFrame) -> Result:
    return replace(result, tables={**result.tables, name: frame})


def test_a_late_rank_is_dark_and_jitter_is_pale(late: Result) -> None:
    axes = draw_lateness(late).axes[0]
    shown, (_, most) = cells(axes), axes.get_images()[-1].get_clim()
    assert shown.shape == (6, 4)
    assert (shown[4] > 0.9 * most).all()
    assert (np.abs(np.delete(shown, 4, axis=0)) < 0.35 * most).all()
    assert "Rank 4 is late" in " ".join(text.get_text() for text in axes.figure.texts)


def test_what_is_unknown_is_not_painted(late: Result) -> None:
    frame = late["lateness"].with_columns(
        lateness_ns=pl.when((pl.col("rank") == 2) & (pl.col("step_index") == 1))
        .then(None)
        .otherwise("lateness_ns")
    )
    axes = draw_lateness(with_table(late, "lateness", frame)).axes[0]
    assert np.argwhere(np.isnan(cells(axes))).tolist() == [[2, 1]]
    paper = np.asarray(axes.get_images()[0].get_array())
    assert paper[2, 1, 3] == 0  # the hatched ground shows
    assert paper[..., 3].sum() == paper[..., 3].size - 1
    nobody = frame.with_columns(lateness_ns=pl.lit(None, pl.Int64))
    with pytest.raises(CannotTell, match="no rank has peers"):
        draw_lateness(with_table(late, "lateness", nobody))


def test_512_ranks_are_a_page_with_as_many_names_as_fit(late: Result) -> None:
    base = late["lateness"].filter(rank=0)
    frame = pl.concat(
        base.with_columns(rank=pl.lit(rank, pl.Int64), host=pl.lit(f"host-{rank // 8 + 1}"))
        for rank in range(512)
    )
    axes = draw_lateness(with_table(late, "lateness", frame)).axes[0]
    assert cells(axes).shape == (512, 4)
    assert axes.figure.get_figheight() <= 11
    assert 20 <= len(axes.get_yticklabels()) <= 64
    assert len(axes.lines) == 63


def test_pairs_are_where_their_ranks_are(piped: tuple[list[Path], Result]) -> None:
    result = piped[1]
    sent, rate = (cells(axes) for axes in draw_pairs(result).axes[:2])
    for row in result["pair"].iter_rows(named=True):
        assert sent[row["sender"], row["receiver"]] == pytest.approx(row["bytes"] / 1e6)
        assert rate[row["sender"], row["receiver"]] == pytest.approx(row["busbw_gbps"])
    assert np.count_nonzero(~np.isnan(sent)) == result["pair"].height
    slow = result["pair"].sort("busbw_gbps").head(4)
    assert {tuple(sorted(pair)) for pair in slow.select("sender", "receiver").iter_rows()} == {(2, 4), (3, 5)}


def test_pairs_of_many_ranks_are_those_of_their_hosts(piped: tuple[list[Path], Result]) -> None:
    result = piped[1]
    base = result["pair"].row(0, named=True)
    rows = [base | {"sender": rank, "receiver": (rank + 8) % 128} for rank in range(128)]
    ranks = pl.concat(
        result.trace.ranks.head(1).with_columns(
            rank=pl.lit(rank, result.trace.ranks["rank"].dtype), host=pl.lit(f"host-{rank // 8 + 1}")
        )
        for rank in range(128)
    )
    many = replace(
        with_table(result, "pair", pl.DataFrame(rows, schema=result["pair"].schema)),
        trace=replace(result.trace, ranks=ranks),
    )
    sent = cells(draw_pairs(many).axes[0])
    assert sent.shape == (16, 16)
    assert sent[0, 1] == pytest.approx(8 * base["bytes"] / 1e6)
    with pytest.raises(CannotTell, match="no messages"):
        draw_pairs(with_table(result, "pair", result["pair"].clear()))


def test_the_commands_write_pictures_and_never_over_a_file(
    piped: tuple[list[Path], Result], tmp_path: Path
) -> None:
    for command in ("communicators", "stragglers"):
        out = tmp_path / f"{command}.svg"
        ran = run(command, *piped[0], "-o", out)
        assert ran.code == 0, ran.err
        first = out.read_bytes()
        assert b"<svg" in first
        assert run(command, *piped[0], "-o", out).code == 2
        assert run(command, *piped[0], "-o", out, "--force").code == 0
        assert out.read_bytes() == first
    assert run("stragglers", *piped[0], "-o", tmp_path / "x.jpeg").code == 2
    assert run("analyze", *piped[0], "-o", tmp_path / "x.png").code == 2


def test_exposed_communication_and_bandwidth_have_maps_of_their_own(late: Result) -> None:
    figure = draw_lateness(late)
    maps = [axes for axes in figure.axes if axes.get_xlabel() == "step"]
    frame = late["lateness"].sort("rank", "step_index")
    assert len(maps) == 3
    for axes, column, scale in zip(
        maps, ("lateness_ns", "exposed_communication_ns", "busbw_gbps"), (1e6, 1e6, 1.0), strict=True
    ):
        expected = frame[column].cast(pl.Float64).to_numpy().reshape(6, 4) / scale
        assert cells(axes) == pytest.approx(expected, nan_ok=True)
    unknown = with_table(late, "lateness", frame.with_columns(busbw_gbps=pl.lit(None, pl.Float64)))
    assert len([axes for axes in draw_lateness(unknown).axes if axes.get_xlabel() == "step"]) == 2


def test_values_that_are_alike_look_alike(late: Result) -> None:
    """Exposed times 1 % apart must not fill the scale from pale to dark."""
    frame = late["lateness"].with_columns(exposed_communication_ns=1_000_000 + 10_000 * (pl.col("rank") % 2))
    axes = draw_lateness(with_table(late, "lateness", frame)).axes[1]
    low, high = axes.get_images()[-1].get_clim()
    assert low <= 0.75 * high
