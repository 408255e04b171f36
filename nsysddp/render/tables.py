"""One table as CSV or Markdown."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl


def csv(frame: pl.DataFrame) -> str:
    """The table as CSV with a header; null is an empty field. See ``write_csv``."""
    return _inert(frame).write_csv()


def write_csv(frame: pl.DataFrame, stream: IO[bytes]) -> None:
    """Write the table as CSV with a header; null is an empty field.

    Spreadsheets run a cell that begins with ``=``, ``+``, ``-`` or ``@`` as a formula, and names in a report can be
    anything. Such a text gets an apostrophe in front, which they take for "this is text". Numbers stay as they are.
    Whoever reads the texts back takes one apostrophe away where one or more stand before such a character.
    """
    _inert(frame).write_csv(stream)


_FORMULA = r"^'*[=+\-@\t\r\n\x{ff0b}\x{ff0d}\x{ff1d}\x{ff20}]"
"""With apostrophes before it too, so that the one that is added can be told from those that were there."""
_NUMBER = r"^[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"


def _inert(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with nothing in it that a spreadsheet would run, headers included."""
    import polars as pl

    texts = [name for name, dtype in frame.schema.items() if dtype in (pl.String, pl.Categorical)]
    runs = [
        pl.col(name)
        .cast(pl.String)
        .pipe(lambda text: text.str.contains(_FORMULA) & ~text.str.contains(_NUMBER))
        for name in texts
    ]
    made = frame.with_columns(
        pl.when(run)
        .then(pl.lit("'") + pl.col(name).cast(pl.String))
        .otherwise(pl.col(name).cast(pl.String))
        .alias(name)
        for name, run in zip(texts, runs, strict=True)
    )
    return made.rename(
        {name: f"'{name}" for name in frame.columns if name[:1] in "=+-@\t\r\n＋－＝＠" and name}
    )


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
