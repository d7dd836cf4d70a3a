"""A Parquet file of actions: a classic checkpoint, one of its parts, or a sidecar.

Only the required columns and row groups are read and decoded. The statistics of the footer tell
which row groups contain an action, and whether a column contains all values that another one would.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, DeltaMaintenanceError
from delta_maintenance.lazy import read_once
from delta_maintenance.limits import ReadLimits
from delta_maintenance.protocol.actions.file_columns import (
    ADD_TYPES,
    REMOVE_TYPES,
    ROW_COUNT,
    STATISTICS,
    empty,
    key_problem,
    keyless_rows,
    normalise,
)
from delta_maintenance.protocol.ndjson.parse import MapKeys
from delta_maintenance.protocol.statistics.stats import stated_row_counts
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.parquet.guarded_reading import guarded_batches, open_footer
from delta_maintenance.table.parallel import in_advance

if TYPE_CHECKING:
    import pyarrow.parquet as pq

FILE_COLUMNS: Mapping[str, Mapping[str, pa.DataType]] = {"add": ADD_TYPES, "remove": REMOVE_TYPES}

_MANY_ROWS = 1 << 16
"""The number of rows from which a thread decodes the next batch in advance."""
_PARSED_ROW_COUNT = "stats_parsed.numRecords"


class UnusableCheckpointError(CorruptTableError):
    """The checkpoint cannot be used. Readers fall back to an older checkpoint or to the commits."""


@dataclass(frozen=True, slots=True)
class FileActionBatch:
    """Some file actions of a checkpoint, as columns."""

    adds: pa.Table
    removes: pa.Table


class ActionsFile:
    """A Parquet file of actions, of which only the required columns and row groups are read.

    Keeps the footer but not the file open, because a snapshot may live long and open files are
    limited.
    """

    def __init__(self, store: Store, path: str, *, at_once: bool = True) -> None:
        self._store = store
        self._limits = ReadLimits.of(store)
        self.path = path
        if at_once:
            self._footer  # noqa: B018  reads the footer

    @property
    def metadata(self) -> pq.FileMetaData:
        return self._footer[0]

    @property
    def schema(self) -> pa.Schema:
        return self._footer[1]

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._footer[2]

    @read_once
    def _footer(self) -> tuple[pq.FileMetaData, pa.Schema, int]:
        path = self.path
        try:
            with self._store.open(path) as source:
                return (*open_footer(source, self._limits), source.seek(0, io.SEEK_END))
        except FileNotFoundError:
            raise UnusableCheckpointError(f"{path} no longer exists") from None
        except DeltaMaintenanceError as error:
            raise error.locate(file=path) from None
        except Exception as error:
            problem = f"{path} is not a readable Parquet file ({problem_of(error)})"
            raise UnusableCheckpointError(problem) from None

    @read_once
    def _leaves(self) -> Mapping[str, Sequence[int]]:
        """The leaf columns below each column of the top level."""
        schema = self.metadata.schema
        leaves_by_name: dict[str, list[int]] = {}
        for leaf in range(self.metadata.num_columns):
            leaves_by_name.setdefault(schema.column(leaf).path.split(".", 1)[0], []).append(leaf)
        return leaves_by_name

    def has_file_actions(self) -> bool:
        return any(
            batch.num_rows - batch.column(0).null_count
            for action in FILE_COLUMNS
            for batch in self._read(self._row_groups_with(action), [f"{action}.path"], [action])
        )

    def most_of(self, action: str) -> int:
        """Returns an upper bound of the number of rows with the action, from the null counts of its
        paths.
        """
        return sum(rows - _null_count(chunk) for rows, chunk in self._paths_of(action))

    def count_of(self, action: str) -> int | None:
        """Returns the number of rows with the action; None if the file has no null counts for its
        paths.
        """
        paths = list(self._paths_of(action))
        if not all(_has_null_count(chunk) for _, chunk in paths):
            return None
        return sum(rows - _null_count(chunk) for rows, chunk in paths)

    def _paths_of(self, action: str) -> Iterator[tuple[int, pq.ColumnChunkMetaData]]:
        """Yields the path column of an action in each row group, with the number of rows of the
        group.
        """
        if action not in self.schema.names:
            return
        schema, path = self.metadata.schema, f"{action}.path"
        leaves = self._leaves.get(action, ())
        leaf = next((leaf for leaf in leaves if schema.column(leaf).path == path), None)
        if leaf is None:
            return
        for group in map(self.metadata.row_group, range(self.metadata.num_row_groups)):
            # Writers omit the null counts of a group without rows.
            if group.num_rows:
                yield group.num_rows, group.column(leaf)

    def values(self, names: Iterable[str]) -> dict[str, list[Any]]:
        """Returns the non-null values of some columns of non-file actions, by name."""
        values_by_name: dict[str, list[Any]] = {name: [] for name in names}
        for groups, columns in self._together(values_by_name):
            for batch in self._read(groups, columns, columns):
                for name in columns:
                    column = batch.column(name)
                    values_by_name[name].extend(column.filter(pc.is_valid(column)).to_pylist())
        return values_by_name

    def file_actions(
        self,
        keys: MapKeys,
        fields: Mapping[str, Collection[str]] | None,
        row_groups: Collection[int] | None = None,
        *,
        actions: Iterable[str] = FILE_COLUMNS,
    ) -> Iterator[FileActionBatch]:
        for groups, together in self._together(actions, row_groups):
            fields_by_action = {
                action: None if fields is None else fields[action] for action in together
            }
            columns = [
                f"{action}.{name}"
                for action in together
                for name in self._columns_to_read(action, fields_by_action[action])
            ]
            for batch in self._read(groups, columns, together):
                tables = [
                    self._flat(action, batch.column(action), keys, fields_by_action[action])
                    if action in together
                    else empty(types)
                    for action, types in FILE_COLUMNS.items()
                ]
                if any(map(len, tables)):
                    yield FileActionBatch(*tables)

    def _flat(
        self, action: str, column: pa.StructArray, keys: MapKeys, fields: Collection[str] | None
    ) -> pa.Table:
        """Returns the actions of a column, with one column for each of their fields."""
        types = FILE_COLUMNS[action]
        if column.null_count:
            column = column.filter(pc.is_valid(column))
        if not len(column):
            return empty(types)
        flat = pa.Table.from_batches([pa.RecordBatch.from_struct_array(column)])
        if fields is not None and ROW_COUNT in fields and _only_counts(flat, fields):
            at = flat.column_names.index("stats")
            texts = flat["stats"].cast(pa.string())
            texts.validate(full=True)
            flat = flat.set_column(at, ROW_COUNT, stated_row_counts(texts))
        table = normalise(flat, types, partition_keys=keys.partition_columns)
        table.validate(full=True)
        keyless = keyless_rows(table)
        if len(keyless):
            raise CorruptTableError(
                f"{self.path}: {key_problem(table, int(keyless[0]), action=action)}"
            )
        return table

    def _together(
        self, tops: Iterable[str], within: Collection[int] | None = None
    ) -> Iterator[tuple[tuple[int, ...], list[str]]]:
        """Yields groups of top-level columns with values in the same row groups, which are read
        together.
        """
        columns_by_groups: dict[tuple[int, ...], list[str]] = {}
        for top in tops:
            groups = [g for g in self._row_groups_with(top) if within is None or g in within]
            columns_by_groups.setdefault(tuple(groups), []).append(top)
        return ((groups, columns) for groups, columns in columns_by_groups.items() if groups)

    def _columns_to_read(self, action: str, fields: Collection[str] | None) -> list[str]:
        """Returns the columns of an action to read, below the column of the action."""
        present = self._children(action)
        if fields is None:
            return present
        columns = [name for name in present if name in fields]
        if ROW_COUNT not in fields and STATISTICS not in fields:
            return columns
        complete = self._states_each(f"{action}.{_PARSED_ROW_COUNT}", action)
        if STATISTICS in fields:
            names = ("stats_parsed",) if complete else ("stats", "stats_parsed")
            return [*columns, *(name for name in names if name in present)]
        parsed, text = (name in columns for name in ("stats_parsed", "stats"))
        if not parsed and complete is not None:
            columns.append(_PARSED_ROW_COUNT)
        # The JSON text makes up most of a checkpoint.
        if not text and not complete and "stats" in present:
            columns.append("stats")
        return columns

    def _states_each(self, leaf: str, action: str) -> bool | None:
        """Whether a leaf has a value for each row of an action, according to the statistics; None
        without the leaf.
        """
        names = [self.metadata.schema.column(n).path for n in range(self.metadata.num_columns)]
        if leaf not in names:
            return None
        at, path = names.index(leaf), names.index(f"{action}.path")
        groups = [self.metadata.row_group(n) for n in range(self.metadata.num_row_groups)]
        return all(
            _has_null_count(group.column(at))
            and _has_null_count(group.column(path))
            and _null_count(group.column(at)) == _null_count(group.column(path))
            for group in groups
        )

    def _children(self, action: str) -> list[str]:
        if action not in self.schema.names:
            return []
        kind = self.schema.field(action).type
        names = [child.name for child in kind] if pa.types.is_struct(kind) else []
        if "path" not in names:
            raise CorruptTableError(f"{self.path} has a column {action} without paths")
        return names

    def rows_by_group(self, action: str) -> dict[int, int]:
        """Returns the number of rows of each row group that may contain the action."""
        groups = self._row_groups_with(action)
        return {group: self.metadata.row_group(group).num_rows for group in groups}

    def row_groups_by_size(self, max_bytes: int) -> Iterator[tuple[int, ...]]:
        """Returns the row groups with file actions; adjacent ones are grouped up to a number of
        bytes.
        """
        together: list[int] = []
        size = 0
        for group in sorted({g for action in FILE_COLUMNS for g in self._row_groups_with(action)}):
            group_bytes = self.metadata.row_group(group).total_byte_size
            if together and size + group_bytes > max_bytes:
                yield tuple(together)
                together, size = [], 0
            together.append(group)
            size += group_bytes
        if together:
            yield tuple(together)

    def _read(
        self, row_groups: Sequence[int], columns: Sequence[str], tops: Iterable[str]
    ) -> Iterator[pa.RecordBatch]:
        """Reads leaf columns at or below these top-level columns."""
        if not row_groups or not columns:
            return
        with self._store.open(self.path) as source:
            batches = guarded_batches(
                source,
                self.metadata,
                row_groups=row_groups,
                columns=columns,
                limits=self._limits,
                among=[leaf for top in tops for leaf in self._leaves.get(top, ())],
            )
            rows = sum(self.metadata.row_group(group).num_rows for group in row_groups)
            yield from in_advance(batches) if rows > _MANY_ROWS else batches

    def _row_groups_with(self, top: str) -> list[int]:
        """Returns the row groups that may contain the action, by their null counts."""
        if top not in self.schema.names:
            return []
        leaves = self._leaves.get(top, ())
        return [
            group
            for group in range(self.metadata.num_row_groups)
            if not _all_null(self.metadata.row_group(group), leaves)
        ]


def _only_counts(flat: pa.Table, fields: Collection[str]) -> bool:
    """Whether JSON statistics were read only for their row counts."""
    return "stats" in flat.column_names and "stats" not in fields


def _has_null_count(chunk: pq.ColumnChunkMetaData) -> bool:
    return chunk.statistics is not None and chunk.statistics.has_null_count


def _null_count(chunk: pq.ColumnChunkMetaData) -> int:
    """Returns the null count in the statistics; 0 without statistics."""
    statistics = chunk.statistics
    has_count = statistics is not None and statistics.has_null_count
    return int(statistics.null_count) if has_count else 0


def _all_null(group: pq.RowGroupMetaData, leaves: Sequence[int]) -> bool:
    for leaf in leaves:
        chunk = group.column(leaf)
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count:
            return False
        if statistics.null_count < chunk.num_values:
            return False
    return True


def problem_of(error: Exception) -> str:
    """Formats a decoding error as one clause."""
    if isinstance(error, FileNotFoundError):
        return f"{error.filename or error} no longer exists"
    if isinstance(error, CorruptTableError):
        return error.problem
    # Decoders raise errors of any class for damaged data, some of them without a message.
    return " ".join(str(error).split()) or type(error).__name__
