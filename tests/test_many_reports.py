"""Runs of many reports: one answer wherever and in whatever order they are read, and nothing lost in silence."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import mmap
import random
import shutil
import sqlite3
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import unlucky
from builder import Export
from command import Ran, run
from polars.testing import assert_frame_equal
from simulation.export import write
from simulation.jobs import Job, Planted, simulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))
from many import reports

from nsysddp.dependencies.graph import build
from nsysddp.ingest import kept
from nsysddp.join.events import Events
from nsysddp.join.load import load
from nsysddp.model import large
from nsysddp.model.errors import NotAReport, UsageError
from nsysddp.model.trace import Trace
from nsysddp.questions import apart, own_time
from nsysddp.questions.attribution import attribute
from nsysddp.questions.own_time import waiting_in_gaps

EVERYTHING = {"launches": True, "host_calls": True, "shapes": True, "metrics": True}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine reports of two hosts; do not write to them."""
    folder = tmp_path_factory.mktemp("run")
    reports(folder, 9, 200)
    return folder


@pytest.fixture
def run_of_nine(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def analyze(*argv: str | Path) -> Ran:
    return run("analyze", *argv, "--format", "json")


def document(ran: Ran, code: int = 0) -> dict[str, Any]:
    assert ran.code == code, ran.err
    made: dict[str, Any] = json.loads(ran.out)
    return made


def frames(trace: Trace) -> dict[str, pl.DataFrame]:
    return {name: value for name, value in vars(trace).items() if isinstance(value, pl.DataFrame)}


def test_one_answer_wherever_and_in_whatever_order_reports_are_read(made: Path, tmp_path: Path) -> None:
    files = sorted(made.glob("*.sqlite"))
    shuffled = random.Random(5).sample(files, len(files))
    right = analyze(*files, "--jobs", "1").out
    cache = tmp_path / "cache"
    for argv in (
        [*shuffled, "--jobs", "1"],
        [made, "--jobs", "2"],
        [*shuffled, "--jobs", "2", "--cache", cache],
        [*reversed(files), "--cache", cache],
        [*shuffled, "--scheduler", "local:2"],
        [*files, "--scheduler", "local:2", "--cache", cache],
    ):
        assert analyze(*argv).out == right


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not tell what is in memory")
def test_no_column_of_a_trace_keeps_the_files_of_its_parts_in_memory(made: Path, tmp_path: Path) -> None:
    trace = load(sorted(made.glob("*.sqlite")), cache=tmp_path, **EVERYTHING)
    gc.collect()
    assert trace.shapes is not None
    assert trace.shapes.height == trace.events.height
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.fixture
def in_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the reports, they stay apart, in shares of few."""
    monkeypatch.setattr("nsysddp.execute.place._APART_BYTES", 0)
    monkeypatch.setattr("nsysddp.join.apart._FEWEST_KERNELS", 1)


def whole_and_in_shares(reports: list[Path], *argv: str) -> tuple[Ran, Ran]:
    """The answer of all events together, and made in shares."""
    with pytest.MonkeyPatch.context() as together:
        together.setattr("nsysddp.execute.place._APART_BYTES", 1 << 60)
        whole = analyze(*reports, *argv)
    return whole, analyze(*reports, *argv)


@pytest.mark.usefixtures("in_shares")
@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--per", "capture"],
        ["--per", "capture", "--from", "11", "--to", "12"],
        ["--steps", "1:3"],
        ["--skip-warmup", "1", "--from", "12"],
        ["--step-pattern", "nothing is called this"],
        ["--step-pattern", "(?i)optimizer.*"],
        ["--steps", "7:"],
        ["--per", "capture", "--steps", "1:"],
        ["--from", "1e6"],
        ["--clock-tolerance", "0.0001"],
    ],
    ids=" ".join,
)
def test_the_answer_in_shares_is_that_of_all_events_together(made: Path, argv: list[str]) -> None:
    files = sorted(made.glob("*.sqlite"))
    whole, found = whole_and_in_shares(files, *argv)
    assert (found.code, found.out, found.err) == (whole.code, whole.out, whole.err)


@pytest.mark.usefixtures("in_shares")
@pytest.mark.parametrize(
    "job",
    [
        Job("dp", 8, 1, per_host=2, steps=3, planted=Planted("slow_rank", 1.5, rank=5)),
        Job("hsdp", 8, 4, per_host=2, steps=3, planted=Planted("slow_rank", 1.4, rank=3, phase="backward")),
        Job("pp", 8, 4, per_host=4, steps=3, micro_batches=4),
        Job("ep", 8, 4, per_host=2, steps=3),
    ],
    ids=lambda job: job.kind,
)
def test_jobs_of_every_kind_in_shares(job: Job, tmp_path: Path) -> None:
    files = write(simulate(job), tmp_path)
    for argv in ([], ["--per", "capture"]):
        whole, found = whole_and_in_shares(files, *argv)
        assert whole.code == 0, whole.err
        assert found.out == whole.out


@pytest.mark.usefixtures("in_shares")
def test_own_time_of_ranks_is_compared_though_no_process_holds_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a report is missing nothing is split, and a late rank shows by its own time only."""
    job = Job("dp", 8, 1, per_host=2, steps=3, planted=Planted("slow_rank", 1.5, rank=5))
    files = write(simulate(job), tmp_path)[1:]
    asked: list[int] = []
    lateness = own_time.lateness_of

    def lateness_of(lines: Any, steady: Any) -> Any:
        asked.append(len(lines))
        return lateness(lines, steady)

    monkeypatch.setattr(apart, "lateness_of", lateness_of)
    for argv in ([], ["--per", "capture"], ["--steps", "1:"]):
        asked.clear()
        whole, found = whole_and_in_shares(files, *argv)
        assert found.out == whole.out
        assert asked == [6]
        assert "ank 5 is late" in document(whole)["findings"][0]["message"]
    for where in (
        ["--jobs", "2"],
        ["--scheduler", "local:2"],
        ["--scheduler", "local:2", "--cache", tmp_path / "cache"],
    ):
        assert analyze(*files, *where, "--steps", "1:").out == whole.out


@pytest.mark.usefixtures("in_shares")
def test_shares_are_the_same_wherever_they_are_made(made: Path, tmp_path: Path) -> None:
    files = sorted(made.glob("*.sqlite"))
    shuffled = random.Random(6).sample(files, len(files))
    right = analyze(*files, "--jobs", "1").out
    cache = tmp_path / "cache"
    for argv in (
        [*shuffled, "--jobs", "2"],
        [*shuffled, "--jobs", "2", "--cache", cache],
        [*files, "--cache", cache],
        [*shuffled, "--scheduler", "local:2"],
        [*files, "--scheduler", "local:2", "--cache", cache],
    ):
        assert analyze(*argv).out == right


@pytest.mark.usefixtures("in_shares")
def test_what_lies_together_grows_with_what_communicates(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No frame of all events is made where they stay apart, and no share holds more than it may."""
    sizes: list[int] = []
    made_of = Events.frame

    def frame(self: Events) -> pl.DataFrame:
        found = made_of(self)
        sizes.append(found.height)
        return found

    monkeypatch.setattr(Events, "frame", frame)
    assert analyze(*sorted(made.glob("*.sqlite"))).code == 0
    joined, *shares = sizes
    whole = load(made)
    assert joined == whole.collectives.height
    assert sum(shares) == whole.events.height
    assert len(shares) > 1
    assert max(shares) <= 2 * whole.events.height / len(shares)


@pytest.mark.usefixtures("in_shares")
@pytest.mark.parametrize("where", [["--jobs", "2"], ["--scheduler", "local:2"]], ids=str)
def test_a_share_that_is_lost_is_missing_and_the_rest_is_joined_anew(
    run_of_nine: Path, where: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = analyze(run_of_nine, "--jobs", "1").out
    monkeypatch.setattr("nsysddp.questions.apart.tell", unlucky.tell)
    (run_of_nine / "rank0003.sqlite.killed-once").mkdir()
    (run_of_nine / "rank0006.sqlite.memory-once").mkdir()
    assert analyze(run_of_nine, *where).out == right
    (run_of_nine / "rank0005.sqlite.killed-always").mkdir()
    ran = analyze(run_of_nine, *where)
    found = document(ran, 8)
    missing = [one["name"] for one in found["missing"]]
    assert "rank0005.sqlite" in missing
    monkeypatch.undo()
    for name in missing:
        (run_of_nine / name).write_bytes(b"")
    assert document(analyze(run_of_nine, "--jobs", "1"), 8)["tables"] == found["tables"]


@pytest.mark.usefixtures("in_shares")
def test_ranks_of_one_gpu_are_not_taken_apart(tmp_path: Path) -> None:
    files = []
    for rank in range(2):
        files.append(tmp_path / f"rank{rank}.sqlite")
        ranked(rank, size=2, communicator=5, utc_epoch_ns=1_795_972_367_577_878_054).write(files[-1])
    whole, found = whole_and_in_shares(files)
    assert found.out == whole.out


def test_every_frame_is_the_same_from_another_process(made: Path, tmp_path: Path) -> None:
    expected = load(made, **EVERYTHING)
    for found in (load(made, **EVERYTHING, jobs=2), load(made, **EVERYTHING, cache=tmp_path / "cache")):
        assert found.inputs == expected.inputs
        assert found.warnings == expected.warnings
        assert frames(found).keys() == frames(expected).keys()
        for name, frame in frames(expected).items():
            assert_frame_equal(frames(found)[name], frame)
    for asked in ({"launches": False}, {"launches": False, "shapes": True}):
        expected, found = load(made, **asked), load(made, **asked, jobs=2)
        for name, frame in frames(expected).items():
            assert_frame_equal(frames(found)[name], frame)


def test_columns_of_all_events_do_not_fill_memory(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, answer = load(made), analyze(made).out
    in_files: list[np.ndarray] = []
    frombuffer = np.frombuffer

    def noted(buffer: mmap.mmap, dtype: np.dtype) -> np.ndarray:
        in_files.append(frombuffer(buffer, dtype))
        return in_files[-1]

    monkeypatch.setattr(large, "IN_A_FILE_BYTES", 1)
    monkeypatch.setattr(large.np, "frombuffer", noted)
    found = load(made)
    for name, frame in frames(expected).items():
        assert_frame_equal(frames(found)[name], frame)
    assert found.launches is not None
    columns = [
        *found.events.select("rank", "start_ns", "end_ns", "name", "context", "stream"),
        *found.launches,
    ]
    attribution = attribute(found)
    for values in (*(column.to_numpy() for column in columns), attribution.step, attribution.phase_range):
        assert any(np.shares_memory(values, one) for one in in_files)
    assert analyze(made).out == answer


def test_the_calls_of_all_ranks_are_not_searched_once_a_rank(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = load(made, **EVERYTHING)
    assert trace.calls is not None
    begun = {
        process: min(
            start for of, start in trace.calls.select("process", "start_ns").iter_rows() if of == process
        )
        for process in trace.calls["process"].unique()
    }
    assert trace.first_calls == begun
    searched = []
    search = pl.DataFrame.filter

    def noted(frame: pl.DataFrame, *given: Any, **named: Any) -> pl.DataFrame:
        searched.append(frame.height)
        return search(frame, *given, **named)

    monkeypatch.setattr(pl.DataFrame, "filter", noted)
    waiting_in_gaps(build(trace))
    assert searched.count(trace.calls.height) < len(trace.rank_numbers)


def test_where_no_disk_has_room_columns_stay_in_memory(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    answer = analyze(made).out
    monkeypatch.setattr(large, "IN_A_FILE_BYTES", 1)
    monkeypatch.setattr(large.os, "posix_fallocate", full)
    assert analyze(made).out == answer


@pytest.mark.parametrize("where", [["--jobs", "1"], ["--jobs", "2"], ["--scheduler", "local:2"]], ids=str)
def test_an_unreadable_report_is_named_and_the_rest_is_answered(run_of_nine: Path, where: list[str]) -> None:
    broken = run_of_nine / "rank0004.sqlite"
    broken.write_bytes(broken.read_bytes()[:5000])
    found = document(analyze(run_of_nine, *where), 8)
    (missing,) = found["missing"]
    assert (missing["name"], missing["rank"]) == ("rank0004.sqlite", 4)
    assert "truncated" in missing["reason"]
    assert found["findings"][0]["code"] == "report_missing"
    assert "rank0004.sqlite (rank 4)" in found["findings"][0]["message"]
    assert "report_missing" in {one["code"] for one in found["warnings"]}
    assert [row["rank"] for row in found["tables"]["rank"]] == [0, 1, 2, 3, 5, 6, 7, 8]
    # Nothing in the reports says how many ranks there are, and still the eight are not taken for all of them.
    assert {row["match"] for row in found["tables"]["collective"]} == {
        "unmatched:ranks of the communicator are missing"
    }
    assert all(row["exposed_wait_ns"] is None for row in found["tables"]["overlap"])
    strict = run("analyze", run_of_nine, "--strict", *where)
    assert strict.code == 3
    assert "rank0004.sqlite" in strict.line


def test_every_question_says_first_what_is_missing(run_of_nine: Path) -> None:
    (run_of_nine / "rank0002.sqlite").write_bytes(b"")
    for question in ("critical-path", "diagnose", "idle", "buckets", "contention", "whatif"):
        found = document(run(question, run_of_nine, "--format", "json"), 8)
        assert found["findings"][0]["code"] == "report_missing", question
        assert found["missing"][0]["name"] == "rank0002.sqlite"
        assert run(question, run_of_nine).code == 8


def test_where_no_report_can_be_read_the_first_one_is_refused(tmp_path: Path) -> None:
    for name in ("rank1.sqlite", "rank0.sqlite"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
    ran = run("analyze", tmp_path)
    assert ran.code == 3
    assert "rank0.sqlite" in ran.line
    with pytest.raises(NotAReport):
        load(tmp_path, strict=False)


@pytest.mark.parametrize("where", [["--jobs", "2"], ["--scheduler", "local:2"]], ids=str)
def test_dying_workers_and_a_lack_of_memory(
    run_of_nine: Path, where: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = analyze(run_of_nine, "--jobs", "1").out
    monkeypatch.setattr("nsysddp.join.parts.make", unlucky.make)
    (run_of_nine / "rank0003.sqlite.killed-once").mkdir()
    (run_of_nine / "rank0006.sqlite.memory-once").mkdir()
    assert analyze(run_of_nine, *where).out == right
    (run_of_nine / "rank0005.sqlite.killed-always").mkdir()
    (run_of_nine / "rank0001.sqlite.memory-always").mkdir()
    found = document(analyze(run_of_nine, *where), 8)
    assert [(one["name"], one["rank"]) for one in found["missing"]] == [
        ("rank0001.sqlite", 1),
        ("rank0005.sqlite", 5),
    ]
    assert "memory" in found["missing"][0]["reason"]
    assert "killed" in found["missing"][1]["reason"]
    assert [row["rank"] for row in found["tables"]["rank"]] == [0, 2, 3, 4, 6, 7, 8]


def test_a_cache_is_used_and_never_believed_without_its_hash(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    argv = [made, "--jobs", "1", "--cache", cache]
    right = analyze(made, "--jobs", "1").out
    assert analyze(*argv).out == right
    entries = sorted(cache.rglob("*.part"))
    assert len(entries) == 9
    assert not list(cache.rglob(".nsysddp*"))
    for path in entries:
        assert kept.is_intact(kept.opened(path), path.stem)
    whole = {path: path.read_bytes() for path in entries}
    changed = bytearray(whole[entries[0]])
    changed[len(changed) // 2] ^= 1
    entries[0].write_bytes(changed)
    entries[1].write_bytes(whole[entries[1]][:-9])
    entries[2].write_bytes(b"")
    entries[3].write_bytes(whole[entries[4]])  # another report's, whole
    longer = bytearray(whole[entries[5]])
    longer[48] ^= 1  # where the header begins
    entries[5].write_bytes(longer)
    assert analyze(*argv).out == right
    assert {path: path.read_bytes() for path in entries} == whole
    monkeypatch.setattr("nsysddp.ingest.reading.read", None)  # nothing is read again
    assert analyze(*argv).out == right


def test_what_a_cache_is_asked_for_decides_what_is_found(made: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for asked in ({}, {"launches": False}, {"host_calls": True}, {"step_pattern": "none"}):
        found, expected = load(made, **asked, cache=cache), load(made, **asked)
        assert frames(found).keys() == frames(expected).keys()
        for name, frame in frames(expected).items():
            assert_frame_equal(frames(found)[name], frame)
    assert len(list(cache.rglob("*.part"))) == 4 * 9
    renamed = shutil.copy(made / "rank0001.sqlite", tmp_path / "rank0077.sqlite")
    assert load(renamed, cache=str(cache)).ranks["rank"].to_list() == [77]


def _answer(folder: Path, cache: Path) -> str:
    return analyze(folder, "--jobs", "1", "--cache", cache).out


def test_two_runs_share_a_cache_at_once(made: Path, tmp_path: Path) -> None:
    right = analyze(made, "--jobs", "1").out
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        answers = [pool.submit(_answer, made, tmp_path / "cache") for _ in range(2)]
        assert [answer.result() for answer in answers] == [right, right]
    assert len(list((tmp_path / "cache").rglob("*.part"))) == 9


def test_a_cache_that_cannot_be_written_is_one_line(made: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = run("analyze", made, "--cache", tmp_path / "file" / "cache")
    assert ran.code == 2
    assert "the cache cache cannot be written" in ran.line
    with pytest.raises(UsageError, match="cannot be written"):
        load(made, cache=tmp_path / "file" / "cache", jobs=2)


def test_folders_patterns_and_lists_are_reports(run_of_nine: Path, tmp_path: Path) -> None:
    right = analyze(*sorted(run_of_nine.glob("*.sqlite")), "--jobs", "1").out
    (run_of_nine / "rank0000.nsys-rep").write_bytes(b"the report that was exported")
    (run_of_nine / "notes.txt").write_text("no report")
    listed = run_of_nine / "list"
    listed.write_text("# all of them\nrank000[0-4].sqlite\n\nrank0005.sqlite\nrank000[6-9].sqlite\n")
    for given in (run_of_nine, run_of_nine / "rank*.sqlite", f"@{listed}"):
        assert analyze(given, "--jobs", "1").out == right
    for given, said in (
        (run_of_nine / "none*.sqlite", "nothing matches none*.sqlite"),
        (f"@{tmp_path / 'absent'}", "the list cannot be read"),
        (f"@{run_of_nine / 'empty'}", "names no report"),
        (f"@{run_of_nine / 'nested'}", "not lists"),
    ):
        (run_of_nine / "empty").write_text("# nothing\n")
        (run_of_nine / "nested").write_text("@list\n")
        ran = run("analyze", given)
        assert ran.code == 2
        assert said in ran.line
    twice = run("analyze", run_of_nine, run_of_nine / "rank0003.sqlite")
    assert twice.code == 5
    assert "rank0003.sqlite is given twice" in twice.line


def ranked(
    rank: int, *, size: int, communicator: int, utc_epoch_ns: int = 1_795_972_367_577_878_054
) -> Export:
    export = Export(utc_epoch_ns=utc_epoch_ns)
    process = export.process(pid=100 + rank, device=rank, env={"RANK": str(rank), "WORLD_SIZE": str(size)})
    process.range("step 0", 0, 20)
    process.kernel("sgemm", 7, (0, 4 + rank))
    process.nccl("AllReduce", 17, (4 + rank, 9), bytes=1 << 20, communicator=communicator)
    return export


def test_reports_of_two_runs_are_refused_by_name(tmp_path: Path) -> None:
    now = 1_795_972_367_577_878_054
    cases = {
        "two_jobs": ([(8, 5, now)] * 3 + [(16, 6, now)], "rank3.sqlite is of another run", "8 and 16 ranks"),
        "two_times": (
            [(8, 5, now)] * 2 + [(8, 6, now + 10**12)],
            "rank2.sqlite is of another run",
            "1,000 s apart",
        ),
        "groups": ([(8, 5, now)] * 2 + [(8, 6, now)] * 2, None, None),
        "wrong_clock": ([(8, 5, now), (8, 5, now + 10**12)], None, None),
        "groups_apart_a_little": ([(8, 5, now)] * 2 + [(8, 6, now + 3 * 10**9)] * 2, None, None),
    }
    for name, (made, who, why) in cases.items():
        (tmp_path / name).mkdir()
        for rank, (size, communicator, utc) in enumerate(made):
            export = ranked(rank, size=size, communicator=communicator, utc_epoch_ns=utc)
            export.write(tmp_path / name / f"rank{rank}.sqlite")
        ran = run("analyze", tmp_path / name)
        if who is None or why is None:
            assert ran.code == 0, ran.err
        else:
            assert ran.code == 5, name
            assert who in ran.line
            assert why in ran.line


def test_a_report_that_was_cut_short_is_compared_on_the_common_part_and_named(run_of_nine: Path) -> None:
    whole = document(analyze(run_of_nine, "--jobs", "1"))
    with contextlib.closing(sqlite3.connect(run_of_nine / "rank0005.sqlite")) as db:
        ((middle,),) = db.execute("SELECT (min(start) + max(end)) / 2 FROM CUPTI_ACTIVITY_KIND_KERNEL")
        for table in ("KERNEL", "RUNTIME", "MEMCPY", "MEMSET"):
            db.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_{table} WHERE start > ?", (middle,))
        db.execute("DELETE FROM NVTX_EVENTS WHERE start > ?", (middle,))
        db.commit()
    found = document(analyze(run_of_nine, "--jobs", "1"))
    assert "cut_short" not in {one["code"] for one in whole["warnings"]}
    (said,) = (one for one in found["warnings"] if one["code"] == "cut_short")
    assert said["count"] == 1
    assert "rank0005.sqlite" in said["message"]
    # Only counts: the clock of the other host is found from fewer collectives, so that its arrivals lie elsewhere.
    first = [row for row in found["tables"]["overlap"] if row["step_index"] == 0]
    assert len(first) == 9
    assert all(row["exposed_wait_ns"] is not None for row in first)
    last = [row for row in found["tables"]["overlap"] if row["step_index"] == 3]
    assert len(last) == 8
    assert all(row["exposed_wait_ns"] is None for row in last)
