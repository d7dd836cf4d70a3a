"""Writes the file actions of a checkpoint into sidecars: all of them, or those that changed.

Implements "Sidecar Files". Sidecars are staged and verified one by one and published together under
new names. No reader sees them before the top-level file refers to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import pyarrow as pa

from delta_maintenance.clock import NewId
from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions.model import Sidecar
from delta_maintenance.protocol.actions.paths import PathAudit
from delta_maintenance.protocol.columns import Hashes
from delta_maintenance.protocol.delta_log.checkpoint_rows import FileActionLayout, select_unexpired
from delta_maintenance.protocol.delta_log.file_names import SIDECAR_DIRECTORY
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.protocol.delta_log.sidecars import SidecarSummary, bare_name
from delta_maintenance.protocol.delta_log.version_checksum import Tally
from delta_maintenance.storage.core.base import FileStatus, Store
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.active_files import ActiveFiles, key_hashes
from delta_maintenance.table.read.checkpoint_reader import FileActionBatch
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.writable import EXAMINE
from delta_maintenance.table.write.checkpoint_spec import ActionFile, CheckpointSpec
from delta_maintenance.table.write.sidecar_reuse import (
    ReusedSidecar,
    ReuseSurvey,
    contradicted_tags,
    require_found,
    survey_reuse,
)
from delta_maintenance.table.write.staging import Staging, publish, verify_sidecar

_PARALLEL_UPLOADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarReport:
    """A sidecar of a checkpoint, and its contents."""

    sidecar: Sidecar
    """The sidecar action, with the summary in its tags."""
    summary: SidecarSummary

    @classmethod
    def of(cls, sidecar: Sidecar, summary: SidecarSummary) -> Self:
        """Adds the summary to the tags of the sidecar."""
        tags = {**(sidecar.tags or {}), **summary.to_tags(bare_name(sidecar))}
        return cls(sidecar=replace(sidecar, tags=tags), summary=summary)

    @property
    def tally(self) -> Tally:
        """The totals of its file actions."""
        return self.summary.tally


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSet:
    """The sidecars of one checkpoint."""

    reports: tuple[SidecarReport, ...]
    """The sidecars that were written for it."""
    expired_tombstones: int
    """The number of omitted expired tombstones."""
    taken_over: tuple[SidecarReport, ...] = ()
    """The sidecars of an earlier checkpoint."""

    @property
    def all(self) -> tuple[SidecarReport, ...]:
        """New sidecars first: readers assume the columns of the first sidecar for all of them."""
        return (*self.reports, *self.taken_over)


class SidecarEngine(Protocol):
    """Writes the sidecars, in this process or on a cluster."""

    def survey(self, snapshot: Snapshot, spec: CheckpointSpec) -> ReuseSurvey:
        """Decides which sidecars an incremental checkpoint of this snapshot takes over.

        Raises `NotReusableError` if nothing can be taken over.
        """
        ...

    def write_sidecars(
        self, snapshot: Snapshot, spec: CheckpointSpec, *, reuse: ReuseSurvey | None = None
    ) -> SidecarSet:
        """Writes, verifies and publishes all active file actions of the snapshot.

        With `reuse`, a survey of this snapshot, only those outside the sidecars that are taken
        over. Raises `NotReusableError` if the sidecars contradict the survey.
        """
        ...


def roll_sidecars(
    files: Iterable[tuple[ActiveFiles, int]],
    spec: CheckpointSpec,
    staged: Staging,
    store: Store,
    new_id: NewId,
) -> SidecarSet:
    """Writes sidecars of the batches of `kept`. Publishes nothing before the last one is
    verified.
    """
    expired = 0
    with RollingSidecars(staged, spec, new_id) as rolling:
        for batch, dropped in files:
            expired += dropped
            rolling.write(batch)
    return SidecarSet(reports=rolling.publish(store), expired_tombstones=expired)


class RollingSidecars:
    """A series of sidecars: each is staged and verified, and all are published together.

    Live files and tombstones have separate sidecars, because tombstones expire. At the end of the
    block, all sidecars are complete and verified, or abandoned if it raises.
    """

    def __init__(self, staged: Staging, spec: CheckpointSpec, new_id: NewId) -> None:
        self._staged = staged
        # A full sidecar is completed and read back while the next one is filled.
        self._thread = ThreadPoolExecutor(1)
        self._adds = _Rolling(staged, spec, new_id, self._thread)
        self._tombstones = _Rolling(staged, spec, new_id, self._thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            for rolling in (self._adds, self._tombstones):
                if kind is None:
                    rolling.finish()
        finally:
            self._thread.shutdown()
            for rolling in (self._adds, self._tombstones):
                rolling.abandon()

    def write(self, batch: ActiveFiles) -> None:
        """Appends file actions, starting new sidecars as they fill up."""
        adds, tombstones = batch.adds, batch.tombstones
        self._adds.write(ActiveFiles(adds, tombstones.slice(0, 0), batch.add_hashes))
        self._tombstones.write(ActiveFiles(adds.slice(0, 0), tombstones))

    def cut(self, *, at_least: int = 1) -> None:
        """Completes the open sidecars that have at least this number of file actions."""
        self._adds.cut(at_least)
        self._tombstones.cut(at_least)

    def publish(self, store: Store) -> tuple[SidecarReport, ...]:
        """Makes all sidecars visible; nothing refers to them yet."""
        done = [*self._adds.done, *self._tombstones.done]
        with ThreadPoolExecutor(_PARALLEL_UPLOADS) as pool:
            statuses = list(pool.map(lambda file: publish(self._staged, store, file.name), done))
        return tuple(
            SidecarReport.of(_sidecar(status), file.verified.result())
            for status, file in zip(statuses, done, strict=True)
        )


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
        return roll_sidecars(files, spec, self._staged, snapshot.log.store, self._new_id)

    def _write_changed(
        self, snapshot: Snapshot, spec: CheckpointSpec, reuse: ReuseSurvey
    ) -> SidecarSet:
        expired = reuse.dropped_expired
        done = 0
        with RollingSidecars(self._staged, spec, self._new_id) as rolling:
            files = kept(
                _changed_actions(snapshot, spec, reuse, rolling),
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
            reports=rolling.publish(snapshot.log.store),
            expired_tombstones=expired,
            taken_over=taken_over(reuse),
        )


@dataclass(frozen=True, slots=True)
class _Done:
    """A complete sidecar."""

    name: str
    verified: Future[SidecarSummary]


class _Rolling:
    """A series of sidecars of one kind."""

    def __init__(
        self, staged: Staging, spec: CheckpointSpec, new_id: NewId, thread: ThreadPoolExecutor
    ) -> None:
        self._staged = staged
        self._spec = spec
        self._new_id = new_id
        self._thread = thread
        self.done: list[_Done] = []
        self._name = ""
        self._file: ActionFile | None = None
        self._room = 0

    def write(self, batch: ActiveFiles) -> None:
        adds, tombstones, hashes = batch.adds, batch.tombstones, batch.add_hashes
        while adds.num_rows + tombstones.num_rows:
            if self._file is None:
                self._begin()
            assert self._file is not None
            add_count = min(adds.num_rows, self._room)
            tombstone_count = min(tombstones.num_rows, self._room - add_count)
            self._file.write_files(
                adds.slice(0, add_count),
                tombstones.slice(0, tombstone_count),
                add_hashes=hashes[:add_count] if hashes is not None else None,
            )
            adds, tombstones = adds.slice(add_count), tombstones.slice(tombstone_count)
            hashes = hashes[add_count:] if hashes is not None else None
            self._room -= add_count + tombstone_count
            if not self._room:
                self._complete()

    def cut(self, at_least: int) -> None:
        if self._spec.actions_per_sidecar - self._room >= at_least:
            self._complete()

    def finish(self) -> None:
        self._complete()
        self._wait()

    def abandon(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.abandon()

    def _begin(self) -> None:
        self._name = f"{SIDECAR_DIRECTORY}/{self._new_id()}.parquet"
        layout = self._spec.layout
        self._file = ActionFile(
            self._staged.path(self._name),
            sidecar_schema(layout),
            layout,
            self._spec.style,
            is_sidecar=True,
        )
        self._room = self._spec.actions_per_sidecar

    def _complete(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self._wait()
            verified = self._thread.submit(_close_and_verify, file, self._staged, self._name)
            self.done.append(_Done(self._name, verified))

    def _wait(self) -> None:
        if self.done:
            self.done[-1].verified.result()


def sidecar_schema(layout: FileActionLayout) -> pa.Schema:
    """Returns the columns of every sidecar, whether of live files or of tombstones.

    Raises `RefusedError` if unknown fields would be too many columns.
    """
    layout.require_few_columns()
    return pa.schema([("add", layout.add_type), ("remove", layout.remove_type)])


def _close_and_verify(file: ActionFile, staged: Staging, name: str) -> SidecarSummary:
    file.close()
    assert file.summary is not None
    verify_sidecar(staged, name, file.summary)
    return file.summary


def checkpoint_actions(
    snapshot: Snapshot, spec: CheckpointSpec, progress: Progress | None = None
) -> Iterator[tuple[ActiveFiles, int]]:
    """Yields the file actions of a checkpoint, with the number of omitted expired tombstones.

    Raises `CorruptTableError` at the end if readers disagree about the files.
    """
    done = 0
    for batch, expired in kept(
        snapshot.log.scan(),
        root=snapshot.table,
        deleted_after_ms=spec.deleted_after_ms,
        commit_times=commit_times(snapshot),
    ):
        yield batch, expired
        done += batch.adds.num_rows + batch.tombstones.num_rows
        if progress is not None:
            progress("file actions", done, None)


def kept(
    files: Iterable[ActiveFiles],
    *,
    root: str,
    deleted_after_ms: int | None,
    commit_times: Mapping[int, int],
) -> Iterator[tuple[ActiveFiles, int]]:
    """Yields the file actions of a checkpoint among all active files of a table, or those of some
    paths.

    Each batch comes with the number of expired tombstones omitted from it. Raises
    `CorruptTableError` at the end if readers disagree about the files.
    """
    audit = PathAudit(root)
    for batch in files:
        audit.add(
            batch.adds, batch.tombstones, key_hashes=batch.add_hashes, repeated=batch.repeated
        )
        unexpired_ones = select_unexpired(
            batch.tombstones, deleted_after_ms=deleted_after_ms, commit_times=commit_times
        )
        expired = batch.tombstones.num_rows - unexpired_ones.num_rows
        yield ActiveFiles(batch.adds, unexpired_ones, batch.add_hashes), expired
    problem = audit.problem()
    if problem is not None:
        raise CorruptTableError(problem, remedy=EXAMINE)


def commit_times(snapshot: Snapshot) -> dict[int, int]:
    """Returns the time of each commit after the checkpoint, in milliseconds since
    1970-01-01 UTC.
    """
    return {
        entry.file.version: entry.status.modified_ms
        for entry in snapshot.log.segment.commits
        if entry.file.version is not None
    }


def taken_over(survey: ReuseSurvey) -> tuple[SidecarReport, ...]:
    """Returns the sidecars of the base that a new checkpoint takes over."""
    return tuple(
        SidecarReport.of(sidecar.found.sidecar, sidecar.found.summary) for sidecar in survey.kept
    )


def _sidecar(status: FileStatus) -> Sidecar:
    return Sidecar(
        path=status.path.rpartition("/")[2],
        size_in_bytes=status.size,
        modification_time=status.modified_ms,
    )


def _changed_actions(
    snapshot: Snapshot, spec: CheckpointSpec, reuse: ReuseSurvey, rolling: RollingSidecars
) -> Iterator[ActiveFiles]:
    """Yields the active file actions of the commits since the base, then those of each sidecar to
    be rewritten.

    Before each rewritten sidecar, new sidecars that are full enough are completed, so that the
    contents of one sidecar stay together.
    """
    replay = FileReplay()
    yield from snapshot.log.scan_tail(replay)
    half = (spec.actions_per_sidecar + 1) // 2
    is_first = True
    missing = snapshot.log.named_in_tail.removed_first
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
        yield from snapshot.log.scan_checkpoint(replay, only={path}, watch_batch=self._see)
        if self._found != self._sidecar.found.summary.tally:
            raise contradicted_tags(path)

    def _see(self, batch: FileActionBatch) -> None:
        self._found.include(batch.adds, batch.removes)
        for actions in (batch.adds, batch.removes):
            if len(self.missing):
                self.missing = np.setdiff1d(self.missing, key_hashes(actions))
