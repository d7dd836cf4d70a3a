"""Lines of file actions, parsed as columns.

The lines go through Arrow's JSON reader with the fields of the protocol spelt out. Whatever that
reader turns down (an unknown field, a number where text belongs, damage) is looked at again, field
by field, until it is either understood or named as corrupt.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.protocol.commit_text import (
    FILE_ACTIONS,
    SINGLE_ACTIONS,
    CommitText,
    parse_line,
)
from delta_maintenance.protocol.file_actions import (
    ADD_TYPES,
    DELETION_VECTOR,
    PARSED_COLUMNS,
    REMOVE_TYPES,
    STRING_MAP,
    empty,
    keyless_rows,
    normalise,
)

_BLOCK = 1 << 24
_CDC_FIELDS = ("path", "partitionValues", "size", "dataChange", "tags")
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
_TYPES: Mapping[str, Mapping[str, pa.DataType]] = {
    "add": ADD_TYPES,
    "remove": REMOVE_TYPES,
    # Change data files are no part of any state; their lines are only told apart from the others.
    "cdc": {name: ADD_TYPES[name] for name in _CDC_FIELDS},
}


@dataclass(frozen=True, slots=True)
class FileLines:
    """The lines of file actions of one file of the log."""

    name: str
    """For messages."""
    pieces: tuple[memoryview | bytes, ...]
    numbers: Sequence[int]
    """The number of each line in its file; lines without one follow at the end."""
    count: int

    @classmethod
    def of(cls, text: CommitText, beside: Sequence[bytes]) -> Self:
        """All file actions of a split file, those found beside other actions included."""
        pieces = (*text.file_lines, *beside)
        numbers = text.file_line_numbers
        return cls(text.name, pieces, numbers, len(numbers) + len(beside))


@dataclass(frozen=True, slots=True)
class ParsedFileActions:
    """File actions of several files of the log, in columns."""

    adds: pa.Table
    removes: pa.Table
    add_source: npt.NDArray[np.int64]
    """For each add, which of the given files it comes from, counted from 0."""
    remove_source: npt.NDArray[np.int64]
    add_line: npt.NDArray[np.int64]
    """For each add, its position among all the lines, counted from 0."""
    remove_line: npt.NDArray[np.int64]
    cdc_paths: pa.ChunkedArray
    """Of change data files; complete where fields were asked for by name."""
    sparse: bool = False
    """Whether `adds` has a row for every line, nulls where it is no add."""


def parse_file_actions(
    sources: Sequence[FileLines],
    *,
    keys: MapKeys,
    fields: Mapping[str, Collection[str]] | None = None,
    sparse: bool = False,
) -> ParsedFileActions:
    """Parses the lines of all sources at once.

    `keys` are the keys of maps met so far; new ones are added to it. With `fields`, by action, only
    these fields are read, and of the partition values only those of the table's partition columns;
    without, every field, unknown ones included. `sparse` allows rows among the adds that are none:
    for a caller who will leave out some rows himself, and copy the others once instead of twice.
    `CorruptTableError` names the file and what is wrong with it; `RefusedError` is for unknown
    fields that no column can hold.
    """
    data = b"".join(piece for source in sources for piece in source.pieces)
    counts = np.array([source.count for source in sources], np.int64)
    if not data:
        return _columns(None, np.empty(0, np.int64), keys, fields, sparse)
    try:
        table = _read_columns(data, keys, fields)
        if table.num_rows != counts.sum():
            raise pa.ArrowInvalid("several values on one line")
    except pa.ArrowInvalid:
        tidy = b"".join(_tidy_lines(source) for source in sources)
        try:
            table = _read_columns(tidy, keys, fields)
        except pa.ArrowInvalid as error:
            raise _refusal(sources, keys, error) from None
    source_of_line = np.repeat(np.arange(len(sources)), counts)
    parsed = _columns(table, source_of_line, keys, fields, sparse)
    for batch, lines in ((parsed.adds, parsed.add_line), (parsed.removes, parsed.remove_line)):
        keyless = keyless_rows(batch)
        if len(keyless):
            row_is_line = batch.num_rows > len(lines)
            keyless = np.intersect1d(keyless, lines) if row_is_line else lines[keyless]
        if len(keyless):
            raise CorruptTableError(
                "an add or remove lacks its path, or its deletion vector's storageType or path",
                file=sources[source_of_line[keyless[0]]].name,
            )
    return parsed


@dataclass(slots=True, kw_only=True)
class MapKeys:
    """The keys that the maps of a table's file actions are known to have.

    Arrow reads a JSON object as a struct, so it has to know them; whoever reads many batches of one
    log keeps one of these to learn each key once.
    """

    partition_columns: frozenset[str]
    """The physical names of the table's partition columns, whose nulls are kept as nulls."""
    partition_values: frozenset[str] = frozenset()
    """Further keys met in partition values."""
    tags: frozenset[str] = frozenset()
    usual: frozenset[tuple[str, str]] = frozenset(_USUAL_FIELDS)
    """The actions' fields met so far: asking for the others costs time in every row."""

    def struct_of(self, name: str) -> pa.StructType:
        """The struct that stands for the map `name`."""
        known = self.tags if name == "tags" else self.partition_columns | self.partition_values
        return pa.struct([pa.field(key, pa.string()) for key in sorted(known)])

    def learn(self, name: str, inferred: pa.DataType) -> None:
        """Adds the keys of an inferred struct; `ArrowInvalid` where a value is no text."""
        if pa.types.is_null(inferred):
            return
        for child in inferred:
            # Text that looks like a date is inferred as a timestamp.
            if not _is_text(child.type):
                raise pa.ArrowInvalid(f"{name}.{child.name} is {child.type}")
        names = {child.name for child in inferred}
        if name == "tags":
            self.tags |= names
        else:
            self.partition_values |= names - self.partition_columns


