"""Command-line flags from the fields of Options, and Options from the parsed flags."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, get_args, get_origin

from delta_maintenance.cli.arguments import at_least, key_value
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.durations import parse_duration
from delta_maintenance.operations.core.flags import FlagField, flag_fields
from delta_maintenance.operations.core.record import Record


def add_flags(parser: argparse.ArgumentParser, options: type[Record]) -> None:
    """Adds a flag for each field that has one; omitted values are None."""
    for field in flag_fields(options):
        settings = {"help": _help(field), **_settings(field)}
        if field.flag.positional:
            parser.add_argument(field.name, **settings)
        else:
            settings |= {"dest": field.name, "required": field.is_required}
            parser.add_argument(_name(field), **settings)


def read_flags(arguments: argparse.Namespace, options: type[Record]) -> Any:
    """Builds the Options from parsed flags. Raises `InvalidRequestError` for invalid values."""
    given = {}
    for field in flag_fields(options):
        value = getattr(arguments, field.name)
        if value is not None:
            given[field.name] = _value(field, value)
    return options(**given).validated()


def _name(field: FlagField) -> str:
    if field.flag.name is not None:
        return field.flag.name
    off = "no-" if field.kind is bool and field.default is True else ""
    return f"--{off}{field.name.replace('_', '-')}"


def _help(field: FlagField) -> str:
    # argparse would interpret `%` as a format.
    text = field.flag.help.replace("%", "%%")
    return text.replace("{default}", str(field.default))


def _settings(field: FlagField) -> dict[str, Any]:
    """Returns the arguments of `add_argument` that follow from the type of a field."""
    kind, item = field.kind, _item(field.kind)
    if kind is bool:
        if field.may_be_none:
            return {"action": argparse.BooleanOptionalAction}
        return {"action": "store_const", "const": not field.default}
    if item is not None:
        repeated = {"action": "append", "type": _parser(item, _least(item))}
        return {**repeated, "metavar": field.flag.metavar or _metavar(item)}
    if _is_mapping(kind):
        return {"action": "append", "type": key_value, "metavar": field.flag.metavar or "K=V"}
    if field.choices is not None:
        return {"choices": field.choices}
    # The metavar of a positional argument is the name of its field.
    metavar = field.name.upper() if field.flag.positional else _metavar(kind)
    return {"type": _parser(kind, field.least), "metavar": field.flag.metavar or metavar}


def _parser(kind: Any, least: int | None) -> Any:
    bare = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
    if bare is int:
        return int if least is None else partial(at_least, least)
    return str


def _metavar(kind: Any) -> str:
    bare = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
    return {int: "N", timedelta: "I"}.get(bare, "TEXT")


def _least(kind: Any) -> int | None:
    metadata = getattr(kind, "__metadata__", ())
    return next((each.least for each in metadata if hasattr(each, "least")), None)


def _item(kind: Any) -> Any:
    """Returns the type of the items of a field; None for a single value."""
    return get_args(kind)[0] if get_origin(kind) is tuple else None


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _value(field: FlagField, value: Any) -> Any:
    if field.kind is timedelta:
        return parse_duration(value)
    if _item(field.kind) is not None:
        return tuple(value)
    if _is_mapping(field.kind):
        mapping = dict(value)
        if len(mapping) < len(value):
            raise InvalidRequestError(
                f"a name is set twice by {_name(field)}", remedy="give it one value"
            )
        return mapping
    return value
