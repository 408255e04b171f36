"""What bounds the step? One sentence, made from tables that are there anyway; every number in it is in a rank's row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.join.sharing import ranks_of_one_gpu
from nsysddp.model import pools
from nsysddp.model.intervals import Intervals
from nsysddp.model.names import ranks_text
from nsysddp.model.result import Finding, Result
from nsysddp.questions.own_time import own_lateness
from nsysddp.questions.steps import steady
from nsysddp.questions.summary import Summary, summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from nsysddp.questions.context import Context

    Times = NDArray[np.int64]

CODES: dict[str, str] = {
    "late_rank": "the others wait for one rank; it bounds the step",
    "bound_by_compute": "most of the step is computation",
    "bound_by_communication": "most of the step is exposed communication",
    "bound_by_copies": "most of the step is copies under no other work",
    "bound_by_host": "the GPU is idle because the host launches its work too late",
    "bound_by_idle": "most of the step the GPU is idle",
    "bound_unknown": "most of the step is CUDA graphs traced as one span, of unknown content",
}
"""Every code of a verdict with its meaning; the reference is made from it."""

_PARTS = {
    "compute_ns": "bound_by_compute",
    "exposed_communication_ns": "bound_by_communication",
    "exposed_memory_ns": "bound_by_copies",
    "graph_ns": "bound_unknown",
    "idle_ns": "bound_by_idle",
}
_WORTH_SAYING = 0.03
"""Share of the slowest rank's step from which on a part is said beside the largest one."""

_LATE = 0.03
"""Share of a rank's step that waits, exposed, for one other rank, from which on that rank is called late."""

_MOSTLY, _NEARLY_ALL, _HALF, _A_THIRD, _HARDLY = 0.6, 0.9, 0.4, 0.25, 0.1
_ALIKE = 0.1
"""Ranks whose figures of a part differ by less than this share of the step are told as one range."""

_MOST_PARTS = 2
_MUCH = 0.15
"""Share of a rank's step that it must be idle for its host to bound it."""

_TOO_LATE = "the host launches too late"
_PROMPT_NS = 20_000
"""Work that starts within this of the end of its launch call waited for nothing else (some us of start-up)."""

_NEVER = np.iinfo(np.int64).min


def verdict_of(context: Context) -> Finding | None:
    """What bounds the step, for whoever needs no more of the analysis than that."""
    tables = {
        "rank": context.trace.ranks,
        "overlap": context.decomposition,
        "collective": context.of_ranks("collective"),
    }
    return verdict(Result(context.trace, tables, warnings=context.trace.warnings), context)


def own_lateness_of(context: Context) -> dict[int, float]:
    """How much longer each rank's own time is than its peers' in a steady window, ns; asked where it matters."""
    steps: dict[int, list[int]] = {}
    for window in context.windows.windows:
        if not window.is_warmup:
            steps.setdefault(window.rank, []).append(window.step)
    if context.compare_own is not None:
        return context.compare_own(steps)
    pools.hand_back()  # what follows takes most of all that is asked
    return own_lateness(context.trace, context.attribution, context.splits, steps)


