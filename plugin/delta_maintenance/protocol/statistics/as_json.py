"""Converting statistics between JSON text (`stats`) and columns (`stats_parsed`).

Implements "Per-file Statistics" and the `stats_parsed` part of "Checkpoint Schema". Batches of rows
are parsed by Arrow's JSON reader; only rows that it rejects are parsed one by one. Values that the
other form cannot represent are reported in `lost`, never dropped silently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from delta_maintenance.protocol.statistics.values import (
    JsonNumber,
    convert_values,
    from_json_scalars,
    from_text,
    in_parts,
    to_json_text,
)

Path = tuple[str, ...]
"""The location of a statistic in physical names, such as `("minValues", "address", "city")`."""

MAX_PATH_LENGTH = 64
"""Paths are truncated here, because statistics may be nested deeper than Python can recurse."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConvertedStatistics:
    """Converted statistics, and the values that the conversion could not represent."""

    values: pa.Array
    """One value for each input row; null where there are no statistics."""
    unreadable: pa.BooleanArray
    """Rows whose text is not a JSON object; they count as rows without statistics."""
    lost: tuple[Path, ...]
    """Paths of statistics that are in some input row and not in `values`, sorted. If there are any,
    only the input is complete."""


def align_statistics(parsed: pa.StructArray, statistics_type: pa.StructType) -> ConvertedStatistics:
    """The `stats_parsed` of a checkpoint, converted to exactly `statistics_type`.

    `parsed` may have any columns in any order, either spelling of `nullCount`, and timestamps as
    INT96 or microseconds with or without a time zone (none means UTC). Types are widened if the
    table widened them; values are never rounded or truncated.
    """
    lost: set[Path] = set()
    values = _align_column(merge_null_counts(parsed, lost), statistics_type, (), lost)
    return ConvertedStatistics(
        values=values, unreadable=none_unreadable(len(parsed)), lost=tuple(sorted(lost))
    )


def merge_null_counts(parsed: pa.StructArray, lost: set[Path]) -> pa.StructArray:
    """`parsed` with `nullCounts` renamed to `nullCount`; `lost` records rows that have both."""
    names = [field.name for field in parsed.type]
    if "nullCounts" not in names:
        return parsed
    columns = dict(zip(names, parsed.flatten(), strict=True))
    misspelt = columns.pop("nullCounts")
    right = columns.get("nullCount")
    if right is None or not has_values(right):
        columns["nullCount"] = misspelt if right is None or has_values(misspelt) else right
    elif has_values(misspelt):
        if right.type == misspelt.type:
            columns["nullCount"] = pc.coalesce(right, misspelt)
        if right.type != misspelt.type or _overlap(right, misspelt):
            lost.add(("nullCounts",))
    fields = [pa.field(name, column.type) for name, column in columns.items()]
    return pa.StructArray.from_arrays(
        list(columns.values()), fields=fields, mask=pc.is_null(parsed)
    )


def paths_with_values(column: pa.Array, path: Path) -> Iterator[Path]:
    """The paths of leaves with values in `column`, whose own path is `path`."""
    if pa.types.is_struct(column.type) and len(path) < MAX_PATH_LENGTH:
        for field, child in zip(column.type, column.flatten(), strict=True):
            yield from paths_with_values(child, (*path, field.name))
    elif column.null_count < len(column):
        yield path


def has_values(column: pa.Array) -> bool:
    """Whether any leaf has a value; objects without members have none."""
    return any(True for _ in paths_with_values(column, ()))


def none_unreadable(rows: int) -> pa.BooleanArray:
    """The `unreadable` of input that is not text."""
    return pc.is_valid(pa.nulls(rows))


def _overlap(left_values: pa.Array, right_values: pa.Array) -> bool:
    return bool(pc.any(pc.and_(pc.is_valid(left_values), pc.is_valid(right_values))).as_py())


def _align_column(column: pa.Array, target: pa.DataType, path: Path, lost: set[Path]) -> pa.Array:
    if not pa.types.is_struct(target):
        converted_column = convert_values(column, target)
        if converted_column.null_count > column.null_count:
            lost.update(paths_with_values(column, path))
        return converted_column
    if not pa.types.is_struct(column.type):
        lost.update(paths_with_values(column, path))
        return pa.nulls(len(column), target)
    columns_by_name = dict(
        zip((field.name for field in column.type), column.flatten(), strict=True)
    )
    children = []
    for field in target:
        here = (*path, field.name)
        child = columns_by_name.pop(field.name, None)
        if child is None:
            children.append(pa.nulls(len(column), field.type))
        else:
            children.append(_align_column(child, field.type, here, lost))
    for name, extra in columns_by_name.items():
        lost.update(paths_with_values(extra, (*path, name)))
    return pa.StructArray.from_arrays(children, fields=list(target), mask=pc.is_null(column))


