"""Writing the sidecars of a checkpoint in this process: all of them, or those that changed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from delta_maintenance.clock import NewId
from delta_maintenance.protocol.columns.key_hash import Hashes
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.protocol.delta_log.tally import Tally
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.active_files import ActiveFiles
from delta_maintenance.table.read.checkpoint_reader import FileActionBatch
from delta_maintenance.table.read.files.removed_first import key_hashes
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.checkpoint_spec import CheckpointSpec
from delta_maintenance.table.write.sidecar_reuse import (
    NotReusableError,
    ReusedSidecar,
    ReuseSurvey,
    require_found,
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
    missing = snapshot.named_in_tail.removed_first
    for sidecar in reuse.rewritten:
        if sidecar.fate == "rewrite":
            rolling.cut(at_least=1 if is_first else half)
            is_first = False
        read = _ReadAnew(sidecar, missing)
        yield from read.files(snapshot, replay)
        missing = read.missing
    require_found(reuse, len(missing))


class _ReadAnew:
    """One sidecar that is read again, and compared with its tags."""

    def __init__(self, sidecar: ReusedSidecar, missing: Hashes) -> None:
        self._sidecar = sidecar
        self._found = Tally()
        self.missing = missing
        """The removed files that no sidecar contained so far, by the hashes of their keys."""

    def files(self, snapshot: Snapshot, replay: FileReplay) -> Iterator[ActiveFiles]:
        path = self._sidecar.path
        yield from snapshot.scan_checkpoint(replay, only={path}, seen=self._see)
        if self._found != self._sidecar.found.summary.tally:
            raise NotReusableError(f"the contents of {path} differ from its tags")

    def _see(self, batch: FileActionBatch) -> None:
        self._found.include(batch.adds, batch.removes)
        for actions in (batch.adds, batch.removes):
            if len(self.missing):
                self.missing = np.setdiff1d(self.missing, key_hashes(actions))
