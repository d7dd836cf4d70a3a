"""Reads the footers of many files at once that one writer wrote for one schema.

Such footers have the same form: the same fields in the same order, with other numbers and bounds.
The form is derived from one footer that pyarrow and `require_readable_columns` accept. The others
are compared with it step by step, each step in all footers at the same time. A footer of another
form is found out, and must be read alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from delta_maintenance.parquet import footers
from delta_maintenance.parquet.thrift import (
    BINARY,
    BYTE,
    FALSE,
    FIXED,
    I16,
    I64,
    LIST,
    SET,
    STOP,
    STRUCT,
    TRUE,
    MalformedThriftError,
    field_head,
    list_head,
    skip,
    varint,
)

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Place = tuple[int, ...]
"""A value in a footer: the numbers of the fields, and the position after that of each list."""

_CHUNK = footers.ROW_GROUPS, footers.COLUMNS, footers.CHUNK_METADATA
_TYPE, _PATH, _CODEC = 1, 3, 4
_EQUAL = {(number,) for number in (1, 2, 5, 6, 7)} | {
    (*_CHUNK, number) for number in (_TYPE, _PATH, _CODEC)
}
"""Fields with the same value in all footers of a form: the schema, the texts of the file, and the
type, the name and the codec of each column.
"""
_BOUNDS = {(*_CHUNK, footers.STATISTICS, number) for number in (1, 2, 5, 6)}
_BYTE_ARRAY = 6
_MOST_BITS = 63
_MOST_DEPTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FooterValues:
    """The varying values of the footers of a form, among some footers."""

    matched: Mask
    """Which footers have the form."""
    data: Bytes
    """The bytes of all footers, with a few more after them."""
    starts: Mapping[Place, Numbers]
    """The positions of each value in the bytes, one for each footer of the form."""
    sizes: Mapping[Place, Numbers]
    """The lengths of each text."""

    @property
    def count(self) -> int:
        """The number of footers of the form."""
        return int(self.matched.sum())

    def numbers(self, place: Place) -> Numbers | None:
        """Returns an integer of each footer; None if they have none."""
        if place not in self.starts:
            return None
        at, shift = self.starts[place].copy(), 0
        value = np.zeros(len(at), np.int64)
        continues = np.ones(len(at), np.bool_)
        while continues.any():
            byte = self.data[at].astype(np.int64)
            value |= np.where(continues, (byte & 127) << shift, 0)
            continues &= byte > 127
            at += 1
            shift += 7
        return (value >> 1) ^ -(value & 1)

    def fixed(self, place: Place, kind: str) -> npt.NDArray[np.generic]:
        """Returns a text of each footer as a number of a fixed size, such as `<i4`."""
        target = np.dtype(kind)
        at = self.starts[place][:, None] + np.arange(target.itemsize)
        return np.ascontiguousarray(self.data[at]).view(target).ravel()

    def texts(self, place: Place) -> list[bytes]:
        """Returns a text of each footer."""
        data, starts = self.data.data, self.starts[place]
        ends = (starts + self.sizes[place]).tolist()
        return [bytes(data[at:end]) for at, end in zip(starts.tolist(), ends, strict=True)]


@dataclass(slots=True)
class FooterForm:
    """The form of footers, as steps over their bytes."""

    _size: int
    _steps: list[tuple[str, Bytes | int, Place]] = field(default_factory=list)
    """What follows: certain bytes, a varint, a text with its length, or some bytes of any value."""
    _pending: bytes = b""
    _has_texts: bool = True
    """Whether the bounds of the column may have any length."""

    @classmethod
    def of(cls, footer: bytes) -> Self | None:
        """Returns the form of a valid footer; None for one that no writer is known to write."""
        form = cls(len(footer))
        try:
            end = form._fields(footer, 0, (), (), _MOST_DEPTH)
        except (IndexError, MalformedThriftError):
            return None
        form._equal(b"")
        return form if end == len(footer) else None

    def read(self, footers: Sequence[bytes]) -> FooterValues:
        """Compares footers with the form, and locates their values."""
        lengths = np.array([len(footer) for footer in footers], np.int64)
        ends = np.cumsum(lengths)
        # After the last byte, no step reaches further than the size of this form.
        data = np.frombuffer(b"".join([*footers, bytes(self._size + 16)]), np.uint8)
        data_end = int(ends[-1])
        after = np.arange(1, len(data) + 1, dtype=np.int32)
        # The end of a varint is after its first byte below 128.
        after[data > 127] = len(data)
        after = np.minimum.accumulate(after[::-1])[::-1]
        at = ends - lengths
        matched = np.ones(len(footers), np.bool_)
        starts: dict[Place, Numbers] = {}
        sizes: dict[Place, Numbers] = {}
        for kind, step, place in self._steps:
            if isinstance(step, np.ndarray):
                if len(step) == 1:
                    matched &= data[at] == step[0]
                else:
                    matched &= (data[at[:, None] + np.arange(len(step))] == step).all(axis=1)
                at = at + len(step)
                continue
            starts[place] = at
            if kind == "number":
                end = after[at]
                matched &= end - at <= _MOST_BITS // 7
                at = np.minimum(end, data_end).astype(np.int64)
                continue
            length = np.full(len(at), step)
            if kind == "text":
                # A longer one, of three bytes, is one of another form.
                low_byte, high_byte = data[at].astype(np.int64), data[at + 1].astype(np.int64)
                is_long = low_byte > 127
                matched &= ~is_long | (high_byte < 128)
                length = np.where(is_long, (low_byte & 127) | (high_byte << 7), low_byte)
                starts[place] = at = at + 1 + is_long
            sizes[place] = length
            at = np.minimum(at + length, data_end)
        matched &= at == ends
        return FooterValues(
            matched=matched,
            data=data,
            starts={place: footer[matched] for place, footer in starts.items()},
            sizes={place: footer[matched] for place, footer in sizes.items()},
        )

    def _equal(self, constant: bytes) -> None:
        """Adds bytes that are the same in all footers; without any, ends those before."""
        if not constant and self._pending:
            self._steps.append(("equal", np.frombuffer(self._pending, np.uint8), ()))
            self._pending = b""
        self._pending += constant

    def _step(self, kind: str, place: Place, size: int = 0) -> None:
        self._equal(b"")
        self._steps.append((kind, size, place))

    def _fields(self, data: bytes, at: int, path: Place, place: Place, depth: int) -> int:
        """Returns the position after a struct. `path` are the numbers of the fields alone."""
        if not depth:
            raise MalformedThriftError("values are nested too deeply")
        number = 0
        while data[at] != STOP:
            start = at
            number, kind, at = field_head(data, at, number)
            self._equal(data[start:at])
            inner = (*path, number)
            if inner == (*_CHUNK, _TYPE):
                self._has_texts = data[at] == _BYTE_ARRAY << 1
            if inner in _EQUAL:
                end = skip(data, at, kind)
                self._equal(data[at:end])
                at = end
            elif kind in (TRUE, FALSE):
                continue
            else:
                at = self._value(data, at, kind, inner, (*place, number), depth)
        self._equal(data[at : at + 1])
        return at + 1

    def _value(self, data: bytes, at: int, kind: int, path: Place, place: Place, depth: int) -> int:
        if kind == STRUCT:
            return self._fields(data, at, path, place, depth - 1)
        if kind in (LIST, SET):
            count, element, after = list_head(data, at)
            self._equal(data[at:after])
            for number in range(count):
                after = self._value(data, after, element, path, (*place, number), depth - 1)
            return after
        if I16 <= kind <= I64:
            self._step("number", place)
            return varint(data, at)[1]
        if kind == BINARY:
            length, after = varint(data, at)
            if path in _BOUNDS and not self._has_texts:
                # The type decides the size.
                self._equal(data[at:after])
                self._step("bytes", place, length)
            elif path in _BOUNDS:
                self._step("text", place)
            else:
                self._equal(data[at : after + length])
            return after + length
        size = FIXED.get(kind, 1 if kind in (BYTE, TRUE, FALSE) else 0)
        if not size:
            raise MalformedThriftError("no writer is known to use this type")
        self._step("bytes", place, size)
        return at + size
