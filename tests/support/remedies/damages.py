"""Refusals of tables that somebody must restore or change outside of this library.

Each table is damaged, a command is refused, the owner of the table does what the message says, and
the command works.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.remedies.finding_remedies import BACKUP, RESTORE, Act, delete
from tests.support.remedies.refusals import (
    TRACKED,
    TRACKING,
    Made,
    Refusal,
    keep,
    lose_first_commit,
    mark,
)
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder, log_text, parquet_bytes

FIRST, COMMIT = "00000000000000000000.json", "00000000000000000001.json"
KEPT = "_delta_log/_kept_versions/audit.json"
OTHER = pa.table({"id": range(3), "part": ["another"] * 3})
Spoil = Callable[[TableBuilder], object]


def damaged(spoil: Spoil, **made: Any) -> Made:
    """A table with a backup, and with one more commit."""

    def damage(table: TableBuilder) -> None:
        table.commit([log.commit_info()])
        root = Path(table.store.root)
        shutil.copytree(root, root.parent / BACKUP)
        spoil(table)

    return Made(then=damage, **made)


def restored(spoil: Spoil, command: str, problem: str, **made: Any) -> Refusal:
    return Refusal(damaged(spoil, **made), command, problem, (RESTORE,))


def with_property(name: str, value: str, command: str, problem: str, right: str) -> Refusal:
    """A property that somebody sets to another value."""
    step = f"set-properties --set {name}={right}"
    return Refusal(Made(configuration={name: value}), command, problem, (step,))


def move_away(name: str) -> Act:
    def move(table: Any) -> None:
        root = Path(table.store.root)
        shutil.move(root / name, root.parent / "elsewhere")

    return Act("the folder is moved elsewhere", move)


def _link(table: TableBuilder) -> None:
    root = Path(table.store.root)
    shutil.move(root / "part-0.parquet", root.parent / "target.parquet")
    (root / "part-0.parquet").symlink_to(root.parent / "target.parquet")


def _unlink(table: Any) -> None:
    root = Path(table.store.root)
    (root / "part-0.parquet").unlink()
    shutil.move(root.parent / "target.parquet", root / "part-0.parquet")


def _nest_table(table: TableBuilder) -> None:
    Made().build(Path(table.store.root) / "inner")


def _leave_no_commit(table: TableBuilder) -> None:
    table.drop(COMMIT, "00000000000000000000.json")
    table.write("x.tmp", b"")


def _leave_no_commit_of_the_checkpoint(table: TableBuilder) -> None:
    table.checkpoint()
    table.drop(COMMIT)


def _leave_part(table: TableBuilder) -> None:
    """Leaves the first of two parts of a checkpoint, and no commit."""
    names = table.checkpoint(parts=2)
    table.drop(FIRST, COMMIT, names[1])


def _without(name: str) -> log.Action:
    action = log.metadata()
    del action["metaData"][name]
    return action


def _damage_checkpoint_and_file(table: TableBuilder) -> None:
    table.commit([log.txn("app", 1)])
    table.checkpoint(actions=[action for action in table.state() if "txn" not in action])
    table.store.delete("part-0.parquet")


def _damage_kept_version(table: TableBuilder) -> None:
    keep(table)
    table.store.put(KEPT, b"{")


def mapped(*names: tuple[str, str]) -> str:
    """A schema with column mapping: logical and physical names."""
    schema = json.loads(
        columns(
            *((name, kind, True) for (name, _), kind in zip(names, ("long", "string"), strict=True))
        )
    )
    for number, (field, (_, physical)) in enumerate(zip(schema["fields"], names, strict=True), 1):
        field["metadata"] = {
            "delta.columnMapping.id": number,
            "delta.columnMapping.physicalName": physical,
        }
    return json.dumps(schema)


def commit(text: str, action: log.Action) -> Act:
    return Act(text, lambda table: table.commit([action]) and None)


def columns(*fields: tuple[str, str, bool]) -> str:
    return json.dumps(
        {
            "type": "struct",
            "fields": [
                {"name": name, "type": kind, "nullable": nullable, "metadata": {}}
                for name, kind, nullable in fields
            ],
        }
    )


def _remove_file(table: TableBuilder) -> None:
    table.commit([log.remove("part-1.parquet", deletionTimestamp=1)])
    table.store.delete("part-1.parquet")


ICEBERG = "--set delta.enableIcebergCompatV2=true --set delta.columnMapping.mode=name"
VOID_LIST = json.dumps(
    {
        "type": "struct",
        "fields": [
            {
                "name": "id",
                "type": {"type": "array", "elementType": "void", "containsNull": True},
                "nullable": True,
                "metadata": {},
            }
        ],
    }
)

DAMAGES: Mapping[str, Refusal] = {
    "missing-commit": restored(
        lambda t: t.drop("00000000000000000000.json"),
        "optimize",
        "is missing and no usable checkpoint comes after it",
    ),
    "commit-without-json": restored(
        lambda t: t.write(COMMIT, b'{"commitInfo":'), "optimize", "not valid JSON"
    ),
    "commit-without-utf-8": restored(
        lambda t: t.write(COMMIT, b'{"commitInfo":{"operation":"\xff"}}\n'),
        "optimize",
        "is not UTF-8",
    ),
    "empty-commit": restored(lambda t: t.zero(COMMIT), "optimize", "the file is empty"),
    "replaced-data-file": restored(
        lambda t: t.store.put("part-0.parquet", parquet_bytes(OTHER)),
        "optimize --full",
        "bytes where the log says",
    ),
    "no-log": restored(
        lambda t: shutil.rmtree(Path(t.store.root) / "_delta_log"),
        "optimize",
        "the folder _delta_log is missing or empty",
    ),
    "no-commit": restored(_leave_no_commit, "optimize", "the log contains no commit"),
    "checkpoint-in-parts": restored(
        _leave_part, "optimize", "the log contains only an incomplete checkpoint"
    ),
    "no-protocol": restored(
        lambda t: t.write(FIRST, log_text([log.metadata()])), "optimize", "the snapshot has no"
    ),
    "no-metadata": restored(
        lambda t: t.write(FIRST, log_text([log.protocol()])), "optimize", "the snapshot has no"
    ),
    "no-timestamp": restored(
        _leave_no_commit_of_the_checkpoint,
        "set-properties --set a=b",
        "so its in-commit timestamp",
        features=("inCommitTimestamp",),
        configuration={"delta.enableInCommitTimestamps": "true"},
    ),
    "no-table-id": Refusal(
        Made(then=lambda t: t.commit([_without("id")])),
        "set-properties --set a=b",
        "the metadata of the table has no id, which is required",
        (commit("the engine that wrote the metadata repairs it", log.metadata()),),
    ),
    "no-schema": Refusal(
        Made(then=lambda t: t.commit([_without("schemaString")])),
        "optimize --full",
        "the table has no schema",
        (commit("the engine that wrote the metadata repairs it", log.metadata()),),
    ),
    "unknown-mapping-mode": Refusal(
        Made(readers=("columnMapping",), configuration={"delta.columnMapping.mode": "x"}),
        "optimize --full",
        "unknown column mapping mode",
        (commit("the writer of the property corrects it", log.metadata()),),
    ),
    "enabled-and-suspended": Refusal(
        Made(
            features=TRACKED,
            configuration=TRACKING | {"delta.rowTrackingSuspended": "true"},
            more=[mark(9)],
        ),
        "backfill-row-ids",
        "row tracking is enabled and suspended at the same time",
        ("set-properties --set delta.enableRowTracking=false",),
        "backfill-row-ids --lift-suspension",
    ),
    "enabled-and-suspended-by-properties": Refusal(
        Made(features=TRACKED, configuration=TRACKING, more=[mark(9)]),
        "set-properties --set delta.rowTrackingSuspended=true",
        "row tracking cannot be enabled and suspended at the same time",
        (),
        "set-properties --set delta.rowTrackingSuspended=true --set delta.enableRowTracking=false",
    ),
    "draft-row-ids": Refusal(
        Made(features=("domainMetadata",), more=[{"rowIdHighWaterMark": {"highWaterMark": 5}}]),
        "optimize --full",
        "which belongs to a 2023 draft of row tracking",
        ("upgrade-protocol --convert-draft",),
    ),
    "draft-row-ids-backfill": Refusal(
        Made(features=TRACKED, more=[{"rowIdHighWaterMark": {"highWaterMark": 5}}]),
        "backfill-row-ids",
        "which belongs to a 2023 draft of row tracking",
        (),
        "backfill-row-ids --convert-draft",
    ),
    "column-without-values": Refusal(
        Made(
            schema=columns(("id", "long", True), ("part", "string", True), ("new", "long", False))
        ),
        "optimize --full",
        "is NOT NULL, and rows of the file have no value in it",
        (
            commit(
                "the owner allows nulls with ALTER TABLE",
                log.metadata(
                    schema=columns(
                        ("id", "long", True), ("part", "string", True), ("new", "long", True)
                    )
                ),
            ),
        ),
    ),
    "reserved-column": Refusal(
        Made(schema=columns(("id", "long", True), ("_change_type", "string", True))),
        "set-properties --set delta.enableChangeDataFeed=true",
        "is reserved by the change data feed",
        (commit("the owner renames the column", log.metadata()),),
    ),
    "void-in-list": Refusal(
        Made(schema=VOID_LIST),
        "optimize --full",
        "contains void in an array or map",
        (commit("the owner changes the type", log.metadata()),),
    ),
    "only-void": Refusal(
        Made(schema=columns(("nothing", "void", True))),
        "optimize --full",
        "has no column that a data file can contain",
        (commit("the owner adds a column", log.metadata()),),
    ),
    "manifests-and-vectors": Refusal(
        Made(configuration={"delta.compatibility.symlinkFormatManifest.enabled": "true"}),
        "set-properties --set delta.enableDeletionVectors=true",
        "cannot have deletion vectors",
        ("set-properties --unset delta.compatibility.symlinkFormatManifest.enabled",),
    ),
    "iceberg-without-mapping": Refusal(
        Made(),
        "set-properties --set delta.enableIcebergCompatV2=true",
        "requires column mapping",
        (),
        "set-properties --set delta.enableIcebergCompatV2=true --set delta.columnMapping.mode=name",
    ),
    "two-iceberg-versions": Refusal(
        Made(),
        f"set-properties --set delta.enableIcebergCompatV1=true {ICEBERG}",
        "a table can have only one version of Iceberg compatibility",
        (),
        f"set-properties {ICEBERG}",
    ),
    "iceberg-v1-and-vectors": Refusal(
        Made(readers=("deletionVectors",)),
        f"set-properties {ICEBERG.replace('V2', 'V1')}",
        "does not allow the table feature deletionVectors",
        (),
        f"set-properties {ICEBERG}",
    ),
    "iceberg-v2-and-vectors": Refusal(
        Made(readers=("deletionVectors",), configuration={"delta.enableDeletionVectors": "true"}),
        f"set-properties {ICEBERG}",
        "does not allow writing deletion vectors",
        (),
        f"set-properties {ICEBERG} --set delta.enableDeletionVectors=false",
    ),
    "column-without-order": Refusal(
        Made(schema=columns(("id", "long", True), ("part", "binary", True))),
        "cluster --by part",
        "rows cannot be ordered by|statistics have no bounds",
        (),
        "cluster --by id",
    ),
    "other-name-of-feature": Refusal(
        Made(readers=("typeWidening-preview",)),
        "drop-feature --feature typeWidening",
        "the table does not list typeWidening but",
        (),
        "drop-feature --feature typeWidening-preview",
    ),
    "deleted-files-of-version": Refusal(
        Made(then=_remove_file),
        "keep-version audit --version 0",
        "data files of the version have been deleted",
        (),
        "keep-version audit --version 1",
    ),
    "managed-property": Refusal(
        Made(),
        "set-properties --set delta.columnMapping.maxColumnId=7",
        "cannot be set or removed directly",
        (),
        "set-properties --set delta.columnMapping.mode=name",
    ),
    "unknown-feature": Refusal(
        Made(),
        "upgrade-protocol --feature deletionVector",
        "unknown table feature",
        (),
        "upgrade-protocol --feature deletionVectors",
    ),
    "preview-name": Refusal(
        Made(),
        "upgrade-protocol --feature variantType-preview",
        "is a draft or preview name of the table feature",
        (),
        "upgrade-protocol --feature variantType",
    ),
    "name-that-needs-mapping": Refusal(
        Made(
            readers=("columnMapping",),
            configuration={
                "delta.columnMapping.mode": "name",
                "delta.columnMapping.maxColumnId": "2",
            },
            schema=mapped(("a b", "id"), ("part", "part")),
        ),
        "drop-feature --feature columnMapping",
        "rename it first",
        (
            commit(
                "the owner renames the column",
                log.metadata(
                    configuration={
                        "delta.columnMapping.mode": "name",
                        "delta.columnMapping.maxColumnId": "2",
                    },
                    schema=mapped(("ab", "id"), ("part", "part")),
                ),
            ),
        ),
    ),
    "damaged-kept-version": Refusal(
        Made(then=_damage_kept_version),
        "vacuum",
        "the file of a kept version cannot be understood",
        ("keep-version audit2 --version 0", delete(KEPT)),
    ),
    "repair-first": Refusal(
        Made(then=_damage_checkpoint_and_file),
        "fsck --remove-missing-files",
        "the newest version is read from",
        (),
        "fsck --remove-missing-files --repair",
    ),
    "unknown-version": Refusal(
        Made(), "inspect --version 9", "version 9 does not exist", (), "inspect --version 0"
    ),
    "unretained-version": Refusal(
        Made(then=lose_first_commit),
        "inspect --version 0",
        "is no longer retained",
        (),
        "inspect --version 1",
    ),
    "link": Refusal(
        Made(then=_link),
        "optimize --full",
        "a symbolic link below a table's root is never followed",
        (Act("the file itself is put there", _unlink),),
    ),
    "nested-table": Refusal(
        Made(then=_nest_table), "vacuum", "the folder contains another table", (move_away("inner"),)
    ),
    "unknown-codec": with_property(
        "delta.parquet.compression.codec",
        "zip",
        "optimize --full",
        "is not a Parquet codec",
        "zstd",
    ),
    "unknown-format-version": with_property(
        "delta.parquet.format.version", "x", "optimize --full", "format.version is", "2.12.0"
    ),
}
"""By what causes them."""
