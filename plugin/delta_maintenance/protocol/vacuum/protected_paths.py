"""Which files below a table's root its log refers to, in every way in which they may be written.

Implements "Add File and Remove File" and "Deletion Vectors" for whoever deletes files. The path of
an action is a URI, decoded once, but there are writers that never encoded theirs, and absolute
paths may name this very table under another address. So a file is protected under each spelling
that could mean it: too many keep a dead file, one too few loses a live one.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, UnsupportedFeatureError
from delta_maintenance.protocol.actions.deletion_vectors import (
    STORED_ABSOLUTE,
    STORED_INLINE,
    STORED_RELATIVE,
    Z85,
)
from delta_maintenance.protocol.actions.paths import (
    ABSOLUTE,
    below_root,
    decoded,
    location_of_root,
    locations,
)
from delta_maintenance.protocol.columns.arrays import booleans, to_bools
from delta_maintenance.protocol.columns.key_hash import Hashes, hash_texts

Mask = npt.NDArray[np.bool_]

_ODD_SEGMENT = r"(^|/)\.{0,2}(/|$)"
"""An empty, `.` or `..` segment, which some readers resolve and stores take literally."""
_PERHAPS_ODD = rf"{_ODD_SEGMENT}|%2[eEfF]"
_ENCODED_UUID = 20
_Z85_DIGITS = np.full(256, -1, np.int64)
_Z85_DIGITS[np.frombuffer(Z85, np.uint8)] = np.arange(len(Z85))


class _HashSet:
    """Hashes of paths, sorted when they are asked for."""

    def __init__(self) -> None:
        self._sorted = np.empty(0, np.uint64)
        self._added: list[Hashes] = []

    def __bool__(self) -> bool:
        return bool(len(self._sorted) or self._added)

    def add(self, paths: Sequence[pa.Array]) -> None:
        self._added += [hash_paths(chunk) for chunk in paths if len(chunk)]

    def add_hashes(self, hashes: Hashes) -> None:
        if len(hashes):
            self._added.append(hashes)

    def sorted(self) -> Hashes:
        if self._added:
            self._sorted = np.unique(np.concatenate([self._sorted, *self._added]))
            self._added = []
        return self._sorted

    def has(self, paths: pa.Array) -> Mask:
        ordered = self.sorted()
        hashes = hash_paths(paths)
        if not len(ordered):
            return np.zeros(len(hashes), np.bool_)
        at = np.searchsorted(ordered, hashes)
        at[at == len(ordered)] = 0
        found: Mask = ordered[at] == hashes
        return found


@dataclass(slots=True)
class ProtectedPaths:
    """The files that a log refers to, as a set that answers which paths are in it.

    It holds no texts but their hashes, without regard to case and to Unicode's forms, which there
    are file systems that do not mind either. Two paths of one hash protect each other: that may
    keep a dead file, and never loses a live one.
    """

    roots: Sequence[str]
    """Every address of the table's root, as the user gave it first."""
    _places: _HashSet = field(default_factory=_HashSet)
    _names: _HashSet = field(default_factory=_HashSet)
    """Of files that lie under none of the addresses, the bare names: a store may be known under an
    address that nobody mentioned, a mount, a link or an alias."""

    def offer(self, actions: pa.Table) -> None:
        """Takes in adds or removes: their `path`, and their `deletionVector` where they have one.

        `CorruptTableError` and `UnsupportedFeatureError` where a vector's file cannot be told.
        """
        spellings = spellings_of(actions, roots=self.roots)
        self._places.add(spellings.places)
        self._names.add(spellings.names_outside)

    def take_hashes(self, places: Hashes, names: Hashes) -> None:
        """Takes in what `hash_paths` gave for places below the root and for names outside."""
        self._places.add_hashes(places)
        self._names.add_hashes(names)

    def take(self, other: ProtectedPaths) -> None:
        """Takes in everything that another set holds."""
        self.take_hashes(*other.hashes())

    def hashes(self) -> tuple[Hashes, Hashes]:
        """Of places below the root, and of names outside: to be carried to another process."""
        return self._places.sorted(), self._names.sorted()

    def take_literally(self, paths: Sequence[pa.StringArray]) -> None:
        """Takes in paths of files that are there, relative to the root."""
        self._places.add(paths)

    def covers(self, paths: pa.StringArray) -> Mask:
        """Which of these literal paths, relative to the root, are in use."""
        covered = self._places.has(paths)
        if self._names:
            covered |= self._names.has(pc.replace_substring_regex(paths, "(?s)^.*/", ""))
        return covered


