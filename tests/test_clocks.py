"""Clocks of hosts that are wrong and run apart: what is said of them, and that no answer depends on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from builder import Export
from command import document
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysddp.join import drift
from nsysddp.join.clocks import align
from nsysddp.join.kernels import Kernels

MS = 1_000_000
UTC = 1_700_000_000_000_000_000


def job(
    folder: Path,
    *,
    rates: Sequence[float],
    skews_ms: Sequence[float],
    members: Sequence[Sequence[int]],
    seconds: int = 20,
    blobs: bool = True,
) -> list[Path]:
    """A report a host: steps of uneven length, in each a reduction of every communicator, the last member 2 ms late.

    Args:
        folder: where to write.
        rates: how much faster each host's clock runs.
        skews_ms: how wrong each host's session start is.
        members: ranks of each communicator.
        seconds: length of the capture.
        blobs: whether payloads are in the exports.
    """
    folder.mkdir()
    steps = np.cumsum(np.random.default_rng(1).integers(180, 260, seconds * 5))
    paths = []
    for rank, (rate, skew) in enumerate(zip(rates, skews_ms, strict=True)):
        export = Export(host=f"node{rank}", utc_epoch_ns=UTC + round(skew * MS))
        process = export.process(pid=7, env={"RANK": str(rank), "WORLD_SIZE": str(len(rates))})

        def shown(at: float, rate: float = rate) -> float:
            return round(at * (1 + rate) * MS) / MS

        for step in steps.tolist():
            process.range(f"step {step}", shown(step), shown(step + 170))
            for number, ranks in enumerate(members):
                if rank in ranks:
                    begin = step + 40 * number
                    late = 2 if rank == ranks[-1] else 0
                    process.nccl(
                        "AllReduce",
                        17,
                        (shown(begin + late), shown(begin + 12)),
                        communicator=0xA + number,
                        bytes=1 << 20,
                        payload=blobs,
                    )
                    process.kernel("sgemm", 7, (shown(begin - 20), shown(begin + 1)))
        paths.append(export.write(folder / f"rank{rank}.sqlite"))
    return paths


PAIR = ((0, 1),)
CHAIN = ((0, 1), (1, 2), (2, 3))


@pytest.mark.parametrize(
    ("rates", "skews", "members", "blobs"),
    [
        ((0, 50e-6), (0, 7), PAIR, True),
        ((0, -50e-6), (0, 3000), PAIR, True),
        ((30e-6, -50e-6), (0, -7), PAIR, False),
        ((0, 50e-6, -50e-6, 20e-6), (0, 7, -3000, 0.4), CHAIN, True),
        ((0, 0, 50e-6, 50e-6), (0, 0.3, -0.2, 7), CHAIN, True),
    ],
)
def test_clocks_that_run_apart_change_no_answer(
    rates: Sequence[float],
    skews: Sequence[float],
    members: Sequence[Sequence[int]],
    blobs: bool,
    tmp_path: Path,
) -> None:
    paths = job(tmp_path / "a", rates=rates, skews_ms=skews, members=members, blobs=blobs)
    true = job(
        tmp_path / "b", rates=[0] * len(rates), skews_ms=[0] * len(rates), members=members, blobs=blobs
    )
    found, right = document(*paths), document(*true)
    for rank, row in enumerate(found["tables"]["rank"]):
        expected = ((1 + rates[0]) / (1 + rates[rank]) - 1) * 1e6
        assert row["clock_drift_ppm"] == pytest.approx(expected, abs=0.05), rank
    collectives = zip(found["tables"]["collective"], right["tables"]["collective"], strict=True)
    for one, other in collectives:
        for name in ("rank", "step", "collective_id", "last_rank", "match"):
            assert one[name] == other[name], name
        for name in ("wait_ns", "transfer_ns"):
            assert one[name] == pytest.approx(other[name], abs=2_000), name
    warned = {warning["code"]: warning["message"] for warning in found["warnings"]}
    assert "ppm" in warned["clock_drift"]
    assert "clock_drift" not in {warning["code"] for warning in right["warnings"]}


def test_a_short_capture_shows_no_drift(tmp_path: Path) -> None:
    found = document(*job(tmp_path / "a", rates=(0, 1e-7), skews_ms=(0, 7), members=PAIR, seconds=2))
    assert [row["clock_drift_ppm"] for row in found["tables"]["rank"]] == [0, 0]


def test_what_no_clock_does_is_no_drift() -> None:
    times = np.arange(100, dtype=np.int64) * 100 * MS
    assert drift.fit(times, np.rint(times * 1e-3).astype(np.int64)).rate == 0


@given(
    ppm=st.floats(-100, 100),
    noise=st.integers(0, 50_000),
    wrong=st.integers(0, 25),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=60, deadline=None)
def test_drift_is_found_under_noise_and_wrong_pairs(ppm: float, noise: int, wrong: int, seed: int) -> None:
    """Either a rate within its error, or none because nothing shows it; never a correction that is far off."""
    random = np.random.default_rng(seed)
    times = np.sort(random.integers(0, 30_000 * MS, 400))
    truth = 7 * MS + times * ppm * 1e-6
    differences = np.rint(truth + random.normal(0, noise, times.size)).astype(np.int64)
    odd = random.choice(times.size, wrong, replace=False)
    differences[odd] += random.integers(-5 * MS, 5 * MS, wrong)
    error = np.abs(drift.fit(times, differences).at(times) - truth)
    assert error.max() <= 2_000 + noise


@given(seed=st.integers(0, 10**6), size=st.integers(2, 700))
@settings(max_examples=60, deadline=None)
def test_the_slope_is_that_of_the_medians_of_stretches_one_by_one(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    times, differences = (rng.integers(0, 3 * size, size) for _ in range(2))
    parts = np.array_split(np.argsort(times, kind="stable"), min(drift._STRETCHES, max(1, size // 2)))
    x, y = ([float(np.median(values[part])) for part in parts] for values in (times, differences))
    slopes = [
        (y[other] - y[one]) / (x[other] - x[one])
        for one in range(len(parts))
        for other in range(one + 1, len(parts))
        if x[other] > x[one]
    ]
    assert drift.slope(times, differences) == (float(np.median(slopes)) if slopes else 0.0)


def test_correction_is_the_same_for_arrays_and_frames() -> None:
    import polars as pl

    line = drift.Line(5, 50e-6, 1_000)
    times = np.array([0, 1_000, 123_456_789_123, -5 * MS], dtype=np.int64)
    moved = pl.DataFrame({"t": times}).select(line.move(pl.col("t")))["t"].to_numpy()
    assert (moved == times + line.at(times)).all()


def test_clocks_that_meet_nobody_keep_their_anchor() -> None:
    nothing = np.zeros(0, np.int64)
    kernels = Kernels.of(*[nothing] * 7)
    assert [one.method for one in align(kernels, {0: True, 1: True}).values()] == ["shared", "anchor"]


def test_transfers_that_got_slower_once_are_no_drift() -> None:
    """Ends of a simulated job whose clocks run alike: later ones are 2 us apart, as a line or as a step."""
    apart = [1441, 0, 228, 926, 961, 67, 2629, 1763, 1908, 3245, 3771, 2679]
    times = np.linspace(0, 137e6, len(apart)).astype(np.int64)
    assert drift.fit(times, 556_660 + np.array(apart)).rate == 0
