"""The terminal screens of ``nsysddp doctor``."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

import nsysddp
from nsysddp.model.names import visible

if TYPE_CHECKING:
    from rich.console import Console

    from nsysddp.ingest.inspect import Inspection

_CORE = ("polars", "pyarrow", "adbc-driver-sqlite", "sqlalchemy", "matplotlib", "rich", "click", "jinja2")
_EXTRAS = (("torch", "workloads"), ("alembic", "store"), ("psycopg", "store"), ("perfetto", "perfetto"))


def print_versions(screen: Console) -> None:
    """Versions of what is installed, and what an extra would bring."""
    table = _grid()
    table.add_row("nsysddp", nsysddp.__version__)
    table.add_row("Python", platform.python_version())
    for name in _CORE:
        table.add_row(name, _version(name) or Text("missing", style="red"))
    for name, extra in _EXTRAS:
        table.add_row(
            name, _version(name) or Text(f"not installed (pip install 'nsysddp[{extra}]')", style="dim")
        )
    table.add_row(
        "nsys", _nsys() or Text("not on PATH (needed for .nsys-rep files and capture)", style="dim")
    )
    screen.print(table)


def print_report(screen: Console, found: Inspection) -> None:
    """What a report holds and can answer."""
    screen.print()
    screen.print(Text(found.name, style="bold"))
    table = _grid()
    table.add_row("nsys", found.nsys_version or "not said")
    table.add_row("schema", found.schema or "not said")
    for name, rows in found.rows.items():
        table.add_row(name, f"{rows:,} rows")
    screen.print(table)
    screen.print()
    answers = Table(box=None, pad_edge=False, padding=(0, 2))
    answers.add_column("")
    answers.add_column("question", overflow="fold")
    answers.add_column("what would bring it", overflow="fold")
    for ability in found.abilities:
        mark = Text("yes", style="green") if ability.answered else Text("no", style="red")
        answers.add_row(mark, ability.question, "" if ability.answered else ability.remedy)
    screen.print(answers)
    if found.families:
        screen.print()
        screen.print(Text("Ranges that repeat (for --step-pattern and --phase-pattern)", style="bold"))
        for line in found.families:
            screen.print(Text(f"  {line}"))
    if found.diagnostics:
        screen.print()
        screen.print(Text("nsys itself says", style="bold"))
        for line in found.diagnostics:
            screen.print(Text(f"  {line}"))


def _grid() -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _nsys() -> str | None:
    path = shutil.which("nsys")
    if path is None:
        return None
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not run ({type(error).__name__})"
    return visible(said.strip().splitlines()[0]) if said.strip() else "says nothing"
