"""A picture of the log of a table: its newest commits by size, checkpoints and log compactions."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delta_maintenance.operations.health.models import CommitPoint

_WIDTH, _HEIGHT = 640, 150
_LEFT, _TOP, _BOTTOM = 8, 30, 124
_COMMIT, _CHECKPOINT, _COMPACTION = "#8a94a6", "#1f9d6b", "#d9822b"
_INK = "#7a8394"


def log_picture(commits: Sequence[CommitPoint]) -> str:
    """Returns Markdown with the picture, a few kilobytes for any log: three paths and some text."""
    svg = base64.b64encode(log_svg(commits).encode()).decode()
    newest = commits[-1].version if commits else None
    return f"![the log up to version {newest}](data:image/svg+xml;base64,{svg})"


def log_svg(commits: Sequence[CommitPoint]) -> str:
    """Returns the picture. The height of a bar is the logarithm of the commit's bytes."""
    step = (_WIDTH - 2 * _LEFT) / max(len(commits), 1)
    largest = math.log2(max((point.bytes for point in commits), default=0) + 2)

    def bar(index: int, point: CommitPoint) -> str:
        height = (_BOTTOM - _TOP) * math.log2(point.bytes + 2) / largest
        return f"M{_x(index, step)} {_BOTTOM}v-{height:.0f}"

    bars = "".join(bar(index, point) for index, point in enumerate(commits))
    checkpoints = _marks(
        (index for index, point in enumerate(commits) if point.is_checkpoint), step
    )
    compactions = _marks(
        (index for index, point in enumerate(commits) if point.is_compaction), step
    )
    width = max(min(step * 0.7, 14), 0.8)
    ends = (commits[0].version, commits[-1].version) if commits else (0, 0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="11" fill="{_INK}">'
        f'<path d="{bars}" stroke="{_COMMIT}" stroke-width="{width:.1f}"/>'
        f'<path d="{checkpoints}" fill="{_CHECKPOINT}"/>'
        f'<path d="{compactions}" fill="{_COMPACTION}"/>'
        f"{_legend()}"
        f'<text x="{_LEFT}" y="{_HEIGHT - 4}">version {ends[0]}</text>'
        f'<text x="{_WIDTH - _LEFT}" y="{_HEIGHT - 4}" text-anchor="end">version {ends[1]}</text>'
        "</svg>"
    )


def _x(index: int, step: float) -> str:
    return f"{_LEFT + (index + 0.5) * step:.1f}"


def _marks(indexes: Iterable[int], step: float) -> str:
    """Returns triangles below the bars."""
    return "".join(f"M{_x(index, step)} {_BOTTOM + 2}l4 7h-8z" for index in indexes)


def _legend() -> str:
    names = {"commit, by bytes": _COMMIT, "checkpoint": _CHECKPOINT, "log compaction": _COMPACTION}
    return "".join(
        f'<circle cx="{_LEFT + 4 + index * 130}" cy="11" r="4" fill="{color}"/>'
        f'<text x="{_LEFT + 13 + index * 130}" y="15">{name}</text>'
        for index, (name, color) in enumerate(names.items())
    )
