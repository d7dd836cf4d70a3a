"""The Spark engine for sidecars: executors write them, and the driver only receives their names.

Uses plain PySpark with Python workers, and only DataFrame operations, so that it also runs on Spark
Connect.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.protocol.delta_log.checkpoint_rows import UnknownFieldsError
from delta_maintenance.protocol.delta_log.file_names import SIDECAR_DIRECTORY
from delta_maintenance.protocol.ndjson.parse import MapKeys
from delta_maintenance.spark.log_shares import (
    LOG_BYTES_PER_TASK,
    SCHEMA,
    LogReading,
    adjacent_parts,
    by_label,
    log_parts,
    share_labels,
    shares,
    small_batches,
)
from delta_maintenance.spark.session import JobSession, SparkEngine
from delta_maintenance.spark.share_writer import PassedOn, Report, ShareWriting, gravest
from delta_maintenance.spark.sidecar_survey import require_rewritten, survey_on_spark
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.read.log_reader import LogTail
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.checkpoint_spec import CheckpointSpec
from delta_maintenance.table.write.sidecar_reuse import ReuseSurvey, require_reusable
from delta_maintenance.table.write.sidecar_writer import SidecarSet, commit_times, taken_over

_SAMPLED_FILES = 8
# Shares differ slightly in size; a larger one should still fit in a single sidecar.
_FILL = 0.95


class SparkSidecars(SparkEngine):
    """A `SidecarEngine` on a Spark session.

    Each reading task takes a part of the log and divides its actions into shares by path; each
    writing task replays a share and writes its sidecars. If tombstones need fewer sidecars than
    live files, or the reverse, a smaller number of separate tasks writes them after the replay. The
    driver holds the names of the log's files and one report per share.
    """

    def __init__(self, job: JobSession, *, log_bytes_per_task: int = LOG_BYTES_PER_TASK) -> None:
        super().__init__(job)
        self._log_bytes_per_task = log_bytes_per_task

    def survey(self, snapshot: Snapshot, spec: CheckpointSpec) -> ReuseSurvey:
        """See `SidecarEngine`."""
        base = require_reusable(snapshot, spec)
        self._progress(f"{len(base.sidecars)} sidecars of {base.files.name} to be searched", 0, 1)
        with small_batches(self._spark):
            return survey_on_spark(
                self._spark,
                snapshot,
                spec,
                base,
                address=self._address,
                tail=adjacent_parts(snapshot.log.segment.tail, self._log_bytes_per_task),
            )

    def write_sidecars(
        self, snapshot: Snapshot, spec: CheckpointSpec, *, reuse: ReuseSurvey | None = None
    ) -> SidecarSet:
        """See `SidecarEngine`. If any share fails, the sidecars of the others are deleted.

        Raises `UnknownFieldsError` if statistics need more columns than the layout has, and
        `NotReusableError` if tags led to wrong sidecars.
        """
        if reuse is not None:
            with small_batches(self._spark):
                require_rewritten(
                    self._spark,
                    reuse,
                    address=self._address,
                    commits=adjacent_parts(snapshot.log.segment.commits, self._log_bytes_per_task),
                )
        parts, tail = log_parts(
            snapshot,
            log_bytes_per_task=self._log_bytes_per_task,
            only=None if reuse is None else {sidecar.path for sidecar in reuse.rewritten},
        )
        if not parts:
            return _add_reused(SidecarSet(reports=(), expired_tombstones=0), reuse)
        division = _division(snapshot, spec, reuse)
        labels = share_labels(self._spark, division.shares)
        reading = LogReading(
            address=self._address,
            parts=tuple(pickle.dumps(log_part) for log_part in parts),
            labels=labels,
            partition_columns=frozenset(snapshot.log.physical_partition_columns),
            layout=spec.layout,
        )
        writing = ShareWriting(
            address=self._address,
            spec=spec,
            commit_times=_needed_times(snapshot, spec),
            checkpoint_age=tail,
            new_id=self._new_id,
            passed_on=division.passed_on,
            labels=share_labels(self._spark, division.passed_shares),
        )
        self._progress(f"sidecars, of {len(parts)} parts of the log", 0, len(labels))
        reports = self._run(reading, writing)
        written = _unite_reports(reports, snapshot.log.store)
        self._progress("sidecars", len(written.reports), len(written.reports))
        return _add_reused(written, reuse)

    def _run(self, reading: LogReading, writing: ShareWriting) -> list[Report]:
        with small_batches(self._spark):
            rows = shares(
                self._spark, reading.read, parts=len(reading.parts), labels=reading.labels
            ).mapInArrow(writing.write, SCHEMA)
            if writing.passed_on is not None:
                rows = by_label(rows, len(writing.labels)).mapInArrow(writing.write_passed, SCHEMA)
            return [pickle.loads(row.payload) for row in rows.collect()]


def _add_reused(written: SidecarSet, reuse: ReuseSurvey | None) -> SidecarSet:
    """Adds the sidecars that are taken over, and the tombstones of omitted sidecars."""
    if reuse is None:
        return written
    expired = written.expired_tombstones + reuse.dropped_expired
    return replace(written, expired_tombstones=expired, taken_over=taken_over(reuse))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Division:
    """The numbers of shares for which the sidecars have the requested size.

    An add and the remove of the same file must be in the same share. The more numerous kind of
    action determines the number of shares. The other kind would have too many small sidecars, so
    its surviving actions are passed on to fewer shares.
    """

    shares: int
    passed_on: PassedOn | None
    """The kind that is passed on; None if both kinds have the same number of sidecars."""
    passed_shares: int


def _division(snapshot: Snapshot, spec: CheckpointSpec, reuse: ReuseSurvey | None) -> _Division:
    """Computes the division from estimates of the numbers of both kinds."""
    adds, in_tail = _actions_in_tail(snapshot)
    removes = in_tail
    if snapshot.log.checkpoint is not None:
        only = None if reuse is None else {sidecar.path for sidecar in reuse.rewritten}
        more_adds, more_removes = snapshot.log.checkpoint.action_counts(only=only)
        adds, removes = adds + more_adds, removes + more_removes
    # A remove in the tail usually supersedes an add; one in the checkpoint has no add.
    adds -= in_tail
    of_adds, of_removes = (
        max(1, math.ceil(actions / (spec.actions_per_sidecar * _FILL)))
        for actions in (adds, removes)
    )
    passed_on: PassedOn | None = None
    if of_adds != of_removes:
        passed_on = "remove" if of_adds > of_removes else "add"
    return _Division(
        shares=max(of_adds, of_removes), passed_on=passed_on, passed_shares=min(of_adds, of_removes)
    )


def _actions_in_tail(snapshot: Snapshot) -> tuple[float, float]:
    """Estimates the numbers of adds and removes from the tail's size and a few of its files."""
    entries = snapshot.log.segment.tail
    if not entries:
        return 0, 0
    step = max(1, len(entries) // _SAMPLED_FILES)
    sampled = entries[step // 2 :: step][:_SAMPLED_FILES]
    adds = removes = 0
    for batch in LogTail(snapshot.log.store, sampled).batches(
        keys=MapKeys(partition_columns=frozenset()), fields={"add": ("path",), "remove": ("path",)}
    ):
        adds += batch.adds.num_rows
        removes += batch.removes.num_rows
    scale = sum(e.status.size for e in entries) / max(1, sum(e.status.size for e in sampled))
    return adds * scale, removes * scale


def _needed_times(snapshot: Snapshot, spec: CheckpointSpec) -> dict[int, int]:
    """Returns the commit times that may make a tombstone unexpired."""
    limit = spec.deleted_after_ms
    if limit is None:
        return {}
    return {version: time for version, time in commit_times(snapshot).items() if time > limit}


def _unite_reports(reports: Sequence[Report], store: Store) -> SidecarSet:
    sets = [report for report in reports if isinstance(report, SidecarSet)]
    written = SidecarSet(
        reports=tuple(report for sidecar_set in sets for report in sidecar_set.reports),
        expired_tombstones=sum(sidecar_set.expired_tombstones for sidecar_set in sets),
    )
    if len(sets) == len(reports):
        return written
    folder = f"{LOG_DIRECTORY}/{SIDECAR_DIRECTORY}"
    # This run created them and nothing refers to them, so a leftover does no harm.
    store.delete_many(f"{folder}/{report.sidecar.path}" for report in written.reports)
    errors = [report for report in reports if isinstance(report, DeltaMaintenanceError)]
    if errors:
        raise gravest(errors)
    # Every share knows all fields of the log, so all of them report the same columns.
    raise next(report for report in reports if isinstance(report, UnknownFieldsError))
