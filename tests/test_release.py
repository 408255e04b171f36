"""What a release needs agrees with the project: version, dependencies, and what workflows call."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from conftest import ROOT

import nsysddp

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SETTINGS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = SETTINGS["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "packaging" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def test_the_version_stands_in_one_place() -> None:
    assert script("check_release").version() == nsysddp.__version__
    text = f"version: {nsysddp.__version__}"
    for name in ("CITATION.cff", "packaging/conda/meta.yaml", "pyproject.toml"):
        assert text not in (ROOT / name).read_text(encoding="utf-8"), name


def test_a_release_needs_its_tag_and_its_section_of_the_changelog() -> None:
    check = script("check_release").disagreement
    version = nsysddp.__version__
    dated = f"# Changelog\n\n## {version} - 2027-01-02\n\n- A line.\n\n## 0.0.1 - 2026-01-01\n\n- Another.\n"
    assert check(f"v{version}", dated) is None
    assert check("v9.9.9", dated) == f"the tag is v9.9.9, and nsysddp/__init__.py says {version}"
    assert "no section" in check(f"v{version}", dated.replace(version, "0.0.9"))
    left = dated.replace("# Changelog\n", "# Changelog\n\n## Unreleased\n\n- A line that was forgotten.\n")
    assert "Unreleased" in check(f"v{version}", left)


def test_the_changelog_has_a_section_a_version_and_no_line_twice() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = list(script("check_release").sections(text))
    assert headings[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", heading) for heading in headings[1:])
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    assert len(lines) == len(set(lines))


def test_the_conda_recipe_asks_for_what_the_package_asks_for() -> None:
    text = (ROOT / "packaging" / "conda" / "meta.yaml").read_text(encoding="utf-8")
    run = text.split("  run:\n")[1].split("test:")[0]
    recipe = {
        re.sub(r"[ -]+", "-", line.strip().removeprefix("- ")) for line in run.splitlines() if line.strip()
    }
    asked = {re.sub(r";.*", "", one).strip().replace(">=", "->=") for one in PROJECT["dependencies"]}
    assert {one.replace("matplotlib-base", "matplotlib") for one in recipe} - {"python->=3.10"} == asked


def test_the_matrix_is_what_the_package_says_it_runs_on() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))["jobs"]
    said = {
        found[1]
        for one in PROJECT["classifiers"]
        if (found := re.fullmatch(r".*:: (3\.\d+)", one)) is not None
    }
    assert set(jobs["versions"]["strategy"]["matrix"]["python"]) == said
    assert min(said, key=lambda one: int(one[2:])) == PROJECT["requires-python"].removeprefix(">=")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_what_is_there_and_hold_no_right_that_they_do_not_need(path: Path) -> None:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert content["permissions"] == {"contents": "read"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for step in steps(path):
        command = step.get("run", "")
        for target in re.findall(r"\bmake ([\w-]+)", command):
            assert f"\n{target}:" in makefile, target
        for file in re.findall(r"\bpackaging/[\w./-]+", command):
            assert (ROOT / file).exists(), file
        assert "${{ github.event" not in command, "what others wrote is no part of a script"


def test_extras_in_workflows_are_extras_of_the_package() -> None:
    for path in (*WORKFLOWS, ROOT / "Makefile"):
        for extras in re.findall(r"'\.\[([\w,]+)\]'", path.read_text(encoding="utf-8")):
            assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"]), path.name


def test_publishing_is_trusted_and_attested() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "publish.yml").read_text(encoding="utf-8"))[
        "jobs"
    ]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    used = [step for step in jobs["publish"]["steps"] if "pypi-publish" in step.get("uses", "")]
    assert used[0]["with"] == {"attestations": True}
    assert any("attest-build-provenance" in step.get("uses", "") for step in jobs["build"]["steps"])
    assert "secrets." not in (ROOT / ".github" / "workflows" / "publish.yml").read_text(encoding="utf-8")


def test_hooks_pin_their_tools_and_need_no_environment_of_ours() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0][
        "hooks"
    ]
    for hook in hooks:
        assert hook["language"] == "python"
        assert hook["additional_dependencies"]
        assert all("==" in one for one in hook["additional_dependencies"]), hook["id"]


def test_quick_tests_are_files_that_there_are() -> None:
    names = (ROOT / "packaging" / "quick-tests.txt").read_text(encoding="utf-8").split()
    assert len(names) > 10
    assert all((ROOT / name).is_file() for name in names)


def test_the_citation_has_what_citations_need() -> None:
    made = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(made)
    assert made["license"] == PROJECT["license"]


def test_a_package_index_shows_no_link_or_picture_that_it_does_not_have() -> None:
    hook = SETTINGS["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / "README.md").read_text("utf-8")
    for rule in hook["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert targets
    assert all(target.startswith("https://") for target in targets)
    assert "![" not in text
    assert "| `analyze` | How much" in text
