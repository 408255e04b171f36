"""Random small runs, drawn twice from one plan: as an export, and as the oracle's scene with its truth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builder import Export, Process
from oracle import Event, HostRange, Scene

TICK = (
    10_000  # 10 us: ends of one collective differ by less, ends of two by more than the tolerance of 100 us
)
UNIT = 1_000


@dataclass(frozen=True)
class Ids:
    """Names of things that mean nothing: changing them must change nothing."""

    pid: int = 100
    stream: int = 0
    correlation: int = 1
    string: int = 0
    communicator: int = 0
    sync: int = 1


@dataclass
class Plan:
    """What happens, independent of how it is written down."""

    ranks: int
    host: list[tuple[int, int, str, int, int, str]] = field(default_factory=list)
    """rank, thread (0 main, 1 other), name, start, end, style"""
    work: list[tuple[int, str, int, int, int, tuple[int, int] | None]] = field(default_factory=list)
    """rank, kind, stream, start, end, launch (thread, time)"""
    talk: list[tuple[int, int, int, int, int, int, tuple[int, int], int | None, bool]] = field(
        default_factory=list
    )
    """rank, communicator, bytes, stream, start, end, launch, truth id, the kernel is there"""

    def scene(self) -> Scene:
        """The oracle's view."""
        made = Scene()
        thread = (0, 1)
        for rank, number, name, start, end, _ in self.host:
            one = HostRange(rank, thread[number], start, end, name)
            (made.steps if name.startswith("step") else made.phases).append(one)
        for rank, kind, _, start, end, launch in self.work:
            event = "memory" if kind in ("peer", "copy", "memset") else kind
            made.events.append(Event(rank, event, start, end, kind, launch, None, kind == "peer"))
        for rank, _, size, _, start, end, launch, truth, there in self.talk:
            if there:
                made.events.append(
                    Event(rank, "communication", start, end, "nccl", launch, truth, bytes=size)
                )
        return made

    def export(self, ids: Ids | None = None) -> Export:
        """The same as an nsys export."""
        ids = ids or Ids()
        export = Export(unit="ns", first_string=ids.string)
        processes = [
            export.process(
                pid=ids.pid + rank, device=rank, first_correlation=ids.correlation, first_event_sync=ids.sync
            )
            for rank in range(self.ranks)
        ]
        for rank, number, name, start, end, style in self.host:
            mine = processes[rank]
            mine.range(
                name, start, end, thread=self._thread(mine, number), kind=style, registered=number == 1
            )
        for rank, kind, stream, start, end, launch in self.work:
            self._draw(processes[rank], kind, stream + ids.stream, (start, end), launch)
        for rank, communicator, size, stream, start, end, launch, _, there in self.talk:
            mine = processes[rank]
            thread = self._thread(mine, launch[0])
            payload = {"bytes": size, "communicator": (communicator + 1) * 0xABC ^ ids.communicator}
            if there:
                mine.nccl(
                    "AllReduce",
                    stream + ids.stream,
                    (start, end),
                    launched=launch[1],
                    thread=thread,
                    padding=launch[1] % 251,
                    **payload,
                )
            else:
                at = (launch[1], launch[1] + 1)
                mine.call("cuLaunchKernelEx", at, thread=thread)
                mine.nccl_call("AllReduce", at, thread=thread, **payload)
        return export

    @staticmethod
    def _thread(process: Process, number: int) -> int | None:
        return process.pid + 50 if number else None

    def _draw(
        self, process: Process, kind: str, stream: int, at: tuple[int, int], launch: tuple[int, int] | None
    ) -> None:
        launched: object = None if launch is None else launch[1]
        thread = None if launch is None else self._thread(process, launch[0])
        if kind == "peer":
            process.copy("PtoP", at, stream=stream, launched=launched, thread=thread)
        elif kind == "copy":
            process.copy("HtoD", at, stream=stream, launched=launched, thread=thread)
        elif kind == "memset":
            process.memset(at, stream=stream, launched=launched, thread=thread)
        elif kind == "graph":
            process.graph(at, stream, launched=launched, thread=thread)
        else:
            name = {"spin": "spin_kernel", "compute": "sgemm"}[kind]
            process.kernel(name, stream, at, launched=launched, thread=thread)


