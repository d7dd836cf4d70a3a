"""Table features in their draft spelling of 2023."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.protocol.features import supported_features
from tests.support.operations.table_changes import (
    apply_upgrade,
    built,
    lines,
    plan_upgrade,
    set_,
    upgrade,
)
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder

MARK = {"rowIdHighWaterMark": {"highWaterMark": 41, "preservedRowIds": True}}


def drafted(*more: log.Action, names: tuple[str, ...] = ("rowIds", "appendOnly")) -> TableBuilder:
    return built(*more, protocol=log.protocol(1, 7, writer_features=names))


@pytest.mark.conformance("DRAFT-03", "DRAFT-04", "RT-05")
@pytest.mark.parametrize(
    ("table", "said", "expected"),
    [
        (lambda: drafted(MARK), "rowIds", 41),
        (lambda: drafted(names=("delta.rowIds",)), "rowIds", -1),
        (lambda: built(MARK), "rowIdHighWaterMark", 41),
        (
            lambda: built(
                log.domain("delta.rowTracking", {"rowIdHighWaterMark": "41"}),
                protocol=log.protocol(1, 7, writer_features=["rowTracking", "domainMetadata"]),
            ),
            "map",
            41,
        ),
        (
            lambda: built(
                log.domain("mine", {"a": "b"}),
                protocol=log.protocol(1, 7, writer_features=["domainMetadata"]),
            ),
            "map",
            None,
        ),
    ],
    ids=["feature", "other name", "action", "map", "map of others"],
)
def test_drafts_are_refused_by_name_and_converted_on_request(
    table: Callable[[], TableBuilder], said: str, expected: int | None
) -> None:
    builder = table()
    files = builder.names()
    for change in (
        lambda: set_(builder.open(), checkpointInterval="5"),
        lambda: upgrade(builder.open(), "deletionVectors"),
    ):
        with pytest.raises(DeltaMaintenanceError, match=said):
            change()
    assert builder.names() == files

    result = upgrade(builder.open(), convert_draft=True)
    assert result.status == "committed" and result.converted_domains
    snapshot = builder.open().snapshot()
    assert not {"rowIds", "delta.rowIds"} & {*(snapshot.protocol.writer_features or ())}
    assert not any(domain.draft_map for domain in snapshot.log.state.domains.values())
    if "mine" in snapshot.domain_metadata:
        assert snapshot.domain_metadata == {"mine": '{"a":"b"}'}
    else:
        mark = json.loads(snapshot.domain_metadata["delta.rowTracking"])
        assert mark == {"rowIdHighWaterMark": expected}
        assert supported_features(snapshot.protocol) >= {"rowTracking", "domainMetadata"}
    assert upgrade(builder.open(), convert_draft=True).status == "nothing-to-do"
    assert set_(builder.open(), checkpointInterval="5").status == "committed"


@pytest.mark.conformance("DRAFT-03", "RT-04", "RT-07")
def test_a_conversion_keeps_row_ids_and_never_reuses_one() -> None:
    table = drafted(MARK, log.add("a", baseRowId=90, stats='{"numRecords":10}'), log.add("b"))
    plan = plan_upgrade(table.open(), "deletionVectors", convert_draft=True)
    assert plan.converted_domains == ("delta.rowTracking",)
    assert any("high-water mark 99" in note for note in plan.notes)
    assert apply_upgrade(table.open(), plan).status == "committed"
    snapshot = table.open().snapshot()
    assert snapshot.domain_metadata == {"delta.rowTracking": '{"rowIdHighWaterMark":99}'}
    assert sorted(snapshot.live_files()["base_row_id"].to_pylist(), key=str) == [90, None]
    assert supported_features(snapshot.protocol) == {
        "appendOnly",
        "deletionVectors",
        "domainMetadata",
        "rowTracking",
    }


@pytest.mark.conformance("DRAFT-01")
def test_a_draft_spelling_is_replaced_where_a_protocol_is_written_anyway() -> None:
    table = built(protocol=log.features("timestampNTZ", writer_only=["columnInvariants"]))
    set_(table.open(), checkpointInterval="5")
    assert [*(key for line in lines(table, 1) for key in line)] == ["commitInfo", "metaData"]
    upgrade(table.open(), "timestampNtz")
    assert lines(table, 2)[1]["protocol"]["readerFeatures"] == ["timestampNtz"]
    assert lines(table, 2)[1]["protocol"]["writerFeatures"] == ["timestampNtz", "invariants"]
