"""Refusals whose remedy is a command, each with the table that causes it and its remedy played.

The command is refused, the steps of the remedy are played, and the command then works, or another
one that the remedy names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from delta_maintenance.operations import keep_version
from delta_maintenance.operations.keep_version import KeepVersionOptions
from tests.support.remedies.finding_remedies import Step
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder, parquet_bytes

ROWS = 3
TRACKED = ("domainMetadata", "rowTracking")
TRACKING = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_row_id",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row_version",
}
CLUSTERED = ("domainMetadata", "clustering")
SHORT = "add-constraint --dry-run positive"


@dataclass(frozen=True)
class Made:
    """A small table on the local disk."""

    features: Sequence[str] = ()
    """Features for writers; `readers` are for both."""
    readers: Sequence[str] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    partitioned_by: Sequence[str] = ()
    file: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each add."""
    more: Sequence[log.Action] = ()
    """Further actions of the first commit."""
    schema: str | None = None
    kind: pa.DataType = pa.int64()
    then: Callable[[TableBuilder], object] = lambda table: None

    def build(self, root: Path) -> TableBuilder:
        table = TableBuilder(root)
        names = [*self.readers, *self.features]
        protocol = (
            log.features(*self.readers, writer_only=self.features) if names else log.protocol()
        )
        metadata = log.metadata(
            configuration=self.configuration, partitioned_by=self.partitioned_by, schema=self.schema
        )
        files = [self._data(table, number) for number in range(2)]
        table.commit([protocol, metadata, *files, *self.more])
        self.then(table)
        return table

    def _data(self, table: TableBuilder, number: int) -> log.Action:
        ids = pa.array(range(number * ROWS, number * ROWS + ROWS), self.kind)
        columns = {"id": ids, "part": [f"p{number}"] * ROWS}
        for name in self.partitioned_by:
            columns.pop(name, None)
        path, data = f"part-{number}.parquet", parquet_bytes(pa.table(columns))
        table.store.put(path, data)
        stats = {
            "numRecords": ROWS,
            "minValues": {"id": number * ROWS},
            "maxValues": {"id": number * ROWS + ROWS - 1},
            "nullCount": {"id": 0},
        }
        values = {name: f"p{number}" for name in self.partitioned_by}
        standard: dict[str, Any] = {
            "size": len(data),
            "stats": json.dumps(stats),
            "partitionValues": values,
        }
        rows = {"baseRowId": number * ROWS, "defaultRowCommitVersion": 0}
        tracked = rows if "rowTracking" in self.features else {}
        return log.add(path, **(standard | tracked | dict(self.file)))


@dataclass(frozen=True)
class Refusal:
    """A refused command, and what helps."""

    table: Made
    command: str
    problem: str
    """Words of the message, as a regular expression."""
    steps: tuple[Step, ...]
    then: str | None = None
    """The command that works in the end, if it is another one."""

    def __str__(self) -> str:
        words = [f"`{step}`" if isinstance(step, str) else step.text for step in self.steps]
        return ", then ".join([*words, f"`{self.then or self.command}`"])


def clustered_by(*columns: object) -> log.Action:
    return log.domain("delta.clustering", json.dumps({"clusteringColumns": list(columns)}))


def keep(table: TableBuilder) -> None:
    keep_version.apply(
        table.open(),
        keep_version.plan(table.open().snapshot(), KeepVersionOptions(name="audit", keep=0)),
    )
    for _ in range(2):
        table.commit([log.commit_info()])
    table.checkpoint()


def _lose_version(table: TableBuilder) -> None:
    keep(table)
    table.drop("00000000000000000000.json")


def _damage_checkpoint(table: TableBuilder) -> None:
    table.checkpoint()
    table.truncate("00000000000000000000.checkpoint.parquet", -9)


def lose_first_commit(table: TableBuilder) -> None:
    table.commit([log.commit_info()])
    table.checkpoint()
    table.drop("00000000000000000000.json")


def mark(value: int) -> log.Action:
    return log.domain("delta.rowTracking", json.dumps({"rowIdHighWaterMark": value}))


CHECKED = Made(
    features=("appendOnly", "invariants", "checkConstraints"),
    configuration={"delta.constraints.positive": "id >= 0"},
)
PARTITIONED = Made(features=CLUSTERED, partitioned_by=["part"], more=[clustered_by(["id"])])

