"""Which figures stand in docs/results/README.md? All of them, made from the files beside it.

    python docs/results/make.py                  writes the tables into README.md
    python docs/results/make.py collect FOLDER   first condenses the raw records of runs in FOLDER

``steps.csv.gz`` holds every measured time of every iteration, ``runs.json`` what the runs found besides (layouts,
checks, memory), ``sweep.json`` is what `nsysddp sweep` wrote; the captures are in ``tests/fixtures/h200``. So every
median, percentile and interval can be computed anew.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
STEPS = HERE / "steps.csv.gz"
RUNS = HERE / "runs.json"
SWEEP = HERE / "sweep.json"
CAPTURES = HERE.parents[1] / "tests" / "fixtures" / "h200"

MATRIX = (
    "fine1_cap4",
    "coarse4_cap4",
    "coarse4_cap16",
    "coarse4_cap64",
    "delay_cap4",
    "delay_cap64",
    "dynamic_unused",
    "static_unused",
)
FAILING = "undetected_unused"
EXPECTED_MIB: dict[str, list[int]] = {
    "fine1_cap4": [4] * 12,
    "coarse4_cap4": [4] * 12,
    "coarse4_cap16": [16] * 3,
    "coarse4_cap64": [48],
    "delay_cap4": [4] * 12,
    "delay_cap64": [48],
    "dynamic_unused": [4, 16, 16, 16],
    "static_unused": [16, 16, 16, 4],
}
TIMED = {**{f"matrix/{name}": name for name in MATRIX}}
TIMED |= {name: name for name in ("gpt_ddp", "hook_bf16", "hook_powersgd")}
"""Runs that had the GPUs to themselves: folder of the raw records to name of the run."""

UNTIMED = {f"matrix/{FAILING}": FAILING, "hook_fp16": "hook_fp16", "memory_gpt": "memory_gpt"}
UNTIMED |= {
    f"memory_branches/{name}": f"memory_{name}" for name in ("coarse4_cap4", "coarse4_cap64", "delay_cap4")
}
"""Runs whose times mean nothing: three ran beside each other, and one ends in its second forward."""

REFERENCE_STEP_MS = {
    "fine1_cap4": 8.890,
    "coarse4_cap4": 5.601,
    "coarse4_cap16": 4.121,
    "coarse4_cap64": 4.336,
    "delay_cap4": 81.122,
    "delay_cap64": 81.839,
}
"""Steps on 4 x V100, as given; nothing more is known of those runs."""
REFERENCE_OVERLAP_US = (46505.689, 12269.099, 1228.953, 10479.263)
"""Overlap of delay_cap4 there, GPUs 0 to 3."""

MIB = 1 << 20


# --- from raw records to the data files -----------------------------------------------------------------


def collect(raw: Path) -> None:
    """Condense the records of runs: ``raw`` holds the folders of TIMED and UNTIMED."""
    rows: list[tuple[Any, ...]] = []
    runs: dict[str, Any] = {}
    for folder, name in {**TIMED, **UNTIMED}.items():
        summary = json.loads((raw / folder / "summary.json").read_text())
        records = [
            json.loads(line)
            for path in sorted((raw / folder).glob("records_rank*.jsonl"))
            for line in path.read_text().splitlines()
        ]
        measured = [row for row in records if row["stage"] == "measured"]
        if folder in TIMED:
            rows += [
                (name, row["rank"], row["iteration"], row["name"], row["clock"], row["time_ns"])
                for row in measured
                if row["record"] == "time"
            ]
        runs[name] = _run(summary, measured)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("run", "rank", "iteration", "name", "clock", "time_ns"))
    writer.writerows(sorted(rows))
    STEPS.write_bytes(gzip.compress(table.getvalue().encode(), mtime=0))
    RUNS.write_text(json.dumps(runs, indent=1) + "\n")


_KEPT = (
    "device",
    "world_size",
    "torch",
    "nccl",
    "first_layout_bytes",
    "layout_bytes",
    "ready_order",
    "has_rebuilt",
    "parameters",
    "hook_largest_relative_error",
    "expected_failure",
    "failed_checks",
    "ok",
)


def _run(summary: dict[str, Any], measured: list[dict[str, Any]]) -> dict[str, Any]:
    kept = [key for key in _KEPT if key in summary]
    buckets = [row for row in measured if row["record"] == "bucket"]
    by_step: dict[tuple[int, int], list[int]] = {}
    for row in buckets:
        by_step.setdefault((row["rank"], row["iteration"]), []).append(row["bytes"])
    replicas = {rank["replica"] for rank in summary["ranks"] if "replica" in rank}
    return {
        **{key: summary[key] for key in kept},
        "options": {key: summary["options"][key] for key in ("steps", "warmup", "comm_hook")},
        "bucket_records": len(buckets),
        "rank_iterations": len(by_step),
        "layouts_seen_bytes": [list(one) for one in sorted({tuple(sizes) for sizes in by_step.values()})],
        "replicas": len(replicas),
        "checks": [[check["name"] for check in rank["checks"] if check["ok"]] for rank in summary["ranks"]],
        "errors": [rank["error"] for rank in summary["ranks"] if "error" in rank],
        "throughput": [rank.get("throughput") for rank in summary["ranks"]],
        "memory": [rank.get("memory") for rank in summary["ranks"]],
    }


# --- the data files -------------------------------------------------------------------------------------


def measured() -> pl.DataFrame:
    """run, rank, iteration, name, clock, time_ns."""
    import polars as pl

    return pl.read_csv(gzip.decompress(STEPS.read_bytes()))


def runs() -> dict[str, Any]:
    """What each run found."""
    found: dict[str, Any] = json.loads(RUNS.read_text())
    return found


def overlap(capture: str) -> pl.DataFrame:
    """The overlap table of a capture."""
    from nsysddp.join.load import load
    from nsysddp.questions import analyze

    return analyze(load([CAPTURES / f"{capture}.sqlite.gz"]))["overlap"]


# --- the tables -----------------------------------------------------------------------------------------


def tables() -> dict[str, str]:
    """Name to Markdown table."""
    return {
        "correct": _correct(),
        "steps": _steps(),
        "captures": _captures(),
        "delay": _delay(),
        "reference": _reference(),
        "others": _others(),
        "hooks": _hooks(),
        "memory": _memory(),
        "sweep": _sweep(),
    }


def _markdown(heads: list[str], rows: list[list[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _ms(value_ns: float | None, digits: int = 3) -> str:
    return "-" if value_ns is None else f"{value_ns / 1e6:.{digits}f}"


def _times(frame: pl.DataFrame, run: str, rank: int, name: str, clock: str) -> list[int]:
    import polars as pl

    chosen = frame.filter(
        pl.col("run") == run, pl.col("rank") == rank, pl.col("name") == name, pl.col("clock") == clock
    )
    found: list[int] = chosen["time_ns"].to_list()
    return found


def quantile(values: list[int], share: float) -> float:
    """Linear between neighbours, as in the workloads' own summaries."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def correct(run: dict[str, Any], name: str) -> bool:
    """Is what DDP did in this run what was expected of it?"""
    wanted = [[mib * MIB for mib in EXPECTED_MIB[name]]]
    return bool(run["ok"]) and run["layouts_seen_bytes"] == wanted and run["replicas"] == 1


