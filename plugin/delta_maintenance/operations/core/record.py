"""Conversion of Options, Plans, Results and reports to JSON and back.

A record is a frozen dataclass. A dry run prints its JSON, an orchestrator passes it from task to
task, a Spark job takes it as its argument, and log lines contain it.

Pydantic reads the JSON, and writes dates and durations. Loading it takes longer than many
operations, so the fields of Options, Plans and Results declare their constraints without it
(`Bounds`, `Instant`), and Results of plain values are written without it. Measured in pairs on
CPython 3.11, `compact-log --dry-run` of a small table takes 0.43 s of CPU this way, and 0.55 s
where pydantic checks the Options.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from delta_maintenance.errors import InvalidRequestError

if TYPE_CHECKING:
    from pydantic import TypeAdapter


class Remark:
    """Base of field metadata that does not constrain the value."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """`Annotated[int, Bounds(1)]`: the minimum of a number, and the maximum if it has one."""

    least: int
    most: int | None = None

    def allows(self, value: int) -> bool:
        """Returns whether a number is within the bounds."""
        return self.least <= value and (self.most is None or value <= self.most)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        most = {} if self.most is None else {"le": self.most}
        return {**handler(source), "ge": self.least, **most}


Count = Annotated[int, Bounds(0)]
Positive = Annotated[int, Bounds(1)]
Percent = Annotated[int, Bounds(0, 100)]


class _WithZone:
    def allows(self, value: datetime) -> bool:
        return value.utcoffset() is not None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), "tz_constraint": "aware"}


Instant = Annotated[datetime, _WithZone()]
"""A date and time with a time zone."""


@dataclass(frozen=True, slots=True)
class Record:
    """Base class of dataclasses that can be converted to JSON and back.

    Durations are ISO 8601 (`P7D`), instants ISO 8601 with a zone.
    """

    # A misspelt option must not be treated as an omitted option.
    __pydantic_config__ = {"extra": "forbid"}

    def to_json(self) -> dict[str, Any]:
        """Returns the record as a JSON object."""
        document: dict[str, Any]
        try:
            document = _plain(self)
        except _NotPlainError:
            document = _adapter(type(self)).dump_python(self, mode="json")
        return document

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parses a JSON object. `InvalidRequestError` names the invalid field."""
        from pydantic import ValidationError

        try:
            record: Self = _adapter(cls).validate_python(value)
        except ValidationError as error:
            problems = error.errors(include_url=False)
            # A required field that is misspelt is missing, too.
            first_problem = next(
                (detail for detail in problems if detail["type"] == _UNKNOWN), problems[0]
            )
            field = ".".join(str(part) for part in first_problem["loc"]) or cls.__name__
            problem, remedy = first_problem["msg"], f"correct this field of {cls.__name__}"
            if first_problem["type"] == _UNKNOWN and len(first_problem["loc"]) == 1:
                problem = f"{cls.__name__} has no such field"
                remedy = f"the fields are {', '.join(detail.name for detail in fields(cls))}"
            raise InvalidRequestError(f"{field}: {problem}", remedy=remedy) from None
        return record

    def validated(self) -> Self:
        """Returns the record that `from_json` would create from these values; raises the same
        errors.

        For Options created in Python, whose values have not been checked yet.
        """
        if _fits(self, type(self)):
            return self
        return self.from_json(asdict(self))


class _NotPlainError(Exception):
    """A value that only pydantic converts to JSON."""


def _plain(value: Any) -> Any:
    """Returns the JSON of a value that consists of records, lists, objects, texts, numbers and
    flags, as most Results do.
    """
    kind = type(value)
    if kind in _UNCHANGED:
        return value
    if kind in (tuple, list):
        return [_plain(item) for item in value]
    if kind is dict and all(type(key) is str for key in value):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Record):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    raise _NotPlainError


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value satisfies its field without conversion.

    False also if that cannot be decided here: pydantic then converts the value, or rejects it with
    a reason.
    """
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind is Annotated:
        return _fits(value, arguments[0]) and all(
            _allows(constraint, value) for constraint in arguments[1:]
        )
    if kind in (Union, UnionType):
        return any(_fits(value, part) for part in arguments)
    if kind is Literal:
        return type(value) is str and value in arguments
    if kind is tuple and arguments[1:] == (...,):
        return type(value) is tuple and all(_fits(constraint, arguments[0]) for constraint in value)
    if isinstance(kind, type) and issubclass(kind, Record):
        hints = get_type_hints(kind, include_extras=True)
        return type(value) is kind and all(
            _fits(getattr(value, field.name), hints[field.name]) for field in fields(kind)
        )
    return kind in _PLAIN and type(value) is kind


def _allows(metadata: Any, value: Any) -> bool:
    if isinstance(metadata, Bounds | _WithZone):
        return metadata.allows(value)
    # Only pydantic knows the constraints of other types.
    return isinstance(metadata, Remark)


_UNKNOWN = "unexpected_keyword_argument"
_UNCHANGED = (bool, int, str, NoneType)
_PLAIN = (bool, int, str, datetime, timedelta, NoneType)


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    # Building an adapter takes longer than using it a thousand times.
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
