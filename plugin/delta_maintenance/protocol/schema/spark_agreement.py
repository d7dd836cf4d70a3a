"""Which conditions `RowCondition` evaluates as Spark does, whatever the settings of its session.

Spark converts the operands of a comparison to a common type, by rules that depend on the kind of
expression, on settings such as ANSI mode, and on the release. A condition is accepted only if no
conversion changes a value: each literal has the form of its column's type, and is a value of it.
All other expressions are left to Spark.
"""

from __future__ import annotations

import re

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.protocol.schema.condition import (
    Comparison,
    IsNull,
    Literal,
    Names,
    OneOf,
    leaves_of,
    literal_value,
    parse_condition,
)
from delta_maintenance.protocol.schema.types import (
    DecimalType,
    StructField,
    StructType,
    to_arrow_type,
)

_MOST_CHARACTERS = 10_000
"""Spark's parser fails for expressions of great depth."""
_TEXT_RULES = ("__CHAR_VARCHAR_TYPE_STRING", "__COLLATIONS")
"""Keys in the metadata of columns whose texts Spark does not compare by their bytes alone."""
_FUNCTIONS = frozenset(
    f"current_{name}"
    for name in ("catalog", "database", "date", "path", "schema", "time", "timestamp", "user")
)
"""Names that releases of Spark take for functions, even if there is such a column."""
_DECIMAL_DIGITS = 38
_INTEGER_DIGITS = 20
"""The digits of the decimal type to which Spark may convert an integer."""
_FORMS = {
    **dict.fromkeys(("byte", "short", "integer", "long"), re.compile("-?[0-9]+")),
    # Every such number is a value of both types.
    **dict.fromkeys(("float", "double"), re.compile("-?[0-9]{1,7}")),
    "boolean": re.compile("true|false"),
    "date": re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    # Releases of Spark differ in what two quotes within a text mean.
    "string": re.compile("[^']*"),
}
_DECIMAL = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")


def obstacle_without_spark(text: str, schema: StructType) -> str | None:
    """Returns why only Spark can evaluate a condition on rows with this schema, as a clause; None
    if a `RowCondition` is true of the same rows as Spark's expression.
    """
    if len(text) > _MOST_CHARACTERS:
        return "it is too long"
    # Spark replaces variables, reads backslashes by a setting, and has other white space.
    if not all(character.isprintable() or character in "\t\r\n" for character in text):
        return "it has invisible characters"
    if "$" in text or "\\" in text:
        return "it has a dollar sign or a backslash"
    try:
        leaves = [*leaves_of(parse_condition(text))]
    except InvalidRequestError:
        return "it has other parts than comparisons of columns with values"
    for leaf in leaves:
        assert isinstance(leaf, Comparison | OneOf | IsNull), "the others are of lenient parsing"
        column = _column(leaf.column, schema)
        if column is None:
            return f"{'.'.join(leaf.column)} is not the name of a column of single values"
        literals: tuple[Literal, ...] = ()
        if not isinstance(leaf, IsNull):
            literals = leaf.values if isinstance(leaf, OneOf) else (leaf.value,)
        for literal in literals:
            if not _has_form(literal, column):
                return (
                    f"{column.name} is of the type {column.type}, which Spark compares with "
                    f"{literal.text!r} by rules of its own"
                )
    return None


def _column(names: Names, schema: StructType) -> StructField | None:
    """Returns the top-level column of a name; None if the name is not that of one column with
    single values for sure.
    """
    # Java has other rules for the case of some letters.
    [name, *inner] = names
    columns = [item for item in schema.fields if item.name.lower() == name.lower()]
    if inner or not name.isascii() or name.lower() in _FUNCTIONS or len(columns) != 1:
        return None
    return columns[0] if to_arrow_type(columns[0].type) is not None else None


def _has_form(literal: Literal, column: StructField) -> bool:
    """Returns whether Spark compares a literal with the values of a column as they are."""
    kind, name = column.type, str(column.type)
    if literal_value(literal, kind) is None or literal.type_word not in (None, name):
        return False
    if isinstance(kind, DecimalType):
        return not literal.quoted and _is_exact(literal.text, kind)
    form = _FORMS.get(name)
    if form is None or literal.quoted != (name in ("string", "date")):
        return False
    if not column.metadata.keys().isdisjoint(_TEXT_RULES):
        return False
    return form.fullmatch(literal.text) is not None


def _is_exact(text: str, kind: DecimalType) -> bool:
    """Returns whether the common type of a number and a decimal has all of their digits."""
    whole, point, fraction = text.partition(".")
    digits = len(whole) if point else max(len(whole), _INTEGER_DIGITS)
    whole_digits = max(digits, kind.precision - kind.scale)
    is_bounded = whole_digits + max(len(fraction), kind.scale) <= _DECIMAL_DIGITS
    return is_bounded and _DECIMAL.fullmatch(text) is not None
