"""The README, the reference and the pictures say what the code says, and every link leads somewhere."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from command import run
from conftest import FIXTURES, ROOT

import nsysddp
from nsysddp.cli import EXIT_CODES, cli
from nsysddp.model.keys import KEYS
from nsysddp.model.warnings import WARNING_CODES
from nsysddp.questions.question import VERBS, asked, question
from nsysddp.render.drawn import data_of

DOCS = ROOT / "docs"
MOST_README_LINES = 75
AGAIN = "run `make reference`"


def script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), DOCS / path / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    """Each committed page of the reference by its name without the ending."""
    return {page.stem: page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md")}


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", page, re.DOTALL | re.MULTILINE)
    assert found, f"there is no section {heading}"
    return found[1]


def test_generated_parts_are_current() -> None:
    made = script("reference")
    for page in made.PAGES:
        text = page.read_text(encoding="utf-8")
        assert made.filled(text) == text, AGAIN


def test_every_part_has_its_place() -> None:
    made = script("reference")
    pages = "".join(page.read_text(encoding="utf-8") for page in made.PAGES)
    assert sorted(re.findall(r"<!-- made: ([a-z ]+) -->", pages)) == sorted(made.parts())


def test_the_readme_is_one_screen() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_README_LINES


def commands(name: str = "", group: object = cli) -> Iterator[str]:
    """``analyze``, ``runs list``, ..."""
    context = cli.make_context("nsysddp", ["doctor"], resilient_parsing=True)
    for under in group.list_commands(context):  # type: ignore[attr-defined]
        command = group.get_command(context, under)  # type: ignore[attr-defined]
        yield f"{name} {under}".strip()
        if hasattr(command, "list_commands"):
            yield from commands(under, command)


@pytest.mark.parametrize("command", list(commands()))
def test_every_option_of_the_help_is_in_the_reference(command: str, reference: dict[str, str]) -> None:
    shown = run(*command.split(), "--help").out
    flags = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", shown, re.MULTILINE)) - {"--help"}
    text = section(reference["commands"], command)
    for link, heading in (
        ("#which-reports-read-how", "Which reports, read how"),
        ("#what-comes-out", "What comes out"),
    ):
        if link in text:
            text += section(reference["commands"], heading)
    documented = set(re.findall(r"^\| (?:`|<code>)(?:-\w, )?(--[a-z-]+)", text, re.MULTILINE))
    assert documented == flags


@pytest.mark.parametrize("name", asked())
def test_every_column_of_a_document_is_in_the_reference(name: str, reference: dict[str, str]) -> None:
    from nsysddp.render.document import json_schema

    tables = json_schema(question(name))["properties"]["tables"]["properties"]
    for table, rows in tables.items():
        text = section(reference["tables"], table)
        columns = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
        assert columns == list(rows["items"]["properties"])


def test_every_exit_code_is_in_the_reference(reference: dict[str, str]) -> None:
    codes = re.findall(r"^\| `(\d+)` \|", reference["exit-codes"], re.MULTILINE)
    assert [int(code) for code in codes] == list(EXIT_CODES)


def texts(node: ast.expr) -> list[str]:
    """The codes that an expression can be, as far as they are written out; of an f-string how it begins."""
    if isinstance(node, ast.IfExp):
        return texts(node.body) + texts(node.orelse)
    if isinstance(node, ast.JoinedStr):
        return texts(node.values[0])
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def literal_codes(maker: str) -> dict[str, str]:
    """Every code that is written out where a finding or warning is made, with its file."""
    found = {}
    for file in (ROOT / "nsysddp" / "questions").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == maker:
                given = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "code")]
                found.update((code, file.name) for one in given for code in texts(one))
    return found


@pytest.mark.parametrize(("maker", "page"), [("Finding", "findings"), ("Warning", "warnings")])
def test_every_code_written_in_the_questions_is_in_the_reference(
    maker: str, page: str, reference: dict[str, str]
) -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", reference[page], re.MULTILINE))
    codes = literal_codes(maker)
    assert len(codes) > 5
    for code, file in codes.items():
        if code.endswith("_"):  # the rest of it is known only when it is made
            assert any(one.startswith(code) for one in documented), (code, file)
        else:
            assert code in documented, (code, file)


@pytest.mark.parametrize("name", asked())
def test_a_question_gives_no_code_that_it_does_not_declare(name: str) -> None:
    wanted = question(name)
    for capture in ("gpt_ddp", "two_groups", "one_gpu_pageable"):
        trace = nsysddp.load(
            FIXTURES / "h200" / f"{capture}.sqlite.gz", host_calls=True, shapes=True, metrics=True
        )
        answer = nsysddp.ask(trace, name)
        assert {one.code for one in answer.findings} <= set(wanted.findings)
        assert {one.code for one in answer.warnings} <= {*wanted.warnings, *WARNING_CODES}


@pytest.mark.parametrize("name", asked())
def test_no_two_rows_of_an_answer_share_a_key(name: str) -> None:
    for table in question(name).tables:
        assert set(KEYS[table.name]) <= set(table.names)
    for capture in ("gpt_fsdp", "two_groups", "coarse4_cap4", "one_gpu_two"):
        trace = nsysddp.load(
            FIXTURES / "h200" / f"{capture}.sqlite.gz", host_calls=True, shapes=True, metrics=True
        )
        for table, frame in nsysddp.ask(trace, name).tables.items():
            key = list(KEYS[table])
            assert not key or frame.select(key).is_duplicated().sum() == 0, (capture, table)


def test_pictures_show_what_their_script_draws(tmp_path: Path) -> None:
    made = script("images")
    made.draw(tmp_path)
    for name in made.PICTURES:
        drawn = data_of((tmp_path / name).read_bytes(), "png")
        assert drawn is not None
        assert data_of((DOCS / "images" / name).read_bytes(), "png") == drawn, AGAIN


def markdown() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.split()]


@cache
def gallery_pages() -> frozenset[str]:
    """Names of the pages that the gallery's script makes."""
    sys.path[:0] = [str(DOCS / "gallery"), str(ROOT)]
    from pathologies import PATHOLOGIES

    return frozenset(one.name for one in PATHOLOGIES)


def slug(heading: str) -> str:
    """The anchor of a heading, as code hosts and the site make it."""
    plain = re.sub(r"[`*]|\{.*?\}", "", heading).strip().lower()
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", plain))


@pytest.mark.parametrize("page", markdown(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"https?:|mailto:", target) or target.endswith("llms.txt"):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        if place.parent == DOCS / "gallery" and place.stem in gallery_pages():
            continue  # made when the site is built
        assert place.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", place.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, target


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = set(re.findall(r"^ +- (\S+\.md)$", navigation, re.MULTILINE))
    written = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert written - listed == set()  # the site is built with warnings as errors


def test_the_gallery_lists_what_it_makes() -> None:
    index = (DOCS / "gallery" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[.*?\]\(([\w-]+)\.md\)", index, re.MULTILINE)
    assert len(listed) >= 15
    assert set(listed) == gallery_pages()


def test_verbs_and_questions_share_no_name() -> None:
    assert not set(VERBS.values()) & set(asked())
