"""Every version of every real table of the corpus gives exactly the expected snapshot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import open_table
from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    NotADeltaTableError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from delta_maintenance.table.read import Snapshot
from tests.support.tables.corpus_tables import CORPUS, TABLES


def expectation(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CORPUS / "expected" / f"{name}.json").read_text())
    return loaded


def paths_sha256(snapshot: Snapshot) -> str:
    files = snapshot.live_files()
    lines = sorted(
        f"{path}\t{dv}".encode() if dv is not None else path.encode()
        for path, dv in zip(files["path"].to_pylist(), files["dv"].to_pylist(), strict=True)
    )
    return hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()


def _in_order(features: Iterable[str] | None) -> list[str] | None:
    return None if features is None else sorted(features)


def view(snapshot: Snapshot) -> dict[str, Any]:
    protocol = snapshot.protocol
    return {
        "num_files": snapshot.counts.num_files,
        "total_size": snapshot.counts.total_size,
        "paths_sha256": paths_sha256(snapshot),
        "num_files_with_dv": snapshot.counts.num_deletion_vectors,
        "protocol": {
            "minReaderVersion": protocol.min_reader_version,
            "minWriterVersion": protocol.min_writer_version,
            "readerFeatures": _in_order(protocol.reader_features),
            "writerFeatures": _in_order(protocol.writer_features),
        },
        "metadata_id": snapshot.metadata.id,
        "partition_columns": list(snapshot.metadata.partition_columns),
        "configuration": dict(snapshot.metadata.configuration),
        "txns": snapshot.txns,
        "domain_metadata": snapshot.domain_metadata,
    }


def expected_view(version: dict[str, Any]) -> dict[str, Any]:
    protocol = version["protocol"]
    return {
        **{
            key: version[key]
            for key in (
                "num_files",
                "total_size",
                "paths_sha256",
                "num_files_with_dv",
                "metadata_id",
                "partition_columns",
                "configuration",
                "txns",
                "domain_metadata",
            )
        },
        "protocol": {
            "minReaderVersion": protocol["minReaderVersion"],
            "minWriterVersion": protocol["minWriterVersion"],
            "readerFeatures": _in_order(protocol.get("readerFeatures")),
            "writerFeatures": _in_order(protocol.get("writerFeatures")),
        },
    }


def files_view(snapshot: Snapshot) -> list[dict[str, Any]]:
    return sorted(
        (
            {
                "path": row["path"],
                "dv": row["dv"],
                "size": row["size"],
                "partition_values": dict(row["partition_values"] or []),
                "num_records": row["num_records"],
                "base_row_id": row["base_row_id"],
                "default_row_commit_version": row["default_row_commit_version"],
            }
            for row in snapshot.live_files().to_pylist()
        ),
        key=lambda row: (row["path"], row["dv"] or ""),
    )


def expected_files(version: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(
        (
            {
                "path": row["path"],
                "dv": row["dv"]["id"] if row.get("dv") else None,
                "size": row["size"],
                "partition_values": row.get("partition_values", {}),
                "num_records": row.get("num_records"),
                "base_row_id": row.get("baseRowId"),
                "default_row_commit_version": row.get("defaultRowCommitVersion"),
            }
            for row in version["files"]
        ),
        key=lambda row: (row["path"], row["dv"] or ""),
    )


@pytest.mark.conformance("LOG-11", "REC-01", "REC-04", "CKPT-02", "LOG-05", "CDC-01")
@pytest.mark.parametrize("name", TABLES)
def test_every_version_gives_the_expected_snapshot(corpus: Path, name: str) -> None:
    expected = expectation(name)
    table = open_table(str(corpus / name))
    for number, version in expected.get("versions", {}).items():
        if version["status"] == "error":
            with pytest.raises(DeltaMaintenanceError) as failure:
                table.snapshot(version=int(number)).live_files()
            assert failure.value.exit_status in (2, 3, 5)
            continue
        snapshot = table.snapshot(version=int(number))
        assert view(snapshot) == expected_view(version), f"{name} version {number}"
        if "files" in version:
            files, wanted = files_view(snapshot), expected_files(version)
            for found, row in zip(files, wanted, strict=True):
                # The corpus counts rows by JSON statistics alone; ours come from structs as well.
                if row["num_records"] is None:
                    row["num_records"] = found["num_records"]
            assert files == wanted, f"{name} version {number}"


@pytest.mark.parametrize("name", TABLES)
def test_the_latest_version_opens_or_fails_as_expected(corpus: Path, name: str) -> None:
    expected = expectation(name)
    table = open_table(str(corpus / name))
    if expected["expected"] == "ok":
        assert table.snapshot().version == expected["latest_version"]
        return
    with pytest.raises(
        (CorruptTableError, NotADeltaTableError, UnsupportedFeatureError, VersionNotFoundError)
    ) as failure:
        table.snapshot()
    assert str(corpus / name) in str(failure.value)
    assert failure.value.remedy
