"""Does nsysddp answer rightly about simulated jobs? Random jobs with planted causes, and its answers beside
the truth.

    python -m tests.simulation.judge --jobs 100 --kinds dp,hsdp --seed 1
    python -m tests.simulation.judge --seed 1 --job 17 --keep DIR       one job again, its exports kept

The rules, fixed before any result was seen:

* **Saving.** What a planted cause costs is the mean step with it minus the mean step of the job simulated
  again without it (same jitter), over all steps but the first.
* **Due.** The planted cause must be named first if it saves at least 3 % of the step, and 1.25 times as
  much as removing anything else (communication, contention, launch cost) from the job without it. Sizes are
  grown until that holds; a job where it never does is only asked whether a wrong cause is named with
  confidence high.
* **First right.** The first cause with a cost is one of ``ACCEPTED`` for what is planted, on the planted
  rank (on none in particular where all ranks are alike) and, where one phase was planted, in that phase.
* **Wrong with confidence high.** The first cause is not right, says ``high``, and the planted one was due;
  or a false alarm below says ``high``.
* **At most.** The sum of the costs of the accepted causes that are named is not below the saving by more
  than 2 % of the step. (Accepted causes share what one planted cause costs: a slow link is paid in its last
  bucket too.)
* **What-if.** Every scenario with a prediction, against the mean of the same steps of the job simulated
  again: within 5 % of that; and the truth within [low, high].
* **Buckets.** launched - ready, queued, started - ready of every gradient bucket (to 2 ns), and held_by.
* **False alarm.** On a job with nothing planted a cause of at least 3 % of the step, with confidence medium
  or high, whose removal (``COUNTERFACTUAL``) saves less than 1 % of the step.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from . import truth
from .export import write
from .jobs import MIB, MS, US, Job, Planted, Run, simulate

FACTORS = (2.0,)
CAPS = (4.0, 25.0, 100.0)
DUE_SHARE, DUE_OVER_RIVALS, ALARM_SHARE, NO_SAVING = 0.03, 1.25, 0.03, 0.01
AT_MOST_SLACK, WITHIN, SAME_NS = 0.02, 0.05, 2

#: planted -> causes that name it
ACCEPTED: dict[str, tuple[str, ...]] = {
    "slow_rank": ("straggler",),
    "slow_host": ("straggler", "host_bound", "host_stall"),
    "pause_one": ("straggler", "host_stall"),
    "pause_all": ("host_stall", "host_bound"),
    "pause_all:item": ("synchronisation", "host_stall"),
    "pause_all:stream": ("synchronisation", "host_stall"),
    "pause_all:free": ("synchronisation", "host_stall", "allocation"),
    "pause_all:pageable": ("copies", "pageable_copy"),
    "slow_link": ("slow_communication", "compute_tail"),
    "slow_pair": ("slow_communication", "compute_tail", "slow_link"),
    "small_buckets": ("small_buckets",),
    "one_bucket": ("single_bucket",),
    "late_launch": ("bucket_scheduling", "host_stall"),
    "no_prefetch": ("no_prefetch", "prefetch"),
    "serialised": ("compute_stream", "serialised"),
    "one_queue": ("connections", "one_queue", "serialised", "held_behind_compute"),
    "contention": ("contention",),
    "peer_copies": ("copies", "peer_copies"),
    "preemption": ("straggler", "other_process", "preemption", "unexplained"),
}
BUCKET_FAULTS = ("ready", "launched", "queued", "held", "missing", "extra")
ON_ONE_RANK = ("slow_rank", "slow_host", "pause_one", "preemption")

#: cause -> the job without anything of that kind
COUNTERFACTUAL: dict[str, Callable[[Job], Job]] = {
    "straggler": lambda job: replace(job, jitter=0.0),
    "contention": lambda job: replace(job, contention=1.0),
    "link_contention": lambda job: replace(job, link_contention=1.0),
    **dict.fromkeys(
        (
            "slow_communication",
            "compute_tail",
            "single_bucket",
            "small_buckets",
            "compute_stream",
            "process_groups",
        ),
        lambda job: replace(job, communication=0.0),
    ),
    **dict.fromkeys(
        (
            "host_bound",
            "host_stall",
            "bucket_scheduling",
            "graph_breaks",
            "synchronisation",
            "kernel_latency",
        ),
        lambda job: replace(job, launch_ns=0, gap_ns=0, item_each_step=False),
    ),
}


# --- random jobs --------------------------------------------------------------------------------------------


#: ranks and size of the inner groups
SHAPES: dict[str, list[tuple[int, int]]] = {
    "dp": [(ranks, 1) for ranks in (2, 2, 3, 4, 4, 5, 8, 8, 16, 32)],
    "hsdp": [(2, 2), (4, 4), (4, 2), (6, 3), (8, 4), (8, 2), (8, 8), (16, 8), (32, 8)],
    "tp": [(4, 2), (4, 2), (6, 2), (8, 2), (8, 4), (12, 4), (16, 4), (16, 8)],
    "pp": [(2, 2), (4, 2), (4, 4), (6, 3), (8, 2), (8, 4), (16, 4)],
    "ep": [(2, 2), (4, 2), (4, 4), (8, 4), (8, 8), (16, 4)],
}


@dataclass(frozen=True)
class Trial:
    """One job to judge, how it is written down, and by how much its cause counts."""

    number: int
    job: Job
    per_rank: bool
    payload: bool
    saving_share: float
    is_due: bool


COMMON = (
    *("clean", "slow_rank", "slow_host", "pause_one", "pause_all"),
    *("slow_link", "contention", "preemption"),
)
CAUSES: dict[str, tuple[str, ...]] = {
    "dp": (*COMMON, "small_buckets", "one_bucket", "late_launch", "serialised", "peer_copies"),
    "hsdp": (*COMMON, "no_prefetch", "one_queue", "slow_pair", "peer_copies"),
    "tp": (*COMMON, "slow_pair", "late_launch", "peer_copies"),
    "pp": (*COMMON, "slow_pair"),
    "ep": (*COMMON, "slow_pair", "peer_copies"),
}


def draw(seed: int, number: int, kinds: Iterable[str], causes: Iterable[str] | None = None) -> Trial:
    """Random job ``number`` of this seed."""
    rng = random.Random(f"{seed}/{number}")
    kind = rng.choice(sorted(kinds))
    possible = [cause for cause in CAUSES[kind] if causes is None or cause in causes]
    cause = rng.choice(possible or ["clean"])
    job = _plain(rng, kind, cause, rng.randrange(1 << 30))
    step_ns = truth.mean(truth.lengths(job))
    if cause != "clean":
        job = replace(job, planted=_plant(rng, job, cause, step_ns))
    share, due = 0.0, False
    if cause != "clean":
        job, share, due = _grown(job)
    return Trial(number, job, rng.random() < 0.3, rng.random() < 0.85 or kind != "dp", share, due)


def _plain(rng: random.Random, kind: str, cause: str, seed: int) -> Job:
    layers = rng.randint(4, 12)
    layer_ns = rng.uniform(0.4, 1.5) * MS
    ranks, group = rng.choice(SHAPES[kind])
    if kind == "pp":
        layers = rng.randint(2, 4)
    job = Job(
        kind=kind,
        ranks=ranks,
        group=group,
        per_host=rng.choice([4, 8]),
        steps=rng.randint(4, 6) if ranks <= 16 else 4,
        micro_batches=rng.choice([group, 2 * group]) if kind == "pp" else 1,
        on_compute_stream=rng.random() < 0.5,
        layers=layers,
        layer_ns=round(layer_ns),
        optimizer_ns=round(rng.uniform(0.05, 0.15) * layers * layer_ns),
        layer_bytes=rng.randint(8, 60) * MIB,
        layer_parameters=rng.randint(2, 8),
        cap=rng.choice([10, 25, 25, 50]) * MIB,
        small_first=rng.random() < 0.5,
        launch_ns=rng.randint(4, 8) * US,
        gap_ns=rng.randint(5, 14) * US,
        latency_ns=rng.randint(8, 20) * US,
        contention=rng.choice([1.0, rng.uniform(1.0, 1.08)]),
        jitter=rng.uniform(0.003, 0.015),
        side=rng.choice(["after", "around"]),
        item_each_step=rng.random() < 0.25,
        marked=kind == "tp" or rng.random() < 0.4,
        seed=seed,
    )
    if cause == "small_buckets":  # many small parameters, and a link on which latency counts
        job = replace(job, layer_bytes=rng.randint(2, 5) * MIB, layer_parameters=rng.randint(8, 16))
        job = replace(job, latency_ns=rng.randint(40, 80) * US, far_latency_ns=80 * US)
    hidden = {"contention": (0.6, 0.85), "one_bucket": (0.35, 0.7), "serialised": (0.35, 0.7)}
    job = _with_link(job, rng.uniform(*hidden.get(cause, (0.15, 0.6))))
    return replace(job, activation_bytes=round(rng.uniform(0.03, 0.12) * job.layer_ns * job.gbps))


def _with_link(job: Job, share: float) -> Job:
    """The job with links on which its gradients take this share of its backward (and gathers of its
    forward).
    """
    size = sum(job.parameters)
    if job.kind == "hsdp":  # a gather and a scatter of the layer in backward, and a reduction of its shard
        replicas = job.ranks // job.group
        moved = size * (2 * (job.group - 1) / job.group + 2 * (replicas - 1) / replicas / job.group)
    else:
        count = job.ranks if job.kind in ("dp", "ep") else job.ranks // job.group
        moved = 2 * max(1, count - 1) / max(2, count) * size
    gbps = moved / (share * 2 * job.layers * job.layer_ns)
    return replace(job, gbps=gbps, far_gbps=gbps)


def _plant(rng: random.Random, job: Job, cause: str, step_ns: float) -> Planted:
    rank = rng.randrange(job.ranks) if cause in ON_ONE_RANK else None
    phase = None
    how = "sleep"
    if cause in ("slow_rank", "slow_host", "pause_one", "pause_all"):
        phase = rng.choice(
            ["forward", "backward", "optimizer"] if cause.startswith("pause") else ["forward", "backward"]
        )
    if cause == "slow_rank":
        phase = rng.choice(["forward", "backward", None])
    if cause == "pause_all":
        how = rng.choice(["sleep", "item", "stream", "free", "pageable"])
    if cause == "preemption":
        how = rng.choice(["stretch", "gap"])
    pair = None
    if cause == "slow_pair":
        first = rng.randrange(job.ranks // job.group) * job.group + rng.randrange(job.group - 1 or 1)
        pair = (first, first + 1)
        if job.kind == "pp":
            first = rng.randrange(job.ranks - job.ranks // job.group)
            pair = (first, first + job.ranks // job.group)
    size = {
        "slow_rank": rng.uniform(1.1, 1.4),
        "slow_host": rng.uniform(2, 5),
        "pause_one": rng.uniform(0.06, 0.2) * step_ns,
        "pause_all": rng.uniform(0.06, 0.2) * step_ns,
        "slow_link": rng.uniform(1.5, 4),
        "slow_pair": rng.uniform(1.5, 4),
        "small_buckets": 0.25 * MIB,
        "one_bucket": 1e6 * MIB,
        "late_launch": rng.uniform(0.3, 1.0) * MS,
        "contention": rng.uniform(1.15, 1.5),
        "peer_copies": rng.uniform(0.06, 0.15) * step_ns,
        "preemption": rng.uniform(0.8, 2.5) * MS,
    }.get(cause, 1.0)
    return Planted(cause, size, rank, phase, how, pair)


def _grown(job: Job) -> tuple[Job, float, bool]:
    """The job with its cause large enough to be due, if it gets there; the share of the step that it costs,
    and whether.
    """
    share, due = 0.0, False
    for _ in range(9):
        step = truth.mean(truth.lengths(job))
        saving = truth.saving(job)
        share = saving / step
        due = share >= DUE_SHARE and saving >= DUE_OVER_RIVALS * truth.rivals(job)
        one = job.planted
        assert one is not None
        if due:
            break
        if one.cause == "small_buckets":
            job = replace(
                job, latency_ns=round(job.latency_ns * 1.3), far_latency_ns=round(job.far_latency_ns * 1.3)
            )
        elif one.cause in ("one_bucket", "serialised", "no_prefetch", "one_queue"):
            job = replace(job, gbps=job.gbps / 1.15, far_gbps=job.far_gbps / 1.15)
        elif one.cause in ("slow_rank", "slow_host", "slow_link", "slow_pair", "contention"):
            job = replace(job, planted=replace(one, size=1 + (one.size - 1) * 1.4))
        elif one.cause == "preemption":
            job = replace(job, planted=replace(one, size=min(8 * MS, one.size * 1.3)))
        else:
            job = replace(job, planted=replace(one, size=one.size * 1.4))
    return job, share, due


# --- nsysddp's answers: the only place that knows it --------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What nsysddp says of a run: rows of its tables as dicts."""

    diagnosis: list[dict[str, Any]]
    whatif: list[dict[str, Any]]
    used: list[int]
    buckets: list[dict[str, Any]]


