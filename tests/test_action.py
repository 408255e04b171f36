"""The composite action for CI: its steps run in a folder of their own, as a runner would run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from test_compare import write_capture

from nsysddp import samples

yaml = pytest.importorskip("yaml")
SOURCE = ROOT / ".github" / "actions" / "nsysddp-check"
TWELVE = samples.path(samples.TWELVE_BUCKETS)


@dataclass(frozen=True)
class Ran:
    """What a job sees of the action."""

    code: int
    outputs: Mapping[str, str]
    log: str
    summary: str


class Workplace:
    """A checkout with the action in it, on a machine that has nothing but nsysddp and the usual programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.action = folder / ".github" / "actions" / "nsysddp-check"
        shutil.copytree(SOURCE, self.action)
        programs = folder / "bin"
        programs.mkdir()
        shim = programs / "nsysddp"
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nsysddp_shim "$@"\n')
        (folder / "nsysddp_shim.py").write_text("from nsysddp.cli import main\nmain()\n")
        pip = programs / "python"
        pip.write_text('#!/bin/sh\necho "$@" > installed.txt\n')
        for one in (shim, pip):
            one.chmod(0o755)
        self.environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "PYTHONPATH": f"{folder}:{ROOT}",
            "HOME": str(folder / "home"),
            "LANG": "C.UTF-8",
            "RUNNER_TEMP": str(folder),
        }

    def run(self, **inputs: str) -> Ran:
        """Every step of the action with these inputs, as far as it gets."""
        action = yaml.safe_load((self.action / "action.yml").read_text())
        given = {name: str(one.get("default", "")) for name, one in action["inputs"].items()}
        assert set(inputs) <= set(given)
        given |= inputs
        steps: dict[str, dict[str, str]] = {}
        log, code = "", 0
        summary = self.folder / "summary.md"
        summary.write_text("")
        for step in action["runs"]["steps"]:
            assert step["shell"] == "bash"
            if not _condition(step.get("if", ""), given) or code:
                continue
            outputs = self.folder / "output.txt"
            outputs.write_text("")
            values = {name: _filled(text, given, self.action) for name, text in step.get("env", {}).items()}
            ended = subprocess.run(
                [
                    "bash",
                    "--noprofile",
                    "--norc",
                    "-eo",
                    "pipefail",
                    "-c",
                    _filled(step["run"], {}, self.action),
                ],
                cwd=self.folder,
                env=self.environment
                | values
                | {"GITHUB_OUTPUT": str(outputs), "GITHUB_STEP_SUMMARY": str(summary)},
                capture_output=True,
                text=True,
                check=False,
            )
            log += ended.stdout + ended.stderr
            code = ended.returncode
            made = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
            steps[step.get("id", "")] = made
        outputs_of = {
            name: re.sub(
                r"\$\{\{ steps\.(\w+)\.outputs\.([\w-]+) \}\}",
                lambda found: steps.get(found[1], {}).get(found[2], ""),
                one["value"],
            )
            for name, one in action["outputs"].items()
        }
        return Ran(code, outputs_of, log, summary.read_text())


def _filled(text: str, inputs: Mapping[str, str], action: Path) -> str:
    text = text.replace("${{ github.action_path }}", str(action))
    text = re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], text)
    assert "${{" not in text, text
    return text


def _condition(text: str, inputs: Mapping[str, str]) -> bool:
    if not text:
        return True
    found = re.fullmatch(r"\$\{\{ inputs\.([\w-]+) != '' \}\}", text)
    assert found, text
    return inputs[found[1]] != ""


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


@pytest.mark.parametrize(
    ("claim", "code", "outcome", "level"),
    [
        ("overlap on every rank: hidden_transfer_ns > 0", 0, "pass", "notice"),
        ("exposed_communication_ns median <= 1ns", 1, "fail", "error"),
        ("exposed_communication_ns p95 <= 20ms", 6, "undecidable", "warning"),
    ],
)
def test_each_outcome_has_its_code_its_output_and_its_annotation(
    workplace: Workplace, claim: str, code: int, outcome: str, level: str
) -> None:
    ran = workplace.run(reports=str(TWELVE), claim=claim, install="")
    assert (ran.code, ran.outputs["outcome"], ran.outputs["exit-code"]) == (code, outcome, str(code)), ran.log
    assert re.search(rf"^::{level} title={outcome.upper()} ", ran.log, re.MULTILINE)
    suite = ElementTree.parse(workplace.folder / ran.outputs["junit"]).getroot()[0]
    assert suite.attrib["tests"] == "1"
    assert ran.summary.startswith(f"### nsysddp check: {outcome}\n")
    assert claim in ran.summary
    assert not (workplace.folder / "installed.txt").exists()


