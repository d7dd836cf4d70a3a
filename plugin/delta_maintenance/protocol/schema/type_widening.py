"""Type changes recorded in a schema, and which of them are supported ("Type Widening")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from delta_maintenance.errors import CorruptTableError, UnsupportedFeatureError
from delta_maintenance.protocol.schema.types import StructType, walk

_INTEGERS = ("byte", "short", "integer", "long")
_DECIMAL = re.compile(r"decimal\( *(\d+) *, *(-?\d+) *\)")
_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}
"""Digits before the decimal point that a decimal needs for all values of the type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeChange:
    """A type change of a column, or of a type nested in it."""

    column: str
    before: str
    after: str

    @property
    def is_known(self) -> bool:
        """Whether the protocol defines this change, so that readers can convert older files."""
        if self.is_promotion or self.before == "void":
            return True
        if (self.before, self.after) == ("date", "timestamp_ntz"):
            return True
        if self.after == "double":
            return self.before in ("byte", "short", "integer")
        wide, narrow = _decimal(self.after), _decimal(self.before)
        if wide is None:
            return False
        if narrow is None:
            narrow = (_DIGITS.get(self.before, 99), 0)
        return wide[1] >= narrow[1] and wide[0] - wide[1] >= narrow[0] - narrow[1]

    @property
    def is_promotion(self) -> bool:
        """Whether Iceberg allows the change as well, so that its readers can convert files."""
        if self.before == self.after or (self.before, self.after) == ("float", "double"):
            return True
        if self.before in _INTEGERS and self.after in _INTEGERS:
            return _INTEGERS.index(self.before) <= _INTEGERS.index(self.after)
        wide, narrow = _decimal(self.after), _decimal(self.before)
        if wide is None or narrow is None:
            return False
        return wide[1] == narrow[1] and wide[0] >= narrow[0]


def type_changes(schema: StructType) -> Iterator[TypeChange]:
    """All type changes that the schema records, at every level."""
    for path, field in walk(schema):
        for change in field.metadata.get("delta.typeChanges") or ():
            if not isinstance(change, dict):
                raise CorruptTableError(f"a type change of the column {'.'.join(path)} is invalid")
            yield TypeChange(
                column=".".join(path),
                before=str(change.get("fromType")),
                after=str(change.get("toType")),
            )


def require_known_changes(schema: StructType) -> None:
    """Raises `UnsupportedFeatureError` if a type change is not one that readers can convert."""
    for change in type_changes(schema):
        if not change.is_known:
            raise UnsupportedFeatureError(
                f"the type of the column {change.column} was changed from {change.before} to "
                f"{change.after}, which type widening does not allow",
                remedy="rewrite the data files with the engine that changed the type",
            )


def _decimal(text: str) -> tuple[int, int] | None:
    """The precision and scale of a decimal type, or None for another type."""
    found = _DECIMAL.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]))
