"""Comparison of runs: accounts that balance, verdicts, unlike pairs, the command and its picture."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from builder import Export
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysddp import cli, samples
from nsysddp.evidence.sources import Reading, folder_sources, load_one, repeats
from nsysddp.model.errors import AnalysisError, CannotTell, UsageError
from nsysddp.model.schema import RANK
from nsysddp.questions.compare import Comparison, compare
from nsysddp.questions.compare.account import WINDOW_PARTS
from nsysddp.questions.compare.facts import facts_of, unlike
from nsysddp.questions.compare.metrics import RANK_METRICS, percentile
from nsysddp.questions.compare.run import PATH_PARTS, Run, run_of
from nsysddp.questions.overlap import OVERLAP
from nsysddp.render.compare.document import as_dict
from nsysddp.render.compare.picture import draw_comparison, drawn_rows
from nsysddp.render.compare.tables import markdown
from nsysddp.render.compare.words import sentence, which_is_which

PARTS = ("compute_ns", "exposed_transfer_ns", "exposed_wait_ns", "exposed_memory_ns", "graph_ns", "idle_ns")


def window(
    rank: int, step: int, parts: Sequence[int], *, warm: bool = False, hidden: int = 0
) -> dict[str, Any]:
    """One row of the overlap table made of these parts."""
    row: dict[str, Any] = dict(zip(PARTS, parts, strict=True))
    exposed = row["exposed_transfer_ns"] + row["exposed_wait_ns"]
    return {
        **row,
        "rank": rank,
        "step": f"step {step}",
        "step_index": step,
        "is_warmup": warm,
        "window_ns": sum(parts),
        "spin_ns": 0,
        "communication_ns": exposed + hidden,
        "hidden_communication_ns": hidden,
        "exposed_communication_ns": exposed,
        "hidden_transfer_ns": hidden,
        "hidden_wait_ns": 0,
        "hidden_unsplit_ns": 0,
        "exposed_unsplit_ns": 0,
        "p2p_copy_ns": 0,
        "kernels": 3,
        "collectives": 1,
    }


def run_from(
    rows: Sequence[dict[str, Any]], name: str = "run", facts: dict[str, str] | None = None, gpu: str = "H200"
) -> Run:
    ranks = sorted({row["rank"] for row in rows})
    tables = {
        "overlap": OVERLAP.frame(rows),
        "rank": RANK.frame([{"rank": rank, "gpu_name": gpu} for rank in ranks]),
    }
    return run_of(name, tables, facts=facts)


def steady_run(
    name: str, rng: random.Random, *, step_ns: int, steps: int = 8, facts: dict[str, str] | None = None
) -> Run:
    """Two ranks; the step is mostly computation, the rest idle."""
    rows = [
        window(rank, step, (step_ns + rng.randrange(step_ns // 100), 1000, 10 * rank, 0, 0, 500))
        for step in range(steps)
        for rank in (0, 1)
    ]
    return run_from(rows, name, facts)


LENGTHS = st.lists(st.integers(0, 10**7), min_size=len(PARTS), max_size=len(PARTS))
SIDES = st.lists(st.lists(LENGTHS, min_size=1, max_size=5), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(base=SIDES, new=SIDES)
def test_the_account_sums_to_the_whole_exactly(base: list[Any], new: list[Any]) -> None:
    """Means of any numbers of steps and runs are no whole numbers, and still every column adds up."""
    sides = [
        [run_from([window(0, step, parts) for step, parts in enumerate(run)]) for run in side]
        for side in (base, new)
    ]
    account = compare(*sides).tables["account"]
    whole = account.filter(pl.col("part") == "step").row(0, named=True)
    parts = account.filter(pl.col("part") != "step")
    for column in ("base_ns", "new_ns", "change_ns"):
        assert parts[column].sum() == whole[column]
    assert set(parts["part"]) <= set(WINDOW_PARTS)
    for column, side in (("base_ns", base), ("new_ns", new)):
        mean = np.mean([np.mean([sum(parts) for parts in run]) for run in side])
        assert whole[column] == pytest.approx(mean, abs=0.51)
        compute = parts.filter(pl.col("part") == "compute")[column].sum()
        assert compute == pytest.approx(
            np.mean([np.mean([parts[0] for parts in run]) for run in side]), abs=1.0
        )


def test_parts_that_do_not_sum_are_refused() -> None:
    row = window(0, 0, (100, 10, 10, 0, 0, 5))
    row["exposed_communication_ns"] = 21
    with pytest.raises(AnalysisError, match="do not sum"):
        run_from([row])


def test_contention_and_host_are_taken_out_of_compute_and_idle_where_every_run_knows_them() -> None:
    rows = [window(0, step, (100, 0, 0, 0, 0, 50)) for step in range(3)]
    more = {
        "overlap": OVERLAP.frame(rows),
        "rank": RANK.frame([{"rank": 0}]),
        "contention_step": pl.DataFrame(
            {"rank": [0] * 3, "step_index": [0, 1, 2], "contention_ns": [10, 20, 30]}
        ),
        "idle_step": pl.DataFrame(
            {
                "rank": [0, 0, 0],
                "step_index": [0, 0, 2],
                "cause": ["launch_late", "event_wait", "synchronisation"],
                "idle_ns": [30, 20, 15],
            }
        ),
    }
    known = run_of("known", more)
    parts = dict(compare([known], [known]).tables["account"].select("part", "base_ns").iter_rows())
    assert parts == {"step": 150, "compute": 80, "contention": 20, "host": 15, "idle": 35}
    unknown = run_from(rows)
    parts = dict(compare([known], [unknown]).tables["account"].select("part", "base_ns").iter_rows())
    assert parts == {"step": 150, "compute": 100, "idle": 50}


def test_warm_up_steps_take_no_part() -> None:
    rows = [window(0, step, (100, 0, 0, 0, 0, 0)) for step in range(1, 4)]
    run = run_from([window(0, 0, (9999, 0, 0, 0, 0, 0), warm=True), *rows])
    assert run.samples["step_ns", None].tolist() == [100, 100, 100]


def test_a_step_lasts_as_long_as_on_its_slowest_rank_and_only_where_every_rank_has_it() -> None:
    rows = [
        window(0, 0, (10, 0, 0, 0, 0, 0)),
        window(1, 0, (30, 0, 0, 0, 0, 0)),
        window(0, 1, (40, 0, 0, 0, 0, 0)),
        window(1, 1, (20, 0, 0, 0, 0, 0)),
        window(0, 2, (999, 0, 0, 0, 0, 0)),
    ]
    assert run_from(rows).samples["step_ns", None].tolist() == [30, 40]


@pytest.mark.parametrize(
    ("new_ns", "runs", "verdict"),
    [
        (90_000, 4, "faster"),
        (110_000, 4, "slower"),
        (100_000, 4, "no difference shown"),
        (50_000, 1, "not enough data"),
        (50_000, 2, "not enough data"),
    ],
)
def test_verdicts(new_ns: int, runs: int, verdict: str) -> None:
    rng = random.Random(7)
    base = [steady_run(f"base {n}", rng, step_ns=100_000) for n in range(4)]
    new = [steady_run(f"new {n}", rng, step_ns=new_ns) for n in range(runs)]
    found = compare(base, new)
    row = found.headline
    assert row["metric"] == "step_ns"
    assert row["verdict"] == verdict
    assert verdict in sentence(found).lower()
    if runs < 3:
        assert row["detectable"] is None
        assert row["scope"] == "these_runs"
        assert row["low"] is not None, "how well these very runs were measured can still be said"
        assert any("at least 3 a side" in warning for warning in found.warnings)
    else:
        assert row["low"] <= row["difference"] <= row["high"]


def test_a_metric_of_which_more_is_better_is_no_slowdown() -> None:
    rng = random.Random(3)
    sides = []
    for rate in (100.0, 120.0):
        runs = [steady_run("run", rng, step_ns=100_000) for _ in range(4)]
        sides.append(
            [
                Run(
                    run.name, {**run.samples, ("throughput", None): np.array([rate + rng.random()])}, {}, run.windows,
                    (), run.facts, recorded=False,
                )
                for run in runs
            ]
        )  # fmt: skip
    frame = compare(*sides).tables["comparison"]
    assert frame.filter(pl.col("metric") == "throughput")["verdict"].to_list() == ["faster"]


def test_unknown_figures_stay_unknown_with_the_reason() -> None:
    rows = [window(0, step, (100, 10, 0, 0, 0, 0)) for step in range(4)]
    for row in rows[:2]:
        row["hidden_transfer_ns"] = None
    frame = compare([run_from(rows)], [run_from(rows)]).tables["comparison"]
    row = frame.filter(pl.col("metric") == "hidden_transfer_ns").row(0, named=True)
    assert row["base"] is None
    assert row["verdict"] == "not enough data"
    assert "unknown in 2 of 4 steps" in row["reason"]


def test_without_steps_nothing_is_called_a_step() -> None:
    row = window(0, 0, (100, 0, 0, 0, 0, 0)) | {"step": None, "step_index": None}
    with pytest.raises(CannotTell, match="no step can be compared"):
        compare([run_from([row])], [run_from([row])])


# --- unlike pairs -------------------------------------------------------------------------------------------


def capture(**changes: Any) -> dict[str, Any]:
    """A run.json, as far as a comparison reads it."""
    return {
        "format": "nsysddp run 1",
        "outcome": {"kind": "ok"},
        "command": {
            "profile": [
                "nsys",
                "profile",
                "--trace=cuda,nvtx",
                "--output=o/r",
                "python",
                "-u",
                "train.py",
                "--lr",
                "3e-4",
            ]
        },
        "configuration": {"ranks": 2, "nproc": 2, "warmup": 5, "seed": 0, "backend": "nccl"},
        "versions": {"torch": "2.11"},
        **changes,
    }


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("warm-up", {"configuration": {"warmup": 6, "seed": 0, "backend": "nccl"}}),
        (
            "nsys flags",
            {
                "command": {
                    "profile": ["nsys", "profile", "--trace=cuda", "python", "train.py", "--lr", "3e-4"]
                }
            },
        ),
        (
            "program",
            {
                "command": {
                    "profile": ["nsys", "profile", "--trace=cuda,nvtx", "python", "other.py", "--lr", "3e-4"]
                }
            },
        ),
        ("backend", {"configuration": {"warmup": 5, "seed": 0, "backend": "gloo"}}),
    ],
)
def test_what_makes_a_comparison_meaningless_is_refused_by_name(what: str, changes: dict[str, Any]) -> None:
    rng = random.Random(1)
    base = steady_run("base", rng, step_ns=1000, facts=facts_of(capture()))
    new = steady_run("new", rng, step_ns=1000, facts=facts_of(capture(**changes)))
    with pytest.raises(UsageError, match=what):
        compare([base], [new])
    found = compare([base], [new], allow_unlike=True)
    row = found.tables["unlike"].filter(pl.col("what") == what).row(0, named=True)
    assert row["refused"]
    assert any(warning.startswith(f"{what} differs") for warning in found.warnings)


def test_other_gpus_and_other_numbers_of_ranks_are_refused() -> None:
    rows = [window(0, 0, (10, 0, 0, 0, 0, 0))]
    with pytest.raises(UsageError, match="GPU: 1 x H200 against 1 x A100"):
        compare([run_from(rows)], [run_from(rows, gpu="A100")])
    two = [*rows, window(1, 0, (10, 0, 0, 0, 0, 0))]
    with pytest.raises(UsageError, match="ranks: 1 against 2"):
        compare([run_from(rows)], [run_from(two)])


def test_a_seed_an_argument_or_a_version_is_named_and_not_refused() -> None:
    rng = random.Random(1)
    base = steady_run("base", rng, step_ns=1000, facts=facts_of(capture()))
    changed = capture(
        configuration={"warmup": 5, "seed": 1, "backend": "nccl"},
        versions={"torch": "2.13"},
        command={
            "profile": [
                "nsys",
                "profile",
                "--trace=cuda,nvtx",
                "--output=x",
                "python",
                "train.py",
                "--lr",
                "1e-3",
            ]
        },
    )
    new = steady_run("new", rng, step_ns=1000, facts=facts_of(changed))
    named = {what: (one, other) for what, one, other, _ in unlike([base], [new]).iter_rows()}
    assert named == {
        "seed": ("0", "1"),
        "argument --lr": ("3e-4", "1e-3"),
        "version of torch": ("2.11", "2.13"),
    }
    assert not compare([base], [new]).tables["unlike"]["refused"].any()


def test_repeats_of_one_side_that_differ_are_named_too() -> None:
    rng = random.Random(1)
    runs = [
        steady_run(
            str(seed), rng, step_ns=1000, facts=facts_of(capture(configuration={"seed": seed, "warmup": 5}))
        )
        for seed in (0, 1)
    ]
    assert unlike(runs, runs[:1]).row(0)[:3] == ("seed", "0 / 1", "0")


def test_no_text_of_a_command_line_is_shown() -> None:
    secret = "hunter2-token"
    profile = [
        "nsys", "profile", f"--env-var=KEY={secret}", "--trace=cuda", f"--output=/home/{secret}/x", "python",
        f"/home/{secret}/train.py", "--key", secret, f"--token={secret}", secret,
    ]  # fmt: skip
    facts = facts_of(capture(command={"profile": profile}))
    assert secret not in json.dumps(facts)
    assert facts["program"] == "train.py"
    other = facts_of(capture(command={"profile": [word.replace(secret, "other") for word in profile]}))
    assert facts["argument --key"] != other["argument --key"], "still told apart"


# --- percentiles --------------------------------------------------------------------------------------------


def test_a_percentile_occurred_and_needs_enough_steps() -> None:
    steps = np.arange(1, 101, dtype=np.float64)
    assert percentile(steps, 0.95) == 95
    assert percentile(steps, 0.99) == 99
    assert percentile(steps[:20], 0.95) == 19
    assert percentile(steps[:19], 0.95) is None
    assert percentile(steps[:99], 0.99) is None


def test_the_matrix_names_the_slowest_rank_and_nobody_where_all_are_alike() -> None:
    rows = [window(rank, step, (100 + 50 * rank, 0, 0, 0, 0, 0)) for step in range(2) for rank in (0, 1)]
    matrix = compare([run_from(rows)], [run_from(rows)]).tables["matrix"]
    slowest = matrix.filter(pl.col("is_slowest") & (pl.col("metric") == "window_ns"))
    assert slowest["rank"].to_list() == [1, 1]
    alike = matrix.filter(pl.col("metric") == "exposed_wait_ns")
    assert not alike["is_slowest"].any()


# --- real captures ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_samples() -> Comparison:
    """Twelve buckets against one, from the bundled captures."""
    base, new = (
        load_one(source, Reading()).run
        for source in repeats([samples.path(samples.TWELVE_BUCKETS), samples.path(samples.ONE_BUCKET)])
    )
    return compare([base], [new])


def test_the_bundled_captures(of_samples: Comparison) -> None:
    row = of_samples.headline
    assert (row["base"], row["new"], row["difference"]) == (65_983_699, 63_722_059, -2_261_640)
    assert row["verdict"] == "not enough data"
    account = of_samples.tables["account"]
    parts = dict(
        account.filter((pl.col("view") == "window") & (pl.col("rank") == 1))
        .select("part", "change_ns")
        .iter_rows()
    )
    assert parts["step"] == -3_489_591
    assert parts["exposed_wait"] == -3_023_965
    assert parts["exposed_transfer"] == 157_934
    assert parts["compute"] == -7_983
    assert parts["host"] + parts["idle"] == -615_449
    path = account.filter(pl.col("view") == "critical_path")
    assert path.filter(pl.col("part") != "step")["change_ns"].sum() == path["change_ns"][0]
    assert set(path["part"][1:]) <= set(PATH_PARTS)


def test_the_document_is_plain_and_complete(of_samples: Comparison) -> None:
    document = json.loads(json.dumps(as_dict(of_samples)))
    assert document["verdict"] == "not enough data"
    metrics = {row["metric"] for row in document["tables"]["comparison"]}
    assert {metric.name for metric in RANK_METRICS} <= metrics
    assert "| step window | 62.494" not in markdown(of_samples)
    assert "delay\\_cap4" in markdown(of_samples)


def test_the_picture_is_the_same_twice(of_samples: Comparison, tmp_path: Path) -> None:
    from nsysddp.render.timeline import save

    for name in ("one.png", "two.png", "one.svg", "two.svg"):
        save(draw_comparison(of_samples), tmp_path / name)
    for kind in ("png", "svg"):
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()
    text = (tmp_path / "one.svg").read_text()
    assert "Not enough data for a verdict" in text
    assert "+157" in text or "exposed transfer" in text


def of_two_signs(*, runs: int = 3, ranks: int = 2) -> Comparison:
    """By its own clock the job got 2.26 ms shorter; under the profiler its slowest rank's step got longer."""
    sides = []
    for profiled_ns, measured_ns in ((100_000_000, 90_260_000.0), (100_720_000, 88_000_000.0)):
        made = []
        for number in range(runs):
            rows = [
                window(rank, step, (profiled_ns + 1000 * rank + number, 0, 0, 0, 0, 0))
                for step in range(4)
                for rank in range(ranks)
            ]
            tables = {
                "overlap": OVERLAP.frame(rows),
                "rank": RANK.frame([{"rank": rank, "gpu_name": "H200"} for rank in range(ranks)]),
            }
            made.append(
                run_of(f"run {number}", tables, measured={"measured_step_ns": [measured_ns + number] * 4})
            )
        sides.append(made)
    return compare(*sides)


