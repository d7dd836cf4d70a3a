"""The source files of a run: their complete adds, and what other writers change about them.

Of the winning commits, only actions for these files are held in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import RefusedError
from delta_maintenance.operations.rewriting.choice import Choice
from delta_maintenance.operations.rewriting.live_columns import LiveColumns
from delta_maintenance.protocol.actions.deletion_vectors import DeletionVectorDescriptor
from delta_maintenance.protocol.actions.file_columns import ADD_TYPES, logical_file_keys
from delta_maintenance.protocol.commit.conflicts import ConcurrentCommit
from delta_maintenance.protocol.commit.staged import locations_of, staged_adds
from delta_maintenance.protocol.delta_log.file_names import commit_name
from delta_maintenance.protocol.ndjson.parse import FileLines, MapKeys, parse_file_actions
from delta_maintenance.protocol.ndjson.split import parse_other_lines, split
from delta_maintenance.protocol.schema.partition_values import canonical_texts
from delta_maintenance.protocol.schema.types import DeltaType
from delta_maintenance.protocol.statistics.as_json import num_records
from delta_maintenance.table.data.data_file_reader import SourceFile
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.checkpoint_spec import adds_for_commits


def chosen_adds(snapshot: Snapshot, files: LiveColumns, choice: Choice) -> pa.Table:
    """Returns the adds of the chosen files, in the order of `choice.rows`, with all fields.

    Reads the snapshot again, and holds only the chosen files in memory. Statistics that a
    checkpoint stores as structs are converted to JSON. A damaged checkpoint is skipped.
    """
    rows = pa.array(choice.rows)
    vector, path = files.vector.take(rows), files.path.take(rows)
    keyed = pc.binary_join_element_wise(pc.fill_null(vector, ""), path, "\0")
    keys = pc.if_else(pc.is_valid(vector), keyed, path)

    def read(sound: Snapshot) -> tuple[list[pa.Table], list[pa.Array]]:
        positions: list[pa.Array] = []

        def chosen() -> Iterator[pa.Table]:
            for batch in sound.log.scan():
                at = pc.index_in(logical_file_keys(batch.adds), value_set=keys)
                is_chosen = pc.is_valid(at)
                positions.extend(at.filter(is_chosen).chunks)
                yield batch.adds.filter(is_chosen)

        return list(adds_for_commits(sound, chosen())), positions

    parts, positions = snapshot.avoiding_damage(read)
    order = np.argsort(pa.chunked_array(positions, pa.int32()).to_numpy(), kind="stable")
    if len(order) != len(choice.rows):
        raise RefusedError(
            "the live files of this version changed between two reads of the log",
            table=snapshot.table,
            version=snapshot.version,
            remedy="run again",
        )
    adds = pa.concat_tables(parts, promote_options="permissive") if parts else _none()
    return adds.take(pa.array(order))


def source_files(
    adds: pa.Table, counts: pa.Array, *, types: Mapping[str, DeltaType] | None = None
) -> tuple[SourceFile, ...]:
    """Converts adds to source files of a bin; `counts` are their numbers of physical rows.

    With the `types` of the partition columns, their values get the canonical spelling.
    """
    fields = ("path", "partitionValues", "size", "deletionVector", "baseRowId")
    rows = adds.select([*fields, "defaultRowCommitVersion"]).to_pylist()
    sources = tuple(
        _source(row, count) for row, count in zip(rows, counts.to_pylist(), strict=True)
    )
    if not types:
        return sources
    # The files of a bin have few spellings.
    spellings = {
        values: tuple((name, _canonical(text, types.get(name))) for name, text in values)
        for values in {source.partition_values for source in sources}
    }
    return tuple(
        replace(source, partition_values=spellings[source.partition_values]) for source in sources
    )


def _canonical(text: str | None, kind: DeltaType | None) -> str | None:
    if text is None or kind is None:
        return text
    spelling: str = canonical_texts(pa.array([text]), kind)[0].as_py()
    return spelling


def _source(row: Mapping[str, Any], count: int | None) -> SourceFile:
    vector = row["deletionVector"]
    return SourceFile(
        path=row["path"],
        partition_values=tuple(sorted(row["partitionValues"] or [])),
        size=row["size"] or 0,
        deletion_vector=None if vector is None else DeletionVectorDescriptor.from_json(vector),
        num_records=count,
        base_row_id=row["baseRowId"],
        default_row_commit_version=row["defaultRowCommitVersion"],
    )


def _none() -> pa.Table:
    return pa.schema(list(ADD_TYPES.items())).empty_table()


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The current state of a planned source file."""

    fate: Literal["live", "rows-removed", "rewritten"]
    """`live`: live, possibly with another deletion vector or other fields. `rows-removed`: removed
    with its rows. `rewritten`: removed by a commit that moved its rows to other files.
    """
    add: pa.Table | None = None
    """The current add as one row; None if the file is removed."""

    @property
    def source(self) -> SourceFile | None:
        """The source file according to the current add; None if the file is removed."""
        if self.add is None:
            return None
        return source_files(self.add, num_records(self.add["stats"]))[0]


