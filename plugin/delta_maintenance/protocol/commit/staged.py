"""Staged actions: the contents of a commit before it is built for a version.

File actions are Arrow columns (`protocol.actions.file_columns`); other actions are objects. Nothing
here depends on the version or the time of the commit. `protocol.commit.build` adds row IDs and
timestamps, again for every version that is tried.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, InvalidRequestError, RefusedError
from delta_maintenance.protocol.actions.file_columns import (
    ADD_TYPES,
    CDC_TYPES,
    COMMIT_VERSION,
    PARSED_COLUMNS,
    REMOVE_TYPES,
    deletion_vector_ids,
    empty,
    normalise,
)
from delta_maintenance.protocol.actions.model import DomainMetadata, Json, Metadata, Protocol, Txn
from delta_maintenance.protocol.actions.paths import file_locations
from delta_maintenance.protocol.ndjson.parse import FileLines, MapKeys, parse_file_actions
from delta_maintenance.protocol.ndjson.split import LineRun


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedActions:
    """The actions of one commit except `commitInfo`."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: tuple[Txn, ...] = ()
    domains: tuple[DomainMetadata, ...] = ()
    adds: pa.Table = field(default_factory=lambda: empty(ADD_TYPES))
    """All columns of `ADD_TYPES`, then unknown ones. A file with a base row ID was committed
    before; other files get one when the commit is built."""
    removes: pa.Table = field(default_factory=lambda: empty(REMOVE_TYPES))
    """All columns of `REMOVE_TYPES`, then unknown ones."""
    changes: pa.Table = field(default_factory=lambda: empty(CDC_TYPES))
    """Change data files, with the columns of `CDC_TYPES`."""

    @property
    def changes_data(self) -> bool:
        """Whether any file action has `dataChange`."""
        return any(
            pc.any(batch["dataChange"]).as_py() or False for batch in (self.adds, self.removes)
        )

    @property
    def only_re_adds(self) -> bool:
        """Whether the file actions only add live files again."""
        return bool(self.adds.num_rows and not self.removes.num_rows and not self.changes_data)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit except `commitInfo`."""
        singles = (self.protocol, self.metadata, *self.txns, *self.domains)
        return not (self.adds.num_rows or self.removes.num_rows or any(singles))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSet:
    """The files that a commit depends on; a concurrent change of them is a conflict."""

    whole_table: bool = False
    files: pa.Table | None = None
    """Live files, with the columns `path` and, if any file has one, `deletionVector`."""

    @property
    def is_empty(self) -> bool:
        """Whether the commit depends on no file, so that no change of files conflicts with it."""
        return not self.whole_table and (self.files is None or not self.files.num_rows)


def staged_adds(
    adds: pa.Table | Sequence[Json], *, partition_columns: Collection[str] = ()
) -> pa.Table:
    """Adds in the format of `StagedActions`, from the columns of a snapshot's scan or from objects.

    `partition_columns` are physical names; nulls in these columns are kept. Raises `RefusedError`
    if the statistics of a file exist only as parsed columns, which a commit cannot contain.
    """
    if not isinstance(adds, pa.Table):
        adds = _from_json("add", adds, partition_columns)
    if "stats_parsed" in adds.column_names:
        stats = adds["stats"] if "stats" in adds.column_names else pa.nulls(adds.num_rows)
        unsaid = pc.and_(pc.is_null(stats), pc.is_valid(adds["stats_parsed"]))
        if pc.any(unsaid).as_py():
            raise RefusedError(
                "the statistics of a file to be added are only in stats_parsed",
                remedy="render them as JSON first; otherwise they would be lost",
            )
    return _complete(adds, ADD_TYPES)


def staged_removes(
    removes: pa.Table | Sequence[Json], *, partition_columns: Collection[str] = ()
) -> pa.Table:
    """Removes in the format of `StagedActions`; `build` fills in missing deletion timestamps."""
    if not isinstance(removes, pa.Table):
        removes = _from_json("remove", removes, partition_columns)
    return _complete(removes, REMOVE_TYPES)


def removes_of(adds: pa.Table, *, data_change: bool) -> pa.Table:
    """The removes of live files, with all fields that their adds and removes share."""
    adds = _complete(adds, ADD_TYPES)
    rows = adds.num_rows
    columns = {name: adds[name] for name in REMOVE_TYPES if name in ADD_TYPES}
    columns["dataChange"] = pa.chunked_array([pa.array([data_change] * rows, pa.bool_())])
    columns["extendedFileMetadata"] = pa.chunked_array([pa.array([True] * rows, pa.bool_())])
    return _complete(pa.table(columns), REMOVE_TYPES)


def locations_of(batch: pa.Table, *, root: str) -> pa.BinaryArray:
    """The location of each file; equal for all spellings of one path."""
    return file_locations(_one_array(batch["path"], pa.string()), root=root)


def logical_locations(batch: pa.Table, *, root: str) -> pa.BinaryArray:
    """Like `locations`, but equal only for files with the same deletion vector."""
    ids = _one_array(deletion_vector_ids(batch), pa.string())
    # NUL cannot occur in a URI, so a path cannot equal a combination of vector and path.
    return pc.binary_join_element_wise(
        pc.fill_null(ids, "").cast(pa.binary()), locations_of(batch, root=root), b"\0"
    )


def _from_json(
    action: str, actions: Sequence[Json], partition_columns: Collection[str]
) -> pa.Table:
    lines = b"".join(json.dumps({action: value}).encode() + b"\n" for value in actions)
    runs = (LineRun(lines, len(actions), action),) if actions else ()
    source = FileLines("the staged actions", runs, range(1, len(actions) + 1))
    try:
        parsed = parse_file_actions(
            [source], keys=MapKeys(partition_columns=frozenset(partition_columns))
        )
    except CorruptTableError as error:
        raise InvalidRequestError(error.problem, file=error.file) from None
    return parsed.adds if action == "add" else parsed.removes


def _complete(batch: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    batch = batch.drop_columns(
        [name for name in (*PARSED_COLUMNS, COMMIT_VERSION) if name in batch.column_names]
    )
    normalised = normalise(batch, types, partition_keys=None)
    columns = {
        name: normalised[name]
        if name in normalised.column_names
        else pa.chunked_array([pa.nulls(batch.num_rows, kind)])
        for name, kind in types.items()
    }
    return pa.table(
        columns | {name: normalised[name] for name in normalised.column_names if name not in types}
    )


def _one_array(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    return pa.concat_arrays([pa.array([], kind), *column.chunks])
