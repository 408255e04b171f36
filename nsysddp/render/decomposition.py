"""What is each rank's step made of? One bar a rank, its parts in the colours of the timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsysddp.model.units import ms
from nsysddp.render import per_rank
from nsysddp.render.theme import GREY, INK, LOOKS, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nsysddp.model.result import Result

_WIDTH_IN = 11.0
_MOST = 64
"""Ranks that a page holds; of more, the slowest."""


def draw_decomposition(result: Result) -> Figure:
    """What are the steady windows of each rank made of? The parts add up to them.

    Returns:
        The picture; ``timeline.save`` writes it.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    every = per_rank.bars(result)
    slowest = sorted(every, key=lambda bar: (-bar.window_ns, bar.rank))[:_MOST]
    bars = sorted(slowest, key=lambda bar: bar.rank)
    height = 1.25 + 0.34 * len(bars)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH_IN, height), facecolor="white")
        axes = figure.add_axes((0.08, 0.55 / height, 0.89, 0.34 * len(bars) / height))
        looks: dict[str, str] = {}
        for row, bar in enumerate(bars):
            at = 0.0
            for label, key, length, share in bar.parts:
                look = LOOKS[key]
                looks[label] = key
                axes.barh(
                    row, ms(length), left=at, height=0.72, color=look.fill, hatch=look.hatch or None,
                    edgecolor=look.hatch_ink if look.hatch else look.fill, lw=0,
                )  # fmt: skip
                if share >= 0.06:
                    text = f"{ms(length):,.2f} ms ({share:.0%})" if share >= 0.16 else f"{share:.0%}"
                    box = (
                        {"boxstyle": "square,pad=0.12", "fc": look.fill, "ec": "none"} if look.hatch else None
                    )
                    axes.text(
                        at + ms(length) / 2,
                        row,
                        text,
                        ha="center",
                        va="center",
                        color=look.ink,
                        fontsize=8,
                        bbox=box,
                    )
                at += ms(length)
        axes.set_yticks(range(len(bars)), [f"rank {bar.rank}" for bar in bars])
        axes.set_ylim(len(bars) - 0.5, -0.5)
        axes.set_xlim(0, max((ms(bar.window_ns) for bar in bars), default=1.0) or 1.0)
        axes.tick_params(length=0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.set_xlabel("ms, sum of the steady windows; the parts add up to them", color=GREY)
        order = [label for _, label, key in per_rank.PARTS if label in looks] + [
            label for label in looks if label not in {name for _, name, _ in per_rank.PARTS}
        ]
        handles = [
            Patch(
                facecolor=LOOKS[looks[label]].fill,
                hatch=LOOKS[looks[label]].hatch or None,
                edgecolor=LOOKS[looks[label]].hatch_ink,
                lw=0.3,
                label=label,
            )
            for label in order
        ]
        figure.text(
            0.02, 1 - 0.25 / height, "What each rank's time is made of", fontsize=11, weight="bold", color=INK
        )
        if len(bars) < len(every):
            figure.text(0.55, 1 - 0.25 / height, f"the {_MOST} slowest of {len(every)} ranks", color=GREY)
        figure.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(0.015, 1 - 0.36 / height), ncols=len(handles) or 1,
            frameon=False, fontsize=8.5, handlelength=1.2, columnspacing=1.4, borderpad=0,
        )  # fmt: skip
    return figure
