"""Numbers, sizes and times formatted for people."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from delta_maintenance.operations.core.facts import size_text
from delta_maintenance.operations.core.given_options import replace_flags
from delta_maintenance.operations.holds.models import HeldBack


def count(value: int | None) -> str:
    """`1,234,567`; a dash for unknown values."""
    return "–" if value is None else f"{value:,}"


def size(value: int | None) -> str:
    """`1.5 GiB`; a dash for unknown values."""
    return "–" if value is None else size_text(value)


def percent(share: float | None) -> str:
    """`12%`, and `<1%` for small values above zero."""
    if share is None:
        return "–"
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def span(length: timedelta) -> str:
    """`3 days`, in the largest unit only."""
    seconds = int(abs(length).total_seconds())
    for unit, unit_seconds in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= unit_seconds:
            number = seconds // unit_seconds
            return f"{number:,} {unit}{'s' if number != 1 else ''}"
    return f"{seconds} s"


def seconds(value: float) -> str:
    """`1.5 s`, `<0.1 s`, and from a minute on `3 minutes`."""
    if value < 0.05:
        return "<0.1 s"
    return f"{value:.1f} s" if value < 60 else span(timedelta(seconds=value))


def brief(length: timedelta) -> str:
    """`3 d`."""
    seconds = int(abs(length).total_seconds())
    for unit, unit_seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= unit_seconds:
            return f"{seconds // unit_seconds:,} {unit}"
    return f"{seconds} s"


def ago(instant: datetime, now: datetime) -> str:
    """`3 days ago`, `in 2 hours` or `just now`."""
    length = now - instant
    if abs(length) < timedelta(minutes=1):
        return "just now"
    return f"{span(length)} ago" if length > timedelta() else f"in {span(length)}"


def day(value: datetime) -> str:
    """`2027-01-01`, in UTC."""
    return value.astimezone(UTC).strftime("%Y-%m-%d")


def holder(name: str) -> str:
    """The holder without the words that only plans need."""
    return name.removeprefix("kept version ")


def short_holder(name: str) -> str:
    """The name of a holder without its kind; of a clone the last part of its address."""
    kind, _, full_name = holder(name).partition(" ")
    return full_name.rstrip("/").rpartition("/")[2] or full_name if full_name else kind


def purpose(held: HeldBack) -> str:
    """The held versions, and why."""
    first_version, last_version = held.first_version, held.last_version
    later = "" if first_version == last_version else " and all later ones"
    version = "" if first_version is None else f"version {first_version:,}{later}"
    return ", ".join(text for text in (version, held.why) if text)


def prose(text: str) -> str:
    """A text of another surface for this one: without flags, and with times as on the page."""
    return _INSTANT.sub(r"\1 \2 UTC", replace_flags(text))


_INSTANT = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d(?:\.\d+)?Z")


def done_by(program: str) -> str:
    """The program that ran an operation for people."""
    return {"cli": "command line", "other": "another engine"}.get(program, program.capitalize())


def option_title(name: str) -> str:
    """The name of an option for people: `Max bytes` for `max_bytes` and for `max-bytes`."""
    title = re.sub("[-_]", " ", name)
    return f"{title[:1].upper()}{title[1:]}"


def fact_title(name: str) -> str:
    """The name of a fact for people: `Expired tombstone` for `expired-tombstone`."""
    return f"In {name[3:]}" if name.startswith("in ") else option_title(replace_flags(name))


def status_name(status: str) -> str:
    """A status of a table or of a run for people."""
    return _STATUS_NAMES.get(status, status.replace("-", " "))


_STATUS_NAMES = {
    "needs-approval": "waits for you",
    "will-ask": "needs approval",
    "nothing-due": "nothing to do",
}
