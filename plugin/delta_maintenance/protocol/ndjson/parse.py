"""Parses lines of file actions into columns.

The lines are read by Arrow's JSON reader with the fields of the protocol as its schema. If it
rejects them (an unknown field, a number instead of a string, damage), they are normalised field by
field, and a value that cannot be interpreted is reported as corrupt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.protocol.actions.file_columns import (
    DELETION_VECTOR,
    FILE_ACTION_TYPES,
    PAIRS,
    PARSED_COLUMNS,
    ROW_COUNT,
    STATISTICS,
    STRING_MAP,
    empty,
    key_problem,
    keyless_rows,
    normalise,
)
from delta_maintenance.protocol.data_files.tags import READ_TAGS
from delta_maintenance.protocol.ndjson.lenient import tidy_lines
from delta_maintenance.protocol.ndjson.split import (
    MOST_CELLS,
    MOST_KEYS,
    SINGLE_ACTIONS,
    CommitText,
    LineRun,
    has_too_many_keys,
    is_too_deep,
)

_BLOCK = 1 << 24
_ALONE_BYTES = 1 << 20
"""Up to this size in bytes, threads cost more than they save."""
_VECTOR = "deletionVector"
_USUAL_FIELDS = (
    ("add", "path"),
    ("add", "partitionValues"),
    ("add", "size"),
    ("add", "modificationTime"),
    ("add", "dataChange"),
    ("add", "stats"),
    ("remove", "path"),
    ("remove", "deletionTimestamp"),
    ("remove", "dataChange"),
    ("remove", "extendedFileMetadata"),
    ("remove", "partitionValues"),
    ("remove", "size"),
)


@dataclass(frozen=True, slots=True)
class FileLines:
    """The file action lines of one file of the log."""

    name: str
    """For messages."""
    runs: tuple[LineRun, ...]
    numbers: Sequence[int]
    """The line numbers in the file; lines without a number follow at the end."""

    @classmethod
    def of(cls, text: CommitText, beside: Sequence[bytes]) -> Self:
        """All file actions of a split file, including those found on lines with other actions."""
        runs = (*text.file_lines, *(LineRun(line, 1) for line in beside))
        return cls(text.name, runs, text.file_line_numbers)

    @property
    def count(self) -> int:
        """The number of lines."""
        return sum(run.count for run in self.runs)

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(len(run.text) for run in self.runs)

    def without_adds(self) -> Self:
        """The lines except those that are known to contain only an add."""
        runs: list[LineRun] = []
        numbers: list[int] = []
        end = 0
        for run in self.runs:
            start, end = end, end + run.count
            if run.action != "add":
                runs.append(run)
                numbers += self.numbers[start:end]
        return type(self)(self.name, tuple(runs), numbers)

    def join_lines(self) -> bytes:
        """The concatenated lines."""
        return b"".join(run.text for run in self.runs)

    def tidy_columns(self, *, pairs: bool = False) -> bytes:
        """The normalised lines. `CorruptTableError` if that is impossible.

        With `pairs`, maps become lists of objects with a `key` and a `value`.
        """
        return tidy_lines(self.join_lines(), name=self.name, numbers=self.numbers, pairs=pairs)


@dataclass(frozen=True, slots=True)
class ParsedFileActions:
    """File actions of several files of the log, as columns."""

    adds: pa.Table
    removes: pa.Table
    add_source: npt.NDArray[np.int64]
    """For each add, the index of its file, counted from 0."""
    remove_source: npt.NDArray[np.int64]
    add_line: npt.NDArray[np.int64]
    """For each add, its position among all lines, counted from 0."""
    remove_line: npt.NDArray[np.int64]
    cdc_paths: pa.ChunkedArray
    """Paths of change data files; complete if specific fields were requested."""


def parse_file_actions(
    sources: Sequence[FileLines],
    *,
    keys: MapKeys,
    fields: Mapping[str, Collection[str]] | None = None,
) -> ParsedFileActions:
    """Parses the lines of all sources.

    `keys` are the known keys of maps; new ones are added. `fields` selects the fields of each
    action, and restricts partition values to the table's partition columns and tags to
    `READ_TAGS`; without it, all fields are read, including unknown ones. `CorruptTableError` names
    the file and the damage; `RefusedError` is for unknown fields that cannot be represented as
    columns.
    """
    if fields is not None:
        fields = {action: _written(names) for action, names in fields.items()}
    reader = _ColumnReader(keys, fields)
    runs = [run for source in sources for run in source.runs]
    actions = {run.action for run in runs}
    counts = [source.count for source in sources]
    source_of_line = np.repeat(np.arange(len(sources)), counts)
    try:
        if None in actions:
            raise pa.ArrowInvalid("adds, removes and others alternate")
        # Each action is read separately, because a missing field costs as much as a present one.
        tables = {action: reader.read_run(runs, action) for action in actions if action}
    except pa.ArrowInvalid:
        together = reader.read_together(sources, sum(counts))
        tables = dict.fromkeys(FILE_ACTION_TYPES, (together, np.arange(sum(counts))))
    actions_by_name: dict[str, tuple[pa.Table, npt.NDArray[np.int64]]] = {}
    for action in ("add", "remove"):
        table, lines = tables.get(action, (None, np.empty(0, np.int64)))
        batch, rows = reader.select_action(table, action)
        actions_by_name[action] = (batch, lines[rows])
        keyless = keyless_rows(batch)
        if len(keyless):
            raise CorruptTableError(
                key_problem(batch, int(keyless[0]), action=action),
                file=sources[source_of_line[lines[rows][keyless[0]]]].name,
            )
    (adds, add_line), (removes, remove_line) = actions_by_name["add"], actions_by_name["remove"]
    return ParsedFileActions(
        adds,
        removes,
        source_of_line[add_line],
        source_of_line[remove_line],
        add_line,
        remove_line,
        _cdc(tables["cdc"][0] if "cdc" in tables else None),
    )


@dataclass(slots=True, kw_only=True)
class MapKeys:
    """The known keys of the maps in a table's file actions.

    Arrow reads a JSON object as a struct and needs its keys in advance. A reader of many batches of
    one log keeps one instance, so that each key is discovered once.
    """

    partition_columns: frozenset[str]
    """The physical names of the table's partition columns; their nulls are kept."""
    partition_values: frozenset[str] = frozenset()
    """Other keys found in partition values."""
    tags: frozenset[str] = READ_TAGS
    usual: frozenset[tuple[str, str]] = frozenset(_USUAL_FIELDS)
    """The fields found so far; reading other fields would cost time in every row."""
    as_pairs: bool = False
    """Whether maps are read as lists of pairs, for lines with too many keys."""

    def struct_of(self, name: str) -> pa.DataType:
        """The struct, or the list of pairs, that represents the map `name`."""
        if self.as_pairs:
            return PAIRS
        known_keys = self.tags if name == "tags" else self.partition_columns | self.partition_values
        return pa.struct([pa.field(key, pa.string()) for key in sorted(known_keys)])

    def learn(self, name: str, inferred: pa.DataType) -> None:
        """Adds the keys of an inferred struct.

        `ArrowInvalid` if a value is not a string, or if there are too many keys.
        """
        if pa.types.is_null(inferred) or self.as_pairs:
            return
        for child in inferred:
            # A string that looks like a date is inferred as a timestamp.
            if not _is_text(child.type):
                raise pa.ArrowInvalid(f"{name}.{child.name} is {child.type}")
        names = {child.name for child in inferred}
        known_keys = self.tags if name == "tags" else self.partition_values
        known_keys |= names if name == "tags" else names - self.partition_columns
        if len(known_keys) > MOST_KEYS:
            raise _TooManyKeysError(f"{name} have too many keys")
        if name == "tags":
            self.tags = known_keys
        else:
            self.partition_values = known_keys


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