def _correct() -> str:
    rows = []
    found = runs()
    for name in MATRIX:
        run = found[name]
        (sizes,) = run["layouts_seen_bytes"]
        shown = ", ".join(f"{size // MIB}" for size in sizes) if len(set(sizes)) > 1 or len(sizes) < 4 else ""
        order = run["ready_order"]
        rows.append(
            [
                name,
                shown or f"{len(sizes)} x {sizes[0] // MIB}",
                f"{order[0]}..{order[-1]}",
                run["has_rebuilt"],
                f"{run['bucket_records'] // run['rank_iterations']} x {run['rank_iterations']}",
                "equal" if run["replicas"] == 1 else "DIFFERENT",
                "yes" if correct(run, name) else "NO",
            ]
        )
    good = sum(correct(found[name], name) for name in MATRIX)
    total = sum(found[name]["bucket_records"] for name in MATRIX)
    (iterations,) = {found[name]["rank_iterations"] for name in MATRIX}
    failed = int(found[FAILING]["expected_failure"])
    rows.append([FAILING, "-", "-", "-", "-", "-", "fails as it should" if failed else "NO"])
    table = _markdown(
        [
            "configuration",
            "buckets in launch order, MiB",
            "ready order",
            "has_rebuilt",
            "bucket records",
            "replicas",
            "as expected",
        ],
        rows,
    )
    return (
        f"{table}\n\nLayouts {good} of {len(MATRIX)}; expected failure {failed} of 1; {total} bucket records = "
        f"{total // iterations} x {iterations} iterations of a rank."
    )


