"""Time, moved forward over the host lines, streams and links of a training job.

    host      one line of operations per rank, some of them by the autograd thread; it runs ahead of its GPU
    until a call blocks
    stream    first in, first out: kernels, copies, records and waits; an item is there once its launch call
        returned and the launch took its time
    kernel    works off its length at a rate: 1 alone, 1 / contention beside communication, 0 while another
        process has the GPU transfer  begins when all that a collective needs have arrived; transfers that
        leave a GPU over one link share it

Times are integer ns, and one clock is shared by all: what clocks do to times is the business of ``export``.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

LAUNCH_NS = 2_000
"""From the return of a launch call to the GPU's seeing the work."""

GAP_NS = 1_000
"""Between two kernels of one stream."""

EVENT_NS = 1_500
"""More, where a kernel follows an awaited event of another stream."""

WAKE_NS = 2_000
"""From the end of the work that a call waits for to the call's return."""

KERNEL, COPY, RECORD, WAIT = "kernel", "copy", "record", "wait"
FOREVER = 1 << 62


@dataclass(eq=False)
class Item:
    """What stands in a stream. Times are None until they are reached.

    Attributes:
        kind: kernel, copy, record or wait.
        stream: number of the stream on its rank.
        rank: whose.
        name: kernel name, or kind of copy.
        length: ns that it takes alone.
        collective: what it takes part in; None for computation.
        awaited: of a wait: the record.
        is_own: of a wait: NCCL's side stream leads back to this very stream.
        step, phase: where it was launched.
        purpose: what a collective is for.
        held_by: of a bucket: the bucket whose turn it had to wait for.
        call: what launched it.
        available: when the stream sees it.
        start, end: when it ran; of records and waits only the end.
        ready: latest end of the work of other streams that its waits stood for.
        ahead_end: end of the work ahead of it in its stream.
        behind: of a record: per stream the latest end of the work that it stands for.
    """

    kind: str
    stream: int
    rank: int
    name: str = ""
    length: int = 0
    collective: Collective | None = None
    awaited: Item | None = None
    is_own: bool = False
    step: int = -1
    phase: str | None = None
    bytes: int = 0
    purpose: str = ""
    held_by: int | None = None
    call: Call | None = None
    available: int = FOREVER
    start: int | None = None
    end: int | None = None
    ready: int | None = None
    ahead_end: int | None = None
    behind: dict[int, int] = field(default_factory=dict)
    waiting: list[Callable[[int], None]] = field(default_factory=list)


@dataclass(eq=False)
class Call:
    """A CUDA API call: ``cost`` ns of the host, the ``item`` that it puts into a stream, and what it waits
    for.

    ``awaits`` is "stream" (``on``), "device", "event" (``of``), "item" (its own), or nothing. ``after`` ns
    of work follow once what it waited for is there (a free, for instance).
    """

    api: str
    thread: int
    cost: int
    item: Item | None = None
    awaits: str | None = None
    on: int = 0
    of: Item | None = None
    after: int = 0
    start: int = -1
    end: int = -1


@dataclass(eq=False)
class Busy:
    """Host time without a CUDA call."""

    thread: int
    cost: int


@dataclass(eq=False)
class Range:
    """An NVTX range; with ``payload`` one of NCCL's. ``Push`` and ``Pop`` set its times."""

    name: str
    thread: int
    payload: dict[str, int] | None = None
    start: int = -1
    end: int = -1


@dataclass(eq=False)
class Push:
    """A range begins."""

    range: Range


@dataclass(eq=False)
class Pop:
    """A range ends."""

    range: Range


Op = Call | Busy | Push | Pop


@dataclass(eq=False)
class Collective:
    """One collective: who takes part, how long its transfer takes alone, and over which links it goes.

    ``root``: of a broadcast; the others wait for it and for nobody else. Send and receive are a collective of
    two. ``skews``: by how much later than its transfer each member's kernel ends.
    """

    kind: str
    communicator: int
    sequence: int
    members: tuple[int, ...]
    bytes: int
    length: int
    links: frozenset[tuple[int, str]]
    root: int | None = None
    skews: dict[int, int] = field(default_factory=dict)
    items: dict[int, Item] = field(default_factory=dict)

    @property
    def ready(self) -> int:
        """Start of the last member's kernel."""
        return max(item.start for item in self.items.values() if item.start is not None)


@dataclass(eq=False)
class _Activity:
    """Something that is worked off: a kernel, or the transfer of ``items``."""

    items: list[Item]
    left: float
    links: frozenset[tuple[int, str]] = frozenset()
    since: int = 0
    rate: float = 0.0
    version: int = 0


@dataclass(eq=False)
class _Stream:
    items: list[Item] = field(default_factory=list)
    head: int = 0
    is_busy: bool = False
    ready: int | None = None
    waited: bool = False
    blocked_by: Item | None = None
    ahead_end: int | None = None
    computed: int | None = None
    ends: dict[int, int] = field(default_factory=dict)
    """Per stream the latest end of the work that the end of this one stands for."""