@dataclass(frozen=True, slots=True)
class _ColumnReader:
    """Reads lines of file actions as columns: each action is null in the rows of the others."""

    keys: MapKeys
    fields: Mapping[str, Collection[str]] | None
    """As in `parse_file_actions`."""

    def read_run(
        self, runs: Sequence[LineRun], action: str
    ) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """Reads the lines of one action. Returns them and their positions among all lines.

        A field `deletionVector` that no line has is not read: its five fields cost time in every
        row.
        """
        counts = np.array([run.count for run in runs])
        is_action = np.array([run.action == action for run in runs])
        data = b"".join(run.text for run in runs if run.action == action)
        lines = np.flatnonzero(np.repeat(is_action, counts))
        reader = self
        if self.fields is not None and f'"{_VECTOR}"'.encode() not in data and b"\\u00" not in data:
            fields = {name: set(names) - {_VECTOR} for name, names in self.fields.items()}
            reader = replace(self, fields=fields)
        return reader._read_lines(data, len(lines), (action,)), lines

    def read_together(self, sources: Sequence[FileLines], count: int) -> pa.Table:
        """Reads all lines: as they are, else normalised. If they have too many keys, maps are read
        as lists of pairs, which is linear in the number of keys.
        """
        reader, form = self, FileLines.join_lines
        while True:
            data = b"".join(map(form, sources))
            try:
                return reader._read_lines(data, count, tuple(FILE_ACTION_TYPES))
            except pa.ArrowInvalid as error:
                if isinstance(error, _TooManyKeysError) and not reader.keys.as_pairs:
                    reader = replace(self, keys=replace(self.keys, as_pairs=True))
                    form = partial(FileLines.tidy_columns, pairs=True)
                elif form is FileLines.join_lines:
                    form = FileLines.tidy_columns
                else:
                    raise reader._refusal(sources, error) from None

    def select_action(
        self, table: pa.Table | None, action: str
    ) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """Returns the rows of one action, one column per field, and their row numbers."""
        types, fields = FILE_ACTION_TYPES[action], self.fields
        if table is None or action not in table.column_names:
            column_types = {n: t for n, t in types.items() if fields is None or n in fields[action]}
            return empty(column_types), np.empty(0, np.int64)
        column = table[action]
        rows = np.arange(len(column))
        if column.null_count:
            present = pc.is_valid(column)
            rows, column = np.flatnonzero(present.to_numpy()), column.filter(present)
        flat = pa.Table.from_batches(
            [pa.RecordBatch.from_struct_array(chunk) for chunk in column.chunks],
            schema=pa.schema(list(column.type)),
        )
        normalised = normalise(flat, types, partition_keys=self.keys.partition_columns)
        has_vector = _VECTOR in normalised.column_names
        if fields is not None and _VECTOR in fields[action] and not has_vector:
            nulls = pa.nulls(normalised.num_rows, types[_VECTOR])
            normalised = normalised.append_column(_VECTOR, nulls)
        return normalised, rows

    def _refusal(
        self, sources: Sequence[FileLines], error: pa.ArrowInvalid
    ) -> CorruptTableError | RefusedError:
        """Returns the error for lines that are rejected even after normalisation."""
        for source in sources:
            try:
                _read(source.tidy_columns(), _schema(self.keys, None), "ignore")
            except pa.ArrowInvalid as damage:
                problem = f"a line of a file action cannot be read ({_one_line(damage)})"
                return CorruptTableError(problem, file=source.name)
        problem = "an unknown field of the file actions has values of several types"
        return RefusedError(
            f"{problem} ({_one_line(error)})",
            file=" … ".join(dict.fromkeys((sources[0].name, sources[-1].name))),
            remedy="use a release that supports the field",
        )

    def _read_lines(self, data: bytes, count: int, actions: Collection[str]) -> pa.Table:
        table = self._read_columns(data, actions)
        if table.num_rows != count:
            raise pa.ArrowInvalid("several actions on one line")
        return table

    def _read_columns(self, data: bytes, actions: Collection[str]) -> pa.Table:
        keys = self.keys
        if self.fields is not None:
            return _alone(_read(data, _schema(keys, self.fields, actions), "ignore"))
        try:
            return _read(data, _usual_schema(keys, actions), "error")
        except pa.ArrowInvalid:
            _require_inferable(data, keys)
            inferred = _alone(_read(data, _schema(keys, None, actions), "infer"))
        keys.usual |= _fields_met(inferred, actions)
        columns = []
        for action in actions:
            types = FILE_ACTION_TYPES[action]
            children = []
            for child in inferred.schema.field(action).type:
                kind = types.get(child.name)
                if kind == STRING_MAP:
                    keys.learn(child.name, child.type)
                elif kind == DELETION_VECTOR:
                    children.append(child.with_type(_texts_for_times(child.type)))
                elif not pa.types.is_null(child.type) and child.name not in PARSED_COLUMNS:
                    children.append(child.with_type(kind or _texts_for_times(child.type)))
            children += [
                pa.field(name, keys.struct_of(name))
                for name, kind in types.items()
                if kind == STRING_MAP
            ]
            columns.append(pa.field(action, pa.struct(children)))
        # Fields that are not in the schema can be ignored: nulls, parsed statistics, unknown
        # actions.
        return _read(data, pa.schema(columns), "ignore")


class _TooManyKeysError(pa.ArrowInvalid):  # type: ignore[misc]  # pyarrow is untyped
    """The maps of some lines have too many distinct keys for columns."""


def _schema(
    keys: MapKeys,
    fields: Mapping[str, Collection[str]] | None,
    wanted_actions: Collection[str] = tuple(FILE_ACTION_TYPES),
) -> pa.Schema:
    actions: dict[str, pa.DataType] = {
        action: pa.struct(
            [
                pa.field(name, keys.struct_of(name) if kind == STRING_MAP else kind)
                for name, kind in FILE_ACTION_TYPES[action].items()
                if fields is None or name in fields.get(action, ("path",))
            ]
        )
        for action in wanted_actions
    }
    # Only their presence matters, so their fields are not read. Lines of one action have no other.
    single_names = SINGLE_ACTIONS if len(actions) > 1 else ()
    return pa.schema(actions | {name: pa.struct([]) for name in single_names})


def _require_inferable(data: bytes, keys: MapKeys) -> None:
    """`ArrowInvalid` for lines whose columns Arrow must not infer."""
    lines = [line for line in data.split(b"\n") if line]
    if any(map(is_too_deep, lines)):
        raise pa.ArrowInvalid("a line is nested too deeply")
    # Arrow needs a tenth of a millisecond for each column. If maps are no columns any more, only
    # objects that the protocol does not define have many keys.
    if has_too_many_keys(lines, most_cells=MOST_CELLS if keys.as_pairs else 0):
        raise _TooManyKeysError("the lines have too many keys")


