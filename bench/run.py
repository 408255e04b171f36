"""Measure every question on generated exports, beside a raw read of the same file and beside other tools, in one run.

    python bench/run.py                              everything, up to 10 million kernels; results in bench/
    python bench/run.py --kernels 100000 1000000     some sizes
    python bench/run.py --reports 8 64               some numbers of reports (default: 8, 64, 512), a rank each
    python bench/run.py --prepare                    only generate what is measured
    python bench/run.py --budget 600                 what fits in ten minutes; the rest is named with its reason

Whole processes are measured from start to exit: wall time, CPU time and peak memory of the process tree. The page
cache is warm, no cache of a tool is left from an earlier run (its cache folder is new every time), and the
commands alternate, so that a slow minute of the machine hits all of them. Reported are medians; the ratio is to the
raw read (``raw_read.py``: seven kernel columns through ADBC, two row ranges, two threads) of the SQLite file in the
same run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
SIZES = (4_000, 100_000, 1_000_000, 10_000_000)
REPEATS = {4_000: 5, 100_000: 3, 1_000_000: 3}
"""Runs of each command by the number of kernels; of larger exports one."""
RAW = "raw read"
QUESTIONS = (
    *("critical-path", "diagnose", "whatif", "buckets", "contention", "idle"),
    *("communicators", "slack", "stragglers", "pipelines"),
)
REPORTS = (8, 64, 512)
KERNELS_OF_A_REPORT = 4_000
JOBS = (1, 2)
OF_REPORTS = ("analyze", "critical-path", "diagnose")
"""Questions that are asked of many reports."""
BOUNDS: tuple[tuple[int, str, str, float, int | None], ...] = (
    (10_000_000, "sqlite", "nsysddp analyze --per capture", 2.0, 1_000),
    (10_000_000, "sqlite", "nsysddp analyze --per step", 3.0, 1_500),
    (10_000_000, "parquetdir", "nsysddp analyze --per capture", 1.0, None),
    (10_000_000, "parquetdir", "nsysddp analyze --per step", 1.8, None),
    (10_000_000, "sqlite", "nsysddp critical-path", 5.0, 3_000),
    (10_000_000, "sqlite", "nsysddp diagnose", 8.0, 4_000),
    (1_000_000, "sqlite", "nsysddp whatif", 6.0, 2_000),
    (10_000_000, "sqlite", "nsysddp whatif", 10.0, 5_000),
    (1_000_000, "sqlite", "nsysddp report", 5.0, None),
    (10_000_000, "sqlite", "nsysddp report", 10.0, 4_000),
    *((4_000, "sqlite", f"nsysddp {name}", 1.5, None) for name in ("analyze --per step", *QUESTIONS)),
)
"""What is aimed at: kernels, export, command, ratio to the raw read, peak MB."""
MOST_SHARE = 0.4
"""Of the time that is left: a command that is likely to take more is not begun."""
PACKAGES = ("polars", "pyarrow", "adbc-driver-sqlite", "numpy")
SAMPLE_S = 0.05  # how often the memory of the process tree is summed
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Measured:
    """Figures of the runs of one command."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_mb: list[float] = field(default_factory=list)
    page_mb: float | None = None
    check: dict[str, Any] | None = None
    failed: str | None = None


