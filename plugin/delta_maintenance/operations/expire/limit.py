"""The limit of an `expire`: the column, and the value from which on rows stay.

A row is removed only if its instant is before the limit in every reading of its value. Dates and
local times have no time zone, so without one the limit is moved back by the largest distance that
any zone ever had from UTC.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.expire import ExpireOptions
from delta_maintenance.operations.layout.reading import Column, columns_of
from delta_maintenance.protocol.statistics.bounds import has_ages
from delta_maintenance.quantities import duration_text
from delta_maintenance.table.read.snapshot import Snapshot

FARTHEST = timedelta(hours=16)
"""No time zone was ever farther from UTC: Manila, 15:56 behind until 1844."""

_INTEGERS = ("long", "integer")
_MICROSECOND = timedelta(microseconds=1)
_UNITS = {"s": timedelta(seconds=1), "ms": timedelta(milliseconds=1), "us": _MICROSECOND}
_EPOCH = datetime(1970, 1, 1)
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN_COLUMNS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Rows whose value is less have expired."""

    column: Column
    value: int
    """In days or microseconds since 1970, or in the unit of an integer column."""
    local: int
    """For partition values of instants that were written without a zone: the limit in microseconds
    of their local time."""
    predicate: str
    """The condition for expired rows, in Spark SQL."""


def delete_before(options: ExpireOptions, now: datetime) -> datetime:
    """Returns the instant before which rows have expired, in UTC.

    `InvalidRequestError` if the duration is not positive, or exceeds the calendar.
    """
    since = now if options.as_of is None else min(now, options.as_of)
    if options.older_than <= timedelta():
        raise InvalidRequestError(
            f"an age of {duration_text(options.older_than)} would expire rows of the future",
            remedy="give a positive duration, such as '400 days'",
        )
    try:
        return since.astimezone(UTC) - options.older_than
    except OverflowError:
        raise InvalidRequestError(
            f"an age of {duration_text(options.older_than)} exceeds the calendar",
            remedy="give a shorter duration",
        ) from None


def limit_of(snapshot: Snapshot, options: ExpireOptions, instant: datetime) -> Limit:
    """Returns the limit for an instant in UTC.

    `InvalidRequestError` if the table has no such column, if its type has no instants, or if the
    time zone is unknown.
    """
    column = _column(snapshot, options)
    wall = _wall_time(instant, options.time_zone)
    local = (wall - _EPOCH) // _MICROSECOND
    exact = (instant.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    kind = str(column.kind)
    if kind == "date":
        value, literal = (wall.date() - date(1970, 1, 1)).days, f"DATE '{wall.date()}'"
    elif kind == "timestamp_ntz":
        value, literal = local, f"TIMESTAMP_NTZ '{wall}'"
    elif kind == "timestamp":
        value, literal = exact, f"TIMESTAMP '{instant.replace(tzinfo=None)}Z'"
    else:
        value = exact * _MICROSECOND // _UNITS[options.unit or "us"]
        literal = str(value)
    predicate = f"({_quote_name(column.names)} < {literal})"
    return Limit(column=column, value=value, local=local, predicate=predicate)


def _column(snapshot: Snapshot, options: ExpireOptions) -> Column:
    columns = columns_of(snapshot).values()
    matching_columns = [
        column for column in columns if column.name.lower() == options.column.lower()
    ]
    possible = [column.name for column in columns if _problem(column, options) is None]
    problem = f"the table has no column {options.column} of single values"
    if len(matching_columns) > 1:
        problem = f"several columns of the table are named {options.column}"
    elif matching_columns:
        wrong = _problem(matching_columns[0], options)
        if wrong is None:
            return matching_columns[0]
        problem = wrong
    names = ", ".join(possible[:_SHOWN_COLUMNS]) + (", …" if possible[_SHOWN_COLUMNS:] else "")
    is_integer = len(matching_columns) == 1 and str(matching_columns[0].kind) in _INTEGERS
    unit = "give the unit of its values with --unit" if is_integer else ""
    if possible:
        remedy = f"{unit}{', or ' if unit else ''}name a column of dates or timestamps: {names}"
    elif unit:
        remedy = unit
    else:
        remedy = (
            "name a column of integers, with its unit, or delete the old rows with the engine "
            "that writes the table: it has no column of dates or timestamps"
        )
    raise InvalidRequestError(
        problem, table=snapshot.table, version=snapshot.version, remedy=remedy
    )


def _problem(column: Column, options: ExpireOptions) -> str | None:
    """Returns why the values of a column cannot be compared with a limit."""
    kind = str(column.kind)
    if kind in _INTEGERS:
        return (
            None
            if options.unit is not None
            else f"the column {column.name} is of type {kind}, and no unit was given"
        )
    if has_ages(column.kind):
        return (
            None
            if options.unit is None
            else f"a unit was given, and the column {column.name} is of type {kind}"
        )
    return f"the column {column.name} is of type {kind}, which has no instants"


def _wall_time(instant: datetime, name: str | None) -> datetime:
    """Returns a local time that is not later than any local time from an instant on."""
    if name is None:
        return instant.replace(tzinfo=None) - FARTHEST
    try:
        zone = ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise InvalidRequestError(
            f"{name!r} is not a time zone", remedy="name one such as Europe/Berlin or UTC"
        ) from None
    local = instant.astimezone(zone)
    wall = local.replace(tzinfo=None)
    first_offset, second = (wall.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    assert first_offset is not None and second is not None
    # When clocks are set back, the same local times come once more.
    return wall - (first_offset - second) if first_offset > second and not local.fold else wall


def _quote_name(parts: tuple[str, ...]) -> str:
    return ".".join(
        part if _PLAIN_NAME.fullmatch(part) else f"`{part.replace('`', '``')}`" for part in parts
    )
