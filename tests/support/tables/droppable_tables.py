"""Tables with a feature that can be dropped, and their protocols afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import drop_feature
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.drop_feature import (
    DropFeatureOptions,
    DropFeaturePlan,
    DropFeatureResult,
)
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from tests.support.rewrites.data_files import put
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder, parquet_bytes

START = datetime.fromtimestamp(EPOCH_MS // 1000, UTC)
"""The time of version 0; each further version is a minute later."""
LEGACY_4 = ["appendOnly", "changeDataFeed", "checkConstraints", "generatedColumns", "invariants"]
BASIC = ["appendOnly", "invariants"]
STATS = '{"numRecords":10}'


class Clock:
    """The time of a test, for the store and for the library."""

    def __init__(self, instant: datetime = START + timedelta(hours=1, seconds=30)) -> None:
        self.instant = instant

    def __call__(self) -> datetime:
        return self.instant

    def pass_by(self, time: timedelta) -> None:
        self.instant += time

    def govern(self, store: Store) -> None:
        """Makes a store in memory use this time for its files."""
        assert isinstance(store, MemoryStore)
        store.now_ms = lambda: epoch_millis(self.instant)


@dataclass(frozen=True)
class Droppable:
    """A table that has a feature, and uses it unless that prevents the drop."""

    feature: str
    protocol: log.Action
    protected: log.Action
    """The protocol after the feature is dropped, with protected history if necessary."""
    truncated: log.Action | None = None
    """The same with truncated history; None if truncation is not possible."""
    configuration: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    """The remaining properties, except that of the protection."""
    more: Callable[[TableBuilder], object] = lambda _: None
    """Further commits."""

    def build(self, store: Store | None = None) -> TableBuilder:
        builder = TableBuilder(store)
        builder.commit(
            [
                log.commit_info("CREATE TABLE", inCommitTimestamp=EPOCH_MS),
                self.protocol,
                log.metadata(configuration={"user.own": "1", **self.configuration}),
                log.add("a", stats=STATS, **(_row_ids(0) if self.tracks_rows else {})),
            ]
        )
        # Footers are read before type widening is dropped.
        data = parquet_bytes(pa.table({"id": range(10), "part": ["p"] * 10}))
        put(builder.store, "a", data)
        self.more(builder)
        return builder

    @property
    def tracks_rows(self) -> bool:
        return self.feature == "rowTracking"


def _row_ids(first: int) -> dict[str, int]:
    return {"baseRowId": first, "defaultRowCommitVersion": 0}


def _vectors(builder: TableBuilder) -> None:
    """Adds a deletion vector to a file and removes the file; the vector is stored in its own
    folder.
    """
    vector = log.deletion_vector("Ab" + "ab^-aqEH.-t@S}K{vb[*k^")
    builder.commit([log.remove("a"), log.add("a", dv=vector, stats=STATS)])
    builder.commit(
        [log.remove("a", dv=vector, deletionTimestamp=EPOCH_MS), log.add("b", stats=STATS)]
    )


def _commit_times(builder: TableBuilder) -> None:
    info = log.commit_info("WRITE", inCommitTimestamp=EPOCH_MS + 60_000)
    builder.commit([info, log.add("b", stats=STATS)])


def _row_tracking(builder: TableBuilder) -> None:
    mark = log.domain("delta.rowTracking", '{"rowIdHighWaterMark":39}')
    files = [log.add(f"f{n}", stats=STATS, **_row_ids(10 * n)) for n in range(1, 4)]
    builder.commit([mark, *files])


def _domains(builder: TableBuilder) -> None:
    builder.commit([log.domain("app", '{"a":1}'), log.domain("delta.clustering", "{}")])


def _v2_checkpoint(builder: TableBuilder) -> None:
    builder.commit([log.add("b", stats=STATS)])
    builder.v2_checkpoint(sidecars=1)
    builder.commit([log.remove("a"), log.add("c", stats=STATS)])


def _listed(*names: str, readers: tuple[str, ...] = ()) -> log.Action:
    reader = 3 if readers else 1
    listed = {"reader_features": readers} if readers else {}
    return log.protocol(reader, 7, writer_features=[*readers, *names], **listed)


_PROTECTION = "checkpointProtection"

TABLES = {
    table.feature: table
    for table in (
        Droppable(
            feature="checkConstraints", protocol=log.protocol(1, 3), protected=log.protocol(1, 2)
        ),
        Droppable(
            feature="columnMapping",
            protocol=log.protocol(2, 5),
            protected=_listed(*LEGACY_4, _PROTECTION),
            truncated=log.protocol(1, 4),
        ),
        Droppable(
            feature="deletionVectors",
            protocol=_listed(*BASIC, readers=("deletionVectors",)),
            protected=_listed(*BASIC, _PROTECTION),
            truncated=log.protocol(1, 2),
            configuration={"delta.enableDeletionVectors": "true"},
            more=_vectors,
        ),
        Droppable(
            feature="domainMetadata",
            protocol=_listed("domainMetadata"),
            protected=log.protocol(1, 1),
            more=_domains,
        ),
        Droppable(
            feature="geospatial",
            protocol=_listed(readers=("geospatial",)),
            protected=_listed(_PROTECTION),
            truncated=log.protocol(1, 1),
        ),
        Droppable(
            feature="inCommitTimestamp",
            protocol=_listed("inCommitTimestamp", "domainMetadata"),
            protected=_listed("domainMetadata"),
            configuration={
                "delta.enableInCommitTimestamps": "true",
                "delta.inCommitTimestampEnablementVersion": "0",
                "delta.inCommitTimestampEnablementTimestamp": str(EPOCH_MS),
            },
            left={"delta.enableInCommitTimestamps": "false"},
            more=_commit_times,
        ),
        Droppable(
            feature="materializePartitionColumns",
            protocol=_listed("materializePartitionColumns"),
            protected=log.protocol(1, 1),
            configuration={"delta.enableMaterializePartitionColumnsFeature": "true"},
        ),
        Droppable(
            feature="rowTracking",
            protocol=_listed("domainMetadata", "rowTracking"),
            protected=_listed("domainMetadata"),
            configuration={
                "delta.enableRowTracking": "true",
                "delta.rowTracking.materializedRowIdColumnName": "_row-id-col-1",
                "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-version-col-1",
            },
            more=_row_tracking,
        ),
        Droppable(
            feature="typeWidening",
            protocol=_listed(readers=("typeWidening", "timestampNtz")),
            protected=_listed(_PROTECTION, readers=("timestampNtz",)),
            truncated=_listed(readers=("timestampNtz",)),
            configuration={"delta.enableTypeWidening": "true"},
        ),
        Droppable(
            feature="v2Checkpoint",
            protocol=_listed("rowTracking", "domainMetadata", readers=("v2Checkpoint",)),
            protected=_listed("rowTracking", "domainMetadata", _PROTECTION),
            truncated=_listed("rowTracking", "domainMetadata"),
            configuration={"delta.checkpointPolicy": "v2"},
            left={"delta.checkpointPolicy": "classic"},
            more=_v2_checkpoint,
        ),
        Droppable(
            feature="vacuumProtocolCheck",
            protocol=_listed(readers=("vacuumProtocolCheck",)),
            protected=_listed(_PROTECTION),
            truncated=log.protocol(1, 1),
        ),
    )
}
"""Every droppable feature except `checkpointProtection`, which is added by other drops."""


def planned(store: Store, clock: Clock, feature: str, **options: Any) -> DropFeaturePlan:
    """A plan for the table in the store."""
    asked = DropFeatureOptions(feature=feature, **options)
    return drop_feature.plan(Table(store).snapshot(), asked, context=RunContext.at(clock()))


def drop(store: Store, clock: Clock, feature: str, **options: Any) -> DropFeatureResult:
    """Plans and applies."""
    plan = planned(store, clock, feature, **options)
    return drop_feature.apply(Table(store), plan, context=RunContext.at(clock))


def comparable(protocol: Mapping[str, Any]) -> tuple[int, int, frozenset[str], frozenset[str]]:
    """Returns a protocol of the log without the order of its lists."""
    return (
        protocol["minReaderVersion"],
        protocol["minWriterVersion"],
        frozenset(protocol.get("readerFeatures") or ()),
        frozenset(protocol.get("writerFeatures") or ()),
    )


def built(table: Droppable, clock: Clock, store: Store | None = None) -> TableBuilder:
    """Builds the table in a store whose times are those of the clock."""
    builder = table.build(store)
    clock.govern(builder.store)
    return builder
