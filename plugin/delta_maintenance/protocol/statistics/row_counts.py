"""The row counts that statistics in JSON state, without parsing a million texts.

Most writers begin the statistics of a file with `{"numRecords":N`. For such texts the number is
taken from the bytes of the column; every other text is parsed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.columns.arrays import booleans, integers, to_bools
from delta_maintenance.protocol.statistics.as_json import num_records, slices

_NAME = b'"numRecords"'
_PREFIX = np.frombuffer(b"{" + _NAME + b":", np.uint8)
_MOST_DIGITS = 18
"""More could exceed 64 bits."""
_SLICE_BYTES = 2 << 20
_MOST_BYTES = 2 * _SLICE_BYTES
"""A slice is longer only if single texts are, which are no usual statistics."""
_HEAD = len(_PREFIX) + _MOST_DIGITS + 2
_ZERO, _NINE, _COMMA, _QUOTE, _OPEN, _CLOSE = (ord(each) for each in '09,"{}')


def stated_row_counts(stats: pa.ChunkedArray) -> pa.ChunkedArray:
    """`numRecords` of each row's JSON statistics as int64, null if there is no count.

    Equals `num_records` for JSON. A text that is damaged behind its count can give the count here,
    where `num_records` gives null, so this is for listings and totals, not for decisions.
    """
    counts = [
        _counts(part) for chunk in stats.chunks for part in slices(chunk, most_bytes=_SLICE_BYTES)
    ]
    return pa.chunked_array(counts, pa.int64())


def _counts(texts: pa.StringArray) -> pa.Array:
    values, certain = _leading_counts(texts)
    valid = texts.is_valid()
    certain |= ~to_bools(valid)
    counts = pc.if_else(valid, integers(values), pa.scalar(None, pa.int64()))
    if certain.all():
        return counts
    parsed = num_records(texts.filter(booleans(~certain)))
    return _replaced(counts, certain, parsed)


def _replaced(counts: pa.Array, certain: npt.NDArray[np.bool_], parsed: pa.Array) -> pa.Array:
    """The counts, with those of uncertain rows from `parsed`, which has one for each of them."""
    rows = np.arange(len(counts))
    rows[~certain] = len(counts) + np.arange(len(parsed))
    return pa.concat_arrays([counts, parsed]).take(integers(rows))


def _leading_counts(
    texts: pa.StringArray,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The count at the beginning of each text, and whether it is certain to be the text's only one.

    A text ends with a brace, and the opening and closing braces of all texts are equal in number;
    otherwise none is certain, because one of them may be cut off.
    """
    rows = len(texts)
    nothing = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    _, places, data = texts.buffers()
    if data is None or places is None:
        return nothing
    ends = np.frombuffer(places, np.int32, rows + 1, texts.offset * np.dtype(np.int32).itemsize)
    text = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    if not 0 < len(text) <= _MOST_BYTES:
        return nothing
    if np.count_nonzero(text == _OPEN) != np.count_nonzero(text == _CLOSE):
        return nothing
    starts, ends = ends[:-1] - ends[0], ends[1:] - ends[0]
    head = text[np.minimum(starts[:, None] + np.arange(_HEAD), len(text) - 1)]
    begins = (head[:, : len(_PREFIX)] == _PREFIX).all(axis=1)
    begins &= ends - starts > len(_PREFIX)
    if text.tobytes().count(_NAME) != np.count_nonzero(begins):
        return nothing
    digits = head[:, len(_PREFIX) :]
    is_digit = (digits >= _ZERO) & (digits <= _NINE)
    width = np.argmin(is_digit, axis=1)
    following = digits[np.arange(rows), width]
    after = digits[np.arange(rows), np.minimum(width + 1, digits.shape[1] - 1)]
    last = starts + len(_PREFIX) + width == ends - 1
    certain = (
        begins
        & (width > 0)
        & (width <= _MOST_DIGITS)
        & ~((width > 1) & (digits[:, 0] == _ZERO))
        & np.where(last, following == _CLOSE, (following == _COMMA) & (after == _QUOTE))
        & (text[np.maximum(ends - 1, 0)] == _CLOSE)
    )
    values = np.zeros(rows, np.int64)
    for at in range(int(width[certain].max(initial=0))):
        inside = at < width
        values[inside] = values[inside] * 10 + (digits[inside, at].astype(np.int64) - _ZERO)
    return values, certain
