"""`inspect`: the exact document, and the expected numbers of real tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.tables.actions import (
    add,
    commit_info,
    deletion_vector,
    domain,
    features,
    metadata,
    remove,
    txn,
)
from tests.support.tables.table_builder import EPOCH_MS, MINUTE_MS, TableBuilder


def test_the_document_has_exactly_the_documented_fields(cli: Any, tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t")
    protocol = features("deletionVectors", writer_only=["domainMetadata"])
    properties = {"delta.appendOnly": "false"}
    builder.commit(
        [
            protocol,
            metadata(id="the-id", name="orders", partitioned_by=["d"], configuration=properties),
            add("d=1/a", size=10),
            add("d=1/b", size=20),
            txn("stream", 7),
            domain("delta.clustering", "{}"),
        ]
    )
    builder.checkpoint()
    vector = deletion_vector(cardinality=3)
    builder.commit([remove("d=1/a"), add("d=1/a", size=10, dv=vector), commit_info()])

    outcome = cli("inspect", builder.store.root, "--json")

    assert outcome.status == 0 and outcome.err == ""
    document = outcome.document
    log = document.pop("log")
    assert document == {
        "version": 1,
        "timestamp_ms": EPOCH_MS + MINUTE_MS,
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["deletionVectors", "domainMetadata"],
        },
        "metadata": {
            "id": "the-id",
            "name": "orders",
            "partitionColumns": ["d"],
            "configuration": properties,
        },
        "num_files": 2,
        "total_size": 30,
        "num_tombstones": 1,
        "num_deletion_vectors": 1,
        "num_deleted_rows": 3,
        "txns": {"stream": 7},
        "domain_metadata": {"delta.clustering": "{}"},
    }
    checkpoint_bytes = len(builder.read("00000000000000000000.checkpoint.parquet"))
    assert log == {
        "commits_since_checkpoint": 1,
        "checkpoint": {
            "version": 0,
            "kind": "classic",
            "files": 1,
            "sidecars": 0,
            "bytes": checkpoint_bytes,
        },
        "compactions": 0,
        "files_to_read": 2,
        "bytes_to_read": checkpoint_bytes + len(builder.read("00000000000000000001.json")),
        "oldest_commit": 0,
        "warnings": [],
    }


@pytest.mark.parametrize(
    ("kind", "files", "sidecars"),
    [
        ("classic", 1, 0),
        ("multi-part", 3, 0),
        ("v2-classic", 1, 0),
        ("v2-json", 3, 2),
        ("v2-parquet", 3, 2),
    ],
)
def test_every_kind_of_checkpoint_has_its_name(
    cli: Any, tmp_path: Path, kind: str, files: int, sidecars: int
) -> None:
    builder = TableBuilder(tmp_path / "t")
    builder.commit([features("v2Checkpoint"), metadata(), add("a"), add("b"), add("c")])
    if kind in ("classic", "multi-part"):
        builder.checkpoint(parts=files)
    else:
        builder.v2_checkpoint(
            sidecars=sidecars,
            encoding="json" if kind == "v2-json" else "parquet",
            **({"uuid": None} if kind == "v2-classic" else {}),
        )
    checkpoint = cli("inspect", builder.store.root, "--json").document["log"]["checkpoint"]
    assert (checkpoint["kind"], checkpoint["files"], checkpoint["sidecars"]) == (
        kind,
        files,
        sidecars,
    )


def test_compactions_in_use_and_a_cleaned_log_are_counted(cli: Any, builder: TableBuilder) -> None:
    builder.compaction(1, 2)
    log = cli("inspect", builder.store.root, "--json").document["log"]
    assert (log["compactions"], log["files_to_read"], log["commits_since_checkpoint"]) == (1, 2, 3)
    builder.checkpoint(2)
    builder.drop("00000000000000000000.json", "00000000000000000001.json")
    assert cli("inspect", builder.store.root, "--json").document["log"]["oldest_commit"] == 2


def test_time_travel_by_version_and_by_timestamp(cli: Any, table: str) -> None:
    assert cli("inspect", table, "--json", "--version", 1).document["num_files"] == 2
    at_one = EPOCH_MS + MINUTE_MS
    assert cli("inspect", table, "--json", "--timestamp", at_one).document["version"] == 1
    iso = "2023-11-14T22:14:30+00:00"
    assert cli("inspect", table, "--json", "--timestamp", iso).document["version"] == 1
    for wrong in ("yesterday", "2023-11-14T22:14:30", "1999-01-01T00:00:00Z", "5"):
        outcome = cli("inspect", table, "--json", "--timestamp", wrong)
        assert (outcome.status, outcome.out) == (2, ""), wrong


def test_people_get_the_same_facts_as_text(cli: Any, builder: TableBuilder) -> None:
    builder.checkpoint(1)
    outcome = cli("inspect", builder.store.root)
    assert outcome.status == 0 and outcome.err == ""
    assert "3 (60 B)" in outcome.out
    assert "1: classic, 1 file" in outcome.out
    with pytest.raises(json.JSONDecodeError):
        json.loads(outcome.out)


def test_real_tables_give_the_expected_numbers(cli: Any, corpus: Path) -> None:
    checked = 0
    for path in sorted((corpus / "expected").glob("*.json")):
        expected = json.loads(path.read_text())
        if expected["expected"] != "ok":
            continue
        latest = expected["versions"][str(expected["latest_version"])]
        document = cli("inspect", corpus / path.stem, "--json").document
        protocol = latest["protocol"]
        assert document["version"] == expected["latest_version"], path.stem
        assert (
            document["num_files"],
            document["total_size"],
            document["num_deletion_vectors"],
        ) == (latest["num_files"], latest["total_size"], latest["num_files_with_dv"]), path.stem
        assert document["txns"] == latest["txns"], path.stem
        assert document["domain_metadata"] == latest["domain_metadata"], path.stem
        assert document["metadata"]["id"] == latest["metadata_id"], path.stem
        assert document["metadata"]["configuration"] == latest["configuration"], path.stem
        assert document["metadata"]["partitionColumns"] == latest["partition_columns"], path.stem
        for key in ("minReaderVersion", "minWriterVersion"):
            assert document["protocol"][key] == protocol[key], path.stem
        for key in ("readerFeatures", "writerFeatures"):
            assert set(document["protocol"][key] or ()) == set(protocol.get(key) or ()), path.stem
        checked += 1
    assert checked > 100


@pytest.mark.conformance("CAT-02")
@pytest.mark.parametrize(
    "name", ["kernel-catalog-owned-preview", "kernelrs-uc-catalog_managed_0", "dat-no_stats"]
)
def test_a_catalog_managed_table_is_shown_as_published_with_a_warning(
    name: str, cli: Any, corpus: Path
) -> None:
    path = corpus / name
    document = cli("inspect", str(path), "--json").document
    published = max(int(file.stem) for file in path.glob("_delta_log/[0-9]*.json"))
    assert document["version"] == published
    told = [warning for warning in document["log"]["warnings"] if "catalog" in warning]
    assert len(told) == (0 if name == "dat-no_stats" else 1)
    spoken = cli("inspect", str(path), "--version", str(published)).err
    assert spoken.count("there may be newer ones") == len(told)
