"""Protocol and metadata after a request for properties and features."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.protocol.actions import Metadata, Protocol
from delta_maintenance.protocol.changes.enable import ChangeRequest, TableChange, changed_table
from delta_maintenance.protocol.changes.property_rules import RULES
from delta_maintenance.protocol.features import supported_features
from delta_maintenance.protocol.schema import parse_schema, walk
from delta_maintenance.protocol.schema.column_mapping import edit_fields, mapped_by_name

NEW = Protocol(min_reader_version=1, min_writer_version=2)
NESTED = (
    '{"type" : "struct","fields":[{"name":"a","type":{"type":"struct","fields":['
    '{"name":"x","type":"integer","nullable":true,"metadata":{}},'
    '{"name":"y","type":{"type":"array","elementType":{"type":"struct","fields":['
    '{"name":"z","type":"integer","nullable":true,"metadata":{"comment":"ü","scale":1.10}}]},'
    '"containsNull":true},"nullable":true,"metadata":{}}]},"nullable":false,"metadata":{}},'
    '{"name":"m","type":{"type":"map","keyType":{"type":"struct","fields":['
    '{"name":"k","type":"integer","nullable":true,"metadata":{}}]},"valueType":"string",'
    '"valueContainsNull":true},"nullable":true,"metadata":{"odd":[1e3,{"deep":null}]},"extra":7},'
    '{"name":"b","type":"decimal(10,2)","nullable":true}]}'
)


def metadata(schema: str = NESTED, **configuration: str) -> Metadata:
    names = {f"delta.{name.replace('_', '.')}": value for name, value in configuration.items()}
    return Metadata(id="t", schema_string=schema, configuration=names)


def changed(
    before: Metadata | None = None,
    /,
    *,
    protocol: Protocol = NEW,
    removed: tuple[str, ...] = (),
    **properties: str,
) -> TableChange:
    asked = {f"delta.{name.replace('_', '.')}": value for name, value in properties.items()}
    request = ChangeRequest.of_properties(asked, removed)
    return changed_table(protocol, before or metadata(), request, new_id=lambda: "7c")


def listed(*names: str, reader: int = 3) -> Protocol:
    return Protocol(
        min_reader_version=reader,
        min_writer_version=7,
        reader_features=names if reader == 3 else None,
        writer_features=names,
    )


@pytest.mark.conformance("FEAT-12", "CM-09")
@pytest.mark.parametrize(
    ("property_", "value", "feature"),
    [
        ("appendOnly", "true", "appendOnly"),
        ("enableChangeDataFeed", "true", "changeDataFeed"),
        ("enableDeletionVectors", "TRUE", "deletionVectors"),
        ("checkpointPolicy", "v2", "v2Checkpoint"),
        ("enableInCommitTimestamps", "true", "inCommitTimestamp"),
        ("enableTypeWidening", "true", "typeWidening"),
        ("enableVariantShredding", "true", "variantShredding"),
        ("enableMaterializePartitionColumnsFeature", "true", "materializePartitionColumns"),
        ("columnMapping_mode", "name", "columnMapping"),
        ("enableRowTracking", "true", "rowTracking"),
    ],
)
def test_a_property_adds_its_feature(property_: str, value: str, feature: str) -> None:
    before = Protocol(min_reader_version=1, min_writer_version=1)
    after = changed(protocol=before, **{property_: value})
    assert feature in supported_features(after.protocol)
    assert after.metadata.configuration[f"delta.{property_.replace('_', '.')}"] == value
    neutral = {"checkpointPolicy": "classic", "columnMapping_mode": "none"}.get(property_, "false")
    assert changed(protocol=before, **{property_: neutral}).protocol is before


@pytest.mark.conformance("FEAT-08")
@pytest.mark.parametrize(
    "protocol",
    [
        NEW,
        Protocol(min_reader_version=2, min_writer_version=3),
        Protocol(min_reader_version=1, min_writer_version=5),
        listed("domainMetadata", reader=1),
        listed("deletionVectors", "timestampNTZ"),
        listed("columnMapping", reader=2),
    ],
)
@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule.feature is None], ids=lambda r: r.name
)
def test_d4_a_property_without_a_feature_never_changes_the_protocol(
    protocol: Protocol, rule: Any
) -> None:
    values = ["interval 3 days", "true", "7", "1.0.0", "zstd", "Serializable", "b", "classic"]
    for value in values:
        try:
            request = ChangeRequest.of_properties({rule.name: value}, [])
        except (InvalidRequestError, RefusedError):
            continue
        try:
            after = changed_table(protocol, metadata(), request, new_id=lambda: "7c")
        except InvalidRequestError:
            continue
        assert after.protocol is protocol
        assert after.metadata == replace(metadata(), configuration={rule.name: value})


@pytest.mark.conformance("META-02", "META-03", "FEAT-08")
def test_setting_one_property_changes_nothing_else() -> None:
    before = replace(
        metadata(checkpointInterval="5", appendOnly="false"),
        description="d",
        extra={"future": {"x": 1}},
        created_time=7,
        format_options={"o": "p"},
    )
    after = changed(before, logRetentionDuration="interval 7 days")
    kept = {**before.configuration, "delta.logRetentionDuration": "interval 7 days"}
    assert after == TableChange(protocol=NEW, metadata=replace(before, configuration=kept))
    assert list(after.metadata.configuration)[:2] == list(before.configuration)


def test_removing_properties() -> None:
    before = metadata(checkpointInterval="5", appendOnly="true")
    after = changed(before, removed=("delta.appendOnly", "nobody"))
    assert after.metadata.configuration == {"delta.checkpointInterval": "5"}
    assert after.protocol is NEW


@pytest.mark.conformance("META-01")
@pytest.mark.parametrize("missing", ["id", "schema_string"])
def test_incomplete_metadata_is_not_written_again(missing: str) -> None:
    incomplete = replace(metadata(), **{missing: None})
    with pytest.raises(RefusedError, match="the metadata of the table has no"):
        changed(incomplete, checkpointInterval="5")
    assert changed(incomplete, feature_domainMetadata="supported").metadata is not None


@pytest.mark.conformance("FEAT-16")
def test_properties_that_control_the_protocol_are_not_stored() -> None:
    after = changed(
        feature_deletionVectors="supported", minWriterVersion="3", ignoreProtocolDefaults="true"
    )
    assert after.metadata == metadata()
    assert supported_features(after.protocol) == {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "deletionVectors",
    }


@pytest.mark.parametrize(
    ("asked", "removed", "kind"),
    [
        ({"delta.feature.deletionVectors": "enabled"}, [], InvalidRequestError),
        ({"delta.minReaderVersion": "x"}, [], InvalidRequestError),
        ({"delta.appendOnly": "true"}, ["delta.appendOnly"], InvalidRequestError),
        ({}, ["delta.feature.deletionVectors"], RefusedError),
        ({}, ["delta.minWriterVersion"], RefusedError),
    ],
)
def test_invalid_requests_are_refused(
    asked: dict[str, str], removed: list[str], kind: type
) -> None:
    with pytest.raises(kind):
        ChangeRequest.of_properties(asked, removed)


@pytest.mark.conformance("CM-09", "SCHEMA-04")
def test_column_mapping_assigns_ids_as_delta_spark_does() -> None:
    after = changed(columnMapping_mode="name")
    schema = after.metadata.schema_string or ""
    ids = {
        ".".join(path): (
            field.metadata["delta.columnMapping.id"],
            field.metadata["delta.columnMapping.physicalName"],
        )
        for path, field in walk(parse_schema(schema))
    }
    assert ids == {
        "a": (1, "a"),
        "a.x": (2, "x"),
        "a.y": (3, "y"),
        "a.y.element.z": (4, "z"),
        "m": (5, "m"),
        "m.key.k": (6, "k"),
        "b": (7, "b"),
    }
    assert after.metadata.configuration["delta.columnMapping.maxColumnId"] == "7"
    assert '"comment":"ü","scale":1.10,' in schema
    assert '"odd":[1e3,{"deep":null}]' in schema and '"extra":7' in schema
    assert (after.protocol.min_reader_version, after.protocol.min_writer_version) == (2, 7)


@pytest.mark.conformance("CM-09")
@pytest.mark.parametrize("writer", [5, 6])
def test_only_metadata_changes_if_column_mapping_is_supported(writer: int) -> None:
    protocol = Protocol(min_reader_version=2, min_writer_version=writer)
    after = changed(protocol=protocol, columnMapping_mode="name")
    assert after.protocol is protocol
    assert after.metadata.configuration["delta.columnMapping.maxColumnId"] == "7"


@pytest.mark.conformance("CM-07")
def test_existing_column_ids_stay_and_are_not_reused() -> None:
    once, highest = mapped_by_name(NESTED)
    assert mapped_by_name(once, max_column_id=highest) == (once, highest)
    added = json.loads(once)
    added["fields"].append({"name": "new", "type": "long", "nullable": True, "metadata": {}})
    _, after = mapped_by_name(json.dumps(added), max_column_id=41)
    assert after == 42


@pytest.mark.conformance("CM-07")
@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"delta.columnMapping.physicalName": "col-1"}, "physical name 'col-1'"),
        ({"delta.columnMapping.id": 1}, "the column id 1"),
        ({"delta.columnMapping.id": "2"}, "the column id '2'"),
    ],
)
def test_invalid_column_mapping_metadata_is_refused(field: dict[str, Any], message: str) -> None:
    fields = [
        {"name": "a", "type": "long", "nullable": True, "metadata": {"delta.columnMapping.id": 1}},
        {"name": "b", "type": "long", "nullable": True, "metadata": field},
    ]
    with pytest.raises(RefusedError, match=message):
        mapped_by_name(json.dumps({"type": "struct", "fields": fields}))


@pytest.mark.conformance("CM-07", "ICE-04")
@pytest.mark.parametrize(
    ("before", "asked"),
    [
        ("name", "none"),
        ("name", "id"),
        ("id", "name"),
        ("id", "none"),
        (None, "id"),
        ("none", "id"),
    ],
)
def test_column_mapping_modes_that_data_files_forbid(before: str | None, asked: str) -> None:
    table = metadata() if before is None else metadata(columnMapping_mode=before)
    with pytest.raises(RefusedError, match="column mapping mode cannot change from"):
        changed(table, protocol=listed("columnMapping", reader=2), columnMapping_mode=asked)
    if before in ("name", "id"):
        with pytest.raises(RefusedError, match="column mapping mode cannot change from"):
            changed(
                table,
                protocol=listed("columnMapping", reader=2),
                removed=("delta.columnMapping.mode",),
            )


@pytest.mark.conformance("RT-09", "RT-10")
def test_row_tracking_is_enabled_only_on_empty_tables() -> None:
    taken = NESTED.replace('"name":"b"', '"name":"_ROW-id-col-7c"')
    ids = iter(["7c", "8d", "9e"])
    request = ChangeRequest.of_properties({"delta.enableRowTracking": "true"}, [])
    after = changed_table(NEW, metadata(taken), request, new_id=lambda: next(ids))
    assert after.forbids_files
    assert after.metadata.configuration == {
        "delta.enableRowTracking": "true",
        "delta.rowTracking.materializedRowIdColumnName": "_row-id-col-8d",
        "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-commit-version-col-9e",
    }
    assert supported_features(after.protocol) >= {"rowTracking", "domainMetadata"}


@pytest.mark.conformance("RT-01")
def test_row_tracking_is_never_both_enabled_and_suspended() -> None:
    tracked = listed("domainMetadata", "rowTracking", reader=1)
    for before, asked in (
        ("rowTrackingSuspended", "enableRowTracking"),
        ("enableRowTracking", "rowTrackingSuspended"),
    ):
        with pytest.raises(RefusedError, match="at the same time"):
            changed(metadata(**{before: "true"}), protocol=tracked, **{asked: "true"})
    suspended = metadata(rowTrackingSuspended="true")
    resumed = changed(
        suspended, protocol=tracked, rowTrackingSuspended="false", enableRowTracking="true"
    )
    assert resumed.forbids_files
    enabled = metadata(enableRowTracking="true")
    assert not changed(enabled, protocol=tracked, checkpointInterval="3").forbids_files
    assert not changed(enabled, protocol=tracked, enableRowTracking="false").forbids_files


@pytest.mark.conformance("FEAT-11", "FEAT-12", "RT-11")
@pytest.mark.parametrize(
    ("dormant", "value", "asked"),
    [
        ("enableRowTracking", "true", {"feature_rowTracking": "supported"}),
        ("columnMapping_mode", "name", {"minReaderVersion": "2", "minWriterVersion": "5"}),
        ("enableInCommitTimestamps", "true", {"feature_inCommitTimestamp": "supported"}),
        ("constraints_positive", "id > 0", {"minWriterVersion": "3"}),
        ("constraints_positive", "id > 0", {"feature_checkConstraints": "supported"}),
    ],
)
def test_a_feature_never_activates_an_unrequested_property(
    dormant: str, value: str, asked: dict[str, str]
) -> None:
    table = metadata(**{dormant: value})
    with pytest.raises(RefusedError, match="would activate the property"):
        changed(table, **asked)
    assert changed(table, checkpointInterval="3").protocol is NEW


def test_a_requested_dormant_property_is_activated() -> None:
    after = changed(metadata(columnMapping_mode="name"), columnMapping_mode="name")
    assert "delta.columnMapping.maxColumnId" in after.metadata.configuration
    assert "columnMapping" in supported_features(after.protocol)
    removed = changed(
        metadata(enableRowTracking="true"),
        removed=("delta.enableRowTracking",),
        feature_rowTracking="supported",
    )
    assert "rowTracking" in supported_features(removed.protocol)


@pytest.mark.conformance("ICE-03")
@pytest.mark.parametrize(
    ("features", "configuration"),
    [
        (["icebergCompatV1", "columnMapping"], {}),
        (["icebergCompatV2", "columnMapping"], {"enableIcebergCompatV2": "true"}),
        ([], {"compatibility_symlinkFormatManifest_enabled": "true"}),
    ],
)
def test_deletion_vectors_exclude_formats_that_ignore_them(
    features: list[str], configuration: dict[str, str]
) -> None:
    table = (
        metadata(columnMapping_mode="name", **configuration)
        if features
        else metadata(**configuration)
    )
    protocol = listed(*features, reader=2) if features else NEW
    with pytest.raises(RefusedError, match="deletion vectors"):
        changed(table, protocol=protocol, enableDeletionVectors="true")
    with_vectors = metadata(enableDeletionVectors="true")
    with pytest.raises(RefusedError, match="deletion vectors"):
        changed(
            with_vectors,
            protocol=listed("deletionVectors"),
            compatibility_symlinkFormatManifest_enabled="true",
        )


def test_deletion_vectors_are_allowed_with_inactive_iceberg_v2() -> None:
    protocol = listed("icebergCompatV2", "columnMapping", reader=2)
    after = changed(
        metadata(columnMapping_mode="name"), protocol=protocol, enableDeletionVectors="true"
    )
    assert "deletionVectors" in supported_features(after.protocol)


def test_the_change_data_feed_reserves_column_names() -> None:
    schema = NESTED.replace('"name":"b"', '"name":"_Commit_Version"')
    with pytest.raises(RefusedError, match="_commit_version"):
        changed(metadata(schema), enableChangeDataFeed="true")
    assert changed(metadata(schema), enableChangeDataFeed="false").protocol is NEW


def test_statistics_columns_must_exist() -> None:
    changed(dataSkippingStatsColumns="a.x, `b`,M")
    with pytest.raises(InvalidRequestError, match="no column 'nope'"):
        changed(dataSkippingStatsColumns="b,nope")
    with pytest.raises(InvalidRequestError, match="no column"):
        changed(dataSkippingStatsColumns="a.y.element.z")


@given(st.lists(st.sampled_from([rule.name for rule in RULES if rule.feature]), unique=True))
def test_repeating_a_request_changes_nothing(names: list[str]) -> None:
    values = {"delta.checkpointPolicy": "v2", "delta.columnMapping.mode": "name"}
    asked = {name: values.get(name, "true") for name in names if "Iceberg" not in name}
    request = ChangeRequest.of_properties(asked, [])
    once = changed_table(NEW, metadata(), request, new_id=lambda: "7c")
    again = changed_table(once.protocol, once.metadata, request, new_id=lambda: "8d")
    assert (again.protocol, again.metadata) == (once.protocol, once.metadata)
    assert supported_features(once.protocol) >= supported_features(NEW)


text = st.text(st.characters(codec="utf-8"), max_size=8)
numbers = st.sampled_from(["0", "-1", "1.0", "1.10", "1e400", "123456789012345678901234567890"])


@st.composite
def raw_schemas(draw: st.DrawFn) -> str:
    def value(depth: int) -> str:
        kinds = 3 if depth else 5
        match draw(st.integers(0, kinds)):
            case 0:
                return json.dumps(draw(text), ensure_ascii=False)
            case 1:
                return draw(numbers)
            case 2 | 3:
                return draw(st.sampled_from(["true", "false", "null"]))
            case 4:
                return f"[{','.join(value(depth + 1) for _ in range(draw(st.integers(0, 2))))}]"
        keys = draw(st.lists(text, unique=True, max_size=2))
        return (
            "{"
            + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{value(depth + 1)}" for k in keys)
            + "}"
        )

    fields = [
        f'{{"name":{json.dumps(draw(text), ensure_ascii=False)},"type":"long","metadata":'
        f'{{"k":{value(0)}}}}}'
        for _ in range(draw(st.integers(0, 3)))
    ]
    return f'{{"type":"struct","fields":[{",".join(fields)}]}}'


@given(raw_schemas())
def test_an_unchanged_schema_keeps_its_text(schema: str) -> None:
    assert edit_fields(schema, lambda field: None) == schema


def test_unpaired_surrogates_are_kept() -> None:
    schema = '{"type":"struct","fields":[{"name":"a","type":"long","metadata":{"c":"\\ud800"}}]}'
    assert edit_fields(schema, lambda field: None) == schema