@pytest.mark.parametrize(("runs", "ranks"), [(1, 1), (3, 2), (4, 8)])
def test_a_headline_of_one_sign_over_a_table_of_another_says_which_is_which(runs: int, ranks: int) -> None:
    found = of_two_signs(runs=runs, ranks=ranks)
    assert "−2.260 ms" in sentence(found)
    (said,) = which_is_which(found)
    assert "−2.260 ms is of the job's unprofiled step" in said
    for whose in (
        "the job's profiled step (slowest rank of each step, median of each run, mean over the runs): +0.720 ms",
        f"rank {ranks - 1}'s own step, median of each run, mean over the runs: +0.720 ms",
        f"rank {ranks - 1}'s own step, mean of all its steps: +0.720 ms",
    ):
        assert whose in said
    assert as_dict(found)["which_is_which"] == [said]
    assert "Not the same thing, and not the same sign" in markdown(found)
    assert "Not the same thing" in " ".join(text.get_text() for text in draw_comparison(found).texts)


def test_where_the_signs_agree_nothing_is_added(of_samples: Comparison) -> None:
    rng = random.Random(1)
    sides = [[steady_run("run", rng, step_ns=step_ns) for _ in range(3)] for step_ns in (100_000, 80_000)]
    assert which_is_which(compare(*sides)) == []
    assert all("median of each run" in title or "means of all steps" in title or "Percentiles" in title
               for title in re.findall(r"^\*\*(.* \(ms.*)\*\*$", markdown(of_samples), re.MULTILINE))  # fmt: skip


