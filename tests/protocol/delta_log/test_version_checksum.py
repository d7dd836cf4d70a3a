"""Version checksum files: round trips, older forms, damage and comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions import DomainMetadata, Metadata, Protocol, Txn
from delta_maintenance.protocol.delta_log.version_checksum import (
    USUAL_BOUNDARIES,
    FileSizeHistogram,
    VersionChecksum,
    deleted_record_counts,
    differences,
    is_consistent,
    parse_checksum,
    render_checksum,
)

FULL: dict[str, Any] = {
    "txnId": "t-1",
    "tableSizeBytes": 30,
    "numFiles": 2,
    "numDeletedRecordsOpt": 4,
    "numDeletionVectorsOpt": 1,
    "numMetadata": 1,
    "numProtocol": 1,
    "inCommitTimestampOpt": 1_700_000_000_000,
    "setTransactions": [{"appId": "app", "version": 3, "lastUpdated": 5}],
    "domainMetadata": [{"domain": "d", "configuration": "{}", "removed": False}],
    "metadata": {
        "id": "m",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": '{"type":"struct","fields":[]}',
        "partitionColumns": ["p"],
        "configuration": {"delta.appendOnly": "true"},
        "createdTime": 1,
    },
    "protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly"]},
    "fileSizeHistogram": {
        "sortedBinBoundaries": [0, 20],
        "fileCounts": [1, 1],
        "totalBytes": [10, 20],
    },
    "deletedRecordCountsHistogramOpt": {"deletedRecordCounts": [1, 1, 0, 0, 0, 0, 0, 0, 0, 0]},
    "allFiles": [{"path": "a", "partitionValues": {"p": None}, "size": 10}],
    "someday": {"a": [1]},
}
KNOWN = FULL.keys() - {"someday"}


def parsed(**changes: Any) -> VersionChecksum:
    return parse_checksum(json.dumps(FULL | changes).encode())


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/_delta_log/" + "[0-9]" * 20 + ".crc"))


@pytest.mark.conformance("CRC-01")
def test_every_field_round_trips() -> None:
    checksum = parsed()

    assert json.loads(render_checksum(checksum)) == FULL
    assert list(json.loads(render_checksum(checksum))) == list(FULL)
    assert render_checksum(checksum).count(b"\n") == 1
    assert checksum.txns == (Txn(app_id="app", version=3, last_updated=5),)
    assert checksum.extra == {"someday": {"a": [1]}}


@pytest.mark.conformance("CRC-03")
@pytest.mark.parametrize(
    ("changes", "agrees"),
    [
        ({}, True),
        ({"protocol": None}, False),
        ({"metadata": None}, False),
        ({"numFiles": None}, False),
        ({"tableSizeBytes": None}, False),
        ({"numMetadata": 2}, False),
        ({"numDeletionVectorsOpt": 0}, False),
        ({"numDeletionVectorsOpt": None}, True),
        # One file is in the bin of 1 to 9 deleted rows.
        *(({"numDeletedRecordsOpt": rows}, 1 <= rows <= 9) for rows in (0, 1, 9, 10)),
        ({"numDeletedRecordsOpt": None}, True),
    ],
)
def test_numbers_of_a_checksum_must_not_contradict_each_other(
    changes: dict[str, Any], agrees: bool
) -> None:
    assert is_consistent(parsed(allFiles=None, **changes)) == agrees


@pytest.mark.conformance("CRC-02")
@pytest.mark.parametrize("name", FULL)
def test_each_field_may_be_missing_or_null(name: str) -> None:
    left = {key: value for key, value in FULL.items() if key != name}

    checksum = parse_checksum(json.dumps(left).encode())

    assert not list(differences(checksum, parsed()))
    if name in KNOWN:
        assert checksum == parsed(**{name: None})


@pytest.mark.conformance("CRC-08")
def test_the_histogram_is_read_under_its_old_name() -> None:
    old = {**FULL, "histogramOpt": FULL["fileSizeHistogram"], "numTransactions": 0}
    del old["fileSizeHistogram"]

    checksum = parse_checksum(json.dumps(old).encode())

    assert checksum.file_sizes == parsed().file_sizes
    assert checksum.extra["numTransactions"] == 0
    assert "histogramOpt" not in checksum.extra


@pytest.mark.conformance("CRC-02", "CRC-07")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"malformed",
        b"[1]",
        b"\xff{}",
        *(
            json.dumps(FULL | {name: value}).encode()
            for name, value in {
                "numFiles": "2",
                "tableSizeBytes": True,
                "txnId": 1,
                "setTransactions": [1],
                "domainMetadata": {},
                "metadata": [],
                "protocol": {"minReaderVersion": 1},
                "allFiles": ["a"],
                "fileSizeHistogram": {"sortedBinBoundaries": [0]},
                "deletedRecordCountsHistogramOpt": {"deletedRecordCounts": [1]},
            }.items()
        ),
        *(
            json.dumps(
                FULL
                | {
                    "fileSizeHistogram": {
                        "sortedBinBoundaries": bounds,
                        "fileCounts": counts,
                        "totalBytes": counts,
                    }
                }
            ).encode()
            for bounds, counts in (
                ([0, 5], [1]),
                ([1, 5], [1, 1]),
                ([0, 5, 5], [1, 1, 1]),
                ([], []),
            )
        ),
    ],
)
def test_invalid_checksums_are_corruption(data: bytes) -> None:
    with pytest.raises(CorruptTableError):
        parse_checksum(data)


@pytest.mark.conformance("CRC-08")
def test_every_checksum_of_the_corpus_is_read_and_keeps_its_content(corpus: Path) -> None:
    files = [file for file in files_of(corpus) if "malformed" not in file.parts[-3]]

    assert len(files) > 100
    for file in files:
        checksum = parse_checksum(file.read_bytes())
        assert parse_checksum(render_checksum(checksum)) == checksum, file


@pytest.mark.conformance("CRC-03")
@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({"table_size": 31}, "tableSizeBytes is 31"),
        ({"num_files": 3}, "numFiles is 3"),
        ({"num_deleted_records": 5}, "numDeletedRecordsOpt"),
        ({"num_deletion_vectors": 0}, "numDeletionVectorsOpt"),
        ({"num_metadata": 2}, "numMetadata"),
        ({"num_protocol": 0}, "numProtocol"),
        ({"in_commit_timestamp": 1}, "inCommitTimestampOpt"),
        ({"txns": ()}, "setTransactions"),
        ({"txns": (Txn(app_id="app", version=4, last_updated=5),)}, "setTransactions"),
        ({"domains": (DomainMetadata(domain="d", configuration="{1}"),)}, "domainMetadata"),
        ({"metadata": Metadata(id="other", schema_string=None)}, "metadata"),
        ({"protocol": Protocol(min_reader_version=1, min_writer_version=2)}, "protocol"),
        ({"file_sizes": FileSizeHistogram.of(np.array([10, 21]), (0, 20))}, "fileSizeHistogram"),
        ({"deleted_record_counts": (2, *[0] * 9)}, "deletedRecordCounts"),
    ],
)
def test_each_difference_is_reported_once(change: dict[str, Any], label: str) -> None:
    (clause,) = differences(replace(parsed(), **change), parsed())

    assert label in clause


def test_order_is_not_compared() -> None:
    txns = (Txn(app_id="b", version=1), Txn(app_id="a", version=2))
    protocol = Protocol(
        min_reader_version=1, min_writer_version=7, writer_features=("invariants", "appendOnly")
    )
    turned = replace(protocol, writer_features=("appendOnly", "invariants"))

    one = replace(parsed(), txns=txns, protocol=protocol)
    other = replace(parsed(), txns=txns[::-1], protocol=turned, txn_id=None, all_files=None)

    assert not list(differences(one, other))


@pytest.mark.conformance("CRC-07")
def test_the_bins_are_those_of_delta_spark(corpus: Path) -> None:
    stated = [
        parse_checksum(file.read_bytes()).file_sizes
        for file in files_of(corpus)
        if "malformed" not in str(file)
    ]

    assert {sizes.boundaries for sizes in stated if sizes is not None} == {USUAL_BOUNDARIES}


@pytest.mark.conformance("CRC-07")
def test_bins_start_at_their_boundary_and_the_last_is_open() -> None:
    histogram = FileSizeHistogram.of(np.array([0, 1023, 1024, 4095, 4096, 2**60]), (0, 1024, 4096))

    assert histogram.file_counts == (2, 2, 2)
    assert histogram.total_bytes == (1023, 1024 + 4095, 4096 + 2**60)


@pytest.mark.conformance("CRC-07")
def test_deleted_rows_fall_into_ten_fixed_bins() -> None:
    edges = [
        0,
        1,
        9,
        10,
        99,
        100,
        999,
        1000,
        9999,
        10**4,
        10**5,
        10**6,
        10**7,
        2**31 - 2,
        2**31 - 1,
    ]

    assert deleted_record_counts(np.array(edges)) == (1, 2, 2, 2, 2, 1, 1, 1, 2, 1)
    assert deleted_record_counts(np.array([2**62])) == (*[0] * 9, 1)


sizes = st.lists(st.integers(0, 2**40), max_size=30)


@given(stay=sizes, gone=sizes, come=sizes)
def test_a_changed_histogram_is_that_of_the_files_after_the_change(
    stay: list[int], gone: list[int], come: list[int]
) -> None:
    as_array = [np.array(values, np.int64) for values in (stay + gone, gone, come, stay + come)]
    before, minus, plus, after = as_array

    changed = FileSizeHistogram.of(before).changed(removed=minus, added=plus)

    assert changed == FileSizeHistogram.of(after)