def num_records(stats: pa.Array | pa.ChunkedArray) -> pa.Array:
    """`numRecords` of each row's JSON statistics as int64, null if there is no valid count.

    Text that is not a JSON object, and a count that is not an integer from 0 to 2^63-1, give null:
    invalid statistics count as missing and are not an error.
    """
    reader = _Reader(pa.struct([("numRecords", pa.int64())]), record_lost=False)
    chunks = stats.chunks if isinstance(stats, pa.ChunkedArray) else [stats]
    counts = [pc.struct_field(reader.read(piece), 0) for chunk in chunks for piece in slices(chunk)]
    record_counts = pa.concat_arrays([pa.array([], pa.int64()), *counts])
    return pc.if_else(
        pc.greater_equal(record_counts, 0), record_counts, pa.scalar(None, pa.int64())
    )


def parse_statistics(stats: pa.Array, statistics_type: pa.StructType) -> ConvertedStatistics:
    """The JSON statistics of one batch as `stats_parsed` of the given type.

    `nullCounts`, a misspelling in older protocol texts, is read as `nullCount`. Values are never
    rounded, wrapped or guessed. A value without an exact equivalent becomes null and is reported in
    `lost`.
    """
    reader = _Reader(statistics_type, record_lost=True)
    pieces = [reader.read(piece) for piece in slices(stats)]
    values = pa.concat_arrays([pa.array([], statistics_type), *pieces])
    return ConvertedStatistics(
        values=values,
        unreadable=pc.and_(pc.is_valid(stats), pc.is_null(values)),
        lost=tuple(sorted(reader.lost)),
    )


def read_statistics(stats: pa.Array, statistics_type: pa.StructType) -> pa.StructArray:
    """The values that `parse_statistics` returns, without a record of what the type lacks.

    For a type with few of the columns: all others are skipped instead of parsed.
    """
    reader = _Reader(statistics_type, record_lost=False)
    pieces = [reader.read(piece) for piece in slices(stats)]
    return pa.concat_arrays([pa.array([], statistics_type), *pieces])


def render_statistics(
    parsed: pa.StructArray, statistics_type: pa.StructType | None = None
) -> ConvertedStatistics:
    """The JSON text of each row of a batch of `stats_parsed`, without null members.

    `parsed` may have any columns. `statistics_type` decides whether a timestamp column has a time
    zone; without it, a zone or the unit nanoseconds (INT96) means that it has. The text of a batch
    must stay below 2 GiB.
    """
    lost: set[Path] = set()
    pieces = [
        _row_texts(merge_null_counts(parsed.slice(at, _SLICE_ROWS), lost), statistics_type, lost)
        for at in range(0, len(parsed), _SLICE_ROWS)
    ]
    return ConvertedStatistics(
        values=pa.concat_arrays([pa.array([], pa.string()), *pieces]),
        unreadable=none_unreadable(len(parsed)),
        lost=tuple(sorted(lost)),
    )


def render_objects(rows: pa.StructArray) -> pa.StringArray:
    """The JSON text of each row, whose members are bounds and structs of bounds."""
    return _row_texts(rows, None, set())


# With short slices Arrow reuses its memory, which accounts for most of the speed.
_SLICE_ROWS = 1 << 15
_SLICE_BYTES = 16 << 20
_BLOCK_BYTES = 4 << 20
_LONG_ROW = 2048
_MANY_BRACKETS = 1000
_TRAILING_TEXT = r"\}\s*[^\s,}\]]"
_QUOTED_NON_FINITE = r':"(NaN|-?Infinity)"'


