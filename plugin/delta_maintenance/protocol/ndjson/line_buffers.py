"""Lines of the log in bytes: their prefixes, and buffers of lines in the plain form.

Nearly all lines of file actions are written in one plain form, with the path first. A regular
expression recognises it several times faster than JSON can be parsed, and the path is found in the
bytes of many lines at once. The time is spent in Arrow and NumPy, which release the GIL.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.columns import to_bools
from delta_maintenance.protocol.ndjson.split import split

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
    head, second, third = words[starts], words[starts + 8], words[starts + 11]
    is_add = (head == _word(_ADD[:8])) & (second == _word(_ADD[8:]))
    is_cdc = (head == _word(_CDC[:8])) & (second == _word(_CDC[8:]))
    is_remove = (head == _word(_REMOVE[:8])) & (third == _word(_REMOVE[11:]))
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
    for start in range(0, len(starts), _ROWS):
        at = starts[start : start + _ROWS]
        rows = np.arange(start, start + len(at))
        while len(rows):
            words: Words = windows[at].view("<u8").reshape(len(at), -1)
            words ^= _QUOTES
            # Sets the top bit of each byte that was a quote, exactly up to the first one in a word.
            quotes = words - _ONES
            quotes &= ~words & _TOPS
            word = (quotes != 0).argmax(axis=1)
            lowest = quotes[np.arange(len(at)), word]
            has_quote = lowest != 0
            # Only the lowest set bit is reliable.
            lowest &= ~lowest + np.uint64(1)
            byte = np.log2(lowest[has_quote].astype(np.float64)).astype(np.int64) // 8
            ends[rows[has_quote]] = at[has_quote] + 8 * word[has_quote] + byte
            rows, at = rows[~has_quote], at[~has_quote] + _WINDOW
    return ends


@dataclass(frozen=True, slots=True)
class BufferedFiles:
    """Files of the log, or complete lines of them, concatenated in one buffer."""

    names: tuple[str, ...]
    """Paths relative to the table root, for messages."""
    sizes: tuple[int, ...]
    """The size of each file in bytes, including the last newline."""
    data: bytes | memoryview
    """The files, followed by `PADDING`."""

    @staticmethod
    def of(*files: tuple[str, bytes]) -> BufferedFiles:
        """A buffer with the given files. A missing newline at the end of a file is added."""
        buffer = LogBuffer(sum(len(text) + 1 for _, text in files))
        for name, text in files:
            buffer.add(name, text)
        return buffer.files()

    def text(self, index: int) -> bytes:
        """The text of one file."""
        start = sum(self.sizes[:index])
        return bytes(self.data[start : start + self.sizes[index]])


class LogBuffer:
    """A reusable buffer for files of the log.

    Copying a file into memory that is already mapped is faster than allocating new memory.
    """

    def __init__(self, size: int) -> None:
        self._data = bytearray(size + len(PADDING))
        self.clear()

    def clear(self) -> None:
        """Removes all files. Contents returned by `files` earlier are overwritten from now on."""
        self._names: list[str] = []
        self._sizes: list[int] = []
        self._end = 0

    def add(self, name: str, text: bytes) -> bool:
        """Adds a file, with a newline if it lacks one at the end.

        Returns False if the file does not fit besides the present ones. The buffer grows for a
        first file that does not fit.
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

    def files(self) -> BufferedFiles:
        """The files in the buffer; valid until `clear`."""
        end = self._end + len(PADDING)
        self._data[self._end : end] = PADDING
        return BufferedFiles(tuple(self._names), tuple(self._sizes), memoryview(self._data)[:end])


@dataclass(frozen=True, slots=True)
class TextLines:
    """The lines of files of the log."""

    files: BufferedFiles
    texts: pa.LargeStringArray
    """Every line with its newline, without a copy."""
    ends: Ints
    """The offset after the newline of each line."""
    source: Ints
    """The index of the file that each line comes from."""
    plain: Ints | None
    """The indexes of file actions in the plain form, ascending. None means all lines that start
    like a file action."""

    @property
    def starts(self) -> Ints:
        """The offset of each line."""
        return np.append(0, self.ends)[:-1]


def split_plain_lines(files: BufferedFiles) -> TextLines:
    """The lines of files whose file actions are known to be all in the plain form."""
    ends = line_ends(files.data)
    source = np.searchsorted(np.cumsum(files.sizes), ends)
    return TextLines(files, texts_of(files.data, np.append(0, ends)), ends, source, None)


def split_lines(files: BufferedFiles) -> TextLines:
    """The lines of any files, with the file actions in the plain form detected.

    Raises `CorruptTableError`, with the file and the line, for text that is not UTF-8.
    """
    lines = split_plain_lines(files)
    _require_utf8(lines.texts, files)
    plain = np.flatnonzero(to_bools(pc.match_substring_regex(lines.texts, PLAIN)))
    return TextLines(files, lines.texts, lines.ends, lines.source, plain)


def line_ends(data: bytes | memoryview) -> Ints:
    """The offset after each newline."""
    text = np.frombuffer(data, np.uint8)
    ends = [
        np.flatnonzero(text[start : start + _CACHED_BYTES] == ord("\n")) + (start + 1)
        for start in range(0, len(text), _CACHED_BYTES)
    ]
    return np.concatenate([np.zeros(0, np.int64), *ends])


def texts_of(data: bytes | memoryview, offsets: Ints) -> pa.LargeStringArray:
    """Adjacent pieces of a text, given their offsets and the end of the last one; not a copy."""
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
# The path first and without escapes, then known fields except deletion vectors. Such a line is one
# JSON object with one action, and its path is the key of its logical file.
PLAIN = r'^\{"(?:add|remove|cdc)":\{"path":"[^"\\\x00-\x1f]+"' rf"(?:,(?:{_FIELD}))*\}}\}}\n$"

_CACHED_BYTES = 256 << 10
"""Bytes searched per step, so that input and result fit into the processor's cache."""


def _require_utf8(texts: pa.LargeStringArray, files: BufferedFiles) -> None:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        for index, name in enumerate(files.names):
            split(name, files.text(index))
        raise
