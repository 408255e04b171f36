"""How do classes of GPU time look and read? One order, one colour and one label each, in every picture and page.

Colours are Okabe and Ito's, told apart by every kind of colour vision. Where two share a lane they also differ in
lightness or hatching, so that a grey print still tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

INK, GREY, LIGHT, TRACK, PAPER = "#1A1C1F", "#5F6670", "#C9CDD2", "#F3F4F6", "#FFFFFF"
"""Text, secondary text, rules, the empty ground of a lane, the page."""


@dataclass(frozen=True)
class Look:
    """How one class of time is shown.

    Attributes:
        key: its name in code.
        label: its name for people, in a legend.
        fill: colour of its bars.
        ink: colour of text on it.
        hatch: matplotlib hatch pattern over the fill; empty for none.
        hatch_ink: colour of the hatch.
    """

    key: str
    label: str
    fill: str
    ink: str = PAPER
    hatch: str = ""
    hatch_ink: str = INK


_LOOKS = (
    Look("compute", "compute", "#0072B2"),
    Look("spin", "spin (delay kernel)", "#56B4E9", INK, "////", "#0A5C8C"),
    Look("transfer", "communication: transfer", "#D55E00"),
    Look("wait", "communication: wait for later ranks", "#F7E58A", INK, "\\\\\\\\", "#B78A00"),
    Look("unsplit", "communication: not split", "#E69F00", INK, "....", "#7A4A00"),
    Look("exposed", "exposed communication", "#000000"),
    Look("hidden", "hidden communication", "#C7B3D9", INK),
    Look("memory", "memory copy or set", "#009E73", PAPER, "----", "#00513B"),
    Look("graph", "CUDA graph, content unknown", "#E9D3E1", INK, "xxxx", "#8A4F73"),
    Look("idle", "idle", "#AEB4BC", INK),
)

LOOKS: dict[str, Look] = {look.key: look for look in _LOOKS}
"""Every class of time by its key, in the order of lanes, legends and stacked bars."""

PHASES: dict[str, Look] = {
    look.label: look
    for look in (
        Look("phase: data", "data", "#FFFFFF", INK),
        Look("phase: forward", "forward", "#DADEE3", INK),
        Look("phase: backward", "backward", "#A3ABB5", INK),
        Look("phase: optimizer", "optimizer", "#555D68"),
    )
}
"""The default phases of a step: greys, so that what the host did stands back behind what the GPU did."""

_OTHER_PHASES = ("#C2C8D0", "#8A929D", "#EEF0F2", "#6E7682")


def phase_look(name: str, place: int = 0) -> Look:
    """The look of a phase; phases of one's own take further greys by their place."""
    if name in PHASES:
        return PHASES[name]
    fill = _OTHER_PHASES[place % len(_OTHER_PHASES)]
    return Look(f"phase: {name}", printable(name), fill, PAPER if fill == "#6E7682" else INK)


def printable(text: str) -> str:
    """Text without control characters, which could steer a terminal or break a line."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def short(text: str, length: int) -> str:
    """The text made printable and, where it is longer than ``length`` characters, cut in its middle."""
    text = printable(text)
    if len(text) <= length:
        return text
    head = length // 2
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


FORMATS = ("png", "svg", "pdf")
"""Endings of a picture's file name."""

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "svg.hashsalt": "nsysddp",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "hatch.linewidth": 0.7,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": LIGHT,
    "xtick.color": INK,
    "ytick.color": INK,
    # Names come from people: a $ in one is not mathematics.
    "text.parse_math": False,
}
"""matplotlib settings for drawing and for saving: text stays text, and the same picture is the same bytes."""


def metadata(kind: str) -> dict[str, Any]:
    """Metadata of a picture file of this kind, without its date: same picture, same bytes."""
    return {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
