"""A cause in words: how sure, what was found, what to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from nsysddp.model.names import visible
from nsysddp.model.units import BYTES_PER_MIB, ms
from nsysddp.questions.collectives import bandwidth
from nsysddp.questions.diagnosis.causes import BY_CODE, Cause
from nsysddp.questions.diagnosis.facts import LARGE_BYTES, SLOW_LINK, Facts
from nsysddp.questions.latency import LATENCY, MOSTLY, few_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsysddp.questions import Context

_BEFORE = ("gap", "host_gap", "queued")
"""Kinds of pieces that are named after what came next."""

_DOUBTS = {
    "graph_breaks": (
        "low",
        "each piece is a graph of its own: by a graph break, or because layers are compiled one by one",
    ),
    **dict.fromkeys(
        ("host_bound", "host_stall", "bucket_scheduling", "synchronisation", "allocation"),
        ("medium", "the profiler itself lengthens host time"),
    ),
    **dict.fromkeys(
        ("contention", "link_contention"), ("medium", "a comparison of like kernels, not an experiment")
    ),
    "process_groups": ("medium", "how much they take from each other shows only when they run apart"),
    "held_behind_compute": ("medium", "inferred from the order in which kernels began"),
    "no_prefetch": (
        "medium",
        "inferred from recorded dependencies: the first gathers have nothing to run beside",
    ),
    "queued": ("medium", "what held them is not recorded"),
    "other_process": ("medium", "lengths of kernels include those of the other process"),
    "unexplained": ("medium", "what took the GPU is not in the capture"),
}
"""Why a cause is never surer than this."""

SMALL = 0.02
"""Below this share of the step a cause is within what the method leaves open."""

_MOSTLY = 0.5
"""A cause that saves less than this share of its cost stands before another one that takes its place."""

OPEN = 0.05
"""With more than this share of the path unresolved a cost is no bound."""

_COMPARED = 0.5
"""With less of the time beside communication compared, what contention costs is mostly extrapolated."""

_MOVING = ("slow_communication", "compute_tail", "single_bucket", "small_buckets", "message_latency")


@dataclass(frozen=True)
class Rate:
    """The bandwidth of the collectives that a cause mostly consists of.

    Attributes:
        kind, bytes: what they are.
        gbps: their busbw.
        reference_gbps: what their link carries in one direction; None if that is not known.
    """

    kind: str
    bytes: int
    gbps: float
    reference_gbps: float | None

    @property
    def is_low(self) -> bool | None:
        """Is it low for the link? None if that is not known."""
        return None if self.reference_gbps is None else self.gbps < SLOW_LINK * self.reference_gbps


def rate_of(context: Context, own: pl.DataFrame, facts: Facts) -> Rate | None:
    """The bandwidth of the large collectives with most of a cause's cost; None if that is mostly of others."""
    moved = own.filter(pl.col("kind") == "transfer")
    table = (
        context.timed.filter(pl.col("ready_ns").is_not_null())
        .select("event", "kind", "bytes", "shortest_ns", "group_size")
        .join(moved.group_by("event").agg(pl.col("cost").sum()), on="event")
        .group_by("kind", "bytes", "group_size")
        .agg(pl.col("cost").sum(), shortest_ns=pl.col("shortest_ns").median().cast(pl.Int64))
        .sort("cost", "kind", "bytes", descending=[True, False, False])
    )
    if table.is_empty() or (table["bytes"][0] or 0) < LARGE_BYTES:
        return None
    first = table.row(0, named=True)
    rate = bandwidth(first["kind"], first["bytes"], first["shortest_ns"], first["group_size"])[1]
    return None if rate is None else Rate(first["kind"], first["bytes"], rate, facts.reference_gbps)