class FollowedSources:
    """Tracks the planned sources that commits of other writers changed."""

    def __init__(self, snapshot: Snapshot, adds: pa.Table) -> None:
        """`adds` are the adds of all planned sources in the snapshot."""
        self._root = snapshot.table
        self._planned = locations_of(adds, root=self._root)
        self._keys = logical_file_keys(adds)
        self._touched: dict[bytes, Followed] = {}

    def follow(self, adds: pa.Table) -> None:
        """Adds further sources, as of the last version passed to `take_in` or `reopened`."""
        more = locations_of(adds, root=self._root)
        self._planned = pa.concat_arrays([self._planned, more])
        chunks = [*self._keys.chunks, *logical_file_keys(adds).chunks]
        self._keys = pa.chunked_array(chunks, pa.string())

    def of(self, location: bytes) -> Followed | None:
        """Returns the state of a source; None if no commit changed it."""
        return self._touched.get(location)

    def touched(self, sources: pa.Table) -> dict[int, Followed]:
        """Returns the changed files among these sources, by their row."""
        if not self._touched:
            return {}
        locations = locations_of(sources, root=self._root)
        named = pc.is_in(locations, value_set=pa.array(list(self._touched), pa.binary()))
        rows = np.flatnonzero(named.to_numpy(zero_copy_only=False)).tolist()
        return {row: self._touched[locations[row].as_py()] for row in rows}

    def take_in(self, snapshot: Snapshot, commits: Iterable[ConcurrentCommit]) -> None:
        """Applies commits of other writers, in the order of their versions.

        `snapshot` is a version that includes these commits; its store and partition columns are
        used.
        """
        for commit in commits:
            removes = self._concerned(commit.removes)
            adds = self._concerned(commit.adds)
            if not removes.num_rows and not adds.num_rows:
                continue
            # `commit` contains only the columns for conflict detection; removes need more columns.
            whole = _whole_commit(snapshot, commit.version)
            self._removed(self._concerned(whole.removes))
            self._added(self._concerned(whole.adds))

    def reopened(self, snapshot: Snapshot) -> None:
        """Discards all known changes and reads the state of a version whose commits are unknown.

        A source that is not live in the form in which it was read counts as rewritten.
        """
        self._touched = {}
        fields = {"add": ("path",), "remove": ("path",)}
        keys = snapshot.avoiding_damage(
            lambda sound: [
                chunk
                for batch in sound.log.scan(fields=fields)
                for chunk in logical_file_keys(batch.adds).chunks
            ]
        )
        live = pc.is_in(self._keys, value_set=pa.chunked_array(keys, pa.string()))
        gone = np.flatnonzero(~live.to_numpy())
        for location in self._planned.take(pa.array(gone)).to_pylist():
            self._touched[location] = Followed(fate="rewritten")

    def _concerned(self, batch: pa.Table) -> pa.Table:
        if not batch.num_rows:
            return batch
        return batch.filter(pc.is_in(locations_of(batch, root=self._root), value_set=self._planned))

    def _removed(self, removes: pa.Table) -> None:
        changed = removes["dataChange"] if "dataChange" in removes.column_names else None
        for at, location in enumerate(locations_of(removes, root=self._root).to_pylist()):
            moved = changed is not None and changed[at].as_py() is False
            self._touched[location] = Followed(fate="rewritten" if moved else "rows-removed")

    def _added(self, adds: pa.Table) -> None:
        # After the removes: a commit that changes the deletion vector of a file contains both.
        for at, location in enumerate(locations_of(adds, root=self._root).to_pylist()):
            self._touched[location] = Followed(fate="live", add=adds.slice(at, 1))


@dataclass(frozen=True, slots=True)
class _Files:
    adds: pa.Table
    removes: pa.Table


def _whole_commit(snapshot: Snapshot, version: int) -> _Files:
    path = f"{LOG_DIRECTORY}/{commit_name(version)}"
    text = split(path, snapshot.log.store.read(path))
    _, beside = parse_other_lines(text)
    columns = frozenset(snapshot.log.physical_partition_columns)
    parsed = parse_file_actions(
        [FileLines.of(text, beside)], keys=MapKeys(partition_columns=columns)
    )
    return _Files(staged_adds(parsed.adds), parsed.removes)
