"""Evaluates a condition of SQL on rows, as Spark does.

A comparison with null is unknown, and AND, OR and NOT follow three-valued logic. NaN equals NaN and
is greater than any other number. Text is compared by its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

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
from delta_maintenance.protocol.schema.types import DeltaType, StructType

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

    def __init__(self, text: str, schema: StructType) -> None:
        """`InvalidRequestError` for a condition that is not understood, an unknown column, or a
        value that does not match its column.
        """
        self.text = text
        self._condition = parse_condition(text)
        self._columns: dict[tuple[str, ...], tuple[tuple[str, ...], DeltaType]] = {}
        for column in columns_of(self._condition):
            self._columns[column] = self._found(column, schema)
        self.matching(self._no_rows(schema))

    @property
    def columns(self) -> frozenset[str]:
        """The names of the top-level columns that are needed."""
        return frozenset(names[0] for names, _ in self._columns.values())

    def matching(self, rows: Mapping[str, pa.Array]) -> pa.BooleanArray:
        """Marks the rows for which the condition is true; `rows` are top-level columns by name."""
        return pc.fill_null(self._truth(self._condition, rows), False)

    def _found(
        self, column: tuple[str, ...], schema: StructType
    ) -> tuple[tuple[str, ...], DeltaType]:
        kind: DeltaType = schema
        names: list[str] = []
        for name in column:
            fields = kind.fields if isinstance(kind, StructType) else ()
            field = next((each for each in fields if each.name.lower() == name.lower()), None)
            if field is None:
                raise invalid_condition(self.text, f"there is no column {'.'.join(column)}")
            names.append(field.name)
            kind = field.type
        return tuple(names), kind

    def _no_rows(self, schema: StructType) -> dict[str, pa.Array]:
        fields = (each for each in schema.fields if each.name in self.columns)
        return {each.name: pa.array([], arrow_type(each.type)) for each in fields}

    def _truth(self, condition: Condition, rows: Mapping[str, pa.Array]) -> pa.Array:
        match condition:
            case Not(part):
                return pc.invert(self._truth(part, rows))
            case Both(left, right):
                return pc.and_kleene(self._truth(left, rows), self._truth(right, rows))
            case Either(left, right):
                return pc.or_kleene(self._truth(left, rows), self._truth(right, rows))
            case Comparison(column, sign, value):
                return self._compared(column, sign, value, rows)
            case OneOf(column, values):
                each = (self._compared(column, "=", value, rows) for value in values)
                return reduce(pc.or_kleene, each)
            case IsNull(column):
                return pc.is_null(self._values(column, rows))
            case Prefix(column, value):
                return pc.starts_with(self._values(column, rows), value.text)
            case Opaque(text):
                raise invalid_condition(self.text, f"{text!r} is not understood")

    def _compared(
        self, column: tuple[str, ...], sign: str, literal: Literal, rows: Mapping[str, pa.Array]
    ) -> pa.Array:
        values = self._values(column, rows)
        value = literal_value(literal, self._columns[column][1])
        if value is None:
            raise invalid_condition(
                self.text, f"{literal.text!r} is no value of the column {'.'.join(column)}"
            )
        if pa.types.is_floating(values.type):
            found = _compared_floats(values, value, sign)
        else:
            found = _COMPARE[sign](values, value)
        # No null satisfies `<=>` with a value, and its negation is true for null.
        return pc.fill_null(found, False) if sign == "<=>" else found

    def _values(self, column: tuple[str, ...], rows: Mapping[str, pa.Array]) -> pa.Array:
        (first, *inner), _ = self._columns[column]
        return reduce(pc.struct_field, inner, rows[first])


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
