"""Patterns of a policy: addresses of tables, and names of tables in catalogs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from urllib.parse import unquote

from delta_maintenance.address import encode_part


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
        for pattern_segment, segment in zip(self._segments, segments, strict=False):
            if pattern_segment == "**":
                return True
            if not _expression(pattern_segment).fullmatch(segment):
                return False
        return len(segments) <= len(self._segments)

    def matches(self, uri: str) -> bool:
        """Whether an address matches the pattern."""
        return _expression(self.text.rstrip("/")).fullmatch(uri.rstrip("/")) is not None

    @cached_property
    def _segments(self) -> list[str]:
        return [segment for segment in self.text[len(self.root) :].split("/") if segment]


@lru_cache(maxsize=4096)
def _expression(text: str) -> re.Pattern[str]:
    pieces = re.split(r"(/\*\*(?=/|$)|\*|\?)", text)
    return re.compile("".join(_WILD.get(piece) or re.escape(piece) for piece in pieces), re.DOTALL)


_WILD = {"/**": "(?:/[^/]+)*", "*": "[^/]*", "?": "[^/]"}


@dataclass(frozen=True)
class NamePattern:
    """A parsed pattern of names: parts that are separated by dots, from the catalog's key on.

    `*` matches any text and `?` one character of a part; `**` as a whole part matches any number
    of parts, including none. Everything else is literal, with `%2E` for a dot within a part.
    """

    text: str

    @property
    def key(self) -> str:
        """The first part: the key of a catalog in the policy."""
        return self.text.partition(".")[0]

    @property
    def is_name(self) -> bool:
        """Whether it names one table, without wildcards."""
        return not re.search(r"[*?]", self.text)

    @property
    def below(self) -> str:
        """The parts below the catalog, encoded as in names."""
        return ".".join(self._parts)

    def matches(self, below: Sequence[str]) -> bool:
        """Whether a name matches, given its parts below the catalog."""
        path = "/".join(encode_part(name_part) for name_part in below)
        return _expression("/".join(["", *self._parts])).fullmatch(f"/{path}") is not None

    def leads_to(self, below: Sequence[str]) -> bool:
        """Whether a namespace can contain a match, given its parts below the catalog."""
        for pattern_part, name_part in zip(self._parts, below, strict=False):
            if pattern_part == "**":
                return True
            if not _expression(pattern_part).fullmatch(encode_part(name_part)):
                return False
        return len(below) < len(self._parts)

    def contains(self, below: Sequence[str]) -> bool:
        """Whether a name, or a namespace above it, matches."""
        return any(self.matches(below[:length]) for length in range(1, len(below) + 1))

    @cached_property
    def _parts(self) -> list[str]:
        return [_literal(name_part) for name_part in self.text.split(".")[1:]]


def _literal(name_part: str) -> str:
    """Encodes the literal characters of a part as names are encoded."""
    pieces = re.split(r"([*?]+)", name_part)
    return "".join(
        piece if number % 2 else encode_part(unquote(piece)) for number, piece in enumerate(pieces)
    )
