"""Which questions can an assistant ask of reports, and how much of the answer does it get? A read-only server on stdio.

One tool a question of the registry, with its options; answers are the documents of the command line with at most so
many rows a table. Nothing is written, and only reports below one folder are read. The optional package ``mcp`` speaks
the protocol; everything else here is plain data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nsysddp
from nsysddp.model.errors import NsysddpError, UsageError
from nsysddp.model.names import visible
from nsysddp.questions.question import VERBS, asked, question
from nsysddp.render import document

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from nsysddp.model.result import Result
    from nsysddp.model.trace import Trace
    from nsysddp.questions.question import Option

ROWS, MOST_ROWS = 20, 500
"""Rows of a table in an answer, unless asked otherwise, and at most."""

GUIDE = "nsysddp://guide"

_SHARED: dict[str, dict[str, Any]] = {
    "per": {"enum": ["step", "capture"], "description": "window of a row; default step"},
    "first_step": {"type": "integer", "minimum": 0, "description": "first step_index"},
    "last_step": {"type": "integer", "minimum": 1, "description": "one past the last step_index"},
    "skip_warmup": {"type": "integer", "minimum": 0, "description": "leave out the first steps"},
}


def guide() -> str:
    """How to ask, and what not to conclude."""
    return Path(__file__).with_name("SKILL.md").read_text(encoding="utf-8")


@cache
def tools() -> dict[str, dict[str, Any]]:
    """Name of each tool to its description and JSON Schema."""
    made = {}
    for name in asked():
        one = question(name)
        properties = {
            "reports": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "description": "exports of all ranks of one run, relative to the server's folder",
            },
            "tables": {
                "type": "array",
                "items": {"enum": [table.name for table in one.tables]},
                "description": f"tables whose rows are wanted; default [{one.shown!r}]",
            },
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": MOST_ROWS,
                "description": f"rows a table; default {ROWS}",
            },
            **({} if one.whole_capture else _SHARED),
            **{option.name: _schema(option) for option in one.options},
        }
        made[VERBS.get(name, name)] = {
            "description": f"{one.ask} {one.more}",
            "inputSchema": {
                "type": "object",
                "properties": properties,
                "required": ["reports"],
                "additionalProperties": False,
            },
        }
    return made


def _schema(option: Option) -> dict[str, Any]:
    if option.parse is None:
        return {"type": "boolean", "description": option.help}
    text: dict[str, Any] = {"enum": list(option.choices)} if option.choices else {"type": "string"}
    if option.multiple:
        return {"type": "array", "items": text, "description": option.help}
    return {**text, "description": option.help}


def answer(name: str, arguments: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """The document that answers a tool's question, with at most ``limit`` rows a table.

    Args:
        name: of the tool.
        arguments: by its schema.
        root: the folder below which reports lie.

    Returns:
        As the JSON document, but each table is ``{"rows": [...], "rows_total": n, "truncated": bool}``; of tables
        that were not asked for the rows are left out.

    Raises:
        NsysddpError: the question, an option or a report is not usable.
    """
    if name not in tools():
        raise UsageError(f"there is no tool {name!r}", do=f"use one of {', '.join(tools())}")
    wanted = question(name)
    known = set(tools()[name]["inputSchema"]["properties"])
    unknown = sorted(set(arguments) - known)
    if unknown:
        raise UsageError(f"{name} takes no {unknown[0]!r}", do=f"it takes {', '.join(sorted(known))}")
    given = dict(arguments)
    limit = min(int(given.pop("limit", ROWS)), MOST_ROWS)
    shown = given.pop("tables", None) or [wanted.shown]
    reports = [_below(root, path) for path in given.pop("reports", ())]
    if not reports:
        raise UsageError("no report is given", do="name the exports of all ranks of one run")
    parsed = {option.name: option for option in wanted.options}
    options = {
        key: _parsed(parsed[key], value, root) if key in parsed else value for key, value in given.items()
    }
    result = nsysddp.ask(_trace(tuple(reports), _state(reports)), name, **options)
    return _limited(result, shown, limit)


def _parsed(option: Option, value: Any, root: Path) -> Any:
    if option.parse is None:
        return bool(value)
    if option.metavar == "FILE":
        value = str(_below(root, value))
    return tuple(option.parse(text) for text in value) if option.multiple else option.parse(value)


def _below(root: Path, path: str) -> Path:
    """A report's path.

    Raises:
        UsageError: it lies outside the server's folder.
    """
    found = (root / path).resolve()
    if not found.is_relative_to(root.resolve()):
        raise UsageError("lies outside the folder of this server", file=path, do="start it with --root")
    return found


def _state(reports: list[Path]) -> tuple[tuple[int, int], ...]:
    """What changes when a report does."""
    known = [path.stat() for path in reports if path.exists()]
    return tuple((status.st_mtime_ns, status.st_size) for status in known)


@lru_cache(maxsize=2)
def _trace(reports: tuple[Path, ...], _state: tuple[tuple[int, int], ...]) -> Trace:
    return nsysddp.load(list(reports), host_calls=True, shapes=True, metrics=True)


def _limited(result: Result, shown: list[str], limit: int) -> dict[str, Any]:
    made = document.as_dict(result)
    made["tables"] = {
        name: {
            "rows": rows[:limit] if name in shown else [],
            "rows_total": len(rows),
            "truncated": len(rows) > (limit if name in shown else 0),
        }
        for name, rows in made["tables"].items()
    }
    return made


def server(root: Path) -> Server[Any]:
    """The server; needs the package ``mcp``.

    Args:
        root: the folder below which reports lie.
    """
    import anyio.to_thread
    from mcp import types
    from mcp.server.lowlevel import Server

    async def list_tools(_context: Any, _request: Any) -> types.ListToolsResult:
        read_only = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=one["description"],
                    input_schema=one["inputSchema"],
                    annotations=read_only,
                )
                for name, one in tools().items()
            ]
        )

    async def call_tool(_context: Any, request: Any) -> types.CallToolResult:
        try:
            made = await anyio.to_thread.run_sync(answer, request.name, request.arguments or {}, root)
        except NsysddpError as error:
            return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
        text = json.dumps(made, ensure_ascii=False)
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=False)

    async def list_resources(_context: Any, _request: Any) -> types.ListResourcesResult:
        about = "Which question to ask, and what not to conclude."
        return types.ListResourcesResult(
            resources=[types.Resource(uri=GUIDE, name="guide", description=about, mime_type="text/markdown")]
        )

    async def read_resource(_context: Any, request: Any) -> types.ReadResourceResult:
        if str(request.uri) != GUIDE:
            raise ValueError(f"there is no resource {visible(str(request.uri))}")
        text = types.TextResourceContents(uri=GUIDE, text=guide(), mime_type="text/markdown")
        return types.ReadResourceResult(contents=[text])

    return Server(
        "nsysddp",
        version=nsysddp.__version__,
        instructions=guide().split("---", 2)[2].strip(),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )


def serve(root: Path) -> None:
    """Answer on stdin and stdout until the client goes away."""
    import anyio
    from mcp.server.stdio import stdio_server

    async def run() -> None:
        made = server(root)
        async with stdio_server() as (incoming, outgoing):
            await made.run(incoming, outgoing, made.create_initialization_options())

    anyio.run(run)