def verdict(result: Result, context: Context) -> Finding | None:
    """What bounds the step, or the capture where there are no steps; None where no rank has a window.

    Args:
        result: the tables ``rank``, ``overlap`` and ``collective`` of ``analyze``.
        context: what they were made from.
    """
    hosts = {rank: Launching(late, paced) for rank, late, paced in context.of_ranks("launching").iter_rows()}
    found = summary(result)
    slowest = found.slowest()
    if slowest is None or not slowest["window_ns"]:
        return None
    shared = ranks_of_one_gpu(result.trace.ranks)
    late = None if shared else _late_rank(result, found) or _held_up_by(found, context)
    row = slowest if late is None else found.rows.filter(pl.col("rank") == late.rank).to_dicts()[0]
    known = {name: row[name] or 0 for name in _PARTS}
    head = max(known, key=lambda name: known[name])
    paced = head == "compute_ns" and _share(found, "idle_ns") >= _MUCH and _is_paced(found, hosts)
    idles_more = late is not None and _idles_more(found, late)
    head = "idle_ns" if paced or idles_more else head
    parts = sorted(
        (name for name in known if name != head and _share(found, name) >= _WORTH_SAYING),
        key=lambda name: -_share(found, name),
    )
    if late is None:
        sentences = [_part_text(found, head, hosts, head=True)]
    else:
        text, longer = _late_text(found, hosts, late)
        if longer is None:
            text += _begins_later(found, context, late)
        first = [] if longer == head and not idles_more else [_part_text(found, head, hosts, head=True)]
        sentences = [*first, text] if idles_more else [text, *first]
        parts = [name for name in parts if name not in ("exposed_communication_ns", longer)]
    sentences += [_part_text(found, name, hosts) for name in parts[:_MOST_PARTS]]
    if late is None and "exposed_communication_ns" not in (head, *parts[:_MOST_PARTS]):
        sentences += _communication_beside(result, found)
    text = "".join(_cautions(shared)) + "; ".join(
        (*(part for part in sentences if part), *_left_out(result, found))
    )
    rank = None if late is None or idles_more else late.rank
    rows = found.rows["rank"].to_list() if rank is None else [rank]
    return Finding(
        _code(found, head, hosts) if late is None or idles_more else "late_rank",
        f"{text[0].upper()}{text[1:]}.",
        rank=rank,
        value=round(known[head]) if late is None or idles_more else round(max(late.waits.values())),
        unit="ns",
        rows=tuple({"table": "overlap", "rank": number} for number in rows),
        severity=200,
    )


@dataclass(frozen=True)
class Late:
    """A rank for which others wait.

    Attributes:
        rank: the rank.
        waits: how long each of the others waits, exposed, ns; at most, where that is not told from transfer.
        is_last: it arrived last in most of what they waited for.
        is_split: wait and transfer are told apart.
    """

    rank: int
    waits: Mapping[int, float]
    is_last: bool
    is_split: bool


@dataclass(frozen=True)
class Launching:
    """How a rank's host kept up with its GPU in the steady windows.

    Attributes:
        late: share of the idle time that passed before the next event's launch call had returned; None if unknown.
        paced: share of the windows in which the next event started as soon as it was launched, so that the host
            decided when; 0 if unknown.
    """

    late: float | None
    paced: float


def launching(context: Context) -> pl.DataFrame:
    """How each rank's host kept up with its GPU: rank, late and paced, as of ``Launching``.

    Ranks of which no launch is known are left out. Linear in the events, without the dependency graph: what a call
    waited for before it launched is not known here.
    """
    trace = context.trace
    made: list[tuple[int, float | None, float]] = []
    for rank in trace.rank_numbers if trace.launches is not None else ():
        assert trace.launches is not None
        windows = [window for window in context.windows.of(rank) if not window.is_warmup]
        first, last = trace.rows_of(rank)
        launched = trace.launches["launch_end_ns"].slice(first, last - first)
        if not windows or last - first < 2 or launched.null_count() == last - first:
            continue
        events = trace.events_of(rank)
        start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
        at = np.array([window.start for window in windows]), np.array([window.end for window in windows])
        call = launched.fill_null(_NEVER).to_numpy()
        work = (call != _NEVER) & ~trace.is_class(rank, ["communication"])
        made.append((rank, _late(start, end, call, at), _paced(start[work], call[work], at)))
    return pl.DataFrame(
        made, schema={"rank": pl.Int64, "late": pl.Float64, "paced": pl.Float64}, orient="row"
    )


