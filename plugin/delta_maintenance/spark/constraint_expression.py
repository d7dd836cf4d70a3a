"""Checks the expression of a constraint with Spark, and finds the columns that it needs."""

from __future__ import annotations

import json
import re
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StructType as SparkStruct

from delta_maintenance.errors import InvalidRequestError, UnsupportedFeatureError
from delta_maintenance.protocol.schema.data_columns import arrow_type
from delta_maintenance.protocol.schema.types import StructField, parse_schema
from delta_maintenance.table.read.snapshot import Snapshot

MARK = "__delta_maintenance"
"""The prefix of all names that this library adds to those of a table."""


def needed_columns(
    spark: SparkSession, snapshot: Snapshot, expression: str
) -> tuple[StructField, ...]:
    """Returns the columns that the expression needs, in the order of the schema.

    Raises `InvalidRequestError` if the expression is not boolean, uses other columns or other rows,
    or is not deterministic, and `UnsupportedFeatureError` for types that cannot be read.
    """
    columns = parse_schema(snapshot.metadata.schema_string or "").fields
    readable = tuple(item for item in columns if _is_readable(item))
    named = [item for item in columns if _is_named(item.name, expression)]
    try:
        _analyse(spark, snapshot, readable, expression)
    except AnalysisException as error:
        unreadable = [item for item in named if item not in readable]
        if unreadable:
            raise UnsupportedFeatureError(
                f"the column {unreadable[0].name} is of the type {unreadable[0].type}, which "
                "cannot be checked",
                remedy="add the constraint with Delta Spark",
            ) from None
        raise InvalidRequestError(
            f"{expression!r} cannot be a constraint: {_gist(error)}",
            remedy="give an expression that is true or false of each row by itself",
        ) from None
    wanted = tuple(item for item in named if item in readable)
    try:
        _analyse(spark, snapshot, wanted, expression)
    except AnalysisException:
        # IDENTIFIER can compose a name, which then does not occur in the text.
        return readable
    return wanted


def spark_schema(snapshot: Snapshot, columns: tuple[StructField, ...]) -> SparkStruct:
    """Returns the columns as Spark types, all nullable.

    The check must not rely on a `NOT NULL` rule that the rows may violate.
    """
    names = {item.name for item in columns}
    fields = json.loads(snapshot.metadata.schema_string or "")["fields"]
    kept = [_without_promises(item) for item in fields if item["name"] in names]
    schema: SparkStruct = SparkStruct.fromJson({"type": "struct", "fields": kept})
    return schema


def _analyse(
    spark: SparkSession, snapshot: Snapshot, columns: tuple[StructField, ...], expression: str
) -> None:
    """Lets Spark analyse the expression in positions that only accept valid constraints.

    A filter accepts only boolean expressions without aggregates and windows; the condition of a
    join accepts no nondeterministic expressions and no stars; a lambda function accepts no
    subqueries, and the parentheses around it no alias.
    """
    rows = spark.createDataFrame([], spark_schema(snapshot, columns))
    other = spark.range(0).toDF(f"{MARK}_id")
    alone = f"forall(array(0), {MARK}_item -> ({expression}\n))"
    _require_sound(rows.where(functions.expr(expression)))
    _require_sound(rows.join(other, functions.expr(expression), "left_semi"))
    _require_sound(rows.where(functions.expr(alone)))


def _require_sound(frame: DataFrame) -> None:
    # Spark Connect does not analyse the plan before this access.
    _ = frame.schema


def _is_readable(column: StructField) -> bool:
    try:
        arrow_type(column.type)
    except UnsupportedFeatureError:
        return False
    return True


def _is_named(name: str, expression: str) -> bool:
    """Returns whether the expression contains the name, as every use of the column does."""
    text, name = (item.upper().lower() for item in (expression, name))
    if re.fullmatch("[a-z0-9_]+", name):
        return re.search(rf"(?<![a-z0-9_]){name}(?![a-z0-9_])", text) is not None
    return name in text or name.replace("`", "``") in text


def _without_promises(value: Any) -> Any:
    """Reduces a type or a field of a schema string to the parts that define the type."""
    if isinstance(value, list):
        return [_without_promises(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {
        name: True if name in _PROMISES else _without_promises(item)
        for name, item in value.items()
        if name != "metadata"
    }
    if "name" in value:
        collations = (value.get("metadata") or {}).get(_COLLATIONS)
        kept |= {"nullable": True, "metadata": {_COLLATIONS: collations} if collations else {}}
    return kept


_PROMISES = ("nullable", "containsNull", "valueContainsNull")
_COLLATIONS = "__COLLATIONS"


def _gist(error: AnalysisException) -> str:
    """Returns the first line of Spark's message, without error codes and the text position."""
    line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return re.sub(r"\s*SQLSTATE: \w+.*$", "", line).rstrip(". ;")