def draw(rng: random.Random, *, graphs: bool = True, late: bool = True) -> Plan:
    """A random run: ranks, steps with phases, work on several streams, collectives of several communicators."""
    plan = Plan(rng.randint(1, 3))
    length = rng.randint(200, 900)
    count = rng.randint(0, 4)
    total = (count + 1) * length
    for rank in range(plan.ranks):
        _host(plan, rng, rank, count, length)
        _work(plan, rng, rank, total, graphs)
    for communicator in range(rng.randint(0, 3)):
        _talk(plan, rng, communicator, total, late)
    for rank in range(plan.ranks):  # a report without a kernel is refused
        plan.work.append((rank, "compute", 7, 5 * TICK, 9 * TICK, (0, 5 * TICK)))
    return plan


def _host(plan: Plan, rng: random.Random, rank: int, count: int, length: int) -> None:
    at = rng.randint(0, 60)
    style = rng.choice(["push", "start_end"])
    for step in range(count):
        width = rng.randint(length // 3, length)
        name = f"step {step if rng.random() < 0.9 else 0}"
        plan.host.append((rank, 0, name, at * TICK, (at + width) * TICK, style))
        if rng.random() < 0.15:  # a nested range that is named like a step too
            plan.host.append((rank, 0, f"step {step + 7}", (at + 1) * TICK, (at + 2) * TICK, style))
        cuts = sorted(rng.sample(range(at, at + width), 5))
        for name, start, end in (
            ("forward", cuts[0], cuts[1]),
            ("backward", cuts[1], cuts[2]),
            ("optimizer", cuts[3], cuts[4]),
            ("backward", cuts[2], cuts[3]),
        ):
            if rng.random() < (0.2 if (name, start) == ("backward", cuts[2]) else 0.85):
                thread = int(rng.random() < 0.15)
                plan.host.append((rank, thread, name, start * TICK, end * TICK, style))
        at += width + rng.choice([0, 0, rng.randint(1, 40)])


def _work(plan: Plan, rng: random.Random, rank: int, total: int, graphs: bool) -> None:
    kinds = ["compute"] * 6 + ["spin", "copy", "memset", "peer"] + ["graph"] * (graphs and rng.random() < 0.2)
    for _ in range(rng.randint(1, 14)):
        start = rng.randint(0, total)
        end = start + rng.choice([0, 1, rng.randint(1, 60), rng.randint(1, 300)])
        ahead = rng.choice([0, rng.randint(0, 40), rng.randint(0, 400)])
        launch = None if rng.random() < 0.12 else (int(rng.random() < 0.4), max(0, start - ahead) * TICK)
        plan.work.append((rank, rng.choice(kinds), rng.choice([7, 8, 9]), start * TICK, end * TICK, launch))


def _talk(plan: Plan, rng: random.Random, communicator: int, total: int, late: bool) -> None:
    members = rng.sample(range(plan.ranks), rng.randint(min(2, plan.ranks), plan.ranks))
    times = [100 + 100 * number + rng.randint(0, 30) for number in range(max(5, total // 100))]
    chosen = sorted(rng.sample(times, min(len(times), rng.randint(5, 9))))
    sizes = [rng.choice([512, 4096, 1 << 20]) for _ in chosen]
    missing = {
        rank: {n for n in range(len(chosen)) if rng.random() < 0.1} if rng.random() < 0.4 else set()
        for rank in members
    }
    begins = {rank: rng.randint(1, 2) if late and rng.random() < 0.2 else 0 for rank in members}
    for rank in members:  # enough is left for the order to be beyond doubt
        while len(chosen) - begins[rank] - len([n for n in missing[rank] if n >= begins[rank]]) < 4:
            missing[rank] = set(list(missing[rank])[1:])
            if not missing[rank]:
                break
    before = dict.fromkeys(members, 0)
    for number, end in enumerate(chosen):
        there = [rank for rank in members if number >= begins[rank] and number not in missing[rank]]
        truth = communicator * UNIT + number if len(there) == len(members) > 1 else None
        for rank in members:
            if number < begins[rank]:
                continue
            start = max(end - rng.randint(1, 95), before[rank] + 1)
            launch_at = (start - rng.randint(0, start - before[rank] - 1)) * TICK + communicator + 1
            before[rank] = end
            stop = end * TICK + rng.randint(0, 9_000)
            launch = (int(rng.random() < 0.5), launch_at)
            stream = 17 + communicator
            plan.talk.append(
                (
                    rank,
                    communicator,
                    sizes[number],
                    stream,
                    start * TICK,
                    stop,
                    launch,
                    truth,
                    rank in there,
                )
            )


def write_split(export: Export, folder: Path, name: str = "part") -> Sequence[Path]:
    """The report cut into one file a process."""
    return [
        export.write(folder / f"{name}-{process.pid}.sqlite", only=[process]) for process in export.processes
    ]
