"""Patterns of addresses: `*` within one folder's name, `**` for any folders."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache


@dataclass(frozen=True)
class Pattern:
    """A parsed pattern.

    `*` matches any text and `?` one character, both without slashes; `**` as a whole segment
    matches any number of folders, including none. Everything else is literal.
    """

    text: str

    @cached_property
    def root(self) -> str:
        """The fixed beginning, without its last slash: where discovery starts."""
        fixed = re.split(r"[*?]", self.text, maxsplit=1)[0]
        root = fixed.rpartition("/")[0] if fixed != self.text else fixed
        return root or "/"

    def leads_on(self, path: str) -> bool:
        """Whether a folder, relative to the root, can match or contain a match."""
        segments = path.split("/")
        for wanted, segment in zip(self._segments, segments, strict=False):
            if wanted == "**":
                return True
            if not _expression(wanted).fullmatch(segment):
                return False
        return len(segments) <= len(self._segments)

    def matches(self, uri: str) -> bool:
        """Whether an address matches the pattern."""
        return _expression(self.text.rstrip("/")).fullmatch(uri.rstrip("/")) is not None

    @cached_property
    def _segments(self) -> list[str]:
        return [part for part in self.text[len(self.root) :].split("/") if part]


@lru_cache(maxsize=4096)
def _expression(text: str) -> re.Pattern[str]:
    pieces = re.split(r"(/\*\*(?=/|$)|\*|\?)", text)
    return re.compile("".join(_WILD.get(piece) or re.escape(piece) for piece in pieces), re.DOTALL)


_WILD = {"/**": "(?:/[^/]+)*", "*": "[^/]*", "?": "[^/]"}
