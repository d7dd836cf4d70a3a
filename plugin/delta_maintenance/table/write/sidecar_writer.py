"""Writing the file actions of a checkpoint into sidecars.

Implements "Sidecar Files". Sidecars are staged and verified one by one and published together,
under names of their own; nothing refers to them before the top-level file does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from delta_maintenance.clock import NewId
from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions.model import Sidecar
from delta_maintenance.protocol.actions.paths import PathAudit
from delta_maintenance.protocol.delta_log.checkpoint_rows import unexpired
from delta_maintenance.protocol.delta_log.file_names import SIDECAR_DIRECTORY
from delta_maintenance.storage.core.base import FileStatus, Store
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.active_files import StandingFiles
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.action_file import ActionFile, Tally
from delta_maintenance.table.write.checkpoint_spec import CheckpointSpec
from delta_maintenance.table.write.staging import Staging, publish
from delta_maintenance.table.write.verify import verify_sidecar

_PARALLEL_UPLOADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarReport:
    """A published sidecar and what is in it."""

    sidecar: Sidecar
    tally: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSet:
    """The sidecars of one checkpoint."""

    reports: tuple[SidecarReport, ...]
    expired_tombstones: int


class SidecarEngine(Protocol):
    """Who writes the sidecars: this process, or a cluster."""

    def write_sidecars(self, snapshot: Snapshot, spec: CheckpointSpec) -> SidecarSet:
        """Writes, verifies and publishes every file action of the snapshot that stands."""
        ...


class LocalSidecars:
    """Writes sidecars in this process, one after the other, of at most so many actions each."""

    def __init__(self, staged: Staging, new_id: NewId, progress: Progress | None = None) -> None:
        self._staged = staged
        self._new_id = new_id
        self._progress = progress

    def write_sidecars(self, snapshot: Snapshot, spec: CheckpointSpec) -> SidecarSet:
        """See `SidecarEngine`. Publishes nothing before the last sidecar is verified."""
        files = standing(snapshot, spec, self._progress)
        return roll_sidecars(files, spec, self._staged, snapshot.store, self._new_id)


def roll_sidecars(
    files: Iterable[tuple[StandingFiles, int]],
    spec: CheckpointSpec,
    staged: Staging,
    store: Store,
    new_id: NewId,
) -> SidecarSet:
    """Sidecars of what `kept` gives. Publishes nothing before the last one is verified."""
    rolling = RollingSidecars(staged, spec, new_id)
    expired = 0
    try:
        for batch, dropped in files:
            expired += dropped
            rolling.write(batch)
        rolling.finish()
    except BaseException:
        rolling.abandon()
        raise
    return SidecarSet(reports=rolling.publish(store), expired_tombstones=expired)


class RollingSidecars:
    """Sidecars under way: each is staged and verified, all are published together.

    A full one is completed and read back in a thread of its own while the next one fills up.
    """

    def __init__(self, staged: Staging, spec: CheckpointSpec, new_id: NewId) -> None:
        self._staged = staged
        self._spec = spec
        self._new_id = new_id
        self._thread = ThreadPoolExecutor(1)
        self._done: list[tuple[str, Tally, Future[None]]] = []
        self._name = ""
        self._file: ActionFile | None = None
        self._room = 0

    def write(self, batch: StandingFiles) -> None:
        """Appends file actions, starting new sidecars as they fill up."""
        adds, tombstones, hashes = batch.adds, batch.tombstones, batch.add_hashes
        while adds.num_rows + tombstones.num_rows:
            if self._file is None:
                self._begin()
            assert self._file is not None
            first = min(adds.num_rows, self._room)
            second = min(tombstones.num_rows, self._room - first)
            self._file.write_files(
                adds.slice(0, first),
                tombstones.slice(0, second),
                add_hashes=hashes[:first] if hashes is not None else None,
            )
            adds, tombstones = adds.slice(first), tombstones.slice(second)
            hashes = hashes[first:] if hashes is not None else None
            self._room -= first + second
            if not self._room:
                self._complete()

    def finish(self) -> None:
        """Completes the last sidecar and waits until all are verified."""
        self._complete()
        self._wait()
        self._thread.shutdown()

    def _complete(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self._wait()
            verified = self._thread.submit(_close_and_verify, file, self._staged, self._name)
            self._done.append((self._name, file.tally, verified))

    def _wait(self) -> None:
        if self._done:
            self._done[-1][-1].result()

    def publish(self, store: Store) -> tuple[SidecarReport, ...]:
        """Makes all of them visible; nothing refers to them yet."""
        with ThreadPoolExecutor(_PARALLEL_UPLOADS) as pool:
            statuses = list(
                pool.map(lambda done: publish(self._staged, store, done[0]), self._done)
            )
        return tuple(
            SidecarReport(sidecar=_sidecar(status), tally=tally)
            for status, (_, tally, _) in zip(statuses, self._done, strict=True)
        )

    def abandon(self) -> None:
        """Lets go of the sidecars under way."""
        self._thread.shutdown()
        file, self._file = self._file, None
        if file is not None:
            file.abandon()

    def _begin(self) -> None:
        self._name = f"{SIDECAR_DIRECTORY}/{self._new_id()}.parquet"
        layout = self._spec.layout
        schema = pa.schema([("add", layout.add_type), ("remove", layout.remove_type)])
        self._file = ActionFile(self._staged.path(self._name), schema, layout, self._spec.style)
        self._room = self._spec.actions_per_sidecar


def _close_and_verify(file: ActionFile, staged: Staging, name: str) -> None:
    file.close()
    verify_sidecar(staged, name, file.tally)


def standing(
    snapshot: Snapshot, spec: CheckpointSpec, progress: Progress | None = None
) -> Iterator[tuple[StandingFiles, int]]:
    """The file actions that a checkpoint holds, with the number of expired tombstones left out.

    `RefusedError` at the end where the paths of the table forbid writing.
    """
    done = 0
    for batch, expired in kept(
        snapshot.scan(),
        root=snapshot.table,
        deleted_after_ms=spec.deleted_after_ms,
        commit_times=commit_times(snapshot),
    ):
        yield batch, expired
        done += batch.adds.num_rows + batch.tombstones.num_rows
        if progress is not None:
            progress("file actions", done, None)


def kept(
    files: Iterable[StandingFiles],
    *,
    root: str,
    deleted_after_ms: int | None,
    commit_times: Mapping[int, int],
) -> Iterator[tuple[StandingFiles, int]]:
    """Of all standing files of a table, or of those at some paths, what a checkpoint holds.

    Each batch comes with the number of expired tombstones left out of it. `RefusedError` at the end
    where the paths forbid writing.
    """
    audit = PathAudit(root)
    for batch in files:
        audit.add(batch.adds, batch.tombstones)
        unexpired_ones = unexpired(
            batch.tombstones, deleted_after_ms=deleted_after_ms, commit_times=commit_times
        )
        expired = batch.tombstones.num_rows - unexpired_ones.num_rows
        yield StandingFiles(batch.adds, unexpired_ones, batch.add_hashes), expired
    problem = audit.problem()
    if problem is not None:
        raise RefusedError(
            problem,
            remedy="readers disagree about this table: repair it before anything writes to it",
        )


def commit_times(snapshot: Snapshot) -> dict[int, int]:
    """When each commit after the checkpoint was written, in milliseconds since 1970-01-01 UTC."""
    return {
        entry.file.version: entry.status.modified_ms
        for entry in snapshot.segment.commits
        if entry.file.version is not None
    }


def _sidecar(status: FileStatus) -> Sidecar:
    return Sidecar(
        path=status.path.rpartition("/")[2],
        size_in_bytes=status.size,
        modification_time=status.modified_ms,
    )
