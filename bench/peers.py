"""Ask other tools the same question: overlap of communication and computation of every GPU, over the whole capture.

Runs in an environment of its own, in which the tools are installed (``bench/README.md``); prints one JSON document.

    python bench/peers.py nsys-ai EXPORT            nsys-ai, without a cache left from an earlier run
    python bench/peers.py hta EXPORT FOLDER         HolisticTraceAnalysis, on traces converted into FOLDER
    python bench/peers.py tracelens EXPORT FOLDER   TraceLens's NcclAnalyser, likewise; each kernel of NCCL's is taken
                                                    for an all-reduce of 4 MiB over all ranks, as in the sample
"""

from __future__ import annotations

import json
import logging
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any


def devices(export: Path) -> list[int]:
    """Devices with kernels. In a generated export they are the ranks."""
    connection = sqlite3.connect(f"file:{export}?mode=ro", uri=True)
    found = connection.execute("SELECT DISTINCT deviceId FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY 1")
    return [device for (device,) in found]


def nsys_ai(export: Path, cache: str) -> list[dict[str, Any]]:
    """What ``nsys-ai overlap`` prints, for every device in one process."""
    from nsys_ai import profile  # type: ignore[import-not-found]
    from nsys_ai.overlap import overlap_analysis  # type: ignore[import-not-found]

    answers = []
    with profile.open(str(export), cache_mode=cache) as opened:
        for device in devices(export):
            found = overlap_analysis(opened, device, None)
            answers.append(
                {
                    "rank": device,
                    "compute_ms": round(found["compute_only_ms"] + found["overlap_ms"], 2),
                    "hidden_ms": found["overlap_ms"],
                    "exposed_ms": found["nccl_only_ms"],
                }
            )
    return answers


def convert(export: Path, folder: Path) -> dict[int, str]:
    """Chrome traces as PyTorch's profiler writes them, one a rank: kernels and their launches."""
    folder.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(f"file:{export}?mode=ro", uri=True)
    names = dict(connection.execute("SELECT id, value FROM StringIds"))
    files = {}
    for device in devices(export):
        path = folder / f"rank{device}.json"
        files[device] = str(path)
        ((pid,),) = connection.execute(
            "SELECT DISTINCT globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE deviceId = ?", (device,)
        )
        kernels = connection.execute(
            "SELECT start, end, streamId, correlationId, shortName FROM CUPTI_ACTIVITY_KIND_KERNEL "
            "WHERE deviceId = ? ORDER BY start",
            (device,),
        )
        calls = connection.execute(
            "SELECT start, end, globalTid & 16777215, correlationId, nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME "
            "WHERE globalTid BETWEEN ? AND ? ORDER BY start",
            (pid, pid + 0xFFFFFF),
        )
        with path.open("w") as out:
            about = {"backend": "nccl", "rank": device}
            out.write(f'{{"distributedInfo": {json.dumps(about)}, "traceEvents": [')
            separator = ""
            for start, end, where, correlation, name in kernels:
                event = {
                    "ph": "X",
                    "cat": "kernel",
                    "name": names[name],
                    "pid": device,
                    "tid": where,
                    "ts": start / 1000,
                    "dur": (end - start) / 1000,
                    "args": {"correlation": correlation, "stream": where, "device": device},
                }
                out.write(separator + json.dumps(event))
                separator = ","
            for start, end, where, correlation, name in calls:
                event = {
                    "ph": "X",
                    "cat": "cuda_runtime",
                    "name": names[name].split("_v")[0],
                    "pid": 1000 + device,
                    "tid": where,
                    "ts": start / 1000,
                    "dur": (end - start) / 1000,
                    "args": {"correlation": correlation},
                }
                out.write("," + json.dumps(event))
            out.write("]}")
    return files


