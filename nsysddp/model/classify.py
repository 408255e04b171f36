"""What a GPU event is: kernel names to classes and collective kinds, decided by rules that are data."""

from __future__ import annotations

import hashlib
import re
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nsysddp.model.errors import UsageError
from nsysddp.model.inputs import read_bytes, read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

UNCLASSIFIED = "unclassified"
"""Name of the rule of a kernel that no rule knows; it counts as compute and is listed."""

KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "send_recv",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
    "unknown",
)
_KERNEL_CLASSES = ("communication", "spin", "compute")
_LOOKS_COLLECTIVE = re.compile(
    r"(?i)(?!triton_).*(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|all2all|a2a|broadcast_kernel|lamport|multimem"
    r"|nvls|symm_?mem|ubx_|(^|_)lsa_|reshard|send_?recv|(ep|moe|expert)_?(dispatch|combine)|(dispatch|combine)_?(ep|tokens))"
)


@dataclass(frozen=True)
class Verdict:
    """What the rules say of one name: class, the rule's pattern, and the collective kind if it tells."""

    class_: str
    rule: str
    kind: str | None


@dataclass(frozen=True)
class Rule:
    """One row of the rule table.

    Attributes:
        pattern: regular expression; of the whole base name, or searched in the demangled name if ``full``.
        class_: communication, spin or compute.
        kind: collective kind; None unless communication.
        source: where the name comes from.
        full: match against the demangled name.
        hints: literals one of which every name of a ``full`` rule contains.
        unless: names of this form (whole base name) are not meant.
    """

    pattern: re.Pattern[str]
    class_: str
    kind: str | None
    source: str
    full: bool = False
    hints: tuple[str, ...] = ()
    unless: re.Pattern[str] | None = None

    def matches(self, base: str, full: str) -> bool:
        """Does this rule speak about the name?"""
        if self.unless and self.unless.fullmatch(base):
            return False
        return bool(self.pattern.search(full) if self.full else self.pattern.fullmatch(base))


@dataclass(frozen=True)
class Rules:
    """An ordered rule table; the first rule that matches decides."""

    rules: tuple[Rule, ...]
    own: int = 0
    """How many leading rules the user gave: only those may speak about copies and memsets."""
    sha256: str | None = None
    """Hash of the user's rule file; None if there is none."""

    @cached_property
    def full_name_hints(self) -> tuple[str, ...]:
        """Literals whose presence in an export means that short names are not enough."""
        return tuple(dict.fromkeys(hint for rule in self.rules if rule.full for hint in rule.hints))

    def kernel(self, name: str) -> Verdict:
        """Class of a kernel by its (short or demangled) name."""
        base = base_name(name)
        for rule in self.rules:
            if rule.matches(base, name):
                return Verdict(rule.class_, rule.pattern.pattern, rule.kind)
        return Verdict("compute", UNCLASSIFIED, None)

    def memory(self, operation: str) -> Verdict:
        """Class of a copy or memset: memory, unless one of the user's own rules says otherwise."""
        for rule in self.rules[: self.own]:
            if rule.matches(operation, operation):
                return Verdict(rule.class_, rule.pattern.pattern, rule.kind)
        return Verdict("memory", "memory operation", None)


def looks_collective(name: str) -> bool:
    """Does the name of an unclassified kernel read like a collective? Then people must be told."""
    return bool(_LOOKS_COLLECTIVE.match(base_name(name)))


def base_name(name: str) -> str:
    """The kernel's own name: no return type, namespaces, template arguments, parameters or clone suffix."""
    text = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "").strip()
    depth = 0
    kept = []
    for position, char in enumerate(text):
        if char == "<":
            depth += 1
        elif char == ">" and depth:
            depth -= 1
        elif char == "(" and not depth and position:
            break
        elif not depth:
            kept.append(char)
    bare = "".join(kept).strip().rsplit("::", 1)[-1].rsplit(" ", 1)[-1]
    return bare or text


def load_rules(user_file: str | Path | None = None) -> Rules:
    """The shipped rule table, after the user's own rules if a file is given.

    Raises:
        UsageError: if the file is no TOML, or a rule in it is malformed.
    """
    shipped = _parse(Path(__file__).with_name("kernel_rules.toml"))
    if user_file is None:
        return Rules(shipped)
    own = _parse(Path(user_file))
    digest = hashlib.sha256(read_bytes(Path(user_file))).hexdigest()
    return Rules(own + shipped, own=len(own), sha256=digest)


def _parse(path: Path) -> tuple[Rule, ...]:
    try:
        document = tomllib.loads(read_text(path))
    except OSError as error:
        raise UsageError(f"cannot read the rules: {error.strerror}", file=path) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the rules are no TOML: {error}", file=path) from error
    rows = document.get("rule", [])
    if not isinstance(rows, list) or not rows:
        raise UsageError("no [[rule]] found", file=path, do="see kernel_rules.toml for the form")
    return tuple(_rule(row, number, path) for number, row in enumerate(rows, 1))


def _rule(row: Any, number: int, path: Path) -> Rule:
    def wrong(what: str) -> UsageError:
        return UsageError(f"rule {number}: {what}", file=path, do="see kernel_rules.toml for the form")

    if not isinstance(row, dict):
        raise wrong("is no table")
    unknown = set(row) - {"pattern", "class", "kind", "source", "match", "hint", "except"}
    if unknown:
        raise wrong(f"unknown key {sorted(unknown)[0]!r}")
    class_ = row.get("class")
    kind = row.get("kind")
    if class_ not in _KERNEL_CLASSES:
        raise wrong(f"class must be one of {', '.join(_KERNEL_CLASSES)}")
    if kind is not None and (class_ != "communication" or kind not in KINDS):
        raise wrong(f"kind must be one of {', '.join(KINDS)} and goes with class communication")
    if row.get("match", "base") not in ("base", "full"):
        raise wrong('match must be "base" or "full"')
    full = row.get("match") == "full"
    hints = row.get("hint", [])
    if full and (not isinstance(hints, list) or not hints):
        raise wrong('match = "full" needs hint = ["literal", ...]')
    try:
        pattern = re.compile(str(row["pattern"]))
        unless = re.compile(str(row["except"])) if "except" in row else None
    except KeyError as error:
        raise wrong("pattern is missing") from error
    except re.error as error:
        raise wrong(f"bad regular expression: {error}") from error
    return Rule(
        pattern=pattern,
        class_=class_,
        kind=kind if class_ == "communication" else None,
        source=str(row.get("source", "user")),
        full=full,
        hints=tuple(map(str, hints)),
        unless=unless,
    )