def slices(stats: pa.Array, *, most_bytes: int = _SLICE_BYTES) -> list[pa.Array]:
    """Adjacent slices of a column of texts, as strings, of about that many bytes."""
    rows = max(1, len(stats) * most_bytes // max(stats.nbytes, most_bytes))
    return [stats.slice(at, rows).cast(pa.string()) for at in range(0, len(stats), rows)]


class _Reader:
    """Parses JSON rows into a struct type; `lost` collects the paths that the type lacks."""

    def __init__(self, target: pa.StructType, *, record_lost: bool) -> None:
        self.lost: set[Path] = set()
        self._target = target
        self._raw = _raw_type(target)
        self._unexpected = "infer" if record_lost else "ignore"
        if target.get_field_index("nullCount") >= 0:
            null_count = self._raw.field("nullCount").type
            self._raw = pa.struct([*self._raw, pa.field("nullCounts", null_count)])

    def read(self, stats: pa.Array) -> pa.StructArray:
        """One struct for each text, null for nulls and for text that is not a JSON object."""
        return in_parts(stats, self._read_together, self._read_one_by_one)

    def _read_together(self, stats: pa.Array) -> pa.StructArray:
        texts = pc.fill_null(stats, "{}")
        _check_shape(texts)
        try:
            raw = _read_json(texts, self._raw, self._unexpected)
        except pa.ArrowInvalid:
            if not pc.any(pc.match_substring_regex(texts, _QUOTED_NON_FINITE)).as_py():
                raise
            # Arrow reads NaN and Infinity as doubles only without quotes. Removing the quotes is
            # safe for valid JSON: a string column with such a word rejects it without quotes.
            _read_json(texts, pa.struct([]), "ignore")
            bare = pc.replace_substring_regex(texts, _QUOTED_NON_FINITE, r":\1")
            raw = _read_json(bare, self._raw, self._unexpected)
        # Arrow accepts decimals with too many digits, which would be truncated when written, and
        # turns numbers too large for 32 bits into infinity. Parsing row by row detects both.
        raw.validate(full=True)
        if _has_infinite_float32(raw, self._target):
            raise pa.ArrowInvalid("some number may be too large for its type")
        absent = pc.is_null(stats)
        return self._typed_columns(
            pa.StructArray.from_arrays(raw.flatten(), fields=list(raw.type), mask=absent)
        )

    def _read_one_by_one(self, stats: pa.Array) -> pa.StructArray:
        rows = [_parsed_object(text) for text in stats.cast(pa.binary()).to_pylist()]
        return self._typed_columns(self._column(rows, self._raw, ()))

    def _column(self, values: Sequence[Any], kind: pa.DataType, path: Path) -> pa.Array:
        if not pa.types.is_struct(kind):
            converted = from_json_scalars(values, kind)
            self._note(
                path,
                *(
                    unconverted
                    for unconverted, converted_value in zip(values, converted, strict=True)
                    if converted_value is None
                ),
            )
            return pa.array(converted, kind)
        self._note(path, *(value for value in values if not isinstance(value, dict)))
        rows = [value if isinstance(value, dict) else {} for value in values]
        names = {field.name for field in kind}
        for row in rows:
            for name in row.keys() - names:
                self._note((*path, name), row[name])
        children = [
            self._column([row.get(field.name) for row in rows], field.type, (*path, field.name))
            for field in kind
        ]
        absent = pa.array([not isinstance(value, dict) for value in values])
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=absent)

    def _note(self, path: Path, *leftovers: object) -> None:
        for value in leftovers:
            if isinstance(value, dict) and len(path) < MAX_PATH_LENGTH:
                for name, member in value.items():
                    self._note((*path, name), member)
            elif value is not None:
                self.lost.add(path)

    def _typed_columns(self, raw: pa.StructArray) -> pa.StructArray:
        return self._typed_struct(merge_null_counts(raw, self.lost), self._target, ())

    def _typed_struct(
        self, raw: pa.StructArray, target: pa.StructType, path: Path
    ) -> pa.StructArray:
        columns = dict(zip((field.name for field in raw.type), raw.flatten(), strict=True))
        children = []
        for field in target:
            here = (*path, field.name)
            column = columns.pop(field.name)
            if pa.types.is_struct(field.type):
                children.append(self._typed_struct(column, field.type, here))
                continue
            children.append(from_text(column, field.type))
            if children[-1].null_count > column.null_count:
                self.lost.add(here)
        for name, extra in columns.items():
            self.lost.update(paths_with_values(extra, (*path, name)))
        return pa.StructArray.from_arrays(children, fields=list(target), mask=pc.is_null(raw))


