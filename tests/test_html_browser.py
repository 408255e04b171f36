"""The page in a real browser: it opens from disk, asks no network, zooms, sorts, filters, and follows its findings."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from builder import Export
from conftest import ROOT, require

from nsysddp.join.load import load
from nsysddp.questions import analyze, context_of
from nsysddp.questions.buckets import buckets
from nsysddp.questions.critical_path import critical_path
from nsysddp.questions.diagnosis import diagnose
from nsysddp.render.html import html_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NASTY = ("</script><img src=x onerror=document.title=1>", "void copy<float, 4>(int)")

MOST_BYTES = 15_000_000
MOST_ELEMENTS = 20_000
"""Of a page of a million events: what is opened and laid out does not grow with them (bench/page.py has the time)."""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    require("chromium", CHROMIUM is not None and DRIVER is not None)
    require("selenium", find_spec("selenium") is not None)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}", "--window-size=1360,1000"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    made = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    made.set_page_load_timeout(60)
    yield made
    made.quit()


def written(reports: list[Path], out: Path) -> Path:
    trace = load(reports, launches=True, host_calls=True)
    context = context_of(trace)
    path = critical_path(trace)
    page = html_report(
        analyze(trace),
        context=context,
        critical_path=path,
        buckets=buckets(context),
        diagnosis=diagnose(context),
    )
    out.write_text(page, encoding="utf-8")
    return out


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    export = Export(unit="us")
    for rank in range(2):
        process = export.process(pid=100 + rank, device=rank)
        for step in range(3):
            at = 1_000 * step
            process.range(f"step {step}", at, at + 900)
            process.range("forward", at, at + 300)
            process.range("backward", at + 300, at + 800)
            for number, name in enumerate((*NASTY, "gemm", "gemm")):
                process.kernel(name, 7, (at + 10 + 180 * number, at + 150 + 180 * number))
            for number in range(3):
                begin = at + 250 + 180 * number + 90 * rank
                process.nccl(
                    "AllReduce", 17, (begin, at + 400 + 180 * number + 10 * number), bytes=(4 + number) << 20
                )
    export.write(folder / "run.sqlite")
    return written([folder / "run.sqlite"], folder / "page.html")


def opened(driver: Any, page: Path) -> None:
    """Open the page afresh, until its program has finished and the first frame is drawn."""
    driver.get("about:blank")
    driver.get_log("browser")
    driver.get_log("performance")
    driver.get(page.as_uri())
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert driver.execute_script("return document.documentElement.dataset.ready") == "yes"


def check_quiet(driver: Any, page: Path) -> None:
    """No word in the console, and nothing asked for but the page itself."""
    assert [entry["message"] for entry in driver.get_log("browser")] == []
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [
        one["params"]["request"]["url"]
        for one in messages
        if one["method"] == "Network.requestWillBeSent"
        and not one["params"]["documentURL"].startswith("chrome://")
    ]
    assert [url for url in asked if url != "about:blank"] == [page.as_uri()]


def drawn(driver: Any) -> str:
    """What the timeline's canvas shows, as a picture."""
    settled(driver)
    return str(driver.execute_script("return document.querySelector('#timeline-plot canvas').toDataURL()"))


def settled(driver: Any) -> None:
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def view(driver: Any) -> tuple[float, float]:
    """The part of time that the timeline says it shows, in ms."""
    settled(driver)
    words = driver.find_element("id", "timeline-view").text.replace(",", "").split()
    return float(words[0]), float(words[2])


def cells(driver: Any, table: str, column: str) -> list[str]:
    return list(
        driver.execute_script(
            """const table = document.querySelector(`[data-table="${arguments[0]}"] table`);
            const heads = [...table.querySelectorAll('thead th')].map((cell) => cell.textContent.replace(/ [▲▼]$/, ''));
            const place = heads.indexOf(arguments[1]);
            return [...table.tBodies[0].rows].map((row) => row.cells[place].textContent);""",
            table,
            column,
        )
    )


