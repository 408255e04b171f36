"""How long does a page of a million events take to open? ``python bench/page.py`` (needs chromium and selenium)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--window-size=1360,1000"):
        options.add_argument(flag)
    with tempfile.TemporaryDirectory() as folder:
        report, page = Path(folder) / "million.sqlite", Path(folder) / "page.html"
        words = [
            sys.executable,
            str(HERE / "generate.py"),
            str(report),
            "--ranks",
            "10",
            "--kernels",
            "1000000",
        ]
        subprocess.run(words, check=True, capture_output=True)
        subprocess.run([sys.executable, "-m", "nsysddp", "report", str(report), "-o", str(page)], check=True)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            for _ in range(3):
                driver.get("about:blank")
                begin = time.perf_counter()
                driver.get(page.as_uri())
                driver.execute_async_script(
                    "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
                )
                print(f"{time.perf_counter() - begin:.2f} s, {page.stat().st_size / 1e6:.1f} MB")
        finally:
            driver.quit()


if __name__ == "__main__":
    main()
