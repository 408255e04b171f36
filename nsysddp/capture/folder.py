"""The folder of a capture: whether it may be taken, and the files that explain it, run.json and README.md."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nsysddp
from nsysddp.capture import command, processes, provenance
from nsysddp.capture.plan import ADDED_ENVIRONMENT
from nsysddp.model.errors import UsageError
from nsysddp.model.scratch import remove_abandoned

if TYPE_CHECKING:
    from nsysddp.capture.plan import Plan


_FINISHED = ("ok", "cpu_only", "checks_failed", "analysis_failed")
_WORTH_KEEPING = (*_FINISHED, "running")
"""Outcomes that are replaced only with ``force``."""


def prepare_folder(folder: Path, *, force: bool, say: Callable[[str], None]) -> None:
    """Make the folder of a run, empty.

    What a failed capture left is replaced, and that is said; anything else only with ``force``, and a folder
    that no capture made, or to which somebody added a file since a capture finished, never.

    Raises:
        UsageError: the folder is taken.
    """
    remove_abandoned(folder)
    if folder.exists() and any(folder.iterdir()):
        kind = _recorded_outcome(folder)
        if kind is None:
            raise UsageError(f"{folder} exists and holds no capture", do="choose another place with --out")
        if not force and kind in _WORTH_KEEPING:
            what = "a capture that is running or was killed" if kind == "running" else "a finished capture"
            raise UsageError(f"{folder} holds {what}", do="choose another --out, or replace it with --force")
        if kind in _FINISHED and (added := _added(folder)):
            raise UsageError(
                f"{folder} holds {added[0]}, which is not of the capture",
                do="move it away, or choose another --out",
            )
        say(f"replacing {folder}, which holds {'a failed' if not force else 'an earlier'} capture ({kind})")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)


def _recorded_outcome(folder: Path) -> str | None:
    try:
        kind = json.loads((folder / "run.json").read_text())["outcome"]["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(kind)


def _added(folder: Path) -> list[str]:
    """Files that are not among those that the record of the capture names."""
    named = json.loads((folder / "run.json").read_text()).get("files", {})
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return [name for name in files if name != "run.json" and name not in named]


def summary_of(plan: Plan) -> dict[str, Any] | None:
    """What a preset measured itself; None for other programs, and where it wrote nothing readable."""
    if plan.preset is None:
        return None
    try:
        content: dict[str, Any] = json.loads((plan.folder / "summary.json").read_text())
    except (OSError, ValueError):
        return None
    return content


_SUMMARY = (
    "options",
    "world_size",
    "device",
    "bucket_cap_mib",
    "layout_bytes",
    "has_rebuilt",
    "enough_samples",
    "failed_checks",
    "ok",
)
"""What run.json repeats of a workload's summary: how DDP was set up, and whether it did as expected."""


class Record:
    """run.json while it grows."""

    def __init__(self, plan: Plan, machine: provenance.Machine) -> None:
        self.plan = plan
        self.machine = machine
        self.started = datetime.now(timezone.utc)
        self.steps: list[dict[str, Any]] = []
        self.diagnostics: tuple[str, ...] = ()

    def ended(self, what: str, ended: processes.Ended) -> None:
        """Note the exit state of one command (``exit_code`` null: the time limit ended it)."""
        self.steps.append({"what": what, "exit_code": ended.returncode, "seconds": round(ended.seconds, 3)})

    def write(self, kind: str, message: str, *, ranks: tuple[int, ...] = ()) -> None:
        """Write the file with this outcome and the hashes of all other files of the folder."""
        plan, base, summary = self.plan, Path.cwd(), summary_of(self.plan)
        nsys = plan.nsys.version if plan.nsys else None
        exports = [plan.export(report) for report in plan.reports()] if plan.nsys else []
        files = provenance.hash_files(plan.folder)
        files.pop("run.json", None)
        content = {
            "format": "nsysddp run 1",
            "name": plan.name,
            "repeat": plan.repeat,
            "started_utc": self.started.isoformat(timespec="seconds"),
            "outcome": {
                "kind": kind,
                "message": message,
                "ranks": list(ranks),
                "exit_states": self.steps,
            },
            "diagnostics": list(self.diagnostics),
            "command": {
                "profile": command.public_argv(plan.profile(), base=base),
                "export": [command.public_argv(argv, base=base) for argv in exports],
            },
            "configuration": {
                "preset": plan.preset.name if plan.preset else None,
                "ranks": plan.ranks,
                **asdict(plan.settings),
                **plan.variables,
            },
            "workload": {name: summary[name] for name in _SUMMARY if name in summary} if summary else None,
            "git": provenance.git_state(base),
            "versions": {"nsysddp": nsysddp.__version__, "nsys": nsys, **self.machine.versions},
            "gpus": list(self.machine.gpus),
            "topology": self.machine.topology,
            "environment": {**provenance.public_environment(os.environ), **ADDED_ENVIRONMENT},
            "files": files,
        }
        provenance.write_json(plan.folder / "run.json", content)


def write_readme(plan: Plan, verdict: str) -> None:
    """Say in README.md what was captured, what it shows, and what each file is."""
    what = plan.preset.shows if plan.preset else "a program of yours"
    listing = {
        "report*.nsys-rep": "what Nsight Systems recorded; opens in its GUI",
        "report*.sqlite": "its export, which nsysddp reads",
        "report*_pqtdir": "its export, which nsysddp reads",
        "report*.qdstrm": "a recording that still has to be imported",
        "records_rank*.jsonl": "what each rank measured itself: one line an iteration",
        "summary.json": "the same summed up, and whether the replicas are equal",
        "stacks.txt": "where every rank was at the time limit",
        "log.txt": "what nsys and the program printed",
        "run.json": "command, configuration, versions, GPUs, exit states, hashes of the files",
    }
    files = [f"- `{name}`: {text}" for name, text in listing.items() if any(plan.folder.glob(name))]
    exports = sorted(plan.folder.glob(f"report*{command.EXPORT_ENDINGS[plan.settings.export]}"))
    again = f"    nsysddp analyze {' '.join(path.name for path in exports)}"
    lines = [
        f"# {plan.name}, repeat {plan.repeat}",
        "",
        f"Captured by nsysddp {nsysddp.__version__}: {what}.",
        "",
        "## Verdict",
        "",
        *(f"    {line}".rstrip() for line in verdict.strip().splitlines()),
        "",
        "## Files",
        "",
        *files,
        "",
        "The reports and the log hold the environment and the command line of the run: `nsysddp redact` them before",
        "you hand them on.",
        *(["", "## Analyse it again", "", again] if exports else []),
    ]
    (plan.folder / "README.md").write_text("\n".join(lines) + "\n")