def _read_json(texts: pa.StringArray, kind: pa.StructType, unexpected: str) -> pa.StructArray:
    everything = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    joined = pc.binary_join(everything, "\n").buffers()[2]
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    table = pyarrow.json.read_json(
        pa.BufferReader(joined),
        read_options=pyarrow.json.ReadOptions(block_size=max(_BLOCK_BYTES, longest + 1)),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(list(kind)), unexpected_field_behavior=unexpected
        ),
    )
    return pa.concat_arrays(table.to_struct_array().chunks)


def _raw_type(target: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(target):
        return pa.struct([pa.field(field.name, _raw_type(field.type)) for field in target])
    # Arrow's JSON reader accepts fewer spellings of dates and timestamps than writers use.
    text = pa.types.is_date(target) or pa.types.is_timestamp(target)
    return pa.string() if text else target


def _check_shape(texts: pa.StringArray) -> None:
    texts.validate(full=True)
    # If every row starts and ends an object, no object spans two rows, so each row has at least
    # one. Text after it would be read as another row, and a null there crashes Arrow.
    shaped = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    followed = pc.match_substring_regex(texts, _TRAILING_TEXT)
    if pc.all(shaped).as_py() is False or pc.any(followed).as_py():
        raise pa.ArrowInvalid("some text is not exactly one object")
    # Deep nesting overflows the stack of Arrow's threads.
    long = texts.filter(pc.greater(pc.binary_length(texts), _LONG_ROW))
    if len(long):
        brackets = pc.add(pc.count_substring(long, "{"), pc.count_substring(long, "["))
        if pc.max(brackets).as_py() > _MANY_BRACKETS:
            raise pa.ArrowInvalid("some text may be nested too deeply")


def _has_infinite_float32(column: pa.Array, target: pa.DataType) -> bool:
    if pa.types.is_struct(target):
        children = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
        return any(_has_infinite_float32(children[field.name], field.type) for field in target)
    return bool(target == pa.float32() and pc.any(pc.is_inf(column)).as_py())


def _parsed_object(text: bytes | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(
            text.decode(), parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=JsonNumber
        )
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _row_texts(
    parsed: pa.StructArray, kind: pa.StructType | None, lost: set[Path]
) -> pa.StringArray:
    texts = _object_text(parsed, kind, (), lost)
    return pa.nulls(len(parsed), pa.string()) if texts is None else texts


def _object_text(
    column: pa.StructArray, kind: pa.DataType | None, path: Path, lost: set[Path]
) -> pa.StringArray | None:
    """The JSON objects, or None if no member has a JSON form, as in the struct of a variant."""
    members: list[Any] = []
    for field, child in zip(column.type, column.flatten(), strict=True):
        here = (*path, field.name)
        text = _value_text(child, _member(kind, field.name), here, lost)
        if text is None:
            continue
        key = f",{json.dumps(field.name, ensure_ascii=False)}:"
        # A null must remove its key as well; without nulls, one join handles all members.
        members += [pc.binary_join_element_wise(key, text, "")] if text.null_count else [key, text]
    if column.type.num_fields and not members:
        return None
    # Not null_handling="skip", which drops rows whose members are all null.
    body = pc.binary_join_element_wise(
        pa.repeat("", len(column)), *members, "", null_handling="replace", null_replacement=""
    )
    # The comma before the first member becomes the opening brace.
    text = pc.binary_join_element_wise(pc.binary_replace_slice(body, 0, 1, "{"), "}", "")
    if column.null_count:
        return pc.if_else(pc.is_valid(column), text, pa.scalar(None, pa.string()))
    return text


def _value_text(
    child: pa.Array, kind: pa.DataType | None, path: Path, lost: set[Path]
) -> pa.StringArray | None:
    if pa.types.is_struct(child.type):
        return _object_text(child, kind, path, lost)
    text = to_json_text(child, zoned=_is_instant(child.type, kind))
    if text is None:
        lost.update(paths_with_values(child, path))
    elif text.null_count > child.null_count:
        lost.add(path)
    return text


def _is_instant(kind: pa.DataType, declared: pa.DataType | None) -> bool:
    if not pa.types.is_timestamp(kind):
        return False
    if declared is not None and pa.types.is_timestamp(declared):
        return declared.tz is not None
    return kind.tz is not None or kind.unit == "ns"


def _member(kind: pa.DataType | None, name: str) -> pa.DataType | None:
    if kind is None or not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
        return None
    return kind.field(name).type