def test_undecidable_can_pass_and_still_says_so(workplace: Workplace) -> None:
    claim = "exposed_communication_ns p95 <= 20ms\n overlap on every rank \n\n"
    ran = workplace.run(reports=str(TWELVE), claim=claim, install="", undecidable="pass")
    assert (ran.code, ran.outputs["outcome"], ran.outputs["exit-code"]) == (0, "undecidable", "6")
    failing = claim + "exposed_communication_ns <= 1ns"
    ran = workplace.run(reports=str(TWELVE), claim=failing, install="", undecidable="pass")
    assert (ran.code, ran.outputs["outcome"]) == (1, "fail")


@pytest.mark.parametrize(
    ("inputs", "code", "said"),
    [
        ({"reports": "none/*.sqlite", "claim": "overlap on every rank"}, 3, "no such file"),
        ({"reports": str(TWELVE)}, 2, "no claim"),
        ({"reports": str(TWELVE), "claim": "overlap in every rank"}, 2, "cannot be read"),
        ({"reports": "", "claim": "overlap on every rank"}, 2, "REPORT"),
        (
            {"reports": str(TWELVE), "claim": "overlap on every rank", "undecidable": "yes"},
            2,
            "not fail or pass",
        ),
        (
            {"reports": str(TWELVE), "claim": "step improves by >= 1%", "against": "main", "db": "none.db"},
            1,
            "none.db",
        ),
    ],
)
def test_where_nothing_can_be_checked_that_is_an_error_and_no_failed_claim(
    workplace: Workplace, inputs: dict[str, str], code: int, said: str
) -> None:
    (workplace.folder / "nsysddp-check.xml").write_text("<old/>")
    ran = workplace.run(**inputs, install="")
    assert ran.code == code, ran.log
    assert said in ran.log
    assert "::error title=nsysddp check::" in ran.log
    if "undecidable" not in inputs:
        assert (ran.outputs["outcome"], ran.outputs["junit"]) == ("error", ""), (
            "no old report passes for a new one"
        )


def test_inputs_are_words_and_never_run(workplace: Workplace) -> None:
    """Names with spaces, patterns, and a text that a shell would run."""
    folder = workplace.folder / "a folder"
    folder.mkdir()
    shutil.copy(TWELVE, folder / "a report.sqlite.gz")
    (workplace.folder / "claims.toml").write_text('[claims]\n"$(touch run)" = "overlap on every rank"\n')
    ran = workplace.run(
        reports="  a folder/*.gz  ",
        claims="claims.toml",
        claim="overlap on any rank\n",
        options="--skip-warmup\n0\n",
        junit="out put.xml",
        install="",
    )
    assert (ran.code, ran.outputs["junit"]) == (0, "out put.xml"), ran.log
    assert "`PASS $(touch run)`" in ran.summary
    evil = workplace.run(reports="$(touch run)", claim="`touch run`; touch run", install="")
    assert evil.code in (2, 3)
    assert not (workplace.folder / "run").exists()


def test_it_installs_what_is_asked_for(workplace: Workplace) -> None:
    workplace.run(
        reports=str(TWELVE), claim="overlap on every rank", install="nsysddp[store]==1.2; touch run"
    )
    assert (workplace.folder / "installed.txt").read_text().split()[:4] == ["-m", "pip", "install", "--quiet"]
    assert not (workplace.folder / "run").exists()


def test_the_example_workflow_sets_a_baseline_and_is_a_gate(workplace: Workplace) -> None:
    """Its own commands and inputs, with captures that are slower than the main branch, and some that are not."""
    jobs = yaml.safe_load((workplace.action / "example.yml").read_text())["jobs"]
    steps = {step.get("name", step.get("uses")): step for step in jobs["gate"]["steps"]}
    check = steps["Check against the main branch"]
    assert (ROOT / check["uses"] / "action.yml").is_file()
    captures = workplace.folder / "captures"

    def captured(seed: int, scale: float) -> None:
        shutil.rmtree(captures, ignore_errors=True)
        captures.mkdir()
        for number in range(3):
            write_capture(captures / f"gpt_ddp-{number}", seed=seed + number, scale=scale, cap=25)

    captured(0, 1.0)
    setting = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", steps["Set the baseline"]["run"]],
        cwd=workplace.folder, env=workplace.environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "set baseline main: 3 runs" in setting.stderr
    captured(10, 1.2)
    slower = workplace.run(**check["with"])
    assert (slower.code, slower.outputs["outcome"]) == (1, "fail"), slower.log
    captured(20, 0.97)
    ran = workplace.run(**check["with"])
    assert (ran.code, ran.outputs["outcome"]) == (0, "pass"), ran.log
    presets = subprocess.run(
        [sys.executable, "-m", "nsysddp_shim", "capture", "--list"],
        cwd=workplace.folder, env=os.environ | workplace.environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    words: Any = steps["Capture three repeats"]["run"].split()
    assert re.search(rf"^\s*{words[2]}\b", presets, re.MULTILINE)
