"""How each remedy that a finding names is played, step by step, on the table that has the finding.

A step that is text is a command, played by the command line with the address of the table. Its
words are in the remedy. Any other step is what a person or the writer of the table does.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delta_maintenance.storage import MemoryStore
from tests.support.operations.fsck_findings import add_again
from tests.support.tables import actions as log
from tests.support.tables.sound_tables import CONFIGURATION, DATA, SoundTable


@dataclass(frozen=True)
class Act:
    """What somebody does outside of this library."""

    text: str
    do: Callable[[SoundTable], object]


Step = str | Act


@dataclass(frozen=True)
class Played:
    """Steps after which the finding is gone."""

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        words = (f"`{step}`" if isinstance(step, str) else step.text for step in self.steps)
        return f"{', then '.join(words)}: the finding is gone"


@dataclass(frozen=True)
class ByPerson:
    """What a person must find out, because no test can."""

    question: str

    def __str__(self) -> str:
        return f"a person must find out {self.question}"


Answer = Played | ByPerson
BACKUP = "backup"
"""The folder beside the table, a copy of the sound table."""


def played(*steps: Step) -> tuple[Answer, ...]:
    return (Played(steps),)


def write(*actions: Any) -> Act:
    """The writer commits the intended state."""

    def do(table: SoundTable) -> None:
        table.step(*(action(table) if callable(action) else action for action in actions))

    return Act("the writer commits the intended state", do)


def _restore(table: SoundTable) -> None:
    root = Path(table.store.root)
    shutil.copytree(root.parent / BACKUP, root, dirs_exist_ok=True)


def delete(path: str) -> Act:
    return Act("the file is deleted", lambda table: table.store.delete(path))


def _retrieve(table: SoundTable) -> None:
    store = table.store
    assert isinstance(store, MemoryStore)
    if store.storage_classes.pop("c", None) is not None:
        store.put("c", DATA)
    store.storage_classes.clear()


def _checkpointed(table: SoundTable) -> None:
    table.step(add_again(table, "c"))
    table.checkpoint()


RESTORE = Act("the file is restored from a backup", _restore)
RETRIEVE = Act("the file is retrieved", _retrieve)
CHECKPOINTED = Act("the writer commits the intended state and writes a checkpoint", _checkpointed)
AGED = ("checkpoint", "clean-log")
"""The end of every finding about a commit."""
NEW_ROW_IDS = ("drop-feature --feature rowTracking", "backfill-row-ids")
REPAIRED = played("fsck --repair")
COMPARED = played("recompute-stats --check-files")
SCHEMA = write(lambda table: log.metadata(configuration=CONFIGURATION))

REMEDIES: Mapping[str, tuple[Answer, ...]] = {
    "unreadable-version": played(RESTORE),
    "log-gap": played(RESTORE),
    "lost-commit": (ByPerson("from the catalog which of the staged files is the commit"),),
    "overwritten-commit": played("fsck --forget-overwritten-commits"),
    "needed-overwritten-commit": (ByPerson("how to repeat the commit that replaced it"),),
    "file-of-overwritten-commit": played("fsck --forget-overwritten-commits"),
    "uncertain-commit": played(*AGED),
    "history-gap": (*played(RESTORE), *played(*AGED)),
    "unreadable-commit": played(RESTORE),
    "archived-log-file": played(RETRIEVE),
    "checkpoint-without-commit": played(write(), *AGED),
    "repeated-action": played(write(log.txn("app", 9)), *AGED),
    "repeated-file": played(CHECKPOINTED, "clean-log"),
    "added-and-removed": played(CHECKPOINTED, "clean-log"),
    "remove-of-absent-file": (
        ByPerson("which file the writer of the commit meant to remove"),
        *played(write(), *AGED),
    ),
    "doubled-file": played("fsck --remove-doubled-files"),
    "two-live-vectors": played(
        write(lambda t: log.remove("b", deletionVector={**t.vector, "offset": None})), *AGED
    ),
    "two-spellings": played(write(log.remove("/x/y")), write(log.remove("file:/x/y"))),
    "in-commit-timestamp": played(write(), *AGED),
    "unknown-action": (ByPerson("which release knows the action"), *played(write(), *AGED)),
    "unknown-file": (
        ByPerson("whether any writer needs the file"),
        *played(delete("_delta_log/strange")),
    ),
    "abandoned-file": played(*AGED),
    "stale-hadoop-checksum": played(delete("_delta_log/.00000000000000000003.json.crc")),
    "empty-checkpoint": REPAIRED,
    "incomplete-checkpoint": played("clean-log"),
    "unreadable-checkpoint": REPAIRED,
    "missing-sidecar": REPAIRED,
    "sidecar-size": REPAIRED,
    "sidecar-differs": REPAIRED,
    "sidecar-summary": played(write(), "checkpoint --incremental never", "clean-log"),
    "orphan-sidecar": played(*AGED),
    "checkpoint-differs": REPAIRED,
    "missing-tombstones": REPAIRED,
    "damaged-hint": REPAIRED,
    "hint-differs": REPAIRED,
    "dangling-hint": REPAIRED,
    "unreadable-compaction": played(
        delete("_delta_log/00000000000000000001.00000000000000000003.compacted.json")
    ),
    "compaction-differs": played(
        delete("_delta_log/00000000000000000001.00000000000000000003.compacted.json")
    ),
    "unreadable-checksum": played(delete("_delta_log/00000000000000000002.crc")),
    "checksum-differs": played(delete("_delta_log/00000000000000000003.crc")),
    "checksum-without-commit": played(delete("_delta_log/00000000000000000005.crc")),
    "misplaced-feature": played("upgrade-protocol --feature appendOnly"),
    "missing-feature": played("upgrade-protocol --feature domainMetadata"),
    "draft-feature": played("upgrade-protocol --feature timestampNtz"),
    "draft-row-ids": played("upgrade-protocol --convert-draft"),
    "unreadable-property": played(
        "set-properties --set delta.logRetentionDuration='interval 30 days'"
    ),
    "unreadable-schema": played(SCHEMA),
    "unknown-partition-column": played(SCHEMA),
    "repeated-column": played(SCHEMA),
    "repeated-column-id": played(SCHEMA),
    "reused-physical-name": (ByPerson("whether the column shows values of the dropped one"),),
    "type-without-feature": played("upgrade-protocol --feature timestampNtz"),
    "clustered-and-partitioned": played("set-clustering --none"),
    "lost-clustering": (*played("set-clustering --by id"), *played("set-clustering --none")),
    "variant-layout": played(SCHEMA),
    "vector-without-feature": played("set-properties --set delta.enableDeletionVectors=true"),
    "partition-value-spelling": played(write(log.remove("e", size=len(DATA)))),
    "invalid-partition-value": (
        ByPerson("which value was meant"),
        *played(write(log.remove("e", size=len(DATA)))),
    ),
    "missing-not-null-column": played(SCHEMA),
    "null-in-not-null-column": played(SCHEMA),
    "vector-without-count": played("recompute-stats"),
    "invalid-statistics": played("recompute-stats"),
    "missing-row-id": played("backfill-row-ids"),
    "overlapping-row-ids": (ByPerson("by fsck --deep, whether rows share row IDs"),),
    "repeated-row-id": played(*NEW_ROW_IDS),
    "row-id-mark-too-low": played("backfill-row-ids"),
    "future-row-commit-version": played(
        write(lambda t: add_again(t, "c", defaultRowCommitVersion=4))
    ),
    "stale-manifest": REPAIRED,
    "unwritable-manifest": played("purge"),
    "old-manifest": played(
        "set-properties --set delta.compatibility.symlinkFormatManifest.enabled=true"
    ),
    "archived-data-file": played(RETRIEVE),
    "missing-data-file": (*played(RESTORE), *played("files", "fsck --remove-missing-files")),
    "misnamed-file": REPAIRED,
    "doubtful-file": played(
        Act("the file is copied to the name", lambda t: t.store.put("c", DATA))
    ),
    "data-file-size": played(RESTORE),
    "missing-deletion-vector": played(RESTORE),
    "missing-removed-file": (
        *played(RESTORE),
        ByPerson("who deleted the file early: a lifecycle rule, or a vacuum with less retention"),
    ),
    "unreadable-data-file": played(RESTORE),
    "unsupported-data-file": (
        ByPerson("from the engine that wrote the file, whether it is sound"),
    ),
    "widened-without-feature": played("upgrade-protocol --feature typeWidening"),
    "row-count-differs": COMPARED,
    "wrong-statistics": COMPARED,
    "loose-bounds": COMPARED,
    "damaged-deletion-vector": played(RESTORE),
}
