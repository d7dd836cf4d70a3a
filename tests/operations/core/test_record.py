"""Options, Plans and Results as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.checkpoint import (
    CheckpointKind,
    CheckpointOptions,
    CheckpointPlan,
    CheckpointResult,
    Engine,
)
from delta_maintenance.operations.clean_log import CleanLogOptions
from delta_maintenance.operations.compact_log import CompactLogOptions
from delta_maintenance.operations.core.record import Record
from delta_maintenance.operations.rewriting.models import RefusedFile
from delta_maintenance.operations.set_properties import SetPropertiesOptions
from delta_maintenance.operations.upgrade_protocol import UpgradeProtocolOptions


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


class Number(int):
    """Not a plain number, so that pydantic is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested(Record):
    """Records in records, as in the Results of rewrites."""

    parts: tuple[Everything, ...]
    by_name: dict[str, int | None]
    share: float
    small: int
    flags: list[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain(Record):
    """Only fields that need no conversion."""

    parts: tuple[RefusedFile, ...]
    by_name: dict[str, tuple[int, ...] | None]
    flags: list[bool]


@given(parts=st.lists(RECORDS[Everything]), share=st.floats(0, 1), name=TEXT)
def test_json_is_the_one_of_pydantic(parts: list[Everything], share: float, name: str) -> None:
    nested = Nested(
        parts=tuple(parts), by_name={name: None}, share=share, small=Number(3), flags=[True]
    )
    files = (RefusedFile(path=name, problem="gone", damaged=True),)
    plain = Plain(parts=files, by_name={name: (1, 2), "": None}, flags=[True])
    for record in (nested, plain):
        theirs = TypeAdapter(type(record)).dump_python(record, mode="json")
        assert repr(record.to_json()) == repr(theirs)


def test_a_plain_record_does_without_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delta_maintenance.operations.core.record._adapter", None)
    files = (RefusedFile(path="a", problem="gone", damaged=True),)
    found = Plain(parts=files, by_name={"a": (1, 2)}, flags=[True]).to_json()
    assert found["parts"] == [{"path": "a", "problem": "gone", "damaged": True}]


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
        (CheckpointOptions, {"actions_per_sidecar": -1}, "actions_per_sidecar"),
        (CheckpointOptions, {"actions_per_sidecar": "many"}, "actions_per_sidecar"),
        (CheckpointOptions, {"actions_per_sidecar": 1.5}, "actions_per_sidecar"),
        (CheckpointOptions, {"time_zone": 1}, "time_zone"),
        (CheckpointOptions, [], "CheckpointOptions"),
        (CheckpointOptions, None, "CheckpointOptions"),
        (CheckpointPlan, PLAN | {"kind": "auto"}, "kind"),
        (CheckpointPlan, PLAN | {"notes": [1]}, "notes.0"),
        # An instant without a zone is none.
        (CheckpointPlan, PLAN | {"tombstones_from": "2024-01-01T00:00:00"}, "tombstones_from"),
        (CheckpointPlan, {k: v for k, v in PLAN.items() if k != "version"}, "version"),
        (CheckpointResult, {"table": "t", "version": 1, "status": "done"}, "status"),
    ],
)
def test_invalid_values_are_named(kind: type[Record], value: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError) as failure:
        kind.from_json(value)
    assert failure.value.problem.startswith(f"{field}: ")
    assert failure.value.remedy == f"correct this field of {kind.__name__}"


def test_an_unknown_field_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequestError) as failure:
        CheckpointPlan.from_json(PLAN | {"note": []})
    assert failure.value.problem == "note: CheckpointPlan has no such field"
    names = ", ".join(field.name for field in fields(CheckpointPlan))
    assert failure.value.remedy == f"the fields are {names}" and ", notes" in names


def test_valid_values_are_accepted() -> None:
    plan = CheckpointPlan.from_json(PLAN)
    assert plan.tombstones_from == datetime(2024, 1, 1, tzinfo=UTC)
    assert CheckpointOptions.from_json({}) == CheckpointOptions()


@pytest.mark.parametrize("kind", [CheckpointOptions, Everything])
@given(data=st.data())
def test_valid_values_are_unchanged(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(RECORDS[kind])
    assert record.validated() == record == kind.from_json(asdict(record))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (CompactLogOptions(commits_per_file=1), "commits_per_file"),
        (CompactLogOptions(first_version=-1), "first_version"),
        (CompactLogOptions(partial=cast(bool, "perhaps")), "partial"),
        (CheckpointOptions(kind=cast(Any, "csv")), "kind"),
        (CheckpointOptions(kind=cast(Any, ["auto"])), "kind"),
        (CheckpointOptions(time_zone=cast(str, b"\xff")), "time_zone"),
        (CleanLogOptions(as_of=datetime(2026, 1, 1)), "as_of"),
        (UpgradeProtocolOptions(features=cast(Any, (1,))), "features.0"),
        (SetPropertiesOptions(properties={"name": cast(str, 1)}), "properties.name"),
    ],
)
def test_invalid_options_are_named_as_in_json(options: Record, field: str) -> None:
    with pytest.raises(InvalidRequestError) as by_validated:
        options.validated()
    with pytest.raises(InvalidRequestError) as by_json:
        type(options).from_json(asdict(options))
    assert str(by_validated.value) == str(by_json.value)
    assert by_validated.value.problem.startswith(f"{field}: ")


def test_options_are_converted_as_json_is() -> None:
    given = UpgradeProtocolOptions(
        features=cast(Any, ["v2Checkpoint"]),
        reader_version=cast(int, "3"),
        operation_since=cast(datetime, "2026-01-31T12:00:00Z"),
    )
    assert given.validated() == UpgradeProtocolOptions(
        features=("v2Checkpoint",),
        reader_version=3,
        operation_since=datetime(2026, 1, 31, 12, tzinfo=UTC),
    )
    one = CompactLogOptions(first_version=True).validated()
    assert one.first_version == 1 and type(one.first_version) is int


def test_validated_options_are_unchanged() -> None:
    properties = {"delta.appendOnly": "true"}
    options = SetPropertiesOptions(properties=properties).validated()
    properties.clear()
    assert options.properties == {"delta.appendOnly": "true"}
