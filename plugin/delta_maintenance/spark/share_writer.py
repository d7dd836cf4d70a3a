"""Second step on executors: replay one share of the actions and write its sidecars."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import numpy as np
import pyarrow as pa

from delta_maintenance.clock import NewId
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.protocol.actions.paths import locations
from delta_maintenance.protocol.columns.key_hash import hash_texts
from delta_maintenance.protocol.delta_log.checkpoint_rows import (
    FileActionLayout,
    UnknownFieldsError,
)
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.spark.log_shares import (
    ShareRow,
    TableAddress,
    in_batches,
    share_rows,
    shared_out,
)
from delta_maintenance.table.read.active_files import ActiveFiles, active_files
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.write.checkpoint_spec import CheckpointSpec
from delta_maintenance.table.write.sidecar_writer import (
    RollingSidecars,
    SidecarSet,
    kept,
    roll_sidecars,
)
from delta_maintenance.table.write.staging import staging

Report = SidecarSet | DeltaMaintenanceError | UnknownFieldsError
"""The sidecars of a share, or why it has none; pickled, the payload of a row of kind `report`."""

PassedOn = Literal["add", "remove"]
"""The kind of action that is written by fewer tasks than the other kind, after the replay."""

_REPORT_AGE, _LAYOUT_AGE = -2, -1
"""Reports and layouts come before the actions that are passed on, which have the age 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareWriting:
    """What a writing task has to know. It travels to executors and holds no O(files) data."""

    address: TableAddress
    spec: CheckpointSpec
    commit_times: Mapping[int, int]
    """As `unexpired` wants them; commits no newer than its limit may be left out."""
    checkpoint_age: int
    """From this age on, actions are the checkpoint's: nothing is older."""
    new_id: NewId
    passed_on: PassedOn | None = None
    """The kind of action that is not written but passed on, to be written by `write_passed`."""
    labels: tuple[int, ...] = (0,)
    """One for each share of what is passed on."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """From rows of `log_shares.SCHEMA`, sorted by label and age, to a report for each share.

        The actions that stand are passed on among the reports, and the layout if it became wider.
        Every sidecar is staged on the executor, verified and published under a name that was never
        used before: whatever a failed attempt leaves behind is referred to by nothing. Errors that
        may pass are raised, so that Spark tries again.
        """
        for _, share in groupby(share_rows(batches), key=lambda row: row.label):
            yield from in_batches(self._replayed(share))

    def write_passed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """From what `write` yields, sorted by label and age, to one more report for each label."""
        for _, share in groupby(share_rows(batches), key=lambda row: row.label):
            yield from in_batches(self._passed(share))

    def _replayed(self, share: Iterator[ShareRow]) -> Iterator[ShareRow]:
        spec = self.spec
        try:
            for is_notice, rows in groupby(share, key=lambda row: row.is_notice):
                if is_notice:
                    spec = replace(spec, layout=_heed(rows, spec.layout))
                else:
                    files = kept(
                        self._standing(rows),
                        root=self.address.uri,
                        deleted_after_ms=spec.deleted_after_ms,
                        commit_times=self.commit_times,
                    )
                    yield from self._written(files, spec)
        except (DeltaMaintenanceError, UnknownFieldsError) as error:
            yield self._failure(error)

    def _passed(self, share: Iterator[ShareRow]) -> Iterator[ShareRow]:
        spec = self.spec
        for kind, rows in groupby(share, key=lambda row: row.kind):
            if kind == "report":
                yield from (replace(row, payload=bytes(row.payload)) for row in rows)
            elif kind == "layout":
                spec = replace(spec, layout=[pickle.loads(row.payload) for row in rows][-1])
            else:
                files = ((row.files(), 0) for row in rows)
                try:
                    with staging() as staged, self.address.store() as store:
                        written = roll_sidecars(files, spec, staged, store, self.new_id)
                except (DeltaMaintenanceError, UnknownFieldsError) as error:
                    yield self._failure(error)
                else:
                    yield self._report(written)

    def _written(
        self, files: Iterable[tuple[ActiveFiles, int]], spec: CheckpointSpec
    ) -> Iterator[ShareRow]:
        """What is passed on, and last the report."""
        if self.passed_on is not None and spec.layout != self.spec.layout:
            layout = pickle.dumps(spec.layout)
            yield from (ShareRow(label, _LAYOUT_AGE, "layout", layout) for label in self.labels)
        expired = 0
        with staging() as staged, self.address.store() as store:
            with RollingSidecars(staged, spec, self.new_id) as rolling:
                for batch, dropped in files:
                    expired += dropped
                    adds, tombstones = batch.adds, batch.tombstones
                    if self.passed_on == "add":
                        yield from self._passing(adds)
                        adds = adds.slice(0, 0)
                    elif self.passed_on == "remove":
                        yield from self._passing(tombstones)
                        tombstones = tombstones.slice(0, 0)
                    hashes = batch.add_hashes if self.passed_on != "add" else None
                    rolling.write(ActiveFiles(adds, tombstones, hashes))
            written = SidecarSet(reports=rolling.publish(store), expired_tombstones=expired)
        yield self._report(written)

    def _passing(self, actions: pa.Table) -> Iterator[ShareRow]:
        if not actions.num_rows or self.passed_on is None:
            return
        paths = pa.concat_arrays(actions["path"].chunks)
        # By the path, so that a repeated task divides them alike. Not by the lowest bits of its
        # hash, which chose the share of the replay.
        hashes = hash_texts(locations(paths, root=self.address.uri)) >> np.uint64(20)
        yield from shared_out(actions, hashes, self.labels, kind=self.passed_on, age=0)

    def _standing(self, rows: Iterator[ShareRow]) -> Iterator[ActiveFiles]:
        replay = FileReplay()
        for row in rows:
            files = row.files()
            newer_than_checkpoint = row.age < self.checkpoint_age
            yield active_files(files.adds, files.tombstones, replay, remember=newer_than_checkpoint)

    def _failure(self, error: DeltaMaintenanceError | UnknownFieldsError) -> ShareRow:
        """The report of a share that failed. Errors that may pass are raised, for another try.

        Only the driver can begin anew with more columns for all: a share is a stream.
        """
        if isinstance(error, DeltaMaintenanceError) and error.retryable:
            raise error
        return self._report(error)

    def _report(self, report: Report) -> ShareRow:
        return ShareRow(self.labels[0], _REPORT_AGE, "report", pickle.dumps(report))


def gravest(errors: Iterable[DeltaMaintenanceError]) -> DeltaMaintenanceError:
    """The one error to tell, the same in every process and in every run.

    That a checkpoint is unusable comes last: without it the table may still be read, but not while
    anything else is wrong.
    """
    return min(errors, key=lambda error: (isinstance(error, UnusableCheckpointError), str(error)))


def _heed(rows: Iterator[ShareRow], layout: FileActionLayout) -> FileActionLayout:
    """The layout with room for what readers found; raises what kept one from reading.

    A share that lacks a part of the log writes nothing.
    """
    notices = [row.notice() for row in rows]
    errors = [notice for notice in notices if isinstance(notice, DeltaMaintenanceError)]
    if errors:
        raise gravest(errors)
    for notice in notices:
        if isinstance(notice, tuple):
            layout = layout.widened(*notice)
    return layout
