"""Traces drawn by hand, for analyses that need the host: calls, records, waits, synchronisations, collectives.

    scene = Scene()
    a = scene.launch(rank=0, stream=7, at=(1, 11), name="a", by=("main", 0, 1))
    scene.record(0, 7, at=1.5, sync_id=1)
    scene.wait(0, 9, at=1.6, sync_id=1)
    trace = scene.trace()

Times are in milliseconds. Every rank is its own process unless ``processes`` says otherwise, and all use context 1, as
with one visible device each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from nsysddp.model import schema
from nsysddp.model.trace import Trace

MS = 1_000_000
THREADS = {"main": 100, "autograd": 200, "watchdog": 300}


def ns(time: float) -> int:
    return round(time * MS)


class Scene:
    """Collects what happened; ``trace`` makes the frames."""

    def __init__(self, processes: Mapping[int, int] | None = None) -> None:
        self.processes = processes
        self.events: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.records: list[dict[str, Any]] = []
        self.syncs: list[dict[str, Any]] = []
        self.ranges: list[dict[str, Any]] = []
        self.groups: list[tuple[int | None, list[int]]] = []
        self.peers: list[tuple[int, list[int]]] = []
        self.residuals: dict[int, int] = {}
        self.gpus: dict[int, str] = {}
        self._correlation = 0

    def _process(self, rank: int) -> int:
        return rank if self.processes is None else self.processes[rank]

    def call(
        self,
        rank: int,
        start: float,
        end: float,
        name: str = "cudaLaunchKernel",
        thread: str = "main",
        correlation: int | None = None,
    ) -> int:
        """A host call; returns its correlation id."""
        self._correlation += 1
        self.calls.append(
            {
                "process": self._process(rank),
                "thread": THREADS[thread],
                "start_ns": ns(start),
                "end_ns": ns(end),
                "name": name,
                "correlation": self._correlation if correlation is None else correlation,
            }
        )
        return self._correlation

    def launch(
        self,
        rank: int,
        stream: int,
        at: tuple[float, float],
        name: str,
        by: tuple[str, float, float] | None,
        *,
        kind: str = "compute",
        api: str = "cudaLaunchKernel",
        inner: tuple[float, float] | None = None,
        like: int | None = None,
    ) -> int:
        """A GPU event with its launch call (thread, start, end); returns a handle.

        ``inner``: a driver call inside the launch call, which is the one that carries the launch;
        ``like``: another node of the CUDA graph that the event with this handle belongs to.
        """
        start, end = at
        event: dict[str, Any] = {
            "rank": rank,
            "class": kind,
            "start_ns": ns(start),
            "end_ns": ns(end),
            "text": name,
            "context": 1,
            "stream": stream,
            "correlation": -1,
            "in_graph": False,
            "launch": None,
        }
        if like is not None:
            first = self.events[like]
            event |= {key: first[key] for key in ("correlation", "launch")} | {"in_graph": True}
            first["in_graph"] = True
        elif by is not None:
            thread, begin, finish = by
            event["correlation"] = self.call(rank, begin, finish, api, thread)
            span = (begin, finish) if inner is None else inner
            if inner is not None:
                self.call(rank, *inner, "cuLaunchKernel", thread)
            event["launch"] = (ns(span[0]), ns(span[1]), THREADS[thread])
        self.events.append(event)
        return len(self.events) - 1

    def record(
        self, rank: int, stream: int, at: float, sync_id: int | None, event_id: int = 1, thread: str = "main"
    ) -> None:
        """A cudaEventRecord that takes no time."""
        self.records.append(
            {
                "process": self._process(rank),
                "context": 1,
                "stream": stream,
                "correlation": self.call(rank, at, at, "cudaEventRecord", thread),
                "event_id": event_id,
                "sync_id": sync_id,
            }
        )

    def wait(
        self, rank: int, stream: int, at: float, sync_id: int | None, event_id: int = 1, thread: str = "main"
    ) -> None:
        """A cudaStreamWaitEvent that takes no time."""
        correlation = self.call(rank, at, at, "cudaStreamWaitEvent", thread)
        self._sync(rank, (at, at), stream, 2, event_id, sync_id, correlation)

    def synchronise(
        self,
        rank: int,
        at: tuple[float, float],
        name: str,
        *,
        stream: int | None = None,
        event_id: int | None = None,
        sync_id: int | None = None,
        thread: str = "main",
    ) -> None:
        """A call that blocks; with its row if a stream or an event is given (device synchronisations have none)."""
        correlation = self.call(rank, *at, name, thread)
        if stream is not None:  # logged like a stream wait for no event
            self._sync(rank, at, stream, 2, -1, None, correlation)
        elif event_id is not None:
            self._sync(rank, at, 4294967295, 1, event_id, sync_id, correlation)

    def _sync(
        self,
        rank: int,
        at: tuple[float, float],
        stream: int,
        kind: int,
        event_id: int,
        sync_id: int | None,
        correlation: int,
    ) -> None:
        self.syncs.append(
            {
                "process": self._process(rank),
                "start_ns": ns(at[0]),
                "end_ns": ns(at[1]),
                "context": 1,
                "stream": stream,
                "correlation": correlation,
                "type": kind,
                "event_id": event_id,
                "sync_id": sync_id,
            }
        )

    def collective(self, *events: int, matched: bool = True) -> None:
        """The events are one collective on their ranks."""
        self.groups.append((len(self.groups) if matched else None, list(events)))

    def pair(self, event: int, *peers: int) -> None:
        """A send or receive waits for these events."""
        self.peers.append((event, list(peers)))

    def range(self, rank: int, text: str, start: float, end: float, thread: str = "main") -> None:
        """An NVTX push/pop range."""
        self.ranges.append(
            {
                "process": self._process(rank),
                "thread": THREADS[thread],
                "start_ns": ns(start),
                "end_ns": ns(end),
                "text": text,
                "style": "push_pop",
            }
        )

    def trace(self, *, calls: bool = True, records: bool = True) -> Trace:
        """The frames; without ``calls`` or ``records`` as an export without those tables."""
        texts = sorted({(event["text"], event["class"]) for event in self.events})
        numbers = {text: number for number, text in enumerate(texts)}
        order = sorted(
            range(len(self.events)),
            key=lambda i: (
                self.events[i]["rank"],
                self.events[i]["start_ns"],
                self.events[i]["end_ns"],
                self.events[i]["stream"],
                numbers[self.events[i]["text"], self.events[i]["class"]],
                self.events[i]["correlation"],
            ),
        )
        row = {handle: place for place, handle in enumerate(order)}
        rows = [self.events[handle] for handle in order]
        events = schema.EVENTS.frame(
            [
                {key: value for key, value in event.items() if key not in ("text", "launch")}
                | {"name": numbers[event["text"], event["class"]]}
                for event in rows
            ]
        )
        launches = [
            dict(zip(("launch_ns", "launch_end_ns", "thread"), event["launch"], strict=True))
            if event["launch"] and calls
            else {}
            for event in rows
        ]
        collectives = [
            {
                "event": row[event],
                "collective_id": number,
                "match": "sequence" if number is not None else "unmatched:test",
            }
            for number, members in self.groups
            for event in members
        ] + [
            {
                "event": row[event],
                "collective_id": 10_000 + event,
                "match": "sequence",
                "ready_peers": [row[peer] for peer in peers],
            }
            for event, peers in self.peers
        ]
        ranks = sorted({event["rank"] for event in self.events})
        return Trace(
            ranks=schema.RANK.frame(
                [
                    {
                        "rank": rank,
                        "report": f"rank{rank}",
                        "clock_residual_ns": self.residuals.get(rank),
                        "gpu_uuid": self.gpus.get(rank),
                        "first_ns": min(event["start_ns"] for event in self.events if event["rank"] == rank),
                        "last_ns": max(event["end_ns"] for event in self.events if event["rank"] == rank),
                    }
                    for rank in ranks
                ]
            ),
            processes=schema.PROCESSES.frame(
                [{"process": p, "report": 0, "pid": p} for p in sorted({self._process(r) for r in ranks})]
            ),
            events=events,
            names=schema.NAMES.frame(
                [
                    {"text": text, "class": kind, "group": kind if kind in ("memory", "graph") else "kernel"}
                    for text, kind in texts
                ]
            ),
            ranges=schema.RANGES.frame(self.ranges),
            operations=schema.OPERATIONS.empty(),
            collectives=schema.COLLECTIVES.frame(collectives).sort("event"),
            inputs=(),
            process_of_rank={r: self._process(r) for r in ranks},
            launches=schema.LAUNCHES.frame(launches),
            calls=schema.CALLS.frame(self.calls if calls else []),
            records=schema.RECORDS.frame(self.records if records else []),
            syncs=schema.SYNCS.frame(self.syncs if records else []),
        )


def shown(path: pl.DataFrame) -> list[tuple[str, int | None, str | None, float, float]]:
    """A path as (kind, rank, name, start, end) in milliseconds."""
    return [
        (kind, rank, name, start / MS, end / MS)
        for kind, rank, name, start, end in path.select(
            "kind", "rank", "name", "start_ns", "end_ns"
        ).iter_rows()
    ]
