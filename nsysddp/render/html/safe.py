"""How do texts of a trace get into the page, and can nothing in them be markup or program?

Texts are escaped where they are markup and spelled out where they are data; only the page's own programs and style are
trusted, and the policy names their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from nsysddp.model.names import visible


@cache
def environment() -> Any:
    """The templates: every text is escaped, and what cannot be seen is spelled out."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
    from markupsafe import Markup

    def safe(value: Any) -> Any:
        return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    return Environment(
        loader=PackageLoader(__package__, "page"),
        autoescape=select_autoescape(default=True, default_for_string=True, enabled_extensions=("j2",)),
        undefined=StrictUndefined,
        finalize=safe,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def trusted(text: str) -> Any:
    """Our own program or style, put into the page as it is; it must not be able to end its element."""
    from markupsafe import Markup

    assert "</script" not in text.lower()
    assert "</style" not in text.lower()
    return Markup(text)


def json_text(value: Any) -> Any:
    """JSON for a script element: what could end the element, or be a line end in old readers, is spelled out."""
    from markupsafe import Markup

    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def policy(styles: Iterable[str], programs: Iterable[str]) -> str:
    """The Content-Security-Policy that lets these styles and programs run, and nothing else."""

    def hashes(texts: Iterable[str]) -> str:
        digests = (hashlib.sha256(text.encode()).digest() for text in texts)
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes(programs)}; style-src {hashes(styles)}; "
        "base-uri 'none'; form-action 'none'"
    )


def template_text(name: str) -> str:
    """A file of ``page/``."""
    return (files(__package__) / "page" / name).read_text(encoding="utf-8")


def vendored_text(name: str) -> str:
    """A file of ``vendor/``."""
    return (files(__package__) / "vendor" / name).read_text(encoding="utf-8")
