"""Which command lines make a capture? Argument vectors as data: nothing here runs anything."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nsysddp.capture.presets import Preset, workload_path
from nsysddp.model.errors import UsageError

Backend = Literal["nccl", "gloo"]


@dataclass(frozen=True)
class Settings:
    """How a workload is run and what nsys records of it."""

    nproc: int = 2
    steps: int = 40
    warmup: int = 10
    capture_steps: int = 3
    seed: int = 0
    backend: Backend = "nccl"
    per_rank: bool = False
    gpu_metrics: bool = False
    cuda_graph_trace: Literal["node", "graph"] = "node"
    capture_range: Literal["profiler", "none"] = "profiler"
    export: Literal["sqlite", "parquetdir"] = "sqlite"

    @property
    def waits_for_profiler_start(self) -> bool:
        """Does nsys wait for cudaProfilerStart? Never on CPU ranks, which cannot call it."""
        return self.capture_range == "profiler" and self.backend == "nccl"


def workload_argv(preset: Preset, settings: Settings, *, python: str, out: Path) -> list[str]:
    """How is this preset launched on ``settings.nproc`` ranks of one node?"""
    return [
        *(python, "-m", "torch.distributed.run", "--standalone"),
        f"--nproc-per-node={settings.nproc}",
        str(workload_path(preset.script)),
        *preset.arguments,
        *("--steps", str(settings.steps), "--warmup", str(settings.warmup)),
        *("--capture-steps", str(settings.capture_steps), "--out", str(out)),
        *("--backend", settings.backend, "--seed", str(settings.seed)),
    ]


def recorder_argv(nsys: str, settings: Settings, report: Path, *, options: Collection[str] = ()) -> list[str]:
    """How does nsys record the program that follows this prefix?

    CPU sampling and context switches stay off: they answer none of our questions and slow the launching
    threads. ``--capture-range-end=stop`` lets the workload run on to write its own records. On CPU ranks only
    NVTX is traced, over the whole run.

    Args:
        nsys: the program.
        settings: what to record.
        report: the report's path without its suffix; ``_rank%q{RANK}`` is added with ``per_rank``.
        options: long options this nsys knows; the name of the GPU metrics option depends on it.
    """
    on_gpu = settings.backend == "nccl"
    argv = [
        nsys,
        "profile",
        f"--trace={'cuda,nvtx' if on_gpu else 'nvtx'}",
        "--sample=none",
        "--cpuctxsw=none",
    ]
    if on_gpu:
        argv.append(f"--cuda-graph-trace={settings.cuda_graph_trace}")
    if settings.waits_for_profiler_start:
        argv += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    if settings.gpu_metrics:
        old = "--gpu-metrics-device" in options and "--gpu-metrics-devices" not in options
        argv.append("--gpu-metrics-device=all" if old else "--gpu-metrics-devices=all")
    return [*argv, f"--output={report}{'_rank%q{RANK}' if settings.per_rank else ''}"]


def profile_argv(
    recorder: Sequence[str], settings: Settings, target: Sequence[str], *, python: str
) -> list[str]:
    """How is ``target`` recorded: by one nsys over the launch, or (``per_rank``) by one for each rank?"""
    return wrap_ranks(target, recorder, python=python) if settings.per_rank else [*recorder, *target]


EXPORT_ENDINGS = {"sqlite": ".sqlite", "parquetdir": "_pqtdir"}
"""Type of an export to how its name ends after that of the report, as nsys itself names them."""


def export_argv(
    nsys: str, report: Path, target: Path, *, kind: str = "sqlite", blobs: bool = True
) -> list[str]:
    """How is a report exported? ``blobs`` (message sizes of NCCL) needs an nsys that knows --include-blobs."""
    argv = [nsys, "export", f"--type={kind}", "--quiet=true"]
    return [*argv, *(["--include-blobs=true"] if blobs else []), f"--output={target}", str(report)]


_FLAGS = {"--standalone", "--run-path", "--no-python", "-m", "--module", "--virtual-local-rank"}
"""torchrun's options that take no value; every other one takes the next word unless it has ``=``."""


