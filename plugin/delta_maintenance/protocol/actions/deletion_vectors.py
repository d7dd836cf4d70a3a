"""Deletion vectors: their descriptors, storage and contents.

Implements "Deletion Vector Descriptor Schema", "Derived Fields", "Deletion Vector Format" and
"Deletion Vector File Storage Format". A vector is a set of physical row positions, counted from 0.
A vector that does not match its descriptor raises `CorruptTableError`, because reading a wrong
vector would restore deleted rows.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap, BitMap64

from delta_maintenance.checksums import crc32
from delta_maintenance.errors import CorruptTableError, RefusedError, UnsupportedFeatureError
from delta_maintenance.protocol.actions.model import Json

STORED_RELATIVE = "u"
STORED_ABSOLUTE = "p"
STORED_INLINE = "i"
MOST_BYTES = 8 << 20
"""The maximum size of a vector in bytes, enough for any rows of a file of 67 million rows."""
MEMORY_PER_BYTE = 12
"""The maximum memory for each byte of a vector: sets of single rows take most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVectorDescriptor:
    """The `deletionVector` of one `add` or `remove`, for reading the vector.

    Actions that are committed again copy the original columns and never use this object.
    """

    storage_type: str
    path_or_inline_dv: str
    offset: int | None = None
    """Bytes from the start of the file; None if absent in the log, which gives another unique ID
    than 0.
    """
    size_in_bytes: int
    """The size of the vector itself in bytes: without the framing of the file, before Z85 encoding.
    """
    cardinality: int
    """The number of deleted rows."""

    @classmethod
    def inline(cls, bitmap: BitMap64) -> DeletionVectorDescriptor:
        """Returns a vector that contains its bitmap, of any size."""
        data = encode_bitmap(bitmap)
        return cls(
            storage_type=STORED_INLINE,
            path_or_inline_dv=z85_encode(data),
            size_in_bytes=len(data),
            cardinality=len(bitmap),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the object for the log."""
        return {
            "storageType": self.storage_type,
            "pathOrInlineDv": self.path_or_inline_dv,
            "offset": self.offset,
            "sizeInBytes": self.size_in_bytes,
            "cardinality": self.cardinality,
        }

    @classmethod
    def from_json(cls, value: Json) -> DeletionVectorDescriptor:
        """Parses the object from the log, or the same fields of a checkpoint row.

        `CorruptTableError` for a missing or invalid field; `UnsupportedFeatureError` for a storage
        type that the protocol does not define.
        """
        storage_type = value.get("storageType")
        if storage_type not in (STORED_RELATIVE, STORED_ABSOLUTE, STORED_INLINE):
            raise UnsupportedFeatureError(
                f"a deletion vector has the unknown storage type {storage_type!r}",
                remedy="use a release that supports it",
            )
        path_or_inline_dv = value.get("pathOrInlineDv")
        if not isinstance(path_or_inline_dv, str):
            raise CorruptTableError("deletionVector.pathOrInlineDv is missing or not a string")
        offset = None if value.get("offset") is None else _count(value, "offset", bits=31)
        if offset is not None and storage_type == STORED_INLINE:
            raise CorruptTableError("an inline deletion vector has an offset")
        return cls(
            storage_type=storage_type,
            path_or_inline_dv=path_or_inline_dv,
            offset=offset,
            size_in_bytes=_count(value, "sizeInBytes", bits=31),
            cardinality=_count(value, "cardinality", bits=63),
        )

    @property
    def memory(self) -> int:
        """The maximum memory of the vector in bytes while it is read and held."""
        return self.size_in_bytes * MEMORY_PER_BYTE

    @property
    def unique_id(self) -> str:
        """The unique ID of this vector among those of the same data file."""
        suffix = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage_type}{self.path_or_inline_dv}{suffix}"

    def relative_path(self) -> str | None:
        """The path relative to the table's root, as stored; None for other storage types.

        `CorruptTableError` if the UUID cannot be decoded or the prefix leads out of the table.
        """
        if self.storage_type != STORED_RELATIVE:
            return None
        # The encoded UUID has 20 characters; the prefix before it is a directory.
        prefix, encoded = self.path_or_inline_dv[:-20], self.path_or_inline_dv[-20:]
        name = f"deletion_vector_{UUID(bytes=z85_decode(encoded, 16))}.bin"
        if not prefix:
            return name
        if any(step in ("", ".", "..") for step in prefix.split("/")):
            raise CorruptTableError(f"a deletion vector has the impossible prefix {prefix!r}")
        return f"{prefix}/{name}"

    def absolute_path(self) -> str | None:
        """The decoded address of the file; None for other storage types."""
        if self.storage_type != STORED_ABSOLUTE:
            return None
        try:
            return unquote(self.path_or_inline_dv, errors="strict")
        except UnicodeDecodeError:
            raise CorruptTableError(
                f"the path {self.path_or_inline_dv!r} of a deletion vector is not "
                "percent-encoded UTF-8"
            ) from None


def unique_ids(storage_type: pa.Array, path_or_inline_dv: pa.Array, offset: pa.Array) -> pa.Array:
    """Returns the unique ID of each row's vector, from the columns of its descriptor.

    Null where `storage_type` is null. `CorruptTableError` if only one of the first two columns is
    null, because a file with a vector would look like a file without one.
    """
    present = pc.is_valid(storage_type)
    if not pc.all(pc.equal(present, pc.is_valid(path_or_inline_dv)), min_count=0).as_py():
        raise CorruptTableError("a deletionVector lacks its storageType or its pathOrInlineDv")
    suffix = pc.binary_join_element_wise("@", pc.cast(offset, pa.string()), "")
    return pc.binary_join_element_wise(
        storage_type, path_or_inline_dv, pc.fill_null(suffix, ""), ""
    )


class FileBytes(Protocol):
    """The bytes of a file, in memory or not. A slice may be shorter at the end of the file."""

    def __getitem__(self, at: slice, /) -> bytes | memoryview: ...


def load(descriptor: DeletionVectorDescriptor, read: Callable[[str], FileBytes]) -> BitMap64:
    """Reads a vector and checks its checksum and its cardinality.

    `read` returns a file by its `relative_path` or `absolute_path`, of which the vector and its
    frame are read. If it raises `FileNotFoundError`, a `CorruptTableError` names the file, because
    the log refers to it. `RefusedError`, before memory is taken, for a vector of more than
    `MOST_BYTES`.
    """
    if descriptor.size_in_bytes > MOST_BYTES:
        raise RefusedError(
            f"a deletion vector has {descriptor.size_in_bytes} bytes, and this release reads at "
            f"most {MOST_BYTES}",
            remedy="rewrite the data file with the engine that wrote it",
        )
    path = descriptor.relative_path() or descriptor.absolute_path()
    try:
        if path is None:
            data = z85_decode(descriptor.path_or_inline_dv, descriptor.size_in_bytes)
        else:
            data = read_from_file(read(path), descriptor.offset, descriptor.size_in_bytes)
        bitmap = decode_bitmap(data)
        if len(bitmap) != descriptor.cardinality:
            raise CorruptTableError(
                f"a deletion vector marks {len(bitmap)} rows "
                f"where the log says {descriptor.cardinality}"
            )
    except FileNotFoundError:
        raise CorruptTableError("the file of a deletion vector is missing", file=path) from None
    except CorruptTableError as error:
        error.locate(file=path)
        raise
    return bitmap


def read_from_file(data: FileBytes, offset: int | None, size: int) -> bytes:
    """Extracts one vector from a deletion vector file and checks its frame.

    `data` is the file; `offset` and `size` (bytes) are those of the descriptor.
    `CorruptTableError` if the version, the size or the CRC-32 differs.
    """
    frame_size = struct.pack(">I", size)
    start = offset or 0
    # A missing offset means 0, the position of the file's version byte. Size and CRC-32 decide
    # whether the vector starts there or, as in the files of all known writers, after the version
    # byte.
    if start == 0 and data[:4] != frame_size:
        start = 1
    if start > 0 and data[:1] != _FILE_VERSION:
        raise CorruptTableError("a deletion vector file has no format version 1")
    if data[start : start + 4] != frame_size:
        raise CorruptTableError(
            f"a deletion vector file has no vector of {size} bytes at offset {start}"
        )
    vector = bytes(data[start + 4 : start + 4 + size])
    if data[start + 4 + size : start + 8 + size] != struct.pack(">I", crc32(vector)):
        raise CorruptTableError(f"the deletion vector at offset {start} fails its CRC-32")
    return vector


def write_file(bitmaps: Sequence[BitMap64]) -> tuple[bytes, list[int]]:
    """Returns the bytes of a deletion vector file with these vectors, and the offset of each."""
    file = bytearray(_FILE_VERSION)
    offsets = []
    for bitmap in bitmaps:
        vector = encode_bitmap(bitmap)
        offsets.append(len(file))
        file += struct.pack(">I", len(vector)) + vector + struct.pack(">I", crc32(vector))
    return bytes(file), offsets


def decode_bitmap(data: bytes) -> BitMap64:
    """Decodes a serialised vector: the magic number followed by the bitmap.

    Reads the portable layout and the older native layout of Delta Spark, both little-endian.
    `CorruptTableError` for all other bytes.
    """
    magic, body = data[:4], data[4:]
    if magic == _DRAFT_MAGIC:
        raise CorruptTableError(
            "a deletion vector has the big-endian layout of the protocol's first draft, "
            "which no reader supports"
        )
    if magic not in (_PORTABLE_MAGIC, _NATIVE_MAGIC):
        raise CorruptTableError(f"a deletion vector starts with unknown bytes {magic.hex()!r}")
    try:
        portable = body if magic == _PORTABLE_MAGIC else _portable_from_native(body)
        bitmap = BitMap64.deserialize(portable)
    # pyroaring raises IndexError for empty input.
    except (ValueError, IndexError, struct.error):
        raise CorruptTableError("the bitmap of a deletion vector does not decode") from None
    if bitmap and bitmap.max() >= 2**63:
        raise CorruptTableError("a deletion vector marks a row beyond 2^63")
    return bitmap


def encode_bitmap(bitmap: BitMap64) -> bytes:
    """Serialises a vector in the portable layout."""
    return _PORTABLE_MAGIC + bytes(bitmap.serialize())


def z85_decode(text: str, size: int | None = None) -> bytes:
    """Decodes a Z85 text, truncated to `size` bytes if given.

    Z85 encodes multiples of four bytes. Delta Spark pads the last group with zero bytes, which
    `size` removes; a Rust encoder writes one `#` per missing byte, which cannot start a full group.
    `CorruptTableError` for invalid Z85 and for another size.
    """
    if size is not None and len(text) > size * 5 // 4 + 5:
        # Checked before decoding, which takes many times the size of the text.
        raise _other_size(text, size)
    try:
        groups = text.encode("ascii")
        filler = len(text[-5:]) - len(text[-5:].lstrip("#"))
        if len(groups) % 5:
            raise ValueError("the last group is short")
        if filler:
            # Zero digits in place of the padding do not change the last bytes.
            tail = _decode_groups(b"0" * filler + groups[len(groups) - 5 + filler :])
            if filler > 3 or any(tail[:filler]):
                raise ValueError("more bytes than the filler leaves room for")
            decoded = _decode_groups(groups[:-5]) + tail[filler:]
        else:
            decoded = _decode_groups(groups)
    except ValueError:
        raise CorruptTableError(
            f"the text {text!r} of a deletion vector is not valid Z85"
        ) from None
    if size is None:
        return decoded
    if not 0 <= len(decoded) - size < 4:
        raise _other_size(text, size)
    return decoded[:size]


def z85_encode(data: bytes) -> str:
    """Encodes bytes as Z85, padded with zero bytes to a multiple of four."""
    return base64.b85encode(data, pad=True).translate(_RFC1924_TO_Z85).decode("ascii")


_FILE_VERSION = b"\x01"
_PORTABLE_MAGIC = struct.pack("<I", 1681511377)
_NATIVE_MAGIC = struct.pack("<I", 1681511376)
_DRAFT_MAGIC = struct.pack(">I", 1681511376)

_DIGITS = b"0123456789"
_LOWER = b"abcdefghijklmnopqrstuvwxyz"
Z85 = _DIGITS + _LOWER + _LOWER.upper() + b".-:+=^!/*?&<>()[]{}@%$#"
_VALUES = np.full(256, 85, np.uint8)
_VALUES[np.frombuffer(Z85, np.uint8)] = np.arange(85)
_WEIGHTS = 85 ** np.arange(4, -1, -1)
# base64.b85encode implements Z85 with another alphabet.
_RFC1924 = _DIGITS + _LOWER.upper() + _LOWER + b"!#$%&()*+-;<=>?@^_`{|}~"
_RFC1924_TO_Z85 = bytes.maketrans(_RFC1924, Z85)


def _decode_groups(groups: bytes) -> bytes:
    """Decodes full groups of five digits; `ValueError` if one is invalid.

    An inline vector can have megabytes; `base64.b85decode` takes 0.2 seconds for each.
    """
    digits = _VALUES[np.frombuffer(groups, np.uint8)].reshape(-1, 5)
    numbers = digits @ _WEIGHTS
    if (digits == 85).any() or (numbers >> 32).any():
        raise ValueError("an invalid group")
    return numbers.astype(">u4").tobytes()


def _other_size(text: str, size: int) -> CorruptTableError:
    return CorruptTableError(f"the text {text!r} of a deletion vector is not of {size} bytes")


def _portable_from_native(body: bytes) -> bytes:
    """The native layout: a count of 32-bit bitmaps, then the length and the bytes of each; the
    index of a bitmap is its key.
    """
    (count,) = struct.unpack_from("<I", body)
    position, buckets = 4, []
    for key in range(count):
        (length,) = struct.unpack_from("<I", body, position)
        position += 4
        # Serialised again, so that a wrong length cannot shift the following bitmaps.
        bitmap = BitMap.deserialize(body[position : position + length])
        buckets.append(struct.pack("<I", key) + bitmap.serialize())
        position += length
    return struct.pack("<Q", count) + b"".join(buckets)


def _count(value: Json, key: str, *, bits: int) -> int:
    number: Any = value.get(key)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**bits:
        raise CorruptTableError(f"deletionVector.{key} is not a count: {number!r}")
    return number