@dataclass(frozen=True)
class Messages:
    """What decides how long the collectives of a cause take.

    Attributes:
        latency_ratio: share of its transfers for which latency decides.
        undecided_ratio: share of which that is not told, though sizes are known.
        few: those for which latency decides, in words; None where there are none.
        kind: of the collectives with most of the cost; None where there are none.
    """

    latency_ratio: float = 0.0
    undecided_ratio: float = 0.0
    few: str | None = None
    kind: str | None = None

    @classmethod
    def of(cls, context: Context, own: pl.DataFrame) -> Messages:
        """Of the parts of a cause."""
        moved = own.filter(pl.col("kind") == "transfer")
        timed = context.timed.select(
            pl.col("event").cast(moved.schema["event"]), "collective_id", carries="kind"
        )
        carried = moved.group_by("event").agg(pl.col("cost").sum()).join(timed, on="event")
        whole = float(moved["cost"].sum())
        if not whole:
            return cls()
        table = carried.join(context.deciding, on="collective_id")
        shares = dict(table.group_by("decides").agg(pl.col("cost").sum() / whole).iter_rows())
        kinds = (
            carried.group_by("carries")
            .agg(pl.col("cost").sum())
            .sort("cost", "carries", descending=[True, False])
        )
        return cls(
            shares.get(LATENCY, 0.0),
            shares.get(None, 0.0),
            few_bytes(table),
            next(iter(kinds["carries"]), None),
        )


