"""Second step on executors: replays one share of the actions and writes its sidecars."""

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
from delta_maintenance.protocol.actions.paths import file_locations
from delta_maintenance.protocol.columns import hash_texts
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
"""The sidecars of a share, or the reason why there are none. The payload of rows of the kind
`report`, pickled.
"""

PassedOn = Literal["add", "remove"]
"""The kind of action that fewer tasks than those of the other kind write, after the replay."""

_REPORT_AGE, _LAYOUT_AGE = -2, -1
"""Reports and layouts come before the actions that are passed on, whose age is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareWriting:
    """The inputs of a writing task; they are sent to executors.

    Their size does not depend on the number of files.
    """

    address: TableAddress
    spec: CheckpointSpec
    commit_times: Mapping[int, int]
    """As for `unexpired`; commits that are not newer than its limit may be missing."""
    checkpoint_age: int
    """The age from which on actions are those of the checkpoint, the oldest ones."""
    new_id: NewId
    passed_on: PassedOn | None = None
    """The kind of action that is passed on, and written by `write_passed`."""
    labels: tuple[int, ...] = (0,)
    """The label of each share of the actions that are passed on."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes rows of `log_shares.SCHEMA`, sorted by label and age; yields a report per share.

        Surviving actions of the kind `passed_on` are yielded as well, and the layout if it became
        wider. Every sidecar is staged on the executor, verified and published under a new name, so
        that nothing refers to the leftovers of a failed attempt. Temporary errors are raised, so
        that Spark retries the task.
        """
        for _, share in groupby(share_rows(batches), key=lambda row: row.label):
            yield from in_batches(self._replay(share))

    def write_passed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes the actions that `write` passed on, sorted by label and age.

        Yields one more report per label.
        """
        for _, share in groupby(share_rows(batches), key=lambda row: row.label):
            yield from in_batches(self._pass_on(share))

    def _replay(self, share: Iterator[ShareRow]) -> Iterator[ShareRow]:
        spec = self.spec
        try:
            for is_notice, rows in groupby(share, key=lambda row: row.is_notice):
                if is_notice:
                    spec = replace(spec, layout=_take_notices(rows, spec.layout))
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

    def _pass_on(self, share: Iterator[ShareRow]) -> Iterator[ShareRow]:
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
        """Yields the actions that are passed on, then the report."""
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
        # Divided by the path, so that a retried task divides them in the same way. The lowest bits
        # of the hash are unsuitable, because they selected the share of the replay.
        hashes = hash_texts(file_locations(paths, root=self.address.uri)) >> np.uint64(20)
        yield from shared_out(actions, hashes, self.labels, kind=self.passed_on, age=0)

    def _standing(self, rows: Iterator[ShareRow]) -> Iterator[ActiveFiles]:
        replay = FileReplay()
        for row in rows:
            files = row.files()
            newer_than_checkpoint = row.age < self.checkpoint_age
            yield active_files(files.adds, files.tombstones, replay, remember=newer_than_checkpoint)

    def _failure(self, error: DeltaMaintenanceError | UnknownFieldsError) -> ShareRow:
        """Returns the report of a failed share. Temporary errors are raised, for a retry.

        A share is a stream, so only the driver can restart the work with more columns.
        """
        if isinstance(error, DeltaMaintenanceError) and error.retryable:
            raise error
        return self._report(error)

    def _report(self, report: Report) -> ShareRow:
        return ShareRow(self.labels[0], _REPORT_AGE, "report", pickle.dumps(report))


def gravest(errors: Iterable[DeltaMaintenanceError]) -> DeltaMaintenanceError:
    """Returns the error to raise, which is the same in every process and in every run.

    An unusable checkpoint has the lowest priority: the table may be readable without it, but not
    with any of the other errors.
    """
    return min(errors, key=lambda error: (isinstance(error, UnusableCheckpointError), str(error)))


def _take_notices(rows: Iterator[ShareRow], layout: FileActionLayout) -> FileActionLayout:
    """Returns the layout, widened by the fields that reading tasks found. Raises their errors.

    A share that lacks a part of the log writes nothing.
    """
    notices = [row.notice() for row in rows]
    errors = [notice for notice in notices if isinstance(notice, DeltaMaintenanceError)]
    if errors:
        raise gravest(errors)
    for notice in notices:
        if isinstance(notice, tuple):
            layout = layout.widen(*notice)
    return layout
