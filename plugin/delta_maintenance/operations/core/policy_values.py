"""Types of policy values that YAML lacks: durations, sizes, references.

This module and the modules `rules` and `policy` must not load pyarrow, because orchestrators import
them to parse DAGs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.quantities import parse_duration, parse_size
from delta_maintenance.redaction import holds_credentials


class PolicyModel(BaseModel):
    """Base class of all policy models: frozen, with unknown keys forbidden."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        # A rejected value may be a misplaced secret.
        hide_input_in_errors=True,
    )

    def to_json(self) -> dict[str, Any]:
        """Returns the value as a JSON object."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parses a JSON object. `InvalidRequestError` names the invalid field."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in problem["loc"]) or cls.__name__
            raise InvalidRequestError(
                f"{field}: {problem['msg']}", remedy=f"correct this field of {cls.__name__}"
            ) from None


def _duration(value: object) -> object:
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str):
        raise ValueError("a duration needs a unit; write it like '7 days'")
    try:
        return parse_duration(value)
    except InvalidRequestError as error:
        raise ValueError(f"{error.problem}; {error.remedy}") from None


def _not_negative(value: timedelta) -> timedelta:
    if value < timedelta():
        raise ValueError("a duration cannot be negative")
    return value


def _size(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse_size(value)
    except InvalidRequestError as error:
        raise ValueError(f"{error.problem}; {error.remedy}") from None


Duration = Annotated[
    timedelta,
    BeforeValidator(_duration),
    AfterValidator(_not_negative),
    WithJsonSchema(
        {"type": "string", "examples": ["7 days", "12 hours", "P7D"]}, mode="validation"
    ),
]
"""A duration: `7d`, `7 days 12 hours`, from weeks to microseconds, or ISO 8601 (`P7DT12H`)."""

Bytes = Annotated[
    int,
    BeforeValidator(_size),
    Field(ge=0),
    WithJsonSchema(
        {"type": ["string", "integer"], "minimum": 0, "examples": ["64 MiB"]}, mode="validation"
    ),
]
"""A number of bytes, or a text such as `64 MiB`."""

Share = Annotated[float, Field(ge=0, le=1)]
"""A fraction from 0 to 1."""

_REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET = re.compile(
    r"secret|passw|token|credential|access[._-]?key|account[._-]?key|api[._-]?key|private"
    r"|connection[._-]?string|[._-]sas\b|sas[._-]",
    re.IGNORECASE,
)
_PATHS = ("GOOGLE_APPLICATION_CREDENTIALS", "token_address", "token_uri")
"""Settings that only name the location of secrets."""


def looks_secret(name: str) -> bool:
    """Whether a setting with this name is a secret, which must not be in a shared file."""
    return name.removeprefix("catalog_") not in _PATHS and _SECRET.search(name) is not None


def is_reference(value: str) -> bool:
    """Whether the value consists of one reference to an environment variable."""
    return _REFERENCE.fullmatch(value) is not None


def resolve(text: str, environment: Mapping[str, str]) -> str:
    """Replaces each `${env:NAME}` in the text.

    `InvalidRequestError` for a variable that is not set; messages never contain values.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise InvalidRequestError(
                f"the environment variable {match[1]} is not set",
                remedy="set it in the environment of this process, or remove the reference "
                "from the policy",
            )
        return environment[match[1]]

    return _REFERENCE.sub(value, text)


def _no_secrets(settings: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in settings.items():
        if looks_secret(name) and not is_reference(value):
            raise ValueError(
                f"{name} looks like a secret, which a policy must not contain; name a "
                "connection, or "
                "refer to the environment with ${env:NAME}"
            )
    return settings


def _text_of_boolean(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


Setting = Annotated[str, BeforeValidator(_text_of_boolean, json_schema_input_type=str | bool)]
"""A text, or a boolean of YAML."""

Settings = Annotated[Mapping[str, Setting], AfterValidator(_no_secrets)]
"""Names and values; secret values must be references to the environment."""


def _address(text: str, info: ValidationInfo) -> str:
    # Without an environment the value comes from JSON, in which references are already resolved.
    if info.context is not None:
        try:
            text = resolve(text, info.context["environment"])
        except InvalidRequestError as error:
            raise ValueError(f"{error.problem}; {error.remedy}") from None
    if not text:
        raise ValueError("an address cannot be empty; give a path or a URI")
    if holds_credentials(text):
        raise ValueError(
            "the address contains credentials, which a policy must not contain; name a "
            "connection, or "
            "refer to the environment in storage options"
        )
    return text.rstrip("/") or text


Address = Annotated[str, AfterValidator(_address)]
"""A path or URI without a trailing slash; `${env:NAME}` is resolved when the file is read."""


class StorageRule(PolicyModel):
    """How to reach a store: by references, never with secrets."""

    connection: str | None = None
    """The connection of an orchestrator."""
    options: Settings = Field(default_factory=dict)
    """Storage options (docs/integrations/stores.md). Secrets as `${env:NAME}`."""
    catalog_connection: str | None = None
    """The connection of an orchestrator to the catalog of the table. Set for tables that a catalog
    names."""
