"""The site: it builds without a warning, shows what it says, and asks no network when it is read."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, require
from test_docs import gallery_pages
from test_html_browser import driver  # noqa: F401 (a fixture)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Building checks links, runs what is shown, and makes the gallery; any warning is an error."""
    require("mkdocs-material", find_spec("material") is not None)
    folder = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


class Silent(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: object) -> None:
        """Not a word."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(Silent, directory=str(site))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def pages(nav: list[Any]) -> Iterator[str]:
    for item in nav:
        if isinstance(item, str):
            yield item
        else:
            for under in item.values():
                yield from pages(under if isinstance(under, list) else [under])


def listed() -> list[str]:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return [
        page.replace("README.md", "index.md").removesuffix(".md")
        for page in pages(yaml.safe_load(text)["nav"])
    ]


def test_every_page_is_built_and_listed_for_programs(site: Path) -> None:
    entries = (site / "llms.txt").read_text(encoding="utf-8")
    assert entries.startswith("# nsysddp\n\n> ")
    for page in listed():
        assert (site / f"{page}.html").is_file(), page
        found = re.search(rf"^- \[.+\]\({re.escape(page)}\.html\): (.*)$", entries, re.MULTILINE)
        assert found, page
    full = (site / "llms-full.txt").read_text(encoding="utf-8")
    assert "A GPU with more NCCL time" in full or "*more* NCCL time" in full


@pytest.mark.parametrize("name", sorted(gallery_pages()))
def test_a_page_of_the_gallery_has_all_that_it_must_have(name: str, site: Path) -> None:
    page = (site / "gallery" / f"{name}.html").read_text(encoding="utf-8")
    assert (site / "gallery" / f"{name}.svg").stat().st_size > 10_000
    for part in (f'src="{name}.svg"', "The number that gives it away", "The fix", "after the fix"):
        assert part in page
    text = re.sub(r"<[^>]+>", "", page)
    assert re.search(r"\$ nsysddp (analyze|diagnose) before-1\.sqlite", text)
    assert "$ nsysddp compare after-1.sqlite" in text


def test_commands_in_the_tutorial_were_run(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "tutorial.html").read_text(encoding="utf-8"))
    assert "console run" not in text
    assert "$ nsysddp diagnose nsysddp-demo/gpt_slow_link.sqlite.gz" in text
    assert "confidence" in text


def test_reading_asks_no_network_and_the_search_finds(address: str, driver: Any) -> None:  # noqa: F811
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get_log("performance")
    for page in ("index", "tutorial", "gallery/late-rank", "reference/tables"):
        driver.get(f"{address}/{page}.html")
    driver.find_element(By.CSS_SELECTOR, "[data-md-component=search-query]").send_keys("straggler")
    WebDriverWait(driver, 60).until(lambda one: one.find_elements(By.CSS_SELECTOR, ".md-search-result__link"))
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert len(asked) > 4
    assert {url for url in asked if not url.startswith((address, "data:", "blob:", "chrome:"))} == set()
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []
