"""How the versions of a table read the columns of a condition, in each of its data files.

A column can have been renamed, dropped and added again, or have had another type, and the table can
have been partitioned by it. Columns of different versions are one column if they have the same
physical name, or a name that the column of the condition ever had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.erasure_report.versions import OpenableVersions, VersionState
from delta_maintenance.operations.expire.limit import FARTHEST
from delta_maintenance.operations.layout.reading import Column
from delta_maintenance.protocol.actions.paths import absolute_paths, file_locations
from delta_maintenance.protocol.columns import booleans, integers, to_bools
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.schema.condition import (
    Names,
    columns_of,
    invalid_condition,
    parse_condition,
)
from delta_maintenance.protocol.schema.evaluation import RowCondition
from delta_maintenance.protocol.schema.partition_values import parse_partition_values
from delta_maintenance.protocol.schema.types import (
    DeltaType,
    StructType,
    require_known_changes,
    to_arrow_type,
)
from delta_maintenance.protocol.statistics.bounds import (
    ColumnBounds,
    FileBounds,
    Mask,
    Numbers,
    column_bounds,
    may_have_cut_offset,
)
from delta_maintenance.protocol.statistics.skipping import files_read
from delta_maintenance.table.data.row_reader import FILES, RowLayout

Columns = Mapping[Names, Column | None]
"""The columns of a condition, by their names in it; None for one that a version lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReading:
    """One way in which versions read the columns of a condition."""

    version: int
    """The first of these versions."""
    columns: Columns
    condition: RowCondition | None = None
    layout: RowLayout | None = None
    problem: DeltaMaintenanceError | None = None
    """Why these versions cannot be asked for the condition."""

    @property
    def partition_columns(self) -> tuple[Column, ...]:
        """Those of the columns whose values are in the log."""
        return tuple(c for c in self.columns.values() if c is not None and c.is_partition)

    def lacks_value(self, row: pa.Table) -> str | None:
        """Returns a partition column of whose value an action, in one row, says nothing."""
        values = dict(row["partitionValues"][0].as_py() or ())
        columns = self.partition_columns
        return next((c.physical[0] for c in columns if c.physical[0] not in values), None)

    def local_time(self, row: pa.Table) -> str | None:
        """Returns a partition value that is a local time of an unknown zone, and that matches the
        condition in some zone.
        """
        local, bounds = None, {}
        for name, column in self.columns.items():
            if column is None or not column.is_partition or str(column.kind) != "timestamp":
                continue
            text = pc.map_lookup(row["partitionValues"], column.physical[0], "first")
            parsed = parse_partition_values(text, column.kind, zone=None)
            if parsed.uncertain[0].as_py():
                local = text[0].as_py()
                least, greatest = (
                    pc.add(parsed.values, pa.scalar(distance, pa.duration("us")))
                    for distance in (-FARTHEST, FARTHEST)
                )
                bounds[tuple(part_name.lower() for part_name in name)] = column_bounds(
                    column.kind,
                    least=least,
                    greatest=greatest,
                    nulls=pa.array([0]),
                    rows=np.ones(1, np.int64),
                )
        if local is None:
            return None
        return local if self._possible(bounds, count=1)[0] else None

    def near_matches(self, values: Mapping[Names, pa.Array]) -> pa.BooleanArray:
        """Marks values among which a timestamp of the log can have lost the seconds of its offset,
        and that match the condition at an instant less than a minute away. A null is unknown.
        """
        count = len(next(iter(values.values())))
        unsure = np.zeros(count, np.bool_)
        for stated in values.values():
            unsure |= to_bools(pc.fill_null(may_have_cut_offset(stated), False))
        if not unsure.any():
            return booleans(unsure)
        bounds = {
            tuple(part.lower() for part in name): column_bounds(
                column.kind,
                least=values[name],
                greatest=values[name],
                nulls=pa.nulls(count, pa.int64()),
                rows=np.ones(count, np.int64),
            )
            for name, column in self.columns.items()
            if column is not None and to_arrow_type(column.kind) is not None
        }
        return booleans(unsure & self._possible(bounds, count=count))

    def _possible(self, bounds: Mapping[Names, ColumnBounds], *, count: int) -> Mask:
        assert self.condition is not None
        ones = np.ones(count, np.int64)
        files = FileBounds(size=ones, rows=ones, partition=ones * 0, columns=bounds)
        return files_read(parse_condition(self.condition.text), files)


class TableReadings:
    """The readings of all versions of a table that can be opened."""

    def __init__(self, condition: str, versions: OpenableVersions) -> None:
        """`InvalidRequestError` if no version can be asked for the condition."""
        self.versions = versions
        self.of_state: list[tuple[VersionReading, ...]] = []
        """The readings of each state; none for a state without any column of the condition."""
        self.all: list[VersionReading] = []
        columns = _columns_by_state(condition, versions.states)
        types = {
            name: [
                column.kind
                for columns_of_state in reversed(columns)
                for column in columns_of_state[name]
                if column
            ]
            for name in columns[0]
        }
        for state, columns_of_state in zip(versions.states, columns, strict=True):
            choices = (
                dict(zip(columns_of_state, each, strict=True))
                for each in product(*columns_of_state.values())
            )
            self.of_state.append(
                tuple(
                    self._known(_reading(condition, state, choice, types))
                    for choice in choices
                    if any(choice.values())
                )
            )
        problems = [reading.problem for reading in self.all if reading.problem is not None]
        if problems and len(problems) == len(self.all):
            raise problems[-1]

    @property
    def latest(self) -> tuple[VersionReading, ...]:
        """The readings of the latest version."""
        return self.of_state[-1]

    def of(self, first: int, last: int) -> Iterator[VersionReading]:
        """Yields the readings of a range of states, each once."""
        ids = {
            id(reading): reading for state in self.of_state[first : last + 1] for reading in state
        }
        yield from ids.values()

    def _known(self, reading: VersionReading) -> VersionReading:
        """Returns the equal reading of an earlier state, if there is one."""
        for known in self.all:
            if (known.columns, known.layout) == (reading.columns, reading.layout):
                return known
        self.all.append(reading)
        return reading


class FileReadings:
    """The readings of each file in a folder, by the versions of all tables that have it."""

    def __init__(
        self, tables: Mapping[str, TableReadings], *, own: str, paths: pa.StringArray, root: str
    ) -> None:
        """`tables` are by name, and the folder with the listed `paths` belongs to `own`."""
        self._tables = tables
        self._uses: dict[str, tuple[pa.Table, Numbers]] = {}
        self._count = len(paths)
        listed = paths.cast(pa.binary())
        for name, readings in tables.items():
            uses = readings.versions.uses.combine_chunks()
            written = pa.concat_arrays([pa.array([], pa.string()), *uses["path"].chunks])
            at = pc.fill_null(pc.index_in(file_locations(written, root=root), listed), -1)
            numbers = at.to_numpy(zero_copy_only=False)
            if name != own:
                # Relative paths are those of files in the folder of the other table.
                absolute = absolute_paths(written)
                numbers = np.where(to_bools(absolute), numbers, -1) if absolute else numbers[:0]
            order = np.argsort(numbers, kind="stable")
            self._uses[name] = uses.take(integers(order)), numbers[order]

    def files_of(self, table: str) -> Mask:
        """Marks the listed files that a version of the table with a name has."""
        is_read = np.zeros(self._count, np.bool_)
        if table in self._uses:
            _, numbers = self._uses[table]
            is_read[numbers[numbers >= 0]] = True
        return is_read

    def of(self, number: int) -> list[tuple[VersionReading, pa.Table]]:
        """Returns the readings of a listed file, each with the row of the log as `FILES`."""
        readings: dict[tuple[int, tuple[str | None, ...]], tuple[VersionReading, pa.Table]] = {}
        for name, (uses, numbers) in self._uses.items():
            first, end = np.searchsorted(numbers, [number, number + 1])
            for at in range(first, end):
                row = uses.slice(at, 1)
                values = dict(row["partitionValues"][0].as_py() or ())
                for reading in self._tables[name].of(
                    row["first"][0].as_py(), row["last"][0].as_py()
                ):
                    own = tuple(values.get(c.physical[0]) for c in reading.partition_columns)
                    readings.setdefault((id(reading), own), (reading, row.select(FILES.names)))
        return [*readings.values()]


def _columns_by_state(
    condition: str, states: Sequence[VersionState]
) -> list[dict[Names, list[Column | None]]]:
    """Returns for each state the columns of a condition that it has; `[None]` if it lacks one.

    `InvalidRequestError` for a column that no state has.
    """
    columns_by_state: list[dict[Names, list[Column | None]]] = [{} for _ in states]
    columns = {column: None for state in states for column in _identities(state)}
    for name in dict.fromkeys(columns_of(parse_condition(condition))):
        names, stored = {tuple(each.lower() for each in name)}, set[Names]()
        size = 0
        while size < len(names) + len(stored):
            size = len(names) + len(stored)
            for path, physical in columns:
                if path in names or physical in stored:
                    names.add(path)
                    stored.add(physical)
        for own_columns, state in zip(columns_by_state, states, strict=True):
            own_columns[name] = [each for each in state.columns if each.path in names] or [None]
        if not stored:
            raise invalid_condition(condition, f"there is no column {'.'.join(name)}")
    return columns_by_state


def _identities(state: VersionState) -> Iterator[tuple[Names, Names]]:
    return ((column.path, column.physical) for column in state.columns)


def _reading(
    condition: str,
    state: VersionState,
    columns: Columns,
    types: Mapping[Names, Sequence[DeltaType]],
) -> VersionReading:
    schema = state.schema
    stored = {name: None if column is None else column.names for name, column in columns.items()}
    try:
        asked = RowCondition(condition, schema, columns=stored, types=types)
        wanted = StructType(fields=tuple(f for f in schema.fields if f.name in asked.columns))
        if supports(state.protocol, "typeWidening"):
            require_known_changes(wanted)
        layout = RowLayout(
            columns=wanted,
            partition_columns=tuple(
                c.names[0] for c in columns.values() if c is not None and c.is_partition
            ),
            mode=state.mode,
            zone=UTC,
        )
    except DeltaMaintenanceError as error:
        return VersionReading(version=state.first, columns=columns, problem=error)
    return VersionReading(version=state.first, columns=columns, condition=asked, layout=layout)
