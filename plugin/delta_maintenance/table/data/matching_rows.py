"""Evaluates a condition of SQL on rows, as Spark does.

A comparison with null is unknown, and AND, OR and NOT follow three-valued logic. NaN equals NaN and
is greater than any other number. Text is compared by its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.schema.condition import (
    Both,
    Comparison,
    Condition,
    Either,
    IsNull,
    Literal,
    Not,
    OneOf,
    Opaque,
    Prefix,
    columns_of,
    invalid_condition,
    literal_value,
    parse_condition,
)
from delta_maintenance.protocol.schema.data_columns import arrow_type
from delta_maintenance.protocol.schema.types import DeltaType, StructType, to_arrow_type

Names = tuple[str, ...]
"""The names of a column, from the outermost struct inwards."""

_COMPARE: Mapping[str, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    "=": pc.equal,
    "<=>": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


class RowCondition:
    """A condition on the rows of a table with a given schema."""

    def __init__(
        self,
        text: str,
        schema: StructType,
        *,
        columns: Mapping[Names, Names | None] | None = None,
        types: Mapping[Names, Sequence[DeltaType]] | None = None,
    ) -> None:
        """`InvalidRequestError` for a condition that is not understood, an unknown column, or a
        value that does not match its column.

        `columns` are the names in the schema of columns that the condition names otherwise, or None
        for one that the schema lacks, and which is null. `types` are those that a column has in
        other versions; a value need match one of them only.
        """
        self.text = text
        self._condition = parse_condition(text)
        self._columns: dict[Names, tuple[Names, DeltaType]] = {}
        self._other_types = types or {}
        for column in columns_of(self._condition):
            names = (columns or {}).get(column, column)
            self._columns[column] = ((), schema) if names is None else self._found(names, schema)
        self.matching(self._no_rows(schema))

    @property
    def columns(self) -> frozenset[str]:
        """The names of the top-level columns that are needed."""
        return frozenset(names[0] for names, _ in self._columns.values() if names)

    def matching(self, rows: Mapping[str, pa.Array]) -> pa.BooleanArray:
        """Marks the rows for which the condition is true; `rows` are top-level columns by name."""
        return pc.fill_null(self._truth(self._condition, partial(self._values, rows)), False)

    def matching_values(self, values: Mapping[Names, pa.Array]) -> pa.BooleanArray:
        """Like `matching`, for the values of columns by their names in the condition. A null is a
        value that is unknown, and a part of the condition without a known value has no effect.
        """
        return pc.fill_null(self._truth(self._condition, values.__getitem__, partly=True), False)

    def _found(self, column: Names, schema: StructType) -> tuple[Names, DeltaType]:
        kind: DeltaType = schema
        names: list[str] = []
        for name in column:
            fields = kind.fields if isinstance(kind, StructType) else ()
            field = next(
                (candidate for candidate in fields if candidate.name.lower() == name.lower()), None
            )
            if field is None:
                raise invalid_condition(self.text, f"there is no column {'.'.join(column)}")
            names.append(field.name)
            kind = field.type
        return tuple(names), kind

    def _no_rows(self, schema: StructType) -> dict[str, pa.Array]:
        fields = (field for field in schema.fields if field.name in self.columns)
        return {field.name: pa.array([], arrow_type(field.type)) for field in fields}

    def _truth(
        self, condition: Condition, values: Callable[[Names], pa.Array], *, partly: bool = False
    ) -> pa.Array:
        match condition:
            case Not(operand):
                return pc.invert(self._truth(operand, values, partly=partly))
            case Both(left, right) | Either(left, right):
                join = pc.and_kleene if isinstance(condition, Both) else pc.or_kleene
                sides = [self._truth(operand, values, partly=partly) for operand in (left, right)]
                return pc.coalesce(join(*sides), *sides) if partly else join(*sides)
            case Comparison(column, sign, value):
                return self._compare_column(column, sign, value, values(column))
            case OneOf(column, literals):
                truths = (
                    self._compare_column(column, "=", value, values(column)) for value in literals
                )
                return reduce(pc.or_kleene, truths)
            case IsNull(column):
                is_null = pc.is_null(values(column))
                return pa.nulls(len(is_null), pa.bool_()) if partly else is_null
            case Prefix(column, value):
                return pc.starts_with(values(column), value.text)
            case Opaque(text):
                raise invalid_condition(self.text, f"{text!r} is not understood")

    def _compare_column(
        self, column: Names, sign: str, literal: Literal, values: pa.Array
    ) -> pa.Array:
        names, kind = self._columns[column]
        if not names:
            return pa.array([False if sign == "<=>" else None] * len(values), pa.bool_())
        name = ".".join(column)
        if to_arrow_type(kind) is None:
            raise invalid_condition(
                self.text, f"the column {name} is of type {kind}, which is compared with no value"
            )
        value = literal_value(literal, kind)
        for other_type in self._other_types.get(column, ()):
            if value is not None:
                break
            value = literal_value(literal, other_type)
            values = values if value is None else values.cast(value.type)
        if value is None:
            raise invalid_condition(self.text, f"{literal.text!r} is no value of the column {name}")
        if pa.types.is_floating(values.type):
            compared = _compared_floats(values, value, sign)
        else:
            compared = _COMPARE[sign](values, value)
        # No null satisfies `<=>` with a value, and its negation is true for null.
        return pc.fill_null(compared, False) if sign == "<=>" else compared

    def _values(self, rows: Mapping[str, pa.Array], column: Names) -> pa.Array:
        names, _ = self._columns[column]
        if not names:
            return pa.nulls(len(next(iter(rows.values()))), pa.string())
        top, *inner = names
        return reduce(pc.struct_field, inner, rows[top])


def _compared_floats(values: pa.Array, value: pa.Scalar, sign: str) -> pa.Array:
    """Compares numbers with NaN, which Arrow takes for unequal to everything."""
    nan = pc.is_nan(values)
    if pc.is_nan(value).as_py():
        equal, less = nan, pc.invert(nan)
    else:
        equal, less = pc.equal(values, value), pc.less(values, value)
    if sign in ("=", "<=>", "<>"):
        return pc.invert(equal) if sign == "<>" else equal
    at_most = pc.or_(less, equal)
    return {"<": less, "<=": at_most, ">": pc.invert(at_most), ">=": pc.invert(less)}[sign]
