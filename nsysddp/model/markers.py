"""Names of the NVTX ranges and marks that workloads emit and the analyzer reads.

Standard library only: training scripts import this without pulling in the analyzer. Everything that an
instrumented loop writes into a trace is spelled here once, with its parser beside it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PHASES = ("data", "forward", "backward", "optimizer")

ASKED_PHASES = ("forward", "backward", "optimizer")
"""Phases without which something cannot be answered."""

DEFAULT_STEP_PATTERN = r"(step|iter(ation)?|ProfilerStep#?)[ _#:]?\d+"
"""Full match, case-insensitive (definitions: step window)."""

WELL_KNOWN_STEP_PATTERNS = (
    r"(global[ _-]?|train(ing)?[ _-]?)(step|iter(ation)?|batch)[ _#:=-]*\d+",  # own loops, NeMo
    r"(\[pl\]\[profile\])?run_training_batch",  # Lightning
    r"(DeepSpeedEngine\.|PipelineEngine\.)?train_batch([ _#:-]*\d+)?",  # DeepSpeed
    r"train(ing)?[ _-]?(step|iter(ation)?|batch)",  # Megatron, Megatron Bridge
    r"batch[ _#:=-]*\d+",
    r"train",  # JAX: StepTraceAnnotation("train", step_num=...)
)
"""Names of steps in use, tried in this order where none has the default form; full match, case-insensitive."""

_ENGINE = r"((model|loss|engine|\w*Engine|DDP|DistributedDataParallel|FSDP)[ _.:-]?)?"
_LIGHTNING = r"|(\[pl\]\[profile\])?\[(Strategy|LightningModule)\]\w+\."

DEFAULT_PHASE_PATTERNS = {
    "forward": _ENGINE
    + r"(forward|fwd|fprop)([ _-]?(pass|step|compute))?"
    + _LIGHTNING
    + r"(training_step|forward)",
    "backward": _ENGINE + r"(backward|bwd|bprop)([ _-]?(pass|step|compute))?" + _LIGHTNING + r"backward",
    "optimizer": r"(\w*Engine[ _.:-]?step|(optimizer|optim|opt)([ _.:-]?(step|update|inner[ _-]?step))?)"
    + r"|Optimizer\.step#.*"
    + _LIGHTNING
    + r"optimizer_step",
    "data": r"(data|batch|input|dataloader|data[ _]?load(er|ing)?|load[ _]?(data|batch)|next[ _]?batch|get[ _]?batch)",
}
"""How people name their phases; full match, case-insensitive."""


class RankMark(NamedTuple):
    """Who a process says it is. All integers; ``device`` is the CUDA ordinal inside the process."""

    rank: int
    world_size: int
    local_rank: int
    device: int


class BucketMark(NamedTuple):
    """One DDP bucket handed to its communication hook."""

    index: int  # type: ignore[assignment]
    bytes: int
    parameters: int
    is_last: bool


_RANK = re.compile(r"nsysddp:rank=(\d{1,9}) world=(\d{1,9}) local=(\d{1,9}) device=(\d{1,9})")
_BUCKET = re.compile(r"nsysddp:bucket=(\d{1,9}) bytes=(\d{1,18}) parameters=(\d{1,18}) last=([01])")


def step_name(step: int) -> str:
    """The range around one training step."""
    return f"step {step}"


def rank_mark(mark: RankMark) -> str:
    """Text of the NVTX mark by which a process names itself inside the captured window."""
    return f"nsysddp:rank={mark.rank} world={mark.world_size} local={mark.local_rank} device={mark.device}"


def parse_rank_mark(text: str) -> RankMark | None:
    """The rank that a mark names, or None if the text is no rank mark."""
    found = _RANK.fullmatch(text)
    return RankMark(*map(int, found.groups())) if found else None


def bucket_mark(mark: BucketMark) -> str:
    """Text of the NVTX range around the launch of one bucket's communication."""
    return f"nsysddp:bucket={mark.index} bytes={mark.bytes} parameters={mark.parameters} last={int(mark.is_last)}"


def parse_bucket_mark(text: str) -> BucketMark | None:
    """The bucket that a range names, or None if the text is no bucket range."""
    found = _BUCKET.fullmatch(text)
    if not found:
        return None
    index, size, parameters, last = map(int, found.groups())
    return BucketMark(index, size, parameters, bool(last))
