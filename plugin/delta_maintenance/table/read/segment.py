"""The files of the log that make up a version.

Implements the rules for choosing files in "Delta Log Entries", "Checkpoints", "Log Compaction
Files" and "Last Checkpoint File". Choosing uses names, sizes and times only. If a chosen checkpoint
proves unreadable when it is opened, the files are chosen again without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from delta_maintenance.errors import (
    CorruptTableError,
    NotADeltaTableError,
    StorageError,
    VersionNotFoundError,
)
from delta_maintenance.protocol.delta_log.file_names import (
    LAST_CHECKPOINT,
    LogFileKind,
    commit_name,
    parse_log_file_name,
    version_prefix,
)
from delta_maintenance.protocol.delta_log.last_checkpoint import LastCheckpointHint, parse_hint
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, LogEntry, read_hint

_CHECKPOINT_RANK = {
    LogFileKind.CLASSIC_CHECKPOINT: 0,
    LogFileKind.MULTIPART_CHECKPOINT: 1,
    LogFileKind.UUID_CHECKPOINT: 2,
}


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The top-level files of one checkpoint: one file, or all parts in order."""

    version: int
    kind: LogFileKind
    entries: tuple[LogEntry, ...]

    @property
    def name(self) -> str:
        """The name of the first file, which identifies the checkpoint in messages."""
        return self.entries[0].file.name


@dataclass(frozen=True, slots=True)
class LogListing:
    """The log directory from `first_version` on, as of one listing."""

    first_version: int
    commits: Mapping[int, LogEntry]
    checkpoints: tuple[CheckpointFiles, ...]
    """Checkpoints that are complete by name and size, the preferred one last."""
    compactions: tuple[LogEntry, ...]
    checksums: Mapping[int, LogEntry]
    incomplete: tuple[str, ...]
    """Checkpoint files that are certainly unusable: empty files and lone parts."""
    guarded: tuple[LogEntry, ...] = ()
    """Copies of guarded commits and their marks, of all versions (`table.commit.guarded`)."""


@dataclass(frozen=True, slots=True)
class LogSegment:
    """The files that make up `version`: a checkpoint or none, and the commits after it."""

    version: int
    checkpoint: CheckpointFiles | None
    tail: tuple[LogEntry, ...]
    """Commits, and compactions in place of the commits they cover, by ascending version."""
    commits: tuple[LogEntry, ...]
    """All commits after the checkpoint, by ascending version."""
    last_commit: LogEntry | None
    """The commit of `version` itself; None if a log clean-up by older rules deleted it."""
    base_commit: LogEntry | None
    """The commit of the checkpoint's version; None without a checkpoint, or if it was deleted."""
    guarded: tuple[LogEntry, ...] = ()
    """As in the listing."""

    @property
    def commits_by_version(self) -> dict[int, LogEntry]:
        """The commits after the checkpoint."""
        return {entry.file.version or 0: entry for entry in self.commits}

    @property
    def base_version(self) -> int:
        """The version of the checkpoint, -1 without one."""
        return self.checkpoint.version if self.checkpoint is not None else -1


def list_log(store: Store, *, first_version: int = 0) -> LogListing:
    """Lists the log from a version on. Does not list sidecars and other folders."""
    entries = list_entries(store, start=version_prefix(first_version))
    return arrange(entries, first_version=first_version)


def find_commit(store: Store, listing: LogListing, version: int) -> LogEntry | None:
    """Returns the commit of a version, also if the listing omits it, as the listings of some stores
    do for a while. None if the file does not exist.
    """
    if version in listing.commits:
        return listing.commits[version]
    name = commit_name(version)
    status = store.stat(f"{LOG_DIRECTORY}/{name}")
    return None if status is None else LogEntry(parse_log_file_name(name), status)


def list_entries(store: Store, folder: str = "", *, start: str = "") -> Iterator[LogEntry]:
    """Yields every file of the log, or of a folder in it, whose bare name is `>= start`."""
    directory = f"{LOG_DIRECTORY}/{folder}" if folder else LOG_DIRECTORY
    for status in store.list_from(directory, start):
        yield LogEntry(parse_log_file_name(status.path.removeprefix(f"{LOG_DIRECTORY}/")), status)


