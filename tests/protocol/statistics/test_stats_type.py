"""The type of statistics in checkpoints."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.protocol.schema import parse_schema
from delta_maintenance.protocol.statistics.stats import statistics_arrow_type
from tests.support.logs.typed_statistics import INSTANT, LOCAL, struct


def delta_schema(*fields: dict[str, Any]) -> Any:
    return parse_schema(json.dumps({"type": "struct", "fields": list(fields)}))


def column(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


class TestType:
    @pytest.mark.conformance("STAT-04", "CKPT-14")
    def test_bounds_and_null_counts_mirror_the_schema_without_partition_columns(self) -> None:
        nested = {
            "type": "struct",
            "fields": [column("x", "decimal(38,5)"), column("flag", "boolean")],
        }
        unbounded = {"type": "struct", "fields": [column("raw", "binary")]}
        listed = {"type": "array", "elementType": "long", "containsNull": True}
        schema = delta_schema(
            column("Day", "date"),
            column("n", "byte"),
            column("at", "timestamp"),
            column("local", "timestamp_ntz"),
            column("s", nested),
            column("u", unbounded),
            column("l", listed),
            column("v", "variant"),
            column("nothing", "void"),
            column("empty", {"type": "struct", "fields": []}),
        )
        inner = struct(x=pa.decimal128(38, 5), flag=pa.bool_())
        bounds = struct(n=pa.int8(), at=INSTANT, local=LOCAL, s=inner)
        counts = struct(
            n=pa.int64(),
            at=pa.int64(),
            local=pa.int64(),
            s=struct(x=pa.int64(), flag=pa.int64()),
            u=struct(raw=pa.int64()),
            l=pa.int64(),
            v=pa.int64(),
            nothing=pa.int64(),
        )
        assert statistics_arrow_type(
            schema, partition_columns=["day"], mode="none", tight_bounds=True
        ) == struct(
            numRecords=pa.int64(),
            minValues=bounds,
            maxValues=bounds,
            nullCount=counts,
            tightBounds=pa.bool_(),
        )

    def test_parts_without_columns_are_omitted(self) -> None:
        only_lists = delta_schema(column("v", "binary"), column("p", "long"))
        assert statistics_arrow_type(
            only_lists, partition_columns=["p"], mode="none", tight_bounds=False
        ) == struct(numRecords=pa.int64(), nullCount=struct(v=pa.int64()))

    @pytest.mark.conformance("CKPT-13")
    def test_mapped_columns_have_physical_names_at_every_level(self) -> None:
        key = "delta.columnMapping.physicalName"
        inner = {"type": "struct", "fields": [column("x", "long", **{key: "col-2"})]}
        schema = delta_schema(
            column("p", "string", **{key: "col-0"}), column("s", inner, **{key: "col-1"})
        )
        leaf = pa.struct([("col-1", pa.struct([("col-2", pa.int64())]))])
        assert statistics_arrow_type(
            schema, partition_columns=["p"], mode="name", tight_bounds=False
        ) == struct(numRecords=pa.int64(), minValues=leaf, maxValues=leaf, nullCount=leaf)
