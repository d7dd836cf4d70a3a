"""Parsing the prefixes of file action lines: the kind of action and its path.

Nearly all writers put the path first, and paths rarely need escapes. The path can then be found in
the bytes of many lines at once, about twenty times as fast as with a regular expression.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_WINDOW = 96
"""Bytes searched per step, a multiple of 8; most paths end within one window."""
_ROWS = 1 << 10
"""Lines processed per step, so that the intermediate results stay in the processor's cache."""

PADDING = b'"' * _WINDOW
"""Must follow the lines, so that the search for the end of a path always finds a quote."""


@dataclass(frozen=True, slots=True)
class LinePrefixes:
    """The actions and paths of lines that start with a file action and its path."""

    rows: Ints
    """The indexes of these lines among the given ones, ascending."""
    is_remove: Bools
    is_cdc: Bools
    """All other rows are adds."""
    path_starts: Ints
    path_ends: Ints
    """The offset of the next quote, which ends the path if it was written without escapes."""


def read_prefixes(data: bytes | memoryview, starts: Ints) -> LinePrefixes:
    """Parses the prefixes of the lines at these offsets.

    Every line ends with a newline, and `data` ends with `PADDING`.
    """
    words: Words = np.ndarray((len(data) - 7,), np.dtype("<u8"), data, strides=(1,))
    first, second, third = words[starts], words[starts + 8], words[starts + 11]
    is_add = (first == _word(_ADD[:8])) & (second == _word(_ADD[8:]))
    is_cdc = (first == _word(_CDC[:8])) & (second == _word(_CDC[8:]))
    is_remove = (first == _word(_REMOVE[:8])) & (third == _word(_REMOVE[11:]))
    is_remove &= second == _word(_REMOVE[8:16])
    rows = np.flatnonzero(is_add | is_remove | is_cdc)
    is_remove = is_remove[rows]
    path_starts = starts[rows] + np.where(is_remove, len(_REMOVE), len(_ADD))
    return LinePrefixes(rows, is_remove, is_cdc[rows], path_starts, _text_ends(data, path_starts))


_ADD, _REMOVE, _CDC = (b'{"%s":{"path":"' % name for name in (b"add", b"remove", b"cdc"))
_ONES = np.uint64(0x0101010101010101)
_TOPS = np.uint64(0x8080808080808080)
_QUOTES = _ONES * np.uint64(ord('"'))


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))


def _text_ends(data: bytes | memoryview, starts: Ints) -> Ints:
    """The offset of the first quote at or after each of the given offsets."""
    windows = np.ndarray((len(data) - _WINDOW + 1,), f"V{_WINDOW}", data, strides=(1,))
    ends = np.empty_like(starts)
    for first in range(0, len(starts), _ROWS):
        at = starts[first : first + _ROWS]
        rows = np.arange(first, first + len(at))
        while len(rows):
            words: Words = windows[at].view("<u8").reshape(len(at), -1)
            words ^= _QUOTES
            # Sets the top bit of each byte that was a quote, exactly up to the first one in a word.
            quotes = words - _ONES
            quotes &= ~words & _TOPS
            word = (quotes != 0).argmax(axis=1)
            lowest = quotes[np.arange(len(at)), word]
            found = lowest != 0
            # Only the lowest set bit is reliable.
            lowest &= ~lowest + np.uint64(1)
            byte = np.log2(lowest[found].astype(np.float64)).astype(np.int64) // 8
            ends[rows[found]] = at[found] + 8 * word[found] + byte
            rows, at = rows[~found], at[~found] + _WINDOW
    return ends
