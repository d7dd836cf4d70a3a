"""A 64-bit hash of each text of an Arrow column, without a Python object per text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_FINAL = np.uint64(0xD6E8FEB86659FD93)
_ROWS = 1 << 15  # what is in flight at once stays in the processor's cache


def hash_texts(texts: pa.StringArray) -> Hashes:
    """Equal texts give equal hashes, the same in every process; the reverse is likely, not sure.

    Each text is read as little-endian words of eight bytes, the last one filled up with zeros: a
    few vector operations per word of the longest text.
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
    """The hashes of texts that lie in `data`, whose last eight bytes belong to none of them."""
    words: npt.NDArray[np.uint64] = np.ndarray(
        (len(data) - 7,), np.dtype("<u8"), data, strides=(1,)
    )
    lengths = ends - starts
    hashes = lengths.astype(np.uint64) * _MULTIPLIER
    whole = int(lengths.min()) // 8 * 8 if len(lengths) else 0
    for at in range(0, whole, 8):
        _mix(hashes, words[starts + at])
    rows = np.flatnonzero(lengths > whole)
    at = whole
    while len(rows):
        rest = np.minimum(lengths[rows] - at, 8).astype(np.uint64)
        word = words[starts[rows] + at] & (
            np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - rest * np.uint64(8))
        )
        mixed = hashes[rows]
        _mix(mixed, word)
        hashes[rows] = mixed
        at += 8
        rows = rows[lengths[rows] > at]
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


def _mix(hashes: Hashes, words: npt.NDArray[np.uint64]) -> None:
    hashes ^= words
    hashes *= _MULTIPLIER
    hashes ^= hashes >> np.uint64(29)
