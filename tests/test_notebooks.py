"""The notebooks run on bundled captures, hold no output, define nothing, and use public names only."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, require

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_CELLS = 16


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def code(path: Path) -> ast.Module:
    lines = "\n".join("".join(cell["source"]) for cell in cells(path, "code")).splitlines()
    return ast.parse("\n".join(line for line in lines if line != "%matplotlib inline"))


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "01_read_a_run",
        "02_is_my_overlap_real",
        "03_choose_a_bucket_cap",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_source_is_short_public_and_defines_nothing(path: Path) -> None:
    found = list(ast.walk(code(path)))
    assert not [
        n for n in found if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda))
    ]
    names = [n.attr for n in found if isinstance(n, ast.Attribute)]
    names += [alias.name for n in found if isinstance(n, (ast.Import, ast.ImportFrom)) for alias in n.names]
    names += [n.module or "" for n in found if isinstance(n, ast.ImportFrom)]
    assert not [name for name in names if any(part.startswith("_") for part in name.split("."))]
    assert len(json.loads(path.read_text())["cells"]) <= MOST_CELLS
    assert cells(path, "markdown")[0]["source"][0].startswith("# ")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_holds_no_output(path: Path) -> None:
    for cell in cells(path, "code"):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    present = all(importlib.util.find_spec(name) for name in ("nbclient", "nbformat", "ipykernel"))
    require("nbclient with ipykernel", present)
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    pictures = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert pictures
    assert not list(tmp_path.iterdir())
