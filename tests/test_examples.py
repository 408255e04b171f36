"""Every command shows two examples at least, and each of them runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
from command import run
from conftest import ROOT
from test_docs import commands

from nsysddp import samples
from nsysddp.cli import cli
from tests.simulation.export import write
from tests.simulation.jobs import US, Job, Planted, simulate

SMALL = Job(ranks=2, steps=4, layers=2, layer_ns=300 * US)
SLOW = replace(SMALL, planted=Planted("slow_rank", 1.5, rank=1))
NEEDS_A_GPU = ("capture", "sweep")
ANSWERS = {"verify": (0, 7), "check": (0, 1, 6)}
"""Exit codes that are answers, where it is not 0 alone."""


def examples(command: str) -> list[str]:
    """The lines of the help that show how the command is used."""
    shown = run(*command.split(), "--help").out
    return re.findall(r"^ +nsysddp (.+)$", shown.partition("Examples:")[2], re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples talk about: a report, two nodes, three runs before and after, kept runs and claims."""
    made = tmp_path_factory.mktemp("examples")
    shutil.copy(samples.path(samples.TWELVE_BUCKETS), made / "packed.gz")
    (made / "captures").mkdir()
    for seed in range(3):
        for name, job in (("before", SLOW), ("after", SMALL)):
            place = made / "out" / f"{name}-{seed + 1}"
            place.mkdir(parents=True)
            write(simulate(replace(job, seed=seed)), place, per_rank=False, payload=True)
    write(simulate(SLOW), made, per_rank=False, payload=True)[0].rename(made / "report.sqlite")
    nodes = replace(SMALL, per_host=1)
    for number, path in enumerate(write(simulate(nodes), made, per_rank=False, payload=True)):
        path.rename(made / f"node{number}.sqlite")
    (made / "claims.toml").write_text(
        'question = "Is it faster?"\n[claims]\nfaster = "overlap on every rank"\n'
    )
    return made


@pytest.mark.parametrize("command", list(commands()))
def test_every_command_shows_two_examples_of_itself(command: str) -> None:
    shown = examples(command)
    assert len(shown) >= 2
    assert all(line.split()[0] == command.split()[0] for line in shown)


def words_of(line: str, folder: Path) -> list[str]:
    """The words of an example, with patterns put out as a shell does."""
    made = []
    for word in shlex.split(line):
        found = sorted(str(path.relative_to(folder)) for path in folder.glob(word)) if "*" in word else []
        made += found or [word]
    return made


def test_every_example_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NSYSDDP_DB", "kept.db")
    for path in sorted(folder.glob("out/*/*.sqlite")):
        assert run("analyze", path, "--save", "--label", "main").code == 0
    assert run("runs", "tag", "1", "--add", "nightly").code == 0
    assert run("baseline", "set", "main", *words_of("out/before-*", folder)).code == 0
    last = ("runs delete", "baseline delete")
    for command in sorted(commands(), key=lambda name: name in last):
        for line in examples(command):
            words = words_of(line, folder)
            if command in NEEDS_A_GPU:  # only whether the words are understood
                name, found, rest = cli.resolve_command(click.Context(cli), words)
                assert found is not None
                found.make_context(name, rest)
                continue
            if words[:2] == ["mcp", "--root"]:  # answers until its client goes away (test_assistant)
                continue
            if command in last and "--yes" not in words:
                words.append("--yes")
            ran = run(*words)
            assert ran.code in ANSWERS.get(words[0], (0,)), (line, ran.err, ran.out[-500:])


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("nsysddp crit", "critical-path"), ("nsysddp analyze --tab", "--table"), ("nsysddp runs tr", "trend")],
)
def test_the_shell_completes_commands_and_options(typed: str, completed: str) -> None:
    code = "from nsysddp.cli import main; main()"
    words = typed.split()
    environment = {
        "_NSYSDDP_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
    }
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"plain,{completed}" in ran.stdout.split()
