"""Every screen fits its width, shows no more rows than a screen holds, and never counts 1 in the plural."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from builder import Export
from command import run
from rich.console import Console

import nsysddp
from nsysddp.cli.question import _SCREENS
from nsysddp.model.result import Result
from nsysddp.questions import context_of
from nsysddp.questions.context import Context
from nsysddp.questions.question import asked, question
from nsysddp.render.text import print_question, print_table

WIDTHS = (80, 100, 120)
MOST_ROWS = 24
HERE = Path(__file__).parent / "fixtures"
REPORTS = (
    "h200/delay_cap4",
    "h200/gpt_ddp",
    "h200/two_groups",
    "h200/host_gap",
    "tp",
    "many_ranks",
    "many_steps",
)


def drawn(ranks: int, steps: int, folder: Path) -> Path:
    """Ranks that compute, communicate in three buckets and are called what frameworks call things: long names."""
    export = Export()
    for rank in range(ranks):
        process = export.process(pid=100 + rank, device=rank)
        for step in range(steps):
            at = 40 * step
            process.range(f"step {step}", at, at + 40)
            process.range("forward", at, at + 10)
            process.range("backward", at + 10, at + 30)
            process.kernel(
                "void at::native::vectorized_elementwise_kernel<4, " + "x" * 120 + ">", 7, (at, at + 10)
            )
            for bucket in range(3):
                begin = at + 11 + 6 * bucket
                process.kernel("sgemm", 7, (begin, begin + 5))
                process.nccl(
                    "AllReduce", 17, (begin + 5 + rank / 100, begin + 8), bytes=4 << 20, communicator=0xABC
                )
    return export.write(folder / "drawn.sqlite")


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Context]:
    """A report by name, read once with all that any question needs."""
    folder = tmp_path_factory.mktemp("drawn")

    @cache
    def of(name: str) -> Context:
        if name == "many_ranks":
            path = drawn(40, 2, folder)
        elif name == "many_steps":
            path = drawn(2, 60, folder)
        else:
            path = HERE / f"{name}.sqlite.gz"
        trace = nsysddp.load(path, launches=True, host_calls=True, shapes=True, metrics=True)
        return context_of(trace)

    return of


def screen(name: str, result: Result, width: int, table: str | None = None) -> str:
    """What a question's command prints on a terminal of this width."""
    out = Console(width=width, file=io.StringIO(), highlight=False, markup=False, emoji=False)
    if table is not None:
        print_table(result[table], table, out)
    elif name in _SCREENS:
        module, _, function = _SCREENS[name].partition(":")
        getattr(import_module(module), function)(result, out)
    else:
        print_question(result, question(name).shown, out)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def rows_below_rules(text: str) -> list[int]:
    """How many lines each table has below its heads."""
    return [
        len(re.match(r"(?:[^\n]*\S[^\n]*\n)*", part)[0].splitlines())  # type: ignore[index]
        for part in re.split(r"^[─━ ]*─[─━ ]*\n", text, flags=re.MULTILINE)[1:]
    ]


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("name", sorted(asked()))
def test_screens_fit_their_width_and_hold_a_screenful_of_rows(
    name: str, report: str, contexts: Callable[[str], Context]
) -> None:
    context = contexts(report)
    result = question(name).answer(context)
    for width in WIDTHS:
        text = screen(name, result, width)
        assert max(map(len, text.splitlines())) <= width, text
        assert max(rows_below_rules(text), default=0) <= MOST_ROWS, text
        assert not re.search(r"(?<![\d.,])1 (?:ranks|steps|buckets|reports|rows)\b", text), text
        assert "…" not in text or width < 120, text
    for table in result.tables:
        text = screen(name, result, 80, table)
        assert max(map(len, text.splitlines())) <= 80, text
        assert max(rows_below_rules(text), default=0) <= MOST_ROWS, text


@pytest.mark.parametrize("columns", [80, 100, 120])
@pytest.mark.parametrize(
    "words", [("doctor",), ("compare", "--with"), ("check", "--claim", "overlap on any rank")]
)
def test_other_commands_fit_too(
    words: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    report = HERE / "h200/delay_cap4.sqlite.gz"
    more = [HERE / "h200/delay_cap64.sqlite.gz"] if words[0] == "compare" else []
    ran = run(words[0], report, *words[1:], *more)
    assert ran.code == 0, ran.err
    assert max(map(len, ran.out.splitlines())) <= columns, ran.out


def test_a_pipe_is_100_columns_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    out = run("analyze", HERE / "h200/delay_cap4.sqlite.gz").out
    assert 80 < max(map(len, out.splitlines())) <= 100


def test_causes_are_numbered_without_holes(contexts: Callable[[str], Context]) -> None:
    for report in REPORTS:
        text = screen("diagnosis", question("diagnosis").answer(contexts(report)), 120)
        numbers = [int(found) for found in re.findall(r"^ *(\d+) [a-z_]+  ", text, re.MULTILINE)]
        assert numbers == list(range(1, len(numbers) + 1))


def uneven(path: Path, scale: int) -> Path:
    """By the median rank 0 is the slower one, by the mean and the longest step rank 1."""
    export = Export()
    for rank, lengths in enumerate([(50, 50, 50, 50, 50, 50), (40, 40, 95, 40, 95, 40)]):
        process = export.process(device=rank)
        at = 0
        for step, length in enumerate(lengths):
            process.range(f"step {step}", at, at + scale * length)
            process.kernel("sgemm", 7, (at, at + scale * length))
            at += scale * length
    return export.write(path)


def test_analyze_and_compare_name_the_same_slowest_rank(tmp_path: Path) -> None:
    path = uneven(tmp_path / "a.sqlite", 1)
    assert "slowest rank 0 50.00 ms" in run("analyze", path).out
    ran = run("compare", uneven(tmp_path / "b.sqlite", 2), "--with", path)
    assert ran.code == 0, ran.err
    assert "Rank 0, the slowest of the new side" in " ".join(ran.out.split())


def test_of_many_ranks_the_one_that_the_first_sentence_names_has_its_row(tmp_path: Path) -> None:
    from simulation.export import write
    from simulation.jobs import Job, Planted, simulate

    job = Job(ranks=24, steps=3, layers=2, planted=Planted("slow_rank", 1.4, rank=7, phase="backward"))
    ran = run("analyze", *write(simulate(job), tmp_path, per_rank=False))
    assert ran.code == 0
    assert "Rank 7 is late" in ran.out
    assert "Rank 7 and the 15 slowest others of 24 ranks" in ran.out
    assert re.search(r"^ +7 +\d", ran.out, re.MULTILINE)
