"""``nsysddp capture --save`` keeps the analysis with the run that it comes from."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

from conftest import require

from nsysddp import samples
from nsysddp.cli.capture import _keep
from nsysddp.join.load import load
from nsysddp.questions import analyze


def test_a_capture_is_kept_with_its_run(tmp_path: Path) -> None:
    require("alembic", importlib.util.find_spec("alembic") is not None)
    from nsysddp.store.database import load_document, runs

    (tmp_path / "run.json").write_text(json.dumps({"configuration": {"name": "delay_cap4"}}))
    result = analyze(load(samples.path(samples.TWELVE_BUCKETS)))
    captured = SimpleNamespace(result=result, plan=SimpleNamespace(folder=tmp_path, name="delay_cap4"))
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    number = _keep(captured, url)  # type: ignore[arg-type]
    kept = runs(url=url)
    assert [run.label for run in kept] == ["delay_cap4"]
    rows = load_document(number, url=url)["tables"]["overlap"]
    assert [row["hidden_transfer_ns"] for row in rows] == result["overlap"]["hidden_transfer_ns"].to_list()
