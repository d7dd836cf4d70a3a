"""Options as people write them in forms, policies, on the command line and in Python."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any

from delta_maintenance.errors import InvalidRequestError, closest
from delta_maintenance.operations.core.flags import FlagField, flag_fields
from delta_maintenance.operations.core.record import Record
from delta_maintenance.operations.core.registry import BUILT_IN, AnyOperation, operations
from delta_maintenance.quantities import parse_duration, parse_instant, parse_size


def read_options(record: AnyOperation, given: Mapping[str, Any]) -> Record:
    """Reads the Options of an operation, with durations, sizes and times as people write
    them (`30 days`, `64 MiB`).

    `InvalidRequestError` names an unknown option and the one that was meant, options that are
    missing, and a value that is not allowed.
    """
    require_known(record, given)
    missing = [name for name in record.must_set if name not in given]
    if missing:
        raise InvalidRequestError(
            f"{record.name} lacks the option {' and the option '.join(missing)}",
            remedy=f"give options such as {json.dumps(record.example)}",
        )
    return _read(record, given)


def require_use_of_quiet(options: object) -> None:
    """Raises `InvalidRequestError` for Options with a quiet window that nothing would wait for."""
    spark = getattr(options, "other_writers", None) == "spark"
    if getattr(options, "quiet", None) is not None and not spark:
        raise InvalidRequestError(
            "--quiet has no effect without --other-writers spark",
            remedy="give both, or leave out --quiet",
        )


def without_empty(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that have a value; the others are those of the policy."""
    return {name: value for name, value in given.items() if value not in (None, "")}


def check_options(record: AnyOperation, given: Mapping[str, Any]) -> None:
    """Raises the errors of `read_options` for what is given; the rest may come from a policy."""
    require_known(record, given)
    _read(record, {**record.example, **given})


def require_known(record: AnyOperation, names: Mapping[str, Any]) -> None:
    """Raises `InvalidRequestError` for a name that is no option of the operation."""
    option_names = [field.name for field in fields(record.options)]
    for name in names:
        if name not in option_names:
            meant = closest(name, option_names)
            raise InvalidRequestError(
                f"{record.name} has no option {name!r}",
                remedy=f"give {meant!r}, if that was meant"
                if meant is not None
                else f"give some of {', '.join(option_names)}",
            )


def read_value(field: FlagField, value: Any, *, name: str) -> Any:
    """Reads the value of an option as people write it: durations, sizes and times as texts, several
    values as a list.

    `name` is the option as the caller spells it, for the `InvalidRequestError`.
    """
    if field.kind is timedelta and isinstance(value, int | float):
        value = str(value)  # which is refused, since it has no unit
    parse = parse_size if field.is_size else _PARSERS.get(field.kind)
    if parse is None or not isinstance(value, str):
        return tuple(value) if isinstance(value, list) else value
    try:
        return parse(value)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{name}: {error.problem}", remedy=error.remedy) from None


_PARSERS: Mapping[Any, Callable[[str], Any]] = {timedelta: parse_duration, datetime: parse_instant}


def _read(record: AnyOperation, given: Mapping[str, Any]) -> Record:
    values = {**given}
    for field in flag_fields(record.options):
        if field.name in values:
            values[field.name] = read_value(field, values[field.name], name=field.name)
    read: Record = record.options.from_json(values)
    return read


# Not within a word, such as the path of a table.
_FLAGS = re.compile(
    r"(?P<word>\b[a-z-]+ )?(?<![^\s(`])"
    r"(?P<flags>(?:--[a-z][a-z0-9-]*(?![\w./])[ ,]*)+)"
)
_FLAG = re.compile(r"--[a-z][a-z0-9-]*")
_VERB = re.compile(r"[a-z]+(?:-[a-z]+)*")


def replace_flags(message: str, operation: str | None = None) -> str:
    """Replaces flags of the command line in a message by names of options, for all other surfaces.

    `run fsck --repair` becomes `run fsck with the option repair`. A flag is that of the last
    operation before it that has such a flag, or else that of `operation`, which the message is
    about, or else that of all operations if they agree.
    """
    return _FLAGS.sub(partial(_option_names, operation=operation), message)


def _option_names(match: re.Match[str], operation: str | None) -> str:
    verbs = [operation, *_VERB.findall(match.string[: match.start("flags")])]
    names = [_option_name(flag, verbs) for flag in _FLAG.findall(match["flags"])]
    kind = "option" if len(names) == 1 else "options"
    after = match["flags"][len(match["flags"].rstrip(" ,")) :]
    word = match["word"] or ""
    verb = word.rstrip()
    before = f"{word}with " if "-" in verb or verb in BUILT_IN else word
    return f"{before}the {kind} {', '.join(names)}{after}"


def _option_name(flag: str, verbs: Sequence[str | None]) -> str:
    names = _names_by_flag().get(flag, {})
    verb = next((verb for verb in reversed(verbs) if verb in names), None)
    if verb is not None:
        return names[verb]
    # `--version` of verbs that take one is no option of an operation.
    shared = set(names.values()) if flag not in _COMMON else ()
    return next(iter(shared)) if len(shared) == 1 else flag[2:].replace("-", "_")


_COMMON = ("--version",)
"""Flags that also belong to verbs whose Options have no such field."""


@cache
def _names_by_flag() -> Mapping[str, Mapping[str, str]]:
    """Returns the names of options by their flags and operations."""
    names: dict[str, dict[str, str]] = {}
    for record in operations():
        for field in flag_fields(record.options):
            names.setdefault(field.spelling, {})[record.name] = field.name
    return names
