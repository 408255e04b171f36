"""Which ranks, hosts or links are late, in which steps, since when, and in what way?

Late is who takes longer than its peers for its own work; who waits is not late. So the late rank is the one that shows
*less* time in NCCL's kernels, not more: the others' kernels wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from nsysddp.model.names import counted, ranks_text
from nsysddp.model.result import Finding, Result
from nsysddp.model.schema import FLOAT, INT, TEXT, Column, Table
from nsysddp.model.units import ms
from nsysddp.questions.peers import programs_of
from nsysddp.questions.question import Question
from nsysddp.questions.stragglers.counters import LINK_COUNTER, evidence_of, link_counters, missing_counters
from nsysddp.questions.stragglers.kinds import LEAST_STEPS, Noise
from nsysddp.questions.stragglers.links import slow_links
from nsysddp.questions.stragglers.matrix import LATENESS, Matrix, lateness_table, matrix_of
from nsysddp.questions.stragglers.who import LEAST_SHARE, stragglers_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsysddp.questions.communicators import Known
    from nsysddp.questions.context import Context
    from nsysddp.questions.stragglers.kinds import Late
    from nsysddp.questions.stragglers.links import SlowLink
    from nsysddp.questions.stragglers.who import Straggler

KINDS = ("slow", "changed", "drift", "periodic", "one_off")
"""In what way: always, from some step on, more and more, every p-th step, once."""

LATE = Table(
    "late",
    "one rank, host or link that is late in one way; the costliest first",
    (
        Column("what", TEXT, "rank, host, or the links of a group or a pair (a direction between two ranks)"),
        Column("ranks", TEXT, "the ranks"),
        Column("rank", INT, "the rank; null for several"),
        Column("host", TEXT, "alias of the host; null for ranks of several"),
        Column("kind", TEXT, "slow, changed, drift, periodic or one_off"),
        Column("part", TEXT, "compute, host (the GPU had nothing to do), both, or transfer"),
        Column("since", TEXT, "name of the first late step"),
        Column("since_index", INT, "its step_index"),
        Column("last_index", INT, "step_index of the last late step"),
        Column("late_steps", INT, "steps in which it is late"),
        Column("steps", INT, "steps looked at"),
        Column("period", INT, "periodic: steps from one to the next"),
        Column("lateness_ns", INT, "own time beyond the peers', mean of the late steps; null for links"),
        Column("ratio", FLOAT, "of the step; links: by which share transfers take longer"),
        Column(
            "score", FLOAT, "test statistic over its threshold; 1 is found by chance in less than 1 % of jobs"
        ),
        Column(
            "least_nccl",
            TEXT,
            "yes where it shows the least NCCL time of all ranks, else no; null for several",
        ),
    ),
)


def stragglers(context: Context) -> Result:
    """The answer (see ``QUESTION``)."""
    table = lateness_table(context)
    refused = _refused(context)
    if refused:
        late = [name for name in LATENESS.names if "late" in name]
        table = table.with_columns(pl.lit(None, pl.Int64).alias(name) for name in late)
    matrix = None if refused else matrix_of(table, programs_of(context.trace), context.used_steps)
    rows: list[dict[str, Any]] = []
    findings: list[Finding] = []
    if matrix is not None:
        for straggler in stragglers_of(matrix):
            rows.append(_row_of(matrix, straggler))
            findings.append(_said_of(matrix, straggler, rows[-1]))
    counters = link_counters(context)
    for link in slow_links(context.groups):
        rows.append(_row_of_link(context, link))
        findings.append(_said_of_link(context.groups, rows[-1], link, counters))
    if not any(row["what"] in ("rank", "host") for row in rows):
        findings.append(_nobody(matrix, refused))
    return Result(
        context.trace,
        {LATE.name: LATE.frame(rows), LATENESS.name: table, LINK_COUNTER.name: counters},
        findings=tuple(findings),
        warnings=(*context.windows.warnings, *missing_counters(counters)),
        assumptions=context.windows.assumptions,
    )


def _refused(context: Context) -> str | None:
    """Why ranks are not compared."""
    if any(warning.code == "shared_gpu" for warning in context.trace.warnings):
        return "ranks share a GPU, so their own times include each other's"
    if not context.used_steps:
        return "no steps are known (--step-pattern)"
    return None


# --- rows ------------------------------------------------------------------------------------------------------------


def _row_of(matrix: Matrix, one: Straggler) -> dict[str, Any]:
    ranks = matrix.ranks[list(one.rows)].tolist()
    single = one.host is None
    return {
        "what": "rank" if single else "host",
        "ranks": ranks_text(ranks).partition(" ")[2],
        "rank": ranks[0] if single else None,
        "host": str(matrix.hosts[one.rows[0]]),
        "kind": one.late.kind,
        "part": one.part,
        **_when(one.late, matrix.steps, matrix.names),
        "lateness_ns": round(one.lateness_ns),
        "ratio": one.lateness_ns / float(np.median(matrix.window[one.late.late])),
        "score": one.late.score,
        "least_nccl": ("yes" if _has_least(matrix, one) else "no") if single else None,
    }


def _when(late: Late, steps: NDArray[np.int64], names: tuple[str, ...]) -> dict[str, Any]:
    at = np.flatnonzero(late.late)
    return {
        "since": names[at[0]],
        "since_index": int(steps[at[0]]),
        "last_index": int(steps[at[-1]]),
        "late_steps": int(at.size),
        "steps": int(steps.size),
        "period": late.period,
    }


def _typical_communication(matrix: Matrix, late: Late) -> NDArray[np.float64]:
    """NCCL time of every rank, median of the late steps."""
    made: NDArray[np.float64] = np.nanmedian(matrix.communication[:, late.late], axis=1)
    return made


def _has_least(matrix: Matrix, one: Straggler) -> bool:
    typical = _typical_communication(matrix, one.late)
    return bool(typical[one.rows[0]] > 0 and typical[one.rows[0]] <= np.nanmin(typical))


def _row_of_link(context: Context, link: SlowLink) -> dict[str, Any]:
    named = dict(context.attribution.steps.select("step_index", "name").iter_rows())
    hosts = {context.groups.groups.host_of[rank] for rank in link.ranks}
    return {
        "what": "pair" if link.is_pair else "group",
        "ranks": " to ".join(map(str, link.ranks))
        if link.is_pair
        else ranks_text(link.ranks).partition(" ")[2],
        "host": hosts.pop() if len(hosts) == 1 else None,
        "kind": link.late.kind,
        "part": "transfer",
        **_when(link.late, link.steps, tuple(named[step] for step in link.steps.tolist())),
        "ratio": link.late.lateness,
        "score": link.late.score,
    }


# --- in words --------------------------------------------------------------------------------------------------------

_DOING = {"compute": "computing", "host": "idle: the host launches late", "both": "computing and idle"}


def _said_of(matrix: Matrix, one: Straggler, row: dict[str, Any]) -> Finding:
    who = f"Rank {row['rank']}" if row["what"] == "rank" else f"All ranks of {row['host']} ({row['ranks']})"
    verb = "is" if row["what"] == "rank" else "are"
    length = f"{ms(row['lateness_ns']):.2f} ms ({row['ratio']:.1%} of the step)"
    text = (
        f"{who} {verb} late {_in_words(row)}: own work takes {length} longer than the peers' "
        f"({_DOING[one.part]})."
    )
    if row["least_nccl"] == "yes":
        typical = _typical_communication(matrix, one.late)
        least, most = ms(typical[one.rows[0]]), ms(float(np.nanmax(typical)))
        text += (
            f" It shows the least NCCL time ({least:.2f} ms, others up to {most:.2f}): the waiting is in the others' "
            "kernels."
        )
    return Finding(
        "straggler",
        text,
        rank=row["rank"],
        step=row["since"],
        value=row["lateness_ns"],
        unit="ns",
        rows=({"table": LATE.name, "what": row["what"], "ranks": row["ranks"], "kind": row["kind"]},),
        severity=row["lateness_ns"] * row["late_steps"],
    )


def _in_words(row: dict[str, Any]) -> str:
    steps = f"{row['late_steps']} of {counted(row['steps'], 'step')}"
    return {
        "slow": f"in every step ({steps})",
        "changed": f"from {row['since']} on ({steps})"
        if row["since_index"] + row["late_steps"] - 1 == row["last_index"]
        else f"in {steps}, first in {row['since']}",
        "drift": f"more and more (beyond chance from {row['since']} on)",
        "periodic": f"every {_ordinal(row['period'])} step, first in {row['since']} ({steps})",
        "one_off": f"once, in {row['since']}",
    }[row["kind"]]


def _ordinal(number: int | None) -> str:
    if number is None:
        return ""
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"{number}{suffix}"


_NO_COUNTERS = " No counter of its links tells why (--gpu-metrics-devices=all, --nic-metrics=true)."


def _said_of_link(known: Known, row: dict[str, Any], link: SlowLink, counters: pl.DataFrame) -> Finding:
    where = f"From rank {link.ranks[0]} to {link.ranks[1]}" if link.is_pair else f"Among ranks {row['ranks']}"
    hosts = known.groups.hosts(link.ranks)
    across = {known.groups.host_of[rank] for rank in link.ranks} if hosts > 1 else ()
    like = counted(link.like, "other pair" if link.is_pair else "other group")
    return Finding(
        "slow_link",
        f"{where} ({counted(hosts, 'host')}) transfers take {row['ratio']:.0%} longer {_in_words(row)} than among "
        f"{like} that {'does' if link.like == 1 else 'do'} the same."
        + (evidence_of(counters, link.ranks, across) or _NO_COUNTERS),
        step=row["since"],
        value=row["ratio"],
        unit="ratio",
        rows=({"table": LATE.name, "what": row["what"], "ranks": row["ranks"], "kind": row["kind"]},),
    )


def _nobody(matrix: Matrix | None, refused: str | None) -> Finding:
    """Nobody is late, or it cannot be known; with what would have been seen."""
    if matrix is None:
        why = refused or "no rank has peers that run the same program"
        return Finding("no_straggler_known", f"Nothing can be said of late ranks: {why}.")
    rows, steps = matrix.relative.shape
    if rows < 2 or steps < LEAST_STEPS:
        return Finding(
            "no_straggler_known",
            f"Nothing can be said of late ranks: {counted(rows, 'rank')} and {counted(steps, 'step')} are too few.",
        )
    noise = Noise.of(matrix.relative)
    own = float(np.nanmedian(matrix.own)) / float(np.median(matrix.window))
    seen = 1.2533 * noise.sigma * noise.threshold(rows) / steps**0.5 * own
    return Finding(
        "no_straggler",
        f"No rank is late by more than chance in {counted(steps, 'step')} of {counted(rows, 'rank')}; one that takes "
        f"{max(seen, LEAST_SHARE):.1%} of the step longer in each would have been seen.",
        value=max(seen, LEAST_SHARE),
        unit="ratio",
    )


QUESTION = Question(
    name="stragglers",
    ask=(__doc__ or "").partition("\n")[0],
    more="Own time of each rank and step against its peers', and what stands out of chance: slow ranks and hosts "
    "(computing, or a host that launches late), slow links, changes, drifts, every p-th step, single steps.",
    tables=(LATE, LATENESS, LINK_COUNTER),
    run=lambda context, _: stragglers(context),
    shown=LATE.name,
    findings={
        "straggler": "a rank, or all ranks of a host, take longer than their peers for their own work",
        "slow_link": "transfers of a group or a pair take longer than of those that do the same",
        "no_straggler": "nobody is late by more than chance, and what would have been seen",
        "no_straggler_known": "why nothing can be said of late ranks",
    },
    reads=frozenset({"launches", "metrics"}),
    warnings={"no_link_counters": "no counters of links (NVLink, PCIe, adapters, switches) were traced"},
    examples=("report.sqlite", "node0.sqlite node1.sqlite --table lateness --format csv"),
    whole_steps=True,
)
