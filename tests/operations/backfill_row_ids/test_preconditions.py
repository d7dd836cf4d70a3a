"""Tables with a suspension, a draft or unsupported features."""

from __future__ import annotations

import json

import pytest

from delta_maintenance.errors import RefusedError, UnsupportedFeatureError
from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.core import RunContext
from tests.support.operations.backfills import (
    NOW,
    SUSPENDED,
    TRACKED,
    apply,
    backfill,
    built,
    of,
    operations,
    plan_of,
    stats,
)
from tests.support.operations.row_ids import Action, RacedStore, check, state
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder

ENABLED = {"delta.enableRowTracking": "true"}


@pytest.mark.conformance("RT-01", "RT-08")
def test_a_suspended_table_is_refused_unless_the_suspension_is_lifted() -> None:
    table = built(protocol=TRACKED, configuration={**SUSPENDED, "mine": "1"})
    with pytest.raises(RefusedError, match="suspended"):
        plan_of(table)
    plan = plan_of(table, lift_suspension=True)
    assert plan.state == "suspended" and plan.notes == (
        "the property delta.rowTrackingSuspended is unset",
    )
    assert apply(table, plan).status == "enabled"
    assert operations(table)[0] == "UNSET TBLPROPERTIES"
    configuration = of(table, "metaData")[-1][1]["configuration"]
    assert "delta.rowTrackingSuspended" not in configuration and configuration["mine"] == "1"
    check(table.store)


@pytest.mark.conformance("RT-01")
def test_a_table_that_is_enabled_and_suspended_is_refused() -> None:
    table = built(protocol=TRACKED, configuration={**SUSPENDED, **ENABLED})
    with pytest.raises(RefusedError, match="at the same time"):
        plan_of(table, lift_suspension=True)


def test_a_property_without_effect_does_not_enable_too_early() -> None:
    table = built(configuration={**ENABLED, "mine": "1"})
    assert backfill(table).status == "enabled"
    configurations = [value["configuration"] for _, value in of(table, "metaData")]
    assert configurations[1] == {"mine": "1"}
    assert [version for version, _ in of(table, "metaData")] == [0, 1, 5]


@pytest.mark.conformance("DRAFT-03", "DRAFT-04")
@pytest.mark.parametrize(
    ("protocol", "draft"),
    [
        (TRACKED, {"rowIdHighWaterMark": {"highWaterMark": 99}}),
        (TRACKED, {"rowIdHighWaterMark": {"highWaterMark": 99, "preservedRowIds": True}}),
        (TRACKED, log.domain("delta.rowTracking", {"rowIdHighWaterMark": "99"})),
        (
            log.protocol(1, 7, writer_features=["rowIds", "appendOnly"]),
            {"rowIdHighWaterMark": {"highWaterMark": 99, "preservedRowIds": False}},
        ),
        (
            log.protocol(1, 7, writer_features=["appendOnly", "delta.rowIds"]),
            {"rowIdHighWaterMark": {"highWaterMark": 99}},
        ),
    ],
)
def test_a_draft_is_converted_only_when_asked_for(protocol: Action, draft: Action) -> None:
    old = log.add("old", stats=stats(10), baseRowId=90)
    table = built(old, log.add("new", stats=stats(5)), draft, protocol=protocol)
    with pytest.raises(RefusedError, match="draft"):
        plan_of(table)
    result = backfill(table, convert_draft=True)
    assert (result.status, result.high_water_mark) == ("enabled", 104)
    assert {a["add"]["path"]: a["add"]["baseRowId"] for a in state(table.store)} == {
        "old": 90,
        "new": 100,
    }
    final = [value for _, value in of(table, "protocol")][-1]["writerFeatures"]
    assert {"domainMetadata", "rowTracking"} <= set(final)
    assert not {"rowIds", "delta.rowIds"} & set(final)
    first = of(table, "domainMetadata")[-2][1]
    assert json.loads(first["configuration"]) == {"rowIdHighWaterMark": 99}
    assert result.checkpoint is not None
    snapshot = table.open().snapshot()
    assert snapshot.live_files()["default_row_commit_version"].null_count == 0
    assert checkpoint.plan(snapshot, context=RunContext.at(NOW)).kind == "classic"


def test_a_table_with_unsupported_features_is_refused() -> None:
    table = built(protocol=log.protocol(1, 7, writer_features=["unheardOf"]))
    with pytest.raises(UnsupportedFeatureError, match="unheardOf"):
        plan_of(table)
    table = built(protocol=log.features("catalogManaged", "vacuumProtocolCheck"))
    with pytest.raises(UnsupportedFeatureError, match="catalog-managed"):
        plan_of(table)


def test_names_of_hidden_columns_differ_from_every_column_of_the_table() -> None:
    taken = ["_Row-ID-col-1", "_row-commit-version-col-3"]
    fields = [
        {"name": taken[0], "type": "long", "nullable": True, "metadata": {}},
        {
            "name": "logical",
            "type": "long",
            "nullable": True,
            "metadata": {"delta.columnMapping.physicalName": taken[1]},
        },
    ]
    table = TableBuilder(RacedStore())
    schema = json.dumps({"type": "struct", "fields": fields})
    table.commit([log.protocol(), log.metadata(schema=schema)])
    numbers = iter("1234")
    ids: list[str] = []

    def new_id() -> str:
        # Transaction ids are drawn from the same well.
        ids.append("used" if len(ids) < 2 else next(numbers))
        return ids[-1]

    apply(table, plan_of(table), new_id=new_id)
    configuration = of(table, "metaData")[-1][1]["configuration"]
    assert configuration["delta.rowTracking.materializedRowIdColumnName"] == "_row-id-col-2"
    name = configuration["delta.rowTracking.materializedRowCommitVersionColumnName"]
    assert name == "_row-commit-version-col-4"
