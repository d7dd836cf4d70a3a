"""Which files a reader of a condition reads, according to the bounds of columns.

For each file, a condition may be true for some row, and it may be false for some row. A file is
read if the condition may be true for some row. An expression that is not understood may be both, so
it skips nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.columns import to_bools
from delta_maintenance.protocol.schema.condition import (
    Both,
    Comparison,
    Condition,
    Either,
    IsNull,
    Literal,
    Not,
    OneOf,
    Prefix,
    literal_value,
)
from delta_maintenance.protocol.schema.evaluation import Answers, evaluate
from delta_maintenance.protocol.statistics.bounds import ColumnBounds, FileBounds, Mask, Path


def files_read(condition: Condition, files: FileBounds) -> Mask:
    """Returns which files a reader of the condition reads."""
    reader = _Reader(files)
    is_read, lacking = evaluate(condition, reader.answer)[0], reader.lacking(condition)
    if not lacking.any():
        return is_read
    # Delta Spark skips no file that lacks any of the bounds that the whole condition refers to.
    values = {path: column for path, column in files.columns.items() if column.is_partition}
    by_values = _Reader(replace(files, columns=values))
    return is_read | (lacking & evaluate(condition, by_values.answer)[0])


def column_in(column: Path, columns: Mapping[Path, object]) -> Path | None:
    """Finds a column of a condition, ignoring case. Its first name may be that of the table."""
    names = tuple(name.lower() for name in column)
    while names and names not in columns:
        names = names[1:]
    return names or None


class _Reader:
    def __init__(self, files: FileBounds) -> None:
        self._files = files

    def answer(self, part: Condition) -> Answers:
        """Returns in which files a part of the condition can be true, or false."""
        match part:
            case Comparison(name, sign, literal):
                column = self._column(name)
                value = None if column is None else _value(literal, column)
                if column is not None and value is not None:
                    return _compare_bounds(column, sign, value)
            case OneOf(name, literals):
                column = self._column(name)
                if column is not None:
                    return self._one_of(column, literals)
            case IsNull(name):
                column = self._column(name)
                if column is not None:
                    return column.nulls != 0, ~column.all_null
            case Prefix(name, literal):
                column = self._column(name)
                if column is not None and pa.types.is_binary(column.least.type):
                    return _starting(column, literal.text.encode())
        return self._all(), self._all()

    def lacking(self, condition: Condition, *, negated: bool = False) -> Mask:
        """Returns which files lack a bound that the condition refers to."""
        match condition:
            case Not(operand):
                return self.lacking(operand, negated=not negated)
            case Both(left, right) | Either(left, right):
                lacking = (self.lacking(operand, negated=negated) for operand in (left, right))
                return np.logical_or(*lacking)
            case Comparison(name, sign, _):
                column = self._indexed_column(name)
                if column is not None and sign in ("<", "<=", ">", ">="):
                    is_upper = (sign[0] == ">") != negated
                    bound = column.greatest if is_upper else column.least
                    return to_bools(pc.is_null(bound)) & ~column.all_null
                return ~self._all() if column is None else column.unknown
            case OneOf(name) | Prefix(name) if not negated:
                column = self._indexed_column(name)
                return ~self._all() if column is None else column.unknown
        return ~self._all()

    def _column(self, name: Path) -> ColumnBounds | None:
        path = column_in(name, self._files.columns)
        return None if path is None else self._files.columns[path]

    def _indexed_column(self, name: Path) -> ColumnBounds | None:
        column = self._column(name)
        return column if column is not None and column.is_indexed else None

    def _one_of(self, column: ColumnBounds, literals: tuple[Literal, ...]) -> Answers:
        values = [value for literal in literals if (value := _value(literal, column)) is not None]
        if len(values) < len(literals):
            return self._all(), self._all()
        listed = pa.array([value.as_py() for value in values], column.least.type)
        if column.is_partition:
            inside = to_bools(pc.is_in(column.least, value_set=listed))
            return inside, ~inside & ~column.all_null
        # As Delta Spark does, which compares only the ends of the list with the bounds.
        ends = pc.min_max(listed)
        above, _ = _compare_bounds(column, ">=", ends["min"])
        below, _ = _compare_bounds(column, "<=", ends["max"])
        return column.unknown | (above & below), ~column.all_null

    def _all(self) -> Mask:
        return np.ones(self._files.count, np.bool_)


def _compare_bounds(column: ColumnBounds, sign: str, value: pa.Scalar) -> Answers:
    lowest, highest = column.least, column.greatest
    has_values = ~column.all_null
    match sign:
        case "<" | ">=":
            below = has_values & _or_unknown(pc.less(_number(lowest), value))
            above = has_values & _or_unknown(pc.greater_equal(_number(highest), value))
            return (below, above) if sign == "<" else (above, below)
        case "<=" | ">":
            below = has_values & _or_unknown(pc.less_equal(_number(lowest), value))
            above = has_values & _or_unknown(pc.greater(_number(highest), value))
            return (below, above) if sign == "<=" else (above, below)
    inside = _or_unknown(pc.less_equal(_number(lowest), value)) & _or_unknown(
        pc.greater_equal(_number(highest), value)
    )
    # Delta Spark skips no file by a single bound for a condition on both.
    inside |= column.unknown
    constant = pc.and_(pc.equal(_number(lowest), value), pc.equal(_number(highest), value))
    equal, unequal = has_values & inside, has_values & ~to_bools(pc.fill_null(constant, False))
    if sign == "<=>":
        return equal, unequal | (column.nulls != 0)
    return (equal, unequal) if sign == "=" else (unequal, equal)


def _starting(column: ColumnBounds, prefix: bytes) -> Answers:
    size, has_values = len(prefix), ~column.all_null
    start, end = (pc.binary_slice(bound, 0, size) for bound in (column.least, column.greatest))
    true = has_values & _or_unknown(pc.less_equal(start, prefix))
    true &= _or_unknown(pc.greater_equal(end, prefix))
    true |= column.unknown
    # As Delta Spark does, a negation skips by the values of partition columns only.
    return true, has_values & ~true if column.is_partition else has_values


def _number(values: pa.Array) -> pa.Array:
    """NaN is greater than every number, as in Spark."""
    if not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(float("inf"), values.type), values)


def _or_unknown(answers: pa.BooleanArray) -> Mask:
    mask: Mask = to_bools(pc.fill_null(answers, True))
    return mask


def _value(literal: Literal, column: ColumnBounds) -> pa.Scalar | None:
    scalar = literal_value(literal, column.kind)
    if scalar is None or scalar.as_py() != scalar.as_py():
        return None
    return scalar.cast(column.least.type) if pa.types.is_string(scalar.type) else scalar
