"""Documents that are sections of a page of the site, with their links and anchors.

A line `<!-- include: NAME.md -->` stands for a document beside the page. Its heading becomes a
section with the name of the document as its anchor, and the anchors of its own sections begin with
that name, because the documents on one page repeat titles such as *Options*.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

INCLUDE = re.compile(r"^<!-- include: (\S+) -->$", re.MULTILINE)
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_LOCAL_LINK = re.compile(r"\]\(#([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a document is shown: a page of the site, and the anchor of a section of it."""

    page: str
    anchor: str = ""

    def fragment(self, heading: str) -> str:
        """Returns the end of a link to a heading of the document, or to the whole document."""
        anchor = "-".join(part for part in (self.anchor, heading) if part)
        return f"#{anchor}" if anchor else ""


def anchor_of(document: str) -> str:
    """Returns the anchor of the section that a document becomes."""
    return PurePosixPath(document).stem


def as_section(text: str, anchor: str) -> str:
    """Returns a document as a section, one level deeper, with explicit anchors."""
    used: set[str] = set()

    def heading(match: re.Match[str]) -> str:
        if len(match[1]) == 1:
            return f"#{match[0]} {{ #{anchor} }}"
        name = _unused(_slug(match[2]), used)
        return f"#{match[0]} {{ #{anchor}-{name} }}"

    def prose(text: str) -> str:
        return _LOCAL_LINK.sub(rf"](#{anchor}-\1)", _HEADING.sub(heading, text))

    return outside_of_code(text.strip() + "\n", prose)


def outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """Returns the text with everything but its code blocks changed."""
    return "".join(piece if is_code else change(piece) for is_code, piece in _pieces(text))


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    end = 0
    for fence in _FENCE.finditer(text):
        yield False, text[end : fence.start()]
        yield True, fence[0]
        end = fence.end()
    yield False, text[end:]


def _slug(title: str) -> str:
    """The anchor that the site generator makes of a title."""
    ascii_title = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_title).strip().lower())


def _unused(name: str, used: set[str]) -> str:
    number, unique = 0, name
    while unique in used:
        number += 1
        unique = f"{name}_{number}"
    used.add(unique)
    return unique