def ask(paths: list[Path], job: Job, *, payload: bool) -> Answer:
    """Load the reports and ask."""
    import nsysddp
    from nsysddp.questions import context_of
    from nsysddp.questions.buckets import buckets
    from nsysddp.questions.diagnosis import diagnose
    from nsysddp.questions.whatif import Ask, whatif

    trace = nsysddp.load(paths, launches=True, host_calls=True, shapes=True, metrics=True)
    context = context_of(trace)
    found = diagnose(context)
    caps = CAPS if job.kind == "dp" and payload else ()
    question = Ask(caps_mib=caps, faster=FACTORS, parameter_bytes=job.parameters if caps else None)
    predicted = whatif(context, question)
    table = buckets(context)["bucket"]
    return Answer(
        diagnosis=found["diagnosis"].to_dicts(),
        whatif=predicted["whatif"].to_dicts(),
        used=[row["step_index"] for row in predicted["whatif_replay"].to_dicts() if row["is_used"]],
        buckets=table.to_dicts(),
    )


# --- the judgement ------------------------------------------------------------------------------------------


def judge(trial: Trial, run: Run, answer: Answer) -> dict[str, Any]:
    """One row of the result."""
    job = trial.job
    lengths = truth.steps(run)
    step = truth.mean(lengths)
    costly = [row for row in answer.diagnosis if row["cost_ns"] is not None]
    first = costly[0] if costly else None
    cause = "clean" if job.planted is None else job.planted.cause
    made: dict[str, Any] = {
        "job": trial.number,
        "kind": job.kind,
        "cause": cause if job.planted is None or job.planted.how == "sleep" else f"{cause}:{job.planted.how}",
        "ranks": job.ranks,
        "payload": trial.payload,
        "saving_share": trial.saving_share,
        "is_due": trial.is_due,
        "step_ms": step / MS,
        "planted": None if job.planted is None else asdict(job.planted),
        "said": [
            {key: row[key] for key in ("cause", "rank", "phase", "confidence")}
            | {"share": row["cost_ns"] / step}
            for row in costly[:4]
        ],
    }
    if job.planted is not None:
        right = [row for row in costly if _is_right(row, job.planted)]
        made["first_right"] = first is not None and _is_right(first, job.planted)
        made["first_cause_right"] = first is not None and first["cause"] in _accepted(job.planted)
        made["is_named"] = bool(right)
        made["wrong_high"] = (
            trial.is_due and first is not None and not made["first_right"] and first["confidence"] == "high"
        )
        named = sum(row["cost_ns"] for row in costly if row["cause"] in _accepted(job.planted))
        made["at_most_gap"] = named / step - trial.saving_share if right else None
    else:
        made["false_alarms"] = _false_alarms(job, costly, step)
        made["wrong_high"] = any(alarm["confidence"] == "high" for alarm in made["false_alarms"])
    made["whatif"] = _whatif(job, answer)
    made["buckets"] = _buckets(run, answer) if answer.buckets else None
    made["buckets_equal"] = made["buckets"] and not any(made["buckets"][name] for name in BUCKET_FAULTS)
    return made


