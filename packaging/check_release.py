"""Do the tag, the version and the changelog agree? ``python packaging/check_release.py TAG``"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version() -> str:
    """The version, which stands in one place."""
    found = re.search(
        r'^__version__ = "(.+)"$', (ROOT / "nsysddp" / "__init__.py").read_text("utf-8"), re.MULTILINE
    )
    assert found
    return found[1]


def sections(changelog: str) -> dict[str, str]:
    """Heading of each section of the changelog to its text, newest first."""
    parts = re.split(r"^## (.+)$", changelog, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], (text.strip() for text in parts[1::2]), strict=True))


def disagreement(tag: str, changelog: str) -> str | None:
    """What does not agree with the tag; None if all does."""
    if tag != f"v{version()}":
        return f"the tag is {tag}, and nsysddp/__init__.py says {version()}"
    found = sections(changelog)
    released = [
        heading for heading in found if re.fullmatch(rf"{re.escape(version())} - \d{{4}}-\d\d-\d\d", heading)
    ]
    if not released:
        return f"CHANGELOG.md has no section '## {version()} - YYYY-MM-DD'"
    if found.get("Unreleased"):
        return f"CHANGELOG.md still has lines under Unreleased: move them to {version()}"
    return None


if __name__ == "__main__":
    sys.exit(disagreement(sys.argv[1], (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