def _late(start: Times, end: Times, call: Times, at: tuple[Times, Times]) -> float | None:
    """Share of the idle time within ``at`` that passed before the launch call of the next event had returned."""
    busy_until = np.maximum.accumulate(end)[:-1]
    gaps = np.flatnonzero(start[1:] > busy_until)
    begin, until, call = busy_until[gaps], start[1:][gaps], call[1:][gaps]
    known = call != _NEVER
    idle = _length(begin, until, at)
    told = _length(begin[known], until[known], at)
    if not idle or 2 * told < idle:
        return None
    return _length(begin[known], np.clip(call, begin, until)[known], at) / told


def _paced(start: Times, call: Times, at: tuple[Times, Times]) -> float:
    """Share of ``at`` that lies between two starts of which the later one came as soon as it was launched."""
    prompt = np.flatnonzero(start[1:] - call[1:] < _PROMPT_NS)
    return _length(start[:-1][prompt], start[1:][prompt], at) / max(int((at[1] - at[0]).sum()), 1)


def _length(begin: Times, until: Times, at: tuple[Times, Times]) -> int:
    return int(Intervals.union_of(begin, until, is_sorted=True).length_within(*at).sum())


def _share(found: Summary, name: str) -> float:
    """The largest share that a part has of any rank's window."""
    shares = found.rows.filter(pl.col("window_ns") > 0).select(pl.col(name) / pl.col("window_ns"))
    value = shares.to_series().max()
    return float(value) if isinstance(value, (int, float)) else 0.0


def _code(found: Summary, head: str, hosts: Mapping[int, Launching]) -> str:
    by_host = head == "idle_ns" and _why_idle(found, hosts) == _TOO_LATE
    return "bound_by_host" if by_host else _PARTS[head]


def _part_text(found: Summary, name: str, hosts: Mapping[int, Launching], *, head: bool = False) -> str:
    """What a part of the step amounts to, and whose or why; the first one says of how much."""
    gpus = "GPU idle" if found.rows.height == 1 else "GPUs idle"
    spin = _ratio(found, "spin_ns", "compute_ns") >= _NEARLY_ALL
    subject, verb = {
        "idle_ns": (gpus, ""),
        "exposed_communication_ns": ("exposed communication", " takes"),
        "compute_ns": ("spin kernels (delays)", " fill") if spin else ("computation", " fills"),
        "exposed_memory_ns": ("copies alone", " take"),
        "graph_ns": ("CUDA graphs", " fill"),
    }[name]
    amount, most = _amount(found, name)
    reasons = [most] if most else []
    after = ""
    if name == "idle_ns":
        why = _why_idle(found, hosts)
        if head and why:
            after = f": {why}"
        elif why:
            reasons.append(why)
    elif name == "exposed_communication_ns":
        after = _how_much_waiting(found)
    elif name == "graph_ns" and head:
        after = ", what they hold is unknown (capture with --cuda-graph-trace=node)"
    aside = f" ({'; '.join(reasons)})" if reasons else ""
    if not head:
        return f"{subject} {amount} ms{aside}{after}"
    return f"{subject}{verb} {amount} of {_step(found)}{aside}{after}"


def _step(found: Summary, ranks: Sequence[int] | None = None) -> str:
    """The step of these ranks (all by default), with its unit."""
    rows = found.rows if ranks is None else found.rows.filter(pl.col("rank").is_in(ranks))
    return (
        f"{found.range(rows['window_ns'].to_list())} ms{found.span if found.of_steps else ' of the capture'}"
    )


def _amount(found: Summary, name: str) -> tuple[str, str]:
    """The figures of a part over the ranks, and where they are not alike whose is the largest."""
    rows = found.rows.filter(pl.col(name).is_not_null())
    values = rows[name].to_list()
    if not values:
        return "?", ""
    if max(values) - min(values) <= _ALIKE * max(rows["window_ns"].to_list()):
        return found.range(values), ""
    return found.range(values), f"most on rank {rows.sort(name, 'rank').tail(1)['rank'][0]}"