def test_with_one_run_a_side_nothing_drawn_looks_like_an_interval() -> None:
    rng = random.Random(5)
    sides = [[steady_run("run", rng, step_ns=step_ns, steps=20)] for step_ns in (100_000, 90_000)]
    found = compare(*sides)
    assert found.headline["low"] is not None, "of these very runs there is one, which the tables mark"
    assert all(row["low"] is None for row in drawn_rows(found))
    runs, _, intervals = draw_comparison(found).axes
    for axes in (runs, intervals):
        inner = [line for line in axes.lines if list(line.get_xdata()) != [0, 0]]  # without the axis at 0
        assert inner
        assert {line.get_marker() for line in inner} == {"o"}
        assert all(line.get_linestyle() == "None" or len(line.get_xdata()) == 1 for line in inner)
    several = draw_comparison(of_two_signs(runs=3))
    assert any(len(line.get_xdata()) == 2 and line.get_marker() == "None" for line in several.axes[0].lines)


def test_no_text_of_the_picture_is_cut(of_samples: Comparison) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    long = of_two_signs(ranks=64)
    named = Comparison(
        tuple(f"a-rather-long-name-of-a-capture-{n}" for n in range(9)),
        long.new,
        long.tables,
        (),
        (),
        long.runs,
    )
    for found in (of_samples, long, named):
        figure = draw_comparison(found)
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
        texts = [
            *figure.texts,
            *(axes.xaxis.label for axes in figure.axes),
            *(axes.title for axes in figure.axes),
        ]
        texts += [label for axes in figure.axes for label in axes.get_yticklabels()]
        for text in texts:
            box = text.get_window_extent(renderer)
            assert box.x0 >= 0, text
            assert box.x1 <= figure.bbox.width, text
            assert box.y0 >= 0, text
            assert box.y1 <= figure.bbox.height, text