@dataclass(frozen=True)
class Preemption:
    """Another process takes the GPU of a rank for ``length`` ns, every ``period`` ns.

    With ``stretches`` kernels that run are stopped meanwhile, and look that much longer; without, they run
    to their end and none begins.
    """

    rank: int
    first: int
    period: int
    length: int
    stretches: bool = True


class Engine:
    """Runs host lines (one list of operations per rank) to their end; times are left in the operations.

    With ``one_queue`` (CUDA_DEVICE_MAX_CONNECTIONS=1) kernels of a rank begin in the order of their launch,
    whatever their streams.
    """

    def __init__(
        self,
        lines: list[list[Op]],
        *,
        contention: float = 1.0,
        link_contention: float = 1.0,
        preemption: Preemption | None = None,
        one_queue: bool = False,
    ) -> None:
        self.lines = lines
        self.contention = contention
        self.link_contention = link_contention
        self.preemption = preemption
        self.one_queue = one_queue
        self._heap: list[tuple[int, int, Callable[[int], None]]] = []
        self._number = 0
        self._streams: list[dict[int, _Stream]] = [{} for _ in lines]
        self._at = [0] * len(lines)
        self._communicating = [0] * len(lines)
        self._computing: list[list[_Activity]] = [[] for _ in lines]
        self._transfers: list[_Activity] = []
        self._queues: list[deque[Item]] = [deque() for _ in lines]
        self._is_stopped = [False] * len(lines)
        self._held: list[Item] = []
        self._hosts_left = len(lines)

    def run(self) -> None:
        """Move time forward until nothing is left.

        Raises:
            RuntimeError: something waits for what never comes.
        """
        for rank in range(len(self.lines)):
            self._host(rank, 0)
        if self.preemption is not None:
            self._push(self.preemption.first, self._stop)
        while self._heap:
            time, _, act = heapq.heappop(self._heap)
            act(time)
        for rank, line in enumerate(self.lines):
            if self._at[rank] < len(line) or any(s.head < len(s.items) for s in self._streams[rank].values()):
                raise RuntimeError(f"rank {rank} waits for something that never comes")

    def _push(self, time: int, act: Callable[[int], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (time, self._number, act))

    # The host

    def _host(self, rank: int, time: int) -> None:
        line = self.lines[rank]
        while self._at[rank] < len(line):
            op = line[self._at[rank]]
            self._at[rank] += 1
            if isinstance(op, Busy):
                time += op.cost
            elif isinstance(op, Push):
                op.range.start = time
                time += 100
            elif isinstance(op, Pop):
                time += 100
                op.range.end = time
            else:
                op.start = time
                time += op.cost
                if op.item is not None:
                    self._enqueue(rank, op, time)
                if op.awaits is not None:
                    self._block(rank, op, time)
                    return
                op.end = time
        self._hosts_left -= 1

    def _enqueue(self, rank: int, call: Call, time: int) -> None:
        item = call.item
        assert item is not None
        item.call = call
        item.available = time + (LAUNCH_NS if item.kind in (KERNEL, COPY) else 0)
        self._streams[rank].setdefault(item.stream, _Stream()).items.append(item)
        if self.one_queue and item.kind in (KERNEL, COPY):
            self._queues[rank].append(item)
        self._push(item.available, lambda now: self._advance(rank, item.stream, now))

    def _block(self, rank: int, call: Call, time: int) -> None:
        """Let the host go on when all that the call waits for has ended."""
        streams = self._streams[rank]
        if call.awaits == "device":
            awaited = [stream.items[-1] for stream in streams.values() if stream.items]
        elif call.awaits == "stream":
            awaited = streams[call.on].items[-1:] if call.on in streams else []
        else:
            one = call.of if call.awaits == "event" else call.item
            awaited = [one] if one is not None else []
        open_ones = [item for item in awaited if item.end is None]
        ends = [item.end for item in awaited if item.end is not None]
        left = [len(open_ones), max(ends, default=0)]

        def go_on(latest: int) -> None:
            done = latest + WAKE_NS if latest > time else time
            call.end = done + call.after
            self._host(rank, call.end)

        def one_ended(now: int) -> None:
            left[0] -= 1
            left[1] = max(left[1], now)
            if not left[0]:
                go_on(left[1])

        for item in open_ones:
            item.waiting.append(one_ended)
        if not open_ones:
            self._push(max(time, left[1]), lambda _: go_on(left[1]))

    # Streams

    def _advance(self, rank: int, number: int, now: int) -> None:
        stream = self._streams[rank][number]
        while stream.head < len(stream.items) and not stream.is_busy:
            item = stream.items[stream.head]
            if item.available > now:
                return
            if item.kind == RECORD:
                item.behind = dict(stream.ends)
                self._done(stream, item, now)
            elif item.kind == WAIT:
                record = item.awaited
                assert record is not None
                if record.end is None:
                    if stream.blocked_by is not record:
                        stream.blocked_by, stream.waited = record, True
                        record.waiting.append(lambda later: self._advance(rank, number, later))
                    return
                for of, end in record.behind.items():
                    stream.ends[of] = max(stream.ends.get(of, end), end)
                    if of != number and not item.is_own:
                        stream.ready = max(stream.ready or 0, end)
                self._done(stream, item, now)
            elif self.one_queue and self._queues[rank][0] is not item:
                return
            else:
                stream.is_busy = True
                wait = GAP_NS + (EVENT_NS if stream.waited else 0)
                known = [end for end in (stream.ready, stream.computed) if end is not None]
                item.ready, item.ahead_end = max(known, default=None), stream.ahead_end
                stream.ready, stream.waited = None, False
                self._push(now + wait, lambda later, item=item: self._begin(item, later))

    @staticmethod
    def _done(stream: _Stream, item: Item, now: int) -> None:
        item.end = now
        stream.head += 1
        for act in item.waiting:
            act(now)

    def _begin(self, item: Item, now: int) -> None:
        if self._is_stopped[item.rank]:
            self._held.append(item)
            return
        item.start = now
        if self.one_queue:
            queue = self._queues[item.rank]
            queue.popleft()
            if queue:
                self._advance(item.rank, queue[0].stream, now)
        one = item.collective
        if one is None:
            activity = _Activity([item], item.length, since=now)
            self._computing[item.rank].append(activity)
            self._rate(activity, now)
            if self.link_contention != 1:
                self._rate_all(self._transfers, now)
            return
        one.items[item.rank] = item
        self._communicating[item.rank] += 1
        self._rate_all(self._computing[item.rank], now)
        arrived = list(one.items.values())
        if one.root is None:
            if len(arrived) == len(one.members):
                self._transfer(arrived, one, now)
        elif item.rank == one.root:  # the root sends into buffers, and leaves
            for other in arrived:
                self._transfer([other], one, now)
        elif one.root in one.items:
            self._transfer([item], one, now)

    def _transfer(self, items: list[Item], one: Collective, now: int) -> None:
        activity = _Activity(items, one.length, one.links, since=now)
        self._transfers.append(activity)
        self._rate_all(self._transfers, now)

    def _rate_all(self, activities: Iterable[_Activity], now: int) -> None:
        for activity in activities:
            self._rate(activity, now)

    def _rate(self, activity: _Activity, now: int) -> None:
        """Settle what was done since, and foresee the end at the rate of now."""
        ranks = [item.rank for item in activity.items]
        stretched = self.preemption is not None and self.preemption.stretches
        if stretched and any(self._is_stopped[rank] for rank in ranks):
            rate = 0.0
        elif activity.items[0].collective is None:
            beside = self._communicating[ranks[0]] and activity.items[0].kind == KERNEL
            rate = 1 / self.contention if beside else 1.0
        else:
            beside = any(self._computing[rank] for rank in ranks)
            rate = 1 / self._sharing(activity) / (self.link_contention if beside else 1.0)
        if rate == activity.rate and activity.version:
            return
        activity.left -= (now - activity.since) * activity.rate
        activity.since, activity.rate = now, rate
        activity.version += 1
        if rate:
            version = activity.version
            end = now + max(0, round(activity.left / rate))
            self._push(end, lambda later: self._end(activity, version, later))

    def _sharing(self, activity: _Activity) -> int:
        """How many collectives use the busiest of its links?"""
        using = [
            {id(other.items[0].collective) for other in self._transfers if link in other.links}
            for link in activity.links
        ]
        return max(map(len, using), default=1)

    def _end(self, activity: _Activity, version: int, now: int) -> None:
        if activity.version != version:
            return
        activity.version += 1
        first = activity.items[0]
        if first.collective is None:
            self._computing[first.rank].remove(activity)
            self._finish(first, now)
            if self.link_contention != 1:
                self._rate_all(self._transfers, now)
            return
        self._transfers.remove(activity)
        self._rate_all(self._transfers, now)
        for item in activity.items:
            later = now + first.collective.skews.get(item.rank, 0)
            self._push(later, lambda t, item=item: self._finish(item, t))

    def _finish(self, item: Item, now: int) -> None:
        stream = self._streams[item.rank][item.stream]
        stream.is_busy = False
        stream.ahead_end = stream.ends[item.stream] = now
        if item.collective is None:
            stream.computed = now
        else:
            self._communicating[item.rank] -= 1
            self._rate_all(self._computing[item.rank], now)
        self._done(stream, item, now)
        self._advance(item.rank, item.stream, now)

    # Another process

    def _stop(self, now: int) -> None:
        other = self.preemption
        assert other is not None
        if self._hosts_left == 0 and all(
            stream.head == len(stream.items) for stream in self._streams[other.rank].values()
        ):
            return
        self._set_stopped(other.rank, True, now)
        self._push(now + other.length, lambda later: self._set_stopped(other.rank, False, later))
        self._push(now + other.period, self._stop)

    def _set_stopped(self, rank: int, stopped: bool, now: int) -> None:
        self._is_stopped[rank] = stopped
        self._rate_all(self._computing[rank], now)
        self._rate_all(self._transfers, now)
        if not stopped:
            held, self._held = self._held, []
            for item in held:
                self._begin(item, now)
