"""Compare what a tool answered about a generated export with the truth beside it, to the nanosecond.

    nsysddp analyze EXPORT --per step --format json | python bench/check.py EXPORT step

Prints one JSON line; exits with 1 when a number differs or a row is missing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def compare(answer: list[Row], truth: list[Row]) -> dict[str, Any]:
    """Rows are matched by rank and step; every column of the truth is compared; null is counted apart."""
    by_key = {(row["rank"], row["step"]): row for row in answer}
    differ, unknown, compared = [], set(), 0
    for right in truth:
        found = by_key.pop((right["rank"], right["step"]), None)
        if found is None:
            differ.append(f"rank {right['rank']} {right['step']}: no row")
            continue
        for column, value in right.items():
            if found.get(column) is None and value is not None:
                unknown.add(column)
            elif found[column] != value:
                where = f"rank {right['rank']} {right['step']} {column}"
                differ.append(f"{where}: {found[column]}, right is {value}")
            else:
                compared += 1
    differ += [f"rank {rank} {step}: not in the truth" for rank, step in by_key]
    return {
        "rows": len(truth),
        "equal": compared,
        "different": len(differ),
        "first_differences": differ[:5],
        "null": sorted(unknown),
    }


def main() -> None:
    """Read the tool's JSON document from standard input."""
    export, per = Path(sys.argv[1]), sys.argv[2]
    truth = json.loads(export.with_suffix(".truth.json").read_text())[per]
    result = compare(json.load(sys.stdin)["tables"]["overlap"], truth)
    print(json.dumps(result))
    sys.exit(result["different"] > 0)


if __name__ == "__main__":
    main()
