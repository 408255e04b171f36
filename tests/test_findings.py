"""Sentences say of every rank, and of no more ranks, what is known; a rank without figures is shown as such."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from builder import Export
from command import codes, document, run

HIDES = "s7 g[0,50) s17 c[20,60)"
EXPOSED = "s7 g[0,20) s17 c[20,60)"


def first(made: dict[str, Any]) -> tuple[str, str]:
    """Code and sentence of the most important finding behind what bounds the step."""
    return made["findings"][1]["code"], made["findings"][1]["message"]


def ranks(tmp_path: Path, *drawings: str, extra: str = "") -> Path:
    """One step of ranks that run these lanes; ``extra`` befalls the last."""
    export = Export()
    lines = [f'rank {rank} | host "step 0"[0,100) {drawing}' for rank, drawing in enumerate(drawings)]
    processes = export.lanes("\n".join(lines))
    if extra == "graph":
        processes[-1].graph((10, 80))
    return export.write(tmp_path / "a.sqlite")


@pytest.fixture
def unmarked(tmp_path: Path) -> Path:
    """Two ranks, of which only the first marks its steps."""
    return half_marked(tmp_path / "a.sqlite", 3)


def half_marked(path: Path, steps: int) -> Path:
    export = Export()
    for rank in (0, 1):
        process = export.process(device=rank)
        for step in range(steps):
            at = 100 * step
            if rank == 0:
                process.range(f"step {step}", at, at + 100)
            process.kernel("sgemm", 7, (at, at + 50))
            process.nccl("AllReduce", 17, (at + 20 + 10 * rank, at + 80))
    return export.write(path)


# --- a rank without steps ---------------------------------------------------------------------------------------


def test_a_page_calls_no_rank_the_fastest_whose_steps_it_does_not_know(
    unmarked: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    assert run("report", unmarked, "-o", page).code == 0
    table = page.read_text().split('id="rank-0"')[1].split("</table>")[0]
    assert 'id="rank-1"' in table
    assert "fastest" not in table
    assert "slowest" not in table


def test_a_rank_without_steps_is_shown_without_figures(unmarked: Path) -> None:
    made = document(unmarked)
    assert {row["rank"] for row in made["tables"]["overlap"]} == {0}
    assert "rank_without_window" in codes(made, "warnings")
    code, said = first(made)
    assert code == "overlap_on_some_ranks"
    assert said.startswith("Overlap on rank 0: ")
    assert said.endswith("; nothing is known of rank 1.")
    shown = run("analyze", unmarked).out
    assert "2 ranks" in shown
    assert re.search(r"^ *1( +\?)+ *$", shown, re.MULTILINE)


def test_a_rank_whose_steps_are_not_asked_for_is_shown_too(tmp_path: Path) -> None:
    export = Export()
    for rank, steps in enumerate((3, 1)):
        process = export.process(device=rank)
        for step in range(steps):
            process.range(f"step {step}", 100 * step, 100 * step + 100)
            process.kernel("sgemm", 7, (100 * step, 100 * step + 50))
    made = document(export.write(tmp_path / "a.sqlite"), "--steps", "1:")
    (said,) = (one["message"] for one in made["warnings"] if one["code"] == "rank_without_window")
    assert said == "no figures of rank 1: no step lies in the part asked for"


@pytest.mark.parametrize(
    "command",
    [
        "contention",
        "idle",
        "buckets",
        "diagnose",
        "whatif",
        "critical-path",
        "doctor",
        "report",
        "evidence",
        "timeline",
    ],
)
def test_a_rank_without_steps_stops_no_command(command: str, unmarked: Path, tmp_path: Path) -> None:
    form = {"report": "html", "evidence": "zip", "timeline": "svg"}.get(command)
    ran = run(command, unmarked, *(("-o", tmp_path / f"x.{form}") if form else ()))
    assert ran.code == 0, ran.err


@pytest.mark.parametrize("which", [None, "1"])
def test_a_rank_without_steps_is_drawn(which: str | None, unmarked: Path, tmp_path: Path) -> None:
    chosen = ("--ranks", which) if which else ()
    assert run("timeline", unmarked, "-o", tmp_path / "x.svg", *chosen).code == 0
    drawn = set(re.findall(r"rank \d", (tmp_path / "x.svg").read_text()))
    assert "rank 1" in drawn
    assert ("rank 0" in drawn) == (which is None)


def test_a_comparison_says_whose_step_it_compares(unmarked: Path, tmp_path: Path) -> None:
    ran = run("compare", unmarked, "--with", half_marked(tmp_path / "b.sqlite", 4))
    assert ran.code == 0, ran.err
    assert "has no figures of rank 1: its step is that of the other ranks" in " ".join(ran.out.split())


def test_nothing_is_claimed_of_a_rank_without_steps(unmarked: Path) -> None:
    for claim in ("overlap on every rank", "hidden_communication_ns > 0 on rank 1"):
        ran = run("check", unmarked, "--claim", claim)
        assert ran.code == 6, ran.out
        assert "rank 1 has no window of steps" in ran.out
    assert run("check", unmarked, "--claim", "overlap on any rank").code == 0


# --- every rank, some ranks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drawings", "extra", "code", "said"),
    [
        ((HIDES,) * 2, "", "overlap_on_every_rank", r"Overlap on every rank: .* under computation\."),
        ((HIDES,), "", "overlap_unsplit", r".* on the only rank, .*"),
        ((EXPOSED,) * 2, "", "no_overlap", r"No overlap on any rank: .*"),
        (
            (HIDES,) * 3,
            "graph",
            "overlap_on_some_ranks",
            r"Overlap on ranks 0 and 1: .*; nothing is known of rank 2\.",
        ),
        (
            (EXPOSED,) * 3,
            "graph",
            "no_overlap",
            r"No overlap on ranks 0 and 1: .*; nothing is known of rank 2\.",
        ),
        (
            (HIDES, HIDES, "s7 g[0,50)"),
            "",
            "overlap_on_some_ranks",
            r"Overlap on ranks 0 and 1: .*; rank 2 ran no communication\.",
        ),
        (
            (EXPOSED, EXPOSED, "s7 g[0,50)"),
            "",
            "no_overlap",
            r"No overlap on ranks 0 and 1: .*; rank 2 ran no communication\.",
        ),
        ((HIDES, EXPOSED), "", "overlap_on_some_ranks", r"Only rank 0 hides .*; the others hide none\."),
        (
            (HIDES, EXPOSED, HIDES),
            "graph",
            "overlap_on_some_ranks",
            r"Rank 0 hides .*; rank 1 hides none; nothing is known of rank 2\.",
        ),
    ],
)  # fmt: skip
def test_sentences_are_about_ranks_that_are_known(
    drawings: tuple[str, ...], extra: str, code: str, said: str, tmp_path: Path
) -> None:
    found = first(document(ranks(tmp_path, *drawings, extra=extra)))
    assert found[0] == code
    assert re.fullmatch(said, found[1]), found[1]


@pytest.mark.parametrize(
    ("world", "said"),
    [
        (2, r"No overlap on any rank: [^;]*\."),
        (8, r"No overlap on ranks 0 and 1: .*; 6 of the job's 8 ranks were not captured\."),
    ],
)
def test_ranks_that_were_not_captured_are_of_the_job_too(world: int, said: str, tmp_path: Path) -> None:
    export = Export()
    for rank in (0, 1):
        process = export.process(device=rank, env={"WORLD_SIZE": str(world)})
        process.kernel("sgemm", 7, (0, 20))
        process.nccl("AllReduce", 17, (20 + rank, 60))
    code, message = first(document(export.write(tmp_path / "a.sqlite"), "--per", "capture"))
    assert code == "no_overlap"
    assert re.fullmatch(said, message), message


def test_a_rank_with_nothing_but_warm_up_counts_with_it(tmp_path: Path) -> None:
    """From 90 ms on rank 0 shows only its long first step: that is no reason to count the first step of rank 1."""
    export = Export()
    export.lanes("""
        rank 0 | host "step 0"[0,100) "step 1"[100,200) s7 g[0,50) g[90,150)  s17 c[20,80) c[120,180)
        rank 1 | host "step 0"[0,100) "step 1"[100,200) s7 g[0,50) g[110,150) s17 c[40,80) c[130,180)
    """)
    made = document(export.write(tmp_path / "a.sqlite"), "--from", "90", "--to", "150")
    said = [one["message"] for one in made["findings"]]
    assert said[1].startswith("Overlap on every rank: ")
    assert "Nothing but warm-up is shown of rank 0: step 0." in said


def test_figures_that_read_the_same_are_said_once(tmp_path: Path) -> None:
    code, said = first(document(ranks(tmp_path, HIDES, HIDES)))
    assert code == "overlap_on_every_rank"
    assert "every rank: 30.00 ms of transfer a step (75 % of a rank's transfer)" in said