REFUSALS: Mapping[str, Refusal] = {
    "constraint-exists": Refusal(
        CHECKED,
        "add-constraint positive id>0 --dry-run",
        "the constraint positive already exists",
        ("set-properties --unset delta.constraints.positive",),
    ),
    "constraint-in-use": Refusal(
        CHECKED,
        "drop-feature --feature checkConstraints",
        "still uses checkConstraints",
        ("set-properties --unset delta.constraints.positive",),
    ),
    "constraint-by-property": Refusal(
        Made(),
        "set-properties --set delta.constraints.positive=id>0",
        "is a constraint, which is valid only after all rows are checked",
        (),
        "add-constraint positive id>0 --dry-run",
    ),
    "incremental-always": Refusal(
        Made(readers=("v2Checkpoint",)),
        "checkpoint --kind v2-json --incremental always",
        "an incremental checkpoint is not possible",
        (),
        "checkpoint --kind v2-json --incremental never",
    ),
    "wrong-checkpoint": Refusal(
        Made(then=lambda t: t.checkpoint(actions=[a for a in t.state() if "add" not in a])),
        "optimize",
        "the log contradicts this version",
        ("fsck --repair",),
    ),
    "damaged-checkpoint": Refusal(
        Made(then=_damage_checkpoint),
        "checkpoint",
        "there is a checkpoint file of this version that cannot be read",
        ("fsck --repair",),
    ),
    "no-clustering-columns": Refusal(
        Made(),
        "cluster",
        "the table has no clustering columns, and none are named",
        ("set-clustering --by id",),
    ),
    "no-clustering-columns-partitioned": Refusal(
        Made(partitioned_by=["part"]),
        "cluster",
        "the table has no clustering columns, and none are named",
        (),
        "cluster --by id",
    ),
    "other-clustering-columns": Refusal(
        Made(features=CLUSTERED, more=[clustered_by(["id"])]),
        "cluster --by part",
        "the table is clustered by id",
        ("set-clustering --by part",),
        "cluster",
    ),
    "clustered-and-partitioned": Refusal(
        PARTITIONED, "cluster --by id", "the table is clustered by id", ("set-clustering --none",)
    ),
    "clustered-by-partition-column": Refusal(
        Made(features=CLUSTERED, partitioned_by=["part"], more=[clustered_by(["part"])]),
        "cluster",
        "part is a partition column",
        ("set-clustering --none",),
        "cluster --by id",
    ),
    "clustering-of-partitioned-table": Refusal(
        PARTITIONED,
        "set-clustering --by id",
        "the table is partitioned",
        ("set-clustering --none",),
        "cluster --by id",
    ),
    "damaged-clustering": Refusal(
        Made(features=CLUSTERED, more=[log.domain("delta.clustering", "{")]),
        "cluster",
        "the clustering columns of the table cannot be determined",
        ("set-clustering --by id",),
    ),
    "damaged-clustering-without-statistics": Refusal(
        Made(
            features=CLUSTERED,
            more=[log.domain("delta.clustering", "{")],
            file={"stats": '{"numRecords":3}'},
        ),
        "optimize",
        "the clustering columns of the table cannot be determined",
        ("set-clustering --by id",),
    ),
    "clustering-by-protocol": Refusal(
        Made(),
        "upgrade-protocol --feature clustering",
        "the table feature clustering cannot be added",
        (),
        "set-clustering --by id",
    ),
    "clustering-without-statistics": Refusal(
        Made(configuration={"delta.dataSkippingNumIndexedCols": "0"}),
        "set-clustering --by id",
        "no statistics of this column are collected",
        ("set-properties --set delta.dataSkippingNumIndexedCols=32",),
    ),
    "protected-history": Refusal(
        Made(readers=("deletionVectors",), features=("checkpointProtection",)),
        "drop-feature --feature checkpointProtection",
        "can only be dropped together with the history",
        (),
        "drop-feature --feature checkpointProtection --truncate-history",
    ),
    "kept-version-gone": Refusal(
        Made(then=_lose_version),
        "vacuum",
        "the kept version audit cannot be opened",
        ("keep-version audit --release",),
    ),
    "kept-name-in-use": Refusal(
        Made(then=keep),
        "keep-version audit --version 1",
        "version 0 is kept as audit",
        ("keep-version audit --release",),
    ),
    "missing-file": Refusal(
        Made(then=lambda t: t.store.delete("part-0.parquet")),
        "vacuum",
        "a file of the table is missing",
        (),
        "vacuum --ignore-missing-files",
    ),
    "lite-without-full": Refusal(
        Made(then=lose_first_commit),
        "vacuum --mode lite",
        "no vacuum is known to have deleted the files",
        ("vacuum --mode full",),
    ),
    "row-tracking-by-property": Refusal(
        Made(),
        "set-properties --set delta.enableRowTracking=true",
        "row tracking cannot be enabled directly on a table that has files",
        (),
        "backfill-row-ids",
    ),
    "mapping-by-property": Refusal(
        Made(
            readers=("columnMapping",),
            configuration={
                "delta.columnMapping.mode": "name",
                "delta.columnMapping.maxColumnId": "2",
            },
            schema=json.dumps(
                {
                    "type": "struct",
                    "fields": [
                        {
                            "name": name,
                            "type": kind,
                            "nullable": True,
                            "metadata": {
                                "delta.columnMapping.id": number,
                                "delta.columnMapping.physicalName": name,
                            },
                        }
                        for number, (name, kind) in enumerate(
                            [("id", "long"), ("part", "string")], 1
                        )
                    ],
                }
            ),
        ),
        "set-properties --set delta.columnMapping.mode=none",
        "the column mapping mode cannot change",
        (),
        "drop-feature --feature columnMapping",
    ),
    "feature-by-property": Refusal(
        CHECKED,
        "set-properties --unset delta.feature.appendOnly",
        "is not stored as a property",
        (),
        "drop-feature --feature domainMetadata",
    ),
    "low-mark": Refusal(
        Made(features=TRACKED, configuration=TRACKING),
        "optimize",
        "has row IDs above the high-water mark -1",
        ("backfill-row-ids",),
    ),
    "no-row-ids": Refusal(
        Made(features=TRACKED, configuration=TRACKING, file={"baseRowId": None}, more=[mark(9)]),
        "optimize",
        "has no row IDs",
        ("backfill-row-ids",),
    ),
    "unnamed-row-id-columns": Refusal(
        Made(features=TRACKED, configuration={"delta.enableRowTracking": "true"}, more=[mark(9)]),
        "optimize",
        "the table does not name the columns that keep the row IDs",
        ("backfill-row-ids",),
    ),
    "dormant-property": Refusal(
        Made(configuration={"delta.enableDeletionVectors": "true"}),
        "upgrade-protocol --feature deletionVectors",
        "would activate the property delta.enableDeletionVectors",
        (),
        "set-properties --set delta.enableDeletionVectors=true",
    ),
    "suspended-row-tracking": Refusal(
        Made(features=TRACKED, configuration={"delta.rowTrackingSuspended": "true"}),
        "backfill-row-ids",
        "row tracking is suspended",
        (),
        "backfill-row-ids --lift-suspension",
    ),
    "narrow-file": Refusal(
        Made(kind=pa.int32()),
        "optimize",
        "does not have the feature typeWidening",
        ("upgrade-protocol --feature typeWidening",),
    ),
    "append-only": Refusal(
        Made(
            configuration={"delta.appendOnly": "true"},
            then=lambda t: t.store.delete("part-0.parquet"),
        ),
        "fsck --remove-missing-files",
        "the table is append-only",
        (),
        "fsck --remove-missing-files --allow-append-only",
    ),
}
"""By what causes them."""

