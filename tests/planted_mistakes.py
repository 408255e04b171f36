"""Plant mistakes into a copy of the package, one at a time; each must fail a test, or the tests prove too little.

python tests/planted_mistakes.py [WORD]     only the mistakes whose description holds WORD
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKERS = 2
LIMIT_S = 120


@dataclass(frozen=True)
class Mistake:
    """One wrong edit: what it is, where, the text before and after, and the tests that must notice."""

    what: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


RUNS = ("tests/test_properties.py::test_every_table_of_a_random_run",)
SETS = ("tests/test_properties.py", "-k", "algebra or bounds or lengths or union")
CASES = "tests/test_cases.py"
INGEST = "tests/test_ingest.py"
IDLE = ("tests/test_idle.py",)
FOLDERS = "tests/test_folders.py"

MISTAKES = (
    Mistake(
        "a union that forgets how far the intervals before reached",
        "model/intervals.py",
        "np.greater(first[1:], reach[:-1], out=opens[1:])",
        "np.greater(first[1:], last[:-1], out=opens[1:])",
        SETS,
    ),
    Mistake(
        "an intersection that does not cut the end",
        "model/intervals.py",
        "np.minimum(self.end[mine], other.end[theirs]),",
        "self.end[mine],",
        SETS,
    ),
    Mistake(
        "a swapped sign in the length inside bounds",
        "model/intervals.py",
        "self.covered_before(end) - self.covered_before(start)",
        "self.covered_before(start) - self.covered_before(end)",
        SETS,
    ),
    Mistake(
        "bounds that reach over two members measured in the first alone",
        "model/intervals.py",
        "beyond = np.flatnonzero(end > member_end)",
        "beyond = np.flatnonzero(end < start)",
        SETS,
    ),
    Mistake(
        "a union in groups that mixes them",
        "model/intervals.py",
        "(groups[1:] != groups[:-1]) | (first[1:] > reach[:-1])",
        "(first[1:] > reach[:-1])",
        SETS,
    ),
    Mistake(
        "spin kernels left out of the computation",
        "questions/overlap.py",
        'compute = trace.union(rank, ["compute", "spin"])\n    communication',
        'compute = trace.union(rank, ["compute"])\n    communication',
        RUNS,
    ),
    Mistake(
        "copies under communication counted as alone",
        "questions/overlap.py",
        "exposed_memory=memory - compute - communication,",
        "exposed_memory=memory - compute,",
        RUNS,
    ),
    Mistake(
        "waiting taken for transfer under computation",
        "questions/overlap.py",
        "hidden_wait = shared(split.wait, sets.compute)",
        "hidden_wait = shared(split.transfer, sets.compute)",
        RUNS,
    ),
    Mistake(
        "a tail that takes a hook's own kernels for backward",
        "questions/overlap.py",
        "rows = rows[launch[rows] <= limit[step[rows]]]",
        "rows = rows[limit[step[rows]] > -(1 << 62)]",
        (INGEST, "-k", "tail"),
    ),
    Mistake(
        "a tail of the first backward instead of the last",
        "questions/overlap.py",
        '.sort("start_ns", "row")',
        '.sort("start_ns", "row", descending=True)',
        (INGEST, "-k", "tail"),
    ),
    Mistake(
        "sums of durations instead of a union in the phases",
        "questions/phases.py",
        "computed = grouped_union(of_phase[computing], start[computing], end[computing])",
        "computed = (of_phase[computing], start[computing], end[computing])",
        RUNS,
    ),
    Mistake(
        "a step on any of several other threads",
        "questions/host_ranges.py",
        "np.where(count == 1, holder, -1)",
        "np.where(count >= 1, holder, -1)",
        (INGEST, "-k", "two_threads"),
    ),
    Mistake(
        "a prefetch that pulls its step forward",
        "questions/window.py",
        "max(begin, int(compute_closes[numbers[place - 1]]))",
        "min(begin, int(compute_closes[numbers[place - 1]]))",
        (INGEST, "-k", "prefetch"),
    ),
    Mistake(
        "windows that events without a launch move",
        "questions/steps.py",
        "by_launch = np.where(attribution.launched, attribution.step, -1)",
        "by_launch = attribution.step",
        (INGEST, "-k", "without_a_launch"),
    ),
    Mistake(
        "a window that is not cut to --to",
        "questions/steps.py",
        "end = window.end if selection.to_ns is None else min(window.end, selection.to_ns)",
        "end = window.end",
        (CASES, "-k", "test_34 or test_40 or test_12"),
    ),
    Mistake(
        "a capture cut at the first event instead of --from",
        "questions/steps.py",
        "start, end = first if low is None else low, last if high is None else high",
        "start, end = first, last if high is None else high",
        (CASES, "-k", "test_10 or test_12"),
    ),
    Mistake(
        "warm-up by another threshold",
        "questions/steps.py",
        "WARM_UP_RATIO = 1.5",
        "WARM_UP_RATIO = 1.2",
        (CASES, "-k", "test_34"),
    ),
    Mistake(
        "ready when the first rank arrives",
        "questions/collectives.py",
        'pl.col("start_ns").max().alias("ready_ns"),\n        (pl.col("end_ns") - pl.col("start_ns")).min()'
        '.alias("shortest_ns"),\n        pl.col("rank").sort_by("start_ns", "rank").last().alias("last_rank"),\n    )\n'
        "    simple",
        'pl.col("start_ns").min().alias("ready_ns"),\n        (pl.col("end_ns") - pl.col("start_ns")).min()'
        '.alias("shortest_ns"),\n        pl.col("rank").sort_by("start_ns", "rank").last().alias("last_rank"),\n    )\n'
        "    simple",
        (CASES, "-k", "test_26"),
    ),
    Mistake(
        "wait that is not taken out where another collective transfers",
        "questions/collectives.py",
        "Intervals.union_of(start, middle) - transfer",
        "Intervals.union_of(start, middle)",
        RUNS,
    ),
    Mistake(
        "the bus factor of an all-reduce halved",
        "questions/collectives.py",
        '"all_reduce": lambda n: 2 * (n - 1) / n,',
        '"all_reduce": lambda n: (n - 1) / n,',
        (INGEST, "-k", "bandwidth"),
    ),
    Mistake(
        "wait told in spite of unusable clocks",
        "questions/collectives.py",
        'pl.col("clock_residual_ns") > trace.clock_tolerance_ns',
        'pl.col("clock_residual_ns") < 0',
        (INGEST, "-k", "residual"),
    ),
    Mistake(
        "sequences matched without their offset",
        "join/match.py",
        "at[rank] = kernels.sequence[line] + offset",
        "at[rank] = kernels.sequence[line]",
        (INGEST, "-k", "began_later"),
    ),
    Mistake(
        "a collective that ended before its last rank arrived",
        "join/match.py",
        "& (early <= self.tolerance)",
        "& (early <= early)",
        (INGEST, "-k", "ended_before"),
    ),
    Mistake(
        "a communicator matched although ranks of the job are missing",
        "join/match.py",
        "self.ranks_missing = world_size is not None and world_size > len(self.ranks)",
        "self.ranks_missing = False",
        (INGEST, "-k", "world"),
    ),
    Mistake(
        "clocks corrected in the wrong direction",
        "join/clocks.py",
        'difference=pl.col("end").first().over("collective") - pl.col("end")',
        'difference=pl.col("end") - pl.col("end").first().over("collective")',
        (INGEST, "-k", "clocks_are_aligned"),
    ),
    Mistake(
        "clocks compared with the first one only",
        "join/clocks.py",
        "    return found.height > 0\n",
        "    return False\n",
        (INGEST, "-k", "along_chains"),
    ),
    Mistake(
        "one rank's overlap said of every rank",
        "questions/findings.py",
        "    if not rest:\n",
        "    if True:\n",
        ("tests/test_findings.py",),
    ),
    Mistake(
        "reports without a session start compared by their times",
        "join/identity.py",
        "if disjoint or not comparable:",
        "if disjoint:",
        (INGEST, "-k", "one_process_in_two_reports"),
    ),
    Mistake(
        "ranks by pid before their physical GPU",
        "join/identity.py",
        '        lane.gpu_key or "",\n        lane.pid if lane.pid is not None else -1,',
        '        lane.pid if lane.pid is not None else -1,\n        lane.gpu_key or "",',
        (CASES, "-k", "test_19"),
    ),
    Mistake(
        "copies counted as kernels where there are no kernels",
        "ingest/gpu.py",
        "        if number == 0:\n            kernels, unnamed",
        "        if not kernels:\n            kernels, unnamed",
        (CASES, "-k", "keep_their_sizes"),
    ),
    Mistake(
        "graph nodes looked for only where a graph launch is named",
        "ingest/gpu.py",
        'if modes - {"graph"} or',
        "if",
        (CASES, "-k", "whose_launch_is_not_there"),
    ),
    Mistake(
        "any range named like a call of NCCL taken for one",
        "ingest/nvtx.py",
        "np.isin(key, key[named]) | ~np.isin(process, process[named])",
        "key == key",
        (INGEST, "-k", "named_like"),
    ),
    Mistake(
        "rows without a thread given to the first of several processes",
        "ingest/threads.py",
        "    if only:\n        code[thread == NOBODY] = 0",
        "    code[thread == NOBODY] = 0",
        (CASES, "-k", "threads_that"),
    ),
    Mistake(
        "shapes of kernels that were left out kept",
        "../queries/kernel_shapes.sql",
        "start > -2305843009213693952",
        "start >= -2305843009213693952",
        (INGEST, "-k", "shapes_stay"),
    ),
    Mistake(
        "folders of tables whose bytes are copied as text into the database",
        "ingest/columnar.py",
        "CAST(? AS TEXT)",
        "?",
        (FOLDERS, "-k", "anybodys"),
    ),
    Mistake(
        "the last piece of a range of rows left out",
        "ingest/columnar.py",
        "first, last + 1)",
        "first, max(last, first + 1))",
        (FOLDERS, "-k", "in_two_parts"),
    ),
    Mistake(
        "only different rows of a table kept for a question that counts",
        "ingest/columnar.py",
        "whole = whole or table not in distinct",
        "whole = False",
        (FOLDERS, "-k", "rows_are_counted"),
    ),
    Mistake(
        "devices merged over processes",
        "ingest/gpu.py",
        "process.astype(np.int64) << 32 | (device.astype(np.int64) & 0xFFFFFFFF)",
        "device.astype(np.int64) & 0xFFFFFFFF",
        (CASES, "-k", "test_11 or test_19"),
    ),
    Mistake(
        "launches joined without the process",
        "ingest/host.py",
        "table.rows(code[mine], correlation[mine])",
        "table.rows(0 * code[mine], correlation[mine])",
        (CASES, "-k", "test_22"),
    ),
    Mistake(
        "ends of reports not put on one axis",
        "join/events.py",
        'if name in ("start_ns", "end_ns"):',
        'if name == "start_ns":',
        (INGEST, "-k", "clocks_are_aligned or nothing_to_compare or began"),
    ),
    Mistake(
        "kernel names matched in part",
        "model/classify.py",
        "self.pattern.fullmatch(base)",
        "self.pattern.search(base)",
        (CASES, "-k", "holds_a_rule"),
    ),
    Mistake(
        "only the last operation of a group counted",
        "ingest/attribute.py",
        "members = range(begun + 1, position)",
        "members = range(position - 1, position)",
        (INGEST, "-k", "group"),
    ),
    Mistake(
        "payload fields read at the start of the payload",
        "ingest/payload.py",
        "first = offset + field.offset",
        "first = offset",
        (INGEST, "-k", "every_field"),
    ),
    Mistake(
        "events that end before they start kept",
        "ingest/columns.py",
        "(end >= start) & (start > -TIME_LIMIT_NS)",
        "(start > -TIME_LIMIT_NS)",
        (INGEST, "-k", "impossible"),
    ),
    Mistake(
        "a range that never ended taken for an instant",
        "ingest/nvtx.py",
        "end[order[place]] = start[later] if same else max(capture_end, int(start[place]))",
        "end[order[place]] = start[place]",
        (CASES, "-k", "test_30"),
    ),
    Mistake(
        "a gap of any length is the start-up of a kernel",
        "questions/idle/__init__.py",
        "kept = by_event & (waited > longest)",
        "kept = by_event & (waited < 0)",
        IDLE,
    ),
    Mistake(
        "a gap is another process's although that ran on another GPU",
        "questions/idle/__init__.py",
        "cause[kept & shared] = _SHARED",
        "cause[kept] = _SHARED",
        IDLE,
    ),
    Mistake(
        "what is left beside another process is measured with it",
        "questions/idle/__init__.py",
        "length_of_runs(pieces, shared) > longest",
        "length_of_runs(pieces) > longest",
        IDLE,
    ),
    Mistake(
        "freeing memory behind a collective is waiting for communication",
        "questions/idle/__init__.py",
        "cause[blame] = np.where(allocates[source[blame]], _ALLOCATED, _SYNCHRONISED)",
        "cause[blame] = _SYNCHRONISED",
        IDLE,
    ),
    Mistake(
        "a short allocation takes over what a synchronisation before it cost",
        "questions/idle/__init__.py",
        "& (graph.lines.end[:] - graph.lines.start[:] > LAUNCH_NS)",
        "& (graph.lines.end[:] - graph.lines.start[:] > 0)",
        IDLE,
    ),
    Mistake(
        "a collective that takes the one ahead on its own stream for its producer",
        "dependencies/queues.py",
        "[row for row in pending[at] if lane_of[row] != at]",
        "list(pending[at])",
        ("tests/test_buckets.py", "-k", "ahead_on_its_stream"),
    ),
    Mistake(
        "a queue that remembers only its newest wait",
        "dependencies/queues.py",
        "pending[at] = merged(pending[at], target)",
        "pending[at] = target",
        ("tests/test_whatif.py", "-k", "did_not_bind"),
    ),
    Mistake(
        "a synchronising call that must not return before the recorded end",
        "dependencies/host.py",
        "returned = self.returned[call] + CLOCK_NS",
        "returned = self.returned[call]",
        ("tests/test_critical_path.py", "-k", "returns_early"),
    ),
    Mistake(
        "a call that had not to wait, and never will",
        "dependencies/replay.py",
        "holding=events + lines.holds.owner,",
        "holding=events + np.where(lines.awaited[lines.holds.owner] >= 0, lines.holds.owner, 0),",
        ("tests/test_whatif.py", "-k", "synchronising_call"),
    ),
    Mistake(
        "a segment that forgets launches before its last",
        "dependencies/condensed.py",
        "self.end[node] = along + _running_most(self.launched(node) - along, segment)",
        "self.end[node] = self.launched(node)",
        ("tests/test_whatif.py", "-k", "solution_of_its_equations"),
    ),
    Mistake(
        "kernels that keep the contention of longer communication",
        "dependencies/forward.py",
        "            self._change(rank, 1, 0)\n",
        "            pass\n",
        ("tests/test_whatif.py", "-k", "run_alone_earlier"),
    ),
    Mistake(
        "a change of rate that counts for kernels that have run before it",
        "dependencies/forward.py",
        "run.passes(node, before > 0, self)",
        "run.passes(node, after > 0, self)",
        ("tests/test_forward.py", "-k", "event_by_event"),
    ),
    Mistake(
        "transfers that share a link with those of their own stream",
        "dependencies/forward.py",
        "slowed = len(streams - {transfer.stream}) > 0",
        "slowed = len(transfers) > 1",
        ("tests/test_forward.py", "-k", "own_stream"),
    ),
)


def plant(mistake: Mistake, package: Path) -> None:
    """Make the edit in a copy of the package.

    Raises:
        ValueError: the text is not there exactly once.
    """
    path = package / mistake.file
    text = path.read_text(encoding="utf-8")
    if text.count(mistake.right) != 1:
        raise ValueError(f"{mistake.what}: {text.count(mistake.right)} places in {mistake.file}, not 1")
    path.write_text(text.replace(mistake.right, mistake.wrong), encoding="utf-8")


def run(copy: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """The tests against the package of a copy of the project."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "NSYSDDP_PLANTED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def survives(mistake: Mistake, folder: Path) -> str | None:
    """None if a test noticed the mistake, else what happened instead."""
    copy = folder / str(MISTAKES.index(mistake))
    ignore = shutil.ignore_patterns("__pycache__", ".hypothesis", "fixtures", "vendor")
    for part in ("nsysddp", "queries", "tests"):
        shutil.copytree(ROOT / part, copy / part, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", copy)
    try:
        plant(mistake, copy / "nsysddp")
        ended = run(copy, mistake.tests)
    except (ValueError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    noticed = ended.returncode == 1 and "FAILED" in ended.stdout
    return (
        None
        if noticed
        else f"pytest ended with {ended.returncode}: {ended.stdout[-400:]}{ended.stderr[-400:]}"
    )


def main(word: str = "") -> int:
    """Plant every mistake; the number of those that no test noticed."""
    chosen = [mistake for mistake in MISTAKES if word in mistake.what]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="planted-") as folder, ThreadPoolExecutor(WORKERS) as pool:
        for mistake, survived in zip(
            chosen, pool.map(lambda one: survives(one, Path(folder)), chosen), strict=True
        ):
            print(f"{'noticed ' if survived is None else 'MISSED  '} {mistake.what}", flush=True)  # noqa: T201
            if survived is not None:
                print(f"         {survived}", flush=True)  # noqa: T201
                missed += 1
    print(f"{len(chosen) - missed} of {len(chosen)} planted mistakes are noticed")  # noqa: T201
    return missed


if __name__ == "__main__":
    sys.exit(min(main(*sys.argv[1:2]), 1))