def _accepted(planted: Planted) -> tuple[str, ...]:
    return ACCEPTED.get(f"{planted.cause}:{planted.how}", ACCEPTED[planted.cause])


def _is_right(row: dict[str, Any], planted: Planted) -> bool:
    if row["cause"] not in _accepted(planted):
        return False
    if planted.cause in ON_ONE_RANK and row["rank"] != planted.rank:
        return False
    if planted.cause == "pause_all" and row["cause"] == "straggler":
        return False
    return planted.phase is None or planted.cause == "pause_all" or row["phase"] == planted.phase


def _false_alarms(job: Job, rows: list[dict[str, Any]], step: float) -> list[dict[str, Any]]:
    made = []
    for row in rows:
        share = row["cost_ns"] / step
        if share < ALARM_SHARE or row["confidence"] == "low" or row["cause"] not in COUNTERFACTUAL:
            continue
        without = truth.mean(truth.lengths(COUNTERFACTUAL[row["cause"]](job)))
        if (step - without) / step < NO_SAVING:
            made.append(
                {key: row[key] for key in ("cause", "rank", "phase", "confidence")} | {"share": share}
            )
    return made


def _whatif(job: Job, answer: Answer) -> list[dict[str, Any]]:
    jobs = truth.scenarios(job, CAPS, FACTORS)
    made = []
    for row in answer.whatif:
        if row["step_ns"] is None or row["scenario"] not in jobs:
            continue
        real = truth.mean(truth.lengths(jobs[row["scenario"]]), answer.used)
        made.append(
            {
                "scenario": row["scenario"],
                "error": row["step_ns"] / real - 1,
                "in_band": row["low_ns"] <= real <= row["high_ns"],
                "band": row["error_ratio"],
            }
        )
    return made


