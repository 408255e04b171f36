"""The page's own program: the modules of ``page/`` joined in one script, as a page of one file needs it.

Each module names what it takes (``import { after } from "./packed.mjs";``) and what it gives (``export``). Joined, they
stand in one closure, each after those that it takes from, without these words. So a name may stand in one module only.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./(\w+)\.mjs";\n', re.MULTILINE)

_HEAD = """"use strict";
/* The page's own program: tables that sort and filter, and the timeline (drawn on uPlot's canvas and axes).
   Everything from the trace is put into the page as text, never as markup. */
(() => {
"""


def module(name: str) -> str:
    """The text of one module of ``page/``."""
    return (files(__package__) / "page" / f"{name}.mjs").read_text(encoding="utf-8")


def imports(name: str) -> dict[str, list[str]]:
    """Which names does a module take from which other?"""
    return {source: names.split(", ") for names, source in _IMPORT.findall(module(name))}


@cache
def program() -> str:
    """The modules in one script; the same modules give the same text."""
    bodies = [re.sub(r"^export ", "", _IMPORT.sub("", module(name)), flags=re.MULTILINE) for name in order()]
    return _HEAD + "\n".join(body.strip() + "\n" for body in bodies) + "})();\n"


def order(entry: str = "page") -> list[str]:
    """All modules that ``entry`` needs, each after those that it takes from, itself last."""
    found: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in found:
            for source in imports(name):
                visit(source)
            found[name] = None

    visit(entry)
    return list(found)
