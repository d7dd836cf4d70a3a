"""Commits in progress, and commits of other writers that were made first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from delta_maintenance.protocol.actions import CommitInfo, DomainMetadata, Metadata, Protocol
from delta_maintenance.protocol.commit import (
    BACKFILL,
    Attempt,
    ConcurrentCommit,
    IsolationLevel,
    ReadSet,
    StagedActions,
    removes_of,
    staged_adds,
    staged_removes,
)
from tests.support.tables import actions as log

ROOT = "memory://conflicts/t"
FEATURES = (
    "appendOnly",
    "columnMapping",
    "deletionVectors",
    "domainMetadata",
    "inCommitTimestamp",
    "rowTracking",
    "v2Checkpoint",
)
PROTOCOL = Protocol(
    min_reader_version=3,
    min_writer_version=7,
    reader_features=("columnMapping", "deletionVectors", "v2Checkpoint"),
    writer_features=FEATURES,
)
METADATA = Metadata(id="m", schema_string=log.SCHEMA_STRING, configuration={"a": "1"})


def adds(*paths: str, dv: str | None = None, **fields: Any) -> pa.Table:
    vector = log.deletion_vector(dv, storage_type="i") if dv is not None else None
    standard: dict[str, Any] = {"dataChange": False, "stats": '{"numRecords":10}'}
    return staged_adds([log.add(p, dv=vector, **(standard | fields))["add"] for p in paths])


def removes(*paths: str, **fields: Any) -> pa.Table:
    return staged_removes([log.remove(p, **fields)["remove"] for p in paths])


def attempt(operation: str = "TEST", reads: ReadSet | None = None, **staged: Any) -> Attempt:
    actions = StagedActions(**staged)
    return Attempt(
        root=ROOT,
        operation=operation,
        base_version=4,
        protocol=PROTOCOL,
        metadata=METADATA,
        high_water_mark=99,
        previous_ms=1_000,
        actions=actions,
        reads=reads or ReadSet(),
        isolation=IsolationLevel.needed_by(actions),
    )


def won(
    operation: str = "WRITE", tags: Mapping[str, str] | None = None, **held: Any
) -> ConcurrentCommit:
    values = {"operation": operation} | ({"tags": tags} if tags else {})
    info = CommitInfo(values=values)
    return ConcurrentCommit(version=5, modified_ms=2_000, commit_info=info, **held)


def changed(configuration: Mapping[str, str] | None = None, **fields: Any) -> Metadata:
    return replace(
        METADATA, configuration={**METADATA.configuration, **(configuration or {})}, **fields
    )


def with_features(*names: str) -> Protocol:
    return replace(PROTOCOL, writer_features=names, reader_features=())


def paths(batch: pa.Table) -> list[str]:
    return list(batch["path"].to_pylist())


def optimize() -> Attempt:
    live = adds("a", "b")
    return attempt(
        "OPTIMIZE",
        ReadSet(files=live),
        adds=adds("new"),
        removes=removes_of(live, data_change=False),
    )


def backfill() -> Attempt:
    return attempt(BACKFILL, ReadSet(files=adds("a", "b")), adds=adds("a", "b"))


def recompute() -> Attempt:
    return attempt("COMPUTE STATS", ReadSet(files=adds("a", "b")), adds=adds("a", "b"))


def empty() -> Attempt:
    return attempt("VACUUM START")


def properties() -> Attempt:
    return attempt("SET TBLPROPERTIES", metadata=changed({"delta.appendOnly": "true"}))


def upgrade() -> Attempt:
    more = replace(PROTOCOL, writer_features=(*FEATURES, "clustering"))
    return attempt("UPGRADE PROTOCOL", protocol=more)


def repair() -> Attempt:
    live = adds("a")
    return attempt("FSCK", ReadSet(files=live), removes=removes_of(live, data_change=True))


def append() -> Attempt:
    return attempt("WRITE", adds=adds("new", dataChange=True))


def delete_all() -> Attempt:
    return attempt("DELETE", ReadSet(whole_table=True), removes=removes("a"))


OPERATIONS: Mapping[str, Callable[[], Attempt]] = {
    "optimize": optimize,
    "backfill": backfill,
    "recompute": recompute,
    "empty": empty,
    "properties": properties,
    "upgrade": upgrade,
    "repair": repair,
    "append": append,
    "delete_all": delete_all,
}
WINNERS: Mapping[str, Callable[[], ConcurrentCommit]] = {
    "append": lambda: won(adds=adds("x", dataChange=True)),
    "remove same": lambda: won("DELETE", removes=removes("a")),
    "new vector": lambda: won("DELETE", removes=removes("a"), adds=adds("a", dv="0rr91")),
    "re-add same": lambda: won("OTHER STATS", adds=adds("a")),
    "remove other": lambda: won("DELETE", removes=removes("z")),
    "allowed metadata": lambda: won(metadata=changed({"delta.enableDeletionVectors": "true"})),
    "other metadata": lambda: won(metadata=changed({"b": "2"})),
    "same metadata": lambda: won(metadata=METADATA),
    "feature added": lambda: won(
        protocol=replace(PROTOCOL, writer_features=(*FEATURES, "vacuumProtocolCheck"))
    ),
    "demanding feature added": lambda: won(
        protocol=replace(PROTOCOL, writer_features=(*FEATURES, "checkConstraints"))
    ),
    "feature dropped": lambda: won(protocol=with_features(*FEATURES[:-1])),
    "same protocol": lambda: won(protocol=PROTOCOL),
    "backfill": lambda: won(BACKFILL, adds=adds("a", baseRowId=7, defaultRowCommitVersion=5)),
    "domain": lambda: won(domains={"d": DomainMetadata(domain="d", configuration="")}),
    "nothing": lambda: won("VACUUM END"),
}
