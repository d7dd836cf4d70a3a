"""Charts as drawings and as words, and what all charts have in common."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

_WIDTH, _HEIGHT = 400, 240
_FONT_SIZE = 12
"""Of all texts, as the style of the page has it: Pygal leaves room for them."""
_SVG = "{http://www.w3.org/2000/svg}"
_TICKS = 6
"""The maximum number of labels on the axis of a chart."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing, and the same information in words."""

    title: str
    explanation: str
    """Of a single value, which is not worth a drawing: all there is to say."""
    svg: Markup | None = None
    columns: tuple[str, ...] = ()
    """The headings of the rows."""
    rows: tuple[tuple[str, ...], ...] = ()
    """The newest values, or all values, as text for screen readers."""


@cache
def library() -> Any:
    """Pygal, imported for the first chart."""
    before = list(sys.meta_path)
    import pygal

    # Pygal installs a finder for its plugins that causes a warning of Python 3.11 at every further
    # import; later versions ignore it.
    sys.meta_path[:] = [
        finder
        for finder in sys.meta_path
        if finder in before or not type(finder).__module__.startswith("pygal")
    ]
    return pygal


def _style() -> Any:
    library()
    from pygal.style import Style

    sizes = ("label", "major_label", "legend", "title", "no_data")
    return Style(**{f"{name}_font_size": _FONT_SIZE for name in sizes})


def xy(title: str, **more: Any) -> Any:
    """A chart of points, or of lines between them."""
    return library().XY(**settings(title), **more)


def settings(title: str) -> dict[str, Any]:
    """The settings of all charts."""
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        # Not drawn: the title of the drawing, for screen readers.
        "title": None,
        "no_data_text": f"{title}: no data",
        "legend_at_bottom": True,
        "legend_box_size": 9,
        "truncate_legend": -1,
        "margin": 6,
        "margin_bottom": 18,
        # For the half of the last label that is right of its mark.
        "margin_right": 16,
        "legend_at_bottom_columns": 3,
        "style": _style(),
        # No scripts and styles of the library: the page has its own styles for both themes.
        "js": (),
        "css": (),
    }


def drawn(chart: Any) -> Markup:
    """The drawing without scripts and styles, with titles that browsers show as tooltips."""
    root = chart.render_tree()
    for element in root.iter():
        # Comments have no text as their tag. Names have the namespace if lxml is installed.
        if isinstance(element.tag, str):
            element.tag = element.tag.removeprefix(_SVG)
    for parent in list(root.iter()):
        for child in list(parent):
            overlay = (child.get("class") or "").endswith(("text-overlay", "tooltip-overlay"))
            is_element = isinstance(child.tag, str)
            if not is_element or child.tag in ("defs", "script", "style") or overlay:
                parent.remove(child)
        _with_tooltip(parent)
        # The page contains several drawings, and an empty `id` is invalid HTML.
        for attribute in ("id", "style"):
            parent.attrib.pop(attribute, None)
    title = root.find("title")
    if title is not None:
        root.remove(title)
    root.set("aria-hidden", "true")
    root.set("focusable", "false")
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _with_tooltip(parent: ElementTree.Element) -> None:
    """Browsers show `<title>`; the `<desc>` elements are for the library's own script."""
    descriptions = {child.get("class"): child.text or "" for child in parent.findall("desc")}
    for child in parent.findall("desc"):
        parent.remove(child)
    if "value" not in descriptions:
        return
    for title in parent.findall("title"):
        descriptions.setdefault("x_label", title.text or "")
        parent.remove(title)
    title = ElementTree.SubElement(parent, "title")
    lines = (descriptions.get("label") or descriptions.get("x_label"), descriptions["value"])
    title.text = " – ".join(dict.fromkeys(line for line in lines if line))


def point(x: float, y: float, label: str) -> dict[str, Any]:
    """A point of `xy`; browsers show its label."""
    return {"value": (x, y), "label": label}


def whole_ticks(lowest: int, highest: int) -> list[int]:
    """Round whole numbers from `first` to `last`."""
    step = 1
    steps = (factor * 10**power for power in range(16) for factor in (1, 2, 5))
    for step in steps:
        if (highest - lowest) / step < _TICKS:
            break
    start = -(-lowest // step) * step
    return list(range(start, highest + 1, step)) or [lowest]


_MINUTE = 60
_STEPS = [
    minutes * _MINUTE
    for minutes in (1, 5, 15, 30, 60, 180, 360, 720, 1440, 2880, 10_080, 40_320, 120_960, 483_840)
]


def _step(span: float) -> int:
    return next((step for step in _STEPS if span / step <= _TICKS), _STEPS[-1])


def time_ticks(earliest: float, latest: float) -> list[float]:
    """Round times from `first` to `last`, in seconds."""
    step = _step(latest - earliest)
    start = -(-int(earliest) // step) * step
    return [float(value) for value in range(start, int(latest) + 1, step)] or [earliest]


def moment(value: float, span: float) -> str:
    """A time for an axis of that many seconds."""
    at = datetime.fromtimestamp(value, UTC)
    if span > 300 * 86_400:
        return f"{at:%Y-%m}"
    return f"{at:%m-%d}" if _step(span) >= 86_400 or f"{at:%H:%M}" == "00:00" else f"{at:%H:%M}"
