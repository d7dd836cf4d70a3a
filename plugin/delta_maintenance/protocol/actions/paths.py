"""Paths of file actions: their locations, and ambiguous paths that forbid writing.

A path is a URI, relative to the table's root or absolute ("Add File and Remove File"), so one file
can have several spellings. Log replay compares paths as text and cannot detect that two paths name
one file, or that one path is live with two deletion vectors. Readers handle both differently, so a
further commit would make the result depend on the reader.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.address import Address
from delta_maintenance.protocol.columns import Hashes, hash_texts, text_bytes

# A relative path encodes `:`, so an unencoded one before the first slash ends a scheme.
ABSOLUTE = "^(/|[A-Za-z][A-Za-z0-9+.-]*:)"
"""Matches the beginning of paths that are not relative to the table's root."""
_REWRITES = (
    (r"(?s)[?#].*", ""),
    (r"(?i)^file:/*(localhost/)?", "/"),
    (r"(?i)^s3[an]?:", "s3:"),
    (r"^([A-Za-z][A-Za-z0-9+.-]*:)/*", r"\1"),
    (r"^/+", "/"),
)
"""Normalises scheme and slashes, in this order."""
_HEX = np.full(256, -1, np.int16)
_ODD_HEADS = np.zeros(256, np.bool_)
_ODD_HEADS[list(b"/._")] = True
for _digit in b"0123456789abcdefABCDEF":
    _HEX[_digit] = int(chr(_digit), 16)


Mask = npt.NDArray[np.bool_]


