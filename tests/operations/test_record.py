"""Options, Plans and Results as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.checkpoint import CheckpointOptions
from delta_maintenance.operations.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything(Record):
    """A field of every sort that travels."""

    text: str
    count: int | None
    since: datetime
    retention: timedelta
    notes: tuple[str, ...]


RECORDS = st.builds(
    Everything,
    text=st.text(),
    count=st.none() | st.integers(),
    since=st.datetimes(timezones=st.just(UTC)),
    retention=st.timedeltas(timedelta(0), timedelta(days=10_000)),
    notes=st.lists(st.text()).map(tuple),
)


@given(RECORDS)
def test_a_record_survives_json(record: Everything) -> None:
    assert Everything.from_json(json.loads(json.dumps(record.to_json()))) == record


@pytest.mark.parametrize(
    ("value", "field"),
    [({"kind": "csv"}, "kind"), ({"knd": "auto"}, "knd"), ([], "CheckpointOptions")],
)
def test_what_is_wrong_is_named(value: object, field: str) -> None:
    with pytest.raises(InvalidRequestError, match=field):
        CheckpointOptions.from_json(value)
