"""Evaluates a condition of SQL, on rows, on partitions or on the bounds of files.

An evaluation has two answers for each element: whether the condition can be true, and whether it
can be false. The values of a row or a partition are known, so at most one of them is yes; neither
is where SQL's answer is unknown, as that of a comparison with null. Of a file only bounds are
known, and both can be yes, each for some of its rows. NOT, AND and OR are the same for all.

Values are compared as Spark does: NaN equals NaN and is greater than any other number, and text is
compared by its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from functools import partial, reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.columns import booleans, to_bools
from delta_maintenance.protocol.schema.condition import (
    Both,
    Comparison,
    Condition,
    Either,
    IsNull,
    Literal,
    Names,
    Not,
    OneOf,
    columns_of,
    invalid_condition,
    literal_value,
    parse_condition,
)
from delta_maintenance.protocol.schema.data_columns import arrow_type
from delta_maintenance.protocol.schema.partition_values import parse_partition_values
from delta_maintenance.protocol.schema.types import DeltaType, StructType, to_arrow_type

Mask = npt.NDArray[np.bool_]
Answers = tuple[Mask, Mask]
"""Where a condition can be true, and where it can be false."""
Compare = Callable[[Names, str, Literal], pa.BooleanArray]
"""Compares the values of a column, by a sign, with a literal."""

_SIGNS: Mapping[str, Callable[[pa.Array, pa.Scalar], pa.BooleanArray]] = {
    "=": pc.equal,
    "<=>": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def evaluate(
    condition: Condition, answer: Callable[[Condition], Answers], *, partly: bool = False
) -> Answers:
    """Evaluates a condition, given the answers for its parts without NOT, AND and OR.

    With `partly`, a part without an answer has no effect on one that is joined with it.
    """
    match condition:
        case Not(operand):
            true, false = evaluate(operand, answer, partly=partly)
            return false, true
        case Both(left, right) | Either(left, right):
            (true, false), (other_true, other_false) = (
                evaluate(operand, answer, partly=partly) for operand in (left, right)
            )
            any_true, any_false = true | other_true, false | other_false
            if isinstance(condition, Both):
                true, false = true & other_true, any_false
            else:
                true, false = any_true, false & other_false
            if partly:
                unknown = ~(true | false)
                true, false = true | (unknown & any_true), false | (unknown & any_false)
            return true, false
        case _:
            return answer(condition)


def partition_filter(
    condition: str, strings: Mapping[str, pa.Array], types: Mapping[str, DeltaType]
) -> Mask:
    """Returns which partitions satisfy a condition such as `day >= '2024-01-01'`.

    `strings` are the partition values of each partition as in the log, by logical column name;
    `types` are their types. The condition names columns in any case, and a literal is parsed as a
    partition value of the column's type. `InvalidRequestError` for a condition with a syntax error,
    a column that is not a partition column, or a value that does not match the column's type.
    """
    columns = {name.lower(): name for name in types}
    values_by_name: dict[str, pa.Array] = {}

    def name_of(column: Names) -> str:
        name = columns.get(".".join(column).lower())
        if name is None:
            names = ", ".join(columns.values()) or "none, for the table has no partitions"
            raise invalid_condition(
                condition,
                f"{'.'.join(column)} is not a partition column; the partition columns are: {names}",
            )
        return name

    def values_of(column: Names) -> pa.Array:
        name = name_of(column)
        if name not in values_by_name:
            # The zone of a partition value without one is unknown, so all are read as UTC.
            values_by_name[name] = parse_partition_values(
                strings[name], types[name], zone=UTC
            ).values
        return values_by_name[name]

    def compare(column: Names, sign: str, literal: Literal) -> pa.BooleanArray:
        if sign == "<=>":
            raise invalid_condition(condition, "it cannot be used for partitions")
        name, values = name_of(column), values_of(column)
        # The log does not distinguish the empty string from null.
        value = pa.scalar(None, values.type)
        if literal.text:
            value = literal_value(literal, types[name])
        if value is None:
            raise invalid_condition(
                condition, f"{literal.text!r} is not a {types[name]}, the type of {name}"
            )
        return _compare(values, sign, value)

    return _where_true(parse_condition(condition), values_of, compare)


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
            self._columns[column] = ((), schema) if names is None else self._find(names, schema)
        self.matching(self._no_rows(schema))

    @property
    def columns(self) -> frozenset[str]:
        """The names of the top-level columns that are needed."""
        return frozenset(names[0] for names, _ in self._columns.values() if names)

    def matching(self, rows: Mapping[str, pa.Array]) -> pa.BooleanArray:
        """Marks the rows for which the condition is true; `rows` are top-level columns by name."""
        return self._evaluate(partial(self._values, rows))

    def matching_values(self, values: Mapping[Names, pa.Array]) -> pa.BooleanArray:
        """Like `matching`, for the values of columns by their names in the condition. A null is a
        value that is unknown, and a part of the condition without a known value has no effect.
        """
        return self._evaluate(values.__getitem__, partly=True)

    def _evaluate(
        self, values: Callable[[Names], pa.Array], *, partly: bool = False
    ) -> pa.BooleanArray:
        def compare(column: Names, sign: str, literal: Literal) -> pa.BooleanArray:
            return self._compare_column(column, sign, literal, values(column))

        return booleans(_where_true(self._condition, values, compare, partly=partly))

    def _find(self, column: Names, schema: StructType) -> tuple[Names, DeltaType]:
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

    def _compare_column(
        self, column: Names, sign: str, literal: Literal, values: pa.Array
    ) -> pa.BooleanArray:
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
        return _compare(values, sign, value)

    def _values(self, rows: Mapping[str, pa.Array], column: Names) -> pa.Array:
        names, _ = self._columns[column]
        if not names:
            return pa.nulls(len(next(iter(rows.values()))), pa.string())
        top, *inner = names
        return reduce(pc.struct_field, inner, rows[top])


def _where_true(
    condition: Condition,
    values: Callable[[Names], pa.Array],
    compare: Compare,
    *,
    partly: bool = False,
) -> Mask:
    """Marks the values for which a condition is true, and neither false nor unknown."""

    def answer(part: Condition) -> Answers:
        match part:
            case Comparison(column, sign, literal):
                truth = compare(column, sign, literal)
            case OneOf(column, literals):
                truths = (compare(column, "=", literal) for literal in literals)
                truth = reduce(pc.or_kleene, truths)
            case IsNull(column):
                truth = pc.is_null(values(column))
                if partly:
                    truth = pa.nulls(len(truth), pa.bool_())
            case _:
                raise AssertionError(f"only `lenient` conditions have such a part: {part}")
        true = to_bools(pc.fill_null(truth, False))
        return true, ~true & to_bools(pc.is_valid(truth))

    return evaluate(condition, answer, partly=partly)[0]


def _compare(values: pa.Array, sign: str, value: pa.Scalar) -> pa.BooleanArray:
    if pa.types.is_floating(values.type):
        compared = _compare_floats(values, sign, value)
    else:
        compared = _SIGNS[sign](values, value)
    # No null satisfies `<=>` with a value, and its negation is true for null.
    return pc.fill_null(compared, False) if sign == "<=>" else compared


def _compare_floats(values: pa.Array, sign: str, value: pa.Scalar) -> pa.BooleanArray:
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