class PathAudit:
    """Collects the paths of a snapshot in batches and finds ambiguous ones.

    Stores 8 bytes for each file action, 16 if its path has encoded bytes, and in addition absolute
    paths and the paths of files with a deletion vector. Paths are compared by hashes of 64 bits:
    among ten million files, a tenth of them with a deletion vector, the audit finds a problem that
    does not exist with a probability of one in two million.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._live: list[Hashes] = []
        self._relative: list[tuple[bool, Hashes]] = []
        """Of the locations of all paths that are not absolute; whether the files are live."""
        self._intended: list[Hashes] = []
        """Of the `intended_locations` of live files."""
        self._removed: list[Hashes] = []
        """Of those of tombstones."""
        self._with_vector: list[pa.Array] = []
        self._absolute: dict[str, bool] = {}
        """Absolute paths; whether a file with the path is live."""
        self._repeated: str | None = None

    def add(
        self,
        adds: pa.Table,
        tombstones: pa.Table,
        *,
        key_hashes: Hashes | None = None,
        repeated: str | None = None,
    ) -> None:
        """Adds the live files and the tombstones of one batch.

        `key_hashes` are the hashes of the keys of the adds, if the caller has them. The key of a
        file without deletion vector is its path, which is then not hashed again. `repeated` is the
        path of a file for which a commit of the batch has two actions.
        """
        self._repeated = self._repeated or repeated
        vectors = adds["deletionVector"] if "deletionVector" in adds.column_names else None
        if vectors is not None and vectors.null_count < len(vectors):
            self._with_vector += adds["path"].filter(pc.is_valid(vectors)).chunks
            key_hashes = None
        start = 0
        for paths in adds["path"].chunks:
            given_hashes = None if key_hashes is None else key_hashes[start : start + len(paths)]
            hashes = hash_texts(paths) if given_hashes is None else given_hashes
            self._live.append(hashes)
            self._intended.append(self._include(paths, hashes, is_live=True))
            start += len(paths)
        for paths in tombstones["path"].chunks:
            self._removed.append(self._include(paths, hash_texts(paths), is_live=False))

    def _include(self, paths: pa.StringArray, hashes: Hashes, *, is_live: bool) -> Hashes:
        """Returns the hashes of the `intended_locations` of the paths, given those of the paths."""
        locations: pa.Array = paths
        encoded = True
        absolute = absolute_paths(paths)
        if absolute is not None:
            for path in paths.filter(absolute).to_pylist():
                self._absolute[path] = is_live or self._absolute.get(path, False)
            relative = paths.filter(pc.invert(absolute))
            relative_hashes = hash_texts(file_locations(relative, root=self._root))
            self._relative.append((is_live, relative_hashes))
            locations = file_locations(paths, root=self._root)
            hashes = hash_texts(locations)
        elif is_encoded(paths):
            locations = file_locations(paths, root=self._root)
            hashes = hash_texts(locations)
            self._relative.append((is_live, hashes))
        else:
            self._relative.append((is_live, hashes))
            encoded = False
        intended = _intended_locations(locations, encoded=encoded)
        return hashes if intended is None else hash_texts(intended)

    def removed_elsewhere(self) -> Mask | None:
        """Returns which live files have a tombstone with the same intended location, in the order
        in which they were added; None if there is none.

        Such a file has got a deletion vector, or its removal failed.
        """
        removed = np.concatenate([np.empty(0, np.uint64), *self._removed])
        if not len(removed):
            return None
        # Much faster than sorting the hashes of all live files; a small bitmap fits in a cache.
        size = 1 << min(24, (16 * len(removed)).bit_length())
        low_bits = np.uint64(size - 1)
        bitmap = np.zeros(size, np.bool_)
        bitmap[removed & low_bits] = True
        removed.sort()
        masks = []
        for live in self._intended:
            mask = np.zeros(len(live), np.bool_)
            rows = np.flatnonzero(bitmap[live & low_bits])
            at = np.minimum(np.searchsorted(removed, live[rows]), len(removed) - 1)
            mask[rows] = removed[at] == live[rows]
            masks.append(mask)
        is_removed_elsewhere = np.concatenate([np.empty(0, np.bool_), *masks])
        return is_removed_elsewhere if is_removed_elsewhere.any() else None

    def problem(self) -> str | None:
        """Returns the first problem that forbids writing, as one clause, or None."""
        if self._repeated is not None:
            return repeated_file(self._repeated)
        live = np.sort(np.concatenate(self._live)) if self._with_vector else np.empty(0, np.uint64)
        for paths in self._with_vector:
            hashes = hash_texts(paths)
            times = np.searchsorted(live, hashes, "right") - np.searchsorted(live, hashes, "left")
            if (times > 1).any():
                path = paths[int(np.argmax(times > 1))].as_py()
                return f"the path {path} is live with two deletion vectors"
        return self._spelling_problem()

    def _spelling_problem(self) -> str | None:
        if not self._absolute:
            return None
        absolute = pa.array(sorted(self._absolute), pa.string())
        locations = file_locations(absolute, root=self._root)
        spellings: dict[bytes, str] = {}
        are_live = np.array([self._absolute[path] for path in absolute.to_pylist()], bool)
        for path, location in zip(absolute.to_pylist(), locations.to_pylist(), strict=True):
            first_spelling = spellings.setdefault(location, path)
            # Two tombstones of one file, of which one ended a failed removal, harm no reader.
            if first_spelling != path and (self._absolute[path] or self._absolute[first_spelling]):
                return f"one file has two different paths, {first_spelling} and {path}"
        location_hashes = hash_texts(locations)
        for is_live, hashes in self._relative:
            twice = np.isin(location_hashes, hashes) & (is_live | are_live)
            if twice.any():
                path = absolute[int(np.argmax(twice))].as_py()
                return f"one file has two different paths, {path} and a relative one"
        return None


def repeated_file(path: str) -> str:
    """Returns the problem of a file for which one commit has two actions, as one clause."""
    return f"a commit has two actions for the file {path}"


def absolute_paths(paths: pa.StringArray) -> pa.BooleanArray | None:
    """Returns which paths are not relative to the table's root; None if all are."""
    text = text_bytes(paths)
    if not (text == ord(":")).any() and not pc.any(pc.starts_with(paths, "/")).as_py():
        return None
    absolute = pc.match_substring_regex(paths, ABSOLUTE)
    return absolute if pc.any(absolute).as_py() else None


