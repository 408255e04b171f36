"""Does what was built install and work without extras? ``python packaging/check_install.py DIST [PYTHON...]``

For each Python, the wheel (and with the first also the sdist) is installed into a new environment in a temporary
folder, away from the checkout. There the package is imported, the demo runs, a report is analysed, and a command that
needs an extra says so in one line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def check(python: str, archive: Path) -> None:
    """Install one archive and try it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(folder, python, "-m", "venv", "environment")
        bin_ = folder / "environment" / "bin"
        run(
            folder, bin_ / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", archive
        )
        version = run(folder, bin_ / "python", "-c", "import nsysddp; print(nsysddp.__version__)").strip()
        assert version in archive.name, (version, archive.name)
        assert version in run(folder, bin_ / "nsysddp", "--version")
        run(folder, bin_ / "nsysddp", "demo", "--out", "demo")
        capture = folder / "demo" / "gpt_slow_link.sqlite.gz"
        document = json.loads(run(folder, bin_ / "nsysddp", "diagnose", capture, "--format", "json"))
        assert document["tables"]["diagnosis"], "no diagnosis"
        run(folder, bin_ / "nsysddp", "report", capture, "-o", "page.html")
        refused = run(folder, bin_ / "nsysddp", "runs", "list", ends=2)
        assert "nsysddp[store]" in refused, refused
        assert len(refused.strip().splitlines()) == 1, refused
        sys.stdout.write(f"{archive.name}: works with {run(folder, bin_ / 'python', '--version').strip()}\n")


def run(folder: Path, *argv: str | Path, ends: int = 0) -> str:
    """What a command prints; its exit code must be ``ends``."""
    # Nothing of the checkout or the caller's settings may help.
    clean = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "NSYSDDP_DB", "VIRTUAL_ENV")
    }
    ran = subprocess.run(
        [*map(str, argv)], cwd=folder, env=clean, capture_output=True, text=True, check=False
    )
    if ran.returncode != ends:
        sys.exit(f"{' '.join(map(str, argv))} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
    return ran.stdout + ran.stderr


def main() -> None:
    """Command line."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    dist = Path(sys.argv[1]).resolve()
    wheels, sdists = sorted(dist.glob("*.whl")), sorted(dist.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        sys.exit(f"{dist.name} holds {len(wheels)} wheels and {len(sdists)} sdists, not one of each")
    for number, python in enumerate(sys.argv[2:] or [sys.executable]):
        for archive in [*wheels, *(sdists if number == 0 else [])]:
            check(python, archive)


if __name__ == "__main__":
    main()
