"""Fills of bars, legends and the timeline, on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nsysddp.render import per_rank
from nsysddp.render.theme import INK, LOOKS, PAPER

_DARK = {
    "compute": "#2A93D4",
    "exposed": "#FFFFFF",
    "graph": "#8A6A7E",
    "idle": "#4D555F",
    "inferred": "#3A4048",
}
"""Fills that a dark page needs lighter or darker."""

_EXTRA = {
    "host": ("host call", "#8C7BB8", PAPER),
    "inferred": ("gap, queued or unknown", "#C9CDD2", INK),
}
"""Looks that only a critical path needs: label, fill, ink."""


def all_looks() -> dict[str, dict[str, str]]:
    """Label, fill and ink of each kind of time, and those of a dark page, by key."""
    made = {key: (look.label, look.fill, look.ink) for key, look in LOOKS.items()} | _EXTRA
    return {
        key: {
            "label": label,
            "fill": fill,
            "ink": ink,
            "dark": _DARK.get(key, fill),
            "dark_ink": INK if key == "exposed" else PAPER if key in _DARK else ink,
        }
        for key, (label, fill, ink) in made.items()
    }


def look_style() -> str:
    """The fills of bars and legends, light and, on screens, dark."""
    looks = all_looks()
    light = "".join(f".fill-{key}{{fill:{look['fill']}}}" for key, look in looks.items())

    def dark(scope: str) -> str:
        return "".join(f"{scope} .fill-{key}{{fill:{fill}}}" for key, fill in _DARK.items())

    return (
        f"{light}\n@media screen{{{dark(':root[data-theme=dark]')}"
        f"@media (prefers-color-scheme:dark){{{dark(':root:not([data-theme])')}}}}}\n"
    )


def legend(timeline: dict[str, Any], has_path: bool) -> list[tuple[str, str]]:
    """Keys and labels of what the timeline shows."""
    used = {
        part["look"]
        for rank in timeline["ranks"]
        for lane in rank["lanes"]
        for part in lane["parts"]
        if part["set"]["gap"][1]
    }
    keys = [key for key in LOOKS if key in used] + (["host", "inferred"] if has_path else [])
    return [(key, all_looks()[key]["label"]) for key in keys]


def used_looks(bars: Iterable[tuple[tuple[str, str, int, float], ...]]) -> list[tuple[str, str]]:
    """Keys and labels of the parts that the bars have."""
    labels = {look: label for parts in bars for label, look, _, _ in parts}
    return [(key, labels[key]) for key in all_looks() if key in labels]


def bar_of(name: str, total: int, parts: Iterable[tuple[str, str, int, float]]) -> dict[str, Any]:
    """One bar as rectangles on 1,000 units; the words carry the same numbers."""
    at, rectangles, words = 0.0, [], []
    for label, look, ns, share in parts:
        said = f"{label} {per_rank.milliseconds(ns)} ms ({100 * share:.1f} %)"
        words.append(said)
        rectangles.append(
            {"x": f"{1000 * at:.2f}", "width": f"{1000 * share:.2f}", "look": look, "words": said}
        )
        at += share
    return {
        "rank": name,
        "parts": rectangles,
        "words": f"{name}, {per_rank.milliseconds(total)} ms: {', '.join(words)}",
    }