def _usual_schema(keys: MapKeys, actions: Collection[str]) -> pa.Schema:
    full = _schema(keys, None, actions)
    fields = [
        (action, [child for child in full.field(action).type if (action, child.name) in keys.usual])
        for action in actions
    ]
    return pa.schema([(action, pa.struct(children)) for action, children in fields if children])


def _fields_met(table: pa.Table, actions: Collection[str]) -> frozenset[tuple[str, str]]:
    # Lines of one action may contain a null for another, which has no fields.
    return frozenset(
        (action, child.name)
        for action in actions
        for at, child in enumerate(table.schema.field(action).type)
        if child.name in FILE_ACTION_TYPES[action]
        and pc.struct_field(table[action], at).null_count < table.num_rows
    )


def _alone(table: pa.Table) -> pa.Table:
    for name in set(SINGLE_ACTIONS).intersection(table.column_names):
        if table[name].null_count < table.num_rows:
            raise pa.ArrowInvalid(f"{name} beside a file action")
    return table


def _read(data: bytes, schema: pa.Schema, unexpected: str) -> pa.Table:
    for block in (_BLOCK, len(data) + 1):
        try:
            return pj.read_json(
                pa.BufferReader(data),
                read_options=pj.ReadOptions(block_size=block, use_threads=len(data) > _ALONE_BYTES),
                parse_options=pj.ParseOptions(
                    explicit_schema=schema, unexpected_field_behavior=unexpected
                ),
            )
        except pa.ArrowInvalid as error:
            # Only a line longer than a block can succeed with a larger block.
            if "straddling" not in str(error) or block > len(data):
                raise
    raise AssertionError("the second block holds all the data")


def _written(names: Collection[str]) -> Collection[str]:
    """Replaces pseudo fields by the field that contains their values in JSON."""
    return {"stats" if name in (ROW_COUNT, STATISTICS) else name for name in names}


def _cdc(table: pa.Table | None) -> pa.ChunkedArray:
    if table is None or "cdc" not in table.column_names:
        return pa.chunked_array([], pa.string())
    return pc.struct_field(table["cdc"], "path").drop_null()


def _is_text(inferred: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_timestamp, pa.types.is_null)
    return any(test(inferred) for test in tests)


def _texts_for_times(inferred: pa.DataType) -> pa.DataType:
    # Arrow's reader returns an invalid list of nulls unless the items have a type.
    if any(test(inferred) for test in (pa.types.is_timestamp, pa.types.is_date, pa.types.is_null)):
        return pa.string()
    if pa.types.is_struct(inferred):
        return pa.struct([pa.field(f.name, _texts_for_times(f.type)) for f in inferred])
    if pa.types.is_list(inferred):
        return pa.list_(_texts_for_times(inferred.value_type))
    return inferred