@dataclass(frozen=True, slots=True)
class Spellings:
    """The files of some actions, each under every spelling that could mean it."""

    places: list[pa.BinaryArray] = field(default_factory=list)
    """Relative to the root and literal, as far as they lie below it."""
    names_outside: list[pa.BinaryArray] = field(default_factory=list)
    """The bare names of files that lie under none of the addresses of the root."""


def spellings_of(actions: pa.Table, *, roots: Sequence[str]) -> Spellings:
    """The files of adds or removes, of their data and of their deletion vectors.

    `roots` are the addresses of the table's root. `CorruptTableError` and `UnsupportedFeatureError`
    where a vector's file cannot be told.
    """
    found = Spellings()
    for paths in actions["path"].chunks:
        _collect(paths, roots, found)
    if "deletionVector" in actions.column_names:
        for vectors in actions["deletionVector"].chunks:
            for paths in deletion_vector_paths(vectors):
                _collect(paths, roots, found)
    return found


def _collect(paths: pa.StringArray, roots: Sequence[str], found: Spellings) -> None:
    if paths.null_count:
        paths = paths.drop_null()
    if not len(paths):
        return
    odd = paths.filter(pc.match_substring_regex(paths, _PERHAPS_ODD))
    if len(odd):
        found.places.append(_resolved(odd, roots))
    absolute = pc.match_substring_regex(paths, ABSOLUTE)
    if pc.any(absolute).as_py():
        _collect_absolute(paths.filter(absolute), roots, found)
        paths = paths.filter(pc.invert(absolute))
    found.places.extend(_raw_and_decoded(paths))


def _collect_absolute(paths: pa.StringArray, roots: Sequence[str], found: Spellings) -> None:
    outside = np.ones(len(paths), bool)
    for root in roots:
        written = below_root(paths, root=root)
        outside &= ~to_bools(pc.is_valid(written))
        found.places.append(locations(paths, root=root))
        found.places.extend(_raw_and_decoded(written.drop_null()))
    for spelling in _raw_and_decoded(paths.filter(booleans(outside))):
        found.names_outside.append(pc.replace_substring_regex(spelling, r"(?s)^.*/", b""))


def _resolved(paths: pa.StringArray, roots: Sequence[str]) -> pa.BinaryArray:
    """Paths with `..` and the like resolved, as far as they end below the root."""
    places = []
    for root in roots:
        base = posixpath.normpath(location_of_root(root))
        for place in {
            *locations(paths, root=root).to_pylist(),
            *paths.cast(pa.binary()).to_pylist(),
        }:
            whole = place if re.match(ABSOLUTE.encode(), place) else base + b"/" + place
            resolved = posixpath.normpath(whole)
            if resolved.startswith(base + b"/"):
                places.append(resolved[len(base) + 1 :])
    return pa.array(places, pa.binary())


