"""Does nsysddp answer rightly about simulated jobs? Random jobs with planted causes, and its answers beside
the truth.

    python -m tests.simulation.judge --jobs 500 --processes 16 --json ROWS.json --markdown PAGE.md
    python -m tests.simulation.judge --jobs 100 --kinds dp,hsdp --causes clean,slow_link --seed 2
    python -m tests.simulation.judge --seed 1 --job 17 --keep DIR       one job again, its exports kept
    python -m tests.simulation.judge --rows A.json,B.json --markdown PAGE.md        the page of rows judged before

The rules, fixed before any result was seen:

* **Saving.** What a planted cause costs is the mean step with it minus the mean step of the job simulated
  again without it (same jitter), over all steps but the first.
* **Due.** The planted cause must be named first if it saves at least 3 % of the step, and 1.25 times as
  much as removing anything else (communication, contention, launch cost) from the job without it. Sizes are
  grown until that holds. Where it never does, and where payloads that would tell groups or sizes are not in
  the export, no first cause is due.
* **First right.** The first cause with a cost is one of ``ACCEPTED`` for what is planted, on the planted
  rank (on none in particular where all ranks are alike) and, where one phase was planted, in that phase.
* **Wrong with confidence high.** The first cause is not right, says ``high``, and the planted one was due;
  or a false alarm below says ``high``.
* **At most.** Where a cost is said to be a bound, the sum of the costs of the accepted causes that are named
  is not below the saving by more than 2 % of the step. (Accepted causes share what one planted cause costs: a
  slow link is paid in its last bucket too.)
* **What-if.** Every scenario with a prediction, against the mean of the same steps of the job simulated
  again: within 5 % of that; and the truth within [low, high]. A scenario without a prediction is counted as
  silent, with its reason.
* **Buckets.** launched - ready, queued, started - ready of every gradient bucket (to 2 ns), and held_by.
* **First sentence** of ``analyze``: the rules of ``verdicts``.
* **False alarm.** On a job with nothing planted a cause of at least 3 % of the step, with confidence medium
  or high, whose removal (``COUNTERFACTUAL``) saves less than 1 % of the step.
* **No answer.** A job that fails, takes too long or is killed is counted, and named; it is never left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from . import truth
from .export import write
from .jobs import MS, Job, Planted, Run, simulate
from .page import BUCKET_FAULTS, page
from .runner import failed, judged
from .trials import CAUSES, ON_ONE_RANK, Trial, draw
from .verdicts import judge_verdict

FACTORS = (0.5, 1.5, 4.0)
CAPS = (1.0, 5.0, 25.0, 100.0, 400.0)
ORDERS = ("reverse",)
BUCKETED = ("dp", "tp", "ep", "pp")
"""Kinds of job whose gradients DDP sends in buckets, where several ranks hold the same part of the model."""

ALARM_SHARE, NO_SAVING = 0.03, 0.01
AT_MOST_SLACK, WITHIN, SAME_NS = 0.02, 0.05, 2

#: planted -> causes that name it
ACCEPTED: dict[str, tuple[str, ...]] = {
    "slow_rank": ("straggler",),
    "slow_host": ("straggler", "host_bound", "host_stall"),
    "pause_one": ("straggler", "host_stall"),
    "pause_all": ("host_stall", "host_bound"),
    "pause_all:item": ("synchronisation", "host_stall"),
    "pause_all:stream": ("synchronisation", "host_stall"),
    "pause_all:free": ("allocation", "synchronisation", "host_stall"),
    "pause_all:pageable": ("copies",),
    "slow_link": ("slow_communication", "compute_tail"),
    "slow_pair": ("slow_communication", "compute_tail"),
    "small_buckets": ("small_buckets",),
    "one_bucket": ("single_bucket",),
    "late_launch": ("bucket_scheduling", "host_stall"),
    "no_prefetch": ("no_prefetch",),
    "serialised": ("compute_stream",),
    "one_queue": ("held_behind_compute",),
    "contention": ("contention",),
    "peer_copies": ("copies", "peer_copies"),
    "preemption": ("straggler", "other_process", "unexplained"),
}
#: causes that transfers on the path are divided over, according to where they lie
TRANSFER = (
    *("slow_communication", "compute_tail", "single_bucket", "small_buckets"),
    *("compute_stream", "message_latency", "process_groups", "link_contention"),
)

#: cause -> the job without anything of that kind
COUNTERFACTUAL: dict[str, Callable[[Job], Job]] = {
    "straggler": lambda job: replace(job, jitter=0.0),
    "contention": lambda job: replace(job, contention=1.0),
    **dict.fromkeys(TRANSFER, lambda job: replace(job, communication=0.0)),
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


# --- nsysddp's answers: the only place that knows it --------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What nsysddp says of a run: rows of its tables as dicts."""

    diagnosis: list[dict[str, Any]]
    whatif: list[dict[str, Any]]
    used: list[int]
    buckets: list[dict[str, Any]]
    verdict: dict[str, Any]


