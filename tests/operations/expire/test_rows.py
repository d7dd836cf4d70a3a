"""Rows that are removed are old in every reading of their values, and old rows are removed.

Each table is judged row by row with Python's integers and time zones. The tested code sees bounds
as several writers state them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import expire
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.expire import ExpireOptions
from delta_maintenance.table.read import Table
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.mapped_tables import ID, NAME
from tests.support.rewrites.rewritten_tables import VECTORS
from tests.support.rewrites.table_rows import live_rows
from tests.support.suite.play import examples

AGE = timedelta(days=30)
EPOCH = datetime(1970, 1, 1)
HOUR, DAY = 3_600_000_000, 86_400_000_000
KINDS: dict[str, pa.DataType] = {
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "date": pa.date32(),
    "long": pa.int64(),
}
UNIT = {"date": DAY, "long": 1000}
"""Microseconds of one; others count microseconds."""
LIMITS = (
    datetime(2025, 6, 15, 12, 0, 0, 123456, UTC),
    # 02:30 in Berlin, the first and the second one.
    datetime(2025, 10, 26, 0, 30, tzinfo=UTC),
    datetime(2025, 10, 26, 1, 30, tzinfo=UTC),
    datetime(2025, 6, 15, tzinfo=UTC),
)
DISTANCES = (
    *(sign * micros for sign in (-1, 1) for micros in (1, 999, 1000, 59_000_000)),
    *(hours * HOUR for hours in (-29, -28, -17, -16, -15, -14, -12, -3, -1, 0, 1, 12, 14, 16)),
    *(days * DAY for days in (-10_000, -2, -1, 1, 2, 400)),
    # 1905, 1895, year 225.
    *(-years * 365 * DAY for years in (120, 130, 1800)),
)
STATISTICS = ("exact", "cut", "ahead", "behind", "wide", "without-nulls", "crossed", "none")
SHAPES = ("plain", "nested", "mapped", "partition", "zoned-partition")


@dataclass(frozen=True)
class File:
    values: tuple[int | None, ...]
    """Distances from the limit in microseconds."""
    statistics: str
    deleted: bool
    """Whether the first row is deleted already."""


FILES = st.builds(
    File,
    st.lists(st.none() | st.sampled_from(DISTANCES), min_size=1, max_size=4).map(tuple),
    st.sampled_from(STATISTICS),
    st.booleans(),
)


def micros(moment: datetime) -> int:
    return (moment.replace(tzinfo=None) - EPOCH) // timedelta(microseconds=1)


def text(kind: str, value: int, *, digits: int = 6, ahead: int = 0) -> Any:
    """A value as statistics and partition values state it. `ahead` are the hours of the offset."""
    if kind == "long":
        return value
    if kind == "date":
        return str((EPOCH + timedelta(days=value)).date())
    moment = EPOCH + timedelta(microseconds=value, hours=ahead)
    found = moment.isoformat(timespec="microseconds")[: 20 + digits]
    if kind == "timestamp_ntz":
        return found
    return found + (f"{'+' if ahead > 0 else '-'}{abs(ahead):02d}:00" if ahead else "Z")


def statistics(kind: str, column: list[str], file: File, values: list[int | None]) -> str | None:
    known = [value for value in values if value is not None]
    if file.statistics == "none":
        return None
    found: dict[str, Any] = {"numRecords": len(values)}

    def nested(value: Any) -> Any:
        for name in reversed(column):
            value = {name: value}
        return value

    if file.statistics != "without-nulls":
        found["nullCount"] = nested(len(values) - len(known))
    if known:
        least, greatest = min(known), max(known)
        if file.statistics == "wide":
            wider = 2 if kind == "date" else 3 * HOUR // UNIT.get(kind, 1)
            least, greatest = least - wider, greatest + wider
            found["tightBounds"] = False
        if file.statistics == "crossed":
            # A maximum that was cut to milliseconds may be less than the minimum by 999.
            least = greatest + (1000 if kind.startswith("timestamp") else 1)
        ahead = {"ahead": 14, "behind": -12}.get(file.statistics, 0) if kind == "timestamp" else 0
        digits = 6 if file.statistics in ("exact", "wide", "without-nulls", "crossed") else 3
        found["minValues"] = nested(text(kind, least, digits=digits, ahead=ahead))
        found["maxValues"] = nested(text(kind, greatest, digits=digits, ahead=ahead))
    return json.dumps(found)


def instants(kind: str, value: int, zone: str | None, *, local: bool) -> tuple[int, int]:
    """The latest instant that a value can stand for, and the first limit with which the row must
    go, in microseconds.
    """
    last = (value + 1) * UNIT[kind] - 1 if kind in UNIT else value
    if kind == "long":
        return value * 1000, value * 1000 + 1000
    if not local:
        return last, last + 1
    if zone is None:
        return last + 12 * HOUR, last + 16 * HOUR + 1
    wall = EPOCH + timedelta(microseconds=last)
    folds = [
        micros(wall.replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC)) for fold in (0, 1)
    ]
    return max(folds), max(folds) + HOUR + 1


@given(
    kind=st.sampled_from(list(KINDS)),
    shape=st.sampled_from(SHAPES),
    limit=st.sampled_from(LIMITS),
    zone=st.sampled_from((None, "UTC", "Europe/Berlin", "Pacific/Apia", "America/Los_Angeles")),
    mixed=st.sampled_from(("leave", "deletion-vectors", "rewrite")),
    files=st.lists(FILES, min_size=1, max_size=4),
)
@example(  # The greatest value is later than its bound, which is cut.
    kind="timestamp",
    shape="plain",
    limit=LIMITS[0],
    zone=None,
    mixed="leave",
    files=[File((-2000, 1), "cut", False)],
)
@example(  # 02:15, which comes again 45 minutes after the limit.
    kind="timestamp_ntz",
    shape="plain",
    limit=LIMITS[1],
    zone="Europe/Berlin",
    mixed="deletion-vectors",
    files=[File((HOUR + 45 * 60_000_000,), "exact", False)],
)
@example(
    kind="timestamp",
    shape="plain",
    limit=LIMITS[1],
    zone=None,
    mixed="deletion-vectors",
    files=[File((-1, DAY), "crossed", False)],
)
@settings(max_examples=examples(300))
def test_no_younger_row_goes_and_old_rows_go(
    kind: str, shape: str, limit: datetime, zone: str | None, mixed: Any, files: list[File]
) -> None:
    at = micros(limit)
    unit = UNIT.get(kind, 1)
    partitioned = shape.endswith("partition")
    local = kind in ("date", "timestamp_ntz") or (kind == "timestamp" and shape == "partition")
    column = {"nested": ["s", "v"], "mapped": ["m"]}.get(shape, ["v"])
    table = made(kind, shape)
    rows: dict[int, tuple[int | None, File]] = {}
    first = 0
    for file in files:
        deltas = file.values[:1] if partitioned else file.values
        values = [None if each is None else (at + each) // unit for each in deltas]
        rows |= {first + number: (value, file) for number, value in enumerate(values)}
        numbers = pa.array(range(first, first + len(values)), pa.int64())
        array = pa.array(values, KINDS[kind])
        more: dict[str, Any] = {"stats": statistics(kind, column, file, values)}
        if partitioned:
            stated = None if values[0] is None else text(kind, values[0])
            if shape == "partition" and kind == "timestamp" and stated is not None:
                stated = stated.replace("T", " ").removesuffix("Z")
            more = {"partitionValues": {"v": None if stated is None else str(stated)}}
            written = pa.table({"n": numbers})
        elif shape == "nested":
            absent = pa.array(
                [value is None and number % 2 == 0 for number, value in enumerate(values)]
            )
            inner = pa.StructArray.from_arrays([array], ["v"], mask=absent)
            written = pa.table({"n": numbers, "s": inner})
        else:
            written = pa.table({"n": numbers, column[0]: array})
        [path] = table.append(written, **more)
        if file.deleted and len(values) > 1 and more["stats"] is not None:
            table.delete(path, [0])
            del rows[first]
        first += len(values)
    options = ExpireOptions(
        column="s.v" if shape == "nested" else "v",
        older_than=AGE,
        mixed=mixed,
        unit="ms" if kind == "long" else None,
        time_zone=zone,
        allow_large_delete=True,
    )
    context = RunContext.at(limit + AGE, sleep=lambda _: None)
    planned = expire.plan(Table(table.store).snapshot(), options, context)
    table.store.now_ms = lambda: epoch_millis(limit + AGE)
    result = expire.apply(Table(table.store), planned, context)
    assert result.problem is None
    left = {dict(values)["n"] for values, *_ in live_rows(table.store)}
    for number, (value, file) in rows.items():
        if value is None:
            assert number in left, "a row without a time went"
            continue
        latest, gone_at = instants(kind, value, zone, local=local)
        if number not in left:
            assert latest < at, (value, file)
        elif gone_at <= at and (mixed != "leave" or partitioned):
            raise AssertionError((value, file))
    assert result.rows in (len(rows) - len(left), None)
    again = expire.plan(Table(table.store).snapshot(), options, context)
    assert not again.files
    if mixed != "leave" and all(file.statistics == "exact" for file in files):
        assert again.is_noop


def made(kind: str, shape: str) -> DataTable:
    features = ["deletionVectors", "timestampNtz"]
    configuration = dict(VECTORS)
    fields = [field("n", "long"), field("v", kind)]
    if shape == "nested":
        struct = {"type": "struct", "fields": [field("v", kind)]}
        fields = [field("n", "long"), field("s", struct)]
    if shape == "mapped":
        features.append("columnMapping")
        configuration |= {
            "delta.columnMapping.mode": "name",
            "delta.columnMapping.maxColumnId": "2",
        }
        fields = [field("n", "long", **{ID: 1, NAME: "n"}), field("v", kind, **{ID: 2, NAME: "m"})]
    return DataTable(
        *fields,
        features=features,
        configuration=configuration,
        partitioned_by=["v"] if shape.endswith("partition") else [],
    )