@dataclass(frozen=True)
class Torchrun:
    """A launch by torchrun in pieces: ``launcher`` + ``options`` + what each rank runs."""

    launcher: tuple[str, ...]
    options: tuple[str, ...]
    rank: tuple[str, ...]

    @property
    def nproc(self) -> int | None:
        """Ranks on this node, None where torchrun decides (``auto``, ``gpu``) or where it's not a number."""
        found: str = "1"
        for at, word in enumerate(self.options):
            if match := re.fullmatch(r"--nproc[-_]per[-_]node(?:=(.*))?", word):
                found = match[1] if match[1] is not None else self.options[at + 1]
        return int(found) if found.isdecimal() else None


def parse_torchrun(argv: Sequence[str]) -> Torchrun | None:
    """What are the pieces of this torchrun launch (None: another program)?

    Recognised are ``torchrun ...`` and ``python -m torch.distributed.run ...``.
    """
    words = list(argv)
    if Path(words[0]).name == "torchrun":
        start = 1
    elif words[1:3] in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
        start = 3
    else:
        return None
    at = start
    while at < len(words) and words[at].startswith("-"):
        name = words[at].replace("_", "-")
        at += 1 if "=" in name or name in _FLAGS else 2
    if at >= len(words):
        raise UsageError(
            "torchrun is given no script", do="name the training script after torchrun's options"
        )
    return Torchrun(tuple(words[:start]), tuple(words[start:at]), tuple(words[at:]))


def wrap_ranks(target: Sequence[str], prefix: Sequence[str], *, python: str) -> list[str]:
    """How does each rank of a torchrun launch run under its own ``prefix`` (``nsys profile ...``)?

    torchrun starts the prefix instead of Python (``--no-python``), and the prefix starts ``python``.

    Raises:
        UsageError: the launch is not torchrun's, so that nobody knows where a rank begins.
    """
    launch = parse_torchrun(target)
    if launch is None:
        raise UsageError(
            "--per-rank knows only torchrun's ranks", do="put `nsys profile` after your launcher yourself"
        )
    given = {word.replace("_", "-") for word in launch.options}
    options = [
        word for word in launch.options if word.replace("_", "-") not in ("--no-python", "-m", "--module")
    ]
    if "--no-python" in given:
        rank = list(launch.rank)
    elif given & {"-m", "--module"}:
        rank = [python, "-u", "-m", *launch.rank]
    else:
        rank = [python, "-u", *launch.rank]
    return [*launch.launcher, *options, "--no-python", *prefix, *rank]


_SECRET = re.compile(r"(?i)(token|secret|passw|credential|auth|api[-_]?key|access[-_]?key|private)")


def public_argv(argv: Sequence[str], *, base: Path) -> list[str]:
    """How was it launched, without what must not leave the machine?

    Paths below ``base`` become relative to it and other absolute paths their last part; the value of an option
    or assignment whose name suggests a secret becomes ``***``, and so does an address with a password in it.
    """
    shown: list[str] = []
    hide_next = False
    for word in argv:
        name, equals, value = word.partition("=")
        if hide_next and not word.startswith("-"):
            shown.append("***")
        elif equals and _SECRET.search(name):
            shown.append(f"{name}=***")
        elif equals:
            shown.append(f"{name}={_public_path(value, base)}")
        else:
            shown.append(_public_path(word, base))
        hide_next = not equals and word.startswith("-") and bool(_SECRET.search(word))
    return shown


def _public_path(word: str, base: Path) -> str:
    if re.search(r"://[^/@\s]*:[^/@\s]*@", word):
        return "***"
    path = Path(word)
    if not path.is_absolute():
        return word
    return str(path.relative_to(base)) if path.is_relative_to(base) else path.name
