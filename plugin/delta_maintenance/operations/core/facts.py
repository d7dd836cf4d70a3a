"""Facts of a Plan or a Result for people: names and values, the same in every interface.

Values are strings, numbers, flags, instants, sequences and mappings of those, or a `Grid`. Empty
values are not shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from math import floor, log10
from typing import Any

from delta_maintenance import clock
from delta_maintenance.quantities import duration_text

Facts = Mapping[str, object]
"""Facts by name, in order."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of a table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def facts_of(document: Any) -> dict[str, object]:
    """Returns the fields of a Plan or a Result that differ from their defaults.

    Records in it, such as the Options, and the time of the plan are left out.
    """
    values = ((field, getattr(document, field.name)) for field in fields(document))
    return {
        field.name.replace("_", " "): value
        for field, value in values
        if value != field.default and not is_dataclass(value) and field.name != "planned_at"
    }


def shown(facts: Facts) -> Iterator[tuple[str, object]]:
    """Yields the facts that are not empty."""
    for name, value in facts.items():
        if value not in (None, "", (), [], {}) and not (isinstance(value, Grid) and not value.rows):
            yield name, value


def fact_lines(value: object) -> list[str]:
    """Formats a fact as lines of text."""
    match value:
        case Grid(rows=rows):
            return [", ".join(filter(None, map(fact_text, row))) for row in rows]
        case tuple() | list():
            return [line for item in value for line in fact_lines(item)]
        case Mapping():
            return [f"{key}={fact_text(item)}" for key, item in value.items()]
        case _:
            return [fact_text(value)]


def brief_facts(facts: Facts, *, most: int = 10) -> dict[str, tuple[str, ...]]:
    """Returns the lines of each fact that is not empty: the first ones, and how many follow."""
    lines = {name: tuple(fact_lines(value)) for name, value in shown(facts)}
    return {
        name: own if len(own) <= most else (*own[:most], f"and {len(own) - most:,} more")
        for name, own in lines.items()
    }


def fact_text(value: object) -> str:
    """Formats a single value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return duration_text(value)
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)


def count_text(count: int, thing: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def size_text(size: int) -> str:
    """Formats a number of bytes in units of 1024, such as `3.4 MiB`."""
    if abs(size) < 1024:
        return f"{size} B"
    amount, unit = size / 1024, 0
    # A value that would be rounded to 1024 of a unit is shown in the next one.
    while abs(amount) >= 1023.95 and unit < len(_SIZE_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    number = f"{amount:,.0f}" if abs(amount) >= 99.95 else f"{amount:.1f}".removesuffix(".0")
    return f"{number} {_SIZE_UNITS[unit]}"


def money_text(amount: float, currency: str) -> str:
    """Formats an amount with at least two significant digits, such as `0.0031 EUR` or `125 EUR`;
    a smaller one than can be read as `<0.0001 EUR`.
    """
    if 0 < amount < 0.0001:
        return f"<0.0001 {currency}"
    digits = max(0, 1 - floor(log10(abs(amount)))) if amount else 0
    return f"{amount:,.{digits}f} {currency}"


_SIZE_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def instant_text(instant: datetime | None) -> str | None:
    """Formats an instant to the second, ISO 8601; None for None."""
    return None if instant is None else clock.text(instant)