def _steps() -> str:
    frame = measured()
    rows = []
    for name in MATRIX:
        for rank in (0, 1):
            step = _times(frame, name, rank, "step", "cuda_event")
            backward = statistics.median(_times(frame, name, rank, "backward", "cuda_event"))
            host = [
                statistics.median(_times(frame, name, rank, what, "host"))
                for what in ("backward", "optimizer")
            ]
            rows.append(
                [
                    name,
                    rank,
                    len(step),
                    *(_ms(quantile(step, share)) for share in (0.5, 0.95, 0.99)),
                    _ms(backward),
                    *(_ms(value) for value in host),
                ]
            )
    heads = ["configuration", "rank", "iterations", "step median", "P95", "P99", "backward", "backward, host"]
    return _markdown([*heads, "optimizer, host"], rows)


SPLIT = ("compute_ns", "hidden_transfer_ns", "hidden_wait_ns", "exposed_transfer_ns", "exposed_wait_ns")
SPLIT_HEADS = ["compute", "hidden transfer", "hidden wait", "exposed transfer", "exposed wait"]


def _median_row(frame: pl.DataFrame, rank: int, columns: tuple[str, ...]) -> list[str]:
    import polars as pl

    mine = frame.filter(pl.col("rank") == rank)
    return [_ms(mine[column].median() if mine[column].null_count() == 0 else None) for column in columns]  # type: ignore[arg-type]


def _captures() -> str:
    rows = []
    for name in MATRIX:
        frame = overlap(name)
        for rank in (0, 1):
            steps = frame.filter(rank=rank).height
            rows.append(
                [name, rank, steps, *_median_row(frame, rank, (*SPLIT, "tail_communication_ns", "idle_ns"))]
            )
    return _markdown(["capture", "rank", "steps", *SPLIT_HEADS, "tail", "idle"], rows)


def _delay() -> str:
    rows = []
    for name in ("delay_cap4", "delay_cap64"):
        for row in overlap(name).sort("rank", "step_index").iter_rows(named=True):
            us = [f"{row[column] / 1e3:.1f}" for column in ("hidden_communication_ns", *SPLIT[1:])]
            rows.append([name, row["rank"], row["step"].removeprefix("step "), *us])
    return _markdown(
        ["capture", "rank", "step", "overlap, us", *(f"{head}, us" for head in SPLIT_HEADS[1:])], rows
    )


def _reference() -> str:
    frame = measured()
    rows = []
    for name, theirs in REFERENCE_STEP_MS.items():
        ours = [statistics.median(_times(frame, name, rank, "step", "cuda_event")) for rank in (0, 1)]
        rows.append([name, f"{theirs:.3f}", *(_ms(value) for value in ours)])
    return _markdown(["configuration", "4 x V100", "2 x H200, rank 0", "rank 1"], rows)


