"""Converts the columns of a data file to columns of the table: finds, names and casts them.

Implements the requirements of "Column Mapping", "Type Widening" and "Partition Columns" for readers
of Parquet files. A column that a file lacks is null. Data that does not match the schema is an
error, because decisions about rows must not be based on wrong values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    RefusedError,
    UnsupportedFeatureError,
)
from delta_maintenance.protocol.columns import integers
from delta_maintenance.protocol.schema.types import (
    ArrayType,
    ColumnMappingMode,
    DecimalType,
    DeltaType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    TypeChange,
    physical_name,
    to_arrow_type,
)

ADD_WIDENING = (
    "run upgrade-protocol --feature typeWidening, so that readers convert the file; drop-feature "
    "then rewrites it"
)
"""The remedy for a file with an earlier type in a table without the feature `typeWidening`."""
VARIANT = pa.struct(
    [pa.field("metadata", pa.binary(), False), pa.field("value", pa.binary(), False)]
)
"""An unshredded variant in Parquet ("Variant Data Type")."""


def arrow_type(delta_type: DeltaType, *, variants: bool = False) -> pa.DataType:
    """Returns the Arrow type of a column, including nested ones; all values are nullable.

    With `variants`, a variant is a struct as in Parquet (`VARIANT`). `UnsupportedFeatureError` for
    types without an Arrow type: `void`, unknown ones and, without `variants`, `variant`.
    """
    match delta_type:
        case StructType(fields=fields):
            return pa.struct(
                [pa.field(item.name, arrow_type(item.type, variants=variants)) for item in fields]
            )
        case ArrayType(element=element):
            return pa.list_(arrow_type(element, variants=variants))
        case MapType(key=key, value=value):
            return pa.map_(arrow_type(key, variants=variants), arrow_type(value, variants=variants))
        case PrimitiveType(name="variant") if variants:
            return VARIANT
    single = to_arrow_type(delta_type)
    if single is None:
        raise UnsupportedFeatureError(
            f"values of the type {delta_type} cannot be read",
            remedy="use Delta Spark for columns of that type",
        )
    return single


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredColumns:
    """How to interpret the columns of one data file."""

    mode: ColumnMappingMode
    hybrid_calendar: bool = False
    """Whether the writer used the Julian calendar for early dates, as Spark did before 3.0. Such
    dates are refused, not converted.
    """
    widens: bool = True
    """Whether the file may contain narrower types than the schema ("Type Widening")."""
    verbatim: bool = False
    """Whether the values are written back: variants stay structs, dictionaries stay dictionaries,
    and strings need not be UTF-8.
    """

    def find(
        self, columns: Iterable[StructField], stored: Iterable[pa.Field]
    ) -> Iterator[tuple[StructField, int | None]]:
        """Yields each column with the index of the field that contains it; None if there is none.

        `stored` are the fields of a file, or of a struct in it. In mode `id` the field with the
        column's ID is used, otherwise the field with its physical name: the exact name or, as in
        Delta Spark, a unique match ignoring case. `CorruptTableError` for a column with several
        fields.
        """
        by_key, by_lower_name = (
            defaultdict[object, list[int]](list),
            defaultdict[str, list[int]](list),
        )
        for at, field in enumerate(stored):
            by_key[_field_id(field) if self.mode == "id" else field.name].append(at)
            by_lower_name[field.name.lower()].append(at)
        for column in columns:
            if self.mode == "id":
                number = str(column.metadata.get("delta.columnMapping.id")).encode()
                matches = by_key.get(number, [])
            else:
                name = physical_name(column, self.mode)
                matches = by_key.get(name) or by_lower_name.get(name.lower(), [])
            if len(matches) > 1:
                raise CorruptTableError(f"the column {column.name} occurs {len(matches)} times")
            yield column, matches[0] if matches else None

    def convert(self, column: StructField, stored: pa.Array, field: pa.Field) -> pa.Array:
        """Casts the values of a column, as found by `find`, to `arrow_type`.

        Raises `CorruptTableError` for values that contradict the schema, `RefusedError` for a type
        that only the missing feature `typeWidening` allows, and `UnsupportedFeatureError` for valid
        values that the type cannot represent.
        """
        try:
            return self._convert_column(stored, field, column.type)
        except pa.ArrowNotImplementedError as error:
            raise UnsupportedFeatureError(
                f"the column {column.name}: {error}",
                remedy="rewrite the file with the engine that wrote it",
            ) from None
        except (CorruptTableError, RefusedError) as error:
            raise _in_column(error, column) from None
        except pa.ArrowException as error:
            raise CorruptTableError(f"the column {column.name}: {error}") from None

    def require_types(self, columns: StructType, stored: Sequence[pa.Field]) -> None:
        """Raises the error of `convert` for a column whose type in the file contradicts the schema.

        `stored` are the fields of the file, according to its footer. Values are not looked at.
        """
        for item, at in self.find(columns.fields, stored):
            if at is not None:
                try:
                    self._require_type(stored[at].type, item.type)
                except (CorruptTableError, RefusedError) as error:
                    raise _in_column(error, item) from None

    def _require_type(self, kind: pa.DataType, expected: DeltaType) -> None:
        if pa.types.is_null(kind) or expected == PrimitiveType(name="variant"):
            return
        match expected:
            case StructType() if pa.types.is_struct(kind):
                self.require_types(expected, list(kind))
            case ArrayType(element=element) if is_list(kind):
                self._require_type(kind.value_type, element)
            case MapType(key=key, value=value) if pa.types.is_map(kind):
                self._require_type(kind.key_type, key)
                self._require_type(kind.item_type, value)
            case StructType() | ArrayType() | MapType():
                raise CorruptTableError(f"the file contains {kind} where the schema has {expected}")
            case _:
                encoded = pa.types.is_dictionary(kind)
                self._require_single(kind.value_type if encoded else kind, expected)

    def _convert_column(self, stored: pa.Array, field: pa.Field, expected: DeltaType) -> pa.Array:
        kind = stored.type
        if pa.types.is_null(kind):
            return pa.nulls(len(stored), self._type(expected))
        match expected:
            case PrimitiveType(name="variant") if self.verbatim:
                return self._variant(stored)
            case StructType() if pa.types.is_struct(kind):
                return self._struct(stored, expected)
            case ArrayType(element=element) if is_list(kind):
                # `_nested_array` supports only this list layout.
                stored = _as_list(stored)
                values = self._convert_column(stored.values, kind.value_field, element)
                return _nested_array(stored, pa.list_(values.type), values)
            case MapType(key=key, value=value) if pa.types.is_map(kind):
                keys = self._convert_column(stored.keys, kind.key_field, key)
                items = self._convert_column(stored.items, kind.item_field, value)
                of = pa.map_(keys.type, items.type)
                entries = pa.StructArray.from_arrays(
                    [keys, items], fields=[of.key_field, of.item_field]
                )
                return _nested_array(stored, of, entries)
            case StructType() | ArrayType() | MapType():
                raise CorruptTableError(f"the file contains {kind} where the schema has {expected}")
        return self._single(stored, expected)

    def _type(self, expected: DeltaType) -> pa.DataType:
        return arrow_type(expected, variants=self.verbatim)

    def _struct(self, stored: pa.StructArray, expected: StructType) -> pa.Array:
        fields = list(stored.type)
        children = []
        for item, at in self.find(expected.fields, fields):
            children.append(
                pa.nulls(len(stored), self._type(item.type))
                if at is None
                else self._convert_column(stored.field(at), fields[at], item.type)
            )
        return pa.StructArray.from_arrays(
            children, fields=list(self._type(expected)), mask=pc.is_null(stored)
        )

    def _variant(self, stored: pa.Array) -> pa.Array:
        if isinstance(stored, pa.ExtensionArray):
            stored = stored.storage
        kind = stored.type
        names = {field.name for field in kind} if pa.types.is_struct(kind) else set()
        if "typed_value" in names:
            raise UnsupportedFeatureError(
                "a variant is shredded",
                remedy="rewrite the file with an engine that can read shredded variants",
            )
        if names != {"metadata", "value"}:
            raise CorruptTableError(f"the file contains {kind} where the schema has variant")
        absent = pc.is_null(stored)
        children = [pc.fill_null(stored.field(name).cast(pa.binary()), b"") for name in _VARIANT]
        lost = pc.or_(*(pc.is_null(stored.field(name)) for name in _VARIANT))
        if pc.any(pc.and_not(lost, absent)).as_py():
            raise CorruptTableError("a variant lacks its metadata or its value")
        return pa.StructArray.from_arrays(children, fields=list(VARIANT), mask=absent)

    def _single(self, stored: pa.Array, expected: DeltaType) -> pa.Array:
        target, name = self._type(expected), str(expected)
        encoded = pa.types.is_dictionary(stored.type)
        kind = stored.type.value_type if encoded else stored.type
        self._require_single(kind, expected)
        if encoded and kind == target and self.verbatim:
            return stored
        if name == "string" and self.verbatim:
            values = _as_text(stored)
        else:
            values = _as_timestamps(stored, target) if name in _INSTANTS else stored.cast(target)
        if self.hybrid_calendar and name in _GREGORIAN:
            earliest = pc.min(values)
            if earliest.is_valid and pc.less(earliest, pa.scalar(_GREGORIAN[name], target)).as_py():
                raise UnsupportedFeatureError(
                    f"a data file written by Spark before 3.0 contains a {expected} in the "
                    "Julian calendar",
                    remedy="rewrite the file with a newer Spark",
                )
        return values

    def _require_single(self, kind: pa.DataType, expected: DeltaType) -> None:
        name = "decimal" if isinstance(expected, DecimalType) else str(expected)
        problem = f"the file contains {kind} where the schema has {expected}"
        if not any(fits(kind) for fits in _SOURCES[name]):
            raise CorruptTableError(problem)
        if self.widens or not _is_narrower(kind, arrow_type(expected)):
            return
        if pa.types.is_decimal(kind):
            before = str(DecimalType(precision=kind.precision, scale=kind.scale))
        else:
            before = _NAMES.get(kind, str(kind))
        if not TypeChange(column="", before=before, after=str(expected)).is_known:
            raise CorruptTableError(problem)
        raise RefusedError(
            f"{problem}, and the table does not have the feature typeWidening", remedy=ADD_WIDENING
        )


def _in_column(error: DeltaMaintenanceError, column: StructField) -> DeltaMaintenanceError:
    return type(error)(f"the column {column.name}: {error.problem}", remedy=error.remedy)


def is_hybrid(key_values: Mapping[bytes, bytes] | None, *, int96: bool) -> bool:
    """Whether a Parquet file uses the Julian calendar for early dates, according to its metadata.

    `int96` is for timestamps of that physical type, for which Spark used the Julian calendar until
    3.1.
    """
    key_values = key_values or {}
    marker = b"org.apache.spark.legacyINT96" if int96 else b"org.apache.spark.legacyDateTime"
    if marker in key_values:
        return True
    version = key_values.get(b"org.apache.spark.version")
    if version is None:
        return False
    numbers = [int(number) for number in version.split(b".")[:2] if number.isdigit()]
    return numbers < ([3, 1] if int96 else [3, 0])


def _as_timestamps(stored: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return stored.cast(target)
    except pa.ArrowInvalid:
        raise UnsupportedFeatureError(
            "a timestamp is finer than microseconds or out of their range",
            remedy="rewrite the file with the engine that wrote it",
        ) from None


_Test = Callable[[pa.DataType], bool]


def is_list(kind: pa.DataType) -> bool:
    """Whether the type is a list, in any of Arrow's layouts."""
    return any(
        test(kind)
        for test in (
            *(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
            # Arrow restores the in-memory layouts of the writer.
            *(pa.types.is_list_view, pa.types.is_large_list_view),
        )
    )


def _is_text(kind: pa.DataType) -> bool:
    # Some writers omit the string annotation.
    return any(
        test(kind)
        for test in (
            *(pa.types.is_string, pa.types.is_large_string, pa.types.is_binary),
            *(pa.types.is_large_binary, pa.types.is_fixed_size_binary),
            # `deltalake` uses these layouts when it deletes rows.
            *(pa.types.is_string_view, pa.types.is_binary_view),
        )
    )


_VARIANT = ("metadata", "value")
_INSTANTS = ("timestamp", "timestamp_ntz")
_INTEGER: tuple[_Test, ...] = (pa.types.is_integer,)
_SOURCES: Mapping[str, tuple[_Test, ...]] = {
    "string": (_is_text,),
    "binary": (_is_text,),
    "boolean": (pa.types.is_boolean,),
    "byte": _INTEGER,
    "short": _INTEGER,
    "integer": _INTEGER,
    "long": _INTEGER,
    "float": (pa.types.is_float16, pa.types.is_float32),
    "double": (pa.types.is_floating, pa.types.is_integer),
    "decimal": (pa.types.is_decimal, pa.types.is_integer),
    "date": (pa.types.is_date,),
    "timestamp": (pa.types.is_timestamp,),
    "timestamp_ntz": (pa.types.is_timestamp, pa.types.is_date),
}
"""The types that a column may have in files: before it was widened, or as other writers store it.
"""

_NAMES: Mapping[pa.DataType, str] = {
    kind: name
    for name in ("byte", "short", "integer", "long", "float", "double", "date")
    if (kind := to_arrow_type(PrimitiveType(name=name))) is not None
}
"""The primitive types that can be widened, by their Arrow types."""

_GREGORIAN: Mapping[str, date | datetime] = {
    "date": date(1582, 10, 15),
    # Before 1900, time zones used local mean time, which the two calendars convert to different
    # instants.
    "timestamp": datetime(1900, 1, 1, tzinfo=UTC),
}


def _field_id(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(b"PARQUET:field_id")


def _nested_array(stored: pa.Array, kind: pa.DataType, child: pa.Array) -> pa.Array:
    """Returns the lists or maps with another child array, with the same offsets and nulls."""
    return pa.Array.from_buffers(
        kind, len(stored), stored.buffers()[:2], stored.null_count, stored.offset, [child]
    )


def _is_narrower(stored: pa.DataType, expected: pa.DataType) -> bool:
    """Whether reading `expected` from `stored` requires the feature `typeWidening`.

    `byte`, `short` and `integer` have the same type in Parquet.
    """
    if pa.types.is_decimal(expected):
        return not pa.types.is_decimal(stored) or (stored.precision, stored.scale) != (
            expected.precision,
            expected.scale,
        )
    if pa.types.is_integer(expected):
        return bool(stored.bit_width < expected.bit_width == 64)
    if pa.types.is_floating(expected):
        return bool(stored.bit_width < expected.bit_width or pa.types.is_integer(stored))
    return bool(pa.types.is_timestamp(expected) and pa.types.is_date(stored))


def _as_list(stored: pa.Array) -> pa.ListArray:
    """Converts lists of any layout to `list`."""
    kind = stored.type
    if not (pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)):
        return stored.cast(pa.list_(kind.value_field))
    # pyarrow 26 casts list views to lists without the last offset.
    lengths = pc.fill_null(pc.list_value_length(stored), 0).to_numpy()
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return pa.ListArray.from_arrays(
        integers(ends).cast(pa.int32()), stored.flatten(), mask=stored.is_null()
    )


def _as_text(stored: pa.Array) -> pa.Array:
    """Converts strings of any layout to `string`; bytes that are not UTF-8 stay unchanged."""
    kind = stored.type
    if pa.types.is_dictionary(kind):
        return _as_text(stored.dictionary).take(stored.indices)
    if pa.types.is_string(kind):
        return stored
    return stored.cast(pa.binary()).view(pa.string())
