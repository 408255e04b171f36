"""One table as CSV or Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl


def csv(frame: pl.DataFrame) -> str:
    """The table as CSV with a header; null is an empty field."""
    return frame.write_csv()


def markdown(frame: pl.DataFrame) -> str:
    """The table in GitHub's Markdown; null is an empty cell."""
    lines = [_line(frame.columns), _line(["---:" if dtype.is_numeric() else "---" for dtype in frame.dtypes])]
    lines += [_line([_cell(value) for value in row]) for row in frame.iter_rows()]
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value).replace("\\", "\\\\")
    for special in "|<>*_`[]":
        text = text.replace(special, "\\" + special)
    return text
