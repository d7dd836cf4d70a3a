"""Clustering columns in every format that the domain has been written in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from delta_maintenance.protocol.schema.clustering import (
    DOMAIN,
    clustering_columns,
    clustering_configuration,
)


@pytest.mark.conformance("CLU-02")
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["id", "a.b"], (("id",), ("a.b",))),
        ([["id"], ["s", "a.b"]], (("id",), ("s", "a.b"))),
        ([{"physicalName": ["col-7", "x"]}], (("col-7", "x"),)),
        ([], ()),
        ("id", None),
        (3, None),
        (None, None),
        ([3], None),
        ([[]], None),
        ([["id", 3]], None),
        ([["id"], {"logicalName": ["id"]}], None),
    ],
)
def test_every_format_of_clustering_columns(columns: Any, expected: Any) -> None:
    text = json.dumps({"clusteringColumns": columns, "domainName": DOMAIN})
    assert clustering_columns({DOMAIN: text}) == expected


@pytest.mark.conformance("CLU-02")
def test_no_columns_and_unknown_formats() -> None:
    assert clustering_columns({}) == clustering_columns({DOMAIN: "{}"}) == ()
    for text in ("[]", "nonsense", "3", "[" * 100_000):
        assert clustering_columns({DOMAIN: text}) is None


@pytest.mark.conformance("CLU-02")
@pytest.mark.parametrize("columns", [(), (("id",),), (("col-7", "x.y"), ("größe",))])
def test_columns_are_written_as_delta_spark_writes_them(
    columns: tuple[tuple[str, ...], ...],
) -> None:
    text = clustering_configuration(columns)
    assert clustering_columns({DOMAIN: text}) == columns
    assert list(json.loads(text)) == ["clusteringColumns", "domainName"]