def _buckets(run: Run, answer: Answer) -> dict[str, int]:
    """How many buckets, and of how many ready, queued and held are wrong."""
    right = {(one.rank, one.step, one.role, one.number): one for one in truth.buckets(run)}
    wrong = Counter(dict.fromkeys(BUCKET_FAULTS, 0) | {"missing": len(right)})
    places: Counter[tuple[Any, ...]] = Counter()
    for row in answer.buckets:
        place = row["rank"], row["step_index"], row["role"]
        one = right.get((*place, places[place]))
        places[place] += 1
        if one is None:
            wrong["extra"] += 1
            continue
        wrong["missing"] -= 1
        started = row["started_ns"]
        pairs = {
            "ready": (row["ready_ns"], started - one.started_ns + one.ready_ns),
            "launched": (row["launched_ns"], started - one.started_ns + one.launched_ns),
            "queued": (row["queued_ns"], one.queued_ns),
        }
        for name, (said, true) in pairs.items():
            wrong[name] += said is None or abs(said - true) > SAME_NS
        wrong["held"] += row["role"] == "gradients" and row["held_by"] != one.held_by
    return {"buckets": len(right), **wrong}


# --- the page -----------------------------------------------------------------------------------------------


def _ratio(values: Iterable[bool]) -> str:
    listed = list(values)
    return f"{sum(listed)}/{len(listed)} ({sum(listed) / len(listed):.0%})" if listed else "-"


