"""A 64-bit hash of each string in an Arrow column, without a Python object per string."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_FINAL = np.uint64(0xD6E8FEB86659FD93)
_ROWS = 1 << 15  # small enough for intermediate results to stay in the processor's cache
_FEW = 32
"""Up to this number of strings, a loop over words in Python takes less time than NumPy's calls."""
_BLOCK = 1 << 19


def hash_texts(texts: pa.StringArray) -> Hashes:
    """Returns the hash of each string, equal in every process; different strings may collide.

    Each string is read as little-endian words of eight bytes, the last one padded with zeros. The
    cost is a few vector operations per word; of the longest strings, a few Python operations.
    """
    hashes = np.empty(len(texts), np.uint64)
    for start in range(0, len(texts), _ROWS):
        piece = texts.slice(start, _ROWS)
        hashes[start : start + len(piece)] = _hash_piece(piece)
    return hashes


def hash_between(
    data: bytes | memoryview | npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> Hashes:
    """Returns the hashes of substrings of `data`, none of which may extend into its last eight
    bytes.
    """
    words: npt.NDArray[np.uint64] = np.ndarray(
        (len(data) - 7,), np.dtype("<u8"), data, strides=(1,)
    )
    lengths = ends - starts
    hashes = lengths.astype(np.uint64) * _MULTIPLIER
    whole = int(lengths.min()) // 8 * 8 if len(lengths) > _FEW else 0
    for at in range(0, whole, 8):
        _mix(hashes, words[starts + at])
    rows = np.flatnonzero(lengths > whole)
    at = whole
    while len(rows) > _FEW:
        rest = np.minimum(lengths[rows] - at, 8).astype(np.uint64)
        word = words[starts[rows] + at] & (
            np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - rest * np.uint64(8))
        )
        mixed = hashes[rows]
        _mix(mixed, word)
        hashes[rows] = mixed
        at += 8
        rows = rows[lengths[rows] > at]
    for row in rows.tolist():
        text = memoryview(data)[int(starts[row]) + at : int(ends[row])]
        hashes[row] = _mixed(int(hashes[row]), text)
    hashes *= _FINAL
    return hashes ^ (hashes >> np.uint64(32))


def _hash_piece(texts: pa.StringArray) -> Hashes:
    width = np.dtype(np.int64 if pa.types.is_large_string(texts.type) else np.int32)
    offsets = np.frombuffer(
        texts.buffers()[1], width, len(texts) + 1, texts.offset * width.itemsize
    ).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    data = texts.buffers()[2]
    buffer = np.zeros(last - first + 8, np.uint8)
    if data is not None:
        buffer[:-8] = np.frombuffer(data, np.uint8)[first:last]
    offsets -= first
    return hash_between(buffer, offsets[:-1], offsets[1:])


def _mixed(number: int, text: memoryview) -> int:
    """Mixes the words of one string into its hash, as `_mix` does for many."""
    multiplier, most = int(_MULTIPLIER), (1 << 64) - 1
    for at in range(0, len(text), _BLOCK):
        block = bytes(text[at : at + _BLOCK])
        words = np.frombuffer(block + bytes(-len(block) % 8), "<u8")
        for word in words.tolist():
            number = ((number ^ word) * multiplier) & most
            number ^= number >> 29
    return number


def _mix(hashes: Hashes, words: npt.NDArray[np.uint64]) -> None:
    hashes ^= words
    hashes *= _MULTIPLIER
    hashes ^= hashes >> np.uint64(29)
