"""Parsing partition values, which are strings in the log, into typed values.

Implements "Partition Value Serialization". One value can have several spellings, and some readers
refuse some of them. Rewrites write the canonical one; all other operations copy the string.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, UnsupportedFeatureError
from delta_maintenance.protocol.schema.types import (
    DecimalType,
    DeltaType,
    PrimitiveType,
    to_arrow_type,
)


class ParsedPartitionValues(NamedTuple):
    """Typed values, and which of them depend on a guess; both as long as the strings."""

    values: pa.Array
    """Of the type that `to_arrow_type` returns; null for nulls and empty strings."""
    uncertain: pa.BooleanArray
    """True for a timestamp without time zone that was read as UTC because no zone was given."""
    invalid: pa.BooleanArray
    """True for a string that does not match the type and was read as null."""


def parse_partition_values(
    strings: pa.Array | pa.ChunkedArray,
    delta_type: DeltaType,
    *,
    zone: tzinfo | None,
    strict: bool = True,
) -> ParsedPartitionValues:
    """Parses the strings of one partition column.

    `zone` is the time zone of the writer, for timestamps without one; the log does not contain it.
    With None they are read as UTC and marked as uncertain. An ambiguous local time (when clocks are
    set back) is read as the earlier one. Dates and timestamps have every form that Delta Spark
    reads, except years of more than four digits, times without a date, short IDs of Java such as
    `PST`, and a zone that a `timestamp_ntz` ignores.

    Raises `CorruptTableError` with the value for a string that does not match the type, if
    `strict`, and `UnsupportedFeatureError` for a type that partition columns cannot have.
    """
    arrow_type = to_arrow_type(delta_type)
    if arrow_type is None:
        raise UnsupportedFeatureError(
            f"partition columns of type {delta_type} are not supported",
            remedy="use an engine that supports the type",
        )
    # Many files share few values, so each distinct value is parsed once.
    encoded = _dictionary_encoded(strings)
    distinct = encoded.dictionary
    parse = _parser(delta_type, zone or UTC)
    texts = distinct.to_pylist()
    parsed = [_parse_text(text, parse) for text in texts]
    if strict and _INVALID in parsed:
        text = texts[parsed.index(_INVALID)]
        raise CorruptTableError(
            f"the partition value {text!r} is not a {delta_type}", remedy=_INVALID_REMEDY
        )
    is_instant = zone is None and delta_type == PrimitiveType(name="timestamp")
    columns = (
        pa.array([None if value is _INVALID else value for value in parsed], arrow_type),
        pa.array([is_instant and _lacks_zone(text) for text in texts], pa.bool_()),
        pa.array([value is _INVALID for value in parsed], pa.bool_()),
    )
    values, uncertain, invalid = (column.take(encoded.indices) for column in columns)
    return ParsedPartitionValues(values, uncertain.fill_null(False), invalid.fill_null(False))


def canonical_texts(texts: pa.Array, delta_type: DeltaType) -> pa.Array:
    """Returns the canonical spelling of each value of a partition column, which every known reader
    accepts.

    Texts and binary and floating-point values have only one, or are accepted in all; they are
    returned unchanged, and so are nulls, empty strings and texts that are no values of the type. A
    timestamp without a time zone gets none.
    """
    pattern = _canonical_pattern(delta_type)
    if pattern is None or not len(texts):
        return texts
    is_canonical = pc.match_substring_regex(texts, pattern)
    odd_texts = pc.unique(texts.filter(pc.invert(pc.fill_null(is_canonical, True))))
    if not len(odd_texts):
        return texts
    spellings = [_canonical(text, delta_type) for text in odd_texts.to_pylist()]
    return pc.coalesce(
        pa.array(spellings, pa.string()).take(pc.index_in(texts, value_set=odd_texts)), texts
    )


def is_valid(text: str, delta_type: DeltaType) -> bool:
    """Returns whether a text can be read as a value of a type; True for types of no partition."""
    if to_arrow_type(delta_type) is None:
        return True
    return _parse_text(text, _parser(delta_type, UTC)) is not _INVALID


def refusing_readers(text: str, delta_type: DeltaType) -> str | None:
    """Returns which readers do not read a value as it is meant, as a clause; None if none is known.

    Played with DuckDB 1.5.5, deltalake 1.6.6 and the plugin of Polars, which use the Rust kernel.
    """
    if not text:
        return None
    name = str(delta_type)
    if isinstance(delta_type, DecimalType):
        scale = _NUMBER.fullmatch(text) and -int(Decimal(text).as_tuple().exponent)
        return None if scale == delta_type.scale else _REFUSED
    if name == "timestamp" and re.fullmatch(rf"{_DAY}T.*[+-]\d\d:\d\d", text) is not None:
        return "DuckDB ignores its offset"
    accepted = _ACCEPTED.get(name)
    return None if accepted is None or accepted.fullmatch(text) is not None else _REFUSED


_REFUSED = "DuckDB, deltalake and Polars cannot open the table"


def _canonical(text: str, delta_type: DeltaType) -> str | None:
    """Returns None for an empty text, and for one that is no value of the type."""
    try:
        value = _parser(delta_type, UTC)(text) if text else None
        if str(delta_type).startswith("timestamp") and value is not None:
            return _canonical_time(_EPOCH + timedelta(microseconds=value), text)
    except (ValueError, ArithmeticError):
        return None
    if isinstance(value, Decimal):
        return f"{value if value else abs(value):f}"
    return None if value is None else str(value).lower()


def _canonical_time(moment: datetime, text: str) -> str:
    moment = moment.replace(tzinfo=None)
    if not _lacks_zone(text):
        return f"{moment.isoformat(timespec='microseconds')}Z"
    return moment.isoformat(" ").rstrip("0") if moment.microsecond else moment.isoformat(" ")


_INTEGER_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BOOLEANS = {"true": True, "false": False}
_CANONICAL = {
    **dict.fromkeys(_INTEGER_BITS, "^(0|-?[1-9][0-9]*)$"),
    "boolean": "^(true|false)$",
    "date": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
    "timestamp_ntz": r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{0,5}[1-9])?$",
}
_CANONICAL["timestamp"] = (
    rf"{_CANONICAL['timestamp_ntz']}|"
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z$"
)

_INTEGER = re.compile(r"[+-]?[0-9]{1,38}")
# Exponents of three digits exceed the range of every type.
_NUMBER = re.compile(r"[+-]?(?=\.?[0-9])[0-9]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?")
_SPECIAL_FLOAT = re.compile(r"nan|[+-]?inf(?:inity)?", re.IGNORECASE)
_DAY = r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIMESTAMP = re.compile(
    r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})"
    r"(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?)?)?)?",
    re.DOTALL,
)
_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?([+-])(?:([0-9]{2})([0-9]{2})|([0-9]{1,2})(?::([0-9]{2})(?::([0-9]{2}))?)?)"
)
_REGION = re.compile(r"[A-Z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*")
_FARTHEST_OFFSET = timedelta(hours=18)
"""Java knows no farther one."""
_SPACE = "".join(map(chr, (*range(33), 127)))
"""What Spark trims."""
_TIME = r"[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?"
_ACCEPTED = {
    **dict.fromkeys(_INTEGER_BITS, _INTEGER),
    "boolean": re.compile("true|false", re.IGNORECASE),
    "date": re.compile(_DAY),
    "timestamp_ntz": re.compile(f"{_DAY} {_TIME}"),
    "timestamp": re.compile(f"{_DAY}(?: {_TIME}Z?|T{_TIME}Z)"),
}
"""The spellings that the Rust kernel reads."""


def _canonical_pattern(delta_type: DeltaType) -> str | None:
    if isinstance(delta_type, DecimalType):
        fraction = rf"\.[0-9]{{{delta_type.scale}}}" if delta_type.scale else ""
        return f"^(0|-?[1-9][0-9]*|-0){fraction}$"
    return _CANONICAL.get(str(delta_type))


def _dictionary_encoded(strings: pa.Array | pa.ChunkedArray) -> pa.DictionaryArray:
    if pa.types.is_null(strings.type):
        strings = strings.cast(pa.string())
    encoded = strings if pa.types.is_dictionary(strings.type) else strings.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    return encoded


_INVALID: Final = object()
_INVALID_REMEDY = (
    "run fsck, which names its files, and write them again with the engine that wrote them"
)


def _parse_text(text: str | None, parse: Callable[[str], Any]) -> Any:
    if not text:
        return None
    try:
        return parse(text)
    except (ValueError, ArithmeticError):
        return _INVALID


def _parser(delta_type: DeltaType, zone: tzinfo) -> Callable[[str], Any]:
    """A function that converts one non-empty string to an Arrow value of the type.

    It raises `ValueError` or `ArithmeticError` for invalid strings.
    """
    if isinstance(delta_type, DecimalType):
        return lambda text: _decimal(text, delta_type)
    name = str(delta_type)
    if name in _INTEGER_BITS:
        limit = 1 << (_INTEGER_BITS[name] - 1)
        return lambda text: _integer(text, limit)
    parsers: dict[str, Callable[[str], Any]] = {
        "string": str,
        "binary": str.encode,
        "boolean": _boolean,
        "float": _float,
        "double": _float,
        "date": _date,
        "timestamp": lambda text: _microseconds(text, zone),
        "timestamp_ntz": _local_microseconds,
    }
    return parsers[name]


def _boolean(text: str) -> bool:
    # Delta Spark and the Rust kernel accept any case.
    if text.lower() not in _BOOLEANS:
        raise ValueError
    return _BOOLEANS[text.lower()]


def _integer(text: str, limit: int) -> int:
    _fully_matched(_INTEGER, text)
    if not -limit <= int(text) < limit:
        raise ValueError
    return int(text)


def _float(text: str) -> float:
    if _SPECIAL_FLOAT.fullmatch(text) is None:
        _fully_matched(_NUMBER, text)
    return float(text)


def _decimal(text: str, delta_type: DecimalType) -> Decimal:
    _fully_matched(_NUMBER, text)
    context = decimal.Context(
        prec=delta_type.precision, traps=[decimal.InvalidOperation, decimal.Inexact]
    )
    return Decimal(text).quantize(Decimal((0, (1,), -delta_type.scale)), context=context)


def _date(text: str) -> date:
    year, month, day = _fully_matched(_DATE, text.strip(_SPACE)).groups("1")
    return date(int(year), int(month), int(day))


def _microseconds(text: str, zone: tzinfo) -> int:
    year, month, day, *time, fraction, zone_name = _fully_matched(
        _TIMESTAMP, text.strip(_SPACE)
    ).groups()
    hour, minute, second = (int(number or 0) for number in time)
    moment = datetime(
        int(year),
        int(month or 1),
        int(day or 1),
        hour,
        minute,
        second,
        # Tables store microseconds; further digits are truncated.
        int((fraction or "")[:6].ljust(6, "0")),
        tzinfo=zone if zone_name is None else _zone(zone_name.strip(_SPACE)),
    )
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _local_microseconds(text: str) -> int:
    # The column may have been a date when the value was written ("Type Widening").
    if not _lacks_zone(text):
        raise ValueError
    return _microseconds(text, UTC)


def _lacks_zone(text: str | None) -> bool:
    """Returns whether a text is a timestamp without a time zone."""
    match = _TIMESTAMP.fullmatch((text or "").strip(_SPACE))
    return match is not None and match[8] is None


def _zone(name: str) -> tzinfo:
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    match = _OFFSET.fullmatch(name)
    if match is None:
        _fully_matched(_REGION, name)
        try:
            return ZoneInfo(name)
        except (KeyError, OSError):
            raise ValueError from None
    hours, minutes = int(match[2] or match[4]), int(match[3] or match[5] or 0)
    distance = timedelta(hours=hours, minutes=minutes, seconds=int(match[6] or 0))
    if minutes > 59 or int(match[6] or 0) > 59 or distance > _FARTHEST_OFFSET:
        raise ValueError
    return timezone(-distance if match[1] == "-" else distance)


def _fully_matched(form: re.Pattern[str], text: str) -> re.Match[str]:
    match = form.fullmatch(text)
    if match is None:
        raise ValueError
    return match
