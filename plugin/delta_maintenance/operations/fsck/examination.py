"""Runs all checks of `fsck`, in an order in which earlier findings explain later ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import (
    CorruptTableError,
    RefusedError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from delta_maintenance.operations.fsck.archived_log import (
    UnretrievedLog,
    archived_log_files,
    cannot_be_read,
)
from delta_maintenance.operations.fsck.checks import row_ids
from delta_maintenance.operations.fsck.checks.checkpoints import (
    CheckpointProblem,
    check_checkpoints,
    check_hint,
)
from delta_maintenance.operations.fsck.checks.contents import (
    VECTORS_MEMORY,
    check_footers,
    check_vectors,
    inline_vectors,
    with_vectors,
)
from delta_maintenance.operations.fsck.checks.doubled_files import check_doubled_files
from delta_maintenance.operations.fsck.checks.log import (
    check_checksums,
    check_commits,
    check_compactions,
    check_gaps,
    check_guarded,
    check_hadoop_checksums,
    check_mapping,
    check_names,
    check_stated_version,
)
from delta_maintenance.operations.fsck.checks.manifests import check_manifests
from delta_maintenance.operations.fsck.checks.presence import Presence, TableFiles, check_presence
from delta_maintenance.operations.fsck.checks.row_ids import (
    LocalRowIds,
    RowIdReader,
    check_row_ids,
    row_tracking_layout,
)
from delta_maintenance.operations.fsck.checks.state import check_live_files, check_state
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.operations.fsck.inputs import LogHistory, read_history, read_live_files
from delta_maintenance.operations.fsck.statistics import (
    StatisticsCheck,
    files_with_statistics,
    statistics_of_every_column,
)
from delta_maintenance.protocol.columns import integers
from delta_maintenance.protocol.data_files.layout import DataFileLayout, required_columns
from delta_maintenance.protocol.delta_log.file_names import LogFileKind
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data import footers
from delta_maintenance.table.data.footers import count_rows
from delta_maintenance.table.progress import Progress, Unit
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.read.log_inventory import LogInventory, take_inventory
from delta_maintenance.table.read.log_view import VanishedFileError
from delta_maintenance.table.read.segment import latest_version
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

OPENING_MEMORY = max(footers.MEMORY, VECTORS_MEMORY, row_ids.MEMORY)
"""The maximum memory for opening data files and deletion vectors in bytes, in this process or in
each task of a cluster. Does not include the ranges of row IDs that are compared.
"""
_ATTEMPTS = 3
"""The number of attempts, because another process may clean up the log during the check."""


class ContentsCheck(Protocol):
    """Opens the files of a version and returns their problems, in this process or elsewhere."""

    def __call__(
        self,
        present: pa.Table,
        adds: pa.Table,
        findings: Findings,
        *,
        version: int,
        layout: DataFileLayout | None = None,
        statistics: StatisticsCheck | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`present` is as in `Presence`, `adds` as in `LiveFiles`. With `layout`, the types of
        columns are compared. With `statistics`, so are the statistics of files, which are then in
        `present` (`files_with_statistics`).
        """


@runtime_checkable
class ReadsRowIds(Protocol):
    """A `ContentsCheck` that also reads row IDs."""

    def row_ids(self, layout: DataFileLayout) -> RowIdReader:
        """Returns a reader for files with this layout."""


