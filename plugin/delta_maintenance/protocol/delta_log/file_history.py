"""The live files of every version of a log, in a few columns.

Implements "Action Reconciliation" for all versions at once. Each file action is one row; rows are
sorted by logical file and version, so the previous row of a file shows what an action changed. From
the rows follow the totals of every version, the files of any version, and the commits that violate
the rules of "Add File and Remove File".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import COMMIT_VERSION, logical_file_keys
from delta_maintenance.protocol.actions.paths import file_locations, intended_locations
from delta_maintenance.protocol.columns import integers, to_bools

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ABSENT = -1
"""Replaces nulls in columns without negative numbers."""

_VECTOR = r"(^|/)deletion_vector_[0-9a-f-]{36}\.bin$"
"""Paths of deletion vectors, as every writer names them."""
COMPARED_FIELDS = ("size", "modificationTime", "baseRowId", "defaultRowCommitVersion")
"""Numeric fields of `add` that a checkpoint repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileActions:
    """Adds and removes, with the version of each row."""

    adds: pa.Table
    removes: pa.Table
    version: int | None = None
    """The version of all rows, or None if the column `COMMIT_VERSION` contains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The sums over the live files, with one number for each version from `first`."""

    first: int
    num_files: Ints
    total_size: Ints
    num_deletion_vectors: Ints
    num_deleted_rows: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleViolation:
    """The file actions of one commit that violate one rule."""

    rule: str
    """`repeated-file`, `added-and-removed`, `remove-of-absent-file` or `two-live-vectors`."""
    version: int
    path: str
    """The path of the first of them."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubledFiles:
    """Live files that a commit removed under a key that was not live, so that they stayed live.

    Either the remove lacks the deletion vector of the file, or it spells the path differently. The
    rows of such a file are read although the commit moved or deleted them.
    """

    keys: pa.StringArray
    """The keys of the live files (`logical_file_keys`)."""
    removed_keys: pa.StringArray
    """The keys that the commits removed instead."""
    removed_paths: pa.StringArray
    versions: Ints
    """The first version since which each file should not be live."""
    changes_data: Bools
    """The `dataChange` of each remove."""
    is_doubtful: Bools
    """Whether the commit also added the file again with another deletion vector, or may have meant
    another file."""

    def __len__(self) -> int:
        return len(self.keys)


_NOT_DOUBLED = DoubledFiles(
    keys=pa.array([], pa.string()),
    removed_keys=pa.array([], pa.string()),
    removed_paths=pa.array([], pa.string()),
    versions=np.empty(0, np.int64),
    changes_data=np.empty(0, bool),
    is_doubtful=np.empty(0, bool),
)


class FileHistory:
    """The file actions of a log between two versions.

    `base` is the content of a checkpoint, or None for a complete log; `tail` contains the actions
    of later commits. Only numeric fields are kept.
    """

    def __init__(
        self, base: FileActions | None, tail: Sequence[FileActions], *, first: int, last: int
    ) -> None:
        self.first = first
        """The version of the base, or 0."""
        self.last = last
        self._base_version = first if base is not None else ABSENT
        tables = [actions for actions in (base, *tail) if actions is not None]
        batches = [
            (batch, actions.version, is_add)
            for actions in tables
            for batch, is_add in ((actions.adds, True), (actions.removes, False))
            if batch.num_rows
        ]
        encoded = _keys([batch for batch, _, _ in batches])
        codes = _indices(encoded)
        self.keys: pa.StringArray = (
            encoded.chunk(0).dictionary if encoded.num_chunks else pa.array([], pa.string())
        )
        """Every logical file (`logical_file_keys`) once; its position is its code."""
        versions = _concat(_versions(batch, version) for batch, version, _ in batches)
        is_add = _concat(np.full(batch.num_rows, flag) for batch, _, flag in batches)
        # If one commit adds and removes a file, the add wins, because keeping a file is safe.
        order = np.lexsort((is_add, versions, codes))
        self._codes, self._versions = codes[order], versions[order]
        self._is_add = is_add[order].astype(bool)
        self._fields = {
            name: _concat(numbers(batch, name) for batch, _, _ in batches)[order]
            for name in COMPARED_FIELDS
        }
        # A remove has no modification time, and its own time is needed as well.
        times = _concat(numbers(batch, "deletionTimestamp") for batch, _, _ in batches)[order]
        self._fields["modificationTime"] = np.where(
            self._is_add, self._fields["modificationTime"], times
        )
        self._deleted = _concat(cardinalities(batch) for batch, _, _ in batches)[order]
        self._changes_data = _concat(_data_changes(batch) for batch, _, _ in batches)[order] != 0
        first_rows = _first_rows(self._codes, len(self.keys))
        self._paths = _take_paths([batch["path"] for batch, _, _ in batches], order[first_rows])

    def codes_of(self, keys: pa.ChunkedArray) -> Ints:
        """The code of each logical file, `ABSENT` for files that the log never had."""
        key_codes = pc.fill_null(pc.index_in(keys, value_set=self.keys), ABSENT)
        return _concat(chunk.to_numpy().astype(np.int64) for chunk in key_codes.chunks)

    def path(self, code: int) -> str:
        """The path of a logical file as written in the log."""
        return str(self._paths[code].as_py())

    def active_rows(self, version: int) -> tuple[Ints, Bools]:
        """For each code the row of its newest action at a version, and whether the file is live.

        The row is `ABSENT` if the file has no action up to that version.
        """
        rows = np.full(len(self.keys), ABSENT, np.int64)
        past_rows = np.flatnonzero(self._versions <= version)
        # Rows of one file are sorted by version, and the last assignment wins.
        rows[self._codes[past_rows]] = past_rows
        live = np.zeros(len(rows), bool)
        present = rows >= 0
        live[present] = self._is_add[rows[present]]
        return rows, live

    def field(self, name: str, rows: Ints) -> Ints:
        """A field of `COMPARED_FIELDS` for the given rows, `ABSENT` for null.

        `modificationTime` is the `deletionTimestamp` in rows of removes.
        """
        return self._fields[name][rows]

    def are_committed(self, rows: Ints) -> Bools:
        """Which of the rows a commit after the base contains; `ABSENT` is no row."""
        committed = rows != ABSENT
        committed[committed] = self._versions[rows[committed]] > self._base_version
        return np.asarray(committed, np.bool_)

    def versions(self, rows: Ints) -> Ints:
        """The version of each of the rows; `ABSENT` for no row."""
        return np.append(self._versions, ABSENT)[rows]

    def paths(self, codes: Ints) -> pa.StringArray:
        """The paths of logical files as written in the log."""
        return self._paths.take(integers(codes))

    def cardinality(self, rows: Ints) -> Ints:
        """The rows marked by the deletion vectors of the given rows, `ABSENT` without a vector."""
        return self._deleted[rows]

    def totals(self) -> Totals:
        """The sums of every version from `first` to `last`."""
        sizes = np.maximum(self._fields["size"], 0)
        has_vector = (self._deleted != ABSENT).astype(np.int64)
        deleted = np.maximum(self._deleted, 0)
        return Totals(
            first=self.first,
            num_files=self._sum_weights(np.ones_like(sizes)),
            total_size=self._sum_weights(sizes),
            num_deletion_vectors=self._sum_weights(has_vector),
            num_deleted_rows=self._sum_weights(deleted),
        )

    def violations(self, *, root: str) -> Iterator[RuleViolation]:
        """The rule violations of all commits; different spellings of a path count as one path."""
        committed = self._versions > self._base_version
        locations = _locations(self._paths, root)
        for flag in (True, False):
            rows = np.flatnonzero(committed & (self._is_add == flag))
            yield from self._group_violations("repeated-file", rows[self._repeats(locations, rows)])
        is_same_file = self._codes[1:] == self._codes[:-1]
        together = is_same_file & (self._versions[1:] == self._versions[:-1])
        is_added_and_removed = together & (self._is_add[1:] != self._is_add[:-1])
        yield from self._group_violations(
            "added-and-removed", np.flatnonzero(is_added_and_removed) + 1
        )
        yield from self._group_violations("remove-of-absent-file", self._removes_of_absent)
        # Compared as written: two spellings of one path are two keys without deletion vectors.
        written = _encode_texts(self._paths)
        yield from self._group_violations("two-live-vectors", self._second_vectors(written))

    def doubled_files(self, *, root: str) -> DoubledFiles:
        """The files of the newest version that a commit removed under another key.

        A file that was added again with `dataChange` after that commit is not among them.
        """
        absent = self._removes_of_absent
        if not len(absent):
            return _NOT_DOUBLED
        codes = np.flatnonzero(self.active_rows(self.last)[1])
        begins = np.flatnonzero(self._is_add & (~self._was_live | self._changes_data))
        starts = np.full(len(self.keys), ABSENT, np.int64)
        # Rows of one file are sorted by version, and the last assignment wins.
        starts[self._codes[begins]] = self._versions[begins]
        added = np.zeros(len(self.keys), bool)
        added[self._codes[self._is_add]] = True
        places = _locations(self._paths, root)
        intended = _encode_texts(intended_locations(self._paths, root=root))
        # A key that was once added names another file, unless the location is the same.
        never_added = absent[~added[self._codes[absent]]]
        placed_first = self._first_after(places, codes, starts, absent)
        intended_first = self._first_after(intended, codes, starts, never_added)
        versions = np.append(self._versions, self.last + 1)
        rows = np.where(
            versions[placed_first] <= versions[intended_first], placed_first, intended_first
        )
        codes, rows = codes[rows < len(self._codes)], rows[rows < len(self._codes)]
        keys, removed_keys = (self.keys.take(integers(c)) for c in (codes, self._codes[rows]))
        adds = self._stamps(intended, self._codes[self._is_add], self._versions[self._is_add])
        is_replaced = np.isin(self._stamps(intended, codes, self._versions[rows]), adds)
        _, which, count = np.unique(intended[codes], return_inverse=True, return_counts=True)
        other_vector = to_bools(pc.not_equal(_vector_ids(keys), _vector_ids(removed_keys)))
        return DoubledFiles(
            keys=keys,
            removed_keys=removed_keys,
            removed_paths=self._paths.take(integers(self._codes[rows])),
            versions=self._versions[rows],
            changes_data=self._changes_data[rows],
            is_doubtful=(is_replaced & other_vector) | (count[which] > 1),
        )

    def _first_after(self, locations: Ints, codes: Ints, starts: Ints, rows: Ints) -> Ints:
        """The first of the rows with the location of each file after the start of the file.

        The number of all rows, where there is none.
        """
        stamps = self._stamps(locations, self._codes[rows], self._versions[rows])
        order = np.argsort(stamps, kind="stable")
        at = np.searchsorted(stamps[order], self._stamps(locations, codes, starts[codes]), "right")
        following_rows = np.append(rows[order], ABSENT)[at]
        is_same = locations[self._codes[following_rows]] == locations[codes]
        return np.where((following_rows != ABSENT) & is_same, following_rows, len(self._codes))

    def _stamps(self, locations: Ints, codes: Ints, versions: Ints) -> Ints:
        """A number for each pair of a location and a version, ascending by both."""
        return locations[codes] * (self.last + 2) + versions + 1

    @cached_property
    def _removes_of_absent(self) -> Ints:
        """The rows of committed removes of files that were not live."""
        absent = (self._versions > self._base_version) & ~self._is_add & ~self._was_live
        rows = np.flatnonzero(absent)
        return rows[~self._are_vectors(rows)]

    @cached_property
    def _was_live(self) -> Bools:
        """Whether the file was live before each action."""
        before = np.zeros(len(self._codes), bool)
        before[1:] = self._is_add[:-1] & (self._codes[1:] == self._codes[:-1])
        return before

    def _are_vectors(self, rows: Ints) -> Bools:
        """Which actions name a deletion vector as if it were a data file.

        Dropping the feature commits such removes, so that a writer without it keeps the vectors.
        """
        paths = self._paths.take(integers(self._codes[rows]))
        return to_bools(pc.fill_null(pc.match_substring_regex(paths, _VECTOR), False))

    def _sum_weights(self, weights: Ints) -> Ints:
        """The sum of a weight over the live files, for every version."""
        before = np.zeros_like(weights)
        before[1:] = weights[:-1]
        change = weights * self._is_add - before * self._was_live
        totals = np.zeros(self.last - self.first + 1, np.int64)
        np.add.at(totals, self._versions - self.first, change)
        return np.cumsum(totals)

    def _repeats(self, locations: Ints, rows: Ints) -> Bools:
        """Marks the rows that are not the first with their path in their commit."""
        if not len(rows):
            return np.zeros(0, bool)
        of_rows = locations[self._codes[rows]]
        order = np.lexsort((of_rows, self._versions[rows]))
        versions, ordered = self._versions[rows][order], of_rows[order]
        repeats = np.zeros(len(rows), bool)
        repeats[order[1:]] = (versions[1:] == versions[:-1]) & (ordered[1:] == ordered[:-1])
        return repeats

    def _second_vectors(self, paths: Ints) -> Ints:
        """The rows of actions after which a path is live more than once."""
        keys_per_path = np.bincount(paths, minlength=1)
        rows = np.flatnonzero(keys_per_path[paths[self._codes]] > 1)
        if not len(rows):
            return rows
        change = self._is_add[rows].astype(np.int64) - self._was_live[rows]
        # Removes are applied first, because actions of one commit have no order.
        order = np.lexsort((change, self._versions[rows], paths[self._codes[rows]]))
        rows, change = rows[order], change[order]
        of_rows = paths[self._codes[rows]]
        running = np.cumsum(change)
        starts = np.flatnonzero(np.append(True, of_rows[1:] != of_rows[:-1]))
        offsets = np.repeat(running[starts] - change[starts], np.diff(np.append(starts, len(rows))))
        return np.sort(rows[(running - offsets > 1) & (change > 0)])

    def _group_violations(self, rule: str, rows: Ints) -> Iterator[RuleViolation]:
        versions, first_rows, counts = np.unique(
            self._versions[rows], return_index=True, return_counts=True
        )
        for version, at, count in zip(versions.tolist(), first_rows, counts.tolist(), strict=True):
            path = self.path(int(self._codes[rows[at]]))
            yield RuleViolation(rule=rule, version=version, path=path, count=count)


def numbers(batch: pa.Table, name: str) -> Ints:
    """A column of `COMPARED_FIELDS`, `ABSENT` for null."""
    if name not in batch.column_names:
        return np.full(batch.num_rows, ABSENT, np.int64)
    return np.asarray(pc.fill_null(batch[name], ABSENT).to_numpy(), np.int64)


def cardinalities(batch: pa.Table) -> Ints:
    """The rows that the deletion vector of each file marks, `ABSENT` without a vector."""
    if "deletionVector" not in batch.column_names:
        return np.full(batch.num_rows, ABSENT, np.int64)
    return _concat(
        np.where(
            pc.is_valid(chunk).to_numpy(zero_copy_only=False),
            pc.fill_null(pc.struct_field(chunk, "cardinality"), 0).to_numpy(zero_copy_only=False),
            ABSENT,
        )
        for chunk in batch["deletionVector"].chunks
    )


def _keys(batches: Sequence[pa.Table]) -> pa.ChunkedArray:
    chunks = [chunk for batch in batches for chunk in logical_file_keys(batch).chunks]
    return pa.chunked_array(chunks, pa.string()).dictionary_encode()


def _indices(encoded: pa.ChunkedArray) -> Ints:
    return _concat(chunk.indices.to_numpy().astype(np.int64) for chunk in encoded.chunks)


def _data_changes(batch: pa.Table) -> Bools:
    """Whether each action changes data, as it does if it does not say so."""
    if "dataChange" not in batch.column_names:
        return np.ones(batch.num_rows, bool)
    return to_bools(pc.fill_null(batch["dataChange"], True).combine_chunks())


def _vector_ids(keys: pa.StringArray) -> pa.StringArray:
    """The ID of the deletion vector in each key, empty without one."""
    ids = pc.list_element(pc.split_pattern(keys, "\0", max_splits=1), 0)
    return pc.if_else(pc.match_substring(keys, "\0"), ids, "")


def _concat(pieces: Iterator[npt.NDArray[np.generic]]) -> Ints:
    arrays = [np.asarray(piece, np.int64) for piece in pieces]
    return np.concatenate([np.empty(0, np.int64), *arrays])


def _versions(batch: pa.Table, version: int | None) -> Ints:
    if version is not None:
        return np.full(batch.num_rows, version, np.int64)
    return np.asarray(batch[COMMIT_VERSION].to_numpy(), np.int64)


def _first_rows(codes: Ints, count: int) -> Ints:
    """The first position of each code in a sorted array."""
    return np.searchsorted(codes, np.arange(count))


def _take_paths(columns: Sequence[pa.ChunkedArray], rows: Ints) -> pa.Array:
    chunks = [chunk for column in columns for chunk in column.chunks]
    paths = pa.chunked_array(chunks, pa.string()).take(integers(rows))
    return pa.concat_arrays([pa.array([], pa.string()), *paths.chunks])


def _locations(paths: pa.StringArray, root: str) -> Ints:
    """A number for each path, equal for all spellings of one location."""
    return _encode_texts(file_locations(paths, root=root))


def _encode_texts(texts: pa.Array) -> Ints:
    return np.asarray(texts.dictionary_encode().indices.to_numpy(), np.int64)
