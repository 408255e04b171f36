"""Which captures are to be made, with which command lines, and can this machine make them?"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nsysddp.capture import command, failures, provenance
from nsysddp.capture.command import Settings
from nsysddp.capture.failures import Failure
from nsysddp.capture.presets import Preset, find_preset
from nsysddp.capture.tool import NEWEST_TESTED, Nsys, find_nsys, inspect_nsys
from nsysddp.model.errors import UsageError

ADDED_ENVIRONMENT = {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
"""What every launch gets: stacks upon SIGABRT (the time limit), and a log in order."""


@dataclass(frozen=True)
class Plan:
    """One capture that is to be made.

    Attributes:
        name: of the run; its folder is ``<name>-<repeat>``.
        repeat: which repeat this is, from 1.
        folder: where everything goes.
        target: the launch of the program on all ranks.
        settings: how it is run and what is recorded.
        preset: the preset, None for a program of the user's.
        nsys: the nsys to use, None to run without (CPU ranks only).
        variables: what was varied, for run.json (``{"bucket_cap_mib": 4}`` in a sweep).
    """

    name: str
    repeat: int
    folder: Path
    target: tuple[str, ...]
    settings: Settings
    preset: Preset | None = None
    nsys: Nsys | None = None
    variables: dict[str, Any] = field(default_factory=dict)

    @property
    def ranks(self) -> int | None:
        """How many ranks this node runs, None if the launch does not say."""
        if self.preset is not None:
            return self.settings.nproc
        launch = command.parse_torchrun(self.target)
        return launch.nproc if launch else None

    def recorder(self) -> list[str]:
        """The prefix that makes nsys record; empty without nsys."""
        if self.nsys is None:
            return []
        report = self.folder / "report"
        options = self.nsys.profile_options
        return command.recorder_argv(self.nsys.path, self.settings, report, options=options)

    def profile(self) -> list[str]:
        """The command line that runs the program, under nsys where there is one."""
        if self.nsys is None:
            return list(self.target)
        python = provenance.launch_python(self.target, "python")
        return command.profile_argv(self.recorder(), self.settings, self.target, python=python)

    def export(self, report: Path) -> list[str]:
        """The command line that exports a report, to a hidden place that is renamed when it's whole."""
        if self.nsys is None:
            raise ValueError("nothing to export without nsys")
        blobs = self.nsys.exports_blobs
        kind = self.settings.export
        return command.export_argv(
            self.nsys.path, report, hidden_export(report, kind), kind=kind, blobs=blobs
        )

    def reports(self) -> list[Path]:
        """The reports that nsys is to write, as far as the number of ranks is known."""
        if not self.settings.per_rank:
            return [self.folder / "report.nsys-rep"]
        return [self.folder / f"report_rank{rank}.nsys-rep" for rank in range(self.ranks or 1)]

    def dry_run(self) -> str:
        """The exact command lines, as a shell would take them."""
        env = " ".join(f"{name}={value}" for name, value in ADDED_ENVIRONMENT.items())
        lines = [f"{env} {shlex.join(self.profile())}"]
        if self.nsys is not None:
            lines += [shlex.join(self.export(report)) for report in self.reports()]
        return "\n".join(lines)


def choose_nsys(
    path: str | None,
    settings: Settings,
    *,
    dry_run: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Nsys | None:
    """Which nsys records? None: none is there, and CPU ranks run without.

    A dry run needs none: the command lines of the newest tested one are shown then.

    Raises:
        Failure: none is there and GPUs are to be captured, or the one given does not run.
    """
    try:
        return inspect_nsys(find_nsys(path))
    except Failure:
        if dry_run and path is None:
            return Nsys(
                "nsys", ".".join(map(str, NEWEST_TESTED)), frozenset(), frozenset({"--include-blobs"})
            )
        if settings.backend == "nccl" or path is not None:
            raise
        say("nsys is not there: the program runs, and nothing is captured")
        return None


def plan_presets(
    names: Sequence[str],
    settings: Settings,
    *,
    out: Path,
    repeat: int,
    nsys: Nsys | None,
    python: str,
) -> list[Plan]:
    """Which captures do these presets make? All of them once, then all again: drift hits all alike.

    Raises:
        UsageError: an unknown preset, or one named twice.
    """
    if len(set(names)) != len(names):
        raise UsageError("a preset is named twice", do="use --repeat for repeats")
    plans = []
    for turn in range(1, repeat + 1):
        for preset in map(find_preset, names):
            plans.append(plan_preset(preset, turn, settings, out=out, nsys=nsys, python=python))
    return plans


def plan_preset(
    preset: Preset, turn: int, settings: Settings, *, out: Path, nsys: Nsys | None, python: str
) -> Plan:
    """One capture of a preset, the ``turn``-th of its kind."""
    folder = out / f"{preset.name}-{turn}"
    target = command.workload_argv(preset, settings, python=python, out=folder)
    if preset.expects_error:  # it fails before any window opens
        settings = replace(settings, capture_range="none")
    return Plan(preset.name, turn, folder, tuple(target), settings, preset, nsys)


def plan_program(
    program: Sequence[str], settings: Settings, *, out: Path, repeat: int, nsys: Nsys | None
) -> list[Plan]:
    """Which captures does a program of the user's make? They are named after its script."""
    launch = command.parse_torchrun(program)
    words = launch.rank if launch else [word for word in program if not word.startswith("-")]
    script = next((word for word in words if word.endswith(".py")), words[0])
    name = re.sub(r"[^\w.-]", "_", Path(script).stem)
    return [
        Plan(name, turn, out / f"{name}-{turn}", tuple(program), settings, None, nsys)
        for turn in range(1, repeat + 1)
    ]


def check_machine(plans: Sequence[Plan]) -> provenance.Machine:
    """Can these plans run here? Asked before anything is started.

    Raises:
        Failure: nsys lacks an option, torch is missing, no GPU or fewer than ranks.
    """
    plan = plans[0]
    if plan.nsys is not None:
        plan.nsys.require(plan.recorder())
    machine = provenance.inspect_machine(provenance.launch_python(plan.target, sys.executable))
    if plan.settings.backend == "nccl":
        provenance.require_gpus(machine, plan.ranks)
    elif plan.preset is not None and machine.versions["torch"] is None:
        raise failures.torch_missing()
    return machine


def hidden_export(report: Path, kind: str) -> Path:
    """Where an export lies until it is whole."""
    return report.with_name(f".{report.stem}{command.EXPORT_ENDINGS[kind]}")
