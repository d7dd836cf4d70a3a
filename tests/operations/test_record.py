"""Options, Plans and Results as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.checkpoint import (
    CheckpointKind,
    CheckpointOptions,
    CheckpointPlan,
    CheckpointResult,
    Engine,
)
from delta_maintenance.operations.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything(Record):
    """A field of every sort that travels."""

    text: str
    count: int | None
    since: datetime
    retention: timedelta
    notes: tuple[str, ...]


# JSON has no lone surrogates.
TEXT = st.text(st.characters(codec="utf-8"))
COUNT = st.integers(0, 2**63 - 1)
NOTES = st.lists(TEXT).map(tuple)
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=-3, minutes=-30))])
INSTANT = st.datetimes(timezones=ZONES)
KIND = st.sampled_from(["classic", "v2-classic", "v2-json", "v2-parquet"])
ENGINE = st.sampled_from(["local", "spark"])

RECORDS = {
    Everything: st.builds(
        Everything,
        text=TEXT,
        count=st.none() | st.integers(),
        since=INSTANT,
        retention=st.timedeltas(timedelta(0), timedelta(days=10_000)),
        notes=NOTES,
    ),
    CheckpointOptions: st.builds(
        CheckpointOptions,
        kind=st.sampled_from(get_args(CheckpointKind)),
        actions_per_sidecar=COUNT,
        time_zone=st.none() | TEXT,
        engine=st.sampled_from(get_args(Engine)),
        auto_spark_bytes=COUNT,
    ),
    CheckpointPlan: st.builds(
        CheckpointPlan,
        table=TEXT,
        version=COUNT,
        kind=st.none() | KIND,
        engine=ENGINE,
        reason=TEXT,
        log_bytes=COUNT,
        commits_since_checkpoint=COUNT,
        actions_per_sidecar=COUNT,
        time_zone=st.none() | TEXT,
        tombstones_from=st.none() | INSTANT,
        transactions_from=st.none() | INSTANT,
        notes=NOTES,
    ),
    CheckpointResult: st.builds(
        CheckpointResult,
        table=TEXT,
        version=COUNT,
        status=st.sampled_from(["written", "already-there", "nothing-to-do"]),
        kind=st.none() | KIND,
        engine=ENGINE,
        path=st.none() | TEXT,
        sidecars=COUNT,
        bytes_written=COUNT,
        actions=COUNT,
        num_files=COUNT,
        num_tombstones=COUNT,
        expired_tombstones=COUNT,
        hint_updated=st.booleans(),
        notes=NOTES,
    ),
}


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_record_survives_json(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(RECORDS[kind])
    again = kind.from_json(json.loads(json.dumps(record.to_json())))
    assert again == record and type(again) is kind


PLAN = {
    "table": "t",
    "version": 1,
    "kind": "classic",
    "engine": "local",
    "reason": "",
    "log_bytes": 0,
    "commits_since_checkpoint": 0,
    "actions_per_sidecar": 1,
    "time_zone": None,
    "tombstones_from": "2024-01-01T00:00:00Z",
    "transactions_from": None,
}


@pytest.mark.parametrize(
    ("kind", "value", "field"),
    [
        (CheckpointOptions, {"kind": "csv"}, "kind"),
        (CheckpointOptions, {"knd": "auto"}, "knd"),
        (CheckpointOptions, {"actions_per_sidecar": -1}, "actions_per_sidecar"),
        (CheckpointOptions, {"actions_per_sidecar": "many"}, "actions_per_sidecar"),
        (CheckpointOptions, {"actions_per_sidecar": 1.5}, "actions_per_sidecar"),
        (CheckpointOptions, {"time_zone": 1}, "time_zone"),
        (CheckpointOptions, [], "CheckpointOptions"),
        (CheckpointOptions, None, "CheckpointOptions"),
        (CheckpointPlan, PLAN | {"kind": "auto"}, "kind"),
        (CheckpointPlan, PLAN | {"notes": [1]}, "notes.0"),
        (CheckpointPlan, PLAN | {"note": []}, "note"),
        # An instant without a zone is none.
        (CheckpointPlan, PLAN | {"tombstones_from": "2024-01-01T00:00:00"}, "tombstones_from"),
        (CheckpointPlan, {k: v for k, v in PLAN.items() if k != "version"}, "version"),
        (CheckpointResult, {"table": "t", "version": 1, "status": "done"}, "status"),
    ],
)
def test_what_is_wrong_is_named(kind: type[Record], value: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError) as failure:
        kind.from_json(value)
    assert failure.value.problem.startswith(f"{field}: ")
    assert failure.value.remedy == f"correct this field of {kind.__name__}"


def test_what_is_right_is_taken() -> None:
    plan = CheckpointPlan.from_json(PLAN)
    assert plan.tombstones_from == datetime(2024, 1, 1, tzinfo=UTC)
    assert CheckpointOptions.from_json({}) == CheckpointOptions()