def _why_idle(found: Summary, hosts: Mapping[int, Launching]) -> str:
    idle = found.rows.filter(pl.col("idle_ns") > 0)
    told = [hosts[rank].late for rank in idle["rank"].to_list() if rank in hosts]
    shares = [late for late in told if late is not None]
    if not shares or _share(found, "idle_ns") < _WORTH_SAYING:
        return ""
    if min(shares) >= _MOSTLY:
        return _TOO_LATE
    return "not for want of launches" if max(shares) < _HALF else ""


def _is_paced(found: Summary, hosts: Mapping[int, Launching]) -> bool:
    """Does the host of every rank decide for half of the step when the next kernel starts?"""
    return all(rank in hosts and hosts[rank].paced >= _HALF for rank in found.rows["rank"].to_list())


def _ratio(found: Summary, part: str, whole: str) -> float:
    """The least share over the ranks that have both; 0 if none has."""
    rows = found.rows.filter((pl.col(whole) > 0) & pl.col(part).is_not_null())
    value = rows.select(pl.col(part) / pl.col(whole)).to_series().min()
    return float(value) if isinstance(value, (int, float)) else 0.0


def _how_much_waiting(found: Summary) -> str:
    """How much of the exposed communication of the rank that has most is waiting, and for whom."""
    rows = found.rows.filter(pl.col("exposed_communication_ns").is_not_null())
    if not rows.height:
        return ""
    row = rows.sort("exposed_communication_ns", "rank").tail(1).to_dicts()[0]
    if row["exposed_wait_ns"] is None or not row["exposed_communication_ns"]:
        return ", wait and transfer not told apart" if row["exposed_communication_ns"] else ""
    share = row["exposed_wait_ns"] / row["exposed_communication_ns"]
    if (row["exposed_unsplit_ns"] or 0) >= _HARDLY * row["exposed_communication_ns"]:
        least = f", at least {_words(share)} of it waiting" if share >= _A_THIRD else ""
        return least or ", wait and transfer not told apart"
    if share < _HARDLY:
        return ", hardly any of it waiting"
    return f", {_words(share)} of it waiting"


def _words(share: float) -> str:
    for least, words in (
        (_NEARLY_ALL, "nearly all"),
        (_MOSTLY, "most"),
        (_HALF, "half"),
        (_A_THIRD, "a third"),
    ):
        if share >= least:
            return words
    return "a little"


def _communication_beside(result: Result, found: Summary) -> Iterator[str]:
    """What there is to say of communication that does not bound anything."""
    values = [value for value in found.rows["communication_ns"].to_list() if value is not None]
    if any(values):
        exposed = [value for value in found.rows["exposed_communication_ns"].to_list() if value is not None]
        if exposed:
            yield f"exposed communication {found.range(exposed)} ms"
        return
    graphs = any(found.rows["graph_ns"].to_list())
    talked = result["collective"].height
    copies = [value for value in found.rows["p2p_copy_ns"].to_list() if value]
    if copies:
        yield f"peer copies between GPUs {found.range(copies)} ms"
    elif not graphs and not talked:
        yield "no communication kernels"


def _late_rank(result: Result, found: Summary) -> Late | None:
    """The rank that others wait for, exposed; None if there is none.

    A wait is that rank's if it arrived last in most of what the waiting rank waited for, exposed (time, not count). The
    late rank itself waits less than half of that.
    """
    waits = dict(
        found.rows.filter(pl.col("exposed_wait_ns") > 0).select("rank", "exposed_wait_ns").iter_rows()
    )
    window = dict(found.rows.select("rank", "window_ns").iter_rows())
    exposed = dict(found.rows.select("rank", "exposed_communication_ns").iter_rows())
    heavy = {
        rank: wait
        for rank, wait in waits.items()
        if wait >= _LATE * window[rank] and wait >= _HALF * (exposed[rank] or 0)
    }
    if not heavy:
        return None
    blamed_by = dict(blamed(result, "exposed").select("rank", "last_rank").iter_rows())
    causes = {last for rank, last in blamed_by.items() if rank in heavy}
    if len(causes) != 1 or any(blamed_by.get(rank) not in causes for rank in heavy):
        return None
    (late,) = causes
    if waits.get(late, 0) > 0.5 * max(heavy.values()):
        return None
    return Late(late, heavy, is_last=True, is_split=True) if late in window else None