def deletion_vector_paths(vectors: pa.StructArray) -> tuple[pa.StringArray, pa.StringArray]:
    """The files of stored vectors: relative to the root, and absolute URIs. Each file once.

    `UnsupportedFeatureError` for a storage type that the protocol does not have;
    `CorruptTableError` where a relative one holds no UUID or leads out of the table.
    """
    storage = pc.struct_field(vectors, "storageType")
    texts = pc.struct_field(vectors, "pathOrInlineDv")
    known = pa.array([STORED_RELATIVE, STORED_ABSOLUTE, STORED_INLINE])
    strange = storage.filter(pc.invert(pc.is_in(storage, value_set=known))).drop_null()
    if len(strange):
        raise UnsupportedFeatureError(
            f"a deletion vector has the unknown storage type {strange[0].as_py()!r}",
            remedy="use a release that knows it",
        )
    relative = pc.unique(texts.filter(pc.equal(storage, STORED_RELATIVE)))
    absolute = pc.unique(texts.filter(pc.equal(storage, STORED_ABSOLUTE)))
    if relative.null_count or absolute.null_count:
        raise CorruptTableError("a deletion vector has no path")
    return _relative_vector_paths(relative), absolute


def _relative_vector_paths(texts: pa.StringArray) -> pa.StringArray:
    """`PREFIX/deletion_vector_UUID.bin` for each text of a prefix and an encoded UUID."""
    if not len(texts):
        return texts
    lengths = pc.binary_length(texts.cast(pa.binary()))
    if pc.min(lengths).as_py() < _ENCODED_UUID:
        short = texts.filter(pc.less(lengths, _ENCODED_UUID))[0].as_py()
        raise CorruptTableError(f"the text {short!r} of a deletion vector holds no UUID")
    encoded = pc.binary_slice(texts.cast(pa.binary()), -_ENCODED_UUID)
    prefix = pc.binary_replace_slice(texts.cast(pa.binary()), -_ENCODED_UUID, 2**31 - 1, b"")
    folder = prefix.cast(pa.string())
    if pc.any(
        pc.and_(pc.not_equal(folder, ""), pc.match_substring_regex(folder, _ODD_SEGMENT))
    ).as_py():
        raise CorruptTableError("a deletion vector has a prefix that leads out of its folder")
    uuids = _uuids(encoded)
    slash = pc.if_else(pc.equal(folder, ""), "", "/")
    return pc.binary_join_element_wise(folder, slash, "deletion_vector_", uuids, ".bin", "")


def _uuids(encoded: pa.BinaryArray) -> pa.StringArray:
    """The UUIDs of Z85 texts of twenty characters, in the usual form."""
    characters = np.frombuffer(b"".join(encoded.to_pylist()), np.uint8)
    digits = _Z85_DIGITS[characters].reshape(-1, 4, 5)
    words = digits @ (85 ** np.arange(4, -1, -1, dtype=np.int64))
    if (digits < 0).any() or (words >= 2**32).any():
        raise CorruptTableError("the UUID of a deletion vector's file is no Z85")
    hexadecimal = np.frombuffer(words.astype(">u4").tobytes().hex().encode(), "S1").reshape(-1, 32)
    text = np.full((len(hexadecimal), 36), b"-", "S1")
    text[:, np.r_[0:8, 9:13, 14:18, 19:23, 24:36]] = hexadecimal
    fixed = pa.Array.from_buffers(pa.binary(36), len(text), [None, pa.py_buffer(text)])
    return fixed.cast(pa.binary()).cast(pa.string())


def _raw_and_decoded(paths: pa.StringArray) -> list[pa.BinaryArray]:
    """Paths as they stand, and decoded once where that makes a difference."""
    raw = paths.cast(pa.binary())
    once = decoded(paths)
    return [raw] if once.equals(raw) else [raw, once]


def hash_paths(paths: pa.Array) -> Hashes:
    """Hashes of paths as a file system compares them that minds neither case nor Unicode's forms.

    The same in every process.
    """
    try:
        texts = paths.cast(pa.string())
    except pa.ArrowInvalid:
        # No path of a listing can be equal to what is no UTF-8.
        texts = pa.array([p.decode(errors="replace") for p in paths.to_pylist()], pa.string())
    if pc.all(pc.string_is_ascii(texts), min_count=0).as_py():
        return hash_texts(pc.ascii_lower(texts))
    return hash_texts(pc.utf8_lower(pc.utf8_normalize(texts, form="NFC")))
