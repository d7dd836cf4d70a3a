"""Compares a version with the evidence in its log, before anything is written on top of it.

A checkpoint can be sound Parquet and wrong. What else the log states about its version shows that:
the hint, the tags of its sidecars, a version checksum, and the commits and checkpoints before it.
What is read for that is bounded. Of a checkpoint with many files, the files are compared when they
are read the next time, and only with the newest commits up to the version of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions.file_columns import (
    ADD_TYPES,
    REMOVE_TYPES,
    concat,
    logical_file_keys,
)
from delta_maintenance.protocol.columns import Hashes, integers
from delta_maintenance.protocol.commit.staged import locations_of
from delta_maintenance.protocol.delta_log.commit_facts import FACT_FIELDS, CommitFacts
from delta_maintenance.protocol.delta_log.file_names import checksum_name
from delta_maintenance.protocol.delta_log.replay import FileReplay, StateReplay
from delta_maintenance.protocol.delta_log.version_checksum import (
    VersionChecksum,
    differences,
    parse_checksum,
)
from delta_maintenance.protocol.ndjson.parse import FileLines, MapKeys, parse_file_actions
from delta_maintenance.protocol.ndjson.split import CommitText, SingleActions, parse_other_lines
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.evidence.overwritten_commits import require_not_overwritten
from delta_maintenance.table.read.active_files import key_hashes
from delta_maintenance.table.read.checkpoint_reader import Checkpoint, UnusableCheckpointError
from delta_maintenance.table.read.file_changes import RolledCommits
from delta_maintenance.table.read.file_index import FileIndex
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, LogEntry, read_hint
from delta_maintenance.table.read.log_reader import LogTail, TailBatch
from delta_maintenance.table.read.log_view import Evidence, LogView
from delta_maintenance.table.read.managed_log import as_last_listed
from delta_maintenance.table.read.segment import LogListing, list_log
from delta_maintenance.table.read.snapshot import COUNTED_FIELDS, Snapshot

MOST_COMMITS = 500
"""The maximum number of commits up to a checkpoint that are compared with it."""
MOST_BYTES = 8 << 20
"""The maximum size of these commits, and of the commits after a checkpoint with few files."""
MOST_BYTES_OF_LARGE = 2 << 20
"""The maximum size of these commits if the checkpoint has more files, so that the comparison costs
a fraction of reading them."""
FEW_ACTIONS = 50_000
"""The files of a checkpoint of at most so many rows are compared at once."""

_EXPIRY = "delta.setTransactionRetentionDuration"
_KEYS = MapKeys(partition_columns=frozenset())
_Texts = Sequence[tuple[LogEntry, CommitText]]


def find_contradiction(snapshot: Snapshot) -> str | None:
    """Returns how the log contradicts a version, as one clause; None if it does not.

    The result is kept with the snapshot, and with those that follow it on the same checkpoint.
    """
    log = snapshot.log
    if log.evidence is None:
        log.evidence = snapshot.avoiding_damage(_examine)
    return log.evidence.problem


def live_by_commits(snapshot: Snapshot) -> Iterator[pa.Table]:
    """Yields the adds of all files that commits up to the checkpoint of a version, and the oldest
    checkpoint before them, leave live: the newest commit that names the file adds it.

    Reads every commit from the version back, as far as none is missing or damaged.
    """
    log, store = snapshot.log, snapshot.log.store
    if log.checkpoint is None:
        # The commits are the version.
        return
    listing = list_log(as_last_listed(store))
    entries = _before(listing, snapshot.version, most_bytes=None)
    replay = FileReplay()
    try:
        for batch in LogTail(store, entries).batches(keys=_KEYS, fields=FACT_FIELDS):
            yield _newest_adds(batch, replay, root=store.root)
    except (CorruptTableError, FileNotFoundError):
        # No reader of this version needs the older ones.
        return
    older = None if not entries else _older(store, listing, entries[0], log.segment.base_version)
    if older is not None:
        for older_files in older.file_actions(keys=_KEYS, fields=FACT_FIELDS, actions=("add",)):
            none = np.zeros(0, np.int64)
            order = np.zeros(older_files.adds.num_rows, np.int64)
            batch = TailBatch(older_files.adds, older_files.removes.slice(0, 0), order, none)
            yield _newest_adds(batch, replay, root=store.root)


def _newest_adds(batch: TailBatch, replay: FileReplay, *, root: str) -> pa.Table:
    """Returns the adds of commits that come newest first, unless a newer action names the file."""
    adds, removes = batch.adds, batch.removes
    places = pa.concat_arrays([locations_of(actions, root=root) for actions in (adds, removes)])
    age = np.concatenate([batch.add_order, batch.remove_order])
    # Of an add and a remove of one commit, the add replaces the deletion vector.
    order = np.lexsort((np.arange(len(age)) >= adds.num_rows, age))
    newest = replay.surviving(places, order=order)
    return adds.take(integers(np.sort(newest[newest < adds.num_rows])))


def _examine(snapshot: Snapshot) -> Evidence:
    log = snapshot.log
    if log.contradiction is not None:
        return Evidence(problem=log.contradiction)
    require_not_overwritten(log.store, log.segment.guarded, log.segment.commits_by_version)
    examination = _Examination(log)
    problem = next(examination.problems(), None)
    return Evidence(
        problem=problem,
        watch=None if problem else examination.watch,
        num_files=examination.num_files,
    )


class _Examination:
    """The comparison of one version with its log."""

    def __init__(self, log: LogView) -> None:
        self._log = log
        self._store = log.store
        self._version = log.segment.base_version
        first_version = max(0, self._version + 1 - MOST_COMMITS)
        self._listing = list_log(as_last_listed(log.store), first_version=first_version)
        tail = sum(entry.status.size for entry in log.segment.commits)
        rows = 0 if log.checkpoint is None else log.checkpoint.row_count
        self._is_small = rows <= FEW_ACTIONS and tail <= MOST_BYTES
        self._texts: _Texts = ()
        """Commits up to the checkpoint, the newest first."""
        self.watch: Callable[[], _Watch] | None = None
        """Compares the files of a large checkpoint when they are read."""
        self.num_files: int | None = None
        """The number of live files, to be compared when all of them are read."""

    def problems(self) -> Iterator[str]:
        """Yields the contradictions, those that are found cheaply first."""
        checkpoint = self._log.checkpoint
        if checkpoint is not None:
            if (problem := checkpoint.tag_problem(footers=self._is_small)) is not None:
                yield f"{checkpoint.files.name} contradicts its tags: {problem}"
            budget = MOST_BYTES if self._is_small else MOST_BYTES_OF_LARGE
            self._texts = _readable(
                self._store, _before(self._listing, self._version, most_bytes=budget)
            )
            for problem in self._of_commits(checkpoint):
                yield f"{checkpoint.files.name} contradicts the commits: it {problem}"
        yield from self._of_checksums()

    def _of_commits(self, checkpoint: Checkpoint) -> Iterator[str]:
        texts = self._texts
        is_complete = bool(texts) and texts[-1][0].file.version == 0
        older = _older(self._store, self._listing, texts[-1][0], self._version) if texts else None
        rolled = RolledCommits.of(texts)
        if older is not None:
            _add_singles(rolled.state, older.singles)
        is_whole = is_complete or older is not None
        yield from _state_differences(checkpoint.singles, rolled.state, is_whole=is_whole)
        if not self._is_small:
            self.watch = partial(_Watch, checkpoint, rolled.lines, self._store.root)
            if older is not None:
                yield from self._of_number(checkpoint, older.files.version, older.stated_adds[0])
        elif (facts := _facts(rolled.lines, self._store.root)) is not None:
            is_few = older is not None and older.row_count <= FEW_ACTIONS
            before = _files(older)[0] if older is not None and is_few else None
            yield from _file_differences(facts, checkpoint, before=before, is_complete=is_complete)

    def _of_number(self, checkpoint: Checkpoint, version: int, adds: int | None) -> Iterator[str]:
        """Compares the number of files with that of an earlier version and the commits since."""
        since = [text for text in self._texts if (text[0].file.version or 0) > version]
        stated_count = checkpoint.stated_adds[0]
        if None in (adds, stated_count) or len(since) < self._version - version:
            return
        changes = RolledCommits.of(since).changes()
        # A commit may remove a file that is not there, so that more files are left.
        if changes is not None and (stated_count or 0) < (adds or 0) + changes.files:
            yield f"has {stated_count} files instead of {(adds or 0) + changes.files}"

    def _of_checksums(self) -> Iterator[str]:
        """Compares with the checksum of the checkpoint's version, and with the newest one."""
        newest = self._log.segment.version
        stated = {version for version in self._listing.checksums if version <= newest}
        for version in sorted({*sorted(stated)[-1:], *(stated & {self._version})}):
            name = checksum_name(version)
            try:
                checksum = parse_checksum(read_hint(self._store, f"{LOG_DIRECTORY}/{name}"))
            except (CorruptTableError, FileNotFoundError):
                continue
            if version == newest and not self._is_small:
                self.num_files = checksum.num_files
            if version >= self._version:
                for problem in differences(checksum, self._state_at(version)):
                    yield f"{name} contradicts the log: {problem}"
            elif (checkpoint := self._log.checkpoint) is not None:
                for problem in self._of_number(checkpoint, version, checksum.num_files):
                    yield f"{checkpoint.files.name} contradicts {name}: it {problem}"

    def _state_at(self, version: int) -> VersionChecksum:
        """Returns the state of a version from the checkpoint on, as far as it is known."""
        log, segment, checkpoint = self._log, self._log.segment, self._log.checkpoint
        commits = tuple(e for e in segment.commits if (e.file.version or 0) <= version)
        # The tail of the version itself may be in memory.
        tail = log.tail if commits == log.tail.entries else LogTail(self._store, commits)
        state = StateReplay()
        if version == segment.version:
            state.add(
                protocol=log.state.protocol,
                metadata=log.state.metadata,
                txns=log.state.txns.values(),
                domains=log.state.domains.values(),
            )
        elif self._is_small or version == self._version:
            state = RolledCommits.of(tail.texts()).state
            if checkpoint is not None:
                _add_singles(state, checkpoint.singles)
        else:
            return VersionChecksum()
        expires = state.metadata is not None and _EXPIRY in state.metadata.configuration
        live_state = VersionChecksum(
            protocol=state.protocol,
            metadata=state.metadata,
            txns=None if expires else tuple(state.txns.values()),
            domains=tuple(state.present_domains().values()),
        )
        if self._is_small:
            view = LogView(
                store=self._store,
                segment=segment,
                tail=tail,
                checkpoint=checkpoint,
                state=log.state,
            )
            counts = FileIndex.of(view.scan(fields=COUNTED_FIELDS)).counts
            return replace(
                live_state,
                num_files=counts.num_files,
                table_size=counts.total_size,
                num_deletion_vectors=counts.num_deletion_vectors,
                num_deleted_records=counts.num_deleted_rows,
            )
        if checkpoint is not None and version == self._version:
            adds, size = checkpoint.stated_adds
            return replace(live_state, num_files=adds, table_size=size)
        return live_state