@dataclass(frozen=True)
class Command:
    """One thing to measure; ``before`` brings the state that it must not profit from back."""

    name: str
    argv: list[str]
    form: str = "sqlite"
    page: Path | None = None
    largest: int = max(SIZES)
    check_per: str | None = None
    before: Callable[[], None] | None = None
    once: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def tree_bytes(root: int) -> int:
    """Resident bytes of a process and its descendants, shared pages counted in each."""
    total, todo = 0, [root]
    while todo:
        pid = todo.pop()
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
            for task in Path(f"/proc/{pid}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except (OSError, ValueError):  # ended meanwhile
            continue
    return total


def measure(command: Command, output: Path, limit_s: float) -> tuple[float, float, float, str | None]:
    """Run once; wall seconds, CPU seconds, peak MB, and what went wrong (None: nothing)."""
    if command.before is not None:
        command.before()
    with tempfile.TemporaryDirectory() as fresh, output.open("wb") as out, tempfile.TemporaryFile() as err:
        environment = {**os.environ, "XDG_CACHE_HOME": fresh, **command.environment}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its byte code
        begin = time.perf_counter()
        process = subprocess.Popen(command.argv, stdout=out, stderr=err, env=environment)
        peak, done = 0, threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(SAMPLE_S):
                peak = max(peak, tree_bytes(process.pid))
                if time.perf_counter() - begin > limit_s:
                    process.kill()

        watcher = threading.Thread(target=watch)
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        done.set()
        watcher.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        failed = None
        if wall > limit_s:
            failed = f"stopped after {limit_s:.0f} s"
        elif process.returncode != 0:
            err.seek(0)
            lines = err.read().decode(errors="replace").strip().splitlines()
            failed = f"exit code {process.returncode}: {lines[-1] if lines else ''}"
    peak = max(peak, usage.ru_maxrss * 1024)
    return wall, usage.ru_utime + usage.ru_stime, peak / 1e6, failed


def prepare(folder: Path, kernels: int) -> Path:
    """The export of one size, generated (in a process of its own) when it is not there."""
    path = folder / f"{kernels}.sqlite"
    if not path.with_suffix(".truth.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, BENCH / "generate.py", path, "--kernels", str(kernels)], check=True)
    columns = path.with_suffix("")
    subprocess.run(
        [sys.executable, BENCH / "folder.py", path, columns], check=True, stdout=subprocess.DEVNULL
    )
    for one in (path, *columns.iterdir()):  # warm the page cache
        with one.open("rb") as file:
            while file.read(1 << 24):
                pass
    return path


def commands(export: Path, tool: str, peers: Path | None) -> list[Command]:
    """What is measured on one export, in the order of importance."""
    found = [Command(RAW, [sys.executable, str(BENCH / "raw_read.py"), str(export)])]
    for form, report in (("sqlite", export), ("parquetdir", export.with_suffix(""))):
        analyze = [tool, "analyze", str(report), "--format", "json", "--per"]
        page = export.parent / "report.html"
        found += [
            *(
                Command(f"nsysddp analyze --per {per}", [*analyze, per], form, check_per=per)
                for per in ("capture", "step")
            ),
            *(Command(f"nsysddp {name}", [tool, name, str(report)], form) for name in QUESTIONS),
            Command(
                "nsysddp report",
                [tool, "report", str(report), "--force", "--out", str(page)],
                form,
                page=page,
            ),
        ]
    if peers is None:
        return found
    python = str(peers / "bin" / "python")
    home = export.parent / "home"
    extension = next(
        peers.glob("lib/python*/site-packages/duckdb_extension_sqlite_scanner/extensions/*"), None
    )
    if extension is not None:  # DuckDB would download it at its first use
        shutil.copytree(
            extension, home / ".duckdb/extensions" / extension.name / "linux_amd64", dirs_exist_ok=True
        )
    environment = {"HOME": str(home)}
    cache = export.with_suffix(".nsys-cache")
    traces = export.parent / "hta"

    def forget() -> None:
        shutil.rmtree(cache, ignore_errors=True)
        cache.with_name(cache.name + ".build.lock").unlink(missing_ok=True)

    def clear() -> None:
        shutil.rmtree(traces, ignore_errors=True)

    ask = [python, str(BENCH / "peers.py")]
    return [
        *found,
        Command(
            "nsys-ai, no cache yet",
            [*ask, "nsys-ai", str(export)],
            before=forget,
            once=True,
            environment=environment,
        ),
        Command(
            "nsys-ai, its cache built", [*ask, "nsys-ai", str(export)], once=True, environment=environment
        ),
        Command(
            "nsys-ai, direct",
            [*ask, "nsys-ai", str(export), "direct"],
            once=True,
            environment=environment,
        ),
        Command("pandas, sort and sweep", [*ask, "pandas", str(export)], once=True),
        Command(
            "HolisticTraceAnalysis, with conversion",
            [*ask, "hta", str(export), str(traces)],
            largest=1_000_000,
            before=clear,
            once=True,
            environment=environment,
        ),
    ]


class Clock:
    """How much time is left, and how long a command of another size took.

    Args:
        budget_s: for everything together; None: no end.
    """

    def __init__(self, budget_s: float | None) -> None:
        self._end = None if budget_s is None else time.monotonic() + budget_s
        self._took: dict[tuple[str, str], tuple[int, float]] = {}

    @property
    def left_s(self) -> float:
        """Seconds that are left, at most the limit of one command."""
        return LIMIT_S if self._end is None else min(LIMIT_S, max(self._end - time.monotonic(), 0.0))

    def refuses(self, command: Command, kernels: int) -> str | None:
        """Why a command is not begun; None if it is."""
        if self._end is None or command.name == RAW:  # without the yardstick nothing says anything
            return None
        before, seconds = self._took.get((command.name, command.form), (kernels, 0.0))
        likely = seconds * max(1.0, kernels / before)
        if self.left_s > 0 and likely <= MOST_SHARE * self.left_s:
            return None
        return f"not run: {self.left_s:.0f} s left, likely to take {likely:.0f} s"

    def took(self, command: Command, kernels: int, seconds: float) -> None:
        """Remember a run."""
        self._took[command.name, command.form] = kernels, seconds


LIMIT_S = 600.0
"""A command that takes longer is stopped."""


def run_size(
    kernels: int, folder: Path, repeats: int, tool: str, peers: Path | None, clock: Clock
) -> dict[str, Any]:
    """Measure every command on one size."""
    export = prepare(folder, kernels)
    measured: dict[tuple[str, str], Measured] = {}
    for repeat in range(repeats):
        for command in commands(export, tool, peers):
            result = measured.setdefault((command.name, command.form), Measured())
            if kernels > command.largest or result.failed or (command.once and repeat):
                continue
            refused = clock.refuses(command, kernels)
            if refused is not None:
                result.failed = None if result.wall_s else refused
                continue
            output = folder / "out.json"
            limit_s = LIMIT_S if command.name == RAW else clock.left_s
            wall, cpu, peak, result.failed = measure(command, output, limit_s)
            clock.took(command, kernels, wall)
            say(
                f"{kernels:>10,}  {command.name:<40} {command.form:<10} {wall:8.2f} s  {peak:8.0f} MB  "
                f"{result.failed or ''}"
            )
            if result.failed:
                continue
            result.wall_s.append(round(wall, 4))
            result.cpu_s.append(round(cpu, 4))
            result.peak_mb.append(round(peak, 1))
            if command.page is not None:
                result.page_mb = round(command.page.stat().st_size / 1e6, 1)
                command.page.unlink()
            if command.check_per and result.check is None:
                with output.open("rb") as answer:
                    checked = subprocess.run(
                        [sys.executable, BENCH / "check.py", export, command.check_per],
                        stdin=answer,
                        stdout=subprocess.PIPE,
                        check=False,
                    )
                result.check = json.loads(checked.stdout) if checked.stdout else {"different": -1}
            output.unlink()
    raw = statistics.median(measured[RAW, "sqlite"].wall_s)
    rows: list[dict[str, Any]] = []
    for (name, form), result in measured.items():
        row: dict[str, Any] = {
            "command": name,
            "form": form,
            "runs": len(result.wall_s),
            "failed": result.failed,
            "page_mb": result.page_mb,
        }
        if result.wall_s:
            wall = statistics.median(result.wall_s)
            row |= {
                "wall_s": wall,
                "cpu_s": statistics.median(result.cpu_s),
                "peak_mb": max(result.peak_mb),
                "ratio_to_raw": round(wall / raw, 2),
                "wall_s_of_runs": result.wall_s,
                "check": result.check,
            }
        rows.append(row)
    connection = sqlite3.connect(f"file:{export}?mode=ro", uri=True)
    ((rows_of_kernels,),) = connection.execute("SELECT max(rowid) FROM CUPTI_ACTIVITY_KIND_KERNEL")
    connection.close()
    return {"kernels": rows_of_kernels, "export_mb": round(export.stat().st_size / 1e6, 1), "results": rows}


def run_reports(count: int, folder: Path, tool: str, clock: Clock) -> dict[str, Any]:
    """Measure questions on the reports of one job, a rank each: read in one process, in two, and out of a cache."""
    import many

    reports = folder / f"reports{count}"
    if not reports.is_dir():
        many.reports(reports, count, KERNELS_OF_A_REPORT, jobs=len(os.sched_getaffinity(0)))
    cache = folder / f"cache{count}"
    rows = []
    for name in OF_REPORTS:
        ways = [(f"--jobs {jobs}", ["--jobs", str(jobs)]) for jobs in JOBS]
        ways.append(("--jobs 2, cache filled", ["--jobs", "2", "--cache", str(cache)]))
        if name == OF_REPORTS[0]:
            shutil.rmtree(cache, ignore_errors=True)
            filling = Command("fill", [tool, name, str(reports), *ways[-1][1]])
            measure(filling, folder / "out.json", clock.left_s)
        for way, words in ways:
            command = Command(f"nsysddp {name} {way}", [tool, name, str(reports), "--format", "json", *words])
            row: dict[str, Any] = {
                "command": f"nsysddp {name}",
                "way": way,
                "failed": clock.refuses(command, count),
            }
            if row["failed"] is None:
                wall, cpu, peak, row["failed"] = measure(command, folder / "out.json", clock.left_s)
                clock.took(command, count, wall)
                row |= {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2), "peak_mb": round(peak, 1)}
            say(
                f"{count:>6} reports  {command.name:<45} {row.get('wall_s', 0):8.2f} s  {row['failed'] or ''}"
            )
            rows.append(row)
    (folder / "out.json").unlink(missing_ok=True)
    return {"reports": count, "kernels": KERNELS_OF_A_REPORT, "results": rows}


def machine(tool: Path, peers: Path | None) -> dict[str, Any]:
    """What the figures depend on; nothing that names the machine or its user."""
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES
    answer = subprocess.run([tool, "--version"], stdout=subprocess.PIPE, text=True, check=True)
    versions = {
        "nsysddp": answer.stdout.split()[-1],
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    if peers is not None:
        query = "from importlib.metadata import version as v; print(v('nsys-ai'), v('HolisticTraceAnalysis'))"
        answer = subprocess.run(
            [peers / "bin/python", "-c", query], stdout=subprocess.PIPE, text=True, check=True
        )
        versions["nsys-ai"], versions["HolisticTraceAnalysis"] = answer.stdout.split()
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9, 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "load_before": round(os.getloadavg()[0], 2),
        "versions": versions,
    }


def markdown(results: dict[str, Any]) -> str:
    """The results as a document."""
    about = results["machine"]
    lines = [
        "# Benchmark results",
        "",
        f"{about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB, {about['system']}, {about['date']}, load "
        f"{about['load_before']} before the run; "
        + ", ".join(f"{name} {version}" for name, version in about["versions"].items())
        + ".",
        "",
        "Whole processes, medians (peak: the highest) of alternating runs, page cache warm, no cache left from an "
        "earlier run unless the row says so. Ratio: to the raw read of the SQLite file in the same run. "
        "Answer: numbers equal to the generator's own, or the size of the page.",
        "",
        "![Time and memory against the number of kernels](results.svg)",
        "",
        "| kernels | export | command | form | runs | wall s | CPU s | peak MB | ratio | s per million | answer |",
        "|---:|---:|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for size in results["sizes"]:
        for row in size["results"]:
            head = (
                f"| {size['kernels']:,} | {size['export_mb']:,.0f} MB | {row['command']} | {row['form']} | "
                f"{row['runs']} |"
            )
            if not row["runs"]:
                lines.append(f"{head} | | | | | {row['failed'] or 'not run at this size'} |")
                continue
            million = row["wall_s"] / size["kernels"] * 1e6
            lines.append(
                f"{head} {row['wall_s']:.2f} | {row['cpu_s']:.2f} | {row['peak_mb']:,.0f} | "
                f"{row['ratio_to_raw']:.2f} | {million:.2f} | {_answer(row)} |"
            )
    lines += ["", *_bounds(results["sizes"])]
    lines += [
        "",
        f"Reports of one job, a rank each, {KERNELS_OF_A_REPORT:,} kernels a report; peak of all processes together, "
        "pages that they share counted in each:",
        "",
        "| reports | command | read | wall s | CPU s | peak MB | wall, of --jobs 1 |",
        "|---:|---|---|---:|---:|---:|---:|",
    ]
    for one in results["reports"]:
        alone = {row["command"]: row.get("wall_s") for row in one["results"] if row["way"] == "--jobs 1"}
        for row in one["results"]:
            head = f"| {one['reports']} | {row['command']} | {row['way']} |"
            if row["failed"]:
                lines.append(f"{head} | | | {row['failed']} |")
                continue
            base = alone[row["command"]]
            ratio = "" if not base else f"{row['wall_s'] / base:.2f}"
            lines.append(
                f"{head} {row['wall_s']:.2f} | {row['cpu_s']:.2f} | {row['peak_mb']:,.0f} | {ratio} |"
            )
    lines += [
        "",
        "What the others answer:",
        "",
        "| tool | question | by step | wait and transfer apart | answers |",
        "|---|---|---|---|---|",
        "| nsys-ai | overlap of compute and NCCL on one GPU | no | no | three lengths a GPU |",
        "| pandas, sort and sweep | unions of compute, of communication and of both | no | no | three lengths a GPU |",
        "| HolisticTraceAnalysis | share of communication beside compute | no | no | one percentage a rank |",
        "| nsysddp analyze | 16 lengths of every rank and step, each clipped to its window | yes | yes | all tables |",
    ]
    return "\n".join(lines) + "\n"


def _bounds(sizes: list[dict[str, Any]]) -> list[str]:
    """What is aimed at, beside what was measured."""
    found = {
        (size["kernels"], row["form"], row["command"]): row
        for size in sizes
        for row in size["results"]
        if row["runs"]
    }
    lines = [
        "What is aimed at (a bound that is not met stands in bold):",
        "",
        "| kernels | export | command | ratio | aim | peak MB | aim |",
        "|---:|---|---|---:|---:|---:|---:|",
    ]
    for kernels, form, command, ratio, peak in BOUNDS:
        row = found.get((kernels, form, command))
        if row is None:
            continue
        shown = [
            f"{value:,.{digits}f}" if aim is None or value <= aim else f"**{value:,.{digits}f}**"
            for value, aim, digits in ((row["ratio_to_raw"], ratio, 2), (row["peak_mb"], peak, 0))
        ]
        most = "" if peak is None else f"{peak:,}"
        lines.append(f"| {kernels:,} | {form} | {command} | {shown[0]} | {ratio:.1f} | {shown[1]} | {most} |")
    return lines


def _answer(row: dict[str, Any]) -> str:
    """What is known of the answer itself."""
    if row["page_mb"] is not None:
        return f"page of {row['page_mb']:.1f} MB"
    check = row["check"]
    if check is None:
        return ""
    equal = f"{check.get('equal', 0):,} equal"
    verdict = equal if check["different"] == 0 else f"{equal}, **{check['different']} differ**"
    return verdict + (f", null: {', '.join(check['null'])}" if check.get("null") else "")


def say(text: str) -> None:
    """Progress goes to standard error."""
    print(text, file=sys.stderr, flush=True)


def keep(results: dict[str, Any], folder: Path) -> None:
    """Write what is measured so far; a run that is stopped leaves that."""
    for name, text in (("json", json.dumps(results, indent=1) + "\n"), ("md", markdown(results))):
        beside = folder / f"results.{name}.part"
        beside.write_text(text)
        beside.replace(folder / f"results.{name}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", type=int, nargs="+", default=SIZES)
    parser.add_argument("--reports", type=int, nargs="*", default=REPORTS)
    parser.add_argument("--repeats", type=int, help="runs of each command; default: by size, 5 to 1")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="for everything together")
    parser.add_argument("--prepare", action="store_true", help="only generate the exports")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "bench")
    parser.add_argument(
        "--peers", type=Path, help="virtual environment with the other tools (bench/README.md)"
    )
    parser.add_argument("--out", type=Path, default=BENCH, help="folder for results.json and results.md")
    parser.add_argument("--tool", type=Path, default=Path(sys.executable).with_name("nsysddp"))
    arguments = parser.parse_args()
    if not arguments.tool.exists():
        parser.error(
            f"no {arguments.tool}: install the project into this environment, or name it with --tool"
        )
    if arguments.prepare:
        for kernels in arguments.kernels:
            prepare(arguments.folder, kernels)
        return
    for kernels in arguments.kernels:  # no part of the budget
        prepare(arguments.folder, kernels)
    results: dict[str, Any] = {
        "machine": machine(arguments.tool, arguments.peers),
        "sizes": [],
        "reports": [],
    }
    clock = Clock(arguments.budget)
    arguments.out.mkdir(parents=True, exist_ok=True)
    tool = str(arguments.tool)
    for count in arguments.reports:
        results["reports"].append(run_reports(count, arguments.folder, tool, clock))
        keep(results, arguments.out)
    for kernels in arguments.kernels:
        repeats = arguments.repeats or REPEATS.get(kernels, 1)
        results["sizes"].append(run_size(kernels, arguments.folder, repeats, tool, arguments.peers, clock))
        keep(results, arguments.out)
        subprocess.run([sys.executable, BENCH / "plot.py", arguments.out], check=True)
    say(f"results: {arguments.out / 'results.md'}")


if __name__ == "__main__":
    main()
