"""The Spark engine for sidecars: executors write them, the driver only receives their names.

Plain PySpark with Python workers: DataFrame operations alone, so it runs on Spark Connect as well.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from pyspark.sql import SparkSession

from delta_maintenance.clock import NewId
from delta_maintenance.clock import new_id as random_id
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.protocol.delta_log.checkpoint_rows import UnknownFieldsError
from delta_maintenance.protocol.delta_log.file_names import SIDECAR_DIRECTORY
from delta_maintenance.spark import share_writer
from delta_maintenance.spark.log_parts import (
    LOG_BYTES_PER_TASK,
    adjacent_parts,
    log_parts,
    share_labels,
    shares,
    small_batches,
)
from delta_maintenance.spark.log_shares import LogReading, TableAddress
from delta_maintenance.spark.session import JobSession
from delta_maintenance.spark.share_writer import Report, ShareWriting, gravest
from delta_maintenance.spark.sidecar_survey import survey_on_spark
from delta_maintenance.spark.storage_access import executor_options
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.log_reader import LogTail
from delta_maintenance.table.read.segment import LOG_DIRECTORY
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.checkpoint_spec import CheckpointSpec
from delta_maintenance.table.write.sidecar_reuse import ReuseSurvey, require_reusable
from delta_maintenance.table.write.sidecar_writer import SidecarSet, commit_times, taken_over

_SAMPLED_FILES = 3
# A share gets some actions more or less than others, which should not cost it a second sidecar.
_FILL = 0.95


class SparkSidecars:
    """A `SidecarEngine` on a Spark session.

    Reading tasks take a part of the log each and divide its actions into shares by path; writing
    tasks replay a share each and write its sidecars. What the driver holds is the names of the
    log's files and one report per share.
    """

    def __init__(
        self,
        spark: SparkSession,
        table_uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        new_id: NewId = random_id,
        progress: Progress | None = None,
        log_bytes_per_task: int = LOG_BYTES_PER_TASK,
    ) -> None:
        """`new_id` is called on executors, so it has to be picklable; `progress` in the driver.

        The storage options are completed from the driver's environment: see `executor_options`.
        """
        options = executor_options(table_uri, storage_options, os.environ)
        self._spark = spark
        self._address = TableAddress(uri=table_uri, storage_options=options)
        self._new_id = new_id
        self._progress = progress
        self._log_bytes_per_task = log_bytes_per_task

    @classmethod
    def of_job(cls, job: JobSession) -> Self:
        """The engine of a job."""
        return cls(
            job.spark, job.table_uri, job.storage_options, new_id=job.new_id, progress=job.progress
        )

    def survey(self, snapshot: Snapshot, spec: CheckpointSpec) -> ReuseSurvey:
        """See `SidecarEngine`."""
        base = require_reusable(snapshot, spec)
        self._tell(f"{len(base.sidecars)} sidecars of {base.files.name} to be searched", 0, 1)
        with small_batches(self._spark):
            return survey_on_spark(
                self._spark,
                snapshot,
                spec,
                base,
                address=self._address,
                tail=adjacent_parts(snapshot.segment.tail, self._log_bytes_per_task),
            )

    def write_sidecars(
        self, snapshot: Snapshot, spec: CheckpointSpec, *, reuse: ReuseSurvey | None = None
    ) -> SidecarSet:
        """See `SidecarEngine`. Where any share fails, the sidecars of the others are deleted.

        `UnknownFieldsError` where statistics take more columns than the layout has.
        """
        parts, tail = log_parts(
            snapshot,
            log_bytes_per_task=self._log_bytes_per_task,
            only=None if reuse is None else {each.path for each in reuse.rewritten},
        )
        if not parts:
            return _completed(SidecarSet(reports=(), expired_tombstones=0), reuse)
        labels = share_labels(self._spark, _share_count(snapshot, spec, reuse))
        reading = LogReading(
            address=self._address,
            parts=tuple(pickle.dumps(part) for part in parts),
            labels=labels,
            partition_columns=frozenset(snapshot.physical_partition_columns),
            layout=spec.layout,
        )
        writing = ShareWriting(
            address=self._address,
            spec=spec,
            commit_times=_needed_times(snapshot, spec),
            checkpoint_age=tail,
            new_id=self._new_id,
        )
        self._tell(f"sidecars, of {len(parts)} parts of the log", 0, len(labels))
        reports = self._run(reading, writing)
        written = _settled(reports, snapshot.store)
        self._tell("sidecars", len(written.reports), len(written.reports))
        return _completed(written, reuse)

    def _run(self, reading: LogReading, writing: ShareWriting) -> list[Report]:
        with small_batches(self._spark):
            rows = (
                shares(self._spark, reading.read, parts=len(reading.parts), labels=reading.labels)
                .mapInArrow(writing.write, share_writer.SCHEMA)
                .collect()
            )
        return [pickle.loads(row.report) for row in rows]

    def _tell(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(what, done, total)


def _completed(written: SidecarSet, reuse: ReuseSurvey | None) -> SidecarSet:
    """With what is taken over, and the tombstones that go with sidecars left out unread."""
    if reuse is None:
        return written
    expired = written.expired_tombstones + reuse.dropped_expired
    return replace(written, expired_tombstones=expired, taken_over=taken_over(reuse))


def _share_count(snapshot: Snapshot, spec: CheckpointSpec, reuse: ReuseSurvey | None) -> int:
    """How many shares of the wanted size there may be; what is superseded is counted too."""
    actions = _actions_in_tail(snapshot)
    if reuse is not None:
        actions += sum(each.found.summary.tally.actions for each in reuse.rewritten)
    elif snapshot.checkpoint is not None:
        actions += snapshot.checkpoint.row_count
    return max(1, math.ceil(actions / (spec.actions_per_sidecar * _FILL)))


def _actions_in_tail(snapshot: Snapshot) -> float:
    """An estimate from the bytes of the tail and the lines of a few of its files."""
    entries = snapshot.segment.tail
    if not entries:
        return 0
    step = max(1, len(entries) // _SAMPLED_FILES)
    texts = LogTail(snapshot.store, entries[::step][:_SAMPLED_FILES]).texts()
    sample = [(entry.status.size, text.file_line_count) for entry, text in texts]
    actions_per_byte = sum(lines for _, lines in sample) / sum(size for size, _ in sample)
    return actions_per_byte * sum(entry.status.size for entry in entries)


def _needed_times(snapshot: Snapshot, spec: CheckpointSpec) -> dict[int, int]:
    """The commit times that may keep a tombstone."""
    limit = spec.deleted_after_ms
    if limit is None:
        return {}
    return {version: time for version, time in commit_times(snapshot).items() if time > limit}


def _settled(reports: Sequence[Report], store: Store) -> SidecarSet:
    sets = [report for report in reports if isinstance(report, SidecarSet)]
    written = SidecarSet(
        reports=tuple(report for one in sets for report in one.reports),
        expired_tombstones=sum(one.expired_tombstones for one in sets),
    )
    if len(sets) == len(reports):
        return written
    folder = f"{LOG_DIRECTORY}/{SIDECAR_DIRECTORY}"
    # Ours alone, and referred to by nothing; one that stays does no harm.
    store.delete_many(f"{folder}/{report.sidecar.path}" for report in written.reports)
    errors = [report for report in reports if isinstance(report, DeltaMaintenanceError)]
    if errors:
        raise gravest(errors)
    # Every share knows of all fields of the log, so that all of them ask for the same columns.
    raise next(report for report in reports if isinstance(report, UnknownFieldsError))