def file_locations(paths: pa.StringArray, *, root: str) -> pa.BinaryArray:
    """Returns the location of each path; all spellings of one file have the same location.

    Locations below the table's root are relative to it. `root` is the table's address as given by
    the user: literal, except for the scheme `file:`.
    """
    locations, absolute = _written(paths)
    if absolute is None:
        return locations
    folder = location_of_root(root) + b"/"
    inside = pc.and_(absolute, pc.starts_with(locations, folder))
    return pc.if_else(inside, pc.binary_replace_slice(locations, 0, len(folder), b""), locations)


def intended_locations(paths: pa.StringArray, *, root: str) -> pa.BinaryArray:
    """Returns `file_locations` that are equal also for a path that a writer encoded once more, and
    for composed and decomposed characters.

    Two files of a table can have the same result, so equality proves nothing by itself.
    """
    locations = file_locations(paths, root=root)
    intended = _intended_locations(locations)
    return locations if intended is None else intended


def _intended_locations(locations: pa.Array, *, encoded: bool = True) -> pa.BinaryArray | None:
    """Returns the intended locations; None if they are equal to these locations.

    `encoded` is false if they are known to have no encoded bytes.
    """
    again = decode_paths(locations) if encoded and is_encoded(locations) else None
    text = text_bytes(locations).view(np.int8)
    if not len(text) or text.min() >= 0:
        return again
    try:
        texts = (locations if again is None else again).cast(pa.string())
    except pa.ArrowInvalid:
        # Some name is not UTF-8, and only its own writer would spell it otherwise.
        return again
    return pc.utf8_normalize(texts, form="NFC").cast(pa.binary())


def locations_below(
    paths: pa.StringArray, *, roots: Sequence[str]
) -> tuple[pa.BinaryArray, pa.BooleanArray]:
    """Returns `file_locations`, and whether each is outside the root, by all its addresses."""
    absolute = pc.match_substring_regex(paths, ABSOLUTE)
    locations = file_locations(paths, root=roots[0])
    for root in roots[1:]:
        # The log may use another address for the table than the user.
        outside = pc.and_(absolute, pc.match_substring_regex(locations, ABSOLUTE))
        locations = pc.if_else(outside, file_locations(paths, root=root), locations)
    return locations, pc.and_(absolute, pc.match_substring_regex(locations, ABSOLUTE))


def written_locations(paths: pa.StringArray) -> pa.BinaryArray:
    """Returns the location of each path from its text alone, independent of the table's current
    root.

    A relative and an absolute path of one file have different locations; `locations_to_find`
    returns both.
    """
    return _written(paths)[0]


def locations_to_find(paths: pa.StringArray, *, root: str) -> pa.BinaryArray:
    """Returns every `written_locations` that any spelling of these paths can have."""
    locations, absolute = _written(paths)
    folder = location_of_root(root) + b"/"
    if absolute is None:
        below = pc.binary_join_element_wise(pa.scalar(folder), locations, pa.scalar(b""))
        return pa.concat_arrays([locations, below])
    inside = pc.and_(absolute, pc.starts_with(locations, folder))
    relative = locations.filter(pc.invert(absolute))
    return pa.concat_arrays(
        [
            locations,
            pc.binary_join_element_wise(pa.scalar(folder), relative, pa.scalar(b"")),
            pc.binary_replace_slice(locations.filter(inside), 0, len(folder), b""),
        ]
    )


def _written(paths: pa.StringArray) -> tuple[pa.BinaryArray, pa.BooleanArray | None]:
    """Returns the locations from the texts alone, and which are absolute; None if none is."""
    absolute = absolute_paths(paths)
    if absolute is None:
        return decode_paths(paths), None
    written = paths
    for pattern, replacement in _REWRITES:
        written = pc.replace_substring_regex(written, pattern, replacement)
    return decode_paths(pc.if_else(absolute, written, paths)), absolute


