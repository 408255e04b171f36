"""What does a text of the report become in the copy?"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from nsysddp.evidence.redact.allowed import allow_list, any_of
from nsysddp.ingest.diagnostics import public
from nsysddp.model.errors import UsageError
from nsysddp.model.markers import parse_bucket_mark, parse_rank_mark

if TYPE_CHECKING:
    from nsysddp.evidence.redact.outcome import Policy


_WHERE_DEFINED = re.compile(
    r"((?:lambda|unnamed (?:struct|class|union|enum)|anonymous (?:struct|class|union)) at ).{0,4096}?(:\d+:\d+)"
)
_SEGMENT = r"[^\s/\\:<>()\[\]{}'\",;|*?&=]+"
_PATH = re.compile(
    # absolute, of a drive, of a home, or relative to a dot; else relative with a file name or three segments
    rf"(?<![\w<])(?<!operator)(?:[A-Za-z]:|~[\w.-]*|\.{{1,2}})?(?:[/\\]{_SEGMENT})+[/\\]?"
    r"|[\w.+@-]{1,255}(?:[/\\][\w.+@-]+)*[/\\][\w+@-]+\.[A-Za-z]\w{0,4}\b"
    r"|[\w.+@-]{1,255}(?:[/\\][\w.+@-]+){2,}"
)
HOST_SETTING = re.compile(r"(?i)(host|computer|node)[ _]?name")
_COULD_IDENTIFY = re.compile(r"[@.:-]|[0-9]{2}")
"""Whatever looks like a machine or a person holds one of these; most names are spared the search."""
_SHORTEST_HOST = 5
"""A shorter word is as likely part of a kernel's name as the name of a host."""
_FREE_TAIL = "optimizer.step#"
"""What follows it is free text, though the whole is the name of a phase."""


def scrub_paths(text: str) -> str:
    """The text with every file path in it as ``<path>``; C++ operators and template arguments stay as they are."""
    if "/" not in text and "\\" not in text and " at " not in text:
        return text
    return _PATH.sub("<path>", _WHERE_DEFINED.sub(r"\1<path>\2", text))


class Names:
    """What a text of the report becomes in the copy, by the kind of cell it stands in."""

    def __init__(self, policy: Policy, hosts: dict[str, str]) -> None:
        self._key = hashlib.blake2b(policy.salt.encode()).digest() if policy.salt else b""
        self._keep = _user_pattern(policy.keep_ranges, "--keep-ranges")
        self._hide = _user_pattern(policy.hide, "--hide")
        self._hosts = hosts
        self._scrub_identifiers = not policy.keep_identifiers
        self._own: re.Pattern[str] | None = None
        self._allow = allow_list()
        self.redact = lru_cache(maxsize=1 << 16)(self._redact)

    def _redact(self, kind: str, text: str) -> str | None:
        if kind in self._allow.values:
            return text if self._allow.values[kind].fullmatch(text) else None
        if kind == "kernel":
            return self._kernel(text)
        if kind == "range":
            return self._range(text)
        if kind == "host":
            return text if text == "Local (CLI)" else self.host(text)
        if kind == "diagnostic":
            return public(text)
        return text if self._allow.names[kind].fullmatch(text) else self._token(kind, text)

    def _token(self, prefix: str, text: str) -> str:
        """A neutral name, equal for equal names in every report redacted with the same salt."""
        return f"{prefix}-{hashlib.blake2b(text.encode(), digest_size=6, key=self._key).hexdigest()}"

    def hide_hosts(self, hosts: Iterable[str]) -> None:
        """Hide the names of these hosts in other names too, with and without their domain."""
        names = {part for host in hosts for part in (host, host.partition(".")[0])}
        telling = sorted(
            name for name in names if len(name) >= _SHORTEST_HOST and name.lower() != "localhost"
        )
        self._own = (
            any_of((rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])" for name in reversed(telling)), re.I)
            if telling and self._scrub_identifiers
            else None
        )
        self.redact.cache_clear()

    def _scrubbed(self, text: str) -> str:
        """The text without paths and without what looks like a machine or a person."""
        if self._scrub_identifiers and _COULD_IDENTIFY.search(text):
            for kind, pattern in self._allow.identifiers.items():
                text = pattern.sub(f"<{kind}>", text)
        if self._own is not None:
            text = self._own.sub("<host>", text)
        return scrub_paths(text)

    def _hidden(self, text: str) -> bool:
        return self._hide is not None and self._hide.fullmatch(text) is not None

    def _kernel(self, text: str) -> str:
        return self._token("kernel", text) if self._hidden(text) else self._scrubbed(text.split("\0", 1)[0])

    def _range(self, text: str) -> str:
        if self._hidden(text):
            return self._token("range", text)
        if self._keep is not None and self._keep.fullmatch(text):
            return self._scrubbed(text)
        if not text or parse_rank_mark(text) or parse_bucket_mark(text):
            return text
        if text.lower().startswith(_FREE_TAIL):
            head, tail = text[: len(_FREE_TAIL)], text[len(_FREE_TAIL) :]
            known = self._allow.names["optimizer"].fullmatch(tail)
            return head + (tail if known else self._token("range", tail))
        return text if self._allow.names["range"].fullmatch(text) else self._token("range", text)

    def host(self, text: str) -> str:
        """The alias of a host, by order of first appearance over all reports that share the aliases."""
        if text not in self._hosts:
            taken = set(self._hosts.values())
            free = next(alias for n in itertools.count(1) if (alias := f"host-{n}") not in taken)
            redacted_before = re.fullmatch(r"host-\d{1,6}", text) and text not in taken
            self._hosts[text] = text if redacted_before else free
        return self._hosts[text]

    def setting(self, table: str, key: str, value: str) -> str | None:
        """The value of a row of a key/value table, or None if the row is to be dropped."""
        if table == "TARGET_INFO_SYSTEM_ENV" and HOST_SETTING.fullmatch(key):
            return self.host(value)
        rules = self._allow.settings[table]
        return value if any(k.fullmatch(key) and v.fullmatch(value) for k, v in rules) else None


def _user_pattern(patterns: tuple[str, ...], option: str) -> re.Pattern[str] | None:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"{option} {pattern!r} is no regular expression ({error})") from error
    return any_of(patterns, re.IGNORECASE) if patterns else None
