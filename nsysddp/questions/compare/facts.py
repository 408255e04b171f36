"""What besides the times has to be alike, and what a capture says of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from nsysddp.questions.compare.tables import UNLIKE

if TYPE_CHECKING:
    from nsysddp.questions.compare.run import Run


REFUSED = ("GPU", "ranks", "program", "backend", "warm-up", "nsys flags", "CUDA graph trace")
"""Sides that differ in one of these are not compared unless that is asked for."""

UNRECORDED = ("program", "warm-up", "seed", "nsys flags")
"""What only run.json of a capture tells."""


def facts_of(capture: Mapping[str, Any]) -> dict[str, str]:
    """What run.json of a capture says that has to be alike: configuration, program, nsys flags, versions.

    Values of the program's own arguments are shown only where they are numbers: others can be paths or secrets, and are
    told apart by the first digits of their hash.
    """
    facts: dict[str, str] = {}
    configuration = dict(capture.get("configuration") or {})
    spelled = {"warmup": "warm-up", "steps": "measured steps", "cuda_graph_trace": "CUDA graph trace"}
    for key, value in configuration.items():
        if key not in ("ranks", "nproc", "export"):  # how many, and in which form they were kept
            facts[spelled.get(key, key.replace("_", " "))] = _text(value)
    workload = capture.get("workload") or {}
    for key in ("bucket_cap_mib", "layout_bytes"):
        if key in workload:
            facts.setdefault(key.replace("_", " "), _text(workload[key]))
    for key, value in (workload.get("options") or {}).items():
        facts.setdefault(spelled.get(key, f"option {key.replace('_', ' ')}"), _text(value))
    profile = (capture.get("command") or {}).get("profile")
    flags, program, arguments = _command(profile or [])
    if profile:  # a results database keeps no command line: what it said is then not known, and not nothing
        facts.update({"nsys flags": " ".join(flags), "program": program})
    if not workload.get("options"):
        facts.update(_arguments(arguments))
    for key, value in (capture.get("versions") or {}).items():
        facts[f"version of {key}"] = _text(value)
    for key, value in (capture.get("environment") or {}).items():
        facts[f"environment {key}"] = _text(value)
    git = capture.get("git") or {}
    if "commit" in git:
        facts["git commit"] = f"{str(git['commit'])[:12]}{' with changes' if git.get('changed') else ''}"
    return facts


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_text(item) for item in value)
    return "none" if value is None else str(value)


def _arguments(words: Sequence[str]) -> dict[str, str]:
    """Each option of a program with its values, numbers as they are and text as the first digits of its hash."""
    found: dict[str, list[str]] = {}
    option = "argument"
    for word in words:
        if re.fullmatch(r"--?[A-Za-z][\w-]*(=.*)?", word, re.DOTALL):
            name, equals, value = word.partition("=")
            option = f"argument {name}"
            found.setdefault(option, [])
            if equals:
                found[option].append(_shown(value))
        else:
            found.setdefault(option, []).append(_shown(word))
    return {name: " ".join(values) or "given" for name, values in found.items()}


def _shown(value: str) -> str:
    if re.fullmatch(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", value, re.IGNORECASE):
        return value
    return f"text {hashlib.sha256(value.encode()).hexdigest()[:6]}"


def _public_flag(flag: str) -> str:
    """A flag of nsys; its value only where it is a plain setting."""
    name, equals, value = flag.partition("=")
    plain = re.fullmatch(r"[\w,.:-]*", value) and "env" not in name
    return flag if plain else f"{name}{equals}..."


_PLACES = ("--output", "--out", "--force-overwrite")


def _command(argv: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """The flags of nsys, the program's base name, and its arguments, without where output goes."""
    flags: list[str] = []
    rest = list(argv)
    at = next((i for i, word in enumerate(rest) if word.rpartition("/")[2].startswith("nsys")), None)
    if at is not None:
        after = rest[at + 1 :]
        if after[:1] == ["profile"]:
            after = after[1:]
        while after and after[0].startswith("-"):
            flags.append(_public_flag(after.pop(0)))
        rest = after
    script = next((i for i, word in enumerate(rest) if word.endswith(".py")), None)
    if script is None:
        return _without_places(flags), " ".join(rest[:1]), _without_places(rest[1:])
    return _without_places(flags), rest[script].rpartition("/")[2], _without_places(rest[script + 1 :])


def _without_places(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _PLACES:
            skip = True
        elif word.partition("=")[0] not in _PLACES:
            kept.append(word)
    return kept


def unlike(base: Sequence[Run], new: Sequence[Run]) -> pl.DataFrame:
    """In what besides the times are the sides, or the runs of one, not alike (``UNLIKE``)?

    A fact that only some of the runs tell is left out here, and warned of by ``compare``.
    """
    rows = []
    every = (*base, *new)
    names = dict.fromkeys(name for run in every for name in run.facts)
    for name in sorted(names, key=lambda name: (name not in REFUSED, list(names).index(name))):
        sides = [
            " / ".join(dict.fromkeys(run.facts[name] for run in side if name in run.facts))
            for side in (base, new)
        ]
        if len({run.facts[name] for run in every if name in run.facts}) > 1:
            rows.append(
                {
                    "what": name,
                    "base": sides[0] or "not recorded",
                    "new": sides[1] or "not recorded",
                    "refused": name in REFUSED,
                }
            )
    return UNLIKE.frame(rows)
