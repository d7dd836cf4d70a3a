"""The types that columns had before, and which changes of them are known ("Type Widening")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from delta_maintenance.errors import UnsupportedFeatureError
from delta_maintenance.protocol.schema.types import StructType, walk

_INTEGERS = ("byte", "short", "integer", "long")
_DECIMAL = re.compile(r"decimal\( *(\d+) *, *(-?\d+) *\)")
_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}
"""That a decimal needs before its point to hold every value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeChange:
    """One change, of a column or of something in its lists and maps."""

    column: str
    before: str
    after: str

    @property
    def is_known(self) -> bool:
        """Whether the protocol has this change, so that readers can read older files."""
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
        """Whether Iceberg has it too, whose readers take files of the one type for the other."""
        if self.before == self.after or (self.before, self.after) == ("float", "double"):
            return True
        if self.before in _INTEGERS and self.after in _INTEGERS:
            return _INTEGERS.index(self.before) <= _INTEGERS.index(self.after)
        wide, narrow = _decimal(self.after), _decimal(self.before)
        if wide is None or narrow is None:
            return False
        return wide[1] == narrow[1] and wide[0] >= narrow[0]


def type_changes(schema: StructType) -> Iterator[TypeChange]:
    """All that the schema has kept, at every level."""
    for path, field in walk(schema):
        for change in field.metadata.get("delta.typeChanges") or ():
            yield TypeChange(
                column=".".join(path),
                before=str(change.get("fromType")),
                after=str(change.get("toType")),
            )


def require_known_changes(schema: StructType) -> None:
    """`UnsupportedFeatureError` where data files may hold what nobody can read as it is meant."""
    for change in type_changes(schema):
        if not change.is_known:
            raise UnsupportedFeatureError(
                f"the column {change.column} was changed from {change.before} to {change.after}, "
                "which type widening does not have",
                remedy="write the data files anew with the engine that changed it",
            )


def _decimal(text: str) -> tuple[int, int] | None:
    """Precision and scale."""
    found = _DECIMAL.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]))