class LocalContents:
    """A `ContentsCheck` on some threads of this process."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(
        self,
        present: pa.Table,
        adds: pa.Table,
        findings: Findings,
        *,
        version: int,
        layout: DataFileLayout | None = None,
        statistics: StatisticsCheck | None = None,
        progress: Progress | None = None,
    ) -> None:
        """See `ContentsCheck`."""
        check_footers(
            self._store,
            present,
            findings,
            version=version,
            layout=layout,
            statistics=statistics,
            progress=progress,
        )
        check_vectors(self._store, adds, findings, version=version, progress=progress)

    def row_ids(self, layout: DataFileLayout) -> LocalRowIds:
        """See `ReadsRowIds`."""
        return LocalRowIds(self._store, layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableExamination:
    """The state of a table as found by the checks."""

    version: int
    """The newest version in the listing of the log."""
    findings: Findings
    inventory: LogInventory
    bad_checkpoints: Mapping[str, CheckpointProblem]
    """Unusable checkpoints, by the name of their first file."""
    history: LogHistory | None
    """None if no version can be reconstructed."""
    snapshot: Snapshot | None
    """None if the newest version cannot be opened."""
    presence: Presence | None
    """None if the newest version cannot be opened, or if the check of files was not requested."""
    doubled: pa.Table | None = None
    """Live files whose removal failed (`check_doubled_files`); None if they are unknown."""
    unopened: int = 0
    """The number of data files and deletion vectors that were not opened because there are too
    many.
    """
    uncompared: int = 0
    """The number of opened data files whose row IDs were not compared with those of others."""
    archived: int = 0
    """The number of files of the log that cannot be read at once."""


def examine(
    table: Table,
    *,
    now: datetime,
    files: bool = True,
    deep: bool = False,
    sample: int | None = None,
    contents: ContentsCheck | None = None,
    open_fewer_than: int | None = None,
    progress: Progress | None = None,
) -> TableExamination:
    """Reads the whole log and, with `files`, checks that every file exists; `deep` also opens them.

    `sample` is the number of files to open, and `contents` opens them instead of threads of this
    process. With `open_fewer_than`, nothing is
    opened if there are at least as many data files and deletion vectors.

    Changes nothing. `NotADeltaTableError` if there is no log, `UnsupportedFeatureError` if this
    release cannot read the table; every other problem is a finding.
    """
    for attempt in range(_ATTEMPTS):
        try:
            look = _Attempt(
                table=table,
                now=now,
                contents=(contents or LocalContents(table.store)) if deep else None,
                sample=sample,
                open_fewer_than=open_fewer_than,
                progress=progress,
            )
            return look.run(files=files)
        except (FileNotFoundError, VanishedFileError) as error:
            if attempt == _ATTEMPTS - 1:
                raise CorruptTableError(
                    "a file that the log lists cannot be found",
                    table=table.uri,
                    file=str(error.filename if isinstance(error, OSError) else error.file),
                    remedy="look for another process that is deleting files of this log",
                ) from error
    raise AssertionError("the last attempt returns or raises")


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """One attempt to examine a table."""

    table: Table
    now: datetime
    contents: ContentsCheck | None
    sample: int | None
    open_fewer_than: int | None
    progress: Progress | None
    findings: Findings = field(default_factory=Findings)
    unopened: int = 0
    uncompared: int = 0
    doubled: pa.Table | None = None

    def run(self, *, files: bool) -> TableExamination:
        findings, store = self.findings, self.table.store
        inventory = take_inventory(store)
        listing = inventory.listing
        archived = self._set_aside_archived(inventory)
        managed, store = store, self.table.store
        last_version = latest_version(listing)
        snapshot = self._open(last_version)
        if last_version is None:
            last_version = max(listing.commits, default=-1)
        history = read_history(store, listing, last_version, findings, progress=self.progress)
        check_stated_version(managed, last_version, findings)
        check_gaps(managed, listing, last_version, history, findings)
        check_names(inventory, findings, now=self.now)
        check_guarded(store, listing, findings)
        check_hadoop_checksums(store, inventory, findings)
        check_hint(store, inventory, findings)
        if history is not None:
            check_commits(history, findings, root=self.table.uri)
            check_mapping(history, findings)
        bad = check_checkpoints(
            store, inventory, history, findings, now=self.now, progress=self.progress
        )
        check_compactions(store, listing, findings)
        check_checksums(store, inventory, last_version, history, findings)
        presence = None
        if snapshot is not None:
            check_state(snapshot, findings)
            if files:
                presence = self._check_files(snapshot, history)
                if presence is not None:
                    check_manifests(snapshot, findings)
        return TableExamination(
            version=last_version,
            findings=findings,
            inventory=inventory,
            bad_checkpoints=bad,
            history=history,
            snapshot=snapshot,
            presence=presence,
            doubled=self.doubled,
            unopened=self.unopened,
            uncompared=self.uncompared,
            archived=archived,
        )

    def _set_aside_archived(self, inventory: LogInventory) -> int:
        """Reports the archived files of the log, and lets nothing read them."""
        classes = archived_log_files(self.table.store, inventory)
        if not classes:
            return 0
        for path, storage_class in classes.items():
            self.findings.add("archived-log-file", cannot_be_read(storage_class), path=path)
        # The sidecars of an archived checkpoint are not known.
        sidecars = (e.path for e in inventory.entries if e.file.kind is LogFileKind.SIDECAR)
        self.findings.archived = frozenset((*classes, *sidecars))
        self.table = Table(UnretrievedLog(self.table.store, classes))
        return len(classes)

    def _open(self, version: int | None) -> Snapshot | None:
        try:
            return self.table.snapshot(version=version)
        except VanishedFileError:
            raise
        except VersionNotFoundError as error:
            raise VanishedFileError(error.problem, file=LOG_DIRECTORY) from error
        except CorruptTableError as error:
            self._unreadable(error)
            return None

    def _unreadable(self, error: CorruptTableError) -> None:
        self.findings.add(
            "unreadable-version",
            error.problem,
            version=error.version,
            path=error.file,
            remedy=error.remedy,
        )

    def _check_files(self, snapshot: Snapshot, history: LogHistory | None) -> Presence | None:
        findings, store, version = self.findings, self.table.store, snapshot.version
        try:
            live = read_live_files(snapshot)
        except VanishedFileError:
            raise
        except CorruptTableError as error:
            # File actions are read last, and may be the only damaged part.
            self._unreadable(error)
            return None
        if history is not None:
            self.doubled = check_doubled_files(history, live, findings, root=self.table.uri)
        check_live_files(snapshot, live, findings, count=partial(count_rows, store))
        # The listing is made after the snapshot, so every file that the snapshot names existed
        # before.
        presence = check_presence(
            TableFiles(store),
            live,
            findings,
            version=version,
            kept_from_ms=self._kept_from(snapshot),
        )
        if self.contents is not None:
            present, adds = presence.present, live.adds
            if self.sample is not None:
                present = _sample(present, self.sample, day=self.now.date().toordinal())
                adds = present
            count = present.num_rows + with_vectors(adds).num_rows
            if self.open_fewer_than is not None and count >= self.open_fewer_than:
                self.unopened = count
            else:
                self._open_files(self.contents, live.snapshot, present, adds, history)
                presence = replace(presence, opened=present.num_rows)
                self._check_row_ids(snapshot, presence)
        if self.contents is None or self.unopened:
            check_vectors(store, inline_vectors(live.adds), findings, version=version)
        return presence

    def _open_files(
        self,
        contents: ContentsCheck,
        snapshot: Snapshot,
        present: pa.Table,
        adds: pa.Table,
        history: LogHistory | None,
    ) -> None:
        layout, required = _layout(snapshot), statistics_of_every_column(snapshot)
        statistics, parts = None, iter([present])
        if layout is not None and required is not None:
            statistics = StatisticsCheck(layout=layout, required=required)
            parts = files_with_statistics(snapshot, present, required, history)
        check = partial(contents, version=snapshot.version, layout=layout, statistics=statistics)
        done = 0

        def tell_footers(stage: str, count: int, _: int | None, /, *, unit: Unit = "count") -> None:
            if self.progress is not None:
                self.progress(stage, done + count, present.num_rows)

        for part in parts:
            check(part, adds.slice(0, 0), self.findings, progress=tell_footers)
            done += part.num_rows
        check(present.slice(0, 0), adds, self.findings, progress=self.progress)

    def _check_row_ids(self, snapshot: Snapshot, presence: Presence) -> None:
        layout = row_tracking_layout(snapshot)
        if layout is None:
            return
        self.uncompared = presence.present.num_rows
        if self.sample is None and isinstance(self.contents, ReadsRowIds):
            self.uncompared = check_row_ids(
                self.contents.row_ids(layout),
                presence.present,
                self.findings,
                version=snapshot.version,
                progress=self.progress,
            )

    def _kept_from(self, snapshot: Snapshot) -> int:
        try:
            return epoch_millis(self.now - snapshot.properties.deleted_file_retention)
        except OverflowError:
            return 0


def _sample(present: pa.Table, size: int, *, day: int) -> pa.Table:
    """Returns the files to open on a day: those after the files of the day before, in the order of
    their paths.
    """
    total = present.num_rows
    if size >= total:
        return present
    order = pc.sort_indices(present["path"]).to_numpy()
    rows = order[(day * size + np.arange(size)) % total]
    return present.take(integers(np.sort(rows)))


def _layout(snapshot: Snapshot) -> DataFileLayout | None:
    """Returns the layout of data files; None if this release does not know it, or the schema is
    damaged, which `check_state` reports.
    """
    try:
        layout = DataFileLayout.of_columns(snapshot.protocol, snapshot.metadata)
        return replace(layout, required=required_columns(snapshot.protocol, snapshot.metadata))
    except (CorruptTableError, RefusedError, UnsupportedFeatureError):
        return None
