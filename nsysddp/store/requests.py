"""What was asked, as a row of the results database: from a document, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nsysddp.model.errors import EvidenceError
from nsysddp.questions.request import KINDS, Request
from nsysddp.store import models


def row_of(document: Mapping[str, Any]) -> models.Request | None:
    """The request of a document; None where it does not say what was asked.

    Raises:
        EvidenceError: it says it in another form.
    """
    request = document.get("request")
    if request is None:
        return None
    try:
        content = Request.of(request).as_dict()
        return models.Request(
            **{name: storable(value) if isinstance(value, str) else value for name, value in content.items()}
        )
    except (ValueError, TypeError, AttributeError):
        raise EvidenceError(
            "the result document says in another form what was asked", do="save what --format json prints"
        ) from None


def content_of(row: models.Request | None) -> dict[str, Any] | None:
    """A row as the request of a document."""
    return None if row is None else {name: getattr(row, name) for name in KINDS}


def storable(text: str) -> str:
    """Text that either database can hold: NUL and lone surrogates become U+FFFD (the document keeps them)."""
    return re.sub("[\0\ud800-\udfff]", "\ufffd", text)
