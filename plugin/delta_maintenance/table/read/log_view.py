"""The files of a log that make up one version, and the file actions in them.

Implements "Action Reconciliation": file actions are read on request, as a stream of columns, newest
first, for which only the keys of earlier batches are kept in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn, TypeVar
from typing import Protocol as Interface

import pyarrow as pa

from delta_maintenance.errors import CorruptTableError, DeltaMaintenanceError
from delta_maintenance.lazy import read_once
from delta_maintenance.limits import MOST_PARTITION_COLUMNS
from delta_maintenance.protocol.actions.model import (
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Txn,
)
from delta_maintenance.protocol.columns import Hashes
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.protocol.ndjson.parse import MapKeys
from delta_maintenance.protocol.schema.types import column_mapping_mode, parse_schema, physical_name
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.active_files import (
    ActiveFiles,
    FirstActions,
    active_files,
    active_in_tail,
)
from delta_maintenance.table.read.checkpoint_reader import (
    FILE_COLUMNS,
    Checkpoint,
    FileActionBatch,
    UnusableCheckpointError,
)
from delta_maintenance.table.read.file_index import FileIndex
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.read.log_reader import LogTail
from delta_maintenance.table.read.segment import LogSegment
from delta_maintenance.table.read.sidecar_search import (
    NamedLocations,
    SearchedSidecar,
    search_sidecars,
)

Batch = TypeVar("Batch")

EXAMINE = "run fsck, and follow the remedy of each finding"
"""The remedy for a table with a contradiction."""


class VanishedFileError(UnusableCheckpointError):
    """A file of the log was deleted after the snapshot was opened; the log must be listed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFiles:
    """The files that some commits name, each counted once, by the newest commit that names it."""

    adds: int
    tombstones: int
    locations: NamedLocations
    removed_first: Hashes
    """The hashes of the keys of files whose first action in these commits is a remove, ascending.
    Such files should be in the checkpoint before the commits.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotState:
    """The small state of one version, the result of log replay."""

    protocol: Protocol
    metadata: Metadata
    txns: Mapping[str, Txn]
    domains: Mapping[str, DomainMetadata]
    """Without removed domains."""
    commit_info: CommitInfo | None
    """The `commitInfo` of the commit of this version."""
    draft_high_water_mark: Mapping[str, object] | None
    repeated_actions: frozenset[str]
    """Actions in effect of which their commit contains two, so that readers may use the other."""
    unknown_actions: frozenset[str]
    """Names of actions in the tail of the log that no revision of the protocol defines."""


class CheckpointWatch(Interface):
    """Compares the files of a checkpoint with other evidence while they are read."""

    def include(self, hashes: Hashes) -> None:
        """Adds the live files of a batch, by the hashes of their keys."""

    def problem(self) -> str | None:
        """Returns the first contradiction as a clause, after all batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """How the log agrees with a version (`table.evidence.contradictions`)."""

    problem: str | None
    """The first contradiction, as one clause."""
    watch: Callable[[], CheckpointWatch] | None = None
    """Makes the comparison of the files of a checkpoint; None if they were compared."""
    num_files: int | None = None
    """The number of live files according to a checksum; None if it was compared."""

    def at_later_version(self) -> Evidence:
        """Returns what holds for a later version on the same checkpoint."""
        return replace(self, num_files=None)