# --- the command --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four captures a side, 12 steps of 2 ranks each; the new side computes 7 % faster."""
    folder = tmp_path_factory.mktemp("captures")
    for number in range(4):
        write_capture(folder / f"base-{number + 1}", seed=number, scale=1.0, cap=25)
        write_capture(folder / f"new-{number + 1}", seed=10 + number, scale=0.93, cap=4)
    return folder


def write_capture(folder: Path, *, seed: int, scale: float, cap: int) -> None:
    """A folder as `nsysddp capture` leaves it: DDP steps with an all-reduce that runs out of backward."""
    rng = random.Random(seed)
    drift = rng.gauss(0, 0.15)
    export = Export(unit="ms")
    ranks = [export.process(pid=100 + rank, device=rank) for rank in range(2)]
    at = 0.0
    for step in range(12):
        noise = [rng.gauss(0, 0.1) for _ in ranks]
        ends = []
        for number, rank in enumerate(ranks):
            first = at + 0.1
            middle = first + 3 + 0.2 * number + noise[number]
            end = middle + 6 * scale + drift + noise[number]
            rank.range(f"step {step}", at, end + 2.5)
            rank.range("forward", at, first + 0.01)
            rank.range("backward", first + 0.02, first + 0.5)
            rank.kernel("sgemm", stream=7, at=(first, middle), launched=at + 0.02)
            rank.kernel("bgemm", stream=7, at=(middle, end), launched=first + 0.1)
            ends.append(end)
        last = max(ends)
        for number, rank in enumerate(ranks):
            rank.nccl(
                "AllReduce", stream=17, at=(ends[number] - 1.5 + 0.1 * number, last + 0.4), bytes=4 << 20,
                communicator=0xABC, launched=at + 0.3,
            )  # fmt: skip
            rank.kernel("adam", stream=7, at=(last + 0.45, last + 1.0), launched=at + 0.9)
        at = last + 1.2
    folder.mkdir()
    export.write(folder / "report.sqlite")
    content = capture(configuration={"warmup": 5, "seed": 0, "bucket_cap_mib": cap})
    (folder / "run.json").write_text(json.dumps(content))