class _Watch:
    """Compares the files of a checkpoint with commits while they are read.

    Hashes of the paths as written decide quickly that they agree; otherwise the checkpoint is read
    again.
    """

    def __init__(self, checkpoint: Checkpoint, lines: Sequence[FileLines], root: str) -> None:
        self._checkpoint = checkpoint
        self._facts = _facts(lines, root)
        none = np.empty(0, np.uint64)
        self._live, self._removed = (
            (none, none)
            if self._facts is None
            else (key_hashes(self._facts.live), key_hashes(self._facts.removed))
        )
        self._bitmap = np.zeros(_BITMAP_SIZE, np.bool_)
        for hashes in (self._live, self._removed):
            self._bitmap[hashes % _BITMAP_SIZE] = True
        self._candidates = [none]

    def include(self, hashes: Hashes) -> None:
        """Adds the files of a batch, by the hashes of their keys."""
        self._candidates.append(hashes[self._bitmap[hashes % _BITMAP_SIZE]])

    def problem(self) -> str | None:
        """Returns the first contradiction, after all batches."""
        if (problem := self._checkpoint.tag_problem(footers=True)) is not None:
            return f"contradicts its tags: {problem}"
        candidates = np.concatenate(self._candidates)
        agrees = (
            np.isin(self._live, candidates).all() and not np.isin(self._removed, candidates).any()
        )
        if agrees or self._facts is None:
            return None
        problems = _file_differences(self._facts, self._checkpoint)
        return next((f"contradicts the commits: it {problem}" for problem in problems), None)