@dataclass(frozen=True)
class Case:
    """A cause with what was found of it.

    Attributes:
        cause: the cause.
        cost_ns: path time of it per steady step.
        saving_ns: by how much the replayed step is shorter without any communication; None for a cause that is not of
            transfers, and where no replay tells it.
        step_ratio: of the critical path.
        found, steps: steady steps in which it costs anything, and all.
        rank, phase: where most of it lies; None if it is spread.
        spread_ns: standard deviation of the steady steps.
        is_even: it costs about as much in every step.
        parts: its rows of ``diagnosis_evidence``.
        rate: bandwidth of its collectives, if they are large.
        messages: what decides how long its collectives take.
        grade: what the critical path rests on.
        unresolved_ratio: share of the path of which the trace cannot tell what it is there for.
        uneven_ratio: share of the path by which transfers are longer than the median of their like.
        ratios: shares of the path of all causes.
    """

    cause: Cause
    cost_ns: int
    saving_ns: int | None
    step_ratio: float
    found: int
    steps: int
    rank: int | None
    phase: str | None
    spread_ns: float
    is_even: bool
    parts: pl.DataFrame
    rate: Rate | None
    messages: Messages
    grade: str
    unresolved_ratio: float
    uneven_ratio: float
    ratios: Mapping[str, float]

    def confidence(self, facts: Facts) -> tuple[str, str | None]:
        """How sure, and why not more."""
        code = self.cause.code
        if self.grade != "full":
            return "low", "the critical path rests on a lower grade of evidence"
        if self.unresolved_ratio > OPEN:
            return "low", f"{self.unresolved_ratio:.0%} of the path is unresolved: part of that may be its"
        if code == "straggler" and self.rank is None:
            return "low", "the late rank changes: jitter rather than one straggler"
        if self.found < 0.5 * self.steps:
            return "low", f"in {self.found} of {self.steps} steady steps only"
        if code == "contention" and facts.slowing.measured < _COMPARED:
            return "low", (
                f"kernels that can be compared are {facts.slowing.measured:.0%} of what ran beside communication: the "
                "others are taken to be like them"
            )
        if code in _DOUBTS:
            return _DOUBTS[code]
        if code in _MOVING and not facts.slowing.is_judged:
            return "medium", "whether computation is slower beside it could not be judged"
        if code in _MOVING and self.uneven_ratio > SMALL:
            return "medium", (
                f"transfers exceed the median of their like by {self.uneven_ratio:.1%} of the path: something may stop "
                "them now and then"
            )
        if code == "slow_communication" and (self.rate is None or self.rate.is_low is None):
            return "medium", "no large message or link reference to compare the bandwidth with"
        if code == "small_buckets" and not facts.merging.is_told:
            return (
                "low",
                "all messages have one size: latency and bandwidth cannot be told apart, only that it is tiny",
            )
        if code == "small_buckets" and facts.link is not None and facts.link.spread_ratio > SLOW_LINK:
            return "medium", f"the fitted latency leaves deviations of {facts.link.spread_ratio:.0%}"
        if code in _MOVING and (stopped := self._stopped_rank(facts)) is not None:
            return "medium", f"the GPU of rank {stopped} is stopped now and then, and with it what it sends"
        if code in _MOVING and self._ratio_of("held_behind_compute") >= SMALL:
            return "medium", "part of it would be hidden if transfers were not held behind computation"
        if self._saves_less:
            return "medium", "without any communication something else takes most of its time"
        if self.steps < 2:
            return "medium", "one steady step only"
        if not self.is_even:
            return "medium", "it differs from step to step"
        if self.step_ratio < SMALL or self.cost_ns < 2 * self.spread_ns:
            return "medium", "small beside what steps differ by"
        return "high", None

    def is_bound(self, facts: Facts) -> bool:
        """Does the step get shorter by no more than the cost, without the cause?"""
        return self.unresolved_ratio <= SMALL and not self._more(facts)

    def _more(self, facts: Facts) -> str:
        """What of other costs may be its too, for a sentence; empty where nothing is."""
        if self._holds_up_transfers(facts):
            like = f" than their like ({self.uneven_ratio:.1%} in all)" if self.uneven_ratio > SMALL else ""
            return f"what it makes transfers longer{like}"
        launching = self._ratio_of("host_bound")
        if self.cause.code == "bucket_scheduling" and launching > self.step_ratio:
            return f"its part of what all launches cost ({launching:.1%})"
        return ""

    def _ratio_of(self, code: str) -> float:
        return self.ratios.get(code, 0.0)

    def _stopped_rank(self, facts: Facts) -> int | None:
        """A rank whose GPU was stopped now and then, if lateness costs enough to matter."""
        return min(facts.stopped, default=None) if self._ratio_of("straggler") >= SMALL else None

    @property
    def _saves_less(self) -> bool:
        """Without any communication, does something else take most of the cost's place?"""
        return self.saving_ns is not None and self.saving_ns < _MOSTLY * self.cost_ns

    def _holds_up_transfers(self, facts: Facts) -> bool:
        """May it make transfers longer? Whatever stops a GPU stops what it sends, of its like now and then or all."""
        stops = self.cause.code in ("straggler", "other_process", "unexplained") and self.rank is not None
        return stops and (self.uneven_ratio > SMALL or self._is_stopped(facts))

    def _beyond(self, facts: Facts) -> str:
        """What may come on top of the cost, for a sentence."""
        return f", and {self._more(facts) or f'its part of the unresolved {self.unresolved_ratio:.1%}'}"

    def claim(self, facts: Facts) -> str:
        """One sentence: what, where, how much at most, with the largest part."""
        where = ", ".join(
            [
                *([] if self.rank is None else [f"rank {self.rank}"]),
                *([] if self.phase is None else [self.phase]),
            ]
        )
        text = self.cause.title + (f" ({where})" if where else "")
        bound = "at most " if self.is_bound(facts) else ""
        text += f": {bound}{ms(self.cost_ns):.3f} ms a step, {self.step_ratio:.1%} of the critical path"
        text += "" if bound else self._beyond(facts)
        if self.saving_ns is not None and self._saves_less:
            text += f"; without any communication the replayed step is {ms(self.saving_ns):.3f} ms shorter"
        text += "".join(
            (self._bandwidth(), self._links(facts), self._held(facts), self._largest(), self._stopped(facts))
        )
        return text[0].upper() + text[1:] + "."

    def _bandwidth(self) -> str:
        rate = self.rate
        if self.cause.code in _MOVING and self.messages.latency_ratio >= MOSTLY:
            said = "mostly" if self.cause.code == "message_latency" else "latency decides:"
            return f"; {said} {self.messages.few}"
        if self.cause.code not in _MOVING or rate is None:
            return ""
        text = f"; busbw of its {rate.kind} of {rate.bytes / BYTES_PER_MIB:.0f} MiB is {rate.gbps:.0f} GB/s"
        if rate.reference_gbps is not None:
            verdict = "low" if rate.is_low else "as the link allows"
            text += (
                f", {rate.gbps / rate.reference_gbps:.0%} of the link's {rate.reference_gbps:.0f}: {verdict}"
            )
        return text

    def _links(self, facts: Facts) -> str:
        sampled = self.cause.code == "link_contention" and facts.link_activity
        return f"; sampled: {'; '.join(facts.link_activity)}" if sampled else ""

    def _held(self, facts: Facts) -> str:
        held = facts.buckets.filter(pl.col("held_by").is_not_null()).height
        if self.cause.code != "bucket_scheduling" or not held:
            return ""
        return f"; {held} of {facts.buckets.height} buckets had to wait for an earlier one"

    def _largest(self) -> str:
        """The largest part; of lateness what takes longer on the rank than on the others."""
        if self.parts.is_empty() or self.parts["name"][0] is None:
            return ""
        largest = self.parts.row(0, named=True)
        name, length = short(largest["name"]), f"{ms(largest['cost_ns']):.3f} ms"
        if self.cause.code == "straggler" and largest["kind"] in ("compute", "spin", "memory", "graph"):
            return f"; {name} alone {length} longer than on the others"
        before = "before " if largest["kind"] in _BEFORE and not _is_call(largest) else ""
        spent = "" if largest["host_phase"] is None else f", {_in(largest['host_phase'])}"
        return f"; largest part: {before}{name} ({length}{spent})"

    def _is_stopped(self, facts: Facts) -> bool:
        return self.cause.code == "straggler" and self.rank in facts.stopped

    def _stopped(self, facts: Facts) -> str:
        if not self._is_stopped(facts):
            return ""
        return "; most of its kernels last as long as theirs and a few much longer: its GPU was stopped now and then"

    def advice(self, facts: Facts) -> str:
        """What to change first."""
        if self._is_stopped(facts):
            return BY_CODE["unexplained"].try_next
        if self.cause.code == "slow_communication" and self.rate is not None and self.rate.is_low:
            return "find out why the link is slow: `nvidia-smi topo -m`, NCCL_DEBUG=INFO (P2P, NVLS, NIC), nccl-tests"
        if self.cause.code == "compute_tail" and self.messages.latency_ratio >= MOSTLY:
            return (
                "reduce the last gradients over fewer hops (within a host first), or less often (no_sync): a smaller "
                "last bucket would take as long, since latency decides"
            )
        if self.cause.code == "slow_communication" and self.messages.undecided_ratio >= MOSTLY:
            return (
                "measure this collective with other sizes (nccl-tests): if its time falls with the bytes, send less "
                "(bf16, or every n-th micro-step); if not, make them fewer or fuse them"
            )
        if self.cause.code == "slow_communication" and self.messages.kind in _SEND_LESS:
            return _SEND_LESS[self.messages.kind]
        return self.cause.try_next


_SEND_LESS = {
    "send_recv": "send less between the ranks: activations in bf16, or one message under the computation of the next "
    "(micro-batches that interleave)",
    "all_gather": "gather less: parameters in bf16, kept from forward to backward (reshard_after_forward=False), or "
    "shards over the ranks of one host",
    "all_to_all": "exchange less: tokens in bf16, a smaller capacity of experts, or experts within a host",
}
"""What to try where what takes long is no reduction of gradients, by the kind that costs most."""


def _is_call(part: dict[str, object]) -> bool:
    """Is the part named after the call that it follows from?"""
    return part["cause"] in ("synchronisation", "allocation", "copies")


def _in(phase: str) -> str:
    return visible(phase) if phase.startswith("between ") else f"spent in {visible(phase)}"


def short(name: str, most: int = 60) -> str:
    """A name in at most so many characters."""
    text = visible(name)
    return text if len(text) <= most else f"{text[: most - 3]}..."
