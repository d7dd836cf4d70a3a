"""Selects partitions by a condition over partition columns, such as `day >= '2024-01-01'`.

Conditions have SQL's three-valued logic. Columns are referred to by logical names, ignoring case.
A literal is parsed as a partition value of the column's type, so numbers and dates are compared as
such. Conditions are evaluated over columns of distinct partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC

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
    invalid_condition,
    literal_value,
    parse_condition,
)
from delta_maintenance.protocol.schema.partition_values import parse_partition_values
from delta_maintenance.protocol.schema.types import DeltaType

_COMPARISONS = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def partition_filter(
    condition: str, strings: Mapping[str, pa.Array], types: Mapping[str, DeltaType]
) -> pa.BooleanArray:
    """Returns which partitions satisfy the condition; null counts as not satisfied.

    `strings` are the partition values of each partition as in the log, by logical column name;
    `types` are their types. `InvalidRequestError` for a condition with a syntax error, a column
    that is not a partition column, or a value that does not match the column's type.
    """
    is_satisfying = _Partitions(condition, strings, types).satisfying(parse_condition(condition))
    return pc.fill_null(is_satisfying, False)


class _Partitions:
    def __init__(
        self, condition: str, strings: Mapping[str, pa.Array], types: Mapping[str, DeltaType]
    ) -> None:
        self._condition = condition
        self._columns = {name.lower(): name for name in types}
        self._strings = strings
        self._types = types
        self._typed: dict[str, pa.Array] = {}

    def satisfying(self, condition: Condition) -> pa.Array:
        match condition:
            case Not(part):
                return pc.invert(self.satisfying(part))
            case Both(left, right):
                return pc.and_kleene(self.satisfying(left), self.satisfying(right))
            case Either(left, right):
                return pc.or_kleene(self.satisfying(left), self.satisfying(right))
            case IsNull(column):
                return pc.is_null(self._values(self._name(column)))
            case OneOf(column, literals):
                return self._one_of(self._name(column), literals)
            case Comparison(column, sign, literal) if sign in _COMPARISONS:
                name = self._name(column)
                return _COMPARISONS[sign](self._values(name), self._scalar(literal, name))
            case _:
                raise invalid_condition(self._condition, "it cannot be used for partitions")

    def _one_of(self, name: str, literals: tuple[Literal, ...]) -> pa.Array:
        values = self._values(name)
        truth, *more_equal = [pc.equal(values, self._scalar(literal, name)) for literal in literals]
        for equal in more_equal:
            truth = pc.or_kleene(truth, equal)
        return truth

    def _name(self, column: tuple[str, ...]) -> str:
        column_name = self._columns.get(".".join(column).lower())
        if column_name is None:
            names = ", ".join(self._columns.values()) or "none, for the table has no partitions"
            raise invalid_condition(
                self._condition,
                f"{'.'.join(column)} is not a partition column; the partition columns are: {names}",
            )
        return column_name

    def _values(self, name: str) -> pa.Array:
        if name not in self._typed:
            # The zone of a partition value without one is unknown, so all are read as UTC.
            parsed = parse_partition_values(self._strings[name], self._types[name], zone=UTC)
            self._typed[name] = parsed.values
        return self._typed[name]

    def _scalar(self, literal: Literal, name: str) -> pa.Scalar:
        if literal.text == "":
            # The log does not distinguish the empty string from null.
            return pa.scalar(None, self._values(name).type)
        scalar = literal_value(literal, self._types[name])
        if scalar is None:
            raise invalid_condition(
                self._condition,
                f"{literal.text!r} is not a {self._types[name]}, the type of {name}",
            )
        return scalar