def ask(paths: list[Path], job: Job, *, payload: bool) -> Answer:
    """Load the reports and ask."""
    import nsysddp
    from nsysddp.model.errors import CannotTell
    from nsysddp.questions import context_of
    from nsysddp.questions.question import question
    from nsysddp.questions.verdict import verdict_of

    context = context_of(nsysddp.load(paths, host_calls=True, shapes=True, metrics=True))
    whatif, silent = question("whatif"), []
    others: dict[str, Any] = {}
    if job.kind in BUCKETED and job.replicas > 1 and payload:
        others = {"bucket_cap": CAPS, "bucket_order": ORDERS, "parameters": job.parameters}
    try:
        predicted = whatif.answer(context, faster=FACTORS, **others)
    except CannotTell as error:
        if not others:
            raise
        predicted = whatif.answer(context, faster=FACTORS)
        names = [f"cap_{cap:g}" for cap in CAPS] + [f"order_{order}" for order in ORDERS]
        silent = [{"scenario": name, "step_ns": None, "reason": str(error)} for name in names]
    return Answer(
        diagnosis=question("diagnosis").answer(context)["diagnosis"].to_dicts(),
        whatif=predicted["whatif"].to_dicts() + silent,
        used=[row["step_index"] for row in predicted["whatif_replay"].to_dicts() if row["is_used"]],
        buckets=question("buckets").answer(context)["bucket"].to_dicts(),
        verdict=asdict(bound) if (bound := verdict_of(context)) else {},
    )


# --- the judgement ------------------------------------------------------------------------------------------


def judge(trial: Trial, run: Run, answer: Answer) -> dict[str, Any]:
    """One row of the result."""
    job = trial.job
    step = truth.mean(truth.steps(run))
    costly = [row for row in answer.diagnosis if row["cost_ns"] is not None]
    made: dict[str, Any] = {
        "seed": trial.seed,
        "job": trial.number,
        "kind": job.kind,
        "cause": trial.cause,
        "ranks": job.ranks,
        "payload": trial.payload,
        "planted": None if job.planted is None else asdict(job.planted),
        "saving": trial.saving_share,
        "is_due": trial.is_due,
        "step_ms": step / MS,
        "said": [_said(row, step) for row in costly[:4]],
        "false_alarms": false_alarms(job, costly, step) if job.planted is None else [],
        "first_right": None,
        "first_cause_right": None,
        "is_named": None,
        "over": None,
        "at_most_holds": None,
    }
    made["wrong_high"] = any(alarm["confidence"] == "high" for alarm in made["false_alarms"])
    if job.planted is not None:
        made |= _of_planted(trial, job.planted, costly, step)
    made["verdict"] = judge_verdict(trial, step, answer.verdict) if answer.verdict else None
    made["whatif"] = _whatif(job, answer)
    made["silent"] = [
        {name: row[name] for name in ("scenario", "reason")}
        for row in answer.whatif
        if row["step_ns"] is None
    ]
    made["buckets"] = _buckets(run, answer) if answer.buckets else None
    return made


def _said(row: dict[str, Any], step: float) -> dict[str, Any]:
    return {name: row[name] for name in ("cause", "rank", "phase", "confidence")} | {
        "share": row["cost_ns"] / step
    }


def _of_planted(trial: Trial, planted: Planted, rows: list[dict[str, Any]], step: float) -> dict[str, Any]:
    first = rows[0] if rows else None
    right = first is not None and _is_right(first, planted)
    made = {
        "first_right": right,
        "first_cause_right": first is not None and first["cause"] in accepted(planted),
        "is_named": any(_is_right(row, planted) for row in rows),
        "wrong_high": trial.is_due and first is not None and not right and first["confidence"] == "high",
    }
    if any(row["cause"] in accepted(planted) for row in rows):
        shared = TRANSFER if planted.cause in ("slow_link", "slow_pair") else accepted(planted)
        over = sum(row["cost_ns"] for row in rows if row["cause"] in shared) / step - trial.saving_share
        bound = all(row["is_bound"] for row in rows if row["cause"] in accepted(planted))
        made |= {"over": over, "at_most_holds": over >= -AT_MOST_SLACK if bound else None}
    return made


def accepted(planted: Planted) -> tuple[str, ...]:
    """The causes that name what is planted."""
    return ACCEPTED.get(f"{planted.cause}:{planted.how}", ACCEPTED[planted.cause])


def _is_right(row: dict[str, Any], planted: Planted) -> bool:
    if row["cause"] not in accepted(planted):
        return False
    if planted.cause in ON_ONE_RANK and row["rank"] != planted.rank:
        return False
    return planted.phase is None or planted.cause == "pause_all" or row["phase"] == planted.phase


