"""Which workloads with a known answer can be captured by name?

Standard library only, so that ``nsysddp capture --list`` costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nsysddp.model.errors import CaptureError, UsageError


@dataclass(frozen=True)
class Preset:
    """One named workload: the script, the arguments that select its configuration, what its capture shows."""

    name: str
    script: str
    arguments: tuple[str, ...]
    shows: str
    expects_error: bool = False
    """The training step must fail in this configuration, and the script checks that it does."""


def _branches(name: str, shows: str, *, expects_error: bool = False) -> Preset:
    return Preset(name, "ddp_branches.py", ("--config", name), shows, expects_error)


_ALL = (
    _branches("fine1_cap4", "48 gradients of 1 MiB rebuilt into 12 buckets of 4 MiB"),
    _branches("coarse4_cap4", "12 gradients of 4 MiB, one bucket each"),
    _branches("coarse4_cap16", "3 buckets of 16 MiB"),
    _branches("coarse4_cap64", "one bucket of 48 MiB: nothing left to overlap with"),
    _branches("delay_cap4", "12 buckets behind a delay in each branch: overlap above 0 on every rank"),
    _branches("delay_cap64", "one bucket behind the same delays: overlap exactly 0 on every rank"),
    _branches("dynamic_unused", "an unused parameter found at run time: 4, 16, 16, 16 MiB, never rebuilt"),
    _branches("static_unused", "an unused parameter in a static graph: 16, 16, 16, 4 MiB, rebuilt"),
    _branches(
        "undetected_unused", "an unused parameter that DDP refuses in the next forward", expects_error=True
    ),
    Preset("gpt_ddp", "gpt_ddp.py", (), "a small GPT in bf16 under DDP"),
    Preset("gpt_fsdp", "gpt_fsdp.py", (), "the same GPT under fully_shard: all-gathers and reduce-scatters"),
    Preset("straggler", "straggler.py", (), "one rank late: the others' communication is waiting"),
    Preset("host_gap", "host_gap.py", (), "a host that reads the loss and waits for data: one gap a step"),
    Preset("no_overlap", "no_overlap.py", (), "each collective waits for its producer: overlap 0"),
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in _ALL}


def find_preset(name: str) -> Preset:
    """Which preset has this name?

    Raises:
        UsageError: there is none; the message lists those that exist.
    """
    if name not in PRESETS:
        raise UsageError(f"no preset is called {name!r}", do=f"choose from {', '.join(PRESETS)}")
    return PRESETS[name]


def workload_path(script: str) -> Path:
    """Where is this workload: beside the installed package, or in the checkout that holds it?

    Raises:
        CaptureError: in neither place.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "workloads", package.parent / "workloads"):
        if (folder / script).is_file():
            return folder / script
    raise CaptureError(
        f"the workload {script} is not installed", do="reinstall nsysddp, or run from a checkout"
    )
