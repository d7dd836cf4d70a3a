"""Second step on executors: replay one share of the actions and write its sidecars."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import pyarrow as pa

from delta_maintenance.clock import NewId
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.protocol.delta_log.checkpoint_rows import (
    FileActionLayout,
    UnknownFieldsError,
)
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.spark.log_shares import ShareRow, TableAddress, share_rows
from delta_maintenance.table.read.active_files import StandingFiles, standing_files
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.write.checkpoint_spec import CheckpointSpec
from delta_maintenance.table.write.sidecar_writer import SidecarSet, kept, roll_sidecars
from delta_maintenance.table.write.staging import staging

SCHEMA = "report binary"
"""One row per share: its `Report`, pickled."""

Report = SidecarSet | DeltaMaintenanceError | UnknownFieldsError

_ARROW_SCHEMA = pa.schema([("report", pa.binary())])


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

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """From rows of `log_shares.SCHEMA`, sorted by label and age, to reports.

        Every sidecar is staged on the executor, verified and published under a name that was never
        used before: whatever a failed attempt leaves behind is referred to by nothing. Errors that
        may pass are raised, so that Spark tries again.
        """
        for _, share in groupby(share_rows(batches), key=lambda row: row.label):
            report = pickle.dumps(self._report(share))
            yield pa.RecordBatch.from_arrays([pa.array([report])], schema=_ARROW_SCHEMA)

    def _report(self, share: Iterator[ShareRow]) -> Report:
        spec = self.spec
        try:
            for is_notice, rows in groupby(share, key=lambda row: row.is_notice):
                if is_notice:
                    spec = replace(spec, layout=_heed(rows, spec.layout))
                else:
                    return self._written(rows, spec)
        except DeltaMaintenanceError as error:
            if error.retryable:
                raise
            return error
        except UnknownFieldsError as wider:
            # A share is a stream: only the driver can begin anew, with more columns for all.
            return wider
        return SidecarSet(reports=(), expired_tombstones=0)

    def _written(self, rows: Iterator[ShareRow], spec: CheckpointSpec) -> SidecarSet:
        files = kept(
            self._standing(rows),
            root=self.address.uri,
            deleted_after_ms=spec.deleted_after_ms,
            commit_times=self.commit_times,
        )
        with staging() as staged, self.address.store() as store:
            return roll_sidecars(files, spec, staged, store, self.new_id)

    def _standing(self, rows: Iterator[ShareRow]) -> Iterator[StandingFiles]:
        replay = FileReplay()
        for row in rows:
            files = row.files()
            newer_than_checkpoint = row.age < self.checkpoint_age
            yield standing_files(
                files.adds, files.tombstones, replay, remember=newer_than_checkpoint
            )


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
