"""Options as people write them in forms, policies, on the command line and in Python."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

from delta_maintenance.errors import InvalidRequestError, closest
from delta_maintenance.operations.core.flags import FlagField, flag_fields
from delta_maintenance.operations.core.record import Record
from delta_maintenance.operations.core.registry import BUILT_IN, AnyOperation
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
_FLAG_NAME = re.compile(r"--([a-z][a-z0-9-]*)")


def replace_flags(message: str) -> str:
    """Replaces flags of the command line in a message by names of options, for all other surfaces.

    `run fsck --repair` becomes `run fsck with the option repair`.
    """
    return _FLAGS.sub(_option_names, message)


def _option_names(match: re.Match[str]) -> str:
    names = [name.replace("-", "_") for name in _FLAG_NAME.findall(match["flags"])]
    kind = "option" if len(names) == 1 else "options"
    after = match["flags"][len(match["flags"].rstrip(" ,")) :]
    word = match["word"] or ""
    verb = word.rstrip()
    before = f"{word}with " if "-" in verb or verb in BUILT_IN else word
    return f"{before}the {kind} {', '.join(names)}{after}"
