"""The repair of files whose removal failed: the missing removes, in one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.fsck import FsckOptions, Repair
from delta_maintenance.operations.fsck.examination import TableExamination
from delta_maintenance.protocol.actions.file_columns import logical_file_keys
from delta_maintenance.protocol.commit.staged import removes_of
from delta_maintenance.table.commit.beside_writers import BesideWriters
from delta_maintenance.table.commit.outcome import Landed
from delta_maintenance.table.commit.transaction import Transaction
from delta_maintenance.table.read.snapshot import Snapshot


def propose_missing_removes(
    examination: TableExamination, options: FsckOptions, notes: list[str], *, append_only: bool
) -> Iterator[Repair]:
    """Proposes to remove the files of which the commits leave no doubt."""
    doubled = examination.doubled
    if doubled is None or not doubled.num_rows:
        return
    sure = doubled.filter(pc.invert(doubled["is_doubtful"]))
    if doubtful := doubled.num_rows - sure.num_rows:
        count = count_text(doubtful, "doubled file")
        notes.append(f"not removed: {count}, because the log does not prove which rows were meant")
    count = count_text(sure.num_rows, "doubled file")
    if sure.num_rows and examination.bad_checkpoints:
        notes.append(f"not removed: {count}, until fsck --repair has repaired the checkpoints")
    elif sure.num_rows and append_only and not options.allow_append_only and _has_deletes(sure):
        notes.append(
            f"not removed: {count}, because the table is append-only; --allow-append-only is "
            "required"
        )
    elif sure.num_rows:
        yield Repair(
            action="remove-doubled-files",
            version=examination.version,
            reason=f"{count}: commits removed them under another key, and nothing added them again",
            paths=tuple(sure["path"].to_pylist()),
        )


def _has_deletes(doubled: pa.Table) -> bool:
    return bool(pc.any(doubled["changes_data"]).as_py())


def commit_missing_removes(
    examination: TableExamination,
    snapshot: Snapshot,
    rows: pa.Table,
    stage: Callable[[Snapshot, pa.Table], Transaction],
) -> list[Landed]:
    """Commits the removes of the doubled files among some live files of the examined version.

    Files that other writers have changed since are left out. All actions of a commit must have the
    same `dataChange`, so there can be two commits.
    """
    beside = BesideWriters(snapshot, follow=lambda _: None)
    removes = _missing_removes(examination, rows)
    batches = [removes.filter(pc.equal(removes["dataChange"], flag)) for flag in (False, True)]
    # Another writer may add a file again, so each attempt looks at the commits before it.
    commits = [beside.commit_files(part, stage, only_next=True) for part in batches]
    return [landed for landed in commits if landed is not None]


def _missing_removes(examination: TableExamination, rows: pa.Table) -> pa.Table:
    """Returns the removes of the doubled files among some live files.

    They have the `dataChange` of the commits that should have removed the files: a
    compaction then stays invisible in the change data feed.
    """
    doubled = examination.doubled
    assert doubled is not None
    sure = doubled.filter(pc.invert(doubled["is_doubtful"]))
    at = pc.index_in(logical_file_keys(rows), value_set=sure["key"])
    removes = removes_of(rows.filter(pc.is_valid(at)), data_change=True)
    changes = sure["changes_data"].take(at.drop_null())
    place = removes.column_names.index("dataChange")
    return removes.set_column(place, "dataChange", changes)