Tool = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str]) -> Tool:
    """``tool("compare", ...)``: exit code, stdout and stderr of the command."""

    def run(*argv: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(word) for word in argv])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def side(folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(f"{name}-*"))


def test_command_says_what_is_faster_and_by_how_much(captures: Path, tool: Tool, tmp_path: Path) -> None:
    picture = tmp_path / "c.png"
    arguments = (*side(captures, "base"), "--with", *side(captures, "new"))
    code, out, _ = tool("compare", *arguments, "--plot", picture, "--format", "json")
    assert code == 0
    document = json.loads(out)
    assert document["verdict"] == "faster"
    assert document["base"] == [f"base-{n}" for n in range(1, 5)]
    unlike_rows = document["tables"]["unlike"]
    assert [(row["what"], row["base"], row["new"]) for row in unlike_rows] == [("bucket cap mib", "25", "4")]
    assert picture.read_bytes().startswith(b"\x89PNG")
    code, out, err = tool("compare", *arguments, "--plot", picture)
    assert (code, out) == (2, "")
    assert "--force" in err
    code, text, _ = tool("compare", *arguments)
    assert code == 0
    assert "The new side is faster" in text
    assert "Read" not in text
    code, text, _ = tool("compare", *arguments, "--format", "markdown")
    assert text.startswith("**The new side is faster")


