"""Which figures stand in docs/results/scale.md? All of them, made from ``bench/results.json``.

    python docs/results/scale.py          writes scale.md

The bounds are those of ``bench/run.py``, so that what is aimed at is written down once. A bound that the committed run
did not measure is said to be that, never met.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BENCH = HERE.parents[1] / "bench"
sys.path.insert(0, str(BENCH))

from run import BOUNDS  # noqa: E402

Row = dict[str, Any]


def measured(results: dict[str, Any]) -> dict[tuple[int, str, str], Row]:
    """Rows that have figures, by kernels, export and command."""
    return {
        (size["kernels"], row.get("form", "sqlite"), row["command"]): row
        for size in results["sizes"]
        for row in size["results"]
        if row["runs"]
    }


def verdict(row: Row | None, ratio: float, peak_mb: int | None) -> str:
    """Whether a row keeps its bounds: met, **not met**, or not measured."""
    if row is None:
        return "not measured"
    kept = row["ratio_to_raw"] <= ratio and (peak_mb is None or row["peak_mb"] <= peak_mb)
    return "met" if kept else "**not met**"


def bounds(rows: dict[tuple[int, str, str], Row]) -> list[str]:
    """Every bound beside what was measured."""
    lines = [
        "| bound is | kernels | export | command | ratio | peak MB |",
        "|---|---:|---|---|---:|---:|",
    ]
    for kernels, form, command, ratio, peak in BOUNDS:
        row = rows.get((kernels, form, command))
        found = ("?", "?") if row is None else (f"{row['ratio_to_raw']:.2f}", f"{row['peak_mb']:,.0f}")
        memory = found[1] if peak is None else f"{found[1]} (≤ {peak:,})"
        lines.append(
            f"| {verdict(row, ratio, peak)} | {kernels:,} | {form} | {command.removeprefix('nsysddp ')} | "
            f"{found[0]} (≤ {ratio:.1f}) | {memory} |"
        )
    return lines


def page(results: dict[str, Any]) -> str:
    """The page, whole."""
    about = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return "\n".join(
        [
            "# Scale: what is aimed at, and what was measured",
            "",
            "Made by [scale.py](scale.py) from `bench/results.json`, which `bench/run.py` wrote in one run;",
            "every figure of that run is in `bench/results.md`. Ratio: wall time to that of a raw",
            "read of the same rows in SQLite, in that run.",
            "",
            f"{about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB, {about['system']}, {about['date']}; "
            f"{versions}.",
            "",
            *([results["remark"], ""] if "remark" in results else []),
            *bounds(measured(results)),
            "",
            "*Not measured*: the run of that date has no figures of that command at that size and export. That says",
            "nothing about whether the bound is kept.",
            "",
        ]
    )


if __name__ == "__main__":
    text = page(json.loads((BENCH / "results.json").read_text()))
    beside = HERE / "scale.md.part"
    beside.write_text(text, encoding="utf-8")
    beside.replace(HERE / "scale.md")