class LogView:
    """The log behind one version of a table: its files, its small state, and its file actions.

    Everything here can change between releases. `Snapshot` is the view for users.
    """

    def __init__(
        self,
        *,
        store: Store,
        segment: LogSegment,
        tail: LogTail,
        checkpoint: Checkpoint | None,
        state: SnapshotState,
        contradiction: str | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        """`evidence` is that of an earlier version on the same checkpoint."""
        self.store = store
        self.segment = segment
        self.tail = tail
        """The commits and compactions after the checkpoint."""
        self.checkpoint = checkpoint
        self.state = state
        self.contradiction = contradiction
        """The contradiction that was found while opening, as one clause."""
        self.evidence = None if evidence is None else evidence.at_later_version()
        """Set by `evidence.find_contradiction`."""
        self.index: FileIndex | None = None
        """Set by `Snapshot.remember_files`."""

    @property
    def size_bytes(self) -> int:
        """The bytes of the log files that a replay of this version reads."""
        checkpoint = 0 if self.checkpoint is None else self.checkpoint.size_bytes
        return checkpoint + sum(entry.status.size for entry in self.segment.tail)

    @cached_property
    def physical_partition_columns(self) -> tuple[str, ...]:
        """The names of partition columns in file actions ("Column Mapping")."""
        columns = self.state.metadata.partition_columns
        if len(columns) > MOST_PARTITION_COLUMNS:
            # A file has a value for each partition column, even if it is null.
            raise CorruptTableError(f"the table has {len(columns)} partition columns")
        mode = column_mapping_mode(self.state.protocol, self.state.metadata.configuration)
        if mode == "none" or not columns or self.state.metadata.schema_string is None:
            return columns
        schema = parse_schema(self.state.metadata.schema_string)
        fields = {name: schema.find(name) for name in columns}
        missing = [name for name, field in fields.items() if field is None]
        if missing:
            raise CorruptTableError(f"the partition column {missing[0]!r} is not in the schema")
        return tuple(physical_name(field, mode) for field in fields.values() if field is not None)

    def scan(self, *, fields: Mapping[str, Collection[str]] | None = None) -> Iterator[ActiveFiles]:
        """Yields the active file actions in batches, each row exactly once.

        Without `fields`, all fields are included, also unknown ones. Raises
        `UnusableCheckpointError` if a checkpoint proves to be damaged, and its subclass
        `VanishedFileError` if a file was deleted after the snapshot was opened;
        `Snapshot.avoiding` returns the version without that file.
        """
        replay, number = FileReplay(), 0
        for scan_part in (self.scan_tail, self.scan_checkpoint):
            for batch in scan_part(replay, fields=fields):
                number += batch.adds.num_rows
                yield batch
        stated = None if self.evidence is None else self.evidence.num_files
        if stated is not None and stated != number:
            self._contradict(f"it has {number} files, but its checksum states {stated}")

    def scan_tail(
        self, replay: FileReplay, *, fields: Mapping[str, Collection[str]] | None = None
    ) -> Iterator[ActiveFiles]:
        """The first part of `scan`: the active file actions of the commits since the checkpoint."""

        def active_actions() -> Iterator[ActiveFiles]:
            read_fields = None if fields is None else _with_keys(fields)
            batches = self.tail.batches(keys=self.map_keys(), fields=read_fields)
            yield from active_in_tail(batches, replay)

        return self.locate_errors(active_actions())

    def scan_checkpoint(
        self,
        replay: FileReplay,
        *,
        fields: Mapping[str, Collection[str]] | None = None,
        only: Collection[str] | None = None,
        actions: Collection[str] = tuple(FILE_COLUMNS),
        watch_batch: Callable[[FileActionBatch], None] | None = None,
    ) -> Iterator[ActiveFiles]:
        """The second part of `scan`: the active file actions of the checkpoint, after `scan_tail`.

        `only` names the sidecars to read, by their paths relative to the table root; `actions` are
        those to read, `add` or `remove`. `watch_batch` is called with every batch before rows that
        are no longer in effect are removed from it.
        """
        checkpoint = self.checkpoint
        if checkpoint is None:
            return iter(())

        def active_actions() -> Iterator[ActiveFiles]:
            read_fields = None if fields is None else _with_keys(fields)
            is_full = only is None and "add" in actions
            make = self.evidence.watch if self.evidence is not None and is_full else None
            watch = None if make is None else make()
            include = None if watch is None else watch.include
            for actions_batch in checkpoint.file_actions(
                keys=self.map_keys(), fields=read_fields, only=only, actions=actions
            ):
                if watch_batch is not None:
                    watch_batch(actions_batch)
                yield active_files(
                    actions_batch.adds, actions_batch.removes, replay, remember=False, watch=include
                )
            if watch is not None and (problem := watch.problem()) is not None:
                self._contradict(f"{checkpoint.files.name} {problem}")

        return self.locate_errors(active_actions())

    @read_once
    def named_in_tail(self) -> NamedFiles:
        """Returns the files that commits since the checkpoint name and that are still in effect."""
        tail, fields = self.tail, _with_keys({"add": (), "remove": ()})
        if any(entry.file.end_version is not None for entry in tail.entries):
            # A log compaction omits adds of files that its own commits remove.
            tail = LogTail(self.store, self.segment.commits)
        adds = tombstones = 0
        paths: list[pa.StringArray] = []
        first_actions = FirstActions()
        batches = first_actions.watching(tail.batches(keys=self.map_keys(), fields=fields))
        for batch in self.locate_errors(active_in_tail(batches, FileReplay())):
            adds += batch.adds.num_rows
            tombstones += batch.tombstones.num_rows
            paths += [*batch.adds["path"].chunks, *batch.tombstones["path"].chunks]
        return NamedFiles(
            adds=adds,
            tombstones=tombstones,
            locations=NamedLocations.of(paths, root=self.store.root),
            removed_first=first_actions.removes(),
        )

    @read_once
    def searched_sidecars(self) -> tuple[SearchedSidecar, ...]:
        """Returns the sidecars of the checkpoint, and whether each may contain a file of
        `named_in_tail`.

        Their files never change, so one search is enough for a plan and its execution.
        """
        assert self.checkpoint is not None
        return search_sidecars(self.store, self.checkpoint, self.named_in_tail.locations)

    def map_keys(self) -> MapKeys:
        """The keys of partition values, for a reader of file actions."""
        return MapKeys(partition_columns=frozenset(self.physical_partition_columns))

    def _contradict(self, problem: str) -> NoReturn:
        self.evidence = Evidence(problem=problem)
        raise contradiction_error(problem)

    def locate_errors(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yields the batches, and lets errors name the table, the version and the file."""
        try:
            yield from batches
        except FileNotFoundError as error:
            raise VanishedFileError(
                "a file of the log was deleted after the snapshot was opened",
                table=self.store.root,
                version=self.segment.version,
                file=error.filename,
                remedy="open the table again; if that fails too, find the process that deletes "
                "files of this log",
            ) from error
        except DeltaMaintenanceError as error:
            raise error.locate(
                table=self.store.root, version=self.segment.version, file=LOG_DIRECTORY
            ) from error.__cause__


def contradiction_error(problem: str) -> CorruptTableError:
    """Returns the error for a version that its log contradicts."""
    return CorruptTableError(f"the log contradicts this version: {problem}", remedy=EXAMINE)


def _with_keys(fields: Mapping[str, Collection[str]]) -> dict[str, Collection[str]]:
    return {
        action: {"path", "deletionVector", *fields.get(action, ())} for action in ("add", "remove")
    }