def blamed(result: Result, where: str) -> pl.DataFrame:
    """The rank that arrived last in most of what each rank waited for, exposed or hidden: rank and last_rank."""
    if "last_rank" not in result["collective"].columns:
        return pl.DataFrame(schema={"rank": pl.Int64, "last_rank": pl.Int64})
    return (
        _in_steady_windows(result)
        .filter((pl.col("wait_ns") > 0) & (pl.col("last_rank") != pl.col("rank")))
        .group_by("rank", "last_rank")
        .agg(pl.min_horizontal("wait_ns", f"{where}_ns").sum().alias("wait_ns"))
        .with_columns((pl.col("wait_ns") / pl.col("wait_ns").sum().over("rank")).alias("share"))
        .filter(pl.col("share") >= _MOSTLY)
    )


def _in_steady_windows(result: Result) -> pl.DataFrame:
    """The collectives but those of warm-up steps, which count nowhere else in the sentence."""
    windows = result["overlap"]
    warm = windows.filter("is_warmup").join(
        steady(windows), on=["rank", "step"], how="anti", nulls_equal=True
    )
    return result["collective"].join(warm, on=["rank", "step"], how="anti")


def _held_up_by(found: Summary, context: Context) -> Late | None:
    """The rank with more of its own to do than any other, while the others wait; None if there is none.

    In groups ranks wait for ranks that wait for it, so the last to arrive at a collective need not be the one, and
    those that are late with it wait little. What they wait under computation counts too: without the late rank they
    would not; and what is not known to be transfer may be waiting. That it takes longer for the same work than its
    peers is asked only then: stages of a pipeline can have more to do by plan.
    """
    if found.rows.height < 2 or found.rows["exposed_communication_ns"].null_count():
        return None
    known = found.rows.with_columns(pl.col("^(hidden|exposed)_(transfer|wait)_ns$").fill_null(0))
    own = known.select(
        "rank",
        "window_ns",
        "exposed_wait_ns",
        exposed=pl.col("exposed_communication_ns") - pl.col("exposed_transfer_ns"),
        wait=pl.col("communication_ns") - pl.col("hidden_transfer_ns") - pl.col("exposed_transfer_ns"),
        own=pl.col("window_ns") - pl.col("exposed_communication_ns"),
    ).sort("own", "rank", descending=[True, False])
    late, next_to_it = own.head(2).to_dicts()
    more = late["own"] - next_to_it["own"]
    if more < _LATE * late["window_ns"]:
        return None
    others = own.slice(1)
    if float(np.median(others["wait"].to_numpy())) - late["wait"] < _HALF * more:
        return None
    if own_lateness_of(context).get(late["rank"], 0) < _HALF * more:
        return None
    is_split = float(others["exposed_wait_ns"].sum()) >= _NEARLY_ALL * float(others["exposed"].sum())
    waits = others.select("rank", "exposed_wait_ns" if is_split else "exposed").sort("rank")
    return Late(late["rank"], dict(waits.iter_rows()), is_last=False, is_split=is_split)


def _idles_more(found: Summary, late: Late) -> bool:
    """Is every rank idle for longer than the late rank costs?

    That is what others wait for it, exposed, or what it has more of its own to do than they (their median), where that
    is more: part of the waiting can be hidden. Computation and transfers are what the step is there for, and no loss.
    """
    own = {
        row["rank"]: row["window_ns"] - (row["exposed_communication_ns"] or 0)
        for row in found.rows.to_dicts()
    }
    more = own.pop(late.rank) - float(np.median(list(own.values())))
    return bool(min(idle or 0 for idle in found.rows["idle_ns"].to_list()) > max(more, *late.waits.values()))