def arrange(entries: Iterable[LogEntry], *, first_version: int = 0) -> LogListing:
    """Sorts the files of a log, from a version on, by kind."""
    commits: dict[int, LogEntry] = {}
    checksums: dict[int, LogEntry] = {}
    compactions: list[LogEntry] = []
    candidates: list[LogEntry] = []
    guarded: list[LogEntry] = []
    for entry in entries:
        file = entry.file
        if file.kind is LogFileKind.COMMIT and file.version is not None:
            commits[file.version] = entry
        elif file.kind is LogFileKind.CHECKSUM and file.version is not None:
            checksums[file.version] = entry
        elif file.kind is LogFileKind.COMPACTION:
            compactions.append(entry)
        elif file.kind in _CHECKPOINT_RANK:
            candidates.append(entry)
        elif file.kind in (LogFileKind.GUARDED_COPY, LogFileKind.GUARDED_MARK):
            guarded.append(entry)
    checkpoints, incomplete = _complete_checkpoints(candidates)
    return LogListing(
        first_version,
        commits,
        checkpoints,
        tuple(compactions),
        checksums,
        incomplete,
        tuple(guarded),
    )


def hinted_version(store: Store) -> int | None:
    """Returns the version of the newest checkpoint according to `_last_checkpoint`, if that is
    valid.
    """
    hint = last_checkpoint_hint(store)
    return None if hint is None else hint.version


def last_checkpoint_hint(store: Store) -> LastCheckpointHint | None:
    """Reads `_last_checkpoint`; None if it is missing or invalid."""
    try:
        return parse_hint(read_hint(store, f"{LOG_DIRECTORY}/{LAST_CHECKPOINT}"))
    except (FileNotFoundError, StorageError):
        # Without the hint the whole log is listed; if the store is unavailable, that fails.
        return None


def no_log() -> NotADeltaTableError:
    """Returns the error for an address without a log."""
    return NotADeltaTableError(
        "the folder _delta_log is missing or empty",
        remedy="check the address; a Delta table has a _delta_log folder with commits",
    )


def latest_version(listing: LogListing) -> int | None:
    """Returns the newest version with a listed commit or a complete checkpoint."""
    versions = [*listing.commits, *(checkpoint.version for checkpoint in listing.checkpoints)]
    return max(versions, default=None)


def openable_versions(listing: LogListing) -> frozenset[int]:
    """Returns the versions with all commits since a complete checkpoint, or since version 0."""
    openable = {-1, *(checkpoint.version for checkpoint in listing.checkpoints)}
    for version in sorted(listing.commits):
        if version - 1 in openable:
            openable.add(version)
    return frozenset(openable - {-1})


def choose_segment(
    listing: LogListing, version: int | None = None, *, avoid: Collection[str] = ()
) -> LogSegment:
    """Chooses the files of `version`, by default the latest.

    `avoid` names checkpoints and compactions found to be unusable. Raises `NotADeltaTableError` for
    an empty log, `VersionNotFoundError` for a version that is not retained or does not exist yet,
    and `CorruptTableError`, which names the first missing commit, for a gap.
    """
    latest = latest_version(listing)
    if latest is None:
        raise NotADeltaTableError(
            "the log contains no commit and no complete checkpoint",
            remedy="check the address; a table has at least one of them",
        )
    target = latest if version is None else version
    if not 0 <= target <= latest:
        raise VersionNotFoundError(
            f"version {target} does not exist", remedy=f"request one up to {latest}"
        )
    usable = [c for c in listing.checkpoints if c.version <= target and c.name not in avoid]
    checkpoint = usable[-1] if usable else None
    base = checkpoint.version if checkpoint is not None else -1
    commits = []
    for number in range(base + 1, target + 1):
        if number not in listing.commits:
            raise _missing(listing, target, number, avoid)
        commits.append(listing.commits[number])
    return LogSegment(
        version=target,
        checkpoint=checkpoint,
        tail=_with_compactions(commits, base, target, listing.compactions, avoid),
        commits=tuple(commits),
        last_commit=listing.commits.get(target),
        base_commit=listing.commits.get(base),
        guarded=listing.guarded,
    )