def test_opens_from_disk_without_network_or_complaint(driver: Any, page: Path, tmp_path: Path) -> None:
    opened(driver, page)
    # The larger loss first.
    title = driver.find_element("tag name", "h1").text
    assert title.startswith("GPUs idle 0.270 to 0.300 of 1.000 ms a step: ")
    assert "; rank 1 is late: rank 0 waits 0.030 of 1.000 ms" in title
    assert len(drawn(driver)) > 5_000
    for theme in ("light", "dark"):
        if driver.find_element("id", "theme").get_attribute("aria-pressed") != str(theme == "dark").lower():
            driver.find_element("id", "theme").click()
        settled(driver)
        assert driver.save_screenshot(str(tmp_path / f"{theme}.png"))
    light, dark = ((tmp_path / f"{theme}.png").read_bytes() for theme in ("light", "dark"))
    assert light != dark
    check_quiet(driver, page)


def test_the_policy_stops_any_program_that_is_not_the_pages(driver: Any, page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    spoilt = tmp_path / "spoilt.html"
    spoilt.write_text(
        text.replace(
            "</body>", "<script>document.title = 'taken'</script><img src=http://127.0.0.1:9/x></body>"
        ),
        encoding="utf-8",
    )
    opened(driver, spoilt)
    assert driver.title != "taken"
    said = " ".join(entry["message"] for entry in driver.get_log("browser"))
    assert "Content Security Policy" in said


def test_the_picture_shows_what_ran_when(driver: Any, page: Path) -> None:
    """At instants well inside of what ran, and of what did not, the colours of compute and transfer say so."""
    import base64
    import io

    import numpy as np
    from matplotlib.colors import to_rgb
    from matplotlib.image import imread

    from nsysddp.render.theme import LOOKS

    opened(driver, page)
    low, high = view(driver)
    left, width = driver.execute_script(
        """const box = (words) => document.querySelector(`#timeline-plot ${words}`).getBoundingClientRect();
        return [box('.u-over').left - box('canvas').left, box('.u-over').width];"""
    )
    picture = imread(io.BytesIO(base64.b64decode(drawn(driver).split(",", 1)[1])))[:, :, :3]
    context = context_of(load([page.parent / "run.sqlite"], launches=True))
    # The lane of the critical path has the same colours: the ranks begin below it.
    ranks = picture[90:]
    for key in ("compute", "transfer"):
        sets = [
            context.trace.union(rank, ["compute"]) if key == "compute" else context.splits[rank].transfer
            for rank in (0, 1)
        ]
        either = sets[0] | sets[1]
        checked = {True: 0, False: 0}
        for at in range(int(low * 1e6) + 15_000, int(high * 1e6) - 15_000, 37_000):
            covered = int(either.length_within(at - 8_000, at + 8_000))
            if covered not in (0, 16_000):
                continue
            column = ranks[:, int(left + (at / 1e6 - low) / (high - low) * width)]
            seen = bool((np.abs(column - np.array(to_rgb(LOOKS[key].fill))).max(axis=1) < 0.02).any())
            assert seen == (covered > 0), (key, at)
            checked[seen] += 1
        assert min(checked.values()) > 5, checked


def test_zooms_and_moves_by_buttons_mouse_and_keys(driver: Any, page: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    opened(driver, page)
    whole = view(driver)
    before = drawn(driver)
    driver.find_element("id", "zoom-in").click()
    nearer = view(driver)
    assert nearer[1] - nearer[0] == pytest.approx((whole[1] - whole[0]) / 2, rel=0.01)
    assert drawn(driver) != before
    plot = driver.find_element("css selector", "#timeline-plot .u-over")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    width = plot.size["width"]
    ActionChains(driver, duration=20).move_to_element_with_offset(
        plot, -width // 4, 0
    ).click_and_hold().move_by_offset(width // 2, 0).release().perform()
    dragged = view(driver)
    assert dragged[1] - dragged[0] == pytest.approx((nearer[1] - nearer[0]) / 2, rel=0.02)
    ActionChains(driver, duration=20).move_to_element(plot).double_click().perform()
    assert view(driver) == whole
    timeline = driver.find_element("id", "timeline-plot")
    timeline.send_keys("+")
    timeline.send_keys(Keys.ARROW_RIGHT)
    moved = view(driver)
    assert moved[0] > whole[0]
    timeline.send_keys("0")
    assert view(driver) == whole
    timeline.send_keys("]")
    first = view(driver)
    timeline.send_keys("]")
    assert view(driver)[0] > first[0]
    timeline.send_keys(".")
    assert "AllReduce" in driver.find_element("id", "timeline-details").text
    check_quiet(driver, page)


def test_shows_what_lies_under_the_pointer_verbatim(driver: Any, page: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.support.ui import Select

    opened(driver, page)
    Select(driver.find_element("id", "go-step")).select_by_value("0")
    low, high = view(driver)
    plot = driver.find_element("css selector", "#timeline-plot .u-over")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    box = plot.size
    shown = set()
    for time_ms in (0.08, 0.26):
        across = int((time_ms - low) / (high - low) * box["width"] - box["width"] / 2)
        for down in range(-box["height"] // 2 + 6, box["height"] // 2 - 6, 12):
            ActionChains(driver, duration=20).move_to_element_with_offset(plot, across, down).perform()
            shown.add(driver.execute_script("return document.querySelector('.tip').innerText"))
    text = "\n".join(shown)
    for name in NASTY:
        assert name in text
    assert driver.title != "1"
    assert driver.find_elements("tag name", "img") == []
    check_quiet(driver, page)


def test_tables_sort_filter_and_turn_pages(driver: Any, page: Path) -> None:
    from selenium.webdriver.support.ui import Select

    opened(driver, page)
    table = driver.find_element("css selector", '[data-table="collective"]')
    header = next(
        cell for cell in table.find_elements("css selector", "thead th") if cell.text.startswith("exposed")
    )
    header.find_element("tag name", "button").click()
    values = [float(value) for value in cells(driver, "collective", "exposed (ms)")]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) > 1
    assert header.get_attribute("aria-sort") == "descending"
    header.find_element("tag name", "button").click()
    values = [float(value) for value in cells(driver, "collective", "exposed (ms)")]
    assert values == sorted(values)
    Select(table.find_element("css selector", "select[aria-label$='by rank']")).select_by_value("1")
    assert set(cells(driver, "collective", "rank")) == {"1"}
    assert table.find_element("css selector", ".status").text == "9 of 18 rows"
    table.find_element("css selector", "input").send_keys("STEP 2")
    assert set(cells(driver, "collective", "step")) == {"step 2"}
    next(one for one in table.find_elements("tag name", "button") if one.text == "clear").click()
    assert table.find_element("css selector", ".status").text == "18 rows"
    assert cells(driver, "kernel_class", "name").count(NASTY[0]) == 2
    check_quiet(driver, page)


def test_findings_and_rows_lead_to_their_places(driver: Any, page: Path) -> None:
    opened(driver, page)
    whole = view(driver)
    finding = driver.find_element("css selector", "[id^='finding-'] [data-place]")
    finding.click()
    nearer = view(driver)
    assert nearer[1] - nearer[0] < (whole[1] - whole[0]) / 3
    details = driver.find_element("id", "timeline-details").text
    assert "AllReduce" in details
    assert "wait" in details
    assert driver.find_elements("css selector", '[data-table="collective"] tr.marked')
    assert driver.execute_script(
        "const box = document.getElementById('timeline-plot').getBoundingClientRect();"
        "return box.top < innerHeight && box.bottom > 0"
    )
    assert driver.execute_script("return document.activeElement.id") == "timeline-plot"
    row = driver.find_element("css selector", '[data-table="overlap"] tbody button')
    driver.execute_script("arguments[0].click()", row)
    assert "step 0" in driver.find_element("id", "timeline-details").text
    link = driver.find_element("css selector", "[data-rows]")
    wanted = json.loads(link.get_attribute("data-rows"))
    driver.execute_script("arguments[0].click()", link)
    if "rank" in wanted:
        assert set(cells(driver, wanted["table"], "rank")) == {str(wanted["rank"])}
    check_quiet(driver, page)


def test_jumps_to_a_step_a_bucket_and_a_piece_of_the_critical_path(driver: Any, page: Path) -> None:
    from selenium.webdriver.support.ui import Select

    opened(driver, page)
    seen = [view(driver)]
    for menu, place in (("go-step", 2), ("go-bucket", 2), ("go-path", 1)):
        Select(driver.find_element("id", menu)).select_by_index(place)
        seen.append(view(driver))
        if menu == "go-bucket":
            details = driver.find_element("id", "timeline-details").text
            chosen = Select(driver.find_element("id", menu)).first_selected_option.text
            assert chosen.startswith("bucket 0: all reduce")
            assert "bucket\n0" in details
            assert "launched in\nstep 1" in details
    assert len(set(seen)) == 4
    step, bucket = seen[1], seen[2]
    assert step[0] < bucket[0] < bucket[1] < step[1]
    assert "critical path" in driver.find_element("id", "timeline-details").text
    check_quiet(driver, page)


def test_can_be_used_without_a_mouse(driver: Any, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(driver, page)
    body = driver.find_element("tag name", "body")
    body.send_keys(Keys.TAB)
    assert driver.execute_script("return document.activeElement.className") == "skip"
    driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert driver.execute_script("return location.hash") == "#main"
    reached = set()
    for _ in range(60):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(
            driver.execute_script(
                "const one = document.activeElement; return one.id || one.getAttribute('aria-label') || one.textContent"
            )
        )
    assert {"zoom-in", "go-step", "timeline-plot"} <= reached
    unnamed = driver.execute_script(
        """return [...document.querySelectorAll('button, select, input, [tabindex="0"]')].filter((one) =>
          !(one.textContent.trim() || one.getAttribute('aria-label') || one.closest('label')))
          .map((one) => one.outerHTML)"""
    )
    assert unnamed == []
    check_quiet(driver, page)


def test_prints_every_section_in_the_light(driver: Any, page: Path, tmp_path: Path) -> None:
    require("pdftotext", shutil.which("pdftotext") is not None)
    import base64

    opened(driver, page)
    sizes = driver.execute_script(
        """const pictures = () => [...document.querySelectorAll('#timeline-printed canvas')];
        window.dispatchEvent(new Event('beforeprint'));
        const made = pictures().map((one) => [one.height, one.toDataURL().length]);
        window.dispatchEvent(new Event('afterprint'));
        return [...made, pictures().length];"""
    )
    *pictures, left = sizes
    assert left == 0
    assert pictures
    assert all(height < 1400 and length > 5_000 for height, length in pictures)
    printed = driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    (tmp_path / "page.pdf").write_bytes(base64.b64decode(printed["data"]))
    text = subprocess.run(
        ["pdftotext", "-layout", str(tmp_path / "page.pdf"), "-"], capture_output=True, check=True, text=True
    ).stdout
    for words in (
        "Overlap on every rank",
        "Each rank",
        "Timeline",
        "Collectives",
        "Critical path",
        "Where this comes from",
    ):
        assert words in text
    assert "in the timeline" not in text


@pytest.mark.slow
def test_a_million_events_are_a_small_page_of_few_elements(driver: Any, tmp_path: Path) -> None:
    report = tmp_path / "million.sqlite"
    subprocess.run(
        [
            sys.executable,
            str(ROOT / "bench" / "generate.py"),
            str(report),
            "--ranks",
            "10",
            "--kernels",
            "1000000",
        ],
        check=True,
        capture_output=True,
    )
    page = written([report], tmp_path / "page.html")
    assert page.stat().st_size < MOST_BYTES
    opened(driver, page)
    assert driver.execute_script("return document.getElementsByTagName('*').length") < MOST_ELEMENTS
    assert "1,003,000 GPU events, each with its name" in driver.find_element("id", "timeline").text
    driver.find_element("css selector", "[id^='finding-'] [data-place]").click()
    low, high = view(driver)
    assert high - low < 20
    assert "ncclDevKernel" in driver.find_element("id", "timeline-details").text
    check_quiet(driver, page)


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of six ranks of which the third is late."""
    from simulation.export import write
    from simulation.jobs import Job, Planted, simulate

    from nsysddp.questions.communicators import communicators
    from nsysddp.questions.stragglers import stragglers

    folder = tmp_path_factory.mktemp("mapped")
    job = Job(
        ranks=6, steps=5, layers=2, per_host=3, planted=Planted("slow_rank", 1.2, rank=2, phase="backward")
    )
    trace = load(write(simulate(job), folder), launches=True, host_calls=True)
    context = context_of(trace)
    page = html_report(
        analyze(trace), context=context, stragglers=stragglers(context), communicators=communicators(context)
    )
    (folder / "page.html").write_text(page, encoding="utf-8")
    return folder / "page.html"


def test_a_cell_of_the_map_leads_to_its_step_and_rank(driver: Any, mapped: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.select import Select

    opened(driver, mapped)
    canvas = driver.find_element(By.ID, "heat-map")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    # The latest rank is the first row; cells lie 118 px from the left and 22 px from the top.
    wide, tall = canvas.size["width"], canvas.size["height"]
    column, row = (wide - 120) / 5, (tall - 24) / 6
    x, y = 118 + 3.5 * column - wide / 2, 22 + 0.5 * row - tall / 2
    ActionChains(driver).move_to_element_with_offset(canvas, round(x), round(y)).click().perform()
    said = driver.find_element(By.ID, "heat-says").text
    assert said.startswith("rank 2 (host-1), step 3: own time beyond the peers' ")
    shown = "return document.getElementById('timeline-view').textContent"
    assert "step 3" in driver.execute_script(shown) or driver.execute_script("return scrollY") > 0
    assert driver.execute_script("return document.activeElement.closest('#timeline') !== null")
    canvas.send_keys(Keys.ARROW_LEFT)
    assert driver.find_element(By.ID, "heat-says").text.startswith("rank 2 (host-1), step 2")
    Select(driver.find_element(By.ID, "heat-order")).select_by_visible_text("by rank")
    Select(driver.find_element(By.ID, "heat-figure")).select_by_visible_text("bus bandwidth")
    assert "GB/s" in driver.find_element(By.ID, "heat-scale").text
    check_quiet(driver, mapped)


@pytest.fixture(scope="module")
def piped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of four pipeline stages on two hosts."""
    from simulation.export import write
    from simulation.jobs import Job, simulate

    from nsysddp.questions.communicators import communicators

    folder = tmp_path_factory.mktemp("piped")
    trace = load(write(simulate(Job("pp", 4, 4, steps=3, layers=4, per_host=2)), folder), host_calls=True)
    context = context_of(trace)
    page = html_report(analyze(trace), context=context, communicators=communicators(context))
    (folder / "page.html").write_text(page, encoding="utf-8")
    return folder / "page.html"


def test_a_cell_of_the_matrix_of_pairs_leads_to_its_sender(driver: Any, piped: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    opened(driver, piped)
    canvas = driver.find_element(By.ID, "pairs-map")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    wide, tall = canvas.size["width"], canvas.size["height"]
    column, row = (wide - 120) / 4, (tall - 24) / 4
    x, y = 118 + 2.5 * column - wide / 2, 22 + 1.5 * row - tall / 2
    ActionChains(driver).move_to_element_with_offset(canvas, round(x), round(y)).perform()
    says = driver.find_element(By.ID, "pairs-says")
    assert says.text.startswith("rank 1 (host-1), to rank 2: bandwidth, alone on the link ")
    assert "GB/s, sent " in says.text
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert says.text == "rank 1 (host-1), to rank 3: bandwidth, alone on the link nothing, sent nothing"
    canvas.send_keys(Keys.ENTER)
    assert driver.execute_script("return document.activeElement.closest('#timeline') !== null")
    assert driver.find_element(By.ID, "go-rank").get_attribute("value") == "1"
    check_quiet(driver, piped)


def test_groups_of_ranks_and_late_ranks_are_on_the_page(mapped: Path) -> None:
    text = mapped.read_text(encoding="utf-8")
    assert "Rank 2 is late in every step" in text
    assert 'id="communicators"' in text
    assert "reduced in or after backward" in text


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of forty ranks, of which the twenty-first is late."""
    from simulation.export import write
    from simulation.jobs import Job, Planted, simulate

    from nsysddp.questions.stragglers import stragglers

    folder = tmp_path_factory.mktemp("many")
    job = Job(ranks=40, steps=3, layers=2, planted=Planted("slow_rank", 1.3, rank=20, phase="backward"))
    context = context_of(load(write(simulate(job), folder, per_rank=False), launches=True, host_calls=True))
    page = html_report(
        analyze(context.trace), context=context, stragglers=stragglers(context), buckets=buckets(context)
    )
    (folder / "page.html").write_text(page, encoding="utf-8")
    return folder / "page.html"


def test_of_many_ranks_the_late_one_is_drawn_and_any_other_when_it_is_asked_for(
    driver: Any, many: Path
) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.select import Select

    opened(driver, many)
    headings = [one.text for one in driver.find_elements(By.CSS_SELECTOR, "main h2")]
    assert headings[:3] == ["Ranks by step", "Each rank", "Timeline"]
    short = driver.find_elements(By.CSS_SELECTOR, "#ranks > .scroll tbody tr")
    assert len(short) == 32
    assert any(row.text.startswith("20") for row in short)
    assert driver.find_element(By.CSS_SELECTOR, "#ranks summary").text == "All 40 ranks"
    assert len(driver.find_elements(By.CSS_SELECTOR, "#ranks details tbody tr")) == 40
    assert len(driver.find_elements(By.CSS_SELECTOR, "#table-of-bucket .findings li")) <= 3

    drawn = set(
        json.loads(driver.execute_script("return document.getElementById('timeline-data').textContent"))[
            "drawn"
        ]
    )
    assert len(drawn) == 32
    assert 20 in drawn
    tall = "return document.getElementById('timeline-plot').offsetHeight"
    before = driver.execute_script(tall)
    absent = next(rank for rank in range(40) if rank not in drawn)
    Select(driver.find_element(By.ID, "go-rank")).select_by_visible_text(f"rank {absent}")
    assert driver.execute_script(tall) > before
    Select(driver.find_element(By.ID, "go-rank")).select_by_visible_text("rank 20")
    box = "const at = document.getElementById('timeline').getBoundingClientRect();"
    box += "return [at.top, at.bottom, innerHeight]"
    top, bottom, window = driver.execute_script(box)
    assert top < window
    assert bottom > 0
    check_quiet(driver, many)


def test_jitter_is_not_painted_as_lateness(mapped: Path, many: Path) -> None:
    """Full colour begins at 3 % of the step, from which on a rank is called late."""
    for page in (mapped, many):
        text = page.read_text(encoding="utf-8")
        heat = json.loads(re.search(r'id="heat-data">(.*?)</script>', text, re.DOTALL)[1])
        lateness = heat["figures"][0]
        every = sorted(abs(value) for line in lateness["values"] for value in line)
        assert lateness["least"] > 5 * every[len(every) // 2]
