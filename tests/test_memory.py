"""What a command says where memory is short, and what takes little of it on long captures."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from nsysddp import ask
from nsysddp.cli import _NO_MEMORY, cli, main
from nsysddp.dependencies.condensed import _running_most
from nsysddp.dependencies.graph import Graph
from nsysddp.join.load import load
from nsysddp.model import pools
from nsysddp.questions.diagnosis import rules
from nsysddp.questions.diagnosis.lateness import OwnTime
from nsysddp.questions.question import VERBS, asked
from nsysddp.render import document
from tests.command import run


@pytest.mark.parametrize("name", sorted(asked()))
def test_advice_where_memory_is_short_is_one_that_the_command_accepts(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_large(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("nsysddp.cli.options.Request.context", too_large)
    command = VERBS.get(name, name.replace("_", "-"))
    with pytest.raises(SystemExit) as ended:
        main([command, "report.sqlite", "other.sqlite"])
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert _NO_MEMORY in said
    accepted = {option for one in cli.get_command(None, command).params for option in one.opts}  # type: ignore[arg-type, union-attr]
    assert set(re.findall(r"--[a-z-]+", said)) <= accepted


class _Panic(BaseException):
    """As the one of polars, which is no Exception."""


@pytest.mark.parametrize(
    "error",
    [RuntimeError("can't start new thread"), _Panic("PyObject pointer is null")],
    ids=["thread", "panic"],
)
def test_a_thread_or_an_object_that_finds_no_memory_is_a_lack_of_memory(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("nsysddp.cli.options.Request.context", fails)
    with pytest.raises(SystemExit) as ended:
        main(["analyze", "report.sqlite"])
    assert (ended.value.code, capsys.readouterr().err) == (1, f"nsysddp: error: {_NO_MEMORY}\n")


@pytest.mark.parametrize("seed", range(20))
def test_a_running_maximum_within_groups_is_exact(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 400))
    group = np.sort(rng.integers(0, 12, size))
    value = rng.choice([rng.normal(0, 1e9, size), rng.integers(-3, 3, size) + rng.random(size) * 1e-9])
    value[rng.random(size) < 0.1] = rng.choice([0.0, -1e-300, 1e300, -1e300])
    expected = np.concatenate([np.maximum.accumulate(value[group == number]) for number in np.unique(group)])
    assert (_running_most(value, group) == expected).all()


_TOGETHER = (
    ("nsysddp.questions.critical_path.walk._NODES_AT_A_TIME", 7),
    ("nsysddp.dependencies.condensed._NODES_AT_A_TIME", 7),
    ("nsysddp.questions.peers._EVENTS_AT_A_TIME", 7),
    ("nsysddp.questions.peers._VALUES_AT_A_TIME", 7),
    ("nsysddp.questions.diagnosis.slowing._AT_A_TIME", 7),
    ("nsysddp.questions.diagnosis.path._PIECES_AT_A_TIME", 7),
    ("nsysddp.questions.whatif.even._EVENTS_AT_A_TIME", 7),
)


@pytest.mark.parametrize("error", [OSError, AttributeError, TypeError])
def test_a_system_that_keeps_freed_memory_by_its_own_rules_is_let_be(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def another(_: None) -> None:
        raise error

    monkeypatch.setattr("nsysddp.model.pools.ctypes.CDLL", another)
    pools.hand_back()
    pools.few_pools()


def test_a_command_has_its_threads_take_memory_from_few_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    library = SimpleNamespace(mallopt=lambda *values: asked.append(values), malloc_trim=lambda _: None)
    monkeypatch.setattr("nsysddp.model.pools.ctypes.CDLL", lambda _: library)
    assert run("analyze", Path(__file__).parent / "fixtures/h200/coarse4_cap16.sqlite.gz").code == 0
    assert asked == [(-8, 2)]


def test_freed_memory_is_handed_back_before_the_graph_and_before_causes_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trimmed: list[int] = []
    library = SimpleNamespace(malloc_trim=trimmed.append)
    monkeypatch.setattr("nsysddp.model.pools.ctypes.CDLL", lambda _: library)
    trace = load(
        Path(__file__).parent / "fixtures/h200/coarse4_cap16.sqlite.gz", host_calls=True, shapes=True
    )
    ask(trace, "critical_path")
    assert len(trimmed) == 2
    ask(trace, "diagnosis")
    assert len(trimmed) == 5


@pytest.mark.parametrize("name", ["critical_path", "diagnosis", "whatif", "slack"])
def test_answers_do_not_depend_on_how_much_is_worked_on_at_a_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Path(__file__).parent / "fixtures/h200/coarse4_cap16.sqlite.gz"
    whole = ask(load(report, host_calls=True, shapes=True), name)
    for place, count in _TOGETHER:
        monkeypatch.setattr(place, count)
    parts = ask(load(report, host_calls=True, shapes=True), name)
    assert whole.tables.keys() == parts.tables.keys()
    for table, frame in whole.tables.items():
        assert_frame_equal(frame, parts[table], rel_tol=1e-9, abs_tol=1e-6)
    assert [finding.code for finding in whole.findings] == [finding.code for finding in parts.findings]


def test_causes_are_given_to_some_paths_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    heights: list[int] = []

    def watched(own: OwnTime, graph: Graph, pieces: pl.DataFrame) -> pl.DataFrame:
        heights.append(pieces.height)
        return cut_at_causes(own, graph, pieces)

    cut_at_causes = rules.cut_at_causes
    monkeypatch.setattr(rules, "cut_at_causes", watched)
    monkeypatch.setattr("nsysddp.questions.diagnosis.path._PIECES_AT_A_TIME", 7)
    trace = load(
        Path(__file__).parent / "fixtures/h200/coarse4_cap16.sqlite.gz", host_calls=True, shapes=True
    )
    lengths = ask(trace, "critical_path")["critical_path"].group_by("step_index", "path_rank").len()["len"]
    ask(trace, "diagnosis")
    assert len(heights) == lengths.len() > 1  # one of them is of a warm-up step, and empty
    assert max(heights) in lengths


def test_a_long_table_is_the_same_document_however_many_rows_become_text_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = ask(load(Path(__file__).parent / "fixtures/h200/coarse4_cap16.sqlite.gz"), "analysis")
    whole = document.as_dict(answer)
    for rows in (1, 7):
        monkeypatch.setattr(document, "_ROWS_AT_A_TIME", rows)
        assert document.as_dict(answer) == whole
