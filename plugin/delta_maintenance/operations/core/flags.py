"""Names, help and bounds of an operation's Options on the command line and in forms.

A field that users can set is an `option`. A required field, and one that several Options have, has
the `Flag` in its `Annotated` type. The type of the flag's value, its choices and its bounds follow
from the type and from the default.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, MISSING, Field, dataclass, fields
from dataclasses import field as dataclass_field
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from delta_maintenance.operations.core.record import Bounds, Instant, Record, Remark
from delta_maintenance.table.commit.other_writers import OtherWriters

Value = TypeVar("Value")

Group = Literal[
    "common", "work", "safety", "commits and other writers", "Spark", "storage", "output"
]
"""The groups of options. People use the common ones; help and forms show the others apart."""


@dataclass(frozen=True, slots=True)
class Flag(Remark):
    """The flag of one field. Its help is the description of the field in all interfaces, with
    values and code between backticks.
    """

    help: str
    _: KW_ONLY
    name: str | None = None
    """By default `--` and the name of the field."""
    metavar: str | None = None
    positional: bool = False
    """Whether the value may also be given by its position."""
    group: Group = "work"
    example: str | None = None
    """An example value for help and forms, and of a required field for error messages."""
    in_policy: bool = False
    """Whether the rule of the operation in a policy has a key of this name."""

    @property
    def description(self) -> str:
        """The help as a sentence."""
        return f"{self.help[:1].upper()}{self.help[1:]}."

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(core_schema), "description": self.description}


def option(
    default: Value,
    help: str,
    *,
    name: str | None = None,
    metavar: str | None = None,
    group: Group = "work",
    example: str | None = None,
    in_policy: bool = False,
) -> Value:
    """Declares a field of Options with its default, which replaces `{default}` in the help, and its
    flag.
    """
    help = help.replace("{default}", str(default))
    flag = Flag(help, name=name, metavar=metavar, group=group, example=example, in_policy=in_policy)
    declared: Any = dataclass_field(default=default, metadata={"flag": flag})
    return cast(Value, declared)


policy_option = partial(option, in_policy=True)
"""Declares an option that the rule of the operation in a policy also has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagField:
    """A field of an Options class that has a flag."""

    name: str
    """The name of the field."""
    flag: Flag
    kind: Any
    """The type of the value, without metadata and without None."""
    default: Any
    """`dataclasses.MISSING` if the field is required."""
    may_be_none: bool
    bounds: Bounds | None = None
    """The bounds of a number."""

    @property
    def spelling(self) -> str:
        """The flag on the command line, such as `--older-than`."""
        return self.flag.name or f"--{self.name.replace('_', '-')}"

    @property
    def least(self) -> int | None:
        """The minimum of a number."""
        return None if self.bounds is None else self.bounds.least

    @property
    def is_required(self) -> bool:
        """Whether the field is required."""
        return self.default is MISSING

    @property
    def choices(self) -> tuple[str, ...] | None:
        """All allowed values, if there are few."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else None

    @property
    def is_size(self) -> bool:
        """Whether the value is a number of bytes, which people may write as `64 MiB`."""
        return self.kind is int and self.name.endswith("_bytes")


Engine = Annotated[
    Literal["auto", "local", "spark"],
    Flag(
        "`local` works in this process, `spark` in a PySpark job; `auto`, the default, decides by "
        "the size of the work, and the plan states the decision and its reason",
        group="Spark",
    ),
]
"""The engine that does the work."""

OtherWritersField = Annotated[
    OtherWriters | None,
    Flag(
        "the other writers of a table on S3, required before anything is committed there: "
        "writers that put conditionally (such as delta-rs and Trino), Delta Spark, or none",
        group="commits and other writers",
    ),
]
"""A field of the Options of operations that commit."""

QuietField = Annotated[
    timedelta | None,
    Flag(
        "beside Delta Spark on S3: commit if no other writer has committed for this long, such as "
        "'10 minutes', and keep a copy of each commit, which shows later whether Delta Spark "
        "overwrote it",
        group="commits and other writers",
    ),
]
"""A field of the Options of operations that commit."""

OperationId = Annotated[
    str | None,
    Flag(
        "the name of this task in the history; a task that is run again under the same name "
        "finds its earlier commits",
        metavar="ID",
        group="commits and other writers",
    ),
]
"""The ID of a task in the history, by which a retry of the task finds its earlier commits."""

OperationSince = Annotated[
    Instant | None,
    Flag(
        "the first start of this task (ISO 8601, with a time zone); older commits are not "
        "searched for its ID",
        metavar="TIME",
        group="commits and other writers",
    ),
]
"""The first start of a task: older commits are not searched for its ID."""


def flag_fields(options: type[Record]) -> Iterator[FlagField]:
    """The fields with a flag: those of the class itself, then those of its bases."""
    hints = get_type_hints(options, include_extras=True)
    inherited = {name for base in options.__mro__[1:] for name in _fields_of(base)}
    for field in sorted(fields(options), key=lambda field: field.name in inherited):
        flag_field = _flag_field(field, hints[field.name])
        if flag_field is not None:
            yield flag_field


def required_fields(options: type[Record]) -> tuple[str, ...]:
    """The names of the fields that have no default."""
    return tuple(
        field.name
        for field in fields(options)
        if field.default is MISSING and field.default_factory is MISSING
    )


def has_field(options: type[Record] | Record, name: str) -> bool:
    """Whether Options have a field with this name."""
    return any(field.name == name for field in fields(options))


def _fields_of(kind: type[Any]) -> set[str]:
    return set(getattr(kind, "__dataclass_fields__", ()))


def _flag_field(field: Field[Any], hint: Any) -> FlagField | None:
    metadata, kind, may_be_none = _unwrap(hint)
    flag = next((item for item in metadata if isinstance(item, Flag)), field.metadata.get("flag"))
    if flag is None:
        return None
    default = field.default
    if default is MISSING and field.default_factory is not MISSING:
        default = field.default_factory()
    return FlagField(
        name=field.name,
        flag=flag,
        kind=kind,
        default=default,
        may_be_none=may_be_none,
        bounds=next((item for item in metadata if isinstance(item, Bounds)), None),
    )


def _unwrap(hint: Any) -> tuple[list[Any], Any, bool]:
    """Splits a type into its metadata and the type without metadata and None; also whether it
    allows None.
    """
    if get_origin(hint) is Annotated:
        kind, *metadata = get_args(hint)
        inner, bare, may_be_none = _unwrap(kind)
        return [*metadata, *inner], bare, may_be_none
    arguments = get_args(hint)
    if type(None) in arguments:
        (kind,) = (part for part in arguments if part is not type(None))
        metadata, bare, _ = _unwrap(kind)
        return metadata, bare, True
    return [], hint, False
