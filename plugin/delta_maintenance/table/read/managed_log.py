"""The log of a catalog-managed table, as its catalog states it.

Implements "Reading Catalog-managed Tables". The catalog names the latest version and the commits
that it ratified and that may not be published yet. Their staged files take the place of published
files of the same versions, and files above the latest version do not exist for readers. The state
is requested before the log is listed, so a commit that the catalog no longer names is in the
listing. If it is not, it is lost: catalogs do not check what they are told of a commit.

Only the catalog commits, so a store gives the right to write what "Maintenance Operations" allows
without its permission: checksums of all versions, checkpoints and log compactions of published
versions, and `_last_checkpoint`. A commit is published only as a copy of its staged file. With the
permission of the catalog, staged files of published and reported commits are deleted. All other
writes are refused.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, NoReturn, TypeVar

from delta_maintenance.errors import (
    BusyError,
    CatalogError,
    CorruptTableError,
    RefusedError,
    StorageError,
    UnsupportedFeatureError,
    locating,
)
from delta_maintenance.protocol.delta_log.file_names import (
    STAGED_COMMIT_DIRECTORY,
    LogFileKind,
    commit_name,
    parse_log_file_name,
    version_prefix,
)
from delta_maintenance.protocol.features.registry import MAINTENANCE_PERMISSIONS, Operation
from delta_maintenance.protocol.ndjson.split import parse_other_lines, split
from delta_maintenance.storage.core.base import FileStatus, Put, Store, WrappedStore
from delta_maintenance.storage.options import split_reference
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, commit_path, read_text

if TYPE_CHECKING:
    from delta_maintenance.catalogs.catalog import (
        Catalog,
        CatalogTable,
        ManagedState,
        RatifiedCommit,
    )
    from delta_maintenance.catalogs.reference import CatalogReference

T = TypeVar("T")

LOST_COMMIT = (
    "find out from the writer of the commit which staged file it committed, and let it publish "
    "that file under the name of the commit; until then, open an older version"
)
"""The remedy for a commit that the catalog states and that is not published."""
_NO_STAGED_FILE = (
    "restore the commit from a backup or from the versions of the store, unless the table is being "
    "dropped; until then, open an older version"
)
_REPLACEABLE = frozenset(
    (LogFileKind.CLASSIC_CHECKPOINT, LogFileKind.UUID_CHECKPOINT, LogFileKind.LAST_CHECKPOINT)
)
"""The kinds of files that `put` writes. A checkpoint replaces the empty file of a dead writer."""
_WRITABLE = _REPLACEABLE | {LogFileKind.SIDECAR, LogFileKind.COMPACTION, LogFileKind.CHECKSUM}
_MOST_NAMED = 3
"""The number of staged files that a message names."""


class ManagedStore(WrappedStore):
    """A store whose log is that of the catalog. Thread-safe, as the store behind it.

    `state` asks the catalog; it is called before each listing of the log. `report` tells it that
    all commits of the table with an ID are published, up to a version.
    """

    def __init__(
        self, store: Store, state: Callable[[], ManagedState], report: Callable[[str, int], None]
    ) -> None:
        super().__init__(store)
        self._ask = state
        self.report_published = report
        self._lock = threading.Lock()
        self._state: ManagedState | None = None
        self._unreadable: frozenset[RatifiedCommit] = frozenset()
        """Ratified commits for which neither a staged nor a published file was found."""
        self._created: frozenset[str] = frozenset()

    @property
    def state(self) -> ManagedState:
        """The state at the last listing of the log."""
        with self._lock:
            if self._state is None:
                self._state = self._ask()
            return self._state

    def ask(self) -> ManagedState:
        """Asks the catalog for the state now."""
        state = self._ask()
        with self._lock:
            self._state = state
        return state

    def at_last_listing(self) -> ManagedStore:
        """Returns the log as the catalog stated it at the last listing, for several listings of one
        measurement: they ask the catalog nothing.
        """
        state = self.state
        return ManagedStore(self._store, lambda: state, self.report_published)

    def publish(self, commit: RatifiedCommit) -> Put:
        """Publishes a ratified commit: puts the bytes of its staged file under its usual name, and
        reads them back. Three requests. Implements "Publishing".

        Raises `CorruptTableError` if another file has the name, or if no file has the commit.
        """
        path, staged = commit_path(commit.version), _staged_path(commit)
        with locating(table=self.root, version=commit.version, file=path):
            try:
                data = read_text(self._store, staged, may_be_empty=True)
            except FileNotFoundError:
                self._require_published(commit)
                return Put.EXISTS
            # Readers would refuse the table; until it is published, the file can be restored.
            _require_ratified(commit, data)
            parse_other_lines(split(staged, data))
            put = self._store.put_if_absent(path, data)
            try:
                published = read_text(self._store, path, may_be_empty=True)
            except FileNotFoundError:
                raise StorageError(
                    "the published commit cannot be read back",
                    remedy="find the process that deletes files of this log",
                ) from None
            if published != data:
                raise CorruptTableError(
                    f"the published commit differs from the ratified one, which is {staged}",
                    remedy="find out which writer ignored the catalog, and let the owner of the "
                    "table decide which of the two files is the commit",
                )
            return put

    def _require_published(self, commit: RatifiedCommit) -> None:
        """Raises unless the published commit is the ratified one, whose staged file is gone."""
        try:
            data = read_text(self._store, commit_path(commit.version), may_be_empty=True)
        except FileNotFoundError:
            if commit not in self.ask().commits:
                raise BusyError(
                    "other clients have published and deleted the commit", remedy="run again"
                ) from None
            raise CorruptTableError(
                "the commit is neither staged nor published", remedy=_NO_STAGED_FILE
            ) from None
        _require_ratified(commit, data)

    def count_unpublished(self) -> int:
        """Counts the ratified commits that are not published. Takes one listing of the log."""
        return len(self._unpublished_versions(self.state))

    def newest_published(self) -> int:
        """Returns the newest version up to which all are published. Takes one listing of the log if
        the catalog lists commits.
        """
        state = self.state
        unpublished = self._unpublished_versions(state)
        return unpublished[0] - 1 if unpublished else state.latest_version

    def _unpublished_versions(self, state: ManagedState) -> list[int]:
        versions = [commit.version for commit in state.commits]
        if not versions:
            return []
        listed = self._store.list_from(LOG_DIRECTORY, version_prefix(versions[0]))
        names = {status.path.rpartition("/")[2] for status in listed}
        return [version for version in versions if commit_name(version) not in names]

    def lost_commit(self, newest: int) -> CorruptTableError | None:
        """Returns the error for a log that ends at the version `newest` although the catalog states
        a later one; None if the later version was only committed since the log was listed.
        """
        stated = self.state.latest_version
        if stated <= newest or self.stat(commit_path(stated)) is not None:
            return None
        problem = f"the catalog states version {stated}, but the log ends at version {newest}"
        return self._lost_commit_error(problem, newest + 1, stated)

    def require_reported_commit(self, version: int) -> None:
        """Raises `CorruptTableError` unless the log has the commit of a version that the catalog
        does not list because it was reported, or a checkpoint that replaces it. One request or two.
        """
        if version < 0 or self._store.stat(commit_path(version)) is not None:
            return
        listed = self._store.list_from(LOG_DIRECTORY, version_prefix(version))
        if not any(".checkpoint." in status.path for status in listed):
            problem = f"version {version} was reported to the catalog as published, but is not"
            raise self._lost_commit_error(problem, version, version)

    def _lost_commit_error(
        self, problem: str, first_version: int, last_version: int
    ) -> CorruptTableError:
        staged = self.staged_files(first_version, last_version)
        files = staged or "there is no staged file that could be the missing commit"
        return CorruptTableError(
            f"{problem}, and {files}",
            table=self.root,
            version=last_version,
            file=commit_path(first_version),
            remedy=LOST_COMMIT if staged else _NO_STAGED_FILE,
        )

    def staged_files(self, first_version: int, last_version: int) -> str:
        """Returns a clause that names the staged files of some versions; empty if there is none."""
        folder = f"{LOG_DIRECTORY}/{STAGED_COMMIT_DIRECTORY}"
        files = (
            parse_log_file_name(status.path.removeprefix(f"{LOG_DIRECTORY}/"))
            for status in self._store.list_from(folder, version_prefix(first_version))
            if status.path < f"{folder}/{version_prefix(last_version + 1)}"
        )
        staged = (file.name for file in files if file.kind is LogFileKind.STAGED_COMMIT)
        names = [*islice(staged, _MOST_NAMED + 1)]
        suffix = " and others" if len(names) > _MOST_NAMED else ""
        listed = f"{', '.join(names[:_MOST_NAMED])}{suffix}"
        return f"staged files that could be it: {listed}" if names else ""

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        if directory != LOG_DIRECTORY:
            return self._store.list_from(directory, start)
        state = self._ask()
        unreadable = frozenset(
            commit for commit in self._unreadable if self._store.stat(_staged_path(commit)) is None
        )
        with self._lock:
            self._state, self._unreadable = state, unreadable
        staged = [_status(commit) for commit in state.commits if commit not in unreadable]
        ratified = {status.path for status in staged}
        published = (
            status
            for status in self._store.list_from(directory, start)
            if status.path not in ratified and not _is_above(status.path, state.latest_version)
        )
        selected = (status for status in staged if status.path >= f"{LOG_DIRECTORY}/{start}")
        return heapq.merge(published, selected, key=lambda status: status.path)

    def stat(self, path: str) -> FileStatus | None:
        commit = self._ratified_commit(path)
        staged = None if commit is None else self._store.stat(_staged_path(commit))
        entry = staged or self._store.stat(path)
        return entry and replace(entry, path=path)

    def read(self, path: str) -> bytes:
        data = self._published_instead(self._store.read, path)
        commit = self._ratified_commit(path)
        if commit is not None:
            _require_ratified(commit, data)
        return data

    def read_head(self, path: str, size: int) -> bytes:
        return self._published_instead(lambda location: self._store.read_head(location, size), path)

    def open(self, path: str) -> BinaryIO:
        # A large commit is read in pieces, so only its size shows that it was cut after a line.
        commit = self._ratified_commit(path)
        status = None if commit is None else self.stat(path)
        if commit is not None and status is not None and status.size != commit.size:
            raise _no_ratified_error(commit, _size_problem(commit, status.size))
        return self._published_instead(self._store.open, path)

    def put_if_absent(self, path: str, data: bytes) -> Put:
        self._require_permitted(path, _WRITABLE)
        return self._store.put_if_absent(path, data)

    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        self._require_permitted(path, _WRITABLE)
        return self._create(path)

    @contextmanager
    def _create(self, path: str) -> Iterator[BinaryIO]:
        with self._store.create(path) as file:
            yield file
        with self._lock:
            self._created |= {path}

    def put(self, path: str, data: bytes) -> None:
        self._require_permitted(path, _REPLACEABLE)
        self._store.put(path, data)

    def delete(self, path: str) -> None:
        for error in self.delete_many([path]).values():
            raise error

    def delete_many(self, paths: Iterable[str]) -> dict[str, StorageError]:
        """Deletes files that this store has created, and staged files of versions that are
        published and that the catalog, asked now, does not list. Keeps other staged files, with an
        error, and refuses all other paths.
        """
        paths = [*paths]
        needed = self._needed_files([path for path in paths if path not in self._created])
        return needed | self._store.delete_many(path for path in paths if path not in needed)

    def close(self) -> None:
        self._store.close()

    def _needed_files(self, paths: list[str]) -> dict[str, StorageError]:
        """Returns the staged files that may be the only copy of a commit, each with the error."""
        versions: dict[str, int] = {}
        for path in paths:
            file = parse_log_file_name(path.removeprefix(f"{LOG_DIRECTORY}/"))
            if file.kind is not LogFileKind.STAGED_COMMIT or file.version is None:
                self._refuse(path)
            versions[path] = file.version
        if not versions:
            return {}
        state = self.ask()
        if MAINTENANCE_PERMISSIONS[Operation.CLEAN_STAGED] not in state.allowed_maintenance:
            self._refuse(paths[0])
        listed = self._store.list_from(LOG_DIRECTORY, version_prefix(min(versions.values())))
        published = {status.path for status in listed}
        published -= {commit_path(commit.version) for commit in state.commits}
        return {
            path: StorageError("its version is not published and reported", file=path)
            for path, version in versions.items()
            if version > state.latest_version or commit_path(version) not in published
        }

    def _require_permitted(self, path: str, kinds: frozenset[LogFileKind]) -> None:
        """Raises unless the protocol permits everybody to write this file; `RefusedError` for a
        checkpoint or a log compaction of a version that is not published.
        """
        file = parse_log_file_name(path.removeprefix(f"{LOG_DIRECTORY}/"))
        if not path.startswith(f"{LOG_DIRECTORY}/") or file.kind not in kinds:
            self._refuse(path)
        version = file.version if file.end_version is None else file.end_version
        if version is None or file.kind is LogFileKind.SIDECAR:
            # A sidecar belongs to no version until a checkpoint names it.
            return
        is_ratified = version <= self.state.latest_version
        if file.kind is LogFileKind.CHECKSUM and is_ratified:
            return
        published = commit_path(version)
        if not is_ratified or (
            self._ratified_commit(published) is not None and self._store.stat(published) is None
        ):
            raise RefusedError(
                "the version is not published",
                table=self.root,
                version=version,
                file=path,
                remedy="run publish first",
            )

    def _published_instead(self, read: Callable[[str], T], path: str) -> T:
        """Reads the staged file of a commit; the published one if it was cleaned up since."""
        commit = self._ratified_commit(path)
        if commit is None:
            return read(path)
        try:
            return read(_staged_path(commit))
        except FileNotFoundError:
            pass
        try:
            return read(path)
        except FileNotFoundError:
            # The next listing ends before it, unless it is published until then.
            with self._lock:
                self._unreadable |= {commit}
            raise

    def _ratified_commit(self, path: str) -> RatifiedCommit | None:
        """Returns the ratified commit at the path of a published one; None if there is none."""
        directory, _, name = path.rpartition("/")
        if directory != LOG_DIRECTORY:
            return None
        file = parse_log_file_name(name)
        if file.kind is not LogFileKind.COMMIT:
            return None
        commits = self.state.commits
        return next((commit for commit in commits if commit.version == file.version), None)

    def _refuse(self, path: str) -> NoReturn:
        raise UnsupportedFeatureError(
            "only the catalog changes a catalog-managed table",
            table=self.root,
            file=path,
            remedy="wait for a release that commits through catalogs",
        )


def managed_log(
    store: Store, storage_options: Mapping[str, str] | None, environment: Mapping[str, str]
) -> Store:
    """Returns the store of a table as its catalog states it, if its commits go through one."""
    reference, _ = split_reference(store.address, storage_options, environment)
    if reference is None or not reference.managed:
        return store
    entry = _CatalogEntry(reference)
    return ManagedStore(store, entry.state, entry.report_published)


def as_last_listed(store: Store) -> Store:
    """Returns the store for further listings at the same version, which ask no catalog."""
    return store.at_last_listing() if isinstance(store, ManagedStore) else store


def require_stated_version(store: Store, newest: int) -> None:
    """Raises `CorruptTableError` if the log ends at the version `newest` although the catalog of
    the table states a later one.
    """
    lost = store.lost_commit(newest) if isinstance(store, ManagedStore) else None
    if lost is not None:
        raise lost


class _CatalogEntry:
    """The entry of a table in its catalog."""

    def __init__(self, reference: CatalogReference) -> None:
        self._reference = reference
        self._table: CatalogTable | None = None

    def state(self) -> ManagedState:
        """Asks for the commits of the table."""
        catalog, table = self._resolve()
        state = catalog.managed_state(table)
        if state is None:
            raise CatalogError(
                "the catalog does not state the commits of the table",
                table=str(self._reference.name),
                remedy="report the version of the catalog; this release cannot read the table",
            )
        return state

    def report_published(self, table_id: str, version: int) -> None:
        """Tells the catalog that all commits up to a version are published."""
        catalog, table = self._resolve()
        catalog.report_published(replace(table, table_id=table_id), version)

    def _resolve(self) -> tuple[Catalog, CatalogTable]:
        from delta_maintenance.catalogs.credentials import catalog_of

        catalog = catalog_of(self._reference)
        # Kept, so that a table that was dropped and created again is noticed.
        reference = self._reference
        self._table = self._table or reference.table() or catalog.resolve(reference.name)
        return catalog, self._table


def _staged_path(commit: RatifiedCommit) -> str:
    return f"{LOG_DIRECTORY}/{STAGED_COMMIT_DIRECTORY}/{commit.file_name}"


def _status(commit: RatifiedCommit) -> FileStatus:
    return FileStatus(
        path=commit_path(commit.version), size=commit.size, modified_ms=commit.modified_ms
    )


def _require_ratified(commit: RatifiedCommit, data: bytes) -> None:
    """Raises unless a file can be the commit, by its size and its in-commit timestamp.

    A file that was cut after a line, for example, would be a valid commit without some files.
    """
    problem = _size_problem(commit, len(data))
    if data and len(data) == commit.size:
        try:
            first_line = split(commit.file_name, data.partition(b"\n")[0])
            info = parse_other_lines(first_line, commit_info=True)[0].commit_info
        except CorruptTableError as error:
            problem = error.problem
        else:
            timestamp = None if info is None else info.in_commit_timestamp
            if timestamp in (None, commit.timestamp_ms):
                return
            problem = f"its in-commit timestamp is {timestamp} instead of {commit.timestamp_ms}"
    raise _no_ratified_error(commit, problem)


def _size_problem(commit: RatifiedCommit, size: int) -> str:
    return f"it has {size} bytes instead of {commit.size}"


def _no_ratified_error(commit: RatifiedCommit, problem: str) -> CorruptTableError:
    return CorruptTableError(
        f"the commit is not {commit.file_name} as the catalog states it: {problem}",
        version=commit.version,
        file=commit_path(commit.version),
        remedy=_NO_STAGED_FILE,
    )


def _is_above(path: str, latest: int) -> bool:
    file = parse_log_file_name(path.rpartition("/")[2])
    version = file.end_version if file.end_version is not None else file.version
    return version is not None and version > latest
