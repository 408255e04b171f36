"""What assistants get: a guide, and a server that reads only, over the protocol's own client."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command import run
from conftest import FIXTURES, ROOT, require

from nsysddp.assistant.server import MOST_ROWS, ROWS, answer, guide, tools
from nsysddp.cli import cli
from nsysddp.model.errors import UsageError
from nsysddp.questions.question import VERBS, asked, question

CAPTURE = "gpt_ddp.sqlite.gz"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copy(FIXTURES / "h200" / CAPTURE, tmp_path / CAPTURE)
    return tmp_path


@pytest.mark.parametrize("name", asked())
def test_every_question_is_a_tool_whose_schema_takes_its_options(name: str) -> None:
    tool = tools()[VERBS.get(name, name)]
    jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
    assert {option.name for option in question(name).options} <= set(tool["inputSchema"]["properties"])
    assert question(name).ask in tool["description"]


def test_an_answer_marks_what_it_cut(root: Path) -> None:
    made = answer("analyze", {"reports": [CAPTURE], "tables": ["collective"], "limit": 5}, root)
    whole = json.loads(run("analyze", root / CAPTURE, "--format", "json").out)
    for name, rows in whole["tables"].items():
        table = made["tables"][name]
        assert table["rows"] == (rows[:5] if name == "collective" else [])
        assert table["rows_total"] == len(rows)
        assert table["truncated"] is (len(table["rows"]) < len(rows))
    assert made["findings"] == whole["findings"]
    assert made["schema_version"] == whole["schema_version"]


def test_no_answer_is_longer_than_the_limit(root: Path) -> None:
    longest = answer("analyze", {"reports": [CAPTURE], "tables": ["collective"], "limit": 10**6}, root)
    assert len(longest["tables"]["collective"]["rows"]) <= MOST_ROWS
    usual = answer("buckets", {"reports": [CAPTURE]}, root)["tables"]["bucket"]
    assert len(usual["rows"]) == min(ROWS, usual["rows_total"])


def test_options_are_those_of_the_command_line(root: Path) -> None:
    given = {"reports": [CAPTURE], "bucket_cap": "4,25", "tables": ["whatif"], "limit": 100}
    made = answer("whatif", given, root)["tables"]["whatif"]["rows"]
    ran = run("whatif", root / CAPTURE, "--bucket-cap", "4,25", "--format", "json")
    assert made == json.loads(ran.out)["tables"]["whatif"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"reports": ["../outside.sqlite"]}, "outside"),
        ({"reports": ["/etc/passwd"]}, "outside"),
        ({"reports": []}, "no report"),
        ({"reports": [CAPTURE], "out": "x"}, "takes no 'out'"),
    ],
)
def test_a_server_reads_below_its_folder_only(arguments: dict[str, Any], said: str, root: Path) -> None:
    with pytest.raises(UsageError, match=said):
        answer("analyze", arguments, root)


def test_a_file_that_an_option_names_lies_below_the_folder_too(root: Path) -> None:
    (root / "sizes.json").write_text("[4096, 4096]")
    arguments = {"reports": [CAPTURE], "bucket_cap": "4", "parameters": "sizes.json"}
    with pytest.raises(UsageError, match="8,192 bytes"):  # it is read: the sizes are not those of the run
        answer("whatif", arguments, root)
    with pytest.raises(UsageError, match="outside"):
        answer("whatif", arguments | {"parameters": "../sizes.json"}, root)


def test_a_link_out_of_the_folder_is_not_followed(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "secret.sqlite"
    elsewhere.write_bytes(b"")
    (root / "link.sqlite").symlink_to(elsewhere)
    with pytest.raises(UsageError, match="outside"):
        answer("analyze", {"reports": ["link.sqlite"]}, root)


def test_the_guide_names_commands_and_columns_that_there_are() -> None:
    text = guide()
    context = cli.make_context("nsysddp", ["doctor"], resilient_parsing=True)
    table = text.split("## Which question")[1].split("##")[0]
    commands = set(re.findall(r"^\|[^|]*\| `([a-z-]+)", table, re.MULTILINE))
    assert len(commands) > 5
    assert commands <= set(cli.list_commands(context))
    columns = {column.name for name in asked() for one in question(name).tables for column in one.columns}
    named = set(
        re.findall(r"`?\b([a-z]+_(?:wait|transfer)_ns|cost_ns|low_ns|high_ns|refuted_by|try_next)\b", text)
    )
    assert named
    assert named <= columns


def test_skill_is_printed_and_installed(tmp_path: Path) -> None:
    assert run("skill").out == guide()
    assert run("skill", "--install", tmp_path / "a" / "b").code == 0
    assert (tmp_path / "a" / "b" / "SKILL.md").read_text(encoding="utf-8") == guide()
    assert "is there already" in run("skill", "--install", tmp_path / "a" / "b").line
    assert run("skill", "--install", tmp_path / "a" / "b", "--force").code == 0


def test_the_protocols_own_client_gets_answers_and_refusals(root: Path) -> None:
    require("the package mcp", importlib.util.find_spec("mcp") is not None)
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    code = "from nsysddp.cli import main; main(['mcp', '--root', '.'])"
    command = StdioServerParameters(
        command=sys.executable, args=["-c", code], cwd=root, env={"PYTHONPATH": str(ROOT)}
    )

    async def talk() -> tuple[Any, ...]:
        async with Client(stdio_client(command)) as client:
            listed = await client.list_tools()
            resource = await client.read_resource("nsysddp://guide")
            good = await client.call_tool("diagnose", {"reports": [CAPTURE], "limit": 2})
            bad = await client.call_tool("analyze", {"reports": ["none.sqlite"]})
            return listed, resource, good, bad

    listed, resource, good, bad = asyncio.run(talk())
    assert {tool.name for tool in listed.tools} == set(tools())
    assert all(tool.annotations.read_only_hint for tool in listed.tools)
    assert resource.contents[0].text == guide()
    made = json.loads(good.content[0].text)
    assert len(made["tables"]["diagnosis"]["rows"]) == 2
    assert made["tables"]["diagnosis"]["truncated"]
    assert bad.is_error
    assert "none.sqlite" in bad.content[0].text
