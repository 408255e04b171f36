"""Examples of every command that is no question (those declare theirs); a test runs each of them."""

from __future__ import annotations

from collections.abc import Sequence

import click

EXAMPLES: dict[str, tuple[str, ...]] = {
    "timeline": (
        "timeline report.sqlite -o timeline.png",
        "timeline report.sqlite --steps 1:3 --ranks 0 -o two_steps.svg",
    ),
    "compare": (
        "compare out/after-* --against out/before-*",
        "compare run:4 run:5 run:6 --against run:1 run:2 run:3",
        "compare out/after-* --against main",
    ),
    "check": (
        'check report.sqlite --claim "overlap on every rank: hidden_transfer_ns > 0"',
        'check report.sqlite --claim "exposed_communication_ns p95 <= 20ms"',
        'check out/after-* --against out/before-* --claim "step improves by >= 3% with 95% confidence"',
        'check out/after-* --against main --claim "step worsens by <= 2%"',
    ),
    "evidence": (
        'evidence report.sqlite --claim "overlap on every rank" -o evidence.zip',
        "evidence out/after-* --against out/before-* --claims claims.toml -o review.zip",
    ),
    "verify": (
        "verify evidence.zip report.sqlite",
        "verify review.zip out/before-* out/after-* --format json",
    ),
    "report": (
        "report report.sqlite -o report.html",
        "report node0.sqlite node1.sqlite --steps 1:3 -o two_steps.html",
    ),
    "export": (
        "export report.sqlite -o run.pftrace",
        "export report.sqlite --steps 1:2 -o one_step.pftrace",
    ),
    "redact": (
        "redact report.sqlite -o shared.sqlite",
        'redact node0.sqlite node1.sqlite --minimal --hide ".*attention.*" --salt "a secret" -o shared',
    ),
    "capture": (
        "capture delay_cap4 delay_cap64 --nproc 2",
        "capture --per-rank -- torchrun --nproc-per-node 8 train.py",
        "capture delay_cap4 --backend gloo",
    ),
    "sweep": ("sweep --bucket-cap 4,25,64 --repeat 3", "sweep --nproc 8 --out caps"),
    "runs": ("runs list", "runs trend window_ns --last 20"),
    "runs list": ("runs list", "runs list --tag nightly --last 5"),
    "runs show": ("runs show 1", "runs show 1 --document"),
    "runs tag": ("runs tag 1 2 --add nightly", "runs tag 2 --remove nightly"),
    "runs trend": ("runs trend window_ns", "runs trend exposed_communication_ns --label main --format json"),
    "runs delete": ("runs delete 6", "runs delete 4 5 --yes"),
    "baseline": ("baseline set main out/before-*", "baseline list"),
    "baseline set": ("baseline set main out/before-*", "baseline set release run:1 run:2 run:3"),
    "baseline list": ("baseline list", "baseline list --format json"),
    "baseline show": ("baseline show main", "baseline show main --format json"),
    "baseline delete": ("baseline delete release", "baseline delete main --yes"),
    "query": ("query", "query kernels report.sqlite --limit 5"),
    "doctor": ("doctor", "doctor report.sqlite"),
    "skill": ("skill", "skill --install skills/nsysddp"),
    "mcp": ("mcp --list", "mcp --root captures"),
    "demo": ("demo", "demo --out tour"),
}
"""Command (and subcommand) to what is written after ``nsysddp``."""


def with_examples(command: click.Command, lines: Sequence[str]) -> click.Command:
    """The command with examples below its options."""
    if lines:
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  nsysddp {line}" for line in lines)
    return command


def add_examples(command: click.Command, name: str) -> click.Command:
    """The command ``name`` with its examples, and the commands below it with theirs."""
    if isinstance(command, click.Group):
        for under, subcommand in command.commands.items():
            with_examples(subcommand, EXAMPLES.get(f"{name} {under}", ()))
    return with_examples(command, EXAMPLES.get(name, ()))
