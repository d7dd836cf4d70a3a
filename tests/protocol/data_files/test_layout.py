"""Which data files fit which version of a table."""

from __future__ import annotations

from typing import Any

import pytest

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions import Metadata, Protocol
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from tests.support.rewrites.data_files import ROW_TRACKING, field, schema_string

FEATURES = ("columnMapping", "rowTracking", "domainMetadata", "typeWidening", "deletionVectors")


def mapped(name: str, kind: object, number: int, **more: Any) -> dict[str, object]:
    physical = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"p{number}"}
    return field(name, kind, **physical, **more)


def layout(
    *fields: dict[str, object],
    partitioned_by: tuple[str, ...] = (),
    features: tuple[str, ...] = FEATURES,
    **configuration: str,
) -> DataFileLayout:
    named = {f"delta.{key.replace('_', '.')}": value for key, value in configuration.items()}
    return DataFileLayout.of(
        Protocol(
            min_reader_version=3,
            min_writer_version=7,
            reader_features=features,
            writer_features=features,
        ),
        Metadata(
            id="t",
            schema_string=schema_string(*fields),
            configuration={"delta.columnMapping.mode": "name"} | named,
            partition_columns=partitioned_by,
        ),
    )


A, B = mapped("a", "long", 1), mapped("b", "string", 2)
BASE = layout(A, B)


@pytest.mark.conformance("RW-28")
@pytest.mark.parametrize(
    ("later", "fits"),
    [
        (layout(A, B), True),
        (layout(mapped("renamed", "long", 1), B), True),
        (layout(mapped("a", "long", 1, comment="other"), B), True),
        (layout(A | {"nullable": False}, B), True),
        (layout(A, B, mapped("c", "date", 3)), True),
        (layout(mapped("c", "date", 3), B, A), True),
        (layout(A), False),
        (layout(A, mapped("b", "string", 5)), False),
        (layout(A, mapped("b", "binary", 2)), False),
        (layout(A, B, partitioned_by=("b",)), False),
        (layout(A, B, columnMapping_mode="id"), False),
        (layout(A, B, features=(*FEATURES, "materializePartitionColumns")), True),
    ],
)
def test_files_fit_a_later_version_with_the_same_layout(later: DataFileLayout, fits: bool) -> None:
    assert later.takes_files_of(BASE) is fits


@pytest.mark.conformance("RW-28", "RW-20", "RT-08")
def test_concurrently_enabled_row_tracking_invalidates_files_without_row_ids() -> None:
    def of(configuration: dict[str, str]) -> DataFileLayout:
        return DataFileLayout.of(
            Protocol(min_reader_version=1, min_writer_version=7, writer_features=FEATURES[1:3]),
            Metadata(id="t", schema_string=schema_string(A), configuration=configuration),
        )

    before, after = of({}), of(ROW_TRACKING)
    assert not after.takes_files_of(before)
    assert after.schema.names == ["a", "_row-id-col", "_row-commit-version-col"]
    suspended = of({**ROW_TRACKING, "delta.enableRowTracking": "false"})
    assert suspended.schema.names == ["a"] and suspended.takes_files_of(before)
    with pytest.raises(RefusedError, match="does not name the columns"):
        of({"delta.enableRowTracking": "true"})