def _others() -> str:
    rows = []
    for name in ("gpt_ddp", "gpt_fsdp", "straggler", "host_gap", "no_overlap"):
        frame = overlap(name)
        for rank in (0, 1):
            collectives = frame.filter(rank=rank)["collectives"].unique().to_list()
            shown = ", ".join(map(str, collectives))
            rows.append([name, rank, shown, *_median_row(frame, rank, (*SPLIT, "tail_communication_ns"))])
    return _markdown(["capture", "rank", "collectives a step", *SPLIT_HEADS, "tail"], rows)


def _hooks() -> str:
    frame, found = measured(), runs()
    rows = []
    for run, workload in (
        ("gpt_ddp", "GPT, cap 25"),
        ("hook_bf16", "GPT, cap 25"),
        ("hook_fp16", "GPT, cap 25"),
        ("coarse4_cap16", "branches, cap 16"),
        ("hook_powersgd", "branches, cap 16"),
    ):
        told = found[run]
        step = [_times(frame, run, rank, "step", "cuda_event") for rank in (0, 1)]
        error = told["hook_largest_relative_error"]
        rows.append(
            [
                told["options"]["comm_hook"],
                workload,
                len(step[0]) or "-",
                *(_ms(statistics.median(times)) if times else "-" for times in step),
                _throughput(told) if step[0] else "-",
                f"{error:.1e}" if error else "0",
                "kept" if told["ok"] else "BROKEN",
            ]
        )
    heads = [
        "hook",
        "workload",
        "iterations",
        "step median, rank 0",
        "rank 1",
        "throughput of a rank",
        "largest relative error",
        "contract",
    ]
    return _markdown(heads, rows)


def _throughput(run: dict[str, Any]) -> str:
    """From the median step, of the slower rank."""
    slower = min(run["throughput"], key=lambda one: one["per_rank"])
    return f"{slower['per_rank']:,.0f} {slower['unit']}"


def _memory() -> str:
    rows = []
    for run in ("memory_coarse4_cap4", "memory_coarse4_cap64", "memory_delay_cap4", "memory_gpt"):
        for rank, memory in enumerate(runs()[run]["memory"]):
            mb = [
                f"{memory[f'{view}_{what}_bytes'] / 1e6:.1f}"
                for view in ("with_view", "without_view")
                for what in ("peak", "after_backward")
            ]
            saved = memory["without_view_after_backward_bytes"] - memory["with_view_after_backward_bytes"]
            rows.append([run.removeprefix("memory_"), rank, *mb, f"{saved / 1e6:.1f}"])
    heads = [
        "run",
        "rank",
        "with views: peak",
        "after backward",
        "without: peak",
        "after backward",
        "saved there",
    ]
    return _markdown(heads, rows)


def _sweep() -> str:
    found = json.loads(SWEEP.read_text())
    rows = []
    for cap in found["caps"]:
        interval = "-" if cap["is_best"] else f"{_ms(cap['low_ns'], 1)} .. {_ms(cap['high_ns'], 1)}"
        ranks = [row for row in found["ranks"] if row["cap_mib"] == cap["cap_mib"]]
        for rank in ranks:
            rows.append(
                [
                    f"{cap['cap_mib']:g}",
                    rank["rank"],
                    _ms(cap["median_ns"]),
                    _ms(cap["p95_ns"]),
                    _ms(cap["difference_ns"]),
                    interval,
                    *(_ms(rank[name]) for name in SPLIT[1:]),
                    _ms(rank["tail_communication_ns"]),
                ]
            )
    heads = [
        "cap, MiB",
        "rank",
        "step median",
        "P95",
        "- smallest",
        "95 % interval",
        *SPLIT_HEADS[1:],
        "tail",
    ]
    return (
        f"{_markdown(heads, rows)}\n\n{found['rounds']} interleaved runs of each cap: {found['conclusion']}."
    )


def filled(text: str) -> str:
    """The page with its tables replaced."""
    for name, table in tables().items():
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not marks.search(text):
            raise SystemExit(f"README.md has no place for the table {name}")
        text = marks.sub(lambda found, table=table: f"{found[1]}\n{table}\n\n{found[2]}", text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    if sys.argv[1:2] == ["collect"]:
        collect(Path(sys.argv[2]))
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
