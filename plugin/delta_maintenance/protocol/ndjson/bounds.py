"""Limits for lines of JSON, checked before they reach a parser without limits.

Deep nesting overflows the stack of a parser. If every line has different keys, the size of the
resulting columns is quadratic in the size of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.limits import MOST_NESTING

MOST_KEYS = 256
"""The maximum number of distinct keys in a set of lines that is parsed into columns."""
MOST_CELLS = 50_000_000
_MOST_LINE = 64 << 20
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_STEPS = np.zeros(256, np.int64)
_STEPS[[*b"{["]] = 1
_STEPS[[*b"}]"]] = -1


def require_bounded(line: bytes) -> None:
    """`CorruptTableError` for a line that is too long or too deeply nested to become objects."""
    if len(line) > _MOST_LINE:
        raise CorruptTableError(f"a line of {len(line)} bytes; no action needs so many")
    if is_too_deep(line):
        raise CorruptTableError(f"a line of JSON nested more than {MOST_NESTING} levels deep")


def is_too_deep(line: bytes) -> bool:
    """Whether objects and lists are nested more than `MOST_NESTING` levels deep."""
    if line.count(b"{") + line.count(b"[") <= MOST_NESTING:
        return False
    # Brackets in strings do not count; an unterminated string is invalid JSON anyway.
    outside = np.frombuffer(_TEXT.sub(b"", line), np.uint8)
    depths = np.cumsum(_STEPS[outside])
    return bool(len(depths) and depths.max() > MOST_NESTING)


def has_too_many_keys(lines: Sequence[bytes], *, most_cells: int = 0) -> bool:
    """Whether a column for each key of these lines would take too much time and memory.

    A table of at most `most_cells` values is accepted whatever its keys. Also true for invalid
    lines; the caller then parses the lines one by one and names the invalid one.
    """
    colons = sum(line.count(b":") for line in lines)
    if colons <= MOST_KEYS or colons * len(lines) <= most_cells:
        return False
    keys: set[str] = set()

    def collect(pairs: list[tuple[str, Any]]) -> None:
        keys.update(key for key, _ in pairs)

    decoder = json.JSONDecoder(object_pairs_hook=collect)
    for line in lines:
        try:
            decoder.decode(line.decode())
        except (ValueError, RecursionError):
            return True
        if len(keys) > MOST_KEYS:
            return True
    return False
