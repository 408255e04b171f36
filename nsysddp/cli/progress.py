"""Show on a terminal how far reading is: how many of how many, how fast, how long it will take."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def shown() -> Iterator[Callable[[str, int, int | None], None] | None]:
    """A progress display on stderr where that is a terminal; None elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Count(TextColumn):
        """How many (of how many), and how many a second."""

        def __init__(self) -> None:
            super().__init__("")

        def render(self, task: Task) -> Text:
            of = f" of {task.total:,.0f}" if task.total else ""
            rate = f", {task.speed:,.3g}/s" if task.speed else ""
            return Text(f"{task.completed:,.0f}{of}{rate}")

    class Left(TextColumn):
        """How long it will still take, where that can be known."""

        def __init__(self) -> None:
            super().__init__("")

        def render(self, task: Task) -> Text:
            left = task.time_remaining
            return Text("" if not task.total or left is None else f"{left:,.0f} s left")

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(20),
        Count(),
        Left(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        tasks: dict[str, Any] = {}

        def advance(what: str, count: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = display.add_task(what, total=total)
            display.advance(tasks[what], count)

        yield advance