def false_alarms(job: Job, rows: list[dict[str, Any]], step: float) -> list[dict[str, Any]]:
    """Causes of a clean job that are none (the rule above)."""
    made = []
    for row in rows:
        if (
            row["cost_ns"] / step < ALARM_SHARE
            or row["confidence"] == "low"
            or row["cause"] not in COUNTERFACTUAL
        ):
            continue
        without = truth.mean(truth.lengths(COUNTERFACTUAL[row["cause"]](job)))
        if (step - without) / step < NO_SAVING:
            made.append(_said(row, step))
    return made


def _whatif(job: Job, answer: Answer) -> list[dict[str, Any]]:
    jobs = truth.scenarios(job, CAPS, FACTORS)
    made = []
    for row in answer.whatif:
        if row["step_ns"] is None or row["scenario"] not in jobs:
            continue
        real = truth.mean(truth.lengths(jobs[row["scenario"]]), answer.used)
        error = row["step_ns"] / real - 1
        low, high = (row[name] / row["step_ns"] - 1 for name in ("low_ns", "high_ns"))
        true = real / row["step_ns"] - 1
        made.append(
            {
                "scenario": row["scenario"],
                "error": error,
                "is_close": abs(error) <= WITHIN,
                "in_band": low <= true <= high,
                "band": row["error_ratio"],
                "low": low,
                "high": high,
                "outside": max(low - true, true - high, 0.0),
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


# --- running it ---------------------------------------------------------------------------------------------


def one_job(
    seed: int, number: int, kinds: list[str], causes: list[str] | None = None, keep: Path | None = None
) -> dict[str, Any]:
    """Draw, simulate, write, ask, judge; a job that fails has a row that says how."""
    what: dict[str, str] = {}
    try:
        trial = draw(seed, number, kinds, causes)
        what = {"kind": trial.job.kind, "cause": trial.cause}
        run = simulate(trial.job)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) if keep is None else keep
            folder.mkdir(parents=True, exist_ok=True)
            paths = write(run, folder, per_rank=trial.per_rank, payload=trial.payload)
            return judge(trial, run, ask(paths, trial.job, payload=trial.payload))
    except Exception as error:  # noqa: BLE001 - an answer that fails is a result
        if keep is not None:
            traceback.print_exc()
        return failed(seed, number, f"{type(error).__name__}: {error}", **what)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first job")
    parser.add_argument("--kinds", default=",".join(CAUSES))
    parser.add_argument("--causes", help="only these planted causes, comma separated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="jobs at a time")
    parser.add_argument("--seconds", type=float, default=900, help="a job that takes longer has failed")
    parser.add_argument("--minutes", type=float, help="after that no job begins")
    parser.add_argument("--job", type=int, help="only this one, with all that was said")
    parser.add_argument("--keep", type=Path, help="folder for the exports of --job")
    parser.add_argument("--json", type=Path, help="every row; written after every job")
    parser.add_argument("--markdown", type=Path, help="the page")
    parser.add_argument(
        "--rows", help="files of rows to make the page of, comma separated; nothing is judged"
    )
    given = parser.parse_args()
    if given.job is not None:
        causes = given.causes.split(",") if given.causes else None
        row = one_job(given.seed, given.job, given.kinds.split(","), causes, given.keep)
        _put(given.json, [row])
        sys.stdout.write(f"{json.dumps(row, indent=1)}\n")
        return
    if given.rows:
        rows = [row for name in given.rows.split(",") for row in json.loads(Path(name).read_text())]
    else:
        rows = _judged(given)
    text = page(rows, "Simulated jobs: answers beside the truth", _command(given, rows))
    if given.markdown:
        given.markdown.write_text(text)
    sys.stdout.write(text)


def _judged(given: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    arguments = ["--seed", str(given.seed), "--kinds", given.kinds]
    arguments += ["--causes", given.causes] if given.causes else []
    for row in judged(
        range(given.first, given.first + given.jobs),
        arguments,
        seed=given.seed,
        processes=given.processes,
        seconds=given.seconds,
        minutes=given.minutes,
    ):
        rows.append(row)
        _put(given.json, rows)
        sys.stderr.write(f"\r{len(rows)}/{given.jobs}" if sys.stderr.isatty() else "")
    return rows


def _put(path: Path | None, rows: list[dict[str, Any]]) -> None:
    """Write the rows so that a run that is cut off leaves whole ones."""
    if path is not None:
        beside = path.with_suffix(".part")
        beside.write_text(json.dumps(rows, indent=1))
        beside.replace(path)


def _command(given: argparse.Namespace, rows: list[dict[str, Any]]) -> str:
    """How to judge these rows again."""
    seeds = sorted({row["seed"] for row in rows})
    said = [
        f"--jobs {1 + max(row['job'] for row in rows if row['seed'] == seed)} --seed {seed}" for seed in seeds
    ]
    if not given.rows and given.kinds != ",".join(CAUSES):
        said.append(f"--kinds {given.kinds}")
    if not given.rows and given.causes:
        said.append(f"--causes {given.causes}")
    return "python -m tests.simulation.judge " + (" and ".join(said) if given.rows else " ".join(said))


if __name__ == "__main__":
    main()
