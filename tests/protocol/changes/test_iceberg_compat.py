"""Enabling Iceberg compatibility: requirements, entailed changes and conflicts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions import Metadata, Protocol
from delta_maintenance.protocol.changes.enable import ChangeRequest, TableChange, changed_table
from delta_maintenance.protocol.changes.iceberg_compat import NESTED_IDS
from delta_maintenance.protocol.features import supported_features
from delta_maintenance.protocol.schema import parse_schema, walk

NEW = Protocol(min_reader_version=1, min_writer_version=2)
MAPPED = {"delta.columnMapping.mode": "name"}
V1 = {"delta.enableIcebergCompatV1": "true"}
V2 = {"delta.enableIcebergCompatV2": "true"}


def column(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def struct(*columns: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": [*columns]}


def array(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def map_of(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def changed(
    *columns: dict[str, Any],
    asked: dict[str, str],
    protocol: Protocol = NEW,
    before: dict[str, str] | None = None,
    partitioned_by: tuple[str, ...] = (),
    features: tuple[str, ...] = (),
    removed: tuple[str, ...] = (),
) -> TableChange:
    schema = struct(*(columns or (column("id", "long"),)))
    metadata = Metadata(
        id="t",
        schema_string=json.dumps(schema),
        configuration=before or {},
        partition_columns=partitioned_by,
    )
    properties = {**asked, **{f"delta.feature.{name}": "supported" for name in features}}
    request = ChangeRequest.of_properties(properties, removed)
    return changed_table(protocol, metadata, request, new_id=lambda: "7c")


def listed(*names: str) -> Protocol:
    return Protocol(
        min_reader_version=3,
        min_writer_version=7,
        reader_features=tuple(name for name in names if not name.startswith("iceberg")),
        writer_features=names,
    )


@pytest.mark.conformance("ICE-04", "FEAT-09")
@pytest.mark.parametrize(("asked", "name"), [(V1, "icebergCompatV1"), (V2, "icebergCompatV2")])
def test_iceberg_compatibility_adds_its_feature_and_requires_column_mapping(
    asked: dict[str, str], name: str
) -> None:
    after = changed(asked={**asked, **MAPPED})
    assert {name, "columnMapping"} <= supported_features(after.protocol)
    assert after.metadata.configuration == {
        **asked,
        **MAPPED,
        "delta.columnMapping.maxColumnId": "1",
    }
    assert after.forbids_vectors is not None and after.forbids_files is None
    with pytest.raises(RefusedError, match="requires column mapping"):
        changed(asked=asked)


@pytest.mark.conformance("ICE-04", "CM-10")
def test_v2_assigns_nested_ids_after_all_column_ids() -> None:
    deep = map_of("string", array(array(struct(column("z", array("integer"))))))
    after = changed(column("a", array(array("integer"))), column("b", deep), asked={**V2, **MAPPED})
    schema = parse_schema(after.metadata.schema_string or "")
    nested = {path[-1]: field.metadata.get(NESTED_IDS) for path, field in walk(schema)}
    assert nested == {
        "a": {"a.element": 4, "a.element.element": 5},
        "b": {"b.key": 6, "b.value": 7, "b.value.element": 8, "b.value.element.element": 9},
        "z": {"z.element": 10},
    }
    assert after.metadata.configuration["delta.columnMapping.maxColumnId"] == "10"


@pytest.mark.conformance("ICE-04", "CM-10")
def test_v2_keeps_existing_nested_ids() -> None:
    mapped = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-7"}
    known = column("a", map_of("long", "long"), **mapped, **{NESTED_IDS: {"col-7.key": 90}})
    after = changed(
        known,
        asked=V2,
        protocol=listed("columnMapping"),
        before={**MAPPED, "delta.columnMapping.maxColumnId": "2"},
    )
    (field,) = parse_schema(after.metadata.schema_string or "").fields
    assert field.metadata[NESTED_IDS] == {"col-7.key": 90, "col-7.value": 91}
    assert after.metadata.configuration["delta.columnMapping.maxColumnId"] == "91"


@pytest.mark.conformance("ICE-02")
def test_v1_requires_partition_columns_in_existing_files() -> None:
    columns = (column("id", "long"), column("p", "string"))
    first = changed(*columns, asked={**V1, **MAPPED}, partitioned_by=("p",))
    assert first.forbids_files is not None and "REORG" in first.forbids_files.remedy
    second = changed(*columns, asked={**V2, **MAPPED}, partitioned_by=("p",))
    assert second.forbids_files is None


@pytest.mark.conformance("ICE-04")
@pytest.mark.parametrize(
    ("kind", "versions"),
    [
        ("decimal(10,2)", (V1, V2)),
        ("timestamp_ntz", (V1, V2)),
        (struct(column("x", "date")), (V1, V2)),
        (array("long"), (V2,)),
        (map_of("string", struct(column("x", "binary"))), (V2,)),
        ("void", ()),
        ("variant", ()),
        (array("void"), ()),
        (map_of("string", array("variant")), ()),
        ("geometry(OGC:CRS84)", ()),
        ("interval year", ()),
    ],
)
def test_supported_types(kind: Any, versions: tuple[dict[str, str], ...]) -> None:
    for asked in (V1, V2):
        wanted = {**asked, **MAPPED}
        if asked in versions:
            changed(column("c", kind), asked=wanted)
        else:
            with pytest.raises(RefusedError, match="does not support the type"):
                changed(column("c", kind), asked=wanted)


@pytest.mark.conformance("ICE-04", "TW-01")
@pytest.mark.parametrize(
    ("before", "after", "known"),
    [
        ("byte", "long", True),
        ("short", "integer", True),
        ("float", "double", True),
        ("decimal(5,2)", "decimal(9,2)", True),
        ("decimal(5, 2)", "decimal(9,2)", True),
        ("decimal(5,2)", "decimal(9,3)", False),
        ("integer", "double", False),
        ("date", "timestamp_ntz", False),
        ("byte", "decimal(10,0)", False),
    ],
)
def test_widened_columns(before: str, after: str, known: bool) -> None:
    changes = [{"fromType": before, "toType": after, "tableVersion": 3}]
    widened = column("c", after, **{"delta.typeChanges": changes})
    for asked in (V1, V2):
        if known:
            changed(widened, asked={**asked, **MAPPED}, protocol=listed("typeWidening"))
        else:
            with pytest.raises(RefusedError, match="column c was widened from"):
                changed(widened, asked={**asked, **MAPPED}, protocol=listed("typeWidening"))


@pytest.mark.conformance("ICE-03", "ICE-04")
def test_conflicting_features_and_versions() -> None:
    vectors = {"delta.enableDeletionVectors": "true"}
    for protocol, before in ((listed("deletionVectors"), {}), (listed("deletionVectors"), vectors)):
        with pytest.raises(RefusedError, match="deletion ?[Vv]ectors"):
            changed(asked={**V1, **MAPPED}, protocol=protocol, before=before)
    with pytest.raises(RefusedError, match="deletion vectors"):
        changed(asked={**V2, **MAPPED}, protocol=listed("deletionVectors"), before=vectors)
    changed(asked={**V2, **MAPPED}, protocol=listed("deletionVectors"))
    off = {"delta.enableDeletionVectors": "false"}
    changed(asked={**V2, **MAPPED, **off}, protocol=listed("deletionVectors"), before=vectors)
    with pytest.raises(RefusedError, match="one version"):
        changed(asked={**V1, **V2, **MAPPED})
    settled = {**MAPPED, "delta.columnMapping.maxColumnId": "1"}
    first = listed("columnMapping", "icebergCompatV1")
    mapped = column(
        "id", "long", **{"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "id"}
    )
    with pytest.raises(RefusedError, match="one version"):
        changed(mapped, asked=V2, protocol=first, before={**V1, **settled})
    instead = {**V2, "delta.enableIcebergCompatV1": "false"}
    changed(mapped, asked=instead, protocol=first, before={**V1, **settled})
    with pytest.raises(RefusedError, match="table feature deletionVectors"):
        changed(asked={}, features=("deletionVectors",), protocol=first, before={**V1, **settled})


def test_it_is_kept_while_iceberg_metadata_requires_it() -> None:
    uniform = {"delta.universalFormat.enabledFormats": "hudi,iceberg"}
    protocol = listed("columnMapping", "icebergCompatV2")
    before = {**V2, **MAPPED, **uniform, "delta.columnMapping.maxColumnId": "1"}
    (name,), (formats,) = V2, uniform
    with pytest.raises(RefusedError, match="requires delta.enableIcebergCompat"):
        changed(asked={}, removed=(name,), protocol=protocol, before=before)
    with pytest.raises(RefusedError, match="requires delta.enableIcebergCompat"):
        changed(asked={name: "false"}, protocol=protocol, before=before)
    changed(asked={}, removed=(name, formats), protocol=protocol, before=before)