ELSEWHERE: Mapping[str, str] = {
    "an unreadable checkpoint file exists": "the refusal damaged-checkpoint, if a writer is faster",
    "the checkpoint has": "the refusal wrong-checkpoint, if the evidence is not complete",
    "drop the constraints first, with set-properties": "the refusal constraint-in-use",
    "use backfill-row-ids, which assigns row IDs": "the refusal row-tracking-by-property",
    "row tracking is enabled, and the file has no": "the refusal no-row-ids, on a file",
    "check the dry run, then give --allow-large-delete": "the tests of vacuum",
    "run fsck again after the repair": "the tests of policies, after each repair here",
    "choose other columns with set-clustering": "the refusal other-clustering-columns",
    "drop the feature columnMapping with drop-feature, and": "the tests of manifests",
    "the version that readers of Iceberg see (UniForm)": "the tests of vacuum and UniForm",
    "see with fsck": "fsck says what is wrong, and its findings have remedies",
    "run fsck, which says by whom": "fsck says what is wrong, and its findings have remedies",
    "run fsck, which names the files": "fsck says what is wrong, and its findings have remedies",
    "check the high-water mark of the table with fsck": "row IDs of 64 bits have no remedy",
}
"""Words of other messages and remedies that name a command, and what plays these, or why nothing
does.
"""
