"""Values that travel: Options, Plans, Results and reports, to JSON and back.

A record is a frozen dataclass. Its JSON is what a dry run prints, what an orchestrator passes from
task to task, what a Spark job takes as its argument and what ends in a log line.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import ConfigDict, TypeAdapter, ValidationError

from delta_maintenance.errors import InvalidRequestError


class Record:
    """Base of the dataclasses that round-trip through JSON.

    Durations are ISO 8601 (`P7D`), instants ISO 8601 with a zone.
    """

    __slots__ = ()
    # A misspelt option must not pass for one that was left out.
    __pydantic_config__ = ConfigDict(extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object."""
        value: dict[str, Any] = _adapter(type(self)).dump_python(self, mode="json")
        return value

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The record of a JSON object. `InvalidRequestError` names the field that is wrong."""
        try:
            record: Self = _adapter(cls).validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or cls.__name__
            raise InvalidRequestError(
                f"{field}: {first['msg']}", remedy=f"correct this field of {cls.__name__}"
            ) from None
        return record


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    # Building one takes longer than using it a thousand times.
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
