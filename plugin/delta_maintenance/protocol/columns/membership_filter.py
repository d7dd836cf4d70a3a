"""A compact set of hashes that may say "perhaps" and never says "no" of a member.

A sidecar keeps one over the places of its files, so that a later checkpoint can tell which sidecars
a commit may have touched without reading their paths. Members are cut to as many bits as leave one
wrong "perhaps" in about 2^24 questions per sidecar, and stored sorted: the upper bits as a bitmap
that counts the members of each bucket, the lower 24 bits as three bytes each. That takes about 27
bits for each member. A Bloom filter of the same precision takes 35.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.columns.key_hash import Hashes

_MAGIC = b"DMF1"
"""Names the form and the hash function (`key_hash.hash_texts`); another one takes another name."""
_HEADER = struct.Struct("<4sIBI")
"""The magic, the number of members, the bits that tell the bucket, and the CRC-32 of the rest."""
_LOW_BITS = 24
_MOST_BUCKET_BITS = 40
_MOST_IN_BUCKET = 64
"""Hashes that spread evenly put about one member into a bucket; full ones slow every question."""


@dataclass(frozen=True, slots=True, eq=False)
class MembershipFilter:
    """The hashes of some texts, cut short."""

    bucket_bits: int
    ends: npt.NDArray[np.int64]
    """For each bucket, how many members there are up to its end."""
    low: npt.NDArray[np.uint8]
    """The lower bits of each member, little-endian, one row of three bytes each."""

    @classmethod
    def of(cls, hashes: Hashes) -> Self:
        """The set of these hashes, which may repeat."""
        bits = len(hashes).bit_length()
        members = np.unique(_cut(hashes, bits))
        buckets = (members >> np.uint64(_LOW_BITS)).astype(np.int64)
        counts = np.bincount(buckets, minlength=1 << bits)
        low = members.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : _LOW_BITS // 8]
        return cls(bits, np.cumsum(counts), np.ascontiguousarray(low))

    @property
    def is_even(self) -> bool:
        """Whether the members spread over the buckets; `from_bytes` takes no other."""
        return int(np.diff(self.ends, prepend=0).max()) <= _MOST_IN_BUCKET

    def may_hold(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """For each hash, whether it may be a member; true for every member."""
        found = np.zeros(len(hashes), np.bool_)
        if not len(self.low) or not len(hashes):
            return found
        wanted = _cut(hashes, self.bucket_bits)
        buckets = (wanted >> np.uint64(_LOW_BITS)).astype(np.int64)
        low = wanted.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : _LOW_BITS // 8]
        at = np.where(buckets > 0, self.ends[buckets - 1], 0)
        rows = np.flatnonzero(at < self.ends[buckets])
        while len(rows):
            found[rows] |= (self.low[at[rows]] == low[rows]).all(axis=1)
            at[rows] += 1
            rows = rows[(at[rows] < self.ends[buckets[rows]]) & ~found[rows]]
        return found

    def to_bytes(self) -> bytes:
        """The filter as it stands in a file."""
        members, buckets = len(self.low), len(self.ends)
        # One bit for each member and then a zero for the end of its bucket.
        marks = np.ones(members + buckets, np.bool_)
        marks[self.ends + np.arange(buckets)] = False
        content = np.packbits(marks, bitorder="little").tobytes() + self.low.tobytes()
        return _HEADER.pack(_MAGIC, members, self.bucket_bits, zlib.crc32(content)) + content

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Reads `to_bytes` back. `CorruptTableError` for anything that it cannot have written."""
        if len(data) < _HEADER.size:
            raise _damaged("it is cut short")
        magic, members, bits, checksum = _HEADER.unpack_from(data)
        content = memoryview(data)[_HEADER.size :]
        if magic != _MAGIC:
            raise _damaged("it has another form")
        if bits > _MOST_BUCKET_BITS or members >> bits or zlib.crc32(content) != checksum:
            raise _damaged("its bytes have changed")
        buckets = 1 << bits
        map_bytes = (members + buckets + 7) // 8
        if len(content) != map_bytes + members * _LOW_BITS // 8:
            raise _damaged("it has another length")
        marks = np.unpackbits(
            np.frombuffer(content, np.uint8, map_bytes), count=members + buckets, bitorder="little"
        )
        ends = np.flatnonzero(marks == 0)
        if len(ends) != buckets:
            raise _damaged("its buckets do not add up")
        low = np.frombuffer(content, np.uint8, offset=map_bytes).reshape(-1, _LOW_BITS // 8)
        found = cls(bits, ends - np.arange(buckets), low)
        if not found.is_even:
            raise _damaged("a bucket is too full")
        return found


def _cut(hashes: Hashes, bucket_bits: int) -> Hashes:
    return hashes >> np.uint64(64 - _LOW_BITS - bucket_bits)


def _damaged(how: str) -> CorruptTableError:
    return CorruptTableError(f"the filter of a sidecar cannot be used: {how}")
