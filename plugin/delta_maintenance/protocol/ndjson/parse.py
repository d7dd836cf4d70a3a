"""Parsing lines of file actions into columns.

The lines go through Arrow's JSON reader with the fields of the protocol spelt out. Whatever that
reader turns down (an unknown field, a number where text belongs, damage) is looked at again, field
by field, until it is either understood or named as corrupt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
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
    STRING_MAP,
    empty,
    keyless_rows,
    normalise,
)
from delta_maintenance.protocol.ndjson.bounds import MOST_KEYS, has_too_many_keys, is_too_deep
from delta_maintenance.protocol.ndjson.lenient import tidy_lines
from delta_maintenance.protocol.ndjson.split import SINGLE_ACTIONS, CommitText, LineRun

_BLOCK = 1 << 24
_ALONE_BYTES = 1 << 20
"""Up to so many bytes, other threads cost more than they bring."""
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
    """The lines of file actions of one file of the log."""

    name: str
    """For messages."""
    runs: tuple[LineRun, ...]
    numbers: Sequence[int]
    """The number of each line in its file; lines without one follow at the end."""

    @classmethod
    def of(cls, text: CommitText, beside: Sequence[bytes]) -> Self:
        """All file actions of a split file, those found beside other actions included."""
        runs = (*text.file_lines, *(LineRun(line, 1) for line in beside))
        return cls(text.name, runs, text.file_line_numbers)

    @property
    def count(self) -> int:
        """How many lines there are."""
        return sum(run.count for run in self.runs)

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(len(run.text) for run in self.runs)

    def joined(self) -> bytes:
        """The lines, one behind the other."""
        return b"".join(run.text for run in self.runs)

    def tidied(self, *, pairs: bool = False) -> bytes:
        """The same, brought into the protocol's form. `CorruptTableError` where that cannot be.

        With `pairs`, maps become lists of objects that have a `key` and a `value`.
        """
        return tidy_lines(self.joined(), name=self.name, numbers=self.numbers, pairs=pairs)


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


def parse_file_actions(
    sources: Sequence[FileLines],
    *,
    keys: MapKeys,
    fields: Mapping[str, Collection[str]] | None = None,
) -> ParsedFileActions:
    """Parses the lines of all sources at once.

    `keys` are the keys of maps met so far; new ones are added to it. With `fields`, by action, only
    these fields are read, and of the partition values only those of the table's partition columns;
    without, every field, unknown ones included. `CorruptTableError` names the file and what is
    wrong with it; `RefusedError` is for unknown fields that no column can hold.
    """
    if fields is not None:
        fields = {action: _written(names) for action, names in fields.items()}
    runs = [run for source in sources for run in source.runs]
    actions = {run.action for run in runs}
    counts = [source.count for source in sources]
    source_of_line = np.repeat(np.arange(len(sources)), counts)
    try:
        if None in actions:
            raise pa.ArrowInvalid("adds, removes and others in turn")
        # Each kind of its own: what a line has no field for costs as much as a field.
        tables = {action: _read_run(runs, action, keys, fields) for action in actions if action}
    except pa.ArrowInvalid:
        together = _read_together(sources, sum(counts), keys, fields)
        tables = dict.fromkeys(FILE_ACTION_TYPES, (together, np.arange(sum(counts))))
    found: dict[str, tuple[pa.Table, npt.NDArray[np.int64]]] = {}
    for action in ("add", "remove"):
        table, lines = tables.get(action, (None, np.empty(0, np.int64)))
        batch, rows = _of_action(table, action, keys, fields)
        found[action] = (batch, lines[rows])
        keyless = keyless_rows(batch)
        if len(keyless):
            raise CorruptTableError(
                "an add or remove lacks its path, or its deletion vector's storageType or path",
                file=sources[source_of_line[lines[rows][keyless[0]]]].name,
            )
    (adds, add_line), (removes, remove_line) = found["add"], found["remove"]
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
    as_pairs: bool = False
    """Whether maps are read as lists of pairs, for the lines of which the keys are too many."""

    def struct_of(self, name: str) -> pa.DataType:
        """The struct, or the list of pairs, that stands for the map `name`."""
        if self.as_pairs:
            return PAIRS
        known = self.tags if name == "tags" else self.partition_columns | self.partition_values
        return pa.struct([pa.field(key, pa.string()) for key in sorted(known)])

    def learn(self, name: str, inferred: pa.DataType) -> None:
        """Adds the keys of an inferred struct.

        `ArrowInvalid` where a value is no text, or where the keys would become too many.
        """
        if pa.types.is_null(inferred) or self.as_pairs:
            return
        for child in inferred:
            # Text that looks like a date is inferred as a timestamp.
            if not _is_text(child.type):
                raise pa.ArrowInvalid(f"{name}.{child.name} is {child.type}")
        names = {child.name for child in inferred}
        known = self.tags if name == "tags" else self.partition_values
        known |= names if name == "tags" else names - self.partition_columns
        if len(known) > MOST_KEYS:
            raise _TooManyKeysError(f"{name} have too many keys")
        if name == "tags":
            self.tags = known
        else:
            self.partition_values = known


def _refusal(
    sources: Sequence[FileLines], keys: MapKeys, error: pa.ArrowInvalid
) -> CorruptTableError | RefusedError:
    """What to raise where even tidy lines are turned down."""
    for source in sources:
        try:
            _read(
                source.tidied(),
                _schema(keys, None),
                "ignore",
            )
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


def _schema(
    keys: MapKeys,
    fields: Mapping[str, Collection[str]] | None,
    wanted_actions: Collection[str] = tuple(FILE_ACTION_TYPES),
) -> pa.Schema:
    actions: dict[str, pa.DataType] = {
        action: pa.struct(
            [
                pa.field(name, keys.struct_of(name) if wanted == STRING_MAP else wanted)
                for name, wanted in FILE_ACTION_TYPES[action].items()
                if fields is None or name in fields.get(action, ("path",))
            ]
        )
        for action in wanted_actions
    }
    # Only whether they are there matters: nothing of them is read.
    others = {*FILE_ACTION_TYPES, *SINGLE_ACTIONS}.difference(wanted_actions)
    return pa.schema(actions | {name: pa.struct([]) for name in sorted(others)})


def _read_run(
    runs: Sequence[LineRun],
    action: str,
    keys: MapKeys,
    fields: Mapping[str, Collection[str]] | None,
) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """The lines of one action as columns, and the positions of these lines among all.

    `ArrowInvalid` also where another action stands behind one of them.
    """
    counts = np.array([run.count for run in runs])
    wanted = np.array([run.action == action for run in runs])
    data = b"".join(run.text for run in runs if run.action == action)
    lines = np.flatnonzero(np.repeat(wanted, counts))
    return _read_columns(data, len(lines), keys, fields, (action,)), lines


def _read_together(
    sources: Sequence[FileLines],
    count: int,
    keys: MapKeys,
    fields: Mapping[str, Collection[str]] | None,
) -> pa.Table:
    """All lines as columns, with rows of nulls in each action where another stands."""
    try:
        data = b"".join(source.joined() for source in sources)
        return _read_columns(data, count, keys, fields, tuple(FILE_ACTION_TYPES))
    except pa.ArrowInvalid:
        tidy = b"".join(source.tidied() for source in sources)
        try:
            return _read_columns(tidy, count, keys, fields, tuple(FILE_ACTION_TYPES))
        except _TooManyKeysError:
            return _read_as_pairs(sources, count, keys, fields)
        except pa.ArrowInvalid as error:
            raise _refusal(sources, keys, error) from None


class _TooManyKeysError(pa.ArrowInvalid):  # type: ignore[misc]  # pyarrow is untyped
    """The maps of some lines have more keys between them than there can be columns."""


def _read_as_pairs(
    sources: Sequence[FileLines],
    count: int,
    keys: MapKeys,
    fields: Mapping[str, Collection[str]] | None,
) -> pa.Table:
    """All lines as columns, their maps as lists of keys and values: linear in the keys."""
    tidy = b"".join(source.tidied(pairs=True) for source in sources)
    keys = replace(keys, as_pairs=True)
    try:
        return _read_columns(tidy, count, keys, fields, tuple(FILE_ACTION_TYPES))
    except pa.ArrowInvalid as error:
        raise _refusal(sources, keys, error) from None


def _read_columns(
    data: bytes,
    count: int,
    keys: MapKeys,
    fields: Mapping[str, Collection[str]] | None,
    wanted: Collection[str],
) -> pa.Table:
    table = _parsed(data, keys, fields, wanted)
    if table.num_rows != count:
        raise pa.ArrowInvalid("several values on one line")
    return table


def _parsed(
    data: bytes,
    keys: MapKeys,
    fields: Mapping[str, Collection[str]] | None,
    wanted: Collection[str],
) -> pa.Table:
    if fields is not None:
        return _alone(_read(data, _schema(keys, fields, wanted), "ignore"), wanted)
    try:
        return _read(data, _usual_schema(keys, wanted), "error")
    except pa.ArrowInvalid:
        _require_inferable(data)
        inferred = _alone(_read(data, _schema(keys, None), "infer"), wanted)
    keys.usual |= _fields_met(inferred)
    actions = []
    for action in wanted:
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
        actions.append(pa.field(action, pa.struct(children)))
    # What the schema leaves out may be ignored: nulls, parsed statistics, unknown actions.
    return _read(data, pa.schema(actions), "ignore")


def _require_inferable(data: bytes) -> None:
    """`ArrowInvalid` for lines of which Arrow must not infer the columns."""
    lines = [line for line in data.split(b"\n") if line]
    if any(map(is_too_deep, lines)):
        raise pa.ArrowInvalid("a line is nested too deeply")
    if has_too_many_keys(lines):
        raise _TooManyKeysError("the lines have too many keys")


def _usual_schema(keys: MapKeys, wanted: Collection[str]) -> pa.Schema:
    full = _schema(keys, None, wanted)
    fields = [
        (action, [child for child in full.field(action).type if (action, child.name) in keys.usual])
        for action in wanted
    ]
    return pa.schema([(action, pa.struct(children)) for action, children in fields if children])


def _fields_met(table: pa.Table) -> frozenset[tuple[str, str]]:
    return frozenset(
        (action, child.name)
        for action, types in FILE_ACTION_TYPES.items()
        for at, child in enumerate(table.schema.field(action).type)
        if child.name in types and pc.struct_field(table[action], at).null_count < table.num_rows
    )


def _alone(table: pa.Table, wanted: Collection[str]) -> pa.Table:
    for name in {*FILE_ACTION_TYPES, *SINGLE_ACTIONS}.difference(wanted):
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
            # A line longer than a block; nothing else is cured by a larger one.
            if "straddling" not in str(error) or block > len(data):
                raise
    raise AssertionError("the second block holds all the data")


def _written(names: Collection[str]) -> Collection[str]:
    """The names with that of the field that states a row count in JSON."""
    return {"stats" if name == ROW_COUNT else name for name in names}


def _of_action(
    table: pa.Table | None,
    action: str,
    keys: MapKeys,
    fields: Mapping[str, Collection[str]] | None,
) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """The rows of one action, one column for each field, and which rows of the table they are."""
    types = FILE_ACTION_TYPES[action]
    if table is None or action not in table.column_names:
        wanted = {n: t for n, t in types.items() if fields is None or n in fields[action]}
        return empty(wanted), np.empty(0, np.int64)
    column = table[action]
    rows = np.arange(len(column))
    if column.null_count:
        present = pc.is_valid(column)
        rows, column = np.flatnonzero(present.to_numpy()), column.filter(present)
    flat = pa.Table.from_batches(
        [pa.RecordBatch.from_struct_array(chunk) for chunk in column.chunks],
        schema=pa.schema(list(column.type)),
    )
    return normalise(flat, types, partition_keys=keys.partition_columns), rows


def _cdc(table: pa.Table | None) -> pa.ChunkedArray:
    if table is None or "cdc" not in table.column_names:
        return pa.chunked_array([], pa.string())
    return pc.struct_field(table["cdc"], "path").drop_null()


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