def page(rows: list[dict[str, Any]], title: str) -> str:
    """The result as markdown."""
    done = [row for row in rows if "error" not in row]
    planted = [row for row in done if row["planted"] is not None]
    due = [row for row in planted if row["is_due"]]
    clean = [row for row in done if row["planted"] is None]
    guesses = [(row, one) for row in done for one in row["whatif"]]
    gaps = [row["at_most_gap"] for row in planted if row["at_most_gap"] is not None]
    lines = [
        f"# {title}",
        "",
        f"{len(rows)} jobs, {len(rows) - len(done)} errors.",
        "",
        "| criterion | result | wanted |",
        "|---|---|---|",
        f"| first cause is the planted one (cause, rank, phase) | {_ratio(r['first_right'] for r in due)} | 95 % |",
        f"| ... cause alone | {_ratio(r['first_cause_right'] for r in due)} | |",
        f"| wrong with confidence high | {sum(r['wrong_high'] for r in done)} | 0 |",
        f"| at most not below the saving by more than 2 % of the step | "
        f"{_ratio(gap >= -AT_MOST_SLACK for gap in gaps)} | all |",
        f"| what-if within 5 % | {_ratio(abs(g['error']) <= WITHIN for _, g in guesses)} | 90 % |",
        f"| what-if truth in the band | {_ratio(g['in_band'] for _, g in guesses)} | 90 % |",
        f"| jobs whose buckets are all equal | "
        f"{_ratio(r['buckets_equal'] for r in done if r['buckets'])} | all |",
        f"| clean jobs with a false alarm | {_ratio(bool(r['false_alarms']) for r in clean)} | < 5 % |",
        "",
        "## By kind and cause",
        "",
        "| kind | cause | jobs | due | first right | cause right | named | wrong high | at most ok | instead |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    table: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in done:
        table[row["kind"], row["cause"]].append(row)
    for (kind, cause), of in sorted(table.items()):
        own = [row for row in of if row["is_due"]]
        wrong = Counter(
            "nothing" if not row["said"] else f"{row['said'][0]['cause']}({row['said'][0]['phase']})"
            for row in own
            if not row["first_right"]
        )
        if cause == "clean":
            wrong = Counter(alarm["cause"] for row in of for alarm in row["false_alarms"])
        said = ", ".join(f"{name} {count}" for name, count in wrong.most_common(4))
        bounded = [row["at_most_gap"] for row in of if row.get("at_most_gap") is not None]
        lines.append(
            f"| {kind} | {cause} | {len(of)} | {len(own)} | {_ratio(r['first_right'] for r in own)} | "
            f"{_ratio(r['first_cause_right'] for r in own)} | {_ratio(r['is_named'] for r in own)} | "
            f"{sum(r['wrong_high'] for r in of)} | {_ratio(gap >= -AT_MOST_SLACK for gap in bounded)} | {said} |"
        )
    lines += [
        "",
        "## What-if",
        "",
        "| kind | scenario | predictions | within 5 % | in band | median error | worst | median band |",
        "|---|---|---|---|---|---|---|---|",
    ]
    by_scenario: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row, one in guesses:
        by_scenario[row["kind"], one["scenario"]].append(one)
    for (kind, scenario), ones in sorted(by_scenario.items()):
        worst = max(ones, key=lambda one: abs(one["error"]))["error"]
        lines.append(
            f"| {kind} | {scenario} | {len(ones)} | {_ratio(abs(o['error']) <= WITHIN for o in ones)} | "
            f"{_ratio(o['in_band'] for o in ones)} | {median(abs(o['error']) for o in ones):.1%} | {worst:+.1%} | "
            f"{median(o['band'] for o in ones):.1%} |"
        )
    lines += [
        "",
        "## Buckets",
        "",
        "| kind | buckets | ready | launched | queued | held | missing | extra |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in sorted({row["kind"] for row in done if row["buckets"]}):
        total: Counter[str] = Counter()
        for row in done:
            if row["kind"] == kind and row["buckets"]:
                total.update(row["buckets"])
        lines.append(
            f"| {kind} | {total['buckets']} | "
            + " | ".join(f"{total[name]} wrong" for name in BUCKET_FAULTS)
            + " |"
        )
    failed = [row for row in rows if "error" in row]
    if failed:
        lines += [
            "",
            "## Errors",
            "",
            *(f"* job {row['job']} ({row['cause']}): {row['error']}" for row in failed),
        ]
    return "\n".join(lines) + "\n"


def one_job(trial: Trial, keep: Path | None = None) -> dict[str, Any]:
    """Simulate, write, ask, judge."""
    run = simulate(trial.job)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if keep is None else keep
        folder.mkdir(parents=True, exist_ok=True)
        paths = write(run, folder, per_rank=trial.per_rank, payload=trial.payload)
        try:
            return judge(trial, run, ask(paths, trial.job, payload=trial.payload))
        except Exception as error:  # noqa: BLE001 - an answer that fails is a result
            if keep is not None:
                traceback.print_exc()
            planted = trial.job.planted
            return {
                "job": trial.number,
                "kind": trial.job.kind,
                "cause": "clean" if planted is None else planted.cause,
                "error": f"{type(error).__name__}: {error}",
            }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--kinds", default=",".join(CAUSES))
    parser.add_argument("--causes", help="only these planted causes, comma separated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--job", type=int, help="only this one, with all that was said")
    parser.add_argument("--keep", type=Path, help="folder for the exports of --job")
    parser.add_argument("--json", type=Path, help="every row")
    parser.add_argument("--markdown", type=Path, help="the page")
    given = parser.parse_args()
    kinds = given.kinds.split(",")
    causes = given.causes.split(",") if given.causes else None
    rows = []
    for number in range(given.jobs) if given.job is None else [given.job]:
        trial = draw(given.seed, number, kinds, causes)
        rows.append(one_job(trial, given.keep))
        if given.job is not None:
            sys.stdout.write(f"{trial.job}\n{json.dumps(rows[-1], indent=1, default=str)}\n")
        elif sys.stderr.isatty():
            sys.stderr.write(f"\r{number + 1}/{given.jobs}")
    text = page(rows, "Answers about simulated jobs")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1, default=str))
    if given.markdown:
        given.markdown.write_text(text)
    if given.job is None:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
