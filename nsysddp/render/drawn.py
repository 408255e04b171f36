"""What does a picture show? Its words and places as text, written into the picture file and read back from it.

The pixels of a picture depend on the version of the drawing library; what was drawn does not. A picture from elsewhere
can so be compared with one that is drawn here even where the two libraries would not draw the same pixels.
"""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING, Any

from nsysddp.render import theme

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

KEY = "nsysddp drawn"
"""Under this name the data lie in a picture: a text chunk of a PNG, the description of an SVG."""

_LARGEST = 64 << 20
"""Bytes of data that are read out of a picture at most: a hostile file must not unpack without end."""


def drawn(figure: Figure) -> str:
    """Every text, line, bar and shape of a figure with its place, as one line of JSON; ticks and looks stay out."""
    content = {
        "texts": [text.get_text() for text in figure.texts],
        "legends": [text.get_text() for legend in figure.legends for text in legend.get_texts()],
        "axes": [_axes(axes) for axes in figure.axes],
    }
    return json.dumps(content, ensure_ascii=True, separators=(",", ":"))


def _axes(axes: Axes) -> dict[str, Any]:
    from matplotlib.collections import Collection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    content: dict[str, Any] = {
        "titles": [axes.get_title(loc) for loc in ("left", "center", "right")],
        "labels": [axes.get_xlabel(), axes.get_ylabel()],
        "ticks": [_ticks(axis) for axis in (axes.xaxis, axes.yaxis)],
        "texts": [],
        "lines": [],
        "bars": [],
        "shapes": [],
    }
    for artist in axes.get_children():
        if artist is axes.patch:
            continue
        if isinstance(artist, Line2D):
            content["lines"].append(_numbers(artist.get_xydata()))
        elif isinstance(artist, Patch):
            content["bars"].append(_numbers(artist.get_patch_transform().transform(_corners(artist))))
        elif isinstance(artist, Collection):
            # How a shape is closed differs between versions, where it lies does not.
            content["shapes"] += [_numbers(path.get_extents().get_points()) for path in artist.get_paths()]
        else:
            content["texts"] += _text(artist, axes)
    return content


def _text(artist: Artist, axes: Axes) -> list[Any]:
    from matplotlib.text import Text

    if not isinstance(artist, Text) or artist in (axes.title, *_side_titles(axes)) or not artist.get_text():
        return []
    return [[artist.get_text(), *_numbers([artist.get_unitless_position()])[0]]]


def _ticks(axis: Axis) -> list[str]:
    """Words at an axis that were chosen here; numbers that the library chose are its own."""
    from matplotlib.ticker import FixedFormatter

    formatter = axis.get_major_formatter()
    return list(map(str, formatter.seq)) if isinstance(formatter, FixedFormatter) else []


def _side_titles(axes: Axes) -> tuple[Any, ...]:
    return tuple(getattr(axes, name, None) for name in ("_left_title", "_right_title"))


def _corners(patch: Any) -> Any:
    return patch.get_path().get_extents().get_points()


def _numbers(points: Any) -> list[list[float]]:
    """Points with nine digits: the last ones of a float depend on the machine."""
    return [[float(f"{value:.9g}") for value in point] for point in points]


def metadata(kind: str, data: str) -> dict[str, Any]:
    """What ``Figure.savefig`` needs beside ``metadata`` of the theme to write the data into a picture."""
    if kind == "svg":
        return {"metadata": {**theme.metadata(kind), "Description": data}}
    from PIL.PngImagePlugin import PngInfo

    chunks = PngInfo()
    chunks.add_text(KEY, data, zip=True)
    return {"pil_kwargs": {"pnginfo": chunks}}


def data_of(picture: bytes, kind: str) -> str | None:
    """The data in a picture; None where it holds none or cannot be read."""
    try:
        return _of_svg(picture) if kind == "svg" else _of_png(picture)
    except Exception:  # noqa: BLE001 (a damaged or hostile picture ends in any error of its reader)
        return None


def _of_svg(picture: bytes) -> str | None:
    if len(picture) > _LARGEST or b"<!ENTITY" in picture:
        return None
    element = ElementTree.fromstring(picture).find(".//{http://purl.org/dc/elements/1.1/}description")
    return None if element is None else element.text


def _of_png(picture: bytes) -> str | None:
    from PIL import Image

    with Image.open(io.BytesIO(picture), formats=["PNG"]) as opened:
        data = opened.info.get(KEY)
    return data if isinstance(data, str) else None