def _begins_later(found: Summary, context: Context, late: Late) -> str:
    """How much later than those that wait for it the late rank begins its only step, where that is much of the wait.

    Later steps begin where those before them end: there a rank that begins late idles for longer.
    """
    windows = context.every_window.windows
    begun = {window.rank: window.start for window in windows if window.rank in (late.rank, *late.waits)}
    if len(windows) != found.rows.height:
        return ""
    later = begun[late.rank] - float(np.median([begun[rank] for rank in late.waits]))
    if later < _HALF * max(late.waits.values()):
        return ""
    return f"; it begins {found.text(later)} ms later, because of what came before and was not captured"


def _late_text(found: Summary, hosts: Mapping[int, Launching], late: Late) -> tuple[str, str | None]:
    """Who waits for the late rank how long, and what that rank has more of: as text, and as the part's column."""
    rows = {row["rank"]: row for row in found.rows.to_dicts()}
    ranks = sorted(late.waits)
    who = "the others" if len(ranks) == len(rows) - 1 > 1 else ranks_text(ranks)
    does = ("wait" if late.is_split else "communicate") + ("s" if len(ranks) == 1 else "")
    why, part = _what_takes_longer(found, hosts, rows, late.rank)
    return (
        f"rank {late.rank} is late: {who} {does} {found.range(late.waits.values())} of {_step(found, ranks)}"
        f"{' for it' if late.is_last else ''} "
        f"({'exposed' if late.is_split else 'exposed; how much of that is waiting is not told'}){why}",
        part,
    )


def _what_takes_longer(
    found: Summary, hosts: Mapping[int, Launching], rows: Mapping[int, Mapping[str, Any]], late: int
) -> tuple[str, str | None]:
    """Computation or idle time that the late rank has more of than any other, where that is much of the wait."""
    wait = max(row["exposed_wait_ns"] or 0 for row in rows.values())
    for name, verb in (("compute_ns", "computes"), ("idle_ns", "idles")):
        others = [row[name] for rank, row in rows.items() if rank != late]
        if others and rows[late][name] - max(others) >= _HALF * wait:
            whose = "the others" if len(others) > 1 else f"rank {next(rank for rank in rows if rank != late)}"
            host = hosts.get(late)
            by_host = name == "idle_ns" and host is not None and (host.late or 0) >= _MOSTLY
            why = ", as its host launches too late" if by_host else ""
            return f"; it {verb} {found.text(rows[late][name])} ms, {whose} {found.range(others)}{why}", name
    return "", None


def _cautions(shared: Sequence[Sequence[int]]) -> Iterator[str]:
    """What makes every number of the sentence less than it seems, said before it."""
    for ranks in shared:
        yield f"{ranks_text(ranks)} share one GPU, so their times include each other's: "


def _left_out(result: Result, found: Summary) -> Iterator[str]:
    """Ranks that the sentence is not about."""
    without = [rank for rank in result.trace.rank_numbers if rank not in found.rows["rank"]]
    if without:
        yield f"nothing is known of {ranks_text(without)}"
    silent = _silent_processes(result)
    if silent:
        shown = result["rank"].select("host", "pid").n_unique()
        yield f"GPU data for {shown} of {shown + silent} processes"
    missing = missing_ranks(result)
    if missing > silent:
        yield f"{missing} of the job's {missing + len(result.trace.rank_numbers)} ranks {was(missing)} not captured"


def was(number: int) -> str:
    """``was`` or ``were``."""
    return "was" if number == 1 else "were"


def _silent_processes(result: Result) -> int:
    return sum(warning.count for warning in result.warnings if warning.code == "process_without_gpu_events")


def missing_ranks(result: Result) -> int:
    """How many ranks of the job are not in the trace, as far as the ranks tell the size of their job."""
    worlds = result["rank"]["world_size"].drop_nulls().to_list()
    return max(max(worlds, default=0) - len(result.trace.rank_numbers), _silent_processes(result))
