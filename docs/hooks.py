"""What MkDocs does beside its own work while it builds the site.

* The pages of the gallery are made (``gallery/make.py``), with what they claim checked.
* A block ```` ```console run ```` is run: the output of its commands stands in the page. A command that fails, or ends
  with another code than ``exit=N`` says, fails the build.
* CONTRIBUTING, CHANGELOG and SECURITY of the repository become pages; other links out of ``docs`` become plain text.
* ``llms.txt`` and ``llms-full.txt`` are written: the list of pages and all of their text.
* No page may load anything from the network.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PROJECT = {name: f"project/{name.lower()}" for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")}
WIDTH = "88"
_BLOCK = re.compile(r"^```console run(?: lines=(\d+))?(?: exit=(\d+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]\n]+)\]\(((?:\.\./)*[^)#:\s]+)(#[^)\s]*)?\)")
_LOADING = re.compile(
    r"<(?:script|img|iframe|source|video)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^>]*"
    r"|<link\b(?![^>]*canonical)[^>]*\bhref=[\"']?(?:https?:)?//[^>]*"
)
_texts: dict[str, tuple[str, str]] = {}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the gallery and the pages that lie in the root of the repository."""
    for name, content in gallery().items():
        files.append(File.generated(config, f"gallery/{name}", content=content))
    for name, place in PROJECT.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=text))
    return files


@cache
def gallery() -> dict[str, bytes]:
    """Every page and picture of the gallery.

    Raises:
        PluginError: what a page claims does not hold.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(
            [sys.executable, ROOT / "docs" / "gallery" / "make.py", "--out", folder],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise PluginError(f"the gallery cannot be made: {made.stderr[-2000:]}")
        return {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir())}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Run the blocks that say so, and lead links out of ``docs`` to pages."""
    text = _BLOCK.sub(lambda found: _run(found, page), markdown)
    source = page.file.src_uri
    home = ROOT / next((name for name, place in PROJECT.items() if place == source), f"docs/{source}")
    text = _LINK.sub(lambda found: _led(found, home, page), text)
    _texts[source] = (page.title or source, text)
    return text


def _run(found: re.Match[str], page: Page) -> str:
    """The block with the output of each of its commands below it."""
    most, code, script = int(found[1] or 10_000), int(found[2] or 0), found[3]
    shown = []
    for line in script.splitlines():
        command = line.removeprefix("$ ").partition("   #")[0]
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=_playground(),
            env={
                **os.environ,
                "COLUMNS": WIDTH,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode != code:
            raise PluginError(f"{page.file.src_uri}: {command!r} ended with {ran.returncode}: {ran.stderr}")
        lines = [one.rstrip() for one in (ran.stdout + ran.stderr).rstrip().splitlines()]
        if len(lines) > most:
            lines = [*lines[:most], "..."]
        shown.append("\n".join([line, *lines]).rstrip())
    return "```console\n" + "\n".join(shown) + "\n```"


@cache
def _playground() -> Path:
    """The folder in which commands run: what a reader has after ``nsysddp demo``."""
    return Path(tempfile.mkdtemp(prefix="nsysddp-docs-"))


def _led(found: re.Match[str], home: Path, page: Page) -> str:
    text, target, anchor = found[1], found[2], found[3] or ""
    place = (home.parent / target).resolve()
    if not place.is_relative_to(ROOT):
        return found[0]
    inside = place.relative_to(ROOT).as_posix()
    if inside in PROJECT:
        inside = f"docs/{PROJECT[inside]}"
    elif (
        place.is_dir()
        or not inside.startswith("docs/")
        or place.suffix not in (".md", ".png", ".svg", ".css")
    ):
        return f"{text} (`{inside}`)" if f"`{inside}`" != text else text
    return (
        f"[{text}]({os.path.relpath(inside.removeprefix('docs/'), Path(page.file.src_uri).parent)}{anchor})"
    )


def on_post_build(config: MkDocsConfig) -> None:
    """Write the texts for programs, and refuse pages that load anything from elsewhere."""
    site = Path(config.site_dir)
    head = f"# {config.site_name}\n\n> {config.site_description}.\n"
    rows, full = [], [head]
    for source, (title, text) in _texts.items():
        rows.append(f"- [{title}]({source.removesuffix('.md')}.html): {_first_sentence(text)}")
        full.append(f"<!-- {source} -->\n\n{text}")
    rows = [row.replace("README.html", "index.html") for row in rows]
    (site / "llms.txt").write_text(head + "\n## Pages\n\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(full), encoding="utf-8")
    for page in site.rglob("*.html"):
        for tag in _LOADING.findall(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page.relative_to(site)} loads from the network: {tag}")
    for sheet in site.rglob("*.css"):
        if re.search(r"url\([\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")):
            raise PluginError(f"{sheet.relative_to(site)} loads from the network")


def _first_sentence(markdown: str) -> str:
    """The first sentence of a page's first paragraph of prose."""
    plain = re.sub(r"<!--.*?-->|^#[^\n]*$|^```.*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE)
    paragraph = next((one for one in re.split(r"\n\s*\n", plain) if re.match(r"\s*[\w*`\[]", one)), "")
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split())).replace("*", "")
    return re.split(r"(?<=[.:?])\s", words)[0]
