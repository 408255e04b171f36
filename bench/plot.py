"""Draw time and peak memory against the number of kernels, from ``results.json``, on log axes.

    python bench/plot.py bench

Colours are Okabe and Ito's, each line has a marker of its own, and a line is named where it ends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

INK, GREY, LIGHT = "#1A1C1F", "#5F6670", "#C9CDD2"
LOOKS = {
    "raw read": (GREY, "x", "--"),
    "nsysddp analyze --per capture": ("#56B4E9", "o", "-"),
    "nsysddp analyze --per step": ("#0072B2", "s", "-"),
    "nsysddp critical-path": ("#009E73", "^", "-"),
    "nsysddp diagnose": ("#D55E00", "D", "-"),
    "nsysddp whatif": ("#CC79A7", "v", "-"),
    "nsysddp report": ("#E69F00", "P", "-"),
    "nsys-ai, its cache built": (INK, "*", ":"),
    "nsys-ai, no cache yet": (INK, "1", ":"),
    "pandas, sort and sweep": (GREY, "2", ":"),
    "HolisticTraceAnalysis, with conversion": (GREY, "3", ":"),
}
"""Colour, marker and line of each command that is drawn."""

SCALES = (("wall_s", "wall time, s"), ("peak_mb", "peak memory, MB"))


def series(results: dict[str, Any], form: str, figure: str) -> dict[str, list[tuple[int, float]]]:
    """Points (kernels, value) of each command that is drawn."""
    found: dict[str, list[tuple[int, float]]] = {}
    for size in results["sizes"]:
        for row in size["results"]:
            drawn = row["form"] == form or row["command"] == "raw read"
            if row["runs"] and drawn and row["command"] in LOOKS:
                found.setdefault(row["command"], []).append((size["kernels"], row[figure]))
    return found


def draw(results: dict[str, Any], out: Path) -> None:
    """One column a form of the export, one row a figure."""
    plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 9, "svg.hashsalt": "bench"})
    figure, axes = plt.subplots(2, 2, figsize=(10, 8), sharex=True, sharey="row", layout="constrained")
    for column, form in enumerate(("sqlite", "parquetdir")):
        for row, (name, label) in enumerate(SCALES):
            axis = axes[row][column]
            for command, points in series(results, form, name).items():
                colour, marker, line = LOOKS[command]
                kernels, values = zip(*sorted(points), strict=True)
                axis.plot(kernels, values, line, color=colour, marker=marker, markersize=5, linewidth=1.4)
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.grid(visible=True, which="major", color=LIGHT, linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(colors=GREY)
            if not column:
                axis.set_ylabel(label, color=INK)
            if not row:
                axis.set_title(
                    "SQLite export" if form == "sqlite" else "Parquet export", color=INK, loc="left"
                )
            else:
                axis.set_xlabel("kernels", color=INK)
    handles = [
        plt.Line2D([], [], color=colour, marker=marker, linestyle=line, markersize=5, label=command)
        for command, (colour, marker, line) in LOOKS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, labelcolor=INK)
    beside = out.with_suffix(".svg.part")
    figure.savefig(beside, format="svg", metadata={"Date": None})
    beside.replace(out)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    draw(json.loads((folder / "results.json").read_text()), folder / "results.svg")