def hta(export: Path, folder: Path) -> list[dict[str, Any]]:
    """What ``TraceAnalysis.get_comm_comp_overlap`` answers; the conversion is part of the run and timed apart."""
    begin = time.monotonic()
    files = convert(export, folder)
    converted = time.monotonic() - begin
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    table = TraceAnalysis(trace_files=files, trace_dir=str(folder)).get_comm_comp_overlap(visualize=False)
    return [
        {"rank": int(rank), "overlap_percent": float(percent), "conversion_s": round(converted, 2)}
        for rank, percent in zip(table["rank"], table["comp_comm_overlap_pctg"], strict=True)
    ]


def tracelens(export: Path, folder: Path) -> list[dict[str, Any]]:
    """Sums of latency and of skew over all collectives; what PyTorch's profiler writes beside a kernel is added."""
    files = convert(export, folder)
    ranks = str(sorted(files))
    said = {
        "Collective name": "allreduce",
        "dtype": "Float",
        "In split size": "[]",
        "Out split size": "[]",
        "In msg nelems": 1 << 20,
        "Out msg nelems": 1 << 20,
        "Group size": len(files),
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": ranks,
    }
    for path in map(Path, files.values()):
        trace = json.loads(path.read_text())
        for number, event in enumerate(trace["traceEvents"]):
            event["args"]["External id"] = number
            if event["cat"] == "kernel" and event["name"].startswith("nccl"):
                event["args"].update(said)
        path.write_text(json.dumps(trace))
    from TraceLens import NcclAnalyser  # type: ignore[import-not-found]

    table = NcclAnalyser(list(files.values()), len(files)).build_df_nccl_implicit_sync_cat()
    return [
        {
            "latency_us": float(table["comm_latency"].sum()),
            "skew_us": float(table["skew in start time"].sum()),
        }
    ]


def pandas_sweep(export: Path) -> list[dict[str, Any]]:
    """What a notebook would do: all kernels in pandas, then the union of compute, of communication, and of both."""
    import pandas as pd  # type: ignore[import-not-found]

    connection = sqlite3.connect(f"file:{export}?mode=ro", uri=True)
    names = dict(connection.execute("SELECT id, value FROM StringIds"))
    kernels = pd.read_sql_query(
        'SELECT start, "end", deviceId, shortName FROM CUPTI_ACTIVITY_KIND_KERNEL', connection
    )
    nccl = {number for number, name in names.items() if name.startswith("nccl")}
    kernels["communicates"] = kernels["shortName"].isin(nccl)
    return [
        {"rank": int(device), **_lengths_ms(pd, mine)}
        for device, mine in kernels.groupby("deviceId", sort=True)
    ]


def _lengths_ms(pd: Any, kernels: Any) -> dict[str, float]:
    """Compute, hidden and exposed communication of one GPU by a sweep over all starts and ends."""
    edges = pd.concat(
        [
            pd.DataFrame({"time": kernels[column], "communicates": kernels["communicates"], "change": change})
            for column, change in (("start", 1), ("end", -1))
        ]
    ).sort_values("time", kind="stable")
    sent = edges["change"].where(edges["communicates"], 0).cumsum() > 0
    work = edges["change"].where(~edges["communicates"], 0).cumsum() > 0
    length = -edges["time"].diff(-1).fillna(0)
    return {
        "compute_ms": float(length[work].sum() / 1e6),
        "hidden_ms": float(length[work & sent].sum() / 1e6),
        "exposed_ms": float(length[sent & ~work].sum() / 1e6),
    }


def main() -> None:
    """Run one tool and print its answers."""
    logging.disable(logging.CRITICAL)
    tool, export = sys.argv[1], Path(sys.argv[2])
    if tool == "nsys-ai":
        answers = nsys_ai(export, sys.argv[3] if len(sys.argv) > 3 else "auto")
    elif tool == "pandas":
        answers = pandas_sweep(export)
    elif tool == "tracelens":
        answers = tracelens(export, Path(sys.argv[3]))
    else:
        answers = hta(export, Path(sys.argv[3]))
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