_BITMAP_SIZE = np.uint64(1 << 20)


def _file_differences(
    facts: CommitFacts,
    checkpoint: Checkpoint,
    *,
    before: pa.Table | None = None,
    is_complete: bool = False,
) -> Iterator[str]:
    adds, removes = _files(checkpoint)
    live_and_removed = pc.is_in(logical_file_keys(removes), pc.unique(logical_file_keys(adds)))
    if pc.any(live_and_removed).as_py():
        yield f"has {removes['path'].filter(live_and_removed)[0].as_py()} both live and removed"
    yield from facts.differences(adds, before=before, is_complete=is_complete)


def _files(checkpoint: Checkpoint) -> tuple[pa.Table, pa.Table]:
    batches = list(checkpoint.file_actions(keys=_KEYS, fields=FACT_FIELDS))
    adds = concat((batch.adds for batch in batches), ADD_TYPES)
    removes = concat((batch.removes for batch in batches), REMOVE_TYPES)
    return adds, removes


def _before(
    listing: LogListing, version: int, *, most_bytes: int | None = MOST_BYTES
) -> list[LogEntry]:
    """Returns the commits up to a version, as far back as none is missing and they are not too
    large together; ascending.
    """
    entries: list[LogEntry] = []
    size = 0
    for number in range(version, listing.first_version - 1, -1):
        entry = listing.commits.get(number)
        size += 0 if entry is None else entry.status.size
        if entry is None or (most_bytes is not None and size > most_bytes):
            break
        entries.append(entry)
    return entries[::-1]


