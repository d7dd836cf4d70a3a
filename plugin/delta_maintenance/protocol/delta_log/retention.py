"""The files and versions of a log that may be deleted, and the versions that are missing in it.

Implements the parts of "Metadata Cleanup" that concern names and times. All times are in
milliseconds since 1970-01-01 UTC. A single misnamed file can create a huge gap, so gaps are never
enumerated version by version.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from delta_maintenance.protocol.delta_log.file_names import (
    LogFile,
    LogFileKind,
    parse_log_file_name,
)


def version_gaps(versions: Iterable[int], *, first: int = 0) -> list[tuple[int, int]]:
    """Returns the first and the last version of each gap from version `first` on, ascending."""
    ordered = sorted({version for version in versions if version >= first})
    return [(low + 1, high - 1) for low, high in pairwise(ordered) if high > low + 1]


def start_of_run(versions: Collection[int], newest: int) -> int:
    """Returns the first version of the contiguous run that ends with `newest`.

    `newest` + 1 if `newest` is missing.
    """
    start = newest + 1
    for version in sorted((version for version in versions if version <= newest), reverse=True):
        if version != start - 1:
            break
        start = version
    return start


_BELOW = frozenset(
    {
        LogFileKind.COMMIT,
        LogFileKind.CHECKSUM,
        LogFileKind.CLASSIC_CHECKPOINT,
        LogFileKind.MULTIPART_CHECKPOINT,
        LogFileKind.UUID_CHECKPOINT,
    }
)


_UP_TO = frozenset({LogFileKind.COMPACTION, LogFileKind.STAGED_COMMIT})


def midnight_before(now: datetime, age: timedelta) -> datetime | None:
    """The last midnight UTC that is at least `age` ago, or None before the first calendar year.

    Truncating to the day makes all runs of one day decide the same.
    """
    minute = minute_before(now, age)
    return None if minute is None else minute.replace(hour=0, minute=0)


def minute_before(now: datetime, age: timedelta) -> datetime | None:
    """The last full minute that is at least `age` ago, or None before the first calendar year."""
    try:
        instant = now.astimezone(UTC) - age
    except OverflowError:
        return None
    return instant.replace(second=0, microsecond=0)


def commit_times(modified_ms: Mapping[int, int], *, now_ms: int) -> dict[int, int]:
    """The time that decides the age of each commit, by version.

    It is the modification time of the file, made strictly increasing as in Delta Spark: a file that
    is not newer than the one before counts as one millisecond newer. An impossible time counts as
    now, which keeps the commit and all later ones.
    """
    return increasing_times(
        {version: time if time > 0 else now_ms for version, time in modified_ms.items()}
    )


def increasing_times(modified_ms: Mapping[int, int]) -> dict[int, int]:
    """The times by version; one that is not greater than the one before is a millisecond later."""
    times: dict[int, int] = {}
    for version in sorted(modified_ms):
        earlier = next(reversed(times.values()), None)
        time = modified_ms[version]
        times[version] = time if earlier is None else max(time, earlier + 1)
    return times


def newest_not_after(times: Mapping[int, int], instant_ms: int) -> int | None:
    """The newest version whose time is not after `instant_ms`; times increase with versions."""
    versions = sorted(times)
    position = bisect_right(versions, instant_ms, key=lambda version: times[version])
    return versions[position - 1] if position else None


def is_expired(file: LogFile, boundary: int) -> bool:
    """Whether a file is not needed if the checkpoint of version `boundary` is the oldest version.

    The commit of that version is kept with its checkpoint. Log compactions that start at or before
    it are not needed, because readers no longer replay the commits that they replace.
    """
    if file.version is None:
        return False
    if file.kind in _UP_TO:
        return file.version <= boundary
    return file.kind in _BELOW and file.version < boundary


def checksummed_file(file: LogFile) -> LogFile | None:
    """The file that a Hadoop checksum file belongs to, or None for other files."""
    if file.kind is not LogFileKind.HADOOP_CHECKSUM:
        return None
    directory, slash, name = file.name.rpartition("/")
    return parse_log_file_name(directory + slash + name[1:].removesuffix(".crc"))
