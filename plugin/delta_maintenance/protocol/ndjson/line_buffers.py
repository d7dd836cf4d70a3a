"""Files of the log cut into lines, and which of these lines are file actions in the plain form.

Nearly all lines of file actions are written in one plain form, which a regular expression
recognises from end to end several times faster than JSON can be parsed. What is done here takes
Arrow and NumPy long, and lets other threads of Python on meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.columns.arrays import to_bools
from delta_maintenance.protocol.ndjson.line_prefixes import PADDING
from delta_maintenance.protocol.ndjson.split import split

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LogTexts:
    """Files of the log, or some whole lines of them, one behind the other."""

    names: tuple[str, ...]
    """Relative to the table root, for messages."""
    sizes: tuple[int, ...]
    """Bytes of each, its last newline among them."""
    data: bytes | memoryview
    """All of them, and the `PADDING` behind."""

    @staticmethod
    def of(*files: tuple[str, bytes]) -> LogTexts:
        """Files by name. A newline that is missing at the end of one is added."""
        room = Room(sum(len(text) + 1 for _, text in files))
        for name, text in files:
            room.add(name, text)
        return room.texts()

    def text(self, index: int) -> bytes:
        """One of the files."""
        start = sum(self.sizes[:index])
        return bytes(self.data[start : start + self.sizes[index]])


class Room:
    """Room for files of the log, to be filled again and again.

    The system takes longer to find fresh room than a file takes to be copied.
    """

    def __init__(self, size: int) -> None:
        self._data = bytearray(size + len(PADDING))
        self.clear()

    def clear(self) -> None:
        """Makes room; whoever still has the texts finds others in their place."""
        self._names: list[str] = []
        self._sizes: list[int] = []
        self._end = 0

    def add(self, name: str, text: bytes) -> bool:
        """Takes in a file, with the newline that is missing at its end.

        False where there is no room beside those that are here; a first one gets what it needs.
        """
        start, end = self._end, self._end + len(text)
        missing = not text.endswith(b"\n")
        needed = end + missing + len(PADDING)
        if needed > len(self._data):
            if self._names:
                return False
            self._data = bytearray(needed)
        self._data[start:end] = text
        if missing:
            self._data[end : end + 1] = b"\n"
        self._end = end + missing
        self._names.append(name)
        self._sizes.append(self._end - start)
        return True

    def texts(self) -> LogTexts:
        """The files that are here."""
        end = self._end + len(PADDING)
        self._data[self._end : end] = PADDING
        return LogTexts(tuple(self._names), tuple(self._sizes), memoryview(self._data)[:end])


@dataclass(frozen=True, slots=True)
class TextLines:
    """The lines of some files of the log."""

    files: LogTexts
    texts: pa.LargeStringArray
    """Every line with its newline; not a copy."""
    ends: Ints
    """Behind the newline of each."""
    source: Ints
    """Which of the files each comes from, counted from 0."""
    plain: Ints | None
    """Which are file actions in the plain form, ascending. None: all that begin like one."""

    @property
    def starts(self) -> Ints:
        """Where each line begins."""
        return np.append(0, self.ends)[:-1]


def cut(files: LogTexts) -> TextLines:
    """The lines, of which all that begin like file actions are known to be in the plain form."""
    ends = line_ends(files.data)
    source = np.searchsorted(np.cumsum(files.sizes), ends)
    return TextLines(files, texts_of(files.data, np.append(0, ends)), ends, source, None)


def recognise(files: LogTexts) -> TextLines:
    """The lines, each looked at from end to end.

    `CorruptTableError` names the file and the line that is not UTF-8.
    """
    lines = cut(files)
    _require_utf8(lines.texts, files)
    plain = np.flatnonzero(to_bools(pc.match_substring_regex(lines.texts, PLAIN)))
    return TextLines(files, lines.texts, lines.ends, lines.source, plain)


def line_ends(data: bytes | memoryview) -> Ints:
    """Behind each newline."""
    text = np.frombuffer(data, np.uint8)
    ends = [
        np.flatnonzero(text[start : start + _CACHED_BYTES] == ord("\n")) + (start + 1)
        for start in range(0, len(text), _CACHED_BYTES)
    ]
    return np.concatenate([np.zeros(0, np.int64), *ends])


def texts_of(data: bytes | memoryview, offsets: Ints) -> pa.LargeStringArray:
    """Adjacent pieces of a text, by where each begins and where the last one ends; not a copy."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)


_TEXT = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"'
_ENTRY = rf"{_TEXT}:(?:{_TEXT}|null)"
_FIELDS = {
    "size|modificationTime|deletionTimestamp|baseRowId|defaultRowCommitVersion": (
        r"-?(?:0|[1-9][0-9]*)"
    ),
    "dataChange|extendedFileMetadata": r"(?:true|false)",
    "partitionValues|tags": rf"(?:\{{(?:{_ENTRY}(?:,{_ENTRY})*)?\}}|null)",
    "stats|clusteringProvider": rf"(?:{_TEXT}|null)",
}
_FIELD = "|".join(f'"(?:{names})":{value}' for names, value in _FIELDS.items())
# The path first and without escapes, then known fields but for deletion vectors: such a line is one
# JSON object with one action in it, and its path is its logical file.
PLAIN = r'^\{"(?:add|remove|cdc)":\{"path":"[^"\\\x00-\x1f]+"' rf"(?:,(?:{_FIELD}))*\}}\}}\n$"

_CACHED_BYTES = 256 << 10
"""Looked at in one go: what is found out of them fits into the processor's cache, too."""


def _require_utf8(texts: pa.LargeStringArray, files: LogTexts) -> None:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        for index, name in enumerate(files.names):
            split(name, files.text(index))
        raise