def _readable(store: Store, entries: Sequence[LogEntry]) -> _Texts:
    """Reads commits, the newest first, up to the first one that cannot be read."""
    texts: list[tuple[LogEntry, CommitText]] = []
    try:
        for entry, text in LogTail(store, entries).texts():
            parse_other_lines(text, commit_info=True)
            texts.append((entry, text))
    except (CorruptTableError, FileNotFoundError):
        # No reader of this version needs the older ones.
        pass
    return texts


def _facts(lines: Sequence[FileLines], root: str) -> CommitFacts | None:
    try:
        parsed = parse_file_actions(lines, keys=_KEYS, fields=FACT_FIELDS)
    except CorruptTableError:
        # No reader of this version needs these commits.
        return None
    return CommitFacts.of(parsed, root=root)


def _older(
    store: Store, listing: LogListing, first_commit: LogEntry, version: int
) -> Checkpoint | None:
    """Returns the oldest readable checkpoint before a version, given the first commit from which on
    none is missing; None if that is the first of the log.
    """
    start = first_commit.file.version or 0
    for files in listing.checkpoints if start else ():
        if start - 1 <= files.version < version:
            try:
                checkpoint = Checkpoint(store, files, trust_tags=True)
            except UnusableCheckpointError:
                continue
            if checkpoint.singles.protocol is not None and checkpoint.singles.metadata is not None:
                return checkpoint
    return None


def _add_singles(state: StateReplay, singles: SingleActions) -> None:
    state.add(
        protocol=singles.protocol,
        metadata=singles.metadata,
        txns=singles.txns.values(),
        domains=singles.domains.values(),
    )


def _state_differences(
    singles: SingleActions, state: StateReplay, *, is_whole: bool
) -> Iterator[str]:
    """Yields how the small state of a checkpoint differs from the newest actions of commits.

    `is_whole` says that the commits, and a checkpoint before them, contain the whole state.
    """
    checksum = VersionChecksum(protocol=singles.protocol, metadata=singles.metadata)
    expected = VersionChecksum(protocol=state.protocol, metadata=state.metadata)
    for problem in differences(checksum, expected):
        yield f"has another {problem.split()[0]}"
    expires = singles.metadata is not None and _EXPIRY in singles.metadata.configuration
    versions, expected_versions = (
        {name: str(txn.version) for name, txn in txns.items()}
        for txns in (singles.txns, state.txns)
    )
    if expires:
        expected_versions = {n: v for n, v in expected_versions.items() if n in versions}
    configured, expected_domains = (
        {name: None if domain.removed else domain.configuration for name, domain in domains.items()}
        for domains in (singles.domains, state.domains)
    )
    pairs: tuple[tuple[str, Mapping[str, str | None], Mapping[str, str | None]], ...] = (
        ("transaction of", versions, expected_versions),
        ("domain", configured, expected_domains),
    )
    for subject, there, expected_values in pairs:
        for name in sorted(expected_values.keys() | (there.keys() if is_whole else set())):
            if there.get(name) != expected_values.get(name):
                yield f"has another {subject} {name}"
