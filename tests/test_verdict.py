"""The first sentence says what bounds the step, with figures of the ranks' rows, and no more than is known."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builder import Export
from command import document, run
from simulation.export import write
from simulation.jobs import MS, Job, Planted, simulate

from nsysddp.model.names import ranks_text


def bound(made: dict[str, Any]) -> tuple[str, str]:
    """Code and sentence of what bounds the step."""
    return made["findings"][0]["code"], made["findings"][0]["message"]


def later(drawing: str, at: int) -> str:
    """The lanes, ``at`` later."""
    return re.sub(r"\[(\d+),(\d+)\)", lambda found: f"[{int(found[1]) + at},{int(found[2]) + at})", drawing)


def steps(tmp_path: Path, *lanes: str, count: int = 3, length: int = 100) -> Path:
    """Steps of ranks that run these lanes in each."""
    export = Export()
    for step in range(count):
        at = step * length
        for rank, drawing in enumerate(lanes):
            export.lanes(f'rank {rank} | host "step {step}"[{at},{at + length}) {later(drawing, at)}')
    return export.write(tmp_path / "a.sqlite")


@pytest.mark.parametrize(
    ("lanes", "code", "said"),
    [
        (("s7 g[0,90) s17 c[80,95)",) * 2, "bound_by_compute", "Computation fills "),
        (("s7 g[0,20) s17 c[20,100)",) * 2, "bound_by_communication", "Exposed communication takes "),
        (("s7 g[0,20) s9 memcpy[20,100)",), "bound_by_copies", "Copies alone take "),
        (("s7 g[0,20) g[90,100)",), "bound_by_host", "GPU idle "),
        (("s7 graph[0,90) g[90,100)",), "bound_unknown", "CUDA graphs fill "),
    ],
)
def test_the_largest_part_of_the_step_is_said_first(
    lanes: tuple[str, ...], code: str, said: str, tmp_path: Path
) -> None:
    found, message = bound(document(steps(tmp_path, *lanes)))
    assert found == code, message
    assert message.startswith(said)


def test_a_gpu_that_runs_dry_before_the_launch_idles_for_the_host(tmp_path: Path) -> None:
    """Every kernel is launched where it starts, so all idle time is before a launch."""
    message = bound(document(steps(tmp_path, "s7 g[0,20) g[90,100)")))[1]
    assert "GPU idle 70.00 of 100.00 ms a step: the host launches too late" in message


def test_idle_time_of_kernels_launched_long_ahead_is_not_the_hosts(tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    for step in range(3):
        process.range(f"step {step}", 100 * step, 100 * step + 10)
        for number in range(5):
            at = 100 * step + 20 * number
            process.kernel("sgemm", 7, (at, at + 5), launched=(100 * step + number, 100 * step + number + 1))
    message = bound(document(export.write(tmp_path / "a.sqlite")))[1]
    assert "too late" not in message
    assert "not for want of launches" in message


def test_without_launches_nothing_is_said_of_the_host(tmp_path: Path) -> None:
    export = Export()
    process = export.process()
    for at in (0, 90):
        process.kernel("sgemm", 7, (at, at + 10), launched=None)
    message = bound(document(export.write(tmp_path / "a.sqlite")))[1]
    assert message.startswith("GPU idle 80.00 of 100.00 ms of the capture")
    assert "host" not in message
    assert "a step" not in message


def test_no_communication_is_said(tmp_path: Path) -> None:
    assert bound(document(steps(tmp_path, "s7 g[0,90)")))[1].endswith("; no communication kernels.")


def test_under_whole_graphs_it_is_not_said_that_nothing_communicates(tmp_path: Path) -> None:
    message = bound(document(steps(tmp_path, "s7 g[0,60) graph[60,100)")))[1]
    assert "no communication" not in message


@pytest.mark.parametrize("ranks", [2, 4, 9])
@pytest.mark.parametrize("which", [0, 1])
def test_a_late_rank_is_the_first_thing_said(ranks: int, which: int, tmp_path: Path) -> None:
    early, late = "s7 g[0,50) s17 c[50,98)", "s7 g[0,90) s17 c[90,98)"
    lanes = [late if rank == which else early for rank in range(ranks)]
    made = document(steps(tmp_path, *lanes))
    code, message = bound(made)
    assert code == "late_rank"
    assert made["findings"][0]["rank"] == which
    assert message.startswith(f"Rank {which} is late: ")
    assert "40.00 of 100.00 ms a step for it (exposed); it computes 90.00 ms, " in message


@pytest.mark.parametrize("which", [0, 1])
def test_a_late_rank_comes_second_where_all_ranks_idle_for_longer(which: int, tmp_path: Path) -> None:
    """Idle 32 of 100, late by 5; and the late rank idles longer, by 5."""
    early, computes, idles = (
        f"s7 g[0,30) g[{begin},{end}) s17 c[{end},98)" for begin, end in ((60, 90), (60, 95), (65, 95))
    )
    for late, more in ((computes, "it computes 65.00 ms"), (idles, "it idles 37.00 ms")):
        lanes = [late if rank == which else early for rank in range(3)]
        made = document(steps(tmp_path, *lanes))
        code, message = bound(made)
        assert (code, made["findings"][0]["rank"]) == ("bound_by_host", None)
        assert re.match(r"GPUs idle 32\.00( to 37\.00)? of 100\.00 ms a step", message), message
        assert (
            f"; rank {which} is late: the others wait 5.00 of 100.00 ms a step for it (exposed); {more}"
            in message
        )


@pytest.mark.parametrize("which", [0, 1])
def test_a_rank_that_begins_its_only_step_late_is_said_to_do_so(which: int, tmp_path: Path) -> None:
    """Both do the same, one of them 30 later, because of what nobody recorded: it does not take longer for anything."""
    export = Export()
    for rank in range(2):
        at = 5 + 30 * (rank == which)
        export.lanes(f'rank {rank} | host "step 0"[{at},98) s7 g[{at},{at + 50}) s17 c[{at + 50},95)')
    code, message = bound(document(export.write(tmp_path / "a.sqlite")))
    assert code == "late_rank"
    assert message.startswith(f"Rank {which} is late: rank {1 - which} waits 30.00 of ")
    assert "; it begins 30.00 ms later, because of what came before and was not captured; " in message


def test_ranks_that_wait_for_each_other_by_turns_have_no_late_one(tmp_path: Path) -> None:
    first, second = "s7 g[0,30) g[60,90) s17 c[30,50) c[90,98)", "s7 g[0,48) g[60,70) s17 c[48,50) c[70,98)"
    assert bound(document(steps(tmp_path, first, second)))[0] != "late_rank"


def test_figures_of_the_sentence_are_those_of_the_rows(tmp_path: Path) -> None:
    """Steps of three lengths: the median, everywhere."""
    export = Export()
    at = 0
    for step, work in enumerate((50, 40, 30, 60, 41)):
        for rank in (0, 1):
            export.lanes(
                f'rank {rank} | host "step {step}"[{at},{at + 100}) s7 g[{at},{at + work + rank}) '
                f"s17 c[{at + 20},{at + 95})"
            )
        at += 100
    report = export.write(tmp_path / "a.sqlite")
    message = bound(document(report))[1]
    assert "Exposed communication takes 53.00 to 54.00 of 100.00 ms a step" in message
    rows = run("analyze", report).out.split("Each rank")[1]
    assert "computation 41.00 to 42.00 ms" in message
    assert re.search(r"^ *0 .*41\.00.*54\.00", rows, re.MULTILINE)
    assert re.search(r"^ *1 .*42\.00.*53\.00", rows, re.MULTILINE)


def test_steps_that_seldom_communicate_are_summed_not_hidden(tmp_path: Path) -> None:
    """Gradient accumulation: of 4 micro-steps only the last communicates, 40 of which 30 are hidden: 75 %."""
    export = Export()
    for step in range(4):
        at = 100 * step
        last = f"s17 c[{at + 50},{at + 90})" if step == 3 else ""
        export.lanes(f'rank 0 | host "step {step}"[{at},{at + 100}) s7 g[{at},{at + 80}) {last}')
        export.lanes(f'rank 1 | host "step {step}"[{at},{at + 100}) s7 g[{at},{at + 80}) {last}')
    report = export.write(tmp_path / "a.sqlite")
    made = document(report)
    overlap = next(one for one in made["findings"] if one["code"].startswith("overlap"))
    assert "30.00 ms of transfer over 4 steps (75 % of a rank's transfer)" in overlap["message"]
    shown = run("analyze", report).out
    assert "sum of 4 steady steps" in shown
    assert len(re.findall(r"75\.0%", shown)) == 2


def test_ranks_on_one_gpu_are_said_before_any_figure_and_none_is_late(tmp_path: Path) -> None:
    report = steps(tmp_path, "s7 g[0,50) s17 c[50,98)", "s7 g[0,90) s17 c[90,98)")
    with contextlib.closing(sqlite3.connect(report)) as file, file:
        file.execute("UPDATE TARGET_INFO_GPU SET uuid = (SELECT MIN(uuid) FROM TARGET_INFO_GPU)")
    code, message = bound(document(report))
    assert message.startswith("Ranks 0 and 1 share one GPU, so their times include each other's: ")
    assert code != "late_rank"


def test_ranks_that_were_not_captured_are_not_spoken_for(tmp_path: Path) -> None:
    export = Export()
    for rank in (0, 1):
        process = export.process(device=rank, env={"WORLD_SIZE": "8"})
        process.kernel("sgemm", 7, (0, 20))
    made = document(export.write(tmp_path / "a.sqlite"), "--per", "capture")
    assert bound(made)[1].endswith("; 6 of the job's 8 ranks were not captured.")


# --- sentences about several ranks ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([0, 3], "ranks 0 and 3"),
        ([0, 1], "ranks 0 and 1"),
        ([0, 1, 2, 3, 5], "ranks 0 to 3 and 5"),
        ([0, 3, 4, 5], "ranks 0 and 3 to 5"),
        (list(range(512)), "ranks 0 to 511"),
        (list(range(0, 20, 2)), "ranks 0, 2, 4, 6, 8 and 5 more"),
    ],
)
def test_ranks_in_words(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text


@pytest.mark.parametrize("ranks", [3, 8])
def test_what_is_true_of_several_ranks_is_one_sentence(ranks: int, tmp_path: Path) -> None:
    early, late = "s7 g[0,90) s17 c[10,95)", "s7 g[0,90) s17 c[85,95)"
    made = document(steps(tmp_path, *[early] * (ranks - 1), late))
    waiting = [one["message"] for one in made["findings"] if one["code"] == "overlap_is_waiting"]
    assert len(waiting) == 1
    assert waiting[0].startswith(
        f"Most overlap of ranks 0 {'and 1' if ranks == 3 else 'to 6'} is waiting for rank "
    )
    assert "75.00 of 80.00 ms a step (94%)" in waiting[0]


# --- one collective a step --------------------------------------------------------------------------------------

LAST = "cannot start before the last gradient"


def one_collective(tmp_path: Path, kind: str, at: tuple[int, int], phase: str) -> str:
    export = Export()
    for rank in (0, 1):
        process = export.process(device=rank)
        for step in range(3):
            start = 100 * step
            process.range(f"step {step}", start, start + 100)
            process.range("forward", start, start + 30)
            process.range("backward", start + 30, start + 60)
            process.kernel("sgemm", 7, (start, start + 30))
            process.kernel("sgemm", 7, (start + 31, start + 60))
            process.nccl(
                kind, 17, (start + at[0], start + at[1]), launched=start + (45 if phase == "backward" else 5)
            )
    made = document(export.write(tmp_path / "a.sqlite"))
    return next(one["message"] for one in made["findings"] if one["code"] == "no_overlap")


@pytest.mark.parametrize("kind", ["AllReduce", "ReduceScatter"])
def test_a_single_reduction_in_backward_waits_for_the_last_gradient(kind: str, tmp_path: Path) -> None:
    assert LAST in one_collective(tmp_path, kind, (60, 80), "backward")


@pytest.mark.parametrize("kind", ["Broadcast", "AllGather"])
def test_what_reduces_nothing_waits_for_no_gradient(kind: str, tmp_path: Path) -> None:
    assert LAST not in one_collective(tmp_path, kind, (60, 80), "backward")


def test_a_reduction_before_backward_waits_for_no_gradient(tmp_path: Path) -> None:
    assert LAST not in one_collective(tmp_path, "AllReduce", (30, 31), "forward")


def test_whom_ranks_waited_for_in_the_warm_up_makes_none_late(tmp_path: Path) -> None:
    """Rank 2 is late by 500 in the first step, rank 0 by 30 in the three behind it."""
    export = Export()
    for step, (first, last) in enumerate([(0, 600), (600, 700), (700, 800), (800, 900)]):
        ready = [first + 40] * 3
        ready[2 if step == 0 else 0] += 500 if step == 0 else 30
        for rank, at in enumerate(ready):
            end = max(ready) + 10
            export.lanes(
                f'rank {rank} | host "step {step}"[{first},{last}) s7 g[{first},{at}) s17 c[{at},{end})'
            )
    code, message = bound(document(export.write(tmp_path / "a.sqlite")))
    assert code == "late_rank", message
    assert message.startswith("Rank 0 is late: the others wait 30.00 of 100.00 ms a step for it")


def test_a_wait_under_computation_blames_nobody_for_the_exposed_one(tmp_path: Path) -> None:
    """Ranks 0 and 1 wait for rank 2 under 50 of computation, then for rank 1 (0 and 2) with nothing to compute."""
    lanes = (
        "s7 g[0,10) g[10,60) s17 c[10,60) c[61,95)",
        "s7 g[0,10) g[10,60) s17 c[10,60) s7 g[60,90) s17 c[90,95)",
        "s7 g[0,55) s17 c[55,60) s7 g[55,60) s17 c[61,95)",
    )
    code, message = bound(document(steps(tmp_path, *lanes)))
    assert code == "late_rank", message
    assert message.startswith("Rank 1 is late: the others wait 29.00 of 100.00 ms a step for it")


@pytest.mark.parametrize("kind", ["hsdp", "tp", "pp"])
def test_a_late_rank_is_found_behind_ranks_of_other_groups_that_wait_for_it(
    tmp_path: Path, kind: str
) -> None:
    job = Job(kind, 8, 4, steps=3, layers=3, micro_batches=8, planted=Planted("slow_rank", 1.6, rank=5))
    made = document(*write(simulate(job), tmp_path, per_rank=False))
    code, message = bound(made)
    assert code == "late_rank", message
    assert message.startswith("Rank 5 is late: the others wait ")
    assert "it computes" in message


@pytest.mark.parametrize(("ranks", "group", "late"), [(4, 2, 3), (6, 3, 2)])
def test_a_late_stage_is_found_where_no_payload_tells_who_sends_to_whom(
    tmp_path: Path, ranks: int, group: int, late: int
) -> None:
    """What waits and what transfers is not known of its neighbours; that it alone takes longer is."""
    job = Job("pp", ranks, group, steps=3, layers=3, micro_batches=6)
    slow = replace(job, planted=Planted("slow_rank", 1.5, rank=late, phase="backward"))
    for name, simulated, expected in (("slow", slow, "late_rank"), ("clean", job, "bound_by_compute")):
        (tmp_path / name).mkdir()
        made = document(*write(simulate(simulated), tmp_path / name, per_rank=False, payload=False))
        code, message = bound(made)
        assert code == expected, message
        assert "hardly any of it waiting" not in message
        if code == "late_rank":
            assert message.startswith(f"Rank {late} is late: the others communicate ")
            assert "how much of that is waiting is not told" in message
        # Each group of replicas waits for its own slowest.
        assert not [
            one for one in made["findings"] if re.search(r"ranks .* waiting for rank \d", one["message"])
        ]


@pytest.mark.parametrize("kind", ["hsdp", "tp", "pp", "ep"])
def test_a_pause_of_all_ranks_makes_none_late(tmp_path: Path, kind: str) -> None:
    job = Job(kind, 4, 4, steps=3, layers=3, planted=Planted("pause_all", 20 * MS, phase="optimizer"))
    assert bound(document(*write(simulate(job), tmp_path, per_rank=False)))[0] != "late_rank"


def test_a_late_rank_is_found_where_the_others_wait_for_it_under_their_computation(tmp_path: Path) -> None:
    """Its lateness is 15 % of the step; of the waiting for it most is hidden, and most that is exposed is transfer."""
    job = Job("tp", 12, 4, per_host=4, steps=4, layers=6, gbps=40, far_gbps=20)
    job = replace(job, planted=Planted("slow_rank", 1.3, rank=0, phase="backward"))
    made = document(*write(simulate(job), tmp_path, per_rank=False))
    code, message = bound(made)
    assert code == "late_rank", message
    assert message.startswith("Rank 0 is late: the others wait ")
