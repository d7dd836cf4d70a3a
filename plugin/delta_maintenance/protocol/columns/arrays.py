"""Conversions between NumPy arrays and Arrow arrays.

Arrow's own conversions import pandas if it is installed, to detect pandas objects. That costs tens
of megabytes and a third of a second in a process that needs no pandas.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def integers(values: npt.NDArray[np.int64]) -> pa.Int64Array:
    """Wraps integers as an array without nulls, mainly for indices; not a copy."""
    data = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(data), [None, pa.py_buffer(data)])


def booleans(values: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """Converts booleans to an array without nulls, mainly for masks."""
    bits = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])


def to_bools(values: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """Returns the values of an array without nulls."""
    if not len(values):
        return np.empty(0, np.bool_)
    bits = np.frombuffer(values.buffers()[1], np.uint8)
    end = values.offset + len(values)
    return np.unpackbits(bits, count=end, bitorder="little")[values.offset :].view(np.bool_)


def numbers_of(integers: pa.Array) -> npt.NDArray[Any]:
    """Returns integers of any width, none of them null, from their own memory."""
    # Not `to_pandas_dtype`, which needs pandas before PyArrow 26.
    sign = "i" if pa.types.is_signed_integer(integers.type) else "u"
    word = np.dtype(f"{sign}{integers.type.bit_width // 8}")
    start = integers.offset * word.itemsize
    return np.frombuffer(integers.buffers()[1], word, len(integers), start)


def text_bytes(texts: pa.Array) -> npt.NDArray[np.uint8]:
    """Returns the concatenated texts of a string or binary array with 32-bit offsets; not a copy.

    A search in all bytes takes a fraction of the time of a search in each text.
    """
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return np.empty(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[[texts.offset, texts.offset + len(texts)]]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[1]]


def valid_texts(values: pa.BinaryArray) -> pa.StringArray:
    """Returns the values that are valid UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array([value.decode(errors="ignore") for value in values.to_pylist()])
        return texts.filter(pc.equal(texts.cast(pa.binary()), values))