def segment_after(segment: LogSegment, listing: LogListing) -> LogSegment | None:
    """Returns the segment of the newest version, given that of an earlier one and a listing from
    there on.

    None if the earlier segment may no longer be a part of the log: its last commit is another file,
    a commit is missing, or a checkpoint or log compaction is listed that it does not use.
    """
    newest_commit = segment.last_commit
    if newest_commit is None or listing.commits.get(segment.version) != newest_commit:
        return None
    known_checkpoints = () if segment.base_version < segment.version else (segment.checkpoint,)
    if any(checkpoint not in known_checkpoints for checkpoint in listing.checkpoints):
        return None
    if listing.compactions or listing.incomplete:
        return None
    newest = max(listing.commits)
    versions = range(segment.version + 1, newest + 1)
    if any(version not in listing.commits for version in versions):
        return None
    newer = tuple(listing.commits[version] for version in versions)
    return replace(
        segment,
        version=newest,
        tail=(*segment.tail, *newer),
        commits=(*segment.commits, *newer),
        last_commit=newer[-1] if newer else newest_commit,
        guarded=listing.guarded,
    )


def without_compaction(segment: LogSegment, name: str) -> LogSegment:
    """Returns the same segment with the commits of one compaction instead of that compaction."""
    tail: list[LogEntry] = []
    for entry in segment.tail:
        if entry.file.name != name:
            tail.append(entry)
            continue
        start_version, end_version = entry.file.version, entry.file.end_version
        assert start_version is not None and end_version is not None
        offset = segment.base_version + 1
        tail.extend(segment.commits[start_version - offset : end_version + 1 - offset])
    return replace(segment, tail=tuple(tail))


def _complete_checkpoints(
    candidates: list[LogEntry],
) -> tuple[tuple[CheckpointFiles, ...], tuple[str, ...]]:
    complete: list[CheckpointFiles] = []
    entries_by_part: defaultdict[tuple[int, int], dict[int, LogEntry]] = defaultdict(dict)
    incomplete: list[str] = []
    for entry in candidates:
        file = entry.file
        assert file.version is not None
        if entry.status.size == 0:
            incomplete.append(file.name)
        elif file.part is not None and file.parts is not None:
            entries_by_part[file.version, file.parts][file.part] = entry
        else:
            complete.append(CheckpointFiles(file.version, file.kind, (entry,)))
    for (version, count), part_entries in entries_by_part.items():
        entries = tuple(part_entries[number] for number in sorted(part_entries))
        if len(entries) == count:
            complete.append(CheckpointFiles(version, LogFileKind.MULTIPART_CHECKPOINT, entries))
        else:
            incomplete.extend(entry.file.name for entry in entries)
    complete.sort(key=lambda c: (c.version, _CHECKPOINT_RANK[c.kind], len(c.entries), c.name))
    return tuple(complete), tuple(sorted(incomplete))


def _with_compactions(
    commits: list[LogEntry],
    base: int,
    target: int,
    compactions: tuple[LogEntry, ...],
    avoid: Collection[str],
) -> tuple[LogEntry, ...]:
    longest: dict[int, LogEntry] = {}
    for entry in compactions:
        start_version, end_version = entry.file.version, entry.file.end_version
        assert start_version is not None and end_version is not None
        if (
            base < start_version
            and end_version <= target
            and entry.file.name not in avoid
            and entry.status.size
        ):
            longest_entry = longest.get(start_version)
            if longest_entry is None or (longest_entry.file.end_version or 0) < end_version:
                longest[start_version] = entry
    tail: list[LogEntry] = []
    number = base + 1
    while number <= target:
        entry = longest.get(number, commits[number - base - 1])
        tail.append(entry)
        number = (entry.file.end_version or number) + 1
    return tuple(tail)


def _missing(
    listing: LogListing, target: int, number: int, avoid: Collection[str]
) -> CorruptTableError | VersionNotFoundError:
    earliest = min((c.version for c in listing.checkpoints if c.version > target), default=None)
    unusable = sorted({*avoid, *listing.incomplete})
    below = any(commit < number for commit in listing.commits)
    if earliest is not None and not below:
        return VersionNotFoundError(
            f"version {target} is no longer retained: commit {number} was deleted",
            version=target,
            remedy=f"request version {earliest} or a later one",
        )
    because = f" (unusable: {', '.join(unusable)})" if unusable else ""
    return CorruptTableError(
        f"commit {number} is missing and no usable checkpoint comes after it{because}",
        version=target,
        file=f"{LOG_DIRECTORY}/{version_prefix(number)}.json",
        remedy="restore the missing files, or open a version before the gap",
    )
