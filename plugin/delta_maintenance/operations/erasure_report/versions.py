"""The versions of a table that can be opened: their metadata, and the files that each of them has.

Implements "Action Reconciliation" for all of these versions at once. An old file is read as the
versions that it belonged to read it, so each use of a file has its range of versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.layout.reading import Column, every_column
from delta_maintenance.protocol.actions.file_columns import COMMIT_VERSION, logical_file_keys
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.changes.row_tracking_support import (
    ROW_COMMIT_VERSION_COLUMN,
    ROW_ID_COLUMN,
)
from delta_maintenance.protocol.columns import integers
from delta_maintenance.protocol.data_files.layout import CHANGE_TYPE
from delta_maintenance.protocol.ndjson.parse import MapKeys
from delta_maintenance.protocol.ndjson.split import parse_other_lines
from delta_maintenance.protocol.schema.types import (
    ColumnMappingMode,
    StructType,
    column_mapping_mode,
    parse_schema,
)
from delta_maintenance.protocol.statistics.bounds import Numbers
from delta_maintenance.table.data.row_reader import FILES
from delta_maintenance.table.read.log_reader import LogTail
from delta_maintenance.table.read.segment import LogListing, list_log
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

_ADD = ("path", "partitionValues", "size", "deletionVector")
_REMOVE = ("path", "partitionValues", "size", "deletionVector", "deletionTimestamp")
KNOWN_FILES = pa.schema([*FILES, ("deletionTimestamp", pa.int64())])
"""Files as an action of the log names them; only removes have a time."""


@dataclass(frozen=True, kw_only=True)
class VersionState:
    """The protocol and the metadata of a range of versions."""

    first: int
    """The first version of the range."""
    protocol: Protocol
    metadata: Metadata
    columns: tuple[Column, ...]

    @cached_property
    def schema(self) -> StructType:
        """The columns of these versions."""
        return parse_schema(self.metadata.schema_string or "")

    @property
    def mode(self) -> ColumnMappingMode:
        """The mode by which the columns are found in data files."""
        return column_mapping_mode(self.protocol, self.metadata.configuration)

    @property
    def hidden_columns(self) -> list[str]:
        """The names of columns in data files that are not in the schema."""
        names = (ROW_ID_COLUMN, ROW_COMMIT_VERSION_COLUMN)
        configured = [self.metadata.configuration.get(name) for name in names]
        return [CHANGE_TYPE, *(name for name in configured if name is not None)]

    def reads_like(self, protocol: Protocol, metadata: Metadata) -> bool:
        """Whether versions with this protocol and metadata read every file alike."""
        other = VersionState(first=0, protocol=protocol, metadata=metadata, columns=())
        return (
            metadata.schema_string == self.metadata.schema_string
            and metadata.partition_columns == self.metadata.partition_columns
            and (other.mode, other.hidden_columns) == (self.mode, self.hidden_columns)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenableVersions:
    """The versions of a table that can be opened."""

    states: tuple[VersionState, ...]
    """By ascending version."""
    uses: pa.Table
    """Files with the columns of `FILES`, and the numbers of the `first` and the `last` of the
    states in which they are live. A file that is added again has several uses."""
    removes: pa.Table
    """The removes of all commits, newest first, as `KNOWN_FILES`."""
    map_keys: MapKeys
    problems: tuple[str, ...]
    """Versions that the log has, and that cannot be opened."""


def read_versions(latest: Snapshot) -> OpenableVersions:
    """Reads the state of every version that can be opened, and the files of each.

    Takes about 200 bytes of memory for each file action in the log. `FileNotFoundError` if a file
    was deleted after the log was listed. Raises the errors of `Table.snapshot` for the commits.
    """
    store = latest.log.store
    listing = list_log(store)
    tail = LogTail(store, [listing.commits[version] for version in sorted(listing.commits)])
    changes = {}
    for entry, text in tail.without_files():
        actions, _ = parse_other_lines(text)
        changes[entry.file.version] = (actions.protocol, actions.metadata)
    states: list[VersionState] = []
    bases: list[Snapshot] = []
    # Each range of versions without a gap, as its first and its last version.
    ranges: list[list[int]] = []
    problems = []
    protocol, metadata = latest.protocol, latest.metadata
    for version in _versions(listing):
        if version in changes and version == (ranges[-1][1] + 1 if ranges else 0):
            new_protocol, new_metadata = changes[version]
            protocol, metadata = new_protocol or protocol, new_metadata or metadata
        elif any(checkpoint.version == version for checkpoint in listing.checkpoints):
            try:
                base = Table(store).snapshot(version=version)
            except DeltaMaintenanceError as error:
                problems.append(f"version {version}, which cannot be opened: {error.problem}")
                continue
            bases.append(base)
            protocol, metadata = base.protocol, base.metadata
            ranges.append([version, version])
        else:
            continue
        if not ranges:
            ranges.append([version, version])
        ranges[-1][1] = version
        if not states or not states[-1].reads_like(protocol, metadata):
            columns = tuple(every_column(protocol, metadata))
            states.append(
                VersionState(first=version, protocol=protocol, metadata=metadata, columns=columns)
            )
    partitioning = {c.physical[0] for state in states for c in state.columns if c.is_partition}
    keys = MapKeys(partition_columns=frozenset(partitioning))
    files = [*_base_files(bases), *_committed_files(tail, keys)]
    removes = [with_all(rows, KNOWN_FILES) for rows, is_add in files if not is_add]
    return OpenableVersions(
        states=tuple(states),
        uses=_uses(files, np.array(ranges), np.array([state.first for state in states])),
        removes=pa.concat_tables([KNOWN_FILES.empty_table(), *removes]),
        map_keys=keys,
        problems=tuple(problems),
    )


def _versions(listing: LogListing) -> list[int]:
    return sorted({*listing.commits, *(checkpoint.version for checkpoint in listing.checkpoints)})


def _base_files(bases: list[Snapshot]) -> Iterator[tuple[pa.Table, bool]]:
    def read(sound: Snapshot) -> list[pa.Table]:
        return [
            batch.adds.append_column(
                COMMIT_VERSION, integers(np.full(batch.adds.num_rows, sound.version))
            )
            for batch in sound.log.scan(fields={"add": _ADD, "remove": ()})
        ]

    for base in bases:
        yield from ((adds, True) for adds in base.avoiding_damage(read))


def _committed_files(tail: LogTail, keys: MapKeys) -> Iterator[tuple[pa.Table, bool]]:
    for batch in tail.batches(keys=keys, fields={"add": _ADD, "remove": _REMOVE}):
        yield batch.removes, False
        yield batch.adds, True


def _uses(
    actions: list[tuple[pa.Table, bool]], ranges: Numbers, first_versions: Numbers
) -> pa.Table:
    """Returns `OpenableVersions.uses`: a file is live from each add up to its next action."""
    parts = [(rows, is_add) for rows, is_add in actions if rows.num_rows]
    all_files = pa.concat_tables(
        [FILES.empty_table(), *(with_all(rows, FILES) for rows, _ in parts)]
    )
    if not parts:
        nothing = integers(np.empty(0, np.int64))
        return all_files.append_column("first", nothing).append_column("last", nothing)
    keys = pa.chunked_array(
        [chunk for rows, _ in parts for chunk in logical_file_keys(rows).chunks]
    )
    codes = keys.combine_chunks().dictionary_encode().indices.to_numpy()
    version = np.concatenate([rows[COMMIT_VERSION].to_numpy() for rows, _ in parts])
    is_add = np.concatenate([np.full(rows.num_rows, flag) for rows, flag in parts])
    # If one commit adds and removes a file, the add counts.
    order = np.lexsort((is_add, version, codes))
    codes, version, is_add = codes[order], version[order], is_add[order]
    at = np.searchsorted(ranges[:, 0], version, side="right") - 1
    last_versions = ranges[at, 1]
    opens = (at >= 0) & (version <= last_versions)
    same = codes[1:] == codes[:-1]
    last_versions[:-1][same] = np.minimum(last_versions[:-1], version[1:] - 1)[same]
    live = opens & is_add & (last_versions >= version)
    number = [
        np.searchsorted(first_versions, numbers[live], side="right") - 1
        for numbers in (version, last_versions)
    ]
    uses = all_files.take(integers(order[live]))
    return uses.append_column("first", integers(number[0])).append_column(
        "last", integers(number[1])
    )


def with_all(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the columns of a schema; missing ones are null."""
    columns = [
        rows[name].cast(kind) if name in rows.column_names else pa.nulls(rows.num_rows, kind)
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]
    return pa.table(columns, schema=schema)