def test_command_reads_folders_of_captures(captures: Path, tool: Tool) -> None:
    assert [source.name for source in folder_sources(captures)] == [
        *(f"base-{n}" for n in range(1, 5)),
        *(f"new-{n}" for n in range(1, 5)),
    ]
    code, out, err = tool("compare", captures / "base-1", "--with", captures / "new-1")
    assert code == 0, err
    assert "Not enough data" in out
    assert "holds for these very runs only" in out


def test_command_reads_kept_runs(captures: Path, tool: Tool, tmp_path: Path) -> None:
    pytest.importorskip("alembic")
    db = tmp_path / "runs.db"
    arguments = (*side(captures, "base"), "--with", *side(captures, "new"))
    _, fresh, err = tool("compare", *arguments, "--save", "--db", db, "--format", "json")
    assert err.count("saved") == 8
    numbers = [f"run:{n}" for n in range(1, 9)]
    code, out, err = tool("compare", *numbers[:4], "--with", *numbers[4:], "--db", db, "--format", "json")
    assert code == 0, err
    kept, read = json.loads(out), json.loads(fresh)
    assert kept["verdict"] == "faster"
    for metric in ("step_ns", "window_ns", "exposed_communication_ns"):
        rows = [
            [row for row in one["tables"]["comparison"] if row["metric"] == metric] for one in (kept, read)
        ]
        assert rows[0] == rows[1]
    assert tool("compare", "run:1", "--with", "run:2", "--db", db, "--skip-warmup", "1")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["base-1", "--with"], "requires an argument"),
        (["base-1"], "one other side is needed"),
        (["base-1", "--with", "base-1"], "given twice"),
        (["base-1", "--with", "nothing"], "nothing"),
    ],
)
def test_command_refuses_what_makes_no_sense(
    captures: Path, tool: Tool, arguments: list[str], said: str
) -> None:
    words = [str(captures / word) if not word.startswith("-") else word for word in arguments]
    code, out, err = tool("compare", *words)
    assert code in (2, 3)
    assert out == ""
    assert said in err
    assert "Traceback" not in err


def test_a_failed_capture_is_not_compared(captures: Path, tool: Tool, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "run.json").write_text(json.dumps(capture(outcome={"kind": "hang"})))
    code, _, err = tool("compare", captures / "base-1", "--with", broken)
    assert code == 1
    assert "ended as hang" in err
