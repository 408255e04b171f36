"""Names of the NVTX ranges and marks that workloads emit and the analyzer reads.

Standard library only: training scripts import this without pulling in the analyzer. Everything that an
instrumented loop writes into a trace is spelled here once, with its parser beside it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PHASES = ("data", "forward", "backward", "optimizer")

DEFAULT_STEP_PATTERN = r"(step|iter(ation)?|ProfilerStep#?)[ _#:]?\d+"
"""Full match, case-insensitive (definitions: step window)."""

DEFAULT_PHASE_PATTERNS = {
    "forward": r"(model[ _.:]?)?(forward|fwd|fprop)([ _]?(pass|step))?",
    "backward": r"(model[ _.:]?|loss[ _.:]?)?(backward|bwd|bprop)([ _]?(pass|step))?",
    "optimizer": r"(optimizer|optim|opt)([ _.:]?(step|update))?|Optimizer\.step#.*",
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
