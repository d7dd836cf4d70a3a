"""Conversions of single statistics columns: from JSON text, to JSON text, and between types.

Implements the value encodings of "Per-file Statistics". Every conversion is exact: a value that the
other form cannot represent becomes null. No conversion turns a null into a value, so an increased
null count shows the caller that values were lost.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NON_FINITE = ("NaN", "Infinity", "-Infinity")
"""Doubles that are not JSON numbers; statistics contain them as strings."""

_SMALL = 64
_BRANCHES = 8

_CYCLE_DAYS = 146_097
_CYCLE_YEARS = 400
_EPOCH = date(1970, 1, 1).toordinal()
_DAY = 86_400_000_000

_SURROGATE = re.compile("[\ud800-\udfff]")
_DATE = re.compile(r"([+-]?)(\d{4,7})-(\d\d)-(\d\d)", re.ASCII)
_TIME = re.compile(
    r"[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?(?:(Z)|([+-])(\d\d)(?::?(\d\d))?)?", re.ASCII
)


class JsonNumber(str):
    """A JSON number as written, so that no digit is lost before its type is known."""

    __slots__ = ()


def in_parts(
    values: pa.Array, fast: Callable[[pa.Array], pa.Array], slow: Callable[[pa.Array], pa.Array]
) -> pa.Array:
    """Applies `fast` to the parts of `values` that it accepts, and `slow` to the others.

    `fast` rejects an array by raising `pyarrow.ArrowInvalid`. The array is then split until the
    rejected values are in a short part. Both return arrays of the same type.
    """
    try:
        return fast(values)
    except pa.ArrowInvalid:
        if len(values) <= _SMALL:
            return slow(values)
    size = max(_SMALL, -(-len(values) // _BRANCHES))
    return pa.concat_arrays(
        [in_parts(values.slice(at, size), fast, slow) for at in range(0, len(values), size)]
    )


def from_json_scalars(values: Sequence[object], target: pa.DataType) -> list[Any]:
    """Parsed JSON values as Python values of the leaf type `target`; None if not exact.

    Numbers are passed as `JsonNumber`. Dates and timestamps stay text: see `from_text`.
    """
    read = _scalar_reader(target)
    return [None if value is None else read(value) for value in values]


def from_text(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """The values of a date or timestamp column from their JSON text; invalid text becomes null.

    A timestamp must have a time zone if `target` has one, and none otherwise: a guessed zone would
    move the bound.
    """
    if not (pa.types.is_date(target) or pa.types.is_timestamp(target)):
        return texts

    def one_by_one(few: pa.Array) -> pa.Array:
        if pa.types.is_date(target):
            return pa.array([_days(text) for text in few.to_pylist()], pa.int32()).view(target)
        zoned = target.tz is not None
        micros = [_micros(text, zoned=zoned) for text in few.to_pylist()]
        return pa.array(micros, pa.int64()).view(target)

    return in_parts(texts, lambda many: many.cast(target), one_by_one)


def to_json_text(values: pa.Array, *, zoned: bool) -> pa.Array | None:
    """The JSON text of each value, null for null; None for a type without a JSON form.

    `zoned` decides whether timestamps are written with a `Z` (with a time zone) or without.
    """
    kind = values.type
    if pa.types.is_dictionary(kind):
        return to_json_text(values.cast(kind.value_type), zoned=zoned)
    if pa.types.is_null(kind) or pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return values.cast(pa.string())
    if pa.types.is_floating(kind):
        return _float_text(values)
    if pa.types.is_decimal(kind):
        return _decimal_text(values)
    if pa.types.is_date(kind):
        return _quote_texts(_date_text(values.cast(pa.date32())))
    if pa.types.is_timestamp(kind):
        return _quote_texts(_timestamp_text(values, zone="Z" if zoned else ""))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _quote_texts(_escape_texts(values.cast(pa.string())))
    return None


def convert_values(values: pa.Array, target: pa.DataType) -> pa.Array:
    """`values` as `target`, null where the conversion would round, truncate or guess.

    A timestamp without a time zone counts as UTC, as in INT96 columns.
    """
    source = values.type
    if source == target or pa.types.is_null(source):
        return values.cast(target)
    if not _widens(source, target):
        return pa.nulls(len(values), target)
    return in_parts(
        values,
        lambda many: many.cast(target),
        lambda few: pa.array([_exactly(value, target) for value in few], target),
    )


def _widens(source: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_integer(source):
        return bool(
            pa.types.is_integer(target) or pa.types.is_floating(target) or _is_decimal(target)
        )
    if pa.types.is_floating(source):
        return bool(pa.types.is_floating(target) and source.bit_width <= target.bit_width)
    if pa.types.is_date(source):
        is_local = pa.types.is_timestamp(target) and target.tz is None
        return bool(pa.types.is_date(target) or is_local)
    same_kind = (_is_decimal, pa.types.is_timestamp, pa.types.is_boolean, _is_string)
    return any(kind(source) and kind(target) for kind in same_kind)


def _is_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind))


def _is_string(kind: pa.DataType) -> bool:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(
        pa.types.is_string(plain)
        or pa.types.is_large_string(plain)
        or pa.types.is_string_view(plain)
    )


def _exactly(value: pa.Scalar, target: pa.DataType) -> pa.Scalar | None:
    try:
        if _is_decimal(target) and pa.types.is_integer(value.type):
            # Arrow requires space for all values of the integer type; here one value has to fit.
            return pa.scalar(value.as_py(), target)
        return value.cast(target)
    except pa.ArrowInvalid:
        return None


def _scalar_reader(target: pa.DataType) -> Callable[[object], Any]:
    if pa.types.is_boolean(target):
        return lambda value: value if isinstance(value, bool) else None
    if pa.types.is_string(target):
        return _text
    if pa.types.is_integer(target):
        bound = 2 ** (target.bit_width - 1)
        return lambda value: _integer(value, bound)
    if pa.types.is_floating(target):
        return _double if target.bit_width == 64 else _float
    exact = Context(prec=target.precision, traps=[Inexact, InvalidOperation, Overflow])
    unit = Decimal(1).scaleb(-target.scale)
    return lambda value: _decimal(value, unit, exact)


def _text(value: object) -> str | None:
    if not isinstance(value, str) or isinstance(value, JsonNumber):
        return None
    # JSON can escape an unpaired surrogate, which UTF-8 (Arrow, Parquet) cannot represent.
    return value if value.isascii() or not _SURROGATE.search(value) else None


def _integer(value: object, bound: int) -> int | None:
    number = _number(value)
    # The range is checked first, because `int` of a number such as 1e999999999 is expensive.
    if number is None or not -bound <= number < bound:
        return None
    return int(number) if number == int(number) else None


def _double(value: object) -> float | None:
    if not isinstance(value, JsonNumber) and value not in NON_FINITE:
        return None
    number = float(str(value))
    return None if math.isinf(number) and value not in NON_FINITE else number


def _float(value: object) -> float | None:
    if _double(value) is None:
        return None
    # Cast by Arrow, because an intermediate 64-bit value would be rounded twice.
    number: float = pa.scalar(str(value)).cast(pa.float32()).as_py()
    return None if math.isinf(number) and value not in NON_FINITE else number


def _decimal(value: object, unit: Decimal, exact: Context) -> Decimal | None:
    number = _number(value)
    try:
        return None if number is None else number.quantize(unit, context=exact)
    except (Inexact, InvalidOperation, Overflow):
        return None


def _number(value: object) -> Decimal | None:
    if not isinstance(value, JsonNumber) or value in NON_FINITE:
        return None
    try:
        return Decimal(value)
    except InvalidOperation:
        return None


def _days(text: str | None) -> int | None:
    date_match = _DATE.fullmatch(text) if text is not None else None
    return None if date_match is None else _civil_days(date_match)


def _civil_days(date_match: re.Match[str]) -> int | None:
    sign, digits, month, day = date_match.groups()
    cycle, year = divmod(int(sign + digits) - 2000, _CYCLE_YEARS)
    # Python supports the years 1 to 9999; the Gregorian calendar repeats every 400 years.
    try:
        ordinal = date(2000 + year, int(month), int(day)).toordinal()
    except ValueError:
        return None
    return ordinal - _EPOCH + cycle * _CYCLE_DAYS


def _micros(text: str | None, *, zoned: bool) -> int | None:
    day = _DATE.match(text) if text is not None else None
    time = _TIME.fullmatch(text, day.end()) if text is not None and day is not None else None
    days = _civil_days(day) if day is not None else None
    if time is None or days is None:
        return None
    hour, minute, second, fraction, utc, sign, ahead_hours, ahead_minutes = time.groups(default="0")
    if max(int(hour), int(ahead_hours)) > 23:
        return None
    if max(int(minute), int(second), int(ahead_minutes)) > 59 or fraction[6:].strip("0"):
        return None
    if zoned != (utc == "Z" or sign != "0"):
        return None
    ahead = (-1 if sign == "-" else 1) * (int(ahead_hours) * 60 + int(ahead_minutes))
    seconds = (int(hour) * 60 + int(minute) - ahead) * 60 + int(second)
    micros = days * _DAY + seconds * 1_000_000 + int(fraction[:6].ljust(6, "0"))
    return micros if -(2**63) <= micros < 2**63 else None


def _quote_texts(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _escape_texts(texts: pa.Array) -> pa.Array:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        texts = in_parts(texts, _validate_texts, _only_valid)
    # One search over all bytes of the column is faster than a search in each value.
    raw = _bytes(texts)
    for char in ("\\", '"', *map(chr, range(0x20))):
        if char.encode() in raw:
            texts = pc.replace_substring(texts, char, json.dumps(char)[1:-1])
    return texts


def _bytes(texts: pa.StringArray) -> bytes:
    _, offsets, data = texts.buffers()
    if data is None:
        return b""
    start, end = np.frombuffer(offsets, np.int32)[[texts.offset, texts.offset + len(texts)]]
    raw: bytes = data.slice(start, end - start).to_pybytes()
    return raw


def _validate_texts(texts: pa.Array) -> pa.Array:
    texts.validate(full=True)
    return texts


def _only_valid(texts: pa.Array) -> pa.Array:
    def decode(raw: bytes | None) -> str | None:
        try:
            return None if raw is None else raw.decode()
        except UnicodeDecodeError:
            return None

    return pa.array([decode(raw) for raw in texts.cast(pa.binary()).to_pylist()], pa.string())


def _float_text(values: pa.Array) -> pa.Array:
    texts = values.cast(pa.string())
    # Written as an integer, -0.0 would lose its sign in readers that parse integers.
    texts = pc.replace_substring_regex(texts, r"^(-?\d+)$", r"\1.0")
    finite = pc.is_finite(values)
    if pc.all(finite).as_py() is not False:
        return texts
    names = pc.if_else(
        pc.is_nan(values), '"NaN"', pc.if_else(pc.greater(values, 0), '"Infinity"', '"-Infinity"')
    )
    return pc.if_else(finite, texts, names)


def _decimal_text(values: pa.Array) -> pa.Array:
    texts = values.cast(pa.string())
    scale = values.type.scale
    if scale <= 0 or not pc.any(pc.match_substring(texts, "E")).as_py():
        return texts
    # Arrow writes 0.00000000 as 0E-8. Reading the same bytes with scale 0 gives plain digits.
    wide = values.cast(pa.decimal128(38, scale))
    unscaled = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(wide), wide.buffers(), wide.null_count, wide.offset
    ).cast(pa.string())
    sign = pc.if_else(pc.starts_with(unscaled, "-"), "-", "")
    digits = pc.utf8_lpad(pc.utf8_ltrim(unscaled, "-"), scale + 1, "0")
    return pc.binary_join_element_wise(
        pc.binary_join_element_wise(sign, pc.utf8_slice_codeunits(digits, 0, -scale), ""),
        pc.utf8_slice_codeunits(digits, -scale),
        ".",
    )


def _date_text(values: pa.Array) -> pa.Array:
    days = values.view(pa.int32())
    usual = pc.and_(pc.greater_equal(days, _FIRST_DAY), pc.less(days, _END_DAY))
    return _with_unusual(values.cast(pa.string()), usual, days, _civil_text)


def _timestamp_text(values: pa.Array, *, zone: str) -> pa.Array:
    local = convert_values(values, pa.timestamp("us", values.type.tz)).view(pa.timestamp("us"))
    micros = local.view(pa.int64())
    texts = _clock_text(local, micros)
    usual = pc.and_(pc.greater_equal(micros, _FIRST_DAY * _DAY), pc.less(micros, _END_DAY * _DAY))
    return pc.binary_join_element_wise(_with_unusual(texts, usual, micros, _moment_text), zone, "")


def _clock_text(local: pa.Array, micros: pa.Array) -> pa.Array:
    millis = pc.multiply(pc.divide(micros, 1000), 1000)
    is_whole = pc.equal(millis, micros)
    texts = local.cast(pa.timestamp("ms"), safe=False).cast(pa.string())
    if pc.all(is_whole).as_py() is False:
        # Delta writers use milliseconds; only finer values get six digits.
        texts = pc.if_else(is_whole, texts, local.cast(pa.string()))
    return pc.binary_replace_slice(texts, 10, 11, "T")


def _with_unusual(
    texts: pa.Array, usual: pa.Array, numbers: pa.Array, text_of: Callable[[int], str]
) -> pa.Array:
    # Arrow writes years above 9999 without the sign that ISO 8601 requires, or not at all.
    if pc.all(usual).as_py() is not False:
        return texts
    unusual = pc.fill_null(pc.invert(usual), False)
    rare = [text_of(number) for number in pc.filter(numbers, unusual).to_pylist()]
    return pc.replace_with_mask(texts, unusual, pa.array(rare, pa.string()))


def _civil_text(days: int) -> str:
    cycle, day = divmod(days + _EPOCH - date(2000, 1, 1).toordinal(), _CYCLE_DAYS)
    civil = date.fromordinal(date(2000, 1, 1).toordinal() + day)
    year = civil.year + cycle * _CYCLE_YEARS
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{civil.month:02d}-{civil.day:02d}"


def _moment_text(micros: int) -> str:
    days, micros_of_day = divmod(micros, _DAY)
    seconds, fraction = divmod(micros_of_day, 1_000_000)
    digits = f"{fraction:06d}".removesuffix("000")
    return (
        f"{_civil_text(days)}T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        f".{digits}"
    )


_FIRST_DAY = -719_528
"""Days from 1970-01-01 to 0000-01-01."""
_END_DAY = 2_932_897
"""Days from 1970-01-01 to 10000-01-01."""
