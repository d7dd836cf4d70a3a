"""Writing the sidecars of a checkpoint in this process: all of them, or those that changed."""

from __future__ import annotations

from collections.abc import Iterator

from delta_maintenance.clock import NewId
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.protocol.delta_log.tally import Tally
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.active_files import ActiveFiles
from delta_maintenance.table.read.checkpoint_reader import FileActionBatch
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.checkpoint_spec import CheckpointSpec
from delta_maintenance.table.write.sidecar_reuse import (
    NotReusableError,
    ReusedSidecar,
    ReuseSurvey,
    survey_reuse,
)
from delta_maintenance.table.write.sidecar_writer import (
    RollingSidecars,
    SidecarSet,
    checkpoint_actions,
    commit_times,
    kept,
    roll_sidecars,
    taken_over,
)
from delta_maintenance.table.write.staging import Staging


class LocalSidecars:
    """A `SidecarEngine` in this process, which writes one sidecar after the other."""

    def __init__(self, staged: Staging, new_id: NewId, progress: Progress | None = None) -> None:
        self._staged = staged
        self._new_id = new_id
        self._progress = progress

    def survey(self, snapshot: Snapshot, spec: CheckpointSpec) -> ReuseSurvey:
        """See `SidecarEngine`."""
        return survey_reuse(snapshot, spec)

    def write_sidecars(
        self, snapshot: Snapshot, spec: CheckpointSpec, *, reuse: ReuseSurvey | None = None
    ) -> SidecarSet:
        """See `SidecarEngine`. Publishes nothing before the last sidecar is verified."""
        if reuse is not None:
            return self._write_changed(snapshot, spec, reuse)
        files = checkpoint_actions(snapshot, spec, self._progress)
        return roll_sidecars(files, spec, self._staged, snapshot.store, self._new_id)

    def _write_changed(
        self, snapshot: Snapshot, spec: CheckpointSpec, reuse: ReuseSurvey
    ) -> SidecarSet:
        expired = reuse.dropped_expired
        done = 0
        with RollingSidecars(self._staged, spec, self._new_id) as rolling:
            files = kept(
                _changed(snapshot, spec, reuse, rolling),
                root=snapshot.table,
                deleted_after_ms=spec.deleted_after_ms,
                commit_times=commit_times(snapshot),
            )
            for batch, dropped in files:
                expired += dropped
                rolling.write(batch)
                done += batch.adds.num_rows + batch.tombstones.num_rows
                if self._progress is not None:
                    self._progress("file actions", done, None)
        return SidecarSet(
            reports=rolling.publish(snapshot.store),
            expired_tombstones=expired,
            taken_over=taken_over(reuse),
        )


def _changed(
    snapshot: Snapshot, spec: CheckpointSpec, reuse: ReuseSurvey, rolling: RollingSidecars
) -> Iterator[ActiveFiles]:
    """Yields the active file actions of the commits since the base, then those of each sidecar to
    be rewritten.

    Before each rewritten sidecar, new sidecars that are full enough are completed, so that the
    contents of one sidecar stay together.
    """
    replay = FileReplay()
    yield from snapshot.scan_tail(replay)
    half = (spec.actions_per_sidecar + 1) // 2
    is_first = True
    for sidecar in reuse.rewritten:
        if sidecar.fate == "rewrite":
            rolling.cut(at_least=1 if is_first else half)
            is_first = False
        yield from _read_anew(snapshot, replay, sidecar)


def _read_anew(
    snapshot: Snapshot, replay: FileReplay, sidecar: ReusedSidecar
) -> Iterator[ActiveFiles]:
    found = Tally()

    def count(batch: FileActionBatch) -> None:
        found.include(batch.adds, batch.removes)

    yield from snapshot.scan_checkpoint(replay, only={sidecar.path}, seen=count)
    if found != sidecar.found.summary.tally:
        raise NotReusableError(f"the contents of {sidecar.path} differ from its tags")
