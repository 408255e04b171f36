"""Simulated runs as nsys SQLite exports: what the profiler would have recorded, with the clocks that it
would have read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder import Export, Process

from .engine import COPY, KERNEL, RECORD, WAIT, Call, Item, Pop
from .jobs import AUTOGRAD, US, Job, Run

EPOCH_NS = 1_795_972_367_577_878_054
NAMES = {
    "AllReduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    "AllGather": "ncclDevKernel_AllGather_RING_LL",
    "ReduceScatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
    "Broadcast": "ncclDevKernel_Broadcast_RING_LL",
}


@dataclass(frozen=True)
class Clock:
    """How a rank's report dates: session start on the simulated axis, error of its anchor, and GPU minus
    host.
    """

    session_ns: int
    anchor_error_ns: int
    gpu_ns: int

    @classmethod
    def of(cls, job: Job, rank: int) -> Clock:
        """Clocks of the reports differ by ms, those of GPU and host of one report by some us."""
        host = rank // job.per_host
        several = job.ranks > job.per_host
        return cls(
            session_ns=-round(abs(job.normal("session", host)) * 10_000_000_000) - 10_000_000,
            anchor_error_ns=round(2_000 * US * job.normal("anchor", host)) if several else 0,
            gpu_ns=round(2 * US + 1.5 * US * job.normal("gpu clock", rank)),
        )

    def host(self, time: int) -> int:
        """A host time as recorded."""
        return time - self.session_ns

    def gpu(self, time: int) -> int:
        """A GPU time as recorded."""
        return time - self.session_ns + self.gpu_ns


def write(run: Run, folder: Path, *, per_rank: bool = False, payload: bool = True) -> list[Path]:
    """Write the run, one report per host (or per rank); returns the files in rank order."""
    job = run.job
    paths = []
    size = 1 if per_rank else job.per_host
    for first in range(0, job.ranks, size):
        ranks = range(first, min(first + size, job.ranks))
        clock = Clock.of(job, first)
        export = Export(
            unit="ns",
            host=f"node{first // job.per_host:02d}",
            utc_epoch_ns=EPOCH_NS + clock.session_ns + clock.anchor_error_ns,
        )
        for rank in ranks:
            local = rank % job.per_host
            process = export.process(pid=1000 + local, device=local)
            _Writer(run, rank, process, payload).write()
        paths.append(
            export.write(folder / (f"rank{first:02d}.sqlite" if per_rank else f"{export.host}.sqlite"))
        )
    return paths


@dataclass
class _Writer:
    run: Run
    rank: int
    process: Process
    payload: bool

    def write(self) -> None:
        """Everything that happened on this rank."""
        job, process = self.run.job, self.process
        self.clock = Clock.of(job, self.rank)
        self.syncs: dict[int, tuple[int, int]] = {}
        local = self.rank % job.per_host
        process.mark(
            f"nsysddp:rank={self.rank} world={job.ranks} local={local} device={local}", self.clock.host(100)
        )
        for op in self.run.lines[self.rank]:
            if isinstance(op, Pop):
                self._range(op)
            elif isinstance(op, Call):
                self._call(op)

    def _thread(self, number: int) -> int | None:
        return self.process.pid + 500 if number == AUTOGRAD else None

    def _span(self, start: int, end: int) -> tuple[int, int]:
        return self.clock.host(start), self.clock.host(end)

    def _range(self, op: Pop) -> None:
        made = op.range
        span, thread = self._span(made.start, made.end), self._thread(made.thread)
        if made.payload is None:
            self.process.range(made.name, *span, thread=thread)
            return
        members = made.payload.get("members")
        if members is None:
            self.process.nccl_call(made.name, span, thread=thread, **made.payload, payload=self.payload)
            return
        self._group(made.payload | {"members": members}, span, thread)

    def _group(self, payload: dict[str, int], span: tuple[int, int], thread: int | None) -> None:
        """An all-to-all: a send and a receive per peer, which the end of the group launches."""
        count, start = payload["members"], span[0]
        self.process.nccl_call("GroupStart", (start, start + 50), thread=thread)
        for peer in range(count):
            for place, name in enumerate(("Send", "Recv")):
                at = start + 60 + 20 * (2 * peer + place)
                self.process.nccl_call(
                    name,
                    (at, at + 10),
                    thread=thread,
                    bytes=payload["bytes"] // count,
                    communicator=payload["communicator"],
                    peer=peer,
                    payload=self.payload,
                )
        self.process.nccl_call("GroupEnd", (start + 70 + 40 * count, span[1]), thread=thread)

    def _call(self, call: Call) -> None:
        process, item = self.process, call.item
        span, thread = self._span(call.start, call.end), self._thread(call.thread)
        if item is None:
            if call.awaits == "stream":
                process.sync("stream", span, stream=call.on, thread=thread)
            elif call.awaits == "event" and call.of is not None:
                process.sync("event", span, event=self.syncs[id(call.of)][0], thread=thread)
            else:
                process.call(call.api, span, thread=thread)
        elif item.kind == RECORD:
            event = 1 + len(self.syncs)
            self.syncs[id(item)] = event, process.record(event, item.stream, span, thread=thread)
        elif item.kind == WAIT:
            event, sync = self.syncs[id(item.awaited)]
            process.wait(event, item.stream, span, thread=thread, sync_id=sync)
        else:
            self._gpu(call, item, span, thread)

    def _gpu(self, call: Call, item: Item, span: tuple[int, int], thread: int | None) -> None:
        process = self.process
        assert item.start is not None
        assert item.end is not None
        at = self.clock.gpu(item.start), self.clock.gpu(item.end)
        if item.kind == COPY:
            kind = item.name
            process.copy(kind, at, max(1, item.bytes), item.stream, launched=span, thread=thread)
            return
        assert item.kind == KERNEL
        name = NAMES.get(item.name, "ncclDevKernel_SendRecv") if item.collective is not None else item.name
        correlation = process.call(call.api, span, thread=thread)
        process.kernel(name, item.stream, at, correlation=correlation, gridX=24 if item.collective else 512)