def below_root(paths: pa.StringArray, *, root: str, is_literal: bool = False) -> pa.StringArray:
    """Returns the part of absolute paths below the root, as written; null for other locations.

    Unlike in `file_locations`, nothing is decoded or parsed as a query, because some writers do not
    encode paths. Only the root may be encoded, unless `is_literal`.
    """
    folder = location_of_root(root) + b"/"
    written = paths
    for pattern, replacement in _REWRITES[1:]:
        written = pc.replace_substring_regex(written, pattern, replacement)
    steps = f"(?:[^/]*/){{{folder.count(b'/')}}}"
    head = pc.replace_substring_regex(written, f"(?s)^({steps}).*", r"\1")
    relative = pc.replace_substring_regex(written, f"(?s)^{steps}", "")
    head = head.cast(pa.binary()) if is_literal else decode_paths(head)
    return pc.if_else(pc.equal(head, folder), relative, pa.scalar(None, pa.string()))


def location_of_root(root: str) -> bytes:
    """The location of a table's root, without a trailing slash."""
    encoded = Address.parse(root).scheme == "file"
    for pattern, replacement in _REWRITES[1:]:
        root = re.sub(pattern, replacement, root)
    root = root.rstrip("/")
    return unquote_to_bytes(root) if encoded else root.encode()


def decode_paths(texts: pa.StringArray) -> pa.BinaryArray:
    """Replaces every `%XX` by the byte that it encodes."""
    if not is_encoded(texts):
        return texts.cast(pa.binary())
    width = np.dtype(np.int32).itemsize
    offsets = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, texts.offset * width)
    data = np.frombuffer(texts.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].copy()
    offsets = offsets - offsets[0]
    at = np.flatnonzero(data == ord("%"))
    at = at[at + 2 < offsets[np.searchsorted(offsets, at, side="right")]]
    high, low = _HEX[data[at + 1]], _HEX[data[at + 2]]
    valid = (high >= 0) & (low >= 0)
    at = at[valid]
    data[at] = (high * 16 + low)[valid]
    is_kept = np.ones(len(data), bool)
    is_kept[at + 1] = is_kept[at + 2] = False
    dropped = np.zeros(len(data) + 1, np.int32)
    np.cumsum(~is_kept, out=dropped[1:])
    buffers = [None, pa.py_buffer(offsets - dropped[offsets]), pa.py_buffer(data[is_kept])]
    return pa.Array.from_buffers(pa.binary(), len(texts), buffers)


def has_odd_segment(paths: pa.Array) -> bool:
    """Returns whether any path has a segment that is empty or begins with `.` or `_`.

    For nearly all tables none has, and no path needs to be searched with a regular expression.
    """
    if not len(paths):
        return False
    text = text_bytes(paths)
    lengths = pc.binary_length(paths)
    if pc.min(lengths).as_py() == 0:
        return True
    ends = np.cumsum(lengths.to_numpy())
    heads = (text[np.append(0, ends[:-1])], text[1:][text[:-1] == ord("/")])
    # A segment after a slash at the end of a path is empty, whatever the next path begins with.
    return bool((text[ends - 1] == ord("/")).any() or any(_ODD_HEADS[head].any() for head in heads))


def is_encoded(paths: pa.Array) -> bool:
    """Returns whether any path may contain encoded bytes."""
    return bool((text_bytes(paths) == ord("%")).any())


def as_uris(paths: pa.StringArray, *, absolute: bool = False) -> pa.StringArray:
    """Encodes literal paths as in the log, so that decoding restores them."""
    uris = pc.replace_substring(paths, "%", "%25")
    return uris if absolute else pc.replace_substring(uris, ":", "%3A")
