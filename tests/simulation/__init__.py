"""Simulated training jobs with counterfactuals: exports whose right answers are known because the job can
be run again.

    job = Job(kind="dp", ranks=4, planted=Planted("slow_rank", rank=2, size=1.4, phase="backward"))
    run = simulate(job)                           every event, call, record and wait of every rank
    paths = write(run, folder)                    nsys-like SQLite exports, one per host or per rank
    steps(run), buckets(run)                      the truth of this run
    steps(simulate(job.without_cause()))          the step with the cause removed

``engine`` moves time forward over host lines, streams and links; ``jobs`` says what a rank's host does in a
step; ``export`` writes; ``truth`` measures. None of them imports nsysddp. ``judge`` asks nsysddp about
random jobs and
compares its answers: ``python -m tests.simulation.judge --jobs 100``.
"""

import sys
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # builder.py, also under ``python -m tests.simulation``
