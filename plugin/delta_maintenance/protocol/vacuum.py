"""The files below the root of a table that a vacuum considers, and those that the log protects.

The protocol does not define vacuum. The rules are those of Delta Spark, or stricter. Implements
"Add File and Remove File" and "Deletion Vectors" for operations that delete files. The path of an
action is a URI and is decoded once. Some writers do not encode paths, however, or encode the names
of their files once more, and an absolute path may name the same table by another address. A file is
therefore protected under every spelling that could refer to it: an extra spelling can keep an
unneeded file, a missing one could delete a live file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

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
    absolute_paths,
    below_root,
    decode_paths,
    file_locations,
    has_odd_segment,
    is_encoded,
    location_of_root,
)
from delta_maintenance.protocol.columns import Hashes, booleans, hash_texts, to_bools

CHANGE_DATA = "_change_data"
"""The folder of change data files in the root."""

_LOG = r"(?i)(^|/)_delta_log(/|$)"
_NESTED_LOG = r"(?i)/_delta_log(/|$)"
_VECTOR = r"(^|/)deletion_vector_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.bin$"
_DATA = r"(?i)\.parquet$"
_CHECKSUM = r"(^|/)\.[^/]+\.crc$"
_HIDDEN_NAME = r"(^|/)[._][^/]*$"
_HIDDEN_SEGMENT = r"(^|/)[._]"

Mask = npt.NDArray[np.bool_]


class Reason(IntEnum):
    """The reason for deleting a file."""

    EXPIRED = 0
    """It was removed from the table, and its retention has ended."""
    UNREFERENCED = 1
    """A data file that no version and no tombstone refers to."""
    DELETION_VECTOR = 2
    """A deletion vector file that nothing refers to."""
    CHANGE_DATA = 3
    """A change data file."""
    CHECKSUM = 4
    """Hadoop's checksum of a file that is deleted."""
    FOREIGN = 5
    """Not a Delta file, judging by its name; deleted only on request."""

    @property
    def label(self) -> str:
        """The name of the reason in plans and reports."""
        return _LABELS[self]


