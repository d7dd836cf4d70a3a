"""Rules for the contents of one commit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.protocol.actions import DomainMetadata, Metadata, Protocol, Txn
from delta_maintenance.protocol.commit.rules import check_commit
from delta_maintenance.protocol.commit.staged import (
    ReadSet,
    StagedActions,
    removes_of,
    staged_adds,
    staged_removes,
)
from tests.support.tables import actions as log

ROOT = "/data/t"
PROTOCOL = Protocol(
    min_reader_version=3,
    min_writer_version=7,
    reader_features=("deletionVectors",),
    writer_features=("appendOnly", "deletionVectors", "domainMetadata", "rowTracking"),
)
METADATA = Metadata(id="m", schema_string=log.SCHEMA_STRING)
COUNTED = {"stats": '{"numRecords":10}'}


def adds(*actions: dict[str, Any]) -> pa.Table:
    return staged_adds([action["add"] for action in actions])


def removes(*actions: dict[str, Any]) -> pa.Table:
    return staged_removes([action["remove"] for action in actions])


def check(
    reads: ReadSet | None = None,
    protocol: Protocol = PROTOCOL,
    metadata: Metadata = METADATA,
    **staged: Any,
) -> None:
    check_commit(
        StagedActions(**staged),
        protocol=protocol,
        metadata=metadata,
        reads=reads or ReadSet(),
        root=ROOT,
    )


def dv(name: str = "0rr91") -> dict[str, Any]:
    return log.deletion_vector(name, storage_type="i")


@pytest.mark.conformance("TXN-12")
def test_an_empty_commit_is_allowed() -> None:
    check()


@pytest.mark.conformance("LOG-08")
@pytest.mark.parametrize(
    "staged",
    [
        {"txns": (Txn(app_id="a", version=1), Txn(app_id="a", version=2))},
        {
            "domains": (
                DomainMetadata(domain="d", configuration="1"),
                DomainMetadata(domain="d", configuration="", removed=True),
            )
        },
    ],
)
def test_duplicate_keys_are_refused(staged: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="at most one"):
        check(**staged)


@pytest.mark.conformance("LOG-08", "FILE-07")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (log.add("f"), log.add("f")),
        (log.add("f", **COUNTED), log.add("f", dv=dv(), **COUNTED)),
        (log.add("f", dv=dv(), **COUNTED), log.add("f", dv=dv("0rr92"), **COUNTED)),
        (log.add("a%20b"), log.add(f"{ROOT}/a%20b")),
        (log.add("f"), log.add("%66")),
    ],
)
def test_duplicate_adds_are_refused(one: dict[str, Any], other: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="at most one add action per path"):
        check(adds=adds(one, other))


@pytest.mark.conformance("FILE-07")
def test_duplicate_removes_are_refused() -> None:
    with pytest.raises(RefusedError, match="at most one remove action per path"):
        check(removes=removes(log.remove("f"), log.remove("f", dv=dv())))
    with pytest.raises(RefusedError, match="adds and removes the same"):
        check(adds=adds(log.add("f")), removes=removes(log.remove("f")))
    with pytest.raises(RefusedError, match="adds and removes the same"):
        check(
            adds=adds(log.add("f", dv=dv(), **COUNTED)), removes=removes(log.remove("f", dv=dv()))
        )
    check(adds=adds(log.add("f", dv=dv(), **COUNTED)), removes=removes(log.remove("f")))


@pytest.mark.conformance("FILE-08")
def test_a_new_vector_requires_the_remove_of_the_old_pair() -> None:
    reads = ReadSet(files=adds(log.add("f", dv=dv()), log.add("g")))
    new = adds(log.add("f", dv=dv("0rr92"), **COUNTED))
    with pytest.raises(RefusedError, match="without removing"):
        check(reads, adds=new)
    with pytest.raises(RefusedError, match="without removing"):
        check(reads, adds=new, removes=removes(log.remove("g")))
    with pytest.raises(RefusedError, match="without removing"):
        check(reads, adds=new, removes=removes(log.remove("f")))
    check(reads, adds=new, removes=removes(log.remove("f", dv=dv())))


@pytest.mark.conformance("FILE-05")
def test_an_add_without_data_change_must_be_live_or_have_removes() -> None:
    quiet = adds(log.add("f", dataChange=False))
    with pytest.raises(RefusedError, match="must repeat a live file"):
        check(adds=quiet)
    with pytest.raises(RefusedError, match="must repeat a live file"):
        check(ReadSet(files=adds(log.add("g"))), adds=quiet)
    check(ReadSet(files=adds(log.add("f"))), adds=quiet)
    check(adds=quiet, removes=removes(log.remove("g", dataChange=False)))


def test_all_files_of_a_commit_have_one_data_change() -> None:
    with pytest.raises(RefusedError, match="same dataChange"):
        check(adds=adds(log.add("f")), removes=removes(log.remove("g", dataChange=False)))


@pytest.mark.conformance("FILE-04")
@pytest.mark.parametrize("field", ["partitionValues", "size", "modificationTime", "dataChange"])
def test_required_fields_of_an_add(field: str) -> None:
    with pytest.raises(RefusedError, match=rf"add\.{field} is missing"):
        check(adds=adds(log.add("f"), log.add("g", **{field: log.OMIT})))


def test_an_action_without_a_path_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        adds({"add": {"size": 1}})


def test_deletes_from_append_only_tables_are_refused() -> None:
    append_only = replace(METADATA, configuration={"delta.appendOnly": "true"})
    with pytest.raises(RefusedError, match="append-only"):
        check(metadata=append_only, removes=removes(log.remove("f")))
    check(
        metadata=append_only,
        removes=removes(log.remove("f", dataChange=False)),
        adds=adds(log.add("g", dataChange=False)),
    )


@pytest.mark.conformance("DOM-03", "DOM-04")
def test_domains_require_their_feature_and_a_known_owner() -> None:
    mine = (DomainMetadata(domain="mine", configuration="{}"),)
    check(domains=mine)
    with pytest.raises(RefusedError, match="domainMetadata"):
        check(protocol=Protocol(min_reader_version=1, min_writer_version=2), domains=mine)
    with pytest.raises(RefusedError, match=r"delta\.secret"):
        check(domains=(DomainMetadata(domain="delta.secret", configuration="{}"),))


@pytest.mark.conformance("FEAT-09")
def test_a_protocol_needs_the_requirements_of_its_features() -> None:
    lone = Protocol(min_reader_version=1, min_writer_version=7, writer_features=("rowTracking",))
    with pytest.raises(RefusedError, match="require domainMetadata"):
        check_commit(
            StagedActions(protocol=lone),
            protocol=lone,
            metadata=METADATA,
            reads=ReadSet(),
            root=ROOT,
        )


def test_deletion_vectors_require_their_feature_and_a_row_count() -> None:
    with pytest.raises(RefusedError, match="feature deletionVectors"):
        check(
            protocol=Protocol(min_reader_version=1, min_writer_version=2),
            adds=adds(log.add("f", dv=dv(), **COUNTED)),
        )
    with pytest.raises(RefusedError, match="number of rows"):
        check(adds=adds(log.add("f", dv=dv())))


@pytest.mark.conformance("RT-01")
def test_contradictory_row_tracking_forbids_commits() -> None:
    both = {"delta.enableRowTracking": "true", "delta.rowTrackingSuspended": "true"}
    with pytest.raises(RefusedError, match="enabled and suspended"):
        check(metadata=replace(METADATA, configuration=both))


@pytest.mark.conformance("FILE-09", "RT-07")
def test_a_remove_repeats_the_fields_of_its_add() -> None:
    fields = {
        "partitionValues": {"part": "x"},
        "size": 17,
        "tags": {"k": "v"},
        "baseRowId": 3,
        "defaultRowCommitVersion": 2,
        **COUNTED,
    }
    live = staged_adds([log.add("f", dv=dv(), **fields)["add"]], partition_columns=["part"])
    (row,) = removes_of(live, data_change=False).to_pylist()
    (add,) = live.to_pylist()
    for name in (*fields, "path", "deletionVector"):
        assert row[name] == add[name], name
    assert row["extendedFileMetadata"] is True
    assert row["dataChange"] is False


def test_parsed_statistics_without_json_are_refused() -> None:
    parsed = pa.table({"numRecords": [1, 1]}).to_struct_array()
    batch = adds(log.add("f", **COUNTED), log.add("g")).append_column("stats_parsed", parsed)
    with pytest.raises(RefusedError, match="stats_parsed"):
        staged_adds(batch)
    assert "stats_parsed" not in staged_adds(batch.slice(0, 1)).column_names
