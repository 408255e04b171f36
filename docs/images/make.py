"""Draw the pictures of the README and the site from bundled captures: ``python docs/images/make.py``."""

from __future__ import annotations

from pathlib import Path

import nsysddp
from nsysddp import samples
from nsysddp.questions import context_of
from nsysddp.render import drawn
from nsysddp.render.timeline import draw_timeline, save

HERE = Path(__file__).resolve().parent
PICTURES = {"delay_cap4.png": samples.TWELVE_BUCKETS, "delay_cap64.png": samples.ONE_BUCKET}


def draw(folder: Path = HERE) -> None:
    """Write every picture into a folder."""
    for name, capture in PICTURES.items():
        trace = nsysddp.load(samples.path(capture), launches=True)
        figure = draw_timeline(context_of(trace))
        save(figure, folder / name, data=drawn.drawn(figure))


if __name__ == "__main__":
    draw()