_LABELS = {
    Reason.EXPIRED: "expired-tombstone",
    Reason.UNREFERENCED: "unreferenced",
    Reason.DELETION_VECTOR: "deletion-vector",
    Reason.CHANGE_DATA: "change-data",
    Reason.CHECKSUM: "hadoop-checksum",
    Reason.FOREIGN: "foreign",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibilityRules:
    """Rules for the names that a vacuum ignores."""

    partition_columns: tuple[str, ...]
    """Logical and physical names. A folder `_name=value` of such a column is not hidden."""
    iceberg: bool
    """Whether the folder `metadata` belongs to Iceberg."""

    def is_hidden_directory(self, path: str) -> bool:
        """Whether everything below a directory is ignored."""
        return bool(self.hidden(pa.array([f"{path}/x"]))[0])

    def hidden(self, paths: pa.Array) -> Mask:
        """Marks files with a path segment that starts with `_` or `.`, at any depth.

        Partition folders and `_change_data` in the root are exceptions.
        """
        if not self.iceberg and not has_odd_segment(paths):
            return np.zeros(len(paths), np.bool_)
        suspects = pc.match_substring_regex(paths, self._suspects())
        hidden = to_bools(suspects)
        if not hidden.any():
            return hidden
        rows = np.flatnonzero(hidden)
        texts = paths.filter(suspects)
        iceberg = self._iceberg(texts)
        bare = pc.replace_substring_regex(texts, rf"^{CHANGE_DATA}/", "")
        if self.partition_columns:
            names = "|".join(re.escape(name) for name in self.partition_columns)
            bare = pc.replace_substring_regex(bare, rf"(^|/)(?:{names})=", r"\1x=")
        still = pc.or_(
            pc.match_substring_regex(bare, _HIDDEN_SEGMENT),
            pc.match_substring_regex(texts, _HIDDEN_NAME),
        )
        hidden[rows] = to_bools(pc.or_(still, iceberg))
        return hidden

    def nested_log(self, paths: pa.Array) -> str | None:
        """The first path to the log of another table that is not hidden, or None."""
        if not has_odd_segment(paths):
            return None
        suspects = paths.filter(pc.match_substring_regex(paths, _NESTED_LOG))
        if not len(suspects):
            return None
        tables = pc.replace_substring_regex(suspects, rf"{_NESTED_LOG}.*", "")
        # Only the outermost log matters; anything below it is part of that log.
        visible = suspects.filter(booleans(~self.hidden(_with_name(tables))))
        return visible[0].as_py() if len(visible) else None

    def _suspects(self) -> str:
        return rf"{_HIDDEN_SEGMENT}|(^|/)metadata/" if self.iceberg else _HIDDEN_SEGMENT

    def _iceberg(self, texts: pa.Array) -> pa.Array:
        if not self.iceberg:
            return pa.repeat(pa.scalar(False), len(texts))
        return pc.match_substring_regex(texts, "(^|/)metadata/")


def in_a_log(paths: pa.Array) -> Mask:
    """Marks the paths with a segment `_delta_log`, ignoring case."""
    return to_bools(pc.match_substring_regex(paths, _LOG))


def reasons(paths: pa.Array, *, expired: pa.Array | None) -> npt.NDArray[np.uint8]:
    """The `Reason` for which each unreferenced file may be deleted.

    `expired` marks the files that an expired tombstone names, if these are known.
    """
    file_reasons = np.full(len(paths), Reason.FOREIGN, np.uint8)
    file_reasons[to_bools(pc.match_substring_regex(paths, _DATA))] = Reason.UNREFERENCED
    file_reasons[to_bools(pc.match_substring_regex(paths, _VECTOR))] = Reason.DELETION_VECTOR
    if expired is not None:
        file_reasons[to_bools(expired) & (file_reasons != Reason.DELETION_VECTOR)] = Reason.EXPIRED
    file_reasons[to_bools(pc.starts_with(paths, f"{CHANGE_DATA}/"))] = Reason.CHANGE_DATA
    return file_reasons


def checksums_of(paths: pa.Array, owners: pa.Array) -> Mask:
    """Marks the Hadoop checksums whose files are among the owners."""
    is_checksum = to_bools(pc.match_substring_regex(paths, _CHECKSUM))
    if not is_checksum.any():
        return is_checksum
    rows = np.flatnonzero(is_checksum)
    files = checksum_owners(paths.filter(booleans(is_checksum)))
    is_checksum[rows] = to_bools(pc.is_in(files, value_set=owners))
    return is_checksum


def checksums_for(paths: pa.Array) -> pa.Array:
    """The paths of the Hadoop checksums of files."""
    return pc.replace_substring_regex(paths, r"([^/]+)$", r".\1.crc")


def checksum_owners(paths: pa.Array) -> pa.Array:
    """The paths, with Hadoop checksums replaced by the files that they belong to."""
    return pc.replace_substring_regex(paths, r"(^|/)\.([^/]+)\.crc$", r"\1\2")


def _with_name(directories: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(directories, "x", "/")


_ODD_SEGMENT = r"(^|/)\.{0,2}(/|$)"
"""An empty, `.` or `..` segment, which some readers resolve and stores take literally."""
_MAYBE_ODD = rf"{_ODD_SEGMENT}|%2[eEfF]"
_ENCODED_UUID = 20
_Z85_DIGITS = np.full(256, -1, np.int64)
_Z85_DIGITS[np.frombuffer(Z85, np.uint8)] = np.arange(len(Z85))


class PathSet:
    """A set of paths as hashes, sorted on demand."""

    def __init__(self, hashes_of: Callable[[pa.Array], Hashes]) -> None:
        """`hashes_of` decides which paths are equal: `hash_paths` or `hash_spellings`."""
        self._hashes_of = hashes_of
        self._sorted = np.empty(0, np.uint64)
        self._added: list[Hashes] = []

    def __bool__(self) -> bool:
        return bool(len(self._sorted) or self._added)

    def add(self, paths: Sequence[pa.Array]) -> None:
        """Adds all of these paths."""
        self._added += [self._hashes_of(chunk) for chunk in paths if len(chunk)]

    def add_hashes(self, hashes: Hashes) -> None:
        """Adds the paths with these hashes."""
        if len(hashes):
            self._added.append(hashes)

    def sorted(self) -> Hashes:
        """Returns all hashes in ascending order."""
        if self._added:
            # Several times as fast as `np.unique`, which makes a hash table.
            every = np.sort(np.concatenate([self._sorted, *self._added]))
            self._sorted = every[np.append(True, every[1:] != every[:-1])]
            self._added = []
        return self._sorted

    def has(self, paths: pa.Array) -> Mask:
        """Marks the paths that are in the set."""
        ordered = self.sorted()
        hashes = self._hashes_of(paths)
        if not len(ordered):
            return np.zeros(len(hashes), np.bool_)
        at = np.searchsorted(ordered, hashes)
        at[at == len(ordered)] = 0
        is_member: Mask = ordered[at] == hashes
        return is_member


@dataclass(slots=True)
class ProtectedPaths:
    """The set of files that a log refers to, with a test for membership.

    It stores `hash_paths` instead of text. Two paths with the same hash protect each other. This
    can keep an unneeded file and never deletes a live one.
    """

    roots: Sequence[str]
    """All addresses of the table's root, starting with the one given by the user."""
    _locations: PathSet = field(default_factory=lambda: PathSet(hash_paths))
    _names: PathSet = field(default_factory=lambda: PathSet(hash_paths))
    """The file names of paths outside all known addresses. A store may be known under addresses
    that were not given, such as a mount, a link or an alias."""

    def add(self, actions: pa.Table) -> None:
        """Adds the files of adds or removes: their `path` and, if present, `deletionVector`.

        Raises `CorruptTableError` or `UnsupportedFeatureError` if the file of a deletion vector
        cannot be determined.
        """
        spellings = spellings_of(actions, roots=self.roots)
        self._locations.add(spellings.locations)
        self._names.add(spellings.names_outside)

    def add_hashes(self, locations: Hashes, names: Hashes) -> None:
        """Adds the `hash_paths` of paths below the root and of file names outside."""
        self._locations.add_hashes(locations)
        self._names.add_hashes(names)

    def update(self, paths: ProtectedPaths) -> None:
        """Adds all files of another set."""
        self.add_hashes(*paths.hashes())

    def hashes(self) -> tuple[Hashes, Hashes]:
        """The hashes of paths below the root and of names outside, to send to another process."""
        return self._locations.sorted(), self._names.sorted()

    def covers(self, paths: pa.StringArray) -> Mask:
        """Marks those of the literal paths, relative to the root, that are in the set."""
        covered = self._locations.has(paths)
        if self._names:
            covered |= self._names.has(pc.replace_substring_regex(paths, "(?s)^.*/", ""))
        return covered


@dataclass(frozen=True, slots=True)
class Spellings:
    """The files of some actions, each under every spelling that could refer to it."""

    locations: list[pa.BinaryArray] = field(default_factory=list)
    """Literal paths relative to the root, for files below it."""
    names_outside: list[pa.BinaryArray] = field(default_factory=list)
    """The names of files that are below none of the root's addresses."""


def spellings_of(actions: pa.Table, *, roots: Sequence[str]) -> Spellings:
    """The data files and deletion vector files of adds or removes.

    `roots` contains the addresses of the table's root. Raises `CorruptTableError` or
    `UnsupportedFeatureError` if the file of a deletion vector cannot be determined.
    """
    spellings = Spellings()
    for paths in actions["path"].chunks:
        _collect(paths, roots, spellings)
    if "deletionVector" in actions.column_names:
        for vectors in actions["deletionVector"].chunks:
            for paths in deletion_vector_paths(vectors):
                _collect(paths, roots, spellings)
    return spellings


def _collect(paths: pa.StringArray, roots: Sequence[str], spellings: Spellings) -> None:
    if paths.null_count:
        paths = paths.drop_null()
    if not len(paths):
        return
    if has_odd_segment(paths) or is_encoded(paths):
        odd = paths.filter(pc.match_substring_regex(paths, _MAYBE_ODD))
        if len(odd):
            spellings.locations.append(_resolve_paths(odd, roots))
    absolute = absolute_paths(paths)
    if absolute is not None:
        _collect_absolute(paths.filter(absolute), roots, spellings)
        paths = paths.filter(pc.invert(absolute))
    spellings.locations.extend(_raw_and_decode_paths(paths))


def _collect_absolute(paths: pa.StringArray, roots: Sequence[str], spellings: Spellings) -> None:
    outside = np.ones(len(paths), bool)
    for root in roots:
        written = below_root(paths, root=root)
        outside &= ~to_bools(pc.is_valid(written))
        spellings.locations.append(file_locations(paths, root=root))
        spellings.locations.extend(_raw_and_decode_paths(written.drop_null()))
    for spelling in _raw_and_decode_paths(paths.filter(booleans(outside))):
        spellings.names_outside.append(pc.replace_substring_regex(spelling, r"(?s)^.*/", b""))


def _resolve_paths(paths: pa.StringArray, roots: Sequence[str]) -> pa.BinaryArray:
    """Paths with `.` and `..` resolved, as far as they are below the root."""
    locations = []
    for root in roots:
        base = posixpath.normpath(location_of_root(root))
        for location in {
            *file_locations(paths, root=root).to_pylist(),
            *paths.cast(pa.binary()).to_pylist(),
        }:
            absolute = location if re.match(ABSOLUTE.encode(), location) else base + b"/" + location
            resolved = posixpath.normpath(absolute)
            if resolved.startswith(base + b"/"):
                locations.append(resolved[len(base) + 1 :])
    return pa.array(locations, pa.binary())


def deletion_vector_paths(vectors: pa.StructArray) -> tuple[pa.StringArray, pa.StringArray]:
    """The distinct files of stored vectors: paths relative to the root, and absolute URIs.

    Raises `UnsupportedFeatureError` for an unknown storage type, and `CorruptTableError` if a
    relative path contains no UUID or leads out of the table.
    """
    storage = pc.struct_field(vectors, "storageType")
    texts = pc.struct_field(vectors, "pathOrInlineDv")
    known_kinds = pa.array([STORED_RELATIVE, STORED_ABSOLUTE, STORED_INLINE])
    unknown = storage.filter(pc.invert(pc.is_in(storage, value_set=known_kinds))).drop_null()
    if len(unknown):
        raise UnsupportedFeatureError(
            f"a deletion vector has the unknown storage type {unknown[0].as_py()!r}",
            remedy="use a release that supports it",
        )
    relative = pc.unique(texts.filter(pc.equal(storage, STORED_RELATIVE)))
    absolute = pc.unique(texts.filter(pc.equal(storage, STORED_ABSOLUTE)))
    if relative.null_count or absolute.null_count:
        raise CorruptTableError("a deletion vector has no path")
    return _relative_vector_paths(relative), absolute


def _relative_vector_paths(texts: pa.StringArray) -> pa.StringArray:
    """`PREFIX/deletion_vector_UUID.bin` for each text with a prefix and an encoded UUID."""
    if not len(texts):
        return texts
    lengths = pc.binary_length(texts.cast(pa.binary()))
    if pc.min(lengths).as_py() < _ENCODED_UUID:
        short = texts.filter(pc.less(lengths, _ENCODED_UUID))[0].as_py()
        raise CorruptTableError(f"the path {short!r} of a deletion vector contains no UUID")
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
    """The UUIDs of Z85 texts of 20 characters, as hexadecimal with hyphens."""
    characters = np.frombuffer(b"".join(encoded.to_pylist()), np.uint8)
    digits = _Z85_DIGITS[characters].reshape(-1, 4, 5)
    words = digits @ (85 ** np.arange(4, -1, -1, dtype=np.int64))
    if (digits < 0).any() or (words >= 2**32).any():
        raise CorruptTableError("the UUID in the path of a deletion vector is not valid Z85")
    hexadecimal = np.frombuffer(words.astype(">u4").tobytes().hex().encode(), "S1").reshape(-1, 32)
    text = np.full((len(hexadecimal), 36), b"-", "S1")
    text[:, np.r_[0:8, 9:13, 14:18, 19:23, 24:36]] = hexadecimal
    fixed = pa.Array.from_buffers(pa.binary(36), len(text), [None, pa.py_buffer(text)])
    return fixed.cast(pa.binary()).cast(pa.string())


def _raw_and_decode_paths(paths: pa.StringArray) -> list[pa.BinaryArray]:
    """The paths as written and, if different, decoded once."""
    raw = paths.cast(pa.binary())
    once = decode_paths(paths)
    return [raw] if once.equals(raw) else [raw, once]


def hash_paths(paths: pa.Array) -> Hashes:
    """Hashes of paths that are equal for all spellings of one path (`plain`), and that ignore case
    and Unicode normalisation.

    The hashes are the same in every process.
    """
    return hash_spellings(plain(paths))


def hash_spellings(paths: pa.Array) -> Hashes:
    """Hashes of paths that ignore case and Unicode normalisation, as some file systems do."""
    try:
        texts = paths.cast(pa.string())
    except pa.ArrowInvalid:
        # A listed path is valid UTF-8, so it cannot equal an invalid one.
        texts = pa.array([p.decode(errors="replace") for p in paths.to_pylist()], pa.string())
    if pc.all(pc.string_is_ascii(texts), min_count=0).as_py():
        return hash_texts(pc.ascii_lower(texts))
    return hash_texts(pc.utf8_lower(pc.utf8_normalize(texts, form="NFC")))


def plain(paths: pa.Array) -> pa.BinaryArray:
    """The paths without percent-encoding, however often they were encoded.

    Encoding a path once more turns each `%` into `%25`, so `%2525C3` and `%C3` are the same byte.
    """
    literal = paths.cast(pa.binary())
    if not is_encoded(literal):
        return literal
    return decode_paths(pc.replace_substring_regex(literal, b"%(25)+", b"%"))
