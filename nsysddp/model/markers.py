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


class GroupMark(NamedTuple):
    """A process group that a rank is in: what the job calls it, and the ranks of the job that are its members."""

    name: str
    ranks: tuple[int, ...]


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


_GROUP = re.compile(
    r"nsysddp:group=([A-Za-z0-9_.:-]{1,80}) ranks=(\d{1,7}(?:-\d{1,7}(?::\d{1,7})?)?(?:,[\d:-]{1,23})*)"
)
_SPAN = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?")
_MOST_RANKS = 1 << 20
_NAME_LENGTH = 80

_NAMED_GROUP = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    r"(?P<megatron>[A-Z][A-Z_]{1,70}_GROUP(?:_WITH_CP)?(?![A-Za-z]))"
    r"|(?P<mesh>mesh_[A-Za-z0-9_]{1,70})"
    r"|(?P<default>default_pg(?![A-Za-z0-9_]))"
    r"|(?P<fsdp>FSDP::all_gather)(?![A-Za-z0-9_])"
    r"|(?i:process[_ ]?group|pg|group_name|group_desc)(?i:[_ ]?(?:name|desc(?:ription)?))?\s*[=:]\s*[\"']?"
    r"(?P<stated>[A-Za-z_][A-Za-z0-9_.-]{0,70})"
    r")"
)


def group_mark(mark: GroupMark) -> str:
    """Text of the NVTX mark by which a process names a group that it is in; ranks as ``first-last:stride``."""
    name = re.sub(r"[^A-Za-z0-9_.:-]", "_", mark.name)[:_NAME_LENGTH] or "_"
    return f"nsysddp:group={name} ranks={_spans(sorted(set(mark.ranks)))}"


def parse_group_mark(text: str) -> GroupMark | None:
    """The group that a mark names, or None if the text is no group mark."""
    found = _GROUP.fullmatch(text)
    if not found:
        return None
    ranks: set[int] = set()
    for part in found[2].split(","):
        span = _SPAN.fullmatch(part)
        if span is None:
            return None
        first, last, stride = int(span[1]), int(span[2] or span[1]), int(span[3] or 1)
        if not first <= last < _MOST_RANKS or not stride:
            return None
        ranks.update(range(first, last + 1, stride))
    return GroupMark(found[1], tuple(sorted(ranks)))


def _spans(ranks: list[int]) -> str:
    parts: list[str] = []
    at = 0
    while at < len(ranks):
        end = at + 1
        stride = ranks[end] - ranks[at] if end < len(ranks) else 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == stride:
            end += 1
        if end - at < 3:
            end = at + 1
            parts.append(str(ranks[at]))
        else:
            parts.append(f"{ranks[at]}-{ranks[end - 1]}" + (f":{stride}" if stride > 1 else ""))
        at = end
    return ",".join(parts)


def named_group(text: str) -> str | None:
    """The process group that a range names as PyTorch, Megatron or FSDP do (definitions, "Roles"); None if none."""
    found = _NAMED_GROUP.search(text)
    return next(filter(None, found.groups()), None) if found else None