def _refusal(
    sources: Sequence[FileLines], keys: MapKeys, error: pa.ArrowInvalid
) -> CorruptTableError | RefusedError:
    """What to raise where even tidy lines are turned down."""
    for source in sources:
        try:
            _read(_tidy_lines(source), _schema(keys, None), "ignore")
        except pa.ArrowInvalid as damage:
            problem = f"a line of a file action cannot be read ({_one_line(damage)})"
            return CorruptTableError(problem, file=source.name)
    return RefusedError(
        f"an unknown field of the file actions has values of several types ({_one_line(error)})",
        file=" … ".join(dict.fromkeys((sources[0].name, sources[-1].name))),
        remedy="use a release that knows the field",
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _schema(keys: MapKeys, fields: Mapping[str, Collection[str]] | None) -> pa.Schema:
    actions: dict[str, pa.DataType] = {
        action: pa.struct(
            [
                pa.field(name, keys.struct_of(name) if wanted == STRING_MAP else wanted)
                for name, wanted in types.items()
                if fields is None or name in fields.get(action, ("path",))
            ]
        )
        for action, types in _TYPES.items()
    }
    # Only whether they are there matters: nothing of them is read.
    return pa.schema(actions | {name: pa.struct([]) for name in SINGLE_ACTIONS})


def _read_columns(
    data: bytes, keys: MapKeys, fields: Mapping[str, Collection[str]] | None
) -> pa.Table:
    if fields is not None:
        return _alone(_read(data, _schema(keys, fields), "ignore"))
    try:
        return _read(data, _usual_schema(keys), "error")
    except pa.ArrowInvalid:
        inferred = _alone(_read(data, _schema(keys, None), "infer"))
    keys.usual |= _fields_met(inferred)
    actions = []
    for action, types in _TYPES.items():
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
        actions.append(pa.field(action, pa.struct(children)))
    # What the schema leaves out may be ignored: nulls, parsed statistics, unknown actions.
    return _read(data, pa.schema(actions), "ignore")


def _usual_schema(keys: MapKeys) -> pa.Schema:
    full = _schema(keys, None)
    fields = [
        (action, [child for child in full.field(action).type if (action, child.name) in keys.usual])
        for action in _TYPES
    ]
    return pa.schema([(action, pa.struct(children)) for action, children in fields if children])


def _fields_met(table: pa.Table) -> frozenset[tuple[str, str]]:
    return frozenset(
        (action, child.name)
        for action, types in _TYPES.items()
        for at, child in enumerate(table.schema.field(action).type)
        if child.name in types and pc.struct_field(table[action], at).null_count < table.num_rows
    )


def _alone(table: pa.Table) -> pa.Table:
    for name in SINGLE_ACTIONS:
        if table[name].null_count < table.num_rows:
            raise pa.ArrowInvalid(f"{name} beside a file action")
    return table


def _read(data: bytes, schema: pa.Schema, unexpected: str) -> pa.Table:
    for block in (_BLOCK, len(data) + 1):
        try:
            return pj.read_json(
                pa.BufferReader(data),
                read_options=pj.ReadOptions(block_size=block),
                parse_options=pj.ParseOptions(
                    explicit_schema=schema, unexpected_field_behavior=unexpected
                ),
            )
        except pa.ArrowInvalid as error:
            # A line longer than a block; nothing else is cured by a larger one.
            if "straddling" not in str(error) or block > len(data):
                raise
    raise AssertionError("the second block holds all the data")


def _columns(
    table: pa.Table | None,
    source: npt.NDArray[np.int64],
    keys: MapKeys,
    fields: Mapping[str, Collection[str]] | None,
    sparse: bool,
) -> ParsedFileActions:
    found: dict[str, tuple[pa.Table, npt.NDArray[np.int64]]] = {}
    none = np.empty(0, np.int64)
    for action in ("add", "remove"):
        types = _TYPES[action]
        if table is None or action not in table.column_names:
            wanted = {n: t for n, t in types.items() if fields is None or n in fields[action]}
            found[action] = (empty(wanted), none)
            continue
        column = table[action]
        present = pc.is_valid(column)
        rows = np.flatnonzero(present.to_numpy())
        if len(rows) < len(column) and not (sparse and _leaves_gaps(action, rows, column)):
            column = column.filter(present)
        flat = pa.Table.from_batches(
            [pa.RecordBatch.from_struct_array(chunk) for chunk in column.chunks],
            schema=pa.schema(list(column.type)),
        )
        batch = normalise(flat, types, partition_keys=keys.partition_columns)
        found[action] = (batch, rows)
    (adds, add_line), (removes, remove_line) = found["add"], found["remove"]
    return ParsedFileActions(
        adds,
        removes,
        source[add_line],
        source[remove_line],
        add_line,
        remove_line,
        _cdc(table),
        sparse=adds.num_rows > len(add_line),
    )


def _cdc(table: pa.Table | None) -> pa.ChunkedArray:
    if table is None or "cdc" not in table.column_names:
        return pa.chunked_array([], pa.string())
    return pc.struct_field(table["cdc"], "path").drop_null()


def _leaves_gaps(action: str, rows: npt.NDArray[np.int64], column: pa.ChunkedArray) -> bool:
    return action == "add" and 2 * len(rows) >= len(column)


def _is_text(inferred: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_timestamp, pa.types.is_null)
    return any(test(inferred) for test in tests)


def _texts_for_times(inferred: pa.DataType) -> pa.DataType:
    # A list of nothing but nulls comes out of Arrow's reader invalid unless its items have a type.
    if any(test(inferred) for test in (pa.types.is_timestamp, pa.types.is_date, pa.types.is_null)):
        return pa.string()
    if pa.types.is_struct(inferred):
        return pa.struct([pa.field(f.name, _texts_for_times(f.type)) for f in inferred])
    if pa.types.is_list(inferred):
        return pa.list_(_texts_for_times(inferred.value_type))
    return inferred


def _tidy_lines(source: FileLines) -> bytes:
    """The same lines with every known field in the type that the protocol gives it."""
    tidy = []
    lines = (line for line in b"".join(source.pieces).split(b"\n") if line.strip())
    for line, number in zip_longest(lines, source.numbers):
        try:
            tidy.append(json.dumps(_tidy_line(line)).encode())
        except CorruptTableError as error:
            if number is not None:
                error.problem = f"line {number}: {error.problem}"
            raise error.located(file=source.name) from None
    return b"\n".join([*tidy, b""])


def _tidy_line(line: bytes) -> dict[str, dict[str, Any]]:
    actions = {name: value for name, value in parse_line(line).items() if value is not None}
    for action, value in actions.items():
        if action in SINGLE_ACTIONS:
            raise CorruptTableError(f"{action} stands behind a file action")
        if action in FILE_ACTIONS and not isinstance(value, dict):
            raise CorruptTableError(f"{action} is no JSON object")
    return {
        action: {
            name: _tidy(action, name, item)
            for name, item in actions[action].items()
            if item is not None
        }
        for action in FILE_ACTIONS.intersection(actions)
    }


def _tidy(action: str, name: str, value: Any) -> Any:
    wanted = _TYPES[action].get(name)
    if wanted is None:
        return value
    if name == "stats" and isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if wanted == STRING_MAP:
        if isinstance(value, dict) and all(
            item is None or isinstance(item, str) for item in value.values()
        ):
            return value
        raise CorruptTableError(f"{action}.{name} is no map of text")
    if wanted == DELETION_VECTOR:
        if not isinstance(value, dict):
            raise CorruptTableError(f"{action}.{name} is no JSON object")
        types = {field.name: field.type for field in DELETION_VECTOR}
        return {
            key: _scalar(f"{action}.{name}.{key}", item, types[key]) if key in types else item
            for key, item in value.items()
            if item is not None
        }
    return _scalar(f"{action}.{name}", value, wanted)


def _scalar(name: str, value: Any, wanted: pa.DataType) -> Any:
    if pa.types.is_string(wanted) and isinstance(value, str):
        return value
    if pa.types.is_boolean(wanted) and isinstance(value, bool):
        return value
    if pa.types.is_integer(wanted) and not isinstance(value, bool):
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        limit = 1 << (wanted.bit_width - 1)
        if isinstance(value, int) and -limit <= value < limit:
            return value
    raise CorruptTableError(f"{name} is no {wanted}: {value!r:.80}")
